"""SuperLU's factors of a matrix on the host (Li 2005, as SciPy has it), and those that the host keeps for programs.

A symmetric pattern with a strong diagonal is ordered by MMD of A + Aᵀ, and pivots stay on the diagonal down to 1e-3 of
their columns; any other by COLAMD, with partial pivoting. See `Host.ordering`.
"""

import contextlib
import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np
import scipy

from solvers.core import arguments
from solvers.host import COLAMD, MMD, THRESHOLD, Host
from solvers.solution import SolverError, Status

Recipe = tuple[Any, ...]  # ("lu",), ("cholesky",), or ("ilu", drop_tol, fill)
KEPT = 4  # factors that the host keeps for the programs that factor
DIGEST = 16  # bytes
BACKWARD = 100  # units of rounding in a solve whose pivots stay on the diagonal, at most


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

    S, symmetric = host.S, ordering == MMD
    if order is None and (ordering in host.orders or (symmetric and np.any(host.hubs))):
        order = host.order(ordering)
    rows = cols = slice(None)
    if order is not None:
        S, rows, cols = (S[order][:, order], order, order) if symmetric else (S[:, order], rows, order)
    options: Any = {"permc_spec": ordering if order is None else "NATURAL", "options": {"SymmetricMode": symmetric}}
    try:
        if recipe[0] == "ilu":
            options |= {"drop_tol": recipe[1], "fill_factor": recipe[2]}
        if symmetric:
            options["diag_pivot_thresh"] = 0.0 if recipe[0] == "cholesky" else THRESHOLD
        made = (linalg.spilu if recipe[0] == "ilu" else linalg.splu)(S, **options)
    except RuntimeError as error:
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

_recent = functools.lru_cache(KEPT)(lambda digest: [])  # by the digest of entries, `OnHost` or None once it is known
_orders = functools.lru_cache(KEPT)(lambda digest: [])  # `ordering` and `order`, by the digest of a pattern


def digest_of(n: int, recipe: Recipe, *arrays: np.ndarray) -> bytes:
    found = hashlib.blake2b(repr((n, recipe)).encode(), digest_size=DIGEST)
    for a in arrays:
        found.update(np.ascontiguousarray(a).data)
    return found.digest()


def kept(n: int, recipe: Recipe, row: Any, col: Any, values: Any, digest: bytes) -> OnHost | None:
    """The factors of these entries, None if they have none. Matrices of one pattern share the order of the columns."""
    place = _recent(digest)
    if place:
        return place[0]
    row, col, values = map(np.asarray, (row, col, values))
    found = None
    if np.all(np.isfinite(values)):
        host = Host(scipy.sparse.csc_array((values, (row, col)), shape=(n, n)))
        orders = _orders(digest_of(n, recipe, row, col))
        known = orders[0] if orders else None  # once, since other threads append meanwhile
        with contextlib.suppress(SolverError, ValueError):
            found = factored(host, recipe, "A", known)
            if known is None or known[0] != found.ordering:
                orders[:] = [(found.ordering, found.order)]
    place.append(found)
    return found
