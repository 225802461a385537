"""What attention over a graph is made of: sampled products of dense matrices, and the softmax of rows.

scores = js.sddmm(A, Q, K)                # entry (i, j) is A[i, j]·Q[i]·K[j], at A's entries alone
y = js.row_softmax(scores) @ V
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ops import segment_max

from jaxsparse_fmt._arguments import as_floating
from jaxsparse_fmt._tracing import standard_promotion
from jaxsparse_fmt.algebra import patterns
from jaxsparse_fmt.core.matrix import SparseMatrix


@standard_promotion
def sddmm(A: Any, U: Any, V: Any) -> SparseMatrix:
    """The sampled product A.multiply(U @ V.T), computed at A's entries alone: A[i, j]·Σ_p U[i, p]·V[j, p].

    No array is larger than U, V and the entries. It has derivatives of every order by the entries of A, U and V, and
    under `vmap` over U and V, such as the heads of an attention, the pattern is read once. Nothing is conjugated.

    Args:
      A: a matrix of this library on one device; one of ones samples U @ V.T itself.
      U: [n_rows, p] or [n_rows].
      V: [n_cols, p] or [n_cols].

    Raises:
      ValueError: shapes that do not fit. TypeError: not a matrix of this library on one device, or not numeric.

    Examples:
      >>> U, V = np.ones((16, 3)), np.arange(48.0).reshape(16, 3)
      >>> np.allclose(js.sddmm(A, U, V).todense(), S.toarray() * (U @ V.T))
      True
    """
    patterns.check("sddmm", A)
    U, V = as_floating(U, "U"), as_floating(V, "V")
    if U.ndim not in (1, 2) or U.shape[1:] != V.shape[1:] or (*U.shape[:1], *V.shape[:1]) != A.shape:
        raise ValueError(
            f"sddmm with A of shape {A.shape} takes U of shape ({A.shape[0]}, p) and V of shape ({A.shape[1]}, p); "
            f"got {U.shape} and {V.shape}"
        )
    dtype = jnp.result_type(A.dtype, U, V)
    U, V = U.astype(dtype), V.astype(dtype)
    # The product with V is linear in the entries: its transpose, applied to U, is the sampled outer product.
    entries = jax.ShapeDtypeStruct((A.nnz,), dtype)
    (sampled,) = jax.linear_transpose(lambda data: A.with_data(data) @ V, entries)(U)
    return A.with_data(A.data * sampled)


def row_softmax(A: Any) -> SparseMatrix:
    """The matrix of exp(a) / Σ exp(a), the sum over the entries of a row; places without an entry have no share.

    It is stable, since the greatest entry of a row is subtracted first, and has derivatives of every order. An entry
    -inf gets 0; a row without entries stays empty, and one of -inf alone becomes NaN, as with jax.nn.softmax.

    Raises:
      TypeError: not a matrix of this library on one device, or complex entries.

    Examples:
      >>> np.allclose(js.row_softmax(1000 * A).sum(axis=1), 1)
      True
    """
    patterns.check("row_softmax", A)
    if jnp.issubdtype(A.dtype, jnp.complexfloating):
        raise TypeError("row_softmax needs real entries, and these are complex; take A.real, or abs(A)")
    data, row = A.data, A.row_ids
    top = segment_max(lax.stop_gradient(data), row, A.shape[0], indices_are_sorted=True)
    shares = jnp.exp(data - top[row])
    return A.with_data(shares / A.with_data(shares).sum(axis=1)[row])
