"""A small literature with citing sentences and intents, a tiny model with aspect heads, and an index of both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.importing import import_papers
from citeweave.encoders.aspects import AspectHeads, save_heads
from citeweave.search.building import IndexOptions, build_index
from citeweave.search.index import Index
from citeweave.search.searching import Reader, open_reader

KNOWN = "a paper shows that the cell grows and we find how models learn from data in graphs of citations"
SAID = "we find how models learn from data [CIT]"


def papers() -> list[dict[str, Any]]:
    """Papers of few words; 7 and 8 have the same text, there is no 9."""
    rng = np.random.default_rng(5)
    made: list[dict[str, Any]] = [
        {
            "id": f"p:{row}",
            "title": " ".join(rng.choice(KNOWN.split(), 5)),
            "abstract": " ".join(rng.choice(KNOWN.split(), 12)),
        }
        for row in range(20)
    ]
    for row in (7, 8):
        made[row] |= {"title": "cell grows in graphs", "abstract": "", "year": 2010 + row}
    made[7]["ids"] = ["doi:10.1/seven"]
    return [paper for paper in made if paper["id"] != "p:9"]


CITATIONS = [(0, 7), (1, 8), (2, 7), (2, 3), (4, 5), (4, 9)]
CONTEXTS = [
    {"citing": "p:0", "cited": ["p:7"], "text": SAID, "intents": ["method"]},
    {"citing": "p:1", "cited": ["p:8"], "text": SAID, "intents": ["background"]},
    {"citing": "p:2", "cited": ["p:7", "p:3"], "text": "the cell grows [CIT] and that shows a paper", "intents": []},
    {
        "citing": "p:4",
        "cited": ["p:5", "p:9"],
        "text": "models of citations grow (Chen et al., 2014).",
        "intents": ["result"],
    },
]


def write_source(folder: Path, *, contexts: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers()))
    (folder / "citations.tsv").write_text("".join(f"p:{citing}\tp:{cited}\n" for citing, cited in CITATIONS))
    if contexts:
        (folder / "contexts.jsonl").write_text("".join(json.dumps(context) + "\n" for context in CONTEXTS))
    return folder


def random_heads(names: tuple[str, ...] = ("background", "method", "result")) -> AspectHeads:
    rng = np.random.default_rng(1)
    return AspectHeads(
        names,
        {
            name: ((rng.normal(size=(6, 32)).astype(np.float32), rng.normal(size=6).astype(np.float32)),)
            for name in names
        },
    )


@dataclass(frozen=True)
class Made:
    place: Path
    corpus: Corpus
    model: Path
    index: Index
    reader: Reader


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> Made:
    place = tmp_path_factory.mktemp("search")
    import_papers([write_source(place / "source")], place / "corpus")
    corpus = Corpus.open(place / "corpus")
    model = save_bert(place / "model")
    save_heads(model, random_heads())
    options = IndexOptions(contexts=10, device="cpu")
    index = build_index(corpus, model, place / "index", options)
    return Made(place, corpus, model, index, open_reader(index, device="cpu"))


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Path:
    """The index folder, to be damaged."""
    return Path(shutil.copytree(made.index.folder, tmp_path / "index"))
