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

As Python the function reads some 7 MB a second without waiting for a compiler. Compiled it reads 500 MB a second on a
core; compiling takes two seconds once a machine, and loading the code half a second in every later process.
"""

from __future__ import annotations

import functools
import types
import warnings
from typing import Any

import numpy as np

LONGEST = 65_536  # bytes of a line
ENOUGH = 1 << 21  # bytes that take Python as long as it takes to load Numba
DONE, MANY, LONG, SHAPE, RANGE = range(5)  # the end of a call: no fault, an entry too many, a fault of a line

SMALLEST_POWER, LARGEST_POWER = -342, 308  # of ten: beyond, every 18-digit number is 0 or infinite
TENS = 10.0 ** np.arange(23)  # the powers that are exact
NO_FIVES = np.zeros((2, 0), np.uint64)
BEYOND = 4 * 10**18  # larger than any index


def scan(
    text: Any,  # [bytes] uint8, or bytes; whole lines
    counts: tuple[int, int],  # the indices of an entry, and the numbers of its value
    shape: tuple[int, int],  # rows, columns
    place: np.ndarray,  # [indices, room] int64, written: indices that count from 0
    value: np.ndarray,  # [room · numbers] float64, written
    late: np.ndarray,  # [room · numbers, 2] int64, written: place in value, and start, of the values left to the caller
    fives: np.ndarray,  # of `powers_of_five`; an array without columns leaves all values to the caller
) -> tuple[int, int, int, int, int]:
    """Reads the entries of a text up to the first fault, and at most as many as there is room for.

    A value is correctly rounded: by one product or quotient where decimal and power of ten are exact (Clinger, "How to
    read floating point numbers accurately", 1990), else by `nearest`. The caller must read the rest: subnormal and
    infinite results, words, and numbers that are decided by digits after the 18th.

    Returns:
      (entries, values left to the caller, complete lines, the code that ended the call, the start of the line at fault)
    """
    k, n_late, n_lines, at = 0, 0, 0, 0
    (n_index, n_value), room = counts, place.shape[1]
    while at < len(text):
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
                    outside |= index < 1 or index > shape[field]
                    place[field, k] = index - 1
                else:
                    negative, decimal, power, lost, at = number(text, token)
                    slot = k * n_value + field - n_index
                    found = np.nan
                    if fives.size == 0 or lost < 0:
                        pass
                    elif decimal == 0:
                        found = 0.0
                    elif lost == 0 and decimal <= 2**53 and -22 <= power <= 22:
                        found = float(decimal)
                        found = found * TENS[power] if power >= 0 else found / TENS[-power]
                    elif SMALLEST_POWER <= power <= LARGEST_POWER:
                        found = nearest(decimal, power, fives)
                        if lost > 0 and found != nearest(decimal + 1, power, fives):
                            found = np.nan
                    if found == found:
                        value[slot] = -found if negative else found
                    else:
                        late[n_late, 0] = slot
                        late[n_late, 1] = token
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


def nearest(decimal: int, power: int, fives: np.ndarray) -> float:
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
    high, low = product(wide, fives[0, power - SMALLEST_POWER])
    if (high & np.uint64(511)) == np.uint64(511):
        more = product(wide, fives[1, power - SMALLEST_POWER])[0]
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


_ARGUMENTS = "Array(uint8, 1, 'C', readonly=True), UniTuple(int64, 2), UniTuple(int64, 2)"
_WRITTEN = "int64[:, ::1], float64[::1], int64[:, ::1]"
_SIGNATURE = f"UniTuple(int64, 5)({_ARGUMENTS}, {_WRITTEN}, uint64[:, ::1])"


@functools.cache
def compiled() -> Any:
    """`scan` as machine code that releases the GIL; None, after a warning, where Numba cannot make it.

    Numba keeps the code beside this file, else in its folder of the user (NUMBA_CACHE_DIR names another). If neither
    can be written, every process compiles.
    """
    try:
        import numba

        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
        scope = dict(globals())
        for function in (blank, integer, number, product, nearest):
            copy = types.FunctionType(function.__code__, scope, function.__name__)
            scope[function.__name__] = numba.njit(**options)(copy)
        copy = types.FunctionType(scan.__code__, scope, "scan")
        try:
            return numba.njit(_SIGNATURE, cache=True, **options)(copy)
        except Exception:  # no folder can be written, or the code kept there is damaged
            return numba.njit(_SIGNATURE, **options)(copy)
    except Exception as error:
        warnings.warn(
            f"Numba cannot compile the reader of Matrix Market files, which is a hundred times as slow without: "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )
        return None


_as_python = 0  # bytes read so far


def read(text: bytes, *given: Any) -> tuple[int, int, int, int, int]:
    """`scan` as Python, until `compiled` was called or Python has read `ENOUGH` bytes in this process.

    Args:
      given: the arguments of `scan` from `counts` to `late`.
    """
    global _as_python
    if (compiled.cache_info().currsize or _as_python + len(text) > ENOUGH) and (quick := compiled()):
        return quick(np.frombuffer(text, np.uint8), *given, powers_of_five())
    _as_python += len(text)
    arguments: list[Any] = [text, *given, NO_FIVES]
    return scan(*arguments)
