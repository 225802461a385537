"""A matrix in CSR in one uncompressed `.npz` file, written whole or not at all; each array has a checksum (CRC-32).

    header    JSON in uint8: version, shape, dtype, and what the writer adds
    indptr    int64 [n_rows + 1]      indices   int32 or int64 [nnz]      data   [nnz], in bfloat16 as uint16

`saved.py` writes and reads such a file. Nothing in a file is trusted.
"""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from jaxsparse_fmt._dtypes import index_dtype
from jaxsparse_fmt._files import replacing
from jaxsparse_fmt._types import Csr

VERSION = 4
DTYPES = {np.dtype(letter).name for letter in "?bhilqBHILQefdgFDG"} | {"bfloat16"}


def write_csr(path: Path, csr: Csr, dtype: Any, **header: Any) -> None:
    """Writes a canonical matrix with entries of `dtype`, and more words of the header."""
    dtype = np.dtype(dtype)
    header = {"version": VERSION, "shape": csr.shape, "dtype": dtype.name} | header
    data, indices = csr.data.astype(dtype), csr.indices.astype(index_dtype(csr.shape[1]))
    data = data.view(np.uint16) if dtype.name == "bfloat16" else data
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with replacing(path) as file:
        np.savez(file, header=text, indptr=csr.indptr.astype(np.int64), indices=indices, data=data)


def read_csr(path: Path) -> tuple[dict[str, Any], Csr]:
    """The header and the matrix, whose rows may be unsorted; SciPy has no 16-bit floats, which become float32.

    Raises:
      FileNotFoundError: no such file. ValueError: the file is damaged, newer, or holds no matrix.
    """
    text, indptr, indices, data = _arrays(path, "header", "indptr", "indices", "data")
    header = _header(path, text)
    dtype, (n_rows, n_cols) = np.dtype(header["dtype"]), header["shape"]
    if indptr.dtype != np.int64 or indptr.size != n_rows + 1:
        raise broken(path, f"{indptr.size} row pointers of {indptr.dtype} do not fit {n_rows} rows")
    if indptr[0] != 0 or np.any(indptr[1:] < indptr[:-1]) or indptr[-1] != data.size:
        raise broken(path, f"the row pointers do not rise from 0 to the {data.size} entries")
    if data.dtype != (np.uint16 if dtype.name == "bfloat16" else dtype) or indices.dtype != index_dtype(n_cols):
        raise broken(path, f"it has {data.dtype} at {indices.dtype} columns, and its header names {dtype}")
    if indices.size != data.size:
        raise broken(path, f"{indices.size} columns do not fit {data.size} values")
    if indices.size and not (indices.min() >= 0 and indices.max() < n_cols):
        raise broken(path, f"a column is outside 0 to {n_cols - 1}")
    data = data.view(dtype).astype(np.float32) if dtype.name in ("bfloat16", "float16") else data
    return header, scipy.sparse.csr_array((data, indices, indptr), shape=tuple(header["shape"]))


def broken(path: Path, what: str) -> ValueError:
    return ValueError(f"{path}: {what}; save the matrix anew")


def _arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Members of the file, each [n]; their size is bounded by the file's, since none may be compressed."""
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
        with np.load(path, allow_pickle=False) as found:
            if "format" in found:
                raise ValueError("it is SciPy's: take from_scipy(scipy.sparse.load_npz(path))")
            if any(one.compress_type != zipfile.ZIP_STORED or one.file_size > path.stat().st_size for one in members):
                raise ValueError("a member is compressed, or larger than the file")
            arrays = [found[name] for name in names]
        if not all(isinstance(a, np.ndarray) and a.ndim == 1 and a.dtype.kind in "biufc" for a in arrays):
            raise ValueError("a member is no array of numbers [n]")
        return arrays
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    # Of whatever kind: NumPy parses headers as Python, and damaged bytes may look like another kind of zip.
    except Exception as error:
        others = "read a .mat by from_scipy(scipy.io.loadmat(path)[name]), a .mtx by read_mtx"
        raise ValueError(
            f"{path}: it is no whole file of `save` ({error}); save the matrix anew, or {others}"
        ) from None


def _header(path: Path, text: np.ndarray) -> dict[str, Any]:
    try:
        header = json.loads(text.tobytes())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise broken(path, "its header is not JSON") from None
    version = header.get("version") if isinstance(header, dict) else None
    if type(version) is not int or version != VERSION:
        raise broken(path, f"its version is {version!r}, and this library reads {VERSION}")
    shape, dtype = header.get("shape"), header.get("dtype")
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and 0 <= n < 2**63 for n in shape)):
        raise broken(path, f"shape {shape!r} is not that of a matrix")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise broken(path, f"dtype {dtype!r} is unknown")
    return header
