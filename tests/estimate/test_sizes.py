"""Numbers as they are written, and corpora that are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.corpus.synthetic.synthesize import synthesize
from citeweave.pipeline.cost import parse_count, sizes_from_corpus, sizes_from_counts


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("52e6", 52_000_000),
        ("5.2e7", 52_000_000),
        ("52M", 52_000_000),
        ("1.5k", 1500),
        ("1_000", 1000),
        ("2B", 2 * 10**9),
    ],
)
def test_ways_to_write_a_count(text: str, number: int) -> None:
    assert parse_count(text, "--papers") == number


@given(st.integers(1, 10**12))
def test_every_whole_number_is_read(number: int) -> None:
    assert parse_count(str(number), "--papers") == parse_count(f"{number:_}", "--papers") == number


@pytest.mark.parametrize(
    "text", ["", "-5", "0", "1.5", "2e-3", "nan", "inf", "many", "1e99", "5MM", "0x10", "._", "1e6.5"]
)
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(UserError, match="--papers is"):
        parse_count(text, "--papers")


def test_zero_where_it_may_be() -> None:
    assert parse_count("0", "--citations", minimum=0) == 0


def test_impossible_sizes() -> None:
    with pytest.raises(UserError, match="--texts is 11"):
        sizes_from_counts(10, 5, texts=11)
    with pytest.raises(UserError, match="at most 90"):
        sizes_from_counts(10, 91)
    with pytest.raises(UserError, match="--tokens is 1"):
        sizes_from_counts(10, 5, tokens=1)


def test_a_corpus_is_counted(tmp_path: Path) -> None:
    corpus = synthesize(tmp_path / "corpus", SyntheticOptions(papers=300))
    sizes = sizes_from_corpus(corpus)
    assert (sizes.papers, sizes.citations, sizes.contexts) == (300, len(corpus.citing), len(corpus.contexts))
    assert sizes.texts == sum(bool(corpus.titles[row] and corpus.abstracts[row]) for row in range(300))
    citing, cited = np.asarray(corpus.citing), np.asarray(corpus.cited)
    lists = [set(cited[citing == row].tolist()) for row in range(300)]
    pairs = sum(len(references) for row in range(300) for references in lists if row in references)
    assert sizes.paths_of("cocited") == pytest.approx(pairs / 300)
    assert 40 < sizes.tokens < 200
