"""The confidence in a search: rules at their margins, and what an answer does with each."""

import numpy as np
import pytest

from citeweave.search.answer import answer
from citeweave.search.confidence import (
    LOW_MARGIN,
    MOST_WORDS,
    NONE_MARGIN,
    NOTES,
    PROBES,
    confidence_of,
    judge_ranking,
    noise_level,
)
from citeweave.search.query import Filter, Query
from citeweave.search.rankings import VECTOR_SHARE, Ranking


def ranking(by, *scores):
    return Ranking(np.arange(len(scores)), np.array(scores, np.float64), by, note="by itself")


@pytest.fixture
def noisy(monkeypatch):
    """A library in which every text is noise."""
    monkeypatch.setattr("citeweave.search.answer.noise_level", lambda *_: 10.0)


def test_margins_above_the_noise():
    noise = VECTOR_SHARE * 0.4
    for above, wanted in ((LOW_MARGIN, "high"), (NONE_MARGIN, "low"), (-1.0, "none")):
        assert confidence_of(noise + above + 1e-9, noise=0.4) == wanted
    assert confidence_of(noise + LOW_MARGIN - 1e-9, noise=0.4) == "low"
    assert confidence_of(noise + NONE_MARGIN - 1e-9, noise=0.4) == "none"


def test_a_ranking_is_emptied_only_where_nothing_is_close():
    low = judge_ranking(ranking("hybrid", 0.35, 0.2), 0.4, keep=False)
    assert low.confidence == "low" and len(low.rows) == 2 and low.note == f"{NOTES['low']}; by itself"
    none = judge_ranking(ranking("hybrid", 0.2), 0.4, keep=False)
    assert none.confidence == "none" and not len(none.rows) and none.note.startswith(NOTES["none"])
    worded = judge_ranking(ranking("hybrid", 0.2)._replace(coverage=MOST_WORDS), 0.4, keep=False)
    assert worded.confidence == "low" and len(worded.rows) == 1
    kept = judge_ranking(ranking("hybrid", 0.2), 0.4, keep=True)
    assert kept.confidence == "none" and len(kept.rows) == 1 and kept.note.startswith(NOTES["low"])
    assert judge_ranking(ranking("words"), 0.0, keep=False).confidence == "none"
    assert judge_ranking(ranking("words", 3.0), 0.0, keep=False).note == "by itself"
    # a cosine alone has no part of words in its score
    assert judge_ranking(ranking("vectors", 0.5), 0.4, keep=True).confidence == "low"


def test_noise_is_the_median_of_the_probes_and_computed_once(library, monkeypatch):
    index, vectors = library.index, library.index.take(np.flatnonzero(library.index.with_vector))
    probes = library.reader.encoder.encode(list(PROBES))
    unit = [own / np.linalg.norm(own, axis=1, keepdims=True) for own in (probes, vectors)]
    wanted = np.median((unit[0] @ unit[1].T).max(axis=1))
    assert noise_level(index, library.reader) == pytest.approx(wanted, abs=1e-5)
    monkeypatch.setattr("citeweave.search.confidence._noise_of", None)
    assert noise_level(index, library.reader) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.usefixtures("noisy")
def test_noise_has_no_hits_by_default(library):
    def ask(text="granite", **parts):
        return answer(library.index, library.reader, Query(text=text, **parts))

    found = ask()
    assert found.confidence == found.as_json()["confidence"] == "none"
    assert not found.hits and found.note == NOTES["none"] and found.by == "hybrid"
    for parts in ({"by": "hybrid"}, {"by": "vectors"}, {"where": Filter(years=(2012, None))}):
        found = ask(**parts)
        assert found.hits and found.confidence == "none" and found.note == NOTES["low"]
    assert ask("cell", by="words").confidence == "high"
    found = ask("cell")
    assert found.hits and found.confidence == "low", "a paper has the word"
    papers = answer(library.index, None, Query(paper="a"))
    assert papers.hits and papers.confidence == "high" and not papers.note
    words = answer(library.words, None, Query(text="zzzzqqq"))
    assert not words.hits and words.confidence == "none" and NOTES["none"] in words.note
