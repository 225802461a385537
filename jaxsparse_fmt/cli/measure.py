"""The objects that commands time: a matrix stored on one or several devices, its compiled solver, products."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import Target
from jaxsparse_fmt.choose import ranking, tune
from jaxsparse_fmt.choose.timing import seconds_per_product
from jaxsparse_fmt.convert import from_scipy
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.distributed import shard
from jaxsparse_fmt.formats import footprint
from jaxsparse_fmt.formats.canonical import canonical
from solvers import solve


@dataclasses.dataclass(frozen=True)
class Stored:
    """A matrix on the device.

    Attributes:
      A: of one device, or sharded over several.
      why: the reason for its format.
      moved: bytes that a product moves: what it reads of A, and each vector once.
    """

    A: Any
    why: str
    moved: int

    def seconds_per_product(self) -> float:
        if isinstance(self.A, SparseMatrix):
            return seconds_per_product(self.A)
        ones = jnp.ones(self.A.shape[1], self.A.dtype)  # sharded: timed in the basis, as in solvers
        return seconds_per_product(self.A.in_basis, self.A.basis.enter(ones))


def store(
    S: scipy.sparse.csr_array, dtype: np.dtype, format: str = "auto", backend: str = "auto", devices: int = 1
) -> Stored:
    """S in the given format; on one device in that format's best layout by `choose.rank`. Errors as in `from_scipy`."""
    csr = canonical(S)
    if devices > 1:
        mesh = jax.sharding.Mesh(np.array(first_devices(devices)), ("rows",))
        A = shard(csr, mesh, format=format, dtype=dtype, backend=backend)
        return Stored(A, A.record.format, footprint.bytes_moved(A.nbytes, A.shape, dtype.itemsize))
    if format == "tune":
        A, choice = tune.fastest(csr, Target(dtype, backend))
        return Stored(A, choice.reason, choice.moved)
    choices = ranking.rank(csr, dtype, backend=backend)
    if format == "auto":
        A, choice = ranking.store(choices, csr, Target(dtype, backend))
        rank = choices.index(choice) + 1
        first = "first" if rank == 1 else f"{rank}, the first that fits the memory,"
        return Stored(A, f"ranked {first} of {len(choices)}: {choice.reason}", choice.moved)
    layout = next((c.layout for c in choices if c.format == format), {})
    A = from_scipy(csr, format, dtype, backend=backend, **layout)
    return Stored(A, "asked for", footprint.bytes_moved(A.nbytes_read, A.shape, dtype.itemsize))


def first_devices(count: int) -> list[Any]:
    """The first `count` devices that JAX sees. Raises ValueError if there are fewer."""
    found = jax.devices()
    if count > len(found):
        cure = "; XLA_FLAGS=--xla_force_host_platform_device_count=8 makes it eight" if device() == "the CPU" else ""
        raise ValueError(f"{count} devices were asked for, and JAX sees {len(found)}: {device()}{cure}")
    return found[:count]


def prepare(
    solver: Callable[..., Any],
    stored: Stored,
    b: np.ndarray,  # [n]
    M: Any = None,
    x0: np.ndarray | None = None,  # [n]
    **options: Any,
) -> Callable[[], Any]:
    """A function that returns solver(A, b, x0, M=M, **options), complete on the device; it is compiled here, except
    `solve`, which looks at the outcome outside jit.
    """
    A = stored.A
    given = A, jnp.asarray(b, A.dtype), None if x0 is None else jnp.asarray(x0, A.dtype)
    run: Any = functools.partial(solver, **options)
    if solver is not solve:
        run = jax.jit(run).lower(*given, M=M).compile()

    def solved() -> Any:
        solution = jax.block_until_ready(run(*given, M=M))
        jax.effects_barrier()  # the last progress report
        return solution

    return solved


def relative_residual(S: scipy.sparse.csr_array, b: np.ndarray, x: np.ndarray) -> float:
    """‖b − A·x‖ / ‖b‖ by SciPy's product, ‖A·x‖ for b = 0; b and x are [n]."""
    return float(np.linalg.norm(b - S @ x) / (np.linalg.norm(b) or 1.0))


def device() -> str:
    """The device that JAX computes on, for people."""
    first = jax.devices()[0]
    return "the CPU" if first.platform == "cpu" else first.device_kind
