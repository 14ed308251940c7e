"""The commands `import`, `info`, `synthesize` and `derive`: corpora and what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from citeweave.cli.options import (
    Debug,
    Json,
    Memory,
    Output,
    Overwrite,
    Quiet,
    Seed,
    Workers,
    format_share,
    parse_size,
    print_json,
    reporter_of,
    table,
)
from citeweave.core.errors import UserError, choose


def import_(
    inputs: Annotated[
        list[Path], typer.Argument(help="Files or folders to import, compressed or not.", show_default=False)
    ],
    output: Output,
    format: Annotated[
        str | None,
        typer.Option(
            "--format", help="Format of the input files, such as bibtex (see docs/corpus.md); detected by default."
        ),
    ] = None,
    outside: Annotated[
        str,
        typer.Option(
            "--outside",
            help="What to do with cited papers that are not among the inputs: drop, or keep (as papers, mostly without text).",
        ),
    ] = "drop",
    same_title: Annotated[
        str,
        typer.Option(
            "--same-title",
            help="When to merge records with the same title and year: across (only records from different files), always, or never.",
        ),
    ] = "across",
    update: Annotated[
        Path | None,
        typer.Option(
            "--update",
            help="Existing corpus to update; it stays unchanged, and the new one is written to the output folder.",
        ),
    ] = None,
    delete: Annotated[
        list[Path] | None,
        typer.Option("--delete", help="With --update: file listing papers or citations to delete; may be repeated."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail if an input folder contains files in an unrecognized format; by default they are counted and skipped.",
        ),
    ] = False,
    vectors: Annotated[
        bool,
        typer.Option("--vectors", help="Import precomputed (for example, published) paper vectors instead of papers."),
    ] = False,
    model: Annotated[str, typer.Option("--model", help="With --vectors: name of the model that computed them.")] = "",
    dtype: Annotated[
        str, typer.Option("--dtype", help="With --vectors: data type to store, float16 or float32.")
    ] = "float16",
    memory: Memory = "256MB",
    workers: Workers = 0,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Import files in any supported format into a corpus, and report how many records were kept or rejected, and why."""
    if vectors:
        if format or update or delete or strict or outside != "drop" or same_title != "across":
            raise UserError(
                "--vectors takes none of --format, --update, --delete, --outside, --same-title, --strict; leave them out"
            )
        _import_vectors(inputs, output, model, dtype, overwrite=overwrite, json=json, quiet=quiet)
        return
    if model or dtype != "float16":
        raise UserError("--model and --dtype are about vectors; add --vectors, or leave them out")
    from citeweave.corpus.ingest import ImportOptions, import_papers
    from citeweave.corpus.summary import summarize

    options = ImportOptions(format, outside, same_title, parse_size(memory, "--memory"), workers, strict)
    reporter = reporter_of(quiet or json)
    imported = import_papers(
        inputs, output, options, update=update, delete=delete or [], overwrite=overwrite, reporter=reporter
    )
    for name, number in imported.inputs.formats().items():
        reporter.say(f"{name}: {number} {'file' if number == 1 else 'files'}{'' if format else ' (guessed)'}")
    for path, reason in imported.inputs.skipped.items():
        reporter.say(f"left aside: {path} ({reason})")
    if unknown := imported.corpus.manifest.facts.get("deletions_not_found"):
        reporter.say(f"warning: {unknown:,} papers or citations to delete are not in {update}")
    if imported.skipped:
        reporter.say(f"{output} already holds this corpus; nothing to do")
    if json:
        report = {**summarize(imported.corpus, samples=0), **imported.inputs.account()}
        print_json({**report, "output": str(output), "skipped": imported.skipped})
    elif not quiet:
        print(_account({**imported.corpus.manifest.facts, **imported.inputs.account()}))
        print(f"{output}: {len(imported.corpus):,} papers; `citeweave info {output}` shows more")


def _account(metadata: dict[str, object]) -> str:
    """Format the account of all imported records as a table."""
    rows: list[tuple[str, object]] = []
    for kind, count in metadata["records"].items():  # type: ignore[attr-defined]
        rows.append((f"{kind} read", count["read"]))
        rows.append((f"{kind} kept", count["kept"]))
        rows += [(f"  not kept: {reason}", number) for reason, number in count["rejected"].items()]
    rows += [(f"rows: {name}", n) for name, n in (metadata.get("changes") or {}).items()]  # type: ignore[attr-defined]
    rows += [(f"note: {what}", number) for what, number in metadata["notes"].items()]  # type: ignore[attr-defined]
    files: dict[str, int] = metadata["files"]  # type: ignore[assignment]
    if files["left_aside"]:
        rows += [("files left aside", files["left_aside"]), ("  bytes not read", files["bytes_not_read"])]
    return table(rows)


def _import_vectors(
    paths: list[Path], output: Path, model: str, dtype: str, *, overwrite: bool, json: bool, quiet: bool
) -> None:
    from citeweave.vectors.formats import import_vectors

    reporter = reporter_of(quiet or json)
    vectors = import_vectors(paths, output, model=model, dtype=dtype, overwrite=overwrite, reporter=reporter)
    metadata = vectors.manifest.facts
    if json:
        print_json({**metadata, "output": str(output)})
    elif not quiet:
        count = metadata["records"]["vectors"]
        rows: list[tuple[str, object]] = [("vectors read", count["read"]), ("vectors kept", count["kept"])]
        print(table([*rows, *((f"  not kept: {why}", n) for why, n in count["rejected"].items())]))


def info(
    corpus: Annotated[Path, typer.Argument(help="Folder of a corpus or of any other artifact.", show_default=False)],
    samples: Annotated[int, typer.Option("--samples", help="Number of sample papers to show.")] = 3,
    merges: Annotated[bool, typer.Option("--merges", help="Also list the records that were merged.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Verify the hash of every file first.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Summarize a corpus or another artifact: counts, coverage, years, degrees, rejected records and sample papers.

    Of a graph, samples, vectors, an encoder, an index or a report it shows what they are; --verify works for all.
    """
    from citeweave.core.artifact import check_files, kind_of
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.summary import list_merges, summarize
    from citeweave.search.state import is_index

    if kind_of(corpus) == "intents":
        _show_intents(corpus, verify=verify, json=json, quiet=quiet)
        return
    if kind_of(corpus) not in ("", "corpus") or is_index(corpus):
        _show_other(corpus, verify=verify, json=json, quiet=quiet)
        return
    opened = Corpus.open(corpus)
    if verify:
        check_files(opened.folder, opened.manifest, content=True)
    summary = summarize(opened, samples=samples)
    if merges:
        summary["merges"] = list_merges(opened)
    if json:
        print_json(summary)
    elif not quiet:
        print(_info_text(summary))
        if merges and not summary["merges"]:
            print("\nno records were merged")


def _show_intents(folder: Path, *, verify: bool, json: bool, quiet: bool) -> None:
    from citeweave.cli.intents import overlay_text
    from citeweave.core.artifact import check_files
    from citeweave.graph.intent_overlay import IntentOverlay

    overlay = IntentOverlay.open(folder)
    if verify:
        check_files(folder, overlay.manifest, content=True)
    if json:
        print_json({"kind": "intents", **overlay.manifest.facts, "hash": overlay.hash})
    elif not quiet:
        print(overlay_text(folder, overlay.manifest.facts))


def _show_other(folder: Path, *, verify: bool, json: bool, quiet: bool) -> None:
    from citeweave.search.build import describe_folder

    description = describe_folder(folder, verify=verify)
    if json:
        print_json(description)
    elif not quiet:
        print(table([(name, value) for name, value in description.items() if name != "facts"]))


def _info_text(summary: dict[str, Any]) -> str:
    papers = summary["papers"]
    rows: list[tuple[str, object]] = [("papers", papers)]
    rows += [
        (f"  with {name}", format_share(summary[key], papers))
        for name, key in (("title", "titles"), ("abstract", "abstracts"), ("year", "with_year"))
    ]
    rows += [
        ("citations", summary["citations"]),
        ("  with intent", format_share(summary["citations_with_intent"], summary["citations"])),
    ]
    rows += [
        ("contexts", summary["contexts"]),
        ("  citing two or more of the papers", summary["contexts_with_two_or_more_papers"]),
    ]
    rows += [("references to papers outside", summary["references_outside"])]
    for name in ("references_per_paper", "citations_per_paper"):
        degrees = summary[name]
        rows.append(
            (
                name.replace("_", " "),
                f"mean {degrees['mean']:.2f}, median {degrees['median']}, largest {degrees['largest']:,}",
            )
        )
    rows.append(("years", _years(summary["years"])))
    blocks = [table(rows)]
    if summary["made_up"]:
        blocks.insert(0, "This literature is synthetic: no paper in it exists.")
    for title, entries in (
        ("not kept", summary["rejected"]),
        ("notes", summary["notes"]),
        ("changes", summary["changes"]),
        ("left aside, not read", summary["skipped_files"]),
    ):
        if entries:
            blocks.append(f"{title}:\n{table([(f'  {what}', n) for what, n in entries.items()])}")
    blocks += [_sample(sample) for sample in summary["samples"]]
    blocks += [
        f"{m['paper']} = " + ", ".join(f"{r['id']} ({r['file']})" for r in m["records"])
        for m in summary.get("merges", [])
    ]
    return "\n\n".join(blocks)


def _years(years: dict[str, int]) -> str:
    known = sorted(int(year) for year in years if year != "unknown")
    return f"{known[0]} to {known[-1]}" if known else "unknown"


def _sample(sample: dict[str, Any]) -> str:
    lines = [f"{sample['id']}: {sample.get('title', '(no title)')}"]
    about = [str(sample[key]) for key in ("year", "venue") if key in sample]
    if "authors" in sample:
        about.append(", ".join(sample["authors"][:3]) + (" and others" if len(sample["authors"]) > 3 else ""))
    if about:
        lines.append("  " + "; ".join(about))
    if "abstract" in sample:
        lines.append(f"  {sample['abstract'][:160]}...")
    return "\n".join(lines)


def synthesize(
    output: Output,
    papers: Annotated[int, typer.Option("--papers", help="Number of papers to generate.")] = 2000,
    references: Annotated[float, typer.Option("--references", help="Mean number of references per paper.")] = 10.0,
    sharers: Annotated[
        int, typer.Option("--sharers", help="Number of papers that share a problem, method or finding.")
    ] = 40,
    noise: Annotated[float, typer.Option("--noise", help="Fraction of citations drawn at random.")] = 0.05,
    contexts: Annotated[float, typer.Option("--contexts", help="Fraction of mentions with a citing sentence.")] = 0.75,
    cocited: Annotated[
        float, typer.Option("--cocited", help="Probability that a mention shares its sentence with the previous one.")
    ] = 0.35,
    bare: Annotated[float, typer.Option("--without-abstract", help="Fraction of papers without an abstract.")] = 0.03,
    first_year: Annotated[int, typer.Option("--first-year", help="Year of the earliest papers.")] = 1990,
    last_year: Annotated[int, typer.Option("--last-year", help="Year of the latest papers.")] = 2024,
    seed: Seed = 0,
    memory: Memory = "256MB",
    workers: Workers = 0,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Generate a synthetic corpus with ground truth for problems, methods, findings and citation intents."""
    from citeweave.corpus.summary import summarize
    from citeweave.corpus.synthetic.literature import SyntheticOptions
    from citeweave.corpus.synthetic.synthesize import synthesize as write

    options = SyntheticOptions(papers, seed, references, sharers, noise, contexts, cocited, bare, first_year, last_year)
    corpus = write(
        output,
        options,
        workers=workers,
        memory=parse_size(memory, "--memory"),
        overwrite=overwrite,
        reporter=reporter_of(quiet or json),
    )
    if json:
        print_json({**summarize(corpus, samples=0), "output": str(output)})
    elif not quiet:
        counts = {"papers": len(corpus), "citations": len(corpus.citing), "contexts": len(corpus.contexts)}
        print(f"{output}: a synthetic literature; no paper in it exists\n{table(list(counts.items()))}")


_Corpus = Annotated[Path, typer.Argument(help="Corpus folder.", show_default=False)]
_Texts = Annotated[
    str,
    typer.Option(
        "--texts",
        help="Texts to derive: contexts (citing sentences), cloze (a sentence and the rest of its abstract), or titles (titles and abstracts apart).",
        show_default=False,
    ),
]
_Set = Annotated[
    list[str],
    typer.Option("--set", help="KEY=VALUE of the recipe table [texts], such as per_paper=1; may be repeated."),
]


def derive(
    corpus: _Corpus,
    texts: _Texts,
    output: Output,
    set_: _Set = [],  # noqa: B006
    seed: Seed = 0,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Derive a corpus of citing sentences, parts of abstracts, or titles, to train on."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.derive import KINDS_DERIVED, derive_corpus, parse_texts_options
    from citeweave.pipeline.recipe import read_overrides

    choose(texts, KINDS_DERIVED, "--texts")
    for entry in set_:
        if "=" not in entry:
            raise UserError(f"--set is {entry!r}; it must be KEY=VALUE, such as per_paper=1")
    overrides = read_overrides([f"texts.{entry.removeprefix('texts.')}" for entry in set_]).get("texts", {})
    options = parse_texts_options({"of": texts, "seed": seed, **overrides})
    derived = derive_corpus(
        Corpus.open(corpus), output, options, overwrite=overwrite, reporter=reporter_of(quiet or json)
    )
    metadata: dict[str, Any] = derived.manifest.facts["derived"]
    if json:
        print_json({**metadata, "papers in all": len(derived), "citations": len(derived.citing), "output": str(output)})
    elif not quiet:
        print(f"{output}: {texts} of {corpus} as a corpus\n{_derive_text(metadata, len(derived), len(derived.citing))}")


def _derive_text(metadata: dict[str, Any], entries: int, citations: int) -> str:
    names = [name for name, value in metadata.items() if isinstance(value, int)]
    rows: list[tuple[str, object]] = [(name, metadata[name]) for name in names]
    rows += [("entries, including hubs", entries), ("citations between them", citations)]
    rows += [(f"  left out: {reason}", number) for reason, number in metadata["rejected"].items()]
    return table(rows)
