"""What an aspect can be: a citation intent, the rest of citations, or a relation between papers.

    background, method, result, ...    connected by a citation of this intent
    miscellaneous                      connected by a citation of unknown intent
    venue, author, field               sharing one of these

>>> intent_bits("method", "mining.aspects"), is_relation("venue"), aspect_vectors("method")
(2, True, 'graph-method')

Does not look at papers: `sources.py` and `sharing.py` do.
"""

from __future__ import annotations

from citeweave.corpus.paper import Intent, parse_intents
from citeweave.errors import UserError

MISCELLANEOUS = "miscellaneous"
RELATIONS = ("venue", "author", "field")
SAME, OTHER = "same", "other"
OF_ASPECT = "aspect"
"""In the place of vectors: the node vectors of the graph of the sample's aspect."""

NODES = "graph"
"""The name of the node vectors in rules."""


def is_relation(aspect: str) -> bool:
    return aspect in RELATIONS


def aspect_vectors(aspect: str) -> str:
    """The name of the node vectors of the graph that has only the citations of this aspect."""
    return f"{NODES}-{aspect}"


def intent_bits(word: str, where: str) -> int:
    """Bits of `Intent`; 0 = unknown."""
    if word in ("unknown", MISCELLANEOUS):
        return 0
    bits = int(parse_intents(word))
    if not bits:
        names = ", ".join(str(intent.name).lower() for intent in Intent if intent)
        raise UserError(f"{where} is {word!r}; it must be one of {names}, unknown")
    return bits


def check_aspect(word: str) -> None:
    """Refuse what is no aspect."""
    if word == MISCELLANEOUS or is_relation(word):
        return
    if not int(parse_intents(word)):
        intents = ", ".join(str(intent.name).lower() for intent in Intent if intent)
        relations = ", ".join(RELATIONS)
        raise UserError(f"mining.aspects is {word!r}; it must be one of {intents}, {MISCELLANEOUS}, {relations}")
