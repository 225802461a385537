"""Attention over a graph against dense arrays: sampled products and softmax of rows, in every format, with heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.marks import few
from tests.oracle import assert_derivatives_agree, assert_refused
from tests.zoo import FIRST_LAYOUTS, Layout

rng = np.random.default_rng(3)
MASK = rng.random((7, 5)) < 0.5
MASK[2], MASK[4] = False, True  # a row without entries, and a full one
S = sp.csr_array(np.where(MASK, rng.normal(size=MASK.shape), 0))
U, V, W = rng.normal(size=(7, 3)), rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
PLACE = np.nonzero(MASK)


def attention(data, A, U, V, W):
    return jsf.row_softmax(jsf.sddmm(A.with_data(data), U, V)) @ W


def dense_attention(data, U, V, W):
    scores = (jnp.zeros(MASK.shape).at[PLACE].set(data) * (U @ V.T))[~np.all(~MASK, 1)]
    shares = jax.nn.softmax(jnp.where(MASK[~np.all(~MASK, 1)], scores, -jnp.inf), axis=1)
    return jnp.zeros((7, 2)).at[np.flatnonzero(np.any(MASK, 1))].set(shares @ W)


@pytest.mark.parametrize("layout", few([Layout("csr"), *FIRST_LAYOUTS], 3), ids=str)
def test_is_attention_that_of_dense_arrays_in_every_format(layout):
    A = layout.of(S)
    got = jax.jit(attention)(A.data, A, U, V, W)
    np.testing.assert_allclose(got, dense_attention(S.data, U, V, W), atol=1e-12)
    T = sp.csr_array(S.T)
    np.testing.assert_allclose(jsf.sddmm(A.T, V, U).todense(), T.toarray() * (V @ U.T), atol=1e-12)
    outer = S.toarray() * np.outer(U[:, 0], V[:, 0])
    np.testing.assert_allclose(jsf.sddmm(A, U[:, 0], 1j * V[:, 0]).data.imag, outer[PLACE])


def test_are_its_derivatives_by_everything_those_of_dense_arrays():
    A = jsf.from_scipy(S, "csr")
    ours = lambda data, U, V, W: attention(data, A, U, V, W)  # noqa: E731
    assert_derivatives_agree(ours, dense_attention, S.data, U, V, W)
    heads = np.stack([U, -U]), np.stack([V, 2 * V])
    got = jax.jit(jax.vmap(attention, (None, None, 0, 0, None)))(A.data, A, *heads, W)
    for head, u, v in zip(got, *heads, strict=True):
        np.testing.assert_allclose(head, dense_attention(S.data, u, v, W), atol=1e-12)


def test_does_softmax_stay_finite_where_exponentials_do_not():
    A = jsf.from_scipy(S, "csr")
    data = np.where(np.arange(A.nnz) % 3, 1e4, -1e4)
    data[0] = -np.inf
    got = jsf.row_softmax(A.with_data(data))
    want = jax.nn.softmax(jnp.full(MASK.shape, -jnp.inf).at[PLACE].set(data), axis=1)
    np.testing.assert_allclose(got.data, want[PLACE], atol=1e-15)
    assert np.isfinite(jax.grad(lambda d: jnp.sum(jsf.row_softmax(A.with_data(d)).data ** 2))(data)).all()
    assert jsf.row_softmax(jsf.sddmm(jsf.from_scipy(sp.csr_array((7, 5)), "csr"), U, V)).nnz == 0


def test_is_no_array_of_entries_times_columns_made():
    """Of 40,000 entries and 64 columns, such an array would be larger than all others together."""
    n, p = 2000, 64
    A = jsf.from_scipy(sp.random_array((n, n), density=0.01, random_state=1), "csr")
    text = str(jax.make_jaxpr(lambda d, U: jsf.sddmm(A.with_data(d), U, U).data)(A.data, np.ones((n, p))))
    assert f"{A.nnz},{p}" not in text and f"{n},{n}" not in text


def test_is_what_fits_not_refused_in_words():
    A = jsf.from_scipy(S, "csr")
    words = r"U of shape \(7, p\) and V of shape \(5, p\); got \(5, 3\) and \(7, 3\)"
    assert_refused(lambda: jsf.sddmm(A, V, U), ValueError, words)
    assert_refused(lambda: jsf.row_softmax(A * 1j), TypeError, "real entries")
    assert_refused(lambda: jsf.row_softmax(S), TypeError, "from_scipy")
