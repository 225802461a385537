"""The calls of the Numba kernels for rows, slices, diagonals, triangles, bands and lanes, and how work is divided.

A product is cut into pieces, whose number depends on its sizes and the cores and changes no bit. The pieces of a
transposed product, whose number depends on the sizes alone, add into copies of the result, and XLA adds the copies in
order; there are so few that they take little time compared with the entries. All functions return None if Numba fails.
"""

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import CORES, Array
from jaxsparse_fmt.kernels.backends.tuning import LAUNCH
from jaxsparse_fmt.kernels.cpu import ffi
from jaxsparse_fmt.kernels.cpu.abi import LANES


def of_rows(
    face: str,  # "product", "transposed" or "outer"
    a: Array,  # the operands of the face, as in `spmv.py`
    b: Array,
    row_ptr: Array,  # [n_rows + 1]; of "coordinates" the row of each place [n_stored], rising, n_rows in padding
    col_idx: Array,  # [n_stored]
    shape: tuple[int, int],
    kind: str = "rows",
) -> Array | None:
    """A face of a matrix in CSR ("rows") or COO ("coordinates")."""
    (batch, _, p), (n_rows, n_cols), n_stored = b.shape, shape, col_idx.shape[0]
    work = (n_stored + n_rows) * p
    pieces = _copies(work, n_stored, n_cols) if face == "transposed" else _pieces(work)
    result = {"product": (n_rows, p), "transposed": (pieces, n_cols, p), "outer": (n_stored,)}[face]
    out = ffi.call(
        "columns rows" if face == "product" and p > 1 and kind == "rows" else f"{face} {kind}",
        *(a, b, col_idx, row_ptr, col_idx),
        (batch, *result),
        n_rows=n_rows,
        n_cols=n_cols,
        n_places=n_stored,
        most=n_stored if kind == "rows" else -1,
        p=p,
        pieces=pieces,
    )
    return jnp.sum(out, axis=1) if out is not None and face == "transposed" else out


def outer_of_slices(
    y: Array,  # [b, n_rows, p], in the order of storage
    x: Array,  # [b, n_cols, p]
    slice_ptr: Array,  # [n_slices + 1]
    col_idx: Array,  # [n_stored], n_cols or more in padding
    slice_size: int,
) -> Array | None:  # [b, n_stored]
    """The outer product of a matrix in slices."""
    (batch, n_rows, p), n_cols, n_stored = y.shape, x.shape[1], col_idx.shape[0]
    return ffi.call(
        "outer slices",
        *(y, x, col_idx, slice_ptr, col_idx),
        (batch, n_stored),
        n_rows=n_rows,
        n_cols=n_cols,
        n_places=n_stored,
        most=n_stored,
        p=p,
        masked=slice_size,
        pieces=_pieces(n_stored * p),
    )


def of_diagonals(
    face: str,  # "product" or "outer"
    a: Array,  # the operands of the face, as in `spmv.py`
    b: Array,
    offsets: Array,  # [diagonals]
    start: Array,  # [diagonals]: entry d of row r lies at start[d] + r
    pattern: Array | None,  # as in `columns.py`, and whether its bits are read
    reads_pattern: bool,
    shape: tuple[int, int],
) -> Array | None:
    """A face of a matrix in whole diagonals."""
    (batch, _, p), (n_rows, n_cols), n_stored = b.shape, shape, offsets.shape[0] * max(shape[0], 1)
    masked = 0 if pattern is None else 2 if reads_pattern or face == "outer" else 1
    return ffi.call(
        f"{face} diagonals",
        *(a, b, offsets, start, offsets if pattern is None else pattern),
        (batch, n_rows, p) if face == "product" else (batch, n_stored),
        n_rows=n_rows,
        n_cols=n_cols,
        n_places=a.shape[1] if face == "product" else n_stored,
        p=p,
        masked=masked,
        pieces=_pieces((offsets.shape[0] + 1) * n_rows * p),
    )


def index_of_diagonals(offsets: Array, pattern: Array | None, shape: tuple[int, int], nnz: int) -> Array | None:
    """The entry at each place of whole diagonals, nnz in padding, and the place of each entry: [n_stored + nnz]."""
    n_stored, unread = offsets.shape[0] * shape[0], jnp.zeros((1, 1), jnp.float32)
    if n_stored >= 2**31:
        return None
    found = ffi.call(
        "index diagonals",
        *(unread, unread, offsets, offsets, offsets if pattern is None else pattern),
        (1, n_stored + nnz),
        n_rows=shape[0],
        n_cols=shape[1],
        n_places=n_stored,
        p=nnz,
        masked=0 if pattern is None else 2,
        pieces=1,
    )
    return None if found is None else found[0]


def taken(a: Array, index: Array) -> Array | None:
    """a [b, n] at the places `index` [k], 0 where they are past the end: [b, k]."""
    if index.dtype != jnp.int32:
        return None
    k, unread = index.shape[0], jnp.zeros((a.shape[0], 1), a.dtype)
    sizes = {"n_cols": a.shape[1], "n_places": k, "pieces": _pieces(k)}
    return ffi.call("taken places", a, unread, index, index, index, (a.shape[0], k), **sizes)


def of_triangle(
    values: Array,  # [b, nnz]
    r: Array,  # [b, n, p]
    row_ptr: Array,  # [n + 1]
    col_idx: Array,  # [nnz]
    upper: bool,
    is_transposed: bool,
) -> Array | None:
    """y of (I + N)·y = r, or of (I + N)ᵀ·y = r, for a strictly triangular N in CSR."""
    (_, n, p), nnz = r.shape, col_idx.shape[0]
    sizes = {"n_rows": n, "n_cols": n, "n_places": nnz, "most": nnz, "p": p, "pieces": 1}
    masked = int(upper) + 2 * int(is_transposed)
    return ffi.call("solved rows", values, r, col_idx, row_ptr, col_idx, r.shape, masked=masked, **sizes)


def of_bands(
    bands: Array,  # [systems, lower + upper + 1, n, m, m]
    b: Array,  # [systems, n·m, p]
    lower: int,
    upper: int,
    is_transposed: bool,
) -> Array | None:
    """x of A·x = b for systems whose block (I, J) of A is bands[:, upper + I - J, J], in the dtype of both.

    With `is_transposed` the bands are those of Aᵀ; lower and upper are A's.
    """
    (systems, _, n, m, _), size = bands.shape, b.size
    width = (2 * lower + upper + 1) * m
    # One for each core, since each has memory for the rows of a system.
    pieces = min(CORES, systems) if systems * n * m * width >= LAUNCH.serial_entries else 1
    geometry = jnp.array([lower, upper, m], jnp.int32)
    shape = (1, size + pieces * n * m * (width + 1))
    sizes = {"n_rows": n, "n_cols": systems, "p": b.shape[2], "pieces": pieces, "masked": int(is_transposed)}
    out = ffi.call("solved bands", bands[None], b[None], geometry, geometry, geometry, shape, **sizes)
    return None if out is None else out[0, :size].reshape(b.shape)


def of_lanes(
    a: Array,  # [tiles, LANES, nnz], values; or [tiles, places, LANES], factors
    r: Array | None,  # [tiles, n, p, LANES]; None: to factor
    indices: np.ndarray,  # those of the kernel
    start: np.ndarray,  # [n + 1]
    n: int,
    n_places: int,  # nnz, or the entries of L
    places: int,
    is_transposed: bool = False,
) -> Array | None:
    """Factors of the systems of each tile, or solves by them (`core/lanes.py`)."""
    kind, p = ("factored lanes", 1) if r is None else ("solved lanes", r.shape[2])
    shape = (a.shape[0], places, LANES) if r is None else r.shape
    b = a[:, :1, :1] if r is None else r
    sizes = {"n_rows": n, "n_places": n_places, "p": p, "masked": int(is_transposed), "pieces": 1}
    return ffi.call(kind, a, b, jnp.asarray(indices), jnp.asarray(start), jnp.asarray(start), shape, **sizes)


def _pieces(work: int) -> int:
    """The number of pieces of a member of the batch, which changes no bit of the result.

    With two pieces per core, a core finds much of them in its cache at the next product.
    """
    return max(min(_most_pieces(work), 2 * CORES), min(work // LAUNCH.long_piece, LAUNCH.most_pieces))


def _most_pieces(work: int) -> int:
    return 1 if work < LAUNCH.serial_entries else min(max(work // LAUNCH.piece_entries, 1), LAUNCH.most_pieces)


def _copies(work: int, n_stored: int, n_cols: int) -> int:
    """The number of pieces of a transposed product, each of which adds into a copy of the result.

    It does not depend on the cores, since it decides the order of the sums.
    """
    most = n_stored // max(LAUNCH.entries_a_copy * n_cols, 1)
    return max(min(most, LAUNCH.most_copies, _most_pieces(work)), 1)
