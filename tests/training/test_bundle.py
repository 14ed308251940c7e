"""Bundles: what is trained from one is what is trained from the corpus; damaged ones are refused."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import ArtifactError
from citeweave.encoders.aspects import open_heads
from citeweave.evaluation.options import CorpusSuiteOptions
from citeweave.evaluation.suites.from_corpus import make_suite
from citeweave.training.bundle import make_bundle, read_data, train_bundle
from citeweave.training.load_data import DataSources

from .conftest import KINDS, SENTENCES, Literature, refused, weights_of

SHORT = {"losses": {"in_batch": {}}, "steps": 3, "check_every": 0, "checkpoint_every": 0}


def bundle_of(source: Literature, folder: Path, suite: Any = None, **options: Any) -> Path:
    sources, plan = DataSources(source.graph, suite=suite), source.plan(**options)
    return make_bundle(source.corpus, source.samples, folder, plan, sources=sources, weights="float32")


@pytest.fixture(scope="module")
def suite(literature) -> Any:
    return make_suite(literature.corpus, CorpusSuiteOptions(held_out="share:0.2", queries=10))


@pytest.fixture(scope="module")
def bundle(literature, suite, tmp_path_factory) -> Path:
    return bundle_of(literature, tmp_path_factory.mktemp("bundles") / "bundle", suite, **SHORT)


def test_a_bundle_trains_what_the_corpus_trains(literature, suite, bundle, tmp_path):
    direct = literature.train(tmp_path / "direct", sources=DataSources(literature.graph, suite=suite), **SHORT)
    bundled, other = (train_bundle(bundle, tmp_path / str(s), changes={"seed": s}, device="cpu") for s in (0, 1))
    assert weights_of(bundled.folder) == weights_of(direct.folder) != weights_of(other.folder)
    assert bundled.after == direct.after and "cite.map" in bundled.after and other.manifest.facts["seed"] == 1


@pytest.mark.parametrize("kind", ["aspects", "sentences", "aspect_words"])
def test_a_bundle_carries_aspects_sentences_and_words(request, uninterrupted, tmp_path, kind):
    source, direct = request.getfixturevalue(KINDS[kind][0]), uninterrupted[kind]
    bundled = train_bundle(bundle_of(source, tmp_path / "b", **KINDS[kind][1]), tmp_path / "model", device="cpu")
    assert weights_of(bundled.folder) == weights_of(direct.folder) and bundled.after == direct.after
    assert weights_of(bundled.folder)["model.safetensors"] != (source.model / "model.safetensors").read_bytes()
    if kind == "aspects":
        assert open_heads(bundled.folder).hash == open_heads(direct.folder).hash


def test_the_same_bundle_again_is_left_as_it_is(literature, bundle):
    before = (bundle / "manifest.json").stat().st_mtime_ns
    refused("made from other inputs or options", bundle_of, literature, bundle, **SHORT, error=Exception)
    assert (bundle / "manifest.json").stat().st_mtime_ns == before


SCRIPT = """
import sys, json
sys.argv = ['bundle', *sys.argv[1:]]
import citeweave.training.bundle as b
b.main()
sys.argv[1:3] = [sys.argv[1] + '-sentences', sys.argv[2] + '-sentences']
b.main()
rooms = ('citeweave.graph', 'citeweave.mining', 'citeweave.pipeline.recipe', 'citeweave.cli', 'citeweave.corpus.corpus')
names = ('orjson', 'isal', 'pyarrow', 'sentencex', 'click', 'sentence_transformers', 'bm25s', 'numba', 'sklearn')
print(json.dumps([name for name in sys.modules if name in (*names, *rooms)]))
"""


def test_training_from_a_bundle_loads_little(bundle, paired, tmp_path):
    """No corpus, graph or mining room, none of their packages: the other machine has numpy, torch and transformers."""
    (tmp_path / "bundle").symlink_to(bundle)
    bundle_of(paired, tmp_path / "bundle-sentences", losses=SENTENCES["both"], steps=2)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "bundle"), str(tmp_path / "model"), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *told, loaded = map(json.loads, done.stdout.splitlines()[-3:])
    assert [set(each) for each in told] == [{"before", "after", "output"}] * 2 and loaded == []


BOMB = {"ids": np.zeros(20_000_000, np.uint16), "offsets": np.array([0, 20_000_000])}
HARMS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "cut": ("groups/anchors.npy", lambda path: path.write_bytes(path.read_bytes()[:-8])),
    "objects": (
        "groups/anchors.npy",
        lambda path: np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True),
    ),
    "far": ("groups/anchors.npy", lambda path: np.save(path, np.load(path) + 10**6)),
    "json": ("bundle.json", lambda path: path.write_text("{}" + " " * (path.stat().st_size - 2))),
    "bomb": ("tokens.npz", lambda path: np.savez_compressed(path, **BOMB)),
    "aspects": ("groups/aspects.npy", lambda path: np.save(path, np.full(3, 9, np.uint8))),
}


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_bundles_are_refused(literature, aspects, tmp_path, harm):
    source, options = (aspects, {}) if harm == "aspects" else (literature, SHORT)
    folder, (name, change) = bundle_of(source, tmp_path / "b", **options), HARMS[harm]
    change(folder / name)
    with pytest.raises(ArtifactError):
        read_data(folder) if harm in ("far", "bomb") else train_bundle(folder, tmp_path / "model", device="cpu")
    assert not (tmp_path / "model").exists()


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


def test_damaged_sentences_are_refused(paired, tmp_path):
    bundle = bundle_of(paired, tmp_path / "b", losses=SENTENCES["both"])
    assert read_data(bundle).alignment is not None
    for harm, (name, change) in SENTENCE_HARMS.items():
        kept, values = (bundle / name).read_bytes(), np.load(bundle / name)
        np.save(bundle / name, change(values))
        with pytest.raises(ArtifactError, match="make the bundle again|make it again"):
            read_data(bundle)
            pytest.fail(f"{harm} are read")
        (bundle / name).write_bytes(kept)
    shutil.rmtree(bundle / "sentences")
    refused("do not fit together", read_data, bundle, error=ArtifactError)


def test_half_precision_weights_halve_the_bundle(literature, tmp_path):
    plan, sizes = literature.plan(losses={"triplet": {}}), []
    for weights in ("float32", "float16"):
        folder = make_bundle(literature.corpus, literature.samples, tmp_path / weights, plan, weights=weights)
        sizes.append((folder / "model/model.safetensors").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]
