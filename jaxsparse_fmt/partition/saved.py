"""A matrix in a folder, of which each process reads its rows: three flat files, mapped into memory, and a word on them.

    matrix.json   rows, columns, nnz and the dtypes
    indptr.bin    [n_rows + 1] int64          indices.bin   [nnz]          data.bin   [nnz]

It says nothing of devices: what was saved from eight loads onto three.
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

from jaxsparse_fmt._types import Csr, whole_number
from jaxsparse_fmt.convert import canonical
from jaxsparse_fmt.partition import rows

FORMAT = "jaxsparse rows 1"


@dataclasses.dataclass(frozen=True)
class SavedRows:
    """The rows of a saved matrix: what `shard_from_rows` takes for `rows_of`.

    Attributes:
      indptr, indices, data: mapped files; what is not asked for is not read.
    """

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray

    def __call__(self, start: int, stop: int) -> Csr:
        """Rows start to stop, in memory of their own."""
        a, b = int(self.indptr[start]), int(self.indptr[stop])
        arrays = np.array(self.data[a:b]), np.array(self.indices[a:b]), self.indptr[start : stop + 1] - a
        return scipy.sparse.csr_array(arrays, shape=(stop - start, self.shape[1]))

    def starts(self, parts: int) -> np.ndarray:
        """Cuts [parts + 1] after which each of so many devices has its share of the entries."""
        return rows.equal_nnz(np.diff(self.indptr), parts)


def save_rows(folder: str | os.PathLike[str], S: Any, n: int | None = None, pieces: int = 1) -> None:
    """Writes a matrix for `saved_rows`.

    Args:
      folder: is made, or is empty.
      S: a scipy.sparse matrix, one of ours, or a function as `shard_from_rows` takes it, of which a piece is held at a
        time.
      n: rows and columns, for a function.
      pieces: in how many calls the function is asked for its rows.

    Raises:
      FileExistsError: the folder holds something. ValueError: a function without n, no pieces, or pieces of another
        width than the first, or of numbers that its dtype does not hold. TypeError: S or a piece is no matrix, n or
        pieces no whole number.
    """
    pieces = whole_number("pieces", pieces, 1)
    if callable(S):
        if n is None:
            raise ValueError("n, the number of rows and columns, must be given with a function that makes rows")
        n = whole_number("n", n)
        shape, rows_of = (n, n), S
    else:
        whole = _sparse(S, "save_rows takes a scipy.sparse matrix, one of ours, or a function that makes rows")
        shape, rows_of, pieces = whole.shape, lambda a, b: whole[a:b], 1
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name another folder, or remove what is in it")
    index = np.dtype(np.int32 if shape[1] < 2**31 else np.int64)
    dtype = _written(folder, rows_of, rows.equal(shape[0], pieces), shape[1], index)
    nnz = (folder / "indices.bin").stat().st_size // index.itemsize
    told = {"format": FORMAT, "shape": shape, "nnz": nnz, "dtype": dtype.name, "index": index.name}
    (folder / "matrix.json").write_text(json.dumps(told) + "\n")  # last: without it nothing is there


def _sparse(S: Any, wanted: str) -> Csr:
    """S in canonical CSR; the TypeError begins with what is wanted."""
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
    """The matrix that `save_rows` wrote, unread.

    Raises:
      FileNotFoundError: nothing was saved there, or not to its end.
      ValueError: the files do not fit what is said of them.
    """
    folder = Path(folder)
    try:
        told = json.loads((folder / "matrix.json").read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no matrix.json; was the matrix saved there, and to the end?") from None
    if told.get("format") != FORMAT:
        raise ValueError(f"{folder}/matrix.json says {told.get('format')!r}, where {FORMAT!r} can be read")
    lengths = {"indptr": told["shape"][0] + 1, "indices": told["nnz"], "data": told["nnz"]}
    dtypes = {"indptr": np.dtype(np.int64), "indices": np.dtype(told["index"]), "data": np.dtype(told["dtype"])}
    arrays = {}
    for name, length in lengths.items():
        path, wanted = folder / f"{name}.bin", length * dtypes[name].itemsize
        size = path.stat().st_size
        if size != wanted:
            raise ValueError(f"{path} has {size:,} bytes where {wanted:,} belong; save the matrix anew")
        arrays[name] = np.memmap(path, dtypes[name], "r", shape=(length,)) if length else np.zeros(0, dtypes[name])
    return SavedRows(tuple(told["shape"]), **arrays)
