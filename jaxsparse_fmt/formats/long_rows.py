"""Rows split in two: their first entries in a main storage, the rest of long rows in pieces, summed in order.

         row r   ■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■
                 main ─────┘└ piece ─┘└ piece ─┘└┘      one warp sums a piece, a second pass the pieces of a row

Every piece has a fixed place in the second sum, so that runs repeat to the last bit. `hyb` and `sell` use this storage.

    tail_ptr    [n_pieces + 1] int32 (int64 from 2³¹ entries), where each piece begins behind the main storage
    tail_col    [n_tail] int32, the columns there
    tail_rows   [n_long] int32, the rows that continue in the tail
    piece_ptr   [n_long + 1] int32, the pieces of each; None: one each

Bytes beside the main storage: n_tail·(value + 4) + 4·n_long + 4·(n_pieces + 1), and 4·(n_long + 1) for `piece_ptr`
where a row has several pieces; none where no row is cut. n_pieces = Σ ⌈n / 256⌉, n a row's entries in the tail.
"""

import dataclasses
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, index_dtype, standard_promotion
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import Array, ByRule, ColumnIndex, LongRows, Pointer, index_in_data
from jaxsparse_fmt.formats.csr import THREADS, csr_rule
from jaxsparse_fmt.kernels import coordinates, spmv
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.layout.address import Slices, expand_ptr, take
from jaxsparse_fmt.kernels.layout.columns import Consecutive, Explicit, Rule

PIECE = 256  # entries: eight for each thread of a warp
JOINING = 2**20  # threads in all that sum the pieces, if each row then gets several
TAIL = ("tail_ptr", "tail_col", "tail_rows", "piece_ptr")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Split(ByRule):
    """A format of a main storage of `n_main` places, addressed by its rules, and of a tail, which may be missing."""

    tail_ptr: Pointer | None
    tail_col: ColumnIndex | None
    tail_rows: LongRows | None
    piece_ptr: Pointer | None

    def with_arrays(self, names: set[str]) -> Self:
        """The same storage with an empty tail, if other shards have a tail, so that all have the same arrays."""
        A, nothing = self, jnp.zeros(0, jnp.int32)
        if "tail_col" in names and A.tail_col is None:
            A = dataclasses.replace(A, tail_ptr=jnp.zeros(1, jnp.int32), tail_col=nothing, tail_rows=nothing)
        if "piece_ptr" in names and A.piece_ptr is None and A.tail_rows is not None:  # one piece each
            A = dataclasses.replace(A, piece_ptr=jnp.arange(A.tail_rows.shape[0] + 1, dtype=jnp.int32))
        return A

    @property
    def n_main(self) -> int:
        return self.n_stored - (0 if self.tail_col is None else self.tail_col.shape[0])

    @property
    def arrays(self) -> dict[str, Array]:
        """The index arrays of the main storage."""
        return {name: a for name, a in super().arrays.items() if name not in TAIL}

    @property
    def rule(self) -> Rule:
        """The address rule and the column rule of the main storage."""
        return Rule(self.shape, self.n_main, self.address, self.column)

    @standard_promotion
    def coordinates(self) -> tuple[Array, Array, Array]:
        if self.tail_col is None:
            return super().coordinates()
        row, col, j = self.places()
        return row, col, index_in_data(self, row, j, col < self.shape[1])

    @property
    def dots(self) -> bool:
        return self.tail_col is None and super().dots

    def product_face(self, values: Array, x: Array, backend: str) -> Array:
        if self.tail_col is None or self.tail_ptr is None or self.tail_rows is None:
            return spmv.product(values, x, self.arrays, rule=self.rule, backend=backend)
        n_main, n_tail, n_pieces = self.n_main, self.tail_col.shape[0], self.tail_ptr.shape[0] - 1
        # A kernel would get a slice of `values` as a copy; so a single matrix goes in whole, at its own addresses.
        whole = values.shape[0] == 1 and selection.is_pallas(spmv.supported(backend, values, x))
        head, tail, offset = (values, values, n_main) if whole else (values[:, :n_main], values[:, n_main:], 0)
        if n_main:
            y = spmv.product(head, x, self.arrays, rule=self.rule, backend=backend)
        else:
            y = jnp.zeros((x.shape[0], self.shape[0], x.shape[2]), jnp.result_type(values, x))
        pieces = csr_rule((n_pieces, self.shape[1]), n_tail, Explicit(offset))
        start = {"slice_ptr": self.tail_ptr.astype(index_dtype(offset + n_tail)) + offset, "col_idx": self.tail_col}
        if self.piece_ptr is None:
            return spmv.added(y, self.tail_rows, tail, x, start, rule=pieces, backend=backend)
        sums = spmv.product(tail, x, start, rule=pieces, backend=backend)
        return with_pieces(y, sums, self.tail_rows, self.piece_ptr, backend)

    def transposed_face(self, values: Array, y: Array, backend: str) -> Array:
        if self.tail_col is None:
            return super().transposed_face(values, y, backend)
        row, col, _ = self.places()
        return coordinates.transposed_reference(values, y, row, col, n_cols=self.shape[1])

    def outer_face(self, y: Array, x: Array, backend: str) -> Array:
        if self.tail_col is None:
            return super().outer_face(y, x, backend)
        row, col, _ = self.places()
        return coordinates.outer_reference(y, x, row, col, n_cols=self.shape[1])

    def places(self) -> tuple[Array, Array, Array]:
        """As `Rule.places`, of a main storage and a tail."""
        main, rows, tail_ptr, tail_col = self.rule.places(self.arrays), self.tail_rows, self.tail_ptr, self.tail_col
        assert rows is not None and tail_ptr is not None and tail_col is not None
        n_tail = tail_col.shape[0]
        start = tail_ptr if self.piece_ptr is None else tail_ptr[self.piece_ptr]
        owner = expand_ptr(jnp, start, n_tail)
        # The main part of such a row is full, and its entries come before the tail's.
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
    """y, with the sums of its pieces added, in order, to each of `rows`."""
    n_long, n_pieces = rows.shape[0], sums.shape[1]
    # One row may have nearly all pieces, so a row gets as many threads as cost little, whatever the mean.
    threads = max(t for t in THREADS if t == 1 or t * n_long <= JOINING)
    rule = Rule((n_long, n_pieces), n_pieces, Slices(n_long, 1, threads), Consecutive())
    return spmv.added(y, rows, None, sums, {"slice_ptr": piece_ptr}, rule=rule, backend=backend)


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The entries of rows beyond a width, in pieces.

    Attributes:
      rows: [n_long] int32, the rows that have pieces, rising.
      piece_ptr: [n_long + 1], the pieces of each.
      lengths: [n_pieces] int32, entries of each.
      source: [n_pieces], the index in CSR of the first entry of each.
      entries: of all pieces.
      last: entries of the last piece.
    """

    rows: Any
    piece_ptr: Any
    lengths: Any
    source: Any
    entries: int
    last: int


def pieces_beyond(csr: Csr, width: int, most: int) -> Pieces | None:
    """The entries of each row after its first `width`, `most` a piece; None where no row is longer."""
    xp = building.namespace(csr.indptr)
    n_long, n_pieces, entries, of_last = map(int, np.asarray(_counted(xp, csr.indptr, width, most)))
    if n_long == 0:
        return None
    rows, piece_ptr, lengths, source = _cut(xp, csr.indptr, width, most, n_long, n_pieces)
    return Pieces(rows, piece_ptr, lengths, source, entries, (of_last - 1) % most + 1)


@building.on_either()
def _counted(xp: Any, indptr: Any, width: int, most: int) -> Any:
    """The numbers of long rows, of their pieces, of entries in all pieces, and of entries in the last row's pieces."""
    rest = xp.maximum(xp.diff(indptr) - width, 0)
    last = xp.max(xp.where(rest > 0, xp.arange(rest.shape[0], dtype=np.int32), 0), initial=0)
    sums = [a.sum(dtype=indptr.dtype) for a in (rest > 0, -(-rest // most), rest)]
    return xp.stack([*sums, rest[last]]) if rest.shape[0] else xp.zeros(4, indptr.dtype)


@building.on_either(4, 5)
def _cut(xp: Any, indptr: Any, width: int, most: int, n_long: int, n_pieces: int) -> tuple[Any, Any, Any, Any]:
    rest = xp.diff(indptr) - width
    if xp is np:
        rows = np.flatnonzero(rest > 0)
    else:  # for few rows of many; jnp.nonzero would add all others to one place, by atomics one after the other
        rows = jnp.searchsorted(jnp.cumsum(rest > 0), jnp.arange(1, n_long + 1), method="scan_unrolled")
    rest, index = rest[rows], index_dtype(n_pieces)
    pieces = -(-rest // most)
    piece_ptr = building.starts(xp, pieces, index)
    owner = expand_ptr(xp, piece_ptr, n_pieces)
    before = (xp.arange(n_pieces, dtype=index) - piece_ptr[owner]).astype(indptr.dtype) * most
    lengths = xp.minimum(rest[owner] - before, most).astype(np.int32)
    return rows.astype(np.int32), piece_ptr, lengths, (indptr[rows][owner] + width + before).astype(indptr.dtype)


def tail_of(csr: Csr, width: int, dtype: Any) -> tuple[Any, dict[str, Any]]:
    """The values of the entries of rows beyond `width`, and the arrays of the tail (None without a tail)."""
    xp, pieces = building.namespace(csr.data), pieces_beyond(csr, width, PIECE)
    if pieces is None:
        return xp.zeros(0, dtype), dict.fromkeys(TAIL)
    of_pieces = pieces.lengths, pieces.source, pieces.entries
    values, col, ptr = _gathered(xp, csr.data, csr.indices, *of_pieces, np.dtype(dtype))
    piece_ptr = None if pieces.lengths.shape == pieces.rows.shape else pieces.piece_ptr
    return values, {"tail_ptr": ptr, "tail_col": col, "tail_rows": pieces.rows, "piece_ptr": piece_ptr}


def with_tail(values: Any, csr: Csr, width: int) -> tuple[Any, dict[str, Any]]:
    """`values` of the main storage with those of the tail behind them, and the arrays of the tail."""
    tail, arrays = tail_of(csr, width, values.dtype)
    return building.namespace(tail).concatenate([values, tail]) if tail.size else values, arrays


@building.on_either(5, 6)
def _gathered(xp: Any, data, indices, lengths, source, n_tail: int, dtype) -> tuple[Any, Any, Any]:
    """Values and columns of the pieces, one behind the other, and the place where each piece begins."""
    index = index_dtype(n_tail)
    ptr = building.starts(xp, lengths, index)
    piece = expand_ptr(xp, ptr, n_tail)
    at = source[piece] + (xp.arange(n_tail, dtype=index) - ptr[piece]).astype(source.dtype)
    return take(data, at).astype(dtype), take(indices, at).astype(np.int32), ptr
