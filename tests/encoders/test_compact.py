"""Compact deltas: within their bytes, near what was trained, on no other base; damage and strangers are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import InputError, UserError
from citeweave.encoders.compact_delta import BITS, code_rows, read_rows, row_bytes
from citeweave.encoders.compress import CompressedEncoder, allocate, compress
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.save import save_encoder

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

TEXTS = [
    "The cell grows.[SEP]We find how models learn.",
    "data",
    "how models learn from graphs of citations " * 3,
    "a paper shows that the cell grows",
    "we find data in graphs",
    "models of citations, and how",
]
PLENTY = 10**6


def saved(base: Path, folder: Path, *, max_tokens: int = 20) -> Path:
    """A model whose every weight is moved a little, as if by training."""
    encoder = load_encoder(base, pooling="mean", normalize=True, max_tokens=max_tokens, device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in encoder.network.model.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=generator)
    folder.mkdir()
    save_encoder(folder, encoder.network, encoder.reader.tokenizer, encoder.settings, card=ModelCard("moved"))
    return folder


@pytest.fixture(scope="module")
def trained(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(bert, tmp_path_factory.mktemp("compact") / "trained")


@pytest.fixture(scope="module")
def small(bert: Path, trained: Path) -> Path:
    """A compact delta of it that no test changes."""
    folder = trained.with_name("small")
    folder.mkdir()
    compress(trained, str(bert), folder, TEXTS, budget=16_000)
    return folder


@pytest.fixture
def make(bert: Path, trained: Path, tmp_path: Path) -> Callable[..., CompressedEncoder]:
    def compressed(name: str = "delta", budget: int = PLENTY) -> CompressedEncoder:
        (tmp_path / name).mkdir()
        return compress(trained, str(bert), tmp_path / name, TEXTS, budget=budget)

    return compressed


def test_with_enough_bytes_the_vectors_are_those_of_the_trained_model(make, trained, tmp_path):
    found, loaded = make(), load_encoder(tmp_path / "delta", device="cpu")
    wanted = load_encoder(trained, device="cpu")
    assert loaded.settings == wanted.settings
    assert found.cosines.least > 0.999 > 0.99 > found.base_cosines.mean
    assert np.einsum("td,td->t", loaded.encode(TEXTS), wanted.encode(TEXTS)).min() > 0.999
    assert max(report.residual for report in found.matrices.values()) < 0.05


def test_bytes_are_kept_to_and_more_of_them_are_better(make, tmp_path):
    budgets = (11_000, 16_000, 40_000)
    found = [make(str(budget), budget) for budget in budgets]
    for budget, told in zip(budgets, found, strict=True):
        assert told.bytes == (tmp_path / str(budget) / "delta.safetensors").stat().st_size <= budget
    residuals = [sum(report.residual for report in told.matrices.values()) for told in found]
    assert residuals[0] > residuals[1] > residuals[2]
    assert any(report.coding is None for report in found[0].matrices.values())
    with pytest.raises(UserError, match="the budget is 100 bytes; biases and norms alone take"):
        make("too few", 100)


def test_the_same_model_gives_the_same_bytes_and_revision(make, small, tmp_path):
    make("again", 16_000)
    for name in ("delta.json", "delta.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (small / name).read_bytes()
    assert load_encoder(tmp_path / "again").revision == load_encoder(small).revision


@pytest.mark.parametrize("bits", BITS)
def test_rows_survive_few_bits(bits):
    matrix = torch.randn(7, 33, generator=torch.Generator().manual_seed(1)) * torch.arange(7)[:, None]
    codes, scales = code_rows(matrix, bits)
    assert codes.shape == (7, row_bytes(33, bits)) and codes.element_size() == 1
    rest = (read_rows(codes, scales, 33, bits) - matrix).norm() / matrix.norm()
    assert rest < {1: 0.65, 2: 0.4, 3: 0.22, 4: 0.13, 8: 0.01}[bits]
    assert not read_rows(codes, scales, 33, bits)[0].any()


def test_bytes_go_where_they_gain_most():
    steep, flat = [(0, 100.0), (10, 10.0), (20, 1.0)], [(0, 20.0), (10, 15.0)]
    assert allocate({"steep": steep, "flat": flat}, 20) == {"steep": (20, 1.0), "flat": (0, 20.0)}
    assert allocate({"steep": steep, "flat": flat}, 19) == {"steep": (10, 10.0), "flat": (0, 20.0)}
    assert allocate({"dear": [(0, 9.0), (50, 0.0)], "flat": flat}, 12) == {"dear": (0, 9.0), "flat": (10, 15.0)}


def test_damage_is_seen(small, tmp_path):
    shutil.copytree(small, tmp_path / "delta")
    path = tmp_path / "delta/delta.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        InputError, match="delta.safetensors is damaged .*copy the complete folder again, or pip install"
    ):
        load_encoder(tmp_path / "delta")
    path.unlink()
    with pytest.raises(InputError, match="delta.safetensors cannot be read"):
        load_encoder(tmp_path / "delta")


def test_another_base_is_refused(bert, save_bert, trained, tmp_path):
    base = shutil.copytree(bert, tmp_path / "base")
    (tmp_path / "delta").mkdir()
    compress(trained, str(base), tmp_path / "delta", TEXTS, budget=PLENTY)
    shutil.rmtree(base)
    save_bert(base, seed=1)
    with pytest.raises(UserError, match="is a delta of revision [0-9a-f]{12} of .*base', and revision .* is here"):
        load_encoder(tmp_path / "delta")


def test_what_cannot_be_compressed(bert, save_bert, trained, tmp_path):
    with pytest.raises(UserError, match="3 texts to compress by"):
        compress(trained, str(bert), tmp_path, TEXTS[:3], budget=PLENTY)
    with pytest.raises(UserError, match="not a model of the kind of long: embeddings.position_embeddings.weight is"):
        compress(trained, str(save_bert(tmp_path / "long", length=99)), tmp_path, TEXTS, budget=PLENTY)
    with pytest.raises(UserError, match="has the same weights as"):
        compress(trained, str(trained), tmp_path, TEXTS, budget=PLENTY)


NAME = "encoder.layer.0.attention.self.query.weight"


def coding(**told: Any) -> dict[str, Any]:
    return {"kind": "rows", "count": 32, "bits": 4} | told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "of format version 2; .* Update citeweave"),
        ({"extra": 1}, "extra does not belong here"),
        ({"base": "../x"}, "without '[.][.]'"),
        ({"matrices": [1]}, "matrices is not a table"),
        ({"matrices": {NAME: [1]}}, "list does not belong here"),
        ({"matrices": {NAME: coding(kind="code")}}, "kind must be factors or rows"),
        ({"matrices": {NAME: coding(bits=5)}}, "bits one of 1, 2, 3, 4, 8"),
        ({"matrices": {NAME: coding(bits=True)}}, "bits one of"),
        ({"matrices": {NAME: coding(count=0)}}, "count a whole number"),
        ({"matrices": {NAME: coding(count=10**12)}}, "has a count of 1000000000000; at most 32"),
        ({"matrices": {"evil": coding()}}, "'evil' is not a matrix of the base"),
        ({"matrices": {"embeddings.LayerNorm.bias": coding()}}, "is not a matrix of the base"),
        ({"matrices": {}}, "is not an expected tensor"),
    ],
)
def test_settings_of_a_stranger_are_checked(small, tmp_path, changes, message):
    shutil.copytree(small, tmp_path / "delta")
    path = tmp_path / "delta/delta.json"
    settings = json.loads(path.read_text()) | changes
    del settings["seal"]  # a stranger needs none
    path.write_text(json.dumps(settings))
    with pytest.raises(InputError, match=message):
        load_encoder(tmp_path / "delta", device="cpu")
