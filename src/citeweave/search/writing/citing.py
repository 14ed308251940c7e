"""The citing sentences of a segment: chosen and embedded out of a corpus, or taken over from other segments.

A segment keeps the sentences that cite its papers. Which are kept is drawn once, when a paper is written: sentences that
a later corpus adds come with the papers that are written then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.writing import ArtefactWriter
from citeweave.columns import MatrixWriter, TextWriter, write_numbers
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.embedding import embed_texts
from citeweave.encoders.encoder import Encoder
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.progress import QUIET, Reporter
from citeweave.search.citing_sentences import (
    READ_AS,
    CitingSentences,
    Mentions,
    SentenceTexts,
    choose_mentions,
    mentions_of,
)
from citeweave.search.writing.records import Chosen

FOLDER = "sentences"


def embed_citing_sentences(
    artefact: ArtefactWriter,
    corpus: Corpus,
    places: NDArray[np.int64],
    encoder: Encoder,
    *,
    most: int,
    dtype: str,
    overlay: IntentOverlay | None = None,
    reporter: Reporter = QUIET,
) -> dict[str, int]:
    """Choose, embed and write the sentences that cite the papers at `places`; what the manifest should tell."""
    mentions = mentions_of(corpus, overlay)
    chosen = choose_mentions(mentions.take(np.flatnonzero(places[mentions.paper] >= 0)), most)
    contexts = np.unique(chosen.context)  # (sentences,)
    if not len(contexts):
        return {}
    made = embed_texts(
        encoder,
        [str(number) for number in contexts.tolist()],
        SentenceTexts(corpus, contexts),
        artefact.work("sentences") / "vectors",
        text_recipe=READ_AS,
        dtype=dtype,
        reporter=reporter,
    )
    kept = np.array([int(name) for name in made.ids], np.int64)  # ascending, (sentences with a vector,)
    count = _write(artefact.folder / FOLDER, corpus, chosen, kept, places)
    writer = MatrixWriter(artefact.folder / FOLDER / "matrix.npy", dtype, encoder.dimension)
    writer.append(made.matrix)
    writer.close()
    return {"sentences": len(kept), "sentences_left_out": len(contexts) - len(kept), "mentions": count}


def _write(
    folder: Path, corpus: Corpus, mentions: Mentions, contexts: NDArray[np.int64], places: NDArray[np.int64]
) -> int:
    """All columns but the vectors; says how many mentions there are."""
    texts, citing = TextWriter(folder, "text"), TextWriter(folder, "citing")
    texts.append_bytes(*corpus.contexts.texts.gather(contexts))
    for row in np.asarray(corpus.contexts.citing)[contexts].tolist():
        citing.append([corpus.ids[row] if row >= 0 else ""])
    texts.close()
    citing.close()
    at = np.minimum(np.searchsorted(contexts, mentions.context), len(contexts) - 1)
    kept = np.flatnonzero(contexts[at] == mentions.context)
    kept = kept[np.argsort(places[mentions.paper[kept]], kind="stable")]
    _write_mentions(folder, places[mentions.paper[kept]], at[kept], mentions.intents[kept])
    return len(kept)


def take_citing_sentences(folder: Path, chosen: Chosen, tables: list[CitingSentences | None]) -> dict[str, int]:
    """The sentences of other segments that cite the papers chosen, one table a source; none where none is left."""
    texts, citing = TextWriter(folder / FOLDER, "text"), TextWriter(folder / FOLDER, "citing")
    matrix: MatrixWriter | None = None
    papers, sentences, intents, count = [], [], [], 0
    for at, table in enumerate(tables):
        if table is None:
            continue
        places = chosen.places(at)[table.paper]
        used = np.flatnonzero(places >= 0)
        rows, sentence = np.unique(np.asarray(table.sentence)[used], return_inverse=True)
        texts.append_bytes(*table.texts.gather(rows))
        citing.append_bytes(*table.citing.gather(rows))
        matrix = matrix or MatrixWriter(folder / FOLDER / "matrix.npy", table.matrix.dtype, table.matrix.shape[1])
        matrix.append(table.matrix[rows])
        papers.append(places[used])
        sentences.append(sentence + count)
        intents.append(np.asarray(table.intents)[used])
        count += len(rows)
    texts.close()
    citing.close()
    if matrix is not None:
        matrix.close()
    if not count:
        for path in (folder / FOLDER).iterdir():
            path.unlink()
        (folder / FOLDER).rmdir()
        return {}
    paper = np.concatenate(papers)
    order = np.argsort(paper, kind="stable")
    _write_mentions(folder / FOLDER, paper[order], np.concatenate(sentences)[order], np.concatenate(intents)[order])
    return {"sentences": count, "mentions": len(paper)}


def _write_mentions(folder: Path, paper: NDArray[Any], sentence: NDArray[Any], intents: NDArray[Any]) -> None:
    write_numbers(folder / "paper.npy", paper, np.int32)
    write_numbers(folder / "sentence.npy", sentence, np.int32)
    write_numbers(folder / "intents.npy", intents, np.uint8)
