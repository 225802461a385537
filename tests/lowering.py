"""Lowering for an NVIDIA GPU on a machine that need not have one; and compiling for this one in less time."""

import functools
from typing import Any

import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

# What the text of a lowered program calls the kernels of each dialect.
SIGNATURES = {"triton": "xla.gpu.triton", "mosaic": "mosaic_gpu"}

# The same program from a compiler that tries less hard: half of the time, and compiling is most of a test's.
QUICK = {"xla_backend_optimization_level": 0}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)


def gpus(**axes: int) -> AbstractMesh:
    """A mesh of GPUs that need not exist: axis names and sizes."""
    device = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="gpu")
    types = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=types, abstract_device=device)


def lowered(f: Any, *args: Any, platforms: tuple[str, ...] = ("cuda",), mesh: AbstractMesh | None = None) -> str:
    """The program that XLA gets for f(*args); `mesh` is the one that a shard_map inside names."""
    with use_abstract_mesh(mesh or gpus()):
        return jax.jit(f).trace(*args).lower(lowering_platforms=platforms).as_text()
