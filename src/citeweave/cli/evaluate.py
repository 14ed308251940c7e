"""The commands `evaluate`, `benchmark` and `compare`: systems on benchmarks."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import citeweave as cw
from citeweave.cli.options import CommonArguments, Given, On, OutputArguments, Seed
from citeweave.core.errors import UserError, choose
from citeweave.core.files import cache_folder, resolve_output, write_atomically
from citeweave.core.options import Flag, Positional, Range
from citeweave.evaluation.options import CorpusSuiteOptions, EvaluationOptions, OpeningOptions

if TYPE_CHECKING:
    from citeweave.core.executor import Executor
    from citeweave.evaluation.evaluate import SharedSystem
    from citeweave.evaluation.report import Report
    from citeweave.evaluation.suites import SuiteSpec
    from citeweave.evaluation.systems import System


BASELINE = "baseline:"
EVERY = "every"

_SHOWN = ("suite", "model", "metrics", "intervals", "coverage", "not_evaluated", "notes", "options", "data", "map")
"""Parts of the report that --json prints; `per_query` is left to the file."""

_GAPS = ("without", "zeros", "tie", "left out")
"""Words in the coverage of a report that say that something is missing."""


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(OutputArguments):
    system: Annotated[str, Positional("MODEL_OR_VECTORS")]
    """System to evaluate: a model (weave, minilm, a folder, a Hugging Face name), vectors (a folder, .jsonl, .npy, .parquet), scores (.run, .json), bm25, baseline:NAME, or baseline:use_lite=PACKAGE."""

    suite: str
    """Benchmark suite: scidocs, scirepeval, mdcr, csfcube, relish, treccovid_rf, beir, reviewers, corpus, intents, or aspects."""

    data: Path
    """Folder with the suite's files; for the suites corpus, intents and aspects, a corpus."""

    task: tuple[str, ...] = ()
    """Evaluate on this task only; may be repeated."""

    split: str = "test"
    """Split of the suite to evaluate on: test, val or dev."""

    options: EvaluationOptions
    opening: OpeningOptions = field(default_factory=lambda: OpeningOptions(runtime="auto"))
    corpus: Path | None = None
    """Corpus to train a baseline on; default: that of --data, for suites built from a corpus."""

    intents: Path | None = None
    """With --suite intents: folder from `citeweave annotate`; default: the corpus's own intents."""

    made_from: Annotated[Mapping[str, Any], Given(CorpusSuiteOptions, only=("held_out", "queries"))]
    papers: Annotated[int, Range(1)] = 1000
    """With --suite aspects: maximum number of papers to draw; queries are chosen from these."""

    pool_seed: int = 0
    """With --suite corpus, intents or aspects: seed for selecting held-out papers and random candidates."""

    with_map: Annotated[bool, Flag("--map")] = False
    """Also write map.html, a map of the papers in the first classification task."""

    on: On = ""


def evaluate(args: EvaluateArguments) -> None:
    """Evaluate a model, vectors or scores on a benchmark, and write a report; use --missing peers and --no-intercept to follow its published code."""
    from citeweave.evaluation.evaluate import SharedSystem, evaluate_spaces, spaces_as_text
    from citeweave.evaluation.open_system import own_distance
    from citeweave.evaluation.suites import SuiteSpec
    from citeweave.remote.ray_executor import open_executor

    aspect, reporter = args.opening.aspect, args.reporter
    if aspect and args.system.startswith(BASELINE):
        raise UserError(f"--aspect is {aspect!r}, and {args.system} is not a model; give a model with aspect heads")
    if args.on and args.system.startswith(BASELINE):
        raise UserError(
            f"--on is {args.on!r}, and {args.system} is trained by the process that evaluates it; leave --on out"
        )
    made_from = CorpusSuiteOptions(seed=args.pool_seed, **args.made_from)
    runtime = (
        "torch" if args.on and args.opening.runtime == "auto" else args.opening.runtime
    )  # workers do not choose one themselves
    opening = replace(args.opening, cache=cache_folder(args.opening.cache), runtime=runtime)
    source = SuiteSpec(args.suite, args.data, args.split, made_from, args.papers, args.intents)
    benchmark_suite = source.read(reporter)
    options = args.options
    if not (options.distance or aspect or args.system.startswith(BASELINE)):
        options = replace(options, distance=own_distance(args.system, benchmark_suite))
        opening = replace(opening, distance=options.distance)
    common = {"tasks": args.task, "options": options, "with_map": args.with_map, **args.writing}
    if aspect == EVERY:
        with open_executor(args.on, reporter) as executor:
            spaces = _spaces(args, opening, source, executor)
            reports = evaluate_spaces(spaces, benchmark_suite, args.output, **common)
        values = {space: _report_json(report) for space, report in reports.items()}
        text = f"{args.output}: {args.system} on {benchmark_suite.name}\n{spaces_as_text(reports)}"
        args.print({"spaces": values}, text)
        return
    opened = _open(args, opening, made_from)
    with open_executor(args.on, reporter) as executor:
        evaluated = opened if executor is None else SharedSystem(opened, executor, source, args.system, opening)
        report = cw.evaluate(evaluated, benchmark_suite, args.output, **common)
    args.print(_report_json(report), _text(args.output, report))


def _spaces(
    args: EvaluateArguments, opening: OpeningOptions, source: SuiteSpec, executor: Executor | None
) -> dict[str, System | SharedSystem]:
    """Open a model in all its aspect spaces, each shared with the executor if there is one."""
    from citeweave.evaluation.evaluate import SharedSystem
    from citeweave.evaluation.open_system import open_spaces

    systems = open_spaces(args.system, opening, args.reporter)
    if executor is None:
        return dict(systems)
    return {
        space: SharedSystem(system, executor, source, args.system, replace(opening, aspect=space))
        for space, system in systems.items()
    }


def _report_json(report: Report) -> dict[str, Any]:
    return {name: report.value[name] for name in _SHOWN if name in report.value}


def _open(args: EvaluateArguments, opening: OpeningOptions, made_from: CorpusSuiteOptions) -> System:
    """Open a model, vectors or scores, or train a baseline."""
    if not args.system.startswith(BASELINE):
        return cw.open_system(args.system, opening, args.reporter)
    from citeweave.baselines.fit import baseline_system
    from citeweave.baselines.use_lite import USE_LITE, UseLite
    from citeweave.evaluation.encoder_systems import EncoderSystem
    from citeweave.evaluation.suites.corpus_pools import training_graph

    name, _, package = args.system.removeprefix(BASELINE).partition("=")
    if name == USE_LITE:  # the only one that is not trained on a corpus
        return EncoderSystem(UseLite.open(Path(package)), cache=opening.cache, reporter=args.reporter)
    suite_corpus = args.data if args.suite in ("corpus", "intents") else None
    folder = args.corpus or (args.data if args.suite == "aspects" else suite_corpus)
    if folder is None:
        raise UserError(f"{args.system} is trained on a corpus; name one with --corpus")
    opened = cw.Corpus.open(folder)
    # held-out references of a suite made from this corpus must not be learned from, wherever a copy of it is
    is_same = suite_corpus is not None and cw.Corpus.open(suite_corpus).hash == opened.hash
    graph = training_graph(opened, made_from if is_same else None)
    return baseline_system(
        args.system.removeprefix(BASELINE), opened, graph, opening, seed=args.options.seed, reporter=args.reporter
    )


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
        gaps = [f"{number:,} {what}" for what, number in present.items() if any(word in what for word in _GAPS)]
        if gaps:
            lines.append(f"{task}: {', '.join(gaps)}")
    lines += value["notes"]
    if about := value.get("map"):
        lines.append(f"map of {about['papers']:,} papers of {about['task']}: {folder / 'map.html'}")
    lines.append(f"tables and plots: {folder / 'report.html'}")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class BenchmarkArguments(OutputArguments):
    name: Annotated[str, Positional()]
    """Benchmark to build: treccovid_rf (from TREC-COVID's files) or scitldr (a BEIR folder from papers with summaries)."""

    source: Annotated[Path, Positional()]
    """Folder with the published files."""

    seed: Seed = 0


def benchmark(args: BenchmarkArguments) -> None:
    """Build a benchmark's files from published data, for `citeweave evaluate`."""
    choose(args.name, ("treccovid_rf", "scitldr"), "benchmark")
    if args.name == "scitldr":
        from citeweave.core.artifact import read_manifest
        from citeweave.evaluation.suites.beir import KIND, VERSION, scitldr_to_beir

        folder = scitldr_to_beir(args.source, args.output, overwrite=args.overwrite)
        metadata: dict[str, object] = {"suite": "beir", **read_manifest(folder, KIND, VERSION).facts}
    else:
        from citeweave.evaluation.suites.treccovid_rf import RfOptions, build_treccovid_rf

        built = build_treccovid_rf(args.source, args.output, RfOptions(seed=args.seed), overwrite=args.overwrite)
        metadata = {"suite": "treccovid_rf", **asdict(built), "folder": str(built.folder)}
    command = f"citeweave evaluate MODEL --suite {metadata['suite']} --data {args.output} -o report/"
    args.print(metadata, f"{args.output}: evaluate with `{command}`")


@dataclass(frozen=True, kw_only=True)
class CompareArguments(CommonArguments):
    reports: Annotated[tuple[str, ...], Positional("REPORTS")]
    """Two or more report folders; use NAME=FOLDER with the same name for several seeds of one system."""

    metric: tuple[str, ...] = ()
    """Compare by this metric, such as all.map; may be repeated."""

    resamples: Annotated[int, Range(100)] = 10_000
    """Number of bootstrap resamples."""

    output: Annotated[Path | None, Flag("-o", "--output")] = None
    """File for the tables, .md or .html."""

    seed: Seed = 0


def compare(args: CompareArguments) -> None:
    """Compare evaluation reports and test differences: values with intervals, differences with corrected p-values, and a sentence for each."""
    from citeweave.evaluation.compare import comparison_as_markdown, comparison_as_page

    if args.output is not None and args.output.suffix not in (".md", ".html"):
        raise UserError(f"-o is {args.output}; a comparison is written as .md or .html")
    comparison = cw.compare(_systems(args.reports), metrics=args.metric, resamples=args.resamples, seed=args.seed)
    text = comparison_as_markdown(comparison)
    if args.output is not None:
        page = comparison_as_page(comparison) if args.output.suffix == ".html" else text
        write_atomically(resolve_output(args.output), page.encode())
    differences = [{**asdict(each), "significant": each.is_significant} for each in comparison.differences]
    args.print({**asdict(comparison), "differences": differences, "sentences": comparison.sentences}, text)


def _systems(reports: tuple[str, ...]) -> dict[str, list[Report]]:
    """Open reports by system: NAME=FOLDER, or each folder on its own."""
    systems: dict[str, list[Report]] = {}
    for text in reports:
        name, equals, folder = text.partition("=")
        if equals and not Path(text).is_dir():  # a folder may have an equals sign in its name
            systems.setdefault(name, []).append(cw.Report.open(folder))
            continue
        report = cw.Report.open(text)
        systems[_free_name([report.name, f"{report.name} ({text})"], systems)] = [report]
    return systems


def _free_name(names: list[str], taken: Container[str]) -> str:
    """Return the first name that is not taken, or the last one with a number.

    >>> _free_name(["a", "a (b)"], ["a"]), _free_name(["a", "a (b)"], ["a", "a (b)"])
    ('a (b)', 'a (b) 2')
    """
    more = (f"{names[-1]} {number}" for number in count(2))
    return next(name for name in chain(names, more) if name not in taken)
