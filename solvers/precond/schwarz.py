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
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.core.triangular import Triangle
from jaxsparse_fmt.distributed import entries
from jaxsparse_fmt.distributed.basis import ShardedBasis
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
class Schwarz(checks.Refreshed):
    """The preconditioners of all blocks as one operator: `M @ r` for r of [n] or [n, k].

    Attributes:
      local: arrays [devices, ...] of the preconditioners of the blocks.
      halo: the exchange of the overlap; without one it exchanges nothing.
      order: of the vectors, those of the sharded matrix.
      over: the pieces of the vectors.
      recipe: the maker and its options.
    """

    local: Any
    halo: Exchange
    order: Basis
    over: Any = dataclasses.field(metadata={"static": True})
    recipe: tuple[Any, ...] = dataclasses.field(metadata={"static": True})
    is_transposed: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        inside = self.over.size if self.over.is_manual else self.over.places
        n = self.order.n if isinstance(self.order, ShardedBasis) else inside
        return n, n

    @property
    def dtype(self) -> np.dtype:
        return self.local.dtype

    @property
    def T(self) -> Self:
        return dataclasses.replace(self, is_transposed=not self.is_transposed)

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        r = self.order.accept(as_vector(r, self, 1, f"M @ r with M of shape {self.shape} takes r"), r)
        return self.order.leave(self.over.each(self._piece, (self.local, self.halo), self.order.enter(r)))

    def _piece(self, arrays: tuple[Any, Exchange], r: Array) -> Array:
        local, halo = arrays

        def apply(r: Array) -> Array:
            return (local @ jnp.concatenate([r, exchange(r, halo)]))[: r.shape[0]].astype(r.dtype)

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
    checks.refuse_traced(A, "schwarz")
    if not callable(local):
        raise TypeError(f"local must make a preconditioner of a matrix, as precond.ilu does; got {local!r}")
    overlap = arguments.int_at_least(overlap, "overlap", 0)
    if overlap > 1:
        raise ValueError(f"overlap must be 0 or 1; got {overlap}")
    A._agree(overlap=overlap, local=local)
    return entries.untraced(lambda A: _of_shards(A, local, overlap), A, A.range.over.mesh)


def _of_shards(A: Any, local: Callable[[Any], Any], overlap: int) -> Schwarz:
    over, mesh, halo = A.range.over, A.range.over.mesh, A.shards.halo if overlap else Exchange()
    blocks = _blocks(A, halo)

    def of_block(S: Csr) -> Any:
        M = checks.storable(local(from_scipy(S, dtype=A.dtype)), S.shape[0], "what local makes of a block")
        return dataclasses.replace(M, A=None) if isinstance(M, factors.Inverse) else M

    made = of_each(lambda k: of_block(blocks[k]), blocks, mesh)
    request = Request(mesh, "overlap", "auto", {}, Target(np.dtype(A.dtype), A.backend, None))
    return Schwarz(over.spread(_alike(made, request)), halo, A.domain, over, (schwarz, local, overlap))


def _blocks(A: Any, halo: Exchange) -> dict[int, Csr]:
    """The block of each device of this process, with rows and columns in the order of [piece | halo buffer], and the
    identity in places without an unknown.
    """
    over = A.range.over
    size, starts, mesh = over.size, over.starts, over.mesh
    held = entries.pieces(A, np.complex128 if A.dtype.kind == "c" else np.float64)
    names = over.on_host(_names(A, halo))

    def slots(k: int) -> tuple[np.ndarray, np.ndarray]:
        known, first = np.unique(names[k][0], return_index=True)  # a list is filled up with what it may have before
        needed = np.isin(known, held[k].indices) & ((known < starts[k]) | (known >= starts[k + 1]))
        return known[needed], first[needed]

    halos = of_each(slots, held, mesh)
    beyond = fetched({k: known for k, (known, _) in halos.items()}, held, over) if halo.width else None

    def block(k: int) -> Csr:
        known, slot = halos[k]
        unknowns = np.concatenate([np.arange(starts[k], starts[k + 1]), known])
        place = np.concatenate([np.arange(over.counts[k]), size + slot])
        rows = held[k] if beyond is None else scipy.sparse.vstack([held[k], beyond[k]], format="csr")
        inside = rows[:, unknowns].tocoo()
        empty = np.setdiff1d(np.arange(size + halo.width), place)
        row, col = (np.concatenate([place[index], empty]) for index in inside.coords)
        data = np.concatenate([inside.data, np.ones(empty.size)])
        return scipy.sparse.csr_array((data, (row, col)), shape=2 * (size + halo.width,))

    return of_each(block, held, mesh)


@jax.jit
def _names(A: Any, halo: Exchange) -> Array:
    """[devices, width] the unknowns in each halo buffer, by their numbers in the inner order without empty places; −1
    in places that receive none.
    """
    over = A.range.over
    numbers = over.emptied(entries.inner_numbers(over) + 1)  # 0 arrives where nobody sends
    return over.each(lambda halo, numbers: exchange(numbers, halo)[None] - 1, halo, numbers)


# ------------------------------------------------------------------------------------------------ one shape for all


def _alike(made: dict[int, Any], request: Request) -> dict[int, Any]:
    """The preconditioners of this process's blocks, of one tree structure and equal shapes, in NumPy.

    Matrices in them get one format and one shape for all devices, with empty rows and columns. Other arrays are as
    long as the longest; a `Triangle` reads nothing of what is added.

    Raises:
      ValueError: their structures differ.
    """
    flat = {k: jax.tree.flatten(M, is_leaf=lambda a: isinstance(a, (Triangle, SparseMatrix))) for k, M in made.items()}
    sizes = _largest({k: (tree, [*map(_size, leaves)]) for k, (leaves, tree) in flat.items()}, request)
    alike = []
    for i, (n_rows, n_cols) in enumerate(sizes):
        parts = {k: leaves[i] for k, (leaves, _) in flat.items()}
        if all(isinstance(a, SparseMatrix) for a in parts.values()):
            matrices = {k: scipy.sparse.csr_array(a.to_scipy()) for k, a in parts.items()}
            for S in matrices.values():
                S.resize(n_rows, n_cols)
            parts = in_one_format(matrices, n_rows, request)[0]
        elif n_rows:
            parts = {k: dataclasses.replace(T, width=n_rows) for k, T in parts.items()}
        alike.append(parts)
    made = {k: jax.tree.unflatten(tree, [parts[k] for parts in alike]) for k, (_, tree) in flat.items()}
    flat = {k: jax.tree.flatten(M) for k, M in made.items()}
    shapes = _largest({k: (tree, [*map(np.shape, arrays)]) for k, (arrays, tree) in flat.items()}, request)
    return {
        k: jax.tree.unflatten(tree, [_padded(np.asarray(a), shape) for a, shape in zip(arrays, shapes, strict=True)])
        for k, (arrays, tree) in flat.items()
    }


def _size(part: Any) -> tuple[int, int]:
    """Rows and columns of a matrix, the width of a `Triangle`; of other arrays nothing yet."""
    return part.shape if isinstance(part, SparseMatrix) else (part.width if isinstance(part, Triangle) else 0, 0)


def _largest(shapes_of: dict[int, tuple[Any, list[tuple[int, ...]]]], request: Request) -> list[tuple[int, ...]]:
    """For each part the largest of its shapes in all blocks, by axis. ValueError: the blocks' trees differ."""
    everywhere = everyones(lambda: {k: (str(tree), shapes) for k, (tree, shapes) in shapes_of.items()}, request.mesh)
    trees, shapes = zip(*everywhere.values(), strict=True)
    if len({*trees}) > 1:
        raise ValueError(
            "`local` made preconditioners of several structures, and all devices run one program; fix what it chooses "
            "by the matrix, as in functools.partial(precond.incomplete_cholesky, solve_sweeps=3), or cut into equal "
            "blocks, as multigrid needs, whose levels must be as many"
        )
    return [tuple(np.max(of_part, axis=0).astype(int).tolist()) for of_part in zip(*shapes, strict=True)]


def _padded(a: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if a.shape == shape:
        return a
    after = [(0, most - length) for most, length in zip(shape, a.shape, strict=True)]
    return np.pad(a, after, mode="edge" if a.dtype.kind == "i" and a.size else "constant")
