"""Tolerances that SciPy takes: infinity, which the first guess meets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg as spla

from solvers import Adjoint, Status, cg, eigsh
from tests.marks import few
from tests.solvers.methods import CASES, N

ANY = ({"rtol": np.inf}, {"atol": np.inf})
every_method = pytest.mark.parametrize("case", few(CASES, 2), ids=str)


@every_method
def test_does_infinity_accept_the_guess_as_in_scipy(case):
    S, b = case.system()
    A, x0 = jnp.asarray(S.toarray()), np.linspace(0, 0.1, N)
    for tolerance in ANY:
        for rhs in (b, 0 * b):
            sol = case.solver(A, rhs, **tolerance)
            assert (sol.status, sol.iterations) == (Status.CONVERGED, 0) and not np.any(sol.x)
        sol = case.solver(A, b, x0, **tolerance)
        np.testing.assert_array_equal(sol.x, x0)
        if case.scipy not in (None, spla.minres):
            x, info = case.scipy(S, b, x0, **tolerance)
            assert info == 0 and np.array_equal(x, x0)


def test_are_derivatives_solved_for_all_the_same():
    """By b they are those of A⁻¹·b; with the tolerance of the solve they would be zeros, without a word."""
    S, b = CASES[0].system()
    A = jnp.asarray(S.toarray())
    for tolerance in ANY:
        slope = jax.grad(lambda b, keywords=tolerance: cg(A, b, **keywords).x.sum())(b)
        np.testing.assert_allclose(slope, np.linalg.solve(S.toarray(), np.ones(N)), rtol=1e-4)


def test_is_infinity_refused_where_it_says_nothing():
    for use in (
        lambda: Adjoint(rtol=np.inf),
        lambda: eigsh(jnp.eye(9), 2, tol=np.inf),
        lambda: cg(jnp.eye(9), np.ones(9), rtol=-np.inf),
    ):
        with pytest.raises(ValueError, match=r"must be a number from 0 up; got -?inf"):
            use()
