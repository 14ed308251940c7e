"""`derive_corpus`: a corpus whose papers are other texts of a corpus, so that all that works on papers works on them.

    texts = derive_corpus(Corpus.open("corpus/"), "texts/", DerivedTexts(of="contexts"))
    texts.ids[0], texts.abstracts[0]       ("context:12", "Graphs can be matched [3, 7].")

Texts that are derived have no title. What must not be told apart as a negative is related by textless hubs: see `contexts.py`,
`cloze.py` and `titles.py`. Graph, mining and training need nothing else; `mining.text = "either"` keeps hubs out of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from citeweave.core.artifact import matches, new_artifact
from citeweave.core.errors import UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.cloze import cloze_records, context_records, possible_contexts
from citeweave.corpus.corpus import KIND, VERSION, Corpus
from citeweave.corpus.derived_texts import (
    CLOZE,
    CONTEXTS,
    PAPERS,
    TITLES,
    DerivedRecords,
    DerivedTexts,
    texts_options,
    title_records,
)
from citeweave.corpus.ingest import build_corpus
from citeweave.corpus.merge import MergeOptions
from citeweave.corpus.staged_parts import PartWriter, StagedFile

KINDS_DERIVED = (CONTEXTS, CLOZE, TITLES)

__all__ = [
    "CLOZE",
    "CONTEXTS",
    "KINDS_DERIVED",
    "PAPERS",
    "TITLES",
    "DerivedTexts",
    "derive_corpus",
    "expected_texts",
    "texts_options",
]


def derive_corpus(
    corpus: Corpus,
    folder: str | Path,
    options: DerivedTexts,
    *,
    before: Corpus | None = None,
    untold: Sequence[str] = (),
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Corpus:
    """Write the texts of a corpus as a corpus; the same call again opens it.

    `before` is the corpus before papers left it, such as those of a benchmark: what they wrote is no text. `untold` are
    ids of papers whose title must not find its abstract, since a benchmark asks just that.
    """
    folder = Path(folder)
    if options.of == PAPERS:
        raise UserError(f"texts.of is {PAPERS!r}, which derives nothing; name {CONTEXTS}, {CLOZE} or {TITLES}")
    recipe = {"of": corpus.hash, "texts": options.as_recipe(), "before": None if before is None else before.hash}
    if untold:
        recipe["untold"] = hash_json(sorted(untold))
    if not matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            found = _derived_records(corpus, options, before, untold, reporter)
            part = PartWriter(writer.work("texts"), keep_ids=False)
            part.add(found.records)
            part.finish({"name": f"{options.of} of a corpus", "format": "derived"})
            # hubs are known only by their citations and must stay
            build_corpus(
                writer, [StagedFile(part.folder)], MergeOptions(same_title="never", outside="keep"), reporter=reporter
            )
            writer.facts |= {"derived": {"texts": options.of, "of": corpus.hash, **found.facts}}
            writer.finish()
    return Corpus.open(folder)


def _derived_records(
    corpus: Corpus, options: DerivedTexts, before: Corpus | None, untold: Sequence[str], reporter: Reporter
) -> DerivedRecords:
    if options.of == CONTEXTS:
        return context_records(corpus, options, before=before, reporter=reporter)
    if options.of == CLOZE:
        return cloze_records(corpus, options, reporter=reporter)
    return title_records(corpus, options, untold=untold, reporter=reporter)


@dataclass(frozen=True, slots=True)
class Expected:
    """How much would be derived, guessed without reading texts."""

    anchors: int
    characters: float
    """Mean length of a text, in bytes."""


def expected_texts(corpus: Corpus, options: DerivedTexts) -> Expected:
    """A guess for plans: at most so many texts that look for a partner."""
    if options.of == CONTEXTS:
        lengths = corpus.contexts.texts.lengths()[possible_contexts(corpus, options)]
        return Expected(len(lengths), float(lengths.mean()) if len(lengths) else 0.0)
    lengths = corpus.abstracts.lengths()
    lengths = lengths[lengths > 0]
    if options.of == TITLES:
        return Expected(len(corpus) + 2 * len(lengths), float(np.mean(lengths)) / 2 if len(lengths) else 0.0)
    # a sentence and its rest make one abstract: half of one in the mean
    return Expected(options.per_paper * len(lengths), float(np.mean(lengths)) / 2 if len(lengths) else 0.0)
