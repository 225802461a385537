"""The column-major family: CSR, ELL, ELLPACK-R and HLL are one address rule.

Rows lie in slices of C. Entry j of storage row r (slice s = r // C, lane i = r % C) is at

    address(r, j) = slice_ptr[s] + i + j·C

of the flat `values` and `col_idx`. C = 1 is CSR, C = n_rows is ELL (one slice, no `slice_ptr`), anything between is
HLL. Neighbouring lanes read neighbouring addresses, so loads coalesce whenever C is at least a warp.

Padding has value 0 and column index n_cols, one past the end. A valid column would be read, and 0·NaN is NaN; this
one is masked without reading any row length, which would cost 4 bytes a row: 7% of a 7-point product in f32.

Every face takes a batch axis b for the values and a column axis p for the vectors:

    values, col_idx    [b, n_stored], [n_stored]
    x, y               [b, n_cols, p], [b, n_rows, p]
    slice_ptr          [n_slices + 1], int32, or int64 from 2³¹ stored entries; None: one slice
    row_lengths        [n_rows] in storage order: stop each row there; None: run to the end of the slice
    perm               [n_rows]: storage row k is row perm[k] of the matrix; None: the same

Traffic of a product, bytes: n_stored·(value + 4) + 4·n_slices + n_cols·x + n_rows·y, x counted once. Summation goes
by j in storage order in both kernel dialects, whatever C is: runs repeat to the last bit, and within a dialect formats
agree to it.
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
from jaxsparse_fmt.kernels import dialect

Array = jax.Array

# Columns that one pass of the reference adds; with one, y is read and written for each: 16 bytes on top of 20 (f64).
REFERENCE_UNROLL = 4


def accumulator(*dtypes) -> jnp.dtype:
    """The type that sums run in: the widest operand's, and at least float32."""
    return jnp.promote_types(jnp.result_type(*dtypes), jnp.float32)


# --------------------------------------------------------------------------------------------------------- product


def product(
    values: Array,  # [b, n_stored]
    col_idx: Array,  # [n_stored]
    x: Array,  # [b, n_cols, p]
    slice_ptr: Array | None,
    row_lengths: Array | None,
    perm: Array | None,
    *,
    shape: tuple[int, int],
    slice_size: int,
    backend: str,
) -> Array:  # [b, n_rows, p]
    """A·x, one block a tile of rows, one lane a row."""
    out = (values.shape[0], shape[0], x.shape[2])
    backend = _supported(backend, values, x, size=math.prod(out))
    if backend == "xla":
        return product_reference(values, col_idx, x, slice_ptr, row_lengths, perm, shape=shape, slice_size=slice_size)
    dtype = jnp.result_type(values, x)
    kernel = functools.partial(product_kernel, acc=accumulator(dtype))
    inputs = {"values": values, "col_idx": col_idx, "x": x, "slice_ptr": slice_ptr}
    inputs |= {"row_lengths": row_lengths, "perm": perm}
    y = _launch(kernel, backend, inputs, ("y", math.prod(out), dtype), x.shape[2], shape, slice_size)
    return y.reshape(out)


def product_kernel(
    d,
    *,
    values,  # [b·n_stored]
    col_idx,  # [n_stored]
    x,  # [b·n_cols·p]
    y,  # [b·n_rows·p], out
    slice_ptr=None,  # [n_slices + 1]
    row_lengths=None,  # [n_rows]
    perm=None,  # [n_rows]
    acc,
    sizes: _Sizes,
):
    tile = _tile(d, slice_ptr, row_lengths, sizes)
    batch, columns = tile.batch.astype(sizes.address), _columns(tile.column_block, sizes)

    def trip(t, sums):
        # All loads of A first: they are in flight together.
        entries = [tile.entry(t * dialect.LAUNCH.unroll + u) for u in range(dialect.LAUNCH.unroll)]
        cols = [d.load(col_idx, at, live, sizes.n_cols, once=True) for at, live in entries]
        vals = [d.load(values, batch * sizes.n_stored + at, live, 0, once=True) for at, live in entries]
        for c, v in zip(cols, vals, strict=True):
            xs = _gather_row(d, x, c, c < sizes.n_cols, batch * sizes.n_cols, columns, sizes)
            sums = tuple(s + v.astype(acc) * xq.astype(acc) for s, xq in zip(sums, xs, strict=True))
        return sums

    sums = lax.fori_loop(jnp.int32(0), tile.trips, trip, tuple(d.full(0, acc) for _ in columns))
    row = tile.row if perm is None else d.load(perm, tile.row, tile.row < sizes.n_rows, 0)
    base = (batch * sizes.n_rows + row) * sizes.p
    for (q, inside), total in zip(columns, sums, strict=True):
        d.store(y, base + q, total, (tile.row < sizes.n_rows) & inside)


def product_reference(values, col_idx, x, slice_ptr, row_lengths, perm, *, shape, slice_size) -> Array:
    """A·x in plain jnp, the same arguments as `product`. Never holds more than n_stored + O(rows·p) numbers."""
    del row_lengths  # padding is masked by its column index
    n_rows, n_cols = shape
    dtype = jnp.result_type(values, x)
    acc = accumulator(dtype)
    cols, starts, widths = chunks(col_idx, slice_ptr, slice_size)
    n_slices, last = starts.shape[0], cols.shape[0] - 1

    def by_columns(values, x):
        """Entry j of every row at once; the time of n_slices·longest chunks."""

        def term(j):
            chunk = jnp.minimum(starts + j, last)
            c = _take(cols, chunk)
            live = (c < n_cols) & (j < widths)[:, None]
            return _take(values, chunk)[..., None].astype(acc) * _gather(x, c, live).astype(acc)

        def trip(t, y):
            for u in range(REFERENCE_UNROLL):
                y = y + term(t * REFERENCE_UNROLL + u)
            return y

        zero = jnp.zeros((n_slices, slice_size, x.shape[1]), acc)
        trips = (jnp.max(widths) + REFERENCE_UNROLL - 1) // REFERENCE_UNROLL
        return lax.fori_loop(jnp.zeros_like(trips), trips, trip, zero)

    def by_segments(values, x):
        """All chunks at once, then a segmented sum: slower for even slices, indifferent to a long one."""

        owner = owners(widths, cols.shape[0])

        def column(xq):
            terms = values.astype(acc) * _gather(xq, cols, cols < n_cols).astype(acc)
            return _segment_sum(terms, owner, n_slices)

        return jnp.moveaxis(lax.map(column, jnp.moveaxis(x, -1, 0)), 0, -1)

    def one(values, x):
        even = jnp.max(widths) <= 2 * cols.shape[0] // n_slices
        y = lax.cond(even, by_columns, by_segments, values.reshape(-1, slice_size), x)
        y = y.reshape(-1, x.shape[1])[:n_rows].astype(dtype)
        return y if perm is None else jnp.zeros_like(y).at[perm].set(y, unique_indices=True)

    return jax.vmap(one)(values, x)


# ------------------------------------------------------------------------------------------------ transposed product


def transposed_reference(values, col_idx, y, slice_ptr, perm, *, shape, slice_size) -> Array:  # [b, n_cols, p]
    """Aᵀ·y in plain jnp: a scatter-add, column by column of y. On a GPU it adds by atomics, in no fixed order."""
    dtype = jnp.result_type(values, y)
    acc = accumulator(dtype)
    cols, _, widths = chunks(col_idx, slice_ptr, slice_size)
    owner = owners(widths, cols.shape[0])

    def one(values, y):
        def column(yq):
            terms = values.astype(acc) * _take(_storage_order(yq, perm, slice_size), owner).astype(acc)
            return jnp.zeros(shape[1], acc).at[cols].add(terms, mode="drop")

        values = values.reshape(-1, slice_size)
        return jnp.moveaxis(lax.map(column, jnp.moveaxis(y, -1, 0)), 0, -1).astype(dtype)

    return jax.vmap(one)(values, y)


# --------------------------------------------------------------------------------------------- sampled outer product


def outer(
    y: Array,  # [b, n_rows, p]
    col_idx: Array,  # [n_stored]
    x: Array,  # [b, n_cols, p]
    slice_ptr: Array | None,
    perm: Array | None,
    *,
    shape: tuple[int, int],
    slice_size: int,
    backend: str,
) -> Array:  # [b, n_stored]
    """Σ_p y[row, p]·x[col, p] at every stored entry, zero in padding."""
    out = (y.shape[0], col_idx.shape[0])
    backend = _supported(backend, y, x, size=math.prod(out))
    if backend == "xla":
        return outer_reference(y, col_idx, x, slice_ptr, perm, shape=shape, slice_size=slice_size)
    dtype = jnp.result_type(y, x)
    kernel = functools.partial(outer_kernel, acc=accumulator(dtype))
    inputs = {"y": y, "col_idx": col_idx, "x": x, "slice_ptr": slice_ptr, "perm": perm}
    v = _launch(
        kernel, backend, inputs, ("values", math.prod(out), dtype), x.shape[2], shape, slice_size, column_blocks=1
    )
    return v.reshape(out)


def outer_kernel(
    d,
    *,
    y,  # [b·n_rows·p]
    col_idx,  # [n_stored]
    x,  # [b·n_cols·p]
    values,  # [b·n_stored], out
    slice_ptr=None,  # [n_slices + 1]
    perm=None,  # [n_rows]
    acc,
    sizes: _Sizes,
):
    tile = _tile(d, slice_ptr, None, sizes)
    batch = tile.batch.astype(sizes.address)
    inside = tile.row < sizes.n_rows
    row = tile.row if perm is None else d.load(perm, tile.row, inside, 0)

    def trip(j, _):
        at, live = tile.entry(j)
        c = d.load(col_idx, at, live, sizes.n_cols, once=True)
        entry = (c < sizes.n_cols) & inside

        def column(q, total):
            yq = d.load(y, (batch * sizes.n_rows + row) * sizes.p + q, entry, 0).astype(acc)
            xq = d.load(x, (batch * sizes.n_cols + c) * sizes.p + q, entry, 0).astype(acc)
            return total + yq * xq

        total = lax.fori_loop(jnp.int32(0), jnp.int32(sizes.p), column, d.full(0, acc))
        d.store(values, batch * sizes.n_stored + at, total, live)
        return ()

    lax.fori_loop(jnp.int32(0), tile.width, trip, ())


def outer_reference(y, col_idx, x, slice_ptr, perm, *, shape, slice_size) -> Array:
    """The sampled outer product in plain jnp, one column of x and y at a time: no n_stored × p array."""
    dtype = jnp.result_type(y, x)
    acc = accumulator(dtype)
    cols, _, widths = chunks(col_idx, slice_ptr, slice_size)
    owner = owners(widths, cols.shape[0])
    live = cols < shape[1]

    def one(y, x):
        def column(q, total):
            yq = _take(_storage_order(y[:, q], perm, slice_size), owner)
            return total + jnp.where(live, yq.astype(acc) * _gather(x[:, q], cols, live).astype(acc), 0)

        total = lax.fori_loop(jnp.int32(0), jnp.int32(x.shape[1]), column, jnp.zeros(cols.shape, acc))
        return total.reshape(-1).astype(dtype)

    return jax.vmap(one)(y, x)


# ------------------------------------------------------------------------------------------- what the kernels share


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Static sizes of one launch. Its blocks are tiles of rows, for each block of columns, for each of the batch."""

    n_rows: int
    n_cols: int
    n_stored: int
    slice_size: int
    n_slices: int
    p: int
    tiles: int
    block_columns: int
    column_blocks: int
    batch: int
    address: Any

    @property
    def blocks(self) -> int:
        return self.tiles * self.column_blocks * self.batch


class _Tile:
    """The rows of one block: `row` [rows]; `entry(j)` is the address of entry j and where it is stored."""

    def __init__(self, position, row, base, width, longest, inside, slice_size):
        _, self.column_block, self.batch = position
        self.row, self._base, self._limit, self._inside, self._stride = row, base, width, inside, slice_size
        self.width = longest
        self.trips = lax.div(longest + jnp.int32(dialect.LAUNCH.unroll - 1), jnp.int32(dialect.LAUNCH.unroll))

    def entry(self, j):
        at = self._base + j.astype(self._base.dtype) * self._stride
        live = j < self._limit
        return at, live if self._inside is None else live & self._inside


def _tile(d, slice_ptr, row_lengths, sizes: _Sizes) -> _Tile:
    C, rows = sizes.slice_size, d.rows
    position = block, _, _ = _position(d.program_id(), sizes)
    row = block * rows + d.lanes()
    inside = None
    if slice_ptr is None:
        base, inside = row.astype(sizes.address), row < C
        width = longest = jnp.int32(sizes.n_stored // C)
    elif C % rows == 0:
        s = lax.div(block, jnp.int32(C // rows))
        start, stop = d.load(slice_ptr, s), d.load(slice_ptr, s + 1)
        base = (start + (row - s * C)).astype(sizes.address)
        width = longest = lax.div((stop - start).astype(jnp.int32), jnp.int32(C))
    else:
        s = row if C == 1 else lax.div(row, d.full(C, jnp.int32))
        inside = s < sizes.n_slices
        start, stop = d.load(slice_ptr, s, inside, 0), d.load(slice_ptr, s + 1, inside, 0)
        base = (start + (row - s * C)).astype(sizes.address)
        width = (stop - start).astype(jnp.int32)
        width = width if C == 1 else lax.div(width, d.full(C, jnp.int32))
        longest = jnp.max(width)
    if row_lengths is not None:
        width = d.load(row_lengths, row, row < sizes.n_rows, 0)
        longest = jnp.max(width)
    return _Tile(position, row, base, width, longest, inside, C)


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


def _launch(kernel, backend, inputs, output, p, shape, slice_size, column_blocks=None):
    """Flattens every array, chooses the blocks and the width of addresses, and runs the kernel."""
    name, size, dtype = output
    flat = {k: None if v is None else v.reshape(-1) for k, v in inputs.items()}
    slice_ptr = inputs["slice_ptr"]
    n_slices = 1 if slice_ptr is None else slice_ptr.shape[0] - 1
    rows = dialect.rows_per_block(backend, slice_size)
    block_columns = min(p, dialect.LAUNCH.max_columns)
    sizes = _Sizes(
        n_rows=shape[0],
        n_cols=shape[1],
        n_stored=inputs["col_idx"].shape[0],
        slice_size=slice_size,
        n_slices=n_slices,
        p=p,
        tiles=-(-n_slices * slice_size // rows),
        block_columns=block_columns,
        column_blocks=column_blocks or -(-p // block_columns),
        batch=inputs["x"].shape[0],
        address=_address_dtype(max(size, *(v.size for v in flat.values() if v is not None))),
    )
    return dialect.launch(
        functools.partial(kernel, sizes=sizes),
        backend,
        name=kernel.func.__name__,
        rows=rows,
        blocks=sizes.blocks,
        inputs=flat,
        output=(name, jax.ShapeDtypeStruct((size,), dtype)),
    )


def _address_dtype(size: int):
    return jnp.int64 if size >= 2**31 else jnp.int32


def _supported(backend: str, *operands: Array, size: int) -> str:
    """`backend`, or "xla" for what the kernels do not do: complex numbers, and 64-bit addresses in 32-bit JAX."""
    wide = max(size, *(a.size for a in operands)) >= 2**31 and not x64_enabled()
    is_complex = any(jnp.issubdtype(a.dtype, jnp.complexfloating) for a in operands)
    return "xla" if is_complex or wide else backend


def chunks(col_idx, slice_ptr, slice_size):
    """The storage as chunks of one entry for each lane of a slice.

    Returns col_idx as [n_chunks, C]; and per slice its first chunk and its number of chunks, [n_slices].
    """
    cols = col_idx.reshape(-1, slice_size)
    if slice_ptr is None:
        return cols, jnp.zeros(1, jnp.int32), jnp.full(1, cols.shape[0], jnp.int32)
    starts = slice_ptr[:-1] // slice_size
    return cols, starts, slice_ptr[1:] // slice_size - starts


def owners(widths: Array, n_chunks: int) -> Array:
    """The slice that owns each chunk, [n_chunks]."""
    slices = jnp.arange(widths.shape[0], dtype=jnp.int32)
    return jnp.repeat(slices, widths, total_repeat_length=n_chunks)


def in_slices(a: Array, slice_size: int) -> Array:
    """a [n_rows] in storage order as [n_slices, C]; lanes past the last row read 0."""
    return jnp.pad(a, (0, -a.shape[0] % slice_size)).reshape(-1, slice_size)


def _storage_order(y: Array, perm: Array | None, slice_size: int) -> Array:
    return in_slices(y if perm is None else y[perm], slice_size)


def _segment_sum(terms, owner, n: int):
    """Sums of neighbouring chunks. XLA for CUDA crashes on a sorted one of complex64 (JAX 0.11.2), so by real parts."""
    if jnp.issubdtype(terms.dtype, jnp.complexfloating):
        return lax.complex(_segment_sum(terms.real, owner, n), _segment_sum(terms.imag, owner, n))
    return jax.ops.segment_sum(terms, owner, n, indices_are_sorted=True)


def _take(a, idx):
    return a.at[idx].get(mode="promise_in_bounds")


def _gather(x, idx, live):
    """x[idx] where live, else 0, reading nothing for the rest."""
    g = x.at[jnp.minimum(idx, x.shape[0] - 1)].get(mode="promise_in_bounds")
    return jnp.where(live if x.ndim == 1 else live[..., None], g, 0)
