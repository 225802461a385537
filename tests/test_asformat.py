"""From format to format, on a device, inside jit, and in narrow types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.lowering import quick_jit
from tests.marks import few
from tests.oracle import assert_same_storage
from tests.zoo import CASES, FIRST_LAYOUTS, LAYOUTS

every_format = pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 3), ids=str)


@every_format
def test_every_pair_of_formats_converts_to_what_scipy_converts_to(layout):
    """With its dtype and backend."""
    S, kept = CASES["irregular"].scipy(), {"dtype": np.float32, "backend": "xla"}
    source = layout.of(S, **kept)
    for other in LAYOUTS:
        assert_same_storage(source.asformat(other.format, **dict(other.options)), other.of(S, **kept))


@quick_jit
def in_jit(A):
    return [A.asformat(name) for name in ("coo", "csr", "csc")]


@every_format
def test_coo_csr_and_csc_are_made_inside_jit(layout):
    S = CASES["irregular"].scipy()
    for got in in_jit(layout.of(S)):
        assert_same_storage(got, jsf.from_scipy(S, got.name))


@every_format
def test_a_matrix_made_inside_jit_equals_one_made_outside(layout):
    S = CASES["irregular"].scipy()
    there = jsf.from_scipy(S, "csr")
    made = []

    @jax.jit
    def make():
        made.extend([layout.of(S), there.asformat(layout.format, **dict(layout.options))])

    make()
    for A in made:
        assert_same_storage(A, layout.of(S))


@every_format
def test_a_conversion_of_traced_values_is_differentiable_and_maps(layout, rng):
    S = CASES["irregular"].scipy()
    A, x = jsf.from_scipy(S, "csr"), rng.standard_normal(S.shape[1])
    product = lambda data: A.with_data(data).asformat(layout.format, **dict(layout.options)) @ x  # noqa: E731
    np.testing.assert_allclose(jax.grad(lambda data: product(data).sum())(A.data), x[A.col_idx], rtol=1e-14)
    both = jax.vmap(product)(jnp.stack([A.data, -2 * A.data]))
    np.testing.assert_allclose(both, [S @ x, -2 * (S @ x)], rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------- transposes

WIDE = sp.csr_array(np.array([[1.0, 0, 2], [0, 3, 4]]))


@pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 2), ids=str)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.complex64], ids=["bfloat16", "complex64"])
def test_a_transpose_can_be_stored_as_a_matrix_of_its_own(layout, dtype):
    turned = jsf.from_scipy(WIDE, "csr").astype(dtype).T.asformat(layout.format, **dict(layout.options))
    assert (turned.name, turned.dtype, turned.shape) == (layout.format, dtype, (3, 2))
    np.testing.assert_array_equal(turned.todense(), WIDE.toarray().T)
    np.testing.assert_array_equal(turned.data, WIDE.T.tocsr().data)


def test_a_transpose_is_stored_while_a_function_is_traced_but_not_a_traced_one():
    A = jsf.from_scipy(WIDE, "csr")
    np.testing.assert_array_equal(jax.jit(lambda x: A.T.asformat("ell") @ x)(np.ones(2)), WIDE.T @ np.ones(2))
    with pytest.raises(ValueError, match=r"A\.T\.asformat\('ell'\) needs a matrix that is not traced; convert outside"):
        jax.jit(lambda A: A.T.asformat("ell"))(A)
