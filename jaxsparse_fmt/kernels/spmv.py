"""The product A·x and the transposed product Aᵀ·y of every format that stores rows by a `Rule`.

An address rule (`layout/address.py`) gives the address of entry j of a row, a column rule (`layout/columns.py`) decodes
its column; the kernels take any pair of rules:

    values             [b, n_stored]
    x, y               [b, n_cols, p], [b, n_rows, p]: a batch axis b for the values, a column axis p for the vectors
    arrays             what the rules read, by name; and perm [n_rows]: storage row k is row perm[k] of the matrix

`*_reference` computes the same in plain jnp, which runs where no kernel does; `spmv_cpu.py` calls Numba's kernels.

Padding has value 0 and column index n_cols, one past the end, which masks itself. Diagonals and blocks have padding
with a valid column, which `pattern` masks. Traffic of a product, bytes: n_stored·(value + index) + slice pointers +
n_cols·x + n_rows·y, x counted once.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._types import Array
from jaxsparse_fmt.kernels import coordinates, row_kernels, vector_pass
from jaxsparse_fmt.kernels.backends import selection, tuning
from jaxsparse_fmt.kernels.backends.pairs import where, widened
from jaxsparse_fmt.kernels.coordinates import accumulator
from jaxsparse_fmt.kernels.layout.address import Arrays, Jagged, Slices, Starts, take
from jaxsparse_fmt.kernels.layout.columns import Blocked, Rule, alive, unpack_pattern
from jaxsparse_fmt.kernels.row_kernels import LaneGroups, supported


def product(
    values: Array | None,  # [b, n_stored]; None: ones
    x: Array,  # [b, n_cols, p]
    arrays: Arrays,
    *,
    rule: Rule,
    backend: str,
) -> Array:  # [b, n_rows, p]
    """A·x, one block a tile of lanes."""
    operands = (x,) if values is None else (values, x)
    shape = (x.shape[0], rule.shape[0], x.shape[2])
    backend = supported(backend, *operands, size=math.prod(shape))
    if not selection.is_pallas(backend):
        return product_reference(values, x, arrays, rule=rule)
    out = {"y": jax.ShapeDtypeStruct(shape, jnp.result_type(*operands))}
    (y,) = row_kernels.launch_rows(product_kernel, backend, {"values": values, "x": x, **arrays}, out, rule)
    return y.reshape(shape)


def added(
    y: Array,  # [b, n, p]
    rows: Array,  # [n_rows], rising; sums of rows from n on are dropped
    x: Array,  # [b, n_cols, p]
    arrays: Arrays,
    *,
    rule: Rule,
    backend: str,
) -> Array:  # [b, n, p]
    """y with A·x added to its `rows`; all values of A are 1.

    A kernel adds in place: XLA copies y first if something reads y afterwards.
    """
    backend = supported(backend, y, x)
    if not selection.is_pallas(backend):
        sums = product(None, x, arrays, rule=rule, backend=backend)
        return y.at[:, rows].add(sums.astype(y.dtype), unique_indices=True, indices_are_sorted=True)
    kernel = functools.partial(product_kernel, adds_to=y.shape[1])
    inputs = {"x": x, "perm": rows, **arrays}
    return row_kernels.launch_rows(kernel, backend, inputs, {"y": y}, rule)[0].reshape(y.shape)


def product_sums(
    values: Array,  # [n_stored]
    x: Array,  # [n_cols]
    others: tuple[Array, ...],  # [n_rows]
    arrays: Arrays,
    *,
    what: vector_pass.Pass,
    rule: Rule,
    backend: str,
) -> tuple[Array, ...]:  # [n_rows], and [parts] each
    """y = A·x, and the sums of a pass over y and `others`: one part per warp of lanes, or fewer if there are many."""
    dtype, warps = jnp.result_type(values, x), _warps(rule)
    inputs = {"values": values[None], "x": x[None, :, None], **arrays}
    inputs |= {f"other{i}": v for i, v in enumerate(others)}
    out = {"y": jax.ShapeDtypeStruct((rule.shape[0],), dtype)}
    pairs = jax.eval_shape(what.each, (), out["y"], *others)[1]
    out |= {f"sum{i}": jax.ShapeDtypeStruct((warps,), dtype) for i in range(len(pairs))}
    y, *sums = row_kernels.launch_rows(functools.partial(product_kernel, what=what), backend, inputs, out, rule)
    return y, *(sums if parts(rule) == warps else vector_pass.sweep((), tuple(sums), SUM, backend)[2])


def parts(rule: Rule) -> int:
    """The number of parts of each sum that `product_sums` returns."""
    return _warps(rule) if _warps(rule) <= tuning.LAUNCH.most_parts else vector_pass.parts(_warps(rule))


SUM = vector_pass.Pass(tuple, lambda _, *sums: ((), tuple((v, jnp.ones_like(v)) for v in sums)))


def _warps(rule: Rule) -> int:
    return -(-rule.address.width // tuning.LAUNCH.warp)


def product_kernel(
    d,
    *,
    sizes: row_kernels.Sizes,
    x,  # [b·n_cols·p]
    y,  # [b·n_rows·p], out
    values=None,  # [b·n_stored]
    adds_to: int | None = None,  # rows of y, to which the kernel adds; None: it overwrites the matrix's own
    what: vector_pass.Pass | None = None,  # a pass over y and the others, for its sums
    **arrays,  # what the rules read, and if given:
    # perm     [n_rows]
    # pattern  [n_stored / 8] uint8
    # other0, …  [n_rows]
    # sum0, …     [width / 32], out
):
    rule, p, pack, (n_rows, n_cols) = sizes.rule, sizes.p, sizes.pack, sizes.rule.shape
    pattern, rows_of_y = arrays.get("pattern"), n_rows if adds_to is None else adds_to
    tile, column_block, batch = sizes.position(d.program_id())
    whole, d = d, LaneGroups(d, sizes.lanes_a_row) if sizes.lanes_a_row > 1 else d
    columns, once = sizes.columns(d, column_block), not isinstance(rule.address, Starts)
    first: Any = None
    totals: Any = None
    for walk in sizes.walks(d, arrays, tile):

        def trip(t, sums, walk=walk):
            # All loads of A first: they are in flight together.
            entries = sizes.entries(walk, t)
            cols = rule.column.in_kernel(d, arrays, walk, entries, n_cols)
            if rule.column.implied:  # places without a column need not exist
                entries = [(e, address, exists) for (e, address, _), (_, exists) in zip(entries, cols, strict=True)]
            vals: list[Any] = [None] * len(entries)
            if values is not None:
                vals = [
                    d.load(values, batch * rule.n_stored + address, live, 0, once=once) for _, address, live in entries
                ]
            for (_, address, live), (c, exists), v in zip(entries, cols, vals, strict=True):
                xs = pack.load(d, x, (batch * n_cols + c) * p, columns, exists)
                terms = [widened(xq, sizes.acc) for xq in xs]
                terms = terms if v is None else [pack.of_lanes(widened(v, sizes.acc)) * term for term in terms]
                if pattern is not None:
                    entry = pack.of_lanes(alive(d, rule.column, pattern, address, live, v))
                    terms = [where(entry, term) for term in terms]
                sums = tuple(s + term for s, term in zip(sums, terms, strict=True))
            return sums

        zero = tuple(pack.repeated(d.full(0, sizes.acc)) for _ in columns)
        sums = lax.fori_loop(jnp.int32(0), sizes.trips(walk), trip, zero)
        if walk.threads > 1:
            sums = [d.sum_threads(s, walk.threads, walk.stride) for s in sums]
        if first is None:
            first, totals = walk, sums
        else:
            keep = pack.of_lanes(walk.keep)
            totals = [t + where(keep, s) for t, s in zip(totals, sums, strict=True)]
    base = (batch * rows_of_y + first.matrix_row) * p
    live = first.row < n_rows
    live = live if first.keep is None else live & first.keep
    if adds_to is not None:
        live = live & (first.matrix_row < rows_of_y)
        before = pack.load(d, y, base, columns, live)
        totals = [widened(b, sizes.acc) + total for b, total in zip(before, totals, strict=True)]
    for (q, inside), total in zip(columns, totals, strict=True):
        d.store(y, pack.places(base + q), total, pack.of_lanes(live & inside))
    if what is not None:
        others = [d.load(ref, base, live, 0) for name, ref in arrays.items() if name.startswith("other")]
        for j, (a, b) in enumerate(what.each((), totals[0], *others)[1]):
            terms = jnp.where(live, a * b, jnp.zeros_like(totals[0]))
            whole.store_sums(arrays[f"sum{j}"], tile, terms, sizes.rows // tuning.LAUNCH.warp)


# ---------------------------------------------------------------------------------------------------- in plain jnp

# Columns that one pass adds. With one, every pass would read and write y: 16 bytes an entry more than 20 (f64).
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
        # Beyond its end a slice would read the values of the next, which may be NaN.
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
        place = jnp.clip(start[k] + row, 0, rule.n_stored - 1)
        c = take(arrays["col_idx"], place) if jagged else row + arrays["offsets"][k]
        live = (c < n_cols) & (j <= last) & (row < start[k + 1] - start[k] if jagged else c >= 0)
        live = live if present is None else live & take(present, place)
        v = jnp.where(live, take(values, place), 0)
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
    """Adds all entries at once to their rows: slower for even rows, but not slowed by one long row."""
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
    """Aᵀ·y in plain jnp; on a GPU it uses atomic adds, in no fixed order."""
    row, col, _ = rule.places(arrays)
    together = rule.column.rows if isinstance(rule.column, Blocked) else 1
    return coordinates.transposed_reference(values, y, row, col, n_cols=rule.shape[1], together=together)
