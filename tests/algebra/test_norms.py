"""Norms against SciPy's, and their derivatives against dense ones."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from tests.lowering import quick_jit
from tests.oracle import assert_refused

S = sp.csr_array(np.array([[1.0, -4, 0, 2], [0, 3, -5, 0], [7, 0, 1, -1]]))
A = jsf.from_scipy(S, "hll")
WHOLE, ALONG = (None, "fro", 1, -1, np.inf, -np.inf), (None, 1, 2, np.inf)


def test_is_every_norm_that_of_scipy():
    for M, T in ((A, S), (A.T, S.T.tocsr()), (A * (1 + 2j), S * (1 + 2j))):
        for ord in WHOLE:
            np.testing.assert_allclose(jsf.norm(M, ord), spla.norm(T, ord), rtol=1e-14)
        for axis in (0, 1, -1):
            for ord in ALONG:
                np.testing.assert_allclose(jsf.norm(M, ord, axis), spla.norm(T, ord, axis), rtol=1e-14)


def test_are_its_derivatives_those_of_dense_norms():
    def both(data):
        B, D = A.with_data(data), jnp.zeros(A.shape).at[A.row_ids, A.col_ids].set(data)
        ours = [jsf.norm(B, ord) for ord in WHOLE] + [v for ord in ALONG for v in jsf.norm(B, ord, 1)]
        dense = [jnp.linalg.norm(D, ord) for ord in WHOLE] + [v for o in ALONG for v in jnp.linalg.norm(D, o, 1)]
        return jnp.stack(ours), jnp.stack(dense)

    np.testing.assert_allclose(*quick_jit(jax.jacobian(both))(A.data), atol=1e-12)


def test_is_another_norm_refused_in_words():
    assert_refused(lambda: jsf.norm(A, 2), ValueError, r"spectral norm is svds\(A, 1\)\.s\[0\]; got 2")
    assert_refused(lambda: jsf.norm(A, "fro", 0), ValueError, "along an axis; got 'fro'")


def test_has_an_empty_row_a_norm_with_slope_zero():
    E = jsf.from_scipy(sp.csr_array(([2.0], ([0], [0])), shape=(3, 3)), "csr")
    for slope in (jax.jacfwd, jax.jacrev):
        np.testing.assert_array_equal(slope(lambda d: jsf.norm(E.with_data(d), axis=0))(E.data), [[1], [0], [0]])
