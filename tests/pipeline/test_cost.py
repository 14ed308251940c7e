"""Estimates obey the laws of sizes and machines, and every shipped recipe has one."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave import synthesize
from citeweave.cli.options import WholeNumber
from citeweave.core.errors import UserError
from citeweave.core.progress import format_duration
from citeweave.corpus.options import SyntheticOptions
from citeweave.graph.fastrp import Panels
from citeweave.graph.options import graph_options
from citeweave.pipeline import cost_constants as constants
from citeweave.pipeline.cost import as_bytes, estimate_recipe, missing_memory, network_shape, plan_run
from citeweave.pipeline.recipe import load_recipe, shipped_recipes
from citeweave.pipeline.search_costs import estimate_search
from citeweave.pipeline.stage_costs import StageWork

from ..conftest import refused
from .conftest import mined


def estimated(recipe="scincl", papers=10**6, citations=None, *changes, machine="cpu:8", texts=None, init=""):
    sizes = constants.sizes_from_counts(papers, 10 * papers if citations is None else citations, texts=texts)
    return estimate_recipe(load_recipe(recipe, changes), sizes, constants.parse_machine(machine), init=init)


def by_name(estimate):
    return {stage.name: stage for stage in estimate.stages}


@pytest.mark.parametrize("recipe", shipped_recipes())
def test_every_shipped_recipe(recipe):
    for machine in ("laptop", "8xh200"):
        found = estimated(recipe, machine=machine)
        names = [stage.name for stage in found.stages]
        assert names[0] == "import" and len(set(names)) == len(names)
        assert all(stage.seconds(found.machine) >= 0 and stage.memory > 0 for stage in found.stages)
        assert found.seconds > 0
        assert set(constants.CONSTANTS) >= {name for stage in found.stages for name in stage.constants}
        assert json.loads(json.dumps(found.as_json()))["total"]["disk"] == found.disk


@pytest.mark.parametrize("recipe", ["scincl", "specter", "aspire_ot", "sciaspect", "cocite"])
def test_more_papers_cost_more(recipe):
    small, large = (estimated(recipe, papers, None, "training.seeds=1") for papers in (10**6, 2 * 10**6))
    for few, many in zip(small.stages, large.stages, strict=True):
        assert many.cpu >= few.cpu and many.memory >= few.memory and many.disk >= few.disk
    assert 1.7 < large.disk / small.disk < 2.1


def test_stages_grow_in_proportion_and_bands_by_the_square():
    small, large = (by_name(estimated(papers=papers)) for papers in (10**6, 2 * 10**6))
    for name in ("import", "graph", "node vectors", "samples", "token store", "training", "embedding", "index"):
        assert large[name].cpu == pytest.approx(2 * small[name].cpu, rel=0.01), name
    assert large["bands"].cpu == pytest.approx(4 * small["bands"].cpu, rel=0.02)  # ranks are kept per anchor


WHOLE = {
    # two runs of benchmarks/literature.py --memory 11GB: docs/performance.md
    "import": ((167.0, 179.0), None),
    "graph": ((63.8, 73.0), 10.2),
    "node vectors": ((1664.0,), 11.3),
}
"""Stage -> CPU seconds and GiB that were measured of 52 million papers and 470 million citations."""


def test_what_was_measured_of_52_million_papers_is_estimated_within_two_times():
    changes = ["graph.dimension=128", "graph.dtype=float16", f"graph.memory={11 << 30}"]
    sizes = dataclasses.replace(constants.sizes_from_counts(52_000_000, 470_424_860, texts=0), only_edges=True)
    found = estimate_recipe(load_recipe("scincl", changes), sizes, constants.parse_machine("cpu:2"))
    stages = by_name(found)
    for name, (seconds, gibibytes) in WHOLE.items():
        assert all(0.5 < stages[name].cpu / measured < 2 for measured in seconds), name
        assert gibibytes is None or 0.8 < stages[name].memory / 2**30 / gibibytes < 1.25, name
    assert 0.5 < stages["node vectors"].seconds(found.machine) / 1008 < 2
    # benchmarks/literature.py: pool, anchors, CPU seconds of bands and triplets
    for pool, anchors, measured in ((20_000, 20_000, 14.15), (680_967, 136_820, 961.0)):
        changes = ("graph.dimension=128", f"mining.anchors={anchors}")
        found = estimated("scincl", 52_000_000, 470_424_860, *changes, texts=pool, machine="cpu:2")
        assert 0.5 < by_name(found)["bands"].cpu / measured < 2, pool


MEASURED_SEARCH = {
    # docs/performance.md, search on two cores: disk and memory in GB, ms of a query by vector, of one by text and words
    (100_000, True, 230.0): (0.968, 1.5, (2.4, 2.8), 34.1),
    (1_000_000, False, 150.0): (2.3, 2.4, (16.8, 21.2), 97.6),
}


@pytest.mark.parametrize(("papers", "sentences", "tokens"), MEASURED_SEARCH)
def test_what_was_measured_of_search_is_estimated_within_a_third(papers, sentences, tokens):
    sizes = constants.sizes_from_counts(papers, 0, tokens=tokens)
    found = estimate_search(sizes, constants.parse_machine("cpu:2"), sentences=sentences)
    disk, memory, vector, text = MEASURED_SEARCH[papers, sentences, tokens]
    stages, queries = by_name(found), {query.name: query.seconds(found.machine) for query in found.queries}
    assert found.disk / 1e9 == pytest.approx(disk, rel=1 / 3)
    assert stages["server"].memory / 1e9 == pytest.approx(memory, rel=1 / 3)
    assert 0.75 * vector[0] < 1000 * queries["by vector or paper"] < 1.25 * vector[1]
    assert 1000 * queries["by text, vectors and words"] == pytest.approx(text, rel=1 / 3)
    assert not sentences or 1000 * queries["by 2 sentences"] == pytest.approx(25.4, rel=1 / 3)


def test_a_search_service_says_what_is_extrapolated_and_what_does_not_fit():
    small, large = (
        estimate_search(constants.sizes_from_counts(papers, 0), constants.parse_machine("laptop"))
        for papers in (10**6, 10**7)
    )
    assert not small.warnings and any(line.startswith("server needs") for line in large.warnings)
    assert "10,000,000 papers of 384 numbers are extrapolated" in str(large)
    assert "extrapolated in proportion" not in str(small)
    assert large.queries[0].cpu == pytest.approx(10 * small.queries[0].cpu)
    assert large.seconds == sum(stage.seconds(large.machine) for stage in large.stages)  # without queries
    on_gpu = estimate_search(constants.sizes_from_counts(10**6, 0), constants.parse_machine("h200"), model="bert-base")
    assert on_gpu.queries[0].cpu == 2 * small.queries[0].cpu and "tokenizing takes" in str(on_gpu)
    assert set(constants.CONSTANTS) >= on_gpu.as_json()["constants"].keys() >= {"server.memory.paper", "query.word"}


def test_memory_that_walks_need_is_named():
    found = estimated("scincl", 52_000_000, 463_000_000, "graph.dimension=128", texts=0, machine="server")
    assert by_name(found)["node vectors"].size.endswith(", --memory 14GB")
    assert "--memory" not in str(estimated(papers=10**5))


@pytest.mark.parametrize(
    ("papers", "dimension", "dtype", "memory"), [(1000, 128, "float16", 1 << 30), (9000, 768, "float32", 8 << 20)]
)
def test_panels_are_those_that_are_walked_with(papers, dimension, dtype, memory):
    options = graph_options({"dimension": dimension, "dtype": dtype, "memory": memory})
    estimate, kept = constants.plan_panel(papers, options), 16 * papers
    walked = Panels(papers, dimension, memory, np.uint16, reserved=kept, extra=np.dtype(dtype).itemsize)
    assert 0.5 < estimate.columns / walked.width < 2
    assert kept < estimate.held <= memory


def test_more_cores_are_faster_and_gpus_faster_still():
    one, eight, card, cards = (estimated(machine=name).seconds for name in ("cpu:1", "cpu:8", "h200", "8xh200"))
    assert one > 3 * eight > eight > 10 * card > 10 * cards


def test_measured_times_of_training_and_embedding():
    """684,000 triplets twice: 15.0 to 17.4 minutes were measured by rate (docs/performance.md)."""
    found = estimated("specter", 680_967, 5_000_000, "mining.anchors=136800", machine="h200")
    assert 10 < by_name(found)["training"].seconds(found.machine) / 60 < 30
    # MiniLM reads ten abstracts per second on two cores
    found = estimated(papers=1000, machine="cpu:2", init="minilm")
    assert 5 < 1000 / by_name(found)["embedding"].seconds(found.machine) < 20


def test_memory_that_does_not_fit_is_reported_with_a_way_out():
    found = estimated("scincl", 52 * 10**6, 463 * 10**6, "graph.method=prone", machine="laptop")
    assert any(line.startswith("node vectors needs") and "fastrp" in line for line in found.warnings)
    assert "does not fit: node vectors" in str(found)
    assert not estimated("scincl", 10**4, machine="server").warnings


def test_a_chain_counts_the_recipes_before_it_and_every_seed():
    assert {*("init-specter/training", "aligner-aspire_context/training", "alignment", "sentence vectors")} <= by_name(
        estimated("aspire_ts")
    ).keys()
    names = [name for name in by_name(estimated("loss_study_triplet")) if name.startswith("training")]
    assert names == ["training", "training, seed 1", "training, seed 2"]


def test_fewer_anchors_need_less_mining():
    few, many = (by_name(estimated("scincl", 10**5, 10**6, *more)) for more in (["mining.anchors=1000"], []))
    assert few["bands"].cpu == pytest.approx(many["bands"].cpu / 100)
    assert few["training"].cpu == pytest.approx(many["training"].cpu / 100, rel=0.02)


def test_start_models():
    assert network_shape("minilm") == network_shape("weave") == constants.MINILM
    assert network_shape("bert-base") == network_shape("allenai/scibert_scivocab_uncased") == constants.BERT_BASE
    assert estimated(init="minilm").seconds < estimated(init="bert-base").seconds / 3
    refused("--init is 'bertbase'.*minilm, weave, weave_small, bert-base", network_shape, "bertbase")


def test_estimates_as_text():
    alone = estimated("scincl", 1, 0, machine="cpu:1")
    assert alone.seconds < 3600 and "1 papers" in str(alone)
    # only constants of the machine are shown, and every one says where it comes from
    assert "network.gpu" not in str(estimated(machine="laptop"))
    assert "network.gpu.training" in str(estimated(machine="h200"))
    assert "from:" not in estimated().text(constants=False)
    for constant in constants.CONSTANTS.values():
        assert constant.source and constant.unit and dataclasses.astuple(constant)[0] >= 0
    assert [as_bytes(number) for number in (0, 1, 2**20, 1.5 * 2**30, 2**40)] == ["0", "1 MB", "1 MB", "1.5 GB", "1 TB"]
    times = [format_duration(seconds) for seconds in (0, 89, 91, 86_400 * 400)]
    assert times == ["under 1 s", "89 s", "1.52 min", "400.0 days"]


# --- machines ----------------------------------------------------------------------------------------


def test_machines_by_name_and_by_parts():
    for name, cores, gpus in [
        *(("laptop", 8, 0), ("cpu:1", 1, 0), ("cpu:48", 48, 0)),
        *(("h200", 16, 1), ("8xh200", 128, 8), ("2xa100", 32, 2)),
    ]:
        assert (constants.parse_machine(name).cores, constants.parse_machine(name).gpus) == (cores, gpus)
    found = constants.parse_machine("cpu:2", memory=24 * constants.GIB, gpu="l4", gpus=3)
    assert (found.cores, found.memory, found.gpus, found.gpu) == (2, 24 * constants.GIB, 3, "l4")
    assert constants.describe_this_machine().cores >= 1 and constants.describe_this_machine().memory > 2**28
    # a GPU counts by its peak
    assert [constants.parse_machine(name).gpu_speed for name in ("h200", "8xh200")] == [1, 8]
    assert 0.3 < constants.parse_machine("a100").gpu_speed < 0.33
    assert constants.parse_machine("8xh200", gpus=0).gpu_speed == 0
    # bandwidth ends
    two, eight, many = (constants.Machine("m", cores, 1.0).bandwidth for cores in (2, 8, 1000))
    assert two < eight < many <= 1e12


def test_unknown_machines_are_refused():
    for name in ("", "latop", "cpu:0", "cpu:-1", "cpu:x", "0xh200", "8xb200", "cpu", "8x"):
        with pytest.raises(UserError) as caught:
            constants.parse_machine(name)
        assert all(known in str(caught.value) for known in constants.MACHINES)
    refused("at least 1 core", constants.parse_machine, "laptop", cores=0)
    refused("--gpu is 'h300'.*h200", constants.parse_machine, "laptop", gpu="h300")


def test_seconds_of_work_on_a_machine():
    def seconds(machine, **work):
        return StageWork("a", "", **work).seconds(constants.parse_machine(machine))

    # cores help only the parallel part
    assert seconds("cpu:1", cpu=100.0, parallel=0.75) == pytest.approx(100)
    assert seconds("cpu:4", cpu=100.0, parallel=0.75) == pytest.approx(25 + 75 / 4)
    assert seconds("cpu:9999", cpu=100.0, parallel=0.75) > 25
    # gathers are bound by memory
    assert seconds("cpu:1000", cpu=1.0, moved=1e12) == pytest.approx(
        1e12 / constants.parse_machine("cpu:1000").bandwidth
    )
    # a GPU takes the place of cores where it can
    assert seconds("h200", cpu=100.0, on_gpu=4.0) == pytest.approx(4)
    assert seconds("8xh200", cpu=100.0, on_gpu=4.0) == pytest.approx(0.5)
    assert seconds("laptop", cpu=100.0, on_gpu=4.0) > 4
    assert seconds("8xh200", cpu=100.0, parallel=0.0) == pytest.approx(100)
    assert seconds("8xh200", cpu=100.0, on_gpu=4.0, gpus=1) == pytest.approx(4)


def test_memory_that_a_machine_does_not_have():
    work = StageWork("a", "", memory=20 * constants.GIB, on_gpu=1.0, gpu_memory=100e9)
    assert not missing_memory(StageWork("a", "", memory=16 * constants.GIB), constants.parse_machine("laptop"))
    assert missing_memory(work, constants.parse_machine("laptop")) == "20 GB of memory, and the machine has 16 GB"
    card = constants.Machine("m", 8, 64 * constants.GIB, 1, "l4")
    assert missing_memory(work, card).startswith("93 GB of GPU memory, and a l4")
    assert not missing_memory(work, constants.parse_machine("h200"))


# --- sizes -------------------------------------------------------------------------------------------


@given(st.integers(1, 10**12))
def test_every_whole_number_is_read(number):
    assert WholeNumber().parse(str(number), "--papers") == WholeNumber().parse(f"{number:_}", "--papers") == number


def test_ways_to_write_a_count():
    for text, number in [("52e6", 52e6), ("5.2e7", 52e6), ("52M", 52e6), ("1.5k", 1500), ("1_000", 1000), ("2B", 2e9)]:
        assert WholeNumber().parse(text, "--papers") == number
    assert WholeNumber(0).parse("0", "--citations") == 0
    for text in ["", "-5", "0", "1.5", "2e-3", "nan", "inf", "many", "1e99", "5MM", "0x10", "._", "1e6.5"]:
        with pytest.raises(UserError, match="--papers is"):
            WholeNumber().parse(text, "--papers")


def test_impossible_sizes():
    for citations, more, message in [
        (5, {"texts": 11}, "--texts is 11"),
        (91, {}, "at most 90"),
        (5, {"tokens": 1}, "--tokens is 1"),
    ]:
        refused(message, constants.sizes_from_counts, 10, citations, **more)


def test_a_corpus_is_counted(tmp_path):
    corpus = synthesize(tmp_path / "corpus", SyntheticOptions(papers=300))
    sizes = constants.sizes_from_corpus(corpus)
    assert (sizes.papers, sizes.citations, sizes.contexts) == (300, len(corpus.citing), len(corpus.contexts))
    assert sizes.texts == sum(bool(corpus.titles[row] and corpus.abstracts[row]) for row in range(300))
    citing, cited = np.asarray(corpus.citing), np.asarray(corpus.cited)
    lists = [set(cited[citing == row].tolist()) for row in range(300)]
    pairs = sum(len(references) for row in range(300) for references in lists if row in references)
    assert sizes.paths_of("cocited") == pytest.approx(pairs / 300)
    assert 40 < sizes.tokens < 200


def test_pairs_of_large_batches_are_counted_by_the_relatives_that_papers_have(place, tmp_path):
    samples, _ = mined(place, load_recipe("weave"), tmp_path / "mined", place.options)
    pairs = int(samples.positives.offsets[-1])
    plan = plan_run(
        load_recipe("weave", ["training.epochs=1", "training.batch=1"]),
        place.corpus.folder,
        tmp_path / "run",
        place.options,
    )
    model = next(stage for stage in plan.stages if stage.name == "model")
    steps, texts = (int(model.size.replace(",", "").split()[at]) for at in (2, 7))
    assert pairs / 3 < steps < 3 * pairs and texts == 2 * steps


def test_a_plan_lists_the_teachers_and_refuses_unknown_ones(tmp_path):
    corpus = synthesize(tmp_path / "corpus", SyntheticOptions(papers=60))
    name = "training.losses.similarity.teacher="

    def plan(teacher):
        return plan_run(load_recipe("weave_taught", [name + teacher]), corpus.folder, tmp_path / "run")

    stages = {stage.name: stage for stage in plan("weave,minilm").stages}
    assert "read by weave" in stages["teacher"].size and "read by minilm" in stages["teacher-1"].size
    assert stages["teacher"].seconds > 0 and "groups" in stages["model"].size
    refused("similarity.teacher is empty", plan, "")
    refused("the teacher of training.losses.similarity: the encoder 'weav'", plan, "weav,minilm")
