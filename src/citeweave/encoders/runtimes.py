"""What computes an encoder's network: torch, OpenVINO or code of this project, behind one option.

    load_encoder("minilm", runtime="auto")                              the fastest one here: see `fastest.py`
    load_encoder("minilm", runtime="openvino-int8")
    load_encoder("minilm", runtime=Runtime("openvino", threads=2, cache=Path("cache")), dtype="float16")

    torch      float32, bfloat16, float16          CPUs and GPUs
    openvino   float32, float16, bfloat16, int8    CPUs; half precision where the processor computes in it
    int8       int8                                ARM processors with the dot-product instruction (`int8/forward.py`);
                                                   on other processors it is openvino's int8

A runtime is named alone or with its precision, as in `openvino-int8`. All but torch give the last layer alone, without
gradients, so that they serve the poolings `cls` and `mean`, and no training.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

from citeweave.encoders.model_folder import ASPECT_WORDS
from citeweave.encoders.network import DTYPES, Network, speed_up
from citeweave.encoders.openvino_model import check_precision, openvino_network
from citeweave.encoders.reading import TextReader
from citeweave.errors import UserError, choose
from citeweave.extras import require

PRECISIONS = {"torch": DTYPES, "openvino": ("float32", "float16", "bfloat16", "int8"), "int8": ("int8",)}
"""Runtime -> what it computes in."""

AUTO = "auto"
NAMES = (AUTO, *PRECISIONS)
POOLINGS = ("cls", "mean")
"""Poolings that need the last layer only."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What computes the network, and with which options."""

    name: str = "torch"
    precision: str = ""
    """Empty means what `load_encoder` is given as `dtype`."""

    packed: bool | None = None
    """torch only: whether texts are read without padding; None means where that pays."""

    compiled: bool = False
    """torch only: whether packed layers are compiled at the first batch; for long runs on a GPU."""

    threads: int = 0
    """openvino and int8: threads; 0 means one per core. torch has torch.set_num_threads."""

    cache: Path | None = None
    """Where converted models and measurements are kept; None means $CITEWEAVE_CACHE, else ~/.cache/citeweave."""

    def __post_init__(self) -> None:
        choose(self.name, NAMES, "--runtime")
        if self.precision:
            choose(self.precision, PRECISIONS.get(self.name, ()), f"the precision of --runtime {self.name}")
        if self.threads < 0:
            raise UserError(f"threads of a runtime is {self.threads}; it must be at least 0")

    @classmethod
    def parse(cls, text: str) -> Runtime:
        """A runtime by its name, with or without a precision.

        >>> Runtime.parse("openvino-int8").precision, Runtime.parse("torch").precision
        ('int8', '')
        """
        name, _, precision = text.partition("-")
        return cls(name, precision)

    @property
    def label(self) -> str:
        """What `parse` reads: `torch`, `int8`, `openvino-int8`."""
        return f"{self.name}-{self.precision}" if self.precision and self.precision != self.name else self.name

    def computes_in(self, dtype: str) -> str:
        """The precision, where the caller asks for `dtype`."""
        return self.precision or ("int8" if self.name == "int8" else dtype)


def has_own_int8() -> bool:
    """Whether this processor has the instructions of `int8/forward.py`."""
    from citeweave.encoders.int8.instruction import has_instruction

    return has_instruction()


def check_runtime(runtime: Runtime, dtype: str, pooling: str, device: str) -> None:
    """Refuse what a runtime cannot do, before anything is loaded."""
    if runtime.name in ("torch", AUTO):
        return  # load_network checks what the device can
    precision = choose(runtime.computes_in(dtype), PRECISIONS[runtime.name], f"--precision with {runtime.name}")
    if pooling not in POOLINGS:
        needed = "weights on top of it" if pooling == ASPECT_WORDS else "all"
        raise UserError(
            f"--runtime {runtime.name} gives the last layer only, and pooling {pooling} needs {needed}; take torch"
        )
    if device not in ("auto", "cpu"):
        raise UserError(
            f"--runtime {runtime.name} runs on the processor, and --device is {device}; take --runtime torch"
        )
    if runtime.name == "openvino" or not has_own_int8():
        check_precision(precision)


def network_in(
    runtime: Runtime, network: Network, reader: TextReader, name: str, *, dtype: str = "float32", revision: str = ""
) -> Network:
    """A network of torch in another runtime; `name` is the model's, for errors; its torch weights can be freed.

    With a `revision` of the weights, what is made of them is kept in the cache.
    """
    precision = runtime.computes_in(dtype)
    if runtime.name == "torch":
        return _torch_network(runtime, network, precision)
    if runtime.name == "int8" and has_own_int8():
        from citeweave.encoders.int8.forward import int8_network

        return int8_network(network, reader, name, runtime.threads)
    return openvino_network(network, name, precision, revision=revision, threads=runtime.threads, cache=runtime.cache)


def _torch_network(runtime: Runtime, network: Network, precision: str) -> Network:
    torch = require("torch", extra="minilm")
    wanted = getattr(torch, precision)
    if network.model.dtype != wanted:
        network = replace(network, model=copy.deepcopy(network.model).to(wanted))
    network = replace(network, packed=runtime.packed)
    return speed_up(network) if runtime.compiled else network


def revision_in(revision: str, runtime: Runtime, dtype: str) -> str:
    """The revision of vectors made so; float32 of any runtime agrees within 1e-5, and so does not count.

    >>> revision_in("1f0c", Runtime("openvino"), "float32"), revision_in("1f0c", Runtime("openvino"), "int8")
    ('1f0c', '1f0c-openvino-int8')
    """
    precision = runtime.computes_in(dtype)
    if runtime.name == "torch" or precision == "float32":
        return revision
    own = runtime.name == "int8" and has_own_int8()
    return f"{revision}-int8" if own else f"{revision}-openvino-{precision}"


def runtime_of(revision: str) -> str:
    """The runtime that made vectors of this revision, as `Runtime.parse` reads it.

    >>> runtime_of("1f0c"), runtime_of("1f0c-int8"), runtime_of("1f0c-openvino-int8")
    ('torch', 'int8', 'openvino-int8')
    """
    label = revision.partition("-")[2]
    return label if label.partition("-")[0] in PRECISIONS else "torch"


def same_weights(one: str, other: str) -> bool:
    """Whether two revisions are of one model in any runtimes: their vectors differ by rounding, cosines by about 0.001.

    >>> same_weights("1f0c", "1f0c-int8"), same_weights("1f0c", "77aa")
    (True, False)
    """
    return one.partition("-")[0] == other.partition("-")[0]
