"""Matrices, right-hand sides and answers, from files and to files.

SciPy's fast Matrix Market parser reads the numbers. This module looks where that parser does not: at
the head of the file before anything is allocated, at every block of lines on the way to the parser
(which takes the numbers that it can and skips the rest of a line: 1.0D+05 is 1, and 3,5 is 3), and
at what comes out. That costs about 0.3 of the parser's own time. What is wrong is said in a
ValueError that names the file and the line. Files are written whole or not at all.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import itertools
import math
import os
import re
import uuid
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

__all__ = ["read_mtx", "read_vector", "write_mtx", "write_vector"]

PathLike = str | os.PathLike[str]

# The words of a banner, and what each is read as. Integers are read as the reals that they become;
# fast_matrix_market writes "double", and the samples of NVIDIA's cuDSS "spd".
_BANNER = {
    "object": {"matrix": "matrix"},
    "format": {"coordinate": "coordinate", "array": "array"},
    "field": {"real": "real", "integer": "real", "complex": "complex", "pattern": "pattern"}
    | {"double": "real", "unsigned-integer": "real"},
    "symmetry": {"general": "general", "symmetric": "symmetric", "spd": "symmetric"}
    | {"skew-symmetric": "skew-symmetric", "hermitian": "hermitian"},
}
_EXAMPLE = "'%%MatrixMarket matrix coordinate real general'"

# How a file starts that is not Matrix Market, and the cure.
_NOT_MATRIX_MARKET = (
    (rb"\Z", "the file is empty: fetch or write it again"),
    (rb"version https://git-lfs", "this is a Git LFS pointer: run `git lfs pull` for the matrix"),
    (rb"\s*<", "this is a web page or XML: download the matrix file itself"),
    (rb"PK\x03\x04|(?s:.{257})ustar", "this is an archive: unpack it and name the .mtx inside"),
    (rb"\s+%%MatrixMarket", "blank space stands before the %%MatrixMarket banner: remove it"),
    (rb"%MatrixMarket", "the banner starts with one % sign: make it %%MatrixMarket"),
    (
        rb"(?:[^\n]*\n){2,4}[^\n]*\(\s*\d*\s*I",
        "this is a Harwell-Boeing or Rutherford-Boeing file: "
        "convert it with scipy.io.hb_read and jaxsparse_fmt.io.write_mtx",
    ),
    (
        rb"",
        f"no banner: if it holds rows, columns and values that count from 1, begin it with {_EXAMPLE}",
    ),
)

_BLOCK = 1 << 16  # bytes checked at a time: they stay in the L2 cache, and a line is no longer
_PACKING = 1100  # times smaller that a compressed file may be; deflate ends at 1032
_EMPTY_ROWS = 10**8  # rows that a small file may claim: 0.8 GB of row pointers
_NUMBER = rb"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?i:inf|infinity|nan))"


def read_mtx(path: PathLike) -> sp.csr_array:
    """Read a Matrix Market file (Boisvert, Pozo, Remington, NISTIR 5935, 1996) as canonical CSR.

    Plain, gzip or bzip2, told by the content. Symmetric, skew-symmetric and Hermitian files are
    expanded, entries that occur twice are summed, explicit zeros of a coordinate file are entries,
    a pattern has ones, and an array (dense) file keeps its nonzeros. Comments and blank lines
    between entries, Fortran exponents (1D5) and leading plus signs are understood.

    Returns:
        [rows, cols] float64, or complex128 when the field is complex.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not Matrix Market, or malformed: names the file, the line and the cure. Sizes
            that a file of this length cannot hold are refused before anything is allocated.
    """
    matrix = sp.csr_array(_parse(os.fspath(path)))
    matrix.sum_duplicates()
    return matrix


def read_vector(path: PathLike) -> np.ndarray:
    """Read a vector: `.mtx` or `.mtx.gz` (array or coordinate, n × 1 or 1 × n), `.npy`, or `.txt`
    with one number on a line and # before comments.

    Returns:
        [n] float64, or complex128 where the file is complex.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another extension, a shape that is no vector's, or a malformed file.
    """
    path = os.fspath(path)
    kind = _kind(path, ".mtx", ".mtx.gz", ".npy", ".txt")
    x: Any
    if kind == ".npy":
        try:
            # A memory map checks the claimed shape against the file before it is believed.
            x = np.lib.format.open_memmap(path, mode="r")
        except ValueError as error:
            raise ValueError(f"{path}: not a .npy file of numbers: {error}") from None
    else:
        x = _read_text(path) if kind == ".txt" else _parse(path)
    if x.ndim != 1 and not (x.ndim == 2 and 1 in x.shape):
        raise ValueError(f"{path}: a vector has shape n, n × 1 or 1 × n, but this has {x.shape}")
    return _numbers(x.toarray() if sp.issparse(x) else x, path).ravel()


def write_vector(
    path: PathLike,
    x: ArrayLike,  # [n] real or complex
) -> None:
    """Write a vector as `.mtx` or `.mtx.gz` (array format), `.npy` or `.txt`, to full precision.

    The file appears, or takes an old one's place, only when it is complete.

    Raises:
        ValueError: another extension, or x not one-dimensional or not numeric.
    """
    path = os.fspath(path)
    kind = _kind(path, ".mtx", ".mtx.gz", ".npy", ".txt")
    x = _numbers(np.asarray(x), "x")
    if x.ndim != 1:
        raise ValueError(f"x must be one-dimensional, got shape {x.shape}; write x.ravel()")
    with _replacing(path) as file:
        if kind == ".npy":
            np.save(file, x)
        elif kind == ".txt":
            np.savetxt(file, x, fmt="%.17g")
        else:
            _mmwrite(file, kind, x[:, None])


def write_mtx(path: PathLike, matrix: sp.sparray | sp.spmatrix) -> None:
    """Write a sparse matrix as a general coordinate file, `.mtx` or `.mtx.gz`, to full precision.

    The file appears, or takes an old one's place, only when it is complete.

    Raises:
        ValueError: another extension, or a matrix that is not sparse, two-dimensional and numeric.
    """
    path = os.fspath(path)
    kind = _kind(path, ".mtx", ".mtx.gz")
    if not sp.issparse(matrix) or len(matrix.shape) != 2:
        raise ValueError(f"write_mtx needs a 2-D scipy.sparse matrix, got {type(matrix).__name__}")
    entries = sp.csr_array(matrix).tocoo()
    entries.data = _numbers(entries.data, "the matrix")
    with _replacing(path) as file:
        _mmwrite(file, kind, entries)


@dataclass(frozen=True)
class _Head:
    """The banner and the size line."""

    format: str
    field: str
    symmetry: str
    rows: int
    cols: int
    entries: int  # that must follow, one on a line
    lines: int  # up to and including the size line

    @property
    def entry(self) -> list[str]:
        """What the words of an entry are."""
        place = ["row", "column"] if self.format == "coordinate" else []
        values = {"pattern": [], "real": ["value"], "complex": ["real part", "imaginary part"]}
        return place + values[self.field]

    @property
    def text(self) -> bytes:
        """The head as the parser is to see it, on as many lines as in the file."""
        size = [self.rows, self.cols] + [self.entries] * (self.format == "coordinate")
        banner = f"%%MatrixMarket matrix {self.format} {self.field} {self.symmetry}\n"
        return (banner + "%\n" * (self.lines - 2) + " ".join(map(str, size)) + "\n").encode()


def _parse(path: str) -> sp.coo_matrix | np.ndarray:
    """The matrix of a file, expanded, float64 or complex128; duplicates are still apart."""
    from scipy.io import mmread  # here, because importing it takes longer than all of this package

    with _open(path) as file:
        try:
            head = _read_head(path, file)
            if head.format == "array" and 0 in (head.rows, head.cols):
                return np.zeros((head.rows, head.cols))  # the parser would divide by zero
            checked = io.BufferedReader(_Checked(path, file, head), _BLOCK)
            parsed = cast("sp.coo_matrix | np.ndarray", mmread(checked))
        except (EOFError, zlib.error, OSError) as error:
            if getattr(error, "errno", None):
                raise
            raise ValueError(f"{path}: damaged or cut short: {error}; fetch it again") from None
        except (ValueError, OverflowError) as error:
            said = re.match(r"Line (\d+): (.*)", str(error))
            if said is None:
                raise
            raise _explained(path, head, int(said[1]), said[2]) from None
    if isinstance(parsed, sp.coo_matrix):
        _check_symmetry(path, head, parsed)
    if np.isinf(parsed.data).any():
        _check_overflow(path, head)
    return parsed


def _open(path: str) -> BinaryIO:
    with open(path, "rb") as file:
        magic = file.read(2)
    return cast(BinaryIO, {b"\x1f\x8b": gzip.open, b"BZ": bz2.open}.get(magic, open)(path, "rb"))


def _read_head(path: str, file: BinaryIO) -> _Head:
    start = file.read(_BLOCK).removeprefix(b"\xef\xbb\xbf")  # the byte order mark of some editors
    file.seek(0)
    if not re.match(rb"(?i)%%MatrixMarket\s", start):
        cure = next(cure for sign, cure in _NOT_MATRIX_MARKET if re.match(sign, start))
        raise _fault(path, 1, f"{_shown(start)} is not Matrix Market; {cure}")
    if b"\r" in start and b"\n" not in start:
        raise _fault(path, 1, r"lines end with \r alone; end them with \n or \r\n")

    banner = file.readline().decode(errors="replace").lower().split()
    if len(banner) != 5:
        raise _fault(path, 1, f"{len(banner)} words in the banner; write it like {_EXAMPLE}")
    for word, (what, known) in zip(banner[1:], _BANNER.items(), strict=True):
        if word not in known:
            raise _fault(path, 1, f"unknown {what} {word!r}; use one of {', '.join(known)}")
    _, format, field, symmetry = (
        known[word] for word, known in zip(banner[1:], _BANNER.values(), strict=True)
    )
    if symmetry == "hermitian" and field != "complex":
        raise _fault(path, 1, f"{field} and hermitian exclude each other; use symmetric")
    if field == "pattern" and (format == "array" or symmetry == "skew-symmetric"):
        raise _fault(path, 1, f"{format} {symmetry} and pattern exclude each other; use real")

    number, line = 1, b"%"
    while line.isspace() or line.lstrip().startswith(b"%"):
        number, line = number + 1, file.readline(_BLOCK)
    names = ["rows", "columns", "entries"][: 3 if format == "coordinate" else 2]
    sizes = [int(word) for word in line.split() if re.fullmatch(rb"\d{1,18}", word)]
    if not len(sizes) == len(line.split()) == len(names):
        raise _fault(path, number, f"the size line reads '{' '.join(names)}', not {_shown(line)}")
    rows, cols = sizes[:2]
    if symmetry != "general" and rows != cols:
        raise _fault(path, number, f"{rows} × {cols} is not square, as {symmetry} must be")
    stored = {"general": rows * cols, "skew-symmetric": rows * (rows - 1) // 2}
    entries = sizes[2] if len(sizes) == 3 else stored.get(symmetry, rows * (rows + 1) // 2)
    head = _Head(format, field, symmetry, rows, cols, entries, number)

    packed = isinstance(file, gzip.GzipFile | bz2.BZ2File)
    room = os.path.getsize(path) * (_PACKING if packed else 1)
    least = 2 * len(head.entry) * entries - 1
    cure = "it is cut short, or the size line is wrong"
    if least > room:
        what = f"{entries} entries take at least {least} bytes, and the file holds at most {room}"
        raise _fault(path, number, f"{what}; {cure}")
    if rows > max(room, _EMPTY_ROWS):
        raise _fault(path, number, f"{rows} rows in a file of at most {room} bytes; {cure}")
    return head


class _Checked(io.RawIOBase):
    """The lines of a file on their way to SciPy's parser, looked at in blocks.

    That parser crashes on NUL bytes, and on a last line without an end that has a word too many
    (SciPy 1.17), so neither may reach it. NumPy tells a block of plain entries from one that needs
    a look at each line.
    """

    def __init__(self, path: str, file: BinaryIO, head: _Head):
        self._path, self._file, self._head = path, file, head
        self._block, self._rest = memoryview(head.text), b""
        self._line, self._words = head.lines, 0  # passed so far
        words = [rb"\d+" if name in ("row", "column") else _NUMBER for name in head.entry]
        self._entry = re.compile(rb"\s*" + rb"\s+".join(words) + rb"\s*")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._block:
            self._block = memoryview(self._next_block())
        size = min(len(buffer), len(self._block))
        buffer[:size], self._block = self._block[:size], self._block[size:]
        return size

    def _next_block(self) -> bytes:
        block = self._rest + self._file.read(_BLOCK)
        cut = block.rfind(b"\n") + 1
        if not cut and len(block) >= _BLOCK:
            raise _fault(self._path, self._line + 1, f"a line of more than {_BLOCK} bytes")
        if not cut and block:
            block, cut = block + b"\n", len(block) + 1
        block, self._rest = block[:cut], block[cut:]

        each = len(self._head.entry)
        missing = self._head.entries - self._words // each
        if not block and missing > 0:
            what = f"the file ends {missing} short of the {self._head.entries} entries it promises"
            raise _fault(self._path, self._line, f"{what}; fetch it again or correct the size line")
        lines, words = _count(np.frombuffer(block, np.uint8))
        if words != lines * each:
            block = _tidy(block)
            words = len(block.split())
            for number, line in enumerate(block.split(b"\n"), self._line + 1):
                if line.strip() and not self._entry.fullmatch(line):
                    what = f"{_shown(line)} is not '{', '.join(self._head.entry)}'"
                    raise _fault(self._path, number, f"{what}; correct the line, or the banner")
        self._line += lines
        self._words += words
        return block


def _count(
    byte: np.ndarray,  # [bytes] uint8, whole lines
) -> tuple[int, int]:
    """The number of lines, and of words when all are plain numbers, else -1."""
    lines = int(np.count_nonzero(byte == ord("\n")))
    inside = byte > ord(" ")
    code = byte - np.uint8(ord("+"))  # + , - . / and the digits become 0 … 14
    number = code < 15
    strange = np.count_nonzero(inside) - np.count_nonzero(number)
    if strange:
        strange -= np.count_nonzero((byte & 0xDF) == ord("E"))
    # A sign begins a word or follows an e; a plus sign does not begin one.
    strange += np.count_nonzero((code < 3)[1:] & number[:-1])
    if not byte.size or strange or not byte.min() or (byte == ord("/")).any():
        return lines, -1
    plus = byte == ord("+")
    if plus.any() and (plus[1:] & ((byte & 0xDF)[:-1] != ord("E"))).any():
        return lines, -1
    return lines, int(np.count_nonzero(inside[1:] > inside[:-1])) + int(inside[0])


def _tidy(block: bytes) -> bytes:
    """Without comments and leading plus signs, and 1D5 as 1e5; the lines stay where they are."""
    block = re.sub(rb"%[^\n]*", b"", block)
    block = re.sub(rb"(?<!\S)\+", b"", block)
    return re.sub(rb"(?<=[\d.])[dD](?=[-+]?\d)", b"e", block)


def _check_symmetry(path: str, head: _Head, matrix: sp.coo_matrix) -> None:
    """Refuse a file that holds both of two mirrored entries, since SciPy has mirrored each of them."""
    if head.symmetry == "general":
        return
    row, col, data = (a[: head.entries] for a in (matrix.row, matrix.col, matrix.data))
    lower, upper = row > col, row < col
    if lower.any() and upper.any():
        pair = np.minimum(row, col).astype(np.int64) * head.cols + np.maximum(row, col)
        both = np.intersect1d(pair[lower], pair[upper])
        if both.size:
            i, j = divmod(int(both[0]), head.cols)
            what = f"({i + 1}, {j + 1}) and ({j + 1}, {i + 1}) of a {head.symmetry} file count twice"
            raise ValueError(f"{path}: {what}; store one triangle, or say general")
    wrong = {"skew-symmetric": data, "hermitian": np.imag(data)}.get(head.symmetry, 0 * data)
    if np.any(wrong[row == col] != 0):
        raise ValueError(f"{path}: a diagonal entry that {head.symmetry} excludes; say general")


def _check_overflow(path: str, head: _Head) -> None:
    """Infinity may be written, but may not come of a number that float64 cannot hold."""
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            for word in _tidy(line).split() if number > head.lines else ():
                if math.isinf(float(word)) and re.search(rb"\d", word):
                    raise _fault(path, number, f"{_shown(word)} exceeds float64's 1.8e308; rescale")


def _explained(path: str, head: _Head, number: int, said: str) -> ValueError:
    """SciPy's complaint about a line, with the line and a cure."""
    with _open(path) as file:
        line = next(itertools.islice(file, number - 1, None), b"")
    if "out of bounds" in said or "out of range" in said:
        zero = any(not word.strip(b"0") for word in line.split()[:2])
        cure = "this file counts from 0: add 1 to each" if zero else "correct it or the size line"
        said = f"an index outside {head.rows} × {head.cols}; indices count from 1, {cure}"
    elif "Too many" in said:
        said = f"more than the {head.entries} entries of the size line; correct it or the entries"
    return _fault(path, number, f"{_shown(line)}: {said}")


def _fault(path: str, line: int, what: str) -> ValueError:
    return ValueError(f"{path}, line {line}: {what}")


def _shown(text: bytes) -> str:
    return repr(text.partition(b"\n")[0][:60].decode(errors="replace").strip())


def _read_text(path: str) -> np.ndarray:
    why: Exception | None = None
    for dtype in (np.float64, np.complex128):
        with open(path, errors="replace") as file, warnings.catch_warnings():
            warnings.simplefilter("error")  # an empty file is a warning
            try:
                return np.loadtxt(file, dtype=dtype, ndmin=1)
            except (ValueError, UserWarning) as error:
                why = error
    with open(path, errors="replace") as file:
        for number, line in enumerate(file, 1):
            for word in line.partition("#")[0].split():
                try:
                    complex(word)
                except ValueError:
                    raise _fault(path, number, f"{word!r} is not a number") from None
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


def _mmwrite(file: BinaryIO, kind: str, matrix: np.ndarray | sp.coo_array) -> None:
    from scipy.io import mmwrite

    if kind == ".mtx":
        mmwrite(file, matrix, symmetry="general")
    else:
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            mmwrite(packed, matrix, symmetry="general")


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place when the block ends well, and vanishes when not."""
    target = os.path.realpath(path)  # a link stays a link
    part = f"{target}.{uuid.uuid4().hex[:8]}.part"
    try:
        with open(part, "xb") as file:
            yield file
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)
        raise
