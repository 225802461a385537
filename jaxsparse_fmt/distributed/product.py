"""A·B and Aᵀ as new sharded matrices: rows of the result lie where the rows of A, or its columns, lie.

             A                   B              a device multiplies its rows of A by its own rows of B and by those that
    device 0 ■■■■ · h ·    own   ■■■■           its halo names; the patterns of these rows travel once, on the host
    device 1 h · ■■■■      halo  h              while planning, and their entries in one exchange for each product

The numeric part is differentiable: a device's entries of C = A·B are T·a, with a sparse matrix T of the products'
factors b (`algebra/plans.py`), and exchanges are linear.
"""

import contextlib
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.core import Tracer

from jaxsparse_fmt._types import Csr, Target, concrete, pytree, standard_promotion
from jaxsparse_fmt.algebra import patterns
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.core.pattern import Absent
from jaxsparse_fmt.core.transposed import Transposed
from jaxsparse_fmt.distributed import basis, entries, halo, padding
from jaxsparse_fmt.distributed.algebra import index_arrays, with_values
from jaxsparse_fmt.distributed.build import assemble
from jaxsparse_fmt.distributed.common_format import Request, in_one_format
from jaxsparse_fmt.distributed.halo_exchange import Exchange, exchange
from jaxsparse_fmt.distributed.local import Shards, on_each_device
from jaxsparse_fmt.distributed.numbering import users_entries
from jaxsparse_fmt.distributed.pieces import Pieces, meeting, of_each, own_unknowns, pieces, starts_of, turned
from jaxsparse_fmt.distributed.processes import everyones
from jaxsparse_fmt.formats import building

Array = jax.Array

_plans = Kept(16)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The part of a product or a transpose that depends on the patterns alone.

    Attributes:
      result: the matrix of the result; its values are not read.
      source: [parts, m], the places that a device reads among its own entries of the last operand, then the buffer.
      terms: [parts, ...], a CSR matrix [entries of C, entries of A] a device, whose values are the entries of B at
        `source`; None: a transpose, whose entries are those at `source`.
      halo: the exchange of entries.
    """

    result: Any
    source: Array
    terms: Any
    halo: Exchange


@jax.jit
@standard_promotion
def _entries(plan: Plan, matrices: tuple[Any, ...]) -> tuple[Array, ...]:
    """The values of the result's blocks."""
    result, axis = plan.result, plan.result.shards.axis

    def computed(shards: Shards, source: Array, operands: tuple[Shards, ...], terms: Any, halo: Exchange):
        operands, terms, halo = jax.tree.map(lambda a: a[0], (operands, terms, halo))
        each = [entries.gathered(s, M.entries.over.size) for s, M in zip(operands, matrices, strict=True)]
        values = jnp.concatenate([each[-1], exchange(each[-1], halo, axis)])
        values = values.at[source[0]].get(mode="clip")
        own = values if terms is None else terms._with_values(values).matvec(each[0])
        return entries.stored(shards, own)

    operands = tuple(M.shards for M in matrices)
    return on_each_device(computed, result.shards, result.range.over, plan.source, operands, plan.terms, plan.halo)


def _result(plan: Plan, *matrices: Any) -> Any:
    return with_values(plan.result, _entries(plan, matrices))


def matmul(A: Any, B: Any) -> Any:
    """A·B, cut as A's rows; sums that cancel stay entries. Its format is that of A and B if they share one, else "csr".

    The plan, 8 bytes for each product of two entries, is kept for matrices with the same index arrays. Inside jit close
    over A and B and pass their data.

    Args:
      A, B: sharded over one mesh axis, or transposed views of such matrices; the rows of B are cut as A's columns.

    Raises:
      TypeError: another kind of matrix. ValueError: shapes or cuts that do not fit, or a traced pattern.
    """
    A, B = (transpose(M.A) if isinstance(M, Transposed) and hasattr(M.A, "shards") else M for M in (A, B))
    for M in (A, B):
        if not hasattr(M, "shards"):
            raise TypeError(
                f"A @ B of a sharded matrix takes another sharded one, got {type(M).__name__}; make it one by "
                "jsf.shard(S, mesh), or multiply on one device by from_scipy(A.to_scipy())"
            )
        M._check_users_order("products")
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"A @ B needs as many columns of A as rows of B, got shapes {A.shape} and {B.shape}")
    if not A.domain.same(B.range):
        raise ValueError(
            f"A @ B of sharded matrices needs the rows of B, cut into {_counts(B.range)}, where the columns of A are, "
            f"cut into {_counts(A.domain)}, on the same mesh and in the same order; cut both evenly, by "
            'jsf.shard(S, mesh, by="rows") without reorder='
        )
    return _result(_kept(lambda: _product_plan(A, B), "matmul", A, B), A, B)


def transpose(A: Any) -> Any:
    """Aᵀ as a sharded matrix with arrays of its own, whose rows lie where A's columns lie; in A's format."""
    A._check_users_order("transpose")
    return _result(_kept(lambda: _transpose_plan(A), "transpose", A), A)


def _counts(of: Any) -> str:
    counts = [*map(str, of.over.counts)]
    return ", ".join(counts if len(counts) < 9 else [*counts[:8], "…"])


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class _Indices:
    """The index arrays of a sharded matrix, the keys of kept plans."""

    arrays: Any
    shape: tuple[int, int] = dataclasses.field(metadata={"static": True})
    nnz: int = dataclasses.field(metadata={"static": True})
    values = None


def _kept(make: Any, key: Any, *matrices: Any) -> Plan:
    indices = []
    for M in matrices:
        arrays = index_arrays(M)
        if any(isinstance(a, Tracer) for a in arrays):
            raise ValueError(
                f"this operation needs the pattern of a sharded matrix of shape {M.shape}, which is traced here; let "
                "the jitted function close over the matrix and take its data, as in A.with_data(data)"
            )
        indices.append(_Indices(arrays, M.shape, M.nnz))
    found, keep = [], functools.partial(patterns.kept, table=_plans)
    key = key, *(jax.tree.structure(M.shards.halo) for M in matrices)

    def missing() -> Any:
        raise LookupError

    def look() -> dict[int, bool]:
        with contextlib.suppress(LookupError):
            found.append(keep(missing, key, *indices))
        return {jax.process_index(): bool(found)}

    if all(everyones(look, matrices[0].range.over.mesh).values()):
        return found[0]
    _plans.table.clear()  # in all processes, which make plans together
    return keep(make, key, *indices)


def _product_plan(A: Any, B: Any) -> Plan:
    over, mesh = A.range.over, A.range.over.mesh
    met = meeting(pieces(A), pieces(B), starts_of(A.domain.over), mesh)

    def multiplied(k: int) -> tuple[Csr, Csr, np.ndarray]:
        """The rows of the product, the terms of its entries, and the entries of B that they read."""
        left, right, _, columns = met[k]

        c, first, factor, at = patterns.listed(left, right)
        C = _csr(columns[c.indices], c.indptr, (left.shape[0], B.domain.n))
        return C, _csr(factor, first, (c.nnz, A.entries.over.size)), right.data[at]

    made = of_each(multiplied, met, mesh)
    C, terms, read = ({k: of[i] for k, of in made.items()} for i in range(3))
    longest = max(everyones(lambda: {k: len(of) for k, of in read.items()}, mesh).values())
    result = _assembled(C, A, B, A.range, _columns(A, B))
    part = in_one_format(terms, _request(A, B, "csr", np.dtype(np.float32)))
    arrays = {name: basis.sharded(lambda k, n=name: part.arrays[k][n], over) for name in part.arrays[min(terms)]}
    absent: Any = Absent((part.form.sizes["values"],))
    rows = padding.like(part.like, arrays, part.form)._with_values(absent)
    return _plan(result, read, rows, B, max(longest, part.form.sizes["values"]))


def _columns(A: Any, B: Any) -> Any:
    """The basis of the columns of A·B: that of the rows where the result is square.

    Raises:
      ValueError: the result is square, and its rows and columns have different orders.
    """
    if A.shape[0] != B.shape[1] or A.range.same(B.domain):
        return B.domain
    if A.range.route is None and B.domain.route is None:
        return A.range
    raise ValueError(
        f"A @ B of shape {(A.shape[0], B.shape[1])} would have its rows and columns in different orders; shard A and B "
        "with the same reorder= and by="
    )


def _transpose_plan(A: Any) -> Plan:
    at = turned(pieces(A), starts_of(A.range.over), starts_of(A.domain.over), A.range.over.mesh)
    made = {k: _csr(S.indices, S.indptr, S.shape) for k, S in at.items()}
    result = _assembled(made, A, A, A.domain, A.range)
    return _plan(result, {k: S.data for k, S in at.items()}, None, A, result.entries.over.size)


def _plan(result: Any, read: dict[int, np.ndarray], terms: Any, last: Any, length: int) -> Plan:
    """The plan in which each device reads the entries of the last operand that have these numbers."""
    over, starts = last.entries.over, starts_of(last.entries.over)
    needs = lambda: {k: halo.needed(n, starts[k], starts[k + 1]) for k, n in read.items()}  # noqa: E731
    plan = halo.plan(needs, starts, over.mesh, last.dtype.itemsize)

    def source(k: int) -> np.ndarray:
        at = plan.places(k, read[k], starts[k], starts[k + 1], over.size)
        return np.pad(at, (0, length - len(at))).astype(np.int32)

    building.check_addressable(over.size + plan.how.width)
    with concrete():
        how = plan.placed(functools.partial(basis.sharded, over=over))
        return Plan(result, basis.sharded(source, result.range.over), terms, how)


def _csr(indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> Csr:
    """A pattern in CSR, with ones."""
    S = scipy.sparse.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=shape)
    S.has_canonical_format = True
    return S


def _request(A: Any, B: Any, format: str, dtype: Any) -> Request:
    shards = A.shards
    mode = "vector" if len(shards.blocks) == 1 and shards.halo.width else "overlap"
    mode = "naive" if len(shards.blocks) == 2 and shards.boundary is None else mode
    return Request(A.range.over.mesh, mode, format, {}, Target(dtype, B.backend, None))


def _assembled(C: Pieces, A: Any, B: Any, rows: Any, columns: Any) -> Any:
    """The sharded matrix of a pattern, between the given bases."""
    names, over = {M.shards.blocks[0].name for M in (A, B)}, (rows.over, columns.over)
    starts, cuts = map(starts_of, over)
    format = names.pop() if len(names) == 1 else "csr"
    block = C.__getitem__
    dtype = jnp.promote_types(A.dtype, B.dtype)
    with concrete():
        try:
            made = assemble(block, starts, cuts, A.shards.axis, _request(A, B, format, dtype))
        except building.TooLarge:  # as on one device
            made = assemble(block, starts, cuts, A.shards.axis, _request(A, B, "csr", dtype))
        order = made.entries
        if rows.route is not None or columns.route is not None:
            users = users_entries(C, own_unknowns(rows), own_unknowns(columns), cuts, rows.over.mesh)
            order = basis.make(order.over, basis.order_of(order.over, users))
    return dataclasses.replace(made, range=rows, domain=columns, entries=order)
