"""Column rules, which decode the column of the entry at an address, from a 32-bit or 16-bit index or from none.

    Explicit     col_idx[a]                                        4 bytes an entry
    Delta        col_base[chunk] + delta[a], 65535 in padding      2 bytes, 16-bit
    Diagonal     row + offsets[chunk]                              none: every chunk is a piece of a diagonal
    Blocked      block_col[block]·c + j % c                        4 / (r·c) bytes
    Consecutive  a                                                 none: for sums of neighbours

`in_kernel` decodes in Pallas kernels, the same code in Triton, Mosaic GPU and the interpreter; `of_chunks` decodes in
NumPy or jax.numpy. A rule is static and hashable. CSR5 has 16-bit columns of its own, which `tiles.py` decodes.

A column from n_cols on means padding. Diagonal and Blocked also store padding at valid columns; then the bits of
`pattern` (uint8, little-endian, one per place) separate entries from padding. Kernels read the bits only if some entry
is zero (`reads_pattern`). Otherwise a kernel takes every value of zero for padding, even an entry that later becomes
zero: by `with_data`, or in `astype` by underflow.
"""

import dataclasses
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt.kernels.layout.address import Address, Arrays, Jagged, Walk, namespace, take

PADDING = 0xFFFF  # the delta of a padded place


@dataclasses.dataclass(frozen=True)
class Explicit:
    """A 32-bit index: `col_idx`, n_cols in padding. col_idx[0] belongs to the address `offset`."""

    offset: int = 0
    unit = 1  # entries with one index
    implied = False  # whether the kernel computes the column without loading an index per entry

    def in_kernel(self, d: Any, arrays: Arrays, walk: Walk, entries: list, n_cols: int) -> list:
        """For each of `entries`, (e, address, live): the column [lanes], and whether there is one [lanes]."""
        col_idx = arrays["col_idx"]
        columns = [d.load(col_idx, address - self.offset, live, n_cols, once=True) for _, address, live in entries]
        return [(c, c < n_cols) for c in columns]

    def of_chunks(self, arrays: Arrays, lanes: int, chunk: Any, owner: Any, shape: tuple[int, int]) -> Any:
        """Columns [k, lanes] of k chunks, of which `owner` are the slices."""
        return take(arrays["col_idx"].reshape(-1, lanes), chunk)


@dataclasses.dataclass(frozen=True)
class Delta:
    """A 16-bit index: `delta` uint16 above the chunk's `col_base` [n_chunks] int32."""

    unit = 1
    implied = False

    def in_kernel(self, d: Any, arrays: Arrays, walk: Walk, entries: list, n_cols: int) -> list:
        last = jnp.int32(arrays["col_base"].shape[0] - 1)
        bases = [_per_slice(d, arrays["col_base"], jnp.minimum(walk.chunk(e), last), live) for e, _, live in entries]
        delta = arrays["delta"]
        deltas = [d.load(delta, address, live, PADDING, once=True).astype(jnp.int32) for _, address, live in entries]
        return [(b + u, u != PADDING) for b, u in zip(bases, deltas, strict=True)]

    def of_chunks(self, arrays: Arrays, lanes: int, chunk: Any, owner: Any, shape: tuple[int, int]) -> Any:
        u = take(arrays["delta"].reshape(-1, lanes), chunk).astype(np.int32)
        return namespace(chunk).where(u == PADDING, shape[1], take(arrays["col_base"], chunk)[:, None] + u)


@dataclasses.dataclass(frozen=True)
class Diagonal:
    """`offsets` [n_chunks] int32, column minus row."""

    reads_pattern: bool = False
    unit = 1
    implied = True

    def index_of(self, row: Any, col: Any) -> Any:
        """The diagonal of an entry."""
        return col - row

    def in_kernel(self, d: Any, arrays: Arrays, walk: Walk, entries: list, n_cols: int) -> list:
        last = jnp.int32(arrays["offsets"].shape[0] - 1)
        columns = []
        for e, _, live in entries:
            c = walk.matrix_row + _per_slice(d, arrays["offsets"], jnp.minimum(walk.chunk(e), last), live)
            columns.append((c, live & (c >= 0) & (c < n_cols)))
        return columns

    def of_chunks(self, arrays: Arrays, lanes: int, chunk: Any, owner: Any, shape: tuple[int, int]) -> Any:
        xp = namespace(chunk)
        row = owner[:, None] * lanes + xp.arange(lanes, dtype=np.int32)
        if "perm" in arrays:
            row = take(arrays["perm"], xp.minimum(row, shape[0] - 1))
        c = row + take(arrays["offsets"], chunk)[:, None]
        return xp.where((c >= 0) & (c < shape[1]), c, shape[1])


@dataclasses.dataclass(frozen=True)
class Blocked:
    """`block_col` [n_blocks] int32 of blocks of `rows` × `columns`, from ⌈n_cols / columns⌉ on in padding.

    C lanes hold C / rows blocks side by side, one column of each in a chunk.
    """

    rows: int
    columns: int
    reads_pattern: bool = False
    implied = False

    @property
    def unit(self) -> int:
        return self.columns

    def index_of(self, row: Any, col: Any) -> Any:
        """The column, in blocks, of an entry."""
        return col // self.columns

    def in_kernel(self, d: Any, arrays: Arrays, walk: Walk, entries: list, n_cols: int) -> list:
        lane = lax.div(walk.lane, d.full(self.rows, jnp.int32))
        across = walk.step // self.rows
        columns, block = [], jnp.int32(0)
        for i, (e, _, live) in enumerate(entries):
            if i % self.columns == 0:
                k = lax.div(walk.chunk(e), _like(walk.chunk(e), self.columns, d))
                index = k.astype(walk.base.dtype) * across + lane
                block = d.load(arrays["block_col"], index, live, -(-n_cols // self.columns))
            c = block * self.columns + i % self.columns
            columns.append((c, c < n_cols))
        return columns

    def of_chunks(self, arrays: Arrays, lanes: int, chunk: Any, owner: Any, shape: tuple[int, int]) -> Any:
        blocks = take(arrays["block_col"].reshape(-1, lanes // self.rows), chunk // self.columns)
        c = blocks * self.columns + (chunk % self.columns)[:, None]
        xp = namespace(chunk)
        return xp.minimum(xp.repeat(c, self.rows, axis=1), shape[1])


@dataclasses.dataclass(frozen=True)
class Consecutive:
    """The column is the address."""

    unit = 1
    implied = True

    def in_kernel(self, d: Any, arrays: Arrays, walk: Walk, entries: list, n_cols: int) -> list:
        return [(address.astype(jnp.int32), live & (address < n_cols)) for _, address, live in entries]

    def of_chunks(self, arrays: Arrays, lanes: int, chunk: Any, owner: Any, shape: tuple[int, int]) -> Any:
        return chunk[:, None] * lanes + jnp.arange(lanes)


ColumnRule: TypeAlias = Explicit | Delta | Diagonal | Blocked | Consecutive


@dataclasses.dataclass(frozen=True)
class Rule:
    """A storage rule: static and hashable, so that matrices of one rule share compiled code."""

    shape: tuple[int, int]
    n_stored: int
    address: Address
    column: ColumnRule

    def col_idx(self, arrays: Arrays) -> jax.Array:
        """The column of every stored place [n_stored]; n_cols or more in padding that has none."""
        if isinstance(self.address, Jagged) or isinstance(self.column, Explicit):
            return arrays["col_idx"]
        xp = _namespace(arrays)
        owner, _ = self.address.owners(xp, arrays, self.n_stored)
        chunk = xp.arange(owner.shape[0], dtype=index_dtype(owner.shape[0]))
        return self.column.of_chunks(arrays, self.address.lanes, chunk, owner, self.shape).reshape(-1)

    def places(self, arrays: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Row in the matrix, column (n_cols in padding) and j in the row, of every stored place: [n_stored] each.

        In NumPy if the arrays are NumPy's.
        """
        xp, (n_rows, n_cols) = _namespace(arrays), self.shape
        row, j = self.address.slots(xp, arrays, self.n_stored)
        col_idx = self.col_idx(arrays)
        live = (row < n_rows) & (col_idx < n_cols)
        if "pattern" in arrays:
            live &= unpack_pattern(arrays["pattern"], self.n_stored)
        row = xp.minimum(row, max(n_rows - 1, 0))
        return row if "perm" not in arrays else take(arrays["perm"], row), xp.where(live, col_idx, n_cols), j


def _namespace(arrays: Arrays) -> Any:
    return np if arrays and all(isinstance(a, np.ndarray) for a in arrays.values()) else jnp


def pack_pattern(present: Any) -> tuple[Any, int]:
    """`pattern`, and the number of holes; None and 0 without any. NumPy's or on a device, as `present` [n_stored] bool,
    which is true of places that hold an entry or lie outside the matrix.
    """
    if isinstance(present, np.ndarray):
        bits, n_holes = np.packbits(present, bitorder="little"), present.size - int(np.count_nonzero(present))
    else:
        bits, n_holes = _bits(present)
    return (bits, int(n_holes)) if n_holes else (None, 0)


@jax.jit
def _bits(present):
    return jnp.packbits(present, bitorder="little"), jnp.sum(~present, dtype=index_dtype(present.size))


def unpack_pattern(pattern: Any, n_stored: int) -> Any:
    """[n_stored] bool."""
    return namespace(pattern).unpackbits(pattern, count=n_stored, bitorder="little").astype(bool)


def alive(d: Any, column: Any, pattern: Any, address: Any, live: Any, value: Any) -> Any:
    """In a kernel: whether the place at an address, holding `value`, is an entry."""
    if not column.reads_pattern:
        return value != 0
    bits = d.load(pattern, lax.div(address, d.full(8, address.dtype)), live, 0).astype(jnp.int32)
    mask = lax.shift_left(d.full(1, jnp.int32), lax.rem(address, d.full(8, address.dtype)).astype(jnp.int32))
    return lax.bitwise_and(bits, mask) != 0


def _per_slice(d: Any, ref: Any, idx: Any, live: Any) -> Any:
    """ref[idx]; idx is a scalar if all lanes lie in one slice, else [lanes]."""
    return d.load(ref, idx) if idx.ndim == 0 else d.load(ref, idx, live, 0)


def _like(a: Any, value: int, d: Any) -> Any:
    return jnp.asarray(value, a.dtype) if a.ndim == 0 else d.full(value, a.dtype)
