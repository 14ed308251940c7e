"""Options of annotating citations with intents and of training a classifier; errors name the command-line option."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from citeweave.core.errors import UserError, choose
from citeweave.core.options import INTERNAL
from citeweave.core.progress import SAVE_EVERY

PARTS = ("lora", "all", "head")
POOLINGS = ("mean", "cls", "mark", "mean+mark")
KEEP = ("last", "best")
RATES = {"lora": 3e-4, "all": 4e-5, "head": 1e-3}
"""Default learning rate by trained parts."""

_RANGES = {
    ("at least 0", 0, math.inf): "teachers alpha learning_rate weight_decay agreement auxiliary_weight auxiliary_share "
    "unlabeled_share teacher_rate",
    ("at least 1", 1, math.inf): "rank batch",
    ("at least 8", 8, math.inf): "max_tokens",
    ("from 0 to 1", 0, 1): "warmup dropout section_dropout span_dropout smoothing imitation",
    ("greater than 0", math.ulp(0.0), math.inf): "epochs teacher_epochs temperature head_rate",
}
"""Rule, minimum and maximum -> names of options."""


@dataclass(frozen=True, slots=True)
class ClassifierOptions:
    """Options of intent training: the same options, data and seed give the same classifier on a CPU."""

    base: str = "minilm"
    """The base encoder: minilm, a folder, or a name on the Hugging Face Hub."""

    parts: str = "lora"
    """What is trained besides the head: lora = low-rank updates of every linear layer, all = everything, head = nothing."""

    rank: int = 16
    """Rank of the low-rank updates."""

    alpha: float = 0.0
    """Low-rank updates are scaled by alpha / rank; 0 = twice the rank."""

    biases: bool = True
    """lora only: whether biases and layer norms are trained too."""

    pooling: str = "mean+mark"
    """What the head reads: mean over the tokens, cls, mark (mean over the citation's tokens), or mean+mark."""

    max_tokens: int = 160
    """Maximum number of tokens of a sentence with its section, special ones included; longer ones are cut around the mark."""

    epochs: float = 4.0
    """Passes over the labeled sentences; 2.5 is two and a half."""

    batch: int = 32
    """Sentences per step."""

    learning_rate: float = 0.0
    """Peak learning rate; 0 = 3e-4 for lora, 4e-5 for all, 1e-3 for head."""

    head_rate: float = 1.0
    """Factor on the learning rate for the head."""

    warmup: float = 0.1
    """Share of the steps over which the rate grows; afterwards it decays linearly."""

    weight_decay: float = 0.01
    dropout: float = 0.1
    """Dropout of the head's input and of the encoder's layers."""

    section_dropout: float = 0.2
    """Share of the sentences whose section is hidden in a step, so that the classifier works without one."""

    span_dropout: float = 0.1
    """Share of the sentences whose span is hidden in a step: then every citation in them is marked."""

    smoothing: float = 0.0
    """Label smoothing."""

    balanced: bool = False
    """Whether rare labels weigh more."""

    confidence_weights: bool = False
    """Whether sentences are weighted by their annotators' confidence."""

    agreement: float = 0.0
    """Weight of the divergence between two passes with different dropout (R-Drop, Wu et al. 2021); doubles the cost."""

    auxiliary_weight: float = 0.1
    """Loss weight of a sentence of an auxiliary task."""

    auxiliary_share: float = 1.0
    """Sentences of each auxiliary task per epoch, as a share of the labeled ones; at most all of them."""

    teachers: int = 0
    """Number of fully trained networks whose mean probabilities are distilled into the classifier."""

    teacher_base: str = ""
    """The teachers' encoder; empty = the same."""

    teacher_epochs: float = 4.0
    teacher_rate: float = 0.0
    """Learning rate of the teachers; 0 = 4e-5."""

    folds: bool = True
    """Whether every teacher holds out a fold of the labeled sentences and predicts that fold alone; all teachers predict
    the unlabeled sentences."""

    imitation: float = 0.5
    """a of the loss (1 - a) * cross-entropy + a * divergence from the teachers (Hinton et al. 2015)."""

    temperature: float = 2.0
    """Temperature at which teachers and classifier are compared."""

    unlabeled_share: float = 4.0
    """Unlabeled sentences per epoch, as a share of the labeled ones; at most all of them."""

    keep: str = "last"
    """Which weights are saved: those of the last step, or of the epoch that was best on the dev sentences."""

    seed: int = 0

    def __post_init__(self) -> None:
        choose(self.parts, PARTS, "--parts")
        choose(self.pooling, POOLINGS, "--pooling")
        choose(self.keep, KEEP, "--keep")
        for (rule, minimum, maximum), names in _RANGES.items():
            for name in names.split():
                if not minimum <= getattr(self, name) <= maximum:
                    raise UserError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be {rule}")

    @property
    def rate(self) -> float:
        """Peak learning rate, or the default of the trained parts."""
        return self.learning_rate or RATES[self.parts]


@dataclass(frozen=True, slots=True)
class AnnotateOptions:
    """Options of annotating citations with intents."""

    min_confidence: float = 0.5
    """Minimum confidence for an intent to count."""

    keep_given: bool = True
    """Keep the intents that the source provides."""

    sections: bool = True
    """Let the classifier read section headings."""

    max_contexts: int = 0
    """Maximum number of sentences to read per citation; 0 = all."""

    block: int = 2048
    """Number of sentences to sort by length at a time."""

    save_every: Annotated[float, INTERNAL] = SAVE_EVERY
    """Maximum seconds of work lost by an interruption; with an executor it is a block per worker."""

    def __post_init__(self) -> None:
        if not 0 < self.min_confidence <= 1:
            raise UserError(
                f"--min-confidence is {self.min_confidence}; it must be a confidence greater than 0 and at most 1, such as 0.5"
            )
        if self.max_contexts < 0:
            raise UserError(f"--max-contexts is {self.max_contexts}; it must be 0 (all) or more")
        if self.block < 1:
            raise UserError(f"--block is {self.block}; it must be 1 or more sentences, such as 2048")
