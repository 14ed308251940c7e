"""Intents in a run: those of the corpus, those of an overlay of it, or found where there are none; bands of ranks.

Intents of an overlay reach the very citations they are of, whichever papers left, and none of those held out. Bands fit the
corpus, unless the user or a large pool says otherwise.
"""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from citeweave import Corpus, synthesize
from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.options import SyntheticOptions
from citeweave.evaluation.options import CorpusSuiteOptions
from citeweave.evaluation.suites.corpus_pools import held_out_rows
from citeweave.evaluation.tasks import Suite
from citeweave.graph.citations import build_graph
from citeweave.graph.intent_overlay import LABELS, IntentOverlay, IntentSource
from citeweave.intents.annotate import annotate_intents
from citeweave.mining.inputs import graph_inputs
from citeweave.pipeline import stages as pipeline_stages
from citeweave.pipeline.fit_bands import describe_bands, fit_bands
from citeweave.pipeline.recipe import load_recipe, read_recipe
from citeweave.pipeline.run_folder import RunFolder, RunOptions
from citeweave.pipeline.suites import Suites

from ..conftest import Told
from .conftest import TINY, ByWord, mined, tiny, write_beir

SMALL = ["graph.dimension=16", "mining.every_aspect=false", "training.losses.supcon.temperature=0.05"]
NAMES = ("background", "method", "result")


def run_folder(folder, options=None):
    run = RunFolder(folder, {}, options or RunOptions())
    run.open()
    return run


def stages(corpus, recipe, folder, options):
    return pipeline_stages.DataStages(run_folder(folder, options), recipe, read_recipe(recipe), original=corpus)


def made_by(found, corpus):
    return found.make(corpus, Suites(corpus, found.options))


def write_corpus(folder, papers, reasons):
    """Papers that cite each other in sentences whose first word says why."""
    folder.mkdir()
    contexts = [
        {"citing": citing, "cited": [cited], "text": f"{label} is why {citing} cites {cited}"}
        for (citing, cited), label in reasons.items()
    ]
    for name, lines in (("papers", papers), ("contexts", contexts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "citations.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in reasons))
    return import_papers(folder, folder.with_name(f"{folder.name}-corpus")).corpus


def test_an_overlay_is_mapped_to_what_is_trained_on(place, tmp_path):
    corpus, recipe = place.corpus, load_recipe("sciaspect_bands", SMALL)
    overlay = annotate_intents(corpus, tmp_path / "intents", None)
    options = RunOptions(intents=str(tmp_path / "intents"), queries=10)
    found = stages(corpus, recipe, tmp_path / "run", options)
    material = made_by(found, corpus)
    assert material.corpus.hash != corpus.hash == overlay.corpus
    graph = material.inputs.graph
    assert graph is not None and set(material.inputs.vectors) == {"graph", *(f"graph-{name}" for name in NAMES)}
    pairs = list(zip(graph.sources().tolist(), graph.cited.targets.tolist(), strict=True))
    rows = zip(corpus.citing.tolist(), corpus.cited.tolist(), corpus.intents.tolist(), strict=True)
    expected = {(citing, cited): bits for citing, cited, bits in rows}
    assert [expected[pair] for pair in pairs] == graph.intents.tolist()
    held = set(np.flatnonzero(held_out_rows(corpus, options.suite_options)).tolist())
    assert held and not held & {a for a, _ in pairs} and not held & set(material.samples.anchors.tolist())
    bands = found.run.stage_metadata("samples")["bands"]["aspects"]
    assert set(bands) == set(NAMES) and bands["method"]["written"] == {"positives": [20, 25], "far": 4000}
    # the same again makes nothing
    again = stages(corpus, recipe, tmp_path / "run", options)
    made_by(again, corpus)
    assert again.run.executed == []
    assert pipeline_stages.intents_key(options) == {"intents": overlay.hash}
    assert pipeline_stages.intents_key(RunOptions()) == {}


def test_an_overlay_of_another_corpus_is_refused(place, tmp_path):
    other = synthesize(tmp_path / "other", SyntheticOptions(papers=300, seed=5))
    annotate_intents(other, tmp_path / "intents", None)
    options = RunOptions(intents=str(tmp_path / "intents"))
    found = stages(place.corpus, load_recipe("sciaspect", SMALL), tmp_path / "run", options)
    with pytest.raises(UserError, match="an overlay fits only the corpus it was made from"):
        made_by(found, place.corpus)
    with pytest.raises(UserError, match="--classifier finds intents, but --intents corpus provides them"):
        RunOptions(intents="corpus", classifier=tmp_path)


def test_intents_are_found_where_there_are_none(place, tmp_path):
    papers = [{"id": str(n), "title": f"paper {n}", "abstract": "text"} for n in range(12)]
    reasons = {(str(a), str(b)): NAMES[(a + b) % 3] for a in range(12) for b in range(a)}
    plain = write_corpus(tmp_path / "in", papers, reasons)
    rules = read_recipe(load_recipe("sciaspect")).rules
    assert pipeline_stages.needs_classifier(rules, plain) and not pipeline_stages.needs_classifier(rules, place.corpus)
    assert not pipeline_stages.needs_classifier(read_recipe(load_recipe("sciaspect_relations")).rules, plain)
    run = run_folder(tmp_path / "run")
    folder = pipeline_stages.annotate_stage(run, plain, ByWord(*NAMES))
    assert (folder, IntentOverlay.open(folder).corpus) == (tmp_path / "run" / "intents", plain.hash)
    graph = IntentSource(str(folder)).annotate(build_graph(plain, tmp_path / "graph"), plain)
    ids = [int(name) for name in plain.ids]
    bits = [1 << ((ids[a] + ids[b]) % 3) for a, b in zip(graph.sources(), graph.cited.targets, strict=True)]
    assert graph.intents.tolist() == bits
    pipeline_stages.annotate_stage(run, plain, ByWord(*NAMES))
    assert (run.executed, run.skipped) == (["intents"], ["intents"])
    there = replace(run_folder(tmp_path / "there"), executor=Told())
    with pytest.raises(UserError, match="exists only in this process, where the workers"):
        pipeline_stages.annotate_stage(there, plain, ByWord(*NAMES))
    # a corpus that has intents, or rules that need none, are left alone
    assert pipeline_stages.find_intents(run, rules, place.corpus, place.corpus) == IntentSource()
    assert run.executed == ["intents"]


# --- leaks -------------------------------------------------------------------------------------------

PAPERS = 90
HELD_OUT = "share:0.3"
CLASSIFIER = ByWord("result", "method", "background")


def words(seed):
    """Made-up words, other ones for every paper: the audit takes texts that are alike for one."""
    letters = np.random.default_rng(seed).integers(97, 123, (9, 6))
    return " ".join("".join(map(chr, word)) for word in letters.tolist())


def reason(citing, cited, shift=0):
    return LABELS[(int(citing[1:]) + int(cited[1:]) + shift) % 3]


def citations():
    draw = np.random.default_rng(0)
    pairs = {(int(a), int(b)) for a, b in draw.integers(0, PAPERS, (PAPERS * 9, 2)) if a != b}  # some both ways
    return [(f"p{a}", f"p{b}") for a, b in sorted(pairs)]


@dataclass(frozen=True)
class Run:
    """What a run made of a corpus and an overlay of it."""

    corpus: Corpus
    audited: Corpus
    material: pipeline_stages.TrainingInputs
    suite: Suite


def run(folder, *, shift=frozenset()):
    """Mine a corpus with an overlay; the papers of `shift` give every citation another reason.

    A published suite has papers of the corpus, which leave it: rows become others.
    """
    papers = [{"id": f"p{n}", "title": words(n), "abstract": words(n + PAPERS)} for n in range(PAPERS)]
    corpus = write_corpus(folder / "in", papers, {pair: reason(*pair, pair[0] in shift) for pair in citations()})
    overlay = annotate_intents(corpus, folder / "intents", CLASSIFIER)
    beir = write_beir(folder / "beir", {corpus.ids[row]: corpus.paper(row) for row in (0, 7, 31)})
    place = {"intents": str(overlay.folder), "intent_suite": overlay.folder, "suites": {"beir": beir}}
    recipe = load_recipe("intent_spaces", ["mining.negatives.local.count=5", "mining.positives.count=5"])
    options = RunOptions(**place, held_out=HELD_OUT)
    found = pipeline_stages.DataStages(run_folder(folder / "run", options), recipe, read_recipe(recipe))
    audited = found.audit(corpus)
    suites = Suites(audited, options, QUIET, corpus)
    return Run(corpus, audited, found.make(audited, suites), suites.read("intents"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run(tmp_path_factory.mktemp("leaks"))


@pytest.fixture(scope="module")
def held(made):
    rows = np.flatnonzero(held_out_rows(made.corpus, CorpusSuiteOptions(held_out=HELD_OUT)))
    return frozenset(made.corpus.ids[row] for row in rows.tolist())


def picks(made, rule=""):
    """Aspect, anchor and pick of the positives, or of a rule's negatives."""
    found, ids = made.material.samples, list(made.material.corpus.ids)
    chosen = found.negatives if rule else found.positives
    owner = np.repeat(np.arange(len(found)), np.diff(chosen.offsets))
    rows = zip(owner.tolist(), chosen.rows.tolist(), chosen.rules.tolist(), strict=True)
    return [
        (found.names.aspects[found.aspects[sample]], ids[found.anchors[sample]], ids[row])
        for sample, row, number in rows
        if not rule or found.names.rules[number] == rule
    ]


def test_every_trained_citation_has_the_intents_of_the_same_pair(made, held):
    corpus, ids = made.material.corpus, list(made.material.corpus.ids)
    assert len(corpus) == PAPERS - 3
    edges = {(ids[a], ids[b]) for a, b in zip(corpus.citing.tolist(), corpus.cited.tolist(), strict=True)}
    assert edges == {(a, b) for a, b in citations() if a in ids and b in ids and a not in held}
    positives, negatives = picks(made), picks(made, "local")
    assert {aspect for aspect, _, _ in positives} == set(LABELS)
    assert len(positives) > 100 and len(negatives) > 100
    for picked, is_positive in ((positives, True), (negatives, False)):
        for aspect, anchor, other in picked:
            known = {pair for pair in ((anchor, other), (other, anchor)) if pair in edges}
            assert known and (aspect in {reason(*pair) for pair in known}) == is_positive


def test_what_is_evaluated_is_held_out_and_in_no_sample(made, held):
    trained = {frozenset(pair) for rule in ("", "local") for _, *pair in picks(made, rule)}
    evaluated, known = 0, set(citations())
    for task in made.suite.tasks:
        pools, names = task.pools, task.texts.ids
        for at, query in enumerate(pools.queries.tolist()):
            for place in range(int(pools.offsets[at]), int(pools.offsets[at + 1])):
                pair = names[query], names[pools.candidates[place]]
                cites = pair in known
                assert pair[0] in held and frozenset(pair) not in trained
                right = cites and reason(*pair) == task.name.removesuffix("_mixed")
                assert bool(pools.grades[place]) == right and (cites or task.name.endswith("_mixed"))
                evaluated += cites
    assert evaluated > 100


def test_why_a_held_out_paper_cites_changes_no_sample(made, held, tmp_path):
    again = run(tmp_path, shift=held & set(made.audited.ids))
    # nor is there anything of it for a classifier to read: the corpora that are trained on are one
    assert again.material.corpus.hash == made.material.corpus.hash
    old, new = made.material.samples, again.material.samples
    assert np.array_equal(old.anchors, new.anchors) and np.array_equal(old.aspects, new.aspects)
    assert np.array_equal(old.positives.rows, new.positives.rows)
    assert np.array_equal(old.negatives.rows, new.negatives.rows)
    tasks = made.suite.tasks[0], again.suite.tasks[0]
    assert not np.array_equal(tasks[0].pools.candidates, tasks[1].pools.candidates)


def test_bands_are_chosen_and_reported(ran):
    bands = ran.record["bands"]
    assert bands["how"] == "auto" and bands["written"] == {"positives": 25, "hard": 4000}
    assert bands["bands"]["positives"] < bands["bands"]["hard"] < bands["pool"] <= 300
    assert "chosen for this corpus" in bands["why"]


@pytest.mark.parametrize("how", ["share", "auto"])
def test_bands_fit_where_the_written_do_not(how, place, tmp_path):
    options = replace(place.options, bands=how)
    _, run = mined(place, tiny("scincl_wide"), tmp_path / "run", options)
    facts = run.stage_metadata("samples")["bands"]
    low, high = facts["bands"]["hard"]
    assert facts["bands"]["positives"] <= low < high < facts["pool"]
    with pytest.raises(UserError, match="band ends at rank 4,000"):
        mined(place, tiny("scincl"), tmp_path / "recipe", replace(options, bands="recipe"))


def test_bands_set_by_the_user_stay_and_variants_keep_their_ratio(place, tmp_path):
    _, run = mined(place, tiny("scincl", "mining.positives.band=20"), tmp_path / "1", place.options)
    assert run.stage_metadata("samples")["bands"]["bands"]["positives"] == 20
    far = {}
    for name in ("cocite", "cocite_25_1000"):
        _, run = mined(place, tiny(name), tmp_path / name, place.options)
        far[name] = run.stage_metadata("samples")["bands"]["bands"]["far"]
    assert far["cocite_25_1000"] == pytest.approx(far["cocite"] / 5, abs=8)
    own = tmp_path / "own.toml"
    own.write_text('[recipe]\nbase = "scincl"\n[mining.negatives.hard]\nband = 100\n[mining]\nanchors = 60\n')
    _, run = mined(place, load_recipe(str(own)), tmp_path / "own", place.options)
    assert run.stage_metadata("samples")["bands"]["bands"]["hard"] == 100
    assert "hard at rank 100 as set" in describe_bands(run.bands)


def test_only_changed_bands_are_named_as_changed(place, tmp_path):
    _, run = mined(place, tiny("scincl", "mining.negatives.hard.band=90"), tmp_path / "part", place.options)
    text = describe_bands(run.bands)
    assert "and not 25" in text and "hard at rank 90 as set" in text and "what is not set is chosen" in text
    every = ("mining.negatives.hard.band=90", "mining.positives.band=20")
    _, run = mined(place, tiny("scincl", *every), tmp_path / "all", replace(place.options, bands="auto"))
    assert run.bands["how"] == "as the recipe writes them" and "written" not in run.bands


@pytest.mark.parametrize("bands", ["fit", "recipe", "auto"])
def test_an_impossible_band_of_the_user_is_refused_by_its_key(bands, place, tmp_path):
    options = replace(place.options, bands=bands)
    with pytest.raises(UserError, match=r"rule 'hard': .* rank 9,000.* largest possible rank is 2\d\d; ") as refusal:
        mined(place, tiny("scincl", "mining.negatives.hard.band=9000"), tmp_path / "set", options)
    text = str(refusal.value)
    assert text.endswith("change or leave out --set mining.negatives.hard.band=...") and "--bands" not in text
    last = int(text.partition("possible rank is ")[2].partition(";")[0])
    mined(place, tiny("scincl", f"mining.negatives.hard.band={last}"), tmp_path / "last", options)
    own = tmp_path / "own.toml"
    own.write_text('[recipe]\nbase = "scincl"\n[mining.negatives.hard]\nband = 9000\n')
    with pytest.raises(UserError, match=r"change mining\.negatives\.hard\.band in "):
        mined(place, load_recipe(str(own), TINY), tmp_path / "own", options)


def test_large_pools_keep_the_published_ranks(place, ran):
    recipe = load_recipe("scincl", ["mining.negatives.hard.band=14", "mining.positives.band=6"])
    inputs = graph_inputs(ran.folder / "graph", recipe.table("graph"), with_vectors=True)
    small = replace(recipe, overrides=())  # as if the recipe itself wrote them
    fitted = fit_bands(small, read_recipe(small).rules, place.corpus, inputs, mode="fit")
    assert fitted.summary["how"] == "as the recipe writes them"
    assert fitted.rules == read_recipe(small).rules


def test_bands_and_samples_come_from_the_pool_that_is_given(place, tmp_path):
    pool, held = np.arange(60, 200), held_out_rows(place.corpus, CorpusSuiteOptions(held_out="share:0.1", queries=12))
    (tmp_path / "pool.txt").write_text("\n".join(place.corpus.ids.take(pool)))
    options = replace(place.options, pool=tmp_path / "pool.txt")
    samples, run = mined(place, tiny("scincl", "mining.anchors=0"), tmp_path / "run", options)
    assert run.stage_metadata("samples")["bands"]["pool"] <= len(pool)
    assert np.isin(samples.anchors, pool[~held[pool]]).all() and held[pool].any()
    assert np.isin(samples.positives.rows, pool).all() and np.isin(samples.negatives.rows, pool).all()
    with pytest.raises(UserError, match=r"--pool .*no\.txt: no such file"):
        mined(place, tiny("scincl"), tmp_path / "no", replace(options, pool=tmp_path / "no.txt"))
