"""A matrix in a folder: the same rows come back, in any pieces, and what is broken is told."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.distributed import row_partition
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
    with pytest.raises(FileNotFoundError, match="was the matrix saved there, and to the end"):
        jsf.saved_rows(tmp_path)
    with pytest.raises(ValueError, match="n, the number of rows"):
        jsf.save_rows(tmp_path, lambda a, b: S[a:b])
    jsf.save_rows(tmp_path, S)
    with pytest.raises(FileExistsError, match="is not empty"):
        jsf.save_rows(tmp_path, S)
    (tmp_path / "data.bin").write_bytes(b"12345678")
    with pytest.raises(ValueError, match=r"data.bin: 8 bytes where [\d,]+ belong; save the matrix anew"):
        jsf.saved_rows(tmp_path)
    told = json.loads((tmp_path / "matrix.json").read_text()) | {"format": "other"}
    (tmp_path / "matrix.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match="has the format 'other'"):
        jsf.saved_rows(tmp_path)


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
    assert (tmp_path / "data.bin").stat().st_size == 5 * np.dtype(first).itemsize  # nothing of that piece


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


WRONG = ["", "{", "[" * 9_000, "[1, 2]", "null", '"text"', '{"a": ' * 900 + "1" + "}" * 900, "x" * 20_000, "\xff\xfe"]


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_description_that_is_none_is_refused_by_file_and_cure(text, tmp_path):
    jsf.save_rows(tmp_path, S)
    (tmp_path / "matrix.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"^{tmp_path}/matrix\.json.*save the matrix anew"):
        jsf.saved_rows(tmp_path)


@pytest.mark.parametrize("name", ["format", "shape", "nnz", "dtype", "index"])
@pytest.mark.parametrize(
    "value", [None, -1, 1e400, True, 10**30, "O", "U9", "<i4,<f8", [], [3], [3, 4, 5], [90, -1], {}]
)
def test_a_description_with_another_value_is_refused_before_anything_is_allocated(name, value, tmp_path):
    jsf.save_rows(tmp_path, S)
    told = json.loads((tmp_path / "matrix.json").read_text())
    for changed in (told | {name: value}, {key: told[key] for key in told if key != name}):
        (tmp_path / "matrix.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=rf"^{tmp_path}/\w+\.(json|bin).*save the matrix anew"):
            jsf.saved_rows(tmp_path)


@pytest.mark.parametrize("shape", [[10**15, 90], [89, 90], [90, 2**40]])
def test_a_shape_that_the_files_do_not_fit_is_refused(shape, tmp_path):
    jsf.save_rows(tmp_path, S)
    told = json.loads((tmp_path / "matrix.json").read_text())
    (tmp_path / "matrix.json").write_text(json.dumps(told | {"shape": shape}))
    with pytest.raises(ValueError, match="save the matrix anew"):
        jsf.saved_rows(tmp_path)


@pytest.mark.parametrize("name", ["indptr", "indices", "data"])
@pytest.mark.parametrize("change", ["gone", "cut", "longer"])
def test_a_file_of_another_length_is_refused_by_name(name, change, tmp_path):
    jsf.save_rows(tmp_path, S)
    path = tmp_path / f"{name}.bin"
    content = path.read_bytes()
    path.unlink()
    if change != "gone":
        path.write_bytes(content[:-3] if change == "cut" else content + b"\0")
    with pytest.raises(FileNotFoundError if change == "gone" else ValueError, match=rf"{name}\.bin"):
        jsf.saved_rows(tmp_path)


@pytest.mark.parametrize(
    ("name", "dtype", "place", "value"),
    [
        *(("indptr", np.int64, place, value) for place in (0, 40, 90) for value in (-1, 10**12)),
        *(("indices", np.int32, 5, value) for value in (-1, 90, 2**31 - 1)),
    ],
)
def test_content_that_is_no_matrix_is_refused_where_it_is_read(name, dtype, place, value, tmp_path):
    jsf.save_rows(tmp_path, S)
    content = np.fromfile(tmp_path / f"{name}.bin", dtype)
    content[place] = value
    content.tofile(tmp_path / f"{name}.bin")
    saved = jsf.saved_rows(tmp_path)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/{name}\.bin: .*save the matrix anew"):
        saved(0, 90)
    if name == "indptr":
        with pytest.raises(ValueError, match="save the matrix anew"):
            saved.starts(3)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 91), (5, 4)])
def test_rows_that_are_not_there_are_refused(start, stop, tmp_path):
    jsf.save_rows(tmp_path, S)
    with pytest.raises(ValueError, match="holds rows 0 to 90"):
        jsf.saved_rows(tmp_path)(start, stop)
