"""SuperLU's factors of a matrix on the host (Li 2005, as SciPy has it), and those that the host keeps for programs.

A symmetric pattern with a strong diagonal is ordered by MMD of A + Aᵀ, and pivots stay on the diagonal down to 1e-3 of
their columns; any other by COLAMD, with partial pivoting. See `Host.ordering`.
"""

import atexit
import contextlib
import copy
import dataclasses
import functools
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy

from jaxsparse_fmt.core import mesh_axes
from solvers import conditioning
from solvers.core import arguments
from solvers.core.program import interrupted_after
from solvers.host import ASYMMETRY_OF_ILU, COLAMD, MMD, THRESHOLD, Host
from solvers.solution import SolverError, Status

Recipe = tuple[Any, ...]  # ("lu",), ("cholesky",), ("ilu", drop_tol, fill), or a library's name
KEPT = 4  # factors that the host keeps for the programs that factor
SAMPLE = 64  # values, by which most others differ
SMALLEST = 1e-300  # of drop_tol: with 0 SciPy's `spilu` writes beyond its arrays
STOP = 0.3  # seconds that the end of Python waits for a factorization
BACKWARD = 500  # units of rounding in a solve whose pivots stay on the diagonal, at most


_lock = threading.Lock()
_ended = threading.Event()  # whether Python ends


def _in_worker(f: Callable[[], Any]) -> Any:
    """f(), computed by the thread that makes and drops SuperLU's objects."""
    future: Future[Any] = Future()

    def job() -> None:
        try:
            future.set_result(f())
        except BaseException as error:
            future.set_exception(error)

    with _lock:
        jobs = _jobs()
    if _ended.is_set():  # at the end of Python, when nothing need be freed
        return f()
    jobs.put(job)
    return future.result()


@functools.cache
def _jobs() -> queue.SimpleQueue[Callable[[], None] | None]:
    """The jobs of a thread; to add one takes no lock, since a collection of garbage may do so at any time."""
    jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def work() -> None:
        while (job := jobs.get()) is not None:
            job()
            del job

    def stop() -> None:  # before Python ends, or SciPy leaves an error in the interpreter
        _ended.set()
        jobs.put(None)
        thread.join(STOP)

    thread = threading.Thread(target=work, name="superlu", daemon=True)
    thread.start()
    atexit.register(stop)
    return jobs


def _forget_threads() -> None:
    global _lock
    _lock = threading.Lock()
    _jobs.cache_clear()


os.register_at_fork(after_in_child=_forget_threads)  # a child has none of its parent's threads


@dataclasses.dataclass(eq=False)
class OnHost:
    """SuperLU's factors of A[rows][:, cols], for A on the host, and how SuperLU ordered the columns.

    Attributes:
      cell: SuperLU's object, which the thread that made it drops: in others SciPy never frees it.
    """

    cell: list[Any]
    rows: Any
    cols: Any
    host: Host
    ordering: str

    def __post_init__(self) -> None:
        weakref.finalize(self, _jobs().put, self.cell.clear).atexit = False

    @property
    def made(self) -> Any:
        return self.cell[0]

    @property
    def order(self) -> np.ndarray:
        """[n], the order of A's columns in the factors."""
        return np.arange(self.made.shape[0])[self.cols][np.argsort(self.made.perm_c)]

    def solve(self, r: Any, way: str) -> np.ndarray:
        """A⁻¹·r, or with the way "T" A⁻ᵀ·r."""
        dtype = self.host.S.dtype  # the only one that SuperLU solves in
        if r.dtype.kind == "c" and dtype.kind != "c":
            return self.solve(r.real, way) + 1j * self.solve(r.imag, way)
        given, found = (self.cols, self.rows) if way == "T" else (self.rows, self.cols)
        r = np.ascontiguousarray(r, dtype)
        x = np.empty_like(r)
        x[found] = self.made.solve(np.ascontiguousarray(r[given]), way)
        return x

    @functools.cached_property
    def is_accurate(self) -> bool:
        """Whether a solve shows little growth of the factors, by its backward error (Rigal and Gaches 1967)."""
        S, x = self.host.S, np.cos(np.arange(self.host.n)).astype(self.host.S.dtype)
        with np.errstate(all="ignore"):
            b = S @ x
            x = self.solve(b, "N")
            size = np.max(np.abs(b), initial=0) + self.host.row_sums * np.max(np.abs(x), initial=0)
            return bool(np.max(np.abs(b - S @ x), initial=0) <= BACKWARD * np.finfo(np.float64).eps * size)

    @functools.cached_property
    def condition(self) -> float:
        return conditioning.condition(self.host.S, self.solve)

    @functools.cached_property
    def null_space(self) -> np.ndarray | None:
        return conditioning.null_space(self.host.S, self.solve)


class Order(NamedTuple):
    """An order of the columns, and with MMD of the rows too, for matrices of one pattern.

    Attributes:
      order: [n].
      source: the ordered matrix in CSC, whose values number the entries of the unordered one.
    """

    ordering: str
    order: np.ndarray
    source: Any

    @classmethod
    def of(cls, S: Any, ordering: str, order: np.ndarray) -> "Order":
        numbers = _with_data(S, np.arange(S.nnz, dtype=np.int32))
        source = numbers[order][:, order] if ordering == MMD else numbers[:, order]
        source.sort_indices()
        return cls(ordering, order, source)

    def applied(self, S: Any) -> Any:
        return _with_data(self.source, S.data[self.source.data])


def _with_data(S: Any, data: np.ndarray) -> Any:
    """The pattern of S in canonical CSC with other values; SciPy's constructor takes 30 µs."""
    made = copy.copy(S)
    made.data, made.has_canonical_format = data, True
    return made


def factored(host: Host, recipe: Recipe, maker: str, known: Order | None = None, checks: bool = True) -> OnHost:
    """SuperLU's factors.

    Args:
      known: the order of factors of this pattern; None: found out.
      checks: whether factors with pivots on the diagonal must be accurate.

    SolverError: a pivot is zero. ValueError: the factors do not fit into the memory.
    """
    if host.structurally_singular:  # SuperLU may end the process, by its own exit, abort or a wrong address
        text = "A is structurally singular: in no order of its rows is its diagonal free of zeros"
        raise SolverError(Status.SINGULAR, f"{maker}: {text}; {Status.SINGULAR.message}")
    if recipe[0] == "ilu":
        entries = int(recipe[2] * host.S.nnz)
        what, cure = f"incomplete factors of at most {entries:,} entries", "take a smaller fill"
        arguments.check_free_memory(2 * (host.S.dtype.itemsize + 4) * entries, what, cure, arguments.memory.of_host)
    elif known is None:
        host.check_memory()
    if recipe[0] == "cholesky":
        return _by_superlu(host, recipe, maker, MMD, None)
    ordering = host.ordering if known is None else known.ordering
    if recipe[0] == "ilu" and host.asymmetry > ASYMMETRY_OF_ILU:
        ordering = COLAMD
    with contextlib.suppress(SolverError) if ordering == MMD else contextlib.nullcontext():
        found = _by_superlu(host, recipe, maker, ordering, known)
        if not checks or ordering == COLAMD or recipe[0] == "ilu" or found.is_accurate:
            return found
    return _by_superlu(host, recipe, maker, COLAMD, None)


def _by_superlu(host: Host, recipe: Recipe, maker: str, ordering: str, known: Order | None) -> OnHost:
    from scipy.sparse import linalg  # which takes 0.1 s

    S, is_symmetric = host.S, ordering == MMD  # with its zeros: blocks of full rows are ordered better
    is_ordered = ordering in host.orders and (is_symmetric or np.all(host.diagonal))  # `order` fills the diagonal
    if known is None and (is_ordered or (is_symmetric and np.any(host.hubs))):
        known = Order.of(S, ordering, host.order(ordering))
    rows = cols = slice(None)
    if known is not None:
        S, cols = known.applied(S), known.order
        rows = cols if is_symmetric else rows
    options: Any = {"permc_spec": ordering if known is None else "NATURAL", "options": {"SymmetricMode": is_symmetric}}
    if recipe[0] == "ilu":
        options |= {"drop_tol": max(recipe[1], SMALLEST), "fill_factor": recipe[2]}
    if is_symmetric:
        options["diag_pivot_thresh"] = 0.0 if recipe[0] == "cholesky" or host.wants_pivots else THRESHOLD
    factor = linalg.spilu if recipe[0] == "ilu" else linalg.splu
    try:
        cell = _in_worker(lambda: [factor(S, **options)])
    except (RuntimeError, MemoryError) as error:
        raise _reason(error, recipe, maker, S) from None
    return OnHost(cell, rows, cols, host, ordering)


def _reason(error: Exception, recipe: Recipe, maker: str, S: Any) -> Exception:
    """What SuperLU's error means: singular, or no memory; else the error itself."""
    if isinstance(error, MemoryError) or "alloc" in str(error).lower() or "memory" in str(error):
        return ValueError(
            f"the factors of a matrix of {S.shape[0]:,} rows and {S.nnz:,} entries do not fit into the memory; take a "
            "Krylov method with precond.multigrid, or precond.ilu with a smaller fill"
        )
    if "singular" not in str(error):
        return error
    if recipe[0] == "ilu":
        text = "an incomplete factor is singular, as A itself may be; take a smaller drop_tol or a larger fill"
        return SolverError(Status.SINGULAR, f"{maker}: {text}; got drop_tol={recipe[1]:g}, fill={recipe[2]:g}")
    return SolverError(Status.SINGULAR, f"{maker}: {error}; {Status.SINGULAR.message}")


# -------------------------------------------------------------------------------------------------- kept by the host


class Pattern:
    """Places of entries, of which equal ones add up, and what all matrices with entries there share.

    Attributes:
      row, col: [m], copies.
      S: in CSC, the numbers of the entries; None: some places are equal.
      orders: by the recipe, the order of the last factors.
    """

    def __init__(self, n: int, row: Any, col: Any):
        self.n, self.row, self.col = n, np.array(row), np.array(col)
        numbers = np.arange(self.row.size, dtype=np.int32)  # SuperLU counts entries in 32 bits
        S = scipy.sparse.csc_array((numbers, (self.row, self.col)), shape=(n, n))
        self.S = S if S.nnz == self.row.size else None
        self.orders: dict[Recipe, Order] = {}

    def matrix(self, values: np.ndarray) -> Any:
        if self.S is None:
            return scipy.sparse.csc_array((values, (self.row, self.col)), shape=(self.n, self.n))
        return _with_data(self.S, values[self.S.data])


class Kept(NamedTuple):
    """Factors, None where there are none, of values on a pattern, of which `sample` is a part."""

    pattern: Pattern
    recipe: Recipe
    sample: bytes
    values: np.ndarray
    found: OnHost | None


_recent: list[Kept] = []  # the last ones first
_patterns: list[Pattern] = []  # the last one first


def _pattern(n: int, row: Any, col: Any) -> Pattern:
    """The pattern of these entries, one object for equal ones."""
    with _lock:
        for k, pattern in enumerate(_patterns):
            if pattern.n == n and np.array_equal(pattern.row, row) and np.array_equal(pattern.col, col):
                _patterns.insert(0, _patterns.pop(k))
                return pattern
        _patterns[KEPT - 1 :] = []
        _patterns.insert(0, Pattern(n, row, col))
        return _patterns[0]


def kept(
    n: int, recipe: Recipe, row: Any, col: Any, values: Any, room: int = KEPT, checks: bool = True
) -> OnHost | None:
    """The factors of these entries, None if they have none. Matrices of one pattern share the order of the columns.

    Args:
      room: how many factors stay, these among them.
      checks: as of `factored`.

    Raises:
      ValueError: the factors do not fit into the memory.
    """
    values = np.asarray(values)
    pattern = _pattern(n, np.asarray(row), np.asarray(col))
    key = pattern, recipe, values[:: values.size // SAMPLE + 1].tobytes()
    with _lock:
        for k, one in enumerate(_recent):
            if one[:3] == key and np.array_equal(one.values, values):
                found = one.found
                if found is not None and checks and found.ordering == MMD and not found.is_accurate:
                    del _recent[k]
                    break
                _recent.insert(0, _recent.pop(k))
                return found
    found = None
    if np.all(np.isfinite(values)):
        host, known = Host(pattern.matrix(values)), pattern.orders.get(recipe)
        with contextlib.suppress(SolverError):
            found = factored(host, recipe, "A", known, checks)
            if known is None or known.ordering != found.ordering:
                pattern.orders[recipe] = Order.of(host.S, found.ordering, found.order)
    with _lock:
        _recent.insert(0, Kept(*key, values.copy(), found))
        _recent[max(room, KEPT) :] = []
    return found


@dataclasses.dataclass(frozen=True)
class Call:
    """What a program calls on the host; equal ones share a program.

    Attributes:
      f: (factors or None, rows, columns and values of the entries, *arrays, *options) -> an array of `shape`.
      ndims: of the arrays.
      checks: as of `factored`; if not, f may return None for factors that are not accurate.
    """

    f: Callable[..., Any]
    n: int
    recipe: Recipe
    options: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    ndims: tuple[int, ...]
    checks: bool

    def __call__(self, *given: Any) -> np.ndarray:
        batch, each = members(given, (1, 1, 1, *self.ndims))
        results = np.zeros((len(each), *self.shape), self.dtype)
        with interrupted_after():
            for k, (row, col, values, *arrays) in enumerate(each):
                # A batch of matrices, and that of their transposes.
                for checks in (self.checks, True):
                    found = kept(self.n, self.recipe, row, col, values, 2 * len(each), checks)
                    result = self.f(found, (row, col, values), *arrays, *self.options)
                    if result is not None:
                        break
                results[k] = result
        return results.reshape(*batch, *self.shape)


def call(
    f: Callable[..., Any],
    n: int,
    recipe: Recipe,
    entries: tuple[Any, Any, Any],
    arrays: tuple[Any, ...],
    like: Any,
    options: tuple[Any, ...] = (),
    checks: bool = True,
) -> jax.Array:
    """The result of `Call` in a program, an array like `like`; also of a batch."""
    ndims = tuple(array.ndim for array in arrays)
    host = Call(f, n, recipe, options, like.shape, np.dtype(like.dtype), ndims, checks)
    shape = jax.ShapeDtypeStruct(like.shape, like.dtype)
    result = jax.pure_callback(host, shape, *entries, *arrays, vmap_method="expand_dims")
    return mesh_axes.varying(result, entries, arrays)  # which JAX takes for the same on all devices


def members(arrays: Any, ndims: tuple[int, ...]) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of a batch, and its members: arrays of `ndims` axes, after others that are those of the batch or 1."""
    arrays = [np.asarray(a) for a in arrays]
    if all(a.ndim == ndim for a, ndim in zip(arrays, ndims, strict=True)):
        return (), [arrays]
    batch = np.broadcast_shapes(*(a.shape[: a.ndim - ndim] for a, ndim in zip(arrays, ndims, strict=True)))
    whole = [np.broadcast_to(a, (*batch, *a.shape[a.ndim - k :])) for a, k in zip(arrays, ndims, strict=True)]
    return batch, [tuple(a[member] for a in whole) for member in np.ndindex(batch)]
