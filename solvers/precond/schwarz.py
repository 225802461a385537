"""Additive Schwarz: each device of a sharded matrix applies a preconditioner of its own block (Saad, Iterative Methods,
§14.3; Cai and Sarkis 1999, A restricted additive Schwarz preconditioner for general sparse linear systems).

    A   ▓ ▓ . . .      overlap 0: a device's own rows and columns
        ▓ ▓ ░ . .
    ────────────────   overlap 1: its halo too, the unknowns of others that its rows read; of the result a device
        . ░ ▓ ▓ ░      keeps its own part. The halo travels once more a step; M is not symmetric.
        . . ▓ ▓ ▓

With overlap 0 nothing travels. The steps grow with the number of devices, unless a `coarse_space` is added.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import Array
from jax.sharding import PartitionSpec

from jaxsparse_fmt._arguments import as_vector
from jaxsparse_fmt._pytrees import brief, pytree
from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.convert import from_scipy
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from jaxsparse_fmt.core.triangular import Triangle
from jaxsparse_fmt.distributed import entries
from jaxsparse_fmt.distributed.common_format import Request, in_one_format
from jaxsparse_fmt.distributed.delivery import fetched
from jaxsparse_fmt.distributed.halo import Exchange, exchange
from jaxsparse_fmt.distributed.processes import everyones, of_each
from solvers import factors
from solvers.core import arguments
from solvers.precond import _checks as checks
from solvers.precond.ilu import ilu


@brief
@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Schwarz(checks.Refreshed):
    """The preconditioners of all blocks as one operator: `M @ r` for r of [n] or [n, k].

    Attributes:
      own: arrays [devices, ...] of the preconditioners of the blocks.
      halo: the exchange of the overlap; without one it exchanges nothing.
      order: of the vectors, those of the sharded matrix.
      over: the pieces of the vectors.
      recipe: the maker and its options.
    """

    own: Any
    halo: Exchange
    order: Basis
    over: Any = dataclasses.field(metadata={"static": True})
    recipe: tuple[Any, ...] = dataclasses.field(metadata={"static": True})
    is_transposed: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        n = getattr(self.order, "n", self.over.size if self.over.is_manual else self.over.places)
        return n, n

    @property
    def dtype(self) -> np.dtype:
        return self.own.dtype

    @property
    def T(self) -> Self:
        return dataclasses.replace(self, is_transposed=not self.is_transposed)

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        r = as_vector(r, self, 1, f"M @ r with M of shape {self.shape} takes r")
        return self.order.leave(self.over.each(self._piece, (self.own, self.halo), self.order.enter(r)))

    def _piece(self, given: tuple[Any, Exchange], r: Array) -> Array:
        own, halo = given

        def apply(r: Array) -> Array:
            return (own @ jnp.concatenate([r, exchange(r, halo)]))[: r.shape[0]].astype(r.dtype)

        r = r.astype(jnp.result_type(self.dtype, r.dtype))
        return jax.linear_transpose(apply, r)(r)[0] if self.is_transposed else apply(r)

    def _entered(self, basis: Basis) -> Any:
        return dataclasses.replace(self, order=IDENTITY) if basis.same(self.order) else None

    def _partition(self, axis: Any) -> PartitionSpec | None:
        return PartitionSpec(axis) if self.order.is_identity and self.over.axis == axis else None

    def _anew(self, A: Any) -> "Schwarz":
        maker, *options = self.recipe
        return maker(A, *options)


@arguments.door
def schwarz(A: Any, local: Callable[[Any], Any] = ilu, overlap: int = 0) -> Schwarz:
    """The additive Schwarz preconditioner of a sharded matrix; with overlap 0 the block Jacobi method of whole shards.

    Args:
      A: [n, n], sharded, not traced. Its cut matters: `by=js.boxes(shape, devices)` of a grid.
      local: makes the preconditioner of a block, a matrix on one device: `precond.ilu`, `precond.incomplete_cholesky`,
        `precond.incomplete_lu`, `precond.jacobi`, `precond.multigrid`, `factorized`, or one of them with options, by
        `functools.partial`. The result is symmetric if it is and overlap is 0.
      overlap: 0, or 1 for the restricted form with the unknowns of other devices that a device's rows read; for
        `gmres`, `bicgstab` and `idrs`.

    Raises:
      ValueError: A is not sharded, or not square; another overlap; what `local` makes cannot have one shape for all
        devices; and as `local`. TypeError: A is traced, or local is not a function.

    Examples:
      >>> D = js.shard(S, mesh)
      >>> js.cg(D, b, M=js.precond.schwarz(D, js.precond.jacobi)).success
      True
    """
    checks.square(A, "schwarz")
    if not checks.is_sharded(A):
        raise ValueError(f"schwarz takes a sharded matrix; of a {type(A).__name__} pass what `local` makes of it as M")
    A._check_users_order("Schwarz preconditioner")
    checks.untraced(A, "schwarz")
    if not callable(local):
        raise TypeError(f"local must make a preconditioner of a matrix, as precond.ilu does; got {local!r}")
    overlap = arguments.int_at_least(overlap, "overlap", 0)
    if overlap > 1:
        raise ValueError(f"overlap must be 0 or 1; got {overlap}")
    A._agree(overlap=overlap, local=getattr(local, "__name__", type(local).__name__))
    over, mesh, halo = A.range.over, A.range.over.mesh, A.shards.halo if overlap else Exchange()
    blocks = _blocks(A, halo)
    made = of_each(lambda k: _without_matrix(local(from_scipy(blocks[k], dtype=A.dtype))), blocks, mesh)
    request = Request(mesh, "overlap", "auto", {}, Target(np.dtype(A.dtype), A.backend, None))
    return Schwarz(over.spread(_alike(made, request)), halo, A.domain, over, (schwarz, local, overlap))


def _blocks(A: Any, halo: Exchange) -> dict[int, Csr]:
    """The block of each device of this process, with rows and columns in the order of [piece | halo buffer], and the
    identity in places without an unknown.
    """
    over = A.range.over
    size, starts, mesh = over.size, over.starts, over.mesh
    held = entries.pieces(A, np.complex128 if A.dtype.kind == "c" else np.float64)
    names = over.on_host(_names(A, halo))  # of what lies in the buffer; unused places repeat a name

    def slots(k: int) -> tuple[np.ndarray, np.ndarray]:
        number = np.arange(starts[k], starts[k + 1])
        known, first = np.unique(names[k][0], return_index=True)
        needed = np.isin(known, held[k].indices) & ~np.isin(known, number)
        return known[needed], first[needed]

    halos = of_each(slots, held, mesh)
    beyond = fetched({k: known for k, (known, _) in halos.items()}, held, starts, mesh) if halo.width else None

    def block(k: int) -> Csr:
        (known, slot), own = halos[k], held[k]
        rows = own if beyond is None else scipy.sparse.vstack([own, beyond[k]], format="csr")
        unknown = np.concatenate([np.arange(starts[k], starts[k + 1]), known])
        place = np.concatenate([np.arange(own.shape[0]), size + slot])
        order = np.argsort(unknown)
        rows = rows.tocoo()
        found = np.searchsorted(unknown, rows.col, sorter=order).clip(max=max(len(unknown) - 1, 0))
        here = unknown[order[found]] == rows.col if len(unknown) else np.zeros(0, bool)
        row, col, data = place[rows.row[here]], place[order[found[here]]], rows.data[here]
        empty = np.setdiff1d(np.arange(size + halo.width), place)
        data, row, col = (np.concatenate(a) for a in ((data, np.ones(empty.size)), (row, empty), (col, empty)))
        return scipy.sparse.csr_array((data, (row, col)), shape=2 * (size + halo.width,))

    return of_each(block, held, mesh)


@jax.jit
def _names(A: Any, halo: Exchange) -> Array:
    """[devices, width] the unknowns in each halo buffer, by their numbers in the inner order without empty places."""
    numbers = entries.numbers(A.range.over)
    return A.range.over.each(lambda halo, numbers: exchange(numbers, halo)[None], halo, numbers)


# ------------------------------------------------------------------------------------------------ one shape for all


def _without_matrix(M: Any) -> Any:
    return dataclasses.replace(M, A=None) if isinstance(M, factors.Inverse) else M


def _alike(made: dict[int, Any], request: Request) -> dict[int, Any]:
    """The preconditioners of this process's blocks, of one tree structure and equal shapes, in NumPy.

    Matrices in them get one format and one shape for all devices, with empty rows and columns. Other arrays are as
    long as the longest; a `Triangle` reads nothing of what is added.

    Raises:
      ValueError: their structures differ.
    """
    is_part = lambda a: isinstance(a, Triangle) or hasattr(a, "to_scipy")  # noqa: E731
    parts = {k: jax.tree.flatten(M, is_leaf=is_part) for k, M in made.items()}
    sizes = lambda a: a.shape if hasattr(a, "to_scipy") else (getattr(a, "width", 0), 0)  # noqa: E731
    told = _told({k: (str(tree), [sizes(a) for a in of]) for k, (of, tree) in parts.items()}, request)
    columns = []
    for i, (most, across) in enumerate(np.max(told, axis=0).tolist()):
        column = {k: of[i] for k, (of, _) in parts.items()}
        if all(hasattr(a, "to_scipy") for a in column.values()):
            held = {k: scipy.sparse.csr_array(a.to_scipy()) for k, a in column.items()}
            for S in held.values():
                S.resize(most, across)
            column = in_one_format(held, most, request)[0]
        elif most:
            column = {k: dataclasses.replace(T, width=most) for k, T in column.items()}
        columns.append(column)
    made = {k: jax.tree.unflatten(tree, [of[k] for of in columns]) for k, (_, tree) in parts.items()}
    leaves = {k: jax.tree.flatten(M) for k, M in made.items()}
    shapes = _told({k: (str(tree), [np.shape(a) for a in of]) for k, (of, tree) in leaves.items()}, request)
    longest = [tuple(np.max(of, axis=0).astype(int)) for of in zip(*shapes, strict=True)]
    filled = {
        k: [_padded(np.asarray(a), to) for a, to in zip(of, longest, strict=True)] for k, (of, _) in leaves.items()
    }
    return {k: jax.tree.unflatten(tree, filled[k]) for k, (_, tree) in leaves.items()}


def _told(of_each_block: dict[int, tuple[str, list[Any]]], request: Request) -> list[list[Any]]:
    """The lists of all blocks. ValueError: the words before them differ."""
    words, lists = zip(*everyones(lambda: of_each_block, request.mesh).values(), strict=True)
    if len({*words}) > 1:
        raise ValueError(
            "`local` made preconditioners of several structures, and all devices run one program; fix what it chooses "
            "by the matrix, as in functools.partial(precond.incomplete_cholesky, solve_sweeps=3), or cut into equal "
            "blocks, as multigrid needs, whose levels must be as many"
        )
    return [*lists]


def _padded(a: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if a.shape == shape:
        return a
    behind = [(0, most - length) for most, length in zip(shape, a.shape, strict=True)]
    return np.pad(a, behind, mode="edge" if a.dtype.kind == "i" and a.size else "constant")
