"""What this machine has, on every system: processor, cores and memory.

processor()         its name, such as "Neoverse-N1 (aarch64)"
instruction_sets()  {"asimddp", "asimdhp", ...}; empty where the system does not say
cores()             those that this process may use
memory()            bytes, None where the system does not say, as on Windows
processes(64, 10)   how many processes do 10 jobs where 64 are allowed: 10
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from pathlib import Path


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


@functools.cache
def instruction_sets() -> frozenset[str]:
    """What Linux says that the processor has; empty on other systems."""
    told = _cpu_info()
    return frozenset(told.get("flags", told.get("Features", "")).split())


@functools.cache
def processor() -> str:
    """The processor's name and architecture."""
    told = _cpu_info()
    parts = told.get("CPU implementer", ""), told.get("CPU part", "")
    name = told.get("model name") or _ARM.get(parts) or platform.processor()
    return f"{name} ({platform.machine()})" if name and name != platform.machine() else platform.machine()


_ARM = {
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0xc0", "0xac3"): "Ampere-1",
}
"""Implementer and part of /proc/cpuinfo, where ARM processors have no name -> name."""


def _cpu_info() -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
