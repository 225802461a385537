"""Plans: the part of an operation that the patterns decide, made once on the host; the call takes the values.

    plan = jsf.plan.matmul(A, B)
    C = plan(A, B)               # under jit, grad and vmap too

On a CPU a product walks the patterns anew in every call (`gustavson.py`). Elsewhere a kernel reads a list of the
products a[i]·b[j], in the order of C's entries: with b[j] as its values this list is itself a sparse matrix T, [entries
of C, entries of A], and C's values are T·a. So the product that multiplies matrices with vectors computes them, and its
rules give every derivative. Lists of more than `LISTED` bytes are not made. An assembly is such a product too, with
ones as values. A sum needs no list: each of its entries is at most one of A's and one of B's.
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

from jaxsparse_fmt._types import as_floating, index_dtype, pytree, standard_promotion, whole_number
from jaxsparse_fmt.algebra import gustavson, patterns
from jaxsparse_fmt.core import form
from jaxsparse_fmt.core.entry_index import take
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.csr import CSR
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.cpu import spgemm

Array = jax.Array

LISTED = 2**30  # bytes


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
          ValueError: an operand has another shape or number of entries than the plan's, or another pattern, where the
            patterns are not traced.
        """
        given = _operands(*matrices)
        if given != self.operands:
            raise ValueError(
                f"the plan is for matrices of (shape, nnz) {self.operands}, got {given}; make a plan for these patterns"
            )
        patterns.check_same(self.result, matrices)
        return [A.data for A in matrices]

    @property
    def nbytes(self) -> int:
        """Bytes of the plan's arrays, those of the result's pattern too."""
        return sum(a.nbytes for a in {id(a): a for a in jax.tree.leaves(self)}.values())

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
      left, right: [nnz of the result], the entry of A and of B; nnz of A or of B where it has none. None: its own.
    """

    left: Array | None
    right: Array | None

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
      terms: the form of the product; or, with `right`, [nnz of the result, nnz of A], the products that each entry
        sums, without values.
      right: [products], the entry of B in each; None: no list.
    """

    terms: Any
    right: Array | None

    def __call__(self, A: Any, B: Any) -> SparseMatrix:
        a, b = self._data(A, B)
        v, x = (a, b) if self.right is None else (take(b, self.right), a)
        return self.result.with_data(_sums(self.terms, v, x))


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
      permutes: whether each entry is one value.
    """

    result: SparseMatrix
    duplicates: CSR
    permutes: bool = dataclasses.field(metadata={"static": True})

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
        if self.permutes:
            return self.result.with_data(take(values, self.duplicates.col_idx))
        return self.result.with_data(_sums(self.duplicates, jnp.ones(k, values.dtype), values))


@jax.jit
@standard_promotion
def _sums(terms: Any, values: Array, x: Array) -> Array:
    return form.product(terms, values, x)


@functools.partial(jax.jit, static_argnums=0)
@standard_promotion
def _combined(combine: Any, a: Array, left: Array | None, b: Array, right: Array | None) -> Array:
    return combine(*(v if at is None else take(v, at) for v, at in ((a, left), (b, right))))


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
        # Without an index where the operand has just the entries of the result.
        found = (None if M.nnz == both.nnz else building.on_device(p) for M, p in zip((A, B), places, strict=True))
        return Sum(_result(both, format, A, B), _operands(A, B), *found)

    return patterns.kept(make, ("sum", overlap, format), A, B)


def _marked(A: Any, mark: int) -> Any:
    S = patterns.pattern_of(A)
    return scipy.sparse.csr_array((np.full(S.nnz, mark, np.int8), S.indices, S.indptr), shape=S.shape)


def _before(here: np.ndarray, n: int) -> np.ndarray:
    """The number of places before each that are `here`; n at those that are not."""
    return np.where(here, np.cumsum(here) - 1, n).astype(index_dtype(n))


def matmul(A: Any, B: Any, *, format: str | None = None, max_bytes: float | None = None) -> Product:
    """The plan of A @ B. Sums that cancel stay entries.

    On a CPU it holds the three patterns, and elsewhere 8 bytes for each product of two entries, up to `max_bytes`.
    Beyond, and where Numba is not installed or the backend is "xla" as on a GPU, the call finds these products anew.

    Args:
      format: of the result; None: that of A and B if they have the same, else "csr".
      max_bytes: the largest plan to accept; None: the free memory, and 1 GiB of lists.

    Raises:
      ValueError: shapes that do not fit, more than 2³¹ entries of an operand, a traced pattern, or too large a plan.
      TypeError: no matrix of this library on one device.
    """
    patterns.check("A @ B", A, B)
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"A @ B needs as many columns of A as rows of B, got shapes {A.shape} and {B.shape}")
    most = LISTED if max_bytes is None else max_bytes
    backend = patterns.backend_of(A)
    native = jax.default_backend() == "cpu" and selection.native_importable()
    native = native and selection.active_backend(backend) in ("auto", "numba")

    def room(entries: int, products: int) -> None:
        takes = f"the plan of A @ B, with {products} products of two entries for {entries} entries,"
        needed = 12 * entries + 4 * (A.nnz + B.nnz)
        if max_bytes is not None and needed > max_bytes:
            raise building.TooLarge(f"{takes} would take {needed} bytes; max_bytes={max_bytes} allows fewer")
        building.check_free(needed, f"{takes} would take {needed} bytes")

    def make() -> Product:
        a, b = patterns.pattern_of(A), patterns.pattern_of(B)
        p = spgemm.product(a, b, room)
        products, C = int(p.before[-1]), patterns.csr(p.indptr, p.indices, (A.shape[0], B.shape[1]))
        result = _result(C, format, A, B)
        if not native and 8 * products + 12 * C.nnz <= most:
            first, left, right = spgemm.pairs(a, b, p)
            listed = _csr(left, first, (C.nnz, A.nnz), backend)
            return Product(result, _operands(A, B), listed, building.on_device(right))
        return Product(result, _operands(A, B), gustavson.made(a, b, C, p.before, result), None)

    return patterns.kept(make, ("matmul", format, native, max_bytes), A, B)


def triple(P: Any, A: Any, *, format: str | None = None) -> Triple:
    """The plan of P.T @ A @ P, the Galerkin product; `plan(P, A)` computes it. Arguments as for `matmul`."""
    inner = patterns.remember(matmul(A, P, format="csr"), A, P)
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
    nnz_max: int | None = None,
    **layout: Any,
) -> Assembly:
    """A pattern from coordinates, which may repeat: `assembly(row, col, shape)(values)` is the matrix.

    The call is traceable and differentiable; it sums the values of equal coordinates in the order in which they stand.

    Args:
      row, col: integers of any one shape, k numbers each, such as [elements, 8, 8].
      shape, format, backend, max_bytes, **layout: as in `from_coo`.
      nnz_max: the number of entries that the matrix shall have: places that no coordinate names are added as entries
        of value 0. Patterns of different sizes then share compiled programs, in "csr", "coo" and "csc".

    Raises:
      ValueError: lengths that differ, an index outside `shape`, traced indices, or more places than `nnz_max`.
      TypeError: no integers.
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
    indptr, indices, first, order = spgemm.coordinates(row, col, shape[0])
    if nnz_max is not None:
        indptr, indices, first = patterns.filled(indptr, indices, first, shape, whole_number("nnz_max", nnz_max))
    S = patterns.csr(indptr, indices, shape)
    duplicates = _csr(order, first, (indices.size, k), backend)
    result = patterns.matrix(S, format, backend, max_bytes, **layout)
    return Assembly(result, duplicates, nnz_max is None and indices.size == k)


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
            numbered.append(patterns.numbered(patterns.pattern_of(A), before))
            before += A.nnz
        chosen = scipy.sparse.csr_array(choose(*numbered))
        chosen.sort_indices()
        entry = (chosen.data - 1).astype(index_dtype(before))
        return Selection(_result(chosen, format, *matrices), _operands(*matrices), building.on_device(entry))

    return patterns.kept(make, None) if key is None else patterns.kept(make, (key, format), *matrices)


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
    made = patterns.matrix(patterns.csr(row_ptr, col_idx, shape), "csr", backend)
    assert isinstance(made, CSR)
    return made
