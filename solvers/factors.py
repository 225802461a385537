"""Sparse factors of a matrix as operators: permutations, two triangles, and the pivots between them.

SuperLU (Li 2005, as SciPy has it) factors on the host: with rows and columns permuted, A = (I + N)·D·(I + V) for N
strictly lower and V strictly upper triangular. So A⁻¹·r is a permutation, a triangular solve, a scaling, another
triangular solve, and a permutation (`Factors`). If A is traced, the shapes of its factors are not known: then a call of
the host factors, and others solve (`HostFactors`).
"""

import collections
import dataclasses
import hashlib
import threading
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import Array, lax

from jaxsparse_fmt._types import concrete, pytree, standard_promotion
from jaxsparse_fmt.core.triangular import Triangle
from solvers.core import arguments
from solvers.core.diagonal import operand, rows_scaled
from solvers.precond import _checks as checks
from solvers.solution import SolverError, Status

Recipe = tuple[Any, ...]  # ("lu",), or ("ilu", drop_tol, fill)
KEPT = 4  # factors that the host keeps for the programs that factor
DIGEST = 16  # bytes


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Factors:
    """x = y[cols] with (I + N)·D·(I + V)·y = r[rows].

    Attributes:
      lower, upper: I + N and I + V.
      inverse_pivots: [n], 1/D.
      rows, cols: [n].
    """

    lower: Triangle
    upper: Triangle
    inverse_pivots: Array
    rows: Array
    cols: Array

    @property
    def dtype(self) -> np.dtype:
        return self.inverse_pivots.dtype

    @property
    def n(self) -> int:
        return self.inverse_pivots.shape[-1]

    @property
    def T(self) -> Self:
        rows, cols = jnp.argsort(self.cols), jnp.argsort(self.rows)
        return dataclasses.replace(self, lower=self.upper.T, upper=self.lower.T, rows=rows, cols=cols)

    def solve(self, r: Array) -> Array:
        """For r of [n] or [n, k]; without derivatives."""
        return self.upper.solve(rows_scaled(self.inverse_pivots, self.lower.solve(r[self.rows])))[self.cols]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class HostFactors:
    """Factors of a traced matrix, which the host keeps under a digest of the entries, and makes anew once dropped.

    A result is NaN where the matrix has no factors.

    Attributes:
      row, col, values: [n_stored], the entries; col is n in padding.
      digest: [16], which says that the host has factored these entries.
    """

    row: Array
    col: Array
    values: Array
    digest: Array
    n: int = dataclasses.field(metadata={"static": True})
    recipe: Recipe = dataclasses.field(metadata={"static": True})
    is_transposed: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def T(self) -> Self:
        return dataclasses.replace(self, is_transposed=not self.is_transposed)

    def solve(self, r: Array) -> Array:
        """For r of [n] or [n, k]; without derivatives."""
        dtype = jnp.result_type(self.dtype, r)
        n, recipe, way = self.n, self.recipe, "T" if self.is_transposed else "N"

        def host(row: Any, col: Any, values: Any, digest: Any, r: Any) -> Any:
            made = _kept(n, recipe, row, col, values, np.asarray(digest).tobytes())
            return np.full(r.shape, np.nan, dtype) if made is None else _solved(made, np.asarray(r), way).astype(dtype)

        given = self.row, self.col, self.values, self.digest, r
        return jax.pure_callback(host, jax.ShapeDtypeStruct(r.shape, dtype), *given, vmap_method="sequential")


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Inverse:
    """An inverse, or an approximation, by factors: `M @ r` for r of [n] or [n, k], and `M(r)`. Linear in r.

    Attributes:
      A: the matrix whose inverse this is, by which it has derivatives; None: the factors are constants.
      factors: `Factors`, or `HostFactors` of a traced matrix.
      recipe: how A was factored.
    """

    A: Any
    factors: Any
    recipe: Recipe = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return self.factors.n, self.factors.n

    @property
    def dtype(self) -> np.dtype:
        return self.factors.dtype

    @property
    def T(self) -> Self:
        return dataclasses.replace(self, A=None if self.A is None else self.A.T, factors=self.factors.T)

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        r = operand(self, r, jax.tree.leaves(self.factors)[0], 1)
        return _applied(self, r.astype(jnp.result_type(self.dtype, r.dtype)))

    __call__ = __matmul__


@jax.jit
def _applied(M: Inverse, r: Array) -> Array:
    """M·r. The derivative of a solve is a solve, A·dx = dr − dA·x; only derivatives compute the product with A."""
    A = (lambda v: v) if M.A is None else lambda v: (M.A @ v).astype(r.dtype)
    return lax.custom_linear_solve(
        A, r, lambda _, r: M.factors.solve(r).astype(r.dtype), lambda _, r: M.factors.T.solve(r).astype(r.dtype)
    )


# ------------------------------------------------------------------------------------------------------------- making


def made(A: Any, recipe: Recipe, maker: str) -> Any:
    """The factors of a matrix, in arrays of NumPy where its numbers are known.

    Raises:
      ValueError: not square, without rows, or sharded. TypeError: not a matrix of jaxsparse_fmt. SolverError: the
        numbers are known, and not finite, or those of a singular matrix.
    """
    n = checks.square(A, maker)
    if not hasattr(A, "each_entry") and hasattr(getattr(A, "T", None), "each_entry"):
        return made(A.T, recipe, maker).T
    if getattr(A, "name", None) == "sharded":
        raise ValueError(
            f"{maker} factors on one device, and A is sharded; gather it by jsf.from_scipy(A.to_scipy()), or take a "
            "Krylov method with precond.multigrid or precond.block_jacobi"
        )
    if not hasattr(A, "each_entry"):
        raise TypeError(
            f"{maker} takes a jaxsparse_fmt matrix, got {type(A).__name__}; convert it with jsf.from_scipy or "
            "jsf.from_dense"
        )
    if n == 0:
        raise ValueError(f"{maker} needs a matrix with at least one row; got shape (0, 0)")
    dtype = jnp.promote_types(A.dtype, jnp.float32)
    if arguments.is_traced(A):
        row, col, _, values = lax.stop_gradient(A.each_entry())
        return _traced(n, recipe, row, col, values.astype(dtype))
    with concrete():
        S = A.to_scipy()
        if not np.all(np.isfinite(S.data)):
            raise SolverError(Status.NON_FINITE, f"{maker} needs finite entries, and A has a NaN or an infinity")
        return _split(_factored(S, recipe, maker), dtype)


def _traced(n: int, recipe: Recipe, row: Array, col: Array, values: Array) -> HostFactors:
    def host(row: Any, col: Any, values: Any) -> np.ndarray:
        row, col, values = map(np.asarray, (row, col, values))
        digest = _digest(n, recipe, row, col, values)
        _kept(n, recipe, row, col, values, digest)
        return np.frombuffer(digest, np.uint8)

    shape = jax.ShapeDtypeStruct((DIGEST,), np.uint8)
    digest = jax.pure_callback(host, shape, row, col, values, vmap_method="sequential")
    return HostFactors(row, col, values, digest, n, recipe)


def _factored(S: Any, recipe: Recipe, maker: str) -> Any:
    """SuperLU's factors, computed in 64 bits. SolverError: a pivot is zero."""
    from scipy.sparse import linalg  # which takes 0.1 s

    S = S.astype(np.complex128 if S.dtype.kind == "c" else np.float64, copy=False).tocsc()
    try:
        if recipe[0] == "lu":
            return linalg.splu(S)
        return linalg.spilu(S, drop_tol=recipe[1], fill_factor=recipe[2])
    except RuntimeError as error:
        raise SolverError(Status.SINGULAR, f"{maker}: {error}; {Status.SINGULAR.message}") from None
    except MemoryError:
        raise ValueError(
            f"the factors of a matrix of {S.shape[0]:,} rows and {S.nnz:,} entries do not fit into the memory; take a "
            "Krylov method with precond.multigrid, or precond.ilu with a smaller fill"
        ) from None


def _split(made: Any, dtype: Any) -> Factors:
    """SuperLU's factors as ours. SuperLU stores columns, which are rows of the transposes. SolverError: overflow."""
    D = made.U.diagonal()
    with np.errstate(all="ignore"):
        lower, upper = _triangle(made.L, True, dtype), _triangle(made.U, False, dtype, D)
        inverse = (1 / D).astype(dtype)
    if not all(np.all(np.isfinite(a)) for a in (lower.values, upper.values, inverse)):
        raise SolverError(Status.SINGULAR, f"the factors overflow {dtype}: {Status.SINGULAR.message}")
    rows, cols = np.argsort(made.perm_r).astype(np.int32), made.perm_c.astype(np.int32)
    parts: Any = lower.T, upper.T, inverse, rows, cols
    return Factors(*parts)


def _triangle(S: Any, upper: bool, dtype: Any, D: np.ndarray | None = None) -> Triangle:
    """The transpose of a triangle in CSC, whose rows are divided by D, without its diagonal."""
    row, n = S.indices, S.shape[0]
    off = row != np.repeat(np.arange(n, dtype=row.dtype), np.diff(S.indptr))
    row, data = row[off], S.data[off]
    data = (data if D is None else data / D[row]).astype(dtype, copy=False)
    ptr = S.indptr - np.arange(n + 1, dtype=row.dtype)  # every column has its entry on the diagonal
    return Triangle.of(scipy.sparse.csr_array((data, row, ptr), shape=S.shape), upper)


# -------------------------------------------------------------------------------------------------- kept by the host

_lock = threading.Lock()
_recent: collections.OrderedDict[bytes, Any] = collections.OrderedDict()


def _digest(n: int, recipe: Recipe, *arrays: np.ndarray) -> bytes:
    found = hashlib.blake2b(repr((n, recipe)).encode(), digest_size=DIGEST)
    for a in arrays:
        found.update(np.ascontiguousarray(a).data)
    return found.digest()


def _kept(n: int, recipe: Recipe, row: Any, col: Any, values: Any, digest: bytes) -> Any:
    """SuperLU's factors of these entries and their dtype, None if they have none; the last few are kept."""
    with _lock:
        if digest in _recent:
            _recent.move_to_end(digest)
            return _recent[digest]
    row, col, values = map(np.asarray, (row, col, values))
    real, found = col < n, None
    if np.all(np.isfinite(values[real])):
        S = scipy.sparse.coo_array((values[real], (row[real], col[real])), shape=(n, n))
        try:
            found = _factored(S, recipe, ""), np.dtype(np.complex128 if S.dtype.kind == "c" else np.float64)
        except (SolverError, ValueError):
            found = None
    with _lock:
        _recent[digest] = found
        while len(_recent) > KEPT:
            _recent.popitem(last=False)
    return found


def _solved(made: Any, r: Any, way: str) -> np.ndarray:
    """SuperLU's solve, which takes numbers of the dtype of its factors alone."""
    made, dtype = made
    if r.dtype.kind == "c" and dtype.kind != "c":
        return made.solve(r.real.astype(dtype), way) + 1j * made.solve(r.imag.astype(dtype), way)
    return made.solve(np.ascontiguousarray(r, dtype), way)
