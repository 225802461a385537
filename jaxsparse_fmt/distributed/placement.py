"""Places arrays on devices: which parts this process's devices hold, and how parts get there from the host."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsparse_fmt.core.mesh_axes import names
from jaxsparse_fmt.distributed.distribution import Distribution

Array = jax.Array


def sharded(piece: Callable[[int], np.ndarray], over: Distribution) -> Array:
    """An array [parts, ...] of the parts piece(part), each made on the host and put directly on its device."""
    like = piece(local_parts(over)[0])
    made = functools.cache(piece)
    sharding = NamedSharding(over.mesh, PartitionSpec(over.axis))
    shape = (len(over.counts), *like.shape)
    return jax.make_array_from_callback(shape, sharding, lambda index: made(_first(index))[None])


def _first(index: Any) -> int:
    return index[0].start or 0


def local_parts(over: Distribution) -> list[int]:
    """The numbers of the parts that lie on devices of this process, rising."""
    axes, me = [over.mesh.axis_names.index(axis) for axis in names(over.axis)], jax.process_index()
    by_part = np.moveaxis(over.mesh.devices, axes, range(len(axes))).reshape(len(over.counts), -1)
    return [k for k, devices in enumerate(by_part) if any(d.process_index == me for d in devices)]


def placing_mesh(mesh: Mesh) -> Mesh:
    """The mesh with the axis types that `jax.set_mesh` has set; without a mesh in the context, with auto axes.

    Outside `jax.set_mesh` most functions of JAX refuse arrays on explicit axes.
    """
    here = jax.sharding.get_abstract_mesh()
    same = not here.empty and here.shape_tuple == mesh.shape_tuple
    kinds = here.axis_types if same else (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
    return mesh if mesh.axis_types == kinds else Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
