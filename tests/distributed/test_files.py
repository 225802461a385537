"""A matrix in a folder: the same rows come back, in any pieces, and what is broken is told."""

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.distributed import files, row_partition
from tests.distributed.problems import MESH, irregular

S = irregular()


@pytest.mark.parametrize("pieces", [1, 7])
def test_every_run_of_rows_comes_back(pieces, tmp_path):
    jsf.save_rows(tmp_path, lambda a, b: S[a:b], n=np.int64(90), pieces=pieces)
    saved = jsf.saved_rows(tmp_path)
    for start, stop in ((0, 90), (3, 40), (90, 90), (75, 80)):
        block = saved(start, stop)
        assert block.shape == (stop - start, 90) and block.dtype == S.dtype
        assert block.nnz == S[start:stop].nnz and abs(block - S[start:stop]).sum() == 0


def test_what_eight_devices_hold_loads_onto_them_again_and_onto_three(tmp_path):
    B = jsf.shard(S, MESH, format="csr", reorder="rcm")
    jsf.save_rows(tmp_path / "new" / "folder", B)
    saved = jsf.saved_rows(tmp_path / "new" / "folder")
    again = jsf.shard_from_rows(saved, 90, MESH, format="csr", starts=saved.starts(8))
    assert abs(again.to_scipy() - S).max() == 0
    np.testing.assert_array_equal(saved.starts(3), row_partition.equal_nnz(np.diff(S.indptr), 3))


@pytest.mark.parametrize("T", [sp.csr_array((4, 6)), sp.csr_array(np.array([[1 + 2j]]))], ids=["empty", "complex"])
def test_corner_cases_come_back(T, tmp_path):
    jsf.save_rows(tmp_path, T)
    back = jsf.saved_rows(tmp_path)(0, T.shape[0])
    assert back.shape == T.shape and back.dtype == T.dtype and abs(back - T).sum() == 0


def test_what_is_broken_or_in_the_way_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="was the matrix saved there"):
        jsf.saved_rows(tmp_path)
    with pytest.raises(ValueError, match="n, the number of rows"):
        jsf.save_rows(tmp_path, lambda a, b: S[a:b])
    jsf.save_rows(tmp_path, S)
    for T in (S, 2 * S):
        with pytest.raises(FileExistsError, match="holds this matrix already, or another"):
            jsf.save_rows(tmp_path, T)
    changed(tmp_path, version=[2])
    with pytest.raises(ValueError, match=r"the version \[2\] is not 3; save the matrix anew"):
        jsf.saved_rows(tmp_path)
    (tmp_path / "matrix.npz").unlink()
    with pytest.raises(FileExistsError, match="is not empty"):
        jsf.save_rows(tmp_path, S)


def test_an_interrupted_call_is_continued(tmp_path):
    calls = []

    def rows_of(a, b):
        calls.append(a)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return S[a:b]

    with pytest.raises(KeyboardInterrupt):
        jsf.save_rows(tmp_path, rows_of, n=90, pieces=6)
    (tmp_path / ".000000000045.npz-1a2b3c").write_bytes(b"half a part, of a process that was killed")
    with pytest.raises(FileNotFoundError, match="has 3 of 6 parts; call save_rows as before"):
        jsf.saved_rows(tmp_path)
    with pytest.raises(FileExistsError, match="or another"):
        jsf.save_rows(tmp_path, lambda a, b: 2 * S[a:b], n=90, pieces=6)
    calls += range(3)
    jsf.save_rows(tmp_path, rows_of, n=90, pieces=6)
    assert calls[:4] == [0, 15, 30, 45]
    assert calls[7:] == [0, 45, 60, 75]  # the first part shows that the matrix is the same
    assert abs(jsf.saved_rows(tmp_path)(0, 90) - S).max() == 0
    assert len(list(tmp_path.iterdir())) == 7


def test_parts_of_a_matrix_are_written_again_where_a_call_was_interrupted(tmp_path):
    """Of another matrix whose first rows are the same, nothing remains."""
    other = sp.csr_array(sp.vstack([S[:11], 2 * S[11:]]))
    starts = [0, 11, 20, 30, 40, 50, 60, 70, 90]
    A, B = (jsf.shard_from_rows(lambda a, b, T=T: T[a:b], 90, MESH, format="ell", starts=starts) for T in (other, S))
    jsf.save_rows(tmp_path, A)
    (tmp_path / "000000000060.npz").unlink()
    jsf.save_rows(tmp_path, B)
    assert abs(jsf.saved_rows(tmp_path)(0, 90) - S).max() == 0


def test_a_matrix_held_whole_is_cut_into_parts_of_a_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PART", 1000)
    jsf.save_rows(tmp_path, S)
    sizes = [path.stat().st_size for path in tmp_path.glob("*.npz")]
    assert len(sizes) >= 4 and max(sizes) <= 1000 + 1000  # the heads of three arrays
    assert abs(jsf.saved_rows(tmp_path)(0, 90) - S).max() == 0


def test_pieces_that_do_not_fit_the_others_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"S\(0, 90\) must give a matrix \(90, 90\); got \(90, 50\)"):
        jsf.save_rows(tmp_path / "narrow", lambda a, b: S[a:b, :50], n=90)
    with pytest.raises(ValueError, match=r"S\(45, 90\) gives complex128 where the first rows were float64"):
        jsf.save_rows(tmp_path / "turned", lambda a, b: S[a:b] * (1j if a else 1), n=90, pieces=2)


@pytest.mark.parametrize(
    ("first", "then"), [("int8", "int64"), ("float32", "float64"), ("complex64", "complex128"), ("int8", "uint8")]
)
def test_pieces_that_the_first_ones_numbers_do_not_hold_are_refused(first, then, tmp_path):
    T = sp.csr_array(300 * sp.eye_array(10))
    words = rf"S\(5, 10\) gives {then} where the first rows were {first}.*let S give all its rows as \w+"
    with pytest.raises(ValueError, match=words):
        jsf.save_rows(tmp_path, lambda a, b: T[a:b].astype(then if a else first), n=10, pieces=2)
    assert {path.name for path in tmp_path.iterdir()} == {"matrix.npz", "000000000000.npz"}  # nothing of that piece


def test_narrower_pieces_than_the_first_come_back(tmp_path):
    T = sp.csr_array(sp.diags_array(np.arange(1.0, 11)))
    jsf.save_rows(tmp_path, lambda a, b: T[a:b].astype("float32" if a else "float64"), n=10, pieces=2)
    assert abs(jsf.saved_rows(tmp_path)(0, 10) - T).max() == 0


@pytest.mark.parametrize(
    ("S", "options", "error", "words"),
    [
        (np.eye(3), {}, TypeError, "save_rows takes a scipy.sparse matrix.*got ndarray. scipy.sparse.csr_array makes"),
        (S, {"pieces": 0}, ValueError, "pieces must be at least 1; got 0"),
        (lambda a, b: S[a:b], {"n": 90, "pieces": 2.0}, TypeError, "pieces must be a whole number; got 2.0"),
        (lambda a, b: S[a:b], {"n": 90.0}, TypeError, "n must be a whole number; got 90.0"),
    ],
    ids=["dense", "no pieces", "pieces", "n"],
)
def test_what_cannot_be_saved_leaves_no_folder(S, options, error, words, tmp_path):
    with pytest.raises(error, match=words):
        jsf.save_rows(tmp_path / "new", S, **options)
    assert not (tmp_path / "new").exists()


def test_pieces_that_are_no_matrices_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"S\(0, 3\) must give a scipy.sparse matrix; got ndarray"):
        jsf.save_rows(tmp_path, lambda a, b: np.eye(3)[a:b], n=3)


def changed(folder, **arrays):
    header = dict(np.load(folder / "matrix.npz")) | arrays
    np.savez(folder / "matrix.npz", **{name: a for name, a in header.items() if a is not None})


@pytest.mark.parametrize(
    "change",
    [
        *(
            {name: value}
            for name in ("version", "shape", "starts", "dtype")
            for value in (None, [True], [["a"]], [7, -1])
        ),
        {"shape": [89, 90]},
        {"shape": [10**15, 90], "starts": [0, 10**15]},
        {"shape": [90, 2**40]},
        {"dtype": np.zeros(0, np.float32)},
        {"dtype": np.zeros(0, "U9")},
        {"starts": [0, 40, 30, 90]},
    ],
    ids=str,
)
def test_a_header_that_the_parts_do_not_fit_is_refused_by_file_and_cure(change, tmp_path):
    jsf.save_rows(tmp_path, S)
    changed(tmp_path, **change)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/.*save the matrix anew"):
        jsf.saved_rows(tmp_path)(0, 80)


@pytest.mark.parametrize("content", [b"", b"{}", b"PK", b"x" * 20_000])
def test_a_header_that_is_none_is_refused_by_file_and_cure(content, tmp_path):
    jsf.save_rows(tmp_path, S)
    (tmp_path / "matrix.npz").write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/matrix\.npz.*save the matrix anew"):
        jsf.saved_rows(tmp_path)


def test_each_shard_is_a_part_and_half_precision_comes_back(tmp_path):
    B = jsf.shard(S.astype("float32"), MESH, format="ell", dtype="bfloat16")
    jsf.save_rows(tmp_path, B)
    assert len(list(tmp_path.glob("0*.npz"))) == 8
    back = jsf.saved_rows(tmp_path)(0, 90)
    assert back.dtype == np.float32 and abs(back - B.to_scipy()).max() == 0


@pytest.mark.parametrize("at", range(40, 2400, 120))
def test_a_damaged_part_is_refused_by_name(at, tmp_path):
    jsf.save_rows(tmp_path, lambda a, b: S[a:b], n=90, pieces=2)
    path = tmp_path / "000000000045.npz"
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    saved = jsf.saved_rows(tmp_path)
    assert abs(saved(0, 45) - S[:45]).max() == 0
    try:
        assert abs(saved(40, 60) - S[40:60]).max() == 0  # no check covers the date of a file
    except ValueError as error:
        assert str(error).startswith(str(path))
    path.write_bytes(content[:at])
    with pytest.raises(ValueError, match=rf"^{path}: .*save the matrix anew"):
        saved(80, 90)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        *(("indptr", place, value) for place in (0, 40, 90) for value in (-1, 10**12)),
        *(("indices", 5, value) for value in (-1, 90, 2**31 - 1)),
    ],
)
def test_content_that_is_no_matrix_is_refused_where_it_is_read(name, place, value, tmp_path):
    jsf.save_rows(tmp_path, S)
    path = tmp_path / "000000000000.npz"
    arrays = dict(np.load(path))
    arrays[name][place] = value
    np.savez(path, **arrays)
    saved = jsf.saved_rows(tmp_path)
    with pytest.raises(ValueError, match=rf"^{path}: .*save the matrix anew"):
        saved(0, 90)
    if name == "indptr":
        with pytest.raises(ValueError, match="save the matrix anew"):
            saved.starts(3)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 91), (5, 4)])
def test_rows_that_are_not_there_are_refused(start, stop, tmp_path):
    jsf.save_rows(tmp_path, S)
    with pytest.raises(ValueError, match="holds rows 0 to 90"):
        jsf.saved_rows(tmp_path)(start, stop)
