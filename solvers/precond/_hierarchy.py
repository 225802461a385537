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
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from jaxsparse_fmt.kernels.cpu import aggregation
from solvers.precond._cycles import recurrence
from solvers.precond._inverse import LARGEST, NULL
from solvers.precond._rows import Cut, Halo, Parts, Rows, added, in_all_columns, stacked, turned

Matrix = Any  # scipy.sparse; SciPy ships no types

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
    levels: list[Any]  # without the coarsest: what `keep` made of each `Step`
    coarse_inverse: np.ndarray  # [m, m]
    hermitian: bool  # A = Aᴴ, and the levels are as symmetric
    definite: bool  # Hermitian, and the set-up found no sign that it is indefinite


class Start(NamedTuple):
    """Levels that are made already, and what is known of the matrix below them."""

    levels: list[Any]
    unit: Parts  # [n] of each shard, sum of the absolute values that add up to each diagonal entry
    definite: bool
    hermitian: bool = True


class Step(NamedTuple):
    """A level on hosts, by shards; R has each shard's columns, and rows for [own | halo] of coarse points."""

    A: Rows
    R: Parts
    halo: Halo  # of R's rows
    P: Rows
    inverse_diagonal: Parts
    recurrence: np.ndarray


class Aggregation:
    """Smoothed aggregation. Aggregates stay inside shards, so that the tentative prolongation is block diagonal.

    Args:
      B: [n, k] of each shard, the near-null space.
    """

    def __init__(self, B: Parts, theta: float, max_coarse: int):
        self.B, self.theta, self.max_coarse = B, theta, max_coarse

    def ends(self, A: Rows) -> bool:
        return A.shape[0] <= self.max_coarse or A.blocks == 0

    def __call__(self, A: Rows, scale: Parts, hermitian: bool) -> tuple[Parts, Halo, Rows, Rows]:
        """R with the halo of its rows, P and R·A·P."""
        cut, same, weaker = A.halo.cut, self._is_same(A), True
        root = A.halo.extended(A.each(aggregation.roots))
        H = A if hermitian else turned(_adjoints(A), A.halo, cut)
        while True:
            strong, agg, counts, self.theta = aggregated(A, root, self.theta, weaker)
            found = cut.each(aggregation.tentative, agg, counts, self.B)
            Q = A.each(lambda S, pair: pair[0].reshape(-1, S.blocksize[0], pair[0].shape[1]), found)
            below = cut.below(counts)
            if cut.over is not None:
                agg = {k: np.where(a >= 0, a + below.starts[k], -1) for k, a in agg.items()}
            kept = {k: chosen | (not same) for k, chosen in strong.items()}
            P = other = _prolongation(A, kept, agg, Q, scale, below)
            if not hermitian:
                of = H.each(lambda S, root: aggregation.strength(S, root, self.theta) | (not same), _roots(A, H))
                other = _prolongation(H, of, agg, Q, {k: v.conj() for k, v in scale.items()}, below)
            R, most = other.each(aggregation.adjoint), DENSEST * A.blocks if 0 < self.theta < 1 else np.inf
            product = galerkin(R, other.halo, A, P, most)
            if product is not None and product.blocks <= most:
                break
            self.theta, weaker = STRICTER * self.theta, False
        self.B = {k: below for k, (_, below) in found.items()}
        self.theta *= WEAKER
        return R, other.halo, P, product

    def _is_same(self, A: Rows) -> bool:
        """Whether the near-null space is the same at all points."""
        first = A.each(lambda S, B: B.reshape(-1, S.blocksize[0] * B.shape[1])[:1], self.B)
        one = np.concatenate(A.halo.cut.of_all(first))[:1]
        differ = A.each(lambda S, B: bool(np.any(B.reshape(-1, one.size) != one)), self.B)
        return not any(A.halo.cut.of_all(differ))


def aggregated(A: Rows, root: Parts, theta: float, weaker: bool) -> tuple[Parts, Parts, Parts, float]:
    """The strong couplings of a graph of points, the aggregates of each shard and their numbers, and their theta.

    Args:
      weaker: theta may be quartered until few points are left over.
    """
    cut = A.halo.cut
    while True:
        strong = A.each(lambda S, root, theta=theta: aggregation.strength(S, root, theta), root)
        found = A.each(aggregation.aggregates, strong)
        left = A.each(lambda S, found: np.array([aggregation.left_over(S, found[0]), found[1]]), found)
        outside, count = np.sum(cut.of_all(left), axis=0).tolist()
        if not (weaker and 2 * outside > A.points):
            # Products need a column, where there is no aggregate at all.
            counts = {k: max(n, int(k == 0 and not count)) for k, (_, n) in found.items()}
            return strong, {k: agg for k, (agg, _) in found.items()}, counts, theta
        theta *= WEAKER


def _adjoints(A: Rows) -> Parts:
    """The adjoint of each shard's rows; its columns are numbered through all shards."""
    return in_all_columns(A.each(aggregation.adjoint), A.halo.cut)


def _roots(A: Rows, H: Rows) -> Parts:
    return H.halo.extended(A.each(aggregation.roots))


def _prolongation(A: Rows, kept: Parts, agg: Parts, Q: Parts, scale: Parts, below: Cut) -> Rows:
    """P = T - diag(scale)·A'·T, whose T has rows of Q in the columns of the aggregates, numbered through all shards.

    Args:
      kept: [blocks] the couplings of A that are not lumped.
    """
    of, Q = A.halo.extended(agg), A.halo.extended(Q)
    halo = Halo.of(below, {k: a[a >= 0] for k, a in of.items()})
    places = {k: np.where(a >= 0, halo.numbered(np.maximum(a, 0), k), -1) for k, a in of.items()}
    T = A.halo.cut.each(aggregation.placed, places, {k: halo.width(k) for k in places}, Q)
    P = A.each(aggregation.prolongation, kept, T, scale)
    return Rows(P, halo, 0, A.points)


def galerkin(R: Parts, rows: Halo, A: Rows, P: Rows, most: float) -> Rows | None:
    """R·A·P, or None if a shard makes more than `most` blocks of it, found before it has made all.

    Args:
      rows: of R, by which other shards receive what they add to.
    """
    cut, extended = P.halo.cut, A.halo.extended(P.named())
    local = Rows.of(extended, cut) if cut.over is not None else P
    C = A.each(lambda S, R, P: aggregation.galerkin(R, S, P, most), R, local.S)
    if any(cut.of_all({k: part is None for k, part in C.items()})):
        return None
    return turned(Rows(C, local.halo, 0, 0).named(), rows, cut)


def build(
    A: Rows,
    coarsening: Any,
    degree: int,
    keep: Callable[[Step, int], Any],
    start: Start | None = None,
    whole: int = 0,
) -> Hierarchy:
    """A hierarchy for A, already checked, by an `Aggregation`, or by `_given` levels.

    Only the result of `keep` is held of each level, so that few copies live at once. Of several shards all hosts have
    the levels below the first that have at most `whole` rows.
    """
    if start is None:
        hermitian = is_hermitian(A)
        start = Start([], A.each(lambda S: np.abs(S.diagonal())), hermitian, hermitian)
    levels, (_, unit, definite, hermitian) = [*start.levels], start
    while len(levels) < MAX_LEVELS - 1 and not coarsening.ends(A):
        if levels and A.halo.cut.over is not None and A.shape[0] <= whole:
            A, unit, coarsening.B = gathered(A, unit, coarsening.B)
        cut = A.halo.cut
        inverse = A.each(lambda S, unit, hermitian=hermitian: inverse_diagonal(S, unit, hermitian), unit)
        upper, lowest = extremes(A, inverse, hermitian)
        negative = cut.of_all(cut.each(lambda d: bool(np.any(d < 0)), inverse)) if definite else []
        definite = definite and not any(negative) and lowest >= -ROUNDING * upper
        R, halo, P, below = coarsening(A, {k: DAMPING / upper * d for k, d in inverse.items()}, hermitian)
        if isinstance(coarsening, Aggregation):
            if below.shape[0] >= A.shape[0]:  # aggregates of fewer points than B has columns
                break
        elif not coarsening.is_adjoint:
            hermitian = definite = False
        levels.append(keep(Step(A, R, halo, P, inverse, recurrence(degree, upper)), len(levels)))
        unit = added(cut.each(lambda R, unit: _squared(R) @ unit, R, unit), halo, R[min(R)].blocksize[0])
        A = below
    check_coarsest(A.shape[0], len(levels) + 1)
    if A.halo.cut.over is not None:
        A, unit, _ = gathered(A, unit, unit)
    inverse, positive = coarse_inverse(A.S[0], unit[0], hermitian)
    return Hierarchy(levels, inverse, hermitian, definite and positive)


def gathered(A: Rows, *vectors: Parts) -> tuple[Any, ...]:
    """The matrix and vectors whole on every host."""
    S = stacked(A.halo.cut.of_all(A.named()))
    S.sort_indices()
    one = Cut(np.array([0, A.points]))
    return Rows.of({0: S}, one), *({0: np.concatenate(A.halo.cut.of_all(v))} for v in vectors)


def _squared(R: Matrix) -> Matrix:
    squares = abs(R)
    squares.data **= 2
    return squares


def is_hermitian(A: Rows) -> bool:
    """Whether A = Aᴴ up to rounding, by products with a random vector: a transpose takes ten times as long."""
    v, cut = _noise(A), A.halo.cut
    across, along = A.adjoint()(v), A @ v
    sizes = A.each(
        lambda S, a, b: np.array([largest(S.data), largest(aggregation.sums(S)), largest(a - b)]), along, across
    )
    most, sums, difference = np.max(cut.of_all(sizes), axis=0)
    return bool(difference <= 1e-12 * most + 1e-15 * sums)


def _noise(A: Rows) -> Parts:
    """[rows] the same in every run."""
    return A.halo.cut.each(lambda S, k: np.random.default_rng(k).uniform(-1, 1, S.shape[0]), A.S, {k: k for k in A.S})


def largest(a: np.ndarray) -> float:
    """The largest absolute value; of real numbers without a copy."""
    a = np.abs(a) if a.dtype.kind == "c" else a
    return float(max(np.max(a, initial=0), -np.min(a, initial=0)))


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


def extremes(A: Rows, inverse_diagonal: Parts, hermitian: bool) -> tuple[float, float]:
    """A bound of the real parts of D⁻¹A's eigenvalues, and the least Ritz value; in float64 whatever JAX computes in.

    The bound is the smaller of ‖D⁻¹A‖∞, which is a sure bound, and 1.1 times the largest Ritz value of 8 Lanczos steps
    on the Hermitian part of |D|^½·D⁻¹A·|D|^-½, which is close (Adams et al. 2003 scale such an estimate by 1.1 too).
    It is 1 if the whole inverse diagonal is zero, since A annihilates B.
    """
    each, of_all = A.halo.cut.each, A.halo.cut.of_all

    def over(f: Callable[..., Any], *parts: Parts) -> Any:
        """The largest f of all shards, 0 at least."""
        return max(map(float, of_all(each(f, *parts))), default=0.0)

    def dot(a: Parts, b: Parts) -> float:
        # Not by BLAS, whose threads wait for one another where cores are busy: ten times as long.
        return float(sum(of_all(each(lambda a, b: np.einsum("i,i", a.conj(), b).real, a, b))))

    bound = over(lambda S, d: np.max(np.abs(d) * aggregation.sums(S), initial=0), A.S, inverse_diagonal)
    if not bound:
        return 1.0, 0.0
    size = each(lambda d: np.sqrt(np.abs(d)), inverse_diagonal)  # |D|^-½
    left = each(lambda d, s: np.divide(d, s, out=np.zeros_like(d), where=s != 0), inverse_diagonal, size)
    hermitian = hermitian and not over(lambda d: np.any(d < 0), inverse_diagonal)
    H = None if hermitian else A.adjoint()
    v = each(lambda S, v, s: v.astype(S.dtype) * (s != 0), A.S, _noise(A), size)
    length = dot(v, v) ** 0.5
    v, before, beta = each(lambda v: v / length, v), each(np.zeros_like, v), 0.0
    alphas: list[float] = []
    betas: list[float] = []
    ritz = np.zeros(1)
    for _ in range(min(LANCZOS_STEPS, A.shape[0])):
        w = each(np.multiply, left, A @ each(np.multiply, size, v))
        if H is not None:
            across = H(each(lambda a, v: a.conj() * v, left, v))
            w = each(lambda w, s, a: (w + s * a) / 2, w, size, across)
        alpha = dot(v, w)
        alphas.append(alpha)
        ritz = np.linalg.eigvalsh(np.diag(alphas) + np.diag(betas, 1) + np.diag(betas, -1))
        w = each(lambda w, v, u, a=alpha, b=beta: w - (a * v + b * u), w, v, before)
        beta = dot(w, w) ** 0.5
        if beta <= 1e-10 * bound or SAFETY * ritz[-1] >= bound:  # an invariant subspace, or no smaller bound to find
            break
        v, before = each(lambda w, b=beta: w / b, w), v
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
