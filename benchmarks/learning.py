"""What recipes teach a start model: held-out citations and co-citations before and after, several seeds.

    python benchmarks/learning.py prepare CORPUS -o learning/ --suite csfcube=FOLDER     samples of every recipe, tokens
    python benchmarks/learning.py train learning/ --seeds 3 --json learned.json          needs torch and transformers
    python benchmarks/learning.py table learned.json

The references of a tenth of the papers are held out; papers of the named suites leave the corpus. Every recipe trains
for the same number of papers read, from the same start, and is judged on the same pools.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RECIPES = ("specter", "specter_undirected", "specter_cl", "scincl", "cocite")
PAPERS_SEEN = 100_000


def prepare(arguments: argparse.Namespace) -> None:
    """Mine every recipe's samples and write them with the tokens of all papers."""
    from citeweave.encoders.tokens import TokenStore
    from citeweave.training.train import load_start_model

    folder = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    gathered = {name: _gather(name, arguments) for name in arguments.recipes}
    rows = np.unique(np.concatenate([data.rows for data, _ in gathered.values()]))
    for name, (data, plan) in gathered.items():
        places = np.searchsorted(rows, data.rows)
        arrays = {f"{part}/{key}": array for part, key, array in _arrays(data, places)}
        np.savez_compressed(folder / f"{name}.npz", **arrays)
        (folder / f"{name}.json").write_text(json.dumps(plan))
    ids, offsets = _united([data for data, _ in gathered.values()], rows)
    store = TokenStore(ids, offsets)
    np.savez_compressed(folder / "tokens.npz", ids=store.ids, offsets=store.offsets, rows=rows)
    _save_start(load_start_model(_encoder(arguments, {}), "cpu"), folder / "model")
    print(
        f"{folder}: {len(rows):,} papers, {len(ids):,} tokens, {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file()) / 1e6:.1f} MB"
    )


def _gather(name: str, arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    from citeweave.core.progress import Reporter
    from citeweave.corpus.corpus import Corpus
    from citeweave.pipeline.recipe import load_recipe
    from citeweave.pipeline.run import prepare_recipe, run_identity
    from citeweave.pipeline.run_folder import RunFolder, RunOptions
    from citeweave.pipeline.stages import DataStages
    from citeweave.pipeline.suites import Suites
    from citeweave.training.load_data import DataSources, load_training_data
    from citeweave.training.train import load_start_model

    suites = dict(pair.split("=", 1) for pair in arguments.suite)
    options = RunOptions(init=arguments.init, suites={key: Path(path) for key, path in suites.items()}, device="cpu")
    recipe, read = prepare_recipe(load_recipe(name), options)
    corpus, reporter = Corpus.open(arguments.corpus), Reporter()
    options = dataclasses.replace(options, shared=arguments.work / "shared")
    run = RunFolder(arguments.work / name, run_identity(recipe, corpus, options), options, reporter)
    run.open()
    stages = DataStages(run, recipe, read)
    audited = stages.audit(corpus)
    asked = Suites(audited, options, reporter)
    prepared = stages.make(audited, asked)
    encoder = _encoder(arguments, recipe.table("encoder"))
    sources = DataSources(prepared.inputs.graph, suite=asked.read("corpus"), queries=1000)
    start = load_start_model(encoder, "cpu")
    data = load_training_data(
        prepared.corpus,
        prepared.samples,
        start.reader,
        encoder,
        read.training,
        arguments.work / name / "tokens",
        sources,
    )
    return data, {
        "training": dataclasses.asdict(read.training),
        "facts": dict(data.metadata),
        "bands": run.stage_metadata("samples").get("bands", {}),
    }


def _encoder(arguments: argparse.Namespace, table: dict[str, Any]) -> Any:
    from citeweave.training.options import EncoderOptions

    return EncoderOptions(init=arguments.init, normalize=arguments.normalize, max_tokens=256)


def _save_start(start: Any, folder: Path) -> None:
    from citeweave.encoders.model_card import ModelCard
    from citeweave.encoders.save import save_encoder

    folder.mkdir(exist_ok=True)
    save_encoder(
        folder, start.network, start.reader.tokenizer, start.settings, card=ModelCard(name="start"), dtype="float16"
    )


def _arrays(data: Any, places: np.ndarray) -> list[tuple[str, str, np.ndarray]]:
    found = []
    for part, groups in (("groups", data.groups), ("validation", data.validation)):
        found += [(part, "anchors", places[groups.anchors])]
        for side in ("positives", "negatives"):
            lists = getattr(groups, side)
            found += [(part, f"{side}-offsets", lists.offsets), (part, f"{side}-papers", places[lists.papers])]
    for name, pool in data.pools.items():
        found += [(f"pools/{name}", "queries", places[pool.queries]), (f"pools/{name}", "relevant", pool.relevant)]
        found += [(f"pools/{name}", "offsets", pool.candidates.offsets)]
        found += [(f"pools/{name}", "candidates", places[pool.candidates.papers])]
    return [(part, key, array.astype(np.int32) if array.dtype == np.int64 else array) for part, key, array in found]


def _united(datas: list[Any], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    tokens: list[Any] = [None] * len(rows)
    for data in datas:
        for place, row in enumerate(np.searchsorted(rows, data.rows).tolist()):
            if tokens[row] is None:
                tokens[row] = data.tokens.ids[data.tokens.offsets[place] : data.tokens.offsets[place + 1]]
    return np.concatenate(tokens), np.concatenate([[0], np.cumsum([len(each) for each in tokens])]).astype(np.int64)


def train(arguments: argparse.Namespace) -> None:
    """Train every recipe with every seed in this process, one line of JSON each."""
    found = []
    for path in sorted(arguments.folder.glob("*.json")):
        if arguments.recipes and path.stem not in arguments.recipes:
            continue
        for seed in range(arguments.seeds):
            name = path.stem
            line = _train_one(arguments, name, seed)
            found.append(line)
            gains = {task: f"{100 * (after - line['before'][task]):+.2f}" for task, after in line["after"].items()}
            gains |= {f"l2 {t}": f"{100 * (a - line['l2']['before'][t]):+.2f}" for t, a in line["l2"]["after"].items()}
            print(name, "seed", seed, f"{line['seconds']:.0f} s, {line['steps']} steps", gains, flush=True)
            arguments.json.write_text(json.dumps(found, indent=1))


def _train_one(arguments: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    from citeweave.core.progress import QUIET
    from citeweave.training.data import Batches
    from citeweave.training.distributed import ProcessGroup
    from citeweave.training.encoder_task import Validation
    from citeweave.training.options import EncoderOptions, training_options
    from citeweave.training.options import TrainingPlan as Plan
    from citeweave.training.train import load_start_model, prepare_run
    from citeweave.training.trainer import train_network

    data = _read(arguments.folder, name)
    table = json.loads((arguments.folder / f"{name}.json").read_text())["training"]
    table |= {"seed": seed, "patience": 0, "check_every": 10**9, "checkpoint_every": 10**9, "steps": 0}
    for entry in arguments.set:
        key, _, value = entry.partition("=")
        table[key] = json.loads(value)
    options = training_options(table)
    batches = Batches(data.groups, options)
    a_step = np.mean([len(batches.at(step).papers) for step in range(min(20, batches.per_epoch))])
    steps = max(1, min(round(arguments.papers / a_step), round(options.epochs * batches.per_epoch)))
    options = dataclasses.replace(options, steps=steps)
    start = load_start_model(
        EncoderOptions(init=str(arguments.folder / "model"), max_tokens=256, normalize=arguments.normalize),
        arguments.device,
    )
    start = dataclasses.replace(start, network=dataclasses.replace(start.network, packed=arguments.packed))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        run = prepare_run(start, data, Plan(training=options), ProcessGroup(), QUIET)
        by_l2 = Validation(run.task.stepper, distance="l2")
        before = by_l2.evaluate()
        progress = train_network(run, Path(work))
    seconds = time.monotonic() - begun
    straight = {"before": before, "after": by_l2.evaluate()}
    facts = {"steps": steps, "papers": round(steps * a_step), "epochs": steps / batches.per_epoch, "seconds": seconds}
    return {
        "recipe": name,
        "seed": seed,
        **facts,
        "before": progress.before,
        "after": progress.last,
        "l2": straight,
        "set": arguments.set,
    }


def _read(folder: Path, name: str) -> Any:
    from citeweave.encoders.tokens import TokenStore
    from citeweave.training.data import AnchorGroups as Groups
    from citeweave.training.data import PaperLists as Lists
    from citeweave.training.data import RankingPools, TrainingData

    with np.load(folder / "tokens.npz") as stored:
        tokens, rows = TokenStore(stored["ids"], stored["offsets"]), stored["rows"]
    with np.load(folder / f"{name}.npz") as stored:
        arrays = {key: stored[key].astype(np.int64) if stored[key].dtype == np.int32 else stored[key] for key in stored}

    def groups(part: str) -> Groups:
        lists = [Lists(arrays[f"{part}/{s}-offsets"], arrays[f"{part}/{s}-papers"]) for s in ("positives", "negatives")]
        return Groups(arrays[f"{part}/anchors"], *lists)

    names = sorted({key.split("/")[1] for key in arrays if key.startswith("pools/")})
    pools = {
        each: RankingPools(
            arrays[f"pools/{each}/queries"],
            Lists(arrays[f"pools/{each}/offsets"], arrays[f"pools/{each}/candidates"]),
            arrays[f"pools/{each}/relevant"],
        )
        for each in names
    }
    return TrainingData(rows, tokens, groups("groups"), groups("validation"), pools=pools, metadata={"left out": {}})


def table(arguments: argparse.Namespace) -> None:
    """Mean and spread over the seeds, by recipe."""
    lines = json.loads(arguments.json.read_text())
    tasks = [name for name in lines[0]["after"] if name != "accuracy"]
    print("| recipe | seeds | papers read | GPU s | " + " | ".join(tasks) + " |")
    print("|---|" + "---|" * (3 + len(tasks)))
    before = {task: lines[0]["before"][task] for task in tasks}
    print("| start | | 0 | | " + " | ".join(f"{100 * before[task]:.2f}" for task in tasks) + " |")
    for name in dict.fromkeys(line["recipe"] for line in lines):
        own = [line for line in lines if line["recipe"] == name]
        cells = []
        for task in tasks:
            gains = np.array([100 * (line["after"][task] - line["before"][task]) for line in own])
            cells.append(f"{gains.mean():+.2f} ± {gains.std(ddof=1) if len(gains) > 1 else 0:.2f}")
        seconds = np.mean([line["seconds"] for line in own])
        print(f"| {name} | {len(own)} | {own[0]['papers']:,} | {seconds:.0f} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    first = verbs.add_parser("prepare", help=prepare.__doc__)
    first.add_argument("corpus", type=Path)
    first.add_argument("-o", "--output", type=Path, required=True)
    first.add_argument("--work", type=Path, default=Path("learning-work"))
    first.add_argument("--init", default="minilm")
    first.add_argument("--normalize", action=argparse.BooleanOptionalAction, default=None)
    first.add_argument("--suite", action="append", default=[])
    first.add_argument("--recipes", nargs="+", default=list(RECIPES))
    first.set_defaults(verb=prepare)
    second = verbs.add_parser("train", help=train.__doc__)
    second.add_argument("folder", type=Path)
    second.add_argument("--seeds", type=int, default=3)
    second.add_argument("--papers", type=int, default=PAPERS_SEEN)
    second.add_argument("--device", default="auto")
    second.add_argument("--normalize", action=argparse.BooleanOptionalAction, default=False)
    second.add_argument("--packed", action=argparse.BooleanOptionalAction, default=None)
    second.add_argument("--recipes", nargs="+", default=[])
    second.add_argument("--set", action="append", default=[])
    second.add_argument("--json", type=Path, required=True)
    second.set_defaults(verb=train)
    third = verbs.add_parser("table", help=table.__doc__)
    third.add_argument("json", type=Path)
    third.set_defaults(verb=table)
    arguments = parser.parse_args()
    arguments.verb(arguments)


if __name__ == "__main__":
    main()
