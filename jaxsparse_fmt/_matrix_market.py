"""Matrix Market files into arrays: what surrounds SciPy's parser.

SciPy's fast parser reads the numbers. This module looks where that parser does not: at the head of
the file before anything is allocated, at every block of lines on the way to the parser (which takes
the numbers that it can and skips the rest of a line: 1.0D+05 is 1, and 3,5 is 3), and at what comes
out. From a file of 120 MB to CSR takes 1.3 times as long as with the parser alone.
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import math
import os
import re
import zlib
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
import scipy.sparse as sp

__all__ = ["fault", "parse"]

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


def parse(path: str) -> sp.coo_matrix | np.ndarray:
    """The matrix of a file, expanded, float64 or complex128; duplicates are still apart.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not Matrix Market, or malformed; names the file, the line and the cure.
    """
    from scipy.io import mmread  # here, because importing it takes longer than all of this package

    with _open(path) as file:
        try:
            head = _read_head(path, file)
            if head.format == "array" and not head.entries:  # the parser would divide by zero
                if file.read(_BLOCK).strip():
                    raise fault(path, head.lines + 1, "entries in a file whose size line has none")
                return np.zeros((head.rows, head.cols))
            checked = _Checked(path, file, head)
            parsed: Any = mmread(io.BufferedReader(checked, _BLOCK))
            values = parsed.data[: head.entries] if sp.issparse(parsed) else parsed.ravel()
            infinite = np.count_nonzero(np.isinf(values.view(np.float64)))
            if checked.words != len(head.entry) * head.entries or checked.infinite != infinite:
                with _open(path) as again:
                    _read_head(path, again)
                    _Checked(path, again, head, closely=True).readall()
        except (EOFError, zlib.error, OSError) as error:
            if getattr(error, "errno", None):
                raise
            raise ValueError(f"{path}: damaged or cut short: {error}; fetch it again") from None
        except (ValueError, OverflowError) as error:
            said = re.match(r"Line (\d+): (.*)", str(error))
            if said is None:
                raise
            raise _explained(path, head, int(said[1]), said[2]) from None
    if head.format == "coordinate":
        _check_symmetry(path, head, parsed)
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
        raise fault(path, 1, f"{_shown(start)} is not Matrix Market; {cure}")
    if b"\r" in start and b"\n" not in start:
        raise fault(path, 1, r"lines end with \r alone; end them with \n or \r\n")

    banner = file.readline(_BLOCK).decode(errors="replace").lower().split()
    if len(banner) != 5:
        raise fault(path, 1, f"{len(banner)} words in the banner; write it like {_EXAMPLE}")
    words = []
    for word, (what, known) in zip(banner[1:], _BANNER.items(), strict=True):
        if word not in known:
            raise fault(path, 1, f"unknown {what} {word!r}; use one of {', '.join(known)}")
        words.append(known[word])
    format, field, symmetry = words[1:]
    if symmetry == "hermitian" and field != "complex":
        raise fault(path, 1, f"{field} and hermitian exclude each other; use symmetric")
    if field == "pattern" and (format == "array" or symmetry == "skew-symmetric"):
        raise fault(path, 1, f"{format} {symmetry} and pattern exclude each other; use real")

    number, line = 1, b"%"
    while line.isspace() or line.lstrip().startswith(b"%"):
        number, line = number + 1, file.readline(_BLOCK)
    names = ["rows", "columns", "entries"][: 3 if format == "coordinate" else 2]
    sizes = [int(word) for word in line.split() if re.fullmatch(rb"\d{1,18}", word)]
    if not len(sizes) == len(line.split()) == len(names):
        raise fault(path, number, f"the size line reads '{' '.join(names)}', not {_shown(line)}")
    rows, cols = sizes[:2]
    if symmetry != "general" and rows != cols:
        raise fault(path, number, f"{rows} × {cols} is not square, as {symmetry} must be")
    stored = {"general": rows * cols, "skew-symmetric": rows * (rows - 1) // 2}
    entries = sizes[2] if len(sizes) == 3 else stored.get(symmetry, rows * (rows + 1) // 2)
    head = _Head(format, field, symmetry, rows, cols, entries, number)

    packed = isinstance(file, gzip.GzipFile | bz2.BZ2File)
    room = os.path.getsize(path) * (_PACKING if packed else 1)
    least = 2 * len(head.entry) * entries - 1
    cure = "it is cut short, or the size line is wrong"
    if least > room:
        what = f"{entries} entries take at least {least} bytes, and the file holds at most {room}"
        raise fault(path, number, f"{what}; {cure}")
    if rows > max(room, _EMPTY_ROWS):
        raise fault(path, number, f"{rows} rows in a file of at most {room} bytes; {cure}")
    return head


class _Checked(io.RawIOBase):
    """The lines of a file on their way to SciPy's parser, looked at in blocks.

    That parser crashes on NUL bytes, and on a last line without an end that has a word too many
    (SciPy 1.17), so neither may reach it. NumPy tells a block of plain entries from one that needs
    a look at each line. The first block gets that look too, for there a writer's habits show.
    """

    def __init__(self, path: str, file: BinaryIO, head: _Head, closely: bool = False):
        self._path, self._file, self._head, self._closely = path, file, head, closely
        self._block, self._rest = memoryview(head.text), b""
        self._line, self.words, self.infinite = head.lines, 0, 0  # passed so far
        words = [rb"-?\d+" if name in ("row", "column") else _NUMBER for name in head.entry]
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
            raise fault(self._path, self._line + 1, f"a line of more than {_BLOCK} bytes")
        unended = bool(block) and not cut
        if unended:
            block, cut = block + b"\n", len(block) + 1
        block, self._rest = block[:cut], block[cut:]

        each = len(self._head.entry)
        missing = self._head.entries - self.words // each
        if not block and missing > 0:
            what = f"the file ends {missing} short of the {self._head.entries} entries it promises"
            raise fault(self._path, self._line, f"{what}; fetch it again or correct the size line")
        if not block:
            return b""
        lines, words = _count(np.frombuffer(block, np.uint8))
        plain = words == lines * each and self.words and not (unended or self._closely)
        if self._head.field == "pattern":  # after an index the parser skips the rest: 1e+05 is 1
            plain = plain and not (b"e" in block or b"E" in block or b"." in block)
        if not plain:
            block = _tidy(block)
            words = len(block.split())
            for number, line in enumerate(block.split(b"\n"), self._line + 1):
                self._look(number, line)
        self._line += lines
        self.words += words
        return block

    def _look(self, number: int, line: bytes) -> None:
        words = line.split()
        if words and not self._entry.fullmatch(line):
            what = f"{_shown(line)} is not '{', '.join(self._head.entry)}'"
            raise fault(self._path, number, f"{what}; correct the line, or the banner")
        for word in (word for word in words if math.isinf(float(word))):
            if re.search(rb"\d", word):
                raise fault(self._path, number, f"{_shown(word)} exceeds float64's 1.8e308; rescale")
            self.infinite += 1


def _count(
    byte: np.ndarray,  # [bytes] uint8, whole lines
) -> tuple[int, int]:
    """The number of lines, and of words when there are plain numbers only, else -1."""
    inside = byte > ord(" ")
    code = byte - np.uint8(ord("+"))  # + , - . / and the digits become 0 … 14
    number = code < 15
    strange = inside ^ number
    strange ^= (byte & 0xDF) == ord("E")
    glued = (code < 3)[1:] & number[:-1]  # 1.0-100, 3,5
    lines = int(np.count_nonzero(byte == ord("\n")))
    plus = byte == ord("+")
    if plus.any():
        glued |= plus[1:] & ((byte & 0xDF)[:-1] != ord("E"))  # +5
    if strange.any() or glued.any() or not byte.min():
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
    excluded = {"skew-symmetric": data, "hermitian": np.imag(data)}.get(head.symmetry)
    if excluded is not None and np.any(excluded[row == col] != 0):
        raise ValueError(f"{path}: a diagonal entry that {head.symmetry} excludes; say general")


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
    return fault(path, number, f"{_shown(line)}: {said}")


def fault(path: str, line: int, what: str) -> ValueError:
    """What is wrong with a line of a file, counted from 1."""
    return ValueError(f"{path}, line {line}: {what}")


def _shown(text: bytes) -> str:
    return repr(text.partition(b"\n")[0][:60].decode(errors="replace").strip())
