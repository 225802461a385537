"""A matrix in a folder: the same rows come back, in any pieces, and what is broken is told."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.distributed import files, row_partition
from tests.distributed.problems import MESH, irregular
from tests.test_saved import rewritten

S = irregular()


@pytest.mark.parametrize("pieces", [1, 7])
def test_every_run_of_rows_comes_back(pieces, tmp_path):
    jsf.save_rows(tmp_path, lambda a, b: S[a:b], n=np.int64(90), pieces=pieces)
    saved = jsf.saved_rows(tmp_path)
    for start, stop in ((0, 90), (3, 40), (90, 90), (75, 80)):
        block = saved(start, stop)
        assert block.shape == (stop - start, 90) and block.dtype == S.dtype
        assert block.nnz == S[start:stop].nnz and abs(block - S[start:stop]).sum() == 0
    with pytest.raises(ValueError, match=r"rows 5 to 91 were asked for, and .* holds rows 0 to 90"):
        saved(5, 91)


def test_what_eight_devices_hold_loads_onto_them_again_and_onto_three(tmp_path):
    for folder, B in {
        "reordered": jsf.shard(S, MESH, format="csr", reorder="rcm"),
        "a part each": jsf.shard(S, MESH, format="csr"),
    }.items():
        jsf.save_rows(tmp_path / "new" / folder, B)
        saved = jsf.saved_rows(tmp_path / "new" / folder)
        again = jsf.shard_from_rows(saved, 90, MESH, format="csr", starts=saved.starts(8))
        assert abs(again.to_scipy() - S).max() == 0
        np.testing.assert_array_equal(saved.starts(3), row_partition.equal_nnz(np.diff(S.indptr), 3))
    assert len(saved.cuts) == 9


@pytest.mark.parametrize(
    "T", [sp.csr_array((4, 6)), sp.csr_array((0, 3)), sp.csr_array(np.array([[1 + 2j]]))], ids=repr
)
def test_corner_cases_come_back(T, tmp_path):
    jsf.save_rows(tmp_path, T)
    back = jsf.saved_rows(tmp_path)(0, T.shape[0])
    assert back.shape == T.shape and back.dtype == T.dtype and abs(back - T).sum() == 0
    narrower = lambda a, b: TEN[a:b].astype("float32" if a else "float64")  # noqa: E731
    jsf.save_rows(tmp_path / "narrower", narrower, n=10, pieces=2)
    assert abs(jsf.saved_rows(tmp_path / "narrower")(0, 10) - TEN).max() == 0


def test_what_an_interrupted_call_has_left_is_told(tmp_path):
    def rows_of(a, b):
        if a >= 45:
            raise KeyboardInterrupt
        return S[a:b]

    with pytest.raises(KeyboardInterrupt):
        jsf.save_rows(tmp_path, rows_of, n=90, pieces=6)
    with pytest.raises(FileNotFoundError, match=r"has 3 parts, which are not all rows .*save the matrix anew"):
        jsf.saved_rows(tmp_path)
    with pytest.raises(FileExistsError, match="name another folder, or remove it"):
        jsf.save_rows(tmp_path, lambda a, b: S[a:b], n=90, pieces=6)


def test_parts_that_were_exchanged_or_are_another_matrixs_are_refused(tmp_path):
    """The rows of these parts are as many, and their other files are whole."""
    for name, T in (("one", S), ("two", sp.csr_array(S + sp.eye_array(90)))):
        jsf.save_rows(tmp_path / name, lambda a, b, T=T: T[a:b], n=90, pieces=3)
    one, two = ([*sorted((tmp_path / name).glob("*.npz"))] for name in ("one", "two"))
    kept = one[1].read_bytes()
    for content, words in ((two[1].read_bytes(), "its matrix is"), (one[2].read_bytes(), "its first is 60, not 30")):
        one[1].write_bytes(content)
        saved = jsf.saved_rows(tmp_path / "one")
        assert abs(saved(0, 30) - S[:30]).max() == 0
        for use in (lambda saved=saved: saved(20, 40), lambda saved=saved: saved.starts(2)):
            with pytest.raises(ValueError, match=rf"^{one[1]}: it is no part of this matrix: {words}"):
                use()
    one[1].write_bytes(kept)
    assert abs(jsf.saved_rows(tmp_path / "one")(0, 90) - S).max() == 0


def test_a_matrix_held_whole_is_cut_into_parts_of_a_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PART", 1000)
    jsf.save_rows(tmp_path, S)
    sizes = [path.stat().st_size for path in tmp_path.glob("*.npz")]
    assert len(sizes) >= 4 and max(sizes) <= 1000 + 1500  # the header, and the heads of four arrays
    assert abs(jsf.saved_rows(tmp_path)(0, 90) - S).max() == 0


TEN = sp.csr_array(300 * sp.eye_array(10))
TYPES = [("int8", "int64"), ("float32", "float64"), ("complex64", "complex128"), ("int8", "uint8")]
NOT_SAVED = [
    (np.eye(3), {}, TypeError, "save_rows takes a scipy.sparse matrix.*got ndarray. scipy.sparse.csr_array makes"),
    (S, {"pieces": 0}, ValueError, "pieces must be at least 1; got 0"),
    (lambda a, b: S[a:b], {}, ValueError, "n, the number of rows"),
    (lambda a, b: S[a:b], {"n": 90, "pieces": 2.0}, TypeError, "pieces must be a whole number; got 2.0"),
    (lambda a, b: S[a:b], {"n": -1}, ValueError, "n must be at least 0; got -1"),
    (lambda a, b: np.eye(90)[a:b], {"n": 90}, TypeError, r"S\(0, 90\) must give a scipy.sparse matrix; got ndarray"),
    (lambda a, b: S[a:b, :50], {"n": 90}, ValueError, r"S\(0, 90\) must give a matrix \(90, 90\); got \(90, 50\)"),
    *(
        (lambda a, b, f=f, t=t: TEN[a:b].astype(t if a else f), {"n": 10, "pieces": 2}, ValueError, f"{t} .* were {f}")
        for f, t in TYPES
    ),
]


@pytest.mark.parametrize(("S", "options", "error", "words"), NOT_SAVED)
def test_what_cannot_be_saved_is_refused_in_words(S, options, error, words, tmp_path):
    with pytest.raises(error, match=words):
        jsf.save_rows(tmp_path / "rows", S, **options)


def test_what_is_in_the_way_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="was the matrix saved there"):
        jsf.saved_rows(tmp_path)
    jsf.save_rows(tmp_path, S)
    (path,) = tmp_path.iterdir()
    with pytest.raises(ValueError, match=r"is a part of a matrix; read it by jaxsparse_fmt.saved_rows\("):
        jsf.load(path)


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name in ("rows", "matrix") for value in (None, True, [7, -1])),
        *({"shape": [89, 90]}, {"shape": [10**15, 90]}, {"shape": [90, 2**40]}, {"rows": 91}),
        *({"dtype": "float32"}, {"dtype": "U9"}, {"first": 1}),
    ],
    ids=str,
)
def test_a_header_that_its_part_does_not_fit_is_refused(change, tmp_path):
    jsf.save_rows(tmp_path, S)
    rewritten(*tmp_path.iterdir(), **change)
    with pytest.raises((ValueError, FileNotFoundError), match=rf"^{tmp_path}.*save the matrix anew"):
        jsf.saved_rows(tmp_path)(0, 80)


def test_a_part_that_is_cut_short_is_refused_by_name_and_the_others_are_read(tmp_path):
    """How damage is found is asked in tests/test_saved.py, of the same reader."""
    jsf.save_rows(tmp_path, lambda a, b: S[a:b], n=90, pieces=2)
    path, saved = tmp_path / "000000000045-000000000090.npz", jsf.saved_rows(tmp_path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: .*save the matrix anew"):
        saved(80, 90)
    assert abs(saved(0, 45) - S[:45]).max() == 0
