"""Our matrices and preconditioners as operators of lineax."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import precond
from tests.solvers.methods import N, matrix, right_hand_side
from tests.solvers.test_lineax import DEFINITE, GENERAL, OURS, POSITIVE, B, SparseOperator, assert_near, lx, stored


def test_what_lineax_asks_of_an_operator_is_what_the_dense_matrix_says():
    S = sp.csr_array(GENERAL * (1 + 2j))
    operator, dense = SparseOperator(stored(S)), S.toarray()
    x = jnp.asarray(right_hand_side(dtype=np.complex128))
    for got, want in ((operator, dense), (operator.T, dense.T), (lx.conj(operator.T), dense.T.conj())):
        np.testing.assert_array_equal(got.as_matrix(), want)
        assert_near(got.mv(x), want @ x, 1e-14)
        for mine, offset in zip(lx.tridiagonal(got), (0, -1, 1), strict=True):
            np.testing.assert_array_equal(mine, np.diagonal(want, offset))
        np.testing.assert_array_equal(lx.diagonal(got), np.diagonal(want))
    assert lx.linearise(operator) is operator is lx.materialise(operator)


def test_jacobi_takes_a_sum_of_operators():
    A = SparseOperator(stored(DEFINITE), POSITIVE)
    shift = lx.DiagonalLinearOperator(jnp.linspace(0, 50, N))
    shifted = A + shift + 0.5 * lx.IdentityLinearOperator(A.in_structure())
    M = precond.jacobi(shifted)
    d = DEFINITE.diagonal() + np.linspace(0, 50, N) + 0.5
    assert_near(M @ np.ones(N), 1 / d, 1e-15)
    assert_near(M.refreshed(A) @ np.ones(N), 1 / DEFINITE.diagonal(), 1e-15)
    solution = lx.linear_solve(shifted, B, OURS, options={"preconditioner": M})
    want = np.linalg.solve(DEFINITE.toarray() + np.diag(np.linspace(0, 50, N) + 0.5), B)
    assert_near(solution.value, want)
    tall = lx.MatrixLinearOperator(jnp.ones((3, 2)))
    with pytest.raises(ValueError, match=r"needs a square matrix; got \(3, 2\)"):
        precond.jacobi(tall)


def test_a_preconditioner_is_an_operator_too():
    A = stored(DEFINITE)
    operator, inverse = SparseOperator(precond.jacobi(A)), 1 / DEFINITE.diagonal()
    assert_near(operator.as_matrix(), np.diag(inverse), 1e-15)
    assert_near(lx.diagonal(operator), inverse, 1e-15)
    assert not np.any(lx.tridiagonal(operator)[1])


@pytest.mark.parametrize("transposed", [False, True])
def test_a_large_tridiagonal_system_needs_no_dense_matrix(transposed):
    n = 100_000
    S = sp.diags_array([np.full(n - 1, -1.0), np.full(n, 4.0), np.full(n - 1, -2.0)], offsets=[-1, 0, 1]).tocsr()
    A, b = stored(S, "dia"), np.random.default_rng(6).standard_normal(n)
    A, S = (A.T, S.T) if transposed else (A, S)
    assert_near(S @ np.asarray(lx.linear_solve(SparseOperator(A, lx.tridiagonal_tag), b).value), b, 1e-12)


def test_tags_say_what_they_say_to_lineaxs_own_operators():
    real, hermitian = stored(DEFINITE), stored(matrix("definite", dtype=np.complex128))
    checks = [f for name, f in vars(lx).items() if name.startswith(("is_", "has_"))]
    tags = [tag for name, tag in vars(lx).items() if name.endswith("_tag")]
    assert len(checks) == len(tags) == 8
    for A in real, hermitian:
        for tag in tags:
            ours, theirs = SparseOperator(A, tag), lx.MatrixLinearOperator(A.todense(), tag)
            for of in (lambda op: op), (lambda op: op.T):
                assert [f(of(ours)) for f in checks] == [f(of(theirs)) for f in checks]
    assert SparseOperator(real, POSITIVE).T.matrix is not real.T
    assert isinstance(SparseOperator(real, {POSITIVE}).T.matrix, jsf.CSR)  # not the slow transposed product
