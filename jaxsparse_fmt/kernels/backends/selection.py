"""Selection of the backend: `use_backend`, and the meaning of "auto" on each platform."""

import contextlib
import functools
import importlib.util
import warnings
from collections.abc import Iterator

import jax

from jaxsparse_fmt._arguments import check_choice
from jaxsparse_fmt.kernels.backends.jax_versions import DIALECT_MODULES

BACKENDS = ("auto", "triton", "mosaic", "numba", "xla", "interpret")

# A user context takes part in jit's cache key, so a function traced under one backend is traced again under another.
in_use = jax.make_user_context("auto")


def check_backend(name: str) -> str:
    """`name`; ValueError, which lists the backends, if it is none."""
    check_choice("backend", name, BACKENDS)
    return name


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Inside the context, matrices whose own backend is "auto" run on `name`.

    Args:
      name: "auto" (a Pallas kernel on NVIDIA GPUs, on CPUs a kernel of Numba where the format has one, plain jnp
        elsewhere), "triton", "mosaic", "numba", "xla" (plain jnp everywhere) or "interpret" (the Pallas kernel,
        interpreted; for tests).

    Raises:
      ValueError: unknown name.

    Examples:
      >>> with js.use_backend("xla"):
      ...     y = A @ b
    """
    with in_use(check_backend(name)):
        yield


def active_backend(backend: str) -> str:
    """The backend that a matrix with this one uses here: for "auto" that of `use_backend`."""
    return in_use.value if backend == "auto" else backend


def resolve(backend: str, platform: str | None, shared: bool = False) -> str:
    """The backend of a product that is lowered for `platform`: "cuda", "cpu", or None for any other.

    Args:
      shared: whether the kernel is faster if the lanes of a block share memory.

    Returns:
      "xla", "triton", "mosaic", "numba" or "interpret". ValueError: `backend` cannot run there.
    """
    if backend == "numba":
        if platform != "cpu":
            raise ValueError(
                "backend 'numba' runs on CPUs only, and not in a program that is exported; use backend='auto'"
            )
        if not native_importable():
            raise ValueError("backend 'numba' needs the numba package: pip install numba; or use backend='auto'")
        return "numba"
    if platform != "cuda":
        if backend in ("triton", "mosaic"):
            raise ValueError(
                f"backend {backend!r} needs an NVIDIA GPU; use backend='auto', or 'interpret' to run the kernel "
                "slowly anywhere"
            )
        if backend == "auto" and platform == "cpu" and native_importable():
            return "numba"
        return "interpret" if backend == "interpret" else "xla"
    return _preferred_dialect(shared) if backend == "auto" else backend


def shares_memory(resolved: str) -> bool:
    """Whether scratch is memory that the lanes of a block share."""
    return resolved == "mosaic"


def is_pallas(resolved: str) -> bool:
    """Whether a result of `resolve` is a Pallas kernel."""
    return resolved not in ("xla", "numba")


@functools.cache
def native_importable() -> bool:
    """Whether Numba is installed; it is not imported."""
    return importlib.util.find_spec("numba") is not None


@functools.cache
def _preferred_dialect(shared: bool = False) -> str:
    """Triton from Ampere on if Pallas has it, else Mosaic GPU from Hopper on, else "xla" with one warning.

    For a kernel that gains by shared memory Mosaic GPU comes first, since Triton does not let kernels address it.
    """
    gpus = [d for d in jax.devices() if d.platform == "gpu"]
    capability = float(getattr(gpus[0], "compute_capability", "9.0")) if gpus else 9.0
    least = {"triton": 8.0, "mosaic": 9.0}
    for name in ("mosaic",) if shared else ("triton", "mosaic"):
        # Found but not imported, which takes a fifth of a second.
        if capability >= least[name] and all(map(importlib.util.find_spec, DIALECT_MODULES[name])):
            return name
    if shared:
        return _preferred_dialect()
    warnings.warn(
        "this JAX has no Pallas dialect for this GPU; products run as plain XLA, several times slower. Triton needs "
        "compute capability 8.0, Mosaic GPU 9.0 and the absl-py package.",
        stacklevel=2,
    )
    return "xla"
