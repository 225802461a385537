"""format="tune": the first few formats of the ranking, timed on this device; a file keeps the answer.

    $XDG_CACHE_HOME/jaxsparse/tuned.json      ~/.cache where that is not set
    {"version": 4, "fastest": {signature: {"format": "sell", "layout": {"slice_size": 128, …}, …}, …}}

A signature is the device, the version of JAX, the dtype, the backend, a hash of the pattern, and whether the values are
mirrored or some are zero: a matrix with other values of that kind is not measured anew. The file is replaced whole, so
that a reader never sees half of it; of two processes that write at the same moment one may lose its answer, and
measures it another time. An unreadable file counts as absent, and so does an answer that no format takes; a file that
cannot be written causes a warning.
"""

import contextlib
import dataclasses
import hashlib
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsparse_fmt._types import Csr, Target, make_private, readable_seconds, user_cache, write_whole
from jaxsparse_fmt.choose import ranking
from jaxsparse_fmt.choose.ranking import Choice
from jaxsparse_fmt.choose.timing import seconds_per_product
from jaxsparse_fmt.core.matrix import FORMATS, SparseMatrix, build
from jaxsparse_fmt.formats import building, memory, statistics
from jaxsparse_fmt.kernels.backends import selection

VERSION = 4  # of the file; to be raised when a kernel changes
CANDIDATES = 4  # formats that are timed
HOPELESS = 4.0  # times the predicted cost of the first, from which a format is not timed
KEPT = 1000  # answers, the newest
LARGEST = 10_000_000  # bytes of the file


def fastest(csr: Csr, target: Target) -> tuple[SparseMatrix, Choice]:
    """The canonical `csr` in the format that the file names, or in the fastest of those timed now, and that choice.

    ValueError: no format fits `target.max_bytes` or the free memory.
    """
    path, signature = answers_file(), _signature(csr, target)
    known = _read(path).get(signature)
    if known is not None:
        with contextlib.suppress(TypeError, ValueError):  # what the file names no longer fits, or has been edited
            return ranking.store([_choice(**known)], csr, target)
    A, choice = _measured(csr, target)
    answer = {name: getattr(choice, name) for name in ("format", "layout", "nbytes", "moved", "seconds")}
    _remember(path, signature, answer)
    return A, choice


def _choice(format: str, layout: dict[str, Any], nbytes: int, moved: int, seconds: float) -> Choice:
    costs = all(type(v) in (int, float) and 0 <= v < np.inf for v in (nbytes, moved, seconds))
    if format not in FORMATS or not isinstance(layout, dict) or not costs:
        raise ValueError("an answer has a format of FORMATS, its layout, and finite costs")
    layout = {k: tuple(v) if isinstance(v, list) else v for k, v in layout.items()}
    reason = f"the fastest of those measured, {readable_seconds(seconds)} a product"
    return Choice(format, layout, nbytes, moved, seconds, reason, seconds)


def _measured(csr: Csr, target: Target) -> tuple[SparseMatrix, Choice]:
    """The fastest of the formats that rank first, each stored in its best layout and timed, one after the other."""
    choices = ranking.rank(csr, target.dtype, backend=target.backend)
    choices = ranking.fitting(choices, csr, target.dtype, target.max_bytes)
    few = ranking.best_layouts(choices)[:CANDIDATES]
    best: tuple[SparseMatrix, Choice] | None = None
    refused: list[tuple[str, Exception]] = []
    for choice in few:
        if choice.cost > HOPELESS * few[0].cost and best:
            break
        try:
            A = build(csr, choice.format, target, **choice.layout)
            seconds = seconds_per_product(A)
        except (building.TooLarge, MemoryError, jax.errors.JaxRuntimeError) as error:
            if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            refused.append((choice.format, error))  # it takes more memory than was estimated, or than is free
            continue
        if best is None or seconds < best[1].seconds:
            best = A, _choice(choice.format, choice.layout, choice.nbytes, choice.moved, seconds)
    passed_over = "; ".join(f"{name!r} was passed over: {error}" for name, error in refused)
    if best is None:
        refused[-1][1].add_note(passed_over)
        raise refused[-1][1]
    A, choice = best
    return A, dataclasses.replace(choice, reason="; ".join(filter(None, (choice.reason, passed_over))))


def _signature(csr: Csr, target: Target) -> str:
    device = memory.device()
    digest = hashlib.blake2b(digest_size=16)
    for index in (csr.indptr, csr.indices):
        digest.update(np.ascontiguousarray(index, np.int64 if csr.nnz >= 2**31 else np.int32).data)
    rows, cols = csr.shape
    # The properties of the values on which storage and speed depend.
    kind = f"{'mirrored' if statistics.is_mirrored(csr) else 'any'} values{', some zero' * bool(np.any(csr.data == 0))}"
    limit = "" if target.max_bytes is None else f", at most {target.max_bytes} bytes"
    backend = selection.active_backend(target.backend)
    return (
        f"{device.device_kind}, jax {jax.__version__}, {target.dtype.name}, {backend}{limit}: "
        f"{rows} × {cols}, {csr.nnz} entries, {kind}, {digest.hexdigest()}"
    )


def answers_file() -> Path:
    """The file of the answers, which may not exist yet."""
    return (user_cache() or Path(tempfile.gettempdir()) / "jaxsparse") / "tuned.json"


def _read(path: Path) -> dict[str, Any]:
    """The answers in the file by signature, unchecked."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("version") != VERSION:
        return {}
    fastest = content.get("fastest")
    return fastest if isinstance(fastest, dict) else {}


def _remember(path: Path, signature: str, answer: dict[str, Any]) -> None:
    """Adds the answer to the file, which it reads anew, since another process may have written in the meantime."""
    try:
        make_private(path.parent)  # machine code lies in it too
        known = _read(path)
        known.pop(signature, None)
        newest = dict(list({**known, signature: answer}.items())[-KEPT:])
        text = json.dumps({"version": VERSION, "fastest": newest}, indent=1, ensure_ascii=False)
        write_whole(path, (text + "\n").encode())
    except OSError as error:
        warnings.warn(f"the fastest format cannot be remembered in {path}: {error}", stacklevel=4)
