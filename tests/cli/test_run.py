"""run, sweep, recipes and estimate as they are typed; mistakes are one line with exit code 2."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from .conftest import mistakes

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = (
    "--set training.steps=2 --set training.batch=4 --set encoder.max_tokens=24 --set mining.anchors=40 --task cite "
    "--queries 12 --device cpu"
)


def test_run_and_run_again(literature, bert, tmp_path, cli):
    command = f"run tiny --corpus {literature(200)} --init {bert} -o {tmp_path}/run --cache {tmp_path}/cache {SMALL}"
    assert "2 steps of 4 triplets" in cli.text(command, "--dry-run") and not (tmp_path / "run").exists()
    code, out, err = cli(command)
    assert code == 0, err
    assert "| start |" in out and "## corpus" in out and "stages that ran: corpus, graph" in err
    code, out, err = cli(command)
    assert code == 0 and "all stages were already done" in out and "nothing to do" in err
    found = cli.json(command)
    assert found["made"] == [] and found["models"] == [str(tmp_path / "run" / "model")]
    assert found["metrics"]["start"]["corpus"].keys() == found["metrics"]["trained"]["corpus"][0].keys()
    code, _, err = cli(command, "--set training.batch=5")
    assert code == 2 and "holds another run (recipe.training.batch is 4 there and 5 here)" in err
    assert all(stage["is_there"] for stage in cli.json(command, "--dry-run")["stages"])


def test_a_dry_run_names_what_would_be_downloaded(literature, bert, tmp_path, monkeypatch, cli):
    """Models of the hub that are not in its cache, also through an earlier recipe or as the base of a delta; nobody is asked."""
    hub = pytest.importorskip("huggingface_hub", reason="pip install 'citeweave[minilm]'")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("socket.socket.connect", None)
    command = f"--corpus {literature(200)} -o {tmp_path}/run --device cpu --dry-run"
    (found,) = cli.json("run specter_cocite", command)["downloads"]
    assert (found["model"], found["use"]) == ("allenai/scibert_scivocab_uncased", "start model")
    last = cli.text("run scincl --init random:owner/name@abc", command).splitlines()[-1]
    assert last.startswith("not on this machine: owner/name@abc, the start model; the run downloads it")
    assert "`hf download owner/name --revision abc`" in last and last.endswith("with --init")
    teacher = "--set training.losses.similarity.teacher="
    assert cli.text("run weave_taught --init", bert, teacher + "owner/large", command).endswith(f"{teacher}FOLDER\n")
    # what is in the cache, or a folder, is not named
    cached = tmp_path / "hub" / "models--owner--name"
    shutil.copytree(bert, cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    assert cli.json("run scincl --init owner/name", command)["downloads"] == []
    assert cli.json("run scincl --init", bert, command)["downloads"] == []
    delta = Path(shutil.copytree(ROOT / "src/citeweave/encoders/weave", tmp_path / "delta"))
    settings = json.loads((delta / "delta.json").read_bytes())
    (delta / "delta.json").write_text(json.dumps({**settings, "base": "owner/base"}))
    (found,) = cli.json("run scincl --init", delta, command)["downloads"]
    assert found["model"] == "owner/base"


@mistakes(
    ("aspire", "recipe aspire has no [training] table; mine its samples"),
    ("tiny --bands atuo", "--bands is 'atuo'"),
    ("tiny --suite csfcube", "--suite is 'csfcube'; it must be NAME=PATH"),
    ("tiny --suite csfcube=nowhere", "no such folder"),
    ("tiny --seeds -1", "--seeds is -1"),
)
def test_mistakes_are_one_line(words, message, literature, tmp_path, cli):
    code, _, err = cli("run", words, "--corpus", literature(200), "-o", tmp_path / "run", "--dry-run")
    assert code == 2 and message in err and err.count("\n") == 1


def test_recipes_are_listed(cli):
    out = cli.text("recipes")
    assert "cocite_25_1000" in out and len(out.splitlines()) < 50
    assert re.search(r"^SciNCL .*\n  scincl: positives", out, re.MULTILINE)
    every = cli.text("recipes --all")
    assert "(mining only)" in every
    assert {*re.findall(r"^\w+", every, re.MULTILINE)} == {*cli.json("recipes")} <= {*re.findall(r"\w+", out)}
    assert tomllib.loads(cli.text("recipes cocite_25_1000")) == cli.json("recipes cocite_25_1000")
    assert "Did you mean 'scincl'" in cli("recipes scinc")[2]
    found = cli.json("recipes")
    assert found["specter"]["trains"] and not found["aspire"]["trains"]
    assert "ACL 2020" in found["specter"]["source"]


def test_sweep(literature, bert, tmp_path, cli):
    pytest.importorskip("matplotlib", reason="pip install 'citeweave[plots]'")
    command = (
        f"sweep tiny --corpus {literature(200)} --init {bert} -o {tmp_path}/sweep --cache {tmp_path}/cache {SMALL}"
    )
    out = cli.text(command, "--set training.steps=1 --over encoder.pooling=cls,mean")
    assert out.startswith("| encoder.pooling | corpus.cite.map |")
    assert "| cls |" in out and "| start model, mean |" in out
    assert (tmp_path / "sweep" / "curves" / "corpus.cite.map.png").is_file()
    found = cli.json(command, "--set training.steps=1 --over encoder.pooling=cls,mean")
    assert found["values"] == ["cls", "mean"]
    for over, message in (("training.bacth=1,2", "Did you mean 'batch'"), ("batch=1", "--over is 'batch=1'")):
        code, _, err = cli(command, "--over", over)
        assert code == 2 and message in err


def test_estimate_from_numbers(literature, cli):
    command = "estimate scincl --papers 52e6 --citations 463M --texts 680_967 --machine h200"
    out = cli.text(command)
    assert out.startswith("scincl of 52,000,000 papers and 463,000,000 citations, on h200: 16 cores, 128 GB, 1 x h200")
    assert "680,967 papers" in out and "training (GPU)" in out and "  fastrp.gather.far: " in out
    assert "fastrp.gather" not in cli.text(command, "--quiet")
    found = cli.json(command, "--edges --cores 2 --memory 4GB --gpus 0")
    assert found["machine"]["cores"] == 2 and found["machine"]["gpus"] == 0
    assert found["total"]["seconds"] == pytest.approx(sum(stage["seconds"] for stage in found["stages"]))
    assert found["stages"][0]["constants"] == ["import.edge", "import.disk.edge"] and found["warnings"]
    # or from a corpus, which is counted
    stages = cli.json("estimate tiny --corpus", literature(100))["stages"]
    assert stages[0]["size"].endswith("100 papers, 99 with text")


def test_estimate_of_a_search_service(literature, cli):
    out = cli.text("estimate search --papers 10e6 --machine server --quiet")
    assert out.startswith("search of 10,000,000 papers, on server") and "one query by vector or paper: 23 ms" in out
    found = cli.json("estimate search --papers 10e6 --machine server --sentences")
    assert [stage["name"] for stage in found["stages"]] == ["embedding", "index", "server"] and found["notes"]
    assert [query["name"] for query in found["queries"]][-1] == "by 2 sentences"
    assert "99 papers of" in cli.text("estimate search --corpus", literature(100))
    for words, message in (
        ("search --citations 9", "--citations is about recipes"),
        ("search --set training.steps=1", "--set is about recipes"),
        ("scincl --sentences", "--sentences goes with `citeweave estimate search`"),
    ):
        cli.fails(message, "estimate", words, "--papers 9")


@mistakes(
    ("", "the size of the literature is unknown"),
    ("--papers 9 --machine latop", "Did you mean 'laptop'"),
    ("--papers 9 --cores 0", "--cores is '0'"),
    ("--papers 9 --memory much", "--memory is 'much'"),
    ("--papers 9 --corpus x", "a corpus is counted"),
)
def test_mistakes_of_estimate_are_one_line(words, message, cli):
    cli.fails(message, "estimate scincl", words)
