"""What papers share: venues, authors and fields as sparse rows in both directions, papers to values and back.

    paper 3: authors "Ada Lovelace", "A. Turing"    ->    values 0, 1
    value 0: papers 3, 8, 12

Values are compared without regard to case and spaces, and by name alone: two authors of one name are one. Holds about
20 bytes an entry. Which papers are drawn by it: `sharing_draws.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import BLOCK, TextColumn
from citeweave.corpus.corpus import Corpus, lines
from citeweave.errors import UserError
from citeweave.hashing import hash_texts
from citeweave.mining.aspect_names import is_relation
from citeweave.mining.rules import MiningRules


class Sharing(NamedTuple):
    """Values of papers and papers of values; compiled code reads it as it is."""

    offsets: NDArray[np.int64]
    """Shape (papers + 1,): where the values of each paper begin in `values`."""

    values: NDArray[np.int32]
    """Ascending within a paper, each once."""

    member_offsets: NDArray[np.int64]
    """Shape (values + 1,)."""

    members: NDArray[np.int32]
    """Papers of the pool that have a value, ascending."""


NO_SHARING = Sharing(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int32))
"""Stands for relations that are not asked for."""


def sharing_of(corpus: Corpus, relations: Sequence[str], in_pool: NDArray[np.bool_]) -> Sharing:
    """What the papers of a corpus share by some of `aspect_names.RELATIONS` taken together; (papers,) marks the pool."""
    keys, papers = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for relation in relations:
        column = _column(corpus, relation)
        for start in range(0, len(corpus), BLOCK):
            names, rows = [], []
            for row, text in enumerate(column[start : start + BLOCK], start):
                for name in filter(None, map(plain_name, [text] if relation == "venue" else lines(text))):
                    names.append(f"{relation}:{name}")
                    rows.append(row)
            keys.append(hash_texts(names))
            papers.append(np.array(rows, np.int64))
    _, value = np.unique(np.concatenate(keys), return_inverse=True)  # (entries,)
    return sharing_from(np.concatenate(papers), value, in_pool)


def check_relations(corpus: Corpus, rules: MiningRules) -> None:
    """Refuse rules about relations of which the corpus knows nothing; of several aspects one may lack."""
    aspects = [aspect for aspect in rules.aspects if is_relation(aspect)]
    named = [rule.relation for rule in rules.rules if is_relation(rule.relation)]
    lacking = {each for each in (*aspects, *named) if not _column(corpus, each).lengths().any()}
    if lacking & set(named) or lacking >= set(aspects) > set() or (lacking and rules.every_aspect):
        names = " or ".join(sorted(lacking))
        raise UserError(
            f"the rules ask what papers share by {', '.join(dict.fromkeys([*aspects, *named]))}, and no paper of "
            f"{corpus.folder} has {names}; leave that out of mining.aspects and of the rules"
        )


def _column(corpus: Corpus, relation: str) -> TextColumn:
    return {"venue": corpus.venues, "author": corpus.authors, "field": corpus.fields}[relation]


def sharing_from(papers: NDArray[np.int64], values: NDArray[np.int64], in_pool: NDArray[np.bool_]) -> Sharing:
    """The same from pairs of a paper and one of its values, in any order; both (entries,).

    >>> found = sharing_from(np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([True, True]))
    >>> found.values.tolist(), found.members.tolist(), found.member_offsets.tolist()
    ([0, 0, 1], [0, 1, 1], [0, 2, 3])
    """
    number = int(values.max()) + 1 if len(values) else 0
    codes = np.unique(papers * max(number, 1) + values)  # each entry once, by paper and value
    papers, values = codes // max(number, 1), codes % max(number, 1)
    here = in_pool[papers]
    order = np.argsort(values[here], kind="stable")
    return Sharing(
        _offsets(papers, len(in_pool)),
        values.astype(np.int32),
        _offsets(values[here], number),
        papers[here][order].astype(np.int32),
    )


def plain_name(name: str) -> str:
    """
    >>> plain_name("  Proceedings of  ACL ")
    'proceedings of acl'
    """
    return " ".join(name.split()).casefold()


def _offsets(owners: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(owners, minlength=number))])
