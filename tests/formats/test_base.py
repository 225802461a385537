"""What the rules give a format: its entries, and the basis of sorted rows."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core.basis import IDENTITY
from tests.formats.pictures import RAGGED, stored
from tests.marks import few
from tests.oracle import assert_product

SQUARE = RAGGED[:, :99]
SORTED = {
    "hll": {"slice_size": 8, "sigma": 32},
    "jds": {},
    "pjds": {"block_size": 8},
    "pellr": {"lengths_per": "warp"},
    "biell": {},
    "bijad": {},
}
every_sorted = pytest.mark.parametrize("format", few(SORTED, 2))


@jax.jit
def views(A, x):
    inner = A.in_basis
    return A @ x, A.basis.leave(inner @ A.basis.enter(x)), inner.todense(), inner.diagonal(), inner.csr_arrays()


@every_sorted
def test_the_inner_matrix_is_the_permuted_one(format, rng):
    A, x = stored(format, matrix=SQUARE, **SORTED[format]), rng.standard_normal(99)
    perm = np.asarray(A.perm)
    np.testing.assert_array_equal(A.basis.perm, perm)
    assert not np.array_equal(perm, np.arange(99))
    product, inside, dense, diagonal, csr = views(A, x)
    canonical = sp.csr_array(SQUARE[perm][:, perm].toarray())
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(csr, name), getattr(canonical, name))
    wanted = canonical.toarray()
    np.testing.assert_array_equal(dense, wanted)
    np.testing.assert_array_equal(diagonal, np.diagonal(wanted))
    np.testing.assert_array_equal(inside, product)  # the same sums in the same order
    assert_product(inside, SQUARE.toarray(), x)
    inner = A.in_basis
    assert inner.perm is None and inner.basis is IDENTITY and inner.in_basis is inner
    assert inner.values is A.values and inner.name == format and inner.layout == A.layout
    assert inner.nbytes == A.nbytes - 4 * 99


ALONE = [
    *((format, layout, matrix) for format, layout in SORTED.items() for matrix in (RAGGED, RAGGED.T.tocsr())),
    # Sorted, but without column indices to renumber; and in the order of the rows.
    *((format, {"slice_size": 8, "sigma": 32}, SQUARE) for format in ("sell", "hdia")),
    *((format, {}, SQUARE) for format in sorted(set(jsf.FORMATS) - {"jds", "pjds", "pellr", "biell", "bijad"})),
]


def test_rectangular_or_unsorted_rows_or_columns_without_indices_keep_the_users_order():
    for format, layout, matrix in ALONE:
        A = stored(format, matrix=matrix, **layout)
        assert A.basis is IDENTITY and A.in_basis is A
