"""Multigrid for a matrix over several devices: set up as on one device, and each device gets its rows.

    one      A ── R·A·P ── R·A·P ── A⁺     in every process, from all entries of A
    shard 0  ■■■■■■■■   ■■■ ╮              a coarse unknown goes to the shard that has
    shard 1  ■■■■■■■■   ■■■ ┴ ■■■■ ── A⁺   the middle of its column of P

A coarse level of `WHOLE` rows or fewer is whole on every device and multiplied without exchanges: a sum over the
devices leads there, and the way back needs none. Of all other arrays a device has its share of the rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array, lax
from jax.sharding import PartitionSpec

from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._types import Target
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Operator
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.distributed.build import assemble
from jaxsparse_fmt.distributed.common_format import Request, in_one_format
from jaxsparse_fmt.distributed.entries import users_unknowns
from solvers.core.vectors import times
from solvers.precond._cycles import Level

# Rows up to which every device has a level whole, which in pieces would make six exchanges a cycle.
WHOLE = 50_000


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Crossing(Operator):
    """R or P between the last level in pieces and vectors that are whole on every device.

    Attributes:
      parts: arrays [parts, ...] of a matrix, or of its transpose: the columns of R, or the rows of P, of each piece; or
        these as dense arrays.
      over: the pieces.
      down: R, whose products are summed over the devices.
    """

    parts: Any
    over: Any = dataclasses.field(metadata={"static": True})
    down: bool = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        """Of R or P, whose side in pieces has all places."""
        n_rows, n_cols = self.parts.shape[-2:]
        return (n_rows, self.over.places) if self.down else (self.over.places, n_cols)

    @property
    def dtype(self) -> np.dtype:
        return self.parts.dtype

    @property
    def T(self) -> "Crossing":
        parts = jnp.swapaxes(self.parts, 1, 2) if isinstance(self.parts, jax.Array) else self.parts.T
        return Crossing(parts, self.over, not self.down)

    def _each(self, f: Callable[[Array], Array]) -> "Crossing":
        """The same with f applied to all entries."""
        parts = f(self.parts) if isinstance(self.parts, jax.Array) else self.parts._each(f)
        return dataclasses.replace(self, parts=parts)

    def __matmul__(self, v: Array) -> Array:
        over, piece, whole = self.over, PartitionSpec(self.over.axis), PartitionSpec(None)

        def product(parts: Any, v: Array) -> Array:
            part = jax.tree.map(lambda a: a[0], parts)
            y = times(part, v)
            return lax.psum(y, over.axis) if self.down else y

        if over.is_manual:
            return product(self.parts, v)
        taken, out = (piece, whole) if self.down else (whole, piece)

        def mapped(*operands: Any) -> Array:
            return over.mapped(product, (piece, taken), out)(*operands)

        return over.by_xla(mapped, (self.parts, v), mesh_axes.spec_like(v, *out))

    def _partition(self, axis: Any) -> Any:
        return PartitionSpec(axis) if self.over.axis == axis else None


class Spread:
    """Puts the levels of a hierarchy of A on A's devices, from the finest down.

    Attributes:
      order: the host's unknowns of the present level in the order of the shards; None: that order.
      starts: [parts + 1], where the unknowns of each shard begin.
    """

    def __init__(self, A: Any, dtype: Any, format_of: Callable[[Any], str]):
        """Begins at the finest level.

        Args:
          A: ShardedMatrix.
          dtype: of the entries.
          format_of: gives the format of a matrix of SciPy.
        """
        self.A, self.dtype, self.format_of = A, dtype, format_of
        self.order = None if A.range.route is None else users_unknowns(A.range)
        self.starts = A.range.over.starts

    def takes(self, level: Level, k: int) -> bool:
        """Whether level k lies in pieces."""
        return k == 0 or level.A.shape[0] > WHOLE

    def __call__(self, level: Level, k: int) -> Level:
        """Level k, in pieces.

        Raises:
          ValueError: the processes have made different levels.
        """
        self.A._agree(level=(k, level.P.shape, level.A.nnz, level.P.nnz))
        order, starts = self.order, self.starts
        R, P = _reordered(level.R, None, order), _reordered(level.P, order, None)
        if k:
            stored = self._placed(_reordered(level.A, order, order), starts, starts)
        else:
            stored = (self.A if self.A.dtype == self.dtype else self.A.astype(self.dtype)).in_basis
        over = stored.range.over
        if P.shape[1] <= WHOLE:
            columns = {p: _columns(R, *starts[p : p + 2], over.size) for p in over.mine}
            rows = {p: P[starts[p] : starts[p + 1]] for p in over.mine}
            R = self._crossing(columns, R.shape[0], True, over)
            P = self._crossing(rows, over.size, False, over)
        else:
            middle = R.indices[np.minimum((R.indptr[:-1] + R.indptr[1:]) // 2, R.nnz - 1)]
            owner = np.searchsorted(starts, middle, side="right") - 1
            self.order = np.argsort(owner, kind="stable")
            self.starts = np.append(0, np.cumsum(np.bincount(owner, minlength=len(starts) - 1)))
            R = self._placed(_reordered(R, self.order, None), self.starts, starts)
            P = self._placed(_reordered(P, None, self.order), starts, self.starts)
        d = level.inverse_diagonal if order is None else level.inverse_diagonal[order]
        pieces = {p: np.pad(d[starts[p] : starts[p + 1]], (0, over.size - over.counts[p])) for p in over.mine}
        narrow = jnp.finfo(jnp.promote_types(self.dtype, jnp.float32)).dtype
        kind = jnp.promote_types(narrow, np.complex64) if d.dtype.kind == "c" else narrow
        d = over.spread(pieces).reshape(-1).astype(kind)
        return Level(stored, R, P, d, jnp.asarray(level.recurrence, narrow))

    def finished(self, M: Any, definite: bool) -> tuple[Any, bool]:
        """The `Multigrid` M with its other levels and the coarsest inverse whole on every device.

        Raises:
          ValueError: M has no level, or the processes have made different ones.
        """
        if not M.levels:
            raise ValueError("A has no strong couplings from which multigrid could coarsen; take precond.jacobi")
        in_pieces = [k for k, level in enumerate(M.levels) if not isinstance(level.A, SparseMatrix)]
        above, below = M.levels[: len(in_pieces)], M.levels[len(in_pieces) :]
        # Other processors may round to other levels, of which all processes have to make one program.
        self.A._agree(levels=(definite, str(jax.tree.structure(below)), str(jax.typeof(M.coarse_inverse))))
        below, inverse = self.A.range.over.everywhere((below, M.coarse_inverse))
        levels = (*above, *below)
        M = dataclasses.replace(M, levels=levels, coarse_inverse=inverse, order=self.A.domain, whole=len(below))
        return M, definite

    def _placed(self, S: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
        """The matrix with its rows and columns cut at these places, between vectors in pieces."""
        made = assemble(lambda p: S[rows[p] : rows[p + 1]], rows, columns, self.A.range.over.axis, self._request(S))
        return dataclasses.replace(made, is_entered=True)

    def _crossing(self, parts: dict[int, Any], n_rows: int, down: bool, over: Any) -> Crossing:
        request = self._request(next(iter(parts.values())))
        return Crossing(over.spread(in_one_format(parts, n_rows, request)[0]), over, down)

    def _request(self, S: Any) -> Request:
        return _request(self.A, self.dtype, self.format_of(S))


def crossings(A: Any, W: Any, dtype: Any) -> tuple[Crossing, Crossing]:
    """W [n, m] and Wᴴ, each device with the rows of W that it has of A.

    Args:
      A: ShardedMatrix.
      W: a dense array, which may be traced, or a matrix of scipy.sparse.
    """
    over = A.range.over
    if not scipy.sparse.issparse(W):
        parts = A.range.enter(W).astype(dtype).reshape(len(over.counts), over.size, W.shape[1])
        return Crossing(parts, over, False), Crossing(jnp.conj(jnp.swapaxes(parts, 1, 2)), over, True)
    unknowns = over.on_host(type(A.range).unknowns(A.range))
    rows = {p: scipy.sparse.csr_array(W)[unknowns[p][: over.counts[p]]] for p in over.mine}
    columns = {p: _columns(S.conj().T.tocsr(), 0, S.shape[0], over.size) for p, S in rows.items()}
    request = _request(A, dtype, "auto")
    up, down = (in_one_format(parts, n, request)[0] for parts, n in ((rows, over.size), (columns, W.shape[1])))
    return Crossing(over.spread(up), over, False), Crossing(over.spread(down), over, True)


def _request(A: Any, dtype: Any, format: str) -> Request:
    return Request(A.range.over.mesh, "overlap", format, {}, Target(np.dtype(dtype), A.backend, None))


def _reordered(S: Any, rows: np.ndarray | None, columns: np.ndarray | None) -> Any:
    """S in canonical CSR with its rows and columns in these orders; None: as they are."""
    S = scipy.sparse.csr_array(S)
    S = S if rows is None else S[rows]
    if columns is not None:
        place = np.empty(columns.size, S.indices.dtype)
        place[columns] = np.arange(columns.size)
        S = scipy.sparse.csr_array((S.data, place[S.indices], S.indptr), shape=S.shape)
    S.sort_indices()
    S.has_canonical_format = True
    return S


def _columns(S: Any, start: int, stop: int, width: int) -> Any:
    """The columns from start to stop, and empty ones up to `width`."""
    part = S[:, start:stop]
    return scipy.sparse.csr_array((part.data, part.indices, part.indptr), shape=(S.shape[0], width))
