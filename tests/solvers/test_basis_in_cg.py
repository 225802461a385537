"""Conjugate gradients on formats with sorted rows: the basis is entered once, and the loop permutes nothing."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import cg, precond
from tests.marks import few
from tests.solvers.methods import matrix as definite
from tests.zoo import FIRST_LAYOUTS

S = definite("definite", seed=3)
N = S.shape[0]
B = jnp.asarray(np.random.default_rng(4).standard_normal(N))
SORTED = {one.format: one for one in FIRST_LAYOUTS if not one.of(S).basis.is_identity}


def sorted_matrix(format: str, matrix: sp.csr_array = S) -> jsf.SparseMatrix:
    A = SORTED[format].of(matrix)
    assert A.basis.perm is not None and not np.array_equal(A.basis.perm, np.arange(matrix.shape[0]))
    return A


def test_the_basis_is_entered_once_and_left_once(monkeypatch):
    calls = collections.Counter()
    for way in ("enter", "leave"):
        move = getattr(jsf.Basis, way)
        monkeypatch.setattr(jsf.Basis, way, lambda self, x, way=way, move=move: calls.update([way]) or move(self, x))
    matrix = definite("definite", seed=5, n=47)  # of a size that no other test has compiled
    sol = cg(sorted_matrix("pjds", matrix), jnp.ones(47))
    assert sol.success and sol.iterations > 2
    assert calls == {"enter": 1, "leave": 1}


@pytest.mark.parametrize("format", few(SORTED, 1))
def test_the_answer_is_that_of_unsorted_rows_and_a_callback_sees_it_in_the_users_order(format):
    seen: list[np.ndarray] = []
    sol = cg(sorted_matrix(format), B, rtol=1e-10, callback=lambda x: seen.append(np.array(x)))
    plain = cg(jsf.from_scipy(S, "csr"), B, rtol=1e-10)
    jax.effects_barrier()
    assert sol.success and abs(sol.iterations - plain.iterations) <= 1 and len(seen) == sol.iterations
    np.testing.assert_allclose(sol.x, np.linalg.solve(S.toarray(), B), rtol=1e-7)
    np.testing.assert_allclose(seen[-1], sol.x, rtol=1e-12)
    np.testing.assert_allclose(cg(sorted_matrix(format), B, rtol=1e-10).x, sol.x, rtol=1e-9)
    assert sol.residual_norm == pytest.approx(np.linalg.norm(B - S @ np.asarray(sol.x)), rel=1e-3)


def test_a_start_and_a_preconditioner_are_in_the_users_order():
    A, exact = sorted_matrix("pjds"), np.linalg.solve(S.toarray(), B)
    assert cg(A, B, exact, rtol=1e-8).iterations == 0
    d = 10.0 ** np.linspace(-2, 2, N)
    scaled = sp.csr_array(sp.diags_array(d) @ S @ sp.diags_array(d))
    iterations = [
        cg(M, B, M=precond.jacobi(M), rtol=1e-8).iterations
        for M in (sorted_matrix("pjds", scaled), jsf.from_scipy(scaled, "csr"))
    ]
    assert abs(iterations[0] - iterations[1]) <= 1
