"""The set-up of multigrid for a matrix over several devices: every shard coarsens its own rows.

    shard 0  ■■■■■■■■ → ■■■ ╮                 aggregates lie inside a shard, so T is block diagonal;
    shard 1  ■■■■■■■■ → ■■■ ┴ ■■■■ → ■ → A⁺   P = T − ω/λ·D⁻¹·A'·T and R·A·P fetch rows that the halo names

A process works on the rows of its own shards, as `_hierarchy` does on all rows, and fetches rows of others. A coarse
level of `WHOLE` rows or fewer is whole on every device, set up by `_hierarchy` and multiplied without exchanges: a sum
over the devices leads there, and the way back needs none. All other arrays of a device have its share of the rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxsparse_fmt._types import Target, check_keeps_imaginary, pytree
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.distributed.build import assemble
from jaxsparse_fmt.distributed.common_format import Request, in_one_format
from jaxsparse_fmt.distributed.delivery import Pieces, meeting, stacked, turned
from jaxsparse_fmt.distributed.entries import pieces
from jaxsparse_fmt.distributed.processes import agree, everyones, of_each
from jaxsparse_fmt.kernels.cpu import aggregation
from solvers.core.spectrum import spectrum
from solvers.precond import _checks as checks
from solvers.precond import _hierarchy
from solvers.precond._cycles import Level

# Rows up to which every device has a level whole. The product with their two or three million entries takes as long as
# the latency of one exchange, of which such a level would make six a cycle.
WHOLE = 50_000


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Crossing:
    """R or P between the last level in pieces and vectors that are whole on every device.

    Attributes:
      own: arrays [parts, ...] of a matrix, or of its transpose: the columns of R, or the rows of P, of each piece.
      over: the pieces.
      down: R, whose products are summed over the devices.
    """

    own: Any
    over: Any = dataclasses.field(metadata={"static": True})
    down: bool = dataclasses.field(metadata={"static": True})

    @property
    def T(self) -> "Crossing":
        return Crossing(self.own.T, self.over, not self.down)

    def __matmul__(self, v: Array) -> Array:
        over, piece, whole = self.over, PartitionSpec(self.over.axis), PartitionSpec(None)

        def product(own: Any, v: Array) -> Array:
            y = jax.tree.map(lambda a: a[0], own) @ v
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
    A.range.agree(B=B, theta=theta, degree=degree, dtype=dtype, max_coarse=max_coarse)
    over = A.range.over
    mesh, axis = over.mesh, over.axis
    exact = np.dtype(np.complex128 if A.dtype.kind == "c" else np.float64)
    held, starts = pieces(A, exact), over.starts
    hermitian = _is_hermitian(held, starts, mesh)
    near = _near_null(A, B, exact)
    unit = {k: _column(np.abs(S.diagonal(int(starts[k])))) for k, S in held.items()}
    levels: list[Level] = []
    lowest, wide = 0.0, jnp.promote_types(dtype, jnp.float32)
    narrow = jnp.finfo(wide).dtype
    given = A if A.dtype == dtype else None

    request = Request(mesh, "overlap", "auto", {}, Target(np.dtype(dtype), A.backend, None))

    def placed(matrix: Pieces, rows: np.ndarray, columns: np.ndarray) -> Any:
        everyones(lambda: _check_range(matrix, dtype), mesh)
        return dataclasses.replace(assemble(matrix.__getitem__, rows, columns, axis, request), entered=True)

    def crossing(matrix: Pieces, n_rows: int, down: bool, over: Any) -> Crossing:
        everyones(lambda: _check_range(matrix, dtype), mesh)
        return Crossing(over.spread(in_one_format(matrix, n_rows, request)[0]), over, down)

    last: Any = None
    while not levels or (starts[-1] > WHOLE and len(levels) < _hierarchy.MAX_LEVELS - 1):
        stored = placed(held, starts, starts) if levels or given is None else given.in_basis
        inverse, bound, least = _diagonals(held, unit, starts, hermitian, mesh)
        lowest, upper = min(lowest, least), bound or 1.0
        d = _spread(inverse, stored.range.over)
        if hermitian:
            upper = min(upper, float(_largest_eigenvalue(stored.astype(wide), d.astype(narrow))))
        scale = {k: _hierarchy.DAMPING / upper * v for k, v in inverse.items()}
        made = of_each(lambda k, given=(held, near, starts, theta): _tentative(k, *given), held, mesh)
        T, below, thetas = ({k: found[i] for k, found in made.items()} for i in (0, 1, 2))
        theta = min(everyones(lambda of=thetas: of, mesh).values())
        counts = _cuts(T, mesh)
        if counts[-1] >= starts[-1] or counts[-1] == 0:
            break
        T = {k: _renumbered(S, np.arange(counts[k], counts[k + 1]), counts[-1]) for k, S in T.items()}
        weak = theta if not levels and _is_constant(near, mesh) else None
        P = _smoothed(held, T, scale, weak, starts, mesh)
        other = P
        if not hermitian:
            turned_scale = {k: v.conj() for k, v in scale.items()}
            other = _smoothed(_adjoint(held, starts, starts, mesh), T, turned_scale, weak, starts, mesh)
        R = _adjoint(other, starts, counts, mesh)
        ways = None, None
        if counts[-1] > WHOLE:
            ways = placed(R, counts, starts), placed(P, starts, counts)
        last = other, P, stored.range.over
        recurrence = _hierarchy.recurrence(degree) / (1, upper)
        d = d.astype(wide if d.dtype.kind == "c" else narrow)
        levels.append(Level(stored, *ways, d, jnp.asarray(recurrence, narrow)))
        held = _times(R, _times(held, P, starts, mesh), starts, mesh)
        unit = _times({k: abs(v).power(2) for k, v in R.items()}, unit, starts, mesh)
        near, starts, theta = below, counts, _hierarchy.WEAKER * theta
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
    start = _hierarchy.Start(levels, whole(unit).toarray()[:, 0], hermitian and lowest >= 0, hermitian)
    return start, whole(held), whole(near), theta


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


def _is_hermitian(held: Pieces, starts: np.ndarray, mesh: Any) -> bool:
    """Whether A = Aᴴ, as in `_hierarchy`; refuses, in all processes, a matrix that multigrid cannot treat."""

    def look() -> dict[int, float]:
        for k, S in held.items():
            checks.entries(S.data, S.diagonal(int(starts[k])), int(starts[k]), " of its own order")
        return {k: _hierarchy.largest(S.data) for k, S in held.items()}

    largest = max(everyones(look, mesh).values())
    other = _adjoint(held, starts, starts, mesh)
    apart = everyones(lambda: {k: _hierarchy.largest(abs(S - other[k]).data) for k, S in held.items()}, mesh)
    return max(apart.values()) <= 1e-12 * largest


def _adjoint(A: Pieces, rows: np.ndarray, columns: np.ndarray, mesh: Any) -> Pieces:
    """The rows of Aᴴ of each shard."""
    return {k: S.conj() for k, S in turned(A, rows, columns, mesh).items()}


def _diagonals(
    held: Pieces, unit: Pieces, starts: np.ndarray, hermitian: bool, mesh: Any
) -> tuple[dict[int, np.ndarray], float, float]:
    """1 / A's diagonal, ‖D⁻¹A‖∞, and the least number of the inverse diagonal, at most 0."""
    inverse: dict[int, np.ndarray] = {}
    bounds: dict[int, float] = {}

    def ends() -> dict[int, tuple[float, float]]:
        for k, S in held.items():
            own = S[:, starts[k] : starts[k + 1]]
            inverse[k] = _hierarchy.inverse_diagonal(own, unit[k].toarray()[:, 0], hermitian)
            bounds[k] = _hierarchy.largest(inverse[k] * aggregation.sums(S))
        return {k: (bounds[k], float(np.min(np.real(v), initial=0))) for k, v in inverse.items()}

    bound, least = zip(*everyones(ends, mesh).values(), strict=True)
    return inverse, max(bound), min(least)


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


def _tentative(
    k: int, held: Pieces, near: dict[int, np.ndarray], starts: np.ndarray, theta: float
) -> tuple[Any, np.ndarray, float]:
    """T of shard k, in columns of its own, the near-null space of the next level, and the theta that it took."""
    if not held[k].shape[0]:  # an idle device
        return scipy.sparse.csr_array((0, 0)), near[k], theta
    own = _canonical(held[k][:, starts[k] : starts[k + 1]])
    graph = aggregation.points(own, 1)
    _, agg, count, theta = _hierarchy.aggregated(graph, theta)
    Q, below = aggregation.tentative(agg, count, near[k])
    return aggregation.placed(agg, count, Q).tocsr()[:, : below.shape[0]], below, theta


def _cuts(T: Pieces, mesh: Any) -> np.ndarray:
    counts = [*everyones(lambda: {k: S.shape[1] for k, S in T.items()}, mesh).values()]
    return np.concatenate([[0], np.cumsum(counts)])


def _smoothed(A: Pieces, T: Pieces, scale: dict[int, np.ndarray], weak: float | None, starts: Any, mesh: Any) -> Pieces:
    """T − diag(scale)·A'·T, where A' has lumped what is weaker than `weak`; None: A itself."""
    A = A if weak is None else _lumped(A, starts, weak, mesh)
    smooth = _times(A, T, starts, mesh)
    return of_each(lambda k: _canonical(T[k] - scipy.sparse.diags_array(scale[k]) @ smooth[k]), T, mesh)


def _lumped(held: Pieces, starts: np.ndarray, theta: float, mesh: Any) -> Pieces:
    """A with its weak couplings on the diagonal, as `aggregation.lumped`; those to other shards too."""
    met = meeting(held, {k: _column(S.diagonal(int(starts[k]))) for k, S in held.items()}, starts, mesh)

    def lumped(k: int) -> Any:
        left, right, numbers, _ = met[k]
        first = int(np.searchsorted(numbers, starts[k]))
        stop, d = first + left.shape[0], right.sum(axis=1)
        # The square matrix of all rows that are known here, of which those of other shards have a diagonal only.
        others = scipy.sparse.csr_array(scipy.sparse.diags_array(d))
        square = _canonical(scipy.sparse.vstack([others[:first], left, others[stop:]], format="csr"))
        graph = aggregation.points(square, 1)
        col = aggregation.lumped(graph, aggregation.strength(graph, theta))
        own = scipy.sparse.csr_array((square.data, col, square.indptr), shape=square.shape)[first:stop]
        return _canonical(_renumbered(own, numbers, held[k].shape[1]))

    return of_each(lumped, met, mesh)


def _times(A: Pieces, B: Pieces, starts: np.ndarray, mesh: Any) -> Pieces:
    """A·B by the rows of A."""
    met = meeting(A, B, starts, mesh)

    def product(k: int) -> Any:
        left, right, _, columns = met[k]
        return _renumbered(_canonical(left @ right), columns, B[k].shape[1])

    return of_each(product, met, mesh)


def _column(v: np.ndarray) -> Any:
    return scipy.sparse.csr_array((v, np.zeros(v.size, np.int32), np.arange(v.size + 1)), shape=(v.size, 1))


def _canonical(A: Any) -> Any:
    A = scipy.sparse.csr_array(A)
    A.sum_duplicates()
    return A


def _renumbered(S: Any, columns: np.ndarray, width: int) -> Any:
    """S with the numbers of its columns, rising, among `width`."""
    col = columns[S.indices].astype(np.int32)
    return scipy.sparse.csr_array((S.data, col, S.indptr), shape=(S.shape[0], int(width)))


def _spread(parts: dict[int, np.ndarray], over: Any) -> Array:
    """[places], zero in empty ones."""
    return over.spread({k: np.pad(of, (0, over.size - len(of))) for k, of in parts.items()}).reshape(-1)
