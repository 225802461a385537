"""The products of `spmv.py` in plain jnp: they run where no kernel does, and tests compare kernels with them.

On a GPU the transposed product has no kernel; that of whole diagonals is itself a product.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels import coordinates
from jaxsparse_fmt.kernels.coordinates import accumulator
from jaxsparse_fmt.kernels.layout.address import Arrays, Jagged, Slices, Starts, take
from jaxsparse_fmt.kernels.layout.columns import Rule, unpack_pattern

# Columns that one pass adds. With one, every pass would read and write y: 16 bytes an entry beside 20 (f64).
UNROLL = 4


def product_reference(values, x, arrays: Arrays, *, rule: Rule) -> Array:
    """`product` in plain jnp, in memory for n_stored + O(rows·p) numbers."""
    dtype = x.dtype if values is None else jnp.result_type(values, x)
    in_chunks = not isinstance(rule.address, Jagged | Starts)
    by_columns, by_slots = (
        functools.partial(f, arrays=arrays, rule=rule, acc=accumulator(dtype))
        for f in (_by_chunks if in_chunks else _by_columns, _by_slots)
    )

    def one(values, x):
        if isinstance(rule.address, Starts):
            y = by_columns(values, x)
        else:
            y = lax.cond(_is_even(arrays, rule), by_columns, by_slots, values, x)
        y = y.astype(dtype)
        return y.at[arrays["perm"]].set(y, unique_indices=True) if "perm" in arrays else y

    return jax.vmap(one, in_axes=(None if values is None else 0, 0))(values, x)


def _is_even(arrays: Arrays, rule: Rule) -> Array | bool:
    """Whether the longest row or slice is at most twice the mean: then columns take at most twice the time of slots."""
    if isinstance(rule.address, Jagged):
        return arrays["col_start"].shape[0] - 1 <= 2 * (rule.n_stored / rule.shape[0])
    _, widths = rule.address.bounds(jnp, arrays, rule.n_stored)
    return jnp.max(widths) <= 2 * ((rule.n_stored // rule.address.lanes) // widths.shape[0])


def _by_chunks(values, x, arrays: Arrays, rule: Rule, acc) -> Array:
    """Adds entry j of every row at once, for each j; takes the time of n_slices·longest chunks."""
    address, n_cols = rule.address, rule.shape[1]
    assert not isinstance(address, Jagged)
    C, last = address.lanes, rule.n_stored // address.lanes - 1
    starts, widths = address.bounds(jnp, arrays, rule.n_stored)
    owner = jnp.arange(starts.shape[0], dtype=jnp.int32)
    present = unpack_pattern(arrays["pattern"], rule.n_stored).reshape(-1, C) if "pattern" in arrays else None

    def term(j):
        chunk = jnp.minimum(starts + j, last)
        c = rule.column.of_chunks(arrays, C, chunk, owner, rule.shape)
        live = (c < n_cols) & (j < widths)[:, None]
        live = live if present is None else live & take(present, chunk)
        xs = coordinates.gather(x, c, live).astype(acc)
        if values is None:
            return xs
        # Behind its end a slice would read the values of the next, which may be NaN.
        v = jnp.where(live, take(values.reshape(-1, C), chunk), 0)
        return v[..., None].astype(acc) * xs

    return address.fold(_sum_terms(term, jnp.max(widths), jnp.zeros((starts.shape[0], C, x.shape[1]), acc)))


def _by_columns(values, x, arrays: Arrays, rule: Rule, acc) -> Array:
    """The same for Jagged and Starts, which store no chunks; takes the time of n_rows·longest places."""
    (n_rows, n_cols), jagged = rule.shape, isinstance(rule.address, Jagged)
    start = arrays["col_start" if jagged else "start"]
    last = start.shape[0] - (2 if jagged else 1)
    row = jnp.arange(n_rows, dtype=start.dtype)
    present = unpack_pattern(arrays["pattern"], rule.n_stored) if "pattern" in arrays else None

    def term(j):
        k = jnp.minimum(j, last)
        at = jnp.clip(start[k] + row, 0, rule.n_stored - 1)
        c = take(arrays["col_idx"], at) if jagged else row + arrays["offsets"][k]
        live = (c < n_cols) & (j <= last) & (row < start[k + 1] - start[k] if jagged else c >= 0)
        live = live if present is None else live & take(present, at)
        v = jnp.where(live, take(values, at), 0)
        return v[:, None].astype(acc) * coordinates.gather(x, c, live).astype(acc)

    return _sum_terms(term, jnp.int32(last + 1), jnp.zeros((n_rows, x.shape[1]), acc))


def _sum_terms(term, count, zero) -> Array:
    """term(0) + term(1) + …, in this order; terms from `count` on are zero."""

    def trip(t, y):
        for u in range(UNROLL):
            y = y + term(t * UNROLL + u)
        return y

    trips = (count + UNROLL - 1) // UNROLL
    return lax.fori_loop(jnp.zeros_like(trips), trips, trip, zero)


def _by_slots(values, x, arrays: Arrays, rule: Rule, acc) -> Array:
    """Adds all entries at once to their rows: slower for even rows, but one long row does not slow it."""
    (n_rows, n_cols), address = rule.shape, rule.address
    row, _ = address.slots(jnp, arrays, rule.n_stored)
    cols = rule.col_idx(arrays)
    live = cols < n_cols
    if "pattern" in arrays:
        live &= unpack_pattern(arrays["pattern"], rule.n_stored)
    rows_rise = isinstance(address, Slices) and address.lanes == 1

    def column(xq):
        terms = coordinates.gather(xq, cols, live).astype(acc)
        terms = terms if values is None else values.astype(acc) * terms
        return _segment_sum(jnp.where(live, terms, 0), row, n_rows, rows_rise)

    return jnp.moveaxis(lax.map(column, jnp.moveaxis(x, -1, 0)), 0, -1)


def _segment_sum(terms, row, n: int, rows_rise: bool):
    """Sums by row; complex ones by parts, since XLA for CUDA crashes on a sorted sum of complex64 (JAX 0.11.2)."""
    if jnp.issubdtype(terms.dtype, jnp.complexfloating):
        return lax.complex(_segment_sum(terms.real, row, n, rows_rise), _segment_sum(terms.imag, row, n, rows_rise))
    return jax.ops.segment_sum(terms, row, n, indices_are_sorted=rows_rise, mode=lax.GatherScatterMode.FILL_OR_DROP)


def transposed_reference(values, y, arrays: Arrays, *, rule: Rule) -> Array:  # [b, n_cols, p]
    """Aᵀ·y in plain jnp; on a GPU it adds by atomics, in no fixed order."""
    row, col, _ = rule.places(arrays)
    return coordinates.transposed_reference(values, y, row, col, n_cols=rule.shape[1])
