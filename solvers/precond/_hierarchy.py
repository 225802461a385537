"""The set-up of multigrid on the host: smoothed aggregation, smoothers, the inverse of the coarsest level.

On each level (Vaněk, Mandel and Brezina 1996, §5):

    |a[i, j]| ≥ θ·√(a[i, i]·a[j, j])    i and j are coupled strongly; θ = 0.08 on the finest level, then a quarter;
                                        larger if the next level would have far more entries, smaller if most
                                        points had no strong coupling, though their couplings sum up to more
                                        than half the diagonal
    aggregates                          points with their strong neighbours
    B = T·B'                            QR of the near-null space on each aggregate; B' is that of the next level
    P = (I − ω/λ·D⁻¹·A')·T              λ ≈ the largest eigenvalue of D⁻¹A; A' is A, its weak couplings on the diagonal
    R·A·P                               the matrix of the next level, R = Pᵀ

A' is A itself unless B is the same at all points, since A'·B would differ from A·B; coarse levels rarely have such a B.
The paper divides by the diagonal of A', which is zero if weak couplings sum up to it; D is the diagonal of A. A point
without strong neighbours is in no aggregate: the smoother alone treats it. For an unsymmetric A, R is the transpose of
the prolongation of Aᵀ (Sala and Tuminaro 2008).

The result consists of SciPy's matrices and NumPy's arrays; `multigrid` stores them in formats for the device.
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy

from jaxsparse_fmt.kernels.cpu import aggregation
from solvers.precond._cycles import Level
from solvers.precond._inverse import LARGEST, NULL
from solvers.precond._spectrum import chebyshev_step

Matrix = Any  # scipy.sparse; SciPy ships no types

# The degree of the smoother, and the lower end of the spectrum to smooth as a fraction of the upper. Of degrees 1 to 4
# and fractions 1/30 to 1/2 these move the fewest bytes, or nearly, on 7-point Poisson and elasticity alike.
DEGREE, FRACTION = 2, 0.15
# The paper halves θ from level to level; with a quarter 7-point Poisson has 5% fewer entries and as many iterations.
WEAKER = 0.25
# If the next level would have more than DENSEST times the blocks of this one, as in graphs of short diameter, θ is
# multiplied by STRICTER, as often as needed: all levels of a power-law graph of 19,467 nodes then have 1.06 times the
# entries of A.
DENSEST, STRICTER = 2, 3
# ω. With the usual 4/3 the iterations grow twice as fast from 10⁵ to 10⁶ unknowns of 7-point Poisson; elsewhere they
# are the same.
DAMPING = 1.5
LANCZOS_STEPS, SAFETY = 8, 1.1
ROUNDING = 1e-6  # a Ritz value may lie this far below zero, relative to the largest
MAX_LEVELS = 20
REGULAR = 0.1  # over NULL: a matrix whose inverse has smaller column sums has no eigenvalue that counts as zero


class Hierarchy(NamedTuple):
    levels: list[Any]  # without the coarsest: what `keep` made of each `Level` on the host
    coarse_inverse: np.ndarray  # [m, m]
    hermitian: bool  # A = Aᴴ, and the levels are as symmetric
    definite: bool  # Hermitian, and the set-up found no sign that it is indefinite


class Start(NamedTuple):
    """Levels that are made already, and what is known of the matrix below them."""

    levels: list[Any]
    unit: np.ndarray  # [n] sum of the absolute values that add up to each diagonal entry
    definite: bool
    hermitian: bool = True


class Aggregation:
    """Smoothed aggregation.

    Args:
      B: [n, k], the near-null space.
      b: unknowns of a point.
    """

    def __init__(self, B: np.ndarray, b: int, theta: float, max_coarse: int):
        self.B, self.b, self.theta, self.max_coarse = B, b, theta, max_coarse

    def ends(self, A: Matrix) -> bool:
        return A.shape[0] <= self.max_coarse or A.nnz == 0

    def __call__(self, A: Matrix, scale: np.ndarray, hermitian: bool) -> tuple[Matrix, Matrix, Matrix]:
        """R, P and R·A·P."""
        A = aggregation.points(A, self.b)
        same = not np.any(np.diff(self.B.reshape(A.indptr.size - 1, -1), axis=0))  # at all points
        weaker = True
        while True:
            chosen, agg, count, self.theta = aggregated(A, self.theta, weaker)
            Q, below = aggregation.tentative(agg, count, self.B)
            T = aggregation.placed(agg, count, Q)
            P = aggregation.prolongation(A, chosen | (not same), T, scale)
            R = aggregation.adjoint(P)
            if not hermitian:
                H = aggregation.adjoint(A)
                kept = aggregation.strength(H, self.theta) | (not same)
                R = aggregation.adjoint(aggregation.prolongation(H, kept, T, scale.conj()))
            most = DENSEST * A.indices.size if 0 < self.theta < 1 else np.inf
            product = aggregation.galerkin(R, A, P, most)
            if product is not None:
                break
            self.theta, weaker = STRICTER * self.theta, False
        self.B, self.b, self.theta = below, self.B.shape[1], WEAKER * self.theta
        return R, P, product


def aggregated(A: Matrix, theta: float, weaker: bool = True) -> tuple[np.ndarray, np.ndarray, int, float]:
    """The strong couplings of a graph of points, the aggregates and their number, and their theta.

    Args:
      weaker: theta may be quartered until `left_over` is false.
    """
    while True:
        strong = aggregation.strength(A, theta)
        agg, count = aggregation.aggregates(A, strong)
        if not (weaker and aggregation.left_over(A, agg)):
            return strong, agg, count, theta
        theta *= WEAKER


class Given:
    """The levels that the user gives: each has A, R and P, except the last, which has A."""

    def __init__(self, levels: Any):
        self.levels: list[Any] = list(levels) if isinstance(levels, Iterable) else [None]
        for k, level in enumerate(self.levels):
            for name in "ARP" if k + 1 < len(self.levels) else "A":
                if not hasattr(level, name):
                    raise TypeError(f"levels must have A, R and P; {type(level).__name__} has no {name}")

    def ends(self, A: Matrix) -> bool:
        return len(self.levels) <= 1

    def __call__(self, A: Matrix, scale: np.ndarray, hermitian: bool) -> tuple[Matrix, Matrix, Matrix]:
        step = self.levels.pop(0)
        R, P, below = (_sorted(matrix) for matrix in (step.R, step.P, self.levels[0].A))
        if P.shape != (A.shape[0], below.shape[0]) or R.shape != P.shape[::-1]:
            raise ValueError(f"a level of {A.shape[0]} rows has P of shape {P.shape} and R of shape {R.shape}")
        for matrix in (R, P, below):
            if not np.all(np.isfinite(matrix.data)):
                raise ValueError(f"the levels have a NaN or an infinity, between {P.shape[1]} and {P.shape[0]} rows")
            matrix.eliminate_zeros()
        return R, P, below


def build(
    S: Matrix, coarsening: Any, degree: int, keep: Callable[[Level, int], Any], start: Start | None = None
) -> Hierarchy:
    """A hierarchy for the canonical CSR matrix S, already checked, by an `Aggregation` or what is `Given`.

    Only the result of `keep` is held of each level, so that few copies live at once.
    """
    if start is None:
        hermitian = is_hermitian(S)
        start = Start([], np.abs(S.diagonal()), hermitian, hermitian)
    A, levels, (_, unit, definite, hermitian) = S, [*start.levels], start
    while len(levels) < MAX_LEVELS - 1 and not coarsening.ends(A):
        inverse = inverse_diagonal(A, unit, hermitian)
        upper, lowest = extremes(A, inverse, hermitian)
        definite = definite and bool(np.min(inverse) >= 0) and lowest >= -ROUNDING * upper
        R, P, below = coarsening(A, DAMPING / upper * inverse, hermitian)
        given = isinstance(coarsening, Given)
        if not given and P.shape[1] >= A.shape[0]:  # aggregates of fewer points than B has columns
            break
        if given and largest((R - P.conj().T).data) > 1e-12:
            hermitian = definite = False
        levels.append(keep(Level(A, R, P, inverse, recurrence(degree, upper)), len(levels)))
        squares = abs(R)
        squares.data **= 2
        A, unit = below, squares @ unit
    check_coarsest(A.shape[0], len(levels) + 1)
    inverse, positive = coarse_inverse(A, unit, hermitian)
    return Hierarchy(levels, inverse, hermitian, definite and positive)


def is_hermitian(S: Matrix) -> bool:
    """Whether S = Sᴴ up to rounding, by products with a random vector: a transpose takes ten times as long."""
    v = np.random.default_rng(0).uniform(-1, 1, S.shape[0])
    rounding = 1e-12 * largest(S.data) + 1e-15 * largest(aggregation.sums(S))
    return largest(S @ v - aggregation.adjoint(S) @ v) <= rounding


def largest(a: np.ndarray) -> float:
    """The largest absolute value; of real numbers without a copy."""
    a = np.abs(a) if a.dtype.kind == "c" else a
    return float(max(np.max(a, initial=0), -np.min(a, initial=0)))


def _sorted(A: Matrix) -> Matrix:
    """A copy of A in CSR with sorted rows."""
    A = scipy.sparse.csr_array(A, copy=True)  # SciPy sorts in place, in arrays that it would share with the user's
    A.sort_indices()
    return A


# --------------------------------------------------------------------------------------------------------- smoothers


def inverse_diagonal(
    A: Matrix,
    unit: np.ndarray,  # [n] as in `Start`
    hermitian: bool,
) -> np.ndarray:  # [n]
    """1 / A's diagonal, or zero where a column of B vanished or A annihilates it: no smoother changes such an unknown.

    The diagonal of a coarse matrix is zero or rounding there.
    """
    diagonal = A.diagonal()
    diagonal = diagonal.real if hermitian else diagonal
    return np.divide(1, diagonal, out=np.zeros_like(diagonal), where=np.abs(diagonal) > NULL * unit)


def recurrence(degree: int, upper: float) -> np.ndarray:
    """[degree, 2], a and c of z ← a·z + c·D⁻¹·r, x ← x + z for eigenvalues of D⁻¹A up to `upper`."""
    middle, half = (1 + FRACTION) / 2, (1 - FRACTION) / 2
    rows, rho = [(0.0, 1 / middle)], half / middle
    for _ in range(degree - 1):
        rho, a, c = chebyshev_step(rho, middle, half)
        rows.append((a, c))
    return np.array(rows) / (1, upper)


def extremes(A: Matrix, inverse_diagonal: np.ndarray, hermitian: bool) -> tuple[float, float]:
    """A bound of the real parts of D⁻¹A's eigenvalues, and the least Ritz value; in float64 whatever JAX computes in.

    The bound is the smaller of ‖D⁻¹A‖∞, which is a sure bound, and 1.1 times the largest Ritz value of 8 Lanczos steps
    on the Hermitian part of |D|^½·D⁻¹A·|D|^-½, which is close (Adams et al. 2003 scale such an estimate by 1.1 too).
    It is 1 if the whole inverse diagonal is zero, since A annihilates B.
    """
    if not np.any(inverse_diagonal):
        return 1.0, 0.0
    size = np.sqrt(np.abs(inverse_diagonal))  # |D|^-½
    left = np.divide(inverse_diagonal, size, out=np.zeros_like(inverse_diagonal), where=size != 0)
    bound = float(np.max(np.abs(inverse_diagonal) * aggregation.sums(A)))
    hermitian = hermitian and bool(np.min(inverse_diagonal) >= 0)
    H = None if hermitian else A.conj().T
    v = np.random.default_rng(0).uniform(-1, 1, A.shape[0]).astype(A.dtype) * (size != 0)
    v, before, beta = v / np.linalg.norm(v), np.zeros_like(v), 0.0
    alphas: list[float] = []
    betas: list[float] = []
    ritz = np.zeros(1)
    for _ in range(min(LANCZOS_STEPS, A.shape[0])):
        w = left * (A @ (size * v))
        w = w if H is None else (w + size * (H @ (left.conj() * v))) / 2
        alphas.append(float(np.vdot(v, w).real))
        ritz = np.linalg.eigvalsh(np.diag(alphas) + np.diag(betas, 1) + np.diag(betas, -1))
        w -= alphas[-1] * v + beta * before
        beta = float(np.linalg.norm(w))
        if beta <= 1e-10 * bound or SAFETY * ritz[-1] >= bound:  # an invariant subspace, or no smaller bound to find
            break
        v, before = w / beta, v
        betas.append(beta)
    return largest_value(ritz, bound), float(ritz[0])


def largest_value(ritz: np.ndarray, bound: float) -> float:
    """The bound of the spectrum from rising Ritz values and a sure bound."""
    return min(SAFETY * float(ritz[-1]), bound) if ritz[-1] > 0 else bound


# ---------------------------------------------------------------------------------------------------------- coarsest


def check_coarsest(rows: int, levels: int) -> None:
    if rows > LARGEST:
        raise ValueError(
            f"coarsening stopped at {rows} rows after {levels} levels, too many to invert densely; lower theta"
        )


def coarse_inverse(
    A: Matrix,
    unit: np.ndarray,  # [m] as in `Start`
    hermitian: bool,
) -> tuple[np.ndarray, bool]:
    """A generalized inverse [m, m] of the coarsest matrix, and whether it is positive semidefinite up to rounding.

    Rounding makes a singular matrix regular. In a pure Neumann problem A·1 is 1e-16 of the sums of absolute values; in
    a regular matrix the least such ratio is the reciprocal of a condition number.
    """
    scale = np.divide(1, np.sqrt(unit), out=np.zeros_like(unit), where=unit > 0)
    dense = scale[:, None] * A.toarray() * scale
    if hermitian:
        dense = (dense + dense.conj().T) / 2
        with contextlib.suppress(np.linalg.LinAlgError):  # by Cholesky's factor: many threads delay eigh of few rows
            W = scipy.linalg.solve_triangular(np.linalg.cholesky(dense), np.eye(len(dense)), lower=True)
            inverse = W.conj().T @ W
            if np.max(np.sum(np.abs(inverse), axis=0)) < REGULAR / NULL:
                return scale[:, None] * inverse * scale, True
        values, V = np.linalg.eigh(dense)
        W = V.conj().T
    else:
        U, values, Vh = np.linalg.svd(dense)
        V, W = Vh.conj().T, U.conj().T
    inverse = (V * np.divide(1, values, out=np.zeros_like(values), where=np.abs(values) > NULL)) @ W
    return scale[:, None] * inverse * scale, hermitian and bool(np.min(values) >= -NULL)
