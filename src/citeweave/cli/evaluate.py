"""The commands `evaluate`, `benchmark` and `compare`: systems on benchmarks."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, On, Output, Overwrite, Quiet, Seed, print_json, reporter_of
from citeweave.core.errors import UserError, choose
from citeweave.core.files import cache_folder, resolve_output, write_atomically

if TYPE_CHECKING:
    from citeweave.core.executor import Executor
    from citeweave.core.progress import Reporter
    from citeweave.evaluation.compare import Comparison
    from citeweave.evaluation.open_system import OpeningOptions
    from citeweave.evaluation.report import Report
    from citeweave.evaluation.run_tasks import SharedSystem
    from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions
    from citeweave.evaluation.suites.registry import SuiteSpec
    from citeweave.evaluation.systems import System
    from citeweave.evaluation.tasks import Suite


BASELINE = "baseline:"
EVERY = "every"

_SHOWN = ("suite", "model", "metrics", "intervals", "coverage", "not_evaluated", "notes", "options", "data", "map")
"""Parts of the report that --json prints; `per_query` is left to the file."""

_System = Annotated[
    str,
    typer.Argument(
        metavar="MODEL_OR_VECTORS",
        help="System to evaluate: a model (weave, minilm, a folder, a Hugging Face name), vectors (a folder, .jsonl, .npy, .parquet), scores (.run, .json), bm25, or baseline:NAME.",
        show_default=False,
    ),
]
_Suite = Annotated[
    str,
    typer.Option(
        "--suite",
        help="Benchmark suite: scidocs, scirepeval, mdcr, csfcube, relish, treccovid_rf, beir, reviewers, corpus, intents, or aspects.",
        show_default=False,
    ),
]
_Data = Annotated[
    Path,
    typer.Option(
        "--data",
        help="Folder with the suite's files; for the suites corpus, intents and aspects, a corpus.",
        show_default=False,
    ),
]
_Tasks = Annotated[
    list[str], typer.Option("--task", help="Evaluate on this task only; may be repeated.", show_default=False)
]
_Split = Annotated[str, typer.Option("--split", help="Split of the suite to evaluate on: test, val or dev.")]
_Distance = Annotated[
    str,
    typer.Option(
        "--distance",
        help="Distance between papers (see docs/sentences.md). With one vector: cosine, l2, dot. With sentence vectors: single (nearest pair), mean_best, top2, attention, transport. With tokens: token_best. Or a sum such as mean_best+token_best. Default: the protocol's.",
        show_default=False,
    ),
]
_Missing = Annotated[
    str,
    typer.Option(
        "--missing",
        help="How to score papers without a vector: wrong (as wrong) or peers (as each benchmark's published code does).",
    ),
]
_Intercept = Annotated[
    bool,
    typer.Option(
        "--intercept/--no-intercept",
        help="Fit linear probes (classifiers and regressors on vectors) with an intercept; --no-intercept fits them as the published code does.",
    ),
]
_Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        help="For vectors read from a file: convert them to float16, float32 or float64.",
        show_default=False,
    ),
]
_Pooling = Annotated[
    str | None,
    typer.Option("--pooling", help="For a model: how to pool tokens: cls, mean or layers.", show_default=False),
]
_Runtime = Annotated[
    str,
    typer.Option(
        "--runtime", help="Runtime of the model: auto (the fastest here), torch, openvino or int8 (8-bit arithmetic)."
    ),
]
_MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", help="For a model: maximum number of tokens per text.", show_default=False)
]
_Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature", help="Softmax temperature of the distances attention and transport.", show_default=False
    ),
]
_SentenceMetric = Annotated[
    str,
    typer.Option(
        "--sentence-metric", help="Distance between sentence vectors that sentence distances use: l2 or cosine."
    ),
]
_DocumentVector = Annotated[
    bool,
    typer.Option(
        "--document-vector",
        help="With a model and a sentence distance: treat the vector of the whole paper as another sentence.",
    ),
]
_Aspect = Annotated[
    str,
    typer.Option(
        "--aspect",
        help="For a model with aspects: one aspect, such as method; all (concatenated); matching (the aspect that each query asks about); or every (each of these in turn, one report each).",
        show_default=False,
    ),
]
_Map = Annotated[
    bool, typer.Option("--map", help="Also write map.html, a map of the papers in the first classification task.")
]
_Corpus = Annotated[
    Path | None,
    typer.Option(
        "--corpus",
        help="Corpus to train a baseline on; default: that of --data, for suites built from a corpus.",
        show_default=False,
    ),
]
_HeldOut = Annotated[
    str,
    typer.Option(
        "--held-out",
        help="With --suite corpus or intents: papers whose references are held out: share:0.1 (a random tenth) or year:2016 (from 2016 on).",
    ),
]
_Intents = Annotated[
    Path | None,
    typer.Option(
        "--intents",
        help="With --suite intents: folder from `citeweave annotate`; default: the corpus's own intents.",
        show_default=False,
    ),
]
_PoolSeed = Annotated[
    int,
    typer.Option(
        "--pool-seed",
        help="With --suite corpus, intents or aspects: seed for selecting held-out papers and random candidates.",
    ),
]
_Queries = Annotated[
    int, typer.Option("--queries", help="With --suite corpus, intents or aspects: maximum number of queries per task.")
]
_Papers = Annotated[
    int,
    typer.Option(
        "--papers", help="With --suite aspects: maximum number of papers to draw; queries are chosen from these."
    ),
]
_Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Folder for cached vectors of models; default: $CITEWEAVE_CACHE or ~/.cache/citeweave.",
        show_default=False,
    ),
]

_Seed = Annotated[
    int, typer.Option("--seed", help="Random seed of baselines, of the click model of SciDocs, and of --map.")
]


def evaluate(
    system: _System,
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
    document_vector: _DocumentVector = False,
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
    seed: _Seed = 0,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Evaluate a model, vectors or scores on a benchmark, and write a report; use --missing peers and --no-intercept to follow its published code."""
    from citeweave.evaluation import evaluate as verb
    from citeweave.evaluation.evaluate import evaluate_spaces
    from citeweave.evaluation.open_system import OpeningOptions
    from citeweave.evaluation.run_tasks import SharedSystem
    from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions
    from citeweave.evaluation.suites.registry import SuiteSpec
    from citeweave.remote.ray_executor import open_executor

    if aspect and system.startswith(BASELINE):
        raise UserError(f"--aspect is {aspect!r}, and {system} is not a model; give a model with aspect heads")
    if on and system.startswith(BASELINE):
        raise UserError(f"--on is {on!r}, and {system} is trained by the process that evaluates it; leave --on out")
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
        document_vector,
        aspect,
        "torch" if on and runtime == "auto" else runtime,  # workers do not choose a runtime themselves
    )
    source = SuiteSpec(suite, data, split, made_from, papers, intents)
    benchmark_suite = source.read(reporter)
    common: dict[str, Any] = {
        "tasks": task,
        "options": options,
        "with_map": with_map,
        "overwrite": overwrite,
        "reporter": reporter,
    }
    if aspect == EVERY:
        with open_executor(on, reporter) as executor:
            spaces = _spaces(system, opening, source, executor, reporter)
            reports = evaluate_spaces(spaces, benchmark_suite, output, **common)
        _show_spaces(system, benchmark_suite, output, reports, json=json, quiet=quiet)
        return
    trained_on = data if suite == "aspects" and corpus is None else corpus
    own_corpus = data if suite in ("corpus", "intents") else None
    opened = _open(system, opening, trained_on, own_corpus, made_from, seed, reporter)
    with open_executor(on, reporter) as executor:
        evaluated = opened if executor is None else SharedSystem(opened, executor, source, system, opening)
        report = verb.evaluate(evaluated, benchmark_suite, output, **common)
    if json:
        print_json({**_report_json(report), "output": str(output)})
    elif not quiet:
        print(_text(output, report))


def _spaces(
    name: str, opening: OpeningOptions, source: SuiteSpec, executor: Executor | None, reporter: Reporter
) -> dict[str, System | SharedSystem]:
    """Open a model in all its aspect spaces, each shared with the executor if there is one."""
    from citeweave.evaluation.open_system import open_spaces
    from citeweave.evaluation.run_tasks import SharedSystem

    systems = open_spaces(name, opening, reporter)
    if executor is None:
        return dict(systems)
    return {
        space: SharedSystem(system, executor, source, name, replace(opening, aspect=space))
        for space, system in systems.items()
    }


def _show_spaces(
    name: str, suite: Suite, output: Path, reports: Mapping[str, Report], *, json: bool, quiet: bool
) -> None:
    from citeweave.evaluation.evaluate import spaces_as_text

    if json:
        print_json(
            {"spaces": {space: _report_json(report) for space, report in reports.items()}, "output": str(output)}
        )
    elif not quiet:
        print(f"{output}: {name} on {suite.name}\n{spaces_as_text(reports)}")


def _report_json(report: Report) -> dict[str, Any]:
    return {name: report.value[name] for name in _SHOWN if name in report.value}


def _open(
    name: str,
    options: OpeningOptions,
    corpus: Path | None,
    suite_corpus: Path | None,
    made_from: CorpusSuiteOptions,
    seed: int,
    reporter: Reporter,
) -> System:
    from citeweave.evaluation.open_system import open_system

    if not name.startswith(BASELINE):
        return open_system(name, options, reporter)
    folder = corpus or suite_corpus
    if folder is None:
        raise UserError(f"{name} is trained on a corpus; name one with --corpus")
    from citeweave.baselines.fit import baseline_system
    from citeweave.corpus.corpus import Corpus
    from citeweave.evaluation.suites.from_corpus import training_graph

    opened = Corpus.open(folder)
    # held-out references of a suite made from this corpus must not be learned from, wherever a copy of it is
    is_same = suite_corpus is not None and Corpus.open(suite_corpus).hash == opened.hash
    graph = training_graph(opened, made_from if is_same else None)
    return baseline_system(name.removeprefix(BASELINE), opened, graph, options, seed=seed, reporter=reporter)


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
        # a search ranks only its best papers, so most pairs have no score
        expected = {"pairs without an answer"} if value["tasks"][task]["kind"] == "search" else set()
        present = {what: number for what, number in counts.items() if number and what not in expected}
        gaps = [f"{number:,} {what}" for what, number in present.items() if _is_gap(what)]
        if gaps:
            lines.append(f"{task}: {', '.join(gaps)}")
    lines += value["notes"]
    if about := value.get("map"):
        lines.append(f"map of {about['papers']:,} papers of {about['task']}: {folder / 'map.html'}")
    lines.append(f"tables and plots: {folder / 'report.html'}")
    return "\n".join(lines)


def _is_gap(what: str) -> bool:
    return any(word in what for word in ("without", "zeros", "tie", "left out"))


_Name = Annotated[
    str,
    typer.Argument(
        help="Benchmark to build: treccovid_rf (from TREC-COVID's files) or scitldr (a BEIR folder from papers with summaries).",
        show_default=False,
    ),
]
_Source = Annotated[Path, typer.Argument(help="Folder with the published files.", show_default=False)]


def benchmark(
    name: _Name,
    source: _Source,
    output: Output,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Build a benchmark's files from published data, for `citeweave evaluate`."""
    choose(name, ("treccovid_rf", "scitldr"), "benchmark")
    if name == "scitldr":
        from citeweave.core.artifact import read_manifest
        from citeweave.evaluation.suites.beir import KIND, VERSION, scitldr_to_beir

        folder = scitldr_to_beir(source, output, overwrite=overwrite)
        metadata: dict[str, object] = {"suite": "beir", **read_manifest(folder, KIND, VERSION).facts}
    else:
        from citeweave.evaluation.suites.treccovid_rf import RfOptions, build_treccovid_rf

        built = build_treccovid_rf(source, output, RfOptions(seed=seed), overwrite=overwrite)
        metadata = {"suite": "treccovid_rf", **asdict(built), "folder": str(built.folder)}
    if json:
        print_json({**metadata, "output": str(output)})
    elif not quiet:
        print(
            f"{output}: evaluate with `citeweave evaluate MODEL --suite {metadata['suite']} --data {output} -o report/`"
        )


_Reports = Annotated[
    list[str],
    typer.Argument(
        metavar="REPORTS",
        help="Two or more report folders; use NAME=FOLDER with the same name for several seeds of one system.",
        show_default=False,
    ),
]
_Metrics = Annotated[
    list[str],
    typer.Option("--metric", help="Compare by this metric, such as all.map; may be repeated.", show_default=False),
]
_Resamples = Annotated[int, typer.Option("--resamples", help="Number of bootstrap resamples.")]
_Page = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="File for the tables, .md or .html.", show_default=False),
]


def compare(
    reports: _Reports,
    metric: _Metrics = [],  # noqa: B006
    resamples: _Resamples = 10_000,
    output: _Page = None,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare evaluation reports and test differences: values with intervals, differences with corrected p-values, and a sentence for each."""
    from citeweave.evaluation import compare as verb
    from citeweave.evaluation.comparison_page import comparison_as_markdown

    if resamples < 100:
        raise UserError(f"--resamples is {resamples}; it must be at least 100 for an interval")
    if output is not None and output.suffix not in (".md", ".html"):
        raise UserError(f"-o is {output}; a comparison is written as .md or .html")
    comparison = verb.compare(_systems(reports), metrics=metric, resamples=resamples, seed=seed)
    text = comparison_as_markdown(comparison)
    if output is not None:
        _write(output, comparison, text)
    if json:
        payload = asdict(comparison)
        payload["differences"] = [
            {**asdict(each), "significant": each.is_significant} for each in comparison.differences
        ]
        print_json({**payload, "sentences": comparison.sentences})
    elif not quiet:
        print(text)


def _systems(reports: list[str]) -> dict[str, list[Report]]:
    """Open reports by system: NAME=FOLDER, or each folder on its own."""
    from citeweave.evaluation.report import Report

    systems: dict[str, list[Report]] = {}
    for text in reports:
        name, equals, folder = text.partition("=")
        if equals and not Path(text).is_dir():  # a folder may have an equals sign in its name
            systems.setdefault(name, []).append(Report.open(folder))
            continue
        report = Report.open(text)
        systems[_free_name([report.name, f"{report.name} ({text})"], systems)] = [report]
    return systems


def _free_name(names: list[str], taken: Container[str]) -> str:
    """Return the first name that is not taken, or the last one with a number.

    >>> _free_name(["a", "a (b)"], ["a"]), _free_name(["a", "a (b)"], ["a", "a (b)"])
    ('a (b)', 'a (b) 2')
    """
    more = (f"{names[-1]} {number}" for number in count(2))
    return next(name for name in chain(names, more) if name not in taken)


def _write(path: Path, comparison: Comparison, text: str) -> None:
    from citeweave.evaluation.comparison_page import comparison_as_page

    write_atomically(
        resolve_output(path), (comparison_as_page(comparison) if path.suffix == ".html" else text).encode()
    )
