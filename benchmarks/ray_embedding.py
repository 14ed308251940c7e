"""Embedding on a Ray cluster of two nodes on this machine, beside the local run: the same bytes, and what it costs.

python benchmarks/ray_embedding.py                                   2,000 papers, a small random model
python benchmarks/ray_embedding.py --papers 20000 --model minilm     the size that is promised
python benchmarks/ray_embedding.py --kills 20                        and 20 runs in which a worker or the driver is killed
python benchmarks/ray_embedding.py --kills 20 --each 20              the same kills in one run

Each node has one core and one worker, the local run two threads: the same two cores. Times are of whole commands by the
clock, model and joining of the cluster included; the start of the cluster itself is told apart. Kills are of a worker
and of the driver in turn, up to half a second after a number of shards that is drawn evenly over all; a killed driver
is started again until it ends by itself. What a run gives is compared byte by byte with the local run: a lost or
doubled shard would show. Only processes that this script has started are killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
    runtime: str
    address: str = ""

    def command(self, folder: Path, *, on: bool) -> list[str]:
        """The embedding as a user would type it."""
        found = [sys.executable, "-m", "citeweave", "embed", str(self.corpus), "--model", self.model, "-o", str(folder)]
        found += ["--shard", str(self.shard), "--device", "cpu", "--runtime", self.runtime]
        return found + (["--on", f"ray:{self.address}"] if on else [])


def run(command: list[str]) -> float:
    """Seconds by the clock."""
    start = time.monotonic()
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\n{ended.stderr[-2000:]}")
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
    os.environ.update({"RAY_worker_niceness": "0"})  # else workers give way to all else, and the local run does not
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
        if above == os.getpid() and name.startswith(b"ray::ShardWorker"):
            found.append(process)
    return found


def content(folder: Path) -> dict[str, bytes]:
    """All files; of the manifest what does not name the time."""
    manifest = json.loads((folder / "manifest.json").read_text())
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    kept = json.dumps({key: manifest[key] for key in ("hash", "recipe", "files", "facts")}).encode()
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files} | {"": kept}


@dataclass(frozen=True)
class Strike:
    """A kill to come."""

    after: int
    """Shards that are there before it."""

    victim: str


def draw_strikes(kills: range, shards: int, draw: random.Random) -> list[Strike]:
    """Workers and drivers in turn, as the shards go; `kills` are numbers of kills among those of all runs."""
    times = sorted(draw.randrange(1, max(2, shards)) for _ in kills)
    return [Strike(after, ("worker", "driver")[kill % 2]) for kill, after in zip(kills, times, strict=True)]


def killed_run(setup: Setup, folder: Path, strikes: list[Strike], draw: random.Random) -> dict[str, Any]:
    """One run with these kills; the value says what was killed, and at how many shards."""
    log, left = folder.with_name(f"{folder.name}.log"), list(strikes)
    found: dict[str, Any] = {"killed": [], "starts": 0, "whole": False}
    most = 3 + sum(strike.victim == "driver" for strike in strikes)
    while found["starts"] < most and not found["whole"]:
        found["starts"] += 1
        with log.open("w") as file:
            driver = subprocess.Popen(setup.command(folder, on=True), stdout=file, stderr=file)
        while left and (at := strike_at(driver, folder, left[0], draw)) is not None:
            found["killed"].append(f"{left.pop(0).victim} at {at}")
        found["whole"] = driver.wait() == 0
    if not found["whole"]:
        print(log.read_text()[-2000:], flush=True)
    return found


def strike_at(driver: subprocess.Popen[bytes], folder: Path, strike: Strike, draw: random.Random) -> int | None:
    """Kill a worker or the driver; the number of shards then, None where the driver is gone before."""
    while driver.poll() is None:
        if made(folder) >= strike.after:
            time.sleep(draw.uniform(0, 0.5))
            victims = [driver.pid] if strike.victim == "driver" else workers()
            if victims and driver.poll() is None:
                os.kill(draw.choice(victims), signal.SIGKILL)
                if strike.victim == "driver":
                    driver.wait()
                return made(folder)
        time.sleep(0.05)
    return None


def made(folder: Path) -> int:
    """Shards in the work folder of a run; 0 when it is there no longer."""
    return sum(
        name.endswith(".npz") for _, _, names in os.walk(folder.with_name(f"{folder.name}.partial")) for name in names
    )


def kill_runs(setup: Setup, work: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs with kills, compared with the local run."""
    draw, expected, runs = random.Random(given.seed), content(work / "local"), []
    shards = -(-given.papers // given.shard)
    for number, first in enumerate(range(0, given.kills, given.each)):
        folder, start = work / f"killed-{number}", time.monotonic()
        kills = range(first, min(first + given.each, given.kills))
        found = killed_run(setup, folder, draw_strikes(kills, shards, draw), draw)
        found["same"] = found["whole"] and content(folder) == expected
        print(f"run {number}, {time.monotonic() - start:.0f} s: {found}", flush=True)
        runs.append(found)
        if folder.exists():
            shutil.rmtree(folder)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, default=2000)
    parser.add_argument("--model", default="small", help="small (random weights), minilm, or a folder")
    parser.add_argument("--shard", type=int, default=512)
    parser.add_argument("--runtime", default="torch", help="as that of `citeweave embed`: auto, torch, openvino, int8")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--each", type=int, default=1, help="kills of one run")
    parser.add_argument("--rounds", type=int, default=1, help="local and cluster in turn; the best of each counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as place:
        measure(given, Path(place))


def measure(given: argparse.Namespace, work: Path) -> None:
    os.environ["OMP_NUM_THREADS"] = "2"  # of the local run; workers set their own
    run([sys.executable, "-m", "citeweave", "synthesize", "--papers", str(given.papers), "-o", str(work / "corpus")])
    model = str(small_model(work / "model")) if given.model == "small" else given.model
    setup = Setup(work / "corpus", model, given.shard, given.runtime)
    local, remote, same = [], [], True
    start = time.monotonic()
    with cluster() as address:
        started = time.monotonic() - start
        setup = replace(setup, address=address)
        for number in range(given.rounds):
            local.append(run(setup.command(work / ("local" if number == 0 else f"local-{number}"), on=False)))
            remote.append(run(setup.command(work / f"ray-{number}", on=True)))
            same &= content(work / "local") == content(work / f"ray-{number}")
        runs = kill_runs(setup, work, given)
    over = 100 * (min(remote) / min(local) - 1)
    title = f"{given.papers:,} papers, {given.model} ({given.runtime}), shards of {given.shard:,}; {versions('ray', 'torch')}"
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
        struck = sum(len(each["killed"]) for each in runs)
        notes.append(f"{len(runs)} runs with {struck} kills: {whole} complete with the bytes of the local run")
        print(f"  {notes[0]}")
    write_figures(title, rows, notes)
    if not same or any(not each["same"] for each in runs):
        raise SystemExit("not the same bytes")


if __name__ == "__main__":
    main()
