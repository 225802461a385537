"""The grammar of the entries of a Matrix Market file: one function over bytes, run as Python or compiled by Numba.

    line    = blank* [number (blank+ number)* blank*] ["%" any*] "\\n"       of at most `LONGEST` bytes
    blank   = " " | "\\t" | "\\v" | "\\f" | "\\r"
    index   = [sign] digit+
    value   = [sign] (digit+ ["." digit*] | "." digit+) [("e" | "d") [sign] digit+]
            | [sign] ("inf" | "infinity" | "nan")

Case is ignored. NISTIR 5935 (Boisvert, Pozo, Remington, 1996) does not define a blank: here that is the white space of
C, which the authors' own reader skips (scanf in mmio.c), and a plus sign is read as in C and Fortran. `files.read_mtx`
lists the extensions, each of which has one possible meaning. Values of integer files are read as reals.

As Python the function reads some 7 MB a second without waiting for a compiler. Numba compiles it in two seconds, once
on each machine; `machine_code.py` keeps the code, and later processes link it in a few milliseconds.
"""

import ctypes
import functools
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np

from jaxsparse_fmt import machine_code

LONGEST = 65_536  # bytes of a line
PAD = b"\n" * 8  # behind a text, since digits are read eight at a time
ENOUGH = 1 << 20  # bytes that Python reads at most in a process, before it waits for a compiler
DONE, MANY, LONG, SHAPE, RANGE = range(5)  # how a call ends: no fault, an entry too many, a faulty line

SMALLEST_POWER, LARGEST_POWER = -342, 308  # of ten: beyond, every 18-digit number is 0 or infinite
POWERS = LARGEST_POWER - SMALLEST_POWER + 1
TENS = 10.0 ** np.arange(23)  # the powers that are exact
BEYOND = 4 * 10**18  # larger than any index
COMPILED = False  # true where Numba compiles the functions here
loaded: Any = None  # and then (text, at) -> the eight bytes at a place as one uint64, the first in the lowest bits


class Room(NamedTuple):
    """The arrays that `scan` writes for a text of at most `most` entries.

    Attributes:
      row, col: [most] int32 or int64, which count from 0; in an array file [most, 0].
      value: [most, numbers] float64.
      late: [most · numbers, 2] int64: place in `value`, and start in the text, of the values left to the caller.
      found: [5] int64: entries, values left to the caller, complete lines, the code that ended the call, the start of
        the line at fault.
    """

    row: np.ndarray
    col: np.ndarray
    value: np.ndarray
    late: np.ndarray
    found: np.ndarray

    @classmethod
    def of(cls, row: np.ndarray, col: np.ndarray, value: np.ndarray) -> Self:
        return cls(row, col, value, np.empty((value.size, 2), np.int64), np.zeros(5, np.int64))


def arrays(n_index: int, n_value: int, index: Any, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`row`, `col` and `value` of a `Room`, with indices of the type `index`."""
    places = (most,) if n_index else (most, 0)
    return np.empty(places, index), np.empty(places, index), np.empty((most, n_value))


def scan(
    text: Any,  # [length] uint8; whole lines, with `PAD` behind them
    fives: Any,  # of `powers_of_five`, flat
    row: Any,  # the arrays of `Room`, flat
    col: Any,
    value: Any,
    late: Any,
    found: Any,
    length: int,
    n_index: int,  # the indices of an entry
    n_value: int,  # the numbers of its value
    rows: int,
    cols: int,
    room: int,  # entries
    rounds: int,  # 0: all values are left to the caller
) -> None:
    """Reads the entries of a text up to the first fault, and at most as many as there is room for.

    A value is correctly rounded: by one product or quotient where decimal and power of ten are exact (Clinger, "How to
    read floating point numbers accurately", 1990), else by `nearest`. The caller must read the rest: subnormal and
    infinite results, words, and numbers that digits after the 18th decide.
    """
    found[0], found[1], found[2], found[3], found[4] = entries(
        text, fives, row, col, value, late, length, n_index, n_value, rows, cols, room, rounds
    )


def entries(text, fives, row, col, value, late, length, n_index, n_value, rows, cols, room, rounds):
    """As `scan`; returns the numbers of `found`."""
    k, n_late, n_lines, at = 0, 0, 0, 0
    while at < length:
        line = at
        at = blank(text, at)
        if text[at] != 10 and text[at] != 37:
            if k == room:
                return k, n_late, n_lines, MANY, line
            outside = False
            if n_index:
                i, end = integer(text, at)
                token = blank(text, end)
                j, last = integer(text, token)
                if end == at or token == end or last == token or not (text[last] <= 32 or text[last] == 37):
                    return k, n_late, n_lines, SHAPE, line
                at = last
                outside = i < 1 or i > rows or j < 1 or j > cols
                if not outside:
                    row[k], col[k] = i - 1, j - 1
            for slot in range(k * n_value, (k + 1) * n_value):
                token = blank(text, at)
                negative, found, power, lost, at = number(text, token)
                x = np.nan
                if rounds == 0 or lost < 0:
                    pass
                elif found == 0:
                    x = 0.0
                elif lost == 0 and found <= 2**53 and -22 <= power <= 22:
                    x = float(found)
                    x = x * TENS[power] if power >= 0 else x / TENS[-power]
                elif SMALLEST_POWER <= power <= LARGEST_POWER:
                    x = nearest(found, power, fives)
                    if lost > 0 and x != nearest(found + 1, power, fives):
                        x = np.nan
                if x == x:
                    value[slot] = x * (1.0 - 2.0 * negative)  # a branch would be mispredicted half of the time
                else:
                    late[2 * n_late], late[2 * n_late + 1] = slot, token
                    n_late += 1
                if at == token or not (text[at] <= 32 or text[at] == 37):
                    return k, n_late, n_lines, SHAPE, line
            at = blank(text, at)
            if text[at] != 10 and text[at] != 37:
                return k, n_late, n_lines, SHAPE, line
            if outside:
                return k, n_late, n_lines, RANGE, line
            k += 1
        while text[at] != 10:
            at += 1
        if at - line > LONGEST:
            return k, n_late, n_lines, LONG, line
        at += 1
        n_lines += 1
    return k, n_late, n_lines, DONE, at


def blank(text: Any, at: int) -> int:
    """The first place from `at` on that is no blank."""
    c = text[at]
    while c <= 32 and (c == 32 or (9 <= c <= 13 and c != 10)):
        at += 1
        c = text[at]
    return at


def integer(text: Any, at: int) -> tuple[int, int]:
    """The integer at a place, and the place behind it: `at` if there is no integer. `BEYOND` from 10¹⁸ on."""
    start, negative = at, False
    c = text[at]
    if not 48 <= c <= 57:
        negative = c == 45
        if not negative and c != 43:
            return 0, start
        at += 1
    first = at
    while text[at] == 48:
        at += 1
    found, end = digits(text, at, 0)
    if end == first:
        return 0, start
    if end - at > 18:
        found = BEYOND
    return -found if negative else found, end


def digits(text: Any, at: int, found: int) -> tuple[int, int]:
    """The number whose last digits stand at a place, and whose first are `found`, modulo 2⁶⁴; the place behind it."""
    c = text[at]
    while 48 <= c <= 57:
        found = found * 10 + (c - 48)
        at += 1
        c = text[at]
    return found, at


def eight(text: Any, at: int) -> Any:
    """The number that eight digits make, all at once in one register; −1 if one of them is no digit."""
    word = loaded(text, at) ^ np.uint64(0x3030303030303030)
    if (word | (word + np.uint64(0x7676767676767676))) & np.uint64(0x8080808080808080):
        return -1
    word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    return np.int64((word * np.uint64(10000) + (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF))


def decimal(text: Any, at: int) -> tuple[int, int, int, int, int]:
    """The digits at a place, with or without a point: found · 10^power. Lost is 1 if digits behind the 18th are lost.

    Returns:
      (found, power, lost, digits, the place behind them)
    """
    if COMPILED:
        found, end = digits(text, at, 0)
        power, count = 0, end - at
        if text[end] == 46:
            first = end = end + 1
            more = eight(text, end)
            while more >= 0:
                found, end = found * 10**8 + more, end + 8
                more = eight(text, end)
            found, end = digits(text, end, found)
            power, count = first - end, count + end - first
        if count < 19 or (count == 19 and found >= 0):
            return found, power, 0, count, end
    found, power, lost, count, fraction = 0, 0, 0, 0, 0
    c = text[at]
    while 48 <= c <= 57 or (c == 46 and fraction == 0):
        if c == 46:
            fraction = 1
        else:
            count += 1
            if found < 10**17:
                found = found * 10 + (c - 48)
                power -= fraction
            else:
                power += 1 - fraction
                lost |= c != 48
        at += 1
        c = text[at]
    return found, power, lost, count, at


def number(text: Any, at: int) -> tuple[bool, int, int, int, int]:
    """The number at a place: ±found · 10^power. Lost is as `decimal` gives it, and −1 for a word.

    Returns:
      (negative, found, power, lost, the place behind it: `at` if there is no number)
    """
    start = at
    c = text[at]
    negative = c == 45
    at += negative or c == 43
    c = text[at]
    if c == 73 or c == 105 or c == 78 or c == 110:
        while 65 <= (c & 223) <= 90:
            at += 1
            c = text[at]
        return negative, 0, 0, -1, at
    found, power, lost, count, at = decimal(text, at)
    if count == 0:
        return negative, 0, 0, 0, start
    c = text[at]
    if c == 69 or c == 101 or c == 68 or c == 100:
        at += 1
        c, down = text[at], False
        if not 48 <= c <= 57:
            down = c == 45
            if not down and c != 43:
                return negative, 0, 0, 0, start
            at += 1
        exponent, first, c = 0, at, text[at]
        while 48 <= c <= 57:
            if exponent < 10**6:
                exponent = exponent * 10 + (c - 48)
            at += 1
            c = text[at]
        if at == first:
            return negative, 0, 0, 0, start
        power += -exponent if down else exponent
    return negative, found, power, lost, at


def nearest(found: int, power: int, fives: Any) -> float:
    """found · 10^power as the nearest float64, by Lemire, "Number parsing at a gigabyte per second" (2021).

    Returns:
      The float64; NaN where the algorithm does not decide, and where the result is subnormal or infinite.
    """
    zeros = 1086 - (np.float64(found).view(np.int64) >> 52)  # zeros before its bits; one too few where it is rounded up
    wide = np.uint64(found) << np.uint64(zeros)
    missed = np.uint64(1) - (wide >> np.uint64(63))
    wide <<= missed
    zeros += np.int64(missed)
    high, low = product(wide, fives[power - SMALLEST_POWER])
    if (high & np.uint64(511)) == np.uint64(511):
        more = product(wide, fives[power - SMALLEST_POWER + POWERS])[0]
        low += more
        if more > low:
            high += np.uint64(1)
    upper = high >> np.uint64(63)
    mantissa = high >> (upper + np.uint64(9))
    scale = ((217706 * power) >> 16) + 1086 + np.int64(upper) - zeros
    exact = low <= np.uint64(1) and -4 <= power <= 23 and (mantissa << (upper + np.uint64(9))) == high
    if exact and (mantissa & np.uint64(3)) == np.uint64(1):
        mantissa -= np.uint64(1)  # halfway: to even
    mantissa = (mantissa + (mantissa & np.uint64(1))) >> np.uint64(1)
    undecided = low == np.uint64(0xFFFFFFFFFFFFFFFF) and not -27 <= power <= 55
    if scale <= 0 or scale >= 2046 or undecided:
        return np.nan
    return np.uint64((np.uint64(scale - 1) << np.uint64(52)) + mantissa).view(np.float64)


def product(a: Any, b: Any) -> tuple[Any, Any]:
    """The upper and the lower 64 bits of a · b, all uint64."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    middle = (a >> half) * (b & mask) + (((a & mask) * (b & mask)) >> half)
    other = (a & mask) * (b >> half) + (middle & mask)
    return (a >> half) * (b >> half) + (middle >> half) + (other >> half), a * b


@functools.cache
def powers_of_five() -> np.ndarray:
    """The 128 leading bits of 5^q; for q < 0 those of 1 / 5^-q, plus one; as Lemire defines them.

    Returns:
      [2, powers] uint64: the upper halves and the lower halves.
    """
    table = []
    for q in range(SMALLEST_POWER, LARGEST_POWER + 1):
        power = 5 ** abs(q)
        length = power.bit_length()
        bits = power << 128 >> length
        if q < 0:
            bits = (1 << (length + 127 if q >= -27 else 2 * length + 128)) // power + 1
            bits >>= bits.bit_length() - 128
        table.append((bits >> 64, bits & (2**64 - 1)))
    return np.array(table, np.uint64).T.copy()


def _make(index: str) -> tuple[Any, str]:
    """`scan` and its signature for Numba, for indices of a type; the functions that it calls are compiled copies."""
    import numba
    from numba.extending import intrinsic

    def load(_: Any, text: Any, at: Any) -> Any:
        def code(context: Any, b: Any, _: Any, of: Any) -> Any:
            word = context.get_value_type(numba.uint64).as_pointer()
            return b.load(b.bitcast(b.gep(of[0], [of[1]]), word), align=1)

        return numba.uint64(text, at), code

    njit: Any = numba.njit  # whose types do not know all options
    scope = globals() | {"COMPILED": True, "loaded": intrinsic(load)}
    for function in (blank, integer, eight, digits, decimal, number, product, nearest, entries):
        copy = types.FunctionType(function.__code__, scope, function.__name__)
        options = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        scope[function.__name__] = njit(forceinline=True, **options)(copy)
    pointers = ", ".join(f"CPointer({t})" for t in ("uint8", "uint64", index, index, "float64", "int64", "int64"))
    return types.FunctionType(scan.__code__, scope, "scan"), f"void({pointers}, {', '.join(['int64'] * 7)})"


@functools.cache
def compiled(index: str) -> Callable[..., None] | None:
    """`scan` for indices of a type, as machine code without the GIL; None, after a warning, where Numba fails."""
    try:
        address = machine_code.address(lambda: _make(index), "scan", index)
    except Exception as error:
        warnings.warn(
            f"Numba cannot compile the reader of Matrix Market files, which is a hundred times slower in Python: "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )
        return None
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 7, *[ctypes.c_int64] * 7)(address)


_as_python = 0  # bytes read so far


def read(text: memoryview | bytes, room: Room, counts: tuple[int, int], shape: tuple[int, int]) -> tuple[int, ...]:
    """`Room.found` after `scan`: as Python, until `compiled` was called or Python has read `ENOUGH` bytes.

    Args:
      text: with `PAD` behind its lines.
      counts: the indices of an entry, and the numbers of its value; shape: rows and columns.
    """
    global _as_python
    length = len(text) - len(PAD)
    sizes = length, *counts, *shape, len(room.row)
    native = compiled.cache_info().currsize or _as_python + length > ENOUGH
    if native and (quick := compiled(room.row.dtype.name)):
        quick(*(a.ctypes.data for a in (np.frombuffer(text, np.uint8), powers_of_five(), *room)), *sizes, 1)
    else:
        _as_python += length
        row, col, value, late, found = (a.reshape(-1) for a in room)
        scan(text, None, row, col, value, late, found, *sizes, 0)
    return tuple(room.found.tolist())
