"""An executor makes the very shards that this process would make: the same bytes, whatever kind of vectors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.errors import ShardError, UserError
from citeweave.core.executor import LocalExecutor, ShardTask
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.embed import EmbeddingOptions, embed_compressed, embed_papers, embed_sentences
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.full_text import FullText, embed_full_text
from citeweave.encoders.remote_shards import make_shard_worker
from citeweave.encoders.shards import EncoderSpec, RemoteShards

WORDS = ["the", "cell", "grows", "and", "we", "find", "how", "models", "learn", "from", "data", "in", "citations"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    place = tmp_path_factory.mktemp("corpus")
    papers = [
        {"id": f"p{n}", "title": " ".join(WORDS[: 1 + n % 9]), "abstract": f"We find {n}. Cells grow." if n % 4 else ""}
        for n in range(30)
    ]
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    sections = [{"heading": "Data", "text": " ".join(WORDS * 8)}]
    (place / "full.jsonl").write_text("".join(json.dumps({"id": f"p{n}", "sections": sections}) + "\n" for n in (3, 8)))
    import_papers([place / "papers.jsonl"], place / "corpus")
    return Corpus.open(place / "corpus")


class Backwards:
    """Hands shards over in another order, and stops after some."""

    def __init__(self, most: int = 1000) -> None:
        self.most, self.asked = most, []  # type: int, list[int]

    def make(self, work: ShardTask, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        self.asked = list(numbers)
        yield from LocalExecutor().make(work, list(reversed(numbers))[: self.most])
        if len(numbers) > self.most:
            raise ShardError(work.label, dict.fromkeys(self.asked[: -self.most], "lost"), len(numbers))


def content(folder: Path) -> dict[str, bytes]:
    names = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "manifest.json"]
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("made")
    return {str(path.relative_to(folder)): path.read_bytes() for path in names} | {"": json.dumps(manifest).encode()}


def kinds(corpus: Corpus, place: Path) -> dict[str, Callable[[Any, Path, EmbeddingOptions], Any]]:
    full = FullText.index(corpus.folder.parent / "full.jsonl", corpus)
    return {
        "papers": lambda encoder, folder, options: embed_papers(corpus, encoder, folder, options),
        "int8": lambda encoder, folder, options: embed_compressed(corpus, encoder, folder, "int8", options),
        "sentences": lambda encoder, folder, options: embed_sentences(corpus, encoder, folder, options),
        "full": lambda encoder, folder, options: embed_full_text(corpus, encoder, folder, full, options),
        "chunks": lambda encoder, folder, options: embed_full_text(
            corpus, encoder, folder, full, options, several=True
        ),
    }


@pytest.mark.parametrize("kind", ["papers", "int8", "sentences", "full", "chunks"])
def test_a_crew_gives_the_bytes_of_a_local_run(corpus: Corpus, bert: Path, tmp_path: Path, kind: str) -> None:
    encoder = load_encoder(bert, device="cpu")
    embed = kinds(corpus, tmp_path)[kind]
    embed(encoder, tmp_path / "local", EmbeddingOptions(shard=7))
    remote = RemoteShards(Backwards(), EncoderSpec(str(bert)))
    embed(encoder, tmp_path / "executor", EmbeddingOptions(shard=7, remote=remote))
    assert content(tmp_path / "executor") == content(tmp_path / "local")


def test_options_reach_the_workers(corpus: Corpus, bert: Path, tmp_path: Path) -> None:
    encoder = load_encoder(bert, device="cpu", pooling="mean", max_tokens=8, batch_tokens=40)
    how = {"text": TextRecipe(("title",)), "dtype": "float16", "shard": 4, "tokens": tmp_path / "tokens"}
    embed_papers(corpus, encoder, tmp_path / "local", EmbeddingOptions(**how))
    settings = {"pooling": "mean", "max_tokens": 8, "batch_tokens": 40}
    remote = RemoteShards(LocalExecutor(), EncoderSpec(str(bert), settings=settings))
    embed_papers(corpus, encoder, tmp_path / "executor", EmbeddingOptions(**how, remote=remote))
    assert content(tmp_path / "executor") == content(tmp_path / "local")


def test_what_is_made_is_kept_and_only_the_rest_is_asked_for(corpus: Corpus, bert: Path, tmp_path: Path) -> None:
    encoder, spec = load_encoder(bert, device="cpu"), EncoderSpec(str(bert))
    with pytest.raises(ShardError, match=r"3 of 5 shards .*\(0, 1, 2;"):
        embed_papers(
            corpus, encoder, tmp_path / "v", EmbeddingOptions(shard=7, remote=RemoteShards(Backwards(2), spec))
        )
    again = Backwards()
    embed_papers(corpus, encoder, tmp_path / "v", EmbeddingOptions(shard=7, remote=RemoteShards(again, spec)))
    assert again.asked == [0, 1, 2]
    embed_papers(corpus, encoder, tmp_path / "local", EmbeddingOptions(shard=7))
    assert content(tmp_path / "v") == content(tmp_path / "local")


def test_another_corpus_or_model_at_the_worker_is_refused(corpus: Corpus, bert: Path) -> None:
    maker = RemoteShards(LocalExecutor(), EncoderSpec(str(bert))).make_task(
        corpus, load_encoder(bert, device="cpu"), "papers", EmbeddingOptions().as_payload()
    )
    payload = dict(maker.task.arguments)
    with pytest.raises(UserError, match="is another corpus here than at the driver"):
        make_shard_worker(**payload | {"corpus": {"folder": str(corpus.folder), "hash": "0"}})
    with pytest.raises(UserError, match="is another one here than at the driver"):
        make_shard_worker(**payload | {"revision": "0"})


def test_other_tokens_or_full_texts_at_the_worker_are_refused(corpus: Corpus, bert: Path, tmp_path: Path) -> None:
    encoder, remote = load_encoder(bert, device="cpu"), RemoteShards(LocalExecutor(), EncoderSpec(str(bert)))
    options = EmbeddingOptions(tokens=tmp_path / "tokens")
    embed_papers(corpus, encoder, tmp_path / "v", options)
    full = str(corpus.folder.parent / "full.jsonl")
    for kind, more in (("papers", {}), ("chunks", {"tokens": None, "full_text": full, "several": False})):
        payload = dict(remote.make_task(corpus, encoder, kind, options.as_payload() | more).task.arguments)
        make_shard_worker(**payload)
        with pytest.raises(UserError, match=r"differs here \(.*\) from the driver's \(0\)"):
            make_shard_worker(**payload | {"fingerprints": dict.fromkeys(payload["fingerprints"], "0")})
