"""A small corpus with full texts, networks that can be watched and interrupted, and what several tests compare with."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.options import ImportOptions
from citeweave.encoders import embed as embedding
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.int8_tiles import has_instruction
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.network import Network
from citeweave.encoders.paper_texts import FullText
from citeweave.encoders.save import save_encoder
from citeweave.encoders.tokens import Tokens

from ..conftest import refused as refused

NEVER = 10**9
CARD = ModelCard("tiny", base="minilm")
WORDS = ["the", "cell", "grows", "and", "we", "find", "how", "models", "learn", "from", "data", "in", "citations"]
needs_instruction = pytest.mark.skipif(not has_instruction(), reason="no dot-product instruction (asimddp)")
cls_and_mean = pytest.mark.parametrize(
    "options", [{"pooling": "cls"}, {"pooling": "mean", "normalize": True}], ids=["cls", "mean"]
)


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@dataclass(frozen=True)
class Watched(Network):
    """A network that writes down what it read, dies when it would read too much, and holds so many tokens."""

    texts: list[list[int]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    dies_after: int = NEVER
    """Texts that it reads."""
    dies_at: int = NEVER
    """Number of a batch, from 1 on."""
    holds: int = NEVER
    """Tokens of a batch, padding included."""
    error: type[BaseException] = KeyboardInterrupt

    def padded(self, batch: Sequence[Tokens], *, every: bool = False) -> Any:
        self.batches.append(len(batch))
        if len(self.texts) + len(batch) > self.dies_after or len(self.batches) == self.dies_at:
            raise self.error
        if (tokens := len(batch) * max(map(len, batch))) > self.holds:
            self.refused.append(tokens)
            raise OutOfMemoryError("tried to allocate more than there is")
        self.texts.extend(tokens.tolist() for tokens in batch)
        return super().padded(batch, every=every)


def watched(encoder: TorchEncoder, dies_after: int = NEVER, texts: Any = None, **more: Any) -> TorchEncoder:
    """The same encoder on a network that is watched; several may write into one list."""
    inner, seen = encoder.network, [] if texts is None else texts
    network = Watched(inner.model, inner.device, inner.pad, texts=seen, dies_after=dies_after, **more)
    return replace(encoder, network=network)


class LetterCounts:
    """An encoder of three numbers: how often a, b and c occur."""

    name, revision, dimension = "letters", "1", 3

    def __init__(self, dies_at: int = NEVER) -> None:
        self.read, self.dies_at = 0, dies_at

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> np.ndarray:
        if self.read == self.dies_at:
            raise KeyboardInterrupt
        self.read += len(texts)
        return np.array([[text.count(letter) for letter in "abc"] for text in texts], np.float32).reshape(-1, 3)


class Recorder(Reporter):
    """Writes down the progress it is told."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.totals: list[int | None] = []
        self.done = 0

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Any]:
        self.totals.append(total)
        yield self._advance

    def _advance(self, amount: int) -> None:
        self.done += amount


def write_lines(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    """54 papers, some with a title alone, one longer than models read, and 6 of which nothing but the id is known."""
    place, draw = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)

    def text(words: int) -> str:
        return " ".join(draw.choice(WORDS, words))

    papers = []
    for n in range(54):
        title = text(3)
        abstract = f"We {text(60 if n == 7 else 1 + n % 12)}. They {text(4)}." if n % 3 else ""
        papers.append(
            {"id": f"p{n}", "title": title, "abstract": abstract, "references": [f"outside{n}"] * (n % 10 == 3)}
        )
    write_lines(place / "papers.jsonl", papers)
    import_papers([place / "papers.jsonl"], place / "corpus", ImportOptions(outside="keep"))
    return Corpus.open(place / "corpus")


@pytest.fixture(scope="session")
def full_texts(corpus) -> Path:
    """Those of two papers, beside records that cannot be used."""
    sections = [{"heading": "data", "text": " ".join(WORDS * 8)}, {"heading": "", "text": ""}, {"text": "we find"}, 3]
    outside = {"id": "outside3", "sections": [{"heading": "how", "text": "models learn"}]}
    records = [{"id": "p5", "sections": sections}, outside, {"id": "p5", "sections": []}]
    records += [{"id": "nobody", "sections": []}, {"id": "p6"}]
    path = write_lines(corpus.folder.parent / "full.jsonl", records)
    path.write_text(path.read_text().replace("\n", "\n\n", 1) + "{broken")
    return path


def embed(kind: str, corpus: Corpus, encoder: Any, folder: Path, options: Any, **more: Any) -> list[Any]:
    """The artifacts of a kind that are made of a corpus."""
    if kind == "papers":
        return [embedding.embed_papers(corpus, encoder, folder, options, **more)]
    if kind == "sentences":
        return [embedding.embed_sentences(corpus, encoder, folder, options, **more)]
    if kind == "both":
        both = embedding.embed_papers_and_sentences(corpus, encoder, folder, options, **more)
        return [both.vectors, both.sentences]
    if kind in ("full", "chunks"):
        full = FullText.index(corpus.folder.parent / "full.jsonl", corpus)
        return [embedding.embed_full_text(corpus, encoder, folder, full, options, several=kind == "chunks", **more)]
    return [embedding.embed_compressed(corpus, encoder, folder, kind, options, **more)]


@pytest.fixture
def encoder(bert) -> TorchEncoder:
    return load_encoder(bert, device="cpu")


def save(encoder: TorchEncoder, folder: Path, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    settings = options.pop("settings", encoder.settings)
    save_encoder(folder, encoder.network, encoder.reader.tokenizer, settings, card=CARD, **options)
    return folder


def theirs(folder: Path, texts: list[str]) -> np.ndarray:
    """Vectors by sentence-transformers."""
    package = pytest.importorskip("sentence_transformers", reason="pip install 'citeweave[minilm]'")
    return package.SentenceTransformer(str(folder), device="cpu").encode(texts, show_progress_bar=False)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def change(path: Path, **values: Any) -> None:
    """Change values of a JSON object in a file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
