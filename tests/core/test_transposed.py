"""A.T, a view: what may be done with a matrix may be done with its transpose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.marks import few
from tests.zoo import FIRST_LAYOUTS

S = sp.csr_array(np.array([[1.0, 0, 2], [0, 3, 4]]))
A = jsf.from_scipy(S, "csr")


@pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 2), ids=str)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.complex64], ids=["bfloat16", "complex64"])
def test_a_transpose_can_be_stored_as_a_matrix_of_its_own(layout, dtype):
    turned = A.astype(dtype).T.asformat(layout.format, **dict(layout.options))
    assert (turned.name, turned.dtype, turned.shape) == (layout.format, dtype, (3, 2))
    np.testing.assert_array_equal(turned.todense(), S.toarray().T)
    np.testing.assert_array_equal(turned.data, S.T.tocsr().data)


def test_a_transpose_is_stored_while_a_function_is_traced_but_not_a_traced_one():
    np.testing.assert_array_equal(jax.jit(lambda x: A.T.asformat("ell") @ x)(np.ones(2)), S.T @ np.ones(2))
    with pytest.raises(ValueError, match=r"A\.T\.asformat\('ell'\) needs a matrix that is not traced; convert outside"):
        jax.jit(lambda A: A.T.asformat("ell"))(A)
