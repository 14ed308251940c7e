"""What computes an encoder's network: torch, ONNX Runtime, OpenVINO or code of this project, behind one option.

    load_encoder("minilm", runtime="openvino", dtype="float16")
    load_encoder("minilm", runtime=Runtime("onnx", threads=2, cache=Path("cache")), dtype="int8")

    torch      float32, bfloat16, float16    processors and graphics cards
    onnx       float32, int8                 processors
    openvino   float32, float16, bfloat16    processors; half precision where the processor computes in it
    int8       int8, whatever dtype says     ARM processors with the dot-product instruction; see `int8/forward.py`

onnx and openvino read a file that `exporting.py` makes once. All but torch give the last layer alone, without gradients, so
that they serve the poolings `cls` and `mean`, and no training.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.exporting import exported
from citeweave.encoders.model_folder import ASPECT_WORDS
from citeweave.encoders.network import DTYPES, Network
from citeweave.encoders.pooling import PaddedStates, States
from citeweave.encoders.reading import Tokens
from citeweave.errors import UserError, choose
from citeweave.extras import require

if TYPE_CHECKING:
    from torch import Tensor

PRECISIONS = {
    "torch": DTYPES,
    "onnx": ("float32", "int8"),
    "openvino": ("float32", "float16", "bfloat16"),
    "int8": ("float32", "int8"),
}
"""Runtime -> what --dtype may be; int8 computes products in int8 and all else in float32 with either."""

_POOLINGS = ("cls", "mean")
_HINTS = {"float32": ("f32", "FP32"), "float16": ("f16", "FP16"), "bfloat16": ("bf16", "BF16")}
"""Precision -> OpenVINO's name of it as a hint, and as a capability of a processor."""

Ids = NDArray[np.int64]
Run = Callable[[Ids, Ids], NDArray[np.float32]]
"""Ids and mask, each (texts, tokens), to states (texts, tokens, dimension)."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What computes the network, and how."""

    name: str = "torch"
    packed: bool | None = None
    """torch only: whether texts are read without padding; None = where that pays."""

    compiled: bool = False
    """torch only: whether packed layers are compiled at the first batch; for long runs on a graphics card."""

    threads: int = 0
    """onnx and openvino: threads of one batch; 0 = the processor's cores. torch has torch.set_num_threads, and int8
    takes its number for 0."""

    cache: Path | None = None
    """Where exported models are kept; None = $CITEWEAVE_CACHE, else ~/.cache/citeweave."""

    def __post_init__(self) -> None:
        choose(self.name, PRECISIONS, "--runtime")
        if self.threads < 0:
            raise UserError(f"threads of a runtime is {self.threads}; it must be at least 0")


@dataclass(frozen=True, slots=True)
class ExportedNetwork(Network):
    """A network whose states another runtime computes; `model` only says its shape."""

    run: Run | None = None

    def states(self, batch: Sequence[Tokens], *, first_only: bool = False) -> States:
        (states,), mask = self.padded(batch)
        return PaddedStates(states, mask)

    def padded(self, batch: Sequence[Tokens], *, every: bool = False) -> tuple[tuple[Tensor, ...], Tensor]:
        """States of the last layer; a runtime that is not torch has no others and no gradients."""
        assert self.run is not None and not every
        torch = require("torch", extra="minilm")
        ids = np.full((len(batch), max(map(len, batch))), self.pad, np.int64)  # (texts, tokens)
        mask = np.zeros(ids.shape, np.int64)  # (texts, tokens)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        return (torch.from_numpy(self.run(ids, mask)),), torch.from_numpy(mask)


def check_runtime(runtime: Runtime, precision: str, pooling: str, device: str) -> None:
    """Refuse what a runtime cannot do, before anything is loaded."""
    if runtime.name == "torch":
        return  # load_network checks what the device can
    choose(precision, PRECISIONS[runtime.name], f"--dtype with --runtime {runtime.name}")
    if pooling not in _POOLINGS:
        needed = "weights on top of it" if pooling == ASPECT_WORDS else "all"
        raise UserError(
            f"--runtime {runtime.name} gives the last layer only, and pooling {pooling} needs {needed}; take torch"
        )
    if device not in ("auto", "cpu"):
        raise UserError(
            f"--runtime {runtime.name} runs on the processor, and --device is {device}; take --runtime torch"
        )
    if runtime.name == "openvino":
        _check_processor(precision)
    if runtime.name == "int8":
        from citeweave.encoders.int8.instruction import check_instruction

        check_instruction()


def exported_network(network: Network, revision: str, runtime: Runtime, precision: str) -> ExportedNetwork:
    """The same network in another runtime; `revision` names weights and tokenizer. The torch weights can be freed."""
    file = exported(network, revision, precision="int8" if precision == "int8" else "float32", cache=runtime.cache)
    threads = runtime.threads or os.cpu_count() or 1
    run = _onnx(file, threads) if runtime.name == "onnx" else _openvino(file, threads, precision)
    return ExportedNetwork(SimpleNamespace(config=network.model.config), "cpu", network.pad, packed=False, run=run)


def revision_in(revision: str, runtime: Runtime, precision: str) -> str:
    """The revision of vectors made so; float32 of any runtime agrees within 1e-5, and so does not count.

    >>> revision_in("1f0c", Runtime("onnx"), "float32"), revision_in("1f0c", Runtime("onnx"), "int8")
    ('1f0c', '1f0c-onnx-int8')
    >>> revision_in("1f0c", Runtime("int8"), "float32")
    '1f0c-int8'
    """
    if runtime.name == "int8":
        return f"{revision}-int8"
    return revision if runtime.name == "torch" or precision == "float32" else f"{revision}-{runtime.name}-{precision}"


def same_weights(one: str, other: str) -> bool:
    """Whether two revisions are of one model in any runtimes: their vectors differ by rounding, cosines by about 0.001.

    >>> same_weights("1f0c", "1f0c-int8"), same_weights("1f0c", "77aa")
    (True, False)
    """
    return one.partition("-")[0] == other.partition("-")[0]


def _onnx(file: Path, threads: int) -> Run:
    runtime = require("onnxruntime", extra="runtimes")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(ids: Ids, mask: Ids) -> NDArray[np.float32]:
        states: NDArray[np.float32] = session.run(["states"], {"input_ids": ids, "attention_mask": mask})[0]
        return states

    return run


def _openvino(file: Path, threads: int, precision: str) -> Run:
    core = require("openvino", extra="runtimes").Core()
    wanted = {
        "PERFORMANCE_HINT": "LATENCY",  # one batch at a time with all threads
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": _HINTS[precision][0],
    }
    request = core.compile_model(core.read_model(str(file)), "CPU", wanted).create_infer_request()

    def run(ids: Ids, mask: Ids) -> NDArray[np.float32]:
        found = request.infer({"input_ids": ids, "attention_mask": mask})["states"]
        return np.array(found, np.float32)  # its own memory is written over at the next batch

    return run


def _check_processor(precision: str) -> None:
    core: Any = require("openvino", extra="runtimes").Core()
    can = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if _HINTS[precision][1] not in can:
        names = [name for name, (_, capability) in _HINTS.items() if capability in can]
        raise UserError(
            f"--dtype is {precision}, in which this processor does not compute; take one of {', '.join(names)}"
        )
