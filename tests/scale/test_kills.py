"""Embedding on a cluster while a worker or the driver is killed: the bytes are those of a local run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from citeweave.core.executor import ShardTask
from citeweave.core.publish import work_folder
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.encoders.embed import EmbeddingOptions, embed_papers
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.shards import EncoderSpec, RemoteShards
from citeweave.remote.ray_executor import RayExecutor
from citeweave.remote.ray_workers import ClusterOptions

from ..faults.killing import killed_before

SHARD = 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    place = tmp_path_factory.mktemp("corpus")
    papers = [{"id": f"p{n}", "title": f"we find data {'of cells ' * (n % 7)}{n}"} for n in range(240)]
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    import_papers([place / "papers.jsonl"], place / "corpus")
    return Corpus.open(place / "corpus")


class Killing:
    """An executor one of whose workers is killed once it has made some shards."""

    def __init__(self, inner: RayExecutor, after: int) -> None:
        self.inner, self.after, self.asked, self.killed = inner, after, 0, 0

    def make(self, work: ShardTask, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        self.asked = len(numbers)
        for count, made in enumerate(self.inner.make(work, numbers)):
            if count == self.after:
                self.killed = workers_of_this_process()[0]
                os.kill(self.killed, signal.SIGKILL)
            yield made


def workers_of_this_process() -> list[int]:
    """Processes of actors of the cluster that this process has started."""
    parents, names = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                names[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue

    def ours(process: int) -> bool:
        while process not in (0, 1):
            process = parents.get(process, 0)
            if process == os.getpid():
                return True
        return False

    return [process for process, name in names.items() if name.startswith("ray::ShardWorker") and ours(process)]


def vectors_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.npy")} | {
        "hash": json.loads((folder / "manifest.json").read_text())["hash"].encode()
    }


def test_a_killed_driver_and_a_killed_worker_cost_nothing(
    cluster: str, corpus: Corpus, bert: Path, tmp_path: Path, one_thread: None
) -> None:
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
    assert executor.killed and executor.asked == 60 - kept
    assert vectors_of(tmp_path / "v") == vectors_of(tmp_path / "local")
