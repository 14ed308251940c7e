"""citeweave info"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from citeweave.cli.options import Debug, Json, Quiet, print_json, table


def info(
    corpus: Annotated[
        Path, typer.Argument(help="Folder of a corpus, or of anything else that was made.", show_default=False)
    ],
    samples: Annotated[int, typer.Option("--samples", help="How many papers to show.")] = 3,
    merges: Annotated[bool, typer.Option("--merges", help="List the records that were merged into one paper.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check the hash of every file first.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show what a corpus holds: counts, coverage, years, degrees, rejected records, some papers; or what intents do.

    Of a graph, samples, vectors, an encoder, an index or a report it shows what they are; --verify works for all.
    """
    from citeweave.artefacts.integrity import check_files
    from citeweave.artefacts.manifest import kind_of
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
        print(_text(summary))
        if merges and not summary["merges"]:
            print("\nno records were merged")


def _show_intents(folder: Path, *, verify: bool, json: bool, quiet: bool) -> None:
    from citeweave.artefacts.integrity import check_files
    from citeweave.cli.annotate import overlay_text
    from citeweave.graph.intent_overlay import IntentOverlay

    overlay = IntentOverlay.open(folder)
    if verify:
        check_files(folder, overlay.manifest, content=True)
    if json:
        print_json({"kind": "intents", **overlay.manifest.facts, "hash": overlay.hash})
    elif not quiet:
        print(overlay_text(folder, overlay.manifest.facts))


def _show_other(folder: Path, *, verify: bool, json: bool, quiet: bool) -> None:
    from citeweave.search.verifying import describe_folder

    told = describe_folder(folder, verify=verify)
    if json:
        print_json(told)
    elif not quiet:
        print(table([(name, value) for name, value in told.items() if name != "facts"]))


def _text(summary: dict[str, Any]) -> str:
    papers = summary["papers"]
    rows: list[tuple[str, object]] = [("papers", papers)]
    rows += [
        (f"  with {name}", _share(summary[key], papers))
        for name, key in (("title", "titles"), ("abstract", "abstracts"), ("year", "with_year"))
    ]
    rows += [
        ("citations", summary["citations"]),
        ("  with intent", _share(summary["citations_with_intent"], summary["citations"])),
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
        blocks.insert(0, "This literature is made up: no paper in it exists.")
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


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / whole:.1f} %)" if whole else f"{part:,}"


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
