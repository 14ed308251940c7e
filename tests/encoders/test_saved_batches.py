"""Batches are saved by time: an interruption in the middle of a shard costs no saved batch and changes no byte."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import ArtifactError
from citeweave.core.publish import work_folder
from citeweave.encoders.batches import BatchResults, SavedBatches, run_batches
from citeweave.encoders.embed import EmbeddingOptions, embed_papers, embed_papers_and_sentences, embed_sentences
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.full_text import FullText, embed_full_text

from .test_embedding import LetterCounts, Recorder, corpus, full_texts  # noqa: F401

AT_ONCE, NEVER = 0.0, 1e9
"""Seconds between two savings."""


class Killed(RuntimeError):
    """Nobody gets the chance to save anything."""


@dataclass
class Counted:
    """A network that counts the batches that it reads, and dies in one of them."""

    inner: Any
    dies_at: int = 10**9
    error: type[BaseException] = Killed
    batches: int = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in ("states", "token_states"):
            return found

        def read(*batch: Any, **options: Any) -> Any:
            self.batches += 1
            if self.batches == self.dies_at:
                raise self.error
            return found(*batch, **options)

        return read


def papers(library, encoder, place, options, **more):
    return [embed_papers(library, encoder, place / "papers", options, **more)]


def sentences(library, encoder, place, options, **more):
    return [embed_sentences(library, encoder, place / "sentences", options, **more)]


def both(library, encoder, place, options, **more):
    made = embed_papers_and_sentences(library, encoder, place / "both", options, **more)
    return [made.vectors, made.sentences]


def full_text(library, encoder, place, options, **more):
    found = FullText.index(place.parent / "full.jsonl", library)
    return [embed_full_text(library, encoder, place / "full", found, options, **more)]


@pytest.mark.parametrize("embed", [papers, sentences, both, full_text])
@pytest.mark.parametrize(("save_every", "error"), [(AT_ONCE, Killed), (NEVER, KeyboardInterrupt)])
def test_a_run_resumes_in_the_middle_of_a_shard(bert, corpus, full_texts, tmp_path, embed, save_every, error):  # noqa: F811
    encoder = load_encoder(bert, device="cpu", pooling="mean", batch_tokens=64)
    options = EmbeddingOptions(save_every=save_every)  # one shard holds all papers

    def watched(dies_at: int = 10**9) -> Any:
        return replace(encoder, network=Counted(encoder.network, dies_at, error))

    whole, first, second = watched(), watched(9), watched()
    expected = embed(corpus, whole, tmp_path / "whole", options)
    with pytest.raises(error):
        embed(corpus, first, tmp_path / "broken", options)
    recorder = Recorder()
    resumed = embed(corpus, second, tmp_path / "broken", options, reporter=recorder)
    assert whole.network.batches > 12 and second.network.batches == whole.network.batches - 8
    assert [made.manifest.hash for made in resumed] == [made.manifest.hash for made in expected]
    assert recorder.done == len(corpus)
    assert not list((tmp_path / "broken").rglob("*.part-*"))


def test_an_encoder_of_texts_resumes_too(corpus, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr("citeweave.encoders.embed._TEXTS", 10)
    expected = embed_papers(corpus, LetterCounts(), tmp_path / "whole")
    broken, second = LetterCounts(), LetterCounts()

    def encode(texts, **options):
        if broken.read == 30:
            raise Killed
        return LetterCounts.encode(broken, texts)

    broken.encode = encode  # type: ignore[method-assign]
    options = EmbeddingOptions(save_every=AT_ONCE)
    with pytest.raises(Killed):
        embed_papers(corpus, broken, tmp_path / "v", options)
    made = embed_papers(corpus, second, tmp_path / "v", options)
    assert second.read == len(corpus) - 30 and made.manifest.hash == expected.manifest.hash


def squares(saved: SavedBatches, texts: int = 20, dies_at: int = -1, largest: int = 4) -> tuple[np.ndarray, list[int]]:
    """The square of every row, four rows to a batch, and the rows that were computed now."""
    found, computed = np.zeros((texts, 1), np.int64), list[int]()

    def encode(rows):
        if len(rows) > largest:
            raise MemoryError
        if dies_at in rows.tolist():
            raise Killed
        computed.extend(rows.tolist())
        found[rows, 0] = rows**2

    run_batches(np.ones(texts, np.int64), 4, encode, results=BatchResults([found], lambda rows: [rows]), saved=saved)
    return found, computed


@pytest.mark.parametrize("step", [10.0, 1e6, -1e6])
def test_the_clock_decides_what_is_saved_and_nothing_else(tmp_path: Path, step: float) -> None:
    """Also a clock that jumps, forward or backward: at worst batches are computed again."""
    seconds = itertools.count(0.0, step)
    with pytest.raises(Killed):
        squares(SavedBatches(tmp_path / "work", every=30.0, clock=lambda: next(seconds)), dies_at=18)
    found, computed = squares(SavedBatches(tmp_path / "work"))
    assert found[:, 0].tolist() == [row**2 for row in range(20)]
    first = {10.0: 12, 1e6: 16, -1e6: 0}[step]  # the clock is read once a batch, and once more where it saves
    assert computed == list(range(first, 20))


def test_a_budget_that_was_halved_stays_so(tmp_path: Path) -> None:
    saved = SavedBatches(tmp_path / "work", every=AT_ONCE)
    with pytest.raises(Killed):
        squares(saved, dies_at=18, largest=2)
    again = SavedBatches(tmp_path / "work")
    found, computed = squares(again, largest=4)
    assert again.halved == 1 and computed == [18, 19] and found[-1, 0] == 361


def test_nothing_damaged_is_taken(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        squares(SavedBatches(tmp_path / "work", every=AT_ONCE), dies_at=18)
    first, second = tmp_path / "work.part-0-0.npz", tmp_path / "work.part-0-1.npz"
    kept = first.read_bytes()
    for damaged in (second.read_bytes(), kept[:-40], b"", kept.replace(b"rows.npy", b"bows.npy")):
        first.write_bytes(damaged)
        with pytest.raises(ArtifactError, match="work.part-0-0.npz, which an earlier run .* is damaged .*; remove it"):
            squares(SavedBatches(tmp_path / "work"))
    first.write_bytes(kept)
    with pytest.raises(ArtifactError, match="it names texts that it cannot hold|out of bounds"):
        squares(SavedBatches(tmp_path / "work"), texts=5)
    second.unlink()
    assert squares(SavedBatches(tmp_path / "work"))[1] == list(range(4, 20))
    assert [path.name for path in tmp_path.iterdir()] == [first.name], "the files behind a missing one are of no use"


def test_saved_batches_lie_where_the_shards_do(bert, corpus, tmp_path):  # noqa: F811
    encoder = load_encoder(bert, device="cpu", batch_tokens=64)
    broken = replace(encoder, network=Counted(encoder.network, 4))
    with pytest.raises(Killed):
        embed_papers(corpus, broken, tmp_path / "v", EmbeddingOptions(save_every=AT_ONCE))
    kept = sorted(path.name for path in work_folder(tmp_path / "v").rglob("*.npz"))
    assert kept == [f"00000000.part-0-{number}.npz" for number in range(3)]
