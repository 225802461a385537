"""Plans: the part of an operation that the patterns decide, made once; a call takes the values.

    plan = js.plan.matmul(A, B)
    C = plan(A, B)               # under jit, grad and vmap too

Each entry of C = A @ B sums products a[i]·b[j]. With b[j] as values, the list of these products is a sparse matrix T,
[entries of C, entries of A], and the entries of C are T·a. So the product of a matrix with a vector computes them, and
its rules give every derivative. A sum needs no list: each of its entries adds at most one entry of A and one of B.

If the values are at hand on the host, they are computed with the pattern (`by_scipy.py`), and there is no plan.
"""

import dataclasses
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._dtypes import index_dtype, scipy_dtype
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import concrete, is_traced, standard_promotion
from jaxsparse_fmt._types import Array, Csr, CsrArrays
from jaxsparse_fmt.algebra import by_cupy, by_scipy, on_device, patterns
from jaxsparse_fmt.core import form
from jaxsparse_fmt.core.entry_index import at_hand, put, take_or_zero
from jaxsparse_fmt.core.faces import Absent
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.csr import CSR, threads_for
from jaxsparse_fmt.kernels.coordinates import accumulator
from jaxsparse_fmt.kernels.layout.address import when_run


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What the patterns of the operands decide."""

    result: SparseMatrix  # without values
    operands: tuple[tuple[tuple[int, int], int], ...] = dataclasses.field(metadata={"static": True})  # (shape, nnz)
    # [operands, 4], `patterns.digests` of the operands; None in the plan that an operation makes for itself. A leaf, so
    # that copies keep it, and a jitted function that takes a plan compiles once for all patterns of these sizes.
    digests: Array | None = dataclasses.field(default=None, kw_only=True)

    def _check(self, *matrices: Any) -> None:
        """Refuses operands that are not those that the plan is for."""
        given = _operands(*matrices)
        if given != self.operands:
            raise ValueError(
                f"the plan is for matrices of (shape, nnz) {self.operands}, got {given}; make a plan for these patterns"
            )
        if self.digests is not None:
            patterns.check_same(self.digests, matrices)

    @property
    def nbytes(self) -> int:
        """Bytes of the plan's arrays, those of the result's pattern too."""
        return sum(a.nbytes for a in {id(a): a for a in jax.tree.leaves(self)}.values())

    def __repr__(self) -> str:
        (rows, cols), nnz = self.result.shape, self.result.nnz
        return f"<{type(self).__name__} of {self.result.name} {rows}×{cols}, nnz={nnz}, {self.nbytes} bytes>"


@pytree
class Sum(Plan):
    """A ± B, or any function of two entries that is 0 where both are 0: a missing entry counts as 0."""

    # [nnz of the result], the entry of A or of B, its nnz where it has none; None: it has the entries of the result.
    left: Array | None
    right: Array | None
    operation: Any = dataclasses.field(default=operator.add, metadata={"static": True})  # if a call names none

    def __call__(self, A: Any, B: Any, combine: Any = None) -> SparseMatrix:
        """A + B or A.multiply(B), as the plan was made for, or `combine` of the entries.

        Args:
          combine: a function of two arrays [nnz of the result], such as jnp.subtract.
        """
        self._check(A, B)
        combine = self.operation if combine is None else combine
        return self.result.with_data(_combined(combine, A.data, self.left, B.data, self.right))


@pytree
class Product(Plan):
    """A @ B."""

    terms: Any  # [nnz of the result, nnz of A], the products that each entry sums, without values
    right: Array  # [products], the entry of B in each

    def __call__(self, A: Any, B: Any) -> SparseMatrix:
        self._check(A, B)
        return self._of(A.data, B.data)

    def _of(self, a: Array, b: Array) -> SparseMatrix:
        return self.result.with_data(_sums(self.terms, take_or_zero(b, self.right), a))


@pytree
class DenseProduct(Plan):
    """A @ B by dense arrays, of matrices so full that the list of products would take more time and memory.

    An entry that is not finite also makes those entries of its row or column NaN to which it should add nothing.
    """

    row: Array  # [nnz of the result]
    column: Array  # [nnz of the result]

    def __call__(self, A: Any, B: Any) -> SparseMatrix:
        self._check(A, B)
        dtype = jnp.result_type(A.dtype, B.dtype)
        a, b = (M.todense(max_bytes=math.inf) for M in (A, B))
        c = jnp.matmul(a, b, precision="highest", preferred_element_type=accumulator(dtype))
        return self.result.with_data(c[when_run(self.row), when_run(self.column)].astype(dtype))


@pytree
class Triple(Product):
    """Pᵀ·A·P, the product of Pᵀ and A·P."""

    inner: Product  # A·P

    def __call__(self, P: Any, A: Any) -> SparseMatrix:
        self._check(P, A)
        return self._of(P.T.data, self.inner(A, P).data)


@jax.jit
@standard_promotion
def _sums(terms: Any, values: Array, x: Any) -> Array:
    return form.apply("product", terms._with_values(values), x)


@standard_promotion
def _combined(combine: Any, a: Array, left: Array | None, b: Array, right: Array | None) -> Array:
    if combine in (operator.add, operator.sub, operator.mul):
        return _compiled_combination(combine, a, left, b, right)
    # Another function may be new at each call, and would compile at each call.
    return _combination(combine, a, left, b, right)


def _combination(combine: Any, a: Array, left: Array | None, b: Array, right: Array | None) -> Array:
    """`combine` of the entry of A and of B at each entry of the result, 0 for a missing one."""
    return combine(a if left is None else take_or_zero(a, left), b if right is None else take_or_zero(b, right))


_compiled_combination = jax.jit(_combination, static_argnums=0)


# ------------------------------------------------------------------------------------------------------ public plans


def add(A: Any, B: Any, *, format: str | None = None) -> Sum:
    """The plan of A + B, whose entries are those of A and those of B.

    Args:
      format: of the result; None: that of A and B if they have the same, else "csr".

    Raises:
      ValueError: different shapes, or a traced pattern. TypeError: not a matrix of this library on one device.

    Examples:
      >>> total = js.plan.add(A, A)
      >>> np.allclose(total(A, A) @ b, 2 * (A @ b))
      True
    """
    return _comparing(_paired("A + B", A, B, format, overlap=False), A, B)


def multiply(A: Any, B: Any, *, format: str | None = None) -> Sum:
    """The plan of A.multiply(B), whose entries are those that both have; arguments as for `add`.

    Examples:
      >>> square = js.plan.multiply(A, A)
      >>> np.allclose(square(A, A).data, A.data * A.data)
      True
    """
    return _comparing(_paired("A.multiply(B)", A, B, format, overlap=True), A, B)


def _comparing(plan: Any, *operands: Any) -> Any:
    """`plan`, whose calls compare the patterns of their operands with those of these."""
    return dataclasses.replace(plan, digests=patterns.digests(*operands))


def _paired(operation: str, A: Any, B: Any, format: str | None, overlap: bool) -> Sum:
    _check_pair(operation, A, B)
    if not overlap:
        return paired(patterns.united, "sum", format, A, B)
    return dataclasses.replace(paired(patterns.shared, "overlap", format, A, B), operation=operator.mul)


def paired(make: Any, key: str, format: str | None, A: Any, B: Any) -> Sum:
    """The plan of a result each of whose entries combines at most one entry of A and one of B.

    `make`, which `key` names, gives from the operands' patterns that of the result, and the entries of each operand.
    """

    def plan() -> Sum:
        S, *places = make(*patterns.patterns_of(A, B))
        # No index for an operand that has just the entries of the result.
        found = (None if M.nnz == S.nnz else building.on_device(p) for M, p in zip((A, B), places, strict=True))
        return Sum(_result(S, format, A, B), _operands(A, B), *found)

    return patterns.kept(plan, (key, format), A, B)


def _check_pair(operation: str, A: Any, B: Any) -> None:
    patterns.check(operation, A, B)
    if A.shape != B.shape:
        raise ValueError(f"{operation} needs matrices of one shape, got {A.shape} and {B.shape}")


@standard_promotion
def combined(operation: str, A: Any, B: Any, combine: Any, format: str | None = None) -> SparseMatrix:
    """The matrix of `combine` of the entries: operator.add, sub, or mul, which keeps those that both have."""
    _check_pair(operation, A, B)
    if format in (None, A._stored.name) and patterns.are_same(A, B):
        if not at_hand(A, B):
            return A._with_values(combine(A.values, B.values))
        return A._with_values(put(combine(*map(np.asarray, (A.values, B.values))), A.values))
    overlap = combine is operator.mul
    operands = by_scipy.at_hand(A, B, fetched=patterns.are_new(A, B))
    if operands is None:
        return _paired(operation, A, B, format, overlap)(A, B, combine)
    places = operator.mul if overlap else operator.add
    return made(by_scipy.combined(combine, places, *operands), format, A, B)


def _check_product(A: Any, B: Any) -> None:
    patterns.check("A @ B", A, B)
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"A @ B needs as many columns of A as rows of B, got shapes {A.shape} and {B.shape}")


def matmul(A: Any, B: Any, *, format: str | None = None) -> Product | DenseProduct:
    """The plan of A @ B, with 8 bytes for each product of two entries. Sums that cancel stay entries.

    On a CPU the plan of two matrices that are nearly full multiplies dense arrays. An entry that is not finite then
    also makes those entries of its row or column NaN to which it should add nothing.

    Args:
      format: of the result; None: that of A and B if they have the same, else "csr".

    Raises:
      ValueError: shapes that do not fit, a traced pattern, an operand of 2³¹ entries or more, or as many products of
        two entries, or more products than the free memory holds. TypeError: not a matrix of this library on one device.

    Examples:
      >>> product = js.plan.matmul(A, A)
      >>> np.allclose(product(A, A) @ b, A @ (A @ b))
      True
    """
    return _comparing(_matmul(A, B, format), A, B)


def _matmul(A: Any, B: Any, format: str | None) -> Product | DenseProduct:
    """The plan of A @ B, by dense arrays or by a list."""
    _check_product(A, B)

    def make() -> DenseProduct | None:
        C = patterns.nearly_full(*patterns.patterns_of(A, B))
        if C is None:
            return None
        places = map(building.on_device, building.entries(C))
        return DenseProduct(_result(C, format, A, B), _operands(A, B), *places)

    dense = patterns.kept(make, ("dense", format), A, B) if A.nnz * B.nnz >= patterns.FULL else None
    return _listed(A, B, format) if dense is None else dense


@standard_promotion
def _listed(A: Any, B: Any, format: str | None) -> Product:
    _check_product(A, B)
    building.check_bound("entries", max(A.nnz, B.nnz))

    def make() -> Product:
        C, first, left, right = patterns.listed(*patterns.patterns_of(A, B))
        sums = listed_sums(left, first, (C.nnz, A.nnz), A._stored.backend)
        return Product(_result(C, format, A, B), _operands(A, B), sums, building.on_device(right))

    return patterns.kept(make, ("matmul", format), A, B)


@standard_promotion
def product(A: Any, B: Any) -> SparseMatrix:
    """A @ B."""
    _check_product(A, B)
    at_hand = by_scipy.at_hand(A, B)
    if at_hand is not None:
        return made(by_scipy.product(*at_hand), None, A, B)
    if is_traced(A, B) or not patterns.lie_on_device(A, B):
        return _matmul(A, B, None)(A, B)
    dtype = scipy_dtype(jnp.result_type(A.dtype, B.dtype))
    S, R = patterns.patterns_of(A, B)
    a, b = patterns.with_data(S, A.data.astype(dtype)), patterns.with_data(R, B.data.astype(dtype))
    C = by_cupy.product(a, b)
    if C is None:  # a matrix of the products of two entries, all in one column, adds them
        S, first, column, terms = on_device.listed(a, b, multiplies=True)
        sums = listed_sums(column, first, (S.nnz, 1), A._stored.backend)
        C = patterns.with_data(S, _sums(sums, terms, np.ones(1, dtype)))
    return made(C, None, A, B)


def triple(P: Any, A: Any, *, format: str | None = None) -> Triple:
    """The plan of P.T @ A @ P, the Galerkin product; `plan(P, A)` computes it. Arguments as for `matmul`.

    Examples:
      >>> P = js.from_scipy(sp.kron(sp.eye_array(8), np.ones((2, 1))), "csr")
      >>> js.plan.triple(P, A)(P, A).shape  # Pᵀ·A·P
      (8, 8)
    """
    inner = _listed(A, P, "csr")
    middle = inner.result._with_values(jnp.ones(inner.result.nnz, jnp.float32))
    outer = _listed(P.T, middle, format or patterns.format_of(A, P))
    return _comparing(Triple(outer.result, _operands(P, A), outer.terms, outer.right, inner), P, A)


# ---------------------------------------------------------------------------------------------------------- their parts


def selected(operation: str, key: Any, choose: Any, *matrices: Any, format: str | None = None) -> SparseMatrix:
    """The result that `choose`, a function of patterns, makes by moving entries of the operands.

    `choose`, which `key` names (None: its plan is not kept), gives a pattern and, for each of its entries, the number
    of one of theirs, counted through all operands.
    """
    patterns.check(operation, *matrices)
    at_hand = by_scipy.at_hand(*matrices)
    if at_hand is not None:
        S, entry = choose(*at_hand)
        data = at_hand[0].data if len(at_hand) == 1 else np.concatenate([A.data for A in at_hand])
        return made(patterns.with_data(S, data[entry]), format, *matrices)

    def make() -> tuple[SparseMatrix, Array]:
        S, entry = choose(*patterns.patterns_of(*matrices))
        entry = building.on_device(entry.astype(index_dtype(sum(A.nnz for A in matrices)), copy=False))
        return _result(S, format, *matrices), entry

    with concrete():
        result, entry = make() if key is None else patterns.kept(make, (key, format), *matrices)
    data = [A.data for A in matrices]
    return result.with_data(take_or_zero(data[0] if len(data) == 1 else jnp.concatenate(data), entry))


def _operands(*matrices: Any) -> Any:
    return tuple((A.shape, A.nnz) for A in matrices)


def _result(S: Csr, format: str | None, *operands: Any, dtype: Any = None) -> SparseMatrix:
    return patterns.matrix(S, format or patterns.format_of(*operands), operands[0]._stored.backend, dtype=dtype)


def made(S: Csr, format: str | None, *operands: Any) -> SparseMatrix:
    """The matrix of S, whose arrays nobody changes, with its values, in the common dtype of the operands."""
    format = format or patterns.format_of(*operands)
    dtype = jnp.result_type(*(A.dtype for A in operands))
    if format == "csr" and building.namespace(S.data) is np:  # which would copy the arrays, were they a user's
        host = [S.data.astype(dtype, copy=False), S.indices, S.indptr.astype(index_dtype(S.nnz), copy=False)]
        with concrete():
            data, indices, indptr = building.on_device(host)
        S = CsrArrays(data, indices, indptr, S.shape)
    return _result(S, format, *operands, dtype=dtype)


def listed_sums(col_idx: Any, row_ptr: Any, shape: tuple[int, int], backend: str) -> CSR:
    """A list of sums as a matrix without values: row k lists in `col_idx` the entries of a vector that it adds."""
    n_rows, nnz = shape[0], col_idx.size
    absent: Any = Absent((nnz,))
    with concrete():
        arrays = building.on_device(col_idx), building.on_device(row_ptr.astype(index_dtype(nnz), copy=False))
    return CSR(absent, shape, nnz, backend, *arrays, threads_for(nnz, n_rows))
