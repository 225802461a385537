"""Numbers at the doors of both packages: which kinds are taken for which, and what is refused in words."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt import gallery
from solvers import cg, eigsh, precond

S = gallery.poisson(2)
A, b = jsf.from_scipy(S, "csr"), np.ones(8)

# Kinds of the numbers 2 and 0.1, and what is neither.
WHOLE = (2, np.int64(2), np.uint8(2), np.array(2), jnp.int32(2), jnp.asarray(2))
REAL = (0.1, np.float32(0.1), np.float64(0.1), np.array(0.1), jnp.float32(0.1), jnp.asarray(0.1), jnp.bfloat16(0.1))
BOOLS = (True, np.True_, np.array(True), jnp.asarray(True))
NOT_WHOLE = (*BOOLS, 2.0, np.float32(2), jnp.asarray(2.0), "2", [2], np.array([2]), jnp.asarray([2]))
NOT_REAL = (*BOOLS, "0.1", b"1", [0.1], np.array([0.1]), jnp.asarray([0.1]), 0.1j, np.complex128(0.1))


# The door of each number, and the values that it takes for the same and refuses, by a message with the name in it.
# Other doors ask for their own arguments beside their other refusals.
DOORS: dict[str, tuple[Callable[[Any], Any], tuple, tuple]] = {
    "maxiter": (lambda v: cg(A, b, maxiter=v), WHOLE, NOT_WHOLE),
    "k": (lambda v: eigsh(A, v, ncv=6), WHOLE, NOT_WHOLE),
    "block_size": (lambda v: precond.block_jacobi(A, v), WHOLE, NOT_WHOLE),
    "degree": (lambda v: precond.chebyshev(A, v, (0.1, 12.0)), WHOLE, NOT_WHOLE),
    "slice_size": (lambda v: jsf.from_scipy(S, "hll", slice_size=v), WHOLE, NOT_WHOLE),
    "block_shape": (lambda v: jsf.from_scipy(S, "bsr", block_shape=(v, 2)), WHOLE, NOT_WHOLE),
    "shape": (lambda v: jsf.from_coo([0], [0], [1.0], (v, 3), "csr"), WHOLE, NOT_WHOLE),
    "dim": (lambda v: gallery.poisson(2, dim=v), WHOLE, NOT_WHOLE),
    "rtol": (lambda v: cg(A, b, rtol=v), REAL, (*NOT_REAL, None)),
    "bounds": (lambda v: precond.chebyshev(A, 2, (v, 12.0)), REAL, NOT_REAL),
    "tol": (lambda v: eigsh(A, 1, tol=v), REAL, NOT_REAL),
}


@pytest.mark.parametrize("name", DOORS)
def test_what_is_no_number_of_the_kind_is_refused_by_name(name):
    door, _, refused = DOORS[name]
    for value in refused:
        with pytest.raises((TypeError, ValueError), match=name):
            door(value)


@pytest.mark.parametrize("name", DOORS)
def test_every_kind_of_number_is_taken_for_the_same(name):
    door, taken, _ = DOORS[name]
    want, *others = (jax.tree.leaves(a.toarray() if hasattr(a, "toarray") else a) for a in map(door, taken))
    for leaves in others:
        assert taken is REAL or all(np.array_equal(a, w) for a, w in zip(leaves, want, strict=True))


def test_traced_numbers_of_another_kind_are_refused_too():
    for name, value in (("maxiter", 2.5), ("maxiter", True), ("rtol", 1j), ("rtol", True), ("atol", [0.1])):
        with pytest.raises(TypeError, match=f"{name} must be one (integer|floating) number; got"):
            jax.jit(lambda v, name=name: cg(A, b, **{name: v}).x)(jnp.asarray(value))
    assert jax.jit(lambda v: cg(A, b, maxiter=v).n_iterations)(jnp.int32(1)) == 1
