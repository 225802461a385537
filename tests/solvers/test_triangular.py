"""Solves with triangular matrices: SciPy's function, dense solves, and derivatives in the values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from solvers import spsolve_triangular
from tests.lowering import quick_jit

N = 25
RHS = np.random.default_rng(1).standard_normal((N, 2))


def matrix(lower: bool) -> sp.csr_array:
    rng = np.random.default_rng(0)
    a = np.tril(np.where(rng.random((N, N)) < 0.2, rng.uniform(-1, 1, (N, N)), 0), -1)
    np.fill_diagonal(a, rng.uniform(1, 2, N) * rng.choice([-1, 1], N))
    return sp.csr_array(a if lower else a.T)


@pytest.mark.parametrize("unit", [False, True], ids=["", "unit"])
@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
@pytest.mark.parametrize("format", ["csr", "pjds"])
def test_it_is_scipys(format, lower, unit):
    S = matrix(lower)
    A = jsf.from_scipy(S, format)
    given = S - sp.diags_array(S.diagonal() - 1) if unit else S
    want = spla.spsolve_triangular(sp.csr_array(given), RHS, lower=lower, unit_diagonal=unit)
    np.testing.assert_allclose(spsolve_triangular(A, RHS, lower, unit_diagonal=unit), want, rtol=1e-10, atol=1e-12)
    want = np.linalg.solve(given.toarray().T, RHS[:, 0])
    for got in (
        spsolve_triangular(A, RHS[:, 0], lower, unit_diagonal=unit, transposed=True),
        spsolve_triangular(A.T, RHS[:, 0], not lower, unit_diagonal=unit),
    ):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_first_and_second_derivatives_are_those_of_a_dense_solve(transposed):
    S, b = matrix(False), RHS[:, 0]
    A = jsf.from_scipy(S, "csr")
    v = np.random.default_rng(3).standard_normal(S.nnz)

    def dense(data, b):
        a = jnp.zeros((N, N)).at[S.tocoo().coords].set(data)
        return jnp.linalg.solve(a.T if transposed else a, b)

    def ours(data, b):
        return spsolve_triangular(A.with_data(data), b, False, transposed=transposed)

    def both(f):
        gradient = lambda data: jax.grad(lambda data, b: jnp.sum(jnp.sin(f(data, b))), (0, 1))(data, b)  # noqa: E731
        return lambda data: jax.jvp(gradient, (data,), (v,))

    got, want = jax.jit(both(ours))(A.data), both(dense)(jnp.asarray(S.data))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-10 * np.abs(w).max())
    values = np.stack([A.data, 2 * A.data])
    got = quick_jit(jax.vmap(ours, (0, None)))(values, b)
    np.testing.assert_allclose(got[1], dense(2 * jnp.asarray(S.data), b), rtol=1e-9, atol=1e-12)


def test_what_is_not_triangular_or_singular_or_traced_is_refused():
    A = jsf.from_scipy(matrix(True), "csr")
    with pytest.raises(ValueError, match=r"not upper triangular: it has an entry at \(.*jsf.triu\(A\)"):
        spsolve_triangular(A, RHS, lower=False)
    gone = matrix(True).toarray()
    gone[3, 3] = 0
    with pytest.raises(ValueError, match="diagonal is zero in row 3"):
        spsolve_triangular(jsf.from_dense(gone), RHS)
    with pytest.raises(ValueError, match="shape"):
        spsolve_triangular(A, RHS[:3])
    with pytest.raises(TypeError, match="from_scipy"):
        spsolve_triangular(matrix(True), RHS)
    with pytest.raises(TypeError, match="traced"):
        jax.jit(spsolve_triangular)(A, RHS)
