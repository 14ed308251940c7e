"""citeweave evaluate"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, On, Output, Overwrite, Quiet, Seed, print_json, reporter_of
from citeweave.errors import UserError
from citeweave.files import cache_folder

if TYPE_CHECKING:
    from citeweave.crew import Crew
    from citeweave.evaluation.judged import Judged
    from citeweave.evaluation.judging.opening import OpeningOptions
    from citeweave.evaluation.remote import Shared
    from citeweave.evaluation.report import Report
    from citeweave.evaluation.suites.asked import AskedSuite
    from citeweave.evaluation.suites.corpus import CorpusSuiteOptions
    from citeweave.evaluation.tasks import Suite
    from citeweave.progress import Reporter

BASELINE = "baseline:"
EVERY = "every"

_SHOWN = ("suite", "model", "metrics", "intervals", "coverage", "not_evaluated", "notes", "options", "data", "map")
"""Parts of the report that --json prints; `per_query` is left to the file."""

_Judged = Annotated[
    str,
    typer.Argument(
        metavar="MODEL_OR_VECTORS",
        help="A model (weave, minilm, a folder, a Hugging Face name), vectors (a folder, .jsonl, .npy, .parquet), "
        "scores (.run, .json), bm25, or baseline:NAME.",
        show_default=False,
    ),
]
_Suite = Annotated[
    str,
    typer.Option(
        "--suite",
        help="scidocs, scirepeval, mdcr, csfcube, relish, treccovid_rf, beir, reviewers, corpus, intents, or aspects.",
        show_default=False,
    ),
]
_Data = Annotated[
    Path,
    typer.Option(
        "--data",
        help="Folder with the suite's own files; for corpus, intents and aspects, a corpus.",
        show_default=False,
    ),
]
_Tasks = Annotated[
    list[str], typer.Option("--task", help="Only this task of the suite; may be repeated.", show_default=False)
]
_Split = Annotated[str, typer.Option("--split", help="Part of the suite's data to judge: test, val or dev.")]
_Distance = Annotated[
    str,
    typer.Option(
        "--distance",
        help="cosine, l2, dot; of sentence vectors single, mean_best, top2, attention, transport; of a model's tokens "
        "token_best; a sum of some, such as mean_best+token_best. Empty: the protocol's own.",
        show_default=False,
    ),
]
_Missing = Annotated[
    str,
    typer.Option(
        "--missing", help="A paper without vector: a wrong answer (wrong), or what the peers' code does (peers)."
    ),
]
_Intercept = Annotated[
    bool,
    typer.Option("--intercept/--no-intercept", help="Linear probes with an intercept; the peers' solver has none."),
]
_Precision = Annotated[
    str, typer.Option("--precision", help="Round vectors of a file: float16, float32 or float64.", show_default=False)
]
_Pooling = Annotated[str | None, typer.Option("--pooling", help="Of a model: cls, mean or layers.", show_default=False)]
_Runtime = Annotated[
    str, typer.Option("--runtime", help="What computes the network: auto (the fastest here), torch, openvino or int8.")
]
_MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", help="Of a model: cut texts at this length.", show_default=False)
]
_Temperature = Annotated[
    float | None, typer.Option("--temperature", help="Of attention and transport.", show_default=False)
]
_SentenceMetric = Annotated[
    str, typer.Option("--sentence-metric", help="Between sentences, in distances of sentence vectors: l2 or cosine.")
]
_Whole = Annotated[
    bool, typer.Option("--whole", help="With a model and sentences: its own vector of a paper is one more sentence.")
]
_Aspect = Annotated[
    str,
    typer.Option(
        "--aspect",
        help="Of a model with aspect heads: the space of one (method), all side by side (all), of each query the one it "
        "asks about (matching), or every one of these, a report each (every).",
        show_default=False,
    ),
]
_Map = Annotated[bool, typer.Option("--map", help="Also draw the papers of a classification on a map, map.html.")]
_Corpus = Annotated[
    Path | None,
    typer.Option("--corpus", help="Corpus that a baseline is trained on; else that of --data.", show_default=False),
]
_HeldOut = Annotated[
    str,
    typer.Option(
        "--held-out",
        help="With --suite corpus or intents: citing papers to ask about, year:2016 (from then on) or share:0.1.",
    ),
]
_Intents = Annotated[
    Path | None,
    typer.Option(
        "--intents", help="With --suite intents: what `annotate` wrote; else the corpus's own.", show_default=False
    ),
]
_PoolSeed = Annotated[
    int,
    typer.Option("--pool-seed", help="With --suite corpus, intents or aspects: seed of what is held out and drawn."),
]
_Queries = Annotated[
    int, typer.Option("--queries", help="With --suite corpus, intents or aspects: at most so many queries a task.")
]
_Papers = Annotated[int, typer.Option("--papers", help="With --suite aspects: ask about so many papers at most.")]
_Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Folder for vectors of models, kept by content; else $CITEWEAVE_CACHE, else ~/.cache/citeweave.",
        show_default=False,
    ),
]


def evaluate(
    judged: _Judged,
    suite: _Suite,
    data: _Data,
    output: Output,
    task: _Tasks = [],  # noqa: B006
    split: _Split = "test",
    distance: _Distance = "",
    missing: _Missing = "wrong",
    intercept: _Intercept = True,
    precision: _Precision = "",
    pooling: _Pooling = None,
    max_tokens: _MaxTokens = None,
    runtime: _Runtime = "auto",
    temperature: _Temperature = None,
    sentence_metric: _SentenceMetric = "l2",
    whole: _Whole = False,
    aspect: _Aspect = "",
    corpus: _Corpus = None,
    intents: _Intents = None,
    held_out: _HeldOut = "share:0.1",
    queries: _Queries = 1000,
    papers: _Papers = 1000,
    pool_seed: _PoolSeed = 0,
    cache: _Cache = None,
    with_map: _Map = False,
    on: On = "",
    device: Device = "auto",
    seed: Seed = 0,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Judge a model, vectors or scores by a benchmark, exactly by its protocol, and write a report."""
    from citeweave.evaluation import evaluate as verb
    from citeweave.evaluation.judging.opening import OpeningOptions
    from citeweave.evaluation.remote import Shared
    from citeweave.evaluation.spaces import evaluate_spaces
    from citeweave.evaluation.suites.asked import AskedSuite
    from citeweave.evaluation.suites.corpus import CorpusSuiteOptions
    from citeweave.scale.opening import open_crew

    if aspect and judged.startswith(BASELINE):
        raise UserError(f"--aspect is {aspect!r}, and {judged} is no model; give a model with aspect heads")
    if on and judged.startswith(BASELINE):
        raise UserError(f"--on is {on!r}, and {judged} is trained by the process that judges it; leave --on out")
    reporter = reporter_of(quiet or json)
    options = verb.EvaluationOptions(distance, missing, intercept, seed)
    made_from = CorpusSuiteOptions(held_out=held_out, queries=queries, seed=pool_seed)
    opening = OpeningOptions(
        distance,
        precision,
        pooling,
        max_tokens,
        device,
        cache_folder(cache),
        temperature,
        sentence_metric,
        whole,
        aspect,
        "torch" if on and runtime == "auto" else runtime,  # workers do not choose for themselves
    )
    source = AskedSuite(suite, data, split, made_from, papers, intents)
    asked = source.read(reporter)
    how: dict[str, Any] = {
        "tasks": task,
        "options": options,
        "with_map": with_map,
        "overwrite": overwrite,
        "reporter": reporter,
    }
    if aspect == EVERY:
        with open_crew(on, reporter) as crew:
            spaces = _spaces(judged, opening, source, crew, reporter)
            reports = evaluate_spaces(spaces, asked, output, **how)
        _show_spaces(judged, asked, output, reports, json=json, quiet=quiet)
        return
    trained_on = data if suite == "aspects" and corpus is None else corpus
    own_corpus = data if suite in ("corpus", "intents") else None
    opened = _open(judged, opening, trained_on, own_corpus, made_from, seed, reporter)
    with open_crew(on, reporter) as crew:
        thing = opened if crew is None else Shared(opened, crew, source, judged, opening)
        report = verb.evaluate(thing, asked, output, **how)
    if json:
        print_json({**_shown(report), "output": str(output)})
    elif not quiet:
        print(_text(output, report))


def _spaces(
    name: str, opening: OpeningOptions, source: AskedSuite, crew: Crew | None, reporter: Reporter
) -> dict[str, Judged | Shared]:
    """A model in all its spaces, each shared with the crew where there is one."""
    from citeweave.evaluation.judging.opening import open_spaces
    from citeweave.evaluation.remote import Shared

    found = open_spaces(name, opening, reporter)
    if crew is None:
        return dict(found)
    return {
        space: Shared(judged, crew, source, name, replace(opening, aspect=space)) for space, judged in found.items()
    }


def _show_spaces(
    name: str, suite: Suite, output: Path, reports: Mapping[str, Report], *, json: bool, quiet: bool
) -> None:
    from citeweave.evaluation.spaces import spaces_as_text

    if json:
        print_json({"spaces": {space: _shown(report) for space, report in reports.items()}, "output": str(output)})
    elif not quiet:
        print(f"{output}: {name} on {suite.name}\n{spaces_as_text(reports)}")


def _shown(report: Report) -> dict[str, Any]:
    return {name: report.value[name] for name in _SHOWN if name in report.value}


def _open(
    name: str,
    options: OpeningOptions,
    corpus: Path | None,
    judged_corpus: Path | None,
    made_from: CorpusSuiteOptions,
    seed: int,
    reporter: Reporter,
) -> Judged:
    from citeweave.evaluation.judging.opening import open_judged

    if not name.startswith(BASELINE):
        return open_judged(name, options, reporter)
    folder = corpus or judged_corpus
    if folder is None:
        raise UserError(f"{name} is trained on a corpus; name one with --corpus")
    from citeweave.baselines.judging import judged_baseline
    from citeweave.corpus.corpus import Corpus
    from citeweave.evaluation.suites.corpus import training_graph

    opened = Corpus.open(folder)
    # what a suite made from this corpus asks for must not be learned from, wherever a copy of it lies
    is_same = judged_corpus is not None and Corpus.open(judged_corpus).hash == opened.hash
    graph = training_graph(opened, made_from if is_same else None)
    return judged_baseline(name.removeprefix(BASELINE), opened, graph, options, seed=seed, reporter=reporter)


def _text(folder: Path, report: Report) -> str:
    value: dict[str, Any] = dict(report.value)
    lines = [f"{folder}: {report.name} on {value['suite']}"]
    width = max(len(name) for name in value["metrics"])
    for name, number in value["metrics"].items():
        span = value["intervals"].get(name)
        lines.append(f"{name:<{width}} {number:6.2f}" + (f"  [{span[0]:.2f}, {span[1]:.2f}]" if span else ""))
    for task, why in value["not_evaluated"].items():
        lines.append(f"not evaluated: {task}: {why}")
    for task, counts in value["coverage"].items():
        # a search ranks its best papers alone, so that most pairs have no answer
        known = {"pairs without answer"} if value["tasks"][task]["kind"] == "search" else set()
        shown = {what: number for what, number in counts.items() if number and what not in known}
        gaps = [f"{number:,} {what}" for what, number in shown.items() if _is_gap(what)]
        if gaps:
            lines.append(f"{task}: {', '.join(gaps)}")
    lines += value["notes"]
    if about := value.get("map"):
        lines.append(f"map of {about['papers']:,} papers of {about['task']}: {folder / 'map.html'}")
    lines.append(f"tables and pictures: {folder / 'report.html'}")
    return "\n".join(lines)


def _is_gap(what: str) -> bool:
    return any(word in what for word in ("without", "zeros", "tie", "left out"))
