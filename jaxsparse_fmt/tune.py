"""format="tune": the first few of the ranking, timed on this device; the answer is remembered on disk.

    $XDG_CACHE_HOME/jaxsparse/tuned.json      ~/.cache where that is not set
    {"version": 4, "fastest": {signature: {"format": "sell", "layout": {"slice_size": 128, …}, …}, …}}

A signature is the device, the version of JAX, the dtype, the backend, a hash of the pattern, and whether the values are
mirrored or some are zero: a matrix with other values of that kind asks nothing anew. The file is replaced whole, so
that a reader never sees half of it; of two processes that write at the same moment one may lose its answer, and
measures it another time. A file that cannot be read counts as empty, one that cannot be written costs a warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsparse_fmt import choose, features
from jaxsparse_fmt._clock import seconds_per_product
from jaxsparse_fmt._types import Csr, readable_seconds
from jaxsparse_fmt.choose import Choice
from jaxsparse_fmt.formats import storing
from jaxsparse_fmt.kernels import dialect
from jaxsparse_fmt.matrix import SparseMatrix, build

VERSION = 4  # of the file; to be raised when a kernel changes
CANDIDATES = 4  # formats that are timed
HOPELESS = 4.0  # times the predicted cost of the first, from which a format is not timed
KEPT = 1000  # answers, the newest


def fastest(csr: Csr, dtype: Any, backend: str, max_bytes: int | None) -> tuple[SparseMatrix, Choice]:
    """The canonical `csr` in the format that the file names, or else in the fastest of those timed now.

    Returns:
      The matrix, and the choice with the seconds that were measured.

    Raises:
      ValueError: no format fits `max_bytes` or the memory that is free.
    """
    options = {"dtype": dtype, "backend": backend, "max_bytes": max_bytes}
    path, signature = _path(), _signature(csr, dtype, dialect.active_backend(backend), max_bytes)
    # A file that somebody has edited may name what does not exist, or does not fit.
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        return choose.store([_choice(**_read(path)[signature])], csr, **options)
    A, choice = _measured(csr, options)
    answer = {name: getattr(choice, name) for name in ("format", "layout", "nbytes", "moved", "seconds")}
    _remember(path, signature, answer)
    return A, choice


def _choice(format: str, layout: dict[str, Any], nbytes: int, moved: int, seconds: float) -> Choice:
    layout = {k: tuple(v) if isinstance(v, list) else v for k, v in layout.items()}
    reason = f"the fastest of those measured, {readable_seconds(seconds)} a product"
    return Choice(format, layout, nbytes, moved, seconds, reason, seconds)


def _measured(csr: Csr, options: dict[str, Any]) -> tuple[SparseMatrix, Choice]:
    """The best layouts of the formats that rank first are stored and timed, one after the other."""
    dtype, max_bytes = options["dtype"], options["max_bytes"]
    choices = choose.fitting(choose.rank(csr, dtype, backend=options["backend"]), csr, dtype, max_bytes)
    few = choose.best_layouts(choices)[:CANDIDATES]
    best, refusal = None, None
    for choice in few:
        if choice.cost > HOPELESS * few[0].cost and best:
            break
        try:
            A = build(csr, choice.format, **options, **choice.layout)
            seconds = seconds_per_product(A)
        except (storing.TooLarge, jax.errors.JaxRuntimeError) as error:  # more memory than was estimated or is free
            refusal = error
            continue
        if best is None or seconds < best[1].seconds:
            best = A, _choice(choice.format, choice.layout, choice.nbytes, choice.moved, seconds)
    if best is None:
        raise refusal or AssertionError("the ranking is never empty")
    return best


def _signature(csr: Csr, dtype: Any, backend: str, max_bytes: int | None) -> str:
    device = jax.devices()[0]
    digest = hashlib.blake2b(digest_size=16)
    for index in (csr.indptr, csr.indices):
        digest.update(np.ascontiguousarray(index, np.int64 if csr.nnz >= 2**31 else np.int32).data)
    rows, cols = csr.shape
    # What of the values decides how formats store them, and how fast.
    kind = f"{'mirrored' if features.is_mirrored(csr) else 'any'} values{', some zero' * bool(np.any(csr.data == 0))}"
    limit = "" if max_bytes is None else f", at most {max_bytes} bytes"
    return (
        f"{device.device_kind}, jax {jax.__version__}, {np.dtype(dtype).name}, {backend}{limit}: "
        f"{rows} × {cols}, {csr.nnz} entries, {kind}, {digest.hexdigest()}"
    )


def _path() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not folder.is_absolute():  # as the XDG specification asks
        folder = Path(os.path.expanduser("~")) / ".cache"
        folder = folder if folder.is_absolute() else Path(tempfile.gettempdir())  # a user without a home
    return folder / "jaxsparse" / "tuned.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("version") != VERSION:
        return {}
    fastest = content.get("fastest")
    return fastest if isinstance(fastest, dict) else {}


def _remember(path: Path, signature: str, answer: dict[str, Any]) -> None:
    """Reads the file anew, since another process may have written in the meantime."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = _read(path)
        known.pop(signature, None)
        newest = dict(list({**known, signature: answer}.items())[-KEPT:])
        text = json.dumps({"version": VERSION, "fastest": newest}, indent=1, ensure_ascii=False)
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".tuned-", text=True)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text + "\n")
            os.replace(scratch, path)
        finally:
            Path(scratch).unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"the fastest format cannot be remembered in {path}: {error}", stacklevel=4)
