"""The rows of each shard on its process's host, in canonical CSR with all columns, and what travels between shards.

In this module a piece is the rows of one shard. Rows and columns are numbered as in the inner order without its empty
places: those of shard k are `starts[k]` to `starts[k + 1]` − 1. Processes exchange only rows and entries that cross
from one shard to another.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.core import Tracer
from jax.sharding import Mesh

from jaxsparse_fmt._types import Csr, index_dtype
from jaxsparse_fmt.distributed import entries
from jaxsparse_fmt.distributed.delivery import delivered, to_owners
from jaxsparse_fmt.distributed.distribution import Distribution
from jaxsparse_fmt.distributed.halo import by_owner, needed
from jaxsparse_fmt.distributed.processes import everyones, of_each, together

Pieces = dict[int, Csr]  # by shard


def pieces(A: Any, dtype: Any) -> Pieces:
    """The rows of each shard of this process, with entries of this dtype; all processes must call this."""
    over, nnz = A.range.over, A.data_basis.over.counts
    row, col, value = ({k: a[: nnz[k]] for k, a in over.on_host(of).items()} for of in _untraced(_named, A))

    def rows_of(k: int) -> Csr:
        ptr = np.concatenate([[0], np.cumsum(np.bincount(row[k] - over.starts[k], minlength=over.counts[k]))])
        out = scipy.sparse.csr_array((value[k].astype(dtype), col[k], ptr), shape=(over.counts[k], A.domain.n))
        out.has_canonical_format = True
        return out

    return of_each(rows_of, over.mine, over.mesh)


def to_scipy(A: Any) -> Csr:
    """All rows in canonical CSR in the user's order, on the host of each process, all of which must call this."""
    own = pieces(A, np.promote_types(A.dtype, np.float32))
    S = _stacked(*everyones(lambda: own, A.range.over.mesh).values())
    if A.range.route is None and A.domain.route is None:
        return S
    S = S.tocoo()
    row, col = (_users_unknowns(basis)[of] for basis, of in ((A.range, S.row), (A.domain, S.col)))
    return scipy.sparse.csr_array(scipy.sparse.coo_array((S.data, (row, col)), S.shape)).sorted_indices()


def _users_unknowns(basis: Any) -> np.ndarray:
    """[n] the user's number of each unknown, in the inner order."""
    own = basis.over.on_host(_untraced(type(basis).unknowns, basis))
    own = {k: of[: basis.over.counts[k]] for k, of in own.items()}
    return np.concatenate([*everyones(lambda: own, basis.over.mesh).values()])


@jax.jit
def _named(A: Any) -> tuple[jax.Array, ...]:
    """Row, column and value of every entry, by the numbers of the inner order without its empty places."""
    return entries.in_pieces(A, *(_numbers(basis.over) for basis in (A.range, A.domain)))


def _numbers(over: Distribution) -> jax.Array:
    first = jnp.asarray(over.starts[:-1, None], index_dtype(over.places))
    return (first + jnp.arange(over.size, dtype=first.dtype)).reshape(-1)


def _untraced(f: Any, of: Any) -> Any:
    """f(of) of arrays that a traced function closes over: in a thread, since shard_map is refused inside that trace."""
    if any(isinstance(a, Tracer) for a in jax.tree.leaves(of)):
        return f(of)  # JAX refuses to read the result, in words
    mesh = (of if hasattr(of, "over") else of.range).over.mesh

    def called(_: Any) -> Any:
        with jax.set_mesh(mesh):
            return f(of)

    return together(called, (0,))[0]


def fetched(wanted: dict[int, np.ndarray], B: Any, starts: np.ndarray, mesh: Mesh) -> Any:
    """The rows of B, matrices or arrays by shard, with the numbers that each shard wants, rising."""
    asked = delivered(lambda: {k: by_owner(rows, starts) for k, rows in wanted.items()}, mesh)
    sent = lambda: {k: {t: B[k][rows - starts[k]] for t, rows in of.items()} for k, of in asked.items()}  # noqa: E731
    of = delivered(sent, mesh)
    return of_each(lambda k: _stacked(B[k][:0], *of[k].values()), of, mesh)


def meeting(A: Pieces, B: Pieces, starts: np.ndarray, mesh: Mesh) -> dict[int, tuple[Csr, Csr, np.ndarray, np.ndarray]]:
    """For each shard its rows of A, the rows of B that their columns name, and the rising numbers of these rows and of
    the columns in them.

    The two matrices are the factors of its rows of A·B, without empty columns, so that scratch is of the shard's size.

    Args:
      starts: [parts + 1] of A's columns and B's rows.
    """
    wanted = of_each(lambda k: needed(A[k].indices, starts[k], starts[k + 1]), A, mesh)
    others = fetched(wanted, B, starts, mesh)

    def met(k: int) -> tuple[Csr, Csr, np.ndarray, np.ndarray]:
        S = A[k]
        (start, stop), first = starts[k : k + 2], np.searchsorted(wanted[k], starts[k])
        own, above = (S.indices >= start) & (S.indices < stop), S.indices >= stop
        col = np.searchsorted(wanted[k], S.indices) + np.where(above, stop - start, 0)
        col[own] = S.indices[own] - start + first
        rows = _stacked(others[k][:first], B[k], others[k][first:])
        left = scipy.sparse.csr_array((S.data, col.astype(np.int32), S.indptr), shape=(S.shape[0], rows.shape[0]))
        left.has_canonical_format = True
        columns, at = np.unique(rows.indices, return_inverse=True)
        right = scipy.sparse.csr_array((rows.data, at.astype(np.int32), rows.indptr), (rows.shape[0], columns.size))
        return left, right, np.concatenate([wanted[k][:first], np.arange(start, stop), wanted[k][first:]]), columns

    return of_each(met, A, mesh)


def turned(A: Pieces, rows: np.ndarray, columns: np.ndarray, mesh: Mesh) -> Pieces:
    """The rows of Aᵀ of each shard, which are A's columns there; entries in columns of other shards travel."""

    def moved(k: int) -> dict[int, Any]:
        row = np.repeat(np.arange(rows[k], rows[k + 1]), np.diff(A[k].indptr))
        return to_owners(np.searchsorted(columns, A[k].indices, side="right") - 1, row, A[k].indices, A[k].data)

    away = of_each(moved, A, mesh)
    parts = delivered(lambda: away, mesh)

    def turn(k: int) -> Csr:
        none = A[k].indices[:0], A[k].indices[:0], A[k].data[:0]
        row, col, data = (np.concatenate(a) for a in zip(none, *parts[k].values(), strict=True))
        order, count = np.lexsort((row, col)), int(columns[k + 1] - columns[k])
        ptr = np.concatenate([[0], np.cumsum(np.bincount(col - columns[k], minlength=count))])
        out = scipy.sparse.csr_array((data[order], row[order].astype(np.int32), ptr), shape=(count, int(rows[-1])))
        out.has_canonical_format = True
        return out

    return of_each(turn, A, mesh)


def _stacked(*parts: Any) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))
