"""Citation marks of drafts and of printed papers go, all else stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.search.citing_sentences import MAX_SENTENCE, without_marks


@pytest.mark.parametrize(
    ("sentence", "left"),
    [
        ("We use the parser of [CIT] here.", "We use the parser of here."),
        ("As known [], (?), [?] and (CITE).", "As known,, and."),
        ("Known since long [3, 5-7].", "Known since long."),
        ("Known since long (Chen and Dyer, 2014b; see Li et al., 2015).", "Known since long."),
        ("Chen and Dyer (2014) parse, as O'Neil et al. [1999] do.", "parse, as do."),
        (r"Trees \citep[see][p. 3]{a,b} grow~\cite{c}.", "Trees grow."),
        ("An array x[i] of (small) size (n = 20)", "An array x[i] of (small) size (n = 20)"),
        ("Five of 2014 texts", "Five of 2014 texts"),
        ("Grown for ~ 60 days~[CIT].", "Grown for ~ 60 days."),
        ("Known since long (12, 14).", "Known since long."),
        ("By equation (3), found in 2014 (in spring 2014)", "By equation (3), found in 2014 (in spring 2014)"),
        ("the citation of CITATION", "the citation of"),
    ],
)
def test_spellings(sentence, left):
    assert without_marks(sentence) == left


@given(st.text(max_size=300))
def test_any_text_is_read(text):
    assert len(without_marks(text)) <= len(text)


@given(st.lists(st.text("abcdefgh", min_size=1), min_size=1).map(" ".join))
def test_words_stay(text):
    assert without_marks(text) == text
    assert without_marks(f"{text} [CIT]") == text


@pytest.mark.parametrize("piece", ["(", "[1,", "(2010 ", "\\cite[", "A", "Aa and ", "Aa et al. ", "[ "])
def test_a_hostile_sentence_takes_no_time(piece):
    assert len(without_marks(piece * 100_000)) <= MAX_SENTENCE
