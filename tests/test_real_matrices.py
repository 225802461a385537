"""Matrices from real problems, in every format, against SciPy. They are found through JAXSPARSE_MATRICES."""

import functools
import pathlib

import jax
import numpy as np
import scipy.io
import scipy.sparse

import jaxsparse_fmt as jsf
from tests.oracle import draw
from tests.solvers.real import FILES, each_file
from tests.zoo import Layout

SORTED = Layout("hll", (("slice_size", 100), ("sigma", 1000)))
CONVERTED = [SORTED, Layout("hll", (("slice_size", 32),)), *map(Layout, jsf.FORMATS)]


@functools.cache
def by_scipy(path: pathlib.Path) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(scipy.io.mmread(path, spmatrix=False))


def stored(S, layout: Layout) -> jsf.SparseMatrix | None:
    """The matrix; None where that is refused, which is deserved then and says so."""
    try:
        return layout.of(S)
    except ValueError as error:
        said = str(error)
    n_rows = S.shape[0]
    row = np.repeat(np.arange(n_rows), np.diff(S.indptr))
    if layout.format in ("dia", "hdia"):
        slice_size = 128 if layout.format == "hdia" else n_rows
        diagonals = np.unique(row // slice_size * 2 * sum(S.shape) + S.indices - row).size
        padded = diagonals * slice_size
    else:
        padded = n_rows * int(np.diff(S.indptr).max())
    assert padded > 10 * S.nnz and f"format {layout.format!r} would take" in said
    return None


@jax.jit
def both_ways(A, X, Y):
    return A @ X, A.T @ Y, A.data


@each_file
def test_files_read_as_scipy_reads_them(path):
    S, want = jsf.io.read_scipy(path), by_scipy(path)
    assert S.shape == want.shape and S.nnz == want.nnz
    assert abs(S - want).max() == 0
    A = jsf.read_mtx(path)
    assert (A.shape, A.nnz) == (want.shape, want.nnz)


@each_file
def test_every_format_holds_the_entries_or_says_what_fits(path):
    S = by_scipy(path)
    in_csr = jsf.from_scipy(S, "csr").nbytes
    for layout in CONVERTED:
        if (A := stored(S, layout)) is None:
            continue
        assert A.nnz == S.nnz and A.nbytes <= max(64 * 2**20, 10 * in_csr) + 8 * S.shape[0]
        values = np.asarray(A.entries()[3])
        np.testing.assert_array_equal(np.sort(values[values != 0]), np.sort(S.data[S.data != 0]))


@each_file
def test_products_and_storage_equal_scipys(path, rng):
    # Compilation takes nearly all the time, so the formats take turns.
    S, layout = by_scipy(path), CONVERTED[FILES.index(path) % len(CONVERTED)]
    A = stored(S, layout)
    A = SORTED.of(S) if A is None else A
    X, Y = (np.asarray(draw(rng, A.dtype, n, 2)) for n in S.shape[::-1])
    product, transposed, data = both_ways(A, X, Y)
    np.testing.assert_array_equal(data, S.data)
    for got, matrix, v in ((product, S, X), (transposed, S.T.tocsr(), Y)):
        # The bound of Kokkos Kernels' tests, row by row: these entries span twenty orders of magnitude.
        longest = int(np.diff(matrix.indptr).max(initial=1))
        limit = 10 * np.finfo(np.float64).eps * longest * (abs(matrix) @ abs(v))
        assert (np.abs(np.asarray(got) - matrix @ v) <= limit).all()
