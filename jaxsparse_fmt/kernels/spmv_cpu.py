"""The calls of the Numba kernels (`cpu/*_kernels.py`): which storages they take, and how the work is divided.

A function here returns None where there is no kernel: for some rules, and where Numba fails.

    Slices with any columns but Consecutive       every face: CSR, ELL, HLL, SELL, HDIA, BSR, and formats that use these
    Slices of one row, with `row_idx`             every face: COO
    Jagged                                        every face: JDS, pJDS
    Subwarp, Bisected with Explicit columns        the product: sums of lanes, which XLA folds
    Slices, Starts with Diagonal columns          the product by runs, in the matrix's own order: DIA, SDIA, HDIA
    Tiles                                         every face: CSR5

The sizes of a call and the cores decide into how many pieces a product is cut, which changes no bit of it. Pieces of a
transposed product, of a number that only the sizes decide, add into copies of the result, as many as cost little beside
their entries, and XLA adds the copies in order.
"""

import jax
import jax.numpy as jnp

from jaxsparse_fmt._types import CORES, Array, index_dtype
from jaxsparse_fmt.kernels.backends.tuning import LAUNCH
from jaxsparse_fmt.kernels.cpu import ffi
from jaxsparse_fmt.kernels.cpu.abi import BLOCK_SIZES
from jaxsparse_fmt.kernels.layout.address import Arrays, Bisected, Jagged, Slices, Starts, Subwarp
from jaxsparse_fmt.kernels.layout.columns import Blocked, Delta, Diagonal, Explicit, Rule, is_read
from jaxsparse_fmt.kernels.layout.tiles import Tiles

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
    x = call("transposed", values, y, arrays, rule, (batch, _copies(rule, p), n_cols, p))
    return None if x is None else jnp.sum(x, axis=1)


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
    address, p = rule.address, b.shape[2]
    kind = "coordinates" if "row_idx" in arrays else storage(rule) or "lanes"
    kind = "lanes" if kind == "rows" and "perm" in arrays else kind
    if kind in ("rows", "coordinates") and face == "product" and p > 1:
        face = "columns"
    ptr = arrays.get({"jagged": "col_start", "coordinates": "row_idx"}.get(kind, "slice_ptr"))
    if ptr is None:
        ptr = jnp.array([0, rule.n_stored], index_dtype(rule.n_stored))
    pattern, start, column = arrays.get("pattern"), arrays.get("index_start"), rule.column
    columns = arrays[COLUMNS.get(kind, "col_idx")]
    if isinstance(column, Blocked) and face == "product" and p == 1 and column.rows == column.columns:
        kind = f"{column.rows}x{column.rows}-blocks" if column.rows in BLOCK_SIZES else kind
    index = {"columns": columns, "ptr": ptr, "perm": arrays.get("perm")}
    index |= {"base": arrays.get("col_base"), "start": start, "pattern": pattern if _masked(pattern) == 2 else None}
    blocks = {"block_rows": column.rows, "block_columns": column.columns} if isinstance(column, Blocked) else {}
    return ffi.call(
        f"{face} {kind}",
        (a, b),
        index | {"wide": None if start is None else arrays["col_idx"]},
        shape,
        n_rows=shape[1] if face == "product" else rule.shape[0],
        n_cols=rule.shape[1],
        n_places=rule.n_stored,
        most=-1 if kind == "coordinates" else rule.n_stored,
        p=p,
        lanes=0 if isinstance(address, Jagged) else address.lanes,
        pieces=shape[1] if face == "transposed" else _pieces(rule, p),
        masked=_masked(pattern),
        mixed=int(start is not None),
        **blocks,
    )


def _product_of_diagonals(values: Array, x: Array, arrays: Arrays, rule: Rule) -> Array | None:
    address, offsets, (n_rows, n_cols) = rule.address, arrays["offsets"], rule.shape
    pattern, ptr, (batch, _, p) = arrays.get("pattern"), arrays.get("slice_ptr"), x.shape
    if not isinstance(address, Slices) or "perm" in arrays or (ptr is None and address.lanes < n_rows):
        return None
    lanes, entries = (0, offsets.shape[0] * n_rows) if ptr is None else (address.lanes, rule.n_stored)
    if ptr is None:
        ptr = arrays.get("start")
    if ptr is None:
        ptr = jnp.arange(offsets.shape[0], dtype=index_dtype(rule.n_stored)) * address.lanes
    return ffi.call(
        "product diagonals",
        (values, x),
        {"columns": offsets, "ptr": ptr, "pattern": pattern if _masked(pattern) == 2 else None},
        (batch, n_rows, p),
        n_rows=n_rows,
        n_cols=n_cols,
        n_places=rule.n_stored,
        most=rule.n_stored if lanes else -1,
        p=p,
        lanes=lanes,
        masked=_masked(pattern),
        pieces=_pieces(rule, p, entries),
    )


def of_tiles(face: str, a: Array, b: Array, arrays: Arrays, *, tiles: Tiles) -> Array | None:
    """A face of CSR5, with the operands of `call`; pieces of rows stand behind the rows."""
    (batch, _, p), (n_rows, n_cols), start = b.shape, tiles.shape, arrays.get("index_start")
    if tiles.n_tiles == 0:
        return None
    narrow, wide = arrays.get("marked_delta"), arrays.get("marked_col")
    pieces = _copies(tiles, p) if face == "transposed" else _pieces(tiles, p)
    shapes = {"product": (n_rows, p), "transposed": (pieces, n_cols, p), "outer": (tiles.n_stored,)}
    out = ffi.call(
        f"{face} tiles" if narrow is None else f"{face} narrow-tiles",
        (a, b),
        {
            "columns": wide if narrow is None else narrow,
            "ptr": jnp.zeros(1, jnp.int32) if start is None else start,
            "perm": arrays["lane_row"],
            "base": arrays.get("col_base"),
            "start": start,
            "wide": wide,
        },
        (batch, *shapes[face]),
        n_rows=n_rows,
        n_cols=n_cols,
        p=p,
        lanes=tiles.lanes,
        entries=tiles.entries,
        mixed=int(start is not None),
        pieces=pieces,
    )
    return out if out is None or face != "transposed" else jnp.sum(out, axis=1)


def _masked(pattern: Array | None) -> int:
    """The `masked` of a call: how the kernel tells holes from entries."""
    return 0 if pattern is None else 2 if is_read(pattern) else 1


def _pieces(rule: Rule | Tiles, p: int, entries: int | None = None) -> int:
    """The number of pieces into which a member of the batch is cut, which changes no bit of the result.

    With two pieces a core, a core finds much of them in its own cache at the next product.
    """
    work = ((rule.n_stored if entries is None else entries) + rule.shape[0]) * p
    return max(min(_most_pieces(work), 2 * CORES), min(work // LAUNCH.long_piece, LAUNCH.most_pieces))


def _most_pieces(work: int) -> int:
    return 1 if work < LAUNCH.serial_entries else min(max(work // LAUNCH.piece_entries, 1), LAUNCH.most_pieces)


def _copies(rule: Rule | Tiles, p: int) -> int:
    """The number of pieces of a transposed product, each of which adds into a copy of the result.

    It does not depend on the cores, since it decides the order of the sums.
    """
    most = rule.n_stored // max(LAUNCH.entries_a_copy * rule.shape[1], 1)
    return max(min(most, LAUNCH.most_copies, _most_pieces((rule.n_stored + rule.shape[0]) * p)), 1)
