"""A trained intent classifier: open its folder, predict calibrated probabilities of intents, evaluate it.

    classifier = default_classifier()
    classifier.labels                                                   ("background", "method", "result")
    classifier.predict([Citance("We follow Och (2003).", section="Methods")])      (1, 3) float32, rows sum to 1

A folder holds the change of an encoder, not the encoder:

    config.json                        labels, pooling, temperature, thresholds
    delta.json, delta.safetensors      the encoder, its hash and its change (`encoders/delta.py`)
    heads.safetensors                  one linear layer per task
    README.md, manifest.json           training data, figures and options

Logits become probabilities by temperature scaling, and probabilities become intents by thresholds:

    temperature = fit_temperature(logits, labels)           on sentences that were not trained on
    probabilities = softmax(logits / temperature)
    decide(probabilities, ("background", "method", "result"), threshold=(0.4, 0.35, 0.3))

A sentence can have several intents; where no probability reaches its threshold, the intent is 0, unknown.
Does not train (`train.py`) and does not read a corpus (`annotate.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import Manifest, read_manifest
from citeweave.core.columns import is_finite
from citeweave.core.errors import ArtifactError, UserError, choose, require
from citeweave.core.files import hash_file, hash_json, read_input
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.paper import Intent, parse_intents
from citeweave.encoders.batches import NOT_SAVED, SavedBatches
from citeweave.intents import citances
from citeweave.intents.citances import Citance as Citance
from citeweave.intents.examples import LabeledSet
from citeweave.intents.options import POOLINGS

if TYPE_CHECKING:
    from citeweave.intents.network import IntentNetwork


Matrix = NDArray[np.floating]
_LOWEST, _HIGHEST = 0.25, 0.5
"""Range of fitted thresholds: a label with half of the probability always passes."""

_BINS = 15


def softmax(logits: Matrix, temperature: float = 1.0) -> NDArray[np.float32]:
    """Turn logits (texts, labels) into probabilities at a temperature; rows sum to 1."""
    scaled = np.asarray(logits, np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))  # (texts, labels)
    probabilities: NDArray[np.float32] = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return probabilities


def negative_log_likelihood(logits: Matrix, labels: NDArray[np.int64], temperature: float = 1.0) -> float:
    """Return the mean of -log p(label) over the sentences."""
    chosen = softmax(logits, temperature)[np.arange(len(labels)), labels]  # (texts,)
    return float(-np.log(np.maximum(chosen.astype(np.float64), 1e-12)).mean())


def fit_temperature(logits: Matrix, labels: NDArray[np.int64]) -> float:
    """Fit a classifier's temperature to the least log loss, at most a factor 20 either way (Guo et al., ICML 2017, 4.2)."""
    from scipy.optimize import minimize_scalar

    if not len(labels):
        return 1.0
    found = minimize_scalar(
        lambda power: negative_log_likelihood(logits, labels, float(np.exp(power))),
        bounds=(np.log(0.05), np.log(20.0)),
        method="bounded",
        options={"xatol": 1e-7},
    )
    return float(np.exp(found.x))


def expected_calibration_error(probabilities: Matrix, labels: NDArray[np.int64]) -> float:
    """Return a classifier's mean gap between confidence and accuracy over bins of confidence (Guo et al. 2017, eq. 3).

    >>> expected_calibration_error(np.array([[0.75, 0.25]] * 4), np.array([0, 0, 0, 1]))
    0.0
    """
    if not len(labels):
        return 0.0
    confidence = probabilities.max(axis=1).astype(np.float64)  # (texts,)
    correct = probabilities.argmax(axis=1) == labels  # (texts,)
    binned = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(binned, confidence - correct, _BINS)  # (bins,) sums of confidence - accuracy
    return float(np.abs(gaps).sum() / len(labels))


def cross_fit_probabilities(logits: Matrix, labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Calibrate a classifier on each half of the sentences with the temperature of the other, as on unseen sentences."""
    half = np.arange(len(labels)) % 2 == 0  # (texts,)
    probabilities = np.zeros(logits.shape, np.float32)
    for own in (half, ~half):
        if own.any():
            probabilities[own] = softmax(logits[own], fit_temperature(logits[~own], labels[~own]))
    return probabilities


def fit_thresholds(probabilities: Matrix, labels: NDArray[np.int64]) -> tuple[float, ...]:
    """Fit a classifier's threshold of each label, 0.25 to 0.5, to the highest F1 against the rest; ties go higher."""
    grid = np.arange(_LOWEST, _HIGHEST + 1e-9, 0.01)
    thresholds = []
    for label in range(probabilities.shape[1]):
        truth = labels == label  # (texts,)
        passed = probabilities[:, label][:, None] >= grid  # (texts, thresholds)
        hits = (passed & truth[:, None]).sum(axis=0)  # (thresholds,)
        f1 = 2 * hits / np.maximum(passed.sum(axis=0) + truth.sum(), 1)
        best = len(grid) - 1 - int(np.argmax(f1[::-1]))
        thresholds.append(round(float(grid[best]), 2))
    return tuple(thresholds)


def intent_bits(labels: Sequence[str]) -> NDArray[np.uint8]:
    """Return the bit of the intent of every label of a classifier, (labels,).

    >>> intent_bits(("background", "method", "result")).tolist()
    [1, 2, 4]
    """
    bits = [parse_intents(label) for label in labels]
    if Intent.UNKNOWN in bits:
        raise UserError(
            f"the label {labels[bits.index(Intent.UNKNOWN)]!r} is not an intent; train on intents to annotate"
        )
    return np.array(bits, np.uint8)


def decide(
    probabilities: Matrix,
    labels: Sequence[str] = ("background", "method", "result"),
    threshold: float | Sequence[float] = 0.5,
) -> NDArray[np.uint8]:
    """Decide a classifier's intents of every sentence as bits, (texts,): labels that reach their `threshold`.

    `threshold` is one for all labels, or one for each.

    >>> decide(np.array([[0.9, 0.05, 0.05], [0.45, 0.45, 0.1], [0.34, 0.33, 0.33]]), threshold=0.4).tolist()
    [1, 3, 0]
    """
    thresholds = np.broadcast_to(np.asarray(threshold, np.float64), (len(labels),))  # (labels,)
    if not ((thresholds > 0) & (thresholds <= 1)).all():
        raise UserError(f"the threshold of an intent is {threshold}; it must be greater than 0 and at most 1")
    passed = probabilities >= thresholds  # (texts, labels)
    bits: NDArray[np.uint8] = np.bitwise_or.reduce(np.where(passed, intent_bits(labels), np.uint8(0)), axis=1)
    return bits


# The classifier and its folder

KIND, VERSION = "intent_classifier", 2
CONFIG, FILES = "config.json", ("config.json", "delta.safetensors", "heads.safetensors")
"""Files that decide the predictions; delta.json has a seal of its own, and the path of its base may be edited."""

DEFAULT = "default"
RUNTIMES = ("auto", "torch", "int8")
MIN_TEMPERATURE = 1e-3
"""Lower bound in a valid config; calibration never goes below 0.05."""

_DEFAULT_FOLDER = Path(__file__).parent / "default"


@dataclass(frozen=True, slots=True)
class ClassifierConfig:
    """Contents of a classifier's config.json: labels, pooling, temperature, thresholds."""

    task: str
    labels: Mapping[str, tuple[str, ...]]
    """Labels by task; the main task's are the classifier's."""

    pooling: str
    temperature: float
    thresholds: tuple[float, ...]
    marking_version: int = citances.VERSION

    @classmethod
    def read(cls, path: Path) -> ClassifierConfig:
        """Read and check the config.json of a classifier, which may be untrusted."""
        try:
            values = json.loads(read_input(path))
            labels = {str(task): tuple(map(str, names)) for task, names in values.pop("labels").items()}
            config = cls(labels=labels, **{**values, "thresholds": tuple(map(float, values["thresholds"]))})
            if not _is_valid(config):
                raise ValueError(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ArtifactError(f"{path} does not describe a classifier: it is damaged; train it again") from None
        if config.marking_version != citances.VERSION:
            raise ArtifactError(
                f"{path}: the classifier was trained on citations marked in version {config.marking_version}, and this "
                f"citeweave marks them in version {citances.VERSION}; train it again"
            )
        return config


def _is_valid(config: ClassifierConfig) -> bool:
    """Return whether a classifier's config is consistent; encoder and weights are checked when they are loaded."""
    return (
        config.pooling in POOLINGS
        and is_finite(config.temperature)
        and config.temperature >= MIN_TEMPERATURE
        and all(task.isidentifier() and 0 < len(set(names)) == len(names) for task, names in config.labels.items())
        and len(config.thresholds) == len(config.labels[config.task])
    )


class IntentClassifier:
    """Trained intent classifier of a folder; its encoder is loaded at the first prediction."""

    def __init__(
        self,
        folder: Path,
        config: ClassifierConfig,
        manifest: Manifest,
        *,
        device: str = "auto",
        runtime: str = "auto",
        threads: int = 0,
    ) -> None:
        self.folder, self.config, self.manifest = folder, config, manifest
        self.device, self.runtime, self.threads = device, runtime, threads
        self._network: IntentNetwork | None = None

    @classmethod
    def open(
        cls, folder: str | Path, *, device: str = "auto", runtime: str = "auto", threads: int = 0
    ) -> IntentClassifier:
        """Open the classifier of a folder, or the shipped one by the name `default`.

        `runtime` torch computes in float32; int8 is several times as fast on ARM processors with int8 instructions;
        auto uses int8 where possible. `threads` applies to int8, 0 = torch's number.
        """
        choose(runtime, RUNTIMES, "--runtime")
        place = _DEFAULT_FOLDER if str(folder) == DEFAULT and not Path(folder).is_dir() else Path(folder)
        if place == _DEFAULT_FOLDER and not (place / CONFIG).is_file():
            raise UserError(
                "this citeweave ships no intent classifier; train one on labeled citing sentences, such as SciCite's: "
                "citeweave intents train contexts.jsonl.gz -o classifier/, then give its folder"
            )
        manifest = read_manifest(place, KIND, VERSION)
        for name in FILES:
            if not (place / name).is_file() or hash_file(place / name) != manifest.files.get(name, {}).get("sha256"):
                raise ArtifactError(
                    f"{place / name} is missing or not what was trained; copy the complete folder again"
                )
        config = ClassifierConfig.read(place / CONFIG)
        return cls(place, config, manifest, device=device, runtime=runtime, threads=threads)

    @property
    def name(self) -> str:
        return DEFAULT if self.folder == _DEFAULT_FOLDER else self.folder.resolve().name

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels[self.config.task]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks with a head of their own, the main one first."""
        return tuple(self.config.labels)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Each label's threshold for `decide`."""
        return self.config.thresholds

    @property
    def hash(self) -> str:
        """Hash of everything its predictions depend on, so not of the card."""
        return hash_json({name: self.manifest.files[name]["sha256"] for name in FILES})

    @property
    def metadata(self) -> dict[str, Any]:
        """Data, options and figures of the classifier's training."""
        return self.manifest.facts

    def predict(self, citances: Sequence[Citance], *, task: str = "", **settings: Any) -> NDArray[np.float32]:
        """Predict probabilities of intents (citances, labels), rows sum to 1; equal ones for a text without a token.

        `task` is another label set of `tasks`; only the main one is calibrated. `settings` are those of `logits`.
        """
        temperature = self.config.temperature if task in ("", self.config.task) else 1.0
        return softmax(self.logits(citances, task=task, **settings), temperature)

    def decide(self, probabilities: NDArray[np.floating], threshold: float | None = None) -> NDArray[np.uint8]:
        """Return the intents of every citance as bits, (citances,), by the classifier's own thresholds or one for all."""
        return decide(probabilities, self.labels, self.thresholds if threshold is None else threshold)

    def logits(
        self,
        citances: Sequence[Citance],
        *,
        task: str = "",
        batch_tokens: int = 0,
        reporter: Reporter = QUIET,
        saved: SavedBatches = NOT_SAVED,
    ) -> NDArray[np.float32]:
        """Return the classifier's uncalibrated logits of citances, (citances, labels)."""
        task = choose(task or self.config.task, self.tasks, "the task")
        require("torch", extra="minilm")
        from citeweave.intents.network import predict_logits

        return predict_logits(self._load(), citances, task, batch_tokens=batch_tokens, reporter=reporter, saved=saved)

    def _load(self) -> IntentNetwork:
        if self._network is None:
            from citeweave.intents.network import load_network

            tasks = {task: len(names) for task, names in self.config.labels.items()}
            self._network = load_network(
                self.folder, self.config.pooling, tasks, device=self.device, runtime=self.runtime, threads=self.threads
            )
        return self._network


def default_classifier(*, device: str = "auto") -> IntentClassifier:
    """Open the intent classifier shipped with the package."""
    return IntentClassifier.open(DEFAULT, device=device)


# Evaluation on labeled sentences


def evaluate_classifier(
    classifier: IntentClassifier, labeled: LabeledSet, *, reporter: Reporter = QUIET
) -> dict[str, Any]:
    """Evaluate an intent classifier on labeled sentences: F1 with and without sections, calibration, decisions.

    Measures are in percent, calibration errors are shares. Nothing is fitted to these sentences.
    """
    known = classifier.config.labels.get(labeled.task) or classifier.labels
    if known != labeled.labels:
        raise UserError(
            f"classifier {classifier.name} knows {', '.join(known)}, and the sentences are labeled with "
            f"{', '.join(labeled.labels)}; give the label set that it was trained on, or --as-three for ACL-ARC's six"
        )
    task = labeled.task if labeled.task in classifier.tasks else classifier.config.task
    labels, citances = labeled.targets, labeled.citances  # (sentences,)
    logits = classifier.logits(citances, task=task, reporter=reporter)  # (sentences, labels)
    temperature = classifier.config.temperature if task == classifier.config.task else 1.0
    probabilities = softmax(logits, temperature)  # (sentences, labels)
    report = {
        "classifier": classifier.name,
        "hash": classifier.hash,
        "task": task,
        **measure_predictions(logits.argmax(axis=1), labels, labeled.labels),
        "records": labeled.counts(),
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
        report["without_sections"] = measure_predictions(hidden.argmax(axis=1), labels, labeled.labels)
    if task == classifier.config.task:
        report["decided"] = _measure_decisions(classifier, probabilities, labels)
    return report


def _measure_decisions(classifier: IntentClassifier, probabilities: Any, labels: Any) -> dict[str, float]:
    """Return shares of sentences with an intent, the true intent or several at the classifier's thresholds, in percent."""
    bits = classifier.decide(probabilities)  # (sentences,)
    true = intent_bits(classifier.labels)[labels]  # (sentences,)
    some = bits > 0
    several = some & ((bits & (bits - 1)) > 0)  # more than one bit
    return {
        "share": _percent(some.mean()),
        "with_the_true_intent": _percent(((bits & true) > 0)[some].mean() if some.any() else 0.0),
        "with_several_intents": _percent(several.mean()),
    }


def measure_predictions(
    predicted: NDArray[np.int64], labels: NDArray[np.int64], names: Sequence[str]
) -> dict[str, Any]:
    """Measure a classifier: accuracy, macro-F1, precision, recall and F1 by label in percent, and the confusion matrix.

    `confusion` has one row per true label and one column per predicted label.

    >>> measure_predictions(np.array([0, 0, 1]), np.array([0, 1, 1]), ("a", "b"))["macro_f1"]
    66.67
    """
    count = len(names)
    confusion = np.bincount(labels * count + predicted, minlength=count * count).reshape(count, count)
    hits = np.diag(confusion)  # (labels,)
    precision = hits / np.maximum(confusion.sum(axis=0), 1)  # (labels,)
    recall = hits / np.maximum(confusion.sum(axis=1), 1)  # (labels,)
    f1 = 2 * hits / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)  # (labels,)
    return {
        "sentences": len(labels),
        "macro_f1": _percent(f1.mean()),
        "accuracy": _percent(hits.sum() / max(1, len(labels))),
        "labels": {
            name: {
                "precision": _percent(precision[row]),
                "recall": _percent(recall[row]),
                "f1": _percent(f1[row]),
                "sentences": int(confusion[row].sum()),
            }
            for row, name in enumerate(names)
        },
        "confusion": confusion.tolist(),
    }


def _percent(value: float) -> float:
    return round(100 * float(value), 2)
