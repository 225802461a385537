"""Prints what a bug report needs, and whether products run in a kernel here: python -m jaxsparse_fmt.doctor

Lines on standard output: versions, the folder of compiled programs, and for each device of JAX the kernel that a
product ran in, and how far the result is from SciPy's. The exit code is 0 if all results agree, else 1.
"""

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxsparse_fmt._version import __version__
from jaxsparse_fmt.convert import from_scipy
from jaxsparse_fmt.gallery import poisson
from jaxsparse_fmt.kernels.backends import selection

PACKAGES = ["jax", "jaxlib", "numpy", "scipy", "numba", "absl-py", "matplotlib", "pyamg", "lineax"]
SETTINGS: Any = jax.config
CUSTOM_CALL = re.compile(r'custom_call_target="([^"]+)"')
TOLERANCE = 1e-5  # of a product in float32, relative to its largest number


def main() -> int:
    """Prints all lines and returns the exit code."""
    print(*versions(), sep="\n")
    agree = True
    for device in jax.devices():
        line, agrees = product_on(device)
        print(line)
        agree &= agrees
    return 0 if agree else 1


def versions() -> Iterator[str]:
    yield f"jaxsparse {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    wide = "on" if SETTINGS.jax_enable_x64 else "off: jax.config.update('jax_enable_x64', True) for float64"
    yield f"64 bits: {wide}"
    yield f"compiled programs: {SETTINGS.jax_compilation_cache_dir or 'not kept by this process'}"


def product_on(device: Any) -> tuple[str, bool]:
    """A line about a product on the device, and whether it agrees with SciPy's."""
    S = poisson(16)
    x = np.random.default_rng(0).standard_normal(S.shape[1]).astype(np.float32)
    with jax.default_device(device):
        A = from_scipy(S, dtype="float32")
        compiled = jax.jit(lambda A, x: A @ x).lower(A, x).compile()
        y = np.asarray(compiled(A, x))
    exact = S @ x.astype(float)
    error = float(np.max(np.abs(y - exact)) / np.max(np.abs(exact)))
    kernels = ", ".join(dict.fromkeys(CUSTOM_CALL.findall(compiled.as_text() or ""))) or "none: plain XLA"
    backend = selection.resolve("auto", {"gpu": "cuda"}.get(device.platform, device.platform))
    agrees = error < TOLERANCE
    found = "agrees with SciPy" if agrees else "DISAGREES with SciPy"
    where = f"{device} ({device.device_kind})"
    return f"{where}: format {A.name}, backend {backend}, kernel {kernels}; {found}, error {error:.0e}", agrees


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


if __name__ == "__main__":
    sys.exit(main())
