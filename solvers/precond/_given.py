"""Multigrid of levels that are there: the user's, or those of a hierarchy whose matrix has other values."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import scipy

from jaxsparse_fmt.kernels.cpu import aggregation
from solvers.precond._hierarchy import galerkin, largest
from solvers.precond._rows import Cut, Halo, Parts, Rows

Matrix = Any  # scipy.sparse


class Given:
    """The levels that the user gives: each has A, R and P, except the last, which has A."""

    is_adjoint = True  # whether R = Pᴴ on all levels so far

    def __init__(self, levels: Any):
        self.levels: list[Any] = list(levels) if isinstance(levels, Iterable) else [None]
        for k, level in enumerate(self.levels):
            for name in "ARP" if k + 1 < len(self.levels) else "A":
                if not hasattr(level, name):
                    raise TypeError(f"levels must have A, R and P; {type(level).__name__} has no {name}")

    def ends(self, A: Rows) -> bool:
        return len(self.levels) <= 1

    def __call__(self, A: Rows, scale: Parts, hermitian: bool) -> tuple[Parts, Halo, Rows, Rows]:
        step = self.levels.pop(0)
        R, P, below = (_sorted(matrix) for matrix in (step.R, step.P, self.levels[0].A))
        if P.shape != (A.shape[0], below.shape[0]) or R.shape != P.shape[::-1]:
            raise ValueError(f"a level of {A.shape[0]} rows has P of shape {P.shape} and R of shape {R.shape}")
        for matrix in (R, P, below):
            if not np.all(np.isfinite(matrix.data)):
                raise ValueError(f"the levels have a NaN or an infinity, between {P.shape[1]} and {P.shape[0]} rows")
            matrix.eliminate_zeros()
        self.is_adjoint = self.is_adjoint and largest((R - P.conj().T).data) <= 1e-12
        P, below = (Rows.of({0: aggregation.points(S, 1)}, Cut(np.array([0, S.shape[1]]))) for S in (P, below))
        return {0: aggregation.points(R, 1)}, P.halo, P, below


def of_one(level: Any) -> tuple[Parts, Halo, Rows]:
    """R, with the halo of its rows, and P of a level of one device."""
    kind = np.promote_types(level.P.dtype, np.float64)
    R, P = (aggregation.points(S._read_only().astype(kind, copy=False), 1) for S in (level.R, level.P))
    P = Rows.of({0: P}, Cut(np.array([0, level.P.shape[1]])))
    return {0: R}, P.halo, P


class OfTransfers:
    """The levels of a hierarchy that was made of other values: their coarse matrices become R·A·P of these.

    Args:
      levels: functions that read R, with the halo of its rows, and P.
      is_adjoint: whether R = Pᴴ on all.
    """

    def __init__(self, levels: list[Callable[[], tuple[Parts, Halo, Rows]]], is_adjoint: bool):
        self.levels, self.is_adjoint = levels, is_adjoint

    def ends(self, A: Rows) -> bool:
        return not self.levels

    def __call__(self, A: Rows, scale: Parts, hermitian: bool) -> tuple[Parts, Halo, Rows, Rows]:
        R, halo, P = self.levels.pop(0)()
        product = galerkin(R, halo, A, P, np.inf)
        assert product is not None  # no bound was given
        self.B = {k: np.zeros((0, 1)) for k in R}  # no level below needs a near-null space
        return R, halo, P, product


def _sorted(A: Matrix) -> Matrix:
    """A copy of A in CSR with sorted rows."""
    A = scipy.sparse.csr_array(A, copy=True)  # SciPy sorts in place, in arrays that it would share with the user's
    A.sort_indices()
    return A
