"""The memory that this process could still use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Return the bytes that the system, or the container's limit if it is lower, still has; None if unknown."""
    free = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        # Without a limit the file says "max", which is not a number.
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free.append(max(0, limit - used))
    return min(free, default=None)
