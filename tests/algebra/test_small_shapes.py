"""Sums, products and assembly of small shapes, where memory that nobody has written holds NaN or huge numbers.

Matrices without rows, columns or entries, with one or two of each, and with zeros that are stored. The numbers are
integers, so that sums are exact. JAXSPARSE_SHAPES is the number of triples of matrices of each size, by default 4;
seventeen results are compared for each.
"""

import operator
import os

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.marks import few


@pytest.fixture
def poisoned(monkeypatch):
    """Memory as NumPy allocates it holds NaN, the smallest integer or True."""

    def wrapped(allocate):
        def allocated(*args, **kwargs):
            a = allocate(*args, **kwargs)
            a.fill(np.nan if a.dtype.kind in "fc" else np.iinfo(a.dtype).min if a.dtype.kind == "i" else True)
            return a

        return allocated

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(np, name, wrapped(getattr(np, name)))


def assembled(rng, shape: tuple[int, int], nnz: int, k: int):
    """A matrix of k coordinates at nnz places, the same dense, and where it has entries, some of which are zero."""
    index, dense, there = np.int32 if rng.random() < 0.5 else np.int64, np.zeros(shape), np.zeros(shape, bool)
    places = rng.choice(max(dense.size, 1), nnz, replace=False)
    places = rng.permutation(np.concatenate([places, rng.choice(places, k - nnz) if k > nnz else places[:0]]))
    row, col = np.divmod(places, max(shape[1], 1))
    values = np.floor(rng.random(k) * 7) - 3
    np.add.at(dense, (row, col), values)
    there[row, col] = True
    return jsf.assembly(row.astype(index), col.astype(index), shape, "csr")(values), dense, there


def same(A, dense, there) -> None:
    """A is canonical, and has an entry where `there` is true, zeros too."""
    S = A.to_scipy()
    assert S.has_canonical_format and S.nnz == np.count_nonzero(there)
    np.testing.assert_array_equal(S.toarray(), dense)
    S.data[:] = 1
    np.testing.assert_array_equal(S.toarray() > 0, there)


# Rows, columns, entries and coordinates: the numbers that decide what XLA compiles.
SIZES = [
    *((0, 3, 0, 0), (3, 0, 0, 0), (1, 1, 1, 30), (1, 6, 4, 9), (6, 1, 4, 4), (2, 2, 0, 0), (2, 2, 3, 5), (7, 5, 9, 20)),
    *((1, 17, 17, 40), (9, 9, 30, 30)),
]
TRIANGLES = (jsf.tril, np.tril, 1), (jsf.triu, np.triu, -1)


@pytest.mark.parametrize(("rows", "cols", "nnz", "k"), few(SIZES, 2), ids=str)
def test_operators_and_plans_of_small_matrices_are_those_of_dense_ones(rows, cols, nnz, k, poisoned, where, rng):
    for _ in range(int(os.environ.get("JAXSPARSE_SHAPES", "4")) if where == "host" else 1):
        (A, a, of_a), (D, d, of_d), (B, b, of_b) = (
            assembled(rng, shape, nnz, k) for shape in ((rows, cols), (rows, cols), (cols, rows))
        )
        made, of_both = of_a.astype(int) @ of_b.astype(int) > 0, of_a.T.astype(int) @ of_d.astype(int) > 0
        of_kron, blocks = np.kron(of_a, of_b), ((a, d, b), (of_a, of_d, of_b))
        at, to = rng.integers(0, max(rows, 1), min(rows, 4)), rng.integers(0, max(cols, 1), min(cols, 3))
        for got, want, there in (
            *((A, a, of_a), (A + D, a + d, of_a | of_d), (A - D, a - d, of_a | of_d)),
            *((A.multiply(D), a * d, of_a & of_d), (A @ B, a @ b, made), (jsf.plan.matmul(A, B)(A, B), a @ b, made)),
            *((A.T @ D, a.T @ d, of_both), (A + B.T, a + b.T, of_a | of_b.T)),
            (jsf.plan.add(A, D)(A, D), a + d, of_a | of_d),
            (jsf.plan.multiply(A, D)(A, D, jax.numpy.multiply), a * d, of_a & of_d),
            *((ours(A, k), dense(a, k), dense(of_a, k)) for ours, dense, k in TRIANGLES),
            *((jsf.prune(A, 2), np.where(abs(a) > 2, a, 0), abs(a) > 2), (jsf.kron(A, B), np.kron(a, b), of_kron)),
            (jsf.block([[A, None], [D, B.T]]), *(np.block([[m, 0 * m], [n, o.T]]) for m, n, o in blocks)),
            *((A[at][:, to], a[at][:, to], of_a[at][:, to]), (A[::-1, 1:], a[::-1, 1:], of_a[::-1, 1:])),
        ):
            same(got, want, there)
        row, col = np.nonzero(of_a)
        row, col, v = (np.tile(m, 2) for m in (row, col, a[of_a]))
        same(jsf.from_coo(row, col, v, (rows, cols), "csr"), 2 * a, of_a)


@pytest.mark.parametrize("format", ["csr", "dia", "sell"])
@pytest.mark.parametrize("combine", [operator.add, operator.sub, jsf.SparseMatrix.multiply])
def test_matrices_of_one_pattern_combine_place_by_place(format, combine, compiled):
    """Nothing else in this process has arrays of this size."""
    S = sp.csr_array(sp.diags_array([1.0, 2.0, 5.0], offsets=[-11, 0, 1], shape=(131, 131)))
    R = sp.csr_array((S.data[::-1].copy(), S.indices, S.indptr), S.shape)
    A, B = (jsf.from_scipy(M, format) for M in (S, R))
    wanted = (operator.mul if combine is jsf.SparseMatrix.multiply else combine)(S.toarray(), R.toarray())
    before = compiled()
    C = combine(A, B)
    assert compiled() == before and C.name == format and C.nnz == S.nnz
    np.testing.assert_array_equal(C.to_scipy().toarray(), wanted)
    np.testing.assert_array_equal(jax.jit(lambda A, b: combine(A, A._with_values(b)).values)(A, B.values), C.values)
