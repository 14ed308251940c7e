"""Recommending what to cite: the formula against a plain loop, intents, drafts, and citation marks that are left out."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave import Corpus, Index, IndexOptions
from citeweave.core.errors import UserError
from citeweave.encoders.aspects import save_heads
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.search.build import build_index, fill_vectors
from citeweave.search.cite import DRAFT, GAIN, INTENTS, OTHER_INTENT, DraftScores, recommend
from citeweave.search.citing_sentences import MAX_SENTENCE, without_marks
from citeweave.search.nearest import open_query_encoder, search_paper
from citeweave.search.query import Passage

from ..conftest import refused
from ..graph.conftest import write_overlay
from .conftest import CPU, random_heads

TEXT = "we find how models learn from data"
SAID = f"{TEXT} (?)"
CONTEXTS = IndexOptions(contexts=10, device="cpu")


@pytest.fixture
def cite(made):
    """What to cite in a draft."""
    return lambda *draft, count=100, **parts: recommend(made.index, made.reader, Passage(*draft, **parts), count=count)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def expected(made, text: str, intent: str, context: str) -> dict[str, float]:
    """The scores by a loop over all papers and mentions."""
    index, encoder = made.index, made.reader.encoder
    sentence = about = encoder.encode([text])[0]
    if context:
        other = encoder.encode([context])[0]
        about = sentence / np.linalg.norm(sentence) + DRAFT * other / np.linalg.norm(other)
        about *= np.linalg.norm(sentence) / np.linalg.norm(about)
    query = index.heads.project(about[None], intent)[0] if intent else about
    table, scores = index.citing_sentences, {}
    for row in range(len(index)):
        best = p = cosine(index.take(np.array([row]), intent)[0], query)
        for paper, at, mask in zip(table.paper, table.sentence, table.intents, strict=True):
            if paper == row:
                less = OTHER_INTENT if intent and not mask & INTENTS[intent] else 0
                best = max(best, cosine(np.asarray(table.matrix[at], np.float32), sentence) - less)
        scores[index.id(row)] = p + GAIN * (best - p)
    return scores


@pytest.mark.parametrize(("intent", "context"), [("", ""), ("method", ""), ("result", "graphs of the cell")])
def test_scores_are_the_formula(made, cite, intent, context):
    scores = {one.id: one.score for one in cite(SAID, intent, context)}
    assert scores == pytest.approx(expected(made, TEXT, intent, context), abs=2e-5)
    assert list(scores.values()) == sorted(scores.values(), reverse=True)


@pytest.mark.parametrize("intent", ["", "method"])
def test_bounds_leave_out_nothing(cite, intent, monkeypatch):
    """Papers that are left out by their bounds would not have been among the best."""
    left_out, candidates = [], DraftScores.candidates

    def counted(self, known, count):
        found = candidates(self, known, count)
        left_out.append(int(known.sum()) - len(found))
        return found

    for sentence in ("cell grows", SAID, "graphs of citations", "models"):
        monkeypatch.setattr(DraftScores, "candidates", lambda self, known, count: np.flatnonzero(known))
        every = cite(sentence, intent, count=19)
        monkeypatch.setattr(DraftScores, "candidates", counted)
        for count in (1, 3, 19):
            assert cite(sentence, intent, count=count) == every[:count]
    assert sum(left_out) > 50


def place(found, paper: str) -> int:
    return [one.id for one in found].index(paper)


def test_the_wanted_intent_comes_first(cite):
    """p:7 and p:8 have one text and are cited in one sentence, one as a method, the other as background."""
    method, background = cite(SAID, "method"), cite(SAID, "background")
    assert place(method, "p:7") < place(method, "p:8") and place(background, "p:8") < place(background, "p:7")
    first = method[place(method, "p:7")]
    assert first.share == 1 and first.evidence.citing == "p:0" and first.evidence.intents == ("method",)
    assert first.evidence.text.endswith("[CIT]") and first.evidence.score == pytest.approx(1, abs=1e-3)
    assert method[place(method, "p:8")].share == 0
    assert {one.id for one in cite(SAID, "method", min_share=0.5)} == {"p:7"}


def flipped(corpus: Corpus, folder: Path) -> IntentOverlay:
    """Other intents than the corpus has: method where it says background and the other way round."""
    table, counts = corpus.contexts, np.diff(corpus.contexts.cited_offsets)
    swapped = np.array([0, 2, 1, 0, 4], np.uint8)[np.asarray(table.intents)]
    citing, cited, bits = np.repeat(table.citing, counts), table.cited, np.repeat(swapped, counts)
    pairs = zip(corpus.citing, corpus.cited, strict=True)
    masks = np.array([np.bitwise_or.reduce(bits[(citing == a) & (cited == b)], initial=0) for a, b in pairs], np.uint8)
    return write_overlay(corpus, folder, masks, contexts=swapped)


def test_an_overlay_replaces_the_corpus_intents(made, tmp_path):
    overlay = flipped(made.corpus, tmp_path / "intents")
    index = build_index(made.corpus, made.model, tmp_path / "i", CONTEXTS, overlay=overlay)
    found = recommend(index, open_query_encoder(index, device="cpu"), Passage(SAID, "method"), count=19)
    assert place(found, "p:8") < place(found, "p:7")
    overlay.corpus = "0" * 64
    with pytest.raises(UserError, match="intents of corpus 000000000000"):
        build_index(made.corpus, made.model, tmp_path / "j", CONTEXTS, overlay=overlay)


def test_without_sentences_and_heads(made, save_bert, tmp_path):
    index = build_index(made.corpus, save_bert(tmp_path / "plain"), tmp_path / "i", CPU)
    reader = open_query_encoder(index, device="cpu")
    assert index.citing_sentences is None and index.heads is None
    found = recommend(index, reader, Passage(SAID, "method"), count=19)  # the corpus's own intents are known
    assert all(one.evidence is None and one.score == one.paper_score for one in found)
    order = [("high", "low", "none").index(one.confidence) for one in found]
    assert order == sorted(order)  # a lower score is never closer
    assert "p:7" in {one.id for one in recommend(index, reader, Passage(SAID, "method", min_share=1))}
    instead = f"`citeweave search {index.folder} --sentences ID:0,1`"
    first = rf" \(first `citeweave change {index.folder} --fill --sentences`\)"
    said = f"--aspect is 'method', but plain, the model of .* has no aspect heads; .*{instead}{first}"
    refused(said, reader.encode, "a paper", "method")
    fill_vectors(index.folder, sentences=True, device="cpu")
    refused(rf"{instead}\. Or leave it out", search_paper, Index.open(index.folder), "p:7", aspect="method")
    silent = Index.open(index.folder)
    silent.cited_as = np.zeros_like(silent.cited_as)
    with pytest.raises(UserError, match="knows no intents and its model no such aspect; run `citeweave annotate`"):
        recommend(silent, reader, Passage(SAID, "method"))


def test_an_aspect_that_is_no_intent(made, save_bert, tmp_path):
    model = save_bert(tmp_path / "venues")
    save_heads(model, random_heads(("venue", "author")))
    index = build_index(made.corpus, model, tmp_path / "i", CONTEXTS)
    reader = open_query_encoder(index, device="cpu")
    assert all(one.share is None for one in recommend(index, reader, Passage(SAID, "venue")))
    with pytest.raises(UserError, match="'venue' is an aspect of the model but no intent"):
        recommend(index, reader, Passage(SAID, "venue", min_share=0.5))


BAD_DRAFTS = [
    ({"intent": "methud"}, "--intent is 'methud'; .*Did you mean 'method'"),
    ({"text": "[CIT] (?)"}, r"--cite is '\[CIT\] \(\?\)': without its citation marks nothing is left"),
    ({"intent": "method", "min_share": 2}, "min_share is 2"),
    ({"min_share": 0.5}, "give --intent"),
    ({"intent": "future"}, "no citation of .* is known to have it; it knows "),
]


@pytest.mark.parametrize(("draft", "said"), BAD_DRAFTS)
def test_bad_drafts_are_refused(cite, draft, said):
    refused(said, cite, **{"text": SAID, **draft})


SENTENCES = [
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
]


@pytest.mark.parametrize(("sentence", "left"), SENTENCES)
def test_citation_marks_go_and_all_else_stays(sentence, left):
    assert without_marks(sentence) == left


@given(st.text(max_size=300), st.lists(st.text("abcdefgh", min_size=1), min_size=1).map(" ".join))
def test_any_text_is_read_and_words_stay(text, words):
    assert len(without_marks(text)) <= len(text)
    assert without_marks(words) == without_marks(f"{words} [CIT]") == words


@pytest.mark.parametrize("piece", ["(", "[1,", "(2010 ", "\\cite[", "A", "Aa and ", "Aa et al. ", "[ "])
def test_a_hostile_sentence_takes_no_time(piece):
    assert len(without_marks(piece * 100_000)) <= MAX_SENTENCE
