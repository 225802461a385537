"""Sums, products and assembly of many small shapes, where memory that nobody has written holds NaN or huge numbers.

Matrices without rows, columns or entries, with one or two of each, with zeros that are stored and with rows that are
full. The numbers are integers, so that sums are exact.
"""

import contextlib
import functools
import itertools
import operator
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.algebra import patterns

# ------------------------------------------------------------------------------------------------------ random shapes

FEW, MANY = (0, 1, 1, 2, 2, 3), (5, 9, 17, 40)


class Case(NamedTuple):
    """A and D have one shape, and B as many rows as that has columns; no numbers but where entries are, NaN elsewhere.

    Attributes:
      place: rows and columns of coordinates that may repeat, int32 or int64, in the shape of A.
      index: the dtype of the indices of patterns.
    """

    A: np.ndarray
    D: np.ndarray
    B: np.ndarray
    place: np.ndarray
    index: type


def drawn(rng: np.random.Generator) -> Case:
    m, q, w = (int(rng.choice(FEW if rng.random() < 0.7 else MANY)) for _ in range(3))
    index = np.int32 if rng.random() < 0.5 else np.int64
    k = int(rng.integers(0, 1 + 2 * m * q)) if m * q < 50 or rng.random() < 0.1 else int(rng.integers(0, 40))
    place = (rng.random((2, k)) * [[m], [q]]).astype(index)
    return Case(matrix(rng, m, q), matrix(rng, m, q), matrix(rng, q, w), place, index)


def matrix(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Entries from -3 to 3, some of them zeros, and NaN where there is none; a row or a column may be full."""
    missing = rng.random((rows, cols)) > rng.choice([0.0, 0.1, 0.4, 1.0])
    if rng.random() < 0.2 and rows:
        missing[rng.integers(rows)] = False
    if rng.random() < 0.1 and cols:
        missing[:, rng.integers(cols)] = False
    numbers = np.floor(rng.random((rows, cols)) * 7) - 3
    numbers[missing] = np.nan
    return numbers


def csr(dense: np.ndarray, index: type) -> tuple[sp.csr_array, np.ndarray]:
    """The pattern, with indices of that dtype, and the entries."""
    there = ~np.isnan(dense)
    indptr = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    S = patterns.csr(indptr, np.nonzero(there)[1], dense.shape)
    S.indptr, S.indices, S.data = indptr.astype(index), S.indices.astype(index), dense[there]
    return S, dense[there]


# ------------------------------------------------------------------------------------------- what lies behind operators


def equal(got: np.ndarray, want: np.ndarray) -> None:
    """As `assert_array_equal`, which takes longer than all that it would compare here."""
    if got.shape != want.shape or not (got == want).all():
        np.testing.assert_array_equal(got, want)


def same_places(S: sp.csr_array, there: np.ndarray) -> None:
    """The pattern has an entry where `there` is true, row by row and from left to right."""
    equal(S.indptr, np.concatenate([[0], np.cumsum(there.sum(axis=1))]))
    equal(S.indices, np.nonzero(there)[1])


def numbers_of(dense: np.ndarray) -> np.ndarray:
    """The number of each entry, from 1 up, where it is; 0 where there is none."""
    there = ~np.isnan(dense)
    return np.where(there, np.cumsum(there).reshape(there.shape), 0)


def sums(case: Case) -> None:
    """The entries of A and D in their sum and in their common pattern, and the values, against dense masks."""
    (A, _), (D, _), both = csr(case.A, case.index), csr(case.D, case.index), (~np.isnan(case.A), ~np.isnan(case.D))
    for shared, there in ((False, both[0] | both[1]), (True, both[0] & both[1])):
        made, left, right = patterns.united(A, D, shared)
        same_places(made, there)
        equal(left, numbers_of(case.A)[there])
        equal(right, numbers_of(case.D)[there])
        for f in (operator.mul,) if shared else (operator.add, operator.sub):
            C = patterns.combined(f, operator.mul if shared else operator.add, A, D)
            same_places(C, there)
            equal(C.data, f(np.nan_to_num(case.A), np.nan_to_num(case.D))[there])


def products(case: Case) -> None:
    """The products that each entry of A·B sums, and its values."""
    (A, a), (B, b) = csr(case.A, case.index), csr(case.B, case.index)
    count = (~np.isnan(case.A)).astype(int) @ (~np.isnan(case.B)).astype(int)
    total = (np.nan_to_num(case.A) @ np.nan_to_num(case.B))[count > 0]
    found, first, left, right = patterns.listed(A, B)
    same_places(found, count > 0)
    equal(np.diff(first), count[count > 0])
    equal(np.bincount(_owners(first), a[left] * b[right], total.size), total)
    assert np.all((np.diff(left) > 0) | (np.diff(_owners(first)) > 0))  # by rising column of A
    C = patterns.combined(operator.matmul, operator.matmul, A, B)
    same_places(C, count > 0)
    equal(C.data, total)


def assemblies(case: Case) -> None:
    """Coordinates with their lists, and `filled` to a number of entries between the least and the most."""
    (row, col), shape, k = case.place, case.A.shape, case.place.shape[1]
    key = row.astype(np.int64) * shape[1] + col
    S, first, order = patterns.grouped(row, col, shape)
    there = np.zeros(shape, bool)
    there[row, col] = True
    same_places(S, there)
    equal(order, np.argsort(key, kind="stable"))
    equal(first, np.append(np.unique(np.sort(key), return_index=True)[1], k))
    most = (S.nnz + k) // 2 if k <= there.size else there.size
    most = max(most, S.nnz)
    S, first = patterns.filled(S, first, most)
    assert S.nnz == most and first[-1] == k
    more = np.zeros(shape, bool)
    more[_owners(S.indptr), S.indices] = True
    same_places(S, more)
    assert np.all(more[there]) and np.array_equal(np.diff(first), np.bincount(key, minlength=there.size)[more.ravel()])


def _owners(first: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(first.size - 1), np.diff(first))


HOST = sums, products, assemblies  # each asks every third shape

# -------------------------------------------------------------------------------------------------------------- tests


@functools.cache
def poison(dtype: np.dtype) -> float | int | bool:
    return np.nan if dtype.kind in "fc" else np.iinfo(dtype).min if dtype.kind == "i" else True


@pytest.fixture
def poisoned(monkeypatch):
    """Memory as NumPy allocates it holds NaN, the smallest integer or True."""

    def wrapped(allocate):
        def allocated(*args, **kwargs):
            a = allocate(*args, **kwargs)
            a.fill(poison(a.dtype))
            return a

        return allocated

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(np, name, wrapped(getattr(np, name)))


@contextlib.contextmanager
def named(*what: object) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(" ".join(map(str, what)))
        raise


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="asks of the host alone")
@pytest.mark.parametrize("shapes", [1_500, pytest.param(50_000, marks=pytest.mark.deep)])
def test_what_operators_find_on_the_host_is_what_dense_matrices_say(shapes, poisoned):
    for number, check in zip(range(shapes), itertools.cycle(HOST), strict=False):
        case = drawn(np.random.default_rng([shapes, number]))
        with named(check.__name__, "of shape", number, case):
            check(case)


# Rows, columns, entries and coordinates: the numbers that decide what XLA compiles.
SIZES = [
    (0, 3, 0, 0),
    (3, 0, 0, 0),
    (1, 1, 1, 30),
    (1, 6, 4, 9),
    (6, 1, 4, 4),
    (2, 2, 0, 0),
    (2, 2, 3, 5),
    (7, 5, 9, 20),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_operators_of_small_matrices_are_those_of_dense_ones(size, poisoned, rng):
    rows, cols, nnz, k = size
    for number in range(8):
        (A, a), (D, d), (B, b) = (assembled(rng, shape, nnz, k) for shape in ((rows, cols), (rows, cols), (cols, rows)))
        with named("matrices", number, a, d, b):
            for got, want in (
                (A, a),
                (A + D, a + d),
                (A - D, a - d),
                (A.multiply(D), a * d),
                (A @ B, a @ b),
                (A.T @ D, a.T @ d),
            ):
                S = got.to_scipy()
                assert S.has_canonical_format
                np.testing.assert_array_equal(S.toarray(), want)


def assembled(
    rng: np.random.Generator, shape: tuple[int, int], nnz: int, k: int
) -> tuple[jsf.SparseMatrix, np.ndarray]:
    """A matrix of k coordinates at nnz places, and the same dense; some entries are zero."""
    index, dense = np.int32 if rng.random() < 0.5 else np.int64, np.zeros(shape)
    places = rng.choice(max(dense.size, 1), nnz, replace=False)
    places = rng.permutation(np.concatenate([places, rng.choice(places, k - nnz) if k > nnz else places[:0]]))
    row, col = np.divmod(places, max(shape[1], 1))
    values = np.floor(rng.random(k) * 7) - 3
    np.add.at(dense, (row, col), values)
    return jsf.assembly(row.astype(index), col.astype(index), shape, "csr")(values), dense
