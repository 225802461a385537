"""The set-up of multigrid on the host: smoothed aggregation, smoothers, the inverse of the coarsest level.

On each level (Vaněk, Mandel and Brezina 1996, §5):

    |a[i, j]| ≥ θ·√(a[i, i]·a[j, j])    i and j are coupled strongly; θ = 0.08 on the finest level, then a quarter;
                                        larger where the next level would have far more entries
    aggregates                          points with their strong neighbours
    B = T·B'                            QR of the near-null space on each aggregate; B' is that of the next level
    P = (I − ω/λ·D⁻¹·A')·T              λ ≈ the largest eigenvalue of D⁻¹A; A' is A, its weak couplings on the diagonal
    R·A·P                               the matrix of the next level, R = Pᵀ

A' is A itself where B is not the same at all points, as a rule on coarser levels, since A'·B would differ from A·B. The
paper divides by the diagonal of A', which is zero where weak couplings sum up to it; D is that of A. A point without
strong neighbours is in no aggregate: the smoother alone treats it. For an unsymmetric A, R is the transpose of the
prolongation of Aᵀ (Sala and Tuminaro 2008).

The result consists of SciPy's matrices and NumPy's arrays; `multigrid` stores them in formats for the device.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from jaxsparse_fmt.kernels.cpu import aggregation
from solvers.core.spectrum import chebyshev_step
from solvers.precond import _checks as checks
from solvers.precond._cycles import cycled
from solvers.precond._inverse import NULL, PIVOT

Matrix = Any  # scipy.sparse; SciPy ships no types

# Degree, and the lower end of the spectrum to smooth as a fraction of the upper. Of degrees 1 to 4 and fractions 1/30
# to 1/2 these move the fewest bytes, or nearly, on 7-point Poisson and elasticity alike.
SMOOTHERS = {"chebyshev": (2, 0.15), "jacobi": (1, 1 / 3), "l1_jacobi": (1, 1.0)}
# The paper halves θ from level to level; with a quarter 7-point Poisson has 5% fewer entries and as many iterations.
WEAKER = 0.25
# Where the next level would have more than DENSEST times the blocks of this one, as in graphs of short diameter, θ is
# multiplied by STRICTER until it has not: on the power-law graph of 2026-11-25_multigrid_cpu.md all levels then have
# 1.06 times the entries of A.
DENSEST, STRICTER = 2, 3
# ω. With the usual 4/3 the iterations grow twice as fast from 10⁵ to 10⁶ unknowns of 7-point Poisson; elsewhere they
# are the same.
DAMPING = 1.5
LANCZOS_STEPS, SAFETY = 8, 1.1
# Cycles whose errors are the near-null space of an adaptive set-up. On elasticity in random units 5 lead to 23
# iterations and 10 to 19; constants take 45 and rigid motions 13.
ADAPTING = 10
ROUNDING = 1e-6  # a Ritz value may lie this far below zero, relative to the largest


class Transfer(NamedTuple):
    """The parts of P: P = T − ω/λ·D⁻¹·A'·T, the arguments of `aggregation.prolongation`."""

    A: Matrix  # [n, n], with whole blocks
    b: int
    chosen: np.ndarray
    agg: np.ndarray
    count: int
    Q: np.ndarray


class HostLevel(NamedTuple):
    A: Matrix  # [n, n]
    R: Matrix  # [m, n]
    P: Matrix  # [n, m]
    inverse_diagonal: np.ndarray  # [n]
    recurrence: np.ndarray  # [degree, 2]
    transfer: Transfer | None  # None where the user gave P


class Hierarchy(NamedTuple):
    levels: list[Any]  # without the coarsest: what `keep` made of each HostLevel
    coarse_inverse: np.ndarray  # [m, m]
    hermitian: bool  # A = Aᴴ, and the levels are as symmetric
    definite: bool  # Hermitian, and the set-up found no sign that it is indefinite


class Smoother(NamedTuple):
    name: str
    degree: int
    fraction: float


NOISE = Smoother("chebyshev", 10, 0.03)  # of the noise from which an adaptive set-up starts


class Step(NamedTuple):
    """The result of coarsening a level."""

    R: Matrix
    P: Matrix
    A: Matrix  # [m, m], of the next level
    transfer: Transfer | None


class Aggregation:
    """Smoothed aggregation.

    Args:
      B: [n, k], the near-null space.
      b: unknowns of a point.
    """

    def __init__(self, B: np.ndarray, b: int, theta: float, max_coarse: int, max_levels: int):
        self.B, self.b, self.theta, self.max_coarse, self.left = B, b, theta, max_coarse, max_levels - 1
        self.finest = True

    def ends(self, A: Matrix) -> bool:
        return A.shape[0] <= self.max_coarse or self.left <= 0 or A.nnz == 0

    def __call__(self, A: Matrix, scale: np.ndarray, hermitian: bool) -> Step:
        filled = aggregation.filled(A, self.b) if self.finest else A  # a product of blocks has whole ones
        self.finest = False
        whole = aggregation.blocks(filled, self.b, self.b)
        most = DENSEST * whole.col.size
        while (
            step := self._coarsened(filled, whole, scale, hermitian, most if 0 < self.theta < 1 else np.inf)
        ) is None:
            self.theta *= STRICTER
        self.theta, self.left = WEAKER * self.theta, self.left - 1
        return step

    def _coarsened(self, filled: Matrix, whole: Any, scale: np.ndarray, hermitian: bool, most: float) -> Step | None:
        """None if the next level would have more than `most` blocks."""
        k, b = self.B.shape[1], self.b
        chosen = aggregation.strength(whole, b, self.theta)
        agg, count = aggregation.aggregates(whole, chosen)
        Q, below = aggregation.tentative(agg, count, self.B)
        if np.any(np.diff(self.B.reshape(len(agg), -1), axis=0)):  # not the same at all points
            chosen = np.ones_like(chosen)
        P = aggregation.prolongation(whole, b, chosen, agg, count, Q, scale)
        R = aggregation.transposed(P)
        if not hermitian:
            H = aggregation.blocks(aggregation.transposed(filled), b, b)
            kept = chosen if np.all(chosen) else aggregation.strength(H, b, self.theta)
            R = aggregation.transposed(aggregation.prolongation(H, b, kept, agg, count, Q, scale.conj()))
        product = aggregation.galerkin(R, whole, P, b, k, hermitian, most)
        if product is None:
            return None
        self.B, self.b = below, k
        return Step(R, P, product, Transfer(filled, b, chosen, agg, count, Q))


class Given:
    """The levels that the user gives: each has A, R and P, except the last, which has A."""

    def __init__(self, levels: Any):
        self.levels = list(levels)

    def ends(self, A: Matrix) -> bool:
        return len(self.levels) <= 1

    def __call__(self, A: Matrix, scale: np.ndarray, hermitian: bool) -> Step:
        step = self.levels.pop(0)
        R, P, below = (_sorted(matrix) for matrix in (step.R, step.P, self.levels[0].A))
        if P.shape != (A.shape[0], below.shape[0]) or R.shape != P.shape[::-1]:
            raise ValueError(f"a level of {A.shape[0]} rows has P of shape {P.shape} and R of shape {R.shape}")
        for matrix in (R, P, below):
            if not np.all(np.isfinite(matrix.data)):
                raise ValueError(f"the levels have a NaN or an infinity, between {P.shape[1]} and {P.shape[0]} rows")
            matrix.eliminate_zeros()
        return Step(R, P, below, None)


def build(
    S: Matrix, coarsening: Any, smoother: Smoother, keep: Callable[[HostLevel, int], Any] = lambda level, k: level
) -> Hierarchy:
    """A hierarchy for the canonical CSR matrix S, already checked, by an `Aggregation` or what is `Given`.

    Only the result of `keep` is held of each level, so that few copies live at once.
    """
    A, hermitian = S, _is_hermitian(S)
    levels, unit, definite = [], np.abs(S.diagonal()), hermitian
    while not coarsening.ends(A):
        inverse = inverse_diagonal(A, unit, hermitian)
        upper, lowest = spectrum(A, inverse, hermitian)
        definite = definite and bool(np.min(inverse) >= 0) and lowest >= -ROUNDING * upper
        step = coarsening(A, DAMPING / upper * inverse, hermitian)
        if step.transfer is not None and step.P.shape[1] >= A.shape[0]:  # aggregates of fewer points than B has columns
            break
        if step.transfer is None and abs(step.R - aggregation.transposed(step.P)).max() > 1e-12:
            hermitian = definite = False
        if smoother.name == "l1_jacobi":
            sums = aggregation.sums(A)
            inverse, upper = np.divide(1, sums, out=np.zeros_like(sums), where=inverse != 0), 1.0
        level = HostLevel(A, step.R, step.P, inverse, recurrence(smoother) / (1, upper), step.transfer)
        levels.append(keep(level, len(levels)))
        A, unit = step.A, aggregation.squares(step.R, unit)
    checks.coarsest(A.shape[0], len(levels) + 1)
    inverse, positive = coarse_inverse(A, unit, hermitian)
    return Hierarchy(levels, inverse, hermitian, definite and positive)


def adapted(
    S: Matrix, k: int, coarsening: Callable[[np.ndarray], Aggregation], smoother: Smoother
) -> np.ndarray:  # [n, k]
    """Columns that a hierarchy leaves as errors: a near-null space found without knowledge of the problem.

    The general set-up stage of Brezina, Falgout, MacLachlan, Manteuffel, McCormick and Ruge (2005, Adaptive smoothed
    aggregation, §3.1), with all columns at once: smoothed noise makes a first hierarchy, and its cycles reduce
    other noise to the columns, which are the errors that they reduce slowly.
    """
    random, A = np.random.default_rng(0), S
    inverse = inverse_diagonal(A, np.abs(A.diagonal()), hermitian := _is_hermitian(A))
    upper, _ = spectrum(A, inverse, hermitian)
    near, x = random.standard_normal((2, A.shape[0], k)) * np.sqrt(np.abs(inverse))[:, None]
    r, z = -(A @ near), np.zeros_like(near)
    for a, c in recurrence(NOISE) / (1, upper):
        z = a * z + c * inverse[:, None] * r
        near, r = near + z, r - A @ z
    built = build(S, coarsening(near), smoother)
    for _ in range(ADAPTING if built.levels else 0):
        x = x - np.asarray(cycled(tuple(built.levels), built.coarse_inverse, "V", A @ x))  # pyright: ignore[reportArgumentType]
        x /= np.linalg.norm(x, axis=0)
    return np.ascontiguousarray(x, S.dtype)


def _is_hermitian(S: Matrix) -> bool:
    """To 1e-12 of the largest entry."""
    return aggregation.asymmetry(S) <= 1e-12 * largest(S.data)


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
    unit: np.ndarray,  # [n] size of the sums behind A's diagonal
    hermitian: bool,
) -> np.ndarray:  # [n]
    """1 / A's diagonal.

    A zero on the diagonal of a coarse matrix, or rounding in place of one, belongs to a column of B that vanished there
    or that A annihilates. Its inverse is set to zero, and the smoother does not change that unknown.
    """
    diagonal = A.diagonal()
    diagonal = diagonal.real if hermitian else diagonal
    return np.divide(1, diagonal, out=np.zeros_like(diagonal), where=np.abs(diagonal) > NULL * unit)


def recurrence(smoother: Smoother) -> np.ndarray:
    """[degree, 2] numbers (a, c) of z ← a·z + c/λ·D⁻¹·r, x ← x + z for eigenvalues of D⁻¹A up to λ.

    The best damping of Jacobi is Chebyshev's first step.
    """
    name, degree, fraction = smoother
    middle, half = (1 + fraction) / 2, (1 - fraction) / 2
    rows, rho = [(0.0, 1 / middle)], half / middle
    for _ in range(degree - 1):
        if name == "chebyshev":
            rho, *numbers = chebyshev_step(rho, middle, half)
            rows.append(tuple(numbers))
        else:
            rows.append((0.0, 1 / middle))
    return np.array(rows)


def spectrum(A: Matrix, inverse_diagonal: np.ndarray, hermitian: bool) -> tuple[float, float]:
    """A bound of the largest real part of an eigenvalue of D⁻¹A, and the least Ritz value.

    The bound is the smaller of ‖D⁻¹A‖∞, which is a sure bound, and 1.1 times the largest Ritz value of 8 Lanczos steps
    on the Hermitian part of |D|^½·D⁻¹A·|D|^-½, which is close (Adams et al. 2003 scale such an estimate by 1.1 too).
    Where the inverse diagonal is zero, as where A annihilates B, the bound is 1.
    """
    if not np.any(inverse_diagonal):
        return 1.0, 0.0
    size = np.sqrt(np.abs(inverse_diagonal))  # |D|^-½
    left = np.divide(inverse_diagonal, size, out=np.zeros_like(inverse_diagonal), where=size != 0)
    bound = float(np.max(np.abs(inverse_diagonal) * aggregation.sums(A)))
    hermitian = hermitian and bool(np.min(inverse_diagonal) >= 0)
    H = None if hermitian else aggregation.transposed(A)

    v, before, scaled = (np.zeros(A.shape[0], A.dtype) for _ in range(3))
    v += _noise(A.shape[0]) * (size != 0)
    norm, last = aggregation.subtract(v, 0, v, size, scaled), 1.0
    alphas: list[float] = []
    ritz = np.zeros(1)
    betas: list[float] = [0.0]
    for _ in range(min(LANCZOS_STEPS, A.shape[0])):  # v has this norm, and the vector before it the last
        half, w = 1 if H is None else 0.5, before
        inner = aggregation.add_product(w, -betas[-1] / last, half / norm, left, A, scaled, v)
        if H is not None:
            inner = aggregation.add_product(w, 1, half / norm, size.astype(left.dtype), H, left.conj() * v, v)
        alphas.append(float(inner.real) / norm)
        last, beta = norm, aggregation.subtract(w, alphas[-1] / norm, v, size, scaled)
        off = betas[1:]
        ritz = np.linalg.eigvalsh(np.diag(alphas) + np.diag(off, 1) + np.diag(off, -1))
        betas.append(beta)
        if beta <= 1e-10 * bound or SAFETY * ritz[-1] >= bound:  # an invariant subspace, or no smaller bound to find
            break
        v, before, norm = w, v, beta
    return min(SAFETY * float(ritz[-1]), bound) if ritz[-1] > 0 else bound, float(ritz[0])


def _noise(n: int) -> np.ndarray:
    """The numbers of `vector_passes.noise` [n], so that a refresh estimates the same eigenvalues."""
    h = np.arange(1, n + 1, dtype=np.uint32)
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        h = (h ^ (h >> shift)) * np.uint32(factor)
    return (h ^ (h >> 15)).view(np.int32) * 2.0**-31


# ---------------------------------------------------------------------------------------------------------- coarsest


def coarse_inverse(
    A: Matrix,
    unit: np.ndarray,  # [m] size of the sums behind the diagonal
    hermitian: bool,
) -> tuple[np.ndarray, bool]:
    """An inverse [m, m] of the coarsest matrix, by Cholesky's factor where that exists, else a generalized one; and
    whether the matrix is positive semidefinite up to rounding.

    The matrix counts as singular if only rounding makes it regular. In a pure Neumann problem the constant leaves 1e-16
    of the sums behind it; in a regular matrix the reciprocal of a condition number remains.
    """
    scale = np.divide(1, np.sqrt(unit), out=np.zeros_like(unit), where=unit > 0)
    dense = scale[:, None] * A.toarray() * scale
    if hermitian:
        dense = (dense + dense.conj().T) / 2
        factor, invert = scipy.linalg.lapack.get_lapack_funcs(("potrf", "potri"), (dense,))
        L, failed = factor(dense, lower=True)
        if not failed and np.min(np.abs(np.diag(L))) ** 2 > PIVOT:
            lower = np.tril(invert(L, lower=True)[0])
            return scale[:, None] * (lower + np.tril(lower, -1).conj().T) * scale, True
        values, V = np.linalg.eigh(dense)
        inverse = (V * np.divide(1, values, out=np.zeros_like(values), where=np.abs(values) > NULL)) @ V.conj().T
        return scale[:, None] * inverse * scale, bool(np.min(values) >= -NULL)
    U, s, Vh = np.linalg.svd(dense)
    inverse = (Vh.conj().T * np.divide(1, s, out=np.zeros_like(s), where=s > NULL)) @ U.conj().T
    return scale[:, None] * inverse * scale, False
