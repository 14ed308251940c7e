"""citeweave audit, where the folder holds samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.artefacts.manifest import kind_of
from citeweave.cli.options import named_paths, print_json
from citeweave.errors import UserError

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.samples import Samples
    from citeweave.progress import Reporter


def audit_samples_folder(
    folder: Path,
    *,
    corpus: Path | None,
    graph: Path | None,
    against: list[str],
    near_duplicates: bool,
    show: int,
    pictures: Path | None,
    reporter: Reporter,
) -> Any:
    """Audit samples against the corpus they were mined from; what is not named is found where mining left it."""
    from citeweave.corpus.leakage.benchmark_papers import papers_of
    from citeweave.graph.citations import CitationGraph, graph_from_edges
    from citeweave.mining.auditing.audit import AuditOptions, audit_samples
    from citeweave.mining.auditing.pictures import pictures as draw
    from citeweave.mining.samples import Samples
    from citeweave.similarity.vectors import Vectors

    samples = Samples.open(folder)
    opened = _corpus_of(samples, corpus)
    place = graph or folder.with_name(f"{folder.name}-graph")
    built = CitationGraph.open(place) if graph is not None or kind_of(place) == "graph" else None
    vectors = {"graph": Vectors.open(place / "vectors")} if built and (place / "vectors").is_dir() else {}
    if built is None:
        built = graph_from_edges(opened.citing, opened.cited, len(opened), intents=opened.intents)
    benchmarks = {
        name: papers_of(path) for name, path in named_paths(against, "--against", "csfcube=data/csfcube").items()
    }
    report = audit_samples(
        samples,
        opened,
        graph=built,
        vectors=vectors,
        benchmarks=benchmarks,
        near_duplicates=near_duplicates,
        options=AuditOptions(examples=show),
        reporter=reporter,
    )
    if pictures is not None:
        for path in draw(report, pictures):
            reporter.say(f"drawn: {path}")
    return report


def print_report(report: Any, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(report.as_json())
    elif not quiet:
        print(report)


def _corpus_of(samples: Samples, corpus: Path | None) -> Corpus:
    from citeweave.corpus.corpus import Corpus

    place = corpus or Path(str(samples.manifest.facts.get("corpus_folder", "")))
    if corpus is None and kind_of(place) != "corpus":
        raise UserError(f"{samples.folder} was mined from a corpus that is no longer at {place}; name it with --corpus")
    return Corpus.open(place)
