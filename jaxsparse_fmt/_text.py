"""Sizes, times and near misses as text for people."""

import difflib
from collections.abc import Iterable
from typing import Any


def nearest(value: Any, choices: Iterable[str]) -> str:
    """The choice that is spelt most like `value`, in capitals or not; "" if none is similar."""
    by_small = {choice.lower(): choice for choice in sorted(choices)}
    return next((by_small[near] for near in difflib.get_close_matches(str(value).lower(), by_small, 1)), "")


def did_you_mean(value: Any, choices: Iterable[str]) -> str:
    """`; did you mean 'csr'?`, or nothing if no choice is similar."""
    near = nearest(value, choices)
    return f"; did you mean {near!r}?" if near else ""


def readable_bytes(n: float) -> str:
    """A count of bytes for people, in powers of ten: `87.6 MB`."""
    if abs(n) < 999.5:
        return f"{n:.0f} B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if abs(n) < 999.5 * scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n / 1e12:.3g} TB"


def readable_seconds(seconds: float) -> str:
    """A time for people: `830 µs`, `12.3 ms`, `4.56 s`."""
    for unit, scale in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
