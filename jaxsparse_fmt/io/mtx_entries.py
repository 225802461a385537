"""The grammar of the entries of a Matrix Market file: one function over bytes, run as Python or compiled by Numba.

    line    = blank* [number (blank+ number)* blank*] ["%" any*] "\\n"       of at most `LONGEST` bytes
    blank   = " " | "\\t" | "\\v" | "\\f" | "\\r"
    index   = [sign] digit+
    value   = [sign] (digit+ ["." digit*] | "." digit+) [("e" | "d") [sign] digit+]
            | [sign] ("inf" | "infinity" | "nan")

Letters are of either case. NISTIR 5935 (Boisvert, Pozo, Remington, 1996) requires numbers separated by blanks, decimals
with or without the exponential notation that C and Fortran share, and lines of at most 1024 characters, and allows
blank lines anywhere after the first. It does not define a blank: here that is the white space of C, which the authors'
own reader skips (scanf in mmio.c), and a plus sign is read as in C and Fortran. Extensions, each with one possible
meaning: comments after the head and behind entries, the D of Fortran's double precision, infinities and NaN, lines of
up to 65,536 bytes. Values of integer files are read as reals.

As Python the function reads some 7 MB a second without waiting for a compiler. Numba compiles it in two seconds, once a
machine; `machine_code.py` keeps the code, and later processes link it in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import functools
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxsparse_fmt import machine_code

LONGEST = 65_536  # bytes of a line
ENOUGH = 1 << 20  # bytes that Python reads at most in a process, before it waits for a compiler
DONE, MANY, LONG, SHAPE, RANGE = range(5)  # the end of a call: no fault, an entry too many, a fault of a line

SMALLEST_POWER, LARGEST_POWER = -342, 308  # of ten: beyond, every 18-digit number is 0 or infinite
POWERS = LARGEST_POWER - SMALLEST_POWER + 1
TENS = 10.0 ** np.arange(23)  # the powers that are exact
BEYOND = 4 * 10**18  # larger than any index


class Room(NamedTuple):
    """What `scan` writes, of text with `most` entries.

    Attributes:
      place: [indices · most] int64, those of the rows, then those of the columns; they count from 0.
      value: [most · numbers] float64.
      late: [most · numbers, 2] int64: place in `value`, and start in the text, of the values left to the caller.
      found: [5] int64: entries, values left to the caller, complete lines, the code that ended the call, the start of
        the line at fault.
    """

    place: np.ndarray
    value: np.ndarray
    late: np.ndarray
    found: np.ndarray

    @classmethod
    def of(cls, n_index: int, n_value: int, most: int) -> Room:
        places, late = np.empty(n_index * most, np.int64), np.empty((most * n_value, 2), np.int64)
        return cls(places, np.empty(most * n_value), late, np.zeros(5, np.int64))


def scan(
    text: Any,  # [length] uint8; whole lines
    fives: Any,  # of `powers_of_five`, flat
    place: Any,  # what `Room` has, flat
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
    infinite results, words, and numbers that are decided by digits after the 18th.
    """
    found[0], found[1], found[2], found[3], found[4] = entries(
        text, fives, place, value, late, length, n_index, n_value, rows, cols, room, rounds
    )


def entries(text, fives, place, value, late, length, n_index, n_value, rows, cols, room, rounds):
    """The same; returns what `found` holds."""
    k, n_late, n_lines, at = 0, 0, 0, 0
    while at < length:
        line = at
        at = blank(text, at)
        if text[at] != 10 and text[at] != 37:
            if k == room:
                return k, n_late, n_lines, MANY, line
            outside = False
            for field in range(n_index + n_value):
                token = blank(text, at)
                if field < n_index:
                    index, at = integer(text, token)
                    outside |= index < 1 or index > (cols if field else rows)
                    place[field * room + k] = index - 1
                else:
                    negative, decimal, power, lost, at = number(text, token)
                    slot = k * n_value + field - n_index
                    x = np.nan
                    if rounds == 0 or lost < 0:
                        pass
                    elif decimal == 0:
                        x = 0.0
                    elif lost == 0 and decimal <= 2**53 and -22 <= power <= 22:
                        x = float(decimal)
                        x = x * TENS[power] if power >= 0 else x / TENS[-power]
                    elif SMALLEST_POWER <= power <= LARGEST_POWER:
                        x = nearest(decimal, power, fives)
                        if lost > 0 and x != nearest(decimal + 1, power, fives):
                            x = np.nan
                    if x == x:
                        value[slot] = -x if negative else x
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
    while c == 32 or (9 <= c <= 13 and c != 10):
        at += 1
        c = text[at]
    return at


def integer(text: Any, at: int) -> tuple[int, int]:
    """The integer at a place, and the place behind it: `at` if there is no integer. `BEYOND` from 10¹⁸ on."""
    start, found = at, 0
    c = text[at]
    negative = c == 45
    if negative or c == 43:
        at += 1
        c = text[at]
    first = at
    while 48 <= c <= 57:
        found = found * 10 + (c - 48) if found < 10**17 else BEYOND
        at += 1
        c = text[at]
    return -found if negative else found, at if at > first else start


def number(text: Any, at: int) -> tuple[bool, int, int, int, int]:
    """The number at a place: ±decimal · 10^power. Lost is 1 if digits beyond the 18th were dropped, −1 for a word.

    Returns:
      (negative, decimal, power, lost, the place behind it: `at` if there is no number)
    """
    start = at
    decimal, power, lost, digits = 0, 0, 0, 0
    c = text[at]
    negative = c == 45
    if negative or c == 43:
        at += 1
        c = text[at]
    if c == 73 or c == 105 or c == 78 or c == 110:
        while 65 <= (c & 223) <= 90:
            at += 1
            c = text[at]
        return negative, 0, 0, -1, at
    fraction = 0
    while 48 <= c <= 57 or (c == 46 and fraction == 0):
        if c == 46:
            fraction = 1
        else:
            digits += 1
            if decimal < 10**17:
                decimal = decimal * 10 + (c - 48)
                power -= fraction
            else:
                power += 1 - fraction
                lost |= c != 48
        at += 1
        c = text[at]
    if digits == 0:
        return negative, 0, 0, 0, start
    if c == 69 or c == 101 or c == 68 or c == 100:
        at += 1
        c = text[at]
        down = c == 45
        if down or c == 43:
            at += 1
            c = text[at]
        exponent, first = 0, at
        while 48 <= c <= 57:
            if exponent < 10**6:
                exponent = exponent * 10 + (c - 48)
            at += 1
            c = text[at]
        if at == first:
            return negative, 0, 0, 0, start
        power += -exponent if down else exponent
    return negative, decimal, power, lost, at


def nearest(decimal: int, power: int, fives: Any) -> float:
    """decimal · 10^power as the nearest float64, by Lemire, "Number parsing at a gigabyte per second" (2021).

    Returns:
      The float64; NaN where the algorithm does not decide, and where the result is subnormal or infinite.
    """
    wide = np.uint64(decimal)
    zeros, step = 0, 32
    while step:
        if wide >> np.uint64(64 - step) == np.uint64(0):
            wide <<= np.uint64(step)
            zeros += step
        step >>= 1
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
    """The 128 leading bits of 5^q, below q = 0 those of 1 / 5^-q and one more, as Lemire defines them.

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


def _make() -> tuple[Any, str]:
    """`scan` and its signature for Numba; the functions that it calls are compiled copies."""
    import numba

    njit: Any = numba.njit  # whose types do not know all options
    scope = dict(globals())
    for function in (blank, integer, number, product, nearest, entries):
        copy = types.FunctionType(function.__code__, scope, function.__name__)
        options = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        scope[function.__name__] = njit(**options)(copy)
    arrays = ", ".join(f"CPointer({t})" for t in ("uint8", "uint64", "int64", "float64", "int64", "int64"))
    return types.FunctionType(scan.__code__, scope, "scan"), f"void({arrays}, {', '.join(['int64'] * 7)})"


@functools.cache
def compiled() -> Callable[..., None] | None:
    """`scan` as machine code that releases the GIL; None, after a warning, where Numba cannot make it."""
    try:
        address = machine_code.address(_make, "scan")
    except Exception as error:
        warnings.warn(
            f"Numba cannot compile the reader of Matrix Market files, which is a hundred times as slow without: "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )
        return None
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 6, *[ctypes.c_int64] * 7)(address)


_as_python = 0  # bytes read so far


def read(text: bytes, room: Room, counts: tuple[int, int], shape: tuple[int, int]) -> tuple[int, ...]:
    """`scan` as Python, until `compiled` was called or Python has read `ENOUGH` bytes in this process.

    Args:
      counts: the indices of an entry, and the numbers of its value; shape: rows and columns.

    Returns:
      `Room.found`.
    """
    global _as_python
    most = room.place.size // counts[0] if counts[0] else room.value.size // counts[1]
    sizes = len(text), *counts, *shape, most
    if (compiled.cache_info().currsize or _as_python + len(text) > ENOUGH) and (quick := compiled()):
        quick(*(a.ctypes.data for a in (np.frombuffer(text, np.uint8), powers_of_five(), *room)), *sizes, 1)
    else:
        _as_python += len(text)
        place, value, late, found = room
        scan(text, None, place, value, late.reshape(-1), found, *sizes, 0)
    return tuple(room.found.tolist())
