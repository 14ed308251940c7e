"""mine, annotate and evaluate as they are typed, with --on a cluster of two nodes: the same folders as without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from citeweave import Corpus, synthesize
from citeweave.cli import main
from citeweave.core.errors import ShardError
from citeweave.core.publish import work_folder
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.graph.citations import build_graph
from citeweave.mining.inputs import parse_rules
from citeweave.mining.mine import MiningInputs, MiningOptions, mine_samples
from citeweave.pipeline.recipe import load_recipe
from citeweave.remote.ray_executor import RayExecutor
from citeweave.remote.ray_workers import ClusterOptions

from ..conftest import content

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verbs")
    synthesize(folder / "corpus", SyntheticOptions(papers=240))
    return folder


@pytest.fixture
def on(cluster: str, capsys: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    """The option; what commands print goes nowhere."""
    yield ["--on", f"ray:{cluster}"]
    capsys.readouterr()


def command(*words: object) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert not end.value.code


def both(place: Path, name: str, words: list[str], on: list[str]) -> None:
    command(*words, "-o", place / f"{name}-here", "--quiet")
    command(*words, "-o", place / f"{name}-ray", "--quiet", *on)
    assert content(place / f"{name}-ray") == content(place / f"{name}-here")


def test_mine(place: Path, on: list[str]) -> None:
    build_graph(Corpus.open(place / "corpus"), place / "graph")
    changes = ["--set", "mining.every_aspect=false", "--intents", "sections", "--graph", str(place / "graph")]
    words = ["mine", str(place / "corpus"), "--recipe", "sciaspect", "--memory", "1MB", *changes]
    both(place, "samples", words, on)


def test_annotate(place: Path, on: list[str]) -> None:
    how = ["--no-keep-given", "--max-contexts", "1", "--block", "15", "--device", "cpu"]
    corpus = place / "few"
    synthesize(corpus, SyntheticOptions(papers=25))
    both(place, "intents", ["annotate", str(corpus), *how], [*on[:1], f"{on[1]},workers=1"])


def test_evaluate(place: Path, bert: Path, on: list[str]) -> None:
    words = ["evaluate", str(bert), "--suite", "corpus", "--data", str(place / "corpus"), "--queries", "20"]
    words += ["--task", "cite", "--task", "field"]
    on = [*on[:1], f"{on[1]},workers=1"]  # every worker loads the model twice, to embed and to judge
    command(*words, "--device", "cpu", "--cache", place / "1", "-o", place / "here", "--quiet")
    command(*words, "--device", "cpu", "--cache", place / "2", "-o", place / "ray", "--quiet", *on)
    assert content(place / "ray") == content(place / "here")


def test_a_damaged_block_is_named_and_the_next_run_completes(
    place: Path, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of one block are beyond the corpus in the file that workers read; the driver writes it anew."""
    from citeweave.mining import mine
    from citeweave.mining import mine as remote

    monkeypatch.setattr(mine, "BLOCK_ANCHORS", 50)
    corpus, real = Corpus.open(place / "corpus"), remote._keep_numbers

    def damaged(path: Path, values: np.ndarray) -> str:
        return real(path, np.where(np.arange(len(values)) == 60, 10**9, values) if path.stem == "units" else values)

    rules = parse_rules(load_recipe("specter").table("mining"))
    inputs = MiningInputs(graph=build_graph(corpus, place / "graph"))
    options = MiningOptions(workers=1)
    with RayExecutor(ClusterOptions(cluster, tries=2)) as executor:
        monkeypatch.setattr(remote, "_keep_numbers", damaged)
        with pytest.raises(ShardError, match=r"mining: 1 of \d shards failed .* \(1; .*row 1000000000 is not in"):
            mine_samples(corpus, rules, tmp_path / "s", inputs, options, executor=executor)
        assert len(list(work_folder(tmp_path / "s").rglob("blocks-0/*.npz"))) >= 2
        monkeypatch.setattr(remote, "_keep_numbers", real)
        mine_samples(corpus, rules, tmp_path / "s", inputs, options, executor=executor)
    mine_samples(corpus, rules, tmp_path / "whole", inputs, options)
    assert content(tmp_path / "s") == content(tmp_path / "whole")
