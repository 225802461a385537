"""Triangular solves against dense ones: both triangles, transposed, by rows in native code and by levels."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core.triangular import Triangle
from tests.lowering import lowered, quick_jit
from tests.marks import deep, few

N = 60
every_backend = pytest.mark.parametrize("backend", ["auto", "xla"])
solve = quick_jit(lambda T, r: T.solve(r))


@functools.cache
def strict(upper: bool, dtype=np.float64) -> sp.csr_array:
    """A strictly triangular matrix; some rows are empty, and its levels differ in size."""
    rng = np.random.default_rng(5)
    a = rng.uniform(-1, 1, (N, N)) + (1j * rng.uniform(-1, 1, (N, N)) if np.dtype(dtype).kind == "c" else 0)
    a = np.tril(a * (rng.random((N, N)) < 0.08), -1)
    a[40] = 0
    return sp.csr_array((a.T if upper else a).astype(dtype))


def triangle(upper: bool, turned: bool, dtype=np.float64) -> tuple[Triangle, np.ndarray]:
    T, D = Triangle.of(strict(upper, dtype), upper), np.eye(N) + strict(upper, dtype).toarray()
    return (T.T, D.T) if turned else (T, D)


def vectors(*shape: int, dtype=np.float64) -> np.ndarray:
    real, imaginary = np.random.default_rng(1).standard_normal((2, *shape))
    return (real + 1j * imaginary if np.dtype(dtype).kind == "c" else real).astype(dtype)


@pytest.mark.parametrize("dtype", few([np.float32, np.float64, np.complex128], 1))
@pytest.mark.parametrize("columns", [(), (3,)], ids=["vector", "columns"])
@pytest.mark.parametrize("turned", [False, deep(True)], ids=["", "transposed"])
@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
@every_backend
def test_it_solves_what_a_dense_solve_does(backend, upper, turned, columns, dtype):
    T, D = triangle(upper, turned, dtype)
    r = vectors(N, *columns, dtype=dtype)
    with jsf.use_backend(backend):
        got = solve(T, r)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, np.linalg.solve(D, r), rtol=0, atol=1e4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("turned", [False, True], ids=["", "transposed"])
def test_vmap_over_vectors_over_values_and_over_both(turned):
    T, D = triangle(True, turned)
    R, factors = vectors(4, N), np.array([1.0, 0.5, -1.0, 2.0])
    values = factors[:, None] * strict(True).data
    with_values = lambda v, r: dataclasses.replace(T, values=v).solve(r)  # noqa: E731
    every = [np.eye(N) + f * (D - np.eye(N)) for f in factors]
    np.testing.assert_allclose(quick_jit(jax.vmap(T.solve))(R), np.linalg.solve(D, R.T).T, rtol=1e-9)
    for got, r in (
        (quick_jit(jax.vmap(with_values))(values, R), R),
        (quick_jit(jax.vmap(with_values, (0, None)))(values, R[0]), [R[0]] * 4),
    ):
        want = [np.linalg.solve(D, v) for D, v in zip(every, r, strict=True)]
        np.testing.assert_allclose(got, want, rtol=1e-9)


def test_a_long_level_and_as_many_levels_as_rows_are_cut_into_chunks():
    """A bidiagonal matrix, one entry a level; and an arrow, all entries but one row's in one level."""
    n = 300
    r = vectors(n)
    chain = sp.csr_array(sp.diags_array(np.full(n - 1, 0.5), offsets=-1))
    arrow = sp.lil_array((n, n))
    arrow[1:, 0] = 0.25
    for S in (chain, sp.csr_array(arrow)):
        T = Triangle.of(S, False)
        sizes = np.diff(T.starts)
        assert T.starts[0] == 0 and T.starts[-1] == S.nnz and sizes.min() > 0 and sizes.max() <= T.width
        for turned, D in ((T, np.eye(n) + S.toarray()), (T.T, np.eye(n) + S.toarray().T)):
            with jsf.use_backend("xla"):
                np.testing.assert_allclose(solve(turned, r), np.linalg.solve(D, r), rtol=1e-12, atol=1e-12)


def test_a_cpu_runs_one_native_call_and_an_exported_program_none():
    T, _ = triangle(False, False)
    r = vectors(N)
    assert lowered(Triangle.solve, T, r, platforms=("cpu",)).count("jaxsparse_native") >= 1
    assert "jaxsparse_native" not in jax.export.export(jax.jit(lambda r: T.solve(r)))(r).mlir_module()
