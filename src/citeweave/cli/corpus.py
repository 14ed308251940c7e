"""The commands `import`, `info`, `synthesize` and `derive`: corpora and what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import citeweave as cw
from citeweave.cli.options import (
    CommonArguments,
    CorpusFolder,
    Memory,
    OutputArguments,
    Seed,
    Workers,
    account_rows,
    format_share,
    print_json,
    read_keys,
    rejected_rows,
    table,
)
from citeweave.core.errors import UserError
from citeweave.core.options import OneOf, Positional, changed, parse_table
from citeweave.core.progress import MAX_ENTRIES, MERGED, MergedEntry, rejected_entries
from citeweave.corpus.options import CLOZE, CONTEXTS, TITLES, DerivedTexts, ImportOptions, SyntheticOptions

_MAX_ENTRIES = 20
"""Entries left out, and entries merged, that are printed."""

_MERGED = " (merged)"
"""How reasons of records end that were merged with others."""


@dataclass(frozen=True, kw_only=True)
class ImportArguments(OutputArguments):
    inputs: Annotated[tuple[Path, ...], Positional()]
    """Files or folders to import, compressed or not."""

    options: ImportOptions
    update: Path | None = None
    """Existing corpus to update; it stays unchanged, and the new one is written to the output folder."""

    delete: tuple[Path, ...] = ()
    """With --update: file listing papers or citations to delete; may be repeated."""

    vectors: bool = False
    """Import precomputed (for example, published) paper vectors instead of papers."""

    model: str = ""
    """With --vectors: name of the model that computed them."""

    dtype: str = "float16"
    """With --vectors: data type to store, float16 or float32."""


def import_(args: ImportArguments) -> None:
    """Import files in any supported format into a corpus, and report how many records were kept or rejected, and why."""
    if args.vectors:
        if args.update or args.delete or changed(args.options):
            raise UserError(
                "--vectors takes no options of importing papers, such as --format, --update and --strict; leave them out"
            )
        _import_vectors(args)
        return
    if args.model or args.dtype != "float16":
        raise UserError("--model and --dtype are about vectors; add --vectors, or leave them out")
    from citeweave.corpus.corpus import summarize

    reporter = args.reporter
    imported = cw.import_papers(
        args.inputs, args.output, args.options, update=args.update, delete=args.delete, **args.writing
    )
    for name, number in imported.inputs.formats().items():
        reporter.say(
            f"{name}: {number} {'file' if number == 1 else 'files'}{'' if args.options.format else ' (guessed)'}"
        )
    for path, reason in imported.inputs.skipped.items():
        reporter.say(f"skipped: {path} ({reason})")
    if unknown := imported.corpus.manifest.facts.get("deletions_not_found"):
        reporter.say(f"warning: {unknown:,} papers or citations to delete are not in {args.update}")
    if imported.skipped:
        reporter.say(f"{args.output} already holds this corpus; nothing to do")
    if args.json:
        report = {**summarize(imported.corpus, samples=0), **imported.inputs.account()}
        print_json({**report, "output": str(args.output), "skipped": imported.skipped})
    elif not args.quiet:
        print(_account({**imported.corpus.manifest.facts, **imported.inputs.account()}))
        for lines in _entry_texts(imported.corpus.manifest.facts, args.output):
            print(lines)
        print(f"{args.output}: {len(imported.corpus):,} papers; `citeweave info {args.output}` shows more")


def _account(metadata: dict[str, Any]) -> str:
    """Format the account of all imported records as a table."""
    rows = list(account_rows(metadata["records"]))
    rows += [(f"rows: {name}", number) for name, number in (metadata.get("changes") or {}).items()]
    rows += [(f"note: {what}", number) for what, number in metadata["notes"].items()]
    files = metadata["files"]
    if files["left_aside"]:
        rows += [("files skipped", files["left_aside"]), ("  bytes not read", files["bytes_not_read"])]
    return table(rows)


def _entry_texts(metadata: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yield lists of the entries that an import names: those left out, and those of bibliographies that were merged."""
    rejected = metadata["records"]["papers"]["rejected"]
    merged = rejected.get(MERGED, 0)
    lost = [str(entry) for entry in rejected_entries(metadata)]
    named = [str(MergedEntry(**entry)) for entry in metadata.get("merged_entries", [])]
    for title, entries, number in (
        ("entries left out:", lost, sum(rejected.values()) - merged),
        ("entries merged (all their data is kept):", named, merged),
    ):
        if entries:
            shown = entries[:_MAX_ENTRIES]
            more = number - len(shown)
            hint = f"`citeweave info {folder} --json` names up to {MAX_ENTRIES}"
            hidden = [f"and {more:,} more; {hint}"] if more > 0 else []
            yield "\n".join([title, *(f"  {line}" for line in [*shown, *hidden])])


def _import_vectors(args: ImportArguments) -> None:
    vectors = cw.import_vectors(args.inputs, args.output, model=args.model, dtype=args.dtype, **args.writing)
    metadata = vectors.manifest.facts
    args.print(metadata, table(account_rows({"vectors": metadata["records"]["vectors"]})))


@dataclass(frozen=True, kw_only=True)
class InfoArguments(CommonArguments):
    corpus: Annotated[Path, Positional()]
    """Folder of a corpus or of any other artifact."""

    samples: int = 3
    """Number of sample papers to show."""

    merges: bool = False
    """Also list the records that were merged."""

    verify: bool = False
    """Verify the hash of every file first."""


def info(args: InfoArguments) -> None:
    """Summarize a corpus or another artifact: counts, coverage, years, degrees, rejected records and sample papers.

    Of an index: papers, vectors, model, size, last change. Of a graph, samples, vectors, an encoder or a report: what it is.
    --verify works for all.
    """
    from citeweave.cli.intents import overlay_text
    from citeweave.core.artifact import check_files, kind_of
    from citeweave.corpus.corpus import list_merges, summarize
    from citeweave.search.describe import describe_folder
    from citeweave.search.state import is_index

    if kind_of(args.corpus) == "intents":
        overlay = cw.IntentOverlay.open(args.corpus)
        if args.verify:
            check_files(args.corpus, overlay.manifest, content=True)
        metadata = overlay.manifest.facts
        args.print({"kind": "intents", **metadata, "hash": overlay.hash}, overlay_text(args.corpus, metadata))
        return
    if kind_of(args.corpus) not in ("", "corpus") or is_index(args.corpus):
        description = describe_folder(args.corpus, verify=args.verify)
        rows = _index_rows(description) if description["kind"] == "index" else description.items()
        args.print(description, table((name, value) for name, value in rows if name != "facts"))
        return
    opened = cw.Corpus.open(args.corpus)
    if args.verify:
        check_files(opened.folder, opened.manifest, content=True)
    summary = summarize(opened, samples=args.samples)
    if args.merges:
        summary["merges"] = list_merges(opened)
    none = "\n\nno records were merged" if args.merges and not summary["merges"] else ""
    args.print(summary, _info_text(summary, args.corpus) + none)


def _info_text(summary: dict[str, Any], folder: Path) -> str:
    papers, citations, rejected = summary["papers"], summary["citations"], summary["rejected"]
    shares = (("title", "titles"), ("abstract", "abstracts"), ("year", "with_year"))
    rows: list[tuple[str, object]] = [
        ("papers", papers),
        *((f"  with {name}", format_share(summary[key], papers)) for name, key in shares),
        ("citations", citations),
        ("  with intent", format_share(summary["citations_with_intent"], citations)),
        ("contexts", summary["contexts"]),
        ("  citing two or more of the papers", summary["contexts_with_two_or_more_papers"]),
        ("references to papers outside", summary["references_outside"]),
    ]
    for name in ("references_per_paper", "citations_per_paper"):
        degrees = summary[name]
        spread = f"mean {degrees['mean']:.2f}, median {degrees['median']}, largest {degrees['largest']:,}"
        rows.append((name.replace("_", " "), spread))
    rows.append(("years", _year_range(summary["years"])))
    blocks = [table(rows)]
    if summary["made_up"]:
        blocks.insert(0, "This literature is synthetic: no paper in it exists.")
    for title, entries in (
        ("not kept", {what: n for what, n in rejected.items() if not what.endswith(_MERGED)}),
        ("merged", {what.removesuffix(_MERGED): n for what, n in rejected.items() if what.endswith(_MERGED)}),
        ("notes", summary["notes"]),
        ("changes", summary["changes"]),
        ("files skipped", summary["skipped_files"]),
    ):
        if entries:
            blocks.append(f"{title}:\n{table((f'  {what}', n) for what, n in entries.items())}")
    blocks += _entry_texts(summary, folder)
    blocks += [_sample(sample) for sample in summary["samples"]]
    blocks += [
        f"{m['paper']} = " + ", ".join(f"{r['id']} ({r['file']})" for r in m["records"])
        for m in summary.get("merges", [])
    ]
    return "\n\n".join(blocks)


def _year_range(years: dict[str, int]) -> str:
    """Format the first and the last year of papers.

    >>> _year_range({"1999": 1, "2021": 5, "unknown": 2}), _year_range({"unknown": 2})
    ('1999 to 2021', 'unknown')
    """
    known = sorted(int(year) for year in years if year != "unknown")
    return f"{known[0]} to {known[-1]}" if known else "unknown"


def _index_rows(index: dict[str, Any]) -> list[tuple[str, object]]:
    """Return what `info` shows of an index, row by row."""
    papers = index["papers"]
    rows: list[tuple[str, object]] = [
        ("papers", papers),
        ("  with abstract", format_share(index["with_abstract"], papers)),
        ("  with year", format_share(index["with_year"], papers)),
        ("  with vector", format_share(index["with_vector"], papers)),
        ("  no vector: no text", index["without_vector"]),
        ("  no vector yet", index["not_embedded"]),
        ("  known only as references", index["known_only_as_reference"]),
        ("  with vectors of their sentences", format_share(index["with_sentences"], papers)),
        ("  cited with a known intent", format_share(index["with_intents"], papers)),
        ("years", _year_range(index["years"])),
        ("references, also to papers outside", index["references"]),
        ("sentence vectors", index["sentence_vectors"]),
        ("citing sentences", index.get("sentences", 0)),
    ]
    aspects = zip(index["aspects"], index["aspect_dimensions"], strict=True)
    if index["model"]:
        rows += [
            ("model", index["model"]),
            ("  revision", index["revision"]),
            ("  vectors", f"{index['dimension']} dimensions, {index['dtype']}"),
            ("  aspect spaces", ", ".join(f"{name} ({width})" for name, width in aspects) or "none"),
            ("  runtime", index["runtime"]),
            ("  quantized codes", ", ".join(index["codes"]) or "none, as there are few vectors"),
        ]
    else:
        rows.append(("model", "none: words only"))
    rows += [
        ("map", _map_text(index)),
        ("generation", index["generation"]),
        ("last changed", index["changed_at"]),
        ("made from the corpus", index["corpus_name"]),
        ("files", index["files"]),
        ("bytes on disk, with maps", index["bytes_on_disk"]),
    ]
    return [*rows, *([("verified", index["verified"])] if "verified" in index else [])]


def _map_text(index: dict[str, Any]) -> str:
    if index["map"] is not None:
        groups = index["map"]["groups"]
        return f"{index['map']['papers']:,} papers in {groups} {'group' if groups == 1 else 'groups'}"
    return "of an earlier generation; renewed when the page shows it" if index["earlier_maps"] else "none yet"


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


@dataclass(frozen=True, kw_only=True)
class SynthesizeArguments(OutputArguments):
    options: SyntheticOptions
    memory: Memory = 2**28

    workers: Workers = 0


def synthesize(args: SynthesizeArguments) -> None:
    """Generate a synthetic corpus with ground truth for problems, methods, findings and citation intents."""
    from citeweave.corpus.corpus import summarize

    corpus = cw.synthesize(args.output, args.options, workers=args.workers, memory=args.memory, **args.writing)
    counts = table([("papers", len(corpus)), ("citations", len(corpus.citing)), ("contexts", len(corpus.contexts))])
    text = f"{args.output}: a synthetic literature; no paper in it exists\n{counts}"
    args.print(summarize(corpus, samples=0) if args.json else {}, text)


@dataclass(frozen=True, kw_only=True)
class DeriveArguments(OutputArguments):
    corpus: CorpusFolder
    texts: Annotated[str, OneOf(CONTEXTS, CLOZE, TITLES)]
    """Texts to derive: contexts (citing sentences), cloze (a sentence and the rest of its abstract), or titles (titles and abstracts apart)."""

    set_: tuple[str, ...] = ()
    """KEY=VALUE of the recipe table [texts], such as per_paper=1; may be repeated."""

    seed: Seed = 0


def derive(args: DeriveArguments) -> None:
    """Derive a corpus of citing sentences, parts of abstracts, or titles, to train on."""
    from citeweave.corpus.derive import derive_corpus

    values = {"of": args.texts, "seed": args.seed, **read_keys(args.set_, "texts")}
    options = parse_table(DerivedTexts, values, "texts")
    derived = derive_corpus(cw.Corpus.open(args.corpus), args.output, options, **args.writing)
    metadata: dict[str, Any] = derived.manifest.facts["derived"]
    entries, citations = len(derived), len(derived.citing)
    rows = [(name, value) for name, value in metadata.items() if isinstance(value, int)]
    rows += [("entries, including hubs", entries), ("citations between them", citations)]
    args.print(
        {**metadata, "papers in all": entries, "citations": citations},
        f"{args.output}: {args.texts} of {args.corpus} as a corpus\n{table([*rows, *rejected_rows(metadata, 'left out')])}",
    )
