"""Trains a list of jobs twice, once whole and once with cuts, in processes that die at a given step:

python resuming.py jobs.json output/                                            every run in a process of its own
torchrun --nproc-per-node 2 --max-restarts 9 resuming.py jobs.json output/      two ranks; torchrun starts them again

A job ends as output/JOB/whole/model and output/JOB/cut/model. Beside each lies `steps`: a line for every process that
worked on it, with the steps that it made.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import citeweave as cw
from citeweave.training import checkpoints, train, trainer
from citeweave.training.data import Batches
from citeweave.training.distributed import ProcessGroup
from citeweave.training.load_data import DataSources
from citeweave.training.options import TrainingPlan, encoder_options, training_options

IN_CHECKPOINT = ("weights", "moments", "state", "old ones")
MOMENTS = ("begin", "gradients", "log", "folder", "interrupt", *IN_CHECKPOINT)
"""Where a process dies: before or within a step, with half a line in the log or half a file in a checkpoint, between a
checkpoint and the removal of older ones, with half a model written; or an interruption is raised as Ctrl-C does."""

RANK = int(os.environ.get("RANK", "0"))


def train_job(job: dict[str, Any], place: Path, cut: tuple[int, str] | None = None) -> None:
    """Train a job; with a cut, die at that step."""
    place.mkdir(parents=True, exist_ok=True)
    steps = _count_steps(place / f"steps.{RANK}")
    if cut is not None:
        _arm(*cut, steps)
    corpus, samples = cw.Corpus.open(job["corpus"]), cw.Samples.open(job["samples"])
    plan = TrainingPlan(encoder_options(job["encoder"]), training_options(job["training"]))
    sources = DataSources(cw.CitationGraph.open(job["graph"]))
    train.train_encoder(corpus, samples, place / "model", plan, sources=sources, device="cpu")


def cuts_of(job: dict[str, Any], whole: Path) -> list[tuple[int, str]]:
    """Steps and moments of a job's cuts, in order; one whose moment would not come is made at the begin of its step."""
    total = int(json.loads((whole / "model" / "manifest.json").read_bytes())["facts"]["steps"])
    every = job["training"]["checkpoint_every"]
    cuts = [(min(int(share * total), total - 1), moment) for share, moment in job["cuts"]]
    cuts.sort(key=lambda cut: (cut[1] == "folder", cut))  # half a model is written after the last step
    comes = [_comes(moment, step, (total - 1) // every * every, every) for step, moment in cuts]
    if len(cuts) > 1 and cuts[0][1] == "old ones" and cuts[1][1] in IN_CHECKPOINT:
        comes[1] = False  # the first may have gone on to the last checkpoint
    return [(step, moment if is_to_come else "begin") for (step, moment), is_to_come in zip(cuts, comes, strict=True)]


def _comes(moment: str, step: int, last_saved: int, every: int) -> bool:
    """Whether a moment comes at a step or later: one in a checkpoint needs a checkpoint, and a removal too many of them."""
    if moment == "old ones" and last_saved <= checkpoints.MAX_CHECKPOINTS * every:
        return False
    return moment not in IN_CHECKPOINT or step < last_saved


def _count_steps(path: Path) -> list[int]:
    """The steps that this process makes, which are written down as they begin."""
    real, steps = trainer._TrainingLoop._step, list[int]()
    with path.open("a") as file:
        file.write("\n")

    def step(loop: Any, number: int) -> None:
        with path.open("a") as file:
            file.write(f"{number} ")
        steps.append(number)
        real(loop, number)

    trainer._TrainingLoop._step = step
    return steps


def _arm(at: int, moment: str, steps: list[int]) -> None:
    """Die at a moment of a step, or as soon after it as the moment comes."""

    def is_due() -> bool:
        return bool(steps) and steps[-1] >= at

    def before(owner: Any, name: str, die: Callable[..., None], when: Callable[..., bool] = lambda *_: True) -> None:
        real = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if is_due() and when(*arguments):
                die(*arguments)
            return real(*arguments, **options)

        setattr(owner, name, wrapped)

    match moment:
        case "begin" | "interrupt":
            before(Batches, "at", _die if moment == "begin" else _interrupt)
        case "gradients":
            before(ProcessGroup, "sum_gradients", _die)
        case "log":
            before(trainer._TrainingLoop, "_log", _half_a_line, lambda *_: RANK == 0)
        case "folder":
            before(train, "write_encoder", lambda folder, *_: _half_a_file(folder / "model.safetensors"))
        case "state":
            before(checkpoints, "write_json", _half_a_file)
        case "old ones":
            before(checkpoints.shutil, "rmtree", _die, lambda path, *_: path.suffix != ".partial" and path.is_dir())
        case _:
            before(checkpoints, "_save_tensors", _half_a_file, lambda path, *_: path.stem == moment)


def _die(*_: Any, by: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), by)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _half_a_line(loop: Any, *_: Any) -> None:
    with (loop.work / "log.jsonl").open("a") as file:
        file.write('{"step": ')
    _die()


def _half_a_file(path: Path, *_: Any) -> None:
    path.write_bytes(b"\x08\0\0\0")
    _die()


def _apart(work: Callable[[], None]) -> int:
    """Do something in a process of its own; the signal that ended it, or 0."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _die(by=signal.SIGINT)
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code > 0:
        raise RuntimeError(f"a run ended with code {code}")
    return -code


def _alone(job: dict[str, Any], place: Path) -> None:
    """All runs of a job; where one fails, the next job goes on."""
    try:
        _apart(lambda: train_job(job, place / "whole"))
        for cut in cuts_of(job, place / "whole"):
            if not _apart(lambda cut=cut: train_job(job, place / "cut", cut)):
                raise RuntimeError(f"nothing was cut at {cut}")
        _apart(lambda: train_job(job, place / "cut"))
    except RuntimeError as error:
        sys.stderr.write(f"{place}: {error}\n")


def _as_rank(job: dict[str, Any], place: Path) -> None:
    """The same where torchrun starts all ranks again after one has died; `made` remembers cuts that were made."""
    step = trainer._TrainingLoop._step
    if not (place / "whole" / "model").exists():
        train_job(job, place / "whole")
        trainer._TrainingLoop._step = step
    made = place / "made"
    done = len(made.read_text().split()) if made.exists() else 0
    cuts = cuts_of(job, place / "whole")
    if done < len(cuts) and job["rank"] == RANK:
        with made.open("a") as file:
            file.write(f"{done} ")
        train_job(job, place / "cut", cuts[done])
    elif not (place / "cut" / "model").exists():
        train_job(job, place / "cut")
    trainer._TrainingLoop._step = step


if __name__ == "__main__":
    torch.set_num_threads(1)
    jobs, output = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    first = next(iter(jobs.values()))["encoder"]["init"]
    cw.load_encoder(first, device="cpu")  # what it imports is there in all children
    for name, job in jobs.items():
        (_as_rank if "RANK" in os.environ else _alone)(job, output / name)
