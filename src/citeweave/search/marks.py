r"""Citation marks in a sentence: taken out before it is encoded, so that names and years do not count as its content.

    >>> without_marks("We use the parser of [CIT] to split texts (?).")
    'We use the parser of to split texts.'
    >>> without_marks("As shown before (Chen et al., 2014; Dyer, 2015a), Smith et al. (2010) and [12, 14-16] agree.")
    'As shown before, and agree.'
    >>> without_marks(r"Trees~\cite{chen2014} grow (in spring).")
    'Trees grow (in spring).'

Finds the usual spellings and those of a draft; what it does not know stays. Does not say which paper a mark means.
"""

from __future__ import annotations

import re

from citeweave.corpus.cleaning import clean_text

MAX_SENTENCE = 20_000
"""Characters of a sentence that are looked at; no encoder reads so many."""

_YEAR = r"(?:1[89]|20)\d\d[a-z]?"
_NAME = r"[A-Z][\w'’-]{1,40}"
_PATTERNS = [
    r"~?\\(?:[Cc]ite|[a-z]{1,12}cite)[a-zA-Z]{0,12}\*?(?:\[[^\[\]]{0,80}\]){0,2}\{[^{}]{0,400}\}",  # LaTeX
    r"[\[(<{]\s*(?:CIT|CITE|CITATION|REF|cit|cite|citation|ref|TODO)?\s*[?]{0,3}\s*[\])>}]",  # [CIT] (?) []
    r"[@#]?\b(?:CITATION|CITREF|TARGETCIT|BIBREF\d{0,4})\b",
    r"\[\s*\d{1,4}[a-z]?(?:\s*[,;–-]\s*\d{1,4}[a-z]?){0,60}\s*\]",  # [3, 5-7]
    rf"[(\[][^()\[\]]{{0,400}}\b{_YEAR}[^()\[\]]{{0,40}}[)\]]",  # (Chen et al., 2014; Dyer, 2015a)
]
_NARRATIVE = re.compile(
    rf"\b{_NAME}(?:(?:,? (?:and|&) {_NAME})|,? et al\.?(?:’s|'s)?)?,?\s*[(\[]\s*{_YEAR}(?:\s*[,;]\s*{_YEAR}){{0,8}}\s*[)\]]"
)
_MARK = re.compile("|".join(_PATTERNS))
_NAMES_ALONE = re.compile(rf"\b{_NAME} et al\.,?(?:\s{_YEAR})?")
_BLANK_BEFORE = re.compile(r"\s+(?=[.,;:!?](?:\s|$))")


def without_marks(sentence: str) -> str:
    """The sentence on one line, without the marks of its citations."""
    text = clean_text(sentence[:MAX_SENTENCE])
    for pattern in (_NARRATIVE, _MARK, _NAMES_ALONE):
        text = pattern.sub(" ", text)
    return _BLANK_BEFORE.sub("", clean_text(text))
