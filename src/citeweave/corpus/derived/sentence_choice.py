"""Which sentences are texts: by their number of words, and each only once.

>>> word_reason("We agree.", DerivedTexts("contexts"))
'under 5 words'
>>> first, second = repeat_keys(["As in [3] we walk.", "As in [14] we walk."])
>>> bool(first == second)
True
"""

from __future__ import annotations

import re

from citeweave.corpus.derived.options import DerivedTexts
from citeweave.hashing import Keys, hash_texts

_DIGITS = re.compile(r"\d+")


def word_reason(text: str, options: DerivedTexts) -> str:
    """Why a sentence is no text, empty where it is one."""
    words = len(text.split())
    if words < options.least_words:
        return f"under {options.least_words} words"
    return f"over {options.most_words} words" if words > options.most_words else ""


def repeat_keys(texts: list[str]) -> Keys:
    """Equal for sentences that differ in nothing but numbers and blanks: copies that cite with other numbers."""
    return hash_texts([" ".join(_DIGITS.sub("0", text).split()) for text in texts])
