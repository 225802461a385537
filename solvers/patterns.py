"""Patterns of matrices whose values programs have: one object for equal ones, and what all matrices with one share."""

import functools
from typing import Any

import numpy as np
import scipy
from jax import Array

from jaxsparse_fmt._caches import Recent
from jaxsparse_fmt._tracing import concrete, is_traced
from jaxsparse_fmt.convert import from_coo
from jaxsparse_fmt.core import lanes
from jaxsparse_fmt.core.matrix import SparseMatrix
from solvers.host import MMD, Host, column_counts, filled, nbytes_of, with_data

SAMPLE = 64  # entries, by which most others differ
KEPT, SMALL_KEPT = 4, 64  # patterns, and where all are small
SMALL = 2**17  # unknowns, and entries, of a pattern that is analysed for the device
UPDATES = 2**22  # of an elimination; their indices take 16 bytes each


class Pattern:
    """Places of the entries of a square matrix, of which equal ones add up; equal ones are one parameter of programs.

    Attributes:
      row, col: [nnz], of NumPy.
      shared: as of `Host`.
    """

    def __init__(self, n: int, row: np.ndarray, col: np.ndarray):
        self.n, self.row, self.col = n, row, col
        self.shared: dict[str, Any] = {}
        step = row.size // SAMPLE + 1
        self._sample = n, row.size, row[::step].tobytes(), col[::step].tobytes()

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Pattern) or self._sample != other._sample:
            return self is other
        return np.array_equal(self.row, other.row) and np.array_equal(self.col, other.col)

    def __hash__(self) -> int:
        return hash(self._sample)

    @property
    def nbytes(self) -> int:
        return nbytes_of(vars(self))

    @functools.cached_property
    def numbers(self) -> Any:
        """[n, n] in CSC, the numbers of the entries; None: some places are equal."""
        numbers = np.arange(self.row.size, dtype=np.int32)  # SuperLU counts entries in 32 bits
        S = scipy.sparse.csc_array((numbers, (self.row, self.col)), shape=(self.n, self.n))
        return S if S.nnz == self.row.size else None

    def host(self, values: np.ndarray) -> Host:
        """The matrix with these values [nnz]."""
        if self.numbers is not None:
            return Host(with_data(self.numbers, values[self.numbers.data]), self.shared)
        return Host(scipy.sparse.csc_array((values, (self.row, self.col)), shape=(self.n, self.n)), self.shared)

    def matrix(self, data: Array) -> SparseMatrix:
        return from_coo(self.row, self.col, data, (self.n, self.n), format="csr")

    @functools.cached_property
    def plan(self) -> lanes.Elimination | None:
        """None: the diagonal has a hole, or the factors too many entries."""
        row, col = self.row, self.col
        if np.count_nonzero(np.bincount(row[row == col], minlength=self.n)) < self.n:
            return None
        host = self.host(np.ones(row.size))
        order = host.order(MMD)
        (_, squares), counts, parent = column_counts(host.pattern, order)
        if squares > UPDATES:
            return None
        ordered = scipy.sparse.csr_array(host.pattern[order][:, order])
        return lanes.Elimination(row, col, order, *filled(ordered, counts, parent))


_patterns = Recent(KEPT, "patterns of factors for programs")


def pattern_of(n: int, row: Any, col: Any) -> Pattern:
    row, col = np.asarray(row), np.asarray(col)
    found = _patterns.results.get(Pattern(n, row, col)) or Pattern(n, row.copy(), col.copy())
    return _patterns.put(found, found, SMALL_KEPT if row.size <= SMALL else 0)


def known(A: Any) -> Pattern | None:
    """The pattern of a matrix, if it is known, and small."""
    if max(A.shape[0], A.nnz) > SMALL:
        return None
    with concrete():
        row, col = A.row_ids, A.col_ids
        return None if is_traced(row, col) else pattern_of(A.shape[0], row, col)
