"""Address rules: the address of entry j of a row in the flat storage. A format is an address rule and a column rule.

    Slices     a(r, j) = slice_ptr[r // C] + r % C + j·C     CSR (C = 1), ELL (C = n_rows), ELLPACK-R (C = pitch), HLL
    Subwarp    a(r, j) = (j // T)·C + r·T + j % T            ELLR-T: T neighbouring threads take one row
    Bisected   groups of 32 lanes, 2^g of them a row         BiELL, BiJAD
    Jagged     a(r, j) = col_start[j] + r                    JDS, pJDS
    Starts     a(r, j) = start[j] + r                        DIA, and its transpose: columns may share places

A rule is static and hashable, and reads arrays of NumPy or JAX by name. It has two forms, which agree: `slots` computes
the row and the j of every stored place (for conversion, references and coordinates), and `walks` the addresses that the
lanes of a kernel visit. All rules but Jagged store chunks of C places, one for each lane of a slice.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._dtypes import index_dtype

Arrays: TypeAlias = Mapping[str, Any]

WARP = 32
GROUPS = 6  # of a bisected warp: 32, 16, 8, 4, 2 and 1 rows


@dataclasses.dataclass
class Walk:
    """The entries that each lane of a tile visits: entry e < count of a lane is at base + e·step."""

    row: Any  # [lanes], the storage row of a lane's entries
    base: Any  # [lanes]
    step: int
    count: Any  # entries of a lane, a scalar or [lanes]
    longest: Any  # the largest count, a scalar
    first: Any = None  # the first chunk of the lane's slice, a scalar or [lanes]; None if there is only one slice
    lane: Any = None  # [lanes], the place of a lane's entry 0 in its slice
    matrix_row: Any = None  # [lanes], the row of the matrix that is stored as `row`
    inside: Any = None  # [lanes], whether the lane exists; None: all do
    threads: int = 1  # lanes that take one row, whose sums the kernel adds
    stride: int = 1  # their distance
    keep: Any = None  # [lanes], whether the lane holds the sum of its row; None: every lane does
    entry_of: Callable[[Any], tuple[Any, Any]] | None = None  # `entry`, if it does not follow from base and step

    def entry(self, e: Any) -> tuple[Any, Any]:
        """The address of entry e, and whether there is one: [lanes] each."""
        if self.entry_of is not None:
            return self.entry_of(e)
        live = e < self.count
        return self.base + e.astype(self.base.dtype) * self.step, live if self.inside is None else live & self.inside

    def chunk(self, e: Any) -> Any:
        return e if self.first is None else self.first + e


class Chunked:
    """The rules with chunks; `lanes` is C."""

    n_rows: int
    lanes: int

    def bounds(self, xp: Any, arrays: Arrays, n_stored: int) -> tuple[Any, Any]:
        """First chunk and number of chunks of each slice, [n_slices]; `xp` is NumPy or jax.numpy."""
        ptr = arrays.get("slice_ptr")
        if ptr is None:
            return xp.zeros(1, np.int32), xp.full(1, n_stored // self.lanes, np.int32)
        starts = ptr[:-1] // self.lanes
        return starts, ptr[1:] // self.lanes - starts

    def owners(self, xp: Any, arrays: Arrays, n_stored: int) -> tuple[Any, Any]:
        """The slice of each chunk, and the chunk's number k in that slice, [n_chunks]."""
        n_chunks, ptr = n_stored // self.lanes, arrays.get("slice_ptr")
        if ptr is None:
            return xp.zeros(n_chunks, np.int32), xp.arange(n_chunks, dtype=np.int32)
        ptr = ptr // self.lanes
        owner = expand_ptr(xp, ptr, n_chunks)
        return owner, (xp.arange(n_chunks, dtype=ptr.dtype) - ptr[owner]).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Slices(Chunked):
    """Slices of C rows, stored column by column; `threads` lanes take one row, which does not change the storage.

    A row ends at its length if `row_lengths` are given, else with its slice. With `falling`, lengths fall from row to
    row, `row_lengths` has one for every `falling` rows, and a tile reads its first.
    """

    n_rows: int
    lanes: int
    threads: int = 1
    falling: int | None = None

    @property
    def width(self) -> int:
        """Number of lanes of a kernel, over all tiles."""
        return -(-self.n_rows // self.lanes) * self.lanes * self.threads

    def slots(self, xp: Any, arrays: Arrays, n_stored: int) -> tuple[Any, Any]:
        """The storage row and the j of every stored place, [n_stored]; rows from n_rows on are padding."""
        owner, k = self.owners(xp, arrays, n_stored)
        lane = xp.arange(self.lanes, dtype=np.int32)
        return _flat(xp, owner[:, None] * self.lanes + lane, k[:, None])

    def fold(self, sums: Any) -> Any:
        """Sums of the lanes [n_slices, C, p] as those of the rows [n_rows, p]."""
        return sums.reshape(-1, sums.shape[-1])[: self.n_rows]

    def walks(self, d: Any, arrays: Arrays, tile: Any, n_stored: int, address_dtype: Any) -> Iterator[Walk]:
        C, T = self.lanes, self.threads
        v = tile * d.rows + d.lanes()
        row, t, stride = v, None, 1
        if T > 1 and C == 1:
            row, t = lax.div(v, d.full(T, jnp.int32)), lax.rem(v, d.full(T, jnp.int32))
        elif T > 1:  # rows stay neighbours in a warp, so that a load still covers whole sectors
            stride = WARP // T
            lane = lax.rem(v, d.full(WARP, jnp.int32))
            t = lax.div(lane, d.full(stride, jnp.int32))
            row = lax.div(v, d.full(WARP, jnp.int32)) * stride + lax.rem(lane, d.full(stride, jnp.int32))
        walk = self._rows(d, arrays, tile, row, n_stored, address_dtype)
        lengths = arrays.get("row_lengths")
        if lengths is not None and self.falling:
            walk.count = walk.longest = d.load(lengths, tile * (d.rows // self.falling))
        elif lengths is not None:
            walk.count = d.load(lengths, row, row < self.n_rows, 0)
            walk.longest = jnp.max(walk.count)
        if t is not None:
            walk.base, walk.step = walk.base + t.astype(address_dtype) * C, C * T
            walk.count = lax.div(walk.count - t + jnp.int32(T - 1), d.full(T, jnp.int32))
            walk.longest = lax.div(walk.longest + jnp.int32(T - 1), jnp.int32(T))
            walk.threads, walk.stride, walk.keep = T, stride, t == 0
        yield walk

    def _rows(self, d, arrays, tile, row, n_stored, address_dtype) -> Walk:
        C, slice_ptr = self.lanes, arrays.get("slice_ptr")
        if slice_ptr is None:
            width = jnp.int32(n_stored // C)
            return Walk(row, row.astype(address_dtype), C, width, width, lane=row, inside=row < C)
        if C % d.rows == 0 and self.threads == 1:  # the tile lies in one slice: its bounds are scalars
            s = lax.div(tile, jnp.int32(C // d.rows))
            start, stop = d.load(slice_ptr, s), d.load(slice_ptr, s + 1)
            width, first = (lax.div(a, a.dtype.type(C)).astype(jnp.int32) for a in (stop - start, start))
            lane = row - s * C
            return Walk(row, (start + lane).astype(address_dtype), C, width, width, first, lane)
        s = row if C == 1 else lax.div(row, d.full(C, jnp.int32))
        inside = s < -(-self.n_rows // C)
        start, stop = d.load(slice_ptr, s, inside, 0), d.load(slice_ptr, s + 1, inside, 0)
        width, first = (stop - start).astype(jnp.int32), start
        if C > 1:
            width, first = lax.div(width, d.full(C, jnp.int32)), lax.div(first, d.full(C, first.dtype))
        lane = row - s * C
        base = (start + lane).astype(address_dtype)
        return Walk(row, base, C, width, jnp.max(width), first.astype(jnp.int32), lane, inside=inside)


@dataclasses.dataclass(frozen=True)
class Subwarp(Chunked):
    """Every row is divided among a subwarp: T neighbouring lanes of the one slice, which has C = pitch·T lanes."""

    n_rows: int
    lanes: int
    threads: int

    @property
    def width(self) -> int:
        return self.lanes

    def slots(self, xp: Any, arrays: Arrays, n_stored: int) -> tuple[Any, Any]:
        _, k = self.owners(xp, arrays, n_stored)
        lane = xp.arange(self.lanes, dtype=np.int32)
        return _flat(xp, lane // self.threads, k[:, None] * self.threads + lane % self.threads)

    def fold(self, sums: Any) -> Any:
        return sums.reshape(-1, self.threads, sums.shape[-1]).sum(1)[: self.n_rows]

    def walks(self, d: Any, arrays: Arrays, tile: Any, n_stored: int, address_dtype: Any) -> Iterator[Walk]:
        T = d.full(self.threads, jnp.int32)
        v = tile * d.rows + d.lanes()
        row = lax.div(v, T)
        length = d.load(arrays["row_lengths"], row, row < self.n_rows, 0)
        count = lax.div(length + jnp.int32(self.threads - 1), T)
        keep = lax.rem(v, T) == 0
        yield Walk(row, v.astype(address_dtype), self.lanes, count, jnp.max(count), threads=self.threads, keep=keep)


@dataclasses.dataclass(frozen=True)
class Bisected(Chunked):
    """Warps of 32 sorted rows in six groups; in group g the first 32 / 2^g rows have 2^g lanes each.

    A group is a slice of 32 lanes: `slice_ptr` [6·warps + 1].
    """

    n_rows: int
    lanes: int = WARP
    threads = 1

    @property
    def width(self) -> int:
        return -(-self.n_rows // WARP) * WARP

    def slots(self, xp: Any, arrays: Arrays, n_stored: int) -> tuple[Any, Any]:
        owner, k = self.owners(xp, arrays, n_stored)
        chunks = xp.diff(arrays["slice_ptr"]).reshape(-1, GROUPS) // WARP
        entries = when_run(chunks << np.arange(GROUPS, dtype=np.int32))  # of a row, in each group
        taken = (xp.cumsum(entries, axis=1) - entries).reshape(-1).astype(np.int32)  # in the groups before
        threads = xp.left_shift(np.int32(1), owner % GROUPS)[:, None]
        rows = WARP // threads
        lane = xp.arange(WARP, dtype=np.int32)
        row = owner[:, None] // GROUPS * WARP + lane % rows
        return _flat(xp, row, taken[owner][:, None] + k[:, None] * threads + lane // rows)

    def fold(self, sums: Any) -> Any:
        p = sums.shape[-1]
        sums = sums.reshape(-1, GROUPS, WARP, p)
        total = jnp.zeros((sums.shape[0], WARP, p), sums.dtype)
        for g in range(GROUPS):
            rows = WARP >> g
            total = total.at[:, :rows].add(sums[:, g].reshape(-1, 1 << g, rows, p).sum(1))
        return total.reshape(-1, p)[: self.n_rows]

    def walks(self, d: Any, arrays: Arrays, tile: Any, n_stored: int, address_dtype: Any) -> Iterator[Walk]:
        slice_ptr = arrays["slice_ptr"]
        v = tile * d.rows + d.lanes()
        warp, lane = lax.div(v, d.full(WARP, jnp.int32)), lax.rem(v, d.full(WARP, jnp.int32))
        inside = warp < -(-self.n_rows // WARP)
        for g in range(GROUPS):
            rows, s = WARP >> g, warp * GROUPS + g
            start, stop = d.load(slice_ptr, s, inside, 0), d.load(slice_ptr, s + 1, inside, 0)
            width = lax.div((stop - start).astype(jnp.int32), d.full(WARP, jnp.int32))
            row = warp * WARP + lax.rem(lane, d.full(rows, jnp.int32))
            walk = Walk(row, (start + lane).astype(address_dtype), WARP, width, jnp.max(width), inside=inside)
            walk.threads, walk.stride, walk.keep = 1 << g, rows, lane < rows
            yield walk


@dataclasses.dataclass(frozen=True)
class Jagged:
    """Rows sorted by falling length; column j holds entry j of the rows that have one, and padding."""

    n_rows: int
    lanes = 0  # it stores no chunks
    threads = 1

    @property
    def width(self) -> int:
        return self.n_rows

    def slots(self, xp: Any, arrays: Arrays, n_stored: int) -> tuple[Any, Any]:
        start = arrays["col_start"]
        j = expand_ptr(xp, start, n_stored)
        return (xp.arange(n_stored, dtype=start.dtype) - start[j]).astype(np.int32), j

    def walks(self, d: Any, arrays: Arrays, tile: Any, n_stored: int, address_dtype: Any) -> Iterator[Walk]:
        row, col_start = tile * d.rows + d.lanes(), arrays["col_start"]
        longest = d.load(arrays["row_lengths"], tile * d.rows)  # rows are sorted: the tile's first is its longest
        base = row.astype(address_dtype)

        def entry(e: Any) -> tuple[Any, Any]:
            j = jnp.minimum(e, jnp.int32(col_start.shape[0] - 2))
            start, stop = d.load(col_start, j), d.load(col_start, j + 1)
            return base + start.astype(address_dtype), (e < longest) & (row < (stop - start))

        yield Walk(row, base, 0, longest, longest, entry_of=entry)


@dataclasses.dataclass(frozen=True)
class Starts(Slices):
    """One slice, whose column j begins at `start`[j]. Columns may overlap; the column rule masks absent places."""

    def slots(self, xp: Any, arrays: Arrays, n_stored: int) -> tuple[Any, Any]:
        raise TypeError("a place that several entries share has no row of its own")

    def walks(self, d: Any, arrays: Arrays, tile: Any, n_stored: int, address_dtype: Any) -> Iterator[Walk]:
        row, count = tile * d.rows + d.lanes(), jnp.int32(arrays["start"].shape[0])
        base, inside = row.astype(address_dtype), row < self.n_rows

        def entry(e: Any) -> tuple[Any, Any]:
            start = d.load(arrays["start"], jnp.minimum(e, count - 1))
            return base + start.astype(address_dtype), (e < count) & inside

        yield Walk(row, base, 0, count, count, entry_of=entry)


Address: TypeAlias = Slices | Subwarp | Bisected | Jagged | Starts


def namespace(a: Any) -> Any:
    """The module that computes with this array: NumPy, or jax.numpy for an array on a device or traced."""
    return np if isinstance(a, np.ndarray) else jnp


def expand_ptr(xp: Any, ptr: Any, total: int) -> Any:
    """i for each place from ptr[i] to ptr[i + 1]: int32 [total]; for CSR's row_ptr, the row of each entry.

    On a device it counts the starts up to each place; jnp.repeat would compile twice the operations.
    """
    if xp is np:
        return np.repeat(np.arange(ptr.shape[0] - 1, dtype=np.int32), np.diff(ptr))
    return jnp.cumsum(put("add", jnp.zeros(total, jnp.int32), when_run(ptr)[1:-1], 1))


def row_pointers(row: Any, n_rows: int) -> Any:
    """Row pointers [n_rows + 1] from sorted row indices [nnz]."""
    index, row = index_dtype(row.shape[0]), when_run(row)
    last = jnp.concatenate([row[1:] != row[:-1], jnp.ones(row[:1].shape, bool)])
    ends = jnp.arange(1, row.shape[0] + 1, dtype=index)
    return lax.cummax(put("set", jnp.zeros(n_rows + 1, index), row + 1, ends, last))


def when_run(a: Any) -> Any:
    """`a`, a part of a pattern, such that XLA computes what depends on it when the program runs.

    The pattern of a matrix that a function closes over is constant, and XLA evaluates constant expressions while it
    compiles: a running sum of 400,000 entries in 7 s.
    """
    return a if isinstance(a, np.ndarray) else lax.optimization_barrier(a)


def take(a: Any, idx: Any) -> Any:
    """a[idx] for an array of NumPy or JAX; no index may lie outside, or be negative."""
    if isinstance(a, np.ndarray):
        return a.take(idx, 0, mode="clip")
    return a.at[idx].get(mode="promise_in_bounds", wrap_negative_indices=False)


def put(how: str, a: Any, idx: Any, values: Any, among: Any = True, **promises: bool) -> Any:
    """`a` [n, …] with `values` put at `idx` by "set", "add" or "max", but for those not `among` or from n on.

    `promises`: `unique_indices` of those that are in range.
    """
    places = a.at[idx if among is True else jnp.where(among, idx, a.shape[0])]
    return getattr(places, how)(values, mode="drop", wrap_negative_indices=False, **promises)


def prefix_length(xp: Any, holds: Callable[[Any], Any], count: Any, most: int) -> Any:
    """Length of the prefix of range(count) on which the monotone predicate `holds`; branch-free binary search.

    `most` is an upper bound of `count`. The search sets one bit of the result at a time and carries one array.
    """
    n = xp.zeros_like(count)
    for bit in reversed(range(most.bit_length())):
        more = n + (1 << bit)
        n = xp.where((more <= count) & holds(xp.clip(more, 1, xp.maximum(count, 1)) - 1), more, n)
    return n


def _flat(xp: Any, row: Any, j: Any) -> tuple[Any, Any]:
    row, j = xp.broadcast_arrays(row, j)
    return row.reshape(-1), j.reshape(-1)
