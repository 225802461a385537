"""A system on a device, or on several: its matrix stored, a solver compiled for it, products and steps timed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jaxsparse_fmt import choose, traffic, tune
from jaxsparse_fmt._clock import median_seconds, seconds_per_product
from jaxsparse_fmt.convert import canonical, from_scipy
from jaxsparse_fmt.matrix import SparseMatrix

__all__ = [
    "Stored",
    "System",
    "device",
    "first_devices",
    "median_seconds",
    "prepare",
    "seconds_per_product",
    "seconds_per_step",
    "store",
]


@dataclasses.dataclass(frozen=True)
class Stored:
    """A matrix on the device.

    Attributes:
      A: of one device, or sharded over several.
      why: the reason for its format.
      moved: bytes that a product moves, by the model of `choose`; for a format that it does not rank, all it stores.
    """

    A: Any
    why: str
    moved: int

    def seconds_per_product(self) -> float:
        if isinstance(self.A, SparseMatrix):
            return seconds_per_product(self.A)
        ones = jnp.ones(self.A.shape[1], self.A.dtype)  # spread over devices: as solvers see it
        return seconds_per_product(self.A.in_basis, self.A.basis.enter(ones))


@dataclasses.dataclass(frozen=True)
class System:
    """A·x = b on the device, and a solver compiled for it, called as solver(A, b, M=M)."""

    stored: Stored
    b: jax.Array  # [n]
    M: Any
    solver: Callable[..., Any]

    def solve(self) -> Any:
        """The solver's result, complete on the device."""
        solution = jax.block_until_ready(self.solver(self.stored.A, self.b, M=self.M))
        jax.effects_barrier()  # the last progress report
        return solution


def store(
    S: scipy.sparse.csr_array,
    dtype: np.dtype,
    format: str = "auto",
    backend: str = "auto",
    devices: int = 1,
    **options: Any,
) -> Stored:
    """S in the given format: on one device with the layout that `choose.rank` finds best for it.

    Args:
      devices: the first so many hold its rows.
      options: of `shard`, for more than one.

    Raises:
      ValueError, TypeError: as `from_scipy` does; there are fewer devices.
    """
    csr = canonical(S)
    if devices > 1:
        A = _sharded(csr, first_devices(devices), format=format, dtype=dtype, backend=backend, **options)
        return Stored(A, A.told.format, traffic.bytes_moved(A.nbytes, A.shape, dtype.itemsize))
    if format == "tune":
        A, choice = tune.fastest(csr, dtype, backend, None)
        return Stored(A, choice.reason, choice.moved)
    choices = choose.rank(csr, dtype, backend=backend)
    if format == "auto":
        A, choice = choose.store(choices, csr, dtype=dtype, backend=backend)
        place = choices.index(choice) + 1
        first = "first" if place == 1 else f"{place}, the first that fits the memory,"
        return Stored(A, f"ranked {first} of {len(choices)}: {choice.reason}", choice.moved)
    choice = next((c for c in choices if c.format == format), None)
    A = from_scipy(csr, format, dtype, backend=backend, **(choice.layout if choice else {}))
    return Stored(
        A, "asked for", choice.moved if choice else traffic.bytes_moved(A.nbytes_read, A.shape, dtype.itemsize)
    )


def first_devices(count: int) -> list[Any]:
    """The first `count` devices that JAX sees.

    Raises:
      ValueError: there are fewer.
    """
    found = jax.devices()
    if count > len(found):
        cure = "; XLA_FLAGS=--xla_force_host_platform_device_count=8 makes it eight" if device() == "the CPU" else ""
        raise ValueError(f"{count} devices were asked for, and JAX sees {len(found)}: {device()}{cure}")
    return found[:count]


def _sharded(S: scipy.sparse.csr_array, devices: list[Any], **options: Any) -> Any:
    from jaxsparse_fmt.partition import shard  # one device does not pay for many

    return shard(S, jax.sharding.Mesh(np.array(devices), ("rows",)), **options)


def prepare(
    solver: Callable[..., Any],
    stored: Stored,
    b: np.ndarray,  # [n]
    precondition: Callable[[SparseMatrix], Any] | None = None,
    **options: Any,
) -> System:
    """Compiles the solver, called inside jit as solver(A, b, M=precondition(A), **options)."""
    A, on_device = stored.A, jnp.asarray(b, stored.A.dtype)
    M = None if precondition is None else jax.jit(precondition)(A)  # op by op it compiles for seconds
    compiled = jax.jit(functools.partial(solver, **options)).lower(A, on_device, M=M).compile()
    return System(stored, on_device, M, compiled)


def seconds_per_step(solver: Callable[..., Any], A: Any, b: Any, steps: int = 200) -> float:
    """Seconds of an iteration of solver(A, b, rtol, maxiter): what many take more than a few.

    Where noise hides that, the mean of many, with what a solve takes beside them.

    Raises:
      ValueError: it ends after fewer than 10.
    """

    run = jax.jit(lambda A, b, maxiter: solver(A, b, rtol=0.0, maxiter=maxiter)).lower(A, b, jnp.int32(0)).compile()
    did = int(run(A, b, jnp.int32(steps)).iterations)
    if did < 10:
        raise ValueError(f"the solver ends after {did} steps; too few to time")
    many, few = jnp.int32(did), jnp.int32(did // 5)
    all_, start = median_seconds(lambda: run(A, b, many)), median_seconds(lambda: run(A, b, few))
    return (all_ - start) / (did - did // 5) if all_ > start else all_ / did


def device() -> str:
    """The device that JAX computes on, for people."""
    first = jax.devices()[0]
    return "the CPU" if first.platform == "cpu" else first.device_kind
