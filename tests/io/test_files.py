"""Vectors and matrices to files and back: unchanged, and never half written."""

import errno
import io
import itertools
import os
import re

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import jaxsparse_fmt as jsf
from jaxsparse_fmt import _files
from jaxsparse_fmt.io import files
from tests.io.oracle import assert_same_csr
from tests.oracle import assert_refused

BANNER = "%%MatrixMarket matrix coordinate real general\n"
FLOATS = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True, width=64)
COMPLEX = st.complex_numbers(allow_nan=False)


@given(st.data(), st.sampled_from([".mtx", ".npy", ".txt", ".mtx.gz"]), st.sampled_from([FLOATS, COMPLEX]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_vector_comes_back_unchanged(tmp_path, data, extension, elements):
    dtype = np.float64 if elements is FLOATS else np.complex128
    x = data.draw(hnp.arrays(dtype, st.integers(1, 20), elements=elements))
    files.write_vector(tmp_path / f"x{extension}", x)
    read = files.read_vector(tmp_path / f"x{extension}")
    assert read.dtype == x.dtype
    np.testing.assert_array_equal(read, x)


@given(st.data(), st.sampled_from([".mtx", ".mtx.gz"]), st.sampled_from([FLOATS, COMPLEX]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_matrix_comes_back_unchanged_with_its_pattern(tmp_path, data, extension, elements):
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6))
    dense = data.draw(hnp.arrays(np.float64 if elements is FLOATS else np.complex128, shape, elements=elements))
    stored = data.draw(hnp.arrays(bool, shape))  # zeros among them are explicit
    matrix = sp.csr_array((dense[stored], np.nonzero(stored)), shape=shape)
    files.write_mtx(tmp_path / f"a{extension}", matrix)
    read = files.read_scipy(tmp_path / f"a{extension}")
    assert read.dtype == matrix.dtype or not matrix.nnz  # SciPy calls a matrix without entries a pattern
    assert_same_csr(read, matrix)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "complex64"])
def test_a_matrix_of_ours_is_written_too(tmp_path, dtype):
    S = sp.csr_array(np.array([[1.0, 0, 2], [0, 3, 0]]))
    A = jsf.from_scipy(S, "hll", dtype)
    for matrix, want in ((A, S), (A.T, S.T)):
        files.write_mtx(tmp_path / "A.mtx", matrix)
        np.testing.assert_array_equal(files.read_scipy(tmp_path / "A.mtx").toarray(), want.toarray())


def saved(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


KINDS, SHAPES = (np.float32, np.int64, np.complex64, np.bool_), ((3,), (3, 1), (1, 3))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("b.mtx", b"%%MatrixMarket matrix array real general\n3 1\n1\n2\n3\n", [1.0, 2, 3]),
        ("b.mtx", b"%%MatrixMarket matrix array complex general\n1 2\n1 2\n3 4\n", [1 + 2j, 3 + 4j]),
        ("b.mtx", BANNER.encode() + b"4 1 2\n4 1 5\n2 1 6\n", [0.0, 6, 0, 5]),
        ("b.txt", b"# right-hand side\n1\n\n-2.5e3 # note\n", [1.0, -2500]),
        ("b.TXT", b"(1+2j)\n3\n", [1 + 2j, 3]),
        *(
            ("b.npy", saved(np.array([1, 0, 1], kind).reshape(shape)), np.array([1, 0, 1], np.result_type(kind, float)))
            for kind, shape in itertools.product(KINDS, SHAPES)
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_right_hand_sides_are_read_as_vectors_of_64_bits(tmp_path, name, text, expected):
    (tmp_path / name).write_bytes(text)
    x = files.read_vector(tmp_path / name)
    assert x.dtype == np.asarray(expected).dtype and x.flags.writeable
    np.testing.assert_array_equal(x, expected)


BROKEN = ["(3,", "(3,) 'x'", "(3, True)", "(1, -3)", "(-1,)", "(2.5,)", "((3,),)", "(1000000000,)", "None", "{"]


def headed(shape: str) -> bytes:
    """A .npy file of three numbers with this shape in its header."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(24)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("b.csv", b"1\n", ": unknown extension; use one of .mtx, .mtx.gz, .npy, .txt"),
        ("b.txt", b"1\n2\nthree\n", ", line 3: 'three' is not a number"),
        *(("b.txt", b"1 2\n3 4\n", ": a vector has shape"), ("b.txt", b"1 2\n3\n", ": not one number on each line")),
        ("b.txt", b"# nothing\n", ": not one number on each line"),
        *(("b.txt", b"\xff\xfe1\x00", ", line 1: "), ("b.npy", b"1\n2\n", ": not a .npy file of numbers")),
        ("b.npy", saved(np.array(["a", "b"])), " must hold numbers, got dtype <U1"),
        ("b.npy", saved(np.array([None])), ": not a .npy file of numbers"),
        ("b.npy", saved(np.arange(1000.0))[:-8], ": not a .npy file of numbers"),
        ("b.mtx", BANNER.encode() + b"2 2 1\n1 1 1\n", ": a vector has shape"),
        ("b.mtx", BANNER.encode() + b"2 1 1\n1 2 1\n", ", line 3: "),
        *(("b.npy", headed(shape), r": not a \.npy file of numbers: .*numpy\.save") for shape in BROKEN),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # not the bytes
)
def test_what_is_no_vector_is_refused_by_file(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_bytes(text)
    assert_refused(lambda: files.read_vector(path), ValueError, f"^{re.escape(str(path))}{said}")


@pytest.mark.parametrize("name", ["x.mtx", "x.mtx.gz", "x.npy", "x.txt"])
def test_a_write_that_fails_midway_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, name):
    path = tmp_path / name
    files.write_vector(path, np.arange(3.0))
    before = path.read_bytes()

    def half(file, *_, **__):
        file.write(b"half")
        raise OSError("no space left")

    for module, writer in ((scipy.io, "mmwrite"), (np, "save"), (np, "savetxt")):
        monkeypatch.setattr(module, writer, half)
    assert_refused(lambda: files.write_vector(path, np.arange(5.0)), OSError, "no space left")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    ("write", "name", "what", "said"),
    [
        (files.write_vector, "x.csv", np.ones(2), "unknown extension"),
        (files.write_vector, "x.npy", np.ones((2, 2)), r"one-dimensional, got shape \(2, 2\)"),
        (files.write_vector, "x.npy", np.array(["a"]), "must hold numbers, got dtype <U1"),
        (files.write_mtx, "x.npy", sp.eye_array(2), "unknown extension"),
        (files.write_mtx, "x.mtx", np.eye(2), "needs a scipy.sparse matrix, got ndarray"),
        (files.write_mtx, "x.mtx", sp.coo_array(np.ones(2)), "two dimensions"),
    ],
)
def test_what_cannot_be_written_is_refused_before_a_file_appears(tmp_path, write, name, what, said):
    assert_refused(lambda: write(tmp_path / name, what), ValueError, said)
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_replaced_keeps_its_mode_and_a_new_one_has_that_of_the_umask(tmp_path):
    A = jsf.from_dense(np.eye(3))
    for name, write in (("A.npz", jsf.save), ("A.mtx", files.write_mtx)):
        path = os.fsencode(tmp_path / name)  # names of bytes, too
        old = os.umask(0o027)
        try:
            write(path, A)
        finally:
            os.umask(old)
        assert os.stat(path).st_mode & 0o7777 == 0o640
        for mode in (0o600, 0o646, 0o664):
            os.chmod(path, mode)
            write(path, A)
            assert os.stat(path).st_mode & 0o7777 == mode
    assert (jsf.load(path.replace(b"mtx", b"npz")) - jsf.read_mtx(path)).nnz == 3


def test_where_no_file_can_be_written_the_users_name_is_refused_with_the_cure(tmp_path, monkeypatch):
    (tmp_path / "shut.npz").write_bytes(b"old")
    (tmp_path / "shut.npz").chmod(0o400)
    (tmp_path / "loop.npz").symlink_to("loop.npz")
    long = "x" * 252 + ".npz"
    before = sorted(os.listdir(tmp_path))
    told = {"shut.npz": "is read-only; chmod", "loop.npz": "symbolic links", long: "too long", "": "names a folder"}
    told |= {"no/": "names a folder; name a file", "no/.": "a folder", "no/x": "create it", "no/../x": "create it"}
    save = lambda name: jsf.save(f"{tmp_path}/{name}", jsf.from_dense(np.eye(3)))  # noqa: E731
    for name, why in told.items():
        assert_refused(lambda name=name: save(name), OSError, f"{why}.*{re.escape(repr(f'{tmp_path}/{name}'))}$")
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))  # which root does not ask
    assert_refused(lambda: save("x.npz"), PermissionError, r"no new file can be made in .*; chmod .*/x\.npz'$")
    monkeypatch.undo()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left", f"{tmp_path}/.scratch{_files.PART}")

    monkeypatch.setattr(os, "replace", full)
    assert_refused(lambda: save("x.npz"), OSError, r"No space left: .*/x\.npz'$")
    assert sorted(os.listdir(tmp_path)) == before and (tmp_path / "loop.npz").is_symlink()


def test_a_killed_writer_leaves_nothing_for_long_and_two_at_once_write_whole_files(tmp_path):
    path = tmp_path / ("x" * 251 + ".npy")  # as long as a name may be
    left, lock = _files._scratch(path, 0o600)
    os.close(lock)  # as a process that ends
    assert os.listdir(tmp_path) == [left.name]
    with _files.replacing(path) as one, _files.replacing(path) as two:
        assert len(os.listdir(tmp_path)) == 2
        for file, content in ((one, b"one"), (two, b"two")):
            file.write(content)
            file.flush()
        files.write_vector(path, np.ones(3))
        assert files.read_vector(path).tolist() == [1, 1, 1] and len(os.listdir(tmp_path)) == 3
    assert path.read_bytes() == b"one" and os.listdir(tmp_path) == [path.name]


def test_what_has_no_end_is_refused_before_it_is_read(tmp_path):
    pipe = tmp_path / "x.npy"  # which would wait for a writer
    os.mkfifo(pipe)
    for read, path in ((files.read_vector, pipe), (jsf.load, pipe), (jsf.load, "/dev/zero")):
        assert_refused(lambda read=read, path=path: read(path), ValueError, f"^{path}: a pipe or a device")


def test_writing_through_a_link_keeps_the_link(tmp_path):
    (tmp_path / "real.npy").write_bytes(b"old")
    (tmp_path / "link.npy").symlink_to("real.npy")
    files.write_vector(tmp_path / "link.npy", np.ones(2))
    assert (tmp_path / "link.npy").is_symlink()
    np.testing.assert_array_equal(np.load(tmp_path / "real.npy"), [1, 1])


def test_a_file_that_seeks_goes_through_a_pipe_too(tmp_path):
    path = tmp_path / "pipe.npz"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)
    jsf.save(path, jsf.from_dense(np.eye(3)))
    (tmp_path / "copy.npz").write_bytes(os.read(pipe, 1 << 16))
    np.testing.assert_array_equal(jsf.load(tmp_path / "copy.npz").todense(), np.eye(3))
    os.close(pipe)
