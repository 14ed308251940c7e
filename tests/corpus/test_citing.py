"""Citing sentences: which sentence a mark belongs to."""

from __future__ import annotations

import re
import time

import pytest

from citeweave.corpus.citation_marks import CitationMark, CitingSentence, citing_sentences


def cut(text: str) -> list[tuple[str, tuple[str, ...]]]:
    marks = [
        CitationMark(m.start(), m.end(), m.group().strip("[]")) for m in re.finditer(r"\[\w+\]|(?<=\. )\d+(?= )", text)
    ]
    return [(s.text, s.cited) for s in citing_sentences(text, marks)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It heals. 1 Others fail. None.", [("It heals. 1", ("1",))]),
        ("It heals. [1] [2] Others fail.", [("It heals. [1] [2]", ("1", "2"))]),
        ("It heals. [1] proposed more. None.", [("[1] proposed more.", ("1",))]),
        ("We follow [1]. It is new.", [("We follow [1].", ("1",))]),
        ("As in [1], [2] and [1]. End.", [("As in [1], [2] and [1].", ("1", "2"))]),
        ("No mark at all.", []),
    ],
)
def test_marks(text, expected):
    assert cut(text) == expected


def test_unknown_and_impossible_marks():
    text = "Known since [1]. Then [2]."
    marks = [
        CitationMark(22, 25, None),
        CitationMark(12, 15, "s2:1"),
        CitationMark(-1, 3, "x"),
        CitationMark(20, 99, "x"),
        CitationMark(5, 5, "x"),
    ]
    assert list(citing_sentences(text, marks)) == [
        CitingSentence("Known since [1].", ("s2:1",)),
        CitingSentence("Then [2].", ()),
    ]


def test_many_overlapping_marks_take_no_quadratic_time():
    text = "word " * 100_000
    started = time.perf_counter()
    list(citing_sentences(text, [CitationMark(0, len(text), "s2:1")] * 100_000))
    assert time.perf_counter() - started < 120  # every mark with every other one would be hours
