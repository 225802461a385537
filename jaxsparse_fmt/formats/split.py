"""Rows split in two: their first entries in a main storage, what is left of the long ones in pieces, summed in order.

         row r   ■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■
                 main ─────┘└ piece ─┘└ piece ─┘└┘      one warp sums a piece, a second pass the pieces of a row

A row of 200,000 entries is neither 200,000 steps of one thread nor an atomic addition: every piece has a fixed place in
the second sum, so that runs repeat to the last bit. `hyb` and `sell` share this.

    tail_ptr    [n_pieces + 1] int32 (int64 from 2³¹ entries), where each piece begins behind the main storage
    tail_col    [n_tail] int32, the columns there
    tail_rows   [n_long] int32, the rows that go on in the tail
    piece_ptr   [n_long + 1] int32, the pieces of each; None: one each

Bytes beside the main storage: n_tail·(value + 4) + 4·n_long + 4·(n_pieces + 1), and 4·(n_long + 1) for `piece_ptr`
where a row has several pieces; nothing where no row is cut. n_pieces = Σ ⌈n / 256⌉, n a row's entries in the tail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, index_dtype
from jaxsparse_fmt.formats import storing
from jaxsparse_fmt.formats.by_rule import Array, ByRule, RuleFaces, index_in_data
from jaxsparse_fmt.formats.csr import THREADS, csr_rule
from jaxsparse_fmt.kernels import columns, dialect, entries
from jaxsparse_fmt.kernels.address import Slices, expand_ptr, take
from jaxsparse_fmt.kernels.column_rule import Consecutive, Explicit
from jaxsparse_fmt.kernels.rule import Rule

PIECE = 256  # entries: eight for each thread of a warp
JOINING = 2**20  # threads that sum the pieces of all rows, if that gives a row several
TAIL = ("tail_ptr", "tail_col", "tail_rows", "piece_ptr")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Split(ByRule):
    """A format with a main storage of `n_main` places, by its rules, and a tail; without a tail just the former."""

    tail_ptr: Array | None
    tail_col: Array | None
    tail_rows: Array | None
    piece_ptr: Array | None

    @property
    def n_main(self) -> int:
        return self.n_stored - (0 if self.tail_col is None else self.tail_col.shape[0])

    @property
    def faces(self) -> Any:
        names = tuple(self.arrays_read)
        main = Rule(self.shape, self.n_main, self.address, self.column)
        faces = RuleFaces(main, tuple(name for name in names if name not in TAIL))
        return faces if self.tail_col is None else SplitFaces(faces, self.n_stored, names)

    def coordinates(self) -> tuple[Array, Array, Array]:
        if self.tail_col is None:
            return super().coordinates()
        row, col, j = self.faces.places(self.structure)
        return row, col, index_in_data(self, row, j, col < self.shape[1])


class ByPlaces:
    """The two faces that coordinates give, in plain jnp, where only the product has kernels."""

    shape: Any
    places: Callable[..., tuple[Array, Array, Array]]

    def transposed(self, values, y, structure, backend):
        del backend
        row, col, _ = self.places(structure)
        return entries.transposed_reference(values, y, row, col, n_cols=self.shape[1])

    def outer(self, y, x, structure, backend):
        del backend
        row, col, _ = self.places(structure)
        return entries.outer_reference(y, x, row, col, n_cols=self.shape[1])


@dataclasses.dataclass(frozen=True)
class SplitFaces(ByPlaces):
    """The three faces over a main storage and a tail."""

    main: RuleFaces
    n_stored: int
    names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return self.main.shape

    def arrays(self, structure: tuple[Array, ...]) -> dict[str, Array]:
        return dict(zip(self.names, structure, strict=True))

    def structure_of_main(self, arrays: dict[str, Array]) -> tuple[Array, ...]:
        return tuple(arrays[name] for name in self.main.names)

    def product(self, values, x, structure, backend):
        arrays, n_main = self.arrays(structure), self.main.n_stored
        rows, tail_ptr, tail_col = arrays["tail_rows"], arrays["tail_ptr"], arrays["tail_col"]
        n_tail, n_pieces = tail_col.shape[0], tail_ptr.shape[0] - 1
        # A part of `values` would be a copy of it to a kernel; one matrix is handed over whole, at its own addresses.
        whole = values.shape[0] == 1 and dialect.is_pallas(columns.supported(backend, values, x))
        head, tail, offset = (values, values, n_main) if whole else (values[:, :n_main], values[:, n_main:], 0)
        if n_main:
            y = self.main.product(head, x, self.structure_of_main(arrays), backend)
        else:
            y = jnp.zeros((x.shape[0], self.shape[0], x.shape[2]), jnp.result_type(values, x))
        pieces = csr_rule((n_pieces, self.shape[1]), n_tail, Explicit(offset))
        start = {"slice_ptr": tail_ptr.astype(index_dtype(offset + n_tail)) + offset, "col_idx": tail_col}
        if "piece_ptr" not in arrays:
            return columns.added(y, rows, tail, x, start, rule=pieces, backend=backend)
        sums = columns.product(tail, x, start, rule=pieces, backend=backend)
        return with_pieces(y, sums, rows, arrays["piece_ptr"], backend)

    def places(self, structure: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        """As `Rule.places`, for both parts."""
        arrays = self.arrays(structure)
        main = self.main.rule.places(self.main.arrays(self.structure_of_main(arrays)))
        rows, tail_ptr, tail_col = arrays["tail_rows"], arrays["tail_ptr"], arrays["tail_col"]
        n_tail = tail_col.shape[0]
        start = tail_ptr if "piece_ptr" not in arrays else tail_ptr[arrays["piece_ptr"]]
        owner = expand_ptr(jnp, start, n_tail)
        # The row's main part is full: so many entries come before.
        before = jnp.zeros(self.shape[0], jnp.int32).at[main[0]].add(main[1] < self.shape[1])
        j = before[rows[owner]] + (jnp.arange(n_tail, dtype=start.dtype) - start[owner]).astype(jnp.int32)
        row, col, k = (jnp.concatenate(pair) for pair in zip(main, (rows[owner], tail_col, j), strict=True))
        return row, col, k


def with_pieces(
    y: Array,  # [b, n_rows, p]
    sums: Array,  # [b, n_pieces, p]
    rows: Array,  # [n_long]
    piece_ptr: Array,  # [n_long + 1]
    backend: str,
) -> Array:
    """y, and to each of `rows` added the sums of its pieces, in order."""
    n_long, n_pieces = rows.shape[0], sums.shape[1]
    # One row may have nearly all pieces. As many threads as cost nothing to speak of, then, whatever the mean.
    threads = max(t for t in THREADS if t == 1 or t * n_long <= JOINING)
    rule = Rule((n_long, n_pieces), n_pieces, Slices(n_long, 1, threads), Consecutive())
    return columns.added(y, rows, None, sums, {"slice_ptr": piece_ptr}, rule=rule, backend=backend)


@dataclasses.dataclass(frozen=True)
class Pieces:
    """What rows have beyond a width, in pieces.

    Attributes:
      rows: [n_long] int32, which rows; rising.
      piece_ptr: [n_long + 1], the pieces of each.
      lengths: [n_pieces] int32, entries of each.
      source: [n_pieces], where in CSR it begins.
      entries: of all.
      last: of the last one.
    """

    rows: Any
    piece_ptr: Any
    lengths: Any
    source: Any
    entries: int
    last: int


def pieces_beyond(csr: Csr, width: int, most: int) -> Pieces | None:
    """The entries of each row after its first `width`, `most` a piece; None where no row has so many."""
    xp = storing.namespace(csr.indptr)
    count, cut = (_counted, _cut) if xp is np else (_counted_on_device, _cut_on_device)
    n_long, n_pieces, entries, of_last = map(int, np.asarray(count(xp, csr.indptr, width, most)))
    if n_long == 0:
        return None
    rows, piece_ptr, lengths, source = cut(xp, csr.indptr, width, most, n_long, n_pieces)
    return Pieces(rows, piece_ptr, lengths, source, entries, (of_last - 1) % most + 1)


def _counted(xp: Any, indptr: Any, width: int, most: int) -> Any:
    """Rows that go on, pieces, entries, and those of the last such row."""
    rest = xp.maximum(xp.diff(indptr) - width, 0)
    last = xp.max(xp.where(rest > 0, xp.arange(rest.shape[0], dtype=np.int32), 0), initial=0)
    sums = [a.sum(dtype=indptr.dtype) for a in (rest > 0, -(-rest // most), rest)]
    return xp.stack([*sums, rest[last]]) if rest.shape[0] else xp.zeros(4, indptr.dtype)


def _cut(xp: Any, indptr: Any, width: int, most: int, n_long: int, n_pieces: int) -> tuple[Any, Any, Any, Any]:
    rest = xp.diff(indptr) - width
    if xp is np:
        rows = np.flatnonzero(rest > 0)
    else:  # for few rows of many; jnp.nonzero would add up all others in one place, which atomics take in turn
        rows = jnp.searchsorted(jnp.cumsum(rest > 0), jnp.arange(1, n_long + 1), method="scan_unrolled")
    rest, index = rest[rows], index_dtype(n_pieces)
    pieces = -(-rest // most)
    piece_ptr = storing.starts(xp, pieces, index)
    owner = expand_ptr(xp, piece_ptr, n_pieces)
    before = (xp.arange(n_pieces, dtype=index) - piece_ptr[owner]).astype(indptr.dtype) * most
    lengths = xp.minimum(rest[owner] - before, most).astype(np.int32)
    return rows.astype(np.int32), piece_ptr, lengths, (indptr[rows][owner] + width + before).astype(indptr.dtype)


# One call each: op by op, Python takes longer to call than a GPU to compute.
_counted_on_device = jax.jit(_counted, static_argnums=0)
_cut_on_device = jax.jit(_cut, static_argnums=(0, 4, 5))


def tail_of(csr: Csr, width: int, dtype: Any) -> tuple[Any, dict[str, Any]]:
    """What rows have beyond `width` entries: its values, and the arrays of the tail (None without a tail)."""
    xp, pieces = storing.namespace(csr.data), pieces_beyond(csr, width, PIECE)
    if pieces is None:
        return xp.zeros(0, dtype), dict.fromkeys(TAIL)
    gather, of_pieces = _gathered if xp is np else _gathered_on_device, (pieces.lengths, pieces.source)
    values, col, ptr = gather(xp, csr.data, csr.indices, *of_pieces, pieces.entries, np.dtype(dtype))
    arrays = {
        "tail_ptr": jnp.asarray(ptr),
        "tail_col": jnp.asarray(col),
        "tail_rows": jnp.asarray(pieces.rows),
        "piece_ptr": None if pieces.lengths.shape == pieces.rows.shape else jnp.asarray(pieces.piece_ptr),
    }
    return values, arrays


def _gathered(xp: Any, data, indices, lengths, source, n_tail: int, dtype) -> tuple[Any, Any, Any]:
    """The values and the columns of the pieces, one behind the other, and where each begins."""
    index = index_dtype(n_tail)
    ptr = storing.starts(xp, lengths, index)
    piece = expand_ptr(xp, ptr, n_tail)
    at = source[piece] + (xp.arange(n_tail, dtype=index) - ptr[piece]).astype(source.dtype)
    return take(data, at).astype(dtype), take(indices, at).astype(np.int32), ptr


_gathered_on_device = jax.jit(_gathered, static_argnums=(0, 5, 6))
