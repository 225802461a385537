"""NumPy's memory that JAX on a CPU takes without a copy."""

import math
from typing import Any

import numpy as np

ALIGNMENT = 64  # of an address in bytes


def aligned(a: np.ndarray, dtype: Any = None) -> np.ndarray:
    """The array, or a copy (always in a given dtype), that JAX on a CPU takes as it is.

    JAX's own copy, without huge pages, takes 5 × the time.
    """
    if dtype is None and a.ctypes.data % ALIGNMENT == 0:
        return a
    copy = empty_aligned(a.shape, a.dtype if dtype is None else dtype)
    copy[...] = a
    return copy


def empty_aligned(shape: tuple[int, ...], dtype: Any, make: Any = np.empty) -> np.ndarray:
    """As `np.empty`, or what else makes it, at an address that JAX on a CPU takes.

    It is a view of a few numbers more: SciPy copies arrays whose base has twice as many, such as one of bytes.
    """
    size, itemsize = math.prod(shape), np.dtype(dtype).itemsize
    numbers = make(size + ALIGNMENT // itemsize, dtype)
    begin = -numbers.ctypes.data % ALIGNMENT // itemsize
    return numbers[begin : begin + size].reshape(shape)


TAKEN = 2**14  # places that NumPy takes at once: it copies their index in 64 bits, which then stays in a cache


def taken(a: np.ndarray, index: np.ndarray) -> np.ndarray:
    """a [..., n] at the places `index`, and 0 where they are past the end, if these are more than n places."""
    found = empty_aligned((*a.shape[:-1], *index.shape), a.dtype)
    for begin in range(0, index.size, TAKEN):
        some = slice(begin, begin + TAKEN)
        found[..., some] = a.take(index[some], -1, mode="clip")
    if index.size > a.shape[-1]:
        found[..., index >= a.shape[-1]] = 0
    return found
