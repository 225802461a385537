"""Plans: the part of an operation that the patterns decide, made once on the host; the call takes the values.

    plan = jsf.plan.matmul(A, B)
    C = plan(A, B)               # under jit, grad and vmap too

On a CPU a product walks the patterns anew in every call (`gustavson.py`). Elsewhere a kernel reads a list of the
products a[i]·b[j], in the order of C's entries: with b[j] as its values this list is itself a sparse matrix T, [entries
of C, entries of A], and C's values are T·a. So the product of a matrix with a vector computes them, and its rules
give every derivative. Lists of more than `LISTED` bytes are not made. A sum needs no list: each of its entries adds at
most one entry of A and one of B.

Outside jit, where the values are at hand, one pass of compiled code finds pattern and values together.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.core import Tracer

from jaxsparse_fmt._types import Array, Csr, index_dtype, pytree, standard_promotion
from jaxsparse_fmt.algebra import gustavson, patterns
from jaxsparse_fmt.core import form
from jaxsparse_fmt.core.entry_index import take
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.csr import CSR
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.coordinates import accumulator
from jaxsparse_fmt.kernels.cpu import spgemm
from jaxsparse_fmt.kernels.cpu.abi import PAIR_WIDTHS

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
    """A result in which each entry is an entry of one operand: slices, triangles, blocks.

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
    """A ± B, or any function of two entries that is 0 where both are 0: a missing entry counts as 0.

    Attributes:
      left, right: [nnz of the result], the entry of A and of B; nnz of A or of B where it has none. None: the
        operand has the entries of the result.
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
@dataclasses.dataclass(frozen=True, eq=False)
class Terms:
    """The values of A @ B, by those of A and of B.

    Attributes:
      form: of the product; or, with `right`, [nnz of the result, nnz of A], the products that each entry sums, without
        values.
      right: [products], the entry of B in each; None: no list.
    """

    form: Any
    right: Array | None

    def __call__(self, a: Array, b: Array) -> Array:
        return _sums(self.form, a, b) if self.right is None else _sums(self.form, take(b, self.right), a)


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Product(Plan):
    """A @ B."""

    terms: Terms

    def __call__(self, A: Any, B: Any) -> SparseMatrix:
        return self.result.with_data(self.terms(*self._data(A, B)))


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Triple:
    """Pᵀ·A·P, as Pᵀ·(A·P)."""

    inner: Product
    outer: Product

    def __call__(self, P: Any, A: Any) -> SparseMatrix:
        return self.outer(P.T, self.inner(A, P))


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
    """The plan of A + B, whose entries are those of A and those of B.

    Args:
      format: of the result; None: that of A and B if they have the same, else "csr".

    Raises:
      ValueError: different shapes, or a traced pattern. TypeError: not a matrix of this library on one device.
    """
    return _paired("A + B", A, B, format, overlap=False)


def multiply(A: Any, B: Any, *, format: str | None = None) -> Sum:
    """The plan of A.multiply(B), whose entries are those that both have; arguments as for `add`."""
    return _paired("A.multiply(B)", A, B, format, overlap=True)


def _paired(operation: str, A: Any, B: Any, format: str | None, overlap: bool) -> Sum:
    _check_pair(operation, A, B)

    def make() -> Sum:
        indptr, indices, *places = spgemm.merged(patterns.pattern_of(A), patterns.pattern_of(B), overlap)
        both = patterns.csr(indptr, indices, A.shape)
        # No index for an operand that has just the entries of the result.
        found = (None if M.nnz == both.nnz else building.on_device(p) for M, p in zip((A, B), places, strict=True))
        return Sum(_result(both, format, A, B), _operands(A, B), *found)

    return patterns.kept(make, ("sum", overlap, format), A, B)


def _check_pair(operation: str, A: Any, B: Any) -> None:
    patterns.check(operation, A, B)
    if A.shape != B.shape:
        raise ValueError(f"{operation} needs matrices of one shape, got {A.shape} and {B.shape}")


@standard_promotion
def combined(A: Any, B: Any, sign: int) -> SparseMatrix:
    """A + sign·B; one pass over both if they are "csr" and at hand, which is faster than a plan's gathers."""
    operation = "A + B" if sign > 0 else "A - B"
    _check_pair(operation, A, B)
    values = _at_hand(A, B) if isinstance(A, CSR) and isinstance(B, CSR) and is_native(patterns.backend_of(A)) else None
    if values is None:
        return add(A, B)(A, B, jnp.add if sign > 0 else jnp.subtract)
    indptr, indices, out = spgemm.added(patterns.pattern_of(A), patterns.pattern_of(B), sign, *values)
    make = lambda: _result(patterns.csr(indptr, indices, A.shape), None, A, B)  # noqa: E731
    result = patterns.kept(make, "combined", A, B)
    return result.with_data(_on_device(out, A, B))


def _at_hand(A: Any, B: Any) -> list[np.ndarray] | None:
    """The values of A and B, of one dtype that kernels for the CPU know; None where traced."""
    if patterns.is_traced(A) or patterns.is_traced(B):
        return None
    data = A.data, B.data
    if any(isinstance(v, Tracer) for v in data):
        return None
    return [np.asarray(v).astype(accumulator(*data), copy=False) for v in data]


def _on_device(values: np.ndarray, A: Any, B: Any) -> Array:
    return building.on_device(values.astype(jnp.result_type(A.dtype, B.dtype), copy=False))


def is_native(backend: str) -> bool:
    """Whether compiled code for the CPU computes the products of matrices with this backend."""
    native = jax.default_backend() == "cpu" and selection.native_importable()
    return native and selection.active_backend(backend) in ("auto", "numba")


def matmul(A: Any, B: Any, *, format: str | None = None, max_bytes: float | None = None) -> Product:
    """The plan of A @ B. Sums that cancel stay entries.

    With compiled code on a CPU it holds the three patterns, and every call finds the products of two entries anew.
    On a GPU, without Numba or with the backend "xla", it holds 8 bytes for each product, up to `max_bytes`; beyond
    that, every call finds the products anew there too.

    Args:
      format: of the result; None: that of A and B if they have the same, else "csr".
      max_bytes: the largest plan to accept; None: the free memory, and 1 GiB of lists.

    Raises:
      ValueError: shapes that do not fit, more than 2³¹ entries of an operand, a traced pattern, or too large a plan.
      TypeError: not a matrix of this library on one device.
    """
    return product(A, B, format, max_bytes)[0]


@standard_promotion
def product(
    A: Any, B: Any, format: str | None = None, max_bytes: float | None = None, with_values: bool = False
) -> tuple[Product, Array | None]:
    """The plan of A @ B as `matmul` makes it, and with `with_values` the values of C, where one pass finds both."""
    patterns.check("A @ B", A, B)
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"A @ B needs as many columns of A as rows of B, got shapes {A.shape} and {B.shape}")
    building.check_bound("entries", max(A.nnz, B.nnz))
    most = LISTED if max_bytes is None else max_bytes
    native = is_native(patterns.backend_of(A))

    def room(entries: int, products: int) -> None:
        takes = f"the plan of A @ B, with {products} products of two entries for {entries} entries,"
        needed = 12 * entries + 4 * (A.nnz + B.nnz)
        if max_bytes is not None and needed > max_bytes:
            raise building.TooLarge(f"{takes} would take {needed} bytes; max_bytes={max_bytes} allows fewer")
        building.check_free(needed, f"{takes} would take {needed} bytes")

    def make() -> Product:
        a, b = patterns.pattern_of(A), patterns.pattern_of(B)
        p = spgemm.product(a, b, room, given)
        C = patterns.csr(p.indptr, p.indices, (A.shape[0], B.shape[1]))
        result = _result(C, format, A, B)
        if p.values is not None:
            values.append(_on_device(p.values, A, B))
        found = _terms((A, a), (B, b), (result, C), p, patterns.backend_of(A), -1 if native else most - 12 * C.nnz)
        return Product(result, _operands(A, B), found)

    given, values = _at_hand(A, B) if with_values and native else None, []
    plan = patterns.kept(make, ("matmul", format, native, max_bytes), A, B)
    if plan.terms.right is None:
        form = gustavson.completed(plan.terms.form, A, B)
        plan = dataclasses.replace(plan, terms=dataclasses.replace(plan.terms, form=form))
    return plan, values[0] if values else None


def _terms(A: Any, B: Any, C: Any, p: spgemm.Product, backend: str, room: int, sizes: Any = (1, 1, 1)) -> Terms:
    """Of matrices and patterns as `gustavson.made` takes them; as a list where that takes at most `room` bytes."""
    (_, a), (_, b), (_, c) = A, B, C
    if 8 * int(p.before[-1]) > room:
        return Terms(gustavson.made(A, B, C, p.before, backend, sizes), None)
    first, left, right = spgemm.pairs(a, b, p)
    return Terms(listed_sums(left, first, (c.nnz, a.nnz), backend), building.on_device(right))


def block_widths() -> tuple[int, ...]:
    """The widths w for which `terms` takes blocks; none where no compiled code computes products."""
    return PAIR_WIDTHS if is_native("auto") else ()


def terms(a: Csr, b: Csr, sizes: tuple[int, int, int] = (1, 1, 1)) -> tuple[Terms, Csr]:
    """The values of the product of two patterns on the host, and its pattern.

    Args:
      sizes: (m, q, w), if the patterns are of whole blocks m×q and q×w, with w of `block_widths`; the values are those
        of the numbers, in the order of CSR.
    """
    p = spgemm.product(a, b, lambda entries, products: None)
    c = patterns.csr(p.indptr, p.indices, (a.shape[0], b.shape[1]))
    room = -1 if is_native("auto") else LISTED - 12 * c.nnz
    return _terms((None, a), (None, b), (None, c), p, "auto", room, sizes), c


def triple(P: Any, A: Any, *, format: str | None = None) -> Triple:
    """The plan of P.T @ A @ P, the Galerkin product; `plan(P, A)` computes it. Arguments as for `matmul`."""
    inner = patterns.remember(matmul(A, P, format="csr"), A, P)
    middle = inner.result._with_values(jnp.ones(inner.result.nnz, jnp.float32))
    return Triple(inner, matmul(P.T, middle, format=format or patterns.format_of(A, P)))


# ---------------------------------------------------------------------------------------------------------- their parts


def selected(key: Any, choose: Any, *matrices: Any, format: str | None = None) -> Selection:
    """The plan of a result that `choose`, a function of SciPy matrices, makes by moving entries of the operands.

    Args:
      key: a hashable value that distinguishes `choose` from other functions; None: the plan is not kept.
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


def listed_sums(col_idx: np.ndarray, row_ptr: np.ndarray, shape: tuple[int, int], backend: str) -> CSR:
    """A list of sums: row k adds the numbers of the vector at `col_idx`; without values.

    Raises:
      ValueError: 2³¹ columns or more.
    """
    building.check_bound("entries", shape[1])
    made = patterns.matrix(patterns.csr(row_ptr, col_idx, shape), "csr", backend)
    assert isinstance(made, CSR)
    return made
