"""Whole recipes on a small made-up literature with a tiny start model: every shipped one runs, and runs once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from citeweave import Corpus, Samples, synthesize
from citeweave.corpus.synthetic.literature import Synthetic
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.encoder import load_encoder
from citeweave.errors import UserError
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.judging.encoded import Encoded
from citeweave.evaluation.suites.corpus import CorpusSuiteOptions, held_out_rows, training_graph
from citeweave.graph.citations import build_graph
from citeweave.pipeline.data_stages import DataStages
from citeweave.pipeline.fitting_bands import fit_bands
from citeweave.pipeline.narrowing import Narrowed, needed_rows
from citeweave.pipeline.options import RunOptions
from citeweave.pipeline.planning import picks_of, plan_run, triplets_of
from citeweave.pipeline.run import RunResult, identity_of, prepare, run_recipe
from citeweave.pipeline.run_folder import RunFolder
from citeweave.pipeline.starting import with_start
from citeweave.pipeline.suites import Suites
from citeweave.pipeline.sweep import Over, parse_over, sweep_recipe
from citeweave.pipeline.training_corpus import without_references
from citeweave.progress import QUIET
from citeweave.recipe import Recipe, load_recipe, read_recipe, shipped_recipes

TRAINING = [name for name in shipped_recipes() if load_recipe(name).table("training")]
TINY = [
    "training.steps=2",
    "training.batch=4",
    "training.warmup=0",
    "training.validation=0.02",
    "encoder.max_tokens=24",
    "graph.dimension=16",
    "graph.edges.epochs=1",
    "mining.anchors=60",
]


@dataclass(frozen=True)
class Place:
    """What the runs share."""

    folder: Path
    corpus: Corpus
    options: RunOptions


@pytest.fixture(scope="session")
def place(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("pipeline")
    corpus = synthesize(folder / "corpus", Synthetic(papers=300))
    draw = np.random.default_rng(0)
    for name in ("coviews", "coreads"):
        pairs = [(row, int(other)) for row in range(len(corpus)) for other in draw.integers(0, len(corpus), 6)]
        lines = [f"{corpus.ids[row]}\t{corpus.ids[other]}\t{draw.integers(1, 9)}" for row, other in pairs]
        (folder / f"{name}.tsv").write_text("\n".join(lines))
    options = RunOptions(
        init=str(bert), tasks=("cite",), seeds=1, queries=12, device="cpu", resamples=100, shared=folder / "shared"
    )
    return Place(folder, corpus, options)


def tiny(name: str, *more: str) -> Recipe:
    """A recipe made small; overrides that a mixture does not know are left out."""
    mixture = "tasks" in load_recipe(name).table("mining")
    return load_recipe(name, [*(entry for entry in TINY if not (mixture and entry.startswith("mining"))), *more])


def options_for(place: Place, recipe: Recipe) -> RunOptions:
    named = [name for name in ("coviews", "coreads") if f"'{name}'" in str(recipe.tables)]
    aligner = place.options.init if recipe.table("alignment") else ""
    return replace(place.options, tables={name: place.folder / f"{name}.tsv" for name in named}, aligner=aligner)


def mined(place: Place, recipe: Recipe, output: Path, options: RunOptions) -> tuple[Samples, RunFolder]:
    """The stages before training."""
    recipe, read = prepare(recipe, options)
    run = RunFolder(output, identity_of(recipe, place.corpus, options), QUIET, options.shared)
    run.open()
    stages = DataStages(run, recipe, read, options, QUIET)
    return stages.make(place.corpus, Suites(place.corpus, options)).samples, run


@pytest.fixture(scope="session")
def long_bert(save_bert: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reads some sentences of an abstract behind its title."""
    return save_bert(tmp_path_factory.mktemp("models") / "long-bert", length=200)


@pytest.mark.parametrize("name", TRAINING)
def test_every_recipe_runs(name: str, place: Place, bert: Path, long_bert: Path, tmp_path: Path) -> None:
    recipe = tiny(name)
    read = read_recipe(recipe)
    assert read.training is not None
    if read.training.reads_sentences:
        bert, recipe = long_bert, tiny(name, f"encoder.init={long_bert}", "encoder.max_tokens=200")
    elif read.encoder.init.startswith("recipe:"):
        recipe = tiny(name, f"encoder.init={bert}")  # chains run in tests of their own
    options = replace(options_for(place, recipe), init=str(bert))
    result = run_recipe(recipe, place.corpus.folder, tmp_path / "run", options)
    assert [path.name for path in result.models] == ["model"]
    assert set(result.reports) == set(result.start) == {"corpus"}
    assert "cite.map" in result.reports["corpus"][0].metrics
    assert load_recipe(str(tmp_path / "run" / "recipe.toml")).tables == result.recipe.tables
    assert "| start |" in (tmp_path / "run" / "comparison.md").read_text()
    before, after = (load_file(folder / "model.safetensors") for folder in (bert, result.models[0]))
    moved = any((after[key] != before[key]).any() for key in after if key in before)
    kept = json.loads((result.models[0] / "manifest.json").read_text())["facts"]["kept step"]
    assert moved == (kept > 0), "it has learned nothing"


@pytest.fixture(scope="session")
def ran(place: Place) -> RunResult:
    return run_recipe(tiny("scincl"), place.corpus.folder, place.folder / "ran", replace(place.options, shared=None))


def test_the_same_run_again_makes_nothing(place: Place, ran: RunResult) -> None:
    assert set(ran.made) == {"corpus", "graph", "samples", "model", "report-start/corpus", "report/corpus"}
    before = {path: path.stat().st_mtime_ns for path in ran.folder.rglob("manifest.json")}
    again = run_recipe(tiny("scincl"), place.corpus.folder, ran.folder, replace(place.options, shared=None))
    assert again.made == () and set(again.skipped) == set(ran.made)
    assert {path: path.stat().st_mtime_ns for path in ran.folder.rglob("manifest.json")} == before
    assert again.record["metrics"] == ran.record["metrics"]


def test_a_moved_run_makes_what_is_missing(place: Place, ran: RunResult, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(ran.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "report")
    result = run_recipe(tiny("scincl"), place.corpus.folder, tmp_path / "run", replace(place.options, shared=None))
    assert result.made == ("report/corpus",)
    more = replace(place.options, shared=None, seeds=2)
    result = run_recipe(tiny("scincl"), place.corpus.folder, tmp_path / "run", more)
    assert result.made == ("model-1", "report-1/corpus")
    assert len(result.reports["corpus"]) == 2


def test_another_run_in_the_folder_is_refused(place: Place, ran: RunResult, tmp_path: Path) -> None:
    other = tiny("scincl", "training.learning_rate=1e-3")
    with pytest.raises(UserError, match="holds another run .recipe.training.learning_rate is 2e-05 there and 0.001"):
        run_recipe(other, place.corpus.folder, ran.folder, replace(place.options, shared=None))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is no run of citeweave"):
        run_recipe(other, place.corpus.folder, tmp_path, place.options)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        run_recipe(other, place.corpus.folder, tmp_path / "run", place.options)


def test_bands_are_chosen_and_said(place: Place, ran: RunResult) -> None:
    bands = ran.record["bands"]
    assert bands["how"] == "auto"
    assert bands["written"] == {"positives": 25, "hard": 4000}
    assert bands["bands"]["positives"] < bands["bands"]["hard"] < bands["pool"] <= 300
    assert "chosen for this corpus" in bands["why"]


@pytest.mark.parametrize("how", ["share", "auto"])
def test_bands_fit_where_the_written_do_not(how: str, place: Place, tmp_path: Path) -> None:
    options = replace(place.options, bands=how)
    _, run = mined(place, tiny("scincl_wide"), tmp_path / "run", options)
    facts = run.facts("samples")["bands"]
    low, high = facts["bands"]["hard"]
    assert facts["bands"]["positives"] <= low < high < facts["pool"]
    with pytest.raises(UserError, match="band ends at rank 4,000"):
        mined(place, tiny("scincl"), tmp_path / "recipe", replace(options, bands="recipe"))


def test_bands_set_by_the_user_stay_and_variants_keep_their_ratio(place: Place, tmp_path: Path) -> None:
    _, run = mined(place, tiny("scincl", "mining.positives.band=20"), tmp_path / "1", place.options)
    assert run.facts("samples")["bands"]["bands"]["positives"] == 20
    far = {}
    for name in ("cocite", "cocite_25_1000"):
        _, run = mined(place, tiny(name), tmp_path / name, place.options)
        far[name] = run.facts("samples")["bands"]["bands"]["far"]
    assert far["cocite_25_1000"] == pytest.approx(far["cocite"] / 5, abs=8)
    own = tmp_path / "own.toml"
    own.write_text('[recipe]\nbase = "scincl"\n[mining.negatives.hard]\nband = 100\n[mining]\nanchors = 60\n')
    _, run = mined(place, load_recipe(str(own)), tmp_path / "own", place.options)
    assert run.facts("samples")["bands"]["bands"]["hard"] == 100


def test_large_pools_keep_the_published_ranks(place: Place, ran: RunResult) -> None:
    from citeweave.mining.gathering import graph_inputs

    recipe = load_recipe("scincl", ["mining.negatives.hard.band=14", "mining.positives.band=6"])
    inputs = graph_inputs(ran.folder / "graph", recipe.table("graph"), with_vectors=True)
    small = replace(recipe, overrides=())  # as if the recipe itself wrote them
    fitted = fit_bands(small, read_recipe(small).rules, place.corpus, inputs, how="fit")
    assert fitted.facts["how"] == "as the recipe writes them"
    assert fitted.rules == read_recipe(small).rules


@pytest.mark.parametrize("name", ["scincl", "specter", "specter_cocite_scibert"])
def test_nothing_held_out_is_trained_on(name: str, place: Place, tmp_path: Path) -> None:
    held = held_out_rows(place.corpus, CorpusSuiteOptions())
    samples, run = mined(place, tiny(name), tmp_path / "run", place.options)
    assert not held[samples.anchors].any()
    trained = Corpus.open(run.record["stages"]["corpus"]["folder"])
    graph, wanted = build_graph(trained, tmp_path / "graph"), training_graph(place.corpus, CorpusSuiteOptions())
    assert np.array_equal(graph.cited.targets, wanted.cited.targets)
    assert np.array_equal(graph.cited.offsets, wanted.cited.offsets)
    assert not held[trained.contexts.citing[trained.contexts.citing >= 0]].any()


def test_the_corpus_without_references_keeps_all_else(place: Place, tmp_path: Path) -> None:
    held = np.arange(len(place.corpus)) % 3 == 0
    made = without_references(place.corpus, held, tmp_path / "c", why="every third")
    assert list(made.ids) == list(place.corpus.ids) and list(made.titles) == list(place.corpus.titles)
    kept = np.flatnonzero(~held[place.corpus.citing])
    assert [made.citation(n) for n in range(len(made.citing))] == [place.corpus.citation(int(n)) for n in kept]
    table = place.corpus.contexts
    kept = np.flatnonzero(~held[table.citing])
    assert [made.context(n) for n in range(len(made.contexts))] == [place.corpus.context(int(n)) for n in kept]
    assert without_references(place.corpus, held, tmp_path / "c", why="every third").hash == made.hash
    assert made.hash != place.corpus.hash
    nothing = without_references(place.corpus, np.zeros_like(held), tmp_path / "d", why="nothing")
    assert nothing.hash == place.corpus.hash


def test_a_chain_runs_its_first_recipe(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chained recipe is shipped with its published sizes, so both links are files here."""
    (tmp_path / "first.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    from citeweave.pipeline.recipe_writing import as_toml

    (tmp_path / "first.toml").write_text(as_toml(tiny("specter").tables))
    result = run_recipe(
        tiny("specter_cocite", "encoder.init=recipe:first.toml"), place.corpus.folder, tmp_path / "run", place.options
    )
    folder = Path(result.record["stages"]["init-first"]["folder"])
    assert (folder / "model" / "manifest.json").is_file()
    manifest = json.loads((result.models[0] / "manifest.json").read_text())
    assert manifest["facts"]["init"] == str(folder / "model")
    assert (
        result.start["corpus"].metrics["cite.map"]
        == json.loads((folder / "run.json").read_text())["metrics"]["trained"]["corpus"][0]["cite.map"]
    )


def test_an_aligner_can_be_another_recipe(
    place: Place, long_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from citeweave.pipeline.recipe_writing import as_toml

    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.toml").write_text(as_toml(tiny("aspire_context").tables))
    recipe = tiny(
        "aspire_ts", f"encoder.init={long_bert}", "alignment.encoder=recipe:first.toml", "encoder.max_tokens=200"
    )
    options = replace(place.options, init=str(long_bert))
    result = run_recipe(recipe, place.corpus.folder, tmp_path / "run", options)
    stages = result.record["stages"]
    aligner = load_encoder(Path(stages["aligner-first"]["folder"]) / "model", device="cpu")
    found = Samples.open(stages["aligned"]["folder"]).manifest.facts["alignment"]
    assert (found["by"], found["revision"]) == ("contexts", aligner.revision) and found["pairs"]["kept"] > 10
    with pytest.raises(UserError, match="--aligner is .*, and recipe specter aligns no sentences"):
        run_recipe(tiny("specter"), place.corpus.folder, tmp_path / "no", replace(options, aligner="minilm"))


def test_several_processes_are_refused(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="a run is one process"):
        run_recipe(tiny("specter"), place.corpus.folder, tmp_path / "run", place.options)


def test_a_circle_of_start_models_is_refused(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, other in (("a", "b"), ("b", "a")):
        text = f'[recipe]\nbase = "specter"\n[encoder]\ninit = "recipe:./{other}.toml"\n'
        (tmp_path / f"{name}.toml").write_text(text)
    with pytest.raises(UserError, match="leads in a circle: ./a.toml -> ./b.toml -> ./a.toml"):
        run_recipe(load_recipe("./a.toml"), place.corpus.folder, tmp_path / "run", place.options)


def test_the_oracle_learns_from_the_answers(place: Place, tmp_path: Path) -> None:
    samples, run = mined(place, tiny("oracle", "mining.anchors=0"), tmp_path / "run", place.options)
    assert "corpus" not in run.record["stages"]
    task = next(task for task in Suites(place.corpus, place.options).read("corpus").tasks if task.name == "cite")
    queries = set(place.corpus.rows([task.texts.ids[row] for row in task.pools.queries.tolist()]).tolist())
    assert queries <= set(samples.anchors.tolist())


def test_papers_of_a_suite_leave_the_corpus(place: Place, tmp_path: Path) -> None:
    (tmp_path / "beir").mkdir()
    papers = [place.corpus.paper(row) for row in range(5)]
    lines = [json.dumps({"_id": f"d{n}", "title": each.title, "text": each.abstract}) for n, each in enumerate(papers)]
    (tmp_path / "beir" / "corpus.jsonl").write_text("\n".join(lines))
    (tmp_path / "beir" / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "error variance"}))
    (tmp_path / "beir" / "qrels").mkdir()
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td0\t1\n")
    options = replace(place.options, suites={"beir": tmp_path / "beir"}, tasks=("cite",))
    result = run_recipe(tiny("specter"), place.corpus.folder, tmp_path / "run", options)
    assert result.record["stages"]["audited"]["facts"]["exclude"] == 5
    assert set(result.reports) == {"corpus", "beir"}
    trained = Corpus.open(result.record["stages"]["corpus"]["folder"])
    assert len(trained) == 295
    assert not set(trained.ids) & {each.id for each in papers}
    result = run_recipe(
        tiny("specter"), place.corpus.folder, tmp_path / "all", replace(options, held_out="none", tasks=())
    )
    assert set(result.reports) == {"beir"} and "corpus" not in result.record["stages"]


def test_a_ranking_can_be_watched(place: Place, tmp_path: Path) -> None:
    recipe = tiny("specter", "training.watch=cite.map", "training.check_every=1")
    result = run_recipe(recipe, place.corpus.folder, tmp_path / "run", place.options)
    assert "cite.map" in result.record["stages"]["model"]["facts"]["after"]
    assert "corpus-watched" in result.record["stages"]


def test_reading_only_what_is_asked_changes_nothing(place: Place, bert: Path, tmp_path: Path) -> None:
    suite = Suites(place.corpus, place.options).read("corpus")
    encoder = load_encoder(bert, device="cpu")
    chosen = suite.choose(["cite", "field", "title"])
    narrowed = Narrowed(encoder, chosen, cache=tmp_path / "cache", text_recipe=TextRecipe())
    tasks = [task.name for task in chosen.tasks]
    few = evaluate(narrowed, suite, tmp_path / "few", tasks=tasks)
    all_ = evaluate(Encoded(encoder), suite, tmp_path / "all", tasks=tasks)
    assert few.metrics == pytest.approx(all_.metrics)
    assert few.value["coverage"] == all_.value["coverage"]
    rows = needed_rows(suite.choose(["cite"]))
    [cite] = suite.choose(["cite"]).tasks
    assert 0 < len(rows[cite.texts.hash]) < len(cite.texts)


def test_a_start_model_that_says_how_it_pools_keeps_it(place: Place, ran: RunResult, bert: Path) -> None:
    trained = str(ran.models[0])  # a sentence-transformers folder
    assert "pooling" not in with_start(load_recipe("loss_study_angle_mean"), trained).table("encoder")
    assert with_start(load_recipe("loss_study_angle_mean"), str(bert)).table("encoder")["pooling"] == "mean"
    told = load_recipe("specter", ["encoder.pooling=mean"])
    assert with_start(told, trained).table("encoder")["pooling"] == "mean"
    assert with_start(load_recipe("specter_cocite"), trained).table("encoder")["init"] == "recipe:specter"
    assert with_start(load_recipe("specter"), "a/b", download=False).table("encoder")["init"] == "a/b"


def test_bad_options_are_told_first(place: Place, tmp_path: Path) -> None:
    folder, out = place.corpus.folder, tmp_path / "run"
    with pytest.raises(UserError, match="has no .training. table"):
        run_recipe(load_recipe("sciaspect"), folder, out, place.options)
    with pytest.raises(UserError, match="--task is 'cote'.*Did you mean 'c"):
        run_recipe(tiny("specter"), folder, out, replace(place.options, tasks=("cote",)))
    with pytest.raises(UserError, match="--suite is 'csfcub'.*Did you mean 'csfcube'"):
        run_recipe(tiny("specter"), folder, out, replace(place.options, suites={"csfcub": tmp_path}))
    with pytest.raises(UserError, match="no known name"):
        run_recipe(tiny("specter"), folder, tmp_path / "run3", replace(place.options, init="no/such/model/here"))
    assert not (tmp_path / "run3" / "samples").exists()
    with pytest.raises(UserError, match="leaves nothing to judge by"):
        RunOptions(held_out="none")
    with pytest.raises(UserError, match="--suite corpus="):
        RunOptions(suites={"corpus": tmp_path})
    with pytest.raises(UserError, match="there is no such file"):
        run_recipe(tiny("signal_table"), folder, out, replace(place.options, tables={"coviews": tmp_path / "no.tsv"}))
    with pytest.raises(UserError, match="table 'coviews', which is not given"):
        run_recipe(tiny("signal_table"), folder, tmp_path / "run2", place.options)


def test_a_plan_makes_nothing(place: Place, ran: RunResult, tmp_path: Path) -> None:
    plan = plan_run(tiny("specter"), place.corpus.folder, tmp_path / "run", place.options)
    assert not (tmp_path / "run").exists()
    names = [stage.name for stage in plan.stages]
    assert names == ["corpus", "graph", "samples", "model", "report-start/corpus", "report/corpus"]
    assert plan.seconds > 0 and plan.memory > 0
    assert "2 steps of 4 triplets" in str(plan)
    there = plan_run(tiny("scincl"), place.corpus.folder, ran.folder, replace(place.options, shared=None))
    assert all(stage.is_there for stage in there.stages)
    chained = plan_run(load_recipe("specter_cocite"), place.corpus.folder, tmp_path / "run", place.options)
    assert chained.stages[0].name == "init-specter"
    rules = read_recipe(load_recipe("specter")).rules
    assert (picks_of(rules), triplets_of(rules)) == (10, 5)


def test_a_sweep_shares_stages_and_draws(place: Place, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'citeweave[plots]'")
    over = parse_over("mining.positives.band=6,20")
    small = [entry for entry in TINY if not entry.startswith("mining.positives")]
    arguments = ("scincl", over, place.corpus.folder, tmp_path / "sweep", replace(place.options, shared=None))
    result = sweep_recipe(*arguments, overrides=small)
    assert [run.record["bands"]["bands"]["positives"] for run in result.runs] == [6, 20]
    graphs = {run.record["stages"]["graph"]["folder"] for run in result.runs}
    assert [run.folder.name for run in result.runs] == ["band-6", "band-20"]
    assert len(graphs) == 1 and "graph" in result.runs[1].skipped and "samples" in result.runs[1].made
    assert result.values["corpus.cite.map"].shape == (2, 3)
    found = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert found["values"] == ["6", "20"] and len(found["metrics"]["corpus.cite.map"]) == 2
    assert {path.suffix for path in result.pictures} == {".png", ".svg"} and all(
        path.is_file() for path in result.pictures
    )
    again = sweep_recipe(*arguments, overrides=small)
    assert all(not run.made for run in again.runs)


@pytest.mark.parametrize("text", ["a.b", "ab=1,2", "a.b=1,,2", "a.b=1,1", "a.b="])
def test_what_is_swept_must_be_clear(text: str) -> None:
    with pytest.raises(UserError, match="--over is"):
        parse_over(text)


def test_values_of_a_sweep() -> None:
    assert Over("a.b", ("1%", "5%")).numbers == [1.0, 5.0]
    assert Over("a.b", ("cls", "mean")).numbers is None
