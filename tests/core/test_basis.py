"""Basis: in by a permutation, out by its inverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsparse_fmt import Basis
from jaxsparse_fmt.core.basis import IDENTITY

PERM = jnp.array([2, 0, 3, 1], jnp.int32)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(6)), st.sampled_from([(), (3,)]))
def test_leaving_undoes_entering_and_entering_undoes_leaving(perm, columns):
    basis = Basis(jnp.array(perm, jnp.int32))
    x = jnp.arange(6.0 * int(np.prod(columns))).reshape(6, *columns)
    np.testing.assert_array_equal(basis.leave(basis.enter(x)), x)
    np.testing.assert_array_equal(basis.enter(basis.leave(x)), x)


def test_inner_place_k_holds_unknown_perm_k():
    np.testing.assert_array_equal(Basis(PERM).enter(jnp.arange(4) * 10), [20, 0, 30, 10])


def test_the_identity_returns_the_very_array():
    x = jnp.ones(3)
    assert IDENTITY.enter(x) is x and IDENTITY.leave(x) is x


@pytest.mark.parametrize("way", ["enter", "leave"])
def test_both_ways_are_orthogonal_under_jit_grad_and_vmap(way):
    basis, x = Basis(PERM), jnp.arange(1.0, 5)

    @jax.jit
    def both(basis, x):
        move = getattr(basis, way)
        return jax.grad(lambda x: jnp.sum(jnp.arange(4) * move(x)))(x), jax.vmap(move)(jnp.stack([x, 2 * x]))

    gradient, mapped = both(basis, x)
    other = getattr(basis, "leave" if way == "enter" else "enter")
    np.testing.assert_array_equal(gradient, other(jnp.arange(4.0)))
    np.testing.assert_array_equal(mapped[1], 2 * getattr(basis, way)(x))
    assert jnp.linalg.norm(mapped[0]) == jnp.linalg.norm(x)
