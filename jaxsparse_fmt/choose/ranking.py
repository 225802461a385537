"""format="auto": the formats ranked by the time that a product should take.

Each format counts what a product moves (`_footprints`, beside `from_csr`). How fast a format moves it comes from the
tables of `benchmarks.spmv`. On a GPU a product takes the longer of two times: that of its bytes, and that of the
longest row, which one thread walks a few entries at a time.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy

from jaxsparse_fmt._types import Csr, CsrArrays, Target, check_choice, floating_dtype, readable_bytes, readable_seconds
from jaxsparse_fmt.core.matrix import FORMATS, SparseMatrix, build
from jaxsparse_fmt.formats import building, memory
from jaxsparse_fmt.formats.footprint import L1_ROWS, SECTOR, PatternCounts, Storage
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.cpu.abi import FLOATS
from jaxsparse_fmt.models import traffic

# Bytes a second of a plain copy, read and written: an H200 (2026-11-21_spmv_h200.md in benchmarks/results), two cores
# of a server CPU (2026-11-20), and an H100 (2026-11-27_suite_h100.md). A GPU with a memory as fast as an H200's has a
# name as H200, GH200 or B200; of others an H100 is the nearest.
COPY, OF_H100 = {"gpu": 4.102e12, "cpu": 28e9}, 2.97e12
AS_FAST = re.compile("[HB][23]00")

# GPU: the fraction of the copy's speed at which a dialect moves a format's bytes, from 2026-11-21_spmv_h200.md, in
# matrices that are much larger than the caches: (values of 4 bytes, of 8), with rows of 7 entries, and with rows of 81.
Efficiencies = tuple[tuple[float, float], tuple[float, float]]
EFFICIENCY: dict[str, dict[str, Efficiencies]] = {
    "triton": {
        "csr": ((0.77, 0.76), (0.80, 0.83)),  # long: by even and uneven rows; of 8 bytes, by both suites
        "csr 1": ((0.51, 0.40), (0.51, 0.40)),  # one thread a row, which only rows shorter than measured get
        "csr long": ((0.98, 0.95), (0.98, 0.95)),  # rows of 256 entries and more, in the standard suite
        "csr5": ((0.97, 0.97), (0.86, 0.95)),  # fitted to the standard suite, as what follows
        "ell": ((0.99, 1.08), (0.99, 1.01)),  # short, of 8 bytes: fitted to both suites
        "hll": ((0.95, 0.98), (0.91, 0.95)),
        "dia": ((0.95, 1.01), (0.84, 0.96)),
        "dia mirrored": ((0.85, 0.89), (0.63, 0.73)),  # of the standard suite on 2026-11-23
        "hdia": ((0.87, 0.97), (0.72, 0.95)),
        "bsr": ((0.73, 0.97), (0.88, 0.98)),
        "sell": ((0.86, 1.02), (0.90, 0.95)),  # short, of 8 bytes: fitted to both suites
    },
    "mosaic": {  # but for what is marked, from before its loads were predicated: too low by 0 to 15%
        "csr": ((0.54, 0.72), (0.60, 0.82)),
        "csr 1": ((0.78, 0.87), (0.78, 0.87)),
        "csr long": ((0.95, 0.96), (0.95, 0.96)),  # Triton's, by what blocks of 5 × 5 take in either
        "csr5": ((0.92, 0.93), (0.80, 0.91)),  # Triton's, by what the suite takes in either
        "ell": ((0.99, 0.99), (0.56, 0.74)),
        "hll": ((0.91, 0.97), (0.93, 0.98)),
        "dia": ((0.98, 1.00), (0.62, 0.97)),
        "dia mirrored": ((0.77, 0.90), (0.55, 0.60)),  # one run
        "hdia": ((0.77, 0.93), (0.63, 0.95)),  # short: Triton's, by what KKT takes in either
        "bsr": ((0.75, 0.98), (0.85, 0.97)),  # long: as csr5
        "sell": ((0.69, 0.90), (0.86, 0.97)),  # long: Triton's, by hand, on a matrix like ML_Laplace
    },
}
NARROW = {"triton": 0.82, "mosaic": 0.76}  # times that, for values of 2 bytes: "sell", the same table
LONG_ROWS = 24  # entries, halfway between 7 and 81 in powers
LAUNCH_SECONDS = 2e-6  # s of a kernel that does nothing: cg at 4,096 unknowns, 2026-11-27_solvers_h100.md
# Seconds that an entry takes whose x is in no L1 cache, by both suites on an H100; at most, and the fraction of misses
# that the tables' matrices have: fitted to 350 times of the standard suite on an H200.
MISS, MOST_MISS, USUAL = 6.0e-12, 5.8e-12, 0.1
L2 = 5.7e12  # bytes/s through the L2, for which csr5 waits too: 0.9 to 1.4 of what the standard suite measured
# csr5, fitted to both suites on an H100 and an H200: seconds that a hop of a tile takes beside the memory, alike on
# either half of the matrices; and how often memory moves a sum that is written by itself, which the shortest rows tell.
HOP, REWRITTEN = 1.0e-9, 2.5
TAIL = 2.0  # times the time of their bytes that sums of pieces take: few for a row, and each row is summed by itself
# An index from memory and then x from the L2 cache take 740 cycles on an H100 (Luo et al., Benchmarking and dissecting
# the Nvidia Hopper GPU architecture, 2024), and more under load.
LATENCY = 0.6e-6  # s between the loads of a thread and their use
OVERLAP = 0.1  # of the shorter of two times that is not hidden behind the longer
IDLE = 0.25  # what a thread that waits for a longer row costs, in entries

# CPU, kernels of Numba on two cores, for these formats alone: the fraction of COPY at which a product moves the bytes
# (2026-11-26_suite_cpu.md).
NATIVE = {"csr": 0.86, "dia": 0.9}

# CPU, plain XLA, in places of ELL: a place that XLA passes as it walks the columns of a format; an entry that it
# scatters to its row, in CSR and wherever slices are too uneven for columns. An index saved is arithmetic added, so
# bytes do not count. Measured on 2026-11-20.
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
      nbytes: bytes of storage that a product reads. Of a large matrix in "sell", "hdia", "bsr", "dia" and "csr5" an
        estimate, from a sample of its rows.
      moved: bytes that a product moves, vectors included and counted once, and a copy of x where it makes one.
      cost: bytes that a plain copy moves in the time that the product should take; the ranking's key.
      reason: why, in words.
      seconds: what the product should take on the machine of the tables, an H100, an H200 or two CPU cores. x is read
        as if it stayed in cache; columns far apart take longer, in all formats alike.
      unread: bytes of values that are stored beside `nbytes` ("dia").
    """

    format: str
    layout: dict[str, Any]
    nbytes: int
    moved: int
    cost: float
    reason: str
    seconds: float
    unread: int = 0


def rank(S: Any, dtype: Any = None, platform: str | None = None, backend: str = "auto") -> list[Choice]:
    """The formats that fit the matrix, best first.

    Takes a few passes over the row lengths and looks at the columns of a sample of rows, less than a conversion does.

    Args:
      S: scipy.sparse matrix or array, or a matrix of ours, whose own backend and device are taken where `backend`
        is "auto" and `platform` is None.
      dtype: of the stored values; None takes S's.
      platform: "cpu" or "gpu"; None is that of the device where JAX puts arrays, which `jax.default_device` sets. Of
        GPUs an H100 80GB HBM3 and an H200 are known. A B200 counts as an H200, and so does "gpu" where no GPU is; any
        other GPU counts as an H100.
      backend: as in `from_scipy`. What runs as plain XLA on a GPU is ranked as on a CPU without Numba.

    Returns:
      At least one `Choice`: CSR always fits the matrix, if not the memory.

    Raises:
      ValueError: another platform or backend. TypeError: S is no sparse matrix.
    """
    if platform is not None:
        check_choice("platform", platform, COPY, ", or None for the one that JAX runs on")
    selection.check_backend(backend)
    device = memory.device(S)
    if hasattr(S, "to_scipy"):
        backend = getattr(S, "backend", "auto") if backend == "auto" else backend
        dtype = S.dtype if dtype is None else dtype
        S = S if isinstance(S, CsrArrays) else S.to_scipy()
    elif not scipy.sparse.issparse(S):
        raise TypeError(f"rank takes a scipy.sparse matrix or array, got {type(S).__name__}; make a csr_array of it")
    csr: Csr = S if isinstance(S, scipy.sparse.csr_array | CsrArrays) else scipy.sparse.csr_array(S)
    if not isinstance(csr, CsrArrays) and not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    dtype = floating_dtype(csr.data.dtype, "the matrix") if dtype is None else np.dtype(dtype)
    kernels = _kernels(dtype, platform, backend, device)
    platform = "gpu" if kernels in EFFICIENCY else "cpu"
    own = selection.active_backend(backend)
    keeps = platform == "gpu" and selection.shares_memory(selection.resolve(own, "cuda", shared=True))
    formats = [name for name in FORMATS if kernels != "numba" or name in NATIVE]
    pattern = PatternCounts(csr, dtype, platform, keeps)
    copy = copy_speed(device.device_kind) if platform == "gpu" else COPY[platform]
    choices = [_choice(s, csr, dtype.itemsize, kernels, copy) for s in storages(pattern, formats)]
    return sorted(choices, key=lambda c: c.cost)


def copy_speed(card: str) -> float:
    """Bytes a second of a plain copy on a GPU: that of the nearer of those measured; "cpu" stands for an H200."""
    return COPY["gpu"] if card == "cpu" or AS_FAST.search(card) else OF_H100


def storages(pattern: PatternCounts, formats: Iterable[str] = FORMATS) -> Iterator[Storage]:
    """The storages of formats that `auto` may take."""
    for name in formats:
        for storage in FORMATS[name]._footprints(pattern):
            misses = storage.misses * pattern.misses(L1_ROWS) if pattern.on_gpu else 0.0  # not known for a CPU
            yield dataclasses.replace(storage, misses=misses)


def _kernels(dtype: np.dtype, platform: str | None, backend: str, device: Any) -> str | None:
    """The kernels that would run: a key of `EFFICIENCY` on a GPU, "numba" on a CPU; None where plain XLA would run.

    Args:
      device: where, if `platform` is None.
    """
    if platform is None:
        cuda = device.platform == "gpu" and "rocm" not in device.client.platform_version.lower()
        if device.platform != "cpu" and not cuda:
            return None
        platform = "gpu" if cuda else "cpu"
    backend = selection.active_backend(backend)
    if platform == "cpu":
        wanted = backend if backend in ("auto", "numba") else "xla"
        name = selection.resolve(wanted, "cpu")
        widened = np.dtype(jnp.promote_types(dtype, jnp.float32))  # the kernels widen 16 bits first
        return name if name == "numba" and widened in FLOATS else None
    if backend == "numba":
        return None
    name = selection.resolve(backend, "cuda")
    return name if name in EFFICIENCY else None


def best_layouts(choices: list[Choice]) -> list[Choice]:
    """The first of `choices` in each format, in their order."""
    of_format: dict[str, Choice] = {}
    for choice in choices:
        of_format.setdefault(choice.format, choice)
    return list(of_format.values())


def fitting(choices: list[Choice], csr: Csr, dtype: Any, max_bytes: float | None = None) -> list[Choice]:
    """The `choices` that take at most `max_bytes` and fit the free memory, in their order, for what was ranked.

    TooLarge: none does; the message names what the smallest would take, and what would fit.
    """
    free = memory.free()
    held = lambda c: c.nbytes + c.unread  # noqa: E731
    allowed = [c for c in choices if max_bytes is None or held(c) <= max_bytes]
    fit = [c for c in allowed if free is None or (c.moved + c.unread) * ROOM <= free]
    if fit:
        return fit
    least = min(choices, key=held)
    takes = f"the matrix takes at least {readable_bytes(held(least))}, in {least.format!r}"
    if not allowed:
        raise building.TooLarge(f"{takes}; max_bytes={max_bytes} allows none, max_bytes={held(least)} would")
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
    for choice in others:
        with contextlib.suppress(building.TooLarge):  # where a size was estimated, too low
            A = build(csr, choice.format, target, **choice.layout)
            if A.nbytes_read <= MISJUDGED * choice.nbytes:
                return A, choice
    return build(csr, last.format, target, **last.layout), last


def _choice(s: Storage, csr: Csr, itemsize: int, kernels: str | None, copy: float) -> Choice:
    """copy: bytes a second of a plain copy."""
    moved = traffic.bytes_moved(s.nbytes, csr.shape, itemsize) + 2 * s.copied * itemsize
    if kernels is None:
        seconds = _seconds_of_xla(s, csr, itemsize)
    elif kernels == "numba":
        seconds = moved / (NATIVE[s.format] * copy)
    else:
        seconds = _seconds_on_gpu(s, moved, csr, itemsize, kernels, copy)
    words = list(s.words)
    if s.cut:
        words += [f"{s.cut} rows cut"]
    if csr.nnz < s.places:
        words += [f"{1 - csr.nnz / s.places:.0%} padding"]
    reason = ", ".join([f"{readable_bytes(moved)} a product, about {readable_seconds(seconds)}", *words])
    return Choice(s.format, s.layout, s.nbytes, moved, seconds * copy, reason, seconds, s.unread)


def _seconds_on_gpu(s: Storage, moved: int, csr: Csr, itemsize: int, kernels: str, copy: float) -> float:
    memory = moved + IDLE * s.idle * (itemsize + 4) + (REWRITTEN - 1) * s.written * itemsize
    streamed = memory / copy / _efficiency(kernels, s.rate or s.format, csr.nnz, csr.shape[0], itemsize)
    if s.format == "csr5":
        through_l2 = (moved + SECTOR * (s.misses * csr.nnz + s.written)) / L2
        streamed = _beside(streamed, through_l2 + s.hops * HOP)
    else:
        streamed += csr.nnz * min(max(s.misses - USUAL, 0) * MISS, MOST_MISS)
    waited = s.trips * LATENCY
    seconds = LAUNCH_SECONDS * (2 if s.copied else 1) + _beside(streamed, waited)
    if s.cut:
        sums = 2 * (s.cut + s.pieces) * itemsize
        seconds += LAUNCH_SECONDS + TAIL * sums / copy / _efficiency(kernels, "csr", 0, 1, itemsize)
    return seconds


def _beside(a: float, b: float) -> float:
    """Seconds of two activities that overlap, from the seconds of each."""
    return max(a, b) + OVERLAP * min(a, b)


def _efficiency(kernels: str, name: str, nnz: int, n_rows: int, itemsize: int) -> float:
    """The fraction of a copy's speed for rows of mean length nnz / n_rows."""
    efficiency = EFFICIENCY[kernels][name][nnz >= LONG_ROWS * n_rows][itemsize > 4]
    return efficiency * (NARROW[kernels] if itemsize == 2 else 1.0)


def _seconds_of_xla(s: Storage, csr: Csr, itemsize: int) -> float:
    places = (WALKED[s.format] if s.by_columns else SCATTERED) * s.places
    return (places * (itemsize + 4) + sum(csr.shape) * itemsize) / COPY["cpu"]
