"""Matrices on hosts by the rows of shards, and what shards send one another, for the set-up of multigrid.

    shard k   ■■■■■■■■ | h · h     its rows; the columns are its own points, and then its halo, rising

A point is a block of unknowns, and a shard's rows are SciPy's BSR. A matrix of one device has one shard without a halo:
nothing is numbered anew, copied or sent. Of several shards a process holds its own, and no array is as long as n.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from jaxsparse_fmt.kernels.cpu import aggregation

Parts = dict[int, Any]  # by shard of this process


class Cut(NamedTuple):
    """Points by shards.

    Attributes:
      starts: [shards + 1] the first point of each shard, and their number.
      over: the distribution over the shards' devices; None: one shard, on this host.
    """

    starts: np.ndarray
    over: Any = None

    def each(self, f: Callable[..., Any], *of: Parts) -> Parts:
        """f of each shard of this process, in threads; what f raises in one process, all raise."""
        if self.over is None:
            return {0: f(*(parts[0] for parts in of))}
        from jaxsparse_fmt.distributed.processes import of_each

        return of_each(lambda k: f(*(parts[k] for parts in of)), self.over.mine, self.over.mesh)

    def of_all(self, parts: Parts) -> list[Any]:
        """Those of all shards, in order."""
        if self.over is None:
            return [*parts.values()]
        from jaxsparse_fmt.distributed.processes import everyones

        return [*everyones(lambda: parts, self.over.mesh).values()]

    def below(self, counts: Parts) -> "Cut":
        """The cut of so many points of each shard."""
        return Cut(np.append(0, np.cumsum(self.of_all(counts))), self.over)

    @property
    def bounds(self) -> Parts:
        mine = [0] if self.over is None else self.over.mine
        return {k: (int(self.starts[k]), int(self.starts[k + 1])) for k in mine}


class Halo:
    """Points of other shards that each shard needs.

    Attributes:
      needs: by shard, rising.
      wanted: the same, by owner.
      asked: the rows of each shard that others need, by who does.
    """

    def __init__(self, cut: Cut, needs: Parts):
        self.cut, self.needs, self.wanted, self.asked = cut, needs, {}, {}
        if cut.over is not None:
            from jaxsparse_fmt.distributed.delivery import by_owner

            self.wanted = {k: by_owner(points, cut.starts) for k, points in needs.items()}
            asked = self._delivered(lambda: self.wanted)
            self.asked = {k: {t: a - cut.starts[k] for t, a in of.items()} for k, of in asked.items()}

    @classmethod
    def of(cls, cut: Cut, used: Parts) -> "Halo":
        """Of shards that use these points, their own and others."""
        if cut.over is None:
            return cls(cut, {0: np.zeros(0, np.int64)})
        from jaxsparse_fmt.distributed.delivery import needed

        return cls(cut, cut.each(lambda points, ends: needed(points, *ends), used, cut.bounds))

    def received(self, of: Parts) -> Parts:
        """The rows that each shard needs, by owner, of arrays or matrices that have those of each shard."""
        return self._delivered(
            lambda: {k: {t: _taken(of[k], rows) for t, rows in by.items()} for k, by in self.asked.items()}
        )

    def extended(self, of: Parts) -> Parts:
        """Each shard's rows, and then those of its halo."""
        if self.cut.over is None:
            return of
        return self.cut.each(lambda own, by: stacked([own, *by.values()]), of, self.received(of))

    def returned(self, of: Parts) -> dict[int, list[tuple[np.ndarray, Any]]]:
        """Rows of each shard, and then of its halo: those of halos go to their owners, with their numbers there."""

        def sent() -> dict[int, dict[int, Any]]:
            out: dict[int, dict[int, Any]] = {}
            for k, (start, end) in self.cut.bounds.items():
                ends = np.cumsum([end - start, *map(len, self.wanted[k].values())])
                out[k] = {
                    t: _taken(of[k], np.arange(a, b))
                    for t, a, b in zip(self.wanted[k], ends[:-1], ends[1:], strict=True)
                }
            return out

        if self.cut.over is None:
            return {0: []}
        return {k: [(self.asked[k][s], a) for s, a in by.items()] for k, by in self._delivered(sent).items()}

    def numbered(self, col: np.ndarray, k: int) -> np.ndarray:
        """The places of points in [own | halo] of shard k."""
        if self.cut.over is None:
            return col
        start, end = self.cut.bounds[k]
        place = np.where((col >= start) & (col < end), col - start, end - start + np.searchsorted(self.needs[k], col))
        return place.astype(np.int32)

    def names(self, k: int) -> np.ndarray:
        """The points of [own | halo] of shard k."""
        return np.concatenate([np.arange(*self.cut.bounds[k]), self.needs[k]])

    def width(self, k: int) -> int:
        start, end = self.cut.bounds[k]
        return end - start + len(self.needs[k])

    def _delivered(self, make: Callable[[], Any]) -> dict[int, dict[int, Any]]:
        if self.cut.over is None:
            return {0: {}}
        from jaxsparse_fmt.distributed.delivery import delivered

        return delivered(make, self.cut.over)


class Rows(NamedTuple):
    """A matrix of which every shard has its rows.

    Attributes:
      S: BSR by shard, in columns of [own | halo].
      halo: of the columns.
      blocks, points: of all shards.
    """

    S: Parts
    halo: Halo
    blocks: int
    points: int  # of the rows

    @classmethod
    def of(cls, S: Parts, columns: Cut) -> "Rows":
        """From BSR whose columns are numbered through all shards."""
        halo = Halo.of(columns, {k: part.indices for k, part in S.items()})
        if columns.over is not None:
            S = columns.each(
                lambda k, part: renumbered(part, halo.numbered(part.indices, k), halo.width(k)), {k: k for k in S}, S
            )
        sizes = columns.of_all({k: np.array([part.indices.size, part.indptr.size - 1]) for k, part in S.items()})
        blocks, points = (int(total) for total in np.sum(sizes, axis=0))
        return cls(S, halo, blocks, points)

    @property
    def shape(self) -> tuple[int, int]:
        b, c = next(iter(self.S.values())).blocksize
        return self.points * b, int(self.halo.cut.starts[-1]) * c

    def each(self, f: Callable[..., Any], *of: Parts) -> Parts:
        return self.halo.cut.each(f, self.S, *of)

    def named(self) -> Parts:
        """The rows with columns that are numbered through all shards."""
        if self.halo.cut.over is None:
            return self.S
        width = int(self.halo.cut.starts[-1])
        return self.each(
            lambda part, k: renumbered(part, self.halo.names(k)[part.indices], width, False), {k: k for k in self.S}
        )

    def __matmul__(self, v: Parts) -> Parts:
        """The product with vectors of each shard's columns."""
        c = next(iter(self.S.values())).blocksize[1]
        v = self.halo.extended({k: a.reshape(-1, c) for k, a in v.items()})
        return self.each(lambda part, v: part @ v.reshape(-1), v)

    def adjoint(self) -> Callable[[Parts], Parts]:
        """The product of the adjoint with vectors of each shard's rows."""
        H, c = self.each(lambda part: aggregation.adjoint(csr(part))), next(iter(self.S.values())).blocksize[1]
        cut = self.halo.cut
        return lambda v: added(cut.each(lambda part, v: part @ v, H, v), self.halo, c)


def of_one_shard(S: Any, b: int = 1) -> Rows:
    """A canonical matrix on one device, of points with b unknowns."""
    return Rows.of({0: aggregation.points(S, b)}, Cut(np.array([0, S.shape[0] // b])))


def added(y: Parts, halo: Halo, c: int) -> Parts:
    """What vectors of [own | halo] of all shards, of points with c unknowns, add up to."""
    y = {k: a.reshape(-1, c) for k, a in y.items()}

    def summed(y: np.ndarray, ends: tuple[int, int], returned: list[Any]) -> np.ndarray:
        y = y[: ends[1] - ends[0]]
        for rows, more in returned:
            y[rows] += more
        return y.reshape(-1)

    return halo.cut.each(summed, y, halo.cut.bounds, halo.returned(y))


def turned(C: Parts, rows: Halo, columns: Cut) -> Rows:
    """The matrix that the rows of [own | halo] of all shards add up to; their columns are numbered through all."""
    if rows.cut.over is None:
        return Rows.of(C, columns)
    returned = rows.returned(C)

    def summed(part: Any, ends: tuple[int, int], returned: list[Any]) -> Any:
        own = _taken(part, np.arange(ends[1] - ends[0]))
        own.sort_indices()
        if not returned:
            return own
        row = np.concatenate([np.repeat(rows, np.diff(more.indptr)) for rows, more in returned])
        col, data = (np.concatenate([getattr(more, name) for _, more in returned]) for name in ("indices", "data"))
        order = np.lexsort((col, row))
        row, col = row[order], col[order]
        first = np.flatnonzero(np.append(True, (np.diff(row) != 0) | (np.diff(col) != 0))) if row.size else order
        data = np.add.reduceat(data[order], first, axis=0) if row.size else data
        ptr = np.append(0, np.cumsum(np.bincount(row[first], minlength=own.indptr.size - 1)))
        return own + scipy.sparse.bsr_array((data, col[first], ptr), shape=own.shape)

    return Rows.of(rows.cut.each(summed, C, rows.cut.bounds, returned), columns)


def csr(S: Any) -> Any:
    """BSR as CSR, which shares the arrays of blocks 1×1."""
    if S.blocksize != (1, 1):
        return S.tocsr()
    return scipy.sparse.csr_array((S.data.reshape(-1), S.indices, S.indptr), shape=S.shape)


def renumbered(S: Any, col: np.ndarray, width: int, sorts: bool = True) -> Any:
    """The matrix with its blocks in these columns, of `width` points."""
    ptr = S.indptr.astype(col.dtype, copy=False)
    S = scipy.sparse.bsr_array((S.data, col, ptr), shape=(S.shape[0], width * S.blocksize[1]))
    if sorts:
        S = S.copy()  # SciPy sorts in place
        S.sort_indices()
    return S


def in_all_columns(of: Parts, cut: Cut) -> Parts:
    """Matrices whose columns are a shard's own, with columns that are numbered through all shards."""
    if cut.over is None:
        return of
    width = int(cut.starts[-1])
    return cut.each(lambda S, ends: renumbered(S, S.indices + np.int64(ends[0]), width, False), of, cut.bounds)


def stacked(parts: list[Any]) -> Any:
    """Arrays, or matrices in BSR or CSR, one below the other."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if parts[0].format == "csr":
        return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))
    ptr = np.append(0, np.cumsum(np.concatenate([np.diff(S.indptr) for S in parts])))
    arrays = *(np.concatenate([getattr(S, name) for S in parts]) for name in ("data", "indices")), ptr
    return scipy.sparse.bsr_array(arrays, shape=((ptr.size - 1) * parts[0].blocksize[0], parts[0].shape[1]))


def _taken(S: Any, rows: np.ndarray) -> Any:
    """Rows of points of an array or a matrix."""
    if isinstance(S, np.ndarray) or S.format == "csr":
        return S[rows]
    (b, c), numbers = S.blocksize, np.arange(S.indices.size)
    shape = S.indptr.size - 1, S.shape[1] // c
    part = scipy.sparse.csr_array((numbers, S.indices, S.indptr), shape=shape)[rows]
    return scipy.sparse.bsr_array((S.data[part.data], part.indices, part.indptr), shape=(len(rows) * b, S.shape[1]))


def recut(of: Parts, old: Cut, new: Cut) -> Parts:
    """Rows, arrays or CSR, that are cut anew."""
    if np.array_equal(old.starts, new.starts):
        return of
    halo = Halo(old, {k: np.arange(*ends) for k, ends in new.bounds.items()})
    return new.each(lambda by, first: stacked([_taken(first, np.zeros(0, int)), *by.values()]), halo.received(of), of)
