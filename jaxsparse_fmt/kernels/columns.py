"""The kernels of every format that stores rows by an address rule; `columns_reference.py` says the same in plain jnp.

Where entry j of a row lies says an address rule (`address.py`), which column it has a column rule (`column_rule.py`);
the faces here take any pair of them:

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

from jaxsparse_fmt._types import index_dtype, x64_enabled
from jaxsparse_fmt.kernels import columns_native, dialect
from jaxsparse_fmt.kernels.address import Arrays, Bisected, Slices, Spread, Starts
from jaxsparse_fmt.kernels.column_rule import Delta, Diagonal, alive, unpack_pattern
from jaxsparse_fmt.kernels.columns_reference import outer_reference, product_reference, transposed_reference
from jaxsparse_fmt.kernels.entries import accumulator
from jaxsparse_fmt.kernels.rule import Rule
from jaxsparse_fmt.kernels.runs import Run, Shared

Array = jax.Array


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
    y = columns_native.product(values, x, arrays, rule=rule) if backend == "numba" else None
    if y is not None:
        return y
    if not dialect.is_pallas(backend):
        return product_reference(values, x, arrays, rule=rule)
    dtype = jnp.result_type(*operands)
    kernel = functools.partial(product_kernel, acc=accumulator(dtype), n_rows=out[1])
    y = jax.ShapeDtypeStruct(out, dtype)
    return _launch(kernel, backend, {"values": values, "x": x, **arrays}, ("y", y), rule)[0].reshape(out)


def added(
    y: Array,  # [b, n, p]
    rows: Array,  # [n_rows], rising; those from n on are added to nothing
    values: Array | None,  # [b, n_stored]; None: ones
    x: Array,  # [b, n_cols, p]
    arrays: Arrays,
    *,
    rule: Rule,
    backend: str,
) -> Array:  # [b, n, p]
    """y, and to its `rows` added those of A·x. A kernel does it in place: y is copied if it is read afterwards."""
    backend = supported(backend, y, x, *([] if values is None else [values]))
    if not dialect.is_pallas(backend):
        sums = product(values, x, arrays, rule=rule, backend=backend)
        return y.at[:, rows].add(sums.astype(y.dtype), unique_indices=True, indices_are_sorted=True)
    kernel = functools.partial(product_kernel, acc=accumulator(y.dtype), n_rows=y.shape[1], adds=True)
    inputs = {"values": values, "x": x, "perm": rows, **arrays}
    return _launch(kernel, backend, inputs, ("y", y), rule)[0].reshape(y.shape)


def product_dot(
    values: Array,  # [n_stored]
    x: Array,  # [n_cols]
    w: Array,  # [n_rows]
    arrays: Arrays,
    *,
    rule: Rule,
    backend: str,
) -> tuple[Array, Array]:  # [n_rows], [parts]
    """A·x, and wᵀ·A·x in parts: one for each warp of lanes, or their sum where they are many."""
    dtype, warps = jnp.result_type(values, x), -(-rule.address.width // dialect.LAUNCH.warp)
    kernel = functools.partial(product_kernel, acc=accumulator(dtype), n_rows=rule.shape[0])
    inputs = {"values": values[None], "x": x[None, :, None], "w": w, **arrays}
    y = jax.ShapeDtypeStruct((rule.shape[0],), dtype)
    y, sums = _launch(kernel, backend, inputs, ("y", y), rule, sums=warps)
    return y, sums if parts(rule) == warps else jnp.sum(sums)[None]


def parts(rule: Rule) -> int:
    """The numbers in which `product_dot` leaves the sum."""
    warps = -(-rule.address.width // dialect.LAUNCH.warp)
    return warps if warps <= dialect.LAUNCH.most_parts else 1


def product_kernel(
    d,
    *,
    x,  # [b·n_cols·p]
    y,  # [b·n_rows·p], out, with `n_rows` as given below; where `adds`, what it held is a summand
    values=None,  # [b·n_stored]
    w=None,  # [n_rows]
    sums_of_warps=None,  # [width / 32], out: of wᵀ·y
    perm=None,  # [n_rows]
    pattern=None,  # [n_stored / 8] uint8; what is of another dtype is not read
    acc,
    n_rows,
    adds=False,
    sizes: _Sizes,
    **arrays,
):
    tile, column_block, batch = _position(d.program_id(), sizes)
    d = Shared(d, sizes.lanes_a_row) if sizes.lanes_a_row > 1 else d
    batch, columns, n_cols = batch.astype(sizes.address_dtype), _columns(d, column_block, sizes), sizes.rule.shape[1]
    run = sizes.run
    first: Any = None
    totals: Any = None
    for walk in _walks(d, arrays, perm, tile, sizes):

        def trip(t, sums, walk=walk):
            # All loads of A first: they are in flight together.
            steps = _steps(walk, t, sizes)
            cols = sizes.rule.column.in_kernel(d, arrays, walk, steps, n_cols)
            if sizes.rule.column.implied:  # then places without a column need not be read, nor be there
                steps = [(e, at, exists) for (e, at, _), (_, exists) in zip(steps, cols, strict=True)]
            vals = [_load(d, values, batch * sizes.rule.n_stored + at, live, sizes) for _, at, live in steps]
            for (_, at, live), (c, exists), v in zip(steps, cols, vals, strict=True):
                xs = run.load(d, x, (batch * n_cols + c) * sizes.p, columns, exists)
                terms = [xq.astype(acc) if v is None else run.beside(v.astype(acc)) * xq.astype(acc) for xq in xs]
                if pattern is not None:
                    entry = run.beside(alive(d, pattern, at, live, v))
                    terms = [jnp.where(entry, term, jnp.zeros_like(term)) for term in terms]
                sums = tuple(s + term for s, term in zip(sums, terms, strict=True))
            return sums

        zero = tuple(run.along(d.full(0, acc)) for _ in columns)
        sums = lax.fori_loop(jnp.int32(0), _trips(walk, sizes), trip, zero)
        if walk.threads > 1:
            sums = [d.sum_threads(s, walk.threads, walk.stride) for s in sums]
        if first is None:
            first, totals = walk, sums
        else:
            keep = run.beside(walk.keep)
            totals = [t + jnp.where(keep, s, jnp.zeros_like(s)) for t, s in zip(totals, sums, strict=True)]
    base = (batch * n_rows + first.matrix_row) * sizes.p
    live = first.row < sizes.rule.shape[0]
    live = live if first.keep is None else live & first.keep
    if adds:
        live = live & (first.matrix_row < n_rows)
        before = run.load(d, y, base, columns, live)
        totals = [b.astype(acc) + total for b, total in zip(before, totals, strict=True)]
    for (q, inside), total in zip(columns, totals, strict=True):
        d.store(y, run.places(base + q), total, run.beside(live & inside))
    if w is not None:
        lane, warp = tile * jnp.int32(sizes.rows) + d.lanes(), jnp.int32(dialect.LAUNCH.warp)
        terms = jnp.where(live, d.load(w, base, live, 0) * totals[0], jnp.zeros_like(totals[0]))
        leads = (lax.rem(lane, warp) == 0) & (lane < sizes.rule.address.width)
        d.store(sums_of_warps, lax.div(lane, warp), d.sum_threads(terms, dialect.LAUNCH.warp, 1), leads)


# ----------------------------------------------------------------------------------------------- transposed product


def transposed(
    values: Array,  # [b, n_stored]
    y: Array,  # [b, n_rows, p]
    arrays: Arrays,
    *,
    rule: Rule,
    backend: str,
) -> Array:  # [b, n_cols, p]
    """Aᵀ·y, a kernel on CPUs only."""
    x = columns_native.transposed(values, y, arrays, rule=rule) if backend == "numba" else None
    return transposed_reference(values, y, arrays, rule=rule) if x is None else x


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
    v = columns_native.outer(y, x, arrays, rule=rule) if backend == "numba" else None
    if v is not None:
        return v
    if not dialect.is_pallas(backend):
        return outer_reference(y, x, arrays, rule=rule)
    dtype = jnp.result_type(y, x)
    kernel = functools.partial(outer_kernel, acc=accumulator(dtype))
    inputs = {"y": y, "x": x, **{k: a for k, a in arrays.items() if k != "pattern"}}
    out = jax.ShapeDtypeStruct(out, dtype)
    v = _launch(kernel, backend, inputs, ("values", out), rule, column_blocks=1)[0].reshape(out.shape)
    if "pattern" in arrays:
        return jnp.where(unpack_pattern(arrays["pattern"], rule.n_stored), v, 0)
    # Lanes that stop at the end of their row leave the padding behind it unwritten.
    return jnp.where(rule.col_idx(arrays) < rule.shape[1], v, 0) if "row_lengths" in arrays else v


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
    batch, (n_rows, n_cols) = batch.astype(sizes.address_dtype), sizes.rule.shape
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


# ------------------------------------------------------------------------------------------- what the kernels share


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Static sizes of one launch. Its blocks are tiles of lanes, for each block of columns, for each of the batch."""

    rule: Rule
    p: int
    rows: int
    tiles: int
    lanes_a_row: int
    block_columns: int
    run: Run
    column_blocks: int
    blocks: int
    unroll: int
    address_dtype: Any


def _walks(d, arrays, perm, tile, sizes: _Sizes):
    for walk in sizes.rule.address.walks(d, arrays, tile, sizes.rule.n_stored, sizes.address_dtype):
        inside = walk.row < sizes.rule.shape[0]
        walk.matrix_row = walk.row if perm is None else d.load(perm, walk.row, inside, 0)
        yield walk


def _steps(walk, t, sizes: _Sizes):
    """The entries of trip t: number, address, and where there is one."""
    return [(e, *walk.entry(e)) for e in (t * sizes.unroll + u for u in range(sizes.unroll))]


def _trips(walk, sizes: _Sizes):
    return lax.div(walk.longest + jnp.int32(sizes.unroll - 1), jnp.int32(sizes.unroll))


def _load(d, values, at, live, sizes: _Sizes):
    once = not isinstance(sizes.rule.address, Starts)
    return None if values is None else d.load(values, at, live, 0, once=once)


def _position(block, sizes: _Sizes):
    """The tile, the block of columns and the member of the batch that a block works on."""
    rest, zero = jnp.int32(0), jnp.int32(0)
    if sizes.blocks > sizes.tiles:
        block, rest = lax.rem(block, jnp.int32(sizes.tiles)), lax.div(block, jnp.int32(sizes.tiles))
    if sizes.column_blocks == 1:
        return block, zero, rest
    return block, lax.rem(rest, jnp.int32(sizes.column_blocks)), lax.div(rest, jnp.int32(sizes.column_blocks))


def _columns(d, column_block, sizes: _Sizes):
    """The right-hand sides of a lane, as `Run.columns` gives them."""
    first = column_block * sizes.block_columns
    if sizes.lanes_a_row > 1:
        first = first + d.column() * jnp.int32(sizes.run.length)
    return sizes.run.columns(first, sizes.block_columns, sizes.p, sizes.lanes_a_row)


def _launch(kernel, backend, inputs, output, rule: Rule, column_blocks=None, sums=0):
    """Flattens every array, chooses the blocks and the width of addresses, and runs the kernel.

    Args:
      output: its name, and its shape and dtype, or the array that is updated.
      sums: how many partial sums it leaves too.
    """
    name, out = output
    flat = {k: a.reshape(-1) for k, a in inputs.items() if a is not None}
    (batch, _, p), unit = inputs["x"].shape, rule.column.unit
    alone = column_blocks is None and p == 1
    load = load_beside_values(rule, "perm" in inputs, jnp.dtype(out.dtype).itemsize <= 4, alone)
    block = dialect.block(backend, load, getattr(rule.address, "lanes", 0))
    run = Run.of(backend, p if column_blocks is None else 1, inputs["x"].dtype)
    lanes_a_row, block_columns = _columns_of_block(rule, p, run) if column_blocks is None else (1, 1)
    if lanes_a_row > 1:
        block = dialect.columns_block(backend, load, lanes_a_row)
    elif block_columns > 1 and load in ("shared", "very long shared"):
        block = dialect.block(backend, "columns", 0)
    tiles = -(-rule.address.width * lanes_a_row // block.rows)
    column_blocks = column_blocks or -(-p // block_columns)
    sizes = _Sizes(
        rule=rule,
        p=p,
        rows=block.rows,
        tiles=tiles,
        lanes_a_row=lanes_a_row,
        block_columns=block_columns,
        run=run,
        column_blocks=column_blocks,
        blocks=tiles * column_blocks * batch,
        unroll=unit * max(block.unroll // unit, 1),
        address_dtype=index_dtype(max(out.size, *(a.size for a in flat.values()))),
    )
    whole = isinstance(out, jax.Array)
    outputs: dict[str, Any] = {name: out.reshape(-1) if whole else jax.ShapeDtypeStruct((out.size,), out.dtype)}
    if sums:
        outputs["sums_of_warps"] = jax.ShapeDtypeStruct((sums,), out.dtype)
    return dialect.launch(
        functools.partial(kernel, sizes=sizes),
        backend,
        name=kernel.func.__name__,
        block=block,
        blocks=sizes.blocks,
        inputs=flat,
        outputs=outputs,
    )


def _columns_of_block(rule: Rule, p: int, run: Run) -> tuple[int, int]:
    """Lanes that share the right-hand sides of a row, and how many right-hand sides they take, in whole runs.

    Each lane has some in registers, for an index and a value read once. Of many it would read x a sector at a time, so
    neighbouring lanes take some each, and read whole sectors.
    """
    if isinstance(rule.address, Spread | Bisected) or getattr(rule.address, "threads", 1) > 1:
        return 1, min(p, dialect.LAUNCH.columns_alone)
    most = dialect.LAUNCH.columns_a_lane
    lanes = -(-p // most)
    lanes = min(1 << (lanes - 1).bit_length(), dialect.LAUNCH.lanes_a_row)
    runs = -(-p // (lanes * run.length))
    return lanes, lanes * min(runs * run.length, most)


def load_beside_values(rule: Rule, permuted: bool, narrow: bool, alone: bool) -> str:
    """What a lane has to do beside its values: a key of `dialect.LAUNCH.loads`.

    Args:
      permuted: sums go to their rows through a permutation.
      narrow: they have 4 bytes or fewer.
      alone: a lane has one of them.
    """
    full = "permuted" if permuted and narrow else "full"
    if not isinstance(rule.address, Slices):
        return full
    if rule.address.lanes >= rule.shape[0]:
        whole = "narrow whole diagonals" if narrow else "whole diagonals"
        return whole if isinstance(rule.column, Diagonal) and alone else full
    mean = rule.n_stored / rule.shape[0]
    if rule.address.threads > 1:
        return "very long shared" if mean >= dialect.LAUNCH.very_long_rows else "shared"
    long_rows = mean >= dialect.LAUNCH.long_rows
    if isinstance(rule.column, Delta):
        very_short = mean < dialect.LAUNCH.very_short_rows
        return "long deltas" if long_rows else "very short deltas" if very_short else "deltas"
    return "diagonals" if isinstance(rule.column, Diagonal) and not long_rows else full


def supported(backend: str, *operands: Array, size: int = 0) -> str:
    """`backend`, or "xla" for what the kernels do not do: complex numbers, and 64-bit addresses in 32-bit JAX."""
    if backend == "numba":  # decides for itself
        return backend
    wide = max(size, *(a.size for a in operands)) >= 2**31 and not x64_enabled()
    is_complex = any(jnp.issubdtype(a.dtype, jnp.complexfloating) for a in operands)
    return "xla" if is_complex or wide else backend
