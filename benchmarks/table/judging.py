"""A trained encoder, or a baseline, by every suite of a bundle: the values of all queries.

views = judge(Answering(whole), bundle)

corpus, csfcube, scitldr       one vector a paper, by cosine; a system that was trained on sentences is judged on
                               CSFCube by the distance between sentences that it trains
csfcube, one vector            of those systems
csfcube, the facet's space     of systems with aspect heads
csfcube, sentences             of the start and of our own method, up to 512 tokens: the mean of the facet's best matches
csfcube, sentences and tokens  and that with the best matches of its tokens, both brought to one scale
corpus, l2                     the pools alone, by L2 distances: what margin losses train
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.table.bundle import Bundle, PackedCorpus
from benchmarks.table.reports import View
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.encoder import TorchEncoder
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.run_tasks import run_task
from citeweave.evaluation.sentence_systems import SentenceSystem
from citeweave.evaluation.systems import NoAnswerError, System
from citeweave.evaluation.tasks import NoTextsError, RankingTask, Suite
from citeweave.pipeline.training_stages import TaskPapersEncoder

CORPUS, CSFCUBE, SCITLDR = "corpus", "csfcube", "scitldr"
BY_L2, ONE_VECTOR, FACET_SPACE = "corpus, l2", "csfcube, one vector", "csfcube, the facet's space"
INSIDE = {"csfcube, sentences": "mean_best", "csfcube, sentences and tokens": "mean_best+token_best"}
INSIDE_TOKENS = 512


@dataclass(frozen=True)
class Answering:
    """What answers for a system."""

    whole: System
    sentences: tuple[System, str] | None = None
    """By sentences, and the name of the distance."""

    facets: System | None = None
    """In the space that a query asks about."""

    inside: System | None = None
    """By sentences and tokens, of a system that was not trained on them."""


@dataclass(frozen=True)
class Remembering:
    """An encoder that tokenizes every list of texts once, however often its weights change; on a GPU in half precision."""

    encoder: TorchEncoder
    read: dict[Any, Any] = field(default_factory=dict)
    """Kept between encoders that read alike."""

    @property
    def name(self) -> str:
        return self.encoder.name

    @property
    def revision(self) -> str:
        return self.encoder.revision

    @property
    def dimension(self) -> int:
        return self.encoder.dimension

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        key = (self.encoder.settings.pooling == "aspect_words", self.encoder.reader.max_tokens, hash(tuple(texts)))
        if key not in self.read:
            self.read[key] = self.encoder.reader.read(texts)
        with torch.autocast("cuda", torch.float16, enabled=self.encoder.network.device.startswith("cuda")):
            return self.encoder.encode_tokens(self.read[key], reporter=reporter)


def reading_once(encoder: TorchEncoder, bundle: Bundle, read: dict[Any, Any]) -> System:
    """An encoder that reads the papers that the suites ask about, and no others."""
    every = Suite("all", tuple(task for suite in bundle.suites.values() for task in suite.tasks))
    remembering = Remembering(encoder, read)
    return TaskPapersEncoder(remembering, every, cache=None, text_recipe=TextRecipe())


def inside_of(encoder: TorchEncoder) -> System:
    """The encoder by its sentences and tokens, with longer texts."""
    longer = dataclasses.replace(encoder.reader, max_tokens=INSIDE_TOKENS)
    settings = dataclasses.replace(encoder.settings, max_tokens=INSIDE_TOKENS)
    reading = dataclasses.replace(encoder, reader=longer, settings=settings)
    return SentenceSystem(reading, name=encoder.name, metric="cosine", with_tokens=True, device=encoder.network.device)


def judge(answering: Answering, bundle: Bundle) -> dict[str, View]:
    """Every suite, and the further views of it that a system has."""
    suites, marks = bundle.suites, bundle.marks
    found = {}
    for name in (CORPUS, CSFCUBE, SCITLDR):
        by_sentence = answering.sentences if name == CSFCUBE else None
        system, distance = by_sentence or (answering.whole, "cosine")
        found[name] = view_of(system, suites[name], marks[name], distance)
    if answering.sentences is not None:
        found[ONE_VECTOR] = view_of(answering.whole, suites[CSFCUBE], marks[CSFCUBE], "cosine")
    if answering.facets is not None:
        found[FACET_SPACE] = view_of(answering.facets, suites[CSFCUBE], marks[CSFCUBE], "cosine")
    if answering.inside is not None:
        for name, distance in INSIDE.items():
            found[name] = view_of(answering.inside, suites[CSFCUBE], marks[CSFCUBE], distance)
    if "l2" in answering.whole.distances:
        rankings = tuple(task for task in suites[CORPUS].tasks if isinstance(task, RankingTask))
        pools = dataclasses.replace(suites[CORPUS], tasks=rankings)
        found[BY_L2] = view_of(answering.whole, pools, marks[CORPUS], "l2")
    return found


def view_of(system: System, suite: Suite, marks: dict[str, str], distance: str) -> View:
    """One suite by one distance; what cannot be answered is told."""
    asked = distance if system.distances else ""
    outcomes: list[Outcome] = []
    failed: dict[str, str] = {}
    for task in suite.tasks:
        try:
            outcomes.append(run_task(task, system, asked))
        except (NoAnswerError, NoTextsError) as error:
            failed[task.name] = str(error)
    return View.of(suite, marks, outcomes, failed=failed, distance=asked or "its own")


def trained_titles(papers: PackedCorpus, rows: NDArray[np.int64]) -> list[str]:
    """Titles of what was trained on, and texts without a title, which may be one."""
    titles, abstracts = papers.titles.take(rows), papers.abstracts.take(rows)
    return [title or abstract for title, abstract in zip(titles, abstracts, strict=True)]


def titles_seen(titles: Sequence[str], bundle: Bundle) -> dict[str, int]:
    """Suite -> how many of these titles are papers of it; the corpus's own suite asks about its papers by design.

    What counts are letters and digits, of titles with at least ten of them.
    """
    own = {plain for title in titles if len(plain := plain_title(title)) >= 10}
    return {
        name: len(own & {plain_title(title) for task in suite.tasks for title in task.texts.titles})
        for name, suite in bundle.suites.items()
        if name != CORPUS
    }


def plain_title(title: str) -> str:
    """
    >>> plain_title("BERT: Pre-training")
    'bertpretraining'
    """
    return re.sub(r"[^a-z0-9]+", "", title.lower())
