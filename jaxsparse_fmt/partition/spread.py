"""The basis of a sharded matrix: unknowns in pieces of equal size, one a device, the last places of each empty.

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

from jaxsparse_fmt import vectors
from jaxsparse_fmt._types import index_dtype
from jaxsparse_fmt.basis import Basis
from jaxsparse_fmt.vectors import Distribution

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Spread(Basis):
    """Pieces of n unknowns over a mesh axis.

    Attributes:
      perm: [parts·size] the user's unknown at each place, at least n in empty ones; None: the user's order.
      over: where the pieces lie and how long they are.
      key: a digest of perm, 0 without one.
    """

    perm: Array | None = None
    over: Distribution = dataclasses.field(kw_only=True, metadata={"static": True})
    key: int = dataclasses.field(default=0, kw_only=True, metadata={"static": True})

    @property
    def n(self) -> int:
        return sum(self.over.counts)

    @property
    def places(self) -> int:
        """Places of the inner order, empty ones too."""
        return self.over.places

    @property
    def is_identity(self) -> bool:
        return False

    def same(self, other: Basis) -> bool:
        return isinstance(other, Spread) and self.over == other.over and self.key == other.key

    @property
    def devices(self) -> int:
        return len(self.over.counts)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return vectors.distributed(self.over)

    def enter(self, x: Array) -> Array:
        """The user's vector [n] or [n, p] in the inner order, with zeros in empty places."""
        return _enter(self, x)

    def leave(self, y: Array) -> Array:
        """A vector in the inner order, back in the user's."""
        return _leave(self, y)

    def accept(self, x: Any) -> Any:
        """The user's vector where the devices of the mesh can reach it.

        Raises:
          ValueError: it lies on other devices, or is spread over another mesh.
        """
        mesh = self.over.mesh
        if isinstance(x, Tracer):
            other = getattr(jax.typeof(x).sharding, "mesh", None)
            if other is not None and other.shape_tuple and other.axis_types != mesh.axis_types:
                raise ValueError(
                    f"the vector has an explicit sharding over {dict(other.shape)}, which the matrix cannot take "
                    "inside jit; make the mesh with axis_types=(AxisType.Auto, ...) of jax.sharding, or jax.reshard it"
                )
            return x
        if not isinstance(x, jax.Array):
            return x
        ours = set(mesh.devices.flat)
        if x.committed and not x.sharding.device_set <= ours:
            elsewhere = sorted(map(str, x.sharding.device_set - ours))
            raise ValueError(
                f"the vector lies on {', '.join(elsewhere[:4])}, outside the mesh of the matrix; place it with "
                "jax.device_put(x, jax.sharding.NamedSharding(mesh, PartitionSpec()))"
            )
        if isinstance(x.sharding, NamedSharding) and x.sharding.device_set == ours:
            return x if x.sharding.mesh == mesh else _on_auto_axes(x)
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec())) if x.committed else x

    def unknowns(self) -> Array:
        """[places] the user's unknown at each place; distinct numbers from n on in empty ones."""
        if self.perm is not None:
            return self.perm
        counts, size = np.array(self.over.counts), self.over.size
        starts = np.cumsum(counts) - counts
        index = index_dtype(self.n + self.places)
        place = lax.iota(index, self.places).reshape(-1, size)
        inside = place - size * jnp.arange(len(counts), dtype=index)[:, None]
        own = jnp.asarray(starts, index)[:, None] + inside
        return jnp.where(inside < jnp.asarray(counts, index)[:, None], own, self.n + place).reshape(-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Inside(Basis):
    """Of vectors that a user hands over in the inner order: they lie in pieces, and empty places must be zero."""

    over: Distribution = dataclasses.field(kw_only=True, metadata={"static": True})

    @property
    def is_identity(self) -> bool:
        return False

    def enter(self, x: Array) -> Array:
        return self.over.emptied(x)

    def same(self, other: Basis) -> bool:
        return isinstance(other, Inside) and self.over == other.over

    @property
    def devices(self) -> int:
        return len(self.over.counts)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return vectors.distributed(self.over)


@jax.jit
def _enter(basis: Spread, x: Array) -> Array:
    if basis.n == 0:
        return jnp.zeros((basis.places, *x.shape[1:]), x.dtype)
    return constrained(x.at[basis.unknowns()].get(mode="fill", fill_value=0), basis.over)


@jax.jit
def _leave(basis: Spread, y: Array) -> Array:
    out = jnp.zeros((basis.n, *y.shape[1:]), y.dtype)
    return out.at[basis.unknowns()].set(y, mode="drop", unique_indices=True)


def _on_auto_axes(x: Array) -> Array:
    """The same pieces on the same devices, of a mesh whose axes are left to XLA."""
    assert isinstance(x.sharding, NamedSharding) and isinstance(x.sharding.mesh, Mesh)
    return jax.device_put(x, NamedSharding(auto_mesh(x.sharding.mesh), x.sharding.spec))


def constrained(x: Array, over: Distribution) -> Array:
    """x with its first axis over the mesh axis."""
    return lax.with_sharding_constraint(x, NamedSharding(over.mesh, PartitionSpec(over.axis)))


def make(over: Distribution, perm: np.ndarray | None) -> Spread:
    """The basis for an order of the unknowns, None for the user's own."""
    if perm is None:
        return Spread(over=over)
    n, kind, ends = len(perm), _kind(over), np.cumsum(over.counts)
    starts = ends - over.counts

    def piece(part: int) -> np.ndarray:
        out = n + part * over.size + np.arange(over.size)
        out[: over.counts[part]] = perm[starts[part] : ends[part]]
        return out.astype(kind)

    digest = hashlib.blake2b(perm.tobytes(), digest_size=8).digest()
    return Spread(sharded(piece, over).reshape(-1), over=over, key=int.from_bytes(digest))


def bytes_of_order(over: Distribution) -> int:
    """Of the unknowns of a piece, which a device holds where they have another order than the user's."""
    return over.size * np.dtype(_kind(over)).itemsize


def _kind(over: Distribution) -> Any:
    """Empty places have numbers of their own."""
    return index_dtype(sum(over.counts) + over.places)


def sharded(piece: Callable[[int], np.ndarray], over: Distribution) -> Array:
    """[parts, ...] from piece(part) on the host, each straight to its device."""
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


def auto_mesh(mesh: Mesh) -> Mesh:
    """The mesh with all axes left to XLA: outside `shard_map` solvers do ordinary arithmetic on sharded vectors."""
    kinds = (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
    return mesh if mesh.axis_types == kinds else Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
