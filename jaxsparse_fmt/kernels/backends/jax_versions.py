"""Differences between versions of JAX, and JAX's types of arrays inside shard_map."""

import contextlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax import lax
from jax.core import ShapedArray, Tracer
from jax.extend.core import get_opaque_trace_state
from jax.sharding import PartitionSpec

# XLA's older emitters compile a program for a CPU in less time; JAX 0.11 has none. For a GPU XLA compiles and times
# several kernels for some fusions: without these trials the steps of gmres take up to 1.2 times as long.
QUICK_TO_COMPILE: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}

# What must be installed for each of Pallas' dialects. No JAX wheel requires absl.
DIALECT_MODULES = {"triton": ["jax.experimental.pallas.triton"], "mosaic": ["jax.experimental.pallas.mosaic_gpu"]}
if jax.__version_info__ < (0, 11):
    DIALECT_MODULES["mosaic"].append("absl")


def is_traced_here() -> bool:
    """Whether jit, vmap or a derivative traces the caller; as `in_trace`, in a twentieth of its time."""
    return get_opaque_trace_state(convention="flax") != _OUTSIDE


with ThreadPoolExecutor(1) as thread:  # which traces nothing, as this one may: a first `js.cg` imports inside a jit
    _OUTSIDE = thread.submit(get_opaque_trace_state, convention="flax").result()


@contextlib.contextmanager
def without_deprecation() -> Iterator[None]:
    """Ignores the deprecation of Pallas' Triton lowering while a program is lowered; `selection` handles its end."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Triton.*", category=DeprecationWarning)
        yield


def find_triton_dialect() -> None:
    """Gives Triton's dialect the name by which MLIR imports it for each type and value; a third of a lowering's time.

    No module has that name, and Python does not remember that an import failed.
    """
    from jaxlib.triton import dialect

    sys.modules.setdefault("jaxlib.mlir.dialects.tt", dialect)


def lowering_platform(platform: str | None, ctx: Any) -> str | None:
    """`platform`, or None for a CPU program that will be exported, which may not call kernels of this process."""
    parameters = ctx.module_context.lowering_parameters
    return None if platform == "cpu" and getattr(parameters, "for_export", False) else platform


def bare(ctx: Any) -> Any:
    """The context of a lowering without the mesh axes over which arrays vary; one device's body ignores them."""
    avals = [ShapedArray(a.shape, a.dtype) for a in (*ctx.avals_in, *ctx.avals_out)]
    return ctx.replace(avals_in=avals[: len(ctx.avals_in)], avals_out=avals[len(ctx.avals_in) :])


def varying_axes(a: jax.Array) -> frozenset[Any]:
    """The mesh axes over which `a` varies inside shard_map."""
    aval: Any = jax.typeof(a)
    return aval.manual_axis_type.varying


def vary(a: jax.Array, axes: frozenset[Any]) -> jax.Array:
    """`a` as an array that varies over `axes`; the transpose sums over the axes over which `a` did not vary."""
    missing = tuple(axes - varying_axes(a))
    return lax.pcast(a, missing, to="varying") if missing else a


def abstract_like(avals: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """The type of an unsharded array on the mesh of `avals` that varies over the same axes as they all do."""
    like = ([a for a in avals if not a.sharding.mesh.empty] or avals)[0]
    sharding = like.sharding.update(spec=PartitionSpec(*[None] * len(shape)))
    return like.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


def varying_like(out: jax.ShapeDtypeStruct, a: jax.Array) -> jax.ShapeDtypeStruct:
    """`out`, declared to vary over the mesh axes of `a`; Pallas requires this inside shard_map."""
    aval: Any = jax.typeof(a)
    return jax.ShapeDtypeStruct(out.shape, out.dtype, sharding=out.sharding, manual_axis_type=aval.manual_axis_type)


def where_made(a: jax.Array, *others: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which what is computed of `a`, which is traced, and of `others` is part of the program that made
    `a`: outside the loops whose bodies close over it. Inside shard_map, or if another was made further inside, or in a
    JAX without the means, none.
    """
    try:
        from jax._src.core import set_current_trace
    except ImportError:
        return contextlib.nullcontext()
    trace, around = a._trace, []  # pyright: ignore[reportAttributeAccessIssue]
    while trace is not None:
        around.append(trace)
        trace = getattr(trace, "parent_trace", None)
    is_inside = any(isinstance(b, Tracer) and b._trace not in around for b in others)
    if is_inside or jax.sharding.get_abstract_mesh().manual_axes:
        return contextlib.nullcontext()
    return set_current_trace(around[0])


def batch_axes() -> frozenset[Any]:
    """The mesh axes that `vmap(spmd_axis_name=)` around the code that is traced here has taken."""
    from jax._src.core import get_axis_env

    return get_axis_env().spmd_axis_names


def coordination_service() -> tuple[Any, str]:
    """The service through which the processes of `jax.distributed` find one another, a store of bytes by keys; and the
    host of process 0.
    """
    from jax._src.distributed import global_state

    return global_state.client, (global_state.coordinator_address or "").rpartition(":")[0].strip("[]")


def forget_tokens() -> None:
    """Forgets the tokens by which JAX orders and awaits callbacks: those of a program that failed pass its error on."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import dispatch

        dispatch.runtime_tokens.clear()
