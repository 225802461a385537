"""Reads and writes matrices and vectors.

A malformed file raises a ValueError that names the file and the line. Files are written whole or not at all.
"""

import gzip
import os
import tokenize
import warnings
from typing import Any, BinaryIO

import numpy as np
import scipy
from numpy.typing import ArrayLike

from jaxsparse_fmt._files import AnyPath, regular, replacing
from jaxsparse_fmt.io.matrix_market import parse
from jaxsparse_fmt.io.mtx_entries import fault

__all__ = ["VECTOR_SUFFIXES", "read_scipy", "read_vector", "write_mtx", "write_vector"]

VECTOR_SUFFIXES = (".mtx", ".mtx.gz", ".npy", ".txt")


def read_scipy(path: AnyPath | BinaryIO) -> "scipy.sparse.csr_array":
    """Read a Matrix Market file (Boisvert, Pozo, Remington, NISTIR 5935, 1996) as SciPy's canonical CSR.

    Symmetric, skew-symmetric and Hermitian files are expanded, and entries that occur twice are summed.
    Explicit zeros of a coordinate file are entries, entries of a pattern are 1, and only the nonzeros
    of an array (dense) file are entries. Every value is the float64 nearest to its decimal.

    Blanks are spaces, tabs, vertical tabs, form feeds and carriage returns. A plus sign may stand
    before a number. Beyond the standard, a file may have comments and blank lines anywhere after the
    banner, comments after entries, Fortran's exponents (1D5), inf, infinity and nan, a byte order
    mark, lines of up to 65,536 bytes, and integers of any size, which become the nearest float64. Blank lines
    and comments may outnumber the entries by 262,144, or hold 16 MB.
    Any other content is refused (`mtx_entries.py` states the grammar).

    SciPy's reader parses the file, in several threads if it is large. At its peak the function holds at most 50 MB
    and twice the matrix, three times if the file stores one triangle; and what a pipe gave.

    Args:
        path: of a file, plain, gzip or bzip2 by its content; or a binary file that is open for
            reading. The file may be a pipe.

    Returns:
        [rows, cols] float64, or complex128 when the field is complex.

    Raises:
        FileNotFoundError, IsADirectoryError: no such file; a folder.
        ValueError: not Matrix Market, or malformed; the message names the file, the line and the cure.
            Sizes that a file of this length cannot hold are refused before anything is allocated.

    Examples:
      >>> js.io.write_mtx(folder / "A.mtx", S)
      >>> js.io.read_scipy(folder / "A.mtx").nnz
      64
    """
    return scipy.sparse.csr_array(parse(path))


def read_vector(path: AnyPath) -> np.ndarray:
    """Read a vector: `.mtx` or `.mtx.gz` (array or coordinate, n × 1 or 1 × n), `.npy`, or `.txt`
    with one number on a line and # before comments.

    Returns:
        [n] float64, or complex128 where the file is complex.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another extension, a shape that is not a vector's, or a malformed file.

    Examples:
      >>> js.io.write_vector(folder / "b.npy", b)
      >>> js.io.read_vector(folder / "b.npy").shape
      (16,)
    """
    path = os.fsdecode(path)
    kind = _kind(path, *VECTOR_SUFFIXES)
    x: Any
    if kind == ".npy":
        regular(path)
        try:
            # A memory map compares the shape in the header with the size of the file.
            x = np.lib.format.open_memmap(path, mode="r")
        except (ValueError, TypeError, SyntaxError, OverflowError, tokenize.TokenError) as error:
            # NumPy parses the header as Python, and these are its errors.
            raise ValueError(f"{path}: not a .npy file of numbers: {error}; write it again with numpy.save") from None
    else:
        x = _read_text(path) if kind == ".txt" else parse(path)
    if x.ndim != 1 and not (x.ndim == 2 and 1 in x.shape):
        raise ValueError(f"{path}: a vector has shape n, n × 1 or 1 × n, but this has {x.shape}")
    return _numbers(x.toarray() if scipy.sparse.issparse(x) else x, path).ravel()


def write_vector(
    path: AnyPath,
    x: ArrayLike,  # [n] real or complex
    kind: str | None = None,
) -> None:
    """Write a vector as `.mtx` or `.mtx.gz` (array format), `.npy` or `.txt`, to full precision.

    The file appears, or takes an old one's place and mode, only when it is complete.

    Args:
        kind: an extension that decides in place of the path's.

    Raises:
        ValueError: another extension, or x not one-dimensional or not numeric.

    Examples:
      >>> js.io.write_vector(folder / "b.npy", b)
    """
    path = os.fsdecode(path)
    kind = _kind(kind or path, *VECTOR_SUFFIXES)
    x = _numbers(np.asarray(x), "x")
    if x.ndim != 1:
        raise ValueError(f"x must be one-dimensional, got shape {x.shape}; write x.ravel()")
    with replacing(path) as file:
        if kind == ".npy":
            np.save(file, x)
        elif kind == ".txt":
            np.savetxt(file, x, fmt="%.17g")
        else:
            _mmwrite(file, kind, x[:, None])


def write_mtx(path: AnyPath, matrix: Any, kind: str | None = None) -> None:
    """Write a sparse matrix as a general coordinate file, `.mtx` or `.mtx.gz`, to full precision.

    The file appears, or takes an old one's place and mode, only when it is complete.

    Args:
        matrix: a matrix of scipy.sparse or of this library.
        kind: an extension that decides in place of the path's.

    Raises:
        ValueError: another extension, or a matrix that is not sparse, two-dimensional and numeric.

    Examples:
      >>> js.io.write_mtx(folder / "A.mtx", S)
    """
    path = os.fsdecode(path)
    kind = _kind(kind or path, ".mtx", ".mtx.gz")
    matrix = matrix.to_scipy() if hasattr(matrix, "to_scipy") else matrix
    if not scipy.sparse.issparse(matrix):
        raise ValueError(f"write_mtx needs a scipy.sparse matrix, got {type(matrix).__name__}")
    entries = scipy.sparse.csr_array(matrix).tocoo()
    if entries.ndim != 2:
        raise ValueError(f"write_mtx needs two dimensions, got shape {entries.shape}")
    entries.data = _numbers(entries.data, "the matrix")
    with replacing(path) as file:
        _mmwrite(file, kind, entries)


def _read_text(path: str) -> np.ndarray:
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        lines = file.read().split("\n")  # once: it may be a pipe
    why: Exception | None = None
    for dtype in (np.float64, np.complex128):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an empty file is a warning
            try:
                return np.loadtxt(lines, dtype=dtype, ndmin=1)
            except (ValueError, UserWarning) as error:
                why = error
    for number, line in enumerate(lines, 1):
        for word in line.partition("#")[0].split():
            try:
                complex(word)
            except ValueError:
                raise fault(path, number, f"{word!r} is not a number") from None
    raise ValueError(f"{path}: not one number on each line: {why}")


def _numbers(x: np.ndarray, name: str) -> np.ndarray:
    if x.dtype.kind in "OSUMm" or x.dtype.names:
        raise ValueError(f"{name} must hold numbers, got dtype {x.dtype}")
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _kind(path: str, *kinds: str) -> str:
    for kind in kinds:
        if path.lower().endswith(kind):
            return kind
    raise ValueError(f"{path}: unknown extension; use one of {', '.join(kinds)}")


def _mmwrite(file: BinaryIO, kind: str, matrix: "np.ndarray | scipy.sparse.coo_array") -> None:
    from scipy.io import mmwrite

    if kind == ".mtx":
        mmwrite(file, matrix, symmetry="general")
    else:
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            mmwrite(packed, matrix, symmetry="general")
