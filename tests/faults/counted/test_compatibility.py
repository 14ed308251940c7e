"""Vectors that are the same whoever computes them, and artifacts of other versions that say what to do.

Paths of vectors: our encoder with torch, packed and padded; sentence-transformers alone, from a folder without a line of ours;
ONNX Runtime and OpenVINO where they are installed (`pip install 'citeweave[runtimes]'`). An empty text has a vector of zeros
through every path of ours, as `Encoder.encode` promises; sentence-transformers gives it a vector, and is not asked.
"""

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import citeweave as cw
from citeweave.encoders import model_card, model_names, runtimes, save

from ...training.conftest import Literature, literature
from .artifacts import WORDS

__all__ = ["literature"]

FAR = 1e-5
MODELS = ("minilm", "weave", "trained", "cls", "cls normalized", "mean", "mean normalized")


def batch_of(seed: int) -> list[str]:
    """A batch of texts by its seed: of all lengths, longer than any model reads, of odd signs, some twice."""
    draw = random.Random(f"texts {seed}")

    def words(count: int) -> str:
        return " ".join(draw.choices(WORDS, k=count))

    odd = ["Größe des Gehäuses", "細胞は成長する", "x", "β-catenin & TGF-β1 (p < 0.05)"]
    odd += ["naïve\u00a0Bayes\tand\nlines", "ﬁnd 😀 it"]
    texts = [cw.paper_text(words(draw.randint(1, 12)), words(draw.randint(0, 120))) for _ in range(draw.randint(1, 9))]
    texts += draw.sample(odd, k=draw.randint(0, 3)) + [words(700)] * draw.randint(0, 2)
    texts += draw.choices(texts, k=draw.randint(0, 2))
    draw.shuffle(texts)
    return texts


@pytest.fixture(scope="module")
def folders(bert: Path, literature: Literature, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every model as a folder that sentence-transformers reads, by the name of the model."""
    place = tmp_path_factory.mktemp("models")
    trained = literature.train(place / "trained").folder
    found = {"minilm": model_names.locate("minilm").folder, "weave": place / "weave", "trained": trained}
    save.write_merged_model(model_names.WEAVE, found["weave"])
    for pooling in ("cls", "mean"):
        for normalize in (False, True):
            name = f"{pooling} normalized" if normalize else pooling
            found[name] = place / name
            found[name].mkdir()
            encoder = cw.load_encoder(bert, pooling=pooling, normalize=normalize, device="cpu")
            card = model_card.ModelCard(name, about="A small model.")
            cw.save_encoder(found[name], encoder.network, encoder.reader.tokenizer, encoder.settings, card=card)
    return found


Encode = Callable[[list[str]], NDArray[np.float32]]


def paths_of(folder: Path, cache: Path) -> dict[str, Encode]:
    """Every way to the vectors of a model but the first, which is our encoder as it is loaded by name."""
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(folder), device="cpu")
    found: dict[str, Encode] = {
        "sentence-transformers": lambda texts: np.asarray(theirs.encode(texts, show_progress_bar=False)),
        "packed": cw.load_encoder(folder, device="cpu", runtime=runtimes.Runtime(packed=True)).encode,
        "padded": cw.load_encoder(folder, device="cpu", runtime=runtimes.Runtime(packed=False)).encode,
        "one by one": cw.load_encoder(folder, device="cpu", batch_tokens=1).encode,
    }
    if importlib.util.find_spec("openvino"):
        found["openvino"] = cw.load_encoder(folder, runtime=runtimes.Runtime("openvino", threads=1, cache=cache)).encode
    return found


@pytest.mark.parametrize("name", MODELS)
def test_vectors_by_every_path(name, trial, folders, tmp_path):
    ours = cw.load_encoder(name if name in ("minilm", "weave") else folders[name], device="cpu")
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
