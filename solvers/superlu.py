"""SuperLU's factors of a matrix on the host (Li 2005, as SciPy has it), and those that the host keeps for programs.

A symmetric pattern with a strong diagonal is ordered by MMD of A + Aᵀ, and pivots stay on the diagonal down to 1e-3 of
their columns; any other by COLAMD, with partial pivoting. See `Host.ordering`.
"""

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import os
import queue
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import scipy

from solvers.core import arguments
from solvers.host import COLAMD, MMD, THRESHOLD, Host
from solvers.solution import SolverError, Status

Recipe = tuple[Any, ...]  # ("lu",), ("cholesky",), ("ilu", drop_tol, fill), or a library's name
KEPT = 4  # factors that the host keeps for the programs that factor
DIGEST = 32  # bytes
STOP = 0.3  # seconds that the end of Python waits for a factorization
BACKWARD = 100  # units of rounding in a solve whose pivots stay on the diagonal, at most


_lock = threading.Lock()
_ended = threading.Event()  # whether Python ends


class Made:
    """SuperLU's object, with its attributes, which the thread that made it drops: in others SciPy never frees it."""

    def __init__(self, cell: list[Any]):
        self._cell = cell
        weakref.finalize(self, _jobs().put, cell.clear).atexit = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cell[0], name)


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)  # a child has none of its parent's threads


class OnHost(NamedTuple):
    """SuperLU's factors of A[rows][:, cols], and their dtype, the only one that they solve in.

    Attributes:
      ordering: how SuperLU ordered the columns.
    """

    made: Any
    rows: Any
    cols: Any
    dtype: np.dtype
    ordering: str

    @property
    def order(self) -> np.ndarray:
        """[n], the order of A's columns in the factors."""
        return np.arange(self.made.shape[0])[self.cols][np.argsort(self.made.perm_c)]

    def solve(self, r: Any, way: str) -> np.ndarray:
        """A⁻¹·r, or with the way "T" A⁻ᵀ·r."""
        if r.dtype.kind == "c" and self.dtype.kind != "c":
            return self.solve(r.real, way) + 1j * self.solve(r.imag, way)
        given, found = (self.cols, self.rows) if way == "T" else (self.rows, self.cols)
        r = np.ascontiguousarray(r, self.dtype)
        x = np.empty_like(r)
        x[found] = self.made.solve(np.ascontiguousarray(r[given]), way)
        return x

    def condition(self, S: Any) -> float:
        """An estimate of ‖A‖₁·‖A⁻¹‖₁ of A = S, from below (Higham and Tisseur 2000)."""
        from scipy.sparse import linalg

        def adjoint(v: Any) -> Any:
            return np.conj(self.solve(np.conj(v), "T"))

        inverse = linalg.LinearOperator(S.shape, lambda v: self.solve(v, "N"), rmatvec=adjoint, dtype=S.dtype)
        return linalg.norm(S, 1) * linalg.onenormest(inverse)


def factored(host: Host, recipe: Recipe, maker: str, known: tuple[str, Any] | None = None) -> OnHost:
    """SuperLU's factors.

    Args:
      known: `ordering` and `order` of factors of this pattern; None: found out.

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
    ordering, order = known or (host.ordering, None)
    with contextlib.suppress(SolverError) if ordering == MMD else contextlib.nullcontext():
        found = _by_superlu(host, recipe, maker, ordering, order)
        if ordering == COLAMD or recipe[0] == "ilu" or _is_accurate(host, found):
            return found
    return _by_superlu(host, recipe, maker, COLAMD, None)


def of_entries(n: int, recipe: Recipe, row: np.ndarray, col: np.ndarray, values: np.ndarray, maker: str) -> OnHost:
    """SuperLU's factors of finite entries, of which equal places add up. Errors as of `factored`."""
    return factored(Host(scipy.sparse.csc_array((values, (row, col)), shape=(n, n))), recipe, maker)


def _by_superlu(host: Host, recipe: Recipe, maker: str, ordering: str, order: Any) -> OnHost:
    from scipy.sparse import linalg  # which takes 0.1 s

    S, symmetric = host.S, ordering == MMD  # with its zeros: blocks of full rows are ordered better
    if order is None and (ordering in host.orders or (symmetric and np.any(host.hubs))):
        order = host.order(ordering)
    rows = cols = slice(None)
    if order is not None:
        S, rows, cols = (S[order][:, order], order, order) if symmetric else (S[:, order], rows, order)
    options: Any = {"permc_spec": ordering if order is None else "NATURAL", "options": {"SymmetricMode": symmetric}}
    if recipe[0] == "ilu":
        options |= {"drop_tol": recipe[1], "fill_factor": recipe[2]}
    if symmetric:
        options["diag_pivot_thresh"] = 0.0 if recipe[0] == "cholesky" else THRESHOLD
    maker_of = linalg.spilu if recipe[0] == "ilu" else linalg.splu
    try:
        made = _in_worker(lambda: Made([maker_of(S, **options)]))
    except RuntimeError as error:
        if recipe[0] == "ilu":
            text = "an incomplete factor is singular, as A itself may be; take a smaller drop_tol or a larger fill"
            got = f"got drop_tol={recipe[1]:g}, fill={recipe[2]:g}"
            raise SolverError(Status.SINGULAR, f"{maker}: {text}; {got}") from None
        raise SolverError(Status.SINGULAR, f"{maker}: {error}; {Status.SINGULAR.message}") from None
    except MemoryError:
        raise ValueError(
            f"the factors of a matrix of {S.shape[0]:,} rows and {S.nnz:,} entries do not fit into the memory; take a "
            "Krylov method with precond.multigrid, or precond.ilu with a smaller fill"
        ) from None
    return OnHost(made, rows, cols, S.dtype, ordering)


def _is_accurate(host: Host, found: OnHost) -> bool:
    """Whether a solve shows little growth of the factors, by its backward error (Rigal and Gaches 1967)."""
    S, x = host.S, np.random.default_rng(0).standard_normal(host.n).astype(host.S.dtype)
    with np.errstate(all="ignore"):
        b = S @ x
        x = found.solve(b, "N")
        size = np.max(np.abs(b), initial=0) + host.row_sums * np.max(np.abs(x), initial=0)
        return bool(np.max(np.abs(b - S @ x), initial=0) <= BACKWARD * np.finfo(np.float64).eps * size)


# -------------------------------------------------------------------------------------------------- kept by the host

_recent: OrderedDict[bytes, OnHost | None] = OrderedDict()  # by the digest of the entries; None: they have no factors
_orders = functools.lru_cache(KEPT)(lambda digest: [])  # `ordering` and `order`, by the first half of the digest


def digest_of(n: int, recipe: Recipe, row: Any, col: Any, values: Any) -> bytes:
    """[32], of which the first half is that of the pattern and the recipe."""
    pattern, whole = (hashlib.blake2b(repr((n, recipe)).encode(), digest_size=DIGEST // 2) for _ in range(2))
    for a in (row, col):
        pattern.update(np.ascontiguousarray(a).data)
    whole.update(np.ascontiguousarray(values).data)
    return pattern.digest() + whole.digest()


def kept(n: int, recipe: Recipe, row: Any, col: Any, values: Any, digest: bytes, room: int = KEPT) -> OnHost | None:
    """The factors of these entries, None if they have none. Matrices of one pattern share the order of the columns.

    Args:
      room: how many factors stay, these among them.

    Raises:
      ValueError: the factors do not fit into the memory.
    """
    with _lock:
        if digest in _recent:
            _recent.move_to_end(digest)
            return _recent[digest]
    found = None
    if np.all(np.isfinite(values)):
        host = Host(scipy.sparse.csc_array((values, (row, col)), shape=(n, n)))
        orders = _orders(digest[: DIGEST // 2])
        known = orders[0] if orders else None  # once, since other threads append meanwhile
        with contextlib.suppress(SolverError):
            found = factored(host, recipe, "A", known)
            if known is None or known[0] != found.ordering:
                orders[:] = [(found.ordering, found.order)]
    with _lock:
        _recent[digest] = found
        while len(_recent) > max(room, KEPT):
            _recent.popitem(last=False)
    return found


@dataclasses.dataclass(frozen=True)
class Factor:
    """What a program calls to factor: entries [..., nnz] to digests [..., 32]. Equal ones share a compiled call."""

    n: int
    recipe: Recipe

    def __call__(self, *entries: Any) -> np.ndarray:
        batch, each = members(entries, (1, 1, 1))
        room = 2 * len(each)  # a batch of matrices, and that of their transposes
        digests = [digest_of(self.n, self.recipe, *one) for one in each]
        for (row, col, values), digest in zip(each, digests, strict=True):
            kept(self.n, self.recipe, row, col, values, digest, room)
        return np.frombuffer(b"".join(digests), np.uint8).reshape(*batch, DIGEST)


@dataclasses.dataclass(frozen=True)
class Solve:
    """What a program calls to solve: entries [..., nnz], digests [..., 32] and r [..., n] or [..., n, k] to x like r.

    A result is NaN where the matrix has no factors. Dropped factors are made anew.
    """

    n: int
    recipe: Recipe
    way: str
    dtype: np.dtype
    ndim: int  # of r

    def __call__(self, *given: Any) -> np.ndarray:
        batch, each = members(given, (1, 1, 1, 1, self.ndim))
        x = np.full((len(each), *given[-1].shape[-self.ndim :]), np.nan, self.dtype)
        for k, (row, col, values, digest, r) in enumerate(each):
            found = kept(self.n, self.recipe, row, col, values, digest.tobytes(), 2 * len(each))
            if found is not None:
                x[k] = found.solve(r, self.way)
        return x.reshape(*batch, *x.shape[1:])


def members(arrays: Any, ndims: tuple[int, ...]) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of a batch, and its members: arrays of `ndims` axes, after others that are those of the batch or 1."""
    arrays = [np.asarray(a) for a in arrays]
    batch = np.broadcast_shapes(*(a.shape[: a.ndim - ndim] for a, ndim in zip(arrays, ndims, strict=True)))
    whole = [np.broadcast_to(a, (*batch, *a.shape[a.ndim - k :])) for a, k in zip(arrays, ndims, strict=True)]
    return batch, [tuple(a[at] for a in whole) for at in np.ndindex(batch)]
