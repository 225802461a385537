"""Basis: in by a permutation, out by its inverse."""

import jax.numpy as jnp
import numpy as np
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
