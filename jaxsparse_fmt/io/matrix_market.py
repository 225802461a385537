"""Reads Matrix Market files into arrays: the head here, the entries by `mtx_entries.py`, piece by piece.

A file is read once, and again only if SciPy refuses an index, for the number of the line.
"""

import bz2
import contextlib
import functools
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import numpy as np
import scipy

from jaxsparse_fmt.io import mtx_entries
from jaxsparse_fmt.io.mtx_entries import LONGEST, Head, check_notes, fault, shown

__all__ = ["parse"]

# The words of a banner and their meanings. Integers are read as reals; fast_matrix_market writes "double", and the
# samples of NVIDIA's cuDSS "spd".
_BANNER = {
    "object": {"matrix": "matrix"},
    "format": {"coordinate": "coordinate", "array": "array"},
    "field": {"real": "real", "integer": "real", "complex": "complex", "pattern": "pattern"}
    | {"double": "real", "unsigned-integer": "real"},
    "symmetry": {"general": "general", "symmetric": "symmetric", "spd": "symmetric"}
    | {"skew-symmetric": "skew-symmetric", "hermitian": "hermitian"},
}
_EXAMPLE = "'%%MatrixMarket matrix coordinate real general'"

# The starts of files that are not Matrix Market, and the cures.
_NOT_MATRIX_MARKET = (
    (rb"\xff\xfe|\xfe\xff", "this is text in UTF-16: save it as UTF-8 or ASCII"),
    (rb"\Z", "the file is empty: fetch or write it again"),
    (rb"version https://git-lfs", "this is a Git LFS pointer: run `git lfs pull` for the matrix"),
    (rb"\s*<", "this is a web page or XML: download the matrix file itself"),
    (
        rb"PK\x03\x04(?s:.{26,40})\.npy",
        "it is an .npz file: take jaxsparse.load(path), or for SciPy's from_scipy(scipy.sparse.load_npz(path))",
    ),
    (rb"PK\x03\x04|(?s:.{257})ustar", "this is an archive: unpack it and name the .mtx inside"),
    (rb"\s+%%MatrixMarket", "blank space stands before the %%MatrixMarket banner: remove it"),
    (rb"%MatrixMarket", "the banner starts with one % sign: make it %%MatrixMarket"),
    (
        rb"(?:[^\n]*\n){2,4}[^\n]*\(\s*\d*\s*I",
        "this is a Harwell-Boeing or Rutherford-Boeing file: "
        "convert it with scipy.io.hb_read and jaxsparse_fmt.io.write_mtx",
    ),
    (rb"", f"no banner: if it holds rows, columns and values that count from 1, begin it with {_EXAMPLE}"),
)

_PIECE = 1 << 18  # bytes of the file that are checked at a time
_PACKING = 1100  # how many times smaller a compressed file may be; deflate reaches 1032
_EMPTY_ROWS = 10**8  # rows that a small file may claim: 0.8 GB of row pointers
_CUT = "it is cut short, or the size line is wrong"


def parse(source: Any) -> "scipy.sparse.coo_array | np.ndarray":
    """The matrix of a file, float64 or complex128: a coordinate file's entries, duplicates too, with their mirror
    images, or an array file's array. Arguments and errors as in `read_scipy`.
    """
    with contextlib.ExitStack() as stack:
        if hasattr(source, "read"):
            path, file = str(getattr(source, "name", "the stream")), source
        else:
            path = os.fsdecode(source)
            file = stack.enter_context(open(path, "rb"))
        file, size = _opened(path, file)
        try:
            head = _read_head(path, file, size)
            row, col, value = mtx_entries.read(functools.partial(_pieces, head, file, file.tell()), head)
        except (EOFError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise ValueError(f"{path}: damaged or cut short: {error}; fetch it again") from None
    return _coordinates(head, row, col, value) if head.n_index else _array(head, value)


def _opened(path: str, file: Any) -> tuple[BinaryIO, int]:
    """The unpacked content of a file, and a bound on its bytes. A pipe, for example, is read at once."""
    size = 0
    with contextlib.suppress(AttributeError, OSError):
        status = os.fstat(file.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0  # those of /proc have size 0
    start = file.read(LONGEST)
    if not isinstance(start, bytes):
        raise TypeError(f"{path} must be open for reading bytes, mode 'rb'; its read() gives {type(start).__name__}")
    if size:
        file.seek(-len(start), os.SEEK_CUR)
    else:
        rest = file.read() if re.match(rb"(\xef\xbb\xbf)?%%|\x1f\x8b|BZh", start) else b""
        file, size = io.BytesIO(start + rest), len(start) + len(rest)
    for magic, unpack in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open)):
        if start.startswith(magic):
            return cast(BinaryIO, unpack(file, "rb")), size * _PACKING
    return file, size


def _pieces(head: Head, file: BinaryIO, begin: int) -> Iterator[bytes]:
    """A file from `begin` on in pieces of whole lines. A line that is too long stays too long."""
    file.seek(begin)
    size = 0
    while piece := file.read(_PIECE):
        piece += b"" if piece.endswith(b"\n") else file.readline(LONGEST + 1)
        size += len(piece)
        yield piece
    _check_rows(head, size)


def _read_head(path: str, file: BinaryIO, size: int) -> Head:
    start = _read_line(path, file, 1).removeprefix(b"\xef\xbb\xbf")  # the byte order mark of some editors
    if not re.match(rb"(?i)%%MatrixMarket\s", start):
        start += file.read(4096)
        cure = next(cure for sign, cure in _NOT_MATRIX_MARKET if re.match(sign, start))
        begin = "this" if b"\0" in start[:64] else shown(start)
        raise fault(path, 1, f"{begin} is not Matrix Market; {cure}")

    banner = start.lower().split()
    if len(banner) != 5 and b"\r" in start.strip():
        raise fault(path, 1, r"lines end with \r alone; end them with \n or \r\n")
    if len(banner) != 5:
        raise fault(path, 1, f"{len(banner)} words in the banner; write it like {_EXAMPLE}")
    words = []
    for word, (what, known) in zip(banner[1:], _BANNER.items(), strict=True):
        text = word.decode(errors="replace")
        if text not in known:
            raise fault(path, 1, f"unknown {what} {text!r}; use one of {', '.join(known)}")
        words.append(known[text])
    format, field, symmetry = words[1:]
    if symmetry == "hermitian" and field != "complex":
        raise fault(path, 1, f"{field} and hermitian exclude each other; use symmetric")
    if field == "pattern" and (format == "array" or symmetry == "skew-symmetric"):
        raise fault(path, 1, f"{format} {symmetry} and pattern exclude each other; use real")

    number, line, notes = 1, b"%", 0
    while line.isspace() or line.lstrip().startswith(b"%"):
        number, line = number + 1, _read_line(path, file, number + 1)
        notes += len(line)
        check_notes(path, number, notes)
    names = ["rows", "columns", "entries"][: 3 if format == "coordinate" else 2]
    sizes = line.partition(b"%")[0].split()
    if len(sizes) != len(names) or not all(re.fullmatch(rb"\+?\d{1,18}", word) for word in sizes):
        raise fault(path, number, f"the size line reads '{' '.join(names)}', not {shown(line)}")
    rows, cols = (int(word) for word in sizes[:2])
    if symmetry != "general" and rows != cols:
        raise fault(path, number, f"{rows} × {cols} is not square, as {symmetry} must be")
    stored = {"general": rows * cols, "skew-symmetric": rows * (rows - 1) // 2}
    entries = int(sizes[2]) if len(sizes) == 3 else stored.get(symmetry, rows * (rows + 1) // 2)
    n_value = {"pattern": 0, "real": 1, "complex": 2}[field]
    head = Head(path, symmetry, (rows, cols), 2 * (format == "coordinate"), n_value, entries, number)
    least = 2 * len(head.words) * entries - 1
    if least > size:
        what = f"{entries} entries take at least {least} bytes, and the file holds at most {size}"
        raise fault(path, number, f"{what}; {_CUT}")
    _check_rows(head, size)
    return head


def _check_rows(head: Head, size: int) -> None:
    if head.shape[0] > max(size, _EMPTY_ROWS):
        raise fault(head.path, head.lines, f"{head.shape[0]} rows in a file of at most {size} bytes; {_CUT}")


def _read_line(path: str, file: BinaryIO, number: int) -> bytes:
    line = file.readline(LONGEST + 1)
    if len(line.removesuffix(b"\n")) > LONGEST:
        raise fault(path, number, f"a line of more than {LONGEST} bytes")
    return line


def _coordinates(head: Head, row: np.ndarray, col: np.ndarray, value: np.ndarray) -> "scipy.sparse.coo_array":
    """All entries, followed by their mirror images. Raises ValueError for what the symmetry excludes."""
    if head.symmetry != "general":
        _check_triangle(head, row, col)
        off_diagonal = row != col
        _check_diagonal(head, value[~off_diagonal])
        value = np.concatenate([value, _mirrored(head, value[off_diagonal])])
        row, col = np.concatenate([row, col[off_diagonal]]), np.concatenate([col, row[off_diagonal]])
    return scipy.sparse.coo_array((value, (row, col)), shape=head.shape)


def _array(
    head: Head,
    value: np.ndarray,  # [entries] by columns; of a symmetric matrix, from the diagonal or below it
) -> np.ndarray:
    """[rows, cols]. Raises ValueError for what the symmetry excludes."""
    if head.symmetry == "general":
        return value.reshape(head.shape[::-1]).T
    stored = np.triu(np.ones(head.shape, bool), head.symmetry == "skew-symmetric")  # of the transpose
    full = np.zeros(head.shape, value.dtype)
    full[stored] = _mirrored(head, value)
    full.T[stored] = value
    _check_diagonal(head, np.diagonal(full))
    return full


def _mirrored(head: Head, value: np.ndarray) -> np.ndarray:
    return {"skew-symmetric": np.negative, "hermitian": np.conj}.get(head.symmetry, np.asarray)(value)


def _check_diagonal(head: Head, diagonal: np.ndarray) -> None:
    excluded = {"skew-symmetric": diagonal, "hermitian": np.imag(diagonal)}.get(head.symmetry, np.zeros(0)) != 0
    if excluded.any():
        what = f"{diagonal[excluded.argmax()]} on the diagonal, which {head.symmetry} excludes"
        raise ValueError(f"{head.path}: {what}; make the banner general")


def _check_triangle(head: Head, row: np.ndarray, col: np.ndarray) -> None:
    """Refuses a file that holds an entry and its mirror image, since each would be mirrored."""
    lower, upper = row > col, row < col
    if lower.any() and upper.any():
        pair = np.minimum(row, col).astype(np.int64) * head.shape[1] + np.maximum(row, col)
        both = np.intersect1d(pair[lower], pair[upper])
        if both.size:
            i, j = divmod(int(both[0]), head.shape[1])
            what = f"({i + 1}, {j + 1}) and ({j + 1}, {i + 1}) of a {head.symmetry} file count twice"
            raise ValueError(f"{head.path}: {what}; store one triangle, or make the banner general")
