"""A matrix in a folder, of which each process reads its own rows: parts, each the next rows, and a header.

    matrix.npz          rows, columns, an empty array in the dtype of the entries, and where the rows of each part begin
    000000000000.npz    indptr [rows + 1] from 0, indices and data [nnz] of the part whose first row is 0
    000000131072.npz    of the next part

Each part is written whole or not at all, and its arrays have checksums (`io/arrays.py`). The files do not depend on the
number of devices.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import Csr, index_dtype, whole_number, write_whole
from jaxsparse_fmt.convert import canonical
from jaxsparse_fmt.distributed import row_partition
from jaxsparse_fmt.distributed.pieces import pieces as rows_of_shards
from jaxsparse_fmt.distributed.pieces import starts_of
from jaxsparse_fmt.distributed.processes import alone, everyones
from jaxsparse_fmt.io.arrays import broken, content_of, read_arrays

VERSION = 3
HEADER = "matrix.npz"
PART = 2**26  # bytes of a part of a matrix that is held whole
DTYPES = tuple(dict.fromkeys(np.dtype(letter).name for letter in "?bhilqBHILQfdgFDG"))  # all that scipy.sparse holds


@dataclasses.dataclass(frozen=True)
class SavedRows:
    """The rows of a saved matrix, for use as `rows_of` of `shard_from_rows`; a part is read when its rows are used.

    Attributes:
      cuts: the first row of each part, and the number of rows.
    """

    shape: tuple[int, int]
    dtype: np.dtype
    cuts: np.ndarray
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
        rows = [self._part(k)[max(start - self.cuts[k], 0) : stop - self.cuts[k]] for k in used]
        none = scipy.sparse.csr_array((0, n_cols), dtype=self.dtype)
        return rows[0] if len(rows) == 1 else scipy.sparse.csr_array(scipy.sparse.vstack([none, *rows], format="csr"))

    def starts(self, parts: int) -> np.ndarray:
        """[parts + 1] cuts that give each device about the same number of entries; reads all row pointers.

        Raises:
          ValueError: a part is damaged.
        """
        lengths = [np.diff(self._pointers(k, read_arrays(self._path(k), "indptr"))) for k in range(len(self.cuts) - 1)]
        return row_partition.equal_nnz(np.concatenate(lengths), parts)

    def _path(self, k: int) -> Path:
        return self.folder / _name(self.cuts[k])

    def _part(self, k: int) -> Csr:
        path, arrays = self._path(k), read_arrays(self._path(k), "indptr", "indices", "data")
        pointers, indices, data = self._pointers(k, arrays), arrays["indices"], arrays["data"]
        if data.dtype != self.dtype or indices.dtype != index_dtype(self.shape[1]):
            raise broken(path, f"it has {data.dtype} at {indices.dtype} columns, and {HEADER} {self.dtype}")
        if not pointers[-1] == data.size == indices.size:
            raise broken(path, f"{pointers[-1]} entries do not fit {data.size} values and {indices.size} columns")
        if indices.size and not (indices.min() >= 0 and indices.max() < self.shape[1]):
            raise broken(path, f"a column is outside 0 to {self.shape[1] - 1}")
        return scipy.sparse.csr_array((data, indices, pointers), shape=(len(pointers) - 1, self.shape[1]))

    def _pointers(self, k: int, arrays: dict[str, np.ndarray]) -> np.ndarray:
        pointers, n_rows = arrays["indptr"], self.cuts[k + 1] - self.cuts[k]
        if pointers.dtype != np.int64 or pointers.size != n_rows + 1:
            raise broken(self._path(k), f"{pointers.size} row pointers of {pointers.dtype} do not fit {n_rows} rows")
        held = self._path(k).stat().st_size // (self.dtype.itemsize + np.dtype(index_dtype(self.shape[1])).itemsize)
        if pointers[-1] > held:
            raise broken(self._path(k), f"{pointers[-1]} entries are more than the {held} that such a file can hold")
        if pointers[0] != 0 or np.any(pointers[1:] < pointers[:-1]):
            raise broken(self._path(k), "the row pointers do not rise from 0")
        return pointers


def _name(first: int) -> str:
    return f"{first:012d}.npz"


@dataclasses.dataclass(frozen=True)
class _Mine:
    """The parts that this process writes.

    Attributes:
      cuts: of all parts.
      first: the first rows of its own.
      held: whether rows_of gives rows that lie in memory, so that parts are written again rather than trusted.
      mesh: of a sharded matrix, which all processes write together; else None.
    """

    shape: tuple[int, int]
    rows_of: Callable[[int, int], Any]
    cuts: np.ndarray
    first: set[int]
    held: bool
    mesh: Any = None

    def part(self, start: int, stop: int, dtype: Any = None) -> Csr:
        """The rows of one part, of values that `dtype` can hold; None: of any."""
        csr = _sparse(self.rows_of(start, stop), f"S({start}, {stop}) must give a scipy.sparse matrix")
        if csr.shape != (stop - start, self.shape[1]):
            raise ValueError(f"S({start}, {stop}) must give a matrix {(stop - start, self.shape[1])}; got {csr.shape}")
        if dtype is not None and not np.can_cast(csr.data.dtype, dtype, "safe"):
            raise ValueError(
                f"S({start}, {stop}) gives {csr.data.dtype} where the first rows were {dtype}, which does not hold "
                f"it; let S give all its rows as {np.result_type(csr.data.dtype, dtype)}"
            )
        return csr


def _mine(S: Any, n: int | None, pieces: int) -> _Mine:
    if hasattr(S, "shards"):
        S._check_users_order("rows")
        over, in_users_order = S.range.over, S.range.route is None and S.domain.route is None
        if in_users_order and S.range.n:
            starts, own = starts_of(over), rows_of_shards(S, np.promote_types(S.dtype, np.float32))
            rows = {int(starts[k]): of for k, of in own.items() if of.shape[0]}
            return _Mine((S.range.n, S.domain.n), lambda a, b: rows[a], np.unique(starts), set(rows), True, over.mesh)
        if not alone(over.mesh):
            raise ValueError("several processes save a sharded matrix in the user's order only; shard without reorder=")
    if callable(S):
        if n is None:
            raise ValueError("n, the number of rows and columns, must be given with a function that makes rows")
        n = whole_number("n", n)
        cuts = row_partition.equal(n, max(1, min(pieces, n)))
        return _Mine((n, n), S, cuts, set(cuts[:-1].tolist()), False)
    whole = _sparse(S, "save_rows takes a scipy.sparse matrix, one of this library, or a function that makes rows")
    nbytes = sum(a.nbytes for a in (whole.data, whole.indices, whole.indptr))
    cuts = row_partition.equal(whole.shape[0], max(1, min(-(-nbytes // PART), whole.shape[0])))
    return _Mine(whole.shape, lambda a, b: whole[a:b], cuts, set(cuts[:-1].tolist()), True)


def save_rows(folder: str | os.PathLike[str], S: Any, n: int | None = None, pieces: int = 1) -> None:
    """Writes a matrix for `saved_rows`; the same call continues one that was interrupted.

    Before it continues, it compares the shape, the parts, the dtype and the first part. It keeps the parts of a
    function that are written already, and writes those of a matrix again.

    Of a sharded matrix in the user's order each process writes the rows of its devices; all must call this, and see
    the folder.

    Args:
      folder: new or empty, or as an interrupted call has left it.
      S: a scipy.sparse matrix, one of this library, or a function such as `rows_of` of `shard_from_rows`; its pieces,
        each the rows of one call and one file, are held one at a time.
      n: rows and columns, for a function.
      pieces: the number of parts; the function is called once for each. A process later reads whole parts, so they
        should be no larger than a device's share.

    Raises:
      FileExistsError: the folder holds other files, all parts, or parts of another matrix. ValueError: a function
        without n, fewer than one piece, a piece of another shape, or of a dtype that the dtype of the first piece
        cannot hold, or a reordered matrix of several processes. TypeError: S or a piece is no matrix, or n or pieces no
        whole number.
    """
    mine, folder = _mine(S, n, whole_number("pieces", pieces, 1)), Path(folder)
    shape, cuts = mine.shape, mine.cuts
    agreed = functools.partial(everyones, mesh=mine.mesh) if mine.mesh else lambda make: make()
    parts: dict[int, bytes] = {}

    def content(csr: Csr, dtype: np.dtype) -> bytes:
        indices, data = csr.indices.astype(index_dtype(shape[1])), csr.data.astype(dtype)
        return content_of(indptr=csr.indptr.astype(np.int64), indices=indices, data=data)

    def first() -> dict[int, np.dtype]:
        """Makes the first part in the process that has it, and returns its dtype."""
        if 0 not in mine.first:
            return {}
        csr = mine.part(0, int(cuts[1]))
        parts[0] = content(csr, csr.data.dtype)
        return {0: csr.data.dtype}

    dtype = agreed(first)[0]
    header = content_of(version=[VERSION], shape=np.array(shape, np.int64), starts=cuts, dtype=np.zeros(0, dtype))

    def prepare() -> dict[int, Any]:
        there = {path.name for path in folder.glob("*")}
        if HEADER not in there and any(not name.startswith(".") for name in there):
            raise FileExistsError(f"{folder} is not empty; name another folder, or remove what is in it")
        told = {HEADER: header} | {_name(start): of for start, of in parts.items()}
        differs = any((folder / name).read_bytes() != of for name, of in told.items() if name in there)
        if differs or {HEADER, *map(_name, cuts[:-1])} <= there:
            raise FileExistsError(f"{folder} holds this matrix already, or another; name another folder, or remove it")
        for scratch in [*folder.glob(f".{HEADER}-*"), *folder.glob(".[0-9]*.npz-*")]:  # of a call that was killed
            scratch.unlink(missing_ok=True)
        return {}

    def write() -> dict[int, Any]:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / HEADER, header)
        for start, stop in itertools.pairwise(cuts.tolist()):
            path = folder / _name(start)
            if start in mine.first and (mine.held or not path.exists()):
                write_whole(path, parts.pop(start, None) or content(mine.part(start, stop, dtype), dtype))
        return {}

    agreed(prepare)
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
      FileNotFoundError: the folder has no matrix, or an incomplete one. ValueError: the header is damaged.
    """
    folder = Path(folder)
    shape, dtype, cuts = _header(folder / HEADER)
    written = sum(1 for _ in folder.glob("[0-9]*.npz"))
    if written < len(cuts) - 1:
        cure = "call save_rows as before, and it writes the rest"
        raise FileNotFoundError(f"{folder} has {written} of {len(cuts) - 1} parts; {cure}")
    return SavedRows(shape, dtype, cuts, folder)


def _header(path: Path) -> tuple[tuple[int, int], np.dtype, np.ndarray]:
    """The shape, the dtype of the entries, and the first row of each part and the number of rows."""
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}; was the matrix saved there?")
    version, shape, cuts, like = read_arrays(path, "version", "shape", "starts", "dtype").values()
    if version.tolist() != [VERSION]:
        raise broken(path, f"the version {version.tolist()} is not {VERSION}")
    if not (shape.dtype == cuts.dtype == np.int64 and shape.size == 2 and np.all(shape >= 0) and cuts.size > 1):
        raise broken(path, f"shape {shape.tolist()} or {cuts.size} starts are not those of a matrix")
    n_rows, n_cols = shape.tolist()
    if cuts[0] != 0 or cuts[-1] != n_rows or np.any(np.diff(cuts) < (n_rows > 0)):
        raise broken(path, f"starts do not rise from 0 to {n_rows}")
    if like.dtype.name not in DTYPES:
        raise broken(path, f"dtype {like.dtype} is none of {', '.join(DTYPES)}")
    return (n_rows, n_cols), like.dtype, cuts
