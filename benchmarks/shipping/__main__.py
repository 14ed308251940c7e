"""The model that ships, from the data to the delta inside the package.

    python -m benchmarks.shipping prepare --data DATA -o table/ --work WORK --set mining.positives.cited.count=10
                                                              here, after `benchmarks.table prepare`
    python -m benchmarks.shipping train table/ --init mpnet/ --steps 350 --seeds 0 --save base/ --set batch=256 \\
        --set learning_rate=3e-5 --set start_share=0.3        there, on a GPU: the teacher, weave_base
    python -m benchmarks.shipping train table/ --teachers base/ --steps 1000 --seeds 0 1 2 --set start_share=0.4
    python -m benchmarks.shipping average table/ --seeds 0 1 2                     there: the mean of their weights
    python -m benchmarks.shipping compress table/shipped-mean --corpus CORPUS ... --facts facts.json --bytes 5900000 \\
        --max-tokens 256 -o src/citeweave/encoders/weave      here; replaces weights, card and golden vectors

weave_base inside the package is the mean of three seeds: `train --init mpnet/ --stem base --seeds 0 1 2` with these settings and
start_share=0, `average --init mpnet/ --stem base --share 0.7`, `compress table/base-mean --base UNZIPPED --name weave_base --bytes 8000000`. UNZIPPED is
the folder in the zip file of MPNet's wheels, as it is: the revision in the delta is that of its files.

weave_small comes from a sister of weave, which MiniLM teaches too: `train table/ --teachers base/ minilm --stem sister` with the
other settings of weave and `average --stem sister --save sister/`; then `train table/ --init sister/ --layers 1 3 5 --teachers base/
sister/ --steps 2200 --seeds 0 --set start_share=0 --set learning_rate=5e-4 --save small/` and `compress small/ --base weave --layers
1 3 5 --name weave_small`.

A model in a field that it was not trained on, beside MiniLM:

    python -m benchmarks.shipping fields --data DATA -o table/ --work WORK                        here, after `prepare`
    python -m benchmarks.shipping train table/ --without elife --steps 700 --seeds 0 --teachers mpnet/ minilm \\
        --set start_share=0.4 --unjudged --save away/                                              there
    python -m benchmarks.shipping away table/ --corpus elife away/                                 eleven tasks, * = p < 0.05

DATA holds peerread_plus, elife, acl_anthology, csfcube, scitldr and scirepeval_samples. Run it from the root of the repository
with PYTHONPATH=src.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.table.systems import CORPORA
from citeweave.core.errors import CiteweaveError

TAUGHT = {"in_batch": {"temperature": 0.05}, "similarity": {"weight": 4.0}}
"""Losses with a teacher."""


def prepare(asked: argparse.Namespace) -> None:
    """Import what may be learned from, mine it by the recipe `weave` and pack it."""
    from benchmarks.shipping.preparing import prepare_joint

    prepare_joint(asked.data, asked.work or asked.output / "work", asked.output, asked.set)


def fields(asked: argparse.Namespace) -> None:
    """Pack the tasks of `away` that the bundles lack."""
    from benchmarks.shipping.fields import write_fields

    write_fields(asked.data, asked.work or asked.output / "work", asked.output)


def away(asked: argparse.Namespace) -> None:
    """Judge models on a corpus, beside MiniLM."""
    from benchmarks.shipping.fields import judge_fields

    judge_fields(asked.output, asked.corpus, asked.models, asked.device)


def train(asked: argparse.Namespace) -> None:
    """Train and judge every seed; reports go beside the table's."""
    from benchmarks.shipping.training import Shipping, train_shipped

    changes = {key: json.loads(value) for key, value in (entry.split("=", 1) for entry in asked.set)}
    seeds, judged = tuple(asked.seeds), not asked.unjudged
    if asked.teachers:
        changes.setdefault("losses", TAUGHT)
    train_shipped(
        Shipping(
            asked.output, seeds, asked.steps, asked.device, asked.name, changes, judged,
            init=asked.init, teachers=tuple(asked.teachers), without=tuple(asked.without), save=asked.save, stem=asked.stem,
            layers=tuple(asked.layers),
        )
    )  # fmt: skip


def average(asked: argparse.Namespace) -> None:
    """The mean of the weights of trained seeds, judged as one model."""
    from benchmarks.shipping.training import Shipping, average_shipped

    options = Shipping(
        asked.output, tuple(asked.seeds), asked.steps, asked.device, asked.name, {}, not asked.unjudged,
        init=asked.init, save=asked.save, share=asked.share, stem=asked.stem, layers=tuple(asked.layers),
    )  # fmt: skip
    average_shipped(options)


def compress(asked: argparse.Namespace) -> None:
    """Write the shipped model's folder: delta, card, golden vectors, manifest."""
    from benchmarks.shipping.compressing import Compressing, compress_shipped

    how = Compressing(
        asked.trained, asked.corpus, asked.facts, asked.output, asked.texts, asked.bytes, asked.max_tokens, asked.seed,
        asked.base, asked.name, tuple(asked.layers),
    )  # fmt: skip
    print(compress_shipped(how))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shipping", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    _add_compress(verbs)
    own = verbs.add_parser("away", help=away.__doc__)
    own.set_defaults(verb=away)
    own.add_argument("output", type=Path, help="folder of the bundles")
    own.add_argument("models", nargs="+", help="names or folders")
    own.add_argument("--corpus", choices=CORPORA, required=True)
    own.add_argument("--device", default="auto")
    for name, verb in {"prepare": prepare, "fields": fields, "train": train, "average": average}.items():
        own = verbs.add_parser(name, help=verb.__doc__)
        own.set_defaults(verb=verb)
        if name in ("prepare", "train"):
            own.add_argument(
                "--set", action="append", default=[], help="another value of the recipe, or of its training"
            )
        if name in ("prepare", "fields"):
            own.add_argument("--data", type=Path, required=True)
            own.add_argument("-o", "--output", type=Path, required=True)
            own.add_argument("--work", type=Path, help="folder for what is made on the way; else inside the output")
        else:
            own.add_argument("output", type=Path, help="folder of the bundles; reports are written there")
            own.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
            own.add_argument("--steps", type=int, default=800, help="of each seed")
            own.add_argument("--device", default="auto")
            own.add_argument("--name", default="weave, as shipped", help="of the row in the table")
            own.add_argument("--stem", default="shipped", help="beginning of the names of the files of differences")
            own.add_argument("--unjudged", action="store_true", help="write what weights changed by, and no report")
            own.add_argument("--init", default="", help="folder of another start model than minilm")
            own.add_argument("--layers", type=int, nargs="+", default=[], help="of the start model, for a smaller one")
            own.add_argument("--save", type=Path, help="folder for the last seed's model or the mean, with a card")
        if name == "average":
            own.add_argument("--share", type=float, default=1.0, help="part of the mean difference that is kept")
        if name == "train":
            own.add_argument("--teachers", nargs="+", default=[], help="models to follow by the loss similarity")
            own.add_argument("--without", nargs="+", default=[], help="sources to leave out, such as elife")
    asked = parser.parse_args()
    try:
        asked.verb(asked)
    except CiteweaveError as error:
        sys.exit(f"error: {error}")


def _add_compress(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    own = verbs.add_parser("compress", help=compress.__doc__)
    own.set_defaults(verb=compress)
    own.add_argument("trained", type=Path, help="folder of a trained model, or stem of differences that `train` wrote")
    own.add_argument("--corpus", type=Path, nargs="+", required=True, help="folders that `citeweave import` made")
    own.add_argument("--facts", type=Path, required=True, help="JSON of what the card says; see compressing.py")
    own.add_argument("--texts", type=int, default=1000, help="texts to draw from all corpora together")
    own.add_argument("--bytes", type=int, default=4_000_000, help="of the whole folder, at most")
    own.add_argument("--max-tokens", type=int, help="where texts are cut; else as trained")
    own.add_argument("--seed", type=int, default=0, help="of drawing the texts")
    own.add_argument("--base", default="minilm", help="start model, or the folder of another")
    own.add_argument("--layers", type=int, nargs="+", default=[], help="of the base, which the model was trained from")
    own.add_argument("--name", default="weave", help="of the model")
    own.add_argument("-o", "--output", type=Path, required=True)


if __name__ == "__main__":
    main()
