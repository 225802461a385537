"""The entries of a Matrix Market file: SciPy's reader (fast_matrix_market) after strict checks.

    line    = blank* [number (blank+ number)* blank*] ["%" any*] "\\n"       of at most `LONGEST` bytes
    blank   = " " | "\\t" | "\\v" | "\\f" | "\\r"
    index   = [sign] digit+
    value   = [sign] (digit+ ["." digit*] | "." digit+) [("e" | "d") [sign] digit+]
            | [sign] ("inf" | "infinity" | "nan")

Case is ignored. NISTIR 5935 (Boisvert, Pozo, Remington, 1996) does not define a blank: here that is the white space of
C, which the authors' own reader skips (scanf in mmio.c), and a plus sign is read as in C and Fortran. `read_scipy` in
`files.py` lists the extensions, each of which has one possible meaning. Values of integer files are read as reals.

SciPy reads a number up to the first byte that is no part of it (`1/2` is 1, a column `1e+05` is 1), ignores words after
an entry, and takes 1e999 for infinity. So `passed` checks every byte first: without their digits, lines are of a few
kinds, which NumPy counts, and every kind must fit the grammar. Python reads a piece that does not pass, as one with
comments, line by line (`by_line`): it finds the fault, or spells the entries as SciPy reads them.
"""

import functools
import operator
import re
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

LONGEST = 65_536  # bytes of a line
_NOTES = 1 << 18  # lines without an entry that a file may have, besides one for each entry
_AS_SCIPY = bytes.maketrans(b"\t\v\f\rdD", b"    ee")  # bytes that SciPy reads only as blanks and as an e
_HUGE = re.compile(rb"(?i)[ed]\+?0*[1-9]\d\d")  # an exponent of 100 or more
# Of the eight bytes from 8·k on those that a line of some length has, by k and length.
_OF_LINE = [np.array([(1 << 8 * min(max(n - k, 0), 8)) - 1 for n in range(17)], np.uint64) for k in (0, 8)]
_BLANK, _FLAGGED = ord(" "), re.compile(rb"[\x80-\xff]")
_POWER = re.compile(rb"(?i)[ed]\+?0")  # with each run of digits shortened to one
_INDEX = re.compile(rb"[-+]?\d+")
_VALUE = re.compile(rb"(?i)[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[ed][-+]?\d+)?|inf|infinity|nan)")
_SHORT_VALUE = rb"-?(?:0\.?0?|\.0)(?:[eE][-+]?0)?"  # with each run of digits shortened to one


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


def read(
    pieces: Callable[[], Iterator[bytes]],  # of whole lines, from the first after the head on
    head: Head,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows and columns [entries] int32, or int64 if the matrix needs it, from 0, none of an array file; values
    [entries], float64 or complex128, ones of a pattern. Raises ValueError that names the first wrong line.
    """
    from scipy.io import mmread

    def checked(every_index: bool = False) -> Iterator[bytes]:
        """A head for SciPy, and the pieces that it may read."""
        field = ("pattern", "real", "complex")[head.n_value]
        kind, size = ("coordinate", head.shape) if head.n_index else ("array", (1,))
        sizes = " ".join(map(str, (*size, head.entries)))
        yield f"%%MatrixMarket matrix {kind} {field} general\n{sizes}\n".encode()
        entries, lines, size = 0, head.lines, 0
        for piece in pieces():
            whole = piece if piece.endswith(b"\n") else piece + b"\n"  # without one SciPy reads beyond the end
            known = None if every_index else passed(whole, head, head.entries - entries)
            text, more, n_lines = known or by_line(whole, head, entries, lines)
            entries, lines, size = entries + more, lines + n_lines, size + len(piece)
            check_notes(head.path, lines, size, entries)
            yield text
        if entries < head.entries:
            what = f"the file ends {head.entries - entries} short of the {head.entries} entries in its size line"
            raise fault(head.path, lines, f"{what}; fetch it again or correct the size line")

    text = checked()
    stream = types.SimpleNamespace(read=lambda size=-1: next(text, b""))  # what SciPy takes for an open file
    try:
        found: Any = mmread(stream, spmatrix=False) if head.entries else None
    except (ValueError, OverflowError):
        for _ in checked(every_index=True):  # raises, if an index is outside of the matrix
            pass
        raise
    for _ in text:  # checks what follows the last entry
        pass
    index = np.empty(0, np.int32 if max(head.shape) < 2**31 else np.int64)
    if found is None:
        return index, index, np.empty(0, complex if head.n_value == 2 else float)
    return (found.row, found.col, found.data) if head.n_index else (index, index, found[0])


def passed(piece: bytes, head: Head, room: int) -> tuple[bytes, int, int] | None:
    """A piece in SciPy's spelling, its entries and its lines; None if `by_line` must decide.

    SciPy refuses indices outside of the matrix.
    """
    half = LONGEST // 2
    if any(piece.find(b"\n", begin, begin + half) < 0 for begin in range(0, len(piece) - half + 1, half)):
        return None  # a line may be too long
    byte = np.frombuffer(piece, np.uint8)
    place = np.flatnonzero(byte - np.uint8(ord("0")) >= 10)  # of the bytes that are no digits
    mark, step = byte.take(place), np.diff(place, prepend=-1)  # these bytes, and 1 + the digits before each
    kinds = _counted(mark | (step > 1).view(np.uint8) << 7) if mark.max() < 128 else None
    if kinds is None or step.max() > 199:  # of more digits a number may be infinite
        return None
    if any(map(_POWER.search, kinds)):
        before = mark[:-1][step[1:] > 3]  # the bytes before runs of three digits and more
        if np.isin(before, [*b"eEdD+"]).any() and _HUGE.search(piece):
            return None  # a number may be infinite
    entries = {line: n for line, n in kinds.items() if line.strip()}
    entry = re.compile(b" *" + b" +".join([b"0"] * head.n_index + [_SHORT_VALUE] * head.n_value) + b" *\n")
    if sum(entries.values()) > room or not all(entry.fullmatch(line.translate(_AS_SCIPY)) for line in entries):
        return None
    is_odd = any(line != line.translate(_AS_SCIPY) for line in kinds)
    return piece.translate(_AS_SCIPY) if is_odd else piece, sum(entries.values()), sum(kinds.values())


def _counted(text: np.ndarray) -> dict[bytes, int] | None:
    """The count of each line, with 0 for its runs of digits; None for lines of many kinds, or longer than entries.

    The text has no digits, and 128 added to a byte after digits.
    """
    if (blank := text == _BLANK).any():  # drop blanks after a blank, or at the start of a line
        text = text[~(blank & np.append(True, text[:-1] & 127 <= _BLANK))]
    end = np.flatnonzero(text & 127 == ord("\n")) + 1
    length, found = np.diff(end, prepend=0), dict[bytes, int]()
    if length.max() > 8 * len(_OF_LINE):
        return None
    padded = text.tobytes() + bytes(8 * len(_OF_LINE))
    words = [  # eight bytes of each line are one number
        np.ndarray(len(text), "S8", padded, 8 * k, (1,))[end - length].view("<u8") & of_line[length]
        for k, of_line in enumerate(_OF_LINE[: -(-int(length.max()) // 8)])
    ]
    while words[0].size and len(found) < 64:
        line = b"".join(word[:1].tobytes() for word in words).rstrip(b"\0")
        other = functools.reduce(operator.or_, (word != word[0] for word in words))
        found[_FLAGGED.sub(lambda c: b"0%c" % (c[0][0] - 128), line)] = int(other.size - np.count_nonzero(other))
        words = [word[other] for word in words]
    return None if words[0].size else found


def by_line(
    piece: bytes,
    head: Head,
    entries: int,  # before the piece
    lines: int,  # before the piece
) -> tuple[bytes, int, int]:
    """A piece in the spelling that SciPy reads, its entries and its lines. Raises ValueError as `read`."""
    spelled, first = [], entries
    for number, line in enumerate(piece.removesuffix(b"\n").split(b"\n"), lines + 1):
        try:
            spelled.append(_spelled(line, head, entries == head.entries))
        except ValueError as error:
            raise fault(head.path, number, str(error)) from None
        entries += bool(spelled[-1])
    return b"\n".join([*spelled, b""]), entries - first, len(spelled)


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


def check_notes(path: str, lines: int, size: int, entries: int = 0) -> None:
    """Refuses blank lines and comments of which a small archive may hold billions.

    Args:
      lines, size, entries: of the file so far; its size in bytes.
    """
    if lines - entries > _NOTES + entries or size > 64 * _NOTES + 256 * entries:
        raise fault(path, lines, f"more than {_NOTES} blank lines and comments, or 16 MB of them; remove them")


def fault(path: str, line: int, what: str) -> ValueError:
    """The error that names a file, a line counted from 1, and the fault `what`."""
    return ValueError(f"{path}, line {line}: {what}")


def shown(text: bytes) -> str:
    """The start of a line, for an error."""
    return repr(text.partition(b"\n")[0][:60].decode(errors="replace").strip())
