"""The commands `audit`, `doctor`, `copy` and `cache`: leakage, installation, and object storage."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import citeweave as cw
from citeweave.cli.options import CommonArguments, Given, Overwrite
from citeweave.core.artifact import kind_of
from citeweave.core.errors import UserError
from citeweave.core.executor import total_memory
from citeweave.core.options import Flag, Named, Positional
from citeweave.corpus.options import LeakageOptions

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.leakage import LeakageReport
    from citeweave.mining.samples import Samples


def doctor(args: CommonArguments) -> None:
    """Show installed versions, optional packages and devices; downloads nothing."""
    report = _examine()
    args.print(report, _doctor_text(report))


def _examine() -> dict[str, Any]:
    """Collect what `doctor` shows about this machine."""
    from citeweave.core.errors import EXTRAS, missing
    from citeweave.version import __version__

    packages = (
        *("numpy", "numba", "orjson", "isal", "pyarrow", "sentencex"),
        *("torch", "transformers", "sentence-transformers"),
    )
    memory = total_memory()
    return {
        "citeweave": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "memory_gb": None if memory is None else round(memory / 2**30, 1),
        "free_disk_gb": round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        "packages": {name: _version(name) for name in packages},
        "extras": {extra: {"installed": not missing(extra), "missing": list(missing(extra))} for extra in EXTRAS},
        "devices": _devices(),
        "downloads": [],
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    """Describe the processor, and the accelerators that torch sees."""
    devices = [f"cpu ({os.cpu_count()} cores)"]
    if importlib.util.find_spec("torch") is None:
        return devices
    import torch

    devices += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return devices + (["mps"] if torch.backends.mps.is_available() else [])


def _doctor_text(report: dict[str, Any]) -> str:
    lines = [
        f"citeweave {report['citeweave']}, Python {report['python']}, {report['platform']}",
        f"{report['cores']} cores, {report['memory_gb'] or 'unknown'} GB memory, {report['free_disk_gb']} GB free disk here",
        "devices: " + ", ".join(report["devices"]),
        "packages: " + ", ".join(f"{name} {version or 'missing'}" for name, version in report["packages"].items()),
    ]
    for extra, state in report["extras"].items():
        hint = f"missing {', '.join(state['missing'])}: pip install 'citeweave[{extra}]'"
        lines.append(f"extra {extra}: {'installed' if state['installed'] else hint}")
    lines.append("downloads: no command downloads anything by itself")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class CopyArguments(CommonArguments):
    source: Annotated[str, Positional()]
    """Source: a folder, a file, or an address such as s3://bucket/corpus."""

    target: Annotated[str, Positional()]
    """Target: an address or a local path."""

    overwrite: bool = False
    """Replace an existing target once the copy is complete."""


def copy(args: CopyArguments) -> None:
    """Copy an artifact to or from object storage; only missing files are transferred, and an interrupted copy resumes."""
    from citeweave.remote.push import copy as copy_artifact

    done = copy_artifact(args.source, args.target, overwrite=args.overwrite, reporter=args.reporter)
    args.print(
        {"target": done.target, "files": done.files, "bytes": done.bytes, "sent": done.sent},
        f"{done.target}: {done.files:,} files, {done.bytes:,} bytes; {done.sent:,} transferred",
    )


@dataclass(frozen=True, kw_only=True)
class CacheArguments(CommonArguments):
    clear: bool = False
    """Remove everything that is not in use."""


def cache(args: CacheArguments) -> None:
    """Show or clear the cache: models and vectors kept for later commands, and artifacts fetched from object storage."""
    from citeweave.core.caches import clear_parts, list_parts
    from citeweave.core.files import cache_folder
    from citeweave.remote.fetch import clear_cache_entry, list_cache

    entries, parts = list_cache(), list_parts()
    removed = [entry for entry in entries if args.clear and clear_cache_entry(entry)]
    if args.clear:
        clear_parts()
    left = sum(part.bytes for part in list_parts()) + sum(entry.bytes for entry in entries if entry not in removed)
    payload = {
        "cache": str(cache_folder()),
        "kept": [{**entry._asdict(), "folder": str(entry.folder), "removed": entry in removed} for entry in entries],
        "parts": [part._asdict() for part in parts],
        "bytes": left,
    }
    state = ", removed" if args.clear else ""
    lines = [f"{part.name} ({part.content}): {part.entries:,}, {part.bytes:,} bytes{state}" for part in parts]
    for entry in entries:
        day = time.strftime("%Y-%m-%d", time.gmtime(entry.used))
        state = "removed" if entry in removed else "in use, kept" if args.clear else f"used {day}"
        lines.append(f"{entry.address}: {entry.bytes:,} bytes, {entry.versions} versions, {state}")
    args.print(payload, "\n".join([*lines, f"{cache_folder()}: {left:,} bytes"]))


@dataclass(frozen=True, kw_only=True)
class AuditArguments(CommonArguments):
    folder: Annotated[Path, Positional()]
    """Folder of a corpus or of samples."""

    against: Annotated[Mapping[str, Path], Named("csfcube=data/csfcube")] = field(default_factory=dict)
    """NAME=PATH of a benchmark's papers; may be repeated."""

    options: Annotated[Mapping[str, Any], Given(LeakageOptions, only=("same_id_space", "near_duplicates"))]

    show: int = 0
    """Number of matches or collisions to list."""

    output: Annotated[Path | None, Flag("-o", "--output")] = None
    """Output folder for a corpus without the matched papers."""

    corpus: Path | None = None
    """For samples: their corpus, if it has moved."""

    graph: Path | None = None
    """For samples: folder of a graph, to measure distances."""

    pictures: Path | None = None
    """For samples: folder for plots."""

    overwrite: Overwrite = False


def audit(args: AuditArguments) -> None:
    """Audit a corpus for benchmark papers, or training samples for contradictions and false negatives.

    In a corpus: the papers of benchmarks, by id, DOI, title and near-duplicate text; exclude them with -o. In samples:
    collisions (pairs both positive and negative), negatives that are related or copies, repeats, coverage, leaks.
    """
    if kind_of(args.folder) == "samples":
        report = _audit_samples_folder(args)
        args.print(report.as_json(), str(report))
        return
    for option, value in (("--corpus", args.corpus), ("--graph", args.graph), ("--pictures", args.pictures)):
        if value is not None:
            raise UserError(f"{option} is for auditing samples, but {args.folder} holds none; leave it out")
    opened = cw.Corpus.open(args.folder)
    if not args.against:
        raise UserError("auditing a corpus needs --against NAME=PATH, such as --against csfcube=data/csfcube")
    _audit_corpus(args, opened)


def _audit_samples_folder(args: AuditArguments) -> Any:
    """Run `citeweave audit` on a folder of samples, with the corpus and graph that they were mined from by default."""
    from citeweave.corpus.leakage import load_paper_table
    from citeweave.mining.audit import AuditOptions, draw_audit

    samples = cw.Samples.open(args.folder)
    opened = _corpus_of(samples, args.corpus)
    place = args.graph or args.folder.with_name(f"{args.folder.name}-graph")
    built = cw.CitationGraph.open(place) if args.graph is not None or kind_of(place) == "graph" else None
    vectors = {"graph": cw.Vectors.open(place / "vectors")} if built and (place / "vectors").is_dir() else {}
    if built is None:
        built = cw.graph_from_edges(opened.citing, opened.cited, len(opened), intents=opened.intents)
    report = cw.audit_samples(
        samples,
        opened,
        graph=built,
        vectors=vectors,
        benchmarks={name: load_paper_table(path) for name, path in args.against.items()},
        near_duplicates=args.options.get("near_duplicates", True),
        options=AuditOptions(examples=args.show),
        reporter=args.reporter,
    )
    if args.pictures is not None:
        for path in draw_audit(report, args.pictures):
            args.reporter.say(f"drawn: {path}")
    return report


def _corpus_of(samples: Samples, corpus: Path | None) -> Corpus:
    place = corpus or Path(str(samples.manifest.facts.get("corpus_folder", "")))
    if corpus is None and kind_of(place) != "corpus":
        raise UserError(f"{samples.folder} was mined from a corpus that is no longer at {place}; name it with --corpus")
    return cw.Corpus.open(place)


def _audit_corpus(args: AuditArguments, corpus: Corpus) -> None:
    """Search a corpus for the papers of benchmarks, and write it without them if there is an output folder."""
    from citeweave.corpus.leakage import PaperTable, audit_leakage, load_paper_table

    benchmarks = {name: load_paper_table(path) for name, path in args.against.items()}
    report = audit_leakage(PaperTable.of_corpus(corpus), benchmarks, LeakageOptions(**args.options))
    result: dict[str, Any] = report.as_json()
    lines = [str(report)]
    if args.show:
        result["matches"] = {name: _matches(corpus, benchmarks[name], report, name, args.show) for name in benchmarks}
        lines += [
            f"{name}: {m['paper']} = {m['benchmark_paper']} ({m['evidence']})\n  {m['title']}\n  {m['benchmark_title']}"
            for name, matches in result["matches"].items()
            for m in matches
        ]
    if args.output is not None:
        rows, why = report.rows_to_exclude(), f"papers of {', '.join(report.benchmarks)}"
        cw.exclude_papers(corpus, rows, args.output, why=why, overwrite=args.overwrite)
        result["excluded"] = len(rows)
        args.reporter.say(f"{args.output}: the corpus without {len(rows):,} papers")
    args.print(result, "\n".join(lines))


def _matches(corpus: Corpus, papers: Any, report: LeakageReport, name: str, show: int) -> list[dict[str, Any]]:
    return [
        {
            "paper": corpus.ids[match.corpus_row],
            "title": corpus.titles[match.corpus_row],
            "benchmark_paper": papers.ids[match.benchmark_row],
            "benchmark_title": papers.titles[match.benchmark_row],
            "evidence": str(match.strongest.name).lower(),
        }
        for match in list(report.benchmarks[name])[:show]
    ]
