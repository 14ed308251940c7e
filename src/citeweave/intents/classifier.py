"""A trained intent classifier: citing sentences in, calibrated probabilities of intents out.

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

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.manifest import Manifest, read_manifest
from citeweave.encoders.saved_batches import NOT_SAVED, SavedBatches
from citeweave.errors import ArtefactError, UserError, choose
from citeweave.extras import require
from citeweave.files import hash_file, hash_json, read_input
from citeweave.finite import is_finite
from citeweave.intents import marking
from citeweave.intents.calibration import decide, softmax
from citeweave.intents.marking import Citance as Citance
from citeweave.progress import QUIET, Reporter

if TYPE_CHECKING:
    from citeweave.intents.network import IntentNetwork

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
    marking_version: int = marking.VERSION

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
            raise ArtefactError(f"{path} does not describe a classifier: it is damaged; train it again") from None
        if config.marking_version != marking.VERSION:
            raise ArtefactError(
                f"{path}: the classifier was trained on citations marked in version {config.marking_version}, and this "
                f"citeweave marks them in version {marking.VERSION}; train it again"
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
                "this citeweave ships no intent classifier; train one on labelled citing sentences, such as SciCite's: "
                "citeweave intents train contexts.jsonl.gz -o classifier/, and give its folder"
            )
        manifest = read_manifest(place, KIND, VERSION)
        for name in (CONFIG, DELTA):  # the card may be edited
            if not (place / name).is_file() or hash_file(place / name) != manifest.files.get(name, {}).get("sha256"):
                raise ArtefactError(f"{place / name} is missing or not what was trained; copy the whole folder again")
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
        from citeweave.intents.predicting import predict_logits

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
            from citeweave.intents.delta_file import load_delta
            from citeweave.intents.network import IntentNetwork, Shape, load_base
            from citeweave.intents.predicting import in_int8, try_int8

            config = self.config
            base = load_base(config.base, config.max_tokens, self.device)
            if base.revision != config.base_revision:
                raise ArtefactError(
                    f"{self.folder} was trained on {config.base} of revision {config.base_revision}, and the one here "
                    f"is {base.revision}; install the encoder it was trained on, or train it again on this one"
                )
            tasks = {task: len(names) for task, names in config.labels.items()}
            shape = Shape(config.parts, config.pooling, config.rank, config.scale, config.biases, tasks)
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
