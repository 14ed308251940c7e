"""What an index holds, counted: for `citeweave index`, `citeweave change` and anybody who asks."""

from __future__ import annotations

from typing import Any

import numpy as np

from citeweave.search.filling import pending
from citeweave.search.index import Index


def describe(index: Index) -> dict[str, Any]:
    """Counts of living papers and of what is known about them, and the model; as JSON."""
    known, facts = index.provenance, index.state.facts
    waiting = len(pending(index))
    told = {
        "state": index.number,
        "segments": len(index.segments),
        "corpus": index.corpus,
        "corpus_name": facts.get("corpus_name", ""),
        "model": known.model if known else "",
        "revision": known.revision if known else "",
        "passes": sorted({each for segment in index.segments for each in segment.passes}),
        "runtime": index.runtime if known else "",
        "aspects": list(index.aspects),
        "papers": len(index),
        "deleted": index.size - len(index),
        "with_vector": int(index.with_vector.sum()),
        "not_embedded": waiting,
        "without_vector": len(index) - int(index.with_vector.sum()) - waiting,
        "with_abstract": sum(int((s.alive & (s.abstracts.lengths() > 0)).sum()) for s in index.segments),
        "with_sentences": int(index.with_sentences.sum()),
        "with_intents": sum(int((s.alive & s.cited_as.any(axis=1)).sum()) for s in index.segments),
        "references": sum(int(np.diff(s.reference_offsets)[s.alive].sum()) for s in index.segments),
        "dimension": known.dimension if known else 0,
        "dtype": str(facts.get("dtype", "")),
    }
    if facts.get("contexts"):
        told["sentences"], told["mentions"] = count_citing_sentences(index)
        told["sentences_left_out"] = sum(int(s.manifest.facts.get("sentences_left_out", 0)) for s in index.segments)
    return told


def count_citing_sentences(index: Index) -> tuple[int, int]:
    """Citing sentences that mention a living paper, and those mentions."""
    sentences = mentions = 0
    for segment in index.segments:
        table = segment.citing_sentences
        if table is not None:
            living = segment.alive[table.paper]  # (mentions,)
            mentions += int(living.sum())
            sentences += len(table) if living.all() else len(np.unique(table.sentence[living]))
    return sentences, mentions
