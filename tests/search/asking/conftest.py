"""A library of eleven papers with references in and out of it, indexed by a tiny model, with sentences and without."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.search.build import IndexOptions, build_index
from citeweave.search.index import Index
from citeweave.search.index_model import QueryEncoder, open_query_encoder

ABSTRACTS = {
    "a": "A cell grows. We find models from data.",
    "b": "The cell grows in data. A paper shows citations.",
    "c": "We learn how models find data. Graphs of citations.",
    "d": "Citations and graphs. How a paper learns.",
    "e": "That the cell shows. And we find a paper. Models of data.",
    "f": "Graphs grow from citations. We learn and find.",
    "g": "Data in graphs of data. The models learn.",
    "h": "How the cell and the paper grows. Citations shows.",
    "i": "Models learn. Models find.",
}
CITATIONS = ["a b", "a c", "a x", "d b", "d c", "d x", "d y", "e a", "e d", "f a", "f d", "b a", "g y"]


def papers() -> list[dict[str, object]]:
    made: list[dict[str, object]] = [
        {
            "id": id,
            "title": f"we find {text.split('.')[-2].strip()}",
            "abstract": text,
            "year": 2010 + at,
            "venue": "Nature" if at % 2 else "Cell",
            "fields": ["maps"] if at < 3 else ["cells"],
        }
        for at, (id, text) in enumerate(ABSTRACTS.items())
    ]
    # twins of each other, without abstract, and one that nothing can be read of
    made += [{"id": id, "title": "cell cell grows"} for id in ("s", "t")]
    made[0]["ids"] = ["doi:10.1/a"]
    return made


@dataclass(frozen=True)
class Library:
    place: Path
    corpus: Corpus
    index: Index
    reader: QueryEncoder
    words: Index
    """The same papers without vectors."""

    edges: set[tuple[str, ...]]
    """(citing, cited); x and y are not in the library."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> Library:
    place = tmp_path_factory.mktemp("asking")
    source = place / "source"
    source.mkdir()
    (source / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers()))
    (source / "citations.tsv").write_text("".join(line.replace(" ", "\t") + "\n" for line in CITATIONS))
    import_papers([source], place / "corpus")
    corpus, model = Corpus.open(place / "corpus"), save_bert(place / "model")
    index = build_index(corpus, model, place / "index", IndexOptions(sentences=True, device="cpu", dtype="float32"))
    words = build_index(corpus, model, place / "words", IndexOptions(vectors=False, device="cpu"))
    edges = {tuple(line.split()) for line in CITATIONS}
    return Library(place, corpus, index, open_query_encoder(index, device="cpu"), words, edges)
