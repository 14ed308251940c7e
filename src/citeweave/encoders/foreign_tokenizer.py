"""What an untrusted tokenizer.json must not do to us: patterns that never end, replacements that grow without bound.

    check_tokenizer(folder)          refuses what would take exponential time or memory to read a text

The tokenizers library compiles the patterns of the file and runs them on every text. Reads one file and runs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from citeweave.errors import InputError
from citeweave.files import read_input

TOKENIZER = "tokenizer.json"
MAX_BYTES = 1 << 28
"""The largest known vocabularies have some 30 MB."""

_MAX_PATTERN, _MAX_CONTENT, _MAX_GROWING = 4000, 64, 8
_MEMBER = re.compile(
    r"""
    (?P<escape>\\.) | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\]) | (?P<open>\() | (?P<close>\))
    | (?P<repeat>[*+]|\{\d+,\}) | (?P<either>\|) | (?P<other>.)
    """,
    re.DOTALL | re.VERBOSE,
)


def check_tokenizer(folder: Path) -> None:
    """Refuse a tokenizer whose patterns or replacements could take for ever, or all memory."""
    path = folder / TOKENIZER
    if not path.is_file():
        return
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path} has more than {MAX_BYTES:,} bytes; no tokenizer is that large")
    try:
        steps = list(_steps(json.loads(read_input(path))))
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; copy the whole folder of the model again") from None
    for step in steps:
        text = _pattern(step, "Regex")
        if len(text) > _MAX_PATTERN or is_exponential(text):
            raise InputError(
                f"{path}: the pattern {text[:60]!r} repeats a group that can match in several ways, which may take for "
                "ever; do not use this tokenizer"
            )
    if any(len(str(step.get("prepend", ""))) > _MAX_CONTENT for step in steps):
        raise InputError(
            f"{path} sets more than {_MAX_CONTENT} characters before every text; do not use this tokenizer"
        )
    growing = [str(step["content"]) for step in steps if _grows(step)]
    if len(growing) > _MAX_GROWING or any(len(content) > _MAX_CONTENT for content in growing):
        raise InputError(
            f"{path} has {len(growing)} replacements that make texts longer; it may have {_MAX_GROWING}, each of at most "
            f"{_MAX_CONTENT} characters: do not use this tokenizer"
        )


def is_exponential(pattern: str) -> bool:
    r"""Whether a group that is repeated without bound has an alternative, or a repetition without bound, inside it.

    >>> is_exponential("(a+)+$"), is_exponential("(?:a|aa)*b"), is_exponential("((a)*x){2,}")
    (True, True, True)
    >>> is_exponential(r" ?[^\s(+]+|(?:'s|'t)|\s+(?!\S)|(ab)+|\(+")
    False
    """
    groups, ended = [False], False  # of every open group, and of the one that ended just now, whether it may vary
    for found in _MEMBER.finditer(pattern):
        kind = found.lastgroup
        if kind == "repeat" and ended:
            return True
        if kind == "open":
            groups.append(False)
        elif kind in ("repeat", "either"):
            groups[-1] = True
        ended = groups.pop() if kind == "close" and len(groups) > 1 else False
        groups[-1] = groups[-1] or ended
    return False


def _pattern(step: dict[str, Any], kind: str) -> str:
    pattern = step.get("pattern")
    text = pattern.get(kind) if isinstance(pattern, dict) else None
    return text if isinstance(text, str) else ""


def _grows(step: dict[str, Any]) -> bool:
    content = step.get("content") if step.get("type") == "Replace" else None
    return isinstance(content, str) and len(content) > max(1, len(_pattern(step, "String")))


def _steps(value: Any) -> Iterator[dict[str, Any]]:
    """Every step of the normalizer and the pre-tokenizer; the vocabulary, which is large, is left out."""
    waiting = (
        [value.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")] if isinstance(value, dict) else []
    )
    while waiting:
        held = waiting.pop()
        if isinstance(held, dict):
            yield held
            waiting.extend(held.values())
        elif isinstance(held, list):
            waiting.extend(held)
