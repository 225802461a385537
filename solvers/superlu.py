"""SuperLU's factors of a matrix on the host (Li 2005, as SciPy has it).

A symmetric pattern with a strong diagonal is ordered by MMD of A + Aᵀ, and pivots stay on the diagonal down to 1e-3 of
their columns; any other by COLAMD, with partial pivoting, inside the blocks of a block triangular form if there are
many. See `Host.ordering`.
"""

import atexit
import dataclasses
import functools
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from solvers import conditioning
from solvers.core import arguments
from solvers.host import ASYMMETRY_OF_ILU, BLOCKS, COLAMD, MMD, THRESHOLD, Host, with_data
from solvers.solution import SolverError, Status

Recipe = tuple[Any, ...]  # ("lu",), ("cholesky",), ("ilu", drop_tol, fill), or a library's name
SMALLEST = 1e-300  # of drop_tol: with 0 SciPy's `spilu` writes beyond its arrays
STOP = 0.3  # seconds that the end of Python waits for a factorization
BACKWARD = 500  # units of rounding in a solve whose pivots stay on the diagonal, at most


lock = threading.Lock()
_ended = threading.Event()  # whether Python ends


def _in_worker(f: Callable[[], Any]) -> Any:
    """f(), computed by the thread that makes and drops SuperLU's objects."""
    future: Future[Any] = Future()

    def job() -> None:
        try:
            future.set_result(f())
        except BaseException as error:
            future.set_exception(error)

    with lock:
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
    global lock
    lock = threading.Lock()
    _jobs.cache_clear()


os.register_at_fork(after_in_child=_forget_threads)  # a child has none of its parent's threads


class Made(NamedTuple):
    """SuperLU's factors of A[rows][:, cols], and how SuperLU ordered the columns."""

    factors: Any
    rows: Any
    cols: Any
    ordering: str


@dataclasses.dataclass(eq=False)
class OnHost:
    """SuperLU's factors of A on the host.

    Attributes:
      cell: of one `Made`, whose object the thread that made it drops: in others SciPy never frees it.
    """

    cell: list[Made]
    host: Host
    recipe: Recipe

    def __post_init__(self) -> None:
        weakref.finalize(self, _jobs().put, self.cell.clear).atexit = False

    @property
    def made(self) -> Any:
        return self.cell[0].factors

    @property
    def rows(self) -> Any:
        return self.cell[0].rows

    @property
    def cols(self) -> Any:
        return self.cell[0].cols

    @property
    def ordering(self) -> str:
        return self.cell[0].ordering

    @property
    def nbytes(self) -> int:
        return self.made.nnz * (self.host.S.dtype.itemsize + 4)

    @property
    def order(self) -> np.ndarray:
        """[n], the order of A's columns in the factors."""
        order, perm = np.arange(self.host.n)[self.cols], self.made.perm_c
        order[perm] = order.copy()
        return order

    def solve(self, r: Any, way: str) -> np.ndarray:
        """A⁻¹·r, or with the way "T" A⁻ᵀ·r."""
        dtype = self.host.S.dtype  # the only one that SuperLU solves in
        if r.dtype.kind == "c" and dtype.kind != "c":
            return self.solve(r.real, way) + 1j * self.solve(r.imag, way)
        made, rows, cols, _ = self.cell[0]
        given, found = (cols, rows) if way == "T" else (rows, cols)
        r = np.ascontiguousarray(r, dtype)
        x = np.empty_like(r)
        x[found] = made.solve(np.ascontiguousarray(r[given]), way)
        return x

    def repaired(self) -> bool:
        """Makes factors that are not accurate again, with partial pivoting, and returns whether it did.

        Errors as of `factored`.
        """
        if self.recipe != ("lu",) or self.ordering != MMD or self.is_accurate:
            return False
        self.host.made["lu", MMD] = None
        other = _by_superlu(self.host, self.recipe, "direct", COLAMD)

        def take() -> None:
            self.cell[:] = other.cell

        _in_worker(take)
        for name in ("is_accurate", "condition", "null_space"):
            vars(self).pop(name, None)
        return True

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
    """An order for matrices of one pattern.

    Attributes:
      rows, cols: [n]; all rows, if SuperLU pivots among them.
      source: the ordered matrix in CSC, whose values number the entries of the unordered one.
    """

    rows: Any
    cols: np.ndarray
    source: Any

    @classmethod
    def of(cls, host: Host, ordering: str, cols: np.ndarray) -> "Order":
        """Kept with the pattern until another order is."""
        kept = host.shared.setdefault("ordered", {})
        if ordering not in kept or kept[ordering].cols is not cols:
            rows = cols if ordering == MMD else host.blocks[0] if ordering == BLOCKS else slice(None)
            source = with_data(host.S, np.arange(host.S.nnz, dtype=np.int32))[rows][:, cols]
            source.sort_indices()
            kept[ordering] = cls(rows, cols, source)
        return kept[ordering]

    def applied(self, S: Any) -> Any:
        return with_data(self.source, S.data[self.source.data])


def factored(host: Host, recipe: Recipe, maker: str, checks: bool = True) -> OnHost:
    """SuperLU's factors, in the order of earlier ones of this pattern.

    Args:
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
    elif not host.made:
        host.check_memory()
    if recipe[0] == "cholesky":
        return _by_superlu(host, recipe, maker, MMD)
    ordering = host.ordering
    if recipe[0] == "ilu" and host.asymmetry > ASYMMETRY_OF_ILU:
        ordering = COLAMD
    try:
        found = _by_superlu(host, recipe, maker, ordering)
    except SolverError:
        if ordering != MMD:
            raise
        return _by_superlu(host, recipe, maker, COLAMD)
    if checks:
        found.repaired()
    return found


def _by_superlu(host: Host, recipe: Recipe, maker: str, ordering: str) -> OnHost:
    from scipy.sparse import linalg  # which takes 0.1 s

    S, is_symmetric = host.S, ordering == MMD  # with its zeros: blocks of full rows are ordered better
    order = host.made.get((recipe[0], ordering))
    if order is None and (ordering in host.orders or ordering == BLOCKS or (is_symmetric and np.any(host.hubs))):
        order = host.order(ordering)
    known = None if order is None else Order.of(host, ordering, order)
    rows = cols = slice(None)
    if known is not None:
        S, rows, cols = known.applied(S), known.rows, known.cols
    options: Any = {"permc_spec": ordering if known is None else "NATURAL", "options": {"SymmetricMode": is_symmetric}}
    if recipe[0] == "ilu":
        options |= {"drop_tol": max(recipe[1], SMALLEST), "fill_factor": recipe[2]}
    if is_symmetric:
        options["diag_pivot_thresh"] = 0.0 if recipe[0] == "cholesky" or host.wants_pivots else THRESHOLD
    factor = linalg.spilu if recipe[0] == "ilu" else linalg.splu
    try:
        cell = _in_worker(lambda: [Made(factor(S, **options), rows, cols, ordering)])
    except (RuntimeError, MemoryError) as error:
        raise _reason(error, recipe, maker, S) from None
    found = OnHost(cell, host, recipe)
    host.made[recipe[0], ordering] = found.order if order is None else order
    return found


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
