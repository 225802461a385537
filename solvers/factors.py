"""Sparse factors of a matrix as operators: permutations, two triangles, and the pivots between them.

SuperLU (Li 2005, as SciPy has it) factors on the host: with rows and columns permuted, A = (I + N)·D·(I + V) for N
strictly lower and V strictly upper triangular. So A⁻¹·r is a permutation, a triangular solve, a scaling, another
triangular solve, and a permutation (`Factors`). If A is traced, the shapes of its factors are not known: then a call of
the host factors, and others solve (`HostFactors`).
"""

import contextlib
import dataclasses
import functools
import hashlib
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array, lax

from jaxsparse_fmt._types import CsrArrays, exportable, pytree, standard_promotion
from jaxsparse_fmt.core.triangular import Triangle
from solvers.core import arguments
from solvers.core.diagonal import operand, rows_scaled
from solvers.host import Host, hosted
from solvers.precond import _checks as checks
from solvers.solution import SolverError, Status

Recipe = tuple[Any, ...]  # ("lu",), ("cholesky",), or ("ilu", drop_tol, fill)
KEPT = 4  # factors that the host keeps for the programs that factor
DIGEST = 16  # bytes


@exportable
@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Factors:
    """x = y[cols] with (I + N)·D·(I + V)·y = r[rows].

    Attributes:
      inverse_pivots: [n], 1/D.
      lower, upper: I + N and I + V, a `Triangle` or what has its `solve` and `T`; None: I.
      rows, cols: [n]; None: in order.
    """

    inverse_pivots: Array
    lower: Any
    upper: Any
    rows: Array | None = None
    cols: Array | None = None

    @property
    def dtype(self) -> np.dtype:
        return self.inverse_pivots.dtype

    @property
    def n(self) -> int:
        return self.inverse_pivots.shape[-1]

    @property
    def T(self) -> Self:
        rows, cols = (None if order is None else jnp.argsort(order) for order in (self.cols, self.rows))
        lower, upper = (triangle and triangle.T for triangle in (self.upper, self.lower))
        return dataclasses.replace(self, lower=lower, upper=upper, rows=rows, cols=cols)

    def solve(self, r: Array) -> Array:
        """For r of [n] or [n, k]; without derivatives."""
        x = r if self.rows is None else r[self.rows]
        x = rows_scaled(self.inverse_pivots, x if self.lower is None else self.lower.solve(x))
        x = x if self.upper is None else self.upper.solve(x)
        return x if self.cols is None else x[self.cols]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class HostFactors:
    """Factors of a traced matrix, which the host keeps under a digest of the entries, and makes anew once dropped.

    A result is NaN where the matrix has no factors.

    Attributes:
      row, col, values: [nnz], the entries.
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
            found = _kept(n, recipe, row, col, values, np.asarray(digest).tobytes())
            return np.full(r.shape, np.nan, dtype) if found is None else found.solve(np.asarray(r), way).astype(dtype)

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
    if checks.is_transpose(A):
        return made(A.T, recipe, maker).T
    dtype = jnp.promote_types(_checked(A, maker).dtype, jnp.float32)
    if arguments.is_traced(A):
        return _traced(A.shape[0], recipe, A.row_ids, A.col_ids, lax.stop_gradient(A.data).astype(dtype))
    return split(on_host(A, recipe, maker)[1], dtype)


def _checked(A: Any, maker: str) -> Any:
    n = checks.square(A, maker)
    checks.on_one_device(A, maker)
    if n == 0:
        raise ValueError(f"{maker} needs a matrix with at least one row; got shape (0, 0)")
    return A


def on_host(A: Any, recipe: Recipe, maker: str) -> tuple[Host, "OnHost"]:
    """A on the host, and its factors. Errors as of `made`."""
    host = hosted(_checked(A, maker))
    if not host.finite:
        raise SolverError(Status.NON_FINITE, f"{maker} needs finite entries, and A has a NaN or an infinity")
    return host, OnHost(_factored(host, recipe, maker), slice(None), host.S.dtype)


def _traced(n: int, recipe: Recipe, row: Array, col: Array, values: Array) -> HostFactors:
    def host(row: Any, col: Any, values: Any) -> np.ndarray:
        row, col, values = map(np.asarray, (row, col, values))
        digest = _digest(n, recipe, row, col, values)
        _kept(n, recipe, row, col, values, digest)
        return np.frombuffer(digest, np.uint8)

    shape = jax.ShapeDtypeStruct((DIGEST,), np.uint8)
    digest = jax.pure_callback(host, shape, row, col, values, vmap_method="sequential")
    return HostFactors(row, col, values, digest, n, recipe)


def _factored(host: Host, recipe: Recipe, maker: str, order: Any = None) -> Any:
    """SuperLU's factors of A[:, order]; None: SuperLU orders the columns.

    SolverError: a pivot is zero. ValueError: the factors do not fit into the memory.
    """
    from scipy.sparse import linalg  # which takes 0.1 s

    S, by = (host.S, "COLAMD") if order is None else (host.S[:, order], "NATURAL")
    if recipe[0] == "ilu":
        entries = int(recipe[2] * S.nnz)
        what, cure = f"incomplete factors of at most {entries:,} entries", "take a smaller fill"
        arguments.check_free_memory(2 * (S.dtype.itemsize + 4) * entries, what, cure, arguments.memory.of_host)
    elif order is None:
        host.check_memory()
    try:
        if recipe[0] == "lu":
            return linalg.splu(S, permc_spec=by)
        if recipe[0] == "cholesky":  # no pivoting
            options: Any = {"SymmetricMode": True}
            return linalg.splu(S, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
        return linalg.spilu(S, drop_tol=recipe[1], fill_factor=recipe[2], permc_spec=by)
    except RuntimeError as error:
        raise SolverError(Status.SINGULAR, f"{maker}: {error}; {Status.SINGULAR.message}") from None
    except MemoryError:
        raise ValueError(
            f"the factors of a matrix of {S.shape[0]:,} rows and {S.nnz:,} entries do not fit into the memory; take a "
            "Krylov method with precond.multigrid, or precond.ilu with a smaller fill"
        ) from None


def split(found: "OnHost", dtype: Any) -> Factors:
    """SuperLU's factors as ours. SuperLU stores columns, which are rows of the transposes. SolverError: overflow."""
    made = found.made
    D = made.U.diagonal()
    with np.errstate(all="ignore"):
        lower, upper = _triangle(made.L, True, dtype), _triangle(made.U, False, dtype, D)
        inverse = (1 / D).astype(dtype)
    if not all(np.all(np.isfinite(a)) for a in (lower.values, upper.values, inverse)):
        raise SolverError(Status.SINGULAR, f"the factors overflow {dtype}: {Status.SINGULAR.message}")
    rows, cols = np.argsort(made.perm_r).astype(np.int32), made.perm_c.astype(np.int32)
    parts: Any = inverse, lower.T, upper.T, rows, cols
    return Factors(*parts)


def _triangle(S: Any, upper: bool, dtype: Any, D: np.ndarray | None = None) -> Triangle:
    """The transpose of a triangle in CSC, whose rows are divided by D, without its diagonal."""
    row, n = S.indices, S.shape[0]
    off = row != np.repeat(np.arange(n, dtype=row.dtype), np.diff(S.indptr))
    row, data = row[off], S.data[off]
    data = (data if D is None else data / D[row]).astype(dtype, copy=False)
    ptr = S.indptr - np.arange(n + 1, dtype=row.dtype)  # every column has its entry on the diagonal
    return Triangle.of(CsrArrays(data, row, ptr, S.shape), upper)


# -------------------------------------------------------------------------------------------------- kept by the host

_recent = functools.lru_cache(KEPT)(lambda digest: [])  # by the digest of entries, `OnHost` or None once it is known
_orders = functools.lru_cache(KEPT)(lambda digest: [])  # of columns, by the digest of a pattern


class OnHost(NamedTuple):
    """SuperLU's factors of A[:, order], and their dtype, the only one that they solve in."""

    made: Any
    order: Any
    dtype: np.dtype

    def solve(self, r: Any, way: str) -> np.ndarray:
        """A⁻¹·r, or with the way "T" A⁻ᵀ·r."""
        if r.dtype.kind == "c" and self.dtype.kind != "c":
            return self.solve(r.real, way) + 1j * self.solve(r.imag, way)
        r = np.ascontiguousarray(r, self.dtype)
        if way == "T":
            return self.made.solve(r[self.order], way)
        x = np.empty_like(r)
        x[self.order] = self.made.solve(r, way)
        return x


def _digest(n: int, recipe: Recipe, *arrays: np.ndarray) -> bytes:
    found = hashlib.blake2b(repr((n, recipe)).encode(), digest_size=DIGEST)
    for a in arrays:
        found.update(np.ascontiguousarray(a).data)
    return found.digest()


def _kept(n: int, recipe: Recipe, row: Any, col: Any, values: Any, digest: bytes) -> OnHost | None:
    """The factors of these entries, None if they have none. Matrices of one pattern share the order of the columns."""
    place = _recent(digest)
    if place:
        return place[0]
    row, col, values = map(np.asarray, (row, col, values))
    found = None
    if np.all(np.isfinite(values)):
        host = Host(scipy.sparse.csc_array((values, (row, col)), shape=(n, n)))
        orders = _orders(_digest(n, recipe, row, col))
        order = orders[0] if orders else None  # once, since other threads append meanwhile
        with contextlib.suppress(SolverError, ValueError):
            made = _factored(host, recipe, "A", order)
            found = OnHost(made, np.arange(n) if order is None else order, host.S.dtype)
            if order is None:
                orders.append(np.argsort(made.perm_c))
    place.append(found)
    return found
