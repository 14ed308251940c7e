"""What a classifier is worth on labelled sentences: with their sections, without them, and how far it can be trusted.

    report = evaluate_classifier(default_classifier(), read_labelled([path], split="dev"))
    report["macro_f1"], report["without_sections"]["macro_f1"], report["calibration"]["error"], report["decided"]["share"]

Measures are in percent, calibration errors are shares. Does not choose anything on the sentences it is given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from citeweave.errors import UserError
from citeweave.intents.calibration import expected_calibration_error, intent_bits, negative_log_likelihood, softmax
from citeweave.intents.labelled import LabelledSet
from citeweave.intents.measures import judge
from citeweave.progress import QUIET, Reporter

if TYPE_CHECKING:
    from citeweave.intents.classifier import IntentClassifier


def evaluate_classifier(
    classifier: IntentClassifier, found: LabelledSet, *, reporter: Reporter = QUIET
) -> dict[str, Any]:
    """A report that can be written as JSON."""
    known = classifier.config.labels.get(found.task) or classifier.labels
    if known != found.labels:
        raise UserError(
            f"classifier {classifier.name} knows {', '.join(known)}, and the sentences are labelled with "
            f"{', '.join(found.labels)}; give the label set that it was trained on, or --as-three for ACL-ARC's six"
        )
    task = found.task if found.task in classifier.tasks else classifier.config.task
    labels = np.array([example.label for example in found.examples], np.int64)  # (sentences,)
    citances = [example.citance for example in found.examples]
    logits = classifier.logits(citances, task=task, reporter=reporter)  # (sentences, labels)
    temperature = classifier.config.temperature if task == classifier.config.task else 1.0
    probabilities = softmax(logits, temperature)  # (sentences, labels)
    report = {
        "classifier": classifier.name,
        "hash": classifier.hash,
        "task": task,
        **judge(logits.argmax(axis=1), labels, found.labels),
        "records": found.counts(),
        "calibration": {
            "error": round(expected_calibration_error(probabilities, labels), 4),
            "error_before": round(expected_calibration_error(softmax(logits), labels), 4),
            "log_loss": round(negative_log_likelihood(logits, labels, temperature), 4),
            "temperature": temperature,
        },
    }
    if any(citance.section for citance in citances):
        bare = [replace(citance, section="") for citance in citances]
        hidden = classifier.logits(bare, task=task, reporter=reporter)  # (sentences, labels)
        report["without_sections"] = judge(hidden.argmax(axis=1), labels, found.labels)
    if task == classifier.config.task:
        report["decided"] = _decided(classifier, probabilities, labels)
    return report


def _decided(classifier: IntentClassifier, probabilities: Any, labels: Any) -> dict[str, float]:
    """What `decide` makes of the probabilities at the classifier's own thresholds, in percent."""
    bits = classifier.decide(probabilities)  # (sentences,)
    true = intent_bits(classifier.labels)[labels]  # (sentences,)
    some = bits > 0
    several = some & ((bits & (bits - 1)) > 0)  # more than one bit
    return {
        "share": _percent(some.mean()),
        "with_the_true_intent": _percent(((bits & true) > 0)[some].mean() if some.any() else 0.0),
        "with_several_intents": _percent(several.mean()),
    }


def _percent(value: float) -> float:
    return round(100 * float(value), 2)
