"""Chebyshev: the polynomial it is, the interval it estimates, and where it stays positive."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from numpy.polynomial import chebyshev as reference

import jaxsparse_fmt as jsf
from solvers.precond.block_jacobi import block_jacobi
from solvers.precond.chebyshev import chebyshev
from solvers.precond.jacobi import jacobi
from tests.solvers.precond.operators import apply, assert_near, dense, iterations, spd

S = spd()
A = jsf.from_scipy(S, "csr")


def polynomial(eigenvalues: np.ndarray, degree: int, low: float, high: float) -> np.ndarray:
    """p with 1 − λ·p(λ) = Tₘ((c − λ)/h) / Tₘ(c/h), m = degree + 1, c and h the interval's centre and half width."""
    centre, half = (high + low) / 2, (high - low) / 2
    t = reference.Chebyshev.basis(degree + 1)
    return (1 - t((centre - eigenvalues) / half) / t(centre / half)) / eigenvalues


@pytest.mark.parametrize("degree", [0, 1, 4])
def test_it_is_the_polynomial_of_its_degree(degree):
    eigenvalues, Q = np.linalg.eigh(S.toarray())
    low, high = 0.3, 1.1 * eigenvalues[-1]
    want = Q @ np.diag(polynomial(eigenvalues, degree, low, high)) @ Q.T
    assert_near(dense(chebyshev(A, degree, (low, high))), want, rounding=1e4)


def test_around_a_preconditioner_it_is_the_polynomial_of_their_product():
    M = block_jacobi(A, 3)
    eigenvalues, Q = scipy.linalg.eigh(S.toarray(), np.linalg.inv(dense(M)))  # A·q = λ·M⁻¹·q, Qᵀ·M⁻¹·Q = I
    low, high = 0.05, 1.1 * eigenvalues[-1]
    want = Q @ np.diag(polynomial(eigenvalues, 2, low, high)) @ Q.T
    assert_near(dense(chebyshev(A, 2, (low, high), M=M)), want, rounding=1e4)


def test_no_polynomial_of_its_degree_errs_less_on_the_interval():
    eigenvalues = np.linspace(0.5, 8.0, 400)
    D = jsf.from_scipy(sp.diags_array(eigenvalues).tocsr(), "csr")
    p = apply(chebyshev(D, 3, (0.5, 8.0)), np.ones(400))
    error = np.abs(1 - eigenvalues * p)
    smallest = 1 / math.cosh(4 * math.acosh(8.5 / 7.5))  # 1 / T₄ of (λmax + λmin) / (λmax − λmin)
    assert error.max() == pytest.approx(smallest, rel=1e-6)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_it_is_positive_up_to_the_sum_of_its_bounds(degree):
    beyond = 8.0 + 0.5 * 0.99
    eigenvalues = np.concatenate([np.geomspace(1e-8, 8.0, 300), np.linspace(8.0, beyond, 100)])
    D = jsf.from_scipy(sp.diags_array(eigenvalues).tocsr(), "csr")
    assert np.min(apply(chebyshev(D, degree, (0.5, 8.0)), np.ones(400))) > 0


# ------------------------------------------------------------------------------------------------------------ bounds


def irregular() -> sp.csr_array:
    """A graph's Laplacian with hubs, and a shift."""
    G = jsf.gallery.power_law(300, mean=6.0)
    G = sp.csr_array(G + G.T)
    return sp.csr_array(sp.diags_array(np.asarray(G.sum(axis=1)).ravel() + 0.1) - G)


PROBLEMS = {
    "poisson": lambda: jsf.gallery.poisson(7),
    "line": lambda: jsf.gallery.poisson(200, dim=1),
    "elasticity": lambda: jsf.gallery.elasticity(4, 0.45),
    "hubs": irregular,
    "one large": lambda: sp.diags_array(np.append(np.linspace(1, 2, 199), 40.0)).tocsr(),
    "identity": lambda: sp.eye_array(50).tocsr(),
    "two values": lambda: sp.diags_array(np.repeat([1.0, 3.0], 20)).tocsr(),
    "one unknown": lambda: sp.csr_array([[5.0]]),
}


@pytest.mark.some(problem=2)
@pytest.mark.parametrize(
    ("problem", "dtype"), [*((p, np.float64) for p in PROBLEMS), ("identity", np.float32), ("elasticity", np.float32)]
)
def test_the_estimate_holds_the_largest_eigenvalue_and_little_more(problem, dtype):
    S = PROBLEMS[problem]()
    largest = np.linalg.eigvalsh(S.toarray())[-1]
    low, high = np.asarray(chebyshev(jsf.from_scipy(S.astype(dtype), "csr")).bounds)
    assert largest <= high <= 1.35 * largest
    assert low == pytest.approx(high / 30)


def test_the_estimate_is_that_of_the_product_with_the_inner_preconditioner():
    for M in (jacobi(A), block_jacobi(A, 3)):
        largest = scipy.linalg.eigvalsh(S.toarray(), np.linalg.inv(dense(M)))[-1]
        assert largest <= float(chebyshev(A, M=M).bounds[1]) <= 1.35 * largest


def test_a_hermitian_matrix_is_estimated_too():
    H = spd(np.complex128)
    largest = np.linalg.eigvalsh(H.toarray())[-1]
    M = chebyshev(jsf.from_scipy(H, "csr"))
    assert M.bounds.dtype == np.float64 and largest <= float(M.bounds[1]) <= 1.35 * largest


def test_it_can_be_made_inside_jit():
    r = np.random.default_rng(0).standard_normal(81)
    made = jax.jit(lambda A, bounds, r: (chebyshev(A, 2, bounds) @ r, chebyshev(A, 2) @ r))
    given, estimated = made(A, jnp.asarray([0.3, 9.0]), r)
    assert_near(given, np.asarray(apply(chebyshev(A, 2, (0.3, 9.0)), r)))
    assert_near(estimated, np.asarray(apply(chebyshev(A, 2), r)), rounding=1e4)


# --------------------------------------------------------------------------------------------------------- its worth


def test_iterations_fall_by_about_its_degree():
    S = jsf.gallery.poisson(12)
    P = jsf.from_scipy(S, "csr")
    assert iterations(S, chebyshev(P, 4)) < 0.3 * iterations(S, jacobi(P))


def test_around_jacobi_it_does_not_mind_the_units():
    units = 10.0 ** np.random.default_rng(0).uniform(-3, 3, 81)
    scaled = jsf.from_scipy(sp.csr_array(sp.diags_array(units) @ S @ sp.diags_array(units)), "csr")
    M, N = chebyshev(A, 2, M=jacobi(A)), chebyshev(scaled, 2, M=jacobi(scaled))
    np.testing.assert_allclose(N.bounds, M.bounds, rtol=0.1)  # another start of Lanczos in these units
    assert_near(units[:, None] * dense(chebyshev(scaled, 2, M.bounds, M=jacobi(scaled))) * units, dense(M), 1e4)


# ------------------------------------------------------------------------------------------------------------- basis

inside = jax.jit(lambda M, basis, R: basis.leave(M.entered(basis) @ basis.enter(R)))


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


def test_without_a_basis_nothing_changes():
    M = chebyshev(A, 1, (0.3, 9.0))
    assert M.entered(A.basis).order.perm is None


def test_entering_twice_is_entering_one_basis_after_the_other():
    P = jsf.from_scipy(S, "pjds", block_size=4)
    M, R = chebyshev(P, 1, (0.3, 9.0), M=jacobi(P)), np.random.default_rng(0).standard_normal((81, 2))
    another = jsf.Basis(jnp.asarray(np.random.default_rng(1).permutation(81), jnp.int32))
    entered = another.enter(P.basis.enter(R))
    assert_near(
        apply(M.entered(P.basis).entered(another), entered), np.asarray(another.enter(P.basis.enter(apply(M, R))))
    )


def test_in_the_basis_of_its_matrix_it_permutes_nothing():
    P = jsf.from_scipy(S, "pjds", block_size=4)
    M = chebyshev(P, 2, (0.3, 9.0), M=jacobi(P)).entered(P.basis)
    names = str(jax.make_jaxpr(lambda M, r: M @ r)(M, jnp.ones(81)))
    assert M.order.perm is None and M.A.basis.perm is None
    assert "gather" not in names and "scatter" not in names


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (0.0, 1.0), (-1.0, 1.0), (1.0, np.nan), (1.0, np.inf)])
def test_an_interval_that_is_none_is_refused(bounds):
    with pytest.raises(ValueError, match="with 0 < least ≤ largest < ∞; got"):
        chebyshev(A, bounds=bounds)


def test_an_interval_may_be_one_number():
    M = chebyshev(2 * jnp.eye(3), 2, bounds=(2.0, 2.0))
    assert_near(M @ jnp.ones(3), np.full(3, 0.5))


@pytest.mark.parametrize("bounds", [3.0, (1.0, 2.0, 3.0), "ab"])
def test_bounds_are_two_numbers(bounds):
    with pytest.raises((ValueError, TypeError), match="bounds must be two numbers"):
        chebyshev(A, bounds=bounds)


def test_a_matrix_that_is_not_positive_is_refused():
    indefinite = jsf.from_scipy(sp.csr_array(S - 2.0 * sp.eye_array(81)), "csr")
    for bad in (-A, indefinite, 0 * A):
        with pytest.raises(ValueError, match="needs a finite, positive definite matrix"):
            chebyshev(bad)
    sign = jnp.where(jnp.arange(81) % 10 == 0, -1.0, 1.0)
    with pytest.raises(ValueError, match=r"a finite, positive definite matrix and M.* from -inf"):
        chebyshev(A, M=jnp.diag(sign))


def test_a_nan_is_refused_outside_jit_and_shows_inside():
    bad = A.with_data(A.data.at[7].set(np.nan))
    with pytest.raises(ValueError, match="to nan"):
        chebyshev(bad)
    assert np.all(np.isnan(jax.jit(lambda A: chebyshev(A, 1) @ jnp.ones(81))(bad)))


def test_what_is_no_pytree_of_the_matrix_size_is_refused():
    with pytest.raises(TypeError, match="M must be a pytree with a shape"):
        chebyshev(A, M=lambda r: r)
    with pytest.raises(ValueError, match=r"M has shape \(27, 27\)"):
        chebyshev(A, M=jacobi(jsf.from_scipy(jsf.gallery.poisson(3), "csr")))
    with pytest.raises(TypeError, match="convert a sparse matrix once"):
        chebyshev(S)
    with pytest.raises(ValueError, match="degree must be at least 0; got -1"):
        chebyshev(A, -1)
