"""Citation marks in the forms of many publishers, and the sentences that they belong to; no text takes long."""

import re
import time

import pytest

from citeweave.corpus.citation_marks import CitationMark, CitingSentence, citing_sentences, find_marks

FOUND = [
    ("as in ( Lee et al. , 2003 ) , we", ["( Lee et al. , 2003 )"]),
    ("by Delisle et al. ( 1993 ) , who", ["Delisle et al. ( 1993 )"]),
    ("described in Preissler et al., 2015.", ["Preissler et al., 2015"]),
    ("the Keller and Lapata ( 2003 ) approach", ["Keller and Lapata ( 2003 )"]),
    ("The study by Suwazono et al. (2006) used", ["Suwazono et al. (2006)"]),
    ("Blunsom et al. ( 2008 , 2009 ) used", ["Blunsom et al. ( 2008 , 2009 )"]),
    ("Hari and Kiesila\u0308 (1996) found", ["Hari and Kiesila\u0308 (1996)"]),
    ("cells (IscS [12,22], IscU [6–8])", ["[12,22]", "[6–8]"]),
    ("disease.(7) Unlike others (14-17)", ["(7)", "(14-17)"]),
    ("[Smi+19] and [AB12, CD13] and [Li et al., 2019a]", ["[Smi+19]", "[AB12, CD13]", "[Li et al., 2019a]"]),
    ("@xcite, <cite>x</cite>, \\citep[see][]{a,b}", ["@xcite", "<cite>x</cite>", "\\citep[see][]{a,b}"]),
    ("as in [CIT]", ["[CIT]"]),
    # words of prose before names are no part of a mark
    ("seen by others and Otto (1999).", ["Otto (1999)"]),
    ("of cells, genes, Li & Wu (2001) say", ["Li & Wu (2001)"]),
    ("as vanHouten (2003) saw", ["Houten (2003)"]),
    ("with internationalization (2003)", []),
    # no marks at all
    ("on the interval [0, 1] and in (January 2003) or (in 2003)", []),
    ("for (1) patients with and (2) without", []),
    ("by equation (3) with (n = 2010) and (P < 0.01)", []),
    ("an area of 10 m² in 2015", []),
    ("we cite nobody", []),
    ("", []),
    ("growth of cells.¹²,¹³ Then", ["¹²,¹³"]),
    ("nach Müller und Schmidt (2019) ist", ["Müller und Schmidt (2019)"]),
    ("по данным Иванов и др. (2019) рост", ["Иванов и др. (2019)"]),
    ("研究（王等，2019）表明", ["（王等，2019）"]),
    (", 2006), trained on the WSJ", [", 2006)"]),
    ("relation extraction (Weston et al.", ["(Weston et al."]),
    ("(e.g., 10 nM; Kim et al., 2015)", ["(e.g., 10 nM; Kim et al., 2015)"]),
]


@pytest.mark.parametrize(("text", "marks"), FOUND)
def test_marks_are_found(text, marks):
    assert [text[start:end] for start, end in find_marks(text)] == marks


HOSTILE = [
    "the " + "internationalization" * 4 + " (2003) of",
    "the structure-function-relationship-of-proteins-and (2003)",
    "and " * 30 + "(2003)",
    "a  a  a  a  " * 10 + "(2003)",
    "In 2003 x" + " " * 19_000 + "y",
    "(Li et al." + " " * 19_000 + "x 2003",
    "(1) (3) " * 2500,
    "[ " * 10_000 + "2003",
    "(" * 20_000 + "2003",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:9])
def test_a_hostile_text_ends(text):
    """Each of these took minutes to centuries by patterns that can be read in several ways."""
    assert all(start < end for start, end in find_marks(text))


def cut(text: str) -> list[tuple[str, tuple[str, ...]]]:
    found = re.finditer(r"\[\w+\]|(?<=\. )\d+(?= )", text)
    marks = [CitationMark(mark.start(), mark.end(), mark.group().strip("[]")) for mark in found]
    return [(sentence.text, sentence.cited) for sentence in citing_sentences(text, marks)]


SENTENCES = [
    ("It heals. 1 Others fail. None.", [("It heals. 1", ("1",))]),
    ("It heals. [1] [2] Others fail.", [("It heals. [1] [2]", ("1", "2"))]),
    ("It heals. [1] proposed more. None.", [("[1] proposed more.", ("1",))]),
    ("We follow [1]. It is new.", [("We follow [1].", ("1",))]),
    ("As in [1], [2] and [1]. End.", [("As in [1], [2] and [1].", ("1", "2"))]),
    ("No mark at all.", []),
]


@pytest.mark.parametrize(("text", "expected"), SENTENCES)
def test_a_mark_belongs_to_its_sentence(text, expected):
    assert cut(text) == expected


def test_unknown_marks_cite_nothing_and_impossible_ones_are_left_out():
    places = [(22, 25, None), (12, 15, "s2:1"), (-1, 3, "x"), (20, 99, "x"), (5, 5, "x")]
    sentences = citing_sentences("Known since [1]. Then [2].", [CitationMark(*place) for place in places])
    assert list(sentences) == [CitingSentence("Known since [1].", ("s2:1",)), CitingSentence("Then [2].", ())]


def test_many_overlapping_marks_take_no_quadratic_time():
    text, started = "word " * 100_000, time.perf_counter()
    list(citing_sentences(text, [CitationMark(0, len(text), "s2:1")] * 100_000))
    assert time.perf_counter() - started < 120  # every mark with every other one would be hours
