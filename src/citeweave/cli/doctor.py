"""citeweave doctor"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from citeweave.cli.options import Debug, Json, Quiet, print_json
from citeweave.machine import memory


def doctor(json: Json = False, quiet: Quiet = False, debug: Debug = False) -> None:
    """Show versions, extras, devices, and what would be downloaded: nothing."""
    report = examine()
    if json:
        print_json(report)
    elif not quiet:
        print(_text(report))


def examine() -> dict[str, Any]:
    """What this machine offers to citeweave."""
    from citeweave.extras import EXTRAS, missing
    from citeweave.version import __version__

    packages = (
        "numpy",
        "numba",
        "orjson",
        "isal",
        "pyarrow",
        "sentencex",
        "torch",
        "transformers",
        "sentence-transformers",
    )
    return {
        "citeweave": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "free_disk_gb": round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        "packages": {name: _version(name) for name in packages},
        "extras": {extra: {"installed": not missing(extra), "missing": list(missing(extra))} for extra in EXTRAS},
        "devices": _devices(),
        "downloads": [],
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory_gb() -> float | None:
    return None if (found := memory()) is None else round(found / 2**30, 1)


def _devices() -> list[str]:
    """The processor, and accelerators if torch is installed and sees some."""
    found = [f"cpu ({os.cpu_count()} cores)"]
    if importlib.util.find_spec("torch") is None:
        return found
    import torch

    found += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return found + (["mps"] if torch.backends.mps.is_available() else [])


def _text(report: dict[str, Any]) -> str:
    lines = [
        f"citeweave {report['citeweave']}, Python {report['python']}, {report['platform']}",
        f"{report['cores']} cores, {report['memory_gb'] or 'unknown'} GB memory, {report['free_disk_gb']} GB free disk here",
        "devices: " + ", ".join(report["devices"]),
        "packages: " + ", ".join(f"{name} {version or 'missing'}" for name, version in report["packages"].items()),
    ]
    for extra, state in report["extras"].items():
        hint = f"missing {', '.join(state['missing'])}: pip install 'citeweave[{extra}]'"
        lines.append(f"extra {extra}: {'installed' if state['installed'] else hint}")
    lines.append("downloads: nothing would be downloaded by any command")
    return "\n".join(lines)
