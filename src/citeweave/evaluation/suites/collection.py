"""A search benchmark in memory, and the task that it asks: find a question's papers among all papers.

    >>> collection = Collection({"p1": ("T", "An abstract."), "p2": ("U", "")}, {"q1": "a question"}, {"q1": {"p2": 1}})
    >>> task, counts = search_task(collection, RankingRule(metrics=("ndcg_cut_10",)))
    >>> list(task.texts.ids), task.candidates.tolist(), task.judged.candidates.tolist()
    (['p1', 'p2', 'q1'], [0, 1], [1])

Does not read files: `beir` and `building.summaries` do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from citeweave.errors import EmptyResultError
from citeweave.evaluation.tasks import Pools, RankingRule, SearchTask
from citeweave.evaluation.texts import Texts

PREFIX = "query:"
"""Before the ids of questions where some of them are ids of papers too."""

REPEATED = "papers given twice, of which the last line counts"
NO_ANSWER = "questions without relevant papers, which count as 0"


@dataclass(frozen=True)
class Collection:
    """A search benchmark in memory: one split of it."""

    papers: Mapping[str, tuple[str, str]]
    """Id -> title and abstract."""

    questions: Mapping[str, str]
    """Id -> text; others than those that are judged may be there."""

    grades: Mapping[str, Mapping[str, int]]
    """Question -> paper -> grade."""

    counts: Counter[str] = field(default_factory=Counter)
    """What a careful reader must know."""


def search_task(collection: Collection, rule: RankingRule, *, name: str = "search") -> tuple[SearchTask, Counter[str]]:
    """Search among all papers, and counts of what is odd in the data.

    A paper that is judged and not in the corpus cannot be found, but counts among what there was to find.
    """
    counts, papers = Counter(collection.counts), collection.papers
    asked = {question: pool for question, pool in collection.grades.items() if question in collection.questions}
    counts["judged questions left out, since their text is missing"] = len(collection.grades) - len(asked)
    if not asked:
        raise EmptyResultError("no judged question has a text; are questions and judgements of different sets?")
    counts[NO_ANSWER] = sum(max(pool.values(), default=0) < rule.relevant for pool in asked.values())
    unknown = list(dict.fromkeys(paper for pool in asked.values() for paper in pool if paper not in papers))
    counts["judged papers that the corpus lacks, which cannot be found"] = len(unknown)
    same = asked.keys() & {*papers, *unknown}
    counts["questions with the id of a paper"] = len(same)
    row_id = {question: f"{PREFIX}{question}" if same else question for question in asked}
    texts = Texts(
        ids=[*papers, *unknown, *row_id.values()],
        titles=[title for title, _ in papers.values()]
        + [""] * len(unknown)
        + [collection.questions[question] for question in asked],
        abstracts=[text for _, text in papers.values()] + [""] * (len(unknown) + len(asked)),
    )
    pools = Pools.of(texts, {row_id[question]: pool for question, pool in asked.items()})
    own = texts.rows(list(asked)) if same else None  # BEIR never counts a paper as an answer to itself
    named = replace(pools, names=list(asked))
    task = SearchTask(name, texts, pools.queries, np.arange(len(papers)), named, rule, own=own)
    return task, counts
