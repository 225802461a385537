"""The calls of the Numba kernels (`cpu/*_kernels.py`): which storages they take, and how the work is divided.

A function here returns None where there is no kernel: for some rules, and where Numba fails.

    Slices with any columns but Consecutive       every face: CSR, ELL, HLL, SELL, HDIA, BSR, and formats that use these
    Jagged                                        every face: JDS, pJDS
    Subwarp, Bisected with Explicit columns        the product: sums of lanes, which XLA folds
    Slices, Starts with Diagonal columns          the product, of one slice: DIA, SDIA and their transposed
    Tiles                                         the product: CSR5

The sizes of a call alone decide into how many pieces it is cut, so results are the same to the last bit with any number
of threads. Below `LAUNCH.serial_entries` a call is one piece. Pieces of a transposed product add into copies of the
result, as many as cost little beside their entries, and XLA adds the copies in order.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxsparse_fmt._types import index_dtype
from jaxsparse_fmt.kernels.backends.tuning import LAUNCH
from jaxsparse_fmt.kernels.cpu import ffi
from jaxsparse_fmt.kernels.cpu.abi import CHUNKS
from jaxsparse_fmt.kernels.layout.address import Arrays, Bisected, Jagged, Slices, Starts, Subwarp
from jaxsparse_fmt.kernels.layout.columns import Blocked, Delta, Diagonal, Explicit, is_read
from jaxsparse_fmt.kernels.layout.rule import Rule
from jaxsparse_fmt.kernels.layout.tiles import Tiles

Array = jax.Array

COLUMNS = {"deltas": "delta", "offsets": "offsets", "blocks": "block_col"}  # else "col_idx"


def product(values: Array | None, x: Array, arrays: Arrays, *, rule: Rule) -> Array | None:  # [b, n_rows, p]
    """A·x, with the arguments of `spmv.product`."""
    address, (batch, _, p) = rule.address, x.shape
    if values is None:
        return None
    if isinstance(rule.column, Diagonal) and (y := _product_of_diagonals(values, x, arrays, rule)) is not None:
        return y
    if storage(rule):
        return call("product", values, x, arrays, rule, (batch, rule.shape[0], p))
    if rule.column != Explicit() or not isinstance(address, Subwarp | Bisected):
        return None
    lanes = address.bounds(jnp, arrays, rule.n_stored)[0].shape[0] * address.lanes
    in_order = {k: a for k, a in arrays.items() if k != "perm"}
    y = call("product", values, x, in_order, rule, (batch, lanes, p))
    if y is None:
        return None
    y = jax.vmap(address.fold)(y.reshape(batch, -1, address.lanes, p))
    return y.at[:, arrays["perm"]].set(y, unique_indices=True) if "perm" in arrays else y


def transposed(values: Array, y: Array, arrays: Arrays, *, rule: Rule) -> Array | None:  # [b, n_cols, p]
    """Aᵀ·y, with the arguments of `spmv.transposed`."""
    if not storage(rule):
        return None
    (batch, _, p), n_cols = y.shape, rule.shape[1]
    copies = min(rule.n_stored // max(LAUNCH.entries_a_copy * n_cols, 1), LAUNCH.most_copies, _pieces(rule, p))
    x = call("transposed", values, y, arrays, rule, (batch, max(copies, 1), n_cols, p))
    return None if x is None else x[:, 0] if copies <= 1 else jnp.sum(x, axis=1)


def storage(rule: Rule) -> str | None:
    """The storage whose kernels take every face: "rows", "lanes" or one of `abi.CHUNKS`; None if there are none."""
    address = rule.address
    if isinstance(address, Jagged):
        return "jagged" if rule.column == Explicit() else None
    if not isinstance(address, Slices) or isinstance(address, Starts):
        return None
    if rule.column == Explicit():
        return "rows" if address.lanes == 1 else "lanes"
    return {Delta: "deltas", Diagonal: "offsets", Blocked: "blocks"}.get(type(rule.column))


def call(face: str, a: Array, b: Array, arrays: Arrays, rule: Rule, shape: tuple[int, ...]) -> Array | None:
    """The kernel of a face: "product", "transposed" or "outer" of operands a and b.

    Args:
      shape: of the result; a transposed product has one copy of it for each piece, [b, copies, n_cols, p].
    """
    address, p, kind = rule.address, b.shape[2], storage(rule) or "lanes"
    ptr = arrays.get("col_start" if kind == "jagged" else "slice_ptr")
    if ptr is None:
        ptr = jnp.array([0, rule.n_stored], index_dtype(rule.n_stored))
    pieces = shape[1] if face == "transposed" else _pieces(rule, p)
    columns = arrays[COLUMNS.get(kind, "col_idx")]
    index, column, more = (columns, ptr, arrays.get("perm")), rule.column, {}
    if kind in CHUNKS:
        pattern, start = arrays.get("pattern"), arrays.get("index_start")
        more = {"masked": _masked(pattern), "mixed": int(start is not None)}
        if isinstance(column, Blocked):
            more |= {"block_rows": column.rows, "block_columns": column.columns}
        wide = None if start is None else arrays["col_idx"]
        index += (pattern if more["masked"] == 2 else None, arrays.get("col_base"), start, wide)
    return ffi.call(
        f"{face} {kind}",
        (a, b),
        index,
        shape,
        n_out=math.prod(shape[2 if face == "transposed" else 1 :]),
        n_rows=shape[1] if face == "product" else rule.shape[0],
        n_cols=rule.shape[1],
        p=p,
        lanes=0 if isinstance(address, Jagged) else address.lanes,
        pieces=pieces * shape[0],
        **more,
    )


def _product_of_diagonals(values: Array, x: Array, arrays: Arrays, rule: Rule) -> Array | None:
    address, offsets, (n_rows, n_cols) = rule.address, arrays["offsets"], rule.shape
    if not isinstance(address, Slices) or address.lanes < n_rows or "slice_ptr" in arrays or "perm" in arrays:
        return None
    pattern, start, (batch, _, p) = arrays.get("pattern"), arrays.get("start"), x.shape
    masked = _masked(pattern)
    if start is None:
        start = jnp.arange(offsets.shape[0], dtype=index_dtype(rule.n_stored)) * address.lanes
    return ffi.call(
        "product diagonals",
        (values, x),
        (offsets, start, pattern if masked == 2 else None),
        (batch, n_rows, p),
        n_out=n_rows * p,
        n_rows=n_rows,
        n_cols=n_cols,
        p=p,
        masked=masked,
        pieces=_pieces(rule, p, offsets.shape[0] * n_rows) * batch,
    )


def product_of_tiles(values: Array, x: Array, arrays: Arrays, *, tiles: Tiles) -> Array | None:  # [b, n_rows, p]
    """A·x of CSR5, pieces behind the rows."""
    (batch, _, p), n_rows, narrow, start = x.shape, tiles.shape[0], "marked_delta" in arrays, arrays.get("index_start")
    if tiles.n_tiles == 0:
        return None
    wide = None if start is None else arrays["marked_col"]
    return ffi.call(
        "product narrow-tiles" if narrow else "product tiles",
        (values, x),
        (
            arrays["marked_delta" if narrow else "marked_col"],
            jnp.zeros(1, jnp.int32) if start is None else start,
            arrays["lane_row"],
            arrays.get("col_base"),
            wide,
        ),
        (batch, n_rows, p),
        n_out=n_rows * p,
        n_rows=n_rows,
        n_cols=tiles.shape[1],
        p=p,
        lanes=tiles.lanes,
        entries=tiles.entries,
        mixed=int(start is not None),
        pieces=_pieces(tiles, p) * batch,
    )


def _masked(pattern: Array | None) -> int:
    """The `masked` of a call: how the kernel tells holes from entries."""
    return 0 if pattern is None else 2 if is_read(pattern) else 1


def _pieces(rule: Rule | Tiles, p: int, entries: int | None = None) -> int:
    """The number of pieces into which a member of the batch is cut."""
    work = ((rule.n_stored if entries is None else entries) + rule.shape[0]) * p
    return 1 if work < LAUNCH.serial_entries else min(max(work // LAUNCH.piece_entries, 1), LAUNCH.most_pieces)
