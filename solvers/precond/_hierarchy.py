"""The set-up of multigrid on the host, in float64: coarsening by PyAMG, smoothers, the inverse of the coarsest level.

The result consists of SciPy's matrices and NumPy's arrays; `multigrid` stores them in formats for the device.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from solvers.core.spectrum import chebyshev_step

Matrix = Any  # scipy.sparse; SciPy ships no types

METHODS = {"smoothed_aggregation": "smoothed_aggregation_solver", "ruge_stuben": "ruge_stuben_solver"}
# Arguments of PyAMG's builders that this module sets, or that only PyAMG's own cycle would use.
DECIDED = ("A", "B", "symmetry", "presmoother", "postsmoother", "max_levels", "max_coarse", "keep", "kwargs")
# Degree, and the lower end of the spectrum to smooth as a fraction of the upper. Of degrees 1 to 4 and fractions 1/30
# to 1/2 these move the fewest bytes, or nearly, on 7-point Poisson and elasticity alike.
SMOOTHERS = {"chebyshev": (2, 0.15), "jacobi": (1, 1 / 3)}
STRENGTH = 0.08  # of couplings on the finest level, halved from level to level (Vaněk, Mandel and Brezina 1996)
# Of the step that smooths aggregates, over the spectral radius. With the usual 4/3 the iterations grow twice as fast
# from 10⁵ to 10⁶ unknowns of 7-point Poisson; elsewhere they are the same.
DAMPING = 1.5
LANCZOS_STEPS, SAFETY = 15, 1.1
LARGEST_INVERSE = 4000  # rows: 128 MB in float64, and about a minute of the host
NULL = 1e-12  # of the sums of absolute values behind a coarse entry: smaller entries are rounding and count as zero


class HostLevel(NamedTuple):
    A: Matrix  # [n, n]
    R: Matrix  # [m, n]
    P: Matrix  # [n, m]
    inverse_diagonal: np.ndarray  # [n]
    recurrence: np.ndarray  # [degree, 2]


class Hierarchy(NamedTuple):
    levels: list[HostLevel]  # without the coarsest
    coarse_inverse: np.ndarray  # [m, m]
    symmetric: bool  # R = Pᵀ and every matrix its own transpose


class Coarsening(NamedTuple):
    """The options with which a hierarchy is built; see `multigrid` for the arguments."""

    method: str
    near_null: np.ndarray | None  # [n, m]
    block_size: int | None
    max_coarse: int
    max_levels: int
    options: dict[str, Any]


def build(S: Matrix, coarsening: Coarsening, smoother: tuple[str, int, float]) -> Hierarchy:
    """A hierarchy for the canonical CSR matrix S, already checked.

    Args:
      smoother: name, degree, fraction.
    """
    method, near_null, block_size, max_coarse, max_levels, options = coarsening
    solver = getattr(_pyamg(), METHODS[method])
    known = [name for name in inspect.signature(solver).parameters if name not in DECIDED]
    if unknown := [name for name in options if name not in known]:
        raise TypeError(f"multigrid has no option {unknown[0]!r}; those of PyAMG's {method} are {', '.join(known)}")
    kind, points, given = _symmetry(S), max_coarse, S
    if method == "smoothed_aggregation":
        block_size = _block_size(S) if block_size is None else block_size
        given = S if block_size == 1 else S.tobsr(blocksize=(block_size, block_size))
        # PyAMG counts the points of a level; it has a block of as many rows as there are candidates at each.
        points = max(max_coarse // max(block_size, 1 if near_null is None else near_null.shape[1]), 1)
        strength = [("symmetric", {"theta": STRENGTH * 0.5**level}) for level in range(max_levels)]
        smooth = ("jacobi", {"omega": DAMPING})
        options = {"B": near_null, "symmetry": kind, "strength": strength, "smooth": smooth, **options}
    with _reproducible():
        limits = {"max_levels": 1 if S.shape[0] <= max_coarse else max_levels, "max_coarse": points}
        ladder = solver(given, presmoother=None, postsmoother=None, **limits, **options).levels
    coarsest = ladder[-1].A
    if coarsest.shape[0] > max(LARGEST_INVERSE, max_coarse):
        raise ValueError(
            f"coarsening stopped at {coarsest.shape[0]} rows after {len(ladder)} of max_levels={max_levels}, too many "
            f"to invert densely; raise max_levels, or loosen the strength of connection, for example strength=None"
        )
    levels, unit = [], np.abs(S.diagonal())
    for k, step in enumerate(ladder[:-1]):
        levels.append(_level(step.A if k else S, step.R, step.P, unit, kind, smoother))
        unit = abs(levels[-1].P).power(2).T @ unit
    symmetric = kind == "symmetric" or (kind == "hermitian" and S.dtype.kind == "f")
    return Hierarchy(levels, _coarse_inverse(coarsest, unit, kind), symmetric)


def _pyamg() -> Any:
    try:
        import pyamg
    except ImportError:
        raise ImportError("multigrid is set up by PyAMG, which is not installed; pip install pyamg") from None
    return pyamg


@contextlib.contextmanager
def _reproducible() -> Iterator[None]:
    """A context that seeds NumPy's global generator for PyAMG, so that a matrix always has the same hierarchy."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def _symmetry(S: Matrix) -> str:
    """PyAMG's name: "hermitian", "symmetric" (complex) or "nonsymmetric", to 1e-12 of the largest entry."""
    allowed = 1e-12 * abs(S).max()
    for kind, other in (("hermitian", S.T.conj()), ("symmetric", S.T)):
        if abs(S - other).max() <= allowed:
            return kind
    return "nonsymmetric"


def _block_size(S: Matrix) -> int:
    """Unknowns of a point, where SciPy finds dense blocks."""
    rows, columns = S.tobsr().blocksize
    return rows if rows == columns else 1


# --------------------------------------------------------------------------------------------------------- smoother


def _level(
    A: Matrix,
    R: Matrix,
    P: Matrix,
    unit: np.ndarray,  # [n] size of the sums behind A's diagonal
    kind: str,
    smoother: tuple[str, int, float],
) -> HostLevel:
    """One of PyAMG's levels with its smoother, without the zeros that fill blocks.

    A zero on the diagonal of a coarse matrix, or rounding in place of one, belongs to a candidate that vanished there
    or that A annihilates. Its inverse is set to zero, and the smoother does not change that unknown.
    """
    if not np.all(np.isfinite(P.data)):
        raise ValueError(
            f"PyAMG's interpolation from {P.shape[1]} to {P.shape[0]} rows has numbers that are not finite: the matrix "
            "is none for which its method is made; try the other method, or other options"
        )
    if A.format != "csr":
        A = scipy.sparse.csr_array(A)
        A.eliminate_zeros()
    R, P = scipy.sparse.csr_array(R), scipy.sparse.csr_array(P)
    R.eliminate_zeros()
    P.eliminate_zeros()
    diagonal = A.diagonal()
    diagonal = diagonal.real if kind == "hermitian" else diagonal
    inverse = np.divide(1, diagonal, out=np.zeros_like(diagonal), where=np.abs(diagonal) > NULL * unit)
    name, degree, fraction = smoother
    upper = largest_eigenvalue(A, inverse, kind)
    return HostLevel(A, R, P, inverse, recurrence(name, degree, fraction * upper, upper))


def recurrence(name: str, degree: int, lower: float, upper: float) -> np.ndarray:
    """[degree, 2] numbers (a, c) of z ← a·z + c·D⁻¹·r, x ← x + z for eigenvalues of D⁻¹A in [lower, upper].

    The best damping of Jacobi is Chebyshev's first step.
    """
    middle, half = (upper + lower) / 2, (upper - lower) / 2
    rows = [(0.0, 1 / middle)]
    rho = half / middle
    for _ in range(degree - 1):
        if name == "jacobi":
            rows.append((0.0, 1 / middle))
            continue
        rho, *numbers = chebyshev_step(rho, middle, half)
        rows.append(tuple(numbers))
    return np.array(rows)


def largest_eigenvalue(A: Matrix, inverse_diagonal: np.ndarray, kind: str) -> float:
    """A bound of the largest real part of an eigenvalue of D⁻¹A.

    The smaller of ‖D⁻¹A‖∞, which is a sure bound, and 1.1 times the largest Ritz value after 15 Lanczos steps on the
    Hermitian part of |D|^½·D⁻¹A·|D|^-½, which is close (Adams et al. 2003 scale such an estimate by 1.1 too).
    """
    size = np.sqrt(np.abs(inverse_diagonal))  # |D|^-½
    left = np.divide(inverse_diagonal, size, out=np.zeros_like(inverse_diagonal), where=size != 0)
    bound = float(np.max(np.abs(inverse_diagonal) * abs(A).sum(axis=1)))
    hermitian = kind == "hermitian" and bool(np.min(inverse_diagonal) >= 0)

    def product(v: np.ndarray) -> np.ndarray:
        w = left * (A @ (size * v))
        return w if hermitian else 0.5 * (w + size * (A.T @ (left * v.conj())).conj())

    rng = np.random.default_rng(0)
    v = rng.standard_normal(A.shape[0]) + (1j * rng.standard_normal(A.shape[0]) if A.dtype.kind == "c" else 0)
    v, before, beta = v / np.linalg.norm(v), np.zeros_like(v), 0.0
    alphas: list[float] = []
    betas: list[float] = []
    for _ in range(min(LANCZOS_STEPS, A.shape[0])):
        w = product(v) - beta * before
        alphas.append(float(np.vdot(v, w).real))
        w -= alphas[-1] * v
        beta = float(np.linalg.norm(w))
        if beta <= 1e-10 * bound:  # an invariant subspace
            break
        betas.append(beta)
        v, before = w / beta, v
    off = betas[: len(alphas) - 1]
    ritz = float(np.linalg.eigvalsh(np.diag(alphas) + np.diag(off, 1) + np.diag(off, -1))[-1])
    return min(SAFETY * ritz, bound) if ritz > 0 else bound


# ---------------------------------------------------------------------------------------------------------- coarsest


def _coarse_inverse(
    A: Matrix,
    unit: np.ndarray,  # [m] size of the sums behind the diagonal
    kind: str,
) -> np.ndarray:  # [m, m]
    """A generalized inverse of the coarsest matrix, which counts as singular if only rounding makes it regular.

    In a pure Neumann problem the constant leaves 1e-16 of the sums behind it; in a regular matrix the reciprocal of a
    condition number remains.
    """
    scale = np.divide(1, np.sqrt(unit), out=np.zeros_like(unit), where=unit > 0)
    U, s, Vh = np.linalg.svd(scale[:, None] * scipy.sparse.csr_array(A).toarray() * scale)
    inverse = (Vh.conj().T * np.divide(1, s, out=np.zeros_like(s), where=s > NULL)) @ U.conj().T
    inverse = scale[:, None] * inverse * scale
    if kind == "nonsymmetric":
        return inverse
    return (inverse + (inverse.conj().T if kind == "hermitian" else inverse.T)) / 2
