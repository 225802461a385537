"""`constrain`: known unknowns are eliminated as a dense elimination does, symmetrically, and with its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import cg
from tests.marks import few
from tests.oracle import assert_refused

S = sp.csr_array(jsf.gallery.poisson(5, dim=2) + sp.diags_array([np.linspace(0, 1, 25)], offsets=[0]))
N = S.shape[0]
FIXED = np.array([24, 0, 7, 3])
VALUES = np.array([1.0, -2.0, 0.5, 3.0])
B = np.linspace(-1, 2, N)


def eliminated(dense, b, fixed, values):
    """x by the system of the free unknowns alone; of NumPy or JAX."""
    free = np.setdiff1d(np.arange(N), fixed)
    inner = jnp.linalg.solve(dense[np.ix_(free, free)], b[free] - dense[np.ix_(free, fixed)] @ values)
    return jnp.zeros(b.shape).at[free].set(inner).at[fixed].set(values)


@pytest.mark.parametrize("format", few(["csr", "dia", "sell", "coo", "bsr"], 2))
def test_the_constrained_system_is_the_eliminated_one_and_symmetric(format):
    A, b = jsf.constrain(jsf.from_scipy(S, format), B, FIXED, VALUES)
    assert A.name == format and A.nnz == S.nnz
    dense = np.asarray(A.todense())
    np.testing.assert_array_equal(dense, dense.T)
    np.testing.assert_allclose(np.diag(dense), S.diagonal())
    np.testing.assert_allclose(np.linalg.solve(dense, b), eliminated(S.toarray(), B, FIXED, VALUES), rtol=1e-12)


def test_several_right_hand_sides_have_values_of_their_own_or_one_for_all():
    A, b2 = jsf.from_scipy(S, "csr"), np.stack([B, B**2], axis=1)
    for values in (np.stack([VALUES, -VALUES], axis=1), VALUES, 2.0):
        C, b = jsf.constrain(A, b2, FIXED, values)
        of_each = np.broadcast_to(np.reshape(values, (np.size(values), 1)) if np.ndim(values) < 2 else values, (4, 2))
        for k in range(2):
            want = eliminated(S.toarray(), b2[:, k], FIXED, of_each[:, k])
            np.testing.assert_allclose(np.linalg.solve(C.todense(), b[:, k]), want, rtol=1e-12)


def test_a_mask_means_its_indices_and_a_traced_matrix_is_one():
    A, mask = jsf.from_scipy(S, "sell"), np.isin(np.arange(N), FIXED)
    (C, b), traced = jsf.constrain(A, B, FIXED, 1.5), jax.jit(lambda A: jsf.constrain(A, B, FIXED, 1.5))
    for got in (jsf.constrain(A, B, mask, 1.5), traced(A)):
        np.testing.assert_allclose(got[0].data, C.data)
        np.testing.assert_allclose(got[1], b)


def test_derivatives_by_matrix_b_and_values_are_those_of_the_elimination():
    A, weights = jsf.from_scipy(S, "csr"), np.cos(np.arange(N))

    @jax.jit
    def ours(data, b, values):
        C, b = jsf.constrain(A.with_data(data), b, FIXED, values)
        return weights @ cg(C, b, rtol=1e-12).x

    def dense(data, b, values):
        return weights @ eliminated(jnp.zeros((N, N)).at[A.row_ids, A.col_ids].set(data), b, FIXED, values)

    given = (jnp.asarray(S.data), jnp.asarray(B), jnp.asarray(VALUES))
    for got, want in zip(jax.grad(ours, (0, 1, 2))(*given), jax.grad(dense, (0, 1, 2))(*given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9)


def test_what_cannot_be_constrained_is_refused_in_words():
    A = jsf.from_scipy(S)
    for arguments, text in (
        *(((jsf.from_scipy(S[:5]), B, FIXED), "square matrix"), ((A, B[:4], FIXED), r"b of shape \(25,\)")),
        *(((A, B, [3, 25]), "outside 0 to 24: 25"), ((A, B, [-1]), "outside 0 to 24: -1"), ((A, B, [3, 3]), "twice")),
        *(((A, B, [0.5]), "whole numbers"), ((A, B, np.ones(4, bool)), r"mask .* shape \(25,\)")),
        ((A, B, FIXED, np.ones(3)), r"each of the 4 .* got \(3,\)"),
        ((jsf.from_scipy(sp.csr_array(sp.eye_array(N, k=1))), B, [2]), "row 2 .* no diagonal"),
    ):
        assert_refused(lambda given=arguments: jsf.constrain(*given), ValueError, text)
    assert_refused(lambda: jsf.constrain(S, B, FIXED), TypeError, "from_scipy")
    traced = jax.jit(lambda fixed: jsf.constrain(A, B, fixed))
    assert_refused(lambda: traced(FIXED), TypeError, "`fixed` is traced")
