"""The study of the texts' claims: a small one from data to page, what its audit refuses, and what its verdicts say."""

from __future__ import annotations

import dataclasses
import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import CiteweaveError
from citeweave.evaluation.metrics import Outcome
from citeweave.graph.citations import graph_from_edges
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.graph.node_vectors import embed_nodes
from citeweave.graph.options import NodeVectorOptions
from citeweave.pipeline.suites import without_references
from citeweave.training.data import make_groups

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.claims import __main__ as command
from benchmarks.claims import costly, data, pieces, verdicts
from benchmarks.claims.claims import CLAIMS, ITEMS, TEXTS, Claim
from benchmarks.claims.evaluate import options_of, with_warmup
from benchmarks.claims.plan import Machine, planned_runs
from benchmarks.claims.run import run_study
from benchmarks.claims.systems import SYSTEMS, chosen
from benchmarks.table.bundle import read_bundle
from benchmarks.table.reports import RunReport, View, read_runs

PAPERS, TOPICS, OUTSIDE = 300, 6, 40
WORDS = ["paper", "shows", "cell", "grows", "models", "learn", "data", "graphs", "citations", "find"]


def write_data(folder):
    """Papers of six topics that cite papers of their own topic, in the set and outside it."""
    draw = np.random.default_rng(0)
    (folder / "elife").mkdir(parents=True)
    topic = np.arange(PAPERS) % TOPICS
    papers, references, contexts = [], [], []
    for number in range(PAPERS):
        words = [WORDS[topic[number]], *draw.choice(WORDS, 5)]
        text = {
            "title": f"{' '.join(words)} {number}",
            "abstract": "We find that the cell grows. " + " ".join(words) + ".",
        }
        papers.append({"id": f"e:{number}", "year": 2000 + number // 30, "fields": [WORDS[topic[number]]], **text})
        older = np.flatnonzero(topic[:number] == topic[number])
        cited = [f"e:{row}" for row in draw.choice(older, min(5, len(older)), replace=False)] if len(older) else []
        cited += [f"t:an older work of topic {topic[number]} number {at}" for at in draw.integers(0, OUTSIDE, 8)]
        references.append({"citing": f"e:{number}", "cited": sorted(set(cited))})
        contexts.append({"citing": f"e:{number}", "text": "As shown before.", "cited": cited[:2]})
    files = {"papers": papers, "references": references, "contexts": contexts}
    for name, lines in files.items():
        with gzip.open(folder / "elife" / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return folder


@pytest.fixture(scope="module")
def study(bert, tmp_path_factory):
    """A study of a few systems with their reports, made by the commands."""
    folder = tmp_path_factory.mktemp("study")
    source = write_data(folder / "data")
    words = f"claims prepare --data {source} -o {folder} --corpora elife --start mlm={bert} --aligner {bert}"
    _command(f"{words} --systems specter specter_cl cite_titles oracle multitask aspire")
    run = f"claims run {folder} --corpora elife --starts mlm --device cpu --systems start specter specter_cl"
    run += " --seeds 2 --steps 3"
    _command(run)
    _command(f"{run.replace('start specter specter_cl', 'cite_titles oracle')} --seeds 1")
    return folder


def _command(words):
    before, sys.argv = sys.argv, words.split() if isinstance(words, str) else words
    try:
        command.main()
    finally:
        sys.argv = before


def test_a_study_from_data_to_page(study):
    runs = read_runs(study, "elife.mlm")
    assert sorted((run.system, run.seed) for run in runs) == sorted(
        [("start", 0), ("cite_titles", 0), ("oracle", 0)]
        + [(name, seed) for name in ("specter", "specter_cl") for seed in range(2)]
    )
    specter = next(run for run in runs if run.system == "specter")
    assert specter.views["corpus"].distance == "l2" and specter.views["corpus, cosine"].distance == "cosine"
    assert specter.cost["steps"] == 3 and 0 < specter.cost["epochs"] < 2
    cl = next(run for run in runs if run.system == "specter_cl")
    assert cl.views["corpus"].distance == "cosine" and "corpus, l2" in cl.views
    assert 0 <= specter.cost["map"]["homogeneity"] <= 1
    _command(f"claims show {study} --page {study}/docs/claims.md --resamples 200")
    text = (study / "docs" / "claims.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| specter_cl > specter |"))
    assert "(seeds 2/2; cosine " in row and "not run" not in row
    assert "| scincl > specter |" in text and "- cocite: no report of it exists" in text
    assert "- aspire: it mines samples and trains nothing" in text
    assert "- multitask: " in text and "coviews" in text.partition("- multitask: ")[2].splitlines()[0]


def test_titles_and_papers_of_suites_are_trained_on_by_their_own_rows(study):
    bundle = read_bundle(study / "elife.bundle")
    titles, labeled = bundle.texts_of("cite_titles"), bundle.texts_of("oracle")
    assert bundle.texts_of("specter") is bundle and len(bundle.derived) == 2
    samples = bundle.samples[bundle.systems["cite_titles"]["samples"]]
    assert all(titles.papers.titles.texts[row] or titles.papers.abstracts.texts[row] for row in samples.anchors)
    assert len(titles.papers) >= len(labeled.papers) > len(bundle.papers), "pools have abstracts"
    assert max(map(max, titles.edges)) < len(titles.papers)


def test_a_run_lasts_the_published_epochs(study):
    bundle = read_bundle(study / "elife.bundle")
    table = bundle.systems["specter"]
    counts = np.diff(bundle.samples[table["samples"]].positives.offsets)
    groups = make_groups(range(len(counts)), [[500 + n] * k for n, k in enumerate(counts)], [[900]] * len(counts))
    options, length = with_warmup(dataclasses.replace(options_of(table["training"], 4), warmup=2000), groups)
    assert (options.seed, options.epochs, options.steps, length["epochs"]) == (4, 2.0, 0, 2.0)
    assert options.warmup == max(1, round(0.1 * length["steps"])) and options.validation == 0


def test_kept_reports_are_enough_for_the_page(study, tmp_path):
    _command(f"claims show {study} --page {study}/again.md --resamples 200 --keep {tmp_path}/kept")
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"elife.mlm.reports", "claims.json"}
    _command(f"claims show {tmp_path}/kept --page {tmp_path}/claims.md --resamples 200")
    assert (tmp_path / "claims.md").read_text() == (study / "again.md").read_text()


def test_no_two_systems_write_the_same_report():
    names = {RunReport("elife.mlm", name, 0, "v1", {}).file_name for name in SYSTEMS}
    assert len(names) == len(SYSTEMS)


def test_what_is_done_is_not_done_again(study, capsys):
    run_study(Machine(study, "cpu", seeds=2), ["elife"], ["mlm"], ["specter"])
    assert "0 of 2 runs are missing" in capsys.readouterr().out


def test_node_vectors_that_were_made_on_another_machine_are_mined(study, bert, tmp_path):
    words = f"claims prepare --data {study}/data --work {study}/stages --corpora elife --aligner {bert}"
    words += " --systems scincl_biggraph --without edges intents"
    _command(f"{words} -o {tmp_path}/without")
    reason = read_bundle(tmp_path / "without" / "elife.bundle").facts["not possible here"]["scincl_biggraph"]
    assert reason == "left out: node vectors are trained edge by edge"
    costly.make_nodes(study, ["elife"], ["scincl_biggraph"], steps=1)
    (made,) = study.glob("elife-*.nodes")
    known = np.load(made)
    corpus = costly.learned_corpus(study, "elife")
    pool, graph = costly.pool_rows(corpus), graph_from_edges(corpus.citing, corpus.cited, len(corpus))
    assert known["vectors"].shape == (len(pool), 768) and known["epochs"].tolist() == [3, 20]
    with costly.known_nodes(made, pool):
        found = embed_nodes(graph.adjacency(), NodeVectorOptions(method="edges", dimension=768))
    np.testing.assert_array_equal(found[pool], known["vectors"])
    assert len(found) > len(pool) and not np.delete(found, pool, 0).any()
    (tmp_path / "with").mkdir()
    made.rename(tmp_path / "with" / made.name)
    _command(f"{words} -o {tmp_path}/with")
    assert read_bundle(tmp_path / "with" / "elife.bundle").systems["scincl_biggraph"]["count"] > 100


def test_intents_are_classified_into_an_overlay_of_the_corpus(study, tmp_path):
    (tmp_path / "stages").symlink_to(study / "stages")
    _command(f"claims costly {tmp_path} --corpora elife --only intents")
    corpus = costly.learned_corpus(study, "elife")
    overlay = IntentOverlay.open(costly.intents_path(tmp_path, "elife"))
    overlay.check(corpus)
    found = costly.costly_facts(tmp_path, "elife")["citations with an intent"]
    assert found == overlay.manifest.facts["citations"]["with_intent"] and not costly.costly_facts(study, "elife")


def test_links_are_held_out_and_shown(study, tmp_path):
    for path in study.glob("elife.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "stages").symlink_to(study / "stages")
    _command([*f"claims links {tmp_path} --corpora elife --methods".split(), "citations, fastrp-128"])
    (numbers,) = json.loads((tmp_path / "elife.links.json").read_text()).values()
    assert 0 < numbers["mrr"][0] <= 1
    _command(f"claims show {tmp_path} --page {tmp_path}/claims.md --resamples 50")
    assert "| elife | citations, fastrp-128 | 0." in (tmp_path / "claims.md").read_text()


def test_a_run_that_does_not_fit_is_not_begun(study, tmp_path, capsys):
    for name in ("elife.bundle", "mlm.start"):
        (tmp_path / name).write_bytes((study / name).read_bytes())
    run_study(Machine(tmp_path, "cpu", seconds=0.001), ["elife"], ["mlm"], ["specter"])
    assert capsys.readouterr().out.count("not begun: elife.mlm: specter seed") == 5
    assert not (tmp_path / "reports").exists()


def test_the_graph_is_larger_than_the_pool_and_holds_no_answer(study):
    facts = read_bundle(study / "elife.bundle").facts
    assert facts["pool"] == PAPERS and facts["nodes"] > PAPERS
    audit = facts["audit"]
    assert audit.pop("answers checked") > 10 and not any(audit.values())


def test_the_audit_finds_what_is_held_out(tmp_path):
    imported = data.import_study(write_data(tmp_path / "data"), "elife", tmp_path / "work").corpus
    suite, held = _suite(imported)
    learned = without_references(imported, held, tmp_path / "learned", why="test")
    assert data.audit_graph(imported, learned, held, suite)["answers checked"]
    some = held & (np.arange(len(held)) != np.flatnonzero(held)[0])
    leaking = without_references(imported, some, tmp_path / "leaking", why="all but one")
    with pytest.raises(CiteweaveError, match="holds what evaluation asks for"):
        data.audit_graph(imported, leaking, held, suite)


def _suite(corpus):
    from citeweave.evaluation.options import CorpusSuiteOptions
    from citeweave.evaluation.suites.corpus_pools import held_out_rows
    from citeweave.evaluation.suites.from_corpus import make_suite

    options = CorpusSuiteOptions(held_out="share:0.1")
    return make_suite(corpus, options), held_out_rows(corpus, options)


def test_copies_of_held_out_papers_do_not_cite(tmp_path):
    source = write_data(tmp_path / "data")
    imported = data.import_study(source, "elife", tmp_path / "first").corpus
    _, held = _suite(imported)
    cites = np.intersect1d(np.flatnonzero(held), imported.citing)[0]
    with gzip.open(source / "elife" / "papers.jsonl.gz", "at") as file:
        copy = {
            "id": "e:again",
            "title": imported.titles[int(cites)].upper(),
            "abstract": "Another text.",
            "year": 1990,
        }
        file.write(json.dumps(copy) + "\n")
    with gzip.open(source / "elife" / "references.jsonl.gz", "at") as file:
        file.write(json.dumps({"citing": "e:again", "cited": ["e:0", "e:1"]}) + "\n")
    again = data.import_study(source, "elife", tmp_path / "second").corpus
    row = again.rows(["e:again"])[0]
    assert row >= 0 and row not in again.citing


def test_headline_runs_come_first(study):
    bundle = read_bundle(study / "elife.bundle")
    runs = planned_runs({"elife": bundle}, ["mlm", "minilm"])
    assert [run.system for run in runs[:2]] == ["start", "start"]
    tiers = [SYSTEMS[run.system].tier for run in runs[2:]]
    assert tiers == sorted(tiers) and runs[2].start == "mlm" and all(run.estimate > 0 for run in runs)


def test_pieces_come_together(tmp_path):
    (tmp_path / "study").mkdir()
    content = np.random.default_rng(0).bytes(2500)
    (tmp_path / "study" / "elife.bundle").write_bytes(content)
    (tmp_path / "study" / "mlm.start").write_bytes(b"model")
    written = pieces.cut(tmp_path / "study", tmp_path / "pieces", size=1000)
    assert [path.parent.name for path in written] == ["0", "1", "2", "2"]
    written[1].rename(tmp_path / "later")
    found = pieces.join(tmp_path / "pieces", tmp_path / "there")
    assert found == {"elife.bundle": "2 of 3 parts are here", "mlm.start": "joined"}
    (tmp_path / "later").rename(written[1])
    pieces.join(tmp_path / "pieces", tmp_path / "there")
    assert (tmp_path / "there" / "elife.bundle").read_bytes() == content


def a_run(system, seed, level, setting="elife.mlm"):
    drawn = np.random.default_rng([len(system), seed]).normal(0, 0.02, 40)
    rows = {f"q{n}": {"map": float(level + 0.01 * n + drawn[n])} for n in range(40)}
    outcomes = [Outcome(task, "ranking", {"map": "mean"}, rows) for task in ("cite", "cocite")]
    view = View("corpus", ["cite.map", "cocite.map"], {"cite": "mark", "cocite": "mark"}, outcomes, distance="l2")
    return RunReport(setting, system, seed, "v1", {"corpus": view, "corpus, cosine": view}, 100, {"steps": 5})


def test_verdicts_come_from_the_test():
    results = {
        setting: {name: [a_run(name, seed, level, setting) for seed in range(3)] for name, level in levels.items()}
        for setting, levels in {
            "elife.mlm": {"specter": 0.4, "scincl": 0.5, "cocite": 0.4, "oracle": 0.5},
            "peerread_plus.mlm": {"specter": 0.4, "scincl": 0.5, "cocite": 0.4, "oracle": 0.3},
            "elife.minilm": {"specter": 0.6, "scincl": 0.5},
        }.items()
    }
    pairs = {
        "reproduced": ("scincl", "specter"),
        "reversed": ("specter", "scincl"),
        "inconclusive": ("cocite", "specter"),
        "contradictory": ("oracle", "specter"),
        "not run": ("ict", "specter"),
    }
    claims = [Claim("SciNCL", "a table", *pair, "80 against 70") for pair in pairs.values()]
    tests = verdicts.test_claims(results, claims, resamples=500)
    found = [verdicts.verdict([test for test in tests if test.claim == claim], "mlm") for claim in claims]
    assert found == list(pairs)
    first = tests[0]
    assert first.lead.corrected >= first.lead.p and first.lead.points == pytest.approx(10, abs=1)
    others = [dataclasses.replace(claim, text="SPECTER") for claim in claims[:1]]
    apart = verdicts.test_claims(results, [*claims, *others], resamples=500)
    assert apart[-1].lead.corrected <= first.lead.corrected, "each text is corrected by itself"


def test_claims_name_systems_and_texts_have_items():
    names = {"start", *SYSTEMS}
    assert {name for claim in CLAIMS for name in (claim.better, claim.worse)} <= names
    asked = [(claim.text, claim.better, claim.worse, claim.metric, claim.view) for claim in CLAIMS]
    assert len(set(asked)) == len(asked)
    assert set(ITEMS) == set(TEXTS) == {claim.text for claim in CLAIMS}
    assert [system.tier for system in chosen()] == sorted(system.tier for system in SYSTEMS.values())
    with pytest.raises(CiteweaveError, match="--systems"):
        chosen(["scincl, k+ 7"])
