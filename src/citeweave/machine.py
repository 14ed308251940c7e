"""What this machine has, on every system: cores and memory.

cores()             those that this process may use
memory()            bytes, None where the system does not say, as on Windows
processes(64, 10)   how many processes do 10 jobs where 64 are allowed: 10
"""

from __future__ import annotations

import os
import sys


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int | None:
    """Bytes of memory, None where the system does not say."""
    if not hasattr(os, "sysconf"):
        return None
    try:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError):
        return None


def processes(allowed: int, jobs: int) -> int:
    """How many processes do so many jobs; Windows cannot wait for more than 61.

    >>> processes(4, 10), processes(64, 3)
    (4, 3)
    """
    return min(allowed, jobs, 61 if sys.platform == "win32" else jobs)
