"""From the network's numbers to probabilities that mean what they say, and from these to intents.

    temperature = fit_temperature(logits, labels)           on sentences that were not trained on
    probabilities = softmax(logits / temperature)
    decide(probabilities, ("background", "method", "result"), least=(0.4, 0.35, 0.3))

Several intents pass where several reach their threshold; none passes where the classifier is unsure: 0, unknown.

The README.md of a classifier: what it is, what it was trained on, what it is worth, how it was made.

Says what was recorded and nothing else. Text that people gave is escaped.

A trained intent classifier: citing sentences in, calibrated probabilities of intents out.

    classifier = default_classifier()
    classifier.labels                                                   ("background", "method", "result")
    classifier.predict([Citance("We follow Och (2003).", section="Methods")])      (1, 3) float32, rows sum to 1

A folder holds what changed of an encoder, not the encoder:

    config.json            labels, encoder and its hash, shape, temperature, thresholds
    delta.safetensors      the change and the heads, float16 or int8
    README.md              what it was trained on and what it is worth
    manifest.json          how it was made

Does not train (`training.py`) and does not read a corpus (`annotating.py`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from citeweave.encoders.model_card import escape
from citeweave.intents import citances
from citeweave.intents.citances import Citance as Citance
from citeweave.intents.options import ClassifierOptions

if TYPE_CHECKING:
    from citeweave.intents.network import IntentNetwork


Matrix = NDArray[np.floating]
_LOWEST, _HIGHEST = 0.25, 0.5
"""Range of fitted thresholds: a label with half of the probability always passes."""

_BINS = 15


def softmax(logits: Matrix, temperature: float = 1.0) -> NDArray[np.float32]:
    """(texts, labels) -> probabilities, rows sum to 1."""
    scaled = np.asarray(logits, np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))  # (texts, labels)
    found: NDArray[np.float32] = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return found


def negative_log_likelihood(logits: Matrix, labels: NDArray[np.int64], temperature: float = 1.0) -> float:
    """Mean over the texts of -log p(label)."""
    chosen = softmax(logits, temperature)[np.arange(len(labels)), labels]  # (texts,)
    return float(-np.log(np.maximum(chosen.astype(np.float64), 1e-12)).mean())


def fit_temperature(logits: Matrix, labels: NDArray[np.int64]) -> float:
    """The temperature of the lowest log-likelihood loss (Guo et al. 2017, On Calibration of Modern Neural Networks, 4.2).

    The loss has one minimum over log T, found by golden-section search; at most a factor 20 either way.
    """
    if not len(labels):
        return 1.0
    ratio = (np.sqrt(5.0) - 1) / 2
    low, high = np.log(0.05), np.log(20.0)
    for _ in range(40):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if negative_log_likelihood(logits, labels, float(np.exp(left))) < negative_log_likelihood(
            logits, labels, float(np.exp(right))
        ):
            high = right
        else:
            low = left
    return float(np.exp((low + high) / 2))


def expected_calibration_error(probabilities: Matrix, labels: NDArray[np.int64], bins: int = _BINS) -> float:
    """Mean gap between confidence and accuracy over bins of confidence (Guo et al. 2017, equation 3).

    >>> expected_calibration_error(np.array([[0.75, 0.25]] * 4), np.array([0, 0, 0, 1]))
    0.0
    """
    if not len(labels):
        return 0.0
    confidence = probabilities.max(axis=1).astype(np.float64)  # (texts,)
    right = probabilities.argmax(axis=1) == labels  # (texts,)
    which = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(which, confidence - right, bins)  # (bins,) sums of confidence - accuracy
    return float(np.abs(gaps).sum() / len(labels))


def cross_fitted(logits: Matrix, labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Probabilities where the temperature of either half comes from the other: what calibration is worth on new texts."""
    half = np.arange(len(labels)) % 2 == 0  # (texts,)
    found = np.zeros(logits.shape, np.float32)
    for own in (half, ~half):
        if own.any():
            found[own] = softmax(logits[own], fit_temperature(logits[~own], labels[~own]))
    return found


def fit_thresholds(probabilities: Matrix, labels: NDArray[np.int64]) -> tuple[float, ...]:
    """Of every label the threshold with the highest F1 against the rest, the highest of equals, 0.25 to 0.5."""
    grid = np.arange(_LOWEST, _HIGHEST + 1e-9, 0.01)
    found = []
    for label in range(probabilities.shape[1]):
        truth = labels == label  # (texts,)
        passed = probabilities[:, label][:, None] >= grid  # (texts, thresholds)
        hits = (passed & truth[:, None]).sum(axis=0)  # (thresholds,)
        f1 = 2 * hits / np.maximum(passed.sum(axis=0) + truth.sum(), 1)
        best = len(grid) - 1 - int(np.argmax(f1[::-1]))
        found.append(round(float(grid[best]), 2))
    return tuple(found)


def intent_bits(labels: Sequence[str]) -> NDArray[np.uint8]:
    """The bit of every label's intent, (labels,).

    >>> intent_bits(("background", "method", "result")).tolist()
    [1, 2, 4]
    """
    bits = [parse_intents(label) for label in labels]
    if Intent.UNKNOWN in bits:
        raise UserError(f"the label {labels[bits.index(Intent.UNKNOWN)]!r} is no intent; train on intents to annotate")
    return np.array(bits, np.uint8)


def decide(
    probabilities: Matrix,
    labels: Sequence[str] = ("background", "method", "result"),
    least: float | Sequence[float] = 0.5,
) -> NDArray[np.uint8]:
    """Bits of `Intent` of every row, (texts,): the labels that reach `least`, one threshold for all or one for each.

    >>> decide(np.array([[0.9, 0.05, 0.05], [0.45, 0.45, 0.1], [0.34, 0.33, 0.33]]), least=0.4).tolist()
    [1, 3, 0]
    """
    thresholds = np.broadcast_to(np.asarray(least, np.float64), (len(labels),))  # (labels,)
    if not ((thresholds > 0) & (thresholds <= 1)).all():
        raise UserError(f"the least probability of an intent is {least}; it must be above 0 and at most 1")
    passed = probabilities >= thresholds  # (texts, labels)
    bits: NDArray[np.uint8] = np.bitwise_or.reduce(np.where(passed, intent_bits(labels), np.uint8(0)), axis=1)
    return bits


# The README.md of a classifier: what it is, what it was trained on, what it is worth, how it was made.

_HEAD = """# Citation-intent classifier

Tells why a sentence cites a paper: {labels}. It is a change of the encoder `{base}` (revision {revision}) and a head, and
works with that encoder only.

    from citeweave.intents.classifier import Citance, IntentClassifier
    IntentClassifier.open("this/folder").predict([Citance("We follow Och (2003).", section="Methods")])
"""


def card_text(config: ClassifierConfig, report: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    labels = ", ".join(config.labels[config.task])
    parts = [_HEAD.format(labels=labels, base=config.base, revision=config.base_revision)]
    about = report["about"]
    parts += ["## Data\n", _data(report, str(about["data"]))]
    parts += ["## Figures on the dev sentences\n", _figures(report)]
    parts += ["## How it was made\n", _making(config, report, str(about["command"]))]
    parts += [
        "## Limits\n",
        "The labels are those of its training sentences: English, mostly biomedicine and computer science where these are "
        "SciCite's. Probabilities are calibrated on the dev sentences, and may not be on other fields or languages.\n",
    ]
    return "\n".join(parts)


def _data(report: Mapping[str, Any], source: str) -> str:
    lines = [escape(source) + "\n"] if source else []
    lines += ["| task | sentences | of each label |", "|---|---|---|"]
    for task, counts in report["data"].items():
        each = ", ".join(f"{escape(name)} {number:,}" for name, number in counts["labels"].items())
        lines.append(f"| {escape(task)} | {counts['kept']:,} | {each} |")
    dev = report["dev"]
    each = ", ".join(f"{escape(name)} {found['sentences']:,}" for name, found in dev["labels"].items())
    lines.append(f"| dev: not trained on | {dev['sentences']:,} | {each} |")
    if report["unlabeled"]:
        lines.append(f"| unlabeled, labels by teachers | {report['unlabeled']:,} | |")
    return "\n".join(lines) + "\n"


def _figures(report: Mapping[str, Any]) -> str:
    lines = ["| | macro-F1 | accuracy |", "|---|---|---|"]
    for key, name in (("dev", "with sections"), ("dev_without_sections", "sections hidden")):
        lines.append(f"| {name} | {report[key]['macro_f1']} | {report[key]['accuracy']} |")
    lines += ["", "| label | precision | recall | F1 |", "|---|---|---|---|"]
    for name, found in report["dev"]["labels"].items():
        lines.append(f"| {escape(name)} | {found['precision']} | {found['recall']} | {found['f1']} |")
    calibration = report["calibration"]
    lines += [
        "",
        f"Expected calibration error {calibration['error_before']} before and {calibration['error_after']} after temperature "
        f"scaling (T = {calibration['temperature']}; the second figure with a temperature fitted on the other half).\n",
    ]
    return "\n".join(lines)


def _making(config: ClassifierConfig, report: Mapping[str, Any], command: str) -> str:
    usual = dataclasses.asdict(ClassifierOptions())
    own = [f"{name} {value}" for name, value in report["options"].items() if value != usual[name]]
    options = "".join(f"\n- {escape(option)}" for option in own) or " none"
    lines = [
        f"Low-rank changes of rank {config.rank}" if config.parts == "lora" else f"Trained parts: {config.parts}",
        f", pooling {config.pooling}, saved as {config.precision}, {report['bytes']:,} bytes.\n",
    ]
    text = "".join(lines) + f"\nOptions that are not the usual ones:{options}\n"
    if report.get("teachers"):
        text += (
            f"\nIt imitates {report['teachers']} fully trained networks, whose mean has macro-F1 "
            f"{report.get('teachers_together_dev_macro_f1')} on the dev sentences.\n"
        )
    return text + (f"\n    {command}\n" if command else "")


# A trained intent classifier: citing sentences in, calibrated probabilities of intents out.

KIND, VERSION = "intent_classifier", 1
CONFIG, DELTA = "config.json", "delta.safetensors"
DEFAULT = "default"
RUNTIMES = ("auto", "torch", "int8")
LEAST_TOKENS, LEAST_TEMPERATURE = 8, 1e-3
"""Of a config that can be right; calibration never goes below 0.05."""

_DEFAULT_FOLDER = Path(__file__).parent / "default"


@dataclass(frozen=True, slots=True)
class ClassifierConfig:
    """What config.json says."""

    task: str
    labels: Mapping[str, tuple[str, ...]]
    """Task -> its labels; the main task's are the classifier's."""

    base: str
    base_revision: str
    parts: str
    pooling: str
    rank: int
    scale: float
    biases: bool
    max_tokens: int
    precision: str
    temperature: float
    thresholds: tuple[float, ...]
    marking_version: int = citances.VERSION

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    @classmethod
    def read(cls, path: Path) -> ClassifierConfig:
        try:
            found = json.loads(read_input(path))
            labels = {str(task): tuple(map(str, names)) for task, names in found.pop("labels").items()}
            config = cls(labels=labels, **{**found, "thresholds": tuple(map(float, found["thresholds"]))})
            if not _is_sound(config):
                raise ValueError(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ArtifactError(f"{path} does not describe a classifier: it is damaged; train it again") from None
        if config.marking_version != citances.VERSION:
            raise ArtifactError(
                f"{path}: the classifier was trained on citations marked in version {config.marking_version}, and this "
                f"citeweave marks them in version {citances.VERSION}; train it again"
            )
        return config


def _is_sound(config: ClassifierConfig) -> bool:
    """Whether numbers are numbers and fit together; the encoder and the weights are compared when they are loaded."""
    texts = (config.base, config.base_revision, config.parts, config.pooling, config.precision)
    whole, real = (config.rank, config.max_tokens), (config.scale, config.temperature)
    return (
        all(type(value) is str for value in texts)
        and all(type(value) is int and value >= 0 for value in whole)
        and all(is_finite(value) for value in real)
        and config.max_tokens >= LEAST_TOKENS
        and config.temperature >= LEAST_TEMPERATURE
        and all(task.isidentifier() and 0 < len(set(names)) == len(names) for task, names in config.labels.items())
        and len(config.thresholds) == len(config.labels[config.task])
    )


class IntentClassifier:
    """See the module's docstring. The encoder is loaded at the first prediction."""

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
        """The classifier of a folder, or the shipped one by the name `default`.

        `runtime` torch computes in float32; int8 is several times as fast on ARM processors that have its instruction;
        auto takes int8 where it can. `threads` is int8's, 0 = torch's number.
        """
        choose(runtime, RUNTIMES, "--runtime")
        place = _DEFAULT_FOLDER if str(folder) == DEFAULT and not Path(folder).is_dir() else Path(folder)
        if place == _DEFAULT_FOLDER and not (place / CONFIG).is_file():
            raise UserError(
                "this citeweave ships no intent classifier; train one on labeled citing sentences, such as SciCite's: "
                "citeweave intents train contexts.jsonl.gz -o classifier/, and give its folder"
            )
        manifest = read_manifest(place, KIND, VERSION)
        for name in (CONFIG, DELTA):  # the card may be edited
            if not (place / name).is_file() or hash_file(place / name) != manifest.files.get(name, {}).get("sha256"):
                raise ArtifactError(f"{place / name} is missing or not what was trained; copy the whole folder again")
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
        """The label sets it knows, the main one first."""
        return tuple(self.config.labels)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Of every label the probability at which it passes in `decide`."""
        return self.config.thresholds

    @property
    def hash(self) -> str:
        """Of all that decides its predictions; the card does not count."""
        return hash_json({name: self.manifest.files[name]["sha256"] for name in (CONFIG, DELTA)})

    @property
    def facts(self) -> dict[str, Any]:
        """What the card says: data, options, figures."""
        return self.manifest.facts

    def predict(
        self,
        citances: Sequence[Citance],
        *,
        task: str = "",
        batch_tokens: int = 0,
        reporter: Reporter = QUIET,
        saved: SavedBatches = NOT_SAVED,
    ) -> NDArray[np.float32]:
        """Probabilities (citances, labels), rows sum to 1; a text without a token has them all alike.

        `task` is another label set of `tasks`; the temperature is the main one's, and is used for no other.
        """
        task = choose(task or self.config.task, self.tasks, "the task")
        temperature = self.config.temperature if task == self.config.task else 1.0
        found = self.logits(citances, task=task, batch_tokens=batch_tokens, reporter=reporter, saved=saved)
        return softmax(found, temperature)

    def decide(self, probabilities: NDArray[np.floating], least: float | None = None) -> NDArray[np.uint8]:
        """Bits of `Intent` of every row, (citances,); `least` in place of the classifier's own thresholds."""
        return decide(probabilities, self.labels, self.thresholds if least is None else least)

    def logits(
        self,
        citances: Sequence[Citance],
        *,
        task: str = "",
        batch_tokens: int = 0,
        reporter: Reporter = QUIET,
        saved: SavedBatches = NOT_SAVED,
    ) -> NDArray[np.float32]:
        """The network's own numbers, not calibrated, (citances, labels)."""
        require("torch", extra="minilm")
        from citeweave.intents.network import predict_logits

        return predict_logits(
            self._load(),
            citances,
            task or self.config.task,
            batch_tokens=batch_tokens,
            reporter=reporter,
            saved=saved,
        )

    def _load(self) -> IntentNetwork:
        if self._network is None:
            from citeweave.intents.network import (
                ClassifierShape,
                IntentNetwork,
                in_int8,
                load_base,
                load_delta,
                try_int8,
            )

            config = self.config
            base = load_base(config.base, config.max_tokens, self.device)
            if base.revision != config.base_revision:
                raise ArtifactError(
                    f"{self.folder} was trained on {config.base} of revision {config.base_revision}, and the one here "
                    f"is {base.revision}; install the encoder it was trained on, or train it again on this one"
                )
            tasks = {task: len(names) for task, names in config.labels.items()}
            shape = ClassifierShape(config.parts, config.pooling, config.rank, config.scale, config.biases, tasks)
            network = IntentNetwork(base, shape)
            network.apply_delta(load_delta(self.folder / DELTA))
            network.merge()
            if self.runtime != "torch":
                (in_int8 if self.runtime == "int8" else try_int8)(network, self.threads)
            self._network = network
        return self._network


def default_classifier(*, device: str = "auto") -> IntentClassifier:
    """The classifier that comes with the package."""
    return IntentClassifier.open(DEFAULT, device=device)
