"""Input that the door refuses, with the error and its words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.test_convert import A, S, int32


def spoiled(kind=sp.csr_array, **arrays):
    """S with arrays that SciPy does not check after construction."""
    broken = kind(S)
    for name, array in arrays.items():
        setattr(broken, name, array)
    return broken


COO = ([0, 1], [0, 1], [1.0, 2.0], (2, 2))


def coo(row=COO[0], col=COO[1], data=COO[2], shape=COO[3], **options):
    return jsf.from_coo(row, col, data, shape, **options)


def broken_lil():
    B = sp.lil_array(S)
    B.rows[0] = [0, 9]
    return B


def broken_coo():
    B = sp.coo_array(S)
    B.row[0] = 5
    return B


VALUE_ERRORS = {
    "1-D": (lambda: jsf.from_scipy(sp.coo_array(np.ones(3))), "two-dimensional matrix, got shape (3,)"),
    "row pointer falls": (lambda: jsf.from_scipy(spoiled(indptr=int32(0, 3, 2))), "broken row pointer"),
    "column index high": (
        lambda: jsf.from_scipy(spoiled(indices=int32(0, 7, 1))),
        "column index 7 is out of range for a matrix with 3 columns; indices count from 0",
    ),
    "column index negative": (lambda: jsf.from_scipy(spoiled(indices=int32(0, -1, 1))), "column index -1 is out"),
    "csc row index": (lambda: jsf.from_scipy(spoiled(sp.csc_array, indices=int32(0, 7, 1))), "row index 7 is out of"),
    "csc pointer": (lambda: jsf.from_scipy(spoiled(sp.csc_array, indptr=int32(0, 2, 1, 3))), "broken column pointer"),
    "bsr column index": (lambda: jsf.from_scipy(spoiled(sp.bsr_array, indices=int32(0, 7, 1))), "column index 7"),
    "coo row index": (lambda: jsf.from_scipy(broken_coo()), "row index 5 is out of range for a matrix with 2 rows"),
    "lil column index": (lambda: jsf.from_scipy(broken_lil()), "column index 9 is out of range"),
    "too many rows": (lambda: coo([], [], [], (2**31, 1)), "2147483648 rows exceed what 32-bit indices address"),
    "too many columns": (lambda: jsf.from_scipy(sp.csr_array((1, 2**31))), "2147483648 columns exceed"),
    "unknown format": (lambda: jsf.from_scipy(S, "elll"), "got 'elll'; did you mean 'ell'?"),
    "unknown backend": (lambda: jsf.from_scipy(S, backend="gpu"), "backend must be one of auto, triton"),
    "auto with options": (lambda: jsf.from_scipy(S, slice_size=4), "name a format to set slice_size"),
    "slice_size huge": (lambda: jsf.from_scipy(S, "hll", slice_size=2**45), "format 'hll' would take"),
    "max_bytes": (lambda: jsf.from_scipy(S, "ell", max_bytes=40), "would take 48 B for a matrix of 44 B in CSR"),
    "blocks too tall to turn": (
        lambda: jsf.from_scipy(S, "bsr", block_shape=(64, 2), transpose=True),
        "block_shape[0] must be at most 32 rows with transpose=True, which turns the blocks",
    ),
    "blocks too wide": (
        lambda: jsf.from_scipy(S, "bsr", block_shape=(2, 64), transpose=True),
        "block_shape[1] must be at most 32 columns, which a kernel unrolls; got 64",
    ),
    "coo lengths": (lambda: coo(row=[0]), "one-dimensional and of one length; got (1,), (2,), (2,)"),
    "coo row index high": (lambda: coo(row=[0, 2]), "row index 2 is out of range for a matrix with 2 rows"),
    "coo col index low": (lambda: coo(col=[0, -1]), "col index -1 is out of range"),
    "coo shape 3": (lambda: coo(shape=(2, 2, 2)), "shape must be two numbers from 0 up, (rows, columns)"),
    "coo shape nan": (lambda: coo(shape=(2, np.nan)), "shape must be two numbers from 0 up"),
    "dense 1-D": (lambda: jsf.from_dense(np.ones(3)), "two-dimensional array, got shape (3,)"),
    "x of another length": (
        lambda: A @ np.ones(2),
        "A @ x with A of shape (2, 3) takes x of shape (3,) or (3, p); got (2,)",
    ),
    "x a number": (lambda: A @ 2.0, "takes x of shape (3,) or (3, p); got ()"),
    "y of another length": (
        lambda: A.T @ np.ones(3),
        "A.T @ y, or yᵀ @ A, with A of shape (2, 3) takes y of shape (2,)",
    ),
    "data of another length": (lambda: A.with_data(np.ones(4)), "data must have shape (3,)"),
    "spmv without y": (lambda: jsf.spmv(A, np.ones(3), beta=1.0), "beta=1.0 adds beta·y, which needs y of shape (2,)"),
    "spmv with another y": (lambda: jsf.spmv(A, np.ones(3), np.ones(3), beta=1), "got y of shape (3,)"),
}

TYPE_ERRORS = {
    "misspelt option": (
        lambda: jsf.from_scipy(S, "hll", slicesize=4),
        "no keyword or layout option 'slicesize'; formats",
    ),
    "dense into from_scipy": (lambda: jsf.from_scipy(S.toarray()), "got ndarray; use from_dense"),
    "complex into real": (lambda: jsf.from_scipy(S * 1j, dtype=np.float64), "would drop the imaginary parts"),
    "integer dtype": (lambda: jsf.from_scipy(S, dtype=int), "dtype int64 cannot hold matrix values"),
    "object data": (lambda: coo(data=np.array([None, 1])), "data has dtype object, which is not numeric"),
    "fractional rows": (lambda: coo(row=[0.0, 1.0]), "row must hold integers, got dtype float64"),
    "matrix times SciPy's": (lambda: A @ S.T, "got csc_array; convert it by from_scipy"),
    "text as x": (lambda: A @ np.array(["a", "b", "c"]), "the vector has dtype <U1, which is not numeric"),
    "matrix minus SciPy's": (lambda: A - S, "got csr_array; convert SciPy's by from_scipy"),
    "SciPy's plus matrix": (lambda: S + A, "got csr_array; convert SciPy's by from_scipy"),
    "array of JAX plus matrix": (lambda: jnp.ones((2, 3)) + A, "with a dense array take A.todense()"),
    "sparse into from_dense": (lambda: jsf.from_dense(S), "got csr_array; use from_scipy"),
    "max_bytes in words": (lambda: jsf.from_scipy(S, max_bytes="1GB"), "a number of bytes, say 10**9; got '1GB'"),
    "dense into rank": (lambda: jsf.choose.rank(S.toarray()), "got ndarray; make a csr_array of it"),
}


ERRORS = [
    *((ValueError, *case) for case in VALUE_ERRORS.items()),
    *((TypeError, *case) for case in TYPE_ERRORS.items()),
]


@pytest.mark.parametrize(("error", "name", "case"), ERRORS, ids=[name for _, name, _ in ERRORS])
def test_bad_values_and_types_are_named(error, name, case):
    call, words = case
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)


def test_bad_vectors_are_named_inside_jit_too():
    with pytest.raises(ValueError, match=r"takes x of shape \(3,\)"):
        jax.jit(lambda A, x: A @ x)(A, np.ones(2))


def test_traced_data_do_not_lose_their_imaginary_parts():
    make = jax.jit(lambda data: jsf.from_coo([0], [0], data, (1, 1), "csr", "float32").data)
    with pytest.raises(TypeError, match="imaginary parts of a complex128 matrix"):
        make(np.ones(1, complex))
