"""A matrix that a function closes over, whose pattern is constant: XLA computes nothing of it while it compiles."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from tests.zoo import FIRST_LAYOUTS

S = jsf.gallery.poisson(30)  # XLA would take seconds for running sums over its entries
X = np.ones(S.shape[0])


def faces(A, x):
    """Both products, the derivative by the values, and new entries."""
    gradient = jax.grad(lambda values: jnp.vdot(x, A._with_values(values) @ x))(A.values)
    return A @ x, A.T @ x, gradient, A.with_data(A.data * 2), A.diagonal()


def compiling(f, *args) -> float:
    """Seconds of this process; what else is at work on this machine counts little."""
    start = time.process_time()
    jax.jit(f).lower(*args).compile()
    return time.process_time() - start


@pytest.mark.clock
@pytest.mark.parametrize("layout", FIRST_LAYOUTS, ids=str)
def test_a_closed_over_matrix_compiles_nearly_as_fast_as_an_argument(layout):
    A = layout.of(S, backend="xla")
    jax.block_until_ready(A.data)  # the index of its entries is kept from now on
    new = time.time()  # a program that no cache holds
    argument, closed_over = (
        compiling(f, *args) for f, *args in ((lambda A, x: faces(A, new * x), A, X), (lambda x: faces(A, new * x), X))
    )
    assert closed_over < 1.5 * argument + 0.5
