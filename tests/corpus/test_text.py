"""What an encoder reads, and sentence boundaries: the traps of scientific prose, any text at all, real abstracts."""

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencex
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.corpus.text import SEPARATOR, TextRecipe, paper_text, sentence_texts, sentences

from .conftest import refused

# --- the recipe ------------------------------------------------------------------------------------


def test_parts_are_joined_as_the_recipe_has_them():
    assert paper_text("Title", "Abstract.") == "Title[SEP]Abstract."
    assert paper_text("Title", "") == "Title"  # a missing part takes its separator with it
    assert paper_text(" \n", "Abstract.") == "Abstract." and paper_text("", "") == ""
    recipe = TextRecipe(parts=("authors", "abstract", "venue", "title"), separator=" | ")
    assert paper_text("T", "A", recipe, venue="V", authors=("Ada", "Bo")) == "Ada, Bo | A | V | T"
    assert paper_text("T", "A", recipe) == "A | T"
    assert paper_text("T", "A", venue="V", authors=("Ada",)) == "T[SEP]A"
    assert paper_text(" Deep\n learning ", "We\t do.") == "Deep learning[SEP]We do."
    # a text cannot fake the separator
    assert paper_text("On [SEP] tokens", "We study [SEP].").count(SEPARATOR) == 1
    assert paper_text("On [SEP] tokens", "") == "On [sep] tokens"


def test_the_hash_is_stable_and_recipes_must_make_sense():
    assert TextRecipe().hash == "92eb0cdf42e5"  # a change of this value makes every stored vector stale
    assert TextRecipe(parts=json.loads('["title", "abstract"]')) == TextRecipe()
    others = [TextRecipe(parts=("abstract", "title")), TextRecipe(parts=("title",)), TextRecipe(separator=" ")]
    assert len({recipe.hash for recipe in [TextRecipe(), *others]}) == 4
    for parts in ((), ("title", "title"), ("titel",)):
        refused("text recipe part", TextRecipe, parts=parts)


# --- traps: | marks where a new sentence starts ----------------------------------------------------

TRAPS = [
    "Smith et al. (2010) agree with Jones et al. [3]. |It holds.",
    "We follow Smith et al. |We extend it.",
    "See Fig. 2 and Figs. 3-4. |Then Fig. S1 follows.",
    "By Eq. (3) and Eqs. (4)-(5) it is zero. |This is all.",
    "Some values, e.g. Gaussian ones, i.e. A and B, differ (cf. Table 1). |They vary.",
    "We compare A vs. B and find ca. 83% and approx. 20 cases. |Fine.",
    "The effect was significant with p = 0.05. |We then stopped.",
    "It rose by 3.5. |Version 2.0 is out.",
    "Doses of 5 mg. kg were given. |Rats survived.",
    "T. E. Lawrence and J. Smith met K. Rayner. |They spoke.",
    "Dr. Jones and Prof. Miller disagree. |Mrs. Hall does not.",
    "See No. 5 of the list. |The answer is no. |We stop.",
    "It took 50 ms. |We waited 10 sec. |Then Ms. Hall of Berkeley, CA. |Nobody else.",
    "This was shown in [12]. |Next we ask why.",
    "This was shown (Smith et al., 2010). |Next we ask why.",
    "This is known.[12] |Next we ask why.",
    "We train GANs on domain B. |We present results for type C. |Patients were happy.",
    "Progress in Conversational AI. |Memory networks help.",
    "BACKGROUND: Cells die. |METHODS: We looked. |RESULTS We found x. |CONCLUSION: They do.",
    "BACKGROUND Cells die often |RESULTS: We found x and more |CONCLUSIONS AND RELEVANCE: They do.",
    "Methods. We looked. |Results. We saw.",
    "1. We ask. |2. We answer.",
    "Is it so?! |Yes... |It is.",
    'He called it "good." |Then he left.',
    "It works (we tried. It did) well. |(This is an aside. It ends.) |We go on.",
    "Rates fell. |12 patients died. |mRNA levels rose. |p53 did not.",
    "Use Node.js or www.example.org. |It is 3.14 long.",
    "These bind proteins.|We show how.",
    "we saw it. |however we did approx. the same.",
    "Dogs, cats, etc. were seen. |Birds, fish, etc. |We saw all.",
    "First paragraph without stop\n\n|Second one.",
    "これは文です。|次の文です。",
    "यह एक है। |वह दो है।",
]


@pytest.mark.parametrize("marked", TRAPS)
def test_sentences_end_where_a_reader_would_end_them(marked):
    text = marked.replace("|", "")
    assert "|".join(text[start:end] for start, end in sentences(text)) == marked


def test_sentence_texts_are_stripped_and_never_empty():
    assert sentence_texts("  One here.  \n Two here. ") == ["One here.", "Two here."]
    assert sentence_texts(" \n ") == []


# --- any text --------------------------------------------------------------------------------------

_PIECES = ["et al.", "Fig.", "RESULTS", "RESULTS:", "e.g.", "A.", ". ", "\n\n", "(", ")", "«", "'", '"', "。", "0.05."]
_PARTS = st.sampled_from([*_PIECES, "We"]) | st.text(max_size=3)
_ANY_TEXT = st.text(st.characters(codec=None)) | st.lists(_PARTS).map("".join)


def _covers(text: str, found: list[tuple[int, int]]) -> bool:
    starts, ends = [start for start, _ in found], [end for _, end in found]
    return starts == [0, *ends[:-1]] and ends[-1] == len(text) and all(start < end for start, end in found)


@given(_ANY_TEXT)
@settings(max_examples=300)
def test_offsets_cover_any_text(text):
    found = sentences(text)
    assert _covers(text, found) if text else found == []
    for start, _ in found[1:]:
        assert not text[start].isspace()


def test_lone_surrogates_and_long_texts_keep_their_offsets():
    text = "One \ud800 here. " + "😀 Many more words. " * 2000
    assert sentences(text)[:2] == [(0, 12), (12, 31)]
    assert len(sentences(text)) == 2001


UNITS = ["«", "'", "(", "A. ", "e.g. ", "\n", "RESULTS ", "RESULTS AND ", "AIM/", "''.", "We did. "]


@pytest.mark.parametrize("unit", UNITS)
def test_time_grows_with_the_length_only(unit):
    text = unit * (200_000 // len(unit))
    begin = time.process_time()
    assert _covers(text, sentences(text))
    assert time.process_time() - begin < 5  # takes well below a second; quadratic behavior takes minutes


# --- real abstracts --------------------------------------------------------------------------------


def _inner_ends(text: str, spans: list[tuple[int, int]]) -> set[int]:
    """Ends of all sentences but the last, counted in characters other than white space."""
    total = len("".join(text.split()))
    return {len("".join(text[:end].split())) for _, end in spans} - {0, total}


def _located(text: str, pieces: list[str]) -> list[tuple[int, int]]:
    spans, at = [], 0
    for piece in filter(None, map(str.strip, pieces)):
        start = text.index(piece, at)
        at = start + len(piece)
        spans.append((start, at))
    return spans


def _boundary_f1(path: Path, split: Callable[[str], list[tuple[int, int]]]) -> float:
    hits = found = gold = 0
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            paper = json.loads(line)
            text = paper["abstract"]
            expected = _inner_ends(text, _located(text, paper["abstract_sentences"]))
            ours = _inner_ends(text, split(text))
            hits, found, gold = hits + len(expected & ours), found + len(ours), gold + len(expected)
    return 2 * hits / (found + gold)


@pytest.mark.parametrize(("corpus", "at_least"), [("scitldr", 0.946), ("csfcube", 0.985)])
def test_real_abstracts_are_split_better_than_by_sentencex_alone(shared, corpus, at_least):
    path = shared / "data" / corpus / "papers.jsonl.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    ours = _boundary_f1(path, sentences)
    plain = _boundary_f1(path, lambda text: _located(text, sentencex.segment("en", text)))
    assert ours >= at_least
    assert ours > plain
