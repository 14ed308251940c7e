"""Training from files, for `citeweave intents train` and for machines that have no command line of citeweave.

    python -m citeweave.intents.command contexts.jsonl.gz -o classifier/ --rank 16 --teachers 5 --auxiliary section=FILE

Prints one JSON object with the figures on the dev sentences.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from citeweave.errors import CiteweaveError, UserError, choose
from citeweave.intents.labelled import LABEL_SETS, LabelledSet, read_citances, read_labelled, section_examples
from citeweave.intents.options import ClassifierOptions
from citeweave.progress import Reporter

AUXILIARY = ("acl_arc", "scicite", "section", "worthiness")


@dataclass(frozen=True, slots=True)
class SetFiles:
    """Which files and splits the sentences come from."""

    files: Sequence[Path]
    task: str = "scicite"
    split: str = "train"
    dev: str = "dev"
    """Split of the dev sentences, or a file of them; empty = a tenth of the training ones is held back."""

    auxiliary: Mapping[str, Path] = field(default_factory=dict)
    """Auxiliary task -> its file."""

    unlabelled: Path | None = None
    most_unlabelled: int = 0


def read_sets(asked: SetFiles) -> tuple[LabelledSet, LabelledSet | None, tuple[LabelledSet, ...]]:
    """Training, dev and auxiliary sentences; the unlabelled ones are read apart, they may come from a corpus."""
    labels = LABEL_SETS[choose(asked.task, LABEL_SETS, "--task")]
    train = read_labelled(asked.files, labels, split=asked.split, task=asked.task)
    dev = None
    if asked.dev and Path(asked.dev).is_file():
        dev = read_labelled([Path(asked.dev)], labels, task=asked.task)
    elif asked.dev:
        if asked.dev == asked.split:
            raise UserError(f"--dev and --split are both {asked.dev!r}; the dev sentences must not be trained on")
        dev = read_labelled(asked.files, labels, split=asked.dev, task=asked.task)
        if not asked.split or not dev.rejected.get("another split"):
            raise UserError(
                f"the records name no splits, so that --split {asked.split!r} and --dev {asked.dev!r} are the same "
                "sentences; give the dev sentences as a file, or --dev '' to hold a tenth back"
            )
    return train, dev, tuple(_auxiliary(task, path, asked.split) for task, path in asked.auxiliary.items())


def _auxiliary(task: str, path: Path, split: str) -> LabelledSet:
    choose(task, AUXILIARY, "the task of --auxiliary")
    if task != "section":
        return read_labelled([path], LABEL_SETS[task], split=split, task=task)
    found = section_examples(read_citances(path, split=split))
    if not found.examples:
        raise UserError(
            f"{path}: no sentence has a telling section title, such as Methods; leave --auxiliary section out"
        )
    return found


def parse_auxiliary(pairs: Sequence[str]) -> dict[str, Path]:
    """
    >>> parse_auxiliary(["section=contexts.jsonl.gz"])
    {'section': PosixPath('contexts.jsonl.gz')}
    """
    found = {}
    for pair in pairs:
        task, equals, path = pair.partition("=")
        if not (task and equals and path):
            raise UserError(f"--auxiliary is {pair!r}; it must be TASK=FILE, such as section=contexts.jsonl.gz")
        found[choose(task, AUXILIARY, "the task of --auxiliary")] = Path(path)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train an intent classifier from labelled citing sentences."""
    from citeweave.intents.teaching import TrainingSets
    from citeweave.intents.training import About, train_classifier

    asked = _parser().parse_args(arguments)
    try:
        options = ClassifierOptions(
            **{row.name: getattr(asked, row.name) for row in dataclasses.fields(ClassifierOptions)}
        )
        files = SetFiles(
            asked.files, asked.task, asked.split, asked.dev, parse_auxiliary(asked.auxiliary), asked.unlabelled
        )
        train, dev, auxiliary = read_sets(files)
        unlabelled = read_citances(asked.unlabelled, most=asked.most_unlabelled) if asked.unlabelled else []
        trained = train_classifier(
            TrainingSets(train, dev, auxiliary, tuple(unlabelled)),
            asked.output,
            options,
            about=About(asked.data, "python -m citeweave.intents.command " + _spelled(arguments), asked.precision),
            device=asked.device,
            overwrite=asked.overwrite,
            reporter=Reporter(quiet=asked.quiet),
        )
    except CiteweaveError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(json.dumps({"output": str(trained.folder), **trained.report}) + "\n")


def _spelled(arguments: Sequence[str] | None) -> str:
    given = sys.argv[1:] if arguments is None else list(arguments)
    return " ".join(Path(word).name if "/" in word and "=" not in word else word for word in given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m citeweave.intents.command", description=main.__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines of labelled sentences")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to make")
    parser.add_argument("--task", default="scicite", help="label set: scicite (three) or acl_arc (six)")
    parser.add_argument("--split", default="train", help="split to train on")
    parser.add_argument("--dev", default="dev", help="split or file of the dev sentences; '' holds a tenth back")
    parser.add_argument("--auxiliary", action="append", default=[], metavar="TASK=FILE", help="auxiliary task")
    parser.add_argument("--unlabelled", type=Path, help="JSON lines of {text, span, section} without labels")
    parser.add_argument("--most-unlabelled", type=int, default=0, help="sentences of it to read; 0 = all")
    parser.add_argument("--precision", default="float16", help="float16 or int8")
    parser.add_argument("--data", default="", help="where the sentences come from, for the card")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing classifier")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    for row in dataclasses.fields(ClassifierOptions):
        flag, default = "--" + row.name.replace("_", "-"), row.default
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"default {default!r}")
    return parser


if __name__ == "__main__":
    main()
