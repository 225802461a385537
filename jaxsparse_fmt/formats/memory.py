"""The free memory of a device, and of the host."""

import contextlib
from pathlib import Path
from typing import Any

from jaxsparse_fmt._tracing import device_of

MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")  # of this process inside a container, if version 2 is mounted


def free(*given: Any) -> int | None:
    """Free bytes on `device_of(*given)`, by its allocator, or those of the host. None: unknown."""
    device = device_of(*given)
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return max(stats["bytes_limit"] - stats.get("bytes_in_use", 0), 0)
    return of_host() if device.platform == "cpu" else None


def is_own(device: Any) -> bool:
    """Whether a device has a memory of its own, rather than the host's with all others."""
    return device.platform != "cpu"


def of_host() -> int | None:
    """Free bytes of the host, by Linux and the limit of a container. None: unknown."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        found.append(1024 * int(MEMINFO.read_text().split("MemAvailable:")[1].split()[0]))
    with contextlib.suppress(OSError, ValueError):  # the limit reads "max" if there is none
        limit, used = (int((GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        found.append(min(max(limit - used + _file_cache(), 0), limit))
    return min(found, default=None)


def _file_cache() -> int:
    """Bytes of the cache of files, which count as used but which Linux gives up on demand."""
    with contextlib.suppress(OSError, ValueError):
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        return int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
    return 0
