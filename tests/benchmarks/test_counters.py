"""Counters of a profile: which kernels belong to which product, and what is made of them."""

import sys
import time

import pytest

from benchmarks import counters

NAMES = [
    "ID",
    "Kernel Name",
    counters.TIME,
    counters.DRAM,
    counters.TO_L1,
    *counters.SHARES.values(),
    counters.REGISTERS,
]


def csv_of(*kernels: tuple[str, int, int]) -> str:
    """As `ncu --csv --page raw` prints it, between other lines."""
    rows = [[str(i), name, f"{ns:,}", f"{nbytes:,}", "0", *["50"] * 8] for i, (name, ns, nbytes) in enumerate(kernels)]
    lines = [",".join(f'"{cell}"' for cell in row) for row in (NAMES, ["", *NAMES[1:]], *rows)]
    return "\n".join(["==PROF== Connected", *lines, "==PROF== Disconnected"])


def test_a_product_has_the_kernels_behind_its_window():
    text = csv_of(("window", 1, 0), ("tiles_kernel", 3000, 10**6), ("sums", 1000, 0), ("window", 1, 0), ("csrmv", 9, 9))
    assert [[k["Kernel Name"] for k in w] for w in counters.windows(text)] == [["tiles_kernel", "sums"], ["csrmv"]]


def test_without_permission_to_read_counters_there_is_no_window():
    assert counters.windows("==ERROR== ERR_NVGPUCTRPERM\n==PROF== Disconnected") == []


def test_what_passes_is_added_up_and_shares_are_those_of_the_longest():
    (kernels,) = counters.windows(csv_of(("window", 1, 0), ("a", 1000, 10**6), ("b", 3000, 2 * 10**6)))
    kernels[1]["l1tex__t_sector_hit_rate.pct"] = "75"
    row = counters.counted({"matrix": "m"}, kernels)
    assert (row["kernels"], row["µs"], row["DRAM MB"]) == (2, pytest.approx(4), pytest.approx(3))
    assert (row["in L1"], row["L2"], row["registers"]) == (0.75, 0.5, 50)


def test_what_a_process_prints_comes_back():
    words = "import sys; print('out'); print('err', file=sys.stderr)"
    assert counters.within([sys.executable, "-c", words], 60) == ("out\n", "err\n")


def test_a_matrix_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    """Its child would hold the GPU."""
    child = f"import pathlib, time; time.sleep(3); pathlib.Path({str(tmp_path / 'lives')!r}).touch()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with pytest.raises(RuntimeError, match=r"not done after 1 s"):
        counters.within([sys.executable, "-c", parent], 1)
    time.sleep(3)
    assert not list(tmp_path.iterdir())
