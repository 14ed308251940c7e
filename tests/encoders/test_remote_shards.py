"""An executor makes the very shards that this process would make: the same bytes, whatever kind of vectors."""

from pathlib import Path
from typing import Any

import pytest

from citeweave.core.errors import ShardError
from citeweave.core.executor import LocalExecutor
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.embed import EmbeddingOptions, embed_papers, make_shard_worker
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.shards import EncoderSpec, RemoteShards

from ..conftest import Told, content
from .conftest import embed, refused


def remote(bert: Path, executor: Any = None, **settings: Any) -> RemoteShards:
    return RemoteShards(executor or LocalExecutor(), EncoderSpec(str(bert), settings=settings))


@pytest.mark.parametrize("kind", ["papers", "int8", "sentences", "full", "chunks"])
def test_an_executor_gives_the_bytes_of_a_local_run(corpus, full_texts, bert, encoder, tmp_path, kind):
    embed(kind, corpus, encoder, tmp_path / "local", EmbeddingOptions(shard=14))
    options = EmbeddingOptions(shard=14, remote=remote(bert, Told()))
    embed(kind, corpus, encoder, tmp_path / "executor", options)
    assert content(tmp_path / "executor") == content(tmp_path / "local")


def test_options_reach_the_workers(corpus, bert, tmp_path):
    settings = {"pooling": "mean", "max_tokens": 8, "batch_tokens": 40}
    encoder = load_encoder(bert, device="cpu", **settings)
    how = {"text": TextRecipe(("title",)), "dtype": "float16", "shard": 8, "tokens": tmp_path / "tokens"}
    embed_papers(corpus, encoder, tmp_path / "local", EmbeddingOptions(**how))
    embed_papers(corpus, encoder, tmp_path / "executor", EmbeddingOptions(**how, remote=remote(bert, **settings)))
    assert content(tmp_path / "executor") == content(tmp_path / "local")


def test_what_is_made_is_kept_and_only_the_rest_is_requested(corpus, bert, encoder, tmp_path):
    with pytest.raises(ShardError, match=r"3 of 5 shards .*\(0, 1, 2;"):
        embed_papers(
            corpus, encoder, tmp_path / "v", EmbeddingOptions(shard=14, remote=remote(bert, Told(failing=(0, 1, 2))))
        )
    again = Told()
    embed_papers(corpus, encoder, tmp_path / "v", EmbeddingOptions(shard=14, remote=remote(bert, again)))
    assert again.made == [2, 1, 0]
    embed_papers(corpus, encoder, tmp_path / "local", EmbeddingOptions(shard=14))
    assert content(tmp_path / "v") == content(tmp_path / "local")


def test_other_inputs_at_the_worker_are_refused(corpus, full_texts, bert, encoder, tmp_path):
    options = EmbeddingOptions(tokens=tmp_path / "tokens")
    embed_papers(corpus, encoder, tmp_path / "v", options)
    more = {"tokens": None, "full_text": str(full_texts), "several": False}
    for kind, payload in (("papers", options.as_payload()), ("chunks", options.as_payload() | more)):
        arguments = dict(remote(bert).make_task(corpus, encoder, kind, payload).task.arguments)
        make_shard_worker(**arguments)
        for changes, message in (
            ({"corpus": {"folder": str(corpus.folder), "hash": "0"}}, "is another corpus here than at the driver"),
            ({"revision": "0"}, "is another one here than at the driver"),
            (
                {"fingerprints": dict.fromkeys(arguments["fingerprints"], "0")},
                r"differs here .* from the driver's \(0\)",
            ),
        ):
            refused(message, make_shard_worker, **arguments | changes)
