"""Deflation: the operator against its formula, subdomains, steps in two precisions, Ritz vectors, derivatives."""

import itertools

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import Status, cg, eigsh, refine
from solvers.precond.coarse_space import coarse_space, subdomains
from solvers.precond.jacobi import jacobi
from tests.solvers.precond.operators import assert_near, dense, spd

BODY = (8, 8, 8)
POINTS = np.array(list(itertools.product(*map(range, BODY))), float)
PARTS = (POINTS >= 4) @ np.array([4, 2, 1])  # octants
W = np.linalg.qr(np.random.default_rng(0).standard_normal((81, 5)))[0]

deflated_cg = jax.jit(lambda A, b, W: cg(A, b, M=coarse_space(A, W), rtol=1e-12))


def body(clamped: bool = True):
    return jsf.from_scipy(jsf.gallery.elasticity(BODY, 0.45, clamped), "bsr", block_shape=(3, 3))


def modes():
    return subdomains(jsf.gallery.rigid_body_modes(POINTS), PARTS)


def right_hand_side(n: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(n)


@pytest.mark.parametrize(("dtype", "sparse"), [(np.float64, True), (np.complex128, False), (np.complex128, True)])
def test_it_is_the_inverse_of_the_diagonal_and_of_the_coarse_matrix(dtype, sparse):
    S = spd(dtype)
    V = W.astype(dtype)
    V[:9] *= np.exp(1j) if V.dtype.kind == "c" else 1
    A = S.toarray()
    M = coarse_space(jsf.from_scipy(S, "csr"), sp.csr_array(V) if sparse else V)
    coarse = V @ np.linalg.inv(V.conj().T @ A @ V) @ V.conj().T
    added = dense(M) - np.diag(1 / np.diag(A))
    theta = np.vdot(coarse, added).real / np.vdot(coarse, coarse).real
    assert_near(added, theta * coarse, 1e4)
    scaled = A / np.sqrt(np.outer(np.diag(A), np.diag(A)))
    smallest, *_, largest = np.linalg.eigvalsh(scaled)
    assert smallest < theta < largest


def test_the_modes_of_each_subdomain_stand_apart_and_are_orthonormal():
    B = jsf.gallery.rigid_body_modes(POINTS)
    Z = modes().toarray()
    assert Z.shape == (len(B), 48)
    np.testing.assert_allclose(Z.T @ Z, np.eye(48), atol=1e-12)
    for part in range(8):
        rows = np.repeat(part == PARTS, 3)
        inside = Z[:, 6 * part : 6 * part + 6]
        assert not np.any(inside[~rows])
        Q, _ = np.linalg.qr(B[rows])
        np.testing.assert_allclose(inside[rows] @ inside[rows].T, Q @ Q.T, atol=1e-12)


def test_points_may_be_left_out_and_numbers_may_have_gaps():
    got = subdomains(np.ones(6), np.array([7, -1, 7, 2, 2, 2])).toarray()
    want = np.array([[0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 0, 0]]).T / np.sqrt([3, 2])
    np.testing.assert_allclose(got, want)


@pytest.mark.deep
def test_a_coarse_space_halves_the_steps_in_float32_too():
    A, Z = body(), modes()
    b = right_hand_side(A.shape[0])
    without, wide = cg(A, b, M=jacobi(A), rtol=1e-8), cg(A, b, M=coarse_space(A, Z), rtol=1e-8)
    narrow = refine(A, b, M=coarse_space(A, Z), rtol=1e-8, dtype="float32")
    assert wide.success and narrow.success
    assert 2 * wide.iterations <= without.iterations
    assert narrow.iterations <= 1.03 * wide.iterations + 1


def test_ritz_vectors_of_one_matrix_serve_the_next():
    S = jsf.gallery.poisson(12, dim=2)
    A, b = jsf.from_scipy(S, "csr"), right_hand_side(144)
    V = eigsh(A, 8, which="SA", tol=0.1).eigenvectors
    near = A.with_data(A.data * 1.1).astype("float64")
    plain, deflated = cg(near, b, M=jacobi(near), rtol=1e-8), cg(near, b, M=coarse_space(near, V), rtol=1e-8)
    assert deflated.success and deflated.iterations <= 0.75 * plain.iterations


def test_a_floating_body_is_solved_though_its_rigid_motions_are_null_vectors():
    A, Z = body(clamped=False), modes()
    b = np.asarray(A @ right_hand_side(A.shape[0]))
    sol = cg(A, b, M=coarse_space(A, Z), rtol=1e-8)
    assert sol.success and sol.iterations <= 150
    rigid = jsf.gallery.rigid_body_modes(POINTS)
    only = cg(A, b, M=coarse_space(A, rigid), rtol=1e-6, maxiter=2000)  # the coarse matrix is all rounding
    assert only.success


def test_steps_unrolled_are_differentiated_through_the_coarse_matrix():
    A, b, w = jsf.from_scipy(spd(), "csr"), right_hand_side(81), np.cos(np.arange(81.0))

    @jax.jit
    def loss(t):
        return w @ cg(B := A.with_data(A.data * (1 + t * c)), b, M=coarse_space(B, W), maxiter=4, adjoint="unrolled").x

    S = spd().tocoo()
    c = np.cos(S.row + 1.0) * np.cos(S.col + 1.0)
    h = 1e-5
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(0.0), (loss(h) - loss(-h)) / (2 * h), rtol=1e-6)


def test_inside_jit_a_dependent_column_counts_once_and_a_nan_shows():
    A, b = jsf.from_scipy(spd(), "csr"), right_hand_side(81)
    one, two = deflated_cg(A, b, W), deflated_cg(A, b, np.concatenate([W, W[:, :1]], axis=1))
    assert two.success and abs(one.iterations - two.iterations) <= 1
    assert deflated_cg(A, b, np.where(W > 0.3, np.nan, W)).status is Status.NON_FINITE
