"""DIA: diagonals without column indices, of which a product reads mirrored ones once; and the pattern of holes."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.kernels.cpu import csr_operations
from tests.formats.pictures import RAGGED, holes
from tests.lowering import quick_jit
from tests.marks import few
from tests.oracle import assert_product

GRID = jsf.gallery.poisson(7)


def symmetric(n: int = 60) -> sp.csr_array:
    """Seven diagonals of random numbers, of which some are zeros that stay and some are missing, in mirrored pairs."""
    rng = np.random.default_rng(0)
    row, col = (
        np.concatenate(a) for a in zip(*((np.arange(n - o), np.arange(o, n)) for o in (0, 1, 5, 17)), strict=True)
    )
    data = rng.standard_normal(row.size)
    data[rng.random(row.size) < 0.1] = 0
    there = rng.random(row.size) < 0.9
    row, col, data = row[there], col[there], data[there]
    beside = row != col
    row, col = np.concatenate([row, col[beside]]), np.concatenate([col, row[beside]])
    return sp.coo_array((np.concatenate([data, data[beside]]), (row, col)), (n, n)).tocsr()


MATRICES = {
    "grid": GRID,
    "with zeros and holes": symmetric(),
    "no main diagonal": sp.csr_array(GRID - sp.diags_array(GRID.diagonal())),
    "one pair alike of three": sp.csr_array(
        jsf.gallery.poisson(6) + sp.diags_array([1.0, 2.0], offsets=[1, 6], shape=(216, 216))
    ),
    "nothing alike": sp.csr_array(RAGGED[:, :99]),
    "rectangular": RAGGED,
}
MATRICES["no main diagonal"].eliminate_zeros()
every_matrix = pytest.mark.parametrize("name", few(MATRICES, 2))


@quick_jit
def faces(A, X, Y):
    product, pullback = jax.vjp(lambda data: A.with_data(data) @ X, A.data)
    return (
        A @ X,
        A.T @ Y,
        product,
        pullback(Y)[0],
        jax.vjp(lambda values: A._with_values(values) @ X, A.values)[1](Y)[0],
    )


@every_matrix
@pytest.mark.parametrize("backend", ["xla", "interpret", "numba"])
def test_products_and_derivatives_are_those_of_all_entries(name, backend, rng):
    S = MATRICES[name]
    A = jsf.from_scipy(S, "dia", backend=backend)
    X, Y = rng.standard_normal((S.shape[1], 2)), rng.standard_normal((S.shape[0], 2))
    product, transposed, again, by_data, by_values = faces(A, X, Y)
    dense, row = S.toarray(), np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    assert_product(product, dense, X)
    assert_product(transposed, dense.T, Y)
    assert_product(again, dense, X)
    sampled = np.sum(Y[row] * X[S.indices], axis=1)
    np.testing.assert_allclose(by_data, sampled, atol=1e-12)
    # A place is read for each of its entries, and a derivative by it is the sum of theirs.
    start, offsets = np.asarray(A.start), np.asarray(A.offsets)
    wanted = np.zeros(A.n_stored)
    np.add.at(wanted, start[np.searchsorted(offsets, S.indices - row)] + row, sampled)
    np.testing.assert_allclose(by_values, wanted, atol=1e-12)


def places_read(A) -> int:
    """The diagonals that are read where they lie, times rows."""
    n = A.shape[0]
    return n * int(np.sum(np.asarray(A.start) == n * np.arange(A.offsets.size)))


def test_a_product_with_a_stencil_reads_little_more_than_half_of_its_diagonals():
    A = jsf.from_scipy(GRID, "dia")
    assert A.n_stored == 7 * 343 and places_read(A) == 4 * 343
    assert A.nbytes_read == 8 * 4 * 343 + 8 * 7
    assert A.with_data(A.data).nbytes_read == 8 * 7 * 343 + 8 * 7


@pytest.mark.parametrize("change", ["a number", "an entry more"])
def test_one_difference_keeps_both_diagonals(change):
    S = sp.lil_array(sp.diags_array([2.0, 3.0, 3.0], offsets=[0, 1, -1], shape=(40, 40)))
    S[20, 19] = 0.0 if change == "an entry more" else 4.0
    S = sp.csr_array(S)
    if change == "an entry more":
        S = sp.csr_array(S + sp.csr_array(([0.0], ([19], [20])), S.shape))
    A = jsf.from_scipy(S, "dia")
    assert places_read(A) == 3 * 40
    np.testing.assert_array_equal(A.todense(), S.toarray())


def test_are_new_values_recognized_by_their_pattern():
    A = jsf.from_scipy(GRID, "dia")
    B = A.with_data(2 * A.data)
    assert places_read(A) < places_read(B) and B.row_ids is A.row_ids
    assert A.with_data(A.data).start is B.with_data(A.data).start is B.start


def test_symmetric_complex_matrices_share_and_hermitian_ones_do_not(rng):
    x = rng.standard_normal(343) + 1j * rng.standard_normal(343)
    alike = sp.csr_array(GRID * (1 - 2j))
    hermitian = sp.csr_array(GRID + 1j * (sp.triu(GRID, 1) - sp.tril(GRID, -1)))
    for S, n_read in ((alike, 4 * 343), (hermitian, 7 * 343)):
        A = jsf.from_scipy(S, "dia")
        assert places_read(A) == n_read
        assert_product(A @ x, S.toarray(), x)
        assert_product(A.rmatvec(x), S.conj().T.toarray(), x)


# ----------------------------------------------------------------------------------------------------------- pattern


@pytest.mark.parametrize("shape", [(99, 120), (120, 99), (3, 50), (50, 3), (1, 40), (40, 1)])
@pytest.mark.parametrize("few", [1, csr_operations.FEW], ids=["by a kernel", "by NumPy"])
def test_place_r_of_a_diagonal_is_the_entry_at_r_and_r_plus_its_offset(shape, few, monkeypatch):
    monkeypatch.setattr(csr_operations, "FEW", few)
    dense = np.resize(RAGGED.toarray(), shape)
    dense[0, -1] = dense[-1, 0] = 7  # the two outermost diagonals
    A = jsf.from_scipy(sp.csr_array(dense), "dia")
    offsets = np.asarray(A.offsets)
    assert offsets[0] == 1 - shape[0] and offsets[-1] == shape[1] - 1 and np.all(np.diff(offsets) > 0)
    row = np.arange(shape[0])
    col = row + offsets[:, None]
    inside = (col >= 0) & (col < shape[1])
    wanted = np.where(inside, dense[row, np.clip(col, 0, shape[1] - 1)], 0)
    np.testing.assert_array_equal(np.asarray(A.values).reshape(-1, shape[0]), wanted)
    np.testing.assert_array_equal(holes(A), np.flatnonzero(inside & (wanted == 0)))
    np.testing.assert_array_equal(A.data, dense[dense != 0])


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("layout", [{"format": "dia"}, {"format": "bsr", "block_shape": (2, 2)}], ids=["dia", "bsr"])
def test_a_stored_zero_is_an_entry_and_padding_is_not(layout, missing):
    row = np.arange(missing, 40)
    S = sp.csr_array((row + 1.0, (row, row)), (40, 40))
    S.data[5] = 0
    A = jsf.from_scipy(S, **layout)
    assert A.nnz == 40 - missing
    np.testing.assert_array_equal(A.data, S.data)
    np.testing.assert_array_equal(np.isnan(A @ np.full(40, np.nan)), np.arange(40) >= missing)
    if A.name == "dia":
        assert A.reads_pattern == (A.pattern is not None) == (missing > 0)


def test_mirrored_diagonals_of_a_new_size_compile_nothing_on_a_cpu(compiled):
    """Nothing else in this process has arrays of this size."""
    S = sp.csr_array(sp.diags_array([1.0, 2.0, 5.0, 2.0, 1.0], offsets=[-40, -1, 0, 1, 40], shape=(1237, 1237)))
    S[700, 701] = 3.0
    before = compiled()
    A = jsf.from_scipy(S, "dia")
    assert abs(A.to_scipy() - S).max() == 0
    assert compiled() == before
    assert A.nbytes_read < A.nbytes
