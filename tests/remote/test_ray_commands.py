"""embed, mine, annotate and evaluate with --on a cluster of two nodes: the same folders as without.

Also while a worker or the driver is killed.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from citeweave import Corpus, synthesize
from citeweave.cli import main
from citeweave.core.errors import ShardError
from citeweave.core.publish import work_folder
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.options import SyntheticOptions
from citeweave.encoders.embed import EmbeddingOptions, embed_papers
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.shards import EncoderSpec, RemoteShards
from citeweave.graph.citations import build_graph
from citeweave.mining import mine
from citeweave.mining.inputs import MiningInputs
from citeweave.mining.mine import mine_samples
from citeweave.mining.options import MiningOptions
from citeweave.mining.rules import parse_rules
from citeweave.pipeline.recipe import load_recipe
from citeweave.remote.ray_executor import ClusterOptions, RayExecutor

from ..conftest import content
from ..faults.killing import killed_before

pytestmark = pytest.mark.usefixtures("one_thread")

SHARD = 4


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus, and another with few contexts."""
    folder = tmp_path_factory.mktemp("verbs")
    synthesize(folder / "corpus", SyntheticOptions(papers=240))
    synthesize(folder / "few", SyntheticOptions(papers=25))
    build_graph(Corpus.open(folder / "corpus"), folder / "graph")
    return folder


MINE = "mine @corpus --recipe sciaspect --memory 1MB --set mining.every_aspect=false --intents sections --graph @graph"
EVALUATE = (
    "evaluate BERT --suite corpus --data @corpus --queries 20 --task cite --task field --device cpu --cache CACHE"
)


@pytest.mark.parametrize(
    ("line", "on"),
    [
        (MINE, ""),
        ("annotate @few --no-keep-given --max-contexts 1 --block 15 --device cpu", ",workers=1"),
        (EVALUATE, ",workers=1"),  # every worker loads the model twice, to embed and to evaluate
    ],
)
def test_a_command_makes_the_same_folder_on_a_cluster(place, bert, cluster, tmp_path, capsys, line, on):
    for name, more in (("here", ""), ("ray", f"--on ray:{cluster}{on}")):
        words = line.replace("@", f"{place}/").replace("BERT", str(bert)).replace("CACHE", f"{tmp_path}/{name}-cache")
        with pytest.raises(SystemExit) as end:
            main(f"{words} -o {tmp_path}/{name} --quiet {more}".split())
        assert not end.value.code
    assert content(tmp_path / "ray") == content(tmp_path / "here")


def test_a_recipe_runs_on_a_cluster(place, bert, cluster, tmp_path, capsys):
    sets = ("training.steps=2", "training.batch=4", "training.warmup=0", "encoder.max_tokens=24", "mining.anchors=60")
    metrics = []
    for name, more in (("here", []), ("ray", ["--on", f"ray:{cluster},workers=1"])):
        words = ["run", "specter", "--corpus", f"{place}/corpus", "-o", f"{tmp_path}/{name}", "--init", str(bert)]
        words += f"--task cite --queries 12 --device cpu --cache {tmp_path}/{name}-cache --json".split()
        with pytest.raises(SystemExit) as end:
            main([*words, *more, *(word for setting in sets for word in ("--set", setting))])
        assert not end.value.code
        metrics.append(json.loads(capsys.readouterr().out)["metrics"])
    assert metrics[0] == metrics[1]


def test_a_damaged_block_is_named_and_the_next_run_completes(place, cluster, tmp_path, monkeypatch):
    """The rows of one block are beyond the corpus in the file that workers read; the driver writes it anew."""
    monkeypatch.setattr(mine, "BLOCK_ANCHORS", 50)
    corpus, real = Corpus.open(place / "corpus"), mine._save_column

    def damaged(path, values):
        return real(path, np.where(np.arange(len(values)) == 60, 10**9, values) if path.stem == "units" else values)

    rules = parse_rules(load_recipe("specter").table("mining"))
    inputs, options = MiningInputs(graph=build_graph(corpus, place / "graph")), MiningOptions(workers=1)
    with RayExecutor(ClusterOptions(cluster, tries=2)) as executor:
        monkeypatch.setattr(mine, "_save_column", damaged)
        with pytest.raises(ShardError, match=r"mining: 1 of \d shards failed .* \(1; .*row 1000000000 is not in"):
            mine_samples(corpus, rules, tmp_path / "s", inputs, options, executor=executor)
        assert len(list(work_folder(tmp_path / "s").rglob("blocks-0/*.npz"))) >= 2
        monkeypatch.setattr(mine, "_save_column", real)
        mine_samples(corpus, rules, tmp_path / "s", inputs, options, executor=executor)
    mine_samples(corpus, rules, tmp_path / "complete", inputs, options)
    assert content(tmp_path / "s") == content(tmp_path / "complete")


# --- kills -------------------------------------------------------------------------------------------


class Killing:
    """An executor one of whose workers is killed once it has made some shards."""

    def __init__(self, inner, after):
        self.inner, self.after, self.requested, self.killed = inner, after, 0, 0

    def make(self, work, numbers):
        self.requested = len(numbers)
        for count, made in enumerate(self.inner.make(work, numbers)):
            if count == self.after:
                self.killed = workers_of_this_process()[0]
                os.kill(self.killed, signal.SIGKILL)
            yield made


def workers_of_this_process():
    """Processes of actors of the cluster that this process has started."""
    parents, names = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                names[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue

    def ours(process):
        while process not in (0, 1):
            process = parents.get(process, 0)
            if process == os.getpid():
                return True
        return False

    return [process for process, name in names.items() if name.startswith("ray::ShardWorker") and ours(process)]


def vectors_of(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*.npy")} | {
        "hash": json.loads((folder / "manifest.json").read_text())["hash"]
    }


def test_a_killed_driver_and_a_killed_worker_cost_nothing(cluster, bert, tmp_path):
    papers = [{"id": f"p{n}", "title": f"we find data {'of cells ' * (n % 7)}{n}"} for n in range(240)]
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    corpus = import_papers(tmp_path / "papers.jsonl", tmp_path / "corpus").corpus
    encoder = load_encoder(bert, device="cpu")
    embed_papers(corpus, encoder, tmp_path / "local", EmbeddingOptions(shard=SHARD))

    command = ["embed", corpus.folder, "--model", bert, "-o", tmp_path / "v", "--shard", SHARD, "--device", "cpu"]
    assert killed_before("*.npz", 6, *command, "--on", f"ray:{cluster}"), "the driver was not killed"
    kept = len(list(work_folder(tmp_path / "v").rglob("*.npz")))
    assert not (tmp_path / "v").exists() and kept == 5

    with RayExecutor(ClusterOptions(cluster)) as inner:
        executor = Killing(inner, after=10)
        options = EmbeddingOptions(shard=SHARD, remote=RemoteShards(executor, EncoderSpec(str(bert))))
        embed_papers(corpus, encoder, tmp_path / "v", options)
        assert not Path(f"/proc/{executor.killed}").exists() or executor.killed not in workers_of_this_process()
    assert executor.killed and executor.requested == 60 - kept
    assert vectors_of(tmp_path / "v") == vectors_of(tmp_path / "local")
