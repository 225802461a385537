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
from typing import Any

import numpy as np

from solvers.core import arguments
from solvers.host import ASYMMETRY_OF_ILU, BLOCKS, COLAMD, LITTLE, MMD, THRESHOLD, Host, inverse, with_data
from solvers.solution import SolverError, Status

Recipe = tuple[Any, ...]  # LU, ("cholesky",), ("ilu", drop_tol, fill), or a library's name
LU: Recipe = ("superlu",)
SHORT = 150  # multiplications for an entry of the factors, up to which a panel of columns costs more than it saves
SMALLEST = 1e-300  # of drop_tol: with 0 SciPy's `spilu` writes beyond its arrays
STOP = 0.3  # seconds that the end of Python waits for a factorization
BACKWARD = 500  # units of rounding in a solve whose pivots stay on the diagonal, at most
EPS = float(np.finfo(np.float64).eps)
SHOWN = 1e-7  # of 1/eps, the condition from which a null space is looked for: a random vector may hide the rest
# A null vector has a residual of NULL units of rounding at most, and any other vector GAP times that of a null one:
# in the spectrum of an ill-conditioned A there is no such gap, and no null space.
NULL, GAP = 1e5, 1e4
MOST = 8  # vectors of a null space; rigid motions are 6


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
    """SuperLU's factors of A[rows][:, cols] on the host.

    Attributes:
      cell: of SuperLU's object, which the thread that made it drops: in others SciPy never frees it.
      ordering: of the columns, by SuperLU.
      better: what has taken the place of factors that are not accurate.
    """

    cell: list[Any]
    host: Host
    recipe: Recipe
    ordering: str
    rows: Any
    cols: Any
    better: "OnHost | None" = None

    def __post_init__(self) -> None:
        weakref.finalize(self, _jobs().put, self.cell.clear).atexit = False

    @property
    def made(self) -> Any:
        return self.cell[0]

    @property
    def nbytes(self) -> int:
        return self.made.nnz * (self.host.S.dtype.itemsize + 4) + (0 if self.better is None else self.better.nbytes)

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """[n] and [n], where rows and columns of A stand in L·U."""
        n, made = np.arange(self.host.n), self.made
        return made.perm_r[np.argsort(n[self.rows])], made.perm_c[np.argsort(n[self.cols])]

    def solve(self, r: Any, way: str) -> np.ndarray:
        """A⁻¹·r, or with the way "T" A⁻ᵀ·r."""
        if self.better is not None:
            return self.better.solve(r, way)
        dtype = self.host.S.dtype  # the only one that SuperLU solves in
        if r.dtype.kind == "c" and dtype.kind != "c":
            return self.solve(r.real, way) + 1j * self.solve(r.imag, way)
        given, found = (self.cols, self.rows) if way == "T" else (self.rows, self.cols)
        r = np.ascontiguousarray(r, dtype)
        x = np.empty_like(r)
        x[found] = self.made.solve(np.ascontiguousarray(r[given]), way)
        return x

    def repaired(self) -> "OnHost":
        """These factors, or in place of inaccurate ones those by partial pivoting. Errors as of `factored`."""
        if self.better is None and self.recipe == LU and self.ordering == MMD and not self.is_accurate:
            self.host.made[LU[0], MMD] = None
            self.better = _by_superlu(self.host, self.recipe, "direct", COLAMD)
            for name in ("condition", "null_space"):
                vars(self).pop(name, None)
        return self.better or self

    @functools.cached_property
    def is_accurate(self) -> bool:
        """Whether a solve shows little growth of the factors, by its backward error (Rigal and Gaches 1967)."""
        S, x = self.host.S, np.cos(np.arange(self.host.n)).astype(self.host.S.dtype)
        with np.errstate(all="ignore"):
            b = S @ x
            x = self.solve(b, "N")
            size = np.max(np.abs(b), initial=0) + self.host.row_sums * np.max(np.abs(x), initial=0)
            return bool(np.max(np.abs(b - S @ x), initial=0) <= BACKWARD * EPS * size)

    @functools.cached_property
    def condition(self) -> float:
        """An estimate of ‖B‖∞·‖B⁻¹‖₁ for B = R⁻¹·A·C⁻¹, from below (Higham and Tisseur 2000); see `scales`."""
        from scipy.sparse import linalg

        rows, cols, norm = scales(self.host.S)

        def inverse(v: Any) -> Any:
            return cols * self.solve(rows * np.ravel(v), "N")

        def adjoint(v: Any) -> Any:
            return rows * np.conj(self.solve(cols * np.conj(np.ravel(v)), "T"))

        S = self.host.S
        return norm * linalg.onenormest(linalg.LinearOperator(S.shape, inverse, rmatvec=adjoint, dtype=S.dtype))

    @functools.cached_property
    def null_space(self) -> np.ndarray | None:
        """[n, k], orthonormal vectors that A takes to 0; None if A is regular, or may be.

        The pivots that should be 0 are roundings, so that A⁻¹·v of a random v is a null vector up to rounding.
        """
        S = self.host.S
        with np.errstate(all="ignore"):
            rows, cols, norm = scales(S)
            rng, n, k = np.random.default_rng(0), S.shape[0], 1
            if not np.max(np.abs(cols * self.solve(rows * rng.standard_normal(n), "N"))) * norm * EPS >= SHOWN:
                return None
            v = rng.standard_normal((n, MOST))
            while k < min(n, MOST):
                k = min(2 * k, n)
                Z = self.solve(rows[:, None] * v[:, :k], "N")
                if not np.all(np.isfinite(Z)):
                    return None
                Z, R = np.linalg.qr(Z)
                Z = Z @ np.linalg.svd(R)[0]  # of a tall matrix LAPACK's threads would wait for each other
                sizes = np.max(np.abs(S @ Z) / rows[:, None], axis=0)
                sizes /= norm * np.max(np.abs(Z) * cols[:, None], axis=0)
                n_null = np.count_nonzero(sizes <= NULL * EPS)
                if n_null < k:
                    is_clear = n_null and np.min(sizes[n_null:]) >= GAP * max(np.max(sizes[:n_null]), EPS)
                    return Z[:, :n_null] if is_clear else None
            return None


def scales(S: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """[n] and [n], R and C, the largest entries of A's rows and then of R⁻¹·A's columns; ‖R⁻¹·A·C⁻¹‖∞. S is in CSC.

    So scaled, a matrix in mixed units does not count as singular.
    """
    sizes, rows = np.abs(S.data), np.zeros(S.shape[0])
    np.maximum.at(rows, S.indices, sizes)
    sizes = sizes / rows[S.indices]
    cols = np.maximum.reduceat(sizes, S.indptr[:-1])
    return rows, cols, float(np.max(np.bincount(S.indices, sizes / np.repeat(cols, np.diff(S.indptr)))))


def _ordered(host: Host, ordering: str, cols: np.ndarray) -> tuple[Any, Any]:
    """The rows in their order, all if SuperLU pivots among them, and A[rows][:, cols] in CSC.

    Kept with the pattern is that matrix of the numbers of A's entries, until another order is.
    """
    kept = host.shared.setdefault("ordered", {})
    found = kept.get(ordering)  # once: other threads may put an order of theirs
    if found is None or found[0] is not cols:
        rows = cols if ordering == MMD else host.blocks[0] if ordering == BLOCKS else slice(None)
        source = with_data(host.S, np.arange(host.S.nnz, dtype=np.int32))[rows][:, cols]
        source.sort_indices()
        found = kept[ordering] = cols, rows, source
    _, rows, source = found
    return rows, with_data(source, host.S.data[source.data])


def factored(host: Host, recipe: Recipe = LU, maker: str = "A", checks: bool = True) -> OnHost:
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
        what, cure = f"incomplete factors of at most {entries:,} entries", "use a smaller fill"
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
    return found.repaired() if checks else found


def _by_superlu(host: Host, recipe: Recipe, maker: str, ordering: str) -> OnHost:
    from scipy.sparse import linalg  # which takes 0.1 s

    S, is_symmetric = host.S, ordering == MMD  # with its zeros: blocks of full rows are ordered better
    order = host.made.get((recipe[0], ordering))
    if order is None and (ordering in host.orders or ordering == BLOCKS or (is_symmetric and np.any(host.hubs))):
        order = host.order(ordering)
    rows = cols = slice(None)
    if order is not None:
        cols, (rows, S) = order, _ordered(host, ordering, order)
    options: Any = {"permc_spec": ordering if order is None else "NATURAL", "options": {"SymmetricMode": is_symmetric}}
    if recipe[0] == "ilu":  # by single columns it would drop others
        options |= {"drop_tol": max(recipe[1], SMALLEST), "fill_factor": recipe[2]}
    else:
        options["panel_size"] = 1 if _has_short_columns(host) else None
    if is_symmetric:
        options["diag_pivot_thresh"] = 0.0 if recipe[0] == "cholesky" or host.wants_pivots else THRESHOLD
    factor = linalg.spilu if recipe[0] == "ilu" else linalg.splu
    try:
        cell = _in_worker(lambda: [factor(S, **options)])
    except (RuntimeError, MemoryError) as error:
        raise _reason(error, recipe, maker, S) from None
    found = OnHost(cell, host, recipe, ordering, rows, cols)
    host.made[recipe[0], ordering] = inverse(found.places[1]) if order is None else order
    return found


def _has_short_columns(host: Host) -> bool:
    """Whether factors are made faster by single columns: those of a plane mesh in two thirds of the time, of a cube of
    27,000 points in twice it.
    """
    if host.n**3 / 3 <= LITTLE:
        return True
    counted = host.shared.get("rough_cost", host.envelope)  # for this alone nothing is ordered
    return any(work <= SHORT * entries for entries, work in (host.envelope, counted))


def _reason(error: Exception, recipe: Recipe, maker: str, S: Any) -> Exception:
    """What SuperLU's error means: singular, or no memory; else the error itself."""
    if isinstance(error, MemoryError) or "alloc" in str(error).lower() or "memory" in str(error):
        return ValueError(
            f"the factors of a matrix of {S.shape[0]:,} rows and {S.nnz:,} entries do not fit into the memory; use a "
            "Krylov method with precond.multigrid, or precond.ilu with a smaller fill"
        )
    if "singular" not in str(error):
        return error
    if recipe[0] == "ilu":
        text = "an incomplete factor is singular, as A itself may be; use a smaller drop_tol or a larger fill"
        return SolverError(Status.SINGULAR, f"{maker}: {text}; got drop_tol={recipe[1]:g}, fill={recipe[2]:g}")
    return SolverError(Status.SINGULAR, f"{maker}: {error}; {Status.SINGULAR.message}")
