"""A model in a field that it was not trained on: eleven tasks beside MiniLM's values, with a paired bootstrap.

    write_fields(Path("DATA"), Path("WORK"), Path("table"))          table/fields.pack, where the data are
    judge_fields(Path("table"), "elife", ["elife-out/"])             where the models are; they were trained `--without elife`

    cite cocite hard_cite couple mdcr title    the rankings and the title search of the corpus suite in the corpus's bundle
    all papers                                 a held-out paper finds its references among all that such papers cite; MAP
    sentences                                  a citing sentence of a held-out paper, without its marks, finds what it cites
    SciTLDR, ACL titles, search log            a summary, a title before 2016, a logged query finds its paper

nDCG@10 but for the first five and `all papers`. Samples are drawn with a fixed seed.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.shipping.preparing import FIRST_YEAR
from benchmarks.shipping.training import packed_encoder
from benchmarks.table.bundle import Bundle, bundles_of, read_bundle
from benchmarks.table.judging import CORPUS, SCITLDR, Remembering, reading_once
from benchmarks.table.packing import pack, unpack
from benchmarks.table.prepare import Preparation
from benchmarks.table.systems import CORPORA, START
from citeweave.corpus.citation_marks import find_marks
from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.evaluation.run_tasks import run_task
from citeweave.evaluation.tasks import ProbeTask
from citeweave.vectors.vectors import unit_rows

FILE = "fields.pack"
QUERIES, PAPERS, RESAMPLES, PLACES = 1000, 5000, 4000, 10
WORDS = 8
"""A citing sentence has at least so many words."""

Values = dict[str, NDArray[np.float64]]
"""Task -> value of every query."""


@dataclass(frozen=True)
class Collection:
    """Texts to search, and queries with the rows that answer them."""

    texts: list[str]
    queries: list[str]
    answers: list[list[int]]
    own: list[int] = field(default_factory=list)
    """Row of every query in the texts, which it must not find; empty where queries are no papers."""

    def some(self, count: int, random: np.random.Generator) -> Collection:
        kept = sorted(random.permutation(len(self.queries))[:count].tolist())
        queries, answers = [self.queries[row] for row in kept], [self.answers[row] for row in kept]
        return Collection(self.texts, queries, answers, [self.own[row] for row in kept] if self.own else [])


def write_fields(data: Path, work: Path, output: Path) -> None:
    """Pack what the corpora's bundles lack."""
    found = {**_shared(data)}
    for name in CORPORA:
        found |= {f"{task}, {name}": each for task, each in _held_out(Preparation(data, name, work), data)}
    pack(output / FILE, {name: json.dumps(dataclasses.asdict(each)).encode() for name, each in found.items()})


def _shared(data: Path) -> dict[str, Collection]:
    random = np.random.default_rng(3)
    papers = [each for each in _lines(data / "acl_anthology" / "papers.jsonl.gz") if each.get("abstract")]
    old = [each for each in papers if int(each.get("year") or 0) < FIRST_YEAR]
    old = [old[row] for row in sorted(random.permutation(len(old))[:PAPERS].tolist())]
    titles = Collection(
        [each["abstract"] for each in old], [each["title"] for each in old], [[n] for n in range(len(old))]
    )
    sample = list(_lines(data / "scirepeval_samples" / "papers.jsonl.gz"))
    rows, log = {str(each["id"]): row for row, each in enumerate(sample)}, Collection([], [], [])
    log.texts.extend(paper_text(each["title"], each.get("abstract") or "") for each in sample)
    for line in (data / "scirepeval_samples" / "judgements.jsonl").read_text().splitlines():
        each = json.loads(line)
        graded = zip(each["candidates"], each["relevance"], strict=True)
        if opened := sorted({rows[id] for id, grade in graded if grade and id in rows}):
            log.queries.append(each["query_text"])
            log.answers.append(opened)
    return {"ACL titles": titles.some(QUERIES, random), "search log": log}


def _held_out(part: Preparation, data: Path) -> Iterator[tuple[str, Collection]]:
    corpus, held, random = part.audited, part.held, np.random.default_rng(3)
    every = np.arange(len(corpus))
    ids, titles, abstracts = (column.take(every) for column in (corpus.ids, corpus.titles, corpus.abstracts))
    citing, cited = np.asarray(corpus.citing), np.asarray(corpus.cited)
    has_text = np.array([bool(text) for text in abstracts])
    pool = np.unique(np.concatenate([cited[held[citing]], np.flatnonzero(held)]))
    pool = pool[has_text[pool]]
    at = {int(paper): place for place, paper in enumerate(pool)}
    texts = [paper_text(titles[paper], abstracts[paper]) for paper in pool]
    papers, sentences = Collection(texts, [], [], []), Collection(texts, [], [])
    for paper in np.flatnonzero(held & has_text).tolist():
        if answers := sorted({at[int(each)] for each in cited[citing == paper] if int(each) in at} - {at[paper]}):
            papers.queries.append(texts[at[paper]])
            papers.answers.append(answers)
            papers.own.append(at[paper])
    row_of = {id: row for row, id in enumerate(ids)}
    for each in _lines(data / part.name / "contexts.jsonl.gz"):
        row = row_of.get(each["citing"])
        text = without_marks(each["text"])
        answers = sorted({at[row_of[id]] for id in each["in_set"] if id in row_of and row_of[id] in at})
        if row is not None and held[row] and answers and len(text.split()) >= WORDS:
            sentences.queries.append(text)
            sentences.answers.append(answers)
    yield "all papers", papers.some(QUERIES, random)
    yield "sentences", sentences.some(QUERIES, random)


def without_marks(text: str) -> str:
    """
    >>> without_marks("It grows (Smith et al., 2019), as Otto (1999) saw.")
    'It grows , as saw.'
    """
    for start, end in reversed(find_marks(text)):
        text = f"{text[:start]} {text[end:]}"
    return " ".join(text.split())


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


def judge_fields(folder: Path, corpus: str, models: Sequence[str], device: str = "auto") -> None:
    """Print every task of models beside MiniLM's; * marks differences with p < 0.05."""
    bundle = read_bundle(bundles_of(folder, corpus)[0])
    kept = {name: Collection(**json.loads(text)) for name, text in unpack(folder / FILE).items()}
    own = {name.removesuffix(f", {corpus}"): each for name, each in kept.items() if not name.endswith(tuple(CORPORA)) or name.endswith(corpus)}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="fields-") as made:
        beside = values_of(packed_encoder(folder, START, device, Path(made)), bundle, own)
    print(f"| judged on {corpus} | {' | '.join(beside)} | mean |\n|---|{'---|' * (len(beside) + 1)}")
    print(f"| {START} | {' | '.join(f'{100 * each.mean():.1f}' for each in [*beside.values(), _means(beside)])} |")
    for model in models:
        found = values_of(load_encoder(model, device=device), bundle, own)
        cells = [difference(found[name] - beside[name]) for name in beside]
        print(f"| {model} | {' | '.join(cells)} | {100 * (_means(found) - _means(beside)).mean():+.1f} |", flush=True)


def _means(values: Values) -> NDArray[np.float64]:
    return np.array([each.mean() for each in values.values()])


def difference(values: NDArray[np.float64]) -> str:
    """
    >>> difference(np.full(9, 0.01)), difference(np.array([0.5, -0.5]))
    ('+1.0*', '+0.0')
    """
    draws = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    means = values[draws].mean(axis=1)
    p = 2 * min((means <= 0).mean(), (means >= 0).mean())
    return f"{100 * values.mean():+.1f}{'*' if p < 0.05 else ''}"


def values_of(encoder: TorchEncoder, bundle: Bundle, kept: Mapping[str, Collection]) -> Values:
    """The value of every query of all tasks."""
    system, found = reading_once(encoder, bundle, {}), dict[str, NDArray[np.float64]]()
    for suite in (CORPUS, SCITLDR):
        for task in bundle.suites[suite].tasks:
            if not isinstance(task, ProbeTask):
                rows = run_task(task, system, "cosine").rows
                metric = "map" if "map" in next(iter(rows.values())) else "ndcg_cut_10"
                found["SciTLDR" if suite == SCITLDR else task.name] = np.array([row[metric] for row in rows.values()])
    remembering = Remembering(encoder)
    for name, each in kept.items():
        texts, queries = unit_rows(remembering.encode(each.texts)), unit_rows(remembering.encode(each.queries))
        scores = queries @ texts.T  # (queries, texts)
        if each.own:
            scores[np.arange(len(queries)), each.own] = -np.inf
        value = average_precision if name == "all papers" else gain
        found[name] = np.array([value(np.argsort(-row), own) for row, own in zip(scores, each.answers, strict=True)])
    return found


def average_precision(ranked: NDArray[np.int64], answers: list[int]) -> float:
    """
    >>> average_precision(np.array([2, 0, 1]), [2, 1])
    0.8333333333333333
    """
    places = np.flatnonzero(np.isin(ranked, answers)) + 1
    return float(np.mean(np.arange(1, len(places) + 1) / places))


def gain(ranked: NDArray[np.int64], answers: list[int]) -> float:
    """nDCG@10.

    >>> gain(np.array([2, 0, 1]), [2]), gain(np.array([0, 2]), [2])
    (1.0, 0.6309297535714575)
    """
    weights = 1 / np.log2(np.arange(2, PLACES + 2))
    right = np.isin(ranked[:PLACES], answers)
    return float((right * weights[: len(right)]).sum() / weights[: len(answers)].sum())
