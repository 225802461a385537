"""Plans: the part of an operation that the patterns decide, made once on the host; the call takes the values.

    plan = jsf.plan.matmul(A, B)
    C = plan(A, B)               # under jit, grad and vmap too

The values of C = A·B are sums of products a[i]·b[j] over a list of pairs, in canonical order. With b[j] as its values
this list is itself a sparse matrix T, [entries of C, entries of A], and C's values are T·a: so the product that
multiplies matrices with vectors computes them, and its rules give every derivative. An assembly is such a product too,
with ones as values. A sum needs no list: each of its entries is at most one of A's and one of B's.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.core import Tracer

from jaxsparse_fmt._types import Target, as_floating, concrete, index_dtype, pytree, standard_promotion, whole_number
from jaxsparse_fmt.algebra import patterns
from jaxsparse_fmt.core import form
from jaxsparse_fmt.core.entry_index import take
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.csr import CSR
from jaxsparse_fmt.kernels.cpu import spgemm

Array = jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What the patterns of the operands decide.

    Attributes:
      result: the matrix of the result, without values.
      operands: (shape, nnz) of each operand.
    """

    result: SparseMatrix
    operands: tuple[tuple[tuple[int, int], int], ...] = dataclasses.field(metadata={"static": True})

    def _data(self, *matrices: Any) -> list[Array]:
        """The values of the operands [nnz] each.

        Raises:
          ValueError: an operand has another shape or another number of entries than the plan's. The arrays of the
            patterns are not compared.
        """
        given = tuple((A.shape, A.nnz) for A in matrices)
        if given != self.operands:
            raise ValueError(
                f"the plan is for matrices of (shape, nnz) {self.operands}, got {given}; make a plan for these patterns"
            )
        return [A.data for A in matrices]

    @property
    def nbytes(self) -> int:
        """Bytes of the plan's arrays."""
        return sum(a.nbytes for a in jax.tree.leaves(self))

    def __repr__(self) -> str:
        (rows, cols), nnz = self.result.shape, self.result.nnz
        return f"<{type(self).__name__} of {self.result.name} {rows}×{cols}, nnz={nnz}, {self.nbytes} bytes>"


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Selection(Plan):
    """A result each of whose entries is an entry of one operand: slices, triangles, blocks.

    Attributes:
      entry: [nnz of the result], the entry among those of all operands, one after the other.
    """

    entry: Array

    def __call__(self, *matrices: Any) -> SparseMatrix:
        data = self._data(*matrices)
        return self.result.with_data(take(data[0] if len(data) == 1 else jnp.concatenate(data), self.entry))


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Sum(Plan):
    """A ± B, or any function of two entries that is 0 where both are: a missing entry counts as 0.

    Attributes:
      left, right: [nnz of the result], the entry of A and of B; nnz of A or of B where it has none.
    """

    left: Array
    right: Array

    def __call__(self, A: Any, B: Any, combine: Any = jnp.add) -> SparseMatrix:
        """A + B, or `combine` of the entries.

        Args:
          combine: a function of two arrays [nnz of the result], such as jnp.subtract.
        """
        a, b = self._data(A, B)
        return self.result.with_data(_combined(combine, a, self.left, b, self.right))


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Product(Plan):
    """A @ B.

    Attributes:
      pairs: [nnz of the result, nnz of A], the products that each entry sums, without values.
      right: [products], the entry of B in each.
    """

    pairs: CSR
    right: Array

    def __call__(self, A: Any, B: Any) -> SparseMatrix:
        a, b = self._data(A, B)
        return self.result.with_data(_sums(self.pairs, take(b, self.right), a))


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Triple:
    """Pᵀ·A·P, as Pᵀ·(A·P)."""

    inner: Product
    outer: Product

    def __call__(self, P: Any, A: Any) -> SparseMatrix:
        return self.outer(P.T, self.inner(A, P))


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Assembly:
    """A pattern from coordinates, whose call sums the values of equal coordinates, in the order given.

    Attributes:
      result: the matrix, without values.
      duplicates: [nnz, k], the values that each entry sums; without values.
    """

    result: SparseMatrix
    duplicates: CSR

    def __repr__(self) -> str:
        (rows, cols), nnz = self.result.shape, self.result.nnz
        return f"<Assembly of {self.result.name} {rows}×{cols}, nnz={nnz}, from {self.duplicates.shape[1]} values>"

    def __call__(self, values: Any) -> SparseMatrix:
        """The matrix of the values [k], or any shape of k numbers, in the order of the coordinates.

        Raises:
          ValueError: another number of values.
        """
        values = as_floating(values, "values").reshape(-1)
        k = self.duplicates.shape[1]
        if values.shape != (k,):
            raise ValueError(f"values must have {k} numbers, one a coordinate; got {values.shape[0]}")
        if k == self.result.nnz:  # no duplicates: a permutation
            return self.result.with_data(take(values, self.duplicates.col_idx))
        return self.result.with_data(_sums(self.duplicates, jnp.ones(k, values.dtype), values))


@jax.jit
@standard_promotion
def _sums(lists: CSR, values: Array, x: Array) -> Array:
    return form.product(lists, values, x)


@functools.partial(jax.jit, static_argnums=0)
@standard_promotion
def _combined(combine: Any, a: Array, left: Array, b: Array, right: Array) -> Array:
    return combine(take(a, left), take(b, right))


# ------------------------------------------------------------------------------------------------------ public plans


def add(A: Any, B: Any, *, format: str | None = None) -> Sum:
    """The plan of A + B, whose entries are those of either.

    Args:
      format: of the result; None: that of A and B if they have the same, else "csr".

    Raises:
      ValueError: different shapes, or a traced pattern. TypeError: no matrix of this library on one device.
    """
    return _paired("A + B", A, B, format, overlap=False)


def multiply(A: Any, B: Any, *, format: str | None = None) -> Sum:
    """The plan of A.multiply(B), whose entries are those that both have; arguments as for `add`."""
    return _paired("A.multiply(B)", A, B, format, overlap=True)


def _paired(operation: str, A: Any, B: Any, format: str | None, overlap: bool) -> Sum:
    patterns.check(operation, A, B)
    if A.shape != B.shape:
        raise ValueError(f"{operation} needs matrices of one shape, got {A.shape} and {B.shape}")

    def make() -> Sum:
        a, b = (_marked(M, mark) for M, mark in ((A, 1), (B, 2)))
        both = scipy.sparse.csr_array(a + b)
        both.sort_indices()
        left, right = ((both.data & mark).astype(bool) for mark in (1, 2))
        places = [_before(here, n) for here, n in ((left, A.nnz), (right, B.nnz))]
        if overlap:
            here = np.flatnonzero(left & right)
            ptr = np.concatenate([[0], np.cumsum(left & right)])[both.indptr]
            both = scipy.sparse.csr_array((both.data[here], both.indices[here], ptr), shape=A.shape)
            places = [place[here] for place in places]
        result = _result(both, format, A, B)
        return Sum(result, _operands(A, B), *map(building.on_device, places))

    return patterns.kept(make, ("sum", overlap, format), A, B)


def _marked(A: Any, mark: int) -> Any:
    S = patterns.pattern_of(A)
    return scipy.sparse.csr_array((np.full(S.nnz, mark, np.int8), S.indices, S.indptr), shape=S.shape)


def _before(here: np.ndarray, n: int) -> np.ndarray:
    """The number of places before each that are `here`; n at those that are not."""
    return np.where(here, np.cumsum(here) - 1, n).astype(index_dtype(n))


def matmul(A: Any, B: Any, *, format: str | None = None, max_bytes: float | None = None) -> Product:
    """The plan of A @ B.

    It holds 8 bytes for each product of two entries and 12 or more for each entry of the result. Sums that cancel stay
    entries.

    Args:
      format: of the result; None: that of A and B if they have the same, else "csr".
      max_bytes: the largest plan to accept; None: the free memory.

    Raises:
      ValueError: shapes that do not fit, more than 2³¹ entries of an operand, a traced pattern, or too large a plan.
      TypeError: no matrix of this library on one device.
    """
    patterns.check("A @ B", A, B)
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"A @ B needs as many columns of A as rows of B, got shapes {A.shape} and {B.shape}")

    def room(entries: int, products: int) -> None:
        takes = f"the plan of A @ B, with {products} products of two entries for {entries} entries,"
        needed = 8 * products + 12 * entries
        if max_bytes is not None and needed > max_bytes:
            raise building.TooLarge(f"{takes} would take {needed} bytes; max_bytes={max_bytes} allows fewer")
        building.check_free(needed, f"{takes} would take {needed} bytes")

    def make() -> Product:
        a, b = patterns.pattern_of(A), patterns.pattern_of(B)
        p = spgemm.products(a, b, room)
        C = scipy.sparse.csr_array(
            (np.empty(p.indices.size, np.int8), p.indices, p.indptr), shape=(A.shape[0], B.shape[1])
        )
        pairs = _csr(p.left, p.first, (C.nnz, A.nnz), patterns.backend_of(A))
        return Product(_result(C, format, A, B), _operands(A, B), pairs, building.on_device(p.right))

    return patterns.kept(make, ("matmul", format), A, B)


def triple(P: Any, A: Any, *, format: str | None = None) -> Triple:
    """The plan of P.T @ A @ P, the Galerkin product; `plan(P, A)` computes it. Arguments as for `matmul`."""
    inner = matmul(A, P, format="csr")
    middle = inner.result._with_values(jnp.ones(inner.result.nnz, jnp.float32))
    return Triple(inner, matmul(P.T, middle, format=format or patterns.format_of(A, P)))


def assembly(
    row: Any,
    col: Any,
    shape: tuple[int, int],
    format: str = "auto",
    *,
    backend: str = "auto",
    max_bytes: float | None = None,
    **layout: Any,
) -> Assembly:
    """A pattern from coordinates, which may repeat: `assembly(row, col, shape)(values)` is the matrix.

    The call is traceable and differentiable; it sums the values of equal coordinates in the order in which they stand.

    Args:
      row, col: integers of any one shape, k numbers each, such as [elements, 8, 8].
      shape, format, backend, max_bytes, **layout: as in `from_coo`.

    Raises:
      ValueError: lengths that differ, an index outside `shape`, or traced indices. TypeError: no integers.
    """
    if any(isinstance(a, Tracer) for a in (row, col)):
        raise ValueError(
            "assembly needs the indices themselves, which are traced here; call it outside jit, and inside call the "
            "pattern that it returns with traced values"
        )
    row, col = np.asarray(row), np.asarray(col)
    if row.shape != col.shape:
        raise ValueError(f"row and col must have one shape, got {row.shape} and {col.shape}")
    shape = (whole_number("shape", shape[0]), whole_number("shape", shape[1]))
    row, col, k = row.reshape(-1), col.reshape(-1), row.size
    for name, index, bound in (("row", row, shape[0]), ("col", col, shape[1])):
        if not np.issubdtype(index.dtype, np.integer) and k:
            raise TypeError(f"{name} must hold integers, got dtype {index.dtype}")
        if k and not (index.min() >= 0 and index.max() < bound):
            bad = index.min() if index.min() < 0 else index.max()
            raise ValueError(f"{name} index {bad} is out of range for shape {shape}; indices count from 0")
    order = _sorted_by(row, shape[0], _sorted_by(col, shape[1], None))
    rows, cols = row[order], col[order]
    first = np.flatnonzero(np.concatenate([[True], (np.diff(rows) != 0) | (np.diff(cols) != 0)])[:k])
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[first], minlength=shape[0]))])
    S = scipy.sparse.csr_array((np.empty(first.size, np.int8), cols[first], indptr), shape=shape)
    duplicates = _csr(order.astype(np.int32), np.append(first, k), (first.size, k), backend)
    return Assembly(patterns.matrix(S, format, backend, max_bytes, **layout), duplicates)


def _sorted_by(key: np.ndarray, n: int, order: np.ndarray | None) -> np.ndarray:
    """`order` sorted stably by key[order], by SciPy's counting sort; None: the order of the arrays."""
    k = key.size
    columns = (np.ones(k, np.int8), key if order is None else key[order], np.arange(k + 1))
    place = scipy.sparse.csc_array(columns, shape=(n, k)).tocsr().indices
    return place if order is None else order[place]


# ---------------------------------------------------------------------------------------------------------- their parts


def selected(key: Any, choose: Any, *matrices: Any, format: str | None = None) -> Selection:
    """The plan of a result that SciPy's function `choose` makes of the operands, whose entries it only moves.

    Args:
      key: a hashable value that tells `choose` from other functions; None: the plan is not kept.
      choose: called with a SciPy matrix for each operand, whose data are numbers of entries; returns one.
    """

    patterns.check("this operation", *matrices)

    def make() -> Selection:
        numbered, before = [], 0
        for A in matrices:
            S = patterns.pattern_of(A)
            S.data = S.data + before
            numbered.append(S)
            before += S.nnz
        chosen = scipy.sparse.csr_array(choose(*numbered))
        chosen.sort_indices()
        entry = (chosen.data - 1).astype(index_dtype(before))
        return Selection(_result(chosen, format, *matrices), _operands(*matrices), building.on_device(entry))

    return make() if key is None else patterns.kept(make, (key, format), *matrices)


def _operands(*matrices: Any) -> Any:
    return tuple((A.shape, A.nnz) for A in matrices)


def _result(S: Any, format: str | None, *operands: Any) -> SparseMatrix:
    return patterns.matrix(S, format or patterns.format_of(*operands), patterns.backend_of(*operands))


def _csr(col_idx: np.ndarray, row_ptr: np.ndarray, shape: tuple[int, int], backend: str) -> CSR:
    """A list of sums: row k adds the numbers of the vector at `col_idx`; without values.

    Raises:
      ValueError: 2³¹ columns or more.
    """
    if shape[1] >= 2**31:
        raise ValueError(f"{shape[1]} entries exceed what 32-bit indices address, {2**31 - 1}")
    S = scipy.sparse.csr_array((np.empty(col_idx.size, np.int8), col_idx, row_ptr), shape=shape)
    with concrete():
        built = CSR.from_csr(S, Target(np.dtype(np.float32), backend))
    return built.without_values
