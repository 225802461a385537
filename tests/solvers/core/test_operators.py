"""Whatever multiplies vectors is an operator, and means the same in every order of the unknowns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
import solvers
from jaxsparse_fmt.core.basis import Operator, within
from solvers import cg, factorized, precond, solve
from solvers.core.operators import UserFunction, operator
from tests.lowering import equations

N = 30
RANDOM = sp.random_array((N, N), density=0.1, rng=np.random.default_rng(3))
S = sp.csr_array(RANDOM + RANDOM.T + sp.diags_array(np.linspace(8, 40, N)))
A = jsf.from_scipy(S, "pjds", block_size=4)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Users:
    """A class of a user's, which knows nothing of operators."""

    d: jax.Array
    shape = (N, N)

    def __matmul__(self, v):
        return (self.d * v.T).T


OPERATORS = {
    "a matrix": A,
    "its transpose": A.T,
    "a dense array": np.tril(S.toarray()),
    "a class of a user's": Users(jnp.arange(1.0, N + 1)),
    "a diagonal": np.arange(1.0, N + 1),
    "a function": lambda v: jnp.cumsum(v, axis=0),
    "jacobi": precond.jacobi(A),
    "block_jacobi": precond.block_jacobi(A, 3),
    "chebyshev": precond.chebyshev(A, bounds=(1.0, 90.0)),
    "chebyshev of jacobi": precond.chebyshev(A, M=precond.jacobi(A), bounds=(0.1, 2.0)),
    "chebyshev of block_jacobi": precond.chebyshev(A, M=precond.block_jacobi(A, 3), bounds=(0.1, 2.0)),
    "multigrid": precond.multigrid(A),
    "coarse_space": precond.coarse_space(A, np.ones((N, 1))),
    "factors": factorized(A),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_does_an_operator_mean_the_same_in_the_order_of_another(name):
    basis = A.basis
    assert not basis.is_identity
    M = operator(OPERATORS[name], N, "M")
    assert isinstance(M, Operator)
    X = np.random.default_rng(0).standard_normal((N, 3))
    if isinstance(M, UserFunction):
        M = M._traced(jnp.ones(N))
    expected = np.asarray(M @ jnp.asarray(X))
    for x, y in ((X, expected), (X[:, 0], expected[:, 0])):
        found = basis.leave(within(M, basis) @ basis.enter(jnp.asarray(x)))
        np.testing.assert_allclose(found, y, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_does_a_jacobi_of_a_sorted_matrix_permute_nothing_in_the_loop():
    """Entered once, its diagonal lies in the matrix's order, as it does on several devices."""
    program = jax.make_jaxpr(lambda A, M, v: within(M, A.basis) @ v)(A, precond.jacobi(A), jnp.ones(N))
    assert not [e for e, _ in equations(program.jaxpr) if e.primitive.name == "scatter"]  # as `leave` makes
    assert solvers.cg(A, np.ones(N), M=precond.jacobi(A), rtol=1e-10).success


class Callable:
    """A function of a user's with a shape and no `@`."""

    shape = (N, N)

    def __call__(self, v):
        return A @ v


def test_a_callable_with_a_shape_is_a_function():
    assert cg(Callable(), np.ones(N)).success


def test_an_operator_without_entries_is_named_by_its_own_class():
    class Opaque(Callable):
        def __matmul__(self, v):
            return A @ v

    with pytest.raises(ValueError, match="got Opaque, which has no entries to read"):
        solve(Opaque(), np.ones(N), method="direct")
