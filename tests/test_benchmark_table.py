"""The table of all recipes: its bundles come back as they were, and what must not be ranked is not."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import ArtifactError, UserError
from citeweave.corpus.text import sentence_texts
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.tasks import (
    SCIDOCS_CLASSES,
    Pools,
    ProbeTask,
    RankingRule,
    RankingTask,
    SearchTask,
    Suite,
    TaskTexts,
)
from citeweave.mining.samples import Picks, SampleNames
from citeweave.training.data import make_groups
from citeweave.training.options import TrainingOptions

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.table import __main__ as command
from benchmarks.table import page, reports, running
from benchmarks.table.bundle import Bundle, Column, PackedCorpus, PackedSamples, packed, read_bundle, write_bundle
from benchmarks.table.packing import pack, unpack
from benchmarks.table.ranking import rank, sort_out, stand
from benchmarks.table.reports import RunReport, View
from benchmarks.table.splitting import record, texts_to_split
from benchmarks.table.systems import BASELINES, RAW_START, START, SYSTEMS, WEAVE
from benchmarks.table.worker import budgeted

from .conftest import refused

QUERIES = 40


def a_suite():
    ids, titles = [f"p{n}" for n in range(6)], [f"A title {n}" for n in range(6)]
    texts = TaskTexts(ids, titles, ["One. Two."] * 6, [["One.", "Two."]] * 6)
    pools = Pools.of(texts, {"p0": {"p1": 1, "p2": 0}, "p3": {"p4": 1, "p5": 0}})
    pools = dataclasses.replace(pools, sentences=[np.array([0]), None], groups=["method", "result"])
    rows = np.arange(6)
    rule = RankingRule(metrics=("map",), distance="cosine")
    labels = np.array(["a", "b", "a"], object)
    examples = (rows[:3], labels, rows[3:], labels)
    tasks = (
        RankingTask("cite", texts, pools, rule, folds=(("p0",), ("p3",))),
        SearchTask("title", texts, rows[:1], rows[1:], Pools.of(texts, {"p0": {"p1": 1}}), rule),
        ProbeTask("field", texts, "classes", *examples, SCIDOCS_CLASSES, {"f1": "f1_macro"}),
    )
    return Suite("corpus", tasks, headline=("cite.map",))


def a_bundle():
    picks = Picks(np.array([0, 1, 3]), np.array([1, 2, 3], np.int32), np.zeros(3, np.uint8), np.zeros(0, np.float32))
    anchors, aspects = np.array([0, 4], np.int32), np.zeros(2, np.uint8)
    samples = PackedSamples(SampleNames(("cited", "easy")), anchors, aspects, picks, picks, None, "key")
    papers = PackedCorpus("corpus hash", Column([f"A title {n}" for n in range(6)]), Column(["One. Two."] * 6))
    edges = (np.array([0, 3], np.int32), np.array([1, 4], np.int32))
    return Bundle("elife", papers, edges, {"corpus": a_suite()}, {"key": samples}, {"specter": {"samples": "key"}})


def test_a_bundle_comes_back(tmp_path):
    given = a_bundle()
    write_bundle(tmp_path / "elife.bundle", given)
    found = read_bundle(tmp_path / "elife.bundle")
    assert found.version == given.version and found.marks == given.marks
    assert found.samples["key"].negatives.rows.tolist() == [1, 2, 3]
    assert found.samples["key"].positives.offsets.tolist() == [0, 1, 3]
    assert found.edges[1].tolist() == [1, 4]
    tasks = found.suites["corpus"].tasks
    assert tasks[0].texts is tasks[1].texts, "texts that tasks share are read once"


def test_a_bundle_that_is_cut_off_or_changed(tmp_path):
    path = tmp_path / "elife.bundle"
    write_bundle(path, a_bundle())
    parts = unpack(path)
    pack(path, {**parts, "suites.json": parts["suites.json"].replace(b"A title 1", b"A title X")})
    refused("its suites are not those", read_bundle, path, error=ArtifactError)
    write_bundle(path, a_bundle())
    path.write_bytes(path.read_bytes()[:200])
    refused("cut off", read_bundle, path, error=ArtifactError)


def test_samples_can_be_left_out():
    given = a_bundle().samples["key"]
    found = packed(given, np.array([False, True]))
    assert found.anchors.tolist() == [4] and found.positives.rows.tolist() == [2, 3] and found.hash != given.hash


def a_run(system, seed, level, **changes):
    """A run whose values lie around a level: the same queries are hard for all."""
    drawn = np.random.default_rng([len(system), seed]).normal(0, 0.02, QUERIES)
    hard = np.linspace(-0.2, 0.2, QUERIES)
    rows = {f"q{n}": {"map": float(level + hard[n] + drawn[n])} for n in range(QUERIES)}
    outcomes = [Outcome(task, "ranking", {"map": "mean"}, rows) for task in ("cite", "cocite")]
    view = View("corpus", ["cite.map", "cocite.map"], {"cite": "mark", "cocite": "mark"}, outcomes)
    others = {"version": "v1", "papers": 100_000, "cost": {"seconds": 9.0, "steps": 5, "epochs": 0.1}}
    about = {"corpus": "elife", "system": system, "seed": seed, "views": {"corpus": view}}
    return RunReport(**{**about, **others, **changes})


def seeds(system, level, **changes):
    return [a_run(system, seed, level, **changes) for seed in range(3)]


def ranked(runs, **options):
    return rank(stand(sort_out(runs, "elife"), "corpus", resamples=500), **options)


def test_what_is_better_is_said():
    found = ranked([a_run("minilm", 0, 0.5), *seeds("specter", 0.6), *seeds("scincl", 0.4), *seeds("cocite", 0.599)])
    assert found.order[2:] == ["minilm", "scincl"] and not found.refused
    for metric in ("overall", "cite.map", "cocite.map"):
        assert found.sign("specter", "minilm", metric) == 1 and found.sign("scincl", "minilm", metric) == -1
    best = found.references["overall"]
    assert best == found.order[0] == found.best("overall")
    assert found.sign(found.order[1], best, "overall") == 0 and found.sign("minilm", best, "overall") == -1
    low, high = found.intervals["specter"]["overall"]
    assert low < found.values["specter"]["overall"] < high


NOT_RANKED = [
    (None, "seed 2 is missing"),
    ({"version": "v0"}, "made with the data version v0"),
    ({"papers": 60_000}, "a run saw 60,000 papers"),
    ({"saw": {"corpus": 7}}, "7 of the papers it was trained on"),
    ({"views": {}}, "seed 2 was not judged by corpus"),
    ({"seed": 1}, "seed 1 is there twice"),
    ({"corpus": "other"}, "seed 2 was made on other"),
]


@pytest.mark.parametrize(("third", "reason"), NOT_RANKED)
def test_what_must_not_be_ranked(third, reason):
    own = seeds("specter", 0.9)[:2]
    own += [] if third is None else [dataclasses.replace(a_run("specter", 2, 0.9), **third)]
    found = ranked([a_run("minilm", 0, 0.5), *own, *seeds("scincl", 0.4)])
    assert found.order == ["minilm", "scincl"]
    assert any(reason in each for each in found.refused["specter"]), found.refused
    assert found.values["specter"]["overall"] > 80, "it is shown all the same"
    assert not any("specter" in key for key in found.against), "nothing is claimed of it"


def test_too_few_queries_claim_nothing():
    def few(run):
        view = run.views["corpus"]
        outcomes = [dataclasses.replace(each, rows=dict(list(each.rows.items())[:4])) for each in view.outcomes]
        return dataclasses.replace(run, views={"corpus": dataclasses.replace(view, outcomes=outcomes)})

    found = ranked([few(run) for run in [a_run("minilm", 0, 0.2), *seeds("specter", 0.9)]])
    assert found.order == ["specter", "minilm"]
    assert found.sign("minilm", "specter", "cite.map") == found.sign("specter", "minilm", "cite.map") == 0


def test_a_table_without_its_start():
    with pytest.raises(UserError, match="no report of minilm"):
        ranked(seeds("specter", 0.5))
    with pytest.raises(UserError, match="no report of minilm on elife of the data version v2"):
        sort_out([a_run("minilm", 0, 0.5), *seeds("specter", 0.5, version="v2")], "elife", version="v2")


def test_all_are_compared_with_one():
    runs = [a_run("minilm", 0, 0.5), *seeds("specter", 0.6), *seeds("weave", 0.55), *seeds("scincl", 0.4)]
    found = ranked(runs, reference="weave")
    assert set(found.references.values()) == {"weave"}
    assert [found.sign(name, "weave", "overall") for name in ("specter", "minilm", "scincl")] == [1, -1, -1]
    pairs = {frozenset(key[:2]) for key in found.against if key[2] == "overall"}
    assert len(pairs) == 5, "three against the start, three against weave, and one pair is in both"
    smallest = min(lead.p for lead in found.against.values())
    assert found.against["specter", "weave", "overall"].corrected >= smallest


def test_the_mean_is_resampled_by_all_tasks_and_seeds_at_once():
    """One task gains what the other loses: the mean cannot move, whatever is drawn, and nothing may be claimed of it."""

    def run(system, seed, lead):
        rows = [{f"q{n}": {"map": 0.5 + sign * lead} for n in range(QUERIES)} for sign in (1, -1)]
        outcomes = [Outcome(task, "ranking", {"map": "mean"}, own) for task, own in zip(("a", "b"), rows, strict=True)]
        view = View("corpus", ["a.map", "b.map"], {"a": "m", "b": "m"}, outcomes)
        return RunReport("elife", system, seed, "v1", {"corpus": view}, 100_000)

    runs = [run("minilm", 0, 0.0), *(run("specter", seed, 0.1 * (seed + 1)) for seed in range(3))]
    found = rank(stand(sort_out(runs, "elife"), "corpus", resamples=300))
    low, high = found.intervals["specter"]["overall"]
    assert high - low < 1e-9 and found.sign("specter", "minilm", "overall") == 0
    assert found.sign("specter", "minilm", "a.map") == 1 and found.sign("specter", "minilm", "b.map") == -1


def complete(runs):
    """Runs that have every view of the page."""
    names = ("corpus", "csfcube", "scitldr", "corpus, l2")
    return [dataclasses.replace(run, views=dict.fromkeys(names, run.views["corpus"])) for run in runs]


def test_the_section_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "CSFCUBE_METRICS", ("cite.map", "cocite.map"))
    monkeypatch.setattr(page, "IN_MAIN", {"csfcube": {"cite.map": "C"}, "scitldr": {"cocite.map": "S"}})
    bundle = dataclasses.replace(a_bundle(), facts={"not possible here": {"aspire_ts": "no citing sentence"}})
    write_bundle(tmp_path / "elife.bundle", bundle)
    runs = [a_run("minilm", 0, 0.5), a_run("minilm, raw vectors", 0, 0.5), *seeds("specter", 0.6)]
    runs += [*seeds("scincl", 0.4)[:2], *seeds("scincl, prone", 0.45)]
    runs += [*seeds("weave", 0.7), *seeds("weave, plain", 0.3)]
    runs = [dataclasses.replace(run, version=bundle.version) for run in complete(runs)]
    for run in [*runs, *complete(seeds("cocite", 0.9, version="old"))]:
        reports.write_run(tmp_path, run)
    (tmp_path / "page.md").write_text("before\n")
    text = page.write_section(tmp_path, tmp_path / "page.md", ["elife"], resamples=200)
    assert "| 1 | weave | **" in text and "| 2 | specter |" in text
    assert "not ranked: scincl: seed 2 is missing" in text
    assert "not shown: cocite: seed 0 was made with the data version old" in text
    assert "not possible here: aspire_ts: no citing sentence" in text
    assert "weave, plain" not in text and "scincl, prone" not in text
    details = (tmp_path / "history" / "page.md").read_text()
    for name in ("specter", "weave, plain", "scincl, prone"):
        assert f"| {name} | +" in details or f"| {name} | -" in details
    written = (tmp_path / "page.md").read_text()
    assert written.startswith("before\n") and page.replace_section(written, text) == written


def test_reports_of_systems_have_names_of_their_own():
    names = {START, RAW_START, WEAVE, *SYSTEMS, *BASELINES}
    assert len({RunReport("elife", name, 0, "v1", {}).file_name for name in names}) == len(names)


def test_reports_travel_packed(tmp_path):
    run = a_run("specter", 0, 0.5)
    reports.write_run(tmp_path / "there", run)
    archive = reports.pack_runs(tmp_path / "there", "elife")
    (tmp_path / "here").mkdir()
    archive.rename(tmp_path / "here" / archive.name)
    reports.unpack_runs(tmp_path / "here", "elife")
    assert reports.is_done(tmp_path / "here", run)
    assert not reports.is_done(tmp_path / "here", dataclasses.replace(run, version="v2"))
    old = reports.write_run(tmp_path / "here", dataclasses.replace(run, version="v0"))
    reports.unpack_runs(tmp_path / "here", "elife")
    assert reports.read_run(old.read_bytes(), "it").version == "v0", "what is there stays"
    reports.unpack_runs(tmp_path / "here", "elife", version="v1")
    assert reports.is_done(tmp_path / "here", run), "unless it is of other data than the bundle"
    with pytest.raises(ArtifactError, match="no report of the table"):
        reports.read_run(json.dumps({"format": 99}).encode(), "a file")


def test_steps_follow_from_the_budget():
    groups = make_groups(range(8), [[8 + n] for n in range(8)], [[16 + n] for n in range(8)])
    options, length = budgeted(TrainingOptions(batch=4, warmup=2000), groups, 1200)
    assert (options.steps, options.warmup) == (100, 10) and length == {"steps": 100, "papers": 1200, "epochs": 50.0}


def test_sentences_end_there_as_here(monkeypatch):
    text = "Smith et al. (2010) used Fig. 2. We found p = 0.05. It is so."
    here = sentence_texts(text)
    boundaries = record(texts_to_split(["A title"], [text], [a_suite()]))
    monkeypatch.setitem(sys.modules, "sentencex", boundaries)
    assert sentence_texts(text) == here and sentence_texts("One. Two.") == ["One.", "Two."]
    refused("sentencex is not installed", sentence_texts, "This was never seen. Nobody knows.")


def test_only_the_named_systems_are_trained(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(running, "run_corpus", asked.append)
    words = f"table train {tmp_path} --corpora elife --systems weave minilm"
    monkeypatch.setattr(sys, "argv", words.split())
    command.main()
    assert [(plan.corpus, plan.systems, plan.folder) for plan in asked] == [("elife", ("weave", "minilm"), tmp_path)]
