"""Bundles: what is trained from one is what is trained from the corpus; damaged ones are refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import ArtifactError
from citeweave.training.bundle import make_bundle, read_data, train_bundle
from citeweave.training.load_data import DataSources
from citeweave.training.options import EncoderOptions, TrainingOptions, TrainingPlan
from citeweave.training.train import train_encoder

from .conftest import Literature


@pytest.fixture(scope="module")
def plan(literature: Literature) -> TrainingPlan:
    training = TrainingOptions(losses={"in_batch": {}}, batch=8, steps=3, learning_rate=1e-3, validation=0.2)
    return TrainingPlan(EncoderOptions(init=str(literature.model)), training)


@pytest.fixture(scope="module")
def bundle(literature: Literature, plan: TrainingPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions, make_suite

    suite = make_suite(literature.corpus, CorpusSuiteOptions(held_out="share:0.2", queries=10))
    folder = tmp_path_factory.mktemp("bundles") / "bundle"
    sources = DataSources(literature.graph, suite=suite)
    return make_bundle(literature.corpus, literature.samples, folder, plan, sources=sources, weights="float32")


def test_a_bundle_trains_what_the_corpus_trains(
    literature: Literature, plan: TrainingPlan, bundle: Path, tmp_path: Path
) -> None:
    sources = DataSources(literature.graph)
    direct = train_encoder(
        literature.corpus, literature.samples, tmp_path / "direct", plan, sources=sources, device="cpu"
    )
    bundled = train_bundle(bundle, tmp_path / "bundled", device="cpu")
    weights = [(run.folder / "model.safetensors").read_bytes() for run in (direct, bundled)]
    assert weights[0] == weights[1]
    assert bundled.after["accuracy"] == direct.after["accuracy"]
    assert "cite.map" in bundled.after


def test_the_same_bundle_again_is_left_as_it_is(literature: Literature, plan: TrainingPlan, bundle: Path) -> None:
    before = (bundle / "manifest.json").stat().st_mtime_ns
    sources = DataSources(literature.graph, suite=None)
    with pytest.raises(Exception, match="made from other inputs or options"):
        make_bundle(literature.corpus, literature.samples, bundle, plan, sources=sources, weights="float32")
    assert (bundle / "manifest.json").stat().st_mtime_ns == before


def test_other_seeds_of_one_bundle(bundle: Path, tmp_path: Path) -> None:
    first, other = (train_bundle(bundle, tmp_path / str(s), changes={"seed": s}, device="cpu") for s in (0, 1))
    assert other.manifest.facts["seed"] == 1
    assert (first.folder / "model.safetensors").read_bytes() != (other.folder / "model.safetensors").read_bytes()


def test_training_from_a_bundle_loads_little(
    bundle: Path, paired: Literature, sentence_plan: TrainingPlan, tmp_path: Path
) -> None:
    """No corpus, graph or mining room, none of their packages: the other machine has numpy, torch and transformers."""
    script = (
        "import sys, json\n"
        "sys.argv = ['bundle', *sys.argv[1:]]\n"
        "import citeweave.training.bundle as b\n"
        "b.main()\n"
        "sys.argv[1:3] = [sys.argv[1] + '-sentences', sys.argv[2] + '-sentences']\n"
        "b.main()\n"
        "rooms = ('citeweave.graph', 'citeweave.mining', 'citeweave.pipeline.recipe', 'citeweave.cli', 'citeweave.corpus.corpus')\n"
        "names = ('orjson', 'isal', 'pyarrow', 'sentencex', 'typer', 'sentence_transformers', 'bm25s', 'numba', 'sklearn')\n"
        "print(json.dumps([name for name in sys.modules if name in (*names, *rooms)]))\n"
    )
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "bundle").symlink_to(bundle)
    sentences, sources = tmp_path / "bundle-sentences", DataSources(paired.graph)
    make_bundle(paired.corpus, paired.samples, sentences, sentence_plan, sources=sources)
    command = [
        sys.executable,
        str(tmp_path / "script.py"),
        str(tmp_path / "bundle"),
        str(tmp_path / "model"),
        "--device",
        "cpu",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *told, loaded = map(json.loads, done.stdout.splitlines()[-3:])
    assert [set(each) for each in told] == [{"before", "after", "output"}] * 2
    assert loaded == []


@pytest.mark.parametrize("harm", ["cut", "objects", "far", "json", "bomb"])
def test_damaged_bundles_are_refused(literature: Literature, plan: TrainingPlan, tmp_path: Path, harm: str) -> None:
    sources = DataSources(literature.graph)
    folder = make_bundle(literature.corpus, literature.samples, tmp_path / "b", plan, sources=sources)
    path = folder / "groups" / "anchors.npy"
    anchors = np.load(path)
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    elif harm == "objects":
        np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    elif harm == "far":
        np.save(path, anchors + 10**6)
    elif harm == "bomb":
        np.savez_compressed(
            folder / "tokens.npz", ids=np.zeros(20_000_000, np.uint16), offsets=np.array([0, 20_000_000])
        )
    else:
        (folder / "bundle.json").write_text("{}" + " " * ((folder / "bundle.json").stat().st_size - 2))
    with pytest.raises(ArtifactError):
        if harm in ("far", "bomb"):
            read_data(folder)
        else:
            train_bundle(folder, tmp_path / "model", device="cpu")
    assert not (tmp_path / "model").exists()


@pytest.fixture(scope="module")
def sentence_plan(paired: Literature) -> TrainingPlan:
    losses = {"aligned_triplet": {}, "sentence_triplet": {}}
    training = TrainingOptions(losses=losses, unit="groups", batch=6, steps=2, learning_rate=1e-3, validation=0.2)
    return TrainingPlan(EncoderOptions(init=str(paired.model)), training)


def test_a_bundle_carries_sentences_and_their_alignment(
    paired: Literature, sentence_plan: TrainingPlan, tmp_path: Path
) -> None:
    sources = DataSources(paired.graph)
    bundle = make_bundle(
        paired.corpus, paired.samples, tmp_path / "b", sentence_plan, sources=sources, weights="float32"
    )
    direct = train_encoder(
        paired.corpus, paired.samples, tmp_path / "direct", sentence_plan, sources=sources, device="cpu"
    )
    bundled = train_bundle(bundle, tmp_path / "bundled", device="cpu")
    weights = [(folder / "model.safetensors").read_bytes() for folder in (direct.folder, bundled.folder, paired.model)]
    assert weights[0] == weights[1] != weights[2]
    assert bundled.after == direct.after


SENTENCE_HARMS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "spans beyond the tokens": ("sentences/ends.npy", lambda x: x + 1000),
    "spans before the tokens": ("sentences/starts.npy", lambda x: x - 1000),
    "empty spans": ("sentences/ends.npy", lambda x: x * 0),
    "spans that overlap": ("sentences/starts.npy", lambda x: x * 0),
    "too few spans": ("sentences/starts.npy", lambda x: x[:-1]),
    "offsets that fall": ("sentences/offsets.npy", lambda x: np.concatenate([x[:1], x[1:-1][::-1], x[-1:]])),
    "papers without sentences": ("sentences/offsets.npy", lambda x: np.where(np.arange(len(x)) == 1, 0, x)),
    "spans of other numbers": ("sentences/starts.npy", lambda x: x.astype(np.float32)),
    "pairs of no papers": ("alignment/keys.npy", lambda x: x + np.uint64(10**6)),
    "pairs out of order": ("alignment/keys.npy", lambda x: x[::-1]),
    "sentences that are not there": ("alignment/sentences.npy", lambda x: x + 100),
    "sentences below 0": ("alignment/sentences.npy", lambda x: x - 100),
    "too few aligned sentences": ("alignment/sentences.npy", lambda x: x[:-1]),
}


def test_damaged_sentences_are_refused(paired: Literature, sentence_plan: TrainingPlan, tmp_path: Path) -> None:
    bundle = make_bundle(
        paired.corpus, paired.samples, tmp_path / "b", sentence_plan, sources=DataSources(paired.graph)
    )
    assert read_data(bundle).alignment is not None
    for harm, (name, change) in SENTENCE_HARMS.items():
        kept = (bundle / name).read_bytes()
        values = np.load(bundle / name)
        np.save(bundle / name, change(values))
        with pytest.raises(ArtifactError, match="make the bundle again|make it again"):
            read_data(bundle)
            pytest.fail(f"{harm} are read")
        (bundle / name).write_bytes(kept)
    shutil.rmtree(bundle / "sentences")
    with pytest.raises(ArtifactError, match="do not fit together"):
        read_data(bundle)


def test_half_precision_weights_halve_the_bundle(literature: Literature, plan: TrainingPlan, tmp_path: Path) -> None:
    no_relatives = dataclasses.replace(plan, training=dataclasses.replace(plan.training, losses={"triplet": {}}))
    sizes = []
    for weights in ("float32", "float16"):
        folder = make_bundle(literature.corpus, literature.samples, tmp_path / weights, no_relatives, weights=weights)
        sizes.append((folder / "model" / "model.safetensors").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]
