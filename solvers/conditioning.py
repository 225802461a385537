"""How near to singular a matrix is, by its factors on the host: its condition, and its null space.

Both are judged after rows and columns are scaled, so that a matrix in mixed units does not count as singular.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

EPS = float(np.finfo(np.float64).eps)
SHOWN = 1e-7  # of 1/eps, the condition from which a null space is looked for: a random vector may hide the rest
# A null vector has a residual of NULL units of rounding at most, and any other vector GAP times that of a null one:
# in the spectrum of an ill-conditioned A there is no such gap, and no null space.
NULL, GAP = 1e5, 1e4
MOST = 8  # vectors of a null space; rigid motions are 6


def scales(S: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """[n] and [n], R and C, the largest entries of A's rows and then of R⁻¹·A's columns; ‖R⁻¹·A·C⁻¹‖∞. S is in CSC."""
    sizes, rows = np.abs(S.data), np.zeros(S.shape[0])
    np.maximum.at(rows, S.indices, sizes)
    sizes = sizes / rows[S.indices]
    cols = np.maximum.reduceat(sizes, S.indptr[:-1])
    return rows, cols, float(np.max(np.bincount(S.indices, sizes / np.repeat(cols, np.diff(S.indptr)))))


def condition(S: Any, solve: Callable[[Any, str], Any]) -> float:
    """An estimate of ‖B‖∞·‖B⁻¹‖₁ for B = R⁻¹·A·C⁻¹, from below (Higham and Tisseur 2000)."""
    from scipy.sparse import linalg

    rows, cols, norm = scales(S)

    def inverse(v: Any) -> Any:
        return cols * solve(rows * np.ravel(v), "N")

    def adjoint(v: Any) -> Any:
        return rows * np.conj(solve(cols * np.conj(np.ravel(v)), "T"))

    return norm * linalg.onenormest(linalg.LinearOperator(S.shape, inverse, rmatvec=adjoint, dtype=S.dtype))


def null_space(S: Any, solve: Callable[[Any, str], Any]) -> np.ndarray | None:
    """[n, k], orthonormal vectors that A takes to 0; None if A is regular, or may be.

    The pivots that should be 0 are roundings, so that A⁻¹·v of a random v is a null vector up to rounding.
    """
    with np.errstate(all="ignore"):
        rows, cols, norm = scales(S)
        rng, n, k = np.random.default_rng(0), S.shape[0], 1
        if not np.max(np.abs(cols * solve(rows * rng.standard_normal(n), "N"))) * norm * EPS >= SHOWN:
            return None
        v = rng.standard_normal((n, MOST))
        while k < min(n, MOST):
            k = min(2 * k, n)
            Z = solve(rows[:, None] * v[:, :k], "N")
            if not np.all(np.isfinite(Z)):
                return None
            Z, R = np.linalg.qr(Z)
            Z = Z @ np.linalg.svd(R)[0]  # of a tall matrix LAPACK's threads would wait for each other
            sizes = np.max(np.abs(S @ Z) / rows[:, None], axis=0) / (norm * np.max(np.abs(Z) * cols[:, None], axis=0))
            n_null = np.count_nonzero(sizes <= NULL * EPS)
            if n_null < k:
                is_clear = n_null and np.min(sizes[n_null:]) >= GAP * max(np.max(sizes[:n_null]), EPS)
                return Z[:, :n_null] if is_clear else None
        return None
