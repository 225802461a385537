"""Determinants, entries of inverses and samples by sparse factors, with derivatives to second order.

The derivative of log|det A| by an entry (i, j) is the entry (j, i) of A⁻¹, which a recurrence over the factors finds
without the rest of the inverse (Erisman and Tinney 1975). The derivative of such entries along W are those of
−A⁻¹·W·A⁻¹, a block of the inverse of [[A, 0], [W, A]], so that the same recurrence finds them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsparse_fmt._tracing import standard_promotion
from solvers import selected
from solvers.core.program import interruptible
from solvers.host_calls import call
from solvers.precond import _checks as checks


@standard_promotion
@interruptible
def logdet(A: Any) -> Array:
    """log|det A| of a sparse matrix, differentiable twice with respect to A's values, in any mode.

    The gradient holds entries of A⁻¹, on A's pattern, and costs some four factorizations; a second derivative along a
    direction costs as much of a matrix of twice the size. The host computes, by SuperLU; a jitted function calls it.

    Args:
      A: [n, n] jaxsparse matrix on one device, in any format; its values may be traced. Its entries are independent
        variables, also where A is symmetric.

    Returns:
      A scalar: −∞ of a singular matrix, NaN of one that holds a NaN. For the sign see `factorized(A).logdet()`.

    Raises:
      ValueError: A is not square, or sharded. TypeError: not a matrix of jaxsparse_fmt.

    Examples:
      >>> np.allclose(js.logdet(A), np.linalg.slogdet(S.toarray()).logabsdet)
      True
    """
    return slogdet(A)[1]


@interruptible
def slogdet(A: Any) -> tuple[Array, Array]:
    """det A / |det A| and log|det A|. Errors as of `logdet`."""
    return _determinant(*_entries(A, "logdet"))


@interruptible
def inverse_entries(A: Any) -> Array:
    """[nnz], the entries of A⁻¹ at the places of A's entries, in the order of A.data; differentiable once more."""
    n, row, col, values = _entries(A, "inverse_entries")
    return _inverse(n, row, col, row, col, values)


@interruptible
def sample(A: Any, z: Array) -> Array:
    """R·z with R·Rᴴ = A⁻¹; linear in z, and without derivatives in A. NaN unless A is positive definite."""
    n, row, col, values = _entries(A, "sample")
    values, z = (a.astype(jnp.result_type(values, z)) for a in (_constant(values), z))

    def root(way: str, z: Array) -> Array:
        return call(selected.root, n, ("cholesky",), (row, col, values), (z,), z, (way,))

    return lax.custom_linear_solve(lambda v: v, z, lambda _, v: root("N", v), lambda _, v: root("T", v))


def _entries(A: Any, maker: str) -> tuple[int, Array, Array, Array]:
    """n, and rows, columns and values of A's entries, in 32 bits at least."""
    if checks.is_transpose(A):
        n, row, col, values = _entries(A.T, maker)
        return n, col, row, values
    n = checks.square(A, maker)
    checks.on_one_device(A, maker)
    return n, A.row_ids, A.col_ids, A.data.astype(jnp.promote_types(A.dtype, jnp.float32))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _determinant(n: int, row: Array, col: Array, values: Array) -> tuple[Array, Array]:
    like = jax.ShapeDtypeStruct((2,), values.dtype)
    sign, logarithm = call(selected.determinant, n, ("lu",), (row, col, values), (), like)
    return sign, logarithm.real


@_determinant.defjvp
def _determinant_jvp(n: int, primals: Any, tangents: Any) -> tuple[Any, Any]:
    row, col, values = primals
    sign, logarithm = _determinant(n, row, col, values)
    along = jnp.sum(_inverse(n, row, col, col, row, values) * tangents[2])
    d_sign = 1j * along.imag * sign if jnp.iscomplexobj(values) else jnp.zeros_like(sign)
    return (sign, logarithm), (d_sign, along.real)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _inverse(n: int, row: Array, col: Array, i: Array, j: Array, values: Array) -> Array:
    """[nnz], the entries (i, j) of A⁻¹."""
    like = jax.ShapeDtypeStruct(i.shape, values.dtype)
    return call(selected.inverse_entries, n, ("lu",), (row, col, values), (i, j), like)


@_inverse.defjvp
def _inverse_jvp(n: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    row, col, i, j, values = primals
    fixed = _constant(values)

    def along(W_row: Array, W_col: Array, W: Array, i: Array, j: Array) -> Array:
        """The entries (i, j) of −A⁻¹·W·A⁻¹, those of the inverse of [[A, 0], [W, A]] below its diagonal."""
        rows = jnp.concatenate([row, row + n, W_row + n])
        cols = jnp.concatenate([col, col + n, W_col])
        return _inverse(2 * n, rows, cols, i + n, j, jnp.concatenate([fixed, fixed, W]))

    d_inverse = lax.custom_linear_solve(
        lambda W: W, tangents[4], lambda _, W: along(row, col, W, i, j), lambda _, u: along(j, i, u, col, row)
    )
    return _inverse(n, row, col, i, j, values), d_inverse


@jax.custom_jvp
def _constant(values: Array) -> Array:
    """The values, of which no derivative is known."""
    return values


@_constant.defjvp
def _constant_jvp(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "logdet has derivatives up to the second, inverse_entries up to the first, and sample none by A's values; "
        "take lax.stop_gradient(A)"
    )
