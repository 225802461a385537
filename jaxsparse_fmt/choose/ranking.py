"""format="auto": the formats ranked by the bytes that a product moves, by a few rules.

Each format's `_footprints` counts what a product moves. On a GPU `cost_on_gpu` weighs these bytes by four rules, which
`python -m benchmarks choices` judges by the committed tables of `benchmarks spmv`.
"""

import contextlib
import dataclasses
import math
import operator
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy

from jaxsparse_fmt._arguments import check_choice
from jaxsparse_fmt._dtypes import floating_dtype
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt._tracing import concrete, device_of
from jaxsparse_fmt._types import Csr, CsrArrays, Target
from jaxsparse_fmt.core.matrix import FORMATS, SparseMatrix
from jaxsparse_fmt.formats import building, memory
from jaxsparse_fmt.formats.canonical import canonical
from jaxsparse_fmt.formats.footprint import SECTOR, PatternCounts, Storage, bytes_moved
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.cpu.abi import FLOATS

# GPU, by both suites on an H100 (2026-11-27_suite_h100.md and its second half).
OF_CSR = 1.3  # times its bytes, since the threads of a warp wait for their longest row
ONE_BY_ONE = 2.5  # times the bytes of a sum that is stored by itself
OF_L2 = 0.5  # times the bytes of x that are read from the L2 cache
A_TRIP = 1.6e6  # bytes that memory moves in a round of loads of the longest row
HIDDEN = 0.1  # of the lesser of moving and waiting, which the greater does not hide entirely

# CPU, kernels of Numba for these formats alone (2026-11-26_suite_cpu.md).
NATIVE = {"csr": 1.05, "dia": 1.0}

# CPU, plain XLA, in places of ELL: a place of a format whose columns XLA adds one by one; an entry that XLA scatters to
# its row, in CSR and in formats with uneven slices. Decoding a narrow index takes the time that it saves, so bytes do
# not count. Measured on 2026-11-20.
WALKED = {"ell": 1.0, "hll": 1.1, "sell": 1.1, "dia": 1.25}
SCATTERED = 14.0

MISJUDGED = 1.4  # times the estimated bytes that a product may read for a choice to stand
ROOM = 1.1  # times the estimated bytes of a matrix and two vectors that must be free, since an estimate may be low


@dataclasses.dataclass(frozen=True)
class Choice:
    """One format and layout for a matrix.

    Attributes:
      format: name in `FORMATS`.
      layout: its options for `from_scipy`.
      nbytes: bytes of storage that a product reads; an estimate from a sample of rows for a large matrix in "sell",
        "hdia", "bsr", "dia" and "csr5".
      moved: bytes that a product moves: `nbytes`, each vector once, and the copy of x if the product makes one.
      cost: bytes as which the product counts, by the rules; the ranking's key.
      reason: why, in words.
      unread: bytes of values that are stored but not in `nbytes` ("dia").
    """

    format: str
    layout: dict[str, Any]
    nbytes: int
    moved: int
    cost: float
    reason: str
    unread: int = 0


def rank(S: Any, dtype: Any = None, platform: str | None = None, backend: str = "auto") -> list[Choice]:
    """The formats that fit the matrix, best first.

    Takes a few passes over the row lengths and looks at the columns of a sample of rows, less than a conversion does.

    Args:
      S: scipy.sparse matrix or array, or a matrix of ours, whose backend and device count if `backend` is "auto" and
        `platform` is None.
      dtype: of the stored values; None takes S's.
      platform: "cpu" or "gpu"; None: of the device on which JAX puts arrays, which `jax.default_device` sets.
      backend: as in `from_scipy`. What runs as plain XLA on a GPU is ranked as on a CPU without Numba.

    Returns:
      At least one `Choice`: CSR always fits the matrix, if not the memory.

    Raises:
      ValueError: another platform or backend, an index out of range, or a broken row pointer. TypeError: S is no
        sparse matrix.

    Examples:
      >>> js.choose.rank(S)[0].format in js.FORMATS
      True
    """
    if platform is not None:
        check_choice("platform", platform, ("gpu", "cpu"), ", or None for the one that JAX runs on")
    selection.check_backend(backend)
    device = device_of(S)
    if hasattr(S, "to_scipy"):
        backend = S.backend if backend == "auto" and isinstance(S, SparseMatrix) else backend
        dtype = S.dtype if dtype is None else dtype
        S = S if isinstance(S, CsrArrays) else S.to_scipy()
    elif not scipy.sparse.issparse(S) or S.ndim != 2:
        raise TypeError(f"rank takes a 2-D matrix of scipy.sparse, got {type(S).__name__}; make a csr_array of it")
    csr: Csr = S if isinstance(S, CsrArrays) else canonical(S)
    dtype = floating_dtype(csr.data.dtype, "the matrix") if dtype is None else np.dtype(dtype)
    backend = selection.active_backend(backend)
    kernels = _kernels(dtype, platform, backend, device)
    platform = "gpu" if kernels == "gpu" else "cpu"
    shares = platform == "gpu" and selection.shares_memory(selection.resolve(backend, "cuda", shared=True))
    pattern = PatternCounts(csr, dtype, platform, shares)
    choices = []
    for name in NATIVE if kernels == "numba" else FORMATS:
        for storage in FORMATS[name]._footprints(pattern):
            choices.append(_choice(storage, pattern, kernels))
    return sorted(choices, key=operator.attrgetter("cost"))


def _kernels(dtype: np.dtype, platform: str | None, backend: str, device: Any) -> str | None:
    """The kernels that would run: "gpu", or "numba" on a CPU; None if plain XLA would run.

    Args:
      device: that of the products, if `platform` is None.
    """
    if platform is None:
        cuda = device.platform == "gpu" and "rocm" not in device.client.platform_version.lower()
        if device.platform != "cpu" and not cuda:
            return None
        platform = "gpu" if cuda else "cpu"
    if platform == "cpu":
        wanted = backend if backend in ("auto", "numba") else "xla"
        name = selection.resolve(wanted, "cpu")
        widened = np.dtype(jnp.promote_types(dtype, jnp.float32))  # the kernels widen 16 bits first
        return name if name == "numba" and widened in FLOATS else None
    if backend == "numba":
        return None
    return "gpu" if selection.resolve(backend, "cuda") in ("triton", "mosaic") else None


def best_layouts(choices: list[Choice]) -> list[Choice]:
    """The first of `choices` in each format, in their order.

    Examples:
      >>> best = js.choose.best_layouts(js.choose.rank(S))
      >>> len({c.format for c in best}) == len(best)
      True
    """
    of_format: dict[str, Choice] = {}
    for choice in choices:
        of_format.setdefault(choice.format, choice)
    return list(of_format.values())


def fitting(choices: list[Choice], csr: Csr, dtype: Any, max_bytes: float | None = None) -> list[Choice]:
    """The `choices` that take at most `max_bytes` and fit the free memory, in their order, for what was ranked.

    TooLarge: none does; the message names what the smallest would take, and what would fit.

    Examples:
      >>> len(js.choose.fitting(js.choose.rank(S), S, np.float64)) > 0
      True
    """
    free = memory.free()
    most, room = math.inf if max_bytes is None else max_bytes, math.inf if free is None else free
    fit = [c for c in choices if c.nbytes + c.unread <= most and (c.moved + c.unread) * ROOM <= room]
    if fit:
        return fit
    least = min(choices, key=lambda c: c.nbytes + c.unread)
    held = least.nbytes + least.unread
    takes = f"the matrix takes at least {readable_bytes(held)}, in {least.format!r}"
    if held > most:
        raise building.TooLarge(f"{takes}; max_bytes={max_bytes} allows none, max_bytes={held} would")
    assert free is not None  # or all that is allowed would fit
    cure = "free some of it, or use a device with more"
    narrow = {"float64": "float32", "complex128": "complex64", "float32": "bfloat16"}.get(np.dtype(dtype).name)
    if narrow is not None:
        smaller = min(rank(csr, narrow), key=lambda c: c.moved + c.unread)
        if (smaller.moved + smaller.unread) * ROOM <= free:
            taken = f"{readable_bytes(smaller.moved)} in {smaller.format!r}"
            cure = f"dtype={narrow!r}, which rounds the values, would take {taken}; or {cure}"
    needed = readable_bytes((least.moved + least.unread) * ROOM)
    raise building.TooLarge(
        f"{takes}, {needed} with its vectors and some room, where {readable_bytes(free)} of memory are free; {cure}"
    )


def store(choices: list[Choice], csr: Csr, target: Target) -> tuple[SparseMatrix, Choice]:
    """The canonical `csr` in the first of `choices` that fits, and which that is. TooLarge: none does."""
    *others, last = fitting(choices, csr, target.dtype, target.max_bytes)
    with concrete():
        for choice in others:
            with contextlib.suppress(building.TooLarge):  # its estimated size was too low
                A = FORMATS[choice.format].from_csr(csr, target, **choice.layout)
                if A.nbytes_read <= MISJUDGED * choice.nbytes:
                    return A, choice
        return FORMATS[last.format].from_csr(csr, target, **last.layout), last


def _choice(s: Storage, pattern: PatternCounts, kernels: str | None) -> Choice:
    csr, itemsize = pattern.csr, pattern.dtype.itemsize
    n_bytes = bytes_moved(s.nbytes, csr.shape, itemsize, s.copied)
    if kernels is None:
        places = (WALKED[s.format] if s.by_columns else SCATTERED) * s.places
        cost = places * (itemsize + 4) + sum(csr.shape) * itemsize
    elif kernels == "numba":
        cost = NATIVE[s.format] * n_bytes
    else:
        cost = cost_on_gpu(s, n_bytes, s.miss_factor * pattern.misses, csr.nnz, itemsize)
    padding = [f"{1 - csr.nnz / s.places:.0%} padding"] if csr.nnz < s.places else []
    reason = ", ".join([f"{readable_bytes(n_bytes)} a product", *s.words, *padding])
    return Choice(s.format, s.layout, s.nbytes, n_bytes, cost, reason, s.unread)


def cost_on_gpu(s: Storage, n_bytes: int, misses: float, nnz: int, itemsize: int) -> float:
    """Bytes as which a product counts that moves `n_bytes`; `misses`: of the L1 cache for an entry's x."""
    memory = (OF_CSR if s.format == "csr" else 1) * (n_bytes + (ONE_BY_ONE - 1) * s.written * itemsize)
    waited = s.trips * A_TRIP
    return max(memory, waited) + HIDDEN * min(memory, waited) + OF_L2 * SECTOR * misses * nnz
