"""A small literature with citing sentences and intents, a library with references in and out of it, tiny models, indexes
of both; and versions of a corpus."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave import Corpus, Index, IndexOptions
from citeweave.encoders.aspects import AspectHeads, save_heads
from citeweave.encoders.encoder import BATCH_TOKENS, TorchEncoder, load_encoder
from citeweave.search.build import build_index
from citeweave.search.nearest import open_query_encoder

from ..cli.conftest import cli as cli
from ..conftest import VOCABULARY
from ..conftest import corpus_of as corpus_of
from ..conftest import write_records as write_records

CPU = IndexOptions(device="cpu")
WORDS = VOCABULARY.removesuffix(" . ,").split()
SAID = "we find how models learn from data [CIT]"


def ids_of(index: Index) -> list[str]:
    return list(index.ids[:])


def vectors_of(index: Index) -> dict[str, list[float]]:
    rows = np.flatnonzero(index.with_vector)
    return {index.id(row): vector.tolist() for row, vector in zip(rows.tolist(), index.take(rows), strict=True)}


def sentences_of(index: Index) -> dict[str, list[list[float]]]:
    rows = np.flatnonzero(index.with_sentences).tolist()
    return {index.id(row): np.asarray(index.sentence_vectors(row)).tolist() for row in rows}


def papers() -> list[dict[str, Any]]:
    """Papers of few words; 7 and 8 have the same text, there is no 9."""
    rng = np.random.default_rng(5)
    made: list[dict[str, Any]] = [
        {"id": f"p:{row}", "title": " ".join(rng.choice(WORDS, 5)), "abstract": " ".join(rng.choice(WORDS, 12))}
        for row in range(20)
    ]
    for row in (7, 8):
        made[row] |= {"title": "cell grows in graphs", "abstract": "", "year": 2010 + row}
    made[7]["ids"] = ["doi:10.1/seven"]
    return [paper for paper in made if paper["id"] != "p:9"]


CITATIONS = [(f"p:{citing}", f"p:{cited}") for citing, cited in ((0, 7), (1, 8), (2, 7), (2, 3), (4, 5), (4, 9))]
CONTEXTS = [
    {"citing": citing, "cited": cited.split(), "text": text, "intents": intents.split()}
    for citing, cited, text, intents in (
        ("p:0", "p:7", SAID, "method"),
        ("p:1", "p:8", SAID, "background"),
        ("p:2", "p:7 p:3", "the cell grows [CIT] and that shows a paper", ""),
        ("p:4", "p:5 p:9", "models of citations grow (Chen et al., 2014).", "result"),
    )
]


def random_heads(names: tuple[str, ...] = ("background", "method", "result")) -> AspectHeads:
    draw = np.random.default_rng(1).normal
    layers = {name: ((draw(size=(6, 32)).astype(np.float32), draw(size=6).astype(np.float32)),) for name in names}
    return AspectHeads(names, layers)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> SimpleNamespace:
    place = tmp_path_factory.mktemp("search")
    corpus, model = corpus_of(place / "source", papers(), CITATIONS, CONTEXTS), save_bert(place / "model")
    save_heads(model, random_heads())
    index = build_index(corpus, model, place / "index", IndexOptions(contexts=10, device="cpu"))
    reader = open_query_encoder(index, device="cpu")
    return SimpleNamespace(place=place, corpus=corpus, model=model, index=index, reader=reader)


@pytest.fixture
def copy(made: Any, tmp_path: Path) -> Path:
    """The index folder, to be changed or damaged."""
    return Path(shutil.copytree(made.index.folder, tmp_path / "index"))


# --- a library of eleven papers with references in and out of it, with sentences and without ---------------

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


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> SimpleNamespace:
    """`words` is an index of the same papers without vectors; `edges` are (citing, cited), x and y not in the library."""
    place, papers = tmp_path_factory.mktemp("library"), list[dict[str, Any]]()
    for at, (id, text) in enumerate(ABSTRACTS.items()):
        title = f"we find {text.split('.')[-2].strip()}"
        papers.append({"id": id, "title": title, "abstract": text, "year": 2010 + at})
        papers[-1] |= {"venue": "Nature" if at % 2 else "Cell", "fields": ["maps"] if at < 3 else ["cells"]}
    # twins of each other, without abstract
    papers += [{"id": id, "title": "cell cell grows"} for id in ("s", "t")]
    papers[0]["ids"] = ["doi:10.1/a"]
    edges = [tuple(pair) for pair in ["ab", "ac", "ax", "db", "dc", "dx", "dy", "ea", "ed", "fa", "fd", "ba", "gy"]]
    corpus, model = corpus_of(place / "source", papers, edges), save_bert(place / "model")
    index = build_index(corpus, model, place / "index", IndexOptions(sentences=True, device="cpu", dtype="float32"))
    words = build_index(corpus, model, place / "words", IndexOptions(vectors=False, device="cpu"))
    reader = open_query_encoder(index, device="cpu")
    return SimpleNamespace(place=place, corpus=corpus, index=index, reader=reader, words=words, edges=edges)


# --- corpora that change ---------------------------------------------------------------------------------


def random_paper(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """One version of a paper; two of three have an abstract, one of four a second id, some have the same text."""
    length = int(rng.integers(0, 4))
    abstract = " ".join(rng.choice(WORDS, 4 * length)) + "." if length else ""
    made: dict[str, Any] = {"id": f"p:{number}", "title": " ".join(rng.choice(WORDS, 2)), "abstract": abstract}
    if rng.random() < 0.2:
        made |= {"title": "cell grows", "abstract": ""}
    if number % 4 == 0:
        made["ids"] = [f"doi:10.1/{number}"]
    made |= {"venue": f"V{len(abstract) % 3}", "fields": [f"f{number % 2}", f"g{length}"]}
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
class Content:
    """What a corpus is made of, or what an index should hold."""

    papers: dict[str, dict[str, Any]] = field(default_factory=dict)
    cites: dict[str, list[str]] = field(default_factory=dict)

    def take(self, other: Content, names: Iterable[str]) -> Content:
        """Take some papers of another corpus, which knows every paper that it has by its own id."""
        own = {further: paper["id"] for paper in other.papers.values() for further in paper.get("ids", ())}
        for name in names:
            self.papers[name], self.cites[name] = other.papers[name], [own.get(one, one) for one in other.cites[name]]
        return self

    def write(self, place: Path) -> Corpus:
        pairs = [(citing, cited) for citing in self.papers for cited in self.cites[citing]]
        return corpus_of(place, self.papers.values(), pairs)


@dataclass
class Version(Content):
    corpus: Any = None


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Version]:
    """Corpora of up to 16 papers; in the later ones most papers are as in the one before."""
    rng, place, found, now = np.random.default_rng(4), tmp_path_factory.mktemp("versions"), [], Content()
    for number in range(5):
        for at in rng.choice(16, 9, replace=False).tolist():
            name, what = f"p:{at}", rng.random()
            if name not in now.papers or what < 0.4:
                now.papers[name], now.cites[name] = random_paper(at, rng), references(rng)
            elif what < 0.6:
                now.papers.pop(name)
            elif what < 0.8:
                now.papers[name] = {**now.papers[name], "year": int(rng.integers(1990, 2020))}
        found.append(Version(dict(now.papers), dict(now.cites), now.write(place / str(number))))
    return found
