"""The products from coordinates alone, in plain jnp: for formats without a kernel, and for most transposed products.

    row, col           [n_stored] of every stored place; column n_cols, and any row, in padding
    values             [b, n_stored]
    x, y               [b, n_cols, p], [b, n_rows, p]

No function here makes an n_stored × p array: each goes through the vectors column by column.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._types import Array


def accumulator(*dtypes) -> jnp.dtype:
    """The dtype of sums: that to which the operands promote, and at least float32."""
    return jnp.promote_types(jnp.result_type(*dtypes), np.float32)


def product_reference(values, x, row, col, *, n_rows: int, n_cols: int) -> Array:  # [b, n_rows, p]
    """A·x by a scatter-add. On a GPU it uses atomic adds, in no fixed order."""
    return _scattered(values, x, col, jnp.where(col < n_cols, row, n_rows), n_rows)


def transposed_reference(values, y, row, col, *, n_cols: int, together: int = 1) -> Array:  # [b, n_cols, p]
    """As `product_reference`, Aᵀ·y; `together` neighbouring places have one column, padding aside."""
    return _scattered(values, y, row, col, n_cols, together)


def _scattered(values, vectors, source, target, n: int, together: int = 1) -> Array:
    """out[target] += values·vectors[source]; a target of n reads and adds nothing."""
    dtype = jnp.result_type(values, vectors)
    acc = accumulator(dtype)
    targets = target if together == 1 else target.reshape(-1, together).min(axis=1)

    def one(values, vectors):
        def column(v):
            terms = values.astype(acc) * gather(v, source, target < n).astype(acc)
            terms = terms if together == 1 else terms.reshape(-1, together).sum(axis=1)
            return jnp.zeros(n, acc).at[targets].add(terms, mode="drop")

        return jnp.moveaxis(lax.map(column, jnp.moveaxis(vectors, -1, 0)), 0, -1).astype(dtype)

    return jax.vmap(one)(values, vectors)


def outer_reference(y, x, row, col, *, n_cols: int) -> Array:  # [b, n_stored]
    """Σ_p y[row, p]·x[col, p] at every stored entry, zero in padding."""
    dtype = jnp.result_type(y, x)
    acc = accumulator(dtype)
    live = col < n_cols

    def one(y, x):
        def column(q, total):
            return total + gather(y[:, q], row, live).astype(acc) * gather(x[:, q], col, live).astype(acc)

        return lax.fori_loop(jnp.int32(0), jnp.int32(x.shape[1]), column, jnp.zeros(row.shape, acc)).astype(dtype)

    return jax.vmap(one)(y, x)


def gather(x, idx, live):
    """x[idx] where live, else 0."""
    g = x.at[jnp.clip(idx, 0, x.shape[0] - 1)].get(mode="promise_in_bounds")
    return jnp.where(live if x.ndim == 1 else live[..., None], g, 0)
