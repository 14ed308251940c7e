"""Words, vectors and their fusions as search systems: summaries, titles, citing sentences and search queries find papers.

    python benchmarks/fusion.py --data DATA                      weave; --models weave minilm
    python benchmarks/fusion.py --data DATA --papers 6000 --queries 500

    summaries    SciTLDR: an expert's summary in one line -> its paper
    titles       a title -> its abstract, which is searched without it
    sentences    a citing sentence, without the names of authors -> the papers of the collection that it cites
    queries      SciRepEval's sample of a search log -> the paper that was opened
    questions    `questions.tsv`, written by hand from title and abstract -> the paper it was written for

DATA holds scitldr, elife, peerread_plus and scirepeval_samples. Every query searches the whole collection. `rrf K` sums
1 / (K + rank) over the 200 best of each ranking; `best A` sums A times the cosine and 1 - A times the score of words, each
divided by the query's best, what a ranking does not have counting as 0 (the default was 0.6 once); `coverage A` sums A times the
cosine and 1 - A times the share of the query's words that a paper has (`rankings.fuse_scores`); the default is coverage 0.7.
The choice is made by the mean over all tasks on even queries and shown on odd ones. The papers' vectors are also ranked as
`embed --as` compresses them: int8, and binary with one bit per number on both sides.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from measuring import processor
from numpy.typing import NDArray

from citeweave import load_encoder, nearest
from citeweave.corpus.text import paper_text
from citeweave.search.words import WordTable, match_words
from citeweave.search.write_words import write_words
from citeweave.vectors.compressed import CompressedVectors, compress
from citeweave.vectors.vectors import new_vectors

DEPTH, PLACES = 200, 10
RANK_CONSTANTS = (0, 10, 60)
KINDS = ("int8", "binary")
SHARES = (0.5, 0.6, 0.65, 0.7, 0.75, 0.8)
QUESTIONS = Path(__file__).with_name("questions.tsv")
_REFERENCE = re.compile(r"\([^()]*\d{4}[^()]*\)|\[[\d,; -]+\]|\b[A-Z][\w-]+ et al\.,?( \(?\d{4}\)?)?")


@dataclass(frozen=True)
class Collection:
    """Texts to search, and questions with the rows that answer them."""

    name: str
    texts: list[str]
    questions: list[str]
    answers: list[set[int]]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from map(json.loads, file)


def collections(data: Path, papers: int, queries: int) -> Iterator[Collection]:
    own = [each for each in read_lines(data / "scitldr" / "papers.jsonl.gz") if each["tldr"]]
    texts = [paper_text(each["title"], each["abstract"]) for each in own]
    asked = np.random.default_rng(0).permutation(len(own))[:queries].tolist()
    first = [own[row]["tldr"] if isinstance(own[row]["tldr"], str) else own[row]["tldr"][0] for row in asked]
    yield Collection("summaries", texts, first, [{row} for row in asked])
    for name in ("elife", "peerread_plus"):
        own = [each for each in read_lines(data / name / "papers.jsonl.gz") if each.get("abstract")]
        draw = np.random.default_rng(1)
        everything = own
        own = [own[row] for row in np.sort(draw.permutation(len(own))[:papers]).tolist()]
        asked = draw.permutation(len(own))[:queries].tolist()
        titles = [own[row]["title"] for row in asked]
        yield Collection(f"titles, {name}", [each["abstract"] for each in own], titles, [{row} for row in asked])
        yield _sentences(name, data, own, queries)
        yield _questions(name, own, everything)
    yield _log(data / "scirepeval_samples")


def _sentences(name: str, data: Path, papers: list[dict[str, Any]], queries: int) -> Collection:
    rows = {each["id"]: row for row, each in enumerate(papers)}
    found = []
    for each in read_lines(data / name / "contexts.jsonl.gz"):
        cited = {rows[paper] for paper in each["in_set"] if paper in rows}
        plain = " ".join(_REFERENCE.sub(" ", each["text"]).split())
        if cited and len(plain.split()) >= 8:
            found.append((plain, cited))
    asked = [found[at] for at in np.random.default_rng(2).permutation(len(found))[:queries].tolist()]
    texts = [paper_text(each["title"], each["abstract"]) for each in papers]
    return Collection(f"sentences, {name}", texts, [text for text, _ in asked], [cited for _, cited in asked])


def _questions(name: str, drawn: list[dict[str, Any]], everything: list[dict[str, Any]]) -> Collection:
    with QUESTIONS.open(encoding="utf-8") as file:
        asked = [row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row["set"] == name]
    wanted, known = {row["paper"] for row in asked}, {each["id"] for each in drawn}
    papers = drawn + [each for each in everything if each["id"] in wanted - known]
    rows = {each["id"]: row for row, each in enumerate(papers)}
    texts = [paper_text(each["title"], each["abstract"]) for each in papers]
    answers = [{rows[row["paper"]]} for row in asked]
    return Collection(f"questions, {name}", texts, [row["question"] for row in asked], answers)


def _log(folder: Path) -> Collection:
    papers = list(read_lines(folder / "papers.jsonl.gz"))
    rows = {str(each["id"]): row for row, each in enumerate(papers)}
    texts = [paper_text(each["title"], each.get("abstract") or "") for each in papers]
    asked, answers = [], []
    for each in read_lines(folder / "judgements.jsonl"):
        opened = {
            rows[id] for id, grade in zip(each["candidates"], each["relevance"], strict=True) if grade and id in rows
        }
        if opened:
            asked.append(each["query_text"])
            answers.append(opened)
    return Collection("queries", texts, asked, answers)


Ranked = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Rows of the best papers, best first, and their scores."""


def fused(words: Ranked, vectors: Ranked, way: str) -> NDArray[np.int64]:
    """Fuse two rankings of one question by their ranks or best scores; ties go to the row that comes first.

    >>> words, vectors = (np.array([5, 7]), np.array([9.0, 3.0])), (np.array([7, 2]), np.array([0.8, 0.4]))
    >>> fused(words, vectors, "rrf 60").tolist(), fused(words, vectors, "best 0.9").tolist()
    ([7, 5, 2], [7, 2, 5])
    """
    if way in ("words", "vectors"):
        return (words if way == "words" else vectors)[0]
    kind, number = way.split()
    parts: dict[int, float] = {}
    for (rows, scores), share in ((words, 1 - float(number)), (vectors, float(number))):
        for place, (row, score) in enumerate(zip(rows.tolist(), scores.tolist(), strict=True), 1):
            own = 1 / (float(number) + place) if kind == "rrf" else share * score / max(scores[0], 1e-9)
            parts[row] = parts.get(row, 0.0) + own
    return np.array(sorted(parts, key=lambda row: (-parts[row], row)), np.int64)


def ndcg(rows: NDArray[np.int64], answers: set[int]) -> float:
    """
    >>> ndcg(np.array([4, 9]), {9}), ndcg(np.array([9]), {9})
    (0.6309297535714575, 1.0)
    """
    gains = [1 / np.log2(place + 1) for place, row in enumerate(rows[:PLACES].tolist(), 1) if row in answers]
    best = sum(1 / np.log2(place + 1) for place in range(1, min(len(answers), PLACES) + 1))
    return float(sum(gains) / best)


def compressed_rows(papers: NDArray[np.float32], asked: NDArray[np.float32], kind: str) -> NDArray[np.int64]:
    """Return the best rows of every question by compressed vectors, (questions, places)."""
    with tempfile.TemporaryDirectory() as made:
        with new_vectors(Path(made) / "whole") as writer:
            writer.append([str(row) for row in range(len(papers))], papers)
            writer.finish()
        small = compress(Path(made) / "whole", Path(made) / "small", kind)
        assert isinstance(small, CompressedVectors)
        scores = small.scores(asked)  # (questions, papers)
        return np.argsort(-scores, axis=1, kind="stable")[:, :PLACES].astype(np.int64)


def encode_once(encoder: Any, texts: list[str], known: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the vectors of texts, (texts, dimension); `known` keeps those of a model, because tasks share papers."""
    new = [text for text in dict.fromkeys(texts) if text not in known]
    known |= dict(zip(new, encoder.encode(new), strict=True))
    return np.stack([known[text] for text in texts])


def judge(
    collection: Collection, encoder: Any, known: dict[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float64]]:
    """Return nDCG@10 of every question by every way."""
    papers, asked = (encode_once(encoder, texts, known) for texts in (collection.texts, collection.questions))
    near = nearest(papers, asked, len(papers), metric="cosine")
    ways = ["words", "vectors", *(f"rrf {k}" for k in RANK_CONSTANTS), "best 0.6", *(f"coverage {x}" for x in SHARES)]
    values: dict[str, list[float]] = {way: [] for way in ways}
    for kind in KINDS:
        ranked = compressed_rows(papers, asked, kind)
        values[f"vectors, {kind}"] = [ndcg(rows, own) for rows, own in zip(ranked, collection.answers, strict=True)]
    with tempfile.TemporaryDirectory() as made:
        write_words(Path(made), collection.texts)
        index: Any = SimpleNamespace(words=WordTable(Path(made)), id="{:09}".format)
        for at, (question, answers) in enumerate(zip(collection.questions, collection.answers, strict=True)):
            matches = match_words(index, question)
            words, depth = matches.best(DEPTH, name=index.id), slice(DEPTH)
            rows, cosines = near.rows[at].astype(np.int64), near.scores[at].astype(np.float64)
            coverage = matches.coverage(rows)
            for way in ways:
                if way.startswith("coverage"):
                    share = float(way.split()[1])
                    ranked = rows[np.argsort(-(share * cosines + (1 - share) * coverage), kind="stable")]
                else:
                    ranked = fused((words.rows, words.scores), (rows[depth], cosines[depth]), way)
                values[way].append(ndcg(ranked, answers))
    return {way: np.array(own) for way, own in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["weave"])
    parser.add_argument("--runtime", default="auto", help="of all models, such as torch or openvino-int8")
    parser.add_argument("--papers", type=int, default=6000, help="of elife and of peerread_plus, drawn")
    parser.add_argument("--queries", type=int, default=500, help="of each task")
    options = parser.parse_args()
    print(f"nDCG@10 in percent, {processor()}")
    for model in options.models:
        encoder, tasks, known = load_encoder(model, runtime=options.runtime), {}, {}
        print(f"{model}: computed by {encoder.runtime.label}")
        for each in collections(options.data, options.papers, options.queries):
            tasks[each.name] = judge(each, encoder, known)
            print(f"{model}: {each.name}: {len(each.texts):,} papers, {len(each.questions)} questions", flush=True)
        show(model, tasks)


def show(model: str, tasks: dict[str, dict[str, NDArray[np.float64]]]) -> None:
    """Print a table of all questions, and the way that is chosen on even ones with its lead on odd ones."""
    print(f"\n| {model} | {' | '.join(tasks)} | mean | even | odd |\n|---|{'---|' * (len(tasks) + 3)}")
    halves: dict[str, tuple[float, float]] = {}
    for way in next(iter(tasks.values())):
        values = [own[way] for own in tasks.values()]
        halves[way] = tuple(100 * float(np.mean([own[half::2].mean() for own in values])) for half in (0, 1))  # type: ignore[assignment]
        cells = [f"{100 * own.mean():.1f}" for own in values]
        mean = 100 * np.mean([own.mean() for own in values])
        print(f"| {way} | {' | '.join(cells)} | {mean:.1f} | {halves[way][0]:.1f} | {halves[way][1]:.1f} |")
    best = max(halves, key=lambda way: halves[way][0])
    print(f"\nbest on even questions: {best}; on odd ones {halves[best][1] - halves['rrf 60'][1]:+.1f} over rrf 60\n")


if __name__ == "__main__":
    main()
