"""Which sentences are texts: by their number of words, with a citation's brackets, and each only once.

>>> word_reason("We agree.", 5, 80)
'under 5 words'
>>> first, second = repeat_keys(["As in [3] we walk.", "As in [14] we walk."])
>>> bool(first == second)
True
"""

from __future__ import annotations

import re

from citeweave.hashing import Keys, hash_texts

_BRACKETS = re.compile(r"\(.*?\)|\[.*?\]", re.DOTALL)
_DIGITS = re.compile(r"\d+")


def word_reason(text: str, least: int, most: int) -> str:
    """Why a sentence is no text, empty where it is one."""
    words = len(text.split())
    if words < least:
        return f"under {least} words"
    return f"over {most} words" if words > most else ""


def bracket_reason(text: str) -> str:
    """Why a sentence cites nobody: it has no brackets; empty where it has."""
    return "" if _BRACKETS.search(text) else "no brackets"


def repeat_keys(texts: list[str]) -> Keys:
    """Equal for sentences that differ in nothing but numbers and blanks: copies that cite with other numbers."""
    return hash_texts([" ".join(_DIGITS.sub("0", text).split()) for text in texts])
