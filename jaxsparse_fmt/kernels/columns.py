"""The kernels of every format that stores rows by an address rule, and their references.

Where entry j of a row lies says an address rule (`address.py`), which column it has a column rule (`column_rule.py`);
the three faces here take any pair of them:

    values             [b, n_stored]
    x, y               [b, n_cols, p], [b, n_rows, p]: a batch axis b for the values, a column axis p for the vectors
    arrays             what the rules read, by name; and perm [n_rows]: storage row k is row perm[k] of the matrix

Padding has value 0 and column index n_cols, one past the end. A valid column would be read, and 0·NaN is NaN; this
one is masked without reading any row length, which would cost 4 bytes a row: 7% of a 7-point product in f32. Where
padding has a valid column all the same, as in diagonals and blocks, `pattern` masks it.

Traffic of a product, bytes: n_stored·(value + index) + slice pointers + n_cols·x + n_rows·y, x counted once. A lane
sums its entries in storage order in both kernel dialects: runs repeat to the last bit, and within a dialect formats
with one thread a row agree to it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxsparse_fmt._types import x64_enabled
from jaxsparse_fmt.kernels import dialect, entries
from jaxsparse_fmt.kernels.address import Address, Arrays, Jagged, Slices
from jaxsparse_fmt.kernels.column_rule import ColumnRule, Delta, Diagonal, Explicit, alive, unpack_pattern
from jaxsparse_fmt.kernels.entries import accumulator

Array = jax.Array

# Columns that one pass of the reference adds; with one, y is read and written for each: 16 bytes on top of 20 (f64).
REFERENCE_UNROLL = 4


@dataclasses.dataclass(frozen=True)
class Rule:
    """How a matrix is stored: static and hashable, so that matrices stored alike share compiled code."""

    shape: tuple[int, int]
    n_stored: int
    address: Address
    column: ColumnRule

    @property
    def load(self) -> str:
        """What a lane has to do beside its values, for `dialect.block`."""
        long_rows = self.n_stored >= dialect.LAUNCH.long_rows * self.shape[0]
        if not isinstance(self.address, Slices) or self.address.lanes >= self.shape[0]:
            return "full"
        if self.address.threads > 1:
            return "shared"
        if isinstance(self.column, Delta):
            return "long deltas" if long_rows else "deltas"
        return "diagonals" if isinstance(self.column, Diagonal) and not long_rows else "full"


# --------------------------------------------------------------------------------------------------------- product


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
    out = (x.shape[0], rule.shape[0], x.shape[2])
    backend = supported(backend, *operands, size=math.prod(out))
    if backend == "xla":
        return product_reference(values, x, arrays, rule=rule)
    dtype = jnp.result_type(*operands)
    kernel = functools.partial(product_kernel, acc=accumulator(dtype))
    return _launch(kernel, backend, {"values": values, "x": x, **arrays}, ("y", out, dtype), rule).reshape(out)


def product_kernel(
    d,
    *,
    x,  # [b·n_cols·p]
    y,  # [b·n_rows·p], out
    values=None,  # [b·n_stored]
    perm=None,  # [n_rows]
    pattern=None,  # [n_stored / 8] uint8, or a list
    acc,
    sizes: _Sizes,
    **arrays,
):
    tile, column_block, batch = _position(d.program_id(), sizes)
    batch, columns, n_cols = batch.astype(sizes.address), _columns(column_block, sizes), sizes.rule.shape[1]
    first: Any = None
    totals: Any = None
    for walk in _walks(d, arrays, perm, tile, sizes):

        def trip(t, sums, walk=walk):
            # All loads of A first: they are in flight together.
            steps = _steps(walk, t, sizes)
            cols = sizes.rule.column.in_kernel(d, arrays, walk, steps, n_cols)
            vals = [_load(d, values, batch * sizes.rule.n_stored + at, live) for _, at, live in steps]
            for (_, at, live), (c, exists), v in zip(steps, cols, vals, strict=True):
                xs = _gather_row(d, x, c, exists, batch * n_cols, columns, sizes)
                terms = [xq.astype(acc) if v is None else v.astype(acc) * xq.astype(acc) for xq in xs]
                if pattern is not None:
                    entry = alive(d, pattern, at, live, v)
                    terms = [jnp.where(entry, term, jnp.zeros_like(term)) for term in terms]
                sums = tuple(s + term for s, term in zip(sums, terms, strict=True))
            return sums

        zero = tuple(d.full(0, acc) for _ in columns)
        sums = lax.fori_loop(jnp.int32(0), _trips(walk, sizes), trip, zero)
        if walk.threads > 1:
            sums = [d.sum_threads(s, walk.threads, walk.stride) for s in sums]
        if first is None:
            first, totals = walk, sums
        else:
            totals = [t + jnp.where(walk.keep, s, jnp.zeros_like(s)) for t, s in zip(totals, sums, strict=True)]
    base = (batch * sizes.rule.shape[0] + first.matrix_row) * sizes.p
    live = first.row < sizes.rule.shape[0]
    live = live if first.keep is None else live & first.keep
    for (q, inside), total in zip(columns, totals, strict=True):
        d.store(y, base + q, total, live & inside)


def product_reference(values, x, arrays: Arrays, *, rule: Rule) -> Array:
    """A·x in plain jnp, the same arguments as `product`. Never holds more than n_stored + O(rows·p) numbers."""
    dtype = x.dtype if values is None else jnp.result_type(values, x)
    acc = accumulator(dtype)
    by_slots = functools.partial(_by_slots, arrays=arrays, rule=rule, acc=acc)

    def one(values, x):
        if isinstance(rule.address, Jagged):
            by_columns, longest, even = (
                _by_jagged_columns,
                arrays["col_start"].shape[0] - 1,
                rule.n_stored / rule.shape[0],
            )
        else:
            _, widths = rule.address.bounds(jnp, arrays, rule.n_stored)
            by_columns, longest = _by_columns, jnp.max(widths)
            even = (rule.n_stored // rule.address.lanes) // widths.shape[0]
        by_columns = functools.partial(by_columns, arrays=arrays, rule=rule, acc=acc)
        y = lax.cond(longest <= 2 * even, by_columns, by_slots, values, x)
        y = y.astype(dtype)
        return y.at[arrays["perm"]].set(y, unique_indices=True) if "perm" in arrays else y

    return jax.vmap(one, in_axes=(None if values is None else 0, 0))(values, x)


def _by_columns(values, x, arrays: Arrays, rule: Rule, acc) -> Array:
    """Entry j of every row at once; the time of n_slices·longest chunks."""
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
        live = live if present is None else live & _take(present, chunk)
        xs = entries.gather(x, c, live).astype(acc)
        if values is None:
            return xs
        # Past its end a slice meets the values of the next, of which one may be NaN.
        v = jnp.where(live, _take(values.reshape(-1, C), chunk), 0)
        return v[..., None].astype(acc) * xs

    return address.fold(_sum_terms(term, jnp.max(widths), jnp.zeros((starts.shape[0], C, x.shape[1]), acc)))


def _by_jagged_columns(values, x, arrays: Arrays, rule: Rule, acc) -> Array:
    """The same where columns shorten; the time of n_rows·longest places."""
    n_rows, n_cols = rule.shape
    start, last = arrays["col_start"], arrays["col_start"].shape[0] - 2
    row = jnp.arange(n_rows, dtype=start.dtype)

    def term(j):
        begin, end = start[jnp.minimum(j, last)], start[jnp.minimum(j, last) + 1]
        at = jnp.minimum(begin + row, rule.n_stored - 1)
        c = _take(arrays["col_idx"], at)
        live = (c < n_cols) & (row < end - begin) & (j <= last)
        v = jnp.where(live, _take(values, at), 0)
        return v[:, None].astype(acc) * entries.gather(x, c, live).astype(acc)

    return _sum_terms(term, jnp.int32(last + 1), jnp.zeros((n_rows, x.shape[1]), acc))


def _sum_terms(term, count, zero) -> Array:
    """term(0) + term(1) + …, in this order; terms from `count` on are zero."""

    def trip(t, y):
        for u in range(REFERENCE_UNROLL):
            y = y + term(t * REFERENCE_UNROLL + u)
        return y

    trips = (count + REFERENCE_UNROLL - 1) // REFERENCE_UNROLL
    return lax.fori_loop(jnp.zeros_like(trips), trips, trip, zero)


def _by_slots(values, x, arrays: Arrays, rule: Rule, acc) -> Array:
    """All entries at once, scattered to their rows: slower for even rows, indifferent to a long one."""
    (n_rows, n_cols), address = rule.shape, rule.address
    row, _ = address.slots(jnp, arrays, rule.n_stored)
    cols = columns_of(arrays, rule)
    live = cols < n_cols
    if "pattern" in arrays:
        live &= unpack_pattern(arrays["pattern"], rule.n_stored)
    rows_rise = isinstance(address, Slices) and address.lanes == 1

    def column(xq):
        terms = entries.gather(xq, cols, live).astype(acc)
        terms = terms if values is None else values.astype(acc) * terms
        return _segment_sum(jnp.where(live, terms, 0), row, n_rows, rows_rise)

    return jnp.moveaxis(lax.map(column, jnp.moveaxis(x, -1, 0)), 0, -1)


# ------------------------------------------------------------------------------------------------ transposed product


def transposed_reference(values, y, arrays: Arrays, *, rule: Rule) -> Array:  # [b, n_cols, p]
    """Aᵀ·y in plain jnp; on a GPU it adds by atomics, in no fixed order."""
    row, col, _ = places(arrays, rule)
    return entries.transposed_reference(values, y, row, col, n_cols=rule.shape[1])


# --------------------------------------------------------------------------------------------- sampled outer product


def outer(
    y: Array,  # [b, n_rows, p]
    x: Array,  # [b, n_cols, p]
    arrays: Arrays,
    *,
    rule: Rule,
    backend: str,
) -> Array:  # [b, n_stored]
    """Σ_p y[row, p]·x[col, p] at every stored entry, zero in padding."""
    out = (y.shape[0], rule.n_stored)
    backend = supported(backend, y, x, size=math.prod(out))
    if backend == "xla":
        return outer_reference(y, x, arrays, rule=rule)
    dtype = jnp.result_type(y, x)
    kernel = functools.partial(outer_kernel, acc=accumulator(dtype))
    inputs = {"y": y, "x": x, **{k: a for k, a in arrays.items() if k != "pattern"}}
    v = _launch(kernel, backend, inputs, ("values", out, dtype), rule, column_blocks=1).reshape(out)
    if "pattern" in arrays:
        return jnp.where(unpack_pattern(arrays["pattern"], rule.n_stored), v, 0)
    # Lanes that stop at the end of their row leave the padding behind it unwritten.
    return jnp.where(columns_of(arrays, rule) < rule.shape[1], v, 0) if "row_lengths" in arrays else v


def outer_kernel(
    d,
    *,
    y,  # [b·n_rows·p]
    x,  # [b·n_cols·p]
    values,  # [b·n_stored], out
    perm=None,  # [n_rows]
    acc,
    sizes: _Sizes,
    **arrays,
):
    tile, _, batch = _position(d.program_id(), sizes)
    batch, (n_rows, n_cols) = batch.astype(sizes.address), sizes.rule.shape
    for walk in _walks(d, arrays, perm, tile, sizes):

        def trip(t, _, walk=walk):
            steps = _steps(walk, t, sizes)
            cols = sizes.rule.column.in_kernel(d, arrays, walk, steps, n_cols)
            for (_, at, live), (c, exists) in zip(steps, cols, strict=True):
                entry = exists & (walk.row < n_rows)

                def column(q, total, entry=entry, c=c):
                    yq = d.load(y, (batch * n_rows + walk.matrix_row) * sizes.p + q, entry, 0).astype(acc)
                    xq = d.load(x, (batch * n_cols + c) * sizes.p + q, entry, 0).astype(acc)
                    return total + yq * xq

                total = lax.fori_loop(jnp.int32(0), jnp.int32(sizes.p), column, d.full(0, acc))
                d.store(values, batch * sizes.rule.n_stored + at, total, live)
            return ()

        lax.fori_loop(jnp.int32(0), _trips(walk, sizes), trip, ())


def outer_reference(y, x, arrays: Arrays, *, rule: Rule) -> Array:
    """The sampled outer product in plain jnp, the same arguments as `outer`."""
    row, col, _ = places(arrays, rule)
    return entries.outer_reference(y, x, row, col, n_cols=rule.shape[1])


# ------------------------------------------------------------------------------------------- what the kernels share


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Static sizes of one launch. Its blocks are tiles of lanes, for each block of columns, for each of the batch."""

    rule: Rule
    p: int
    tiles: int
    block_columns: int
    column_blocks: int
    blocks: int
    unroll: int
    address: Any


def _walks(d, arrays, perm, tile, sizes: _Sizes):
    for walk in sizes.rule.address.walks(d, arrays, tile, sizes.rule.n_stored, sizes.address):
        inside = walk.row < sizes.rule.shape[0]
        walk.matrix_row = walk.row if perm is None else d.load(perm, walk.row, inside, 0)
        yield walk


def _steps(walk, t, sizes: _Sizes):
    """The entries of trip t: number, address, and where there is one."""
    return [(e, *walk.entry(e)) for e in (t * sizes.unroll + u for u in range(sizes.unroll))]


def _trips(walk, sizes: _Sizes):
    return lax.div(walk.longest + jnp.int32(sizes.unroll - 1), jnp.int32(sizes.unroll))


def _load(d, values, at, live):
    return None if values is None else d.load(values, at, live, 0, once=True)


def _position(block, sizes: _Sizes):
    """The tile, the block of columns and the member of the batch that a block works on."""
    rest, zero = jnp.int32(0), jnp.int32(0)
    if sizes.blocks > sizes.tiles:
        block, rest = lax.rem(block, jnp.int32(sizes.tiles)), lax.div(block, jnp.int32(sizes.tiles))
    if sizes.column_blocks == 1:
        return block, zero, rest
    return block, lax.rem(rest, jnp.int32(sizes.column_blocks)), lax.div(rest, jnp.int32(sizes.column_blocks))


def _columns(column_block, sizes: _Sizes):
    """The right-hand sides of this block: (index, whether there is such a column)."""
    first = column_block * sizes.block_columns
    exact = sizes.p % sizes.block_columns == 0
    return [(first + q, True if exact else first + q < sizes.p) for q in range(sizes.block_columns)]


def _gather_row(d, x, c, live, batch_row, columns, sizes: _Sizes):
    base = (batch_row + c) * sizes.p
    return [d.load(x, base + q, live & inside, 0) for q, inside in columns]


def _launch(kernel, backend, inputs, output, rule: Rule, column_blocks=None):
    """Flattens every array, chooses the blocks and the width of addresses, and runs the kernel."""
    name, shape, dtype = output
    flat = {k: a.reshape(-1) for k, a in inputs.items() if a is not None}
    (batch, _, p), unit = inputs["x"].shape, rule.column.unit
    permuted = rule.load == "full" and "perm" in inputs and jnp.dtype(dtype).itemsize <= 4
    load = "permuted" if permuted else rule.load
    block = dialect.block(backend, load, getattr(rule.address, "lanes", 0))
    tiles, block_columns = -(-rule.address.width // block.rows), min(p, dialect.LAUNCH.max_columns)
    column_blocks = column_blocks or -(-p // block_columns)
    sizes = _Sizes(
        rule=rule,
        p=p,
        tiles=tiles,
        block_columns=block_columns,
        column_blocks=column_blocks,
        blocks=tiles * column_blocks * batch,
        unroll=unit * max(block.unroll // unit, 1),
        address=_address_dtype(max(math.prod(shape), *(a.size for a in flat.values()))),
    )
    return dialect.launch(
        functools.partial(kernel, sizes=sizes),
        backend,
        name=kernel.func.__name__,
        block=block,
        blocks=sizes.blocks,
        inputs=flat,
        output=(name, jax.ShapeDtypeStruct((math.prod(shape),), dtype)),
    )


def _address_dtype(size: int):
    return jnp.int64 if size >= 2**31 else jnp.int32


def supported(backend: str, *operands: Array, size: int = 0) -> str:
    """`backend`, or "xla" for what the kernels do not do: complex numbers, and 64-bit addresses in 32-bit JAX."""
    wide = max(size, *(a.size for a in operands)) >= 2**31 and not x64_enabled()
    is_complex = any(jnp.issubdtype(a.dtype, jnp.complexfloating) for a in operands)
    return "xla" if is_complex or wide else backend


# ---------------------------------------------------------------------------------------- what the references share


def columns_of(arrays: Arrays, rule: Rule) -> Array:
    """The column of every stored place [n_stored]; n_cols or more in padding that has none."""
    if isinstance(rule.address, Jagged) or isinstance(rule.column, Explicit):
        return arrays["col_idx"]
    owner, _ = rule.address.owners(jnp, arrays, rule.n_stored)
    chunk = jnp.arange(owner.shape[0], dtype=_address_dtype(owner.shape[0]))
    return rule.column.of_chunks(arrays, rule.address.lanes, chunk, owner, rule.shape).reshape(-1)


def places(arrays: Arrays, rule: Rule) -> tuple[Array, Array, Array]:
    """Of every stored place its row in the matrix, its column, n_cols in padding, and its j in the row: [n_stored]."""
    n_rows, n_cols = rule.shape
    row, j = rule.address.slots(jnp, arrays, rule.n_stored)
    cols = columns_of(arrays, rule)
    live = (row < n_rows) & (cols < n_cols)
    if "pattern" in arrays:
        live &= unpack_pattern(arrays["pattern"], rule.n_stored)
    row = jnp.minimum(row, max(n_rows - 1, 0))
    return row if "perm" not in arrays else _take(arrays["perm"], row), jnp.where(live, cols, n_cols), j


def _segment_sum(terms, row, n: int, rows_rise: bool):
    """Sums by row. XLA for CUDA crashes on a sorted one of complex64 (JAX 0.11.2), so by real parts."""
    if jnp.issubdtype(terms.dtype, jnp.complexfloating):
        return lax.complex(_segment_sum(terms.real, row, n, rows_rise), _segment_sum(terms.imag, row, n, rows_rise))
    return jax.ops.segment_sum(terms, row, n, indices_are_sorted=rows_rise, mode=jax.lax.GatherScatterMode.FILL_OR_DROP)


def _take(a, idx):
    return a.at[idx].get(mode="promise_in_bounds")
