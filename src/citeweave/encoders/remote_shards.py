"""The remote side of an embedding run: a worker opens corpus and model and makes shards with the code of a local run.

    make = make_shard_worker(corpus={"folder": "/data/corpus", "hash": "..."}, encoder={"model": "minilm", ...},
                             revision="...", kind="papers", options={"shard": 16384, ...}, fingerprints={})
    make(0)                                the bytes of the first shard's file

A corpus, model, token store or file of full texts that differs between this machine and the driver is refused: its shards
would be wrong.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import TextRecipe
from citeweave.encoders import shards
from citeweave.encoders.aspects import load_aspect_encoder
from citeweave.encoders.embed import PaperTexts, sentence_maker, text_maker
from citeweave.encoders.full_text import FullText, chunk_maker
from citeweave.encoders.runtimes import Runtime
from citeweave.encoders.shards import ShardMaker, ShardReporter, make_shard, shard_bytes
from citeweave.encoders.tokens import TokenStore


class EncodingWorker:
    """A remote worker that makes the bytes of a shard by its number; one thread may read while the other encodes."""

    overlaps = True

    def __init__(self, maker: ShardMaker, total: int, size: int) -> None:
        self._maker, self._total, self._size = maker, total, size
        self._reading, self._computing = threading.Lock(), threading.Lock()

    def __call__(self, number: int) -> bytes:
        start = number * self._size
        with self._reading:
            blocks = self._maker.read(start, min(start + self._size, self._total))
            read = [one for block in blocks for one in block]
        with self._computing:
            return shard_bytes(make_shard(self._maker, read, ShardReporter(lambda amount: None, QUIET)), number)


def make_shard_worker(
    corpus: Mapping[str, str],
    encoder: Mapping[str, Any],
    revision: str,
    kind: str,
    options: Mapping[str, Any],
    fingerprints: Mapping[str, str],
) -> EncodingWorker:
    """Open the corpus and the encoder of an embedding run in a worker, and return the function that makes its shards."""
    opened = Corpus.open(Path(corpus["folder"]))
    if opened.hash != corpus["hash"]:
        raise UserError(f"{corpus['folder']} is another corpus here than at the driver; share one folder between nodes")
    for path, found in shards.fingerprints(options).items():
        if found != fingerprints[path]:
            raise UserError(f"{path} differs here ({found}) from the driver's ({fingerprints[path]}); share one")
    # runtimes other than torch would take every core of the machine, of which this worker has only some
    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    runtime = replace(Runtime.parse(encoder["runtime"]), compiled=encoder["compiled"], threads=threads)
    loaded = load_aspect_encoder(
        encoder["model"], encoder["aspect"], device=encoder["device"], runtime=runtime, **encoder["settings"]
    )
    if loaded.revision != revision:
        raise UserError(
            f"the model {encoder['model']} is another one here than at the driver; install or copy the same"
        )
    return EncodingWorker(_make_maker(opened, loaded, kind, options), len(opened), options["shard"])


def _make_maker(corpus: Corpus, encoder: Any, kind: str, options: Mapping[str, Any]) -> ShardMaker:
    """Return the maker of shards of papers, sentences or chunks, as a local run would use it."""
    if kind == "sentences":
        return sentence_maker(corpus, encoder, options["dtype"])
    texts = PaperTexts(corpus, TextRecipe(**options["text"]))
    if kind == "chunks":
        full = FullText.index(options["full_text"], corpus)
        return chunk_maker(texts, full, encoder, options["dtype"], options["several"])
    store = TokenStore.open(options["tokens"]) if options["tokens"] else None
    return text_maker(encoder, texts, options["dtype"], store)
