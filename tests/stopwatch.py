"""Seconds that a test took of this machine, without those in which its host ran something else on our cores."""

import os
import time
from collections.abc import Callable
from pathlib import Path


def stopwatch() -> Callable[[], float]:
    """What tells the seconds since this call, less those that were stolen.

    Linux counts these over all cores (proc_stat(5), "steal"). One thread loses at most so many, several side by side
    fewer each; but no work takes less than its seconds of processors, shared by all cores.
    """
    wall, busy, lost = time.perf_counter(), time.process_time(), stolen()
    cores = len(os.sched_getaffinity(0))

    def seconds() -> float:
        ours = time.perf_counter() - wall - (stolen() - lost)
        return max(ours, (time.process_time() - busy) / cores)

    return seconds


def stolen(path: str = "/proc/stat") -> float:
    """Seconds that the host kept our cores waiting since it started, over all cores; 0 where nobody counts them."""
    try:
        name, *ticks = Path(path).read_text().split("\n", 1)[0].split()
        return int(ticks[7]) / os.sysconf("SC_CLK_TCK") if name == "cpu" else 0.0
    except (OSError, IndexError, ValueError):
        return 0.0
