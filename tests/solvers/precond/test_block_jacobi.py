"""Jacobi and block Jacobi: the inverse of the block diagonal, and what zeros and singular blocks do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import jaxsparse_fmt as jsf
from solvers.precond import block_jacobi, jacobi
from tests.marks import few
from tests.solvers.precond.operators import assert_near, dense, spd, unsymmetric

made_inside = jax.jit(lambda A, b: block_jacobi(A, b) @ jnp.eye(A.shape[0], dtype=A.dtype), static_argnums=1)


def inverse_of_blocks(S: np.ndarray, b: int) -> np.ndarray:
    return scipy.linalg.block_diag(*(np.linalg.inv(S[k : k + b, k : k + b]) for k in range(0, len(S), b)))


@pytest.mark.parametrize("format", few(["csr", "csc", "ell", "dia", "sell", "bsr", "pjds"], 2))
def test_inverts_the_blocks_of_every_kind_of_format(format):
    S = unsymmetric()
    want = inverse_of_blocks(S.toarray(), 5)  # 64 rows: 12 blocks and 4 rows
    assert_near(made_inside(jsf.from_scipy(S, format), 5), want)


def test_takes_a_dense_array_and_a_transposed_view():
    S = unsymmetric()
    want = inverse_of_blocks(S.toarray(), 7)
    assert_near(dense(block_jacobi(S.toarray(), 7)), want)
    assert_near(dense(block_jacobi(np.diag([1, 2, 3]), 2)), np.diag([1, 1 / 2, 1 / 3]))
    assert_near(dense(block_jacobi(jnp.asarray(S.toarray()), 7)), want)
    assert_near(dense(block_jacobi(jsf.from_scipy(S, "csr").T, 7)), want.T)


def test_a_zero_on_the_diagonal_leaves_its_row_alone():
    M = jacobi(jsf.from_dense(np.array([[2.0, 1.0], [1.0, 0.0]]), "csr"))
    np.testing.assert_array_equal(M @ np.array([4.0, 3.0]), [2.0, 3.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_singular_block_gives_way_to_its_diagonal(dtype):
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    rank_one = np.outer([0.1, 0.3], [0.7, 0.9])  # singular but for rounding
    empty = np.array([[0.0, 0.0], [0.0, 0.0]])
    no_diagonal = np.array([[0.0, 3.0], [4.0, 0.0]])
    S = scipy.linalg.block_diag(singular, rank_one, empty, no_diagonal).astype(dtype)
    want = scipy.linalg.block_diag(
        np.diag([1, 1 / 4]), np.diag(1 / np.diag(rank_one)), np.eye(2), np.linalg.inv(no_diagonal)
    )
    assert_near(dense(block_jacobi(jsf.from_dense(S, "csr"), 2)), want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_block_of_many_units_is_not_singular(dtype):
    units = np.array([1e-9, 1.0, 1e9])
    block = units[:, None] * np.array([[2.0, 1.0, 0.9], [1.0, 2.0, 1.0], [0.9, 1.0, 2.0]]) * units
    want = np.linalg.inv(block / units[:, None] / units) / units[:, None] / units
    M = block_jacobi(jsf.from_dense(block.astype(dtype), "csr"), 3)
    np.testing.assert_allclose(dense(M), want, rtol=100 * np.finfo(dtype).eps)


def test_products_are_not_rounded_to_tf32():
    M = block_jacobi(jsf.from_scipy(spd(np.float32), "csr"), 3)
    jaxpr = str(jax.make_jaxpr(lambda M, r: M @ r)(M, jnp.ones(81, np.float32)))
    assert jaxpr.count("dot_general") == 1 and "Precision.HIGHEST" in jaxpr


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_in_a_block_is_refused_outside_jit_and_shows_inside(bad):
    S = spd().toarray()
    S[4, 3] = S[3, 4] = bad
    A = jsf.from_dense(S, "csr")
    with pytest.raises(ValueError, match="rows 3 to 5 holds a NaN"):
        block_jacobi(A, 3)
    D = np.asarray(made_inside(A, 3))
    assert np.all(np.isnan(D[3:6, 3:6])) and not np.any(np.isnan(np.delete(D, range(3, 6), axis=0)[:, :3]))


def test_inverses_wait_for_no_thread_of_a_pool():
    """As LAPACK's batches do, for ever, where eight devices of one CPU ask for them at once."""
    A = jsf.from_scipy(spd(), "csr")
    assert "lapack" not in jax.jit(lambda A: block_jacobi(A, 16).inverse_blocks).lower(A).as_text()
    assert "lapack" in jax.jit(jnp.linalg.inv).lower(jnp.eye(3)[None]).as_text()
