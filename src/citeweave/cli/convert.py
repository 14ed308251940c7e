"""citeweave convert"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from citeweave.cli.options import Debug, Json, Overwrite, Quiet, print_json, reporter_of, table
from citeweave.errors import UserError

_Inputs = Annotated[
    list[Path],
    typer.Argument(help="A folder of samples to write out, or files to make samples of.", show_default=False),
]
_Corpus = Annotated[
    Path, typer.Option("--corpus", help="Folder of the corpus whose papers they name.", show_default=False)
]
_Output = Annotated[Path, typer.Option("-o", "--output", help="Folder to write to.", show_default=False)]
_To = Annotated[str | None, typer.Option("--to", help="Write as scincl, specter, scirepeval or sentence_transformers.")]
_From = Annotated[str | None, typer.Option("--from", help="Format of the files to read; guessed where not given.")]
_Gzip = Annotated[bool, typer.Option("--gzip", help="scincl: compress the triples.")]
_LeaveOut = Annotated[
    list[str] | None, typer.Option("--leave-out", help="specter: rule whose negatives stay out; without it, easy.")
]
_Val = Annotated[float, typer.Option("--val", help="specter: share of the queries for val.txt.")]
_Test = Annotated[float, typer.Option("--test", help="specter: share of the queries for test.txt.")]
_Columns = Annotated[
    str, typer.Option("--columns", help="sentence_transformers: one negative a row (triplet), or all (group).")
]
_Negatives = Annotated[
    int, typer.Option("--negatives", help="sentence_transformers, group: negatives a row; 0 = what most rows have.")
]
_FileType = Annotated[str, typer.Option("--file-type", help="sentence_transformers: parquet or jsonl.")]
_Ids = Annotated[bool, typer.Option("--ids", help="sentence_transformers: also columns of ids, to read rows back.")]


def convert(
    inputs: _Inputs,
    corpus: _Corpus,
    output: _Output,
    to: _To = None,
    from_: _From = None,
    gzip: _Gzip = False,
    leave_out: _LeaveOut = None,
    val: _Val = 0.0,
    test: _Test = 0.0,
    columns: _Columns = "triplet",
    negatives: _Negatives = 0,
    file_type: _FileType = "parquet",
    ids: _Ids = False,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write samples in another project's format, or make samples of its files; every record is accounted for."""
    from citeweave.artefacts.manifest import MANIFEST
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.converting.convert import export_samples, import_samples
    from citeweave.mining.converting.options import ExportOptions
    from citeweave.mining.samples import Samples

    exports = len(inputs) == 1 and (inputs[0] / MANIFEST).is_file()
    _check_direction(inputs[0], exports=exports, to=to, from_=from_)
    left_out = ExportOptions().leave_out if leave_out is None else tuple(leave_out)
    options = ExportOptions(gzip, left_out, val, test, columns, negatives, file_type, ids)
    if not exports and options != ExportOptions():
        raise UserError(f"options of an export are given, but {inputs[0]} is no folder of samples; leave them out")
    papers, reporter = Corpus.open(corpus), reporter_of(quiet or json)
    result: dict[str, Any]
    if exports and to is not None:
        source = Samples.open(inputs[0])
        result = export_samples(source, papers, output, to=to, options=options, overwrite=overwrite, reporter=reporter)
    else:
        samples = import_samples(inputs, papers, output, format=from_, overwrite=overwrite, reporter=reporter)
        result = {"samples": len(samples), **samples.manifest.facts}
    if json:
        print_json({**result, "output": str(output)})
    elif not quiet:
        print(f"{_account(result)}\n{output}: {', '.join(result['files']) if exports else f'{len(samples):,} samples'}")


def _check_direction(first: Path, *, exports: bool, to: str | None, from_: str | None) -> None:
    """--to is for a folder of samples, --from for files."""
    if exports and to is None:
        raise UserError(f"{first} is an artefact of citeweave: say with --to in which format to write its samples")
    if exports and from_ is not None:
        raise UserError(f"--from is for files of another format; {first} is an artefact of citeweave: leave it out")
    if not exports and to is not None:
        raise UserError(
            f"--to writes one folder of samples, and {first} is none; leave it out to make samples of files"
        )


def _account(result: dict[str, Any]) -> str:
    """The account of every record, as a table."""
    rows: list[tuple[str, object]] = []
    for kind, count in result["records"].items():
        rows += [(f"{kind} read", count["read"]), (f"{kind} kept", count["kept"])]
        rows += [(f"  not kept: {reason}", number) for reason, number in count["rejected"].items()]
    rows += [(f"note: {what}", number) for what, number in result["notes"].items()]
    return table(rows)
