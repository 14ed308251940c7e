"""A small BERT whose tokenizer has two unused tokens, and labeled sentences that follow a rule."""

import json

import numpy as np
import pytest

from citeweave.intents.citances import OTHER, TARGET, Citance
from citeweave.intents.examples import SCICITE, Example, LabeledSet

WORDS = ("paper", "cell", "models", "data", "graphs", "citations")
TELLING = ("shows", "learn", "find")
"""The word behind the citation that tells its intent."""


@pytest.fixture(scope="session")
def marked_bert(save_bert, tmp_path_factory):
    folder = save_bert(tmp_path_factory.mktemp("models") / "marked-bert", length=64)
    path = folder / "tokenizer.json"
    found = json.loads(path.read_text())
    vocabulary = found["model"]["vocab"]
    vocabulary[TARGET], vocabulary[OTHER] = vocabulary.pop("##x"), vocabulary.pop("##q")
    path.write_text(json.dumps(found))
    return folder


@pytest.fixture(scope="session")
def planted():
    """The word behind the citation asked about is the label; the one behind the other citation says nothing."""

    def make(count, seed):
        random = np.random.default_rng(seed)
        examples = []
        for _ in range(count):
            label, other = random.integers(3, size=2).tolist()
            parts = [f"[3] {TELLING[label]}", f"[7] {TELLING[other]}"]
            random.shuffle(parts)
            text = f"{random.choice(WORDS)} {parts[0]} {random.choice(WORDS)} and {parts[1]}"
            start = text.index("[3]")
            section = "2 Methods" if random.random() < 0.5 else ""
            examples.append(Example(Citance(text, (start, start + 3), section), label))
        return LabeledSet("scicite", SCICITE, tuple(examples))

    return make
