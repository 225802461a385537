"""How arrays lie over a mesh axis, how they get there from the host and back, and shard_map over that axis."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._types import Array
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.distributed.processes import named
from jaxsparse_fmt.kernels.backends import jax_versions


@dataclasses.dataclass(frozen=True)
class Distribution:
    """Vectors over a mesh axis: device k has piece k, `counts[k]` unknowns and zeros up to `size`.

    `axis` may be a tuple of mesh axes, which together count as one, the last of them fastest.
    """

    mesh: Mesh
    axis: Any
    counts: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, mesh: Mesh, axis: Any, counts: np.ndarray) -> Self:
        """Pieces of these lengths, padded to the longest, at least to 1."""
        return cls(mesh, axis, tuple(counts.tolist()), max(int(counts.max()), 1))

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """[parts + 1] the first number of each piece, and the total."""
        return np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])

    @functools.cached_property
    def even(self) -> "Distribution":
        """The same vector in blocks of equal size, as JAX spreads a user's vector."""
        parts, n = len(self.counts), sum(self.counts)
        cuts = np.minimum(np.arange(parts + 1) * -(-n // parts), n)
        return Distribution.of(self.mesh, self.axis, np.diff(cuts))

    @functools.cached_property
    def holders(self) -> list[list[int]]:
        """The processes of each piece's devices, rising."""
        axes = [*map(self.mesh.axis_names.index, mesh_axes.names(self.axis))]
        by_part = np.moveaxis(self.mesh.devices, axes, range(len(axes))).reshape(len(self.counts), -1)
        return [sorted({d.process_index for d in devices}) for devices in by_part]

    @functools.cached_property
    def mine(self) -> list[int]:
        """The numbers of the pieces that lie on devices of this process, rising."""
        return [k for k, processes in enumerate(self.holders) if jax.process_index() in processes]

    def spread(self, parts: dict[int, Any]) -> Any:
        """Arrays [parts, ...] from trees of arrays on the host, one for each piece of this process, of equal shapes."""
        sharding = NamedSharding(self.mesh, PartitionSpec(self.axis))

        def placed(*leaves: np.ndarray) -> Array:
            leaf_of = dict(zip(parts, leaves, strict=True))
            shape = len(self.counts), *leaves[0].shape
            return named(jax.make_array_from_callback(shape, sharding, lambda index: leaf_of[_first(index)][None]))

        return jax.tree.map(placed, *parts.values())

    def everywhere(self, tree: Any) -> Any:
        """The arrays, equal in all processes, whole on every device."""
        copies = NamedSharding(self.mesh, PartitionSpec())

        def copied(a: Any) -> Array:
            a = np.asarray(a)
            return named(jax.make_array_from_callback(a.shape, copies, lambda index: a[index]))

        return jax.tree.map(copied, tree)

    def on_host(self, a: Array) -> dict[int, np.ndarray]:
        """The parts [m, ...] of an array [parts·m, ...] that lie in this process."""
        m = a.shape[0] // len(self.counts)

        def part(k: int) -> np.ndarray:
            for shard in a.addressable_shards:  # which hold one part each, or several
                before = k * m - _first(shard.index)
                if 0 <= before <= shard.data.shape[0] - m:
                    return np.asarray(shard.data)[before : before + m]
            raise AssertionError("a process has the parts of its devices")

        return {k: part(k) for k in self.mine}

    @property
    def places(self) -> int:
        """Places of all pieces together."""
        return len(self.counts) * self.size

    @property
    def mesh_here(self) -> Any:
        """The mesh for code that is traced here: the context's if there is one, like `mesh`; else `mesh`."""
        self.check_context()
        here = jax.sharding.get_abstract_mesh()
        return self.mesh if here.empty else here

    def check_context(self) -> None:
        """Raises ValueError in a context with another mesh."""
        here = jax.sharding.get_abstract_mesh()
        if not here.empty and here.shape_tuple != self.mesh.shape_tuple:
            raise ValueError(
                f"the matrix lies on the mesh {dict(self.mesh.shape)}, but jax.set_mesh or shard_map has set "
                f"{dict(here.shape)}; use it on its own mesh, or shard it anew"
            )

    @property
    def is_manual(self) -> bool:
        """Whether the code that is traced here is inside a shard_map over the axis, and sees one device's pieces.

        ValueError: inside one over some of the axes that together count as one.
        """
        axes = {*mesh_axes.names(self.axis)}
        mapped = axes & {*jax.sharding.get_abstract_mesh().manual_axes}
        if mapped and mapped != axes:
            raise ValueError(
                f"the matrix lies over the axes {self.axis!r} together, and shard_map is over {sorted(mapped)} alone; "
                "map over all of them"
            )
        return mapped == axes

    def piece_of(self, x: Array) -> PartitionSpec:
        """How vectors [m] or [m, p] lie: pieces over the axis, columns over the mesh's other axes if these divide p.

        The devices along those axes hold copies of a matrix, so each multiplies its own columns. An axis over which
        vmap spreads a batch (`spmd_axis_name`) is not among them.
        """
        taken = {*mesh_axes.names(self.axis)} | jax_versions.batch_axes()
        sizes, free = self.mesh_here.shape, mesh_axes.auto_axes(self.mesh_here) - taken
        others = tuple(axis for axis in sizes if axis in free)
        divides = x.ndim == 2 and x.shape[1] % math.prod(sizes[axis] for axis in others) == 0
        return PartitionSpec(self.axis, others) if divides and others else PartitionSpec(self.axis)

    def mapped(self, f: Callable[..., Any], in_specs: Any, out_specs: Any, check_vma: bool = True) -> Any:
        """shard_map over the axis, and over the other axes of `out_specs`; see `mesh_axes.axes_to_map`."""
        mesh = self.mesh_here
        specs = jax.tree.leaves(out_specs, is_leaf=lambda spec: isinstance(spec, PartitionSpec))
        others = {axis for spec in specs for entry in spec for axis in mesh_axes.names(entry)}
        names = mesh_axes.axes_to_map(mesh, self.axis) | others
        return jax.shard_map(
            f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=names, check_vma=check_vma
        )

    def each(self, f: Callable[..., Any], parts: Any, *vectors: Any) -> Any:
        """f(part, *pieces) on every device: its part of the arrays [parts, ...] of `parts`, its pieces of the vectors.

        The results lie as the vectors do. Inside shard_map over the axis it is f of this device.
        """

        def body(parts: Any, *pieces: Any) -> Any:
            return f(jax.tree.map(lambda a: a[0], parts), *pieces)

        if self.is_manual:
            return body(parts, *vectors)
        part = PartitionSpec(self.axis)

        def everywhere(parts: Any, *vectors: Any) -> Any:
            piece = self.piece_of(vectors[0]) if vectors else part
            return self.mapped(body, (part, *(piece for _ in vectors)), piece)(parts, *vectors)

        out = mesh_axes.spec_like(vectors[0], self.axis) if vectors else part
        return self.by_xla(everywhere, (parts, *vectors), out)

    def by_xla(self, f: Callable[..., Any], operands: tuple[Any, ...], out: Any) -> Any:
        """f(*operands) with the axis as an auto axis; see `mesh_axes.by_xla`."""
        return mesh_axes.by_xla(f, operands, out, self.mesh.abstract_mesh, mesh_axes.names(self.axis))

    def in_context(self, a: Array) -> Array:
        """An array of pieces on the mesh of the context, whose axes may be explicit where its own are auto."""
        here = jax.sharding.get_abstract_mesh()
        if here.empty or here == jax.typeof(a).sharding.mesh or self.is_manual:
            return a
        kept = tuple(axis for axis in mesh_axes.names(self.axis) if axis in mesh_axes.explicit_axes(here))
        return jax.reshard(a, NamedSharding(self.mesh_here, PartitionSpec(kept or None)))

    def emptied(self, x: Array) -> Array:
        """x [places, ...], or inside shard_map a piece [size, ...], with zeros in the empty places."""
        counts = jnp.array(self.counts, index_dtype(self.size))[:, None]
        live = lax.iota(counts.dtype, self.size) < (counts[lax.axis_index(self.axis)] if self.is_manual else counts)
        return jnp.where(live.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)


def _first(index: Any) -> int:
    return index[0].start or 0


def placing_mesh(mesh: Mesh) -> Mesh:
    """The mesh with the axis types that `jax.set_mesh` has set; without a mesh in the context, with auto axes.

    Outside `jax.set_mesh` most functions of JAX refuse arrays on explicit axes.
    """
    here = jax.sharding.get_abstract_mesh()
    same = not here.empty and here.shape_tuple == mesh.shape_tuple
    kinds = here.axis_types if same else (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
    return mesh if mesh.axis_types == kinds else Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
