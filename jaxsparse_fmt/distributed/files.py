"""A matrix in a folder, of which each process reads its own rows: parts, each the next rows in a file of its own.

    000000000000-000000131072.npz    rows 0 to 131,071, as `io/csr_file.py` writes a matrix, with a header of
    000000131072-000000262144.npz      rows    of the whole matrix       first    the number of the part's first row
                                       matrix  the same in all parts of one matrix, and in no other's

Each part is written whole or not at all. The files do not depend on the number of devices.
"""

import dataclasses
import functools
import itertools
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import Csr, whole_number
from jaxsparse_fmt.convert import canonical
from jaxsparse_fmt.distributed import row_partition
from jaxsparse_fmt.distributed.entries import pieces as rows_of_shards
from jaxsparse_fmt.distributed.processes import alone, everyones
from jaxsparse_fmt.io.csr_file import broken, read_csr, read_header, read_pointers, write_csr

PART = 2**26  # bytes of a part of a matrix that is held whole
NAME = re.compile(r"\d{12,}-\d{12,}\.npz$")


@dataclasses.dataclass(frozen=True)
class SavedRows:
    """The rows of a saved matrix, for use as `rows_of` of `shard_from_rows`; a part is read when its rows are used.

    Attributes:
      cuts: the first row of each part, and the number of rows.
      matrix: by which all parts know one another.
    """

    shape: tuple[int, int]
    dtype: np.dtype
    cuts: np.ndarray
    matrix: str
    folder: Path

    def __call__(self, start: int, stop: int) -> Csr:
        """The rows from start to stop; memory also holds the parts in which they begin and end.

        Raises:
          ValueError: there are no such rows, or a part is damaged or holds no rows of this matrix.
        """
        n_rows, n_cols = self.shape
        if not 0 <= start <= stop <= n_rows:
            raise ValueError(f"rows {start} to {stop} were asked for, and {self.folder} holds rows 0 to {n_rows}")
        used = np.flatnonzero((self.cuts[:-1] < stop) & (self.cuts[1:] > start)).tolist()
        rows = [self._part(k, read_csr)[max(start - self.cuts[k], 0) : stop - self.cuts[k]] for k in used]
        none = scipy.sparse.csr_array((0, n_cols), dtype=self.dtype)
        return rows[0] if len(rows) == 1 else scipy.sparse.csr_array(scipy.sparse.vstack([none, *rows], format="csr"))

    def starts(self, parts: int) -> np.ndarray:
        """[parts + 1] cuts that give each device about the same number of entries; reads all row pointers.

        Raises:
          ValueError: a part is damaged, or of another matrix.
        """
        lengths = [np.diff(self._part(k, read_pointers)) for k in range(len(self.cuts) - 1)]
        return row_partition.equal_nnz(np.concatenate(lengths), parts)

    def _part(self, k: int, read: Callable[[Path], tuple[dict[str, Any], Any]]) -> Any:
        """What a part holds, after a check that it is part k of this matrix."""
        (start, stop), n_cols = self.cuts[k : k + 2].tolist(), self.shape[1]
        header, of = read(path := self.folder / _name(start, stop))
        told = {"shape": [stop - start, n_cols], "dtype": self.dtype.name, "first": start, "matrix": self.matrix}
        for name, wanted in told.items():
            if header.get(name) != wanted:
                raise broken(path, f"it is no part of this matrix: its {name} is {header.get(name)!r}, not {wanted!r}")
        return of


def _name(start: int, stop: int) -> str:
    return f"{start:012d}-{stop:012d}.npz"


@dataclasses.dataclass(frozen=True)
class _Mine:
    """What this process writes: the parts with these first rows, of the cuts of all parts.

    Attributes:
      mesh: of a sharded matrix, which all processes write together; else None.
    """

    shape: tuple[int, int]
    rows_of: Callable[[int, int], Any]
    cuts: np.ndarray
    first: set[int]
    mesh: Any = None

    def part(self, start: int, stop: int, dtype: Any = None) -> Csr:
        """The rows of one part, of values that `dtype` can hold; None: of any."""
        csr, what = self.rows_of(start, stop), f"S({start}, {stop})"
        csr = _sparse(csr, f"{what} must give a scipy.sparse matrix")
        if csr.shape != (stop - start, self.shape[1]):
            raise ValueError(f"{what} must give a matrix {(stop - start, self.shape[1])}; got {csr.shape}")
        if dtype is not None and not np.can_cast(csr.data.dtype, dtype, "safe"):
            wide = np.result_type(csr.data.dtype, dtype)
            raise ValueError(
                f"{what} gives {csr.data.dtype} where the first rows were {dtype}; let S give all its rows as {wide}"
            )
        return csr


def _mine(S: Any, n: int | None, pieces: int) -> _Mine:
    if hasattr(S, "shards"):
        S._check_users_order("rows")
        over, in_users_order = S.range.over, S.range.route is None and S.domain.route is None
        if in_users_order and S.range.n:
            starts, own = over.starts, rows_of_shards(S, np.promote_types(S.dtype, np.float32))
            rows = {int(starts[k]): of for k, of in own.items() if of.shape[0]}
            return _Mine((S.range.n, S.domain.n), lambda a, b: rows[a], np.unique(starts), set(rows), over.mesh)
        if not alone(over.mesh):
            raise ValueError("several processes save a sharded matrix in the user's order only; shard without reorder=")
    if callable(S):
        if n is None:
            raise ValueError("n, the number of rows and columns, must be given with a function that makes rows")
        n = whole_number("n", n)
        shape, rows_of = (n, n), S
    else:
        whole = _sparse(S, "save_rows takes a scipy.sparse matrix, one of this library, or a function that makes rows")
        pieces = -(-sum(a.nbytes for a in (whole.data, whole.indices, whole.indptr)) // PART)
        shape, rows_of = whole.shape, lambda a, b: whole[a:b]
    cuts = row_partition.equal(shape[0], max(1, min(pieces, shape[0])))
    return _Mine(shape, rows_of, cuts, set(cuts[:-1].tolist()))


def save_rows(folder: str | os.PathLike[str], S: Any, n: int | None = None, pieces: int = 1) -> None:
    """Writes a matrix for `saved_rows`.

    Of a sharded matrix in the user's order each process writes the rows of its devices; all must call this, and see
    the folder.

    Args:
      folder: new or empty; remove what an interrupted call has left.
      S: a scipy.sparse matrix, one of this library, or a function such as `rows_of` of `shard_from_rows`.
      n: rows and columns; for a function only.
      pieces: parts, for a function only, which is called once for each; one part is in memory at a time. A process
        later reads whole parts, so they should be no larger than a device's share.

    Raises:
      FileExistsError: the folder holds files. ValueError: a function without n, fewer than one piece, a piece of
        another shape, or of a dtype that the dtype of the first piece cannot hold, or a reordered matrix of several
        processes. TypeError: S or a piece is no matrix, or n or pieces no whole number.
    """
    mine, folder = _mine(S, n, whole_number("pieces", pieces, 1)), Path(folder)
    agreed = functools.partial(everyones, mesh=mine.mesh) if mine.mesh else lambda make: make()
    held: dict[int, Csr] = {}

    def prepare() -> dict[int, tuple[np.dtype, str]]:
        """Makes the folder, and the first part in the process that has it; the id of the matrix."""
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FileExistsError(f"{folder} holds files; name another folder, or remove it")
        if 0 not in mine.first:
            return {}
        held[0] = mine.part(0, int(mine.cuts[1]))
        return {0: (held[0].dtype, secrets.token_hex(8))}

    dtype, matrix = agreed(prepare)[0]

    def write() -> dict[int, Any]:
        for start, stop in itertools.pairwise(mine.cuts.tolist()):
            if start in mine.first:
                csr = held.pop(start) if start in held else mine.part(start, stop, dtype)
                write_csr(folder / _name(start, stop), csr, dtype, rows=mine.shape[0], first=start, matrix=matrix)
        return {}

    agreed(write)


def _sparse(S: Any, wanted: str) -> Csr:
    """S in canonical CSR; a TypeError begins with `wanted`."""
    S = S.to_scipy() if hasattr(S, "to_scipy") else S
    if not scipy.sparse.issparse(S):
        raise TypeError(f"{wanted}; got {type(S).__name__}. scipy.sparse.csr_array makes one of a dense array")
    return canonical(S)


def saved_rows(folder: str | os.PathLike[str]) -> SavedRows:
    """The matrix that `save_rows` wrote; its entries are read when their rows are used.

    Raises:
      FileNotFoundError: the folder has no matrix, or an incomplete one. ValueError: the first part is damaged.
    """
    folder = Path(folder)
    parts = [tuple(map(int, path.stem.split("-"))) for path in sorted(folder.glob("*.npz")) if NAME.match(path.name)]
    if not parts:
        raise FileNotFoundError(f"{folder} holds no rows; was the matrix saved there?")
    header = read_header(path := folder / _name(*parts[0]))
    rows, n_cols, matrix = header.get("rows"), header["shape"][1], header.get("matrix")
    if type(rows) is not int or not isinstance(matrix, str):
        raise broken(path, "it is not a part of a matrix")
    cuts = [0, *(stop for _, stop in parts)]
    if [(start, stop) for start, stop in itertools.pairwise(cuts)] != parts or cuts[-1] != rows:
        raise FileNotFoundError(
            f"{folder} has {len(parts)} parts, which are not all rows from 0 to {rows}; remove it, and "
            "save the matrix anew"
        )
    return SavedRows((rows, n_cols), np.dtype(header["dtype"]), np.array(cuts, np.int64), matrix, folder)
