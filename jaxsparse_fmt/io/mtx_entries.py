"""The entries of a Matrix Market file: SciPy's reader (fast_matrix_market) behind a strict door.

    line    = blank* [number (blank+ number)* blank*] ["%" any*] "\\n"       of at most `LONGEST` bytes
    blank   = " " | "\\t" | "\\v" | "\\f" | "\\r"
    index   = [sign] digit+
    value   = [sign] (digit+ ["." digit*] | "." digit+) [("e" | "d") [sign] digit+]
            | [sign] ("inf" | "infinity" | "nan")

Case is ignored. NISTIR 5935 (Boisvert, Pozo, Remington, 1996) does not define a blank: here that is the white space of
C, which the authors' own reader skips (scanf in mmio.c), and a plus sign is read as in C and Fortran. `files.read_mtx`
lists the extensions, each of which has one possible meaning. Values of integer files are read as reals.

SciPy reads a number up to the first byte that is no part of it (`1/2` is 1, a column `1e+05` is 1), ignores words
behind an entry, and takes 1e999 for infinity. So `passed` looks at every byte first: NumPy shortens each run of digits
to one, and the few different lines that are left must fit the grammar. What it does not pass is read line by line
in Python (`by_line`), which finds the fault, or spells the entries as SciPy reads them.
"""

import collections
import functools
import operator
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

LONGEST = 65_536  # bytes of a line
_ODD = b"\t\v\f\rdD"  # bytes that SciPy reads only as blanks and as an e
_AS_SCIPY = bytes.maketrans(_ODD, b"    ee")
_DIGITS_AS_0 = bytes.maketrans(b"123456789E", b"000000000e")
_HUGE = re.compile(rb"(?i)e\+?0*[1-9]\d\d")  # an exponent of 100 or more
# Of the eight bytes from k on those that a line of some length has, by k and length.
_OF_LINE = {k: np.array([(1 << 8 * min(max(n - k, 0), 8)) - 1 for n in range(24)], np.uint64) for k in (0, 8, 16)}
_POWER = re.compile(rb"e\+?0")  # with each run of digits shortened to one
_COMMENT = re.compile(rb"%[^\n]*")
_INDEX = re.compile(rb"[-+]?\d+")
_VALUE = re.compile(rb"(?i)[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[ed][-+]?\d+)?|inf|infinity|nan)")
_SHORT_VALUE = rb"-?(?:0\.?0?|\.0)(?:e[-+]?0)?"  # with each run of digits shortened to one


class Head(NamedTuple):
    """The banner and the size line.

    Attributes:
      symmetry: general, symmetric, skew-symmetric or hermitian.
      shape: rows and columns.
      n_index, n_value: indices of an entry, and numbers of its value.
      entries: that must follow, one on a line.
      lines: up to and including the size line.
    """

    path: str
    symmetry: str
    shape: tuple[int, int]
    n_index: int
    n_value: int
    entries: int
    lines: int

    @property
    def words(self) -> list[str]:
        """The names of the words of an entry."""
        return ["row", "column"][: self.n_index] + [[], ["value"], ["real part", "imaginary part"]][self.n_value]


class _Stream:
    """What SciPy takes for an open file: it reads one piece after the other."""

    def __init__(self, pieces: Iterator[bytes]):
        self._pieces = pieces

    def read(self, size: int = -1) -> bytes:
        return next(self._pieces, b"")


def read(
    pieces: Iterator[bytes],  # of whole lines
    head: Head,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All entries.

    Returns:
      rows and columns [entries] int32, or int64 where the matrix needs it, which count from 0, none of an array file;
      values [entries], float64 or complex128, ones of a pattern.

    Raises:
      ValueError: that names the first line that is wrong.
    """
    from scipy.io import mmread

    taken: list[bytes] = []

    def checked() -> Iterator[bytes]:
        """A head for SciPy, and the pieces that it may read."""
        field = ("pattern", "real", "complex")[head.n_value]
        kind, size = ("coordinate", head.shape) if head.n_index else ("array", (1,))
        sizes = " ".join(map(str, (*size, head.entries)))
        yield f"%%MatrixMarket matrix {kind} {field} general\n{sizes}\n".encode()
        entries, lines = 0, head.lines
        for piece in pieces:
            whole = piece if piece.endswith(b"\n") else piece + b"\n"  # SciPy reads behind an end without one
            text, new = passed(whole, head, head.entries - entries) or by_line(whole, head, entries, lines)
            entries, lines = entries + new, lines + piece.count(b"\n")
            taken.append(text)
            yield text
        if entries < head.entries:
            what = f"the file ends {head.entries - entries} short of the {head.entries} entries in its size line"
            raise fault(head.path, lines, f"{what}; fetch it again or correct the size line")

    text = checked()
    try:
        found: Any = mmread(_Stream(text)) if head.entries else None
    except (ValueError, OverflowError):
        by_line(b"".join(taken), head, 0, head.lines)  # raises, if an index is outside of the matrix
        raise
    for _ in text:  # what follows the last entry is checked too
        pass
    index = np.empty(0, np.int32 if max(head.shape) < 2**31 else np.int64)
    if found is None:
        return index, index, np.empty(0, complex if head.n_value == 2 else float)
    return (found.row, found.col, found.data) if head.n_index else (index, index, found[0])


def passed(piece: bytes, head: Head, room: int) -> tuple[bytes, int] | None:
    """A piece as SciPy reads it right, and its entries; None where only `by_line` knows.

    Indices outside of the matrix are left to SciPy, which refuses them.
    """
    half = LONGEST // 2
    if b"\0" in piece or any(piece.find(b"\n", at, at + half) < 0 for at in range(0, len(piece) - half + 1, half)):
        return None  # a line may be too long
    piece = _COMMENT.sub(b"", piece) if b"%" in piece else piece
    piece = piece.translate(_AS_SCIPY) if any(byte in piece for byte in _ODD) else piece
    byte = np.frombuffer(piece, np.uint8)
    digit = byte - np.uint8(ord("0")) < 10
    first = byte.copy()
    np.multiply(byte[1:], ~(digit[1:] & digit[:-1]), out=first[1:])  # 0 for a digit that follows one
    text = first.tobytes()
    kinds = _counted(text.translate(_DIGITS_AS_0, b"\0"))
    if b"\0" * 199 in text or (any(map(_POWER.search, kinds)) and _has_long_power(first) and _HUGE.search(piece)):
        return None  # a number may be infinite
    blank = [line for line in kinds if not line.strip(b" ")]
    entry = re.compile(b" *" + b" +".join([b"0"] * head.n_index + [_SHORT_VALUE] * head.n_value) + b" *")
    if not all(entry.fullmatch(line) for line in kinds.keys() - blank):
        return None
    entries = sum(kinds.values()) - sum(kinds[line] for line in blank)
    return (piece, entries) if entries <= room else None


def _has_long_power(first: np.ndarray) -> bool:
    """Whether an e has three digits behind it, or behind its sign; `first` is 0 for a digit that follows one."""
    e = np.flatnonzero(first | 32 == ord("e"))
    second, third, fourth = (first.take(e + k, mode="clip") == 0 for k in (2, 3, 4))
    return bool(np.any(third & (second | fourth)))


def _counted(text: bytes) -> dict[bytes, int]:
    """How often each line of a text without 0 bytes occurs; fast where they are short and of few kinds."""
    end = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    start = np.concatenate([[0], end[:-1] + 1])
    length, found = end - start, dict[bytes, int]()
    if (longest := int(length.max())) < 24:
        behind = text + bytes(24)
        words = [  # eight bytes of each line are one number
            np.ndarray(len(text), "<u8", behind, k, (1,))[start] & _OF_LINE[k][length]
            for k in range(0, max(longest, 1), 8)
        ]
        while words[0].size and len(found) < 64:
            line = b"".join(word[:1].tobytes() for word in words).rstrip(b"\0")
            other = functools.reduce(operator.or_, (word != word[0] for word in words))
            found[line] = int(other.size - np.count_nonzero(other))
            words = [word[other] for word in words]
        if not words[0].size:
            return found
    return collections.Counter(text.removesuffix(b"\n").split(b"\n"))


def by_line(
    piece: bytes,
    head: Head,
    entries: int,  # before the piece
    lines: int,  # before the piece
) -> tuple[bytes, int]:
    """A piece in the spelling that SciPy reads, and its entries.

    Raises:
      ValueError: that names the first line that is wrong.
    """
    spelled, first = [], entries
    for number, line in enumerate(piece.removesuffix(b"\n").split(b"\n"), lines + 1):
        try:
            spelled.append(_spelled(line, head, entries == head.entries))
        except ValueError as error:
            raise fault(head.path, number, str(error)) from None
        entries += bool(spelled[-1])
    return b"\n".join([*spelled, b""]), entries - first


def _spelled(line: bytes, head: Head, full: bool) -> bytes:
    """The entry of a line, if there is one. Raises ValueError with the fault of the line and the cure."""
    if len(line) > LONGEST:
        raise ValueError(f"a line of more than {LONGEST} bytes")
    words = line.partition(b"%")[0].split()
    if not words:
        return b""
    if full:
        raise ValueError(
            f"{shown(line)}: more than the {head.entries} entries of the size line; correct it or the entries"
        )
    kinds = [_INDEX] * head.n_index + [_VALUE] * head.n_value
    if len(words) != len(kinds) or not all(kind.fullmatch(word) for kind, word in zip(kinds, words, strict=True)):
        raise ValueError(f"{shown(line)} is not '{', '.join(head.words)}'; correct the line, or the banner")
    index, value = words[: head.n_index], words[head.n_index :]
    index = [word.lstrip(b"+").lstrip(b"0") or b"0" for word in index]
    if any(len(i) > 18 or not 1 <= int(i) <= most for i, most in zip(index, head.shape, strict=False)):
        rows, cols = head.shape
        cure = "this file counts from 0: add 1 to each" if b"0" in index else "correct it or the size line"
        raise ValueError(f"{shown(line)}: an index outside {rows} × {cols}; indices count from 1, {cure}")
    for word in value:
        number = float(word.translate(_AS_SCIPY))
        if np.isinf(number) and not word[-1:].isalpha():
            raise ValueError(f"{shown(word)} exceeds float64's 1.8e308; rescale")
        index.append(repr(number).encode())
    return b" ".join(index)


def fault(path: str, line: int, what: str) -> ValueError:
    """The error that names a file, a line counted from 1, and the fault `what`."""
    return ValueError(f"{path}, line {line}: {what}")


def shown(text: bytes) -> str:
    """The start of a line, for an error."""
    return repr(text.partition(b"\n")[0][:60].decode(errors="replace").strip())
