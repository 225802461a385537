"""A matrix in a folder, of which each process reads its own rows: three flat files mapped into memory, and a header.

    matrix.json   rows, columns, nnz and the dtypes
    indptr.bin    [n_rows + 1] int64          indices.bin   [nnz]          data.bin   [nnz]

The files do not depend on the number of devices.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from jaxsparse_fmt._types import Csr, index_dtype, whole_number
from jaxsparse_fmt.convert import canonical
from jaxsparse_fmt.distributed import row_partition

FORMAT = "jaxsparse rows 1"
LONGEST = 10_000  # bytes of matrix.json
DTYPES = tuple(
    dict.fromkeys(np.dtype(letter).name for letter in "?bhilqBHILQfdgFDG")
)  # of data.bin: all that scipy.sparse holds


@dataclasses.dataclass(frozen=True)
class SavedRows:
    """The rows of a saved matrix, for use as `rows_of` of `shard_from_rows`.

    Attributes:
      indptr, indices, data: mapped files, read when they are used.
    """

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    folder: Path

    def __call__(self, start: int, stop: int) -> Csr:
        """The rows from start to stop, copied into memory.

        Raises:
          ValueError: there are no such rows, or the files do not hold a matrix.
        """
        n_rows, n_cols = self.shape
        if not 0 <= start <= stop <= n_rows:
            raise ValueError(f"rows {start} to {stop} were asked for, and {self.folder} holds rows 0 to {n_rows}")
        pointers = self._pointers(start, stop)
        a, b = int(pointers[0]), int(pointers[-1])
        indices = np.array(self.indices[a:b])
        if indices.size and not (indices.min() >= 0 and indices.max() < n_cols):
            raise _broken(
                self.folder / "indices.bin", f"a column of rows {start} to {stop} is outside 0 to {n_cols - 1}"
            )
        arrays = np.array(self.data[a:b]), indices, pointers - a
        return scipy.sparse.csr_array(arrays, shape=(stop - start, n_cols))

    def starts(self, parts: int) -> np.ndarray:
        """[parts + 1] cuts that give each device about the same number of entries.

        Raises:
          ValueError: the file of row pointers is broken.
        """
        return row_partition.equal_nnz(np.diff(self._pointers(0, self.shape[0])), parts)

    def _pointers(self, start: int, stop: int) -> np.ndarray:
        pointers = np.array(self.indptr[start : stop + 1])
        nnz = self.data.size
        lowest, highest = (0 if start == 0 else pointers[0]), (nnz if stop == self.shape[0] else pointers[-1])
        if pointers[0] != max(lowest, 0) or pointers[-1] != min(highest, nnz) or np.any(pointers[1:] < pointers[:-1]):
            rising = f"do not rise from 0 to {nnz}"
            raise _broken(self.folder / "indptr.bin", f"the pointers of rows {start} to {stop} {rising}")
        return pointers


def _broken(path: Path, what: str) -> ValueError:
    return ValueError(f"{path}: {what}; save the matrix anew")


def save_rows(folder: str | os.PathLike[str], S: Any, n: int | None = None, pieces: int = 1) -> None:
    """Writes a matrix for `saved_rows`.

    Args:
      folder: new or empty.
      S: a scipy.sparse matrix, one of this library, or a function such as `rows_of` of `shard_from_rows`; its pieces,
        each the rows of one call, are held one at a time.
      n: rows and columns, for a function.
      pieces: the number of calls of the function.

    Raises:
      FileExistsError: the folder is not empty. ValueError: a function without n, fewer than one piece, or a piece of
        another shape, or of a dtype that the dtype of the first piece cannot hold. TypeError: S or a piece is no
        matrix, or n or pieces no whole number.
    """
    pieces = whole_number("pieces", pieces, 1)
    if callable(S):
        if n is None:
            raise ValueError("n, the number of rows and columns, must be given with a function that makes rows")
        n = whole_number("n", n)
        shape, rows_of = (n, n), S
    else:
        whole = _sparse(S, "save_rows takes a scipy.sparse matrix, one of this library, or a function that makes rows")
        shape, rows_of, pieces = whole.shape, lambda a, b: whole[a:b], 1
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name another folder, or remove what is in it")
    index = np.dtype(index_dtype(shape[1]))
    dtype = _written(folder, rows_of, row_partition.equal(shape[0], pieces), shape[1], index)
    nnz = (folder / "indices.bin").stat().st_size // index.itemsize
    header = {"format": FORMAT, "shape": shape, "nnz": nnz, "dtype": dtype.name, "index": index.name}
    (folder / "matrix.json").write_text(json.dumps(header) + "\n")  # last: it marks the folder as complete


def _sparse(S: Any, wanted: str) -> Csr:
    """S in canonical CSR; a TypeError begins with `wanted`."""
    S = S.to_scipy() if hasattr(S, "to_scipy") else S
    if not scipy.sparse.issparse(S):
        raise TypeError(f"{wanted}; got {type(S).__name__}. scipy.sparse.csr_array makes one of a dense array")
    return canonical(S)


def _written(
    folder: Path, rows_of: Callable[[int, int], Any], cuts: np.ndarray, n_cols: int, index: np.dtype
) -> np.dtype:
    dtype, before = None, 0
    with (
        open(folder / "indptr.bin", "wb") as indptr,
        open(folder / "indices.bin", "wb") as indices,
        open(folder / "data.bin", "wb") as data,
    ):
        np.zeros(1, np.int64).tofile(indptr)
        for start, stop in itertools.pairwise(cuts.tolist()):
            csr = _sparse(rows_of(start, stop), f"S({start}, {stop}) must give a scipy.sparse matrix")
            dtype = csr.data.dtype if dtype is None else dtype
            if csr.shape != (stop - start, n_cols):
                raise ValueError(f"S({start}, {stop}) must give a matrix {(stop - start, n_cols)}; got {csr.shape}")
            if not np.can_cast(csr.data.dtype, dtype, "safe"):
                raise ValueError(
                    f"S({start}, {stop}) gives {csr.data.dtype} where the first rows were {dtype}, which does not hold "
                    f"it; let S give all its rows as {np.result_type(csr.data.dtype, dtype)}"
                )
            (csr.indptr[1:].astype(np.int64) + before).tofile(indptr)
            csr.indices.astype(index).tofile(indices)
            csr.data.astype(dtype).tofile(data)
            before += csr.nnz
    assert dtype is not None
    return dtype


def saved_rows(folder: str | os.PathLike[str]) -> SavedRows:
    """The matrix that `save_rows` wrote; its entries are read when their rows are used.

    Raises:
      FileNotFoundError: the folder has no matrix, or an incomplete one.
      ValueError: matrix.json is not as `save_rows` writes it, or the other files do not fit it. Sizes are compared
        before any array is allocated.
    """
    folder = Path(folder)
    shape, nnz, dtypes = _header(folder / "matrix.json")
    arrays = {}
    for name, length in {"indptr": shape[0] + 1, "indices": nnz, "data": nnz}.items():
        path, wanted = folder / f"{name}.bin", length * dtypes[name].itemsize
        size = _size(path)
        if size != wanted:
            raise _broken(path, f"{size:,} bytes where {wanted:,} belong")
        arrays[name] = np.memmap(path, dtypes[name], "r", shape=(length,)) if length else np.zeros(0, dtypes[name])
    return SavedRows(shape, **arrays, folder=folder)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no {path}; was the matrix saved there, and to the end?") from None


def _header(path: Path) -> tuple[tuple[int, int], int, dict[str, np.dtype]]:
    """The shape, the number of entries and the dtypes in matrix.json."""
    if _size(path) > LONGEST:
        raise _broken(path, f"more than {LONGEST:,} bytes")
    try:
        header = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"not JSON: {error}") from None
    given = header if isinstance(header, dict) else {}
    if given.get("format") != FORMAT:
        raise ValueError(f"{path} has the format {given.get('format')!r}, not {FORMAT!r}; save the matrix anew")
    shape, nnz, index, dtype = (given.get(name) for name in ("shape", "nnz", "index", "dtype"))
    sizes: list[Any] = [*shape, nnz] if isinstance(shape, list) else [nnz]
    if len(sizes) != 3 or not all(type(size) is int and size >= 0 for size in sizes):
        raise _broken(path, f"shape {shape!r} and nnz {nnz!r} are not the sizes of a matrix")
    wanted = np.dtype(index_dtype(sizes[1])).name
    if index != wanted:
        raise _broken(path, f"index {index!r}, where {sizes[1]:,} columns are counted in {wanted}")
    if dtype not in DTYPES:
        raise _broken(path, f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
    dtypes = {"indptr": np.dtype(np.int64), "indices": np.dtype(index), "data": np.dtype(dtype)}
    return (sizes[0], sizes[1]), sizes[2], dtypes
