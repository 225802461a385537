"""Sparse factors of a matrix as operators: permutations, two triangles, and the pivots between them.

SuperLU factors on the host: with rows and columns permuted, A = (I + N)·D·(I + V) for N strictly lower and V strictly
upper triangular. So A⁻¹·r is a permutation, a triangular solve, a scaling, another triangular solve, and a permutation
(`Factors`). If A is traced, the shapes of its factors are not known: then a call of the host factors, and others solve
(`HostFactors`).
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._pytrees import exportable, pytree
from jaxsparse_fmt._tracing import by_size, is_traced, standard_promotion
from jaxsparse_fmt._types import CsrArrays
from jaxsparse_fmt.algebra.operations import block
from jaxsparse_fmt.convert import from_coo
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import Operator
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.core.triangular import Triangle
from solvers import backends, superlu
from solvers.core.operators import operand, rows_scaled
from solvers.host_calls import HostFactors
from solvers.hosted import hosted
from solvers.patterns import known
from solvers.precond import _checks as checks
from solvers.solution import SolverError, Status
from solvers.superlu import OnHost, Recipe


@exportable
@pytree
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
class Inverse(Operator):
    """An inverse, or an approximation, by factors: `M @ r` for r of [n] or [n, k], and `M(r)`. Linear in r.

    Attributes:
      A: the matrix whose inverse this is, by which it has derivatives; None: the factors are constants.
      factors: `Factors`, `HostFactors` of a traced matrix, or `LibraryFactors`.
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


@by_size
def _applied(M: Inverse, r: Array) -> Array:
    """M·r. The derivative of a solve is a solve, A·dx = dr − dA·x; only derivatives compute the product with A."""
    M, r = mesh_axes.varying((M, r))
    A = (lambda v: v) if M.A is None else lambda v: (M.A @ v).astype(r.dtype)
    return lax.custom_linear_solve(
        A, r, lambda _, r: M.factors.solve(r).astype(r.dtype), lambda _, r: M.factors.T.solve(r).astype(r.dtype)
    )


# ------------------------------------------------------------------------------------------------------------- making


def made(A: Any, recipe: Recipe, maker: str, symmetric: bool | None = None) -> Any:
    """The factors of a matrix, in NumPy's arrays if its values are known.

    Raises:
      ValueError: not square, without rows, or sharded. TypeError: not a matrix of jaxsparse_fmt. SolverError: the
        values are known, and not finite, or those of a singular matrix.
    """
    if checks.is_transpose(A):
        return made(A.T, recipe, maker, symmetric).T
    dtype = jnp.promote_types(_checked(A, maker).dtype, jnp.float32)
    if recipe[0] in backends.LIBRARIES:
        return backends.made(A, recipe[0], maker, symmetric)
    if is_traced(A):
        values = lax.stop_gradient(A.data).astype(dtype)
        return HostFactors(A.row_ids, A.col_ids, values, A.shape[0], recipe, known=known(A))
    return split(on_host(A, recipe, maker), dtype)


def _checked(A: Any, maker: str) -> Any:
    checks.square(A, maker, 1)
    checks.on_one_device(A, maker)
    return A


def entries(A: Any, maker: str) -> tuple[Array, Array, Array]:
    """Rows, columns and values of a matrix or its transpose. Errors as of `made`."""
    if checks.is_transpose(A):
        col, row, values = entries(A.T, maker)
        return row, col, values
    checks.on_one_device(A, maker)
    return A.row_ids, A.col_ids, A.data


def on_host(A: Any, recipe: Recipe, maker: str, checks: bool = True) -> OnHost:
    """Errors as of `made`; `checks` as of `superlu.factored`."""
    host = hosted(_checked(A, maker))
    if not host.finite:
        raise SolverError(Status.NON_FINITE, f"{maker} needs finite entries, and A has a NaN or an infinity")
    return superlu.factored(host, recipe, maker, checks)


def split(found: OnHost, dtype: Any) -> Factors:
    """SuperLU's factors as ours. SuperLU stores columns, which are rows of the transposes. SolverError: overflow."""
    found = found.better or found
    made = found.made
    D = made.U.diagonal()
    with np.errstate(all="ignore"):
        lower, upper = _triangle(made.L, True, dtype), _triangle(made.U, False, dtype, D)
        inverse = (1 / D).astype(dtype)
    if not all(np.all(np.isfinite(a)) for a in (lower.values, upper.values, inverse)):
        raise SolverError(Status.SINGULAR, f"the factors overflow {dtype}: {Status.SINGULAR.message}")
    places = found.places
    parts: Any = inverse, lower.T, upper.T, np.argsort(places[0]).astype(np.int32), places[1].astype(np.int32)
    return Factors(*parts)


def _triangle(S: Any, upper: bool, dtype: Any, D: np.ndarray | None = None) -> Triangle:
    """The transpose of a triangle in CSC, whose rows are divided by D, without its diagonal."""
    row, n = S.indices, S.shape[0]
    off = row != np.repeat(np.arange(n, dtype=row.dtype), np.diff(S.indptr))
    row, data = row[off], S.data[off]
    data = (data if D is None else data / D[row]).astype(dtype, copy=False)
    ptr = S.indptr - np.arange(n + 1, dtype=row.dtype)  # every column has its entry on the diagonal
    return Triangle.of(CsrArrays(data, row, ptr, S.shape), upper, rounded=True)


def bordered(A: Any, Z: Array, L: Array, shift: Array) -> SparseMatrix:
    """[[A, σ·L], [σ·Zᴴ, 0]], which is regular, of a singular A with these null spaces [m, n], and scaled like A."""
    m, n = Z.shape
    row, col = np.indices((m, n)).reshape(2, -1)
    right = from_coo(col, row, jnp.ravel(jnp.abs(shift) * L), (n, m))
    below = from_coo(row, col, jnp.ravel(jnp.abs(shift) * Z.conj()), (m, n))
    return block([[A, right], [below, None]])


def of_dense(a: Any) -> SparseMatrix:
    """A dense array with all its entries, which may be traced."""
    row, col = np.indices(a.shape).reshape(2, -1)
    return from_coo(row, col, jnp.ravel(a), a.shape, format="csr")


def augmented(row: Array, col: Array, data: Array, delta: float, shape: tuple[int, int]) -> SparseMatrix:
    """[[delta, A], [Aᴴ, 0]] of an A with these entries, which may be traced."""
    (m, n), on_diagonal = shape, jnp.arange(shape[0], dtype=row.dtype)
    rows, cols = jnp.concatenate([row, m + col, on_diagonal]), jnp.concatenate([m + col, row, on_diagonal])
    values = jnp.concatenate([data, jnp.conj(data), jnp.full(m, delta, data.dtype)])
    return from_coo(rows, cols, values, (m + n, m + n), format="csr")
