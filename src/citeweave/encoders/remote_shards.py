"""The side of a worker: opens corpus and model as it was told, and makes shards with the code of a local run.

    make = embed_maker(corpus={"folder": "/data/corpus", "hash": "..."}, loading={"model": "minilm", ...},
                       revision="...", kind="papers", how={"shard": 16384, "dtype": "float32", ...}, beside={})
    make(0)                                the bytes of the first shard's file

A corpus, a model, a token store or a file of full texts that is another one on this machine than on the driver's is
refused: its shards would be wrong.
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
from citeweave.encoders.aspects import load_aspect_encoder
from citeweave.encoders.embed import PaperTexts, text_maker
from citeweave.encoders.embed_sentences import sentence_maker
from citeweave.encoders.full_text import FullText, chunk_maker
from citeweave.encoders.runtimes import Runtime
from citeweave.encoders.shards import Maker, ShardReporter, fingerprints, made_shard, shard_bytes
from citeweave.encoders.tokens import TokenStore


class MadeHere:
    """Number of a shard -> its bytes; two threads may ask, one of them reads while the other computes."""

    overlaps = True

    def __init__(self, maker: Maker, total: int, size: int) -> None:
        self._maker, self._total, self._size = maker, total, size
        self._reading, self._computing = threading.Lock(), threading.Lock()

    def __call__(self, number: int) -> bytes:
        start = number * self._size
        with self._reading:
            blocks = self._maker.read(start, min(start + self._size, self._total))
            read = [one for block in blocks for one in block]
        with self._computing:
            return shard_bytes(made_shard(self._maker, read, ShardReporter(lambda amount: None, QUIET)), number)


def embed_maker(
    corpus: Mapping[str, str],
    loading: Mapping[str, Any],
    revision: str,
    kind: str,
    how: Mapping[str, Any],
    beside: Mapping[str, str],
) -> MadeHere:
    """The function of a worker."""
    opened = Corpus.open(Path(corpus["folder"]))
    if opened.hash != corpus["hash"]:
        raise UserError(f"{corpus['folder']} is another corpus here than at the driver; share one folder between nodes")
    for path, found in fingerprints(how).items():
        if found != beside[path]:
            raise UserError(f"{path} is another one here ({found}) than at the driver ({beside[path]}); share one")
    # other runtimes than torch would take every core of the machine, of which this worker has but some
    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    runtime = replace(Runtime.parse(loading["runtime"]), compiled=loading["compiled"], threads=threads)
    encoder = load_aspect_encoder(
        loading["model"], loading["aspect"], device=loading["device"], runtime=runtime, **loading["settings"]
    )
    if encoder.revision != revision:
        raise UserError(
            f"the model {loading['model']} is another one here than at the driver; install or copy the same"
        )
    return MadeHere(_maker(opened, encoder, kind, how), len(opened), how["shard"])


def _maker(corpus: Corpus, encoder: Any, kind: str, how: Mapping[str, Any]) -> Maker:
    if kind == "sentences":
        return sentence_maker(corpus, encoder, how["dtype"])
    texts = PaperTexts(corpus, TextRecipe(**how["text"]))
    if kind == "chunks":
        full = FullText.index(how["full_text"], corpus)
        return chunk_maker(texts, full, encoder, how["dtype"], how["several"])
    store = TokenStore.open(how["tokens"]) if how["tokens"] else None
    return text_maker(encoder, texts, how["dtype"], store)
