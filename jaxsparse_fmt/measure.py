"""A system on the device: its matrix stored, a solver compiled for it, and products timed."""

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

__all__ = ["Stored", "System", "device", "median_seconds", "prepare", "seconds_per_product", "store"]


@dataclasses.dataclass(frozen=True)
class Stored:
    """A matrix on the device.

    Attributes:
      why: the reason for its format.
      moved: bytes that a product moves, by the model of `choose`; for a format that it does not rank, all it stores.
    """

    A: SparseMatrix
    why: str
    moved: int

    def seconds_per_product(self) -> float:
        return seconds_per_product(self.A)


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


def store(S: scipy.sparse.csr_array, dtype: np.dtype, format: str = "auto", backend: str = "auto") -> Stored:
    """S in the given format, with the layout that `choose.rank` finds best for it.

    Raises:
      ValueError, TypeError: as `from_scipy` does.
    """
    csr = canonical(S)
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
    return Stored(A, "asked for", choice.moved if choice else traffic.bytes_moved(A.nbytes, A.shape, dtype.itemsize))


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


def device() -> str:
    """The device that JAX computes on, for people."""
    first = jax.devices()[0]
    return "the CPU" if first.platform == "cpu" else first.device_kind
