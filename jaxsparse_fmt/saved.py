"""A matrix in one `.npz` file: its canonical entries, and how it is stored, with the options of each format.

`load` builds the storage anew. So a file has no padding, no kernel reads an index that the conversion from SciPy has
not checked, and a new format needs no line here.
"""

import os
from pathlib import Path
from typing import Any

from jaxsparse_fmt._dtypes import requested_dtype
from jaxsparse_fmt._tracing import is_traced
from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.convert import checked
from jaxsparse_fmt.core.matrix import FORMATS, SparseMatrix, build
from jaxsparse_fmt.formats.paired import Paired
from jaxsparse_fmt.io.csr_file import broken, read_csr, write_csr


def save(path: str | os.PathLike[str], A: SparseMatrix) -> None:
    """Writes a matrix in any format to one file, which `load` reads; the file is written whole or not at all.

    Its entries are in canonical order, even those of `A.in_basis`.

    Args:
      path: the file, conventionally `.npz`; one that exists is replaced.
      A: a matrix on one device; it may carry its transpose.

    Raises:
      TypeError: a sharded matrix, a transpose, or not a matrix of this library. ValueError: a stack, a gradient, or a
        traced matrix.

    Examples:
      >>> js.save(folder / "A.npz", A)
    """
    if Path(path).suffix in (".mtx", ".gz", ".mat"):
        raise ValueError(f"save writes .npz, got {str(path)!r}; io.write_mtx(path, A) writes Matrix Market")
    if not isinstance(A, SparseMatrix):
        raise TypeError(
            f"save takes a matrix of this library on one device, got {type(A).__name__}; A.to_scipy() makes a "
            "SciPy matrix of a sharded one, and A.T.asformat('csr') a matrix of a transpose"
        )
    if is_traced(A):
        raise ValueError("save needs the numbers of the matrix, which are traced here; call it outside jit")
    stored = (A.storage, A.storage_T) if isinstance(A, Paired) else (A,)
    storage = [{"format": B.name, "layout": B.layout} for B in stored]
    write_csr(Path(path), A.to_scipy(), A.dtype, backend=A.backend, storage=storage)


def load(path: str | os.PathLike[str], dtype: Any = None, *, max_bytes: float | None = None) -> SparseMatrix:
    """The matrix that `save` wrote, in the same format with the same options, and `data` to the bit.

    Nothing in the file is trusted: sizes, pointers, indices and options are checked, and no object is unpickled.

    Args:
      dtype: of the stored values; None keeps the file's.
      max_bytes: as in `from_scipy`.

    Raises:
      FileNotFoundError: no such file. ValueError: a file that is damaged, of another version or of a format unknown
        here, a dtype that JAX cannot hold at present, or a storage too large; the message names the file and the cure.

    Examples:
      >>> js.save(folder / "A.npz", A)
      >>> js.load(folder / "A.npz").nnz == A.nnz
      True
    """
    path = Path(path)
    header, S = read_csr(path)
    storage = _storage(path, header)
    try:
        stored = requested_dtype(header["dtype"] if dtype is None else dtype)
        csr, target = checked(S, stored, header["backend"], max_bytes)
        if csr.nnz != S.data.size:
            raise broken(path, "it lists an entry twice")
        return _store(csr, storage, target)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path} holds no matrix that can be built here: {error}") from error


def _store(csr: Csr, storage: list[dict[str, Any]], target: Target) -> SparseMatrix:
    A = build(csr, storage[0]["format"], target, **storage[0]["layout"])
    if len(storage) == 1:
        return A
    return Paired.from_csr(csr, A=A, store=lambda S: _store(S, storage[1:], target))


def _storage(path: Path, header: dict[str, Any]) -> list[dict[str, Any]]:
    """The formats and their options, with lists as tuples; the values of options are left to the formats."""
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
    return storage
