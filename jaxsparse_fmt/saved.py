"""A matrix in one `.npz` file: its canonical entries, and how it is stored.

    header    JSON in uint8: version, shape, dtype, backend, and format and options of the storage
    indptr    [n_rows + 1]       indices   [nnz]       data   [nnz], in bfloat16 as uint16

`load` builds the storage anew. So a file has no padding, no kernel reads an index that the conversion from SciPy has
not checked, and a new format needs no line here.
"""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse
from jax.core import Tracer

from jaxsparse_fmt._types import STORABLE, Csr, Target, index_dtype, requested_dtype
from jaxsparse_fmt.convert import checked
from jaxsparse_fmt.core.matrix import FORMATS, SparseMatrix, build
from jaxsparse_fmt.formats.paired import Paired
from jaxsparse_fmt.io.arrays import broken, read_arrays, write_arrays

VERSION = 1
LONGEST = 10_000  # bytes of the header


def save(path: str | os.PathLike[str], A: SparseMatrix) -> None:
    """Writes a matrix in any format to one file, which `load` reads; the file is written whole or not at all.

    Its entries are in canonical order, even those of `A.in_basis`.

    Args:
      path: the file, conventionally `.npz`; one that exists is replaced.
      A: a matrix on one device; it may carry its transpose.

    Raises:
      TypeError: a sharded matrix, a transpose, or not a matrix of this library. ValueError: a stack, a gradient, or a
        traced matrix.
    """
    if not isinstance(A, SparseMatrix):
        raise TypeError(
            f"save takes a matrix of this library on one device, got {type(A).__name__}; save_rows writes sharded "
            "matrices and SciPy's, and A.T.asformat('csr') makes a matrix of a transpose"
        )
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(A)):
        raise ValueError("save needs the numbers of the matrix, which are traced here; call it outside jit")
    csr, dtype = A.to_scipy(), np.dtype(A.dtype)
    data = csr.data.astype(dtype)
    header: dict[str, Any] = {"version": VERSION, "shape": A.shape, "dtype": dtype.name, "backend": A.backend}
    arrays = {"indptr": csr.indptr, "indices": csr.indices, "data": data.view(np.uint16) if _foreign(dtype) else data}
    pair = (A.own, A.across) if isinstance(A, Paired) else (A,)
    header["storage"] = [{"format": B.name, "layout": B.layout} for B in pair]
    write_arrays(Path(path), header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)


def load(path: str | os.PathLike[str], dtype: Any = None, *, max_bytes: float | None = None) -> SparseMatrix:
    """The matrix that `save` wrote, in the same format with the same options, and `data` to the bit.

    Nothing in the file is trusted: sizes, pointers, indices and options are checked, and no object is unpickled.

    Args:
      dtype: of the stored values; None keeps the file's.
      max_bytes: as in `from_scipy`.

    Raises:
      FileNotFoundError: no such file. ValueError: a file that is damaged, of a newer version or of a format unknown
        here, a dtype that JAX cannot hold at present, or a storage too large; the message names the file and the cure.
    """
    path = Path(path)
    arrays = read_arrays(path, "header", "indptr", "indices", "data")
    header = _header(path, arrays.pop("header"))
    stored = requested_dtype(header["dtype"] if dtype is None else dtype)
    S = _csr(path, header, arrays)
    try:
        csr, target = checked(S, stored, header["backend"], max_bytes)
        if csr.nnz != arrays["data"].size:
            raise broken(path, "it lists an entry twice")
        return _store(csr, header["storage"], target)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path} holds no matrix that can be built here: {error}") from error


def _store(csr: Csr, storage: list[dict[str, Any]], target: Target) -> SparseMatrix:
    A = build(csr, storage[0]["format"], target, **storage[0]["layout"])
    if len(storage) == 1:
        return A
    return Paired.from_csr(csr, A=A, across=lambda turned: _store(turned, storage[1:], target))


def _header(path: Path, text: np.ndarray) -> dict[str, Any]:
    """The header, with every field checked, and lists in the options as tuples."""
    if text.size > LONGEST:
        raise broken(path, "its header is too long")
    try:
        header = json.loads(text.tobytes())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise broken(path, "its header is not JSON") from None
    version = header.get("version") if isinstance(header, dict) else None
    if type(version) is not int or version < 1:
        raise broken(path, f"its header names no version: {version!r}")
    if version > VERSION:
        raise ValueError(f"{path}: version {version} is newer than {VERSION}, the newest read here; update jaxsparse")
    shape, storage = header.get("shape"), header.get("storage")
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and 0 <= n < 2**31 for n in shape)):
        raise broken(path, f"shape {shape!r} is no two numbers from 0 to {2**31 - 1}")
    if header.get("dtype") not in STORABLE or not isinstance(header.get("backend"), str):
        raise broken(path, f"dtype {header.get('dtype')!r} or backend {header.get('backend')!r} is unknown")
    if not (isinstance(storage, list) and len(storage) in (1, 2) and all(isinstance(s, dict) for s in storage)):
        raise broken(path, f"storage {storage!r} is not a list of one or two formats")
    for one in storage:
        name, layout = one.get("format"), one.get("layout")
        if not isinstance(name, str) or name not in FORMATS:
            raise ValueError(f"{path}: format {name!r} is unknown here; update jaxsparse, or save in another format")
        if not isinstance(layout, dict) or set(layout) != set(FORMATS[name].layout_options):
            raise broken(path, f"format {name!r} has the options {FORMATS[name].layout_options}, not {layout!r}")
        one["layout"] = {k: tuple(v) if isinstance(v, list) else v for k, v in layout.items()}
        if not all(_option(v) for v in one["layout"].values()):
            raise broken(path, f"options of format {name!r} are not numbers or words: {layout!r}")
    return header


def _csr(path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Csr:
    """The arrays as SciPy's matrix; `checked` reads its pointers and indices before anything uses them."""
    dtype, (n_rows, n_cols) = np.dtype(header["dtype"]), header["shape"]
    data, indices, indptr = arrays["data"], arrays["indices"], arrays["indptr"]
    if data.dtype != (np.uint16 if _foreign(dtype) else dtype):
        raise broken(path, f"data has dtype {data.dtype}, where the header names {dtype}")
    if not indices.dtype == indptr.dtype == index_dtype(data.size):
        raise broken(path, f"indices and indptr have dtypes {indices.dtype} and {indptr.dtype}")
    if indices.size != data.size or indptr.size != n_rows + 1 or indptr[-1] != data.size:
        raise broken(
            path, f"{n_rows} rows and {data.size} entries do not fit {indptr.size} pointers and {indices.size} indices"
        )
    data = data.view(dtype) if _foreign(dtype) else data
    S = scipy.sparse.csr_array((n_rows, n_cols), dtype=np.promote_types(dtype, np.float32))
    S.data, S.indices, S.indptr = data.astype(S.dtype), indices, indptr
    return S


def _foreign(dtype: np.dtype) -> bool:
    """Whether NumPy's files have no name for the dtype, as for bfloat16."""
    return dtype.kind == "V" or dtype.name == "bfloat16"


def _option(value: Any) -> bool:
    single = isinstance(value, bool | int | str | None)
    return single or (isinstance(value, tuple) and all(type(n) is int for n in value))
