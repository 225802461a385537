"""A system on the device: its matrix stored, a solver compiled for it, and products timed."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jaxsparse_fmt import choose, traffic
from jaxsparse_fmt.convert import from_scipy
from jaxsparse_fmt.matrix import SparseMatrix


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
        x = jnp.ones(self.A.shape[1], self.A.dtype)
        product = jax.jit(lambda A, x: A @ x).lower(self.A, x).compile()
        return median_seconds(lambda: product(self.A, x))


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
    choices = choose.rank(S, dtype)
    if format == "auto":
        choice, why = choices[0], f"ranked first of {len(choices)}: {choices[0].reason}"
    else:
        choice, why = next((c for c in choices if c.format == format), None), "asked for"
    layout: dict[str, Any] = choice.layout if choice else {}
    A = from_scipy(S, choice.format if choice else format, dtype, backend=backend, **layout)
    if choice is not None:
        return Stored(A, why, choice.moved)
    return Stored(A, why, traffic.bytes_moved(A.nbytes, A.shape, dtype.itemsize))


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


def median_seconds(run: Callable[[], Any], rounds: int = 7, seconds: float = 0.02) -> float:
    """The median time of one `run()`, warmed up. A round makes as many as take `seconds`, so that
    the wait for the device is shared among them."""
    jax.block_until_ready(run())
    start = time.perf_counter()
    jax.block_until_ready(run())
    calls = int(np.clip(seconds / (time.perf_counter() - start), 1, 100))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready([run() for _ in range(calls)])
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)


def device() -> str:
    """The device that JAX computes on, for people."""
    first = jax.devices()[0]
    return "the CPU" if first.platform == "cpu" else first.device_kind
