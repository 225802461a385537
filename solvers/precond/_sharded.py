"""Multigrid for a matrix over several devices: every shard coarsens its own rows.

    shard 0  ■■■■■■■■ → ■■■ ╮                 aggregates lie inside a shard, so T is block diagonal;
    shard 1  ■■■■■■■■ → ■■■ ┴ ■■■■ → ■ → A⁺   P = T − ω·D⁻¹·A'·T and R·A·P take rows of the halo

A coarse level of `WHOLE` rows or fewer is whole on every device and multiplied without exchanges: a sum over the
devices leads there, and the way back needs none. Of all other arrays a device has its share of the rows, and a process
on its host those of its own devices.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import concrete
from jaxsparse_fmt._types import Target
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Operator
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.distributed.basis import EnteredBasis
from jaxsparse_fmt.distributed.build import assemble
from jaxsparse_fmt.distributed.common_format import Request, in_one_format
from jaxsparse_fmt.distributed.delivery import needed
from jaxsparse_fmt.distributed.entries import inner_numbers, pieces
from jaxsparse_fmt.distributed.halo import exchange, passed
from jaxsparse_fmt.kernels.cpu import aggregation
from solvers.core.vectors import times
from solvers.precond import _checks as checks
from solvers.precond import _device_hierarchy, _device_shards
from solvers.precond._cycles import Level, recurrence
from solvers.precond._device_shards import Made
from solvers.precond._given import of_one
from solvers.precond._hierarchy import Step
from solvers.precond._rows import Cut, Halo, Parts, Rows, csr, in_all_columns, recut, renumbered, turned
from solvers.precond._stored import check_fits, format_of

# Rows up to which every device has a level whole, which in pieces would make six exchanges a cycle.
WHOLE = 50_000


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Crossing(Operator):
    """R or P of a level in pieces, and the matrix of one that devices have set up.

    Attributes:
      parts: arrays [parts, ...] of a matrix: the columns of R, or the rows of P, of each piece; or these as dense
        arrays.
      over: the pieces.
      down: R, whose products are summed over the devices.
      coarse: the pieces of the other side; None: its vectors are whole on every device.
      how: the exchange of the halo on the other side, which follows the device's own part there.
      entries: of all devices, without padding.
    """

    parts: Any
    over: Any = dataclasses.field(metadata={"static": True})
    down: bool = dataclasses.field(metadata={"static": True})
    coarse: Any = dataclasses.field(default=None, metadata={"static": True})
    how: Any = None
    entries: int = dataclasses.field(default=0, metadata={"static": True})

    name: ClassVar[str] = "sharded"

    @property
    def shape(self) -> tuple[int, int]:
        """Of R or P, whose side in pieces has all places."""
        n_rows, n_cols = self.parts.shape[-2:]
        other = (n_rows if self.down else n_cols) if self.coarse is None else self.coarse.places
        return (other, self.over.places) if self.down else (self.over.places, other)

    @property
    def nnz(self) -> int:
        return self.entries

    @property
    def range(self) -> Any:
        """How its results lie, as of a sharded matrix."""
        return EnteredBasis(over=self.over)

    @property
    def dtype(self) -> np.dtype:
        return self.parts.dtype

    @property
    def T(self) -> "Crossing":
        parts = jnp.swapaxes(self.parts, 1, 2) if isinstance(self.parts, jax.Array) else self.parts.T
        return dataclasses.replace(self, parts=parts, down=not self.down)

    def _each(self, f: Callable[[Array], Array]) -> "Crossing":
        """The same with f applied to all entries."""
        parts = f(self.parts) if isinstance(self.parts, jax.Array) else self.parts._each(f)
        return dataclasses.replace(self, parts=parts)

    def __matmul__(self, v: Array) -> Array:
        over, piece = self.over, PartitionSpec(self.over.axis)
        other = PartitionSpec(None) if self.coarse is None else piece

        def product(parts: Any, v: Array) -> Array:
            part, how = jax.tree.map(lambda a: a[0], parts)
            if self.coarse is None:
                y = times(part, v)
                return lax.psum(y, over.axis) if self.down else y
            if not self.down:
                return times(part, jnp.concatenate([v, exchange(v, how)]))
            y = times(part, v)
            own, halo = y[: self.coarse.size], y[self.coarse.size :]
            return own if how.send is None else own.at[how.send].add(passed(halo, how, True))

        if over.is_manual:
            return product((self.parts, self.how), v)
        taken, out = (piece, other) if self.down else (other, piece)

        def mapped(*operands: Any) -> Array:
            return over.mapped(product, (piece, taken), out)(*operands)

        return over.by_xla(mapped, ((self.parts, self.how), v), mesh_axes.spec_like(v, *out))

    def _partition(self, axis: Any) -> Any:
        return PartitionSpec(axis) if self.over.axis == axis else None


def large_levels(A: Any, B: Any, theta: float, most: int, spread: Any, degree: int) -> Any:
    """The large levels where A's devices are accelerators, as `_device_shards`; None: hosts make all of them."""
    block = getattr(A.shards.blocks[0], "block_shape", None)
    is_large = _device_hierarchy.MANY * A.parts < A.nnz and max(A.data_basis.over.counts) <= _device_hierarchy.MOST
    is_scalar = block is None and _device_hierarchy.is_vector(B, A.shape[0])
    if not (is_large and is_scalar and jnp.issubdtype(A.dtype, jnp.floating) and not on_cpu(A)):
        return None

    def keep(made: Made, k: int) -> Level:
        check_fits(made.largest, spread.dtype, k)
        return spread.of_devices(made, k, degree)

    with concrete(), jax.enable_x64(True):  # in float64, as on the host
        return _device_shards.large_levels(A, B, theta, most, spread.whole, keep)


def on_cpu(A: Any) -> bool:
    return A.range.over.mesh.devices.flat[0].platform == "cpu"


def on_hosts(A: Any, B: Any) -> tuple[Rows, Parts]:
    """The rows of A by shards, in points of which no shard has a part, and the near-null space of their unknowns.

    Args:
      A: ShardedMatrix.
      B: [n, k] in the user's order; None: a constant for each unknown of a point.

    Raises:
      ValueError: an entry that is not finite, a zero on the diagonal, or as `checks.near_null`; in every process.
    """
    over, (held, cut) = A.range.over, checked_rows(A)
    exact, starts = held[min(held)].dtype, over.starts
    unknowns = {k: np.arange(*starts[k : k + 2]) for k in over.mine}
    if A.range.route is not None:
        unknowns = {k: a[: over.counts[k]] for k, a in over.on_host(type(A.range).unknowns(A.range)).items()}
    block = getattr(A.shards.blocks[0], "block_shape", None)
    sizes = cut.each(lambda S, ends, u: checks.block_sizes(S, ends[0], u, block), held, cut.bounds, unknowns)
    b = next((b for b in checks.BLOCKS if A.shape[0] % b == 0 and all(b in of for of in cut.of_all(sizes))), 1)
    per = block[0] if block else b  # unknowns of a point, even where their order parts them
    if B is None:
        near = {k: np.eye(per, dtype=exact)[u % per] for k, u in unknowns.items()}
    elif isinstance(B, jax.Array):
        B = checks.near_null(B, A.shape[0], exact)
        entered = A.domain.enter(A.domain.accept(B))
        entered = jax.device_put(
            entered, NamedSharding(over.mesh, PartitionSpec(over.axis))
        )  # all columns in each piece
        near = {k: a[: over.counts[k]].astype(exact) for k, a in over.on_host(entered).items()}
    else:
        B = checks.near_null(np.asarray(B), A.shape[0], exact)
        near = {k: B[u].astype(exact) for k, u in unknowns.items()}
    cut.each(lambda B: checks.finite(B, "B"), near)
    whole = Cut((starts + b // 2) // b * b, over)
    points = Cut(whole.starts // b, over)
    held, near = (recut({k: S for k, S in of.items()}, cut, whole) for of in (held, near))
    held = points.each(lambda S, ends: _in_points(S, b, ends, A.shape[0]), held, points.bounds)
    return Rows.of(held, points), near


def checked_rows(A: Any) -> tuple[Parts, Cut]:
    """The rows of A by shards in CSR, whose columns are numbered through all shards. ValueError: as `on_hosts`."""
    cut = Cut(A.range.over.starts, A.range.over)
    held = pieces(A, np.complex128 if A.dtype.kind == "c" else np.float64)
    cut.each(lambda S, ends: checks.entries(S, int(ends[0]), A.range.route is None), held, cut.bounds)
    return held, cut


def renewed(A: Any, M: Any) -> tuple[Rows, list[Callable[[], tuple[Parts, Halo, Rows]]], "Spread"]:
    """The rows of A, what reads R and P of each level of M as `of_one`, and what puts the levels in shards."""
    held, cut = checked_rows(A)
    over, spread = cut.over, Spread(A, M.dtype)

    def in_points(S: Parts, columns: Cut) -> Rows:
        return Rows.of(cut.each(functools.partial(aggregation.points, b=1), S), columns)

    def read(level: Level, columns: Cut) -> tuple[Parts, Halo, Rows]:
        P = back = in_points(_in_rows(level.P, columns), columns)
        if not M.symmetric:
            back = in_points(_in_rows(level.R, columns, True), columns)
        return back.each(aggregation.adjoint), back.halo, P

    above, below = M.levels[: len(M.levels) - M.whole], M.levels[len(M.levels) - M.whole :]
    spread.whole, levels = below[0].A.shape[0] if below else M.coarse_inverse.shape[0], []
    for level, after in itertools.zip_longest(above, above[1:]):
        # Rows of a level that is whole are added up by any shard.
        starts = np.arange(len(over.counts) + 1) * spread.whole // len(over.counts)
        columns = Cut(starts if after is None else after.A.range.over.starts, over)
        levels.append(functools.partial(read, level, columns))
    return in_points(held, cut), levels + [functools.partial(of_one, level) for level in below], spread


def _in_rows(S: Any, columns: Cut, down: bool = False) -> Parts:
    """The rows of P, or of Rᴴ from R, by shards in CSR whose columns are numbered through all shards, in float64."""
    exact, over = np.promote_types(S.dtype, np.float64), columns.over
    if isinstance(S, Crossing):
        numbers = () if S.coarse is None else (inner_numbers(S.coarse),)
        row, col, value = (over.on_host(a) for a in _entries(S, *numbers))

        def rows_of(row: np.ndarray, col: np.ndarray, value: np.ndarray, ends: tuple[int, int]) -> Any:
            live, value = row >= 0, value.astype(exact)
            entries = (value.conj() if S.down else value)[live], (row[live], col[live])
            return scipy.sparse.csr_array(entries, shape=(ends[1] - ends[0], int(columns.starts[-1])))

        return columns.each(rows_of, row, col, value, Cut(S.over.starts, over).bounds)
    held, fine = pieces(S, exact), Cut(S.domain.over.starts, over)
    if down:
        R = Rows.of({k: aggregation.points(part, 1) for k, part in held.items()}, fine)
        adjoint = in_all_columns(R.each(aggregation.adjoint), columns)
        return _canonical(turned(adjoint, R.halo, columns))
    return held


@jax.jit
def _entries(S: Crossing, *numbers: Array) -> tuple[Array, Array, Array]:
    """Row, -1 in padding, column and value of each entry of P or Rᵀ; columns are named by `numbers`, in pieces."""

    def found(parts: Any, *numbers: Array) -> tuple[Array, Array, Array]:
        part, how = parts
        row, col, _, value = part.entries()
        live, (own, other) = (row < part.shape[0]) & (col < part.shape[1]), (col, row) if S.down else (row, col)
        if part.name == "csr":  # devices pad with zeros in any column
            live &= jnp.arange(row.size) < part.row_ptr[-1]
        for of in numbers:
            other = jnp.take(jnp.concatenate([of, exchange(of, how)]), other, mode="clip")
        return jnp.where(live, own, -1), other, value

    return S.over.each(found, (S.parts, S.how), *numbers)


def _in_points(S: Any, b: int, ends: tuple[int, int], width: int) -> Any:
    """Rows in CSR as BSR, whose columns stay numbered through all shards."""
    if b == 1:
        return aggregation.points(S, 1)
    halo = needed(S.indices // b, *ends)
    names, point = np.concatenate([np.arange(*ends), halo]), S.indices // b
    inside = (point >= ends[0]) & (point < ends[1])
    place = np.where(inside, point - ends[0], ends[1] - ends[0] + np.searchsorted(halo, point))
    local = scipy.sparse.csr_array((S.data, b * place + S.indices % b, S.indptr), shape=(S.shape[0], b * len(names)))
    local = aggregation.points(local, b)
    return renumbered(local, names[local.indices], width // b, False)


class Spread:
    """Puts the levels of a hierarchy of a ShardedMatrix on its devices, with entries of this dtype, from the finest
    down; those in shards, and the whole ones.
    """

    def __init__(self, A: Any, dtype: Any):
        self.A, self.dtype, self.whole = A, dtype, WHOLE

    def __call__(self, step: Step, k: int) -> Level:
        """Level k, in pieces."""
        A, P, (b, c) = step.A, step.P, (step.A.S[min(step.A.S)].blocksize[0], step.R[min(step.R)].blocksize[0])
        made, coarse = Cut(A.halo.cut.starts * b, A.halo.cut.over), P.halo.cut.starts * c
        if k:
            stored, cut = self._placed(_canonical(A), made.starts, made.starts), made
        else:
            stored = self._finest()
            cut = made._replace(starts=self.A.range.over.starts)
        over, up = stored.range.over, recut(_canonical(P), made, cut)
        if P.shape[1] <= self.whole:
            back = up
            if step.halo is not P.halo:
                adjoint = A.halo.cut.each(aggregation.adjoint, step.R)
                back = recut(_canonical(Rows(adjoint, step.halo, 0, A.points)), made, cut)
            columns = {p: _columns(S.conj().T.tocsr(), 0, S.shape[0], over.size) for p, S in back.items()}
            R, P = self._crossing(columns, P.shape[1], True, over), self._crossing(up, over.size, False, over)
        else:
            R = turned(in_all_columns(step.R, A.halo.cut), step.halo, A.halo.cut)
            R = self._placed(_canonical(R), coarse, cut.starts)
            P = self._placed(up, cut.starts, coarse)
        pieces = recut(step.inverse_diagonal, made, cut)
        pieces = {p: np.pad(d, (0, over.size - len(d))) for p, d in pieces.items()}
        narrow = jnp.finfo(jnp.promote_types(self.dtype, jnp.float32)).dtype
        kind = jnp.promote_types(narrow, np.complex64) if pieces[min(pieces)].dtype.kind == "c" else narrow
        d = over.spread(pieces).reshape(-1).astype(kind)
        return Level(stored, R, P, d, jnp.asarray(step.recurrence, narrow))

    def of_devices(self, made: Made, k: int, degree: int) -> Level:
        """Level k, from the arrays of a set-up on the devices."""
        narrow = jnp.finfo(jnp.promote_types(self.dtype, jnp.float32)).dtype

        A, R, P, inverse = made.arrays()

        def stored(S: Any, down: bool, coarse: Any, links: Any) -> Crossing:
            parts = S._each(lambda v: v.astype(self.dtype))
            return Crossing(parts, made.over, down, coarse, links.how if coarse else None, made.nnz)

        A = stored(A, False, made.over, made.links) if k else self._finest()
        R, P = stored(R, True, made.coarse, made.below), stored(P, False, made.coarse, made.below)
        return Level(A, R, P, inverse.reshape(-1).astype(narrow), jnp.asarray(recurrence(degree, made.upper), narrow))

    def _finest(self) -> Any:
        return (self.A if self.A.dtype == self.dtype else self.A.astype(self.dtype)).in_basis

    def finished(self, M: Any, definite: bool) -> tuple[Any, bool]:
        """The `Multigrid` M with its other levels and the coarsest inverse whole on every device.

        Raises:
          ValueError: M has no level, or the processes have made different ones.
        """
        if not M.levels:
            raise ValueError("A has no strong couplings from which multigrid could coarsen; use precond.jacobi")
        in_pieces = [k for k, level in enumerate(M.levels) if not isinstance(level.A, SparseMatrix)]
        above, below = M.levels[: len(in_pieces)], M.levels[len(in_pieces) :]
        # Other processors may round to other levels, of which all processes have to make one program.
        self.A._agree(levels=(definite, str(jax.tree.structure(below)), str(jax.typeof(M.coarse_inverse))))
        below, inverse = self.A.range.over.everywhere((below, M.coarse_inverse))
        levels = (*above, *below)
        M = dataclasses.replace(M, levels=levels, coarse_inverse=inverse, order=self.A.domain, whole=len(below))
        return M, definite

    def _placed(self, S: Parts, rows: np.ndarray, columns: np.ndarray) -> Any:
        """The matrix with its rows and columns cut at these places, between vectors in pieces."""
        made = assemble(S.__getitem__, rows, columns, self.A.range.over.axis, self._request(S))
        return dataclasses.replace(made, is_entered=True)

    def _crossing(self, parts: Parts, n_rows: int, down: bool, over: Any) -> Crossing:
        return Crossing(over.spread(in_one_format(parts, n_rows, self._request(parts))[0]), over, down)

    def _request(self, parts: Parts) -> Request:
        cut = Cut(self.A.range.over.starts, self.A.range.over)
        formats = cut.of_all(cut.each(format_of, parts))
        return _request(self.A, self.dtype, "auto" if "auto" in formats else formats[0])


def _canonical(A: Rows) -> Parts:
    """The rows in canonical CSR, whose columns are numbered through all shards."""

    def canonical(S: Any) -> Any:
        S = csr(S.sorted_indices())
        S.has_canonical_format = True
        return S

    return A.halo.cut.each(canonical, A.named())


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


def _columns(S: Any, start: int, stop: int, width: int) -> Any:
    """The columns from start to stop, and empty ones up to `width`."""
    part = S[:, start:stop]
    return scipy.sparse.csr_array((part.data, part.indices, part.indptr), shape=(S.shape[0], width))
