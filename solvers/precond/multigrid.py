"""Algebraic multigrid: one V-cycle as an operator (Trottenberg, Oosterlee, Schüller 2001, Multigrid, §2.4 and App. A).

Smoothed aggregation (Vaněk, Mandel, Brezina 1996) or classical coarsening (Ruge and Stüben 1987) by PyAMG on the host,
once; every cycle runs on the device, in a number of operations that depends on sizes alone.

    level 0    r ─ smooth ─ r − A·x ─╮ R                        P ╭─ x + e ─ smooth ─ x
    level 1                          ╰ smooth ─╮ R      P ╭ smooth ╯
    coarsest                                   ╰ A⁺, dense ╯

A smoother is a polynomial in D⁻¹A: Chebyshev's for the upper part of the spectrum, or damped Jacobi (Adams, Brezina, Hu
and Tuminaro 2003, Parallel multigrid smoothing: polynomial versus Gauss–Seidel). Such a polynomial is self-adjoint in
the inner product of D, so the same before and after the coarse correction, with R = Pᴴ, makes the cycle symmetric.

Traffic of a cycle at a level of n rows, for a smoother of degree d: 2·d products with A, one with R, one with P, and
16·d − 4 vectors of n as XLA fuses them. The first step from zero needs no product, and no residual is formed after the
last. With d = 2 that is four products a level: on 7-point Poisson, where all levels together have 1.7 times the entries
of the finest, 9 fine products a cycle, and more where formats pad; see `products_per_cycle`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import Array, lax
from jax.core import Tracer

from jaxsparse_fmt._types import floating_dtype, pytree, readable_bytes, requested_dtype, standard_promotion
from jaxsparse_fmt.convert import from_scipy
from jaxsparse_fmt.core.matrix import SparseMatrix
from solvers.core.arguments import int_at_least, proper_fraction
from solvers.core.diagonal import operand
from solvers.precond import _hierarchy

# ------------------------------------------------------------------------------------------------------ the operator


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Level:
    """A level above the coarsest: its matrix, its smoother, and the way down and up."""

    A: Any  # [n, n]
    R: Any  # [m, n]; stored apart from P, whose transposed product would add by atomics
    P: Any  # [n, m]
    inverse_diagonal: Array  # [n]
    recurrence: Array  # [degree, 2]: step k is z ← a·z + c·D⁻¹·r, x ← x + z, with (a, c) of row k

    @property
    def T(self) -> Level:
        return dataclasses.replace(self, A=self.A.T, R=self.P.T, P=self.R.T)


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Multigrid:
    """M ≈ A⁻¹, one V-cycle from zero: `M @ r`. Linear in r; hierarchies of one shape share compiled code.

    Attributes:
      levels: from the finest down, without the coarsest.
      coarse_inverse: [m, m], generalized inverse of the coarsest matrix, which is A itself where A is small.
      symmetric: whether the operator is its own transpose.
    """

    levels: tuple[Level, ...]
    coarse_inverse: Array
    symmetric: bool = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        n = (self.levels[0].A if self.levels else self.coarse_inverse).shape[0]
        return n, n

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the stored numbers. The vectors of the cycle have this dtype too, but at least 32 bits."""
        return self.coarse_inverse.dtype

    @property
    def T(self) -> Multigrid:
        """The transposed operator: itself where it is symmetric, else a view that makes transposed products."""
        if self.symmetric:
            return self
        return Multigrid(tuple(level.T for level in self.levels), self.coarse_inverse.T, False)

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        """One cycle for r [n] or [n, k], in the wider of the two dtypes.

        Raises:
          ValueError: r has another shape.
        """
        return _cycled(self, operand(self, r, self.coarse_inverse, 2))

    def refreshed(self, A: Any) -> NoReturn:
        """Refuses, since the coarse matrices are products R·A·P, which are made on the host.

        Raises:
          NotImplementedError: always; it names the cure.
        """
        raise NotImplementedError(
            "multigrid cannot be refreshed: its coarse matrices are made on the host; make it anew outside jit with "
            "precond.multigrid(A), or keep this one while A changes little, since a preconditioner may be approximate"
        )

    # --------------------------------------------------------------------------------------------------- measures

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Rows and stored entries of every level; the coarsest is dense."""
        m = self.coarse_inverse.shape[0]
        return [(level.A.shape[0], level.A.nnz) for level in self.levels] + [(m, m * m)]

    @property
    def grid_complexity(self) -> float:
        """Rows of all levels over those of the finest."""
        return sum(n for n, _ in self.sizes) / self.sizes[0][0]

    @property
    def operator_complexity(self) -> float:
        """Entries of all levels over those of the finest."""
        return sum(nnz for _, nnz in self.sizes) / self.sizes[0][1]

    @property
    def products_per_cycle(self) -> float:
        """Bytes that a cycle moves over those of one product with the finest matrix as stored here, vectors counted."""
        word = jnp.promote_types(self.dtype, jnp.float32).itemsize
        moved = self.coarse_inverse.nbytes
        if not self.levels:
            return 1.0
        for level in self.levels:
            (n, m), d = level.P.shape, level.recurrence.shape[0]
            moved += 2 * d * (_nbytes(level.A) + 2 * n * word) + (16 * d - 4) * n * word
            moved += _nbytes(level.R) + _nbytes(level.P) + 2 * (n + m) * word
        return moved / (_nbytes(self.levels[0].A) + 2 * self.shape[0] * word)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))

    def __repr__(self) -> str:
        n, depth = self.shape[0], len(self.levels)
        if not all(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in jax.tree.leaves(self)):
            return f"<multigrid {n}×{n}, {depth + 1} levels, leaves {jax.tree.leaves(self)}>"
        head = (
            f"<multigrid {n}×{n}, {jnp.dtype(self.dtype).name}, {readable_bytes(self.nbytes)}: grid complexity "
            f"{self.grid_complexity:.2f}, operator complexity {self.operator_complexity:.2f}, "
            f"{self.products_per_cycle:.1f} fine products a cycle"
        )
        rows: list[tuple[Any, ...]] = [("level", "rows", "nnz", "A", "R, P", "bytes")]
        for k, level in enumerate(self.levels):
            stored = [getattr(matrix, "A", matrix) for matrix in (level.A, level.R, level.P)]
            names = stored[0].name, ", ".join(matrix.name for matrix in stored[1:])
            rows.append((k, *self.sizes[k], *names, readable_bytes(sum(matrix.nbytes for matrix in stored))))
        rows.append((depth, *self.sizes[depth], "inverse", "", readable_bytes(self.coarse_inverse.nbytes)))
        table = [f"{k:>6}{size:>11}{nnz:>12}  {own:<9}{pair:<12}{b:>8}" for k, size, nnz, own, pair, b in rows]
        return "\n".join([head, *table]) + ">"


@jax.jit
def _cycled(M: Multigrid, r: Array) -> Array:
    inside = jnp.promote_types(M.dtype, jnp.float32)
    if jnp.issubdtype(r.dtype, jnp.complexfloating):
        inside = jnp.result_type(inside, jnp.complex64)
    return _cycle(M.levels, M.coarse_inverse, r.astype(inside)).astype(jnp.result_type(M.dtype, r.dtype))


def _cycle(levels: tuple[Level, ...], coarse_inverse: Array, r: Array) -> Array:
    """x ≈ A⁻¹·r for the A of the first level."""
    if not levels:
        # By default a GPU would round float32 to 11 bits here.
        return jnp.matmul(coarse_inverse, r, precision=lax.Precision.HIGHEST)
    level = levels[0]
    x, z, r = _smoothed(level, r)
    r = r - level.A @ z
    e = level.P @ _cycle(levels[1:], coarse_inverse, level.R @ r)
    correction, _, _ = _smoothed(level, r - level.A @ e)
    return x + e + correction


def _smoothed(level: Level, r: Array) -> tuple[Array, Array, Array]:
    """x ≈ A⁻¹·r from zero, its last step z, and the residual before that step: r − A·x is this residual less A·z."""
    inverse = level.inverse_diagonal if r.ndim == 1 else level.inverse_diagonal[:, None]
    x = z = level.recurrence[0, 1] * inverse * r
    for a, c in level.recurrence[1:]:
        r = r - level.A @ z
        z = a * z + c * inverse * r
        x = x + z
    return x, z, r


def _nbytes(matrix: Any) -> int:
    return getattr(matrix, "A", matrix).nbytes


@standard_promotion
def multigrid(
    A: Any,
    method: str = "smoothed_aggregation",
    *,
    near_null: Any = None,
    block_size: int | None = None,
    smoother: str = "chebyshev",
    degree: int | None = None,
    fraction: float | None = None,
    format: str = "auto",
    dtype: Any = None,
    max_coarse: int = 500,
    max_levels: int = 20,
    **options: Any,
) -> Multigrid:
    """Algebraic multigrid as a preconditioner, set up on the host by PyAMG (`pip install pyamg`) in float64.

    Args:
      A: [n, n] matrix of jaxsparse_fmt or scipy.sparse. The method is made for symmetric positive definite matrices of
        elliptic equations; it also works for singular and mildly nonsymmetric ones. The symmetry of A is detected.
      method: "smoothed_aggregation" takes systems of equations, near-null candidates and complex numbers, and little
        memory. "ruge_stuben" takes fewer iterations and about twice the memory, for M-matrices and matrices close to
        them.
      near_null: [n, m] columns that A maps almost to zero, boundaries apart, for smoothed aggregation: in elasticity
        the `rigid_body_modes`. None takes a constant for each unknown of a point.
      block_size: unknowns of a point, numbered together. None takes the blocks of a BSR matrix, or looks for dense
        ones; matrices of systems whose blocks have holes need it.
      smoother: "chebyshev", or "jacobi" for `degree` damped steps.
      degree: of the polynomial in D⁻¹A; None takes 2 for "chebyshev" and 1 for "jacobi".
      fraction: the smoother acts on the eigenvalues of D⁻¹A from this fraction of the largest up to the largest. None
        takes 0.15 for "chebyshev", and 1/3 for "jacobi", which means damping by 1.5 over the largest.
      format: of coarser levels and of R and P, as in `from_scipy`. With "auto" the finest level keeps the format of a
        jaxsparse_fmt matrix, unless that format sorts rows, and shares its arrays if the dtype is the same.
      dtype: of the numbers stored and the vectors inside the cycle: "float32" under a float64 solver moves about half
        the bytes. None takes A's.
      max_coarse: rows from which a level is inverted densely instead of coarsened.
      max_levels: levels at most, the coarsest included.
      **options: those of PyAMG's `smoothed_aggregation_solver` or `ruge_stuben_solver`: strength, aggregate, smooth,
        improve_candidates, CF, interpolation. Unless given, smoothed aggregation takes strength ("symmetric", theta)
        with theta 0.08·2⁻ˡ on level l (Vaněk, Mandel and Brezina 1996) and smooth ("jacobi", {"omega": 1.5}); the rest
        are PyAMG's defaults.

    Raises:
      ImportError: PyAMG is not installed.
      TypeError: A is not a sparse matrix, or is traced; an unknown option; an input that Ruge and Stüben's method
        cannot take.
      ValueError: A is empty, not square, has a zero on its diagonal or a number that is not finite; an argument out of
        range; a hierarchy that stops coarsening too early or that `dtype` cannot hold.
    """
    for name, value, known in (("method", method, _hierarchy.METHODS), ("smoother", smoother, _hierarchy.SMOOTHERS)):
        if value not in known:
            raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(known)}")
    usual_degree, usual_fraction = _hierarchy.SMOOTHERS[smoother]
    degree = usual_degree if degree is None else int_at_least(degree, "degree", 1)
    fraction = usual_fraction if fraction is None else proper_fraction(fraction, "fraction")
    max_coarse, max_levels = int_at_least(max_coarse, "max_coarse", 1), int_at_least(max_levels, "max_levels", 1)
    S = _host(A)
    stored = floating_dtype(A.dtype, "A") if dtype is None else requested_dtype(dtype)
    blocks = getattr(A, "block_shape", getattr(A, "blocksize", (None, None)))  # of our BSR, and of SciPy's
    if block_size is None and blocks[0] == blocks[1] and blocks[0] and S.shape[0] % blocks[0] == 0:
        block_size = blocks[0]
    block_size = None if block_size is None else int_at_least(block_size, "block_size", 1)
    if block_size is not None and S.shape[0] % block_size:
        raise ValueError(f"block_size {block_size} does not divide the {S.shape[0]} rows of A")
    B = None if near_null is None else _candidates(near_null, S)
    if method == "ruge_stuben" and (S.dtype.kind == "c" or B is not None):
        given = "a complex matrix" if S.dtype.kind == "c" else "near_null"
        raise TypeError(f"ruge_stuben cannot take {given}; use method='smoothed_aggregation'")

    coarsening = _hierarchy.Coarsening(method, B, block_size, max_coarse, max_levels, options)
    built = _hierarchy.build(S, coarsening, (smoother, degree, fraction))
    levels = tuple(_on_device(step, None if k else A, format, stored, k) for k, step in enumerate(built.levels))
    _check_range(built.coarse_inverse, stored, "the inverse of the coarsest level")
    return Multigrid(levels, jnp.asarray(built.coarse_inverse, stored), built.symmetric)


def rigid_body_modes(coordinates: Any) -> np.ndarray:
    """The motions without strain, for the `near_null` of elasticity: translations, and rotations about the centre.

    Args:
      coordinates: [points, d], d = 2 or 3; the unit of length does not matter.

    Returns:
      [points·d, 3] or [points·d, 6], for displacements numbered point by point.

    Raises:
      ValueError: another shape, or numbers that are not finite.
    """
    x = np.asarray(coordinates, np.float64)
    if x.ndim != 2 or x.shape[1] not in (2, 3) or not np.all(np.isfinite(x)) or x.shape[0] == 0:
        raise ValueError(f"coordinates must be finite, of shape (points, 2) or (points, 3); got {x.shape}")
    points, d = x.shape
    x = x - x.mean(axis=0)
    x = x / (np.max(np.abs(x)) or 1)  # as large as the translations
    planes = [(i, j) for i in range(d) for j in range(i)]
    modes = np.zeros((points, d, d + len(planes)))
    modes[:, range(d), range(d)] = 1
    for k, (i, j) in enumerate(planes, d):
        modes[:, i, k], modes[:, j, k] = x[:, j], -x[:, i]
    return modes.reshape(points * d, -1)


def _on_device(step: _hierarchy.HostLevel, given: Any, format: str, dtype: Any, k: int) -> Level:
    """A level on the device; `given` is the user's matrix at the finest level, perhaps stored already, else None."""
    _check_range(step.A.data, dtype, f"level {k}")
    _check_range(step.inverse_diagonal, dtype, f"the inverse diagonal of level {k}")
    wide = jnp.promote_types(dtype, jnp.float32)
    if isinstance(given, SparseMatrix) and format == "auto" and given.basis.perm is None:
        A = given if given.dtype == dtype else given.astype(dtype)
    else:
        A = from_scipy(step.A, format, dtype)
    R, P = (from_scipy(matrix, format, dtype) for matrix in (step.R, step.P))
    narrow = jnp.finfo(wide).dtype
    d = jnp.asarray(step.inverse_diagonal, wide if step.inverse_diagonal.dtype.kind == "c" else narrow)
    return Level(A, R, P, d, jnp.asarray(step.recurrence, narrow))


def _host(A: Any) -> Any:
    """A as a canonical CSR array of float64 or complex128, after all checks that PyAMG does not make."""
    ours = hasattr(A, "to_scipy")
    if ours and any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(A)):
        raise TypeError(
            "multigrid is set up on the host and A is traced; build M outside jit and pass it as an argument"
        )
    if not ours and not scipy.sparse.issparse(A):
        raise TypeError(f"multigrid needs a matrix of jaxsparse_fmt or scipy.sparse; got {type(A).__name__}")
    if len(A.shape) != 2 or A.shape[0] != A.shape[1] or A.shape[0] == 0:
        raise ValueError(f"multigrid needs a square matrix with at least one row; got shape {A.shape}")
    kind = np.complex128 if floating_dtype(A.dtype, "A").kind == "c" else np.float64
    S = scipy.sparse.csr_array(A.to_scipy() if ours else A).astype(kind)
    S.check_format(full_check=True)
    S.sum_duplicates()
    if S.nnz >= 2**31:
        raise ValueError(f"PyAMG counts entries in 32 bits; A has {S.nnz}")
    S.indices, S.indptr = S.indices.astype(np.int32), S.indptr.astype(np.int32)
    if not np.all(np.isfinite(S.data)):
        raise ValueError("A has a NaN or an infinity among its entries; look for it where A is assembled")
    if np.any(zeros := S.diagonal() == 0):
        raise ValueError(
            f"A has a zero on its diagonal, first in row {np.flatnonzero(zeros)[0]}, and multigrid's smoothers divide "
            "by the diagonal; eliminate such unknowns (constraints, empty rows), or take another preconditioner"
        )
    return S


def _candidates(near_null: Any, S: Any) -> np.ndarray:
    B = np.asarray(near_null)
    if B.ndim == 1:
        B = B[:, None]
    if B.ndim != 2 or B.shape[0] != S.shape[0] or B.shape[1] == 0:
        raise ValueError(f"near_null must hold one row an unknown, shape ({S.shape[0]}, m); got {np.shape(near_null)}")
    if not np.all(np.isfinite(B)):
        raise ValueError("near_null has a NaN or an infinity among its entries")
    if B.dtype.kind == "c" and S.dtype.kind != "c":
        raise TypeError(f"near_null is complex and A is not; pass real candidates, or A.astype({B.dtype})")
    return B.astype(S.dtype)


def _check_range(numbers: np.ndarray, dtype: Any, what: str) -> None:
    largest, limit = np.max(np.abs(numbers), initial=0), float(jnp.finfo(dtype).max)
    if not largest <= limit:
        raise ValueError(
            f"{what} has numbers up to {largest:.3g}, and dtype {jnp.dtype(dtype).name} holds none above {limit:.3g}; "
            "scale A, or take a wider dtype"
        )
