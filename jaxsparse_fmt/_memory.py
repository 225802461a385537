"""How much memory is free where JAX puts its arrays."""

from __future__ import annotations

import contextlib
from pathlib import Path

import jax

MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")  # of this process inside a container, where version 2 is mounted


def free() -> int | None:
    """Bytes on this process's first device, by its allocator; on a CPU what Linux and a container's limit leave.

    None: unknown.
    """
    device = jax.local_devices()[0]
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return max(stats["bytes_limit"] - stats.get("bytes_in_use", 0), 0)
    return _of_host() if device.platform == "cpu" else None


def _of_host() -> int | None:
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        lines = MEMINFO.read_text().splitlines()
        found.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError):  # the limit reads "max" where there is none
        limit, used = (int((GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        found.append(min(max(limit - used + _file_cache(), 0), limit))
    return min(found, default=None)


def _file_cache() -> int:
    """Bytes of files that were read and count as used, but are given up for whoever needs them."""
    with contextlib.suppress(OSError, ValueError):
        told = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        return int(told.get("inactive_file", 0)) + int(told.get("active_file", 0))
    return 0
