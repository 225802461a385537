"""The set-up of multigrid for a matrix over several devices: every shard coarsens its own rows.

    shard 0  ■■■■■■■■ → ■■■ ╮                 aggregates lie inside a shard, so T is block diagonal;
    shard 1  ■■■■■■■■ → ■■■ ┴ ■■■■ → ■ → A⁺   P = T − ω/λ·D⁻¹·A'·T and R·A·P fetch rows that the halo names

A process works on the rows of its own shards. The block of a shard's own columns is coarsened as in `_hierarchy`; the
few entries that couple it to other shards multiply rows fetched from there. A coarse level of `WHOLE` rows or fewer is
whole on every device, set up by `_hierarchy` and multiplied without exchanges: a sum over the devices leads there, and
the way back needs none. All other arrays of a device have its share of the rows.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxsparse_fmt._dtypes import check_keeps_imaginary
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._types import Target
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.distributed.build import assemble
from jaxsparse_fmt.distributed.common_format import Request, in_one_format
from jaxsparse_fmt.distributed.delivery import Pieces, meeting, numbered, stacked, turned
from jaxsparse_fmt.distributed.entries import pieces
from jaxsparse_fmt.distributed.processes import agree, alone, everyones, of_each, together
from jaxsparse_fmt.kernels.cpu import aggregation
from solvers.core.spectrum import spectrum
from solvers.core.vectors import matmul
from solvers.precond import _checks as checks
from solvers.precond import _hierarchy
from solvers.precond._cycles import Level

# Rows up to which every device has a level whole, which in pieces would make six exchanges a cycle.
WHOLE = 50_000


class Split(NamedTuple):
    """The rows of each shard in two parts."""

    own: Pieces  # entries in columns of the shard, by numbers among them
    apart: Pieces  # those in columns of other shards, few as a rule


class Aggregates(NamedTuple):
    """The aggregates of a shard."""

    strong: np.ndarray  # the strong couplings of its own block
    T: Any  # in columns of its own
    below: np.ndarray  # the near-null space of the next level
    theta: float  # the threshold of the strong couplings


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Crossing:
    """R or P between the last level in pieces and vectors that are whole on every device.

    Attributes:
      own: arrays [parts, ...] of a matrix, or of its transpose: the columns of R, or the rows of P, of each piece; or
        these as dense arrays.
      over: the pieces.
      down: R, whose products are summed over the devices.
    """

    own: Any
    over: Any = dataclasses.field(metadata={"static": True})
    down: bool = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        """Of R or P, whose side in pieces has all places."""
        n_rows, n_cols = self.own.shape[-2:]
        return (n_rows, self.over.places) if self.down else (self.over.places, n_cols)

    @property
    def dtype(self) -> np.dtype:
        return self.own.dtype

    @property
    def T(self) -> "Crossing":
        own = jnp.swapaxes(self.own, 1, 2) if isinstance(self.own, jax.Array) else self.own.T
        return Crossing(own, self.over, not self.down)

    def _each(self, f: Callable[[Array], Array]) -> "Crossing":
        """The same with f applied to all numbers."""
        return dataclasses.replace(self, own=f(self.own) if isinstance(self.own, jax.Array) else self.own._each(f))

    def __matmul__(self, v: Array) -> Array:
        over, piece, whole = self.over, PartitionSpec(self.over.axis), PartitionSpec(None)

        def product(own: Any, v: Array) -> Array:
            own = jax.tree.map(lambda a: a[0], own)
            y = matmul(own, v) if isinstance(own, jax.Array) else own @ v
            return lax.psum(y, over.axis) if self.down else y

        if over.is_manual:
            return product(self.own, v)
        given, out = (piece, whole) if self.down else (whole, piece)
        mapped = lambda *a: over.mapped(product, (piece, given), out)(*a)  # noqa: E731
        return over.by_xla(mapped, (self.own, v), mesh_axes.spec_like(v, *out))

    def _partition(self, axis: Any) -> Any:
        return PartitionSpec(axis) if self.over.axis == axis else None


def build(
    A: Any,
    B: Any,
    *,
    theta: float,
    degree: int,
    dtype: Any,
    max_coarse: int,
) -> tuple[_hierarchy.Start, Any, np.ndarray, float]:
    """The levels in pieces, between vectors that have entered A's basis, and for the levels below them the matrix, its
    near-null space and theta, all whole.

    Args:
      A: ShardedMatrix.
      B: [n, k] near-null space, or None for constants.
      max_coarse: for the levels below, on which all processes must agree.
    """
    checks.square(A, "multigrid")
    check_keeps_imaginary(A.dtype, dtype)
    A._check_users_order("multigrid")
    checks.untraced(A)
    over = A.range.over
    mesh, axis = over.mesh, over.axis
    exact = np.dtype(np.complex128 if A.dtype.kind == "c" else np.float64)

    def beside(*jobs: Callable[[], Any]) -> list[Any]:
        """What the jobs return; in threads, but where several processes have to agree in the same order."""
        return [*together(lambda f: f(), jobs).values()] if alone(mesh) else [f() for f in jobs]

    little = {0: scipy.sparse.csr_array(np.ones((2, 2), exact))}  # for which Numba compiles
    compiling = functools.partial(
        of_each, functools.partial(_aggregated, little, {0: np.ones((2, 1), exact)}, theta), little, mesh
    )
    starts = over.starts

    def read() -> tuple[Pieces, Split, bool]:
        held = pieces(A, exact)
        split = _split(held, starts, mesh)
        return held, split, _is_hermitian(split, starts, mesh)

    held, split, hermitian = beside(read, compiling)[0]
    near = _near_null(A, B, exact)
    unit = {k: np.abs(S.diagonal()) for k, S in split.own.items()}
    levels: list[Level] = []
    lowest, wide = 0.0, jnp.promote_types(dtype, jnp.float32)
    narrow = jnp.finfo(wide).dtype
    given = A if A.dtype == dtype else None

    request = Request(mesh, "overlap", "auto", {}, Target(np.dtype(dtype), A.backend, None))

    def placed(matrix: Pieces, rows: np.ndarray, columns: np.ndarray) -> Any:
        everyones(lambda: _check_range(matrix, dtype), mesh)
        return dataclasses.replace(assemble(matrix.__getitem__, rows, columns, axis, request), is_entered=True)

    def crossing(matrix: Pieces, n_rows: int, down: bool, over: Any) -> Crossing:
        everyones(lambda: _check_range(matrix, dtype), mesh)
        return Crossing(over.spread(in_one_format(matrix, n_rows, request)[0]), over, down)

    def smoother(
        held: Pieces, starts: np.ndarray, inverse: dict[int, np.ndarray], bound: float
    ) -> tuple[Any, Array, float]:
        """The stored matrix, the inverse diagonal, and the upper end of the spectrum."""
        stored = placed(held, starts, starts) if levels or given is None else given.in_basis
        d, upper = _spread(inverse, stored.range.over), bound or 1.0
        if hermitian:
            upper = min(upper, float(_largest_eigenvalue(stored.astype(wide), d.astype(narrow))))
        return stored, d, upper

    last: Any = None
    while not levels or (starts[-1] > WHOLE and len(levels) < _hierarchy.MAX_LEVELS - 1):
        split = _split(held, starts, mesh) if levels else split
        inverse, bound, least = _diagonals(split, unit, hermitian, mesh)
        lowest = min(lowest, least)
        aggregated = functools.partial(of_each, functools.partial(_aggregated, split.own, near, theta), held, mesh)
        (stored, d, upper), parts = beside(functools.partial(smoother, held, starts, inverse, bound), aggregated)
        scale = {k: _hierarchy.DAMPING / upper * v for k, v in inverse.items()}
        told = everyones(lambda of=parts: {k: (len(a.below), a.theta) for k, a in of.items()}, mesh).values()
        counts, theta = np.cumsum([0, *(rows for rows, _ in told)]), min(theta for _, theta in told)
        if counts[-1] >= starts[-1] or counts[-1] == 0:
            break
        lumped = not levels and _is_constant(near, mesh)
        P = other = _prolongation(split, parts, scale, lumped, starts, counts, mesh)
        if not hermitian:
            H, turned_scale = _adjoint(split, starts, starts, mesh), {k: v.conj() for k, v in scale.items()}
            of = of_each(lambda k, H=H, of=parts: _strong(H.own[k], of[k]), held, mesh)
            other = _prolongation(H, of, turned_scale, lumped, starts, counts, mesh)
        R = _adjoint(other, starts, counts, mesh)
        up = _joined(P, counts, mesh)
        coarse = functools.partial(_galerkin, R, split, held, P, up, starts, counts, mesh)
        ways: Any = None, None
        if counts[-1] > WHOLE:
            down = functools.partial(placed, _joined(R, starts, mesh), counts, starts)
            held, *ways = beside(coarse, down, functools.partial(placed, up, starts, counts))
        else:
            held = coarse()
        last = up if hermitian else _joined(other, counts, mesh), up, stored.range.over
        recurrence = _hierarchy.recurrence(degree, upper)
        d = d.astype(wide if d.dtype.kind == "c" else narrow)
        levels.append(Level(stored, ways[0], ways[1], d, jnp.asarray(recurrence, narrow)))
        unit = _squared_times(R, unit, starts, mesh)
        near, starts, theta = {k: of.below for k, of in parts.items()}, counts, _hierarchy.WEAKER * theta
    if not levels:
        raise ValueError(
            f"no shard found strong couplings among its own rows, of {starts[-1]} in all; take "
            "precond.jacobi, fewer devices, or fewer columns of B"
        )
    if starts[-1] > WHOLE:
        _hierarchy.check_coarsest(int(starts[-1]), len(levels) + 1)
    other, P, over = last
    columns = {k: _renumbered(S.conj().T.tocsr(), np.arange(S.shape[0]), over.size) for k, S in other.items()}
    down, up = crossing(columns, int(starts[-1]), True, over), crossing(P, over.size, False, over)
    levels[-1] = dataclasses.replace(levels[-1], R=down, P=up)
    whole = lambda of: stacked(*everyones(lambda: of, mesh).values())  # noqa: E731
    start = _hierarchy.Start(levels, whole(unit), hermitian and lowest >= 0, hermitian)
    return start, whole(held), whole(near), theta


def crossings(A: Any, W: Any, dtype: Any) -> tuple[Crossing, Crossing]:
    """W [n, m] and Wᴴ, each device with the rows of W that it has of A.

    Args:
      A: ShardedMatrix.
      W: a dense array, which may be traced, or a matrix of scipy.sparse.
    """
    over, mesh = A.range.over, A.range.over.mesh
    if not scipy.sparse.issparse(W):
        own = A.range.enter(W).astype(dtype).reshape(len(over.counts), over.size, W.shape[1])
        return Crossing(own, over, False), Crossing(jnp.conj(jnp.swapaxes(own, 1, 2)), over, True)
    unknowns = over.on_host(type(A.range).unknowns(A.range))
    rows = {k: scipy.sparse.csr_array(W)[unknowns[k][: over.counts[k]]] for k in over.mine}
    request = Request(mesh, "overlap", "auto", {}, Target(np.dtype(dtype), A.backend, None))
    turned_rows = {k: _renumbered(S.conj().T.tocsr(), np.arange(S.shape[0]), over.size) for k, S in rows.items()}
    up, down = (in_one_format(of, height, request)[0] for of, height in ((rows, over.size), (turned_rows, W.shape[1])))
    return Crossing(over.spread(up), over, False), Crossing(over.spread(down), over, True)


def below(make: Callable[[], tuple[Any, bool]], start: _hierarchy.Start, order: Any) -> tuple[Any, bool]:
    """The `Multigrid` of make() with the levels below `start` on every device, and what make() tells beside it.

    What make() raises in one process, all raise.
    """
    mesh = order.over.mesh
    M, definite = of_each(lambda _: make(), (0,), mesh)[0]
    above, whole = M.levels[: len(start.levels)], M.levels[len(start.levels) :]
    # Other processors may round to other levels, of which all processes have to make one program.
    agree(
        lambda: {"the whole levels": (definite, str(jax.tree.structure(whole)), str(jax.typeof(M.coarse_inverse)))},
        mesh,
    )
    whole, inverse = order.over.everywhere((whole, M.coarse_inverse))
    levels = (*above, *whole)
    return dataclasses.replace(M, levels=levels, coarse_inverse=inverse, order=order, whole=len(whole)), definite


@jax.jit
def _largest_eigenvalue(A: Any, inverse_diagonal: Array) -> Array:
    """Of D⁻¹A, from above as a rule; infinite where the inverse diagonal is not positive."""

    def largest(A: Any, d: Array) -> Array:
        least, most = spectrum(lambda z: A @ z, lambda w: d * w, d.astype(A.dtype), _hierarchy.LANCZOS_STEPS)
        return jnp.where((most > 0) & jnp.isfinite(least), most, jnp.inf)

    return mesh_axes.by_xla(largest, (A, inverse_diagonal), PartitionSpec())


def _split(held: Pieces, starts: np.ndarray, mesh: Any) -> Split:
    def split(k: int) -> tuple[Any, Any]:
        S, start, stop = held[k], int(starts[k]), int(starts[k + 1])
        inside = (S.indices >= start) & (S.indices < stop)
        ptr = np.concatenate([[0], np.cumsum(inside)])[S.indptr]
        own = _canonical((S.data[inside], S.indices[inside] - start, ptr), (S.shape[0], stop - start))
        return own, _canonical((S.data[~inside], S.indices[~inside], S.indptr - ptr), S.shape)

    found = of_each(split, held, mesh)
    return Split(*({k: of[i] for k, of in found.items()} for i in (0, 1)))


def _joined(A: Split, columns: np.ndarray, mesh: Any) -> Pieces:
    def joined(k: int) -> Any:
        return _renumbered(A.own[k], np.arange(columns[k], columns[k + 1]), columns[-1]) + A.apart[k]

    return of_each(joined, A.own, mesh)


def _adjoint(A: Split, rows: np.ndarray, columns: np.ndarray, mesh: Any) -> Split:
    """The rows of Aᴴ of each shard."""
    apart = {k: S.conj() for k, S in turned(A.apart, rows, columns, mesh).items()}
    return Split(of_each(lambda k: A.own[k].conj().T.tocsr(), A.own, mesh), apart)


def _is_hermitian(A: Split, starts: np.ndarray, mesh: Any) -> bool:
    """Whether A = Aᴴ, as in `_hierarchy`; refuses, in all processes, a matrix that multigrid cannot treat."""

    def look() -> dict[int, float]:
        for k, S in A.own.items():
            checks.entries(S.data, S.diagonal(), int(starts[k]), " of its own order")
            checks.finite(A.apart[k].data, "A")
        return {k: max(_hierarchy.largest(of[k].data) for of in A) for k in A.own}

    largest = max(everyones(look, mesh).values())
    other = _adjoint(A, starts, starts, mesh)
    differ = lambda k: max(_hierarchy.largest((a[k] - b[k]).data) for a, b in zip(A, other, strict=True))  # noqa: E731
    apart = of_each(differ, A.own, mesh)
    return max(everyones(lambda: apart, mesh).values()) <= 1e-12 * largest


def _diagonals(
    A: Split, unit: dict[int, np.ndarray], hermitian: bool, mesh: Any
) -> tuple[dict[int, np.ndarray], float, float]:
    """1 / A's diagonal, ‖D⁻¹A‖∞, and the least number of the inverse diagonal, at most 0."""

    def look(k: int) -> tuple[np.ndarray, float]:
        inverse = _hierarchy.inverse_diagonal(A.own[k], unit[k], hermitian)
        return inverse, _hierarchy.largest(inverse * sum(abs(of[k]).sum(axis=1) for of in A))

    found = of_each(look, A.own, mesh)
    ends = {k: (bound, float(np.min(np.real(v), initial=0))) for k, (v, bound) in found.items()}
    bound, least = zip(*everyones(lambda: ends, mesh).values(), strict=True)
    return {k: v for k, (v, _) in found.items()}, max(bound), min(least)


def _check_range(matrix: Pieces, dtype: Any) -> dict[int, Any]:
    checks.fits(max(_hierarchy.largest(S.data) for S in matrix.values()), dtype, "a level")
    return {}


def _near_null(A: Any, B: Any, wide: np.dtype) -> dict[int, np.ndarray]:
    """The rows of the near-null space of this process's shards."""
    over = A.range.over
    if B is None:
        return {k: np.ones((over.counts[k], 1), wide) for k in over.mine}
    B = checks.near_null(jnp.asarray(B), A.shape[0], wide)
    entered = A.domain.enter(A.domain.accept(B))
    entered = jax.device_put(entered, NamedSharding(over.mesh, PartitionSpec(over.axis)))  # all columns in each piece
    near = {k: np.ascontiguousarray(of[: over.counts[k]], wide) for k, of in over.on_host(entered).items()}

    def finite() -> dict[int, bool]:
        for v in near.values():
            checks.finite(v, "B")
        return {}

    everyones(finite, over.mesh)
    return near


def _is_constant(near: dict[int, np.ndarray], mesh: Any) -> bool:
    numbers = everyones(lambda: {k: (v.shape[1], np.unique(v)[:2]) for k, v in near.items()}, mesh).values()
    columns, found = zip(*numbers, strict=True)
    return max(columns) == 1 and np.unique(np.concatenate(found)).size == 1


def _aggregated(own: Pieces, near: dict[int, np.ndarray], theta: float, k: int) -> Aggregates:
    if not own[k].shape[0]:  # an idle device
        return Aggregates(np.zeros(0, bool), scipy.sparse.csr_array((0, 0)), near[k], theta)
    strong, agg, count, theta = _hierarchy.aggregated(aggregation.points(own[k], 1), theta)
    Q, below = aggregation.tentative(agg, count, near[k])
    return Aggregates(strong, aggregation.placed(agg, count, Q), below, theta)


def _strong(own: Any, of: Aggregates) -> Aggregates:
    """The same aggregates, with the strong couplings of another block."""
    return of._replace(strong=aggregation.strength(aggregation.points(own, 1), of.theta)) if own.shape[0] else of


def _prolongation(
    A: Split,
    parts: dict[int, Aggregates],
    scale: dict[int, np.ndarray],
    lumped: bool,
    starts: np.ndarray,
    counts: np.ndarray,
    mesh: Any,
) -> Split:
    """T − diag(scale)·A'·T, where A' has its weak couplings inside shards on the diagonal if `lumped`."""

    def smoothed(k: int) -> Any:
        if not len(parts[k].below):
            return scipy.sparse.csr_array((A.own[k].shape[0], 0))
        own, kept = aggregation.points(A.own[k], 1), parts[k].strong | (not lumped)
        return aggregation.prolongation(own, kept, parts[k].T, scale[k]).tocsr()

    def wide(k: int) -> Any:
        return _renumbered(parts[k].T.tocsr(), np.arange(counts[k], counts[k] + parts[k].T.shape[1]), counts[-1])

    step = _times(A.apart, of_each(wide, parts, mesh), starts, mesh)
    apart = {k: scipy.sparse.csr_array(scipy.sparse.diags_array(-scale[k]) @ S) for k, S in step.items()}
    return Split(of_each(smoothed, parts, mesh), apart)


def _galerkin(
    R: Split, A: Split, held: Pieces, P: Split, up: Pieces, starts: np.ndarray, counts: np.ndarray, mesh: Any
) -> Pieces:
    """R·A·P, where `held` is A, and `up` is P, joined."""
    near, far = _times(A.apart, up, starts, mesh), _times(_times(R.apart, held, starts, mesh), up, starts, mesh)

    def coarse(k: int) -> Any:
        if not P.own[k].shape[1]:
            return far[k]
        few = _few(R.own[k], near[k] + _few(A.own[k], P.apart[k])) + far[k]
        left, middle, right = (aggregation.points(of.own[k], 1) for of in (R, A, P))
        product: Any = aggregation.galerkin(left, middle, right, np.inf)
        return _renumbered(product.tocsr(), np.arange(counts[k], counts[k + 1]), counts[-1]) + few

    return of_each(coarse, A.own, mesh)


def _squared_times(R: Split, v: dict[int, np.ndarray], starts: np.ndarray, mesh: Any) -> dict[int, np.ndarray]:
    """|R|²·v, the squares taken by entry."""
    met = meeting(R.apart, v, starts, mesh)
    return {k: abs(S).power(2) @ v[k] + abs(met[k][0]).power(2) @ met[k][1] for k, S in R.own.items()}


def _times(A: Pieces, B: Pieces, starts: np.ndarray, mesh: Any) -> Pieces:
    """A·B for an A of few entries, by the rows of A."""
    met = meeting(A, B, starts, mesh)
    return of_each(lambda k: _few(*met[k]), met, mesh)


def _few(A: Any, B: Any) -> Any:
    """A·B, with scratch of the size of B's entries, of which there are few."""
    columns, at = numbered(B.indices)
    product = A @ scipy.sparse.csr_array((B.data, at.astype(np.int32), B.indptr), (B.shape[0], columns.size))
    product.sort_indices()
    return _renumbered(product, columns, B.shape[1])


def _canonical(arrays: tuple[np.ndarray, ...], shape: tuple[int, int]) -> Any:
    S = scipy.sparse.csr_array(arrays, shape=shape)
    S.has_canonical_format = True
    return S


def _renumbered(S: Any, columns: np.ndarray, width: int) -> Any:
    """S with the numbers of its columns, rising, among `width`."""
    return _canonical((S.data, columns[S.indices].astype(np.int32), S.indptr), (S.shape[0], int(width)))


def _spread(parts: dict[int, np.ndarray], over: Any) -> Array:
    """[places], zero in empty ones."""
    return over.spread({k: np.pad(of, (0, over.size - len(of))) for k, of in parts.items()}).reshape(-1)
