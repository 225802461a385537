"""Solves with triangular matrices: SciPy's function, dense solves, and derivatives in the values."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core.triangular import Triangle
from solvers import spsolve_triangular
from tests.lowering import lowered, quick_jit
from tests.marks import deep
from tests.oracle import assert_derivatives_agree

N = 25
RHS = np.random.default_rng(1).standard_normal((N, 2))


def matrix(lower: bool) -> sp.csr_array:
    rng = np.random.default_rng(0)
    a = np.tril(np.where(rng.random((N, N)) < 0.2, rng.uniform(-1, 1, (N, N)), 0), -1)
    np.fill_diagonal(a, rng.uniform(1, 2, N) * rng.choice([-1, 1], N))
    return sp.csr_array(a if lower else a.T)


@pytest.mark.parametrize("backend", ["auto", "xla"])
@pytest.mark.parametrize("dtype", [np.float64, deep(np.float32), deep(np.complex128)])
@pytest.mark.parametrize("unit", [False, True], ids=["", "unit"])
@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
def test_the_solution_is_scipys(lower, unit, dtype, backend):
    S = matrix(lower).astype(dtype) * np.array(1 + 0.5j if dtype is np.complex128 else 1, dtype)
    A, B = jsf.from_scipy(S, "csr" if lower else "pjds", backend=backend), RHS.astype(dtype)
    given = sp.csr_array(S - sp.diags_array(S.diagonal() - 1) if unit else S)
    want = spla.spsolve_triangular(given, B, lower=lower, unit_diagonal=unit)
    turned = np.linalg.solve(given.toarray().T, B[:, 0])
    with jsf.use_backend(backend):
        for got, expected in (
            (spsolve_triangular(A, B, lower, unit_diagonal=unit), want),
            (spsolve_triangular(A, B[:, 0], lower, unit_diagonal=unit, transposed=True), turned),
            (spsolve_triangular(A.T, B[:, 0], not lower, unit_diagonal=unit), turned),
        ):
            assert got.dtype == dtype
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e4 * np.finfo(dtype).eps * np.abs(expected).max())


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_first_and_second_derivatives_are_those_of_a_dense_solve(transposed):
    S, b = matrix(False), RHS[:, 0]
    A = jsf.from_scipy(S, "csr")

    def dense(data, b):
        a = jnp.zeros((N, N)).at[S.tocoo().coords].set(data)
        return jnp.linalg.solve(a.T if transposed else a, b)

    def ours(data, b):
        return spsolve_triangular(A.with_data(data), b, False, transposed=transposed)

    assert_derivatives_agree(ours, dense, A.data, b, rtol=1e-10)
    values = np.stack([A.data, 2 * A.data])
    got = quick_jit(jax.vmap(ours, (0, None)))(values, b)
    np.testing.assert_allclose(got[1], dense(2 * jnp.asarray(S.data), b), rtol=1e-9, atol=1e-12)


# -------------------------------------------------------------------------------------------- levels and native code


LONG = 300
B = np.random.default_rng(1).standard_normal(LONG)
CHAIN = sp.csr_array(sp.diags_array(np.full(LONG - 1, 0.5), offsets=-1))
solve = quick_jit(lambda T, r: T.solve(r))


def test_a_long_level_and_as_many_levels_as_rows_are_cut_into_chunks():
    """A bidiagonal matrix, one entry a level; and an arrow, all entries but one row's in one level."""
    arrow = sp.lil_array((LONG, LONG))
    arrow[1:, 0] = 0.25
    for S in (CHAIN, sp.csr_array(arrow)):
        T = Triangle.of(S, False)
        sizes = np.diff(T.starts)
        assert T.starts[0] == 0 and T.starts[-1] == S.nnz and sizes.min() > 0 and sizes.max() <= T.width
        for turned, D in ((T, np.eye(LONG) + S.toarray()), (T.T, np.eye(LONG) + S.toarray().T)):
            with jsf.use_backend("xla"):
                np.testing.assert_allclose(solve(turned, B), np.linalg.solve(D, B), rtol=1e-12, atol=1e-12)


def test_a_cpu_runs_one_native_call_and_an_exported_program_none():
    T = Triangle.of(CHAIN, False)
    assert lowered(Triangle.solve, T, B, platforms=("cpu",)).count("jaxsparse_native") >= 1
    assert "jaxsparse_native" not in jax.export.export(jax.jit(lambda r: T.solve(r)))(B).mlir_module()


def test_a_triangle_beyond_32_bit_pointers_is_refused_before_its_arrays_are_read():
    with pytest.raises(ValueError, match="2147483648 entries exceeds what 32-bit indices address"):
        Triangle.of(types.SimpleNamespace(nnz=2**31, shape=(5, 5)), True)
