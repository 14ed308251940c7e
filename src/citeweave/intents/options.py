"""Options of training an intent classifier; checked when they are made, errors spell the option."""

from __future__ import annotations

from dataclasses import dataclass

from citeweave.core.errors import UserError, choose

PARTS = ("lora", "all", "head")
POOLINGS = ("mean", "cls", "mark", "mean+mark")
KEEP = ("last", "best")
RATES = {"lora": 3e-4, "all": 4e-5, "head": 1e-3}
"""Parts -> the learning rate where none is given."""


@dataclass(frozen=True, slots=True)
class ClassifierOptions:
    """How a classifier is trained. The same options, data and seed give the same classifier on a processor."""

    base: str = "minilm"
    """The encoder underneath: minilm, a folder, or a name on the Hugging Face hub."""

    parts: str = "lora"
    """What is trained besides the head: lora = low-rank changes of every linear layer, all = everything, head = nothing."""

    rank: int = 16
    """Rank of the low-rank changes."""

    alpha: float = 0.0
    """Low-rank changes count alpha / rank times; 0 = twice the rank."""

    biases: bool = True
    """lora only: whether biases and layer norms are trained too."""

    pooling: str = "mean+mark"
    """What the head reads: mean over the tokens, cls, mark (mean over the citation's tokens), or mean+mark."""

    max_tokens: int = 160
    """Tokens of a sentence with its section, special ones included; longer ones are cut around the mark."""

    epochs: float = 4.0
    """How often the labeled sentences are read; 2.5 is two and a half times."""

    batch: int = 32
    """Sentences of a step."""

    learning_rate: float = 0.0
    """Highest learning rate; 0 = 3e-4 for lora, 4e-5 for all, 1e-3 for head."""

    head_rate: float = 1.0
    """How many times the learning rate the head has."""

    warmup: float = 0.1
    """Share of the steps over which the rate grows; afterwards it falls in a straight line."""

    weight_decay: float = 0.01
    dropout: float = 0.1
    """Of the head's input, and of the encoder's own layers."""

    section_dropout: float = 0.2
    """Share of the sentences whose section is hidden in a step, so that the classifier works without one."""

    span_dropout: float = 0.1
    """Share of the sentences whose span is hidden in a step: every citation found in them is marked then."""

    smoothing: float = 0.0
    """Label smoothing."""

    balanced: bool = False
    """Whether a label counts the more, the rarer it is."""

    confidence_weights: bool = False
    """Whether a sentence counts as much as its annotators were sure."""

    agreement: float = 0.0
    """Weight of the divergence between two passes with different dropout (R-Drop, Wu et al. 2021); doubles the cost."""

    auxiliary_weight: float = 0.1
    """How much a sentence of an auxiliary task counts."""

    auxiliary_share: float = 1.0
    """Sentences of every auxiliary task in an epoch, as a share of the labeled ones; it has no more than it has."""

    teachers: int = 0
    """Fully trained networks whose mean probabilities the classifier imitates."""

    teacher_base: str = ""
    """The teachers' encoder; empty = the same."""

    teacher_epochs: float = 4.0
    teacher_rate: float = 0.0
    """Learning rate of the teachers; 0 = 4e-5."""

    folds: bool = True
    """Whether every teacher leaves out a part of the labeled sentences and speaks of that part alone; of unlabeled
    sentences all speak."""

    imitation: float = 0.5
    """a of the loss (1 - a) * cross-entropy + a * divergence from the teachers (Hinton et al. 2015)."""

    temperature: float = 2.0
    """Temperature at which teachers and classifier are compared."""

    unlabeled_share: float = 4.0
    """Unlabeled sentences in an epoch, as a share of the labeled ones; it has no more than it has."""

    keep: str = "last"
    """Which weights are kept: those of the last step, or of the epoch that was best on the dev sentences."""

    seed: int = 0

    def __post_init__(self) -> None:
        choose(self.parts, PARTS, "--parts")
        choose(self.pooling, POOLINGS, "--pooling")
        choose(self.keep, KEEP, "--keep")
        for name, least in (("rank", 1), ("batch", 1), ("max_tokens", 8), ("teachers", 0)):
            _least(name, getattr(self, name), least)
        for name in ("alpha", "learning_rate", "weight_decay", "agreement", "auxiliary_weight", "auxiliary_share"):
            _least(name, getattr(self, name), 0)
        for name in ("unlabeled_share", "teacher_rate", "head_rate"):
            _least(name, getattr(self, name), 0)
        for name in ("warmup", "dropout", "section_dropout", "span_dropout", "smoothing", "imitation"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise UserError(f"{_flag(name)} is {value}; it must be from 0 to 1")
        for name in ("epochs", "teacher_epochs", "temperature"):
            if not getattr(self, name) > 0:
                raise UserError(f"{_flag(name)} is {getattr(self, name)}; it must be above 0")

    @property
    def rate(self) -> float:
        return self.learning_rate or RATES[self.parts]


def _least(name: str, value: float, least: int) -> None:
    if not value >= least:
        raise UserError(f"{_flag(name)} is {value}; it must be at least {least}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
