"""Calls of compiled kernels over rows, by threads."""

import time

import numpy as np

from jaxsparse_fmt.kernels.cpu import machine_code, over_rows


def doubled(begin, end, marks, a):
    for k in range(begin, end):
        a[k] *= 2


def test_many_threads_compile_a_kernel_once(monkeypatch, tmp_path):
    """With a thread for each of 32 cores each would compile it, one after the other."""
    compiled, anew = [], machine_code._compiled_anew

    def slowly(*of):
        compiled.append(1)
        time.sleep(0.05)
        return anew(*of)

    monkeypatch.setattr(machine_code, "_compiled_anew", slowly)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(over_rows, "CORES", 8)
    over_rows._threads.cache_clear()
    a = np.arange(64.0)
    over_rows.over_rows(doubled, 64, 0, a, rows=4)
    over_rows._threads.cache_clear()
    assert len(compiled) == 1
    np.testing.assert_array_equal(a, 2 * np.arange(64.0))


def test_some_piece_of_long_arrays_is_found_by_few_tasks(monkeypatch):
    monkeypatch.setattr(over_rows, "PLACES", 4)
    a, sizes = np.zeros(1000), []
    a[777] = 1
    assert over_rows.in_some_piece(lambda x, y: np.any(x > y), a, np.zeros(1000))
    assert not over_rows.in_some_piece(lambda x: sizes.append(x.size) or np.any(x > 1), a)
    assert sum(sizes) == 1000 and len(sizes) <= over_rows.PIECES
