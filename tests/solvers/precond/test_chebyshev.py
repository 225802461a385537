"""Chebyshev: the polynomial it is, the interval it estimates, and where it stays positive."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from numpy.polynomial import chebyshev as reference

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core.basis import within
from solvers.precond.block_jacobi import block_jacobi
from solvers.precond.chebyshev import chebyshev
from solvers.precond.jacobi import jacobi
from tests.marks import few
from tests.solvers.precond.operators import apply, assert_near, dense, iterations, spd

S = spd()
A = jsf.from_scipy(S, "csr")


def polynomial(eigenvalues: np.ndarray, degree: int, low: float, high: float) -> np.ndarray:
    """p with 1 − λ·p(λ) = Tₘ((c − λ)/h) / Tₘ(c/h), m = degree + 1, c and h the interval's centre and half width."""
    centre, half = (high + low) / 2, (high - low) / 2
    t = reference.Chebyshev.basis(degree + 1)
    return (1 - t((centre - eigenvalues) / half) / t(centre / half)) / eigenvalues


@pytest.mark.parametrize(("degree", "M"), [(0, None), (1, None), (4, None), (2, block_jacobi(A, 3))], ids=range(4))
def test_it_is_the_polynomial_of_its_degree_of_a_matrix_or_of_its_product_with_a_preconditioner(degree, M):
    inverse = np.eye(81) if M is None else np.linalg.inv(dense(M))
    eigenvalues, Q = scipy.linalg.eigh(S.toarray(), inverse)  # A·q = λ·M⁻¹·q, Qᵀ·M⁻¹·Q = I
    low, high = 0.05, 1.1 * eigenvalues[-1]
    want = Q @ np.diag(polynomial(eigenvalues, degree, low, high)) @ Q.T
    assert_near(dense(chebyshev(A, degree, (low, high), M=M)), want, rounding=1e4)


def irregular() -> sp.csr_array:
    """A graph's Laplacian with hubs, and a shift."""
    G = jsf.gallery.power_law(300, mean=6.0)
    G = sp.csr_array(G + G.T)
    return sp.csr_array(sp.diags_array(np.asarray(G.sum(axis=1)).ravel() + 0.1) - G)


PROBLEMS = {
    "poisson": lambda: jsf.gallery.poisson(7),
    "elasticity": lambda: jsf.gallery.elasticity(4, 0.45),
    "hubs": irregular,
    "one large": lambda: sp.diags_array(np.append(np.linspace(1, 2, 199), 40.0)).tocsr(),
    "identity": lambda: sp.eye_array(50).tocsr(),
    "one unknown": lambda: sp.csr_array([[5.0]]),
}


@pytest.mark.parametrize(
    ("problem", "dtype"),
    few([*((p, np.float64) for p in PROBLEMS), ("identity", np.float32), ("elasticity", np.float32)], 2),
)
def test_the_estimate_holds_the_largest_eigenvalue_and_little_more(problem, dtype):
    S = PROBLEMS[problem]()
    largest = np.linalg.eigvalsh(S.toarray())[-1]
    low, high = np.asarray(chebyshev(jsf.from_scipy(S.astype(dtype), "csr")).bounds)
    assert largest <= high <= 1.35 * largest
    assert low == pytest.approx(high / 30)


def test_iterations_fall_by_about_its_degree():
    S = jsf.gallery.poisson(12)
    P = jsf.from_scipy(S, "csr")
    assert iterations(S, chebyshev(P, 4)) < 0.3 * iterations(S, jacobi(P))


inside = jax.jit(lambda M, basis, R: basis.leave(within(M, basis) @ basis.enter(R)))


@pytest.mark.parametrize("inner", [None, "jacobi", "block_jacobi"])
def test_it_is_the_same_operator_between_vectors_that_entered_a_basis(inner):
    P = jsf.from_scipy(S, "pjds", block_size=4)
    M = chebyshev(P, 2, (0.3, 9.0), M={None: None, "jacobi": jacobi(P), "block_jacobi": block_jacobi(P, 3)}[inner])
    R = np.random.default_rng(0).standard_normal((81, 2))
    want = np.asarray(apply(M, R))
    another = jsf.Basis(jnp.asarray(np.random.default_rng(1).permutation(81), jnp.int32))
    for basis in (P.basis, another):
        assert np.any(np.asarray(basis.perm) != np.arange(81))
        assert_near(inside(M, basis, R), want)


def test_an_interval_may_be_one_number():
    M = chebyshev(2 * jnp.eye(3), 2, bounds=(2.0, 2.0))
    assert_near(M @ jnp.ones(3), np.full(3, 0.5))


def test_a_nan_inside_jit_shows():
    bad = A.with_data(A.data.at[7].set(np.nan))
    assert np.all(np.isnan(jax.jit(lambda A: chebyshev(A, 1) @ jnp.ones(81))(bad)))
