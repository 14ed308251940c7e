"""Which data a recipe needs of a corpus, checked before a run does anything, and where such data come from.

    specter_venue      venues                  otherwise it would train SPECTER unnoticed
    aspire_ot          citing sentences        and would train SPECTER first, for hours
    sciaspect          citation intents        or citing sentences, in which a classifier finds them
    signal_table       a table of co-views

A missing kind of data is one line: the recipe, the data, the corpus, the step. Looks at whole columns only; what single
papers lack is counted by the stages. Aspects of shared metadata are checked by `mining/inputs.py`, as some may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from citeweave.core.errors import UserError
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.options import CONTEXTS
from citeweave.corpus.readers import SOURCES_OF
from citeweave.graph.signals import SIGNALS
from citeweave.mining.rules import NODES
from citeweave.pipeline.recipe import Recipe, RecipeOptions, read_recipe
from citeweave.pipeline.run_folder import AUTO, RunOptions
from citeweave.pipeline.suites import LABELS
from citeweave.pipeline.training_stages import chained_recipes


def check_required_data(recipe: Recipe, corpus: Corpus, options: RunOptions) -> None:
    """Refuse a corpus that lacks data which a recipe, or one that it starts from, cannot do without."""
    for each in (recipe, *chained_recipes(recipe).values()):
        for data, step in _missing_data(read_recipe(each), corpus, options):
            raise UserError(f"recipe {each.label} needs {data}, and {corpus.folder} has none; {step}")


def _missing_data(read: RecipeOptions, corpus: Corpus, options: RunOptions) -> Iterator[tuple[str, str]]:
    """Yield the kinds of data that a corpus lacks for a recipe, each with the step that provides them."""
    rules, columns = read.rules, {"venue": corpus.venues, "authors": corpus.authors}
    for part in read.encoder.text:
        if part in columns and not columns[part].lengths().any():
            yield f"the {part} of papers (encoder.text)", _import(part.removesuffix("s"))
    if not corpus.abstracts.lengths().any() and any(part.text == "abstract" for part in rules.parts):
        yield "abstracts (mining.text)", f"{_import('abstract')}; or set mining.text=title"
    by_citations = rules.needs_vectors(NODES) or any(
        rule.source in SIGNALS for part in rules.parts for rule in part.positives
    )
    if read.texts is None and not len(corpus.citing) and by_citations:
        yield "citations between papers", _import("citation")
    nearby = any(rule.source == "cocited_nearby" and not rule.optional for rule in rules.all_rules)
    by_context = rules.from_contexts or (read.texts is not None and read.texts.of == CONTEXTS)
    if not len(corpus.contexts) and (by_context or nearby):
        yield "citing sentences", _import("context")
    known = corpus.intents.any() or corpus.contexts.intents.any()
    if rules.needs_intents and options.intents == AUTO and not known and not len(corpus.contexts):
        step = f"or one with citing sentences, which are then classified: {SOURCES_OF['context']}"
        yield "citation intents", f"import a source that has them, Semantic Scholar citations, {step}"
    for name in dict.fromkeys(
        rule.table for rule in rules.all_rules if rule.table not in ("", LABELS, *options.tables)
    ):
        step = f"give a file of pairs with counts, such as those of a library's log: --table {name}=FILE"
        yield f"the table {name!r}", step


def _import(kind: str) -> str:
    return f"import a source that has them: {SOURCES_OF[kind]}"
