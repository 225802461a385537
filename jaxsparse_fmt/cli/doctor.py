"""`jaxsparse doctor`: what a bug report needs, and whether products and solves work on every device."""

import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import solvers
from jaxsparse_fmt._types import CORES
from jaxsparse_fmt._version import __version__
from jaxsparse_fmt.cli import tables
from jaxsparse_fmt.convert import from_scipy
from jaxsparse_fmt.gallery import poisson
from jaxsparse_fmt.kernels.backends import selection

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "numba", "absl-py", "matplotlib", "pyamg", "lineax")
CUSTOM_CALL = re.compile(r'custom_call_target="([^"]+)"')
TOLERANCES = {"product": 1e-5, "solve": 1e-3}  # in float32, relative to the largest number
REPORT = "report it with these lines; until then try `with jaxsparse.use_backend('xla')`"
CURES = {"cpu": "pip install numba", "gpu": "pip install '.[cuda13]'; GPUs before Ampere, and AMD's, have no kernels"}


def run(args: Any, progress: Any) -> tables.Done:
    del args, progress
    settings: Any = jax.config
    rows = [("jaxsparse", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")]
    rows += [(name, importlib.metadata.version(name) if _is_here(name) else "absent") for name in PACKAGES]
    wide = "on" if settings.jax_enable_x64 else "off; jax.config.update('jax_enable_x64', True) for float64"
    rows += [("64 bits", wide), ("threads", f"{CORES} cores for this process")]
    rows += [("compiled programs", settings.jax_compilation_cache_dir or "not kept")]
    found = [line for device in jax.devices() for line in checked(device)]
    rows += [(name, text if works else f"FAILED: {text}") for name, text, works in found]
    code = 0 if all(works for *_, works in found) else 1
    return tables.Done(dict(rows), [tables.facts("This installation", rows)], code=code)


def checked(device: Any) -> Iterator[tuple[str, str, bool]]:
    """(name, text, whether it works) of the kernel, a product and a solve; the text of a failure has a cure."""
    S, exact = poisson(16), np.random.default_rng(0).standard_normal(16**3).astype(np.float32)
    try:
        with jax.default_device(device), jax.enable_x64(False):
            A = from_scipy(S, dtype="float32")
            product = jax.jit(lambda A, x: A @ x).lower(A, exact).compile()
            given = {"product": np.asarray(product(A, exact)), "solve": np.asarray(solvers.cg(A, S @ exact).x)}
    except Exception as error:  # of whatever kind: the command exists to show it
        yield str(device), f"{type(error).__name__}: {error}; {REPORT}", False
        return
    kernel = ", ".join(dict.fromkeys(CUSTOM_CALL.findall(product.as_text() or "")))
    backend = selection.resolve("auto", {"gpu": "cuda"}.get(device.platform, device.platform))
    slow = f"none: plain XLA, which is slower; {CURES.get(device.platform, 'this device has none')}"
    text = f"{device.device_kind}, format {A.name}, backend {backend}, kernel {kernel or slow}"
    yield str(device), text, bool(kernel) or backend == "xla"
    for name, true in (("product", S @ exact), ("solve", exact)):
        error = float(np.max(np.abs(given[name] - true)) / np.max(np.abs(true)))
        works = error < TOLERANCES[name]
        yield f"{name} on {device}", f"{'agrees' if works else REPORT}; error against SciPy {error:.0e}", works


def _is_here(package: str) -> bool:
    return importlib.util.find_spec({"absl-py": "absl"}.get(package, package)) is not None
