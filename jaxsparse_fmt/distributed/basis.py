"""The basis of a sharded matrix: one piece of the unknowns a device, padded at its end with empty places.

    user's order      0 1 2 3 4 5 6            n = 7, three devices with 3, 3 and 1 of them
    inner order     | 0 1 2 | 3 4 5 | 6 · · |  [parts·size], zero where ·

A vector in the inner order is one array whose first axis is sharded over the mesh axis. A user's vector lies on the
same devices in even blocks, blocks of equal size, if the number of devices divides n; JAX has no other blocks. A vector
travels between even blocks and pieces in runs (`recut`) or, if the inner order is not the user's, by a `Route`, which
stores a number for each unknown; no device holds the whole vector.
"""

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

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import in_trace
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from jaxsparse_fmt.distributed import halo
from jaxsparse_fmt.distributed.delivery import needed
from jaxsparse_fmt.distributed.distribution import Distribution, placing_mesh
from jaxsparse_fmt.distributed.halo import Exchange, exchange
from jaxsparse_fmt.distributed.processes import agree, alone, everyones

Array = jax.Array


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class EnteredBasis(Basis):
    """The basis of vectors that lie in pieces over a mesh axis already; `enter` only sets empty places to zero.

    Attributes:
      over: the mesh axis, and the length of each piece.
    """

    over: Distribution = dataclasses.field(kw_only=True, metadata={"static": True})

    def enter(self, x: Array) -> Array:
        return self.over.emptied(x)

    @property
    def is_identity(self) -> bool:
        return False

    @property
    def devices(self) -> int:
        return len(self.over.counts)

    def run(self, f: Callable[..., Any], operands: tuple[Any, ...], specs: tuple[Any, ...], out: Any) -> Any:
        """f(*operands) inside one shard_map over the devices; specs, out: PartitionSpecs, as prefixes.

        What f computes from sums is the same on every device; types cannot express that, so check_vma is off.
        """
        return self.over.by_xla(lambda *a: self.over.mapped(f, specs, out, check_vma=False)(*a), operands, out)

    def same(self, other: Basis) -> bool:
        return isinstance(other, EnteredBasis) and type(self) is type(other) and self.over == other.over

    def agree(self, given: Callable[[], dict[str, Any]]) -> None:
        if not alone(self.over.mesh) and not in_trace():
            agree(given, self.over.mesh)

    def _shared(self, tree: Any) -> Any:
        return lax.with_sharding_constraint(tree, NamedSharding(self.over.mesh_here, PartitionSpec()))

    def _of_all(self, value: Any) -> list[Any]:
        return [*everyones(lambda: {jax.process_index(): value}, self.over.mesh).values()]


@pytree
class Route:
    """The exchange between even blocks of the user's vectors and pieces in another order.

    Attributes:
      slots: [parts, size] the source in [even block | received] of each place of a piece; past the end for empty
        places.
      how: the exchange.
    """

    slots: Array
    how: Exchange

    def piece(self, x: Array) -> Array:
        """This device's piece, from its even block."""
        return jnp.concatenate([x, exchange(x, self.how)]).at[self.slots].get(mode="fill", fill_value=0)

    def block(self, y: Array, m: int) -> Array:
        """This device's even block [m, ...], from its piece: the transpose of `piece`."""
        x = mesh_axes.varying(jnp.zeros((m, *y.shape[1:]), y.dtype), y)
        return jax.linear_transpose(self.piece, x)(y)[0]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class ShardedBasis(EnteredBasis):
    """The basis of n unknowns that lie in pieces over a mesh axis.

    Attributes:
      route: the exchange that takes vectors to another order and back; None: the order is the user's.
      key: a digest of the order; 0 for the user's.
      is_padded: whether the user's vectors end with zeros, so that they lie in even blocks for every n.
    """

    route: Route | None = None
    is_padded: bool = dataclasses.field(default=False, kw_only=True, metadata={"static": True})
    key: int = dataclasses.field(default=0, kw_only=True, metadata={"static": True})

    @property
    def n(self) -> int:
        return self.over.even.places if self.is_padded else sum(self.over.counts)

    @property
    def places(self) -> int:
        """Places of the inner order, with the empty ones."""
        return self.over.places

    @property
    def has_even_blocks(self) -> bool:
        """Whether the user's vectors can lie on the devices in even blocks, the only blocks that JAX has."""
        return self.n % self.devices == 0

    def same(self, other: Basis) -> bool:
        if not isinstance(other, ShardedBasis):
            return False
        return super().same(other) and (self.key, self.is_padded) == (other.key, other.is_padded)

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

    def accept(self, x: Any, given: Any = None) -> Any:
        """The user's vector, on the mesh as by `placed`.

        Raises:
          ValueError: as `placed`, or the vector is not the same in all processes.
        """
        if x is not None:
            self.agree(lambda: {"vector": x if given is None else given})
        return self.placed(x)

    def placed(self, x: Any) -> Any:
        """The user's vector, copied to the devices of the mesh if it does not lie on all of them in their order.

        Raises:
          ValueError: the vector lies on devices outside the mesh.
        """
        mesh, is_traced = self.over.mesh, isinstance(x, Tracer)
        seen: Any = x.to_concrete_value() if is_traced else x  # an eager derivative knows its array
        if seen is None:
            return self._on_auto_axes(x)
        if not isinstance(seen, jax.Array) or not seen.committed:
            return x if is_traced else self._spread(x)
        if elsewhere := sorted(map(str, seen.sharding.device_set - {*mesh.devices.flat})):
            raise ValueError(
                f"the vector lies on {', '.join(elsewhere[:4])}, outside the mesh of the matrix; place it with "
                "jax.device_put(x, jax.sharding.NamedSharding(mesh, PartitionSpec()))"
            )
        if seen.is_fully_addressable and not alone(mesh):  # each process has all of it
            return x if is_traced else self._spread(x)
        if isinstance(seen.sharding, NamedSharding) and lies_on(seen, mesh):
            other: Any = seen.sharding.mesh
            if other == mesh or other.abstract_mesh == jax.sharding.get_abstract_mesh():
                return x
            return jax.device_put(x, NamedSharding(Mesh(other.devices, other.axis_names), seen.sharding.spec))
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(self.over.axis if self._is_even(x) else None)))

    def _on_auto_axes(self, x: Any) -> Any:
        """A traced vector; a copy on every device whose type is of explicit axes, outside of `jax.set_mesh`, gets the
        type that the mesh has there. A constraint, which would do it too, has a transpose of another type.
        """
        here, sharding = jax.sharding.get_abstract_mesh(), None if x is None else jax.typeof(x).sharding
        if sharding is None or not here.empty or any(sharding.spec) or not mesh_axes.explicit_axes(sharding.mesh):
            return x
        return jax.device_put(x, NamedSharding(placing_mesh(self.over.mesh), PartitionSpec()))

    def _is_even(self, x: Any) -> bool:
        """Whether a user's vector, perhaps padded, can lie on the devices in even blocks."""
        return x.shape[0] > 0 and x.shape[0] % self.devices == 0

    def noise(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._in_blocks(self.over.axis, IDENTITY.noise, shape, dtype)

    def numbers(self) -> Array:
        """[n] 0, 1, …, of which each device makes its own."""
        return self._in_blocks(None, lax.iota, index_dtype(self.n), self.n)

    def _in_blocks(self, explicit: Any, make: Callable[..., Array], *given: Any) -> Array:
        return _in_blocks(self.over, explicit, make, given) if self.has_even_blocks else make(*given)

    def _spread(self, x: Any) -> Any:
        """A vector that every process has whole, spread over the mesh in even blocks if n allows them."""
        several, even = not alone(self.over.mesh), self._is_even(x)
        if in_trace() if several else not even:  # a program holds no array of several processes
            return x
        self.over.check_context()
        blocks = NamedSharding(placing_mesh(self.over.mesh), PartitionSpec(self.over.axis if even else None))
        if not several:
            return jax.device_put(x, blocks)
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, blocks, lambda block: x[block])

    def unknowns(self) -> Array:
        """[places] the user's unknown at each place; distinct numbers from n on in empty places."""

        def numbered(basis: ShardedBasis) -> Array:
            index = index_dtype(basis.n + basis.places)
            number = basis.enter(jnp.arange(1, basis.n + 1, dtype=index))  # 0 in empty places
            return jnp.where(number > 0, number - 1, basis.n + lax.iota(index, basis.places))

        return self.over.by_xla(numbered, (self,), PartitionSpec(self.over.axis))


@jax.jit
def _enter(basis: ShardedBasis, x: Array) -> Array:
    def entered(basis: ShardedBasis, x: Array) -> Array:
        return _moved(basis, jnp.pad(x, ((0, basis.over.even.places - x.shape[0]), *((0, 0),) * (x.ndim - 1))), True)

    return basis.over.by_xla(entered, (basis, x), mesh_axes.spec_like(x, basis.over.axis))


@functools.partial(jax.jit, static_argnums=2)
def _leave(basis: ShardedBasis, y: Array, explicit: Any) -> Array:
    def left(basis: ShardedBasis, y: Array) -> Array:
        x = _moved(basis, y, False)[: basis.n]
        return constrained(x, basis.over) if basis.has_even_blocks else x

    return basis.over.by_xla(left, (basis, y), mesh_axes.spec_like(y, explicit))


def _moved(basis: ShardedBasis, x: Array, inward: bool) -> Array:
    """From even blocks into pieces, or back."""
    over = basis.over
    if basis.route is not None:
        return over.each(Route.piece if inward else functools.partial(Route.block, m=over.even.size), basis.route, x)
    if over == over.even:
        return constrained(over.emptied(x) if basis.is_padded else x, over)
    ends = (over.even, over) if inward else (over, over.even)
    return over.each(lambda _, a: recut(a, *ends), (), x)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _in_blocks(over: Distribution, explicit: Any, make: Callable[..., Array], given: tuple[Any, ...]) -> Array:
    return over.by_xla(lambda: constrained(make(*given), over), (), PartitionSpec(explicit))


def recut(a: Array, source: Distribution, target: Distribution) -> Array:
    """A device's piece [size, ...] of `target` from its piece a of `source`, of the same vector; inside shard_map.

        even blocks | 0 1 2   | 3 4 5   | 6 · ·   |   n = 7
        pieces      | 0 1 · · | 2 3 4 5 | 6 · · · |

    Two pieces share at most one run of consecutive unknowns, and there are fewer than 2·parts runs. In their order
    they take as few rounds as possible, the most runs of a piece. A device holds both pieces and the runs of one round.
    """
    parts, device = len(source.counts), lax.axis_index(source.axis)
    cuts = np.union1d(source.starts, target.starts)  # where runs begin
    first, length = cuts[:-1], np.diff(cuts)
    sender, receiver = (np.searchsorted(over.starts, first, side="right") - 1 for over in (source, target))
    longest = int(length.max(initial=0))
    after = ((0, longest), *((0, 0),) * (a.ndim - 1))  # so no slice reaches beyond the end: XLA would shift it
    a, out = jnp.pad(a, after), jnp.zeros((target.size + longest, *a.shape[1:]), a.dtype)
    rounds, far = np.full(len(first), -1), np.flatnonzero(sender != receiver)  # the others stay
    rounds[far] = halo.by_rounds(sender[far], receiver[far], np.arange(len(far)), parts)
    for k in np.unique(rounds):
        now = rounds == k
        table = np.zeros((3, parts), index_dtype(max(len(a), len(out))))  # by device: where what it sends begins
        table[0, sender[now]] = (first - source.starts[sender])[now]
        table[1:, receiver[now]] = (first - target.starts[receiver])[now], length[now]  # where how many arrive
        begin, place, count = jnp.asarray(table)[:, device]
        size = int(length[now].max())
        run = lax.dynamic_slice_in_dim(a, begin, size)
        if k >= 0:
            run = lax.ppermute(run, source.axis, list(zip(sender[now].tolist(), receiver[now].tolist(), strict=True)))
        before = lax.dynamic_slice_in_dim(out, place, size)
        live = (lax.iota(table.dtype, size) < count).reshape(-1, *(1,) * (a.ndim - 1))
        out = lax.dynamic_update_slice_in_dim(out, jnp.where(live, run, before), place, 0)
    return out[: target.size]


def lies_on(a: Array, mesh: Mesh) -> bool:
    """Whether a lies on all devices of the mesh, in their order if its sharding names one; True if it is traced."""
    if isinstance(a, Tracer):
        return True
    if isinstance(a.sharding, NamedSharding):
        other: Any = a.sharding.mesh
        return other is mesh or np.array_equal(other.device_ids.ravel(), mesh.device_ids.ravel())
    return a.sharding.device_set == set(mesh.devices.flat)


def constrained(x: Array, over: Distribution) -> Array:
    """x with its first axis over the mesh axis."""
    free = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - 1)
    return lax.with_sharding_constraint(x, NamedSharding(over.mesh_here, PartitionSpec(over.axis, *free)))


def routes(over: Distribution, order: np.ndarray | None) -> tuple[dict[int, Route], int]:
    """The routes of an order, by part of this process and in NumPy, and its key; all processes must call this.

    Args:
      order: [n] the user's unknown at each place, equal in all processes; None: the user's own order, without routes.
    """
    if order is None:
        return {}, 0
    unknowns = {k: order[over.starts[k] : over.starts[k + 1]] for k in over.mine}
    blocks = over.even
    plan = halo.plan({k: needed(u, *blocks.starts[k : k + 2].tolist()) for k, u in unknowns.items()}, blocks)
    beyond = blocks.size + plan.width

    def route(k: int) -> Route:
        slots = plan.places(k, unknowns[k])
        slots = np.pad(slots, (0, over.size - len(slots)), constant_values=beyond)
        return Route(slots.astype(index_dtype(beyond + 1)), plan.how[k])  # pyright: ignore[reportArgumentType]

    key = hashlib.blake2b(order.astype(np.int64).tobytes(), digest_size=8).digest()
    return {k: route(k) for k in unknowns}, int.from_bytes(key)
