"""The basis of a sharded matrix: one piece of the unknowns a device, padded at its end with empty places.

    user's order      0 1 2 3 4 5 6            n = 7, three devices with 3, 3 and 1 of them
    inner order     | 0 1 2 | 3 4 5 | 6 · · |  [parts·size], zero where ·

A vector in the inner order is one array whose first axis is sharded over the mesh axis. A user's vector lies on the
same devices in even blocks, blocks of equal size, if the number of devices divides n; JAX has no other blocks. A vector
moves between even blocks and pieces in runs (`even_blocks.py`) or, if the inner order is not the user's, along a
`Route`; no device holds the whole vector.
"""

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsparse_fmt._types import index_dtype, pytree
from jaxsparse_fmt.core import mesh_axes, vector_passes
from jaxsparse_fmt.core.basis import Basis
from jaxsparse_fmt.core.vector_passes import Distribution
from jaxsparse_fmt.distributed import even_blocks, halo
from jaxsparse_fmt.distributed.halo import Halo
from jaxsparse_fmt.distributed.halo_exchange import Exchange, exchange, returned
from jaxsparse_fmt.distributed.placement import local_parts, placing_mesh, sharded
from jaxsparse_fmt.distributed.processes import agree

Array = jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class DistributedBasis(Basis):
    """A basis whose entered vectors lie in pieces over a mesh axis.

    Attributes:
      over: the mesh axis, and the length of each piece.
    """

    over: Distribution = dataclasses.field(kw_only=True, metadata={"static": True})

    @property
    def is_identity(self) -> bool:
        return False

    @property
    def devices(self) -> int:
        return len(self.over.counts)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return vector_passes.distributed(self.over)

    def same(self, other: Basis) -> bool:
        return type(self) is type(other) and self.over == getattr(other, "over", None)

    def agree(self, **given: Any) -> None:
        if not any(isinstance(value, Tracer) for value in given.values()):
            agree(lambda: given, self.over.mesh)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Route:
    """The exchange between even blocks of the user's vectors and pieces in another order.

    Attributes:
      slots: [parts·size] the source in [even block | received] of each place of a piece; past the end for empty places.
      how: the exchange, with lists [parts·k].
    """

    slots: Array
    how: Exchange

    def to_pieces(self, over: Distribution, x: Array) -> Array:
        """The pieces of a vector that lies in even blocks."""

        def piece(slots: Array, how: Exchange, x: Array) -> Array:
            x = jnp.concatenate([x, exchange(x, how, over.axis)])
            return x.at[slots].get(mode="fill", fill_value=0)

        return self._on_each_device(over, piece, x)

    def to_blocks(self, over: Distribution, y: Array) -> Array:
        """The even blocks of a vector that lies in pieces."""
        m = even_blocks.block_size(over.counts)

        def block(slots: Array, how: Exchange, y: Array) -> Array:
            out = jnp.zeros((m + how.width, *y.shape[1:]), y.dtype).at[slots].add(y, mode="drop")
            return out[:m] + returned(out[m:], how, over.axis, m)

        return self._on_each_device(over, block, y)

    def _on_each_device(self, over: Distribution, f: Callable[..., Array], v: Array) -> Array:
        own, piece = PartitionSpec(over.axis), over.piece_of(v)
        return over.mapped(f, (own, own, piece), piece)(self.slots, self.how, v)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class ShardedBasis(DistributedBasis):
    """The basis of n unknowns that lie in pieces over a mesh axis.

    Attributes:
      perm: [parts·size] the user's unknown at each place, at least n in empty places; None: the order is the
        user's, or nothing needs the numbers of the unknowns.
      route: the exchange that takes vectors to another order and back; None: the order is the user's.
      key: a digest of the order; 0 for the user's.
    """

    perm: Array | None = None
    route: Route | None = None
    key: int = dataclasses.field(default=0, kw_only=True, metadata={"static": True})

    @property
    def n(self) -> int:
        return sum(self.over.counts)

    @property
    def places(self) -> int:
        """Places of the inner order, with the empty ones."""
        return self.over.places

    @property
    def has_even_blocks(self) -> bool:
        """Whether the user's vectors can lie on the devices in even blocks, the only blocks that JAX has."""
        return self.n % self.devices == 0

    def same(self, other: Basis) -> bool:
        return super().same(other) and self.key == getattr(other, "key", None)

    def enter(self, x: Array) -> Array:
        """The user's vector [n] or [n, p] in the inner order, with zeros in empty places."""
        return _enter(self, x)

    def leave(self, y: Array, like: Any = None) -> Array:
        """A vector in the inner order, brought back to the user's.

        The result lies in even blocks if n allows them. On explicit mesh axes it does so only if `like`, a vector of
        the user's, does: JAX's types of sharded vectors forbid some operations that whole vectors allow, such as an
        inner product.
        """
        axes = {*mesh_axes.names(self.over.axis)}
        blocks = self.has_even_blocks and like is not None and axes <= {*mesh_axes.axes_of(like)[0]}
        return _leave(self, y, self.over.axis if blocks else None)

    def accept(self, x: Any) -> Any:
        """The user's vector, moved to the mesh as by `placed`.

        Raises:
          ValueError: as `placed`, or the vector is not the same in all processes.
        """
        if x is not None:
            self.agree(vector=x)
        return self.placed(x)

    def placed(self, x: Any) -> Any:
        """The user's vector, moved to the devices of the mesh if it does not lie on all of them.

        Raises:
          ValueError: the vector lies on devices outside the mesh, or is spread over another mesh.
        """
        mesh = self.over.mesh
        if x is None or isinstance(x, Tracer):
            return x
        if not isinstance(x, jax.Array) or not x.committed:
            return self._spread(x)
        ours = set(mesh.devices.flat)
        if not x.sharding.device_set <= ours:
            elsewhere = sorted(map(str, x.sharding.device_set - ours))
            raise ValueError(
                f"the vector lies on {', '.join(elsewhere[:4])}, outside the mesh of the matrix; place it with "
                "jax.device_put(x, jax.sharding.NamedSharding(mesh, PartitionSpec()))"
            )
        if isinstance(x.sharding, NamedSharding) and x.sharding.device_set == ours:
            its: Any = x.sharding.mesh
            if its == mesh or its.abstract_mesh == jax.sharding.get_abstract_mesh():
                return x
            return jax.device_put(x, NamedSharding(Mesh(its.devices, its.axis_names), x.sharding.spec))
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(self.over.axis if self.has_even_blocks else None)))

    def _spread(self, x: Any) -> Any:
        """A vector that is not committed to devices, spread over the mesh in even blocks if n allows them."""
        if not self.has_even_blocks or self.n == 0:
            return x
        self.over.check_context()
        blocks = NamedSharding(placing_mesh(self.over.mesh), PartitionSpec(self.over.axis))
        if blocks.is_fully_addressable:
            return jax.device_put(x, blocks)
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, blocks, lambda block: x[block])

    def unknowns(self) -> Array:
        """[places] the user's unknown at each place; distinct numbers from n on in empty places."""
        if self.perm is not None:
            return self.perm
        counts, size = np.array(self.over.counts), self.over.size
        starts = np.cumsum(counts) - counts
        index = index_dtype(self.n + self.places)
        place = lax.iota(index, self.places).reshape(-1, size)
        inside = place - size * jnp.arange(len(counts), dtype=index)[:, None]
        own = jnp.asarray(starts, index)[:, None] + inside
        return jnp.where(inside < jnp.asarray(counts, index)[:, None], own, self.n + place).reshape(-1)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class EnteredBasis(DistributedBasis):
    """The basis of `A.in_basis`: vectors are in the inner order already; `enter` only sets empty places to zero."""

    def enter(self, x: Array) -> Array:
        return self.over.emptied(x)


@jax.jit
def _enter(basis: ShardedBasis, x: Array) -> Array:
    def entered(basis: ShardedBasis, x: Array) -> Array:
        if basis.route is not None:
            return basis.route.to_pieces(basis.over, _in_blocks(x, basis.over))
        return _on_pieces(even_blocks.to_pieces, _in_blocks(x, basis.over), basis.over)

    return basis.over.by_xla(entered, (basis, x), mesh_axes.spec_like(x, basis.over.axis))


@functools.partial(jax.jit, static_argnums=2)
def _leave(basis: ShardedBasis, y: Array, explicit: Any) -> Array:
    over = basis.over

    def left(basis: ShardedBasis, y: Array) -> Array:
        if basis.route is not None:
            out = basis.route.to_blocks(over, y)[: basis.n]
        else:
            out = _on_pieces(even_blocks.to_blocks, y, over)[: basis.n]
        return constrained(out, over) if basis.has_even_blocks else out

    return over.by_xla(left, (basis, y), mesh_axes.spec_like(y, explicit))


def _in_blocks(x: Array, over: Distribution) -> Array:
    """The user's vector, padded to even blocks."""
    behind = len(over.counts) * even_blocks.block_size(over.counts) - x.shape[0]
    return jnp.pad(x, ((0, behind), *((0, 0),) * (x.ndim - 1)))


def _on_pieces(f: Callable[..., Array], x: Array, over: Distribution) -> Array:
    if len({even_blocks.block_size(over.counts), over.size, *over.counts}) == 1:
        return constrained(x, over)  # every even block is a piece
    return over.mapped(functools.partial(f, over=over), (over.piece_of(x),), over.piece_of(x))(x)


def constrained(x: Array, over: Distribution) -> Array:
    """x with its first axis over the mesh axis."""
    free = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - 1)
    return lax.with_sharding_constraint(x, NamedSharding(over.mesh_here, PartitionSpec(over.axis, *free)))


def plan_of_order(over: Distribution, perm: np.ndarray) -> Halo:
    """The plan by which devices receive the unknowns of their pieces from the devices whose even blocks have them."""
    blocks = np.minimum(np.arange(len(over.counts) + 1) * even_blocks.block_size(over.counts), len(perm))
    own = _own(over, perm)
    mine = sorted(local_parts(over))
    return halo.plan(lambda: {k: halo.needed(own[k], blocks[k], blocks[k + 1]) for k in mine}, blocks, over.mesh)


def make(over: Distribution, perm: np.ndarray | None, plan: Halo | None = None, numbered: bool = True) -> ShardedBasis:
    """The basis for an order of the unknowns; None and None for the user's own.

    Args:
      plan: the plan of `plan_of_order`.
      numbered: whether the basis stores the numbers of the unknowns, which `unknowns` needs.
    """
    if perm is None or plan is None or not len(perm):
        return ShardedBasis(over=over)
    n, kind, own = len(perm), _kind(over), _own(over, perm)

    def piece(part: int) -> np.ndarray:
        out = n + part * over.size + np.arange(over.size)
        out[: over.counts[part]] = own[part]
        return out.astype(kind)

    digest = hashlib.blake2b(perm.tobytes(), digest_size=8).digest()
    numbers = sharded(piece, over).reshape(-1) if numbered else None
    return ShardedBasis(numbers, _route(over, own, plan), over=over, key=int.from_bytes(digest))


def _route(over: Distribution, own: list[np.ndarray], plan: Halo) -> Route:
    m = even_blocks.block_size(over.counts)

    def slots(part: int) -> np.ndarray:
        unknown, needs = own[part], plan.needs[part]
        out = np.full(over.size, m + plan.how.width)
        out[: len(unknown)] = unknown - part * m
        away = np.flatnonzero(unknown // m != part)
        out[away] = m + plan.slots[part][np.searchsorted(needs, unknown[away])]
        return out.astype(np.int32)

    place = lambda of: sharded(of, over).reshape(-1)  # noqa: E731
    return Route(place(slots), plan.placed(place))


def _own(over: Distribution, perm: np.ndarray) -> list[np.ndarray]:
    """The unknowns of each piece."""
    return np.split(perm, np.cumsum(over.counts)[:-1])


def bytes_of_order(over: Distribution, plan: Halo, numbered: bool = True) -> int:
    """Bytes on a device of a basis that `make` makes with this plan."""
    return over.size * np.dtype(_kind(over)).itemsize * numbered + 4 * over.size + plan.nbytes


def _kind(over: Distribution) -> Any:
    """The dtype for the numbers of unknowns and of empty places."""
    return index_dtype(sum(over.counts) + over.places)
