"""Is the gradient of a solve with a singular matrix NaN or the pseudo-inverse's, where the loss sees the null space?"""

from typing import Any

import numpy as np
import pytest

from tests.solvers.endings import BY_B, WAYS, ZERO, N, kinds, of_cases
from tests.solvers.methods import neumann

SYMMETRIC = ("cg", "fcg", "minres")
FREE = ("idrs", "direct", "solve")  # in the null vectors of x: by factors, and by rounding
NAMES = (*SYMMETRIC, "gmres", "bicgstab", *FREE)
RTOL = {"float64": 1e-3, "float32": 2e-2}


def conductivities(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gᵀ·K·G with random K, and its change by those of K, which keeps the null space."""
    k, dk = RNG.random((2, len(G), 1)) + 0.5
    return G.T @ (k * G), G.T @ (dk * G)


def chain() -> tuple[np.ndarray, np.ndarray]:
    """1 − P of a Markov chain, transposed: its null vector is the stationary distribution, and its columns sum to 0."""
    P = RNG.random((N, N)) * (RNG.random((N, N)) < 0.2) + np.eye(N, k=1) + np.eye(N, k=1 - N)
    A = np.diag(P.sum(1)) - P
    return A.T, A.T


RNG = np.random.default_rng(8)
PATH = np.eye(N - 1, N, 1) - np.eye(N - 1, N)
GRID = np.concatenate([np.kron(np.eye(4), PATH[:4, :5]), np.kron(PATH[:3, :4], np.eye(5))])
MATRICES = {
    "path": (neumann(N).toarray(), neumann(N).toarray()),
    "path of random conductivities": conductivities(PATH),
    "grid": conductivities(GRID),
    "two paths": conductivities(np.delete(PATH, N // 2, 0)),
    "chain": chain(),
}


def losses(A: np.ndarray, sees: bool) -> Any:
    """Right-hand sides in the range of A; weights, of one entry or of all, with a part in A's null space or without."""
    off = np.eye(N) - (0 if sees else 1) * (np.eye(N) - np.linalg.pinv(A, 1e-12) @ A)
    for w in (np.eye(N)[3], RNG.standard_normal(N), RNG.standard_normal(N)):
        yield A @ RNG.standard_normal(N), off @ w


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("sees", [True, False])
@of_cases("cg jit, gmres jit, direct jit", NAMES, ("jit",))
def test_is_a_gradient_by_b_nan_or_that_of_the_pseudo_inverse(name, how, sees, dtype):
    """x may be off the shortest by null vectors, if A is unsymmetric or the method `FREE`, gradients by those of Aᵀ."""
    wrong = []
    for kind, (A, _) in MATRICES.items():
        inverse = np.linalg.pinv(A, 1e-12)
        if name in SYMMETRIC and kind == "chain":
            continue
        for b, w in losses(A, sees):
            limits = 1e-10 if dtype == "float64" else 1e-5, 1000
            gradient = BY_B[how](name, *(v.astype(dtype) for v in (A, b, b, w)), *limits)[0]
            gradient, right = np.asarray(gradient, float), inverse.T @ w
            if (kind == "chain" or name in FREE) and not sees:
                gradient, right = A.T @ gradient, w
            if kinds(gradient, right, RTOL[dtype]) not in ("NaN", "right"):
                wrong.append((kind, np.linalg.norm(gradient - right) / np.linalg.norm(right)))
    assert not wrong


@pytest.mark.parametrize("sees", [True, False])
@of_cases("cg jit, direct jit", NAMES, ("jit",))
def test_is_a_gradient_by_entries_along_a_change_that_keeps_the_null_space_nan_or_exact(name, how, sees):
    """−yᵀ·dA·x: null vectors of A in x and of Aᵀ in y have no part in it."""
    wrong = []
    for kind, (A, dA) in MATRICES.items():
        inverse = np.linalg.pinv(A, 1e-12)
        if name in SYMMETRIC and kind == "chain":
            continue
        for b, w in losses(A, sees):
            by_A = WAYS[how](name, A, b, 0 * A, ZERO, w, 1e-10, 1000)[2][0]
            got, x, y = np.vdot(by_A, dA), inverse @ b, inverse.T @ w
            if not np.isnan(got) and abs(got + y @ dA @ x) > 1e-3 * np.linalg.norm(y) * np.linalg.norm(dA @ x):
                wrong.append((kind, got, -y @ dA @ x))
    assert not wrong
