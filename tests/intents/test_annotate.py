"""Annotating against a plain loop over contexts, with a classifier that counts words."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave import Intent, import_papers, synthesize
from citeweave.core.artifact import read_manifest
from citeweave.core.errors import EmptyResultError, ShardError, UserError
from citeweave.core.executor import LocalExecutor, ShardTask
from citeweave.core.progress import QUIET
from citeweave.core.publish import work_folder
from citeweave.corpus.citation_marks import find_marks
from citeweave.corpus.options import SyntheticOptions
from citeweave.graph.intent_overlay import KIND, VERSION
from citeweave.intents.annotate import annotate_intents, describe_agreement
from citeweave.intents.citances import Citance, find_own_mark, looks_foreign, read_corpus_citances, read_span
from citeweave.intents.classifier import IntentClassifier
from citeweave.intents.examples import SCICITE, Example, LabeledSet, TrainingSets
from citeweave.intents.options import AnnotateOptions, ClassifierOptions

from ..conftest import Told, content, refused

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.intents.train import train_classifier

WORDS = {"result": ("compared", "agree"), "background": ("known", "introduction"), "method": ("use", "methods")}


class WordClassifier:
    """Counts words; its labels are in another order than an overlay's columns."""

    name, hash, labels = "words", "words-1", ("result", "background", "method")

    def __init__(self, fail_at=0, seed=0):
        self.seen: list[Citance] = []
        self._fail_at, self._seed = fail_at, seed

    def predict(self, citances, *, reporter=QUIET):
        if self._fail_at and len(self.seen) + len(citances) > self._fail_at:
            raise KeyboardInterrupt
        self.seen += citances
        return np.array([self.one(citance) for citance in citances], np.float32)

    def one(self, citance):
        words = f"{citance.section} {citance.text}".lower().replace(".", " ").split()
        sway = np.random.default_rng([self._seed, len(citance.text)]).random(3) if self._seed else np.full(3, 0.125)
        counts = [sum(word in WORDS[label] for word in words) + sway[i] for i, label in enumerate(self.labels)]
        return [count / sum(counts) for count in counts]


def make_corpus(folder, links, contexts, papers=6):
    """Papers by Ann Author, citations as Semantic Scholar gives them, contexts as lines."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {"id": f"s2:{row}", "title": f"A title {row}", "year": 2000 + row, "authors": [f"Ann Author{row}"]}
        for row in range(1, papers + 1)
    ]
    whole = [{"isinfluential": False, "contexts": None, "intents": None, "citationid": 1, **link} for link in links]
    for name, records in (("papers", lines), ("citations", whole), ("contexts", contexts)):
        if records:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return import_papers(sorted(folder.glob("*.jsonl")), folder / "corpus").corpus


def link(citing, cited, **more):
    return {"citingcorpusid": citing, "citedcorpusid": cited, **more}


def context(citing, text, *cited, **more):
    return {"citing": f"s2:{citing}", "text": text, "cited": [f"s2:{one}" for one in cited], **more}


def brute_force(corpus, classifier, options):
    """Mask, confidences, contexts that spoke, and whether given, of every citation."""
    table, found = corpus.contexts, []
    records = [(table.citing[i], table.cited_rows(i).tolist(), corpus.context(i)) for i in range(len(table))]
    for citing, cited, own in zip(corpus.citing.tolist(), corpus.cited.tolist(), corpus.intents.tolist(), strict=True):
        best, spoke, told = [0.0, 0.0, 0.0], 0, own if options.keep_given else 0
        for writer, rows, record in records:
            if writer != citing or cited not in rows or (options.max_contexts and spoke >= options.max_contexts):
                continue
            spoke += 1
            if options.keep_given and record.intents:
                told |= int(record.intents)
                continue
            section = record.section if options.sections else ""
            row = dict(zip(classifier.labels, classifier.one(Citance(record.text, None, section)), strict=True))
            best = [max(old, row[name]) for old, name in zip(best, ("background", "method", "result"), strict=True)]
        if told:
            best = [float(bool(told & bit)) for bit in (1, 2, 4)]
        rounded = [float(np.float16(value)) for value in best]
        limit = float(np.float16(options.min_confidence))
        mask = told or sum(bit for bit, value in zip((1, 2, 4), rounded, strict=True) if value >= limit)
        found.append((mask, rounded, spoke, bool(told)))
    return found


def rows_of(overlay):
    columns = (overlay.mask, overlay.confidence, overlay.contexts, overlay.given)
    return list(zip(*(column.tolist() for column in columns), strict=True))


USE, KNOWN = "We use it [3].", "This is known [1, 2] (Author2, 2002)."
SENTENCES = [USE, KNOWN, "Others agree compared to ours.", "So we use what is known.", "Nothing to tell [7]."]
SECTIONS = ["", "Methods", "1 Introduction"]
OPTIONS = st.builds(
    AnnotateOptions,
    min_confidence=st.sampled_from([0.3, 0.5, 0.8]),
    keep_given=st.booleans(),
    sections=st.booleans(),
    max_contexts=st.integers(0, 2),
    block=st.sampled_from([7, 30, 100]),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    rng = np.random.default_rng(1)
    links = [link(a, b) for a in range(1, 5) for b in range(1, 7) if a != b]
    links[0] |= {"intents": ["methodology"], "contexts": ["It is known [2].", "We agree [2]."]}
    texts = [SENTENCES[i] for i in rng.integers(len(SENTENCES), size=60)]
    cited = [rng.integers(1, 7, size=1 + i % 2).tolist() for i in range(60)]
    more = [{"section": SECTIONS[i % 3]} for i in range(60)]
    contexts = [context(1 + i % 4, f"{texts[i]} Sentence {i}.", *cited[i], **more[i]) for i in range(60)]
    contexts.append(context(2, "Given [1].", 1, intents=["result"]))
    contexts.append(context(9, "Known of a paper that is not here [1].", 1))
    contexts.append(context(3, "Cites nobody here [1].", 99))
    return make_corpus(tmp_path_factory.mktemp("annotating"), links, contexts)


@given(OPTIONS, st.integers(0, 1000))
@settings(max_examples=20)
def test_the_same_as_a_loop_over_citations(corpus, options, seed):
    with TemporaryDirectory() as place:
        classifier = WordClassifier(seed=seed)
        overlay = annotate_intents(corpus, Path(place) / "intents", classifier, options)
        expected = brute_force(corpus, classifier, options)
        found = rows_of(overlay)
        assert [(row[0], *row[2:]) for row in found] == [(row[0], *row[2:]) for row in expected]
        one, other = ([row[1] for row in rows] for rows in (found, expected))
        np.testing.assert_allclose(one, other, rtol=2e-3)  # a step of float16
        counts = overlay.manifest.facts["citations"]
        assert counts["with_intent"] == sum(row[0] > 0 for row in expected)
        assert counts["with_contexts"] == sum(row[2] > 0 for row in expected)
        assert counts["given"] == sum(row[3] for row in expected)


def test_interruption_and_blocks_give_the_same_bytes(corpus, tmp_path):
    whole = annotate_intents(corpus, tmp_path / "whole", WordClassifier(), AnnotateOptions(block=1000))
    with pytest.raises(KeyboardInterrupt):
        annotate_intents(corpus, tmp_path / "cut", WordClassifier(fail_at=40), AnnotateOptions(block=16))
    assert not (tmp_path / "cut").exists()
    rest = WordClassifier()
    again = annotate_intents(corpus, tmp_path / "cut", rest, AnnotateOptions(block=16))
    assert 0 < len(rest.seen) <= 40  # what the first run had read is not read again
    assert again.hash == whole.hash
    assert again.manifest.facts == whole.manifest.facts
    assert not any(path.name.startswith(".") for path in again.folder.iterdir())
    idle = WordClassifier(fail_at=1)
    assert annotate_intents(corpus, tmp_path / "cut", idle, AnnotateOptions(block=3)).hash == whole.hash
    with pytest.raises(UserError, match="made from other inputs or options"):
        annotate_intents(corpus, tmp_path / "cut", WordClassifier(), AnnotateOptions(min_confidence=0.7))


def test_intents_of_the_source_stay_and_all_is_counted(corpus, tmp_path):
    reader = WordClassifier()
    overlay = annotate_intents(corpus, tmp_path / "kept", reader)
    place = {(int(a), int(b)): i for i, (a, b) in enumerate(zip(corpus.citing, corpus.cited, strict=True))}
    by_link = place[corpus.row("s2:1"), corpus.row("s2:2")]
    by_context = place[corpus.row("s2:2"), corpus.row("s2:1")]
    assert [Intent(int(overlay.mask[at])) for at in (by_link, by_context)] == [Intent.METHOD, Intent.RESULT]
    assert overlay.given[[by_link, by_context]].all() and overlay.given.sum() == 2
    assert overlay.confidence[by_link].tolist() == [0, 1, 0]
    assert "Given [1]." not in {citance.text for citance in reader.seen}
    assert "Cites nobody here [1]." not in {citance.text for citance in reader.seen}
    number = list(corpus.contexts.texts).index("It is known [2].")
    assert overlay.context_mask[number] == Intent.BACKGROUND  # of the sentence alone the source said nothing
    other = annotate_intents(corpus, tmp_path / "other", reader, AnnotateOptions(keep_given=False))
    assert not other.given.any()
    assert other.mask[by_link] & Intent.BACKGROUND
    assert other.manifest.facts["agrees_with_source"]["citations"] >= 1
    only = annotate_intents(corpus, tmp_path / "only", None)
    assert only.mask.tolist() == np.where(overlay.given, overlay.mask, 0).tolist()
    facts = overlay.manifest.facts
    contexts, citations = facts["contexts"], facts["citations"]
    assert (contexts["all"], contexts["given"], contexts["cite_no_paper_of_the_corpus"]) == (65, 1, 1)
    assert contexts["annotated"] == 63
    assert contexts["without_mark"] == sum(not find_marks(text) for text in corpus.contexts.texts) > 0
    assert citations["share"] == round(citations["with_intent"] / citations["all"], 4)
    assert sum(facts["intents_per_citation"].values()) == citations["all"]
    assert sum(int(k) * n for k, n in facts["intents_per_citation"].items()) == sum(facts["intents"].values())
    assert 1 / 3 < facts["mean_confidence"] <= 1
    assert any("no recognizable citation mark" in line for line in facts["remarks"])
    assert facts == read_manifest(tmp_path / "kept", KIND, VERSION).facts


def test_nothing_to_annotate(tmp_path):
    one, use = [link(1, 2)], "We use it [1]."
    for number, (links, contexts, reader, message) in enumerate(
        (
            (one, [], WordClassifier(), r"no citing sentences.*import contexts.*specter_cl"),
            (one, [context(1, use, 3), context(50, "So [1].", 2)], WordClassifier(), "none of the 2 citing sentences"),
            ([], [context(1, use)], WordClassifier(), "no citations between its papers"),
            (one, [context(1, use, 2)], None, "gave no intents, and no classifier"),
        )
    ):
        corpus = make_corpus(tmp_path / str(number), links, contexts)
        refused(message, annotate_intents, corpus, tmp_path / "x", reader, error=EmptyResultError)
    assert not (tmp_path / "x").exists() and not work_folder(tmp_path / "x").exists()


def test_given_intents_without_a_sentence_and_odd_sentences(tmp_path):
    corpus = make_corpus(tmp_path / "bare", [link(1, 2, intents=["background"]), link(1, 3)], [])
    overlay = annotate_intents(corpus, tmp_path / "intents", WordClassifier())
    assert sorted(overlay.mask.tolist()) == [0, 1]
    remarks = " ".join(overlay.manifest.facts["remarks"])
    assert "no citation has the intent method or result" in remarks
    assert "background is the only intent" in remarks
    assert "only the intents that the source gave" in remarks
    german = "Die Methode ist bekannt und wird von vielen in der Praxis verwendet [3]."
    texts = ["Known", "use " * 2000 + "[3].", "この方法は広く使われている ［３］。", german, "¶ † ‡ ***"]
    texts.append("We use \\cite{x} and BIBREF3 as known.")
    corpus = make_corpus(tmp_path / "odd", [link(1, 2)], [context(1, text, 2) for text in texts])
    reader = WordClassifier()
    overlay = annotate_intents(corpus, tmp_path / "odd intents", reader)
    contexts = overlay.manifest.facts["contexts"]
    assert len(reader.seen) == contexts["annotated"] == len(texts)
    assert (contexts["another_language"], overlay.contexts.tolist()) == (2, [len(texts)])
    assert any("look like another language" in line for line in overlay.manifest.facts["remarks"])


def test_a_classifier_must_know_the_labels_and_give_its_numbers(corpus, tmp_path):
    reader = WordClassifier()
    reader.labels = ("background", "method")
    refused("classifier words knows background, method.*result too", annotate_intents, corpus, tmp_path / "x", reader)
    reader = WordClassifier()
    reader.one = lambda citance: [float("nan")] * 3
    refused("not finite", annotate_intents, corpus, tmp_path / "x", reader)
    for wrong in ({"min_confidence": 0.0}, {"min_confidence": 1.5}, {"block": 0}, {"max_contexts": -1}):
        refused(f"--{next(iter(wrong)).replace('_', '-')} is", AnnotateOptions, **wrong)


def test_where_the_mark_stands(tmp_path):
    text = "Unlike Otto (1999), we use it (Author2 et al., 2003; Wu, 2020), as others [3] did."
    third = context(1, text + " Third.", 3, cite_span=[0, 6])
    contexts = [context(1, text, 2), context(1, text + " Both.", 2, 3), third, context(1, "So [4].", 2, 3)]
    corpus = make_corpus(tmp_path, [link(1, 2), link(1, 3)], contexts)
    read = read_corpus_citances(corpus, np.arange(4), sections=False)
    spans = [citance.span and citance.text[slice(*citance.span)] for citance in read.citances]
    assert spans == ["Author2 et al., 2003", None, "Unlike", "[4]"]
    assert find_own_mark(text, find_marks(text), "author2", 2010) is None  # the name fits, the year does not
    for span in ([3, 3], [2, 10], [-1, 4], ["a", 2], [1], 7):
        assert read_span(json.dumps({"cite_span": span}), 9) is None


def test_languages_and_agreement():
    english = "In the work of van der Meer and de la Cruz (2010) the cells are from the mouse."
    assert not looks_foreign(english)
    assert not looks_foreign("α β γ in the cell of a mouse")
    assert looks_foreign("Cette méthode est utilisée dans les travaux de Ageev (2013) pour la recherche.")
    assert not looks_foreign("")
    same = describe_agreement(np.array([[3, 0, 0], [2, 0, 0]]))
    assert same == {"citations": 2, "share": 1.0, "chance_corrected": None}
    assert describe_agreement(np.zeros((4, 3), np.uint32))["share"] is None
    drawn = np.random.default_rng(0).multinomial(4, [0.5, 0.3, 0.2], size=20_000)
    assert abs(describe_agreement(drawn)["chance_corrected"]) < 0.02


@pytest.fixture(scope="module")
def trained(bert, tmp_path_factory):
    """The package's own kind of classifier, on a small random encoder."""
    folder = tmp_path_factory.mktemp("trained") / "classifier"
    examples = tuple(Example(Citance(f"{text} {i}"), i % 3) for i, text in enumerate(SENTENCES * 3))
    dev = tuple(Example(Citance(f"Once more: {row.citance.text}"), row.label) for row in examples)
    sets = TrainingSets(LabeledSet("scicite", SCICITE, examples), LabeledSet("scicite", SCICITE, dev))
    train_classifier(sets, folder, ClassifierOptions(base=str(bert), max_tokens=32, epochs=1, rank=2), device="cpu")
    return IntentClassifier.open(folder, device="cpu")


def test_a_trained_classifier(corpus, trained, tmp_path):
    overlay = annotate_intents(corpus, tmp_path / "intents", trained, AnnotateOptions(min_confidence=0.34))
    spoken = overlay.context_confidence[overlay.context_confidence.any(axis=1) & (corpus.contexts.intents == 0)]
    assert len(spoken) == overlay.manifest.facts["contexts"]["annotated"] == 63
    assert np.allclose(spoken.astype(np.float64).sum(axis=1), 1, atol=2e-3)
    again = annotate_intents(corpus, tmp_path / "blocks", trained, AnnotateOptions(min_confidence=0.34, block=10))
    assert np.allclose(again.confidence.astype(np.float64), overlay.confidence.astype(np.float64), atol=2e-3)
    assert overlay.manifest.facts["classifier_hash"] == trained.hash


@pytest.mark.parametrize(("save_every", "error"), [(0.0, RuntimeError), (1e9, KeyboardInterrupt)])
def test_annotating_resumes_in_the_middle_of_a_block(corpus, trained, tmp_path, save_every, error, monkeypatch):
    loaded = trained._load()
    monkeypatch.setattr(loaded, "encoder", replace(loaded.encoder, batch_tokens=100))
    inner, batches = loaded.logits, []

    def annotate(name, dies_at=-1):
        def logits(tokens, task):
            batches.append(len(tokens))
            if len(batches) == dies_at:
                raise error
            return inner(tokens, task)

        batches.clear()
        monkeypatch.setattr(loaded, "logits", logits)
        return annotate_intents(corpus, tmp_path / name, trained, AnnotateOptions(save_every=save_every))

    whole, all_batches = annotate("whole"), len(batches)
    with pytest.raises(error):
        annotate("broken", dies_at=6)
    resumed = annotate("broken")
    assert all_batches > 8 and len(batches) == all_batches - 5
    assert (resumed.hash, resumed.manifest.facts) == (whole.hash, whole.manifest.facts)


BLOCKS = AnnotateOptions(keep_given=False, block=13)


def test_an_executor_writes_the_same_bytes(corpus, trained, tmp_path):
    executor = Told()
    annotate_intents(corpus, tmp_path / "alone", trained, BLOCKS)
    overlay = annotate_intents(corpus, tmp_path / "a", trained, BLOCKS, executor=executor)
    alone = content(tmp_path / "alone")
    assert content(tmp_path / "a") == alone and overlay.confidence.any()
    assert len(executor.made) == -(-len(corpus.contexts) // 13) == 5
    assert executor.works[0].unit == "contexts" and not executor.works[0].gpu
    with pytest.raises(ShardError, match=r"annotating: 2 of .* \(0, 2; "):
        annotate_intents(corpus, tmp_path / "b", trained, BLOCKS, executor=Told(failing=(0, 2)))
    assert not (tmp_path / "b").exists()
    again = Told(failing=(2,))
    with pytest.raises(ShardError):
        annotate_intents(corpus, tmp_path / "b", trained, BLOCKS, executor=again)
    assert again.made == [0]
    annotate_intents(corpus, tmp_path / "b", trained, BLOCKS)  # the last one is read here
    assert content(tmp_path / "b") == alone


def test_blocks_in_which_nothing_is_read_are_not_sent(trained, tmp_path):
    corpus = synthesize(tmp_path / "corpus", SyntheticOptions(papers=25))
    options, executor, idle = AnnotateOptions(keep_given=False, max_contexts=1, block=1), Told(), Told()
    overlay = annotate_intents(corpus, tmp_path / "a", trained, options, executor=executor)
    assert sorted(executor.made) == np.flatnonzero(overlay.context_confidence.any(axis=1)).tolist()
    assert 0 < len(executor.made) < len(corpus.contexts)
    annotate_intents(corpus, tmp_path / "b", trained, AnnotateOptions(), executor=idle)  # the source gave them all
    assert not idle.works


def test_an_executor_refuses_other_inputs(corpus, trained, tmp_path):
    with pytest.raises(UserError, match="classifier words exists only in this process"):
        annotate_intents(corpus, tmp_path / "a", WordClassifier(), BLOCKS, executor=Told())
    executor = Told(failing=range(99))
    with pytest.raises(ShardError):
        annotate_intents(corpus, tmp_path / "a", trained, BLOCKS, executor=executor)
    work = executor.works[0]
    for change in ({"expected": "0" * 64}, {"corpus": [work.arguments["corpus"][0], "0" * 64]}):
        with pytest.raises(UserError, match="differs from the one where annotating began"):
            next(LocalExecutor().make(ShardTask(work.maker, {**work.arguments, **change}), [0]))
