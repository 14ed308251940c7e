"""citeweave import"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from citeweave.cli.options import (
    Debug,
    Json,
    Memory,
    Output,
    Overwrite,
    Quiet,
    Workers,
    parse_size,
    print_json,
    reporter_of,
    table,
)
from citeweave.errors import UserError


def import_(
    inputs: Annotated[list[Path], typer.Argument(help="Files or folders, compressed or not.", show_default=False)],
    output: Output,
    format: Annotated[
        str | None, typer.Option("--format", help="Format of all files; guessed where not given.")
    ] = None,
    outside: Annotated[
        str, typer.Option("--outside", help="Papers known only as references: drop them, or keep them as rows.")
    ] = "drop",
    same_title: Annotated[
        str, typer.Option("--same-title", help="Merge records of equal title and year: across files, always, never.")
    ] = "across",
    update: Annotated[Path | None, typer.Option("--update", help="Corpus that the new one continues.")] = None,
    delete: Annotated[
        list[Path] | None,
        typer.Option("--delete", help="File whose papers and citations the update leaves out; may be repeated."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse folders with files that no reader takes; without it they are counted."),
    ] = False,
    vectors: Annotated[
        bool, typer.Option("--vectors", help="The files hold published vectors of papers; make a vectors folder.")
    ] = False,
    model: Annotated[str, typer.Option("--model", help="With --vectors: the model that made them.")] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="With --vectors: float16 or float32.")] = "float16",
    memory: Memory = "256MB",
    workers: Workers = 0,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make a corpus of files in any known format; every record is accounted for."""
    if vectors:
        if format or update or delete or strict or outside != "drop" or same_title != "across":
            raise UserError(
                "--vectors takes none of --format, --update, --delete, --outside, --same-title, --strict; leave them out"
            )
        _import_vectors(inputs, output, model, dtype, overwrite=overwrite, json=json, quiet=quiet)
        return
    if model or dtype != "float16":
        raise UserError("--model and --dtype are about vectors; add --vectors, or leave them out")
    from citeweave.corpus.importing import ImportOptions, import_papers
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


def _account(facts: dict[str, object]) -> str:
    """The account of every record, as a table."""
    rows: list[tuple[str, object]] = []
    for kind, count in facts["records"].items():  # type: ignore[attr-defined]
        rows.append((f"{kind} read", count["read"]))
        rows.append((f"{kind} kept", count["kept"]))
        rows += [(f"  not kept: {reason}", number) for reason, number in count["rejected"].items()]
    rows += [(f"rows: {name}", n) for name, n in (facts.get("changes") or {}).items()]  # type: ignore[attr-defined]
    rows += [(f"note: {what}", number) for what, number in facts["notes"].items()]  # type: ignore[attr-defined]
    files: dict[str, int] = facts["files"]  # type: ignore[assignment]
    if files["left_aside"]:
        rows += [("files left aside", files["left_aside"]), ("  bytes not read", files["bytes_not_read"])]
    return table(rows)


def _import_vectors(
    paths: list[Path], output: Path, model: str, dtype: str, *, overwrite: bool, json: bool, quiet: bool
) -> None:
    from citeweave.similarity.published import import_vectors

    reporter = reporter_of(quiet or json)
    vectors = import_vectors(paths, output, model=model, dtype=dtype, overwrite=overwrite, reporter=reporter)
    facts = vectors.manifest.facts
    if json:
        print_json({**facts, "output": str(output)})
    elif not quiet:
        count = facts["records"]["vectors"]
        rows: list[tuple[str, object]] = [("vectors read", count["read"]), ("vectors kept", count["kept"])]
        print(table([*rows, *((f"  not kept: {why}", n) for why, n in count["rejected"].items())]))
