"""Embedding on a Ray cluster of two nodes on this machine, beside the local run: the same bytes, and what it costs.

python benchmarks/ray_embedding.py                                   2,000 papers, a small random model
python benchmarks/ray_embedding.py --papers 20000 --model minilm     the size that is promised
python benchmarks/ray_embedding.py --kills 20                        and 20 runs in which a worker or the driver is killed

Each node has one core, the local run two threads. Times are of whole commands by the clock, model and joining of the
cluster included; the start of the cluster itself is told apart. A kill comes up to half a second
after a number of shards that is drawn evenly over all; a killed driver is started again until it ends by itself. What a run gives is compared byte by byte with the local run: a
lost or doubled shard would show. Only processes that this script has started are killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import versions, write_figures

LETTERS = [chr(code) for code in range(97, 123)]


@dataclass(frozen=True)
class Setup:
    """What all runs share."""

    corpus: Path
    model: str
    shard: int
    address: str = ""

    def command(self, folder: Path, *, on: bool) -> list[str]:
        """The embedding as a user would type it."""
        found = [sys.executable, "-m", "citeweave", "embed", str(self.corpus), "--model", self.model, "-o", str(folder)]
        found += ["--shard", str(self.shard), "--device", "cpu"]
        return found + (["--on", f"ray:{self.address}"] if on else [])


def run(command: list[str]) -> float:
    """Seconds by the clock."""
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


def small_model(folder: Path) -> Path:
    """A BERT of four layers with random weights, which reads letters."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    inner = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])]
    )
    names = {"unk": "[UNK]", "pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, model_max_length=128, **{f"{name}_token": token for name, token in names.items()}
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def cluster() -> Iterator[str]:
    """Two nodes of one core on this machine."""
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"})
    from ray.cluster_utils import Cluster

    made = Cluster()
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, object_store_memory=256 << 20, include_dashboard=False)
        yield made.address
    finally:
        made.shutdown()


def workers() -> list[int]:
    """Processes of actors below this one."""
    parents: dict[int, int] = {}
    names: dict[int, bytes] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                names[int(folder.name)] = (folder / "cmdline").read_bytes()
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = []
    for process, name in names.items():
        above = process
        while above > 1 and above != os.getpid():
            above = parents.get(above, 0)
        if above == os.getpid() and name.startswith(b"ray::Worker"):
            found.append(process)
    return found


def content(folder: Path) -> dict[str, bytes]:
    """All files; of the manifest what does not name the time."""
    manifest = json.loads((folder / "manifest.json").read_text())
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    kept = json.dumps({key: manifest[key] for key in ("hash", "recipe", "files", "facts")}).encode()
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files} | {"": kept}


def killed_run(setup: Setup, folder: Path, victim: str, after: int, draw: random.Random) -> dict[str, Any]:
    """One run with a kill, once `after` shards are there; the value says what was killed, and at how many shards."""
    found: dict[str, Any] = {"victim": victim, "after": after, "starts": 0}
    while True:
        found["starts"] += 1
        driver = subprocess.Popen(setup.command(folder, on=True), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if found["starts"] == 1:
            found |= strike(driver, folder, victim, after, draw)
        if driver.wait() == 0:
            return found
        if found["starts"] > 5:
            return found | {"failed": True}


def strike(
    driver: subprocess.Popen[bytes], folder: Path, victim: str, after: int, draw: random.Random
) -> dict[str, int]:
    """Kill a worker or the driver; nothing where the run is over before."""
    partial = folder.with_name(folder.name + ".partial")
    while driver.poll() is None:
        shards, there = len(list(partial.rglob("*.npz"))), workers()
        if shards >= after and (there or victim == "driver"):
            time.sleep(draw.uniform(0, 0.5))
            there = workers()
            if driver.poll() is None and (there or victim == "driver"):
                os.kill(draw.choice(there) if victim == "worker" else driver.pid, signal.SIGKILL)
                return {"killed at": len(list(partial.rglob("*.npz")))}
        time.sleep(0.01)
    return {}


def kill_runs(setup: Setup, work: Path, kills: int, shards: int, seed: int) -> list[dict[str, Any]]:
    """So many runs with one kill each, compared with the local run."""
    draw, expected, runs = random.Random(seed), content(work / "local"), []
    for number in range(kills):
        folder = work / f"killed-{number}"
        victim = ("worker", "driver")[number % 2]
        found = killed_run(setup, folder, victim, draw.randrange(shards), draw)
        found["same"] = folder.exists() and content(folder) == expected
        print(f"run {number}: {found}", flush=True)
        runs.append(found)
        if folder.exists():
            subprocess.run(["rm", "-r", str(folder)], check=True)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, default=2000)
    parser.add_argument("--model", default="small", help="small (random weights), minilm, or a folder")
    parser.add_argument("--shard", type=int, default=512)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1, help="local and cluster in turn; the best of each counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as place:
        measure(given, Path(place))


def measure(given: argparse.Namespace, work: Path) -> None:
    made = [sys.executable, "-m", "citeweave", "synthesize", "--papers", str(given.papers), "-o", str(work / "corpus")]
    run(made)
    model = str(small_model(work / "model")) if given.model == "small" else given.model
    setup = Setup(work / "corpus", model, given.shard)
    local, remote, same = [], [], True
    start = time.monotonic()
    with cluster() as address:
        started = time.monotonic() - start
        setup = Setup(setup.corpus, setup.model, setup.shard, address)
        for number in range(given.rounds):
            local.append(run(setup.command(work / ("local" if number == 0 else f"local-{number}"), on=False)))
            remote.append(run(setup.command(work / f"ray-{number}", on=True)))
            same &= content(work / "local") == content(work / f"ray-{number}")
        runs = kill_runs(setup, work, given.kills, -(-given.papers // given.shard), given.seed)
    over = 100 * (min(remote) / min(local) - 1)
    title = f"{given.papers:,} papers, {given.model}, shards of {given.shard:,}; {versions('ray', 'torch')}"
    rows: list[dict[str, Any]] = [
        {"label": "local, 2 threads", "wall": min(local), "remark": ""},
        {"label": "2 nodes of 1 core", "wall": min(remote), "remark": f"{over:+.1f} %, same bytes: {same}"},
        {"label": "start of the cluster", "wall": started, "remark": "not in the line above"},
    ]
    print(f"\n{title}")
    for row in rows:
        print(f"{row['label']:24}{row['wall']:10.1f} s  {row['remark']}")
    notes = []
    if runs:
        whole = sum(each["same"] for each in runs)
        struck = sum("killed at" in each for each in runs)
        notes.append(f"{len(runs)} runs, a kill in {struck}: {whole} complete with the bytes of the local run")
        print(f"  {notes[0]}")
    write_figures(title, rows, notes)
    if not same or any(not each["same"] for each in runs):
        raise SystemExit("not the same bytes")


if __name__ == "__main__":
    main()
