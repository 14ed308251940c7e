"""Recommending what to cite: the formula against a plain loop, intents, drafts, and sentences that say nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citeweave.core.artifact import new_artifact
from citeweave.core.errors import UserError
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.aspects import save_heads
from citeweave.graph import intent_overlay
from citeweave.graph.intent_overlay import IntentOverlay, OverlayWriter, confidence_from_mask
from citeweave.search.build import IndexOptions, build_index
from citeweave.search.cite import DRAFT, GAIN, INTENTS, OTHER_INTENT, Draft, DraftScores, recommend
from citeweave.search.index import Index
from citeweave.search.index_model import open_query_encoder

from .conftest import random_heads

SAID = "we find how models learn from data (?)"


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
    table, scores = index.segments[0].citing_sentences, {}
    for row in range(len(index)):
        p = cosine(index.take(np.array([row]), intent)[0], query)
        best = p
        for paper, at, mask in zip(table.paper, table.sentence, table.intents, strict=True):
            if paper == row:
                less = OTHER_INTENT if intent and not mask & INTENTS[intent] else 0
                best = max(best, cosine(np.asarray(table.matrix[at], np.float32), sentence) - less)
        scores[index.id(row)] = p + GAIN * (best - p)
    return scores


@pytest.mark.parametrize(("intent", "context"), [("", ""), ("method", ""), ("result", "graphs of the cell")])
def test_scores_are_the_formula(made, intent, context):
    found = recommend(made.index, made.reader, Draft(SAID, intent, context), count=100)
    wanted = expected(made, "we find how models learn from data", intent, context)
    assert len(found) == len(wanted)
    for one in found:
        assert one.hit.score == pytest.approx(wanted[one.hit.id], abs=2e-5)
    scores = [one.hit.score for one in found]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("intent", ["", "method"])
def test_bounds_leave_out_nothing(made, intent, monkeypatch):
    """Papers that are left out by their bounds would not have been among the best."""
    left_out, likely = [], DraftScores.candidates
    for sentence in ("cell grows", SAID, "graphs of citations", "models"):
        draft = Draft(sentence, intent)
        with monkeypatch.context() as patch:
            patch.setattr(DraftScores, "candidates", lambda self, counted, count: np.flatnonzero(counted))
            every = recommend(made.index, made.reader, draft, count=19)
        monkeypatch.setattr(
            DraftScores,
            "candidates",
            lambda *given: left_out.append(int(given[1].sum()) - len(likely(*given))) or likely(*given),
        )
        for count in (1, 3, 19):
            assert recommend(made.index, made.reader, draft, count=count) == every[:count]
        monkeypatch.undo()
    assert sum(left_out) > 50


def test_a_draft_about_the_sentence_itself_changes_nothing(made):
    """Heads have a bias: a vector of another length would lie elsewhere in their spaces."""
    for intent in ("", "method"):
        plain, turned = (
            {one.hit.id: one.hit.score for one in recommend(made.index, made.reader, draft, count=100)}
            for draft in (Draft(SAID, intent), Draft(SAID, intent, "we find how models learn from data"))
        )
        assert turned == pytest.approx(plain, abs=1e-5)


def place(found, paper: str) -> int:
    return [one.hit.id for one in found].index(paper)


def test_the_wanted_intent_comes_first(made):
    """p:7 and p:8 have one text and are cited in one sentence, one as a method, the other as background."""
    method = recommend(made.index, made.reader, Draft(SAID, "method"), count=19)
    background = recommend(made.index, made.reader, Draft(SAID, "background"), count=19)
    assert place(method, "p:7") < place(method, "p:8") and place(background, "p:8") < place(background, "p:7")
    first = method[place(method, "p:7")]
    assert first.share == 1 and first.evidence.citing == "p:0" and first.evidence.intents == ("method",)
    assert first.evidence.text.endswith("[CIT]") and first.evidence.score == pytest.approx(1, abs=1e-3)
    assert method[place(method, "p:8")].share == 0
    assert {one.hit.id for one in recommend(made.index, made.reader, Draft(SAID, "method", min_share=0.5))} == {"p:7"}


def flipped(corpus: Corpus, folder: Path) -> IntentOverlay:
    """Other intents than the corpus has: method where it says background and the other way round."""
    swap = np.array([0, 2, 1, 0, 4], np.uint8)
    table, counts = corpus.contexts, np.diff(corpus.contexts.cited_offsets)
    told = swap[np.asarray(table.intents)]
    citing, cited, bits = np.repeat(table.citing, counts), table.cited, np.repeat(told, counts)
    masks = np.array(
        [
            np.bitwise_or.reduce(bits[(citing == a) & (cited == b)], initial=0)
            for a, b in zip(corpus.citing, corpus.cited, strict=True)
        ],
        np.uint8,
    )
    with new_artifact(folder, intent_overlay.KIND, intent_overlay.VERSION, {"flipped": corpus.hash}) as artifact:
        writer = OverlayWriter(artifact)
        writer.append_contexts(told, confidence_from_mask(told))
        writer.close()
        writer.write_citations(masks, confidence_from_mask(masks), np.ones(len(masks)), np.zeros(len(masks), bool))
        artifact.facts |= {"corpus": corpus.hash, "least": 0.5}
        artifact.facts |= {"citations": {"all": len(masks)}, "contexts": {"all": len(told)}}
        artifact.finish()
    return IntentOverlay.open(folder)


def test_an_overlay_replaces_the_corpus_intents(made, tmp_path):
    overlay = flipped(made.corpus, tmp_path / "intents")
    options = IndexOptions(contexts=10, device="cpu")
    index = build_index(made.corpus, made.model, tmp_path / "i", options, overlay=overlay)
    found = recommend(index, open_query_encoder(index, device="cpu"), Draft(SAID, "method"), count=19)
    assert place(found, "p:8") < place(found, "p:7")
    overlay.corpus = "0" * 64
    with pytest.raises(UserError, match="intents of corpus 000000000000"):
        build_index(made.corpus, made.model, tmp_path / "j", options, overlay=overlay)


def test_without_sentences_and_heads(made, save_bert, tmp_path):
    plain = save_bert(tmp_path / "plain")
    index = build_index(made.corpus, plain, tmp_path / "i", IndexOptions(device="cpu"))
    reader = open_query_encoder(index, device="cpu")
    assert index.segments[0].citing_sentences is None and index.heads is None
    found = recommend(index, reader, Draft(SAID, "method"), count=19)  # the corpus's own intents are known
    assert all(one.evidence is None and one.hit.score == one.paper_score for one in found)
    assert "p:7" in {one.hit.id for one in recommend(index, reader, Draft(SAID, "method", min_share=1))}
    with pytest.raises(UserError, match="--aspect is 'method', but plain, the model of .* has no aspect heads"):
        reader.encode("a paper", "method")
    silent = Index.open(index.folder)
    silent.segments[0].cited_as = np.zeros_like(silent.segments[0].cited_as)
    with pytest.raises(UserError, match="knows no intents and its model no such aspect; run `citeweave annotate`"):
        recommend(silent, reader, Draft(SAID, "method"))


def test_an_aspect_that_is_no_intent(made, save_bert, tmp_path):
    model = save_bert(tmp_path / "venues")
    save_heads(model, random_heads(("venue", "author")))
    index = build_index(made.corpus, model, tmp_path / "i", IndexOptions(contexts=10, device="cpu"))
    reader = open_query_encoder(index, device="cpu")
    assert all(one.share is None for one in recommend(index, reader, Draft(SAID, "venue")))
    with pytest.raises(UserError, match="'venue' is an aspect of the model but no intent"):
        recommend(index, reader, Draft(SAID, "venue", min_share=0.5))


def test_mistakes(made):
    ask = lambda **draft: recommend(made.index, made.reader, Draft(**draft))  # noqa: E731
    with pytest.raises(UserError, match="--intent is 'methud'; .*Did you mean 'method'"):
        ask(sentence=SAID, intent="methud")
    with pytest.raises(UserError, match=r"--cite is '\[CIT\] \(\?\)': without its citation marks nothing is left"):
        ask(sentence="[CIT] (?)")
    with pytest.raises(UserError, match="--min-share is 2"):
        ask(sentence=SAID, intent="method", min_share=2)
    with pytest.raises(UserError, match="give --intent"):
        ask(sentence=SAID, min_share=0.5)


def test_an_intent_that_no_citation_has_is_refused(made):
    with pytest.raises(UserError, match="no citation of .* is known to have it; it knows "):
        recommend(made.index, made.reader, Draft(SAID, intent="future"))
