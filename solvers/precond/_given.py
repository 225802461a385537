"""Multigrid of levels that are there: the user's, or those of a hierarchy whose matrix has other values."""

from collections.abc import Iterable
from typing import Any, NamedTuple

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


class Transfer(NamedTuple):
    """P and Rᴴ of a level, by shards in CSR; their columns are numbered through all shards.

    Attributes:
      below: the cut of the columns.
    """

    P: Parts
    back: Parts  # P itself if R = Pᴴ
    below: Cut


def of_one(level: Any, is_adjoint: bool) -> Transfer:
    """R and P of a level of one device."""
    P = {0: level.P.to_scipy().astype(np.promote_types(level.P.dtype, np.float64))}
    back = P if is_adjoint else {0: level.R.to_scipy().astype(P[0].dtype).conj().T.tocsr()}
    return Transfer(P, back, Cut(np.array([0, level.P.shape[1]])))


class Kept:
    """The levels of a hierarchy that was made of other values: their coarse matrices become R·A·P of these."""

    is_adjoint = True

    def __init__(self, levels: list[Transfer]):
        self.levels, self.B = levels, {k: np.zeros((0, 1)) for level in levels[:1] for k in level.P}

    def ends(self, A: Rows) -> bool:
        return not self.levels

    def __call__(self, A: Rows, scale: Parts, hermitian: bool) -> tuple[Parts, Halo, Rows, Rows]:
        step = self.levels.pop(0)

        def in_points(of: Parts) -> Rows:
            return Rows.of({k: aggregation.points(S, 1) for k, S in of.items()}, step.below)

        P = back = in_points(step.P)
        if step.back is not step.P:
            self.is_adjoint, back = False, in_points(step.back)
        R = back.each(aggregation.adjoint)
        product = galerkin(R, back.halo, A, P, np.inf)
        assert product is not None  # no bound was given
        return R, back.halo, P, product


def _sorted(A: Matrix) -> Matrix:
    """A copy of A in CSR with sorted rows."""
    A = scipy.sparse.csr_array(A, copy=True)  # SciPy sorts in place, in arrays that it would share with the user's
    A.sort_indices()
    return A
