"""What takes the site long to make, kept by a digest of what it comes from.

It lies in the folder that JAXSPARSE_KEPT_DOCS names, or in `build/docs/kept`.
"""

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = Path(os.environ.get("JAXSPARSE_KEPT_DOCS", ROOT / "build/docs/kept"))
PACKAGES = ("jaxsparse_fmt", "solvers")
VERSIONS = ("jax", "numpy", "scipy", "matplotlib")


def kept(name: str, sources: list[Path], make: Callable[[Path], None]) -> Path:
    """The folder that `make` filled, which runs only if a source, a package or a version changed.

    Args:
      sources: files that the outputs come from, beside the packages.
      make: writes its files into the folder that it gets.
    """
    digest = hashlib.sha256(_common())
    for path in sources:
        digest.update(path.read_bytes())
    folder = KEPT / f"{name}-{digest.hexdigest()[:20]}"
    if folder.exists():
        os.utime(folder)  # the oldest of a shared folder go first
        return folder
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT, prefix=".") as scratch:
        filled = Path(scratch) / "filled"
        filled.mkdir()
        make(filled)
        try:
            filled.rename(folder)  # whole, or not at all
        except OSError:
            if not folder.exists():
                raise  # else another build kept the same
    return folder


@functools.cache
def _common() -> bytes:
    """A digest of the packages and of the versions of what they import."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix == ".py":
                digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    for name in VERSIONS:
        digest.update(f"{name} {version(name)}\n".encode())
    return digest.digest()
