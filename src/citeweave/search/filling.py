"""Vectors for papers that have words only: shard by shard, while others search.

    fill_vectors("index", shard=256, stop=event.is_set)

A finished shard is a state of the index: its papers can be found at once, and an interruption costs one shard at most.
Between two shards another writer has its turn. At the end all segments become one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import UserError
from citeweave.files import ArtefactWriter, hash_json
from citeweave.progress import QUIET, Reporter
from citeweave.search.changing import gone
from citeweave.search.compacting import compact_index, join_last
from citeweave.search.index import Index
from citeweave.search.segment import NOT_YET
from citeweave.search.state import writing
from citeweave.search.writing.citing import take_citing_sentences
from citeweave.search.writing.model import model_facts, open_embedding, write_heads
from citeweave.search.writing.records import Chosen, of_segment
from citeweave.search.writing.segments import write_segment
from citeweave.search.writing.vectors import Embedding, embed_segment

SHARD = 256
"""Papers between two states."""


def fill_vectors(
    folder: str | Path,
    *,
    shard: int = SHARD,
    stop: Callable[[], bool] = lambda: False,
    model: str | Path | None = None,
    device: str = "auto",
    encoder: TorchEncoder | None = None,
    reporter: Reporter = QUIET,
) -> int:
    """Embed the papers that were not tried yet, until none is left or `stop` says so; how many were."""
    if shard < 1:
        raise UserError(f"--shard is {shard}; it must be at least 1 paper")
    folder, done = Path(folder), 0
    index = Index.open(folder)
    total = len(pending(index))
    if not total:
        if index.state.facts.get("filling"):  # interrupted before its last step
            compact_index(folder)
        return 0
    how = open_embedding(index, model, device=device, encoder=encoder)
    with reporter.task("embedding", total, "papers") as advance:
        while not stop():
            count = _fill_one(folder, how, shard)
            if not count:
                compact_index(folder)
                break
            done += count
            advance(count)
    return done


def pending(index: Index) -> NDArray[np.int64]:
    """Rows of living papers for which no vector was tried."""
    parts = [
        segment.start + np.flatnonzero(segment.alive & (segment.embedded == NOT_YET)) for segment in index.segments
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _fill_one(folder: Path, how: Embedding, shard: int) -> int:
    with writing(folder) as writer:
        index = Index.open(folder)
        rows = pending(index)[:shard]
        if not len(rows):
            return 0
        found = index.split(rows)
        chosen = Chosen.of([(of_segment(segment), inner) for segment, _, inner in found])
        recipe = {"filled": hash_json(rows.tolist()), "state": index.number, "revision": how.encoder.revision}
        writer.clean([writer.segment(recipe)])

        def fill(artefact: ArtefactWriter) -> dict[str, Any]:
            facts = embed_segment(artefact, how)
            told = take_citing_sentences(artefact.folder, chosen, [segment.citing_sentences for segment, _, _ in found])
            return {**facts, **told}

        entry = write_segment(writer, recipe, chosen, fill)
        write_heads(folder, how.heads)
        facts = {**index.state.facts, **model_facts(how), "filling": True}
        writer.commit([*gone(writer, index, rows), entry], facts)
        join_last(writer)
    return len(rows)
