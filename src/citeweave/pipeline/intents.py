"""The stage of intents: a run whose rules need them finds them in the citing sentences where nobody gave any.

    auto         those that the corpus has; where it has none but has citing sentences, a classifier reads these
    corpus       those that the corpus has
    sections     also those that headings of citing sentences tell
    FOLDER       an overlay of the corpus that the run is given

What is annotated is the corpus that is trained on: the sentences of held-out papers are gone from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.corpus.corpus import Corpus
from citeweave.mining.given_intents import GivenIntents
from citeweave.mining.rules import MiningRules
from citeweave.pipeline.options import AUTO, RunOptions
from citeweave.pipeline.run_folder import RunFolder
from citeweave.progress import Reporter

if TYPE_CHECKING:
    from citeweave.intents.annotating import Classifier
    from citeweave.intents.classifier import IntentClassifier

STAGE = "intents"


def intents_of(
    run: RunFolder, rules: MiningRules, corpus: Corpus, given: Corpus, options: RunOptions, reporter: Reporter
) -> GivenIntents:
    """Where the intents of a corpus come from; they are found where they must be. `given` is the user's corpus."""
    if not rules.needs_intents:
        return GivenIntents()
    if options.intents != AUTO:
        return GivenIntents(options.intents, given)
    if not must_be_found(rules, corpus):
        return GivenIntents()
    return GivenIntents(str(annotate_stage(run, corpus, _classifier(options), options, reporter)))


def must_be_found(rules: MiningRules, corpus: Corpus) -> bool:
    """Whether rules need intents that the corpus does not have, but may tell."""
    known = corpus.intents.any() or corpus.contexts.intents.any()
    return rules.needs_intents and not known and len(corpus.contexts) > 0


def key_of_intents(options: RunOptions) -> dict[str, Any]:
    """What a run's intents depend on, beside its corpus; nothing where all is as it is by default."""
    found: dict[str, Any] = {}
    if options.intents != AUTO:
        found["intents"] = GivenIntents(options.intents).source
    if options.classifier is not None:
        found["classifier"] = _classifier(options).hash
    return found


def annotate_stage(
    run: RunFolder, corpus: Corpus, classifier: Classifier, options: RunOptions, reporter: Reporter
) -> Path:
    """The folder of the overlay that a classifier makes of a corpus."""
    from citeweave.intents.annotating import annotate_intents

    def make(folder: Path) -> Mapping[str, Any]:
        number = f"{len(corpus.contexts):,} citing sentences"
        reporter.say(f"no citation has an intent: the classifier {classifier.name} reads {number}")
        made = annotate_intents(corpus, folder, classifier, overwrite=options.overwrite, reporter=reporter)
        return dict(made.manifest.facts)

    return run.run(STAGE, [corpus.hash, classifier.hash], make)


def _classifier(options: RunOptions) -> IntentClassifier:
    from citeweave.intents.classifier import IntentClassifier, default_classifier

    if options.classifier is None:
        return default_classifier()
    return IntentClassifier.open(options.classifier, device=options.device)
