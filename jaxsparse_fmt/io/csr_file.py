"""A matrix in CSR in one uncompressed `.npz` file, written whole or not at all; each array has a checksum (CRC-32).

    header    JSON in uint8: version, shape, dtype, and what the writer adds
    indptr    int64 [n_rows + 1]      indices   int32 or int64 [nnz]      data   [nnz], in bfloat16 as uint16

`saved.py` writes and reads such a file. Nothing in a file is trusted.
"""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from jaxsparse_fmt._types import Csr, index_dtype, replacing

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
    header, arrays = _read(path, "indptr", "indices", "data")
    dtype, n_cols = np.dtype(header["dtype"]), header["shape"][1]
    indptr, indices, data = arrays["indptr"], arrays["indices"], arrays["data"]
    if data.dtype != (np.uint16 if dtype.name == "bfloat16" else dtype) or indices.dtype != index_dtype(n_cols):
        raise broken(path, f"it has {data.dtype} at {indices.dtype} columns, and its header names {dtype}")
    if not indptr[-1] == data.size == indices.size:
        raise broken(path, f"{indptr[-1]} entries do not fit {data.size} values and {indices.size} columns")
    if indices.size and not (indices.min() >= 0 and indices.max() < n_cols):
        raise broken(path, f"a column is outside 0 to {n_cols - 1}")
    data = data.view(dtype).astype(np.float32) if dtype.name in ("bfloat16", "float16") else data
    return header, scipy.sparse.csr_array((data, indices, indptr), shape=tuple(header["shape"]))


def broken(path: Path, what: str) -> ValueError:
    return ValueError(f"{path}: {what}; save the matrix anew")


def _read(path: Path, *names: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and arrays, with the row pointers checked."""
    try:
        with zipfile.ZipFile(path) as file:
            if "format.npy" in file.namelist():
                raise ValueError(f"{path}: is SciPy's: take jsf.from_scipy(scipy.sparse.load_npz(path))")
            text, *arrays = (_array(path, file, name) for name in ("header", *names))
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    # Damaged bytes may look like an encrypted file, another version of zip or an offset before the file.
    except (zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, OSError, RuntimeError) as error:
        others = "read a .mat by jsf.from_scipy(scipy.io.loadmat(path)[name]), a .mtx by jsf.read_mtx"
        what = f"it is no whole file of jsf.save ({error}); save the matrix anew, or {others}"
        raise ValueError(f"{path}: {what}") from None
    header, of = _header(path, text), dict(zip(names, arrays, strict=True))
    if "indptr" in of:
        pointers, (n_rows, n_cols) = of["indptr"], header["shape"]
        each = np.dtype(header["dtype"]).itemsize + np.dtype(index_dtype(n_cols)).itemsize
        if pointers.dtype != np.int64 or pointers.size != n_rows + 1:
            raise broken(path, f"{pointers.size} row pointers of {pointers.dtype} do not fit {n_rows} rows")
        if pointers[0] != 0 or np.any(pointers[1:] < pointers[:-1]) or pointers[-1] > path.stat().st_size // each:
            raise broken(path, "the row pointers do not rise from 0 to as many entries as such a file can hold")
    return header, of


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


def _array(path: Path, file: zipfile.ZipFile, name: str) -> np.ndarray:
    """A member, [n]; its size is bounded by the file's, since it must be stored without compression."""
    info = file.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > path.stat().st_size:
        raise broken(path, f"{name} is compressed, or larger than the file")
    raw = file.read(info)
    stream = io.BytesIO(raw)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    except (ValueError, EOFError):
        raise broken(path, f"{name} is no array") from None
    if dtype.hasobject or len(shape) != 1 or len(raw) - stream.tell() != shape[0] * dtype.itemsize or shape[0] < 0:
        raise broken(path, f"{name} is no array of numbers of shape {shape}")
    return np.frombuffer(raw, dtype, shape[0], stream.tell()).copy()  # SciPy sorts in place
