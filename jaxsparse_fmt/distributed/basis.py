"""The basis of a sharded matrix: unknowns in pieces of equal size, one a device, each with empty places at its end.

    user's order      0 1 2 3 4 5 6            n = 7, three devices with 3, 3 and 1 of them
    inner order     | 0 1 2 | 3 4 5 | 6 · · |  [parts·size], zero where ·

A vector in the inner order is one array whose first axis is sharded over the mesh axis.
"""

from __future__ import annotations

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
class ShardedBasis(DistributedBasis):
    """Pieces of n unknowns over a mesh axis.

    Attributes:
      perm: [parts·size] the user's unknown at each place, at least n in empty places; None: the user's order.
      key: a digest of perm; 0 without perm.
    """

    perm: Array | None = None
    key: int = dataclasses.field(default=0, kw_only=True, metadata={"static": True})

    @property
    def n(self) -> int:
        return sum(self.over.counts)

    @property
    def places(self) -> int:
        """Places of the inner order, with the empty ones."""
        return self.over.places

    def same(self, other: Basis) -> bool:
        return super().same(other) and self.key == getattr(other, "key", None)

    def enter(self, x: Array) -> Array:
        """The user's vector [n] or [n, p] in the inner order, with zeros in empty places."""
        return _enter(self, x)

    def leave(self, y: Array) -> Array:
        """A vector in the inner order, back in the user's."""
        return _leave(self, y)

    def accept(self, x: Any) -> Any:
        """The user's vector, moved as by `placed`.

        Raises:
          ValueError: as `placed`, or the vector is not the same in all processes.
        """
        if x is not None:
            self.agree(vector=x)
        return self.placed(x)

    def placed(self, x: Any) -> Any:
        """The user's vector, moved if necessary to where the devices of the mesh can reach it.

        Raises:
          ValueError: it lies on other devices, or is spread over another mesh.
        """
        mesh = self.over.mesh
        if isinstance(x, Tracer) or not isinstance(x, jax.Array):
            return x
        ours = set(mesh.devices.flat)
        if x.committed and not x.sharding.device_set <= ours:
            elsewhere = sorted(map(str, x.sharding.device_set - ours))
            raise ValueError(
                f"the vector lies on {', '.join(elsewhere[:4])}, outside the mesh of the matrix; place it with "
                "jax.device_put(x, jax.sharding.NamedSharding(mesh, PartitionSpec()))"
            )
        if isinstance(x.sharding, NamedSharding) and x.sharding.device_set == ours:
            return x if _is_here(x.sharding.mesh, mesh) else _on_auto_axes(x)
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec())) if x.committed else x

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
    """The basis of `A.in_basis`: vectors are in the inner order already, and `enter` only empties the empty places."""

    def enter(self, x: Array) -> Array:
        return self.over.emptied(x)


@jax.jit
def _enter(basis: ShardedBasis, x: Array) -> Array:
    def entered(basis: ShardedBasis, x: Array) -> Array:
        if basis.n == 0:
            return jnp.zeros((basis.places, *x.shape[1:]), x.dtype)
        return constrained(x.at[basis.unknowns()].get(mode="fill", fill_value=0), basis.over)

    return basis.over.by_xla(entered, (basis, x), mesh_axes.spec_like(x, basis.over.axis))


@jax.jit
def _leave(basis: ShardedBasis, y: Array) -> Array:
    def left(basis: ShardedBasis, y: Array) -> Array:
        out = jnp.zeros((basis.n, *y.shape[1:]), y.dtype)
        return out.at[basis.unknowns()].set(y, mode="drop", unique_indices=True)

    return basis.over.by_xla(left, (basis, y), mesh_axes.spec_like(y, None))


def _is_here(mesh: Any, own: Mesh) -> bool:
    """Whether vectors on `mesh` can meet a matrix on `own`: it is that mesh, or the context's."""
    return mesh == own or mesh.abstract_mesh == jax.sharding.get_abstract_mesh()


def _on_auto_axes(x: Array) -> Array:
    """The same pieces on the same devices, of a mesh whose axes are left to XLA."""
    assert isinstance(x.sharding, NamedSharding) and isinstance(x.sharding.mesh, Mesh)
    return jax.device_put(x, NamedSharding(auto_mesh(x.sharding.mesh), x.sharding.spec))


def constrained(x: Array, over: Distribution) -> Array:
    """x with its first axis over the mesh axis."""
    return lax.with_sharding_constraint(x, NamedSharding(over.mesh_here, PartitionSpec(over.axis)))


def make(over: Distribution, perm: np.ndarray | None) -> ShardedBasis:
    """The basis for an order of the unknowns, None for the user's own."""
    if perm is None:
        return ShardedBasis(over=over)
    n, kind, ends = len(perm), _kind(over), np.cumsum(over.counts)
    starts = ends - over.counts

    def piece(part: int) -> np.ndarray:
        out = n + part * over.size + np.arange(over.size)
        out[: over.counts[part]] = perm[starts[part] : ends[part]]
        return out.astype(kind)

    digest = hashlib.blake2b(perm.tobytes(), digest_size=8).digest()
    return ShardedBasis(sharded(piece, over).reshape(-1), over=over, key=int.from_bytes(digest))


def bytes_of_order(over: Distribution) -> int:
    """Bytes of the unknowns of a piece, which a device holds if their order is not the user's."""
    return over.size * np.dtype(_kind(over)).itemsize


def _kind(over: Distribution) -> Any:
    """The dtype of unknowns, which also number the empty places."""
    return index_dtype(sum(over.counts) + over.places)


def sharded(piece: Callable[[int], np.ndarray], over: Distribution) -> Array:
    """An array [parts, ...] of the pieces piece(part), each made on the host and put directly on its device."""
    like = piece(next(iter(local_parts(over))))
    made = functools.cache(piece)
    sharding = NamedSharding(over.mesh, PartitionSpec(over.axis))
    shape = (len(over.counts), *like.shape)
    return jax.make_array_from_callback(shape, sharding, lambda index: made(_first(index))[None])


def _first(index: Any) -> int:
    return index[0].start or 0


def local_parts(over: Distribution) -> set[int]:
    """The pieces that lie on devices of this process."""
    axis, me = over.mesh.axis_names.index(over.axis), jax.process_index()
    by_part = np.moveaxis(over.mesh.devices, axis, 0).reshape(len(over.counts), -1)
    return {k for k, devices in enumerate(by_part) if any(d.process_index == me for d in devices)}


def placing_mesh(mesh: Mesh) -> Mesh:
    """The mesh with the axis types that `jax.set_mesh` has set; without a mesh in the context, with auto axes.

    Outside `jax.set_mesh` most functions of JAX refuse arrays on explicit axes.
    """
    here = jax.sharding.get_abstract_mesh()
    same = not here.empty and here.shape_tuple == mesh.shape_tuple
    kinds = here.axis_types if same else (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
    return mesh if mesh.axis_types == kinds else Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)


def auto_mesh(mesh: Mesh) -> Mesh:
    """The mesh with all axes left to XLA."""
    return Mesh(mesh.devices, mesh.axis_names)
