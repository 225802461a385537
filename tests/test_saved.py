"""Saved matrices: what comes back, and what is refused."""

import io
import json
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io
import scipy.sparse

import jaxsparse_fmt as jsf
from tests.marks import few
from tests.oracle import assert_refused, assert_same_storage
from tests.zoo import ALL, CASES, LAYOUTS

S = jsf.gallery.poisson(4, dim=2)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "matrix.npz"


def again(path, A):
    jsf.save(path, A)
    return jsf.load(path)


def rewritten(path, compress=False, **changes):
    """The file with other arrays, or with other words in its header."""
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].tobytes())
    header |= {k: v for k, v in changes.items() if k not in arrays}
    arrays |= {k: v for k, v in changes.items() if k in arrays}
    if "header" not in changes:
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    (np.savez_compressed if compress else np.savez)(path, **arrays)


# Every layout alone or with its transpose: both have the arrays of the layout.
@pytest.mark.parametrize(
    ("layout", "transpose"), few([(layout, i % 2 == 1) for i, layout in enumerate(LAYOUTS)], 8), ids=str
)
def test_every_array_comes_back(layout, transpose, path):
    A = layout.of(ALL.scipy(), transpose=transpose)
    assert_same_storage(again(path, A), A)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64", "complex128"])
def test_every_dtype_comes_back_to_the_bit(dtype, path):
    A = jsf.from_scipy(CASES["irregular"].scipy(), "ell")
    A = A.with_data(jnp.asarray(np.asarray(A.data) / 3, dtype))
    B = again(path, A)
    assert B.dtype == dtype and np.asarray(A.data).tobytes() == np.asarray(B.data).tobytes()


def test_a_file_of_64_bits_is_read_in_32_where_asked(path):
    jsf.save(path, jsf.from_scipy(S, "hll"))
    with jax.enable_x64(False):
        assert_refused(lambda: jsf.load(path), ValueError, "jax_enable_x64")
        assert jsf.load(path, "float32").dtype == np.float32


def test_save_names_the_cure_for_what_it_does_not_take(path):
    A = jsf.from_scipy(S, "csr")
    for other in (jsf.shard(S, jax.make_mesh((1,), ("rows",))), S, A.T):
        assert_refused(lambda other=other: jsf.save(path, other), TypeError, "one device.*to_scipy")
    stack = jax.vmap(A.with_data)(np.ones((2, A.nnz)))
    for call, words in (
        (lambda: jax.jit(lambda A: jsf.save(path, A))(A), "outside jit"),
        (lambda: jsf.save(path, stack), "stack"),
        (lambda: jsf.save(path.with_suffix(".mtx"), A), r"save writes \.npz.*write_mtx"),
    ):
        assert_refused(call, ValueError, words)
    assert not list(path.parent.iterdir())


def changed(name, place, number):
    """The array of a saved `S` with one other number."""
    array = getattr(S.tocsr(), name).astype({"indptr": np.int64, "indices": np.int32}[name])
    array[place] = number
    return {name: array}


def stored(**layout):
    return {"storage": [{"format": "hll", "layout": {"slice_size": 4, "sigma": 1} | layout}]}


REFUSED = {
    "newer": ({"version": 5}, "its version is 5, and this library reads 4"),
    "unknown format": ({"storage": [{"format": "abc", "layout": {}}]}, "'abc' is unknown.*update"),
    "options of another": ({"storage": [{"format": "csr", "layout": {"sigma": 1}}]}, "has the options"),
    "an option that is a word": (stored(slice_size="x"), "slice_size"),
    "three storages": ({"storage": stored()["storage"] * 3}, "one or two formats"),
    "shape": ({"shape": [16, -1]}, "is not that of a matrix"),
    "narrow": ({"shape": [16, 3]}, "column index 15 is out of range"),
    "dtype": ({"dtype": "object"}, "dtype 'object'"),
    "integers": ({"dtype": "int64", "data": np.ones(64, int)}, "dtype int64 cannot hold matrix values"),
    "another dtype": ({"dtype": "float32"}, "float64 values; by its header .* float32 values"),
    "backend": ({"backend": "abc"}, "abc"),
    "a header that is none": ({"header": np.frombuffer(b"{", np.uint8)}, "is not JSON"),
    "a falling pointer": (changed("indptr", 3, 40), "broken row pointer"),
    "a pointer past the end": (changed("indptr", -1, 10**6), "index pointer"),
    "a column past the end": (changed("indices", 5, 16), "column index 16 is out of range"),
    "an entry twice": (changed("indices", 1, 0), "an entry twice"),
    "entries outside of the rows": (changed("indptr", -1, 63), "outside of the rows"),
    "indices of floats": ({"indices": np.zeros(64, np.float32)}, "it has .* float32 columns"),
    "short pointers": ({"indptr": np.zeros(17, np.int32)}, "it has int32 pointers, .* are int64 pointers"),
    "too few indices": ({"indices": np.zeros(3, np.int32)}, "same size"),
    "too few values": ({"data": np.ones(3)}, "same size"),
    "two axes": ({"data": np.ones((8, 8))}, "no array of numbers"),
    "objects": ({"data": np.array([{}] * 64)}, "no whole file of `save` .*allow_pickle=False"),
}


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_file_is_refused_in_words(changes, words, path):
    jsf.save(path, jsf.from_scipy(S, "hll", slice_size=4))
    assert jsf.load(path).nnz == S.nnz
    rewritten(path, **changes)
    assert str(path) in assert_refused(lambda: jsf.load(path), ValueError, words)


def test_an_option_that_is_newer_than_the_file_has_its_default(path):
    jsf.save(path, jsf.from_scipy(S, "hll", slice_size=4))
    rewritten(path, storage=[{"format": "hll", "layout": {"slice_size": 4}}])
    assert jsf.load(path).layout == {"slice_size": 4, "sigma": 1}


def huge_array(_: bytes) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    return header.getvalue()


def broken_in_two_lines(array: bytes) -> bytes:
    """NumPy parses a header as Python, by tokens."""
    return array.replace(b"{'descr'", b"{'des\ncr'"[:8])


@pytest.mark.parametrize("change", [huge_array, broken_in_two_lines])
def test_a_file_whose_array_has_a_wrong_header_is_refused_before_it_is_read(change, path):
    jsf.save(path, jsf.from_scipy(S, "csr"))
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members["data.npy"] = change(members["data.npy"])
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    assert_refused(lambda: jsf.load(path), ValueError, "no whole file")


def test_a_compressed_file_is_refused_as_it_may_take_any_memory(path):
    jsf.save(path, jsf.from_scipy(S, "csr"))
    rewritten(path, compress=True)
    assert_refused(lambda: jsf.load(path), ValueError, "compressed")


def test_no_damaged_file_is_read_and_no_other_error_is_raised(path):
    jsf.save(path, jsf.from_scipy(S, "csr"))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for cut in range(0, len(whole), 37):
        path.write_bytes(whole[:cut])
        assert_refused(lambda: jsf.load(path), ValueError, r"matrix\.npz")
    for place in rng.integers(0, len(whole), 300):
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << rng.integers(8)
        path.write_bytes(spoiled)
        try:
            A = jsf.load(path)
        except ValueError as error:
            assert "matrix.npz" in str(error)
        else:  # a byte that holds nothing, as of a date
            np.testing.assert_array_equal(A.todense(), S.toarray())


def test_a_file_of_scipys_names_its_reader(path):
    scipy.sparse.save_npz(path, scipy.sparse.eye_array(3))
    scipy.io.savemat(path.with_suffix(".mat"), {"A": S})
    for file, words in ((path, "load_npz"), (path.with_suffix(".mat"), "loadmat")):
        assert_refused(lambda file=file: jsf.load(file), ValueError, words)
