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

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import Csr, index_dtype
from jaxsparse_fmt.formats import storing
from jaxsparse_fmt.formats.by_rule import Array, ByRule, RuleFaces, index_in_data
from jaxsparse_fmt.formats.csr import THREADS, csr_rule
from jaxsparse_fmt.kernels import columns, dialect, entries
from jaxsparse_fmt.kernels.address import Slices, expand_ptr, repeat
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
        sums = columns.product(tail, x, start, rule=pieces, backend=backend)
        return with_pieces(y, sums, rows, arrays.get("piece_ptr"), backend)

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
    piece_ptr: Array | None,  # [n_long + 1]
    backend: str,
) -> Array:
    """y, and to each of `rows` added the sums of its pieces, in order."""
    if piece_ptr is not None:
        n_long, n_pieces = rows.shape[0], sums.shape[1]
        # One row may have nearly all pieces. As many threads as cost nothing to speak of, then, whatever the mean.
        threads = max(t for t in THREADS if t == 1 or t * n_long <= JOINING)
        rule = Rule((n_long, n_pieces), n_pieces, Slices(n_long, 1, threads), Consecutive())
        sums = columns.product(None, sums, {"slice_ptr": piece_ptr}, rule=rule, backend=backend)
    return y.at[:, rows].add(sums.astype(y.dtype), unique_indices=True, indices_are_sorted=True)


def tail_of(csr: Csr, width: int, dtype: Any) -> tuple[Any, dict[str, Any]]:
    """What rows have beyond `width` entries: its values, and the arrays of the tail (None without a tail)."""
    xp = storing.namespace(csr.data)
    rest = xp.maximum(xp.diff(csr.indptr) - width, 0)
    n_tail, n_long = int(rest.sum()), int((rest > 0).sum())
    if n_tail == 0:
        return xp.zeros(0, dtype), dict.fromkeys(TAIL)
    rows = (np.flatnonzero(rest) if xp is np else jnp.nonzero(rest, size=n_long)[0]).astype(np.int32)
    rest = rest[rows]
    pieces = -(-rest // PIECE)
    piece_ptr = storing.pointers(pieces)
    n_pieces = int(piece_ptr[-1])
    number = xp.arange(n_pieces, dtype=piece_ptr.dtype) - repeat(xp, piece_ptr[:-1], pieces, n_pieces)
    tail_ptr = storing.pointers(xp.minimum(repeat(xp, rest, pieces, n_pieces) - number * PIECE, PIECE))
    first = csr.indptr[rows] + width - storing.pointers(rest)[:-1]
    source = repeat(xp, first, rest, n_tail) + xp.arange(n_tail, dtype=first.dtype)
    arrays = {
        "tail_ptr": jnp.asarray(tail_ptr),
        "tail_col": jnp.asarray(csr.indices[source], np.int32),
        "tail_rows": jnp.asarray(rows),
        "piece_ptr": None if n_pieces == n_long else jnp.asarray(piece_ptr),
    }
    return csr.data[source].astype(dtype), arrays
