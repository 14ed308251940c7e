"""A sentence is shown with its mark, whatever its length and wherever the mark stands."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.corpus.citation_marks import find_marks
from citeweave.intents.citances import OTHER, TARGET, Citance, make_citance_tokenizer, normalize_section, split_at_marks


@settings(max_examples=150)
@given(st.text(alphabet="aB é王([])（,;. 129\\{}<>cite@xé¹", max_size=60), st.integers(-5, 70), st.integers(-5, 70))
def test_any_text_is_cut_without_loss(text, start, end):
    spans = find_marks(text)
    assert all(0 <= first < last <= len(text) for first, last in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    parts = split_at_marks(text, (start, end))
    kept = "".join(part for part in parts if part not in (TARGET, OTHER))
    rest = iter(text)
    assert all(character in rest for character in kept)  # in order, nothing added
    unmarked = [part for part in split_at_marks(text, None) if part != TARGET]
    assert "".join(split_at_marks(text, None, remove=True)) == "".join(unmarked)


def test_the_span_among_others():
    text = "Growth (Li, 2001; Wu, 2002; Xu, 2003) and [4] use Ruffus here."
    start = text.index("Wu")
    parts = ["Growth ", OTHER, TARGET, OTHER, " and ", OTHER, " use Ruffus here."]
    assert split_at_marks(text, (start, start + 8)) == parts
    start = text.index("Ruffus")
    assert split_at_marks(text, (start, start + 6))[-2:] == [TARGET, " here."]
    assert "Ruffus" in split_at_marks(text, (start, start + 6))[-3]
    assert split_at_marks("By Wolfe (2010).", (2, 14)) == ["By ", TARGET, "."]  # one character short, one too early
    assert split_at_marks("By Wolfe (2010).", (90, 99)) == ["By ", TARGET, "."]  # outside: found by its form


def test_titles_of_sections():
    cases = {"3.1 Methods": "methods", "II. RELATED WORK": "related work", "4.  Results": "results", "": "", "3": ""}
    cases |= {"Appendix A. Data": "data", "Vitamin D": "vitamin d", "方法": "方法"}
    assert {title: normalize_section(title) for title in cases} == cases


@pytest.fixture(scope="module")
def reader(marked_bert):
    pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
    from citeweave.encoders.encoder import load_encoder

    return make_citance_tokenizer(load_encoder(marked_bert).reader, 32)


def words(reader, ids):
    return list(reader.reader.tokenizer.convert_ids_to_tokens(ids.tolist()))


def test_what_the_network_reads(reader):
    found = reader.read([Citance("we find [3] and [4] .", (8, 11), "2.1 Data")])[0]
    assert words(reader, found.ids) == ["[CLS]", "data", "[SEP]", "we", "find", TARGET, "and", OTHER, ".", "[SEP]"]
    assert found.marks.tolist() == [5]
    hidden = reader.assemble(reader.tokenize([Citance("we find [3]", None, "Data")])[0], hide_section=True)
    assert words(reader, hidden.ids) == ["[CLS]", "we", "find", TARGET, "[SEP]"]
    removed = reader.tokenize([Citance("we find [3] .")], remove=True)[0]
    assert words(reader, removed.body) == ["we", "find", "."] and not len(removed.marks)


@pytest.mark.parametrize("place", [0, 1000, 1999])
def test_a_long_sentence_is_cut_around_its_mark(reader, place):
    parts = ["data"] * 2000
    parts[place] = "[3]"
    text = " ".join(parts)
    start = text.index("[3]")
    for span in ((start, start + 3), None):
        found = reader.read([Citance(text, span, "Models")])[0]
        assert len(found.ids) == 32 and len(found.marks) == 1
        assert words(reader, found.ids)[found.marks[0]] == TARGET
        assert words(reader, found.ids)[:3] == ["[CLS]", "models", "[SEP]"]


def test_short_empty_and_huge_sentences(reader):
    one, mark, empty, blank, odd = reader.read([Citance(text) for text in ("cell", "[3]", "", " \n", "\ud800 cell")])
    assert words(reader, one.ids) == ["[CLS]", "cell", "[SEP]"] and not len(one.marks)
    assert mark.marks.tolist() == [1] and len(mark.ids) == 3
    assert len(empty.ids) == len(blank.ids) == 0
    assert len(odd.ids) > 2
    titled = reader.read([Citance("a cell", None, "data " * 400)])[0]
    assert len(titled.ids) <= 32 and words(reader, titled.ids)[-3:] == ["a", "cell", "[SEP]"]
    # a page taken for a sentence
    text = "data " * 200_000 + "[3] cell"
    found = reader.read([Citance(text, (1_000_000, 1_000_003))])[0]
    assert words(reader, found.ids)[found.marks[0]] == TARGET
