"""Reads Matrix Market files into arrays: the head, then pieces of whole lines, which several threads parse.

A file may be a pipe, since it is read once, from front to end. Arrays get the size that the head states if the file is
long enough for it; otherwise they grow with the entries read. `mtx_entries.py` has the grammar of a line, and
`mtx_symmetry.py` adds the other triangle.
"""

import bz2
import collections
import contextlib
import functools
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import scipy.sparse as sp

from jaxsparse_fmt._types import CORES
from jaxsparse_fmt.io import mtx_entries, mtx_symmetry
from jaxsparse_fmt.io.mtx_entries import LONGEST, Room

__all__ = ["fault", "parse"]

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

_PIECE = 1 << 20  # bytes that a thread parses at a time
_PACKING = 1100  # how many times smaller a compressed file may be; deflate reaches 1032
_EMPTY_ROWS = 10**8  # rows that a small file may claim: 0.8 GB of row pointers
_HUGE = -1  # a fault in addition to those of `mtx_entries`: a number beyond float64
_CUT = "it is cut short, or the size line is wrong"
_WORD = re.compile(rb"[^\s%]+")


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
    def parts(self) -> tuple[int, int]:
        """The count of indices of an entry, and of numbers of its value."""
        return 2 * (self.format == "coordinate"), {"pattern": 0, "real": 1, "complex": 2}[self.field]

    @property
    def entry(self) -> list[str]:
        """The names of the words of an entry."""
        n_index, n_value = self.parts
        return ["row", "column"][:n_index] + [[], ["value"], ["real part", "imaginary part"]][n_value]


def parse(source: Any) -> sp.coo_array | np.ndarray:
    """The matrix of a file, expanded, float64 or complex128, with duplicates not yet summed.

    Args:
        source: a path, or a binary file that is open for reading.

    Returns:
        [rows, cols]: a coordinate file's entries, each mirror image behind its original, or an array file's array.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not Matrix Market, or malformed; the message names the file, the line and the cure.
    """
    with _opened(source) as (path, file, size, packed):
        try:
            head = _read_head(path, file, size)
            row, col, value = _read_entries(path, file, head, size is not None and not packed)
        except (EOFError, zlib.error, OSError) as error:
            if getattr(error, "errno", None):
                raise
            raise ValueError(f"{path}: damaged or cut short: {error}; fetch it again") from None
    shape = head.rows, head.cols
    if head.format == "array":
        return mtx_symmetry.array(path, head.symmetry, shape, value)
    value = value if len(head.entry) > 2 else np.ones(head.entries)
    return mtx_symmetry.coordinates(path, head.symmetry, shape, (row, col), value)


@contextlib.contextmanager
def _opened(source: Any) -> Iterator[tuple[str, BinaryIO, int | None, bool]]:
    """The name of a file, its unpacked content, a bound on its bytes if known, and whether the file was packed."""
    with contextlib.ExitStack() as stack:
        path = str(getattr(source, "name", "the stream")) if hasattr(source, "read") else os.fspath(source)
        file: Any = source if hasattr(source, "read") else stack.enter_context(open(path, "rb"))
        size = None
        with contextlib.suppress(AttributeError, OSError):  # not a file of the system
            status = os.fstat(file.fileno())
            size = status.st_size or None if stat.S_ISREG(status.st_mode) else None  # those of /proc have size 0
        start = file.read(LONGEST)
        if not isinstance(start, bytes):
            raise TypeError(
                f"{path} must be open for reading bytes, mode 'rb'; its read() gives {type(start).__name__}"
            )
        if size is not None:
            file.seek(-len(start), os.SEEK_CUR)
        else:
            file = io.BufferedReader(_Joined(start, file))
        for magic, unpack in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open)):
            if start.startswith(magic):
                yield path, cast(BinaryIO, stack.enter_context(unpack(file, "rb"))), size and size * _PACKING, True
                return
        yield path, file, size, False


class _Joined(io.RawIOBase):
    """Bytes that were read from a stream, and then the rest of the stream, which may be a pipe."""

    def __init__(self, start: bytes, rest: BinaryIO):
        self._start, self._rest = start, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._start[: len(buffer)] or self._rest.read(len(buffer)) or b""
        self._start = self._start[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


def _read_head(path: str, file: BinaryIO, size: int | None) -> _Head:
    start = _read_line(path, file, 1).removeprefix(b"\xef\xbb\xbf")  # the byte order mark of some editors
    if not re.match(rb"(?i)%%MatrixMarket\s", start):
        start += file.read(4096)
        cure = next(cure for sign, cure in _NOT_MATRIX_MARKET if re.match(sign, start))
        raise fault(path, 1, f"{_shown(start)} is not Matrix Market; {cure}")

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

    number, line = 1, b"%"
    while line.isspace() or line.lstrip().startswith(b"%"):
        number, line = number + 1, _read_line(path, file, number + 1)
    names = ["rows", "columns", "entries"][: 3 if format == "coordinate" else 2]
    sizes = line.partition(b"%")[0].split()
    if len(sizes) != len(names) or not all(re.fullmatch(rb"\+?\d{1,18}", word) for word in sizes):
        raise fault(path, number, f"the size line reads '{' '.join(names)}', not {_shown(line)}")
    rows, cols = (int(word) for word in sizes[:2])
    if symmetry != "general" and rows != cols:
        raise fault(path, number, f"{rows} × {cols} is not square, as {symmetry} must be")
    stored = {"general": rows * cols, "skew-symmetric": rows * (rows - 1) // 2}
    entries = int(sizes[2]) if len(sizes) == 3 else stored.get(symmetry, rows * (rows + 1) // 2)
    head = _Head(format, field, symmetry, rows, cols, entries, number)
    least = 2 * len(head.entry) * entries - 1
    if size is not None and least > size:
        what = f"{entries} entries take at least {least} bytes, and the file holds at most {size}"
        raise fault(path, number, f"{what}; {_CUT}")
    if size is not None:
        _check_rows(path, head, size)
    return head


def _check_rows(path: str, head: _Head, size: int) -> None:
    if head.rows > max(size, _EMPTY_ROWS):
        raise fault(path, head.lines, f"{head.rows} rows in a file of at most {size} bytes; {_CUT}")


def _read_line(path: str, file: BinaryIO, number: int) -> bytes:
    line = file.readline(LONGEST + 1)
    if len(line.removesuffix(b"\n")) > LONGEST:
        raise fault(path, number, f"a line of more than {LONGEST} bytes")
    return line


class _Scanned(NamedTuple):
    """The entries of a piece of text, and where and why the reader stopped."""

    entries: int
    room: Room  # whose arrays begin with those of the entries
    lines: int  # complete ones before the end
    ended: int  # a code of `mtx_entries`, or `_HUGE`
    at: int


def _read_entries(path: str, file: BinaryIO, head: _Head, known: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All entries, parsed by several threads while the next lines are read.

    Args:
        known: the file is large enough for all entries. Then a thread writes the entries of a piece where they stay
            if every line before them is an entry; otherwise the arrays grow.

    Returns:
        rows and columns [entries] int32, or int64 where the matrix needs it, which count from 0, none of an array file;
        values [entries], float64 or complex128, none of a pattern.
    """
    index = np.int32 if max(head.rows, head.cols) < 2**31 else np.int64
    empty = functools.partial(mtx_entries.arrays, *head.parts, index)
    arrays = empty(head.entries if known else 0)
    entries, reserved, lines, size = 0, 0, head.lines, 0
    buffers: list[Any] = []  # for reuse: it takes longer to get new memory than to fill it
    is_end = np.empty(_PIECE + LONGEST + 1, bool)

    def place(text: memoryview) -> tuple[int, Room]:
        """The number of the first entry of a text if all lines are entries, and room for its entries."""
        nonlocal reserved
        body = np.frombuffer(text, np.uint8)[: -len(mtx_entries.PAD)]
        ends = np.equal(body, 10, out=is_end[: body.size])
        first, reserved = reserved, reserved + int(np.count_nonzero(ends)) + (not ends[-1:].all())
        if known and reserved <= head.entries:
            return first, Room.of(*(a[first:reserved] for a in arrays))
        return -1, Room.of(*empty(reserved - first))

    def take(text: memoryview, first: int, block: _Scanned) -> None:
        nonlocal arrays, entries, lines, size
        if entries + block.entries > head.entries:
            block = _scanned(head, text, Room.of(*empty(head.entries - entries)))
        if block.ended:
            raise _explained(path, head, lines + block.lines + 1, text, block)
        stop = entries + block.entries
        if stop > len(arrays[0]):
            longer = empty(min(2 * stop, head.entries))
            for a, old in zip(longer, arrays, strict=True):
                a[:entries] = old[:entries]
            arrays = longer
        if first != entries:
            for a, new in zip(arrays, block.room[:3], strict=True):
                a[entries:stop] = new[: block.entries]
        entries, lines, size = stop, lines + block.lines, size + len(text)
        buffers.append(text.obj)

    running: collections.deque[tuple[memoryview, int, Future[_Scanned]]] = collections.deque()
    with ThreadPoolExecutor(CORES) as pool:
        for text, whole in _texts(file, buffers):
            first, own = place(text)
            if whole:
                take(text, first, _scanned(head, text, own))
                continue
            mtx_entries.compiled(index.__name__)  # once, before the other threads need it
            running.append((text, first, pool.submit(_scanned, head, text, own)))
            if len(running) > 2 * CORES:
                text, first, block = running.popleft()
                take(text, first, block.result())
        while running:
            text, first, block = running.popleft()
            take(text, first, block.result())
    if entries < head.entries:
        what = f"the file ends {head.entries - entries} short of the {head.entries} entries in its size line"
        raise fault(path, lines, f"{what}; fetch it again or correct the size line")
    _check_rows(path, head, size)
    row, col, value = (a[:entries] for a in arrays)
    return row, col, value.view(np.complex128)[:, 0] if head.field == "complex" else value.ravel()


def _texts(file: BinaryIO, free: list[Any]) -> Iterator[tuple[memoryview, bool]]:
    """The rest of a file in pieces of whole lines, each with `PAD` behind it, and whether it is all of the rest.

    Args:
        free: buffers of pieces that are no longer needed, which are used again.
    """
    whole, last, pad = True, False, mtx_entries.PAD
    while not last:
        buffer = memoryview(free.pop() if free else cast(Any, np.empty(_PIECE + LONGEST + 1 + len(pad), np.uint8)))
        size = cast(Any, file).readinto(buffer[:_PIECE])
        last = size < _PIECE
        end = b"" if last else file.readline(LONGEST + 1)  # a line that is too long stays too long
        stop = size + len(end) + len(pad)
        buffer[size:stop] = end + pad
        if size or whole:
            yield buffer[:stop], whole and last
        whole = False


def _scanned(head: _Head, text: memoryview, room: Room) -> _Scanned:
    """The entries of whole lines up to the first fault, or until the room is full."""
    n_value = head.parts[1]
    entries, n_late, lines, ended, at = mtx_entries.read(text, room, head.parts, (head.rows, head.cols))
    value = room.value.reshape(-1)

    for slot, start in room.late[:n_late].tolist():
        if slot >= entries * n_value:
            break  # this value belongs to the line at fault
        word = _word(text, start)
        if word[-1:].isalpha() and not re.fullmatch(rb"(?i)[-+]?(inf|infinity|nan)", word):
            entries, lines, ended, at = slot // n_value, bytes(text[:start]).count(b"\n"), mtx_entries.SHAPE, start
            break
        value[slot] = float(re.sub(rb"[dD]", b"e", word))
        if np.isinf(value[slot]) and not word[-1:].isalpha():
            entries, lines, ended, at = slot // n_value, bytes(text[:start]).count(b"\n"), _HUGE, start
            break
    return _Scanned(entries, room, lines, ended, at)


def _word(text: memoryview, at: int) -> bytes:
    return cast(re.Match[bytes], _WORD.match(text, at))[0]


def _explained(path: str, head: _Head, number: int, text: memoryview, block: _Scanned) -> ValueError:
    """The fault of the line at which a block ends, and a cure."""
    start = bytes(text[: block.at]).rfind(b"\n") + 1
    line = bytes(text[start : start + LONGEST])
    shown = _shown(line)
    if block.ended == mtx_entries.SHAPE:
        message = f"{shown} is not '{', '.join(head.entry)}'; correct the line, or the banner"
    elif block.ended == mtx_entries.RANGE:
        zero = any(not word.partition(b"%")[0].strip(b"+-0") for word in line.split()[:2])
        cure = "this file counts from 0: add 1 to each" if zero else "correct it or the size line"
        message = f"{shown}: an index outside {head.rows} × {head.cols}; indices count from 1, {cure}"
    elif block.ended == mtx_entries.MANY:
        message = f"{shown}: more than the {head.entries} entries of the size line; correct it or the entries"
    elif block.ended == _HUGE:
        message = f"{_shown(_word(text, block.at))} exceeds float64's 1.8e308; rescale"
    else:
        message = f"a line of more than {LONGEST} bytes"
    return fault(path, number, message)


def fault(path: str, line: int, what: str) -> ValueError:
    """The error that names a file, a line counted from 1, and the fault `what`."""
    return ValueError(f"{path}, line {line}: {what}")


def _shown(text: bytes) -> str:
    return repr(text.partition(b"\n")[0][:60].decode(errors="replace").strip())
