"""`constrain`: known unknowns are eliminated as a dense elimination does, symmetrically, and with its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from solvers import cg
from tests.marks import few

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
    for values, each in ((np.stack([VALUES, -VALUES], axis=1), None), (VALUES, None), (2.0, np.full(4, 2.0))):
        C, b = jsf.constrain(A, b2, FIXED, values)
        for k in range(2):
            v = each if each is not None else values[:, k] if values.ndim == 2 else values
            want = eliminated(S.toarray(), b2[:, k], FIXED, v)
            np.testing.assert_allclose(np.linalg.solve(C.todense(), b[:, k]), want, rtol=1e-12)


def test_a_mask_and_its_indices_mean_the_same():
    A, mask = jsf.from_scipy(S, "csr"), np.zeros(N, bool)
    mask[FIXED] = True
    one, two = (jsf.constrain(A, B, fixed, 1.5) for fixed in (mask, FIXED))
    np.testing.assert_array_equal(one[0].data, two[0].data)
    np.testing.assert_array_equal(one[1], two[1])


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


def test_a_traced_matrix_is_constrained_as_any_other():
    A = jsf.from_scipy(S, "sell")
    C, b = jax.jit(lambda A: jsf.constrain(A, B, FIXED, VALUES))(A)
    want = jsf.constrain(A, B, FIXED, VALUES)
    np.testing.assert_allclose(C.data, want[0].data)
    np.testing.assert_allclose(b, want[1])


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((S, B, FIXED), TypeError, "from_scipy"),
        ((jsf.from_scipy(S[:5]), B, FIXED), ValueError, "square matrix"),
        ((jsf.from_scipy(S), B[:4], FIXED), ValueError, r"b of shape \(25,\)"),
        ((jsf.from_scipy(S), B, [3, 25]), ValueError, "outside 0 to 24: 25"),
        ((jsf.from_scipy(S), B, [-1]), ValueError, "outside 0 to 24: -1"),
        ((jsf.from_scipy(S), B, [3, 3]), ValueError, "twice"),
        ((jsf.from_scipy(S), B, [0.5]), ValueError, "whole numbers"),
        ((jsf.from_scipy(S), B, np.ones(4, bool)), ValueError, r"mask .* shape \(25,\)"),
        ((jsf.from_scipy(S), B, FIXED, np.ones(3)), ValueError, r"each of the 4 .* got \(3,\)"),
        ((jsf.from_scipy(sp.csr_array(sp.eye_array(N, k=1))), B, [2]), ValueError, "row 2 .* no diagonal"),
    ],
)
def test_what_cannot_be_constrained_is_refused_in_words(arguments, error, text):
    with pytest.raises(error, match=text):
        jsf.constrain(*arguments)


def test_which_unknowns_are_fixed_may_not_be_traced():
    with pytest.raises(TypeError, match="`fixed` is traced"):
        jax.jit(lambda fixed: jsf.constrain(jsf.from_scipy(S), B, fixed))(FIXED)
