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


def empty_aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """As `np.empty`, at an address that JAX on a CPU takes.

    It is a view of a few numbers more: SciPy copies arrays whose base has twice as many, such as one of bytes.
    """
    size, itemsize = math.prod(shape), np.dtype(dtype).itemsize
    numbers = np.empty(size + ALIGNMENT // itemsize, dtype)
    begin = -numbers.ctypes.data % ALIGNMENT // itemsize
    return numbers[begin : begin + size].reshape(shape)
