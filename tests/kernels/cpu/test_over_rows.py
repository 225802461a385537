"""Calls of compiled kernels over rows, by threads."""

from __future__ import annotations

import ctypes
import os
import time

import numpy as np

from jaxsparse_fmt import machine_code
from jaxsparse_fmt.kernels.cpu import over_rows

DOUBLED = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


@DOUBLED
def doubled(begin, end, marks, a):
    values = (ctypes.c_double * end).from_address(a)
    values[begin:end] = [2 * v for v in values[begin:end]]


def test_many_threads_compile_a_kernel_once(monkeypatch):
    """With a thread for each of 32 cores each would compile it, one after the other."""
    compiled = []

    def address(make, *key):
        compiled.append(key)
        time.sleep(0.05)
        return ctypes.cast(doubled, ctypes.c_void_p).value

    monkeypatch.setattr(machine_code, "address", address)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    over_rows._threads.cache_clear()
    a = np.arange(64.0)
    over_rows.over_rows(lambda: None, "doubled, of this test", 64, 0, a, rows=4)
    over_rows._threads.cache_clear()
    assert len(compiled) == 1
    np.testing.assert_array_equal(a, 2 * np.arange(64.0))
