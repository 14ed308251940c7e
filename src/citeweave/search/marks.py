r"""Citation marks in a sentence: taken out before it is encoded, so that names and years do not count as its content.

    >>> without_marks("We use the parser of [CIT] to split texts (?).")
    'We use the parser of to split texts.'
    >>> without_marks("As shown before (Chen et al., 2014; Dyer, 2015a), Smith et al. (2010) and [12, 14-16] agree.")
    'As shown before, and agree.'
    >>> without_marks(r"Trees~\cite{chen2014} grow (in spring).")
    'Trees grow (in spring).'

Printed marks are found by `corpus/citation_marks.py`; here is what only drafts have, and names without a year. Does not
say which paper a mark means.
"""

from __future__ import annotations

import re

from citeweave.corpus.citation_marks import find_marks
from citeweave.corpus.cleaning import clean_text

MAX_SENTENCE = 20_000
"""Characters of a sentence that are looked at; no encoder reads so many."""

_OF_DRAFTS = re.compile(
    r"~?[\[(<{]\s?(?:CIT|CITE|CITATION|REF|cit|cite|citation|ref|TODO)?\s?[?]{0,3}\s?[\])>}]"  # [CIT] (?) []
    r"|[@#]?\b(?:CITATION|CITREF|TARGETCIT)\b"
)
_NAMES_ALONE = re.compile(r"\b[A-Z][\w'’-]{1,40} et al\b\.?,?(?:’s|'s)?")
_BLANK_BEFORE = re.compile(r"\s+(?=[.,;:!?](?:\s|$))")


def without_marks(sentence: str) -> str:
    """The sentence on one line, without the marks of its citations."""
    text = clean_text(sentence[:MAX_SENTENCE])
    parts, at = [], 0
    for start, end in find_marks(text):
        parts.append(text[at:start].removesuffix("~"))  # LaTeX ties a mark to its word
        at = end
    text = " ".join([*parts, text[at:]])
    for pattern in (_OF_DRAFTS, _NAMES_ALONE):
        text = pattern.sub(" ", text)
    return _BLANK_BEFORE.sub("", clean_text(text))
