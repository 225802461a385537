"""The sampled outer product (SDDMM, sampled dense-dense matrix product): Σ_p y[row, p]·x[col, p] at every stored entry.

Its Pallas kernel and its reference in plain jnp. Shapes are those of `spmv.py`.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels import coordinates, row_kernels
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.backends.pairs import widened
from jaxsparse_fmt.kernels.layout.address import Arrays
from jaxsparse_fmt.kernels.layout.columns import Rule, unpack_pattern


def outer(
    y: Array,  # [b, n_rows, p]
    x: Array,  # [b, n_cols, p]
    arrays: Arrays,
    *,
    rule: Rule,
    backend: str,
) -> Array:  # [b, n_stored]
    """Σ_p y[row, p]·x[col, p] at every stored entry, zero in padding."""
    shape = (y.shape[0], rule.n_stored)
    backend = row_kernels.supported(backend, y, x, size=math.prod(shape))
    if not selection.is_pallas(backend):
        return outer_reference(y, x, arrays, rule=rule)
    inputs = {"y": y, "x": x, **{k: a for k, a in arrays.items() if k != "pattern"}}
    out = jax.ShapeDtypeStruct(shape, jnp.result_type(y, x))
    (v,) = row_kernels.launch_rows(outer_kernel, backend, inputs, {"values": out}, rule, loops_over_columns=True)
    v = v.reshape(shape)
    if "pattern" in arrays:
        return jnp.where(unpack_pattern(arrays["pattern"], rule.n_stored), v, 0)
    # Lanes that stop at the end of their row leave the padding after it unwritten.
    return jnp.where(rule.col_idx(arrays) < rule.shape[1], v, 0) if "row_lengths" in arrays else v


def outer_reference(y, x, arrays: Arrays, *, rule: Rule) -> Array:
    """`outer` in plain jnp."""
    row, col, _ = rule.places(arrays)
    return coordinates.outer_reference(y, x, row, col, n_cols=rule.shape[1])


def outer_kernel(
    d,
    *,
    sizes: row_kernels.Sizes,
    y,  # [b·n_rows·p]
    x,  # [b·n_cols·p]
    values,  # [b·n_stored], out
    **arrays,  # what the rules read, and perm [n_rows] or none
):
    rule, p, (n_rows, n_cols) = sizes.rule, sizes.p, sizes.rule.shape
    tile, _, batch = sizes.position(d.program_id())
    for walk in sizes.walks(d, arrays, tile):

        def trip(t, _, walk=walk):
            entries = sizes.entries(walk, t)
            cols = rule.column.in_kernel(d, arrays, walk, entries, n_cols)
            for (_, address, live), (c, exists) in zip(entries, cols, strict=True):
                entry = exists & (walk.row < n_rows)

                def column(q, total, entry=entry, c=c):
                    yq = d.load(y, (batch * n_rows + walk.matrix_row) * p + q, entry, 0)
                    xq = d.load(x, (batch * n_cols + c) * p + q, entry, 0)
                    return total + widened(yq, sizes.acc) * widened(xq, sizes.acc)

                total = lax.fori_loop(jnp.int32(0), jnp.int32(p), column, d.full(0, sizes.acc))
                d.store(values, batch * rule.n_stored + address, total, live)
            return ()

        lax.fori_loop(jnp.int32(0), sizes.trips(walk), trip, ())
