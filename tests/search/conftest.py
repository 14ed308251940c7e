"""A small literature with citing sentences and intents, a tiny model with aspect heads, an index of both; and versions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.encoders.aspects import AspectHeads, save_heads
from citeweave.encoders.encoder import BATCH_TOKENS, TorchEncoder, load_encoder
from citeweave.search.build import IndexOptions, build_index
from citeweave.search.index import Index
from citeweave.search.index_model import QueryEncoder, open_query_encoder

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
    reader: QueryEncoder


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> Made:
    place = tmp_path_factory.mktemp("search")
    import_papers([write_source(place / "source")], place / "corpus")
    corpus = Corpus.open(place / "corpus")
    model = save_bert(place / "model")
    save_heads(model, random_heads())
    options = IndexOptions(contexts=10, device="cpu")
    index = build_index(corpus, model, place / "index", options)
    return Made(place, corpus, model, index, open_query_encoder(index, device="cpu"))


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Path:
    """The index folder, to be damaged."""
    return Path(shutil.copytree(made.index.folder, tmp_path / "index"))


# --- corpora that change ---------------------------------------------------------------------------------

WORDS = KNOWN.split()


def random_paper(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """One version of a paper; two of three have an abstract, one of four a second id, some have the same text."""
    length = int(rng.integers(0, 4))
    abstract = " ".join(rng.choice(WORDS, 4 * length)) + "." if length else ""
    made: dict[str, Any] = {"id": f"p:{number}", "title": " ".join(rng.choice(WORDS, 2)), "abstract": abstract}
    if rng.random() < 0.2:
        made |= {"title": "cell grows", "abstract": ""}
    if number % 4 == 0:
        made["ids"] = [f"doi:10.1/{number}"]
    if rng.random() < 0.5:
        made["year"] = int(rng.integers(1990, 2020))
    return made


def references(rng: np.random.Generator) -> list[str]:
    """Ids that a paper cites: some of them never in any corpus, some by their second id."""
    numbers = rng.choice(24, 3, replace=False).tolist()
    return [f"doi:10.1/{number}" if number % 8 == 0 else f"p:{number}" for number in numbers]


@pytest.fixture(scope="module")
def one_text_per_batch() -> Iterator[None]:
    """The last bits of a vector depend on the shape of its batch; alone in its batch, a text has the same vector always."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BATCH_TOKENS, "cpu", 1)
        yield


@pytest.fixture(scope="session")
def encoder(bert: Path) -> TorchEncoder:
    """The model of the indexes whose answers are compared bit by bit, loaded once: see `one_text_per_batch`."""
    return load_encoder(bert, device="cpu", batch_tokens=1)


@dataclass
class Version:
    """A corpus, and what it was made of."""

    corpus: Corpus
    papers: dict[str, dict[str, Any]] = field(default_factory=dict)
    cites: dict[str, list[str]] = field(default_factory=dict)


def write_corpus(place: Path, papers: dict[str, dict[str, Any]], cites: dict[str, list[str]]) -> Corpus:
    place.mkdir(parents=True)
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers.values()))
    pairs = [(citing, cited) for citing in papers for cited in cites[citing]]
    (place / "citations.tsv").write_text("".join(f"{citing}\t{cited}\n" for citing, cited in pairs))
    import_papers([place / "papers.jsonl", place / "citations.tsv"], place / "corpus")
    return Corpus.open(place / "corpus")


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Version]:
    """Corpora of up to 16 papers; in the later ones most papers are as in the one before."""
    rng, place, found = np.random.default_rng(4), tmp_path_factory.mktemp("versions"), []
    papers: dict[str, dict[str, Any]] = {}
    cites: dict[str, list[str]] = {}
    for number in range(5):
        for at in rng.choice(16, 9, replace=False).tolist():
            name, what = f"p:{at}", rng.random()
            if name not in papers or what < 0.4:
                papers[name], cites[name] = random_paper(at, rng), references(rng)
            elif what < 0.6:
                papers.pop(name)
            elif what < 0.8:
                papers[name] = {**papers[name], "year": int(rng.integers(1990, 2020))}
        kept = dict(papers)
        found.append(Version(write_corpus(place / str(number), kept, cites), kept, dict(cites)))
    return found
