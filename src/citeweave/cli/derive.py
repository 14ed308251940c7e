"""citeweave derive"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from citeweave.cli.options import Debug, Json, Output, Overwrite, Quiet, Seed, print_json, reporter_of, table
from citeweave.errors import UserError, choose

_Corpus = Annotated[Path, typer.Argument(help="Folder of a corpus.", show_default=False)]
_Texts = Annotated[
    str,
    typer.Option(
        "--texts",
        help="contexts: citing sentences; cloze: sentences and rests of abstracts; titles: papers, titles and abstracts.",
        show_default=False,
    ),
]
_Set = Annotated[
    list[str],
    typer.Option("--set", help="KEY=VALUE of a recipe's [texts], such as per_paper=1; may be repeated."),
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
    """Make a corpus whose papers are other texts: citing sentences, parts of abstracts, titles."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.derived.deriving import KINDS_DERIVED, derive_corpus, texts_options
    from citeweave.recipe import read_overrides

    choose(texts, KINDS_DERIVED, "--texts")
    for entry in set_:
        if "=" not in entry:
            raise UserError(f"--set is {entry!r}; it must be KEY=VALUE, such as per_paper=1")
    given = read_overrides([f"texts.{entry.removeprefix('texts.')}" for entry in set_]).get("texts", {})
    options = texts_options({"of": texts, "seed": seed, **given})
    made = derive_corpus(Corpus.open(corpus), output, options, overwrite=overwrite, reporter=reporter_of(quiet or json))
    facts: dict[str, Any] = made.manifest.facts["derived"]
    if json:
        print_json({**facts, "papers in all": len(made), "citations": len(made.citing), "output": str(output)})
    elif not quiet:
        print(f"{output}: {texts} of {corpus} as a corpus\n{_text(facts, len(made), len(made.citing))}")


def _text(facts: dict[str, Any], entries: int, citations: int) -> str:
    names = [name for name, value in facts.items() if isinstance(value, int)]
    rows: list[tuple[str, object]] = [(name, facts[name]) for name in names]
    rows += [("entries, hubs counted", entries), ("citations between them", citations)]
    rows += [(f"  left out: {reason}", number) for reason, number in facts["rejected"].items()]
    return table(rows)
