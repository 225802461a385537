"""A matrix in one uncompressed `.npz` file: its canonical entries, and its formats with their options.

    header    JSON in uint8: version, shape, dtype, backend, storage
    indptr    int64 [n_rows + 1]      indices   int32 or int64 [nnz]      data   [nnz], in bfloat16 as uint16

`load` builds the storage anew. So a file has no padding, no kernel reads an index that the conversion from SciPy has
not checked, and a new format needs no line here. Nothing in a file is trusted; each array has a checksum (CRC-32).
"""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from jaxsparse_fmt._dtypes import index_dtype, requested_dtype
from jaxsparse_fmt._files import AnyPath, regular, replacing
from jaxsparse_fmt._tracing import is_traced
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.convert import checked
from jaxsparse_fmt.core.matrix import FORMATS, SparseMatrix, build
from jaxsparse_fmt.formats.paired import Paired

VERSION = 4
DTYPES = {np.dtype(letter).name for letter in "?bhilqBHILQefdgFDG"} | {"bfloat16"}


def save(path: AnyPath, A: SparseMatrix) -> None:
    """Writes a matrix in any format to one file, which `load` reads; the file is written whole or not at all.

    Its entries are in canonical order, even those of `A.in_basis`.

    Args:
      path: the file, conventionally `.npz`; one that exists is replaced, and keeps its mode.
      A: a matrix on one device; it may carry its transpose.

    Raises:
      TypeError: a sharded matrix, a transpose, or not a matrix of this library. ValueError: a stack, a gradient, or a
        traced matrix. OSError: no folder, one that cannot be written to, or a file that is read-only.

    Examples:
      >>> js.save(folder / "A.npz", A)
    """
    path = os.fsdecode(path)
    if Path(path).suffix in (".mtx", ".gz", ".mat"):
        raise ValueError(f"save writes .npz, got {path!r}; io.write_mtx(path, A) writes Matrix Market")
    if not isinstance(A, SparseMatrix):
        raise TypeError(
            f"save takes a matrix of this library on one device, got {type(A).__name__}; A.to_scipy() makes a "
            "SciPy matrix of a sharded one, and A.T.asformat('csr') a matrix of a transpose"
        )
    if is_traced(A):
        raise ValueError("save needs the numbers of the matrix, which are traced here; call it outside jit")
    stored = (A.storage, A.storage_T) if isinstance(A, Paired) else (A,)
    storage = [{"format": B.name, "layout": B.layout} for B in stored]
    header = {"version": VERSION, "shape": A.shape, "dtype": A.dtype.name, "backend": A.backend, "storage": storage}
    csr = A.to_scipy()
    data, indices = csr.data.astype(A.dtype), csr.indices.astype(index_dtype(csr.shape[1]))
    data = data.view(np.uint16) if A.dtype.name == "bfloat16" else data
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with replacing(path) as file:
        np.savez(file, header=text, indptr=csr.indptr.astype(np.int64), indices=indices, data=data)


def load(path: AnyPath, dtype: Any = None, *, max_bytes: float | None = None) -> SparseMatrix:
    """The matrix that `save` wrote, in the same format with the same options, and `data` to the bit.

    Nothing in the file is trusted: sizes, pointers, indices and options are checked, and no object is unpickled.

    Args:
      dtype: of the stored values; None keeps the file's.
      max_bytes: as in `from_scipy`.

    Raises:
      OSError: no such file. ValueError: a pipe or a device; a file that is damaged, of another version or of a format
        unknown here; a dtype that JAX cannot hold at present, or a storage too large. The message names the file and
        the cure.

    Examples:
      >>> js.save(folder / "A.npz", A)
      >>> js.load(folder / "A.npz").nnz == A.nnz
      True
    """
    path = regular(path)
    text, indptr, indices, data = _arrays(path, "header", "indptr", "indices", "data")
    header, storage = _header(path, text)
    given = np.dtype(header["dtype"])
    found = f"{indptr.dtype} pointers, {indices.dtype} columns and {data.dtype} values"
    stored_as = "uint16" if given.name == "bfloat16" else given
    wanted = f"int64 pointers, {np.dtype(index_dtype(header['shape'][1]))} columns and {stored_as} values"
    if found != wanted:
        raise broken(path, f"it has {found}; by its header they are {wanted}")
    # SciPy has no 16-bit floats.
    data = data.view(given).astype(np.float32) if given.name in ("bfloat16", "float16") else data
    try:
        S = scipy.sparse.csr_array((data, indices, indptr), shape=header["shape"])
        stored = requested_dtype(given if dtype is None else dtype)
        csr, target = checked(S, stored, header["backend"], max_bytes)
        if csr.nnz != data.size:
            raise broken(path, "it lists an entry twice, or one outside of the rows")
        return _store(csr, storage, target)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path} holds no matrix that can be built here: {error}") from error


def _store(csr: Csr, storage: list[dict[str, Any]], target: Target) -> SparseMatrix:
    A = build(csr, storage[0]["format"], target, **storage[0]["layout"])
    if len(storage) == 1:
        return A
    return Paired.from_csr(csr, A=A, store=lambda S: _store(S, storage[1:], target))


def broken(path: Path, what: str) -> ValueError:
    return ValueError(f"{path}: {what}; save the matrix anew")


def _arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Members of the file, each [n]; their size is bounded by the file's, since none may be compressed."""
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
        with np.load(path, allow_pickle=False) as found:
            if "format" in found:
                raise ValueError("it is SciPy's: use from_scipy(scipy.sparse.load_npz(path))")
            if any(one.compress_type != zipfile.ZIP_STORED or one.file_size > path.stat().st_size for one in members):
                raise ValueError("a member is compressed, or larger than the file")
            arrays = [found[name] for name in names]
        if not all(isinstance(a, np.ndarray) and a.ndim == 1 and a.dtype.kind in "biufc" for a in arrays):
            raise ValueError("a member is no array of numbers [n]")
        return arrays
    except (FileNotFoundError, PermissionError):
        raise
    # Of whatever kind: NumPy parses headers as Python, and damaged bytes may look like another kind of zip.
    except Exception as error:
        others = "read a .mat by from_scipy(scipy.io.loadmat(path)[name]), a .mtx by read_mtx"
        raise ValueError(
            f"{path}: it is no whole file of `save` ({str(error)[:200]}); save the matrix anew, or {others}"
        ) from None


def _header(path: Path, text: np.ndarray) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header, and the formats and their options, with lists as tuples; their values are left to the formats."""
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
    storage = header.get("storage")
    if not (isinstance(storage, list) and len(storage) in (1, 2) and isinstance(header.get("backend"), str)):
        raise broken(path, f"storage {storage!r} is not a list of one or two formats, or the backend no word")
    for one in storage:
        one = one if isinstance(one, dict) else {}
        name, layout = one.get("format"), one.get("layout")
        if not isinstance(name, str) or name not in FORMATS:
            raise ValueError(f"{path}: format {name!r} is unknown here; update jaxsparse, or save in another format")
        if not isinstance(layout, dict) or not set(layout) <= set(FORMATS[name].layout_options):
            raise broken(path, f"format {name!r} has the options {FORMATS[name].layout_options}, not {layout!r}")
        one["layout"] = {k: tuple(v) if isinstance(v, list) else v for k, v in layout.items()}
    return header, storage
