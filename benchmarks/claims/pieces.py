"""Files of a study in pieces that can be carried one by one, and the files again.

    cut(Path("study"), Path("pieces"))      pieces/0/, pieces/1/, ...: parts of bundles, start models and packed reports
    join(Path("pieces"), Path("study"))     the files whose parts are all there

A folder of pieces holds at most `SIZE` bytes. A part is called FILE.NUMBER.COUNT.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SIZE = 41_500_000
SUFFIXES = (".bundle", ".start", ".reports")


def cut(folder: Path, output: Path, *, size: int = SIZE) -> list[Path]:
    """Cut a study's files into parts, and put parts together into folders of at most `size` bytes."""
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    files.sort(key=lambda path: SUFFIXES.index(path.suffix))
    written: list[Path] = []
    number, room = 0, size
    for path in files:
        content = path.read_bytes()
        starts = range(0, max(1, len(content)), size)
        for at, start in enumerate(starts):
            part = content[start : start + size]
            if len(part) > room:
                number, room = number + 1, size
            room -= len(part)
            target = output / str(number) / f"{path.name}.{at}.{len(starts)}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(part)
            written.append(target)
    return written


def join(folder: Path, output: Path) -> dict[str, str]:
    """Write the files whose parts are all in a folder or below; return each with its state."""
    parts: dict[str, dict[int, Path]] = {}
    counts: dict[str, int] = {}
    for path in folder.rglob("*"):
        name, _, numbers = path.name.partition(next((s for s in SUFFIXES if s in path.name), "\0"))
        if numbers and path.is_file():
            at, count = (int(number) for number in numbers.strip(".").split("."))
            name = path.name.removesuffix(f".{at}.{count}")
            parts.setdefault(name, {})[at], counts[name] = path, count
    found = {}
    for name, own in sorted(parts.items()):
        if len(own) < counts[name]:
            found[name] = f"{len(own)} of {counts[name]} parts are here"
            continue
        output.mkdir(parents=True, exist_ok=True)
        temporary = output / f"{name}.new"
        temporary.write_bytes(b"".join(_contents([own[at] for at in range(counts[name])])))
        temporary.replace(output / name)
        found[name] = "joined"
    return found


def _contents(paths: Sequence[Path]) -> list[bytes]:
    return [path.read_bytes() for path in paths]
