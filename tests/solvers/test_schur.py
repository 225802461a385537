"""Schur forms of small matrices: by LAPACK in the program and on the host, in order, and their eigenvectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from solvers.schur import _by_host, eigenvectors, ordered, schur
from tests.marks import few

M = 9


def matrix(dtype) -> np.ndarray:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((M, M)) + (1j * rng.standard_normal((M, M)) if np.dtype(dtype).kind == "c" else 0)
    return a.astype(dtype)


@jax.jit
def everything(H):
    T, Q, values = schur(H)
    rank = jnp.argsort(jnp.argsort(-jnp.abs(values), stable=True))
    T, Q, sorted_values = ordered(T, Q, values, rank)
    return T, Q, values, sorted_values, eigenvectors(T)


@pytest.mark.parametrize("dtype", few([np.float64, np.complex128, np.float32], 2))
def test_the_form_is_one_of_the_matrix_with_its_diagonal_in_order(dtype):
    H, limit = matrix(dtype), 100 * np.finfo(dtype).eps
    T, Q, values, in_order, Y = map(np.asarray, everything(H))
    np.testing.assert_allclose(H @ Q, Q @ T, atol=limit)
    np.testing.assert_allclose(Q.conj().T @ Q, np.eye(M), atol=limit)
    np.testing.assert_array_equal(np.tril(T, -1), 0)
    np.testing.assert_allclose(np.diagonal(T), in_order, atol=limit)
    assert np.all(np.diff(abs(in_order)) <= 0) and set(values) == set(in_order)
    np.testing.assert_allclose(T @ Y, Y * np.diagonal(T), atol=limit)
    np.testing.assert_allclose(np.sort(abs(values)), np.sort(abs(np.linalg.eigvals(H))), rtol=limit)


def test_pairs_of_a_real_matrix_are_neighbours_and_exact_conjugates():
    values = np.asarray(everything(matrix(np.float64))[2])
    first = np.flatnonzero(values.imag > 0)
    assert first.size > 1
    np.testing.assert_array_equal(values[first + 1], values[first].conj())


def test_the_host_gives_what_the_program_gives_also_under_vmap():
    """What a GPU calls."""
    H = np.stack([matrix(np.float64), matrix(np.float64).T])
    T, Q = jax.jit(jax.vmap(_by_host))(H)
    np.testing.assert_allclose(H @ Q, Q @ T, atol=1e-13)
    for one, t in zip(H, np.asarray(T), strict=True):
        np.testing.assert_allclose(abs(np.diagonal(t, -1)) > 0, abs(np.diagonal(jax.lax.linalg.schur(one)[0], -1)) > 0)
