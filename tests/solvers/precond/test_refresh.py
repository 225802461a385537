"""New values on a known pattern: preconditioners made and refreshed inside jit, vmap and scan; their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Status, cg
from solvers.precond import block_jacobi, chebyshev, incomplete_cholesky, incomplete_lu, jacobi
from tests.marks import few
from tests.solvers.precond.operators import assert_near, dense
from tests.solvers.precond.test_block_jacobi import inverse_of_blocks
from tests.solvers.precond.test_incomplete import ilu0


def of_factors(S: sp.csr_array) -> np.ndarray:
    """P(V)·D⁻¹·P(N), of the factors by elimination row by row, with polynomials of degree 2 in place of inverses."""
    L, U = ilu0(S)
    identity, D = np.eye(len(L)), np.diag(U)
    N, V = L - identity, U / D[:, None] - identity
    return (identity - V + V @ V) @ ((identity - N + N @ N) / D[:, None])


MAKE = {
    "jacobi": jacobi,
    "block_jacobi": lambda A: block_jacobi(A, 3),
    "incomplete_cholesky": lambda A: incomplete_cholesky(A, solve_sweeps=2),
    "incomplete_lu": incomplete_lu,
}
WANT = {
    "jacobi": lambda S: np.diag(1 / S.diagonal()),
    "block_jacobi": lambda S: inverse_of_blocks(S.toarray(), 3),
    "incomplete_cholesky": of_factors,
    "incomplete_lu": lambda S: np.linalg.inv(np.matmul(*ilu0(S))),
}
FACTORS = ("incomplete_cholesky", "incomplete_lu")
every = pytest.mark.parametrize("name", few(MAKE, 1))
factors = pytest.mark.parametrize("name", FACTORS)


N = 24


def system(name: str) -> tuple[sp.csr_array, jsf.SparseMatrix]:
    """A band with holes, dominated by its diagonal; symmetric unless for LU. Short lists: little is compiled."""
    rng = np.random.default_rng(1)
    S = sp.diags_array([rng.uniform(-1, 1, N - k) for k in (1, 2, 3, 7)], offsets=(1, 2, 3, 7), shape=(N, N))
    lower = sp.diags_array([rng.uniform(-1, 1, N - k) for k in (1, 2, 3, 7)], offsets=(-1, -2, -3, -7), shape=(N, N))
    S = S + (lower if name == "incomplete_lu" else S.T) + sp.diags_array(rng.uniform(4, 6, N))
    S = sp.csr_array(S)
    return S, jsf.from_scipy(S, "csr")


def changed(S: sp.csr_array, seed: int = 0) -> sp.csr_array:
    """The same pattern; symmetric and positive definite where S is."""
    d = 1 + 0.3 * np.random.default_rng(seed).random(S.shape[0])
    other = sp.csr_array(sp.diags_array(d) @ S @ sp.diags_array(d) + 0.2 * sp.diags_array(d * S.diagonal()))
    assert np.array_equal(other.indices, S.indices)
    return other


refresh = jax.jit(lambda M, A: M.refreshed(A))


def alike(M, N) -> bool:
    of = lambda M: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(M)]  # noqa: E731
    return jax.tree.structure(M) == jax.tree.structure(N) and of(M) == of(N)


@every
def test_a_refresh_is_the_preconditioner_of_the_new_values_outside_jit_and_inside(name):
    S, A = system(name)
    M, other = MAKE[name](A), changed(S)
    B = A.with_data(other.data)
    assert_near(dense(M), WANT[name](S), 1000)
    for N in (M.refreshed(B), refresh(M, B)):
        assert alike(M, N)
        assert_near(dense(N), WANT[name](other), 1000)


@every
def test_it_is_made_of_traced_values_and_of_several_at_once(name):
    S, A = system(name)
    r, values = np.ones(S.shape[0]), np.stack([changed(S, k).data for k in range(2)])
    applied = lambda data: MAKE[name](A.with_data(data)) @ r  # noqa: E731
    for k, z in ((0, jax.jit(applied)(values[0])), *enumerate(jax.vmap(applied)(values))):
        assert_near(z, WANT[name](changed(S, k)) @ r, 1000)


@pytest.mark.parametrize("name", few([*MAKE, "chebyshev"], 1))
def test_a_stack_of_several_is_applied_inside_vmap_only(name):
    _, A = system(name)
    make = (MAKE | {"chebyshev": lambda A: chebyshev(A, 2, (1.0, 9.0))})[name]
    values = jnp.stack([A.data, 2 * A.data])
    stack = jax.vmap(lambda data: make(A.with_data(data)))(values)
    with pytest.raises(ValueError, match="M is a stack of 2 preconditioners, as vmap makes them; apply it inside"):
        stack @ np.ones(N)
    if name in ("jacobi", "block_jacobi"):
        got = jax.vmap(lambda M: M @ np.ones(N))(stack)
        assert_near(got[1], WANT[name](2 * system(name)[0]) @ np.ones(N))


def test_a_polynomial_is_refreshed_with_its_bounds_and_what_is_inside_it():
    S, A = system("jacobi")
    other = changed(S)
    B = A.with_data(other.data)
    M = chebyshev(A, 2, M=jacobi(A))
    N = refresh(M, B)
    largest = np.linalg.eigvals(other.toarray() / other.diagonal()[:, None]).real.max()
    assert alike(M, N) and M.bounds[1] != N.bounds[1] and largest <= N.bounds[1] <= 1.35 * largest
    assert_near(N.M.inverse_diagonal, 1 / other.diagonal())
    given = chebyshev(A, 2, (0.3, 9.0)).refreshed(B)
    np.testing.assert_array_equal(given.bounds, [0.3, 9.0])
    assert_near(dense(given), dense(chebyshev(B, 2, (0.3, 9.0))))


def test_a_solve_is_differentiated_whatever_its_preconditioner_is_made_of():
    S, A = system("incomplete_cholesky")
    b = np.random.default_rng(0).standard_normal(N)

    def loss(data):
        B = A.with_data(data)
        return jnp.sum(cg(B, b, M=MAKE["incomplete_cholesky"](B), rtol=1e-12).x ** 2)

    x = np.linalg.solve(S.toarray(), b)
    y = np.linalg.solve(S.toarray(), 2 * x)
    row, col = S.tocoo().coords
    assert_near(jax.jit(jax.grad(loss))(A.data), -y[row] * x[col], 1e7)


@factors
def test_another_pattern_is_refused(name):
    S, A = system(name)
    M = MAKE[name](A)
    moved = S.toarray()
    moved[0, [3, 4]], moved[[3, 4], 0] = moved[0, [4, 3]], moved[[4, 3], 0]
    elsewhere, fewer = (jsf.from_dense(a, "csr") for a in (moved, np.diag(S.diagonal())))
    assert elsewhere.nnz == A.nnz
    with pytest.raises(ValueError, match=f"some entries of A lie elsewhere; make M anew with {name}"):
        M.refreshed(elsewhere)
    with pytest.raises(ValueError, match=f"A has 24 entries, and the one of M {A.nnz}; make M anew with {name}"):
        M.refreshed(fewer)


@pytest.mark.parametrize("name", [*MAKE, "chebyshev"])
def test_a_matrix_of_another_kind_is_refused(name):
    _, A = system(name)
    M = (MAKE | {"chebyshev": lambda A: chebyshev(A, 2, (1.0, 9.0))})[name](A)
    with pytest.raises(ValueError, match=r"of M's shape \(24, 24\); got \(27, 27\)"):
        M.refreshed(jsf.from_scipy(jsf.gallery.poisson(3), "csr"))
    with pytest.raises(TypeError, match="imaginary parts"):
        M.refreshed(A.astype("complex128"))


@pytest.mark.deep
def test_values_without_factors_are_refused_outside_jit_and_end_a_solve_inside():
    _, A = system("incomplete_cholesky")
    M, b = incomplete_cholesky(A), np.ones(N)
    zero = A.with_data(jnp.where(jnp.arange(A.nnz) == 0, 0.0, A.data))
    with pytest.raises(ValueError, match=r"diagonal .*in row 0"):
        M.refreshed(zero)
    sol = jax.jit(lambda M, A, Z: cg(A, b, M=M.refreshed(Z)))(M, A, zero)
    assert sol.status is Status.NON_FINITE and np.all(np.isfinite(sol.x))


def test_a_transpose_has_no_pattern_to_be_refreshed_on():
    _, A = system("incomplete_lu")
    with pytest.raises(ValueError, match=r"cannot be refreshed.*M\.refreshed\(A\)\.T"):
        MAKE["incomplete_lu"](A).T.refreshed(A.T)
