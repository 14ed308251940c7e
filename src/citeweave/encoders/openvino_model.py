"""An encoder computed by OpenVINO, in float32, half precision or int8; converted once and kept in a cache.

    openvino_network(network, "1f0c...", Runtime("openvino"), "int8")

    cache/openvino/1f0c...-int8/model.xml, model.bin      OpenVINO's own format
                                manifest.json             which encoder it is of; its hashes are checked at every reading

In int8 the weights of linear layers are rounded to 8 bits, with one scale for every 64 inputs of an output, but for the
projections to the values of attention; the processor rounds the states in front of them the same way while it runs
("dynamic quantization"). One text is one request, so that nothing is padded; as many requests run at a time as there are threads.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.integrity import check_files
from citeweave.artefacts.manifest import read_manifest
from citeweave.artefacts.writing import matches, new_artefact
from citeweave.encoders.network import Network, quiet
from citeweave.encoders.reading import Tokens
from citeweave.errors import ArtefactError, UserError
from citeweave.extras import require
from citeweave.files import cache_folder
from citeweave.machine import cores
from citeweave.threads import share

if TYPE_CHECKING:
    from torch import Tensor

KIND, VERSION = "openvino model", 1
MODEL = "model.xml"

GROUP = 64
"""Inputs that share a scale in int8, of weights and of states."""

_VALUES = re.compile(r"\.(value|v|v_lin|v_proj)\.weight$")
"""Projections to the values of attention, as transformers names them: rounding them costs the most, so they stay float32."""

_HINTS = {"float32": ("f32", "FP32"), "float16": ("f16", "FP16"), "bfloat16": ("bf16", "BF16"), "int8": ("f32", "INT8")}
"""Precision -> OpenVINO's name for what is not rounded to 8 bits, and the capability that a processor needs."""

Floats = NDArray[np.float32]
Run = Callable[[Tokens], Floats]
"""The tokens of one text -> their states (tokens, dimension)."""


@dataclass(frozen=True, slots=True)
class OpenVinoNetwork(Network):
    """A network whose states OpenVINO computes; `model` only says its shape."""

    run: Run | None = None
    threads: int = 1

    def padded(self, batch: Sequence[Tokens], *, every: bool = False) -> tuple[tuple[Tensor, ...], Tensor]:
        """States of the last layer; there are no others and no gradients."""
        assert self.run is not None and not every
        torch, run = require("torch", extra="minilm"), self.run
        shape = len(batch), max(map(len, batch))
        states, mask = np.zeros((*shape, self.dimension), np.float32), np.zeros(shape, np.int64)

        def read(row: int) -> None:
            tokens = batch[row]
            states[row, : len(tokens)], mask[row, : len(tokens)] = run(tokens), 1

        share(len(batch), read, self.threads)
        return (torch.from_numpy(states),), torch.from_numpy(mask)


def supported_precisions() -> list[str]:
    """The precisions in which OpenVINO computes on this processor."""
    capabilities = require("openvino", extra="runtimes").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return [precision for precision, (_, needed) in _HINTS.items() if needed in capabilities]


def check_precision(precision: str) -> None:
    """Refuse a precision that this processor does not compute in."""
    if precision not in (names := supported_precisions()):
        raise UserError(
            f"--precision is {precision}, in which this processor does not compute; take one of {', '.join(names)}"
        )


def openvino_network(
    network: Network, name: str, precision: str, *, revision: str = "", threads: int = 0, cache: Path | None = None
) -> OpenVinoNetwork:
    """The same network in OpenVINO; with a `revision` of its weights the conversion is kept in the cache."""
    openvino, threads = require("openvino", extra="runtimes"), threads or cores()
    core = openvino.Core()
    model = core.read_model(str(_kept(network, name, precision, revision, cache))) if revision else None
    options = {
        "NUM_STREAMS": threads,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": _HINTS[precision][0],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP if precision == "int8" else 0,
    }
    compiled = core.compile_model(model or _convert(network, name, precision), "CPU", options)
    own = threading.local()  # a request serves one thread

    def run(tokens: Tokens) -> Floats:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        ids = np.asarray(tokens, np.int64)[None]  # (1, tokens)
        states: Floats = own.request.infer({0: ids, 1: np.ones_like(ids)})[0][0]  # (tokens, dimension)
        return states

    shape = SimpleNamespace(config=network.model.config)
    return OpenVinoNetwork(shape, "cpu", network.pad, packed=False, run=run, threads=threads)


def _kept(network: Network, name: str, precision: str, revision: str, cache: Path | None) -> Path:
    """The converted model in the cache, made where it is missing or damaged."""
    openvino = require("openvino", extra="runtimes")
    kind = precision if precision == "int8" else "float32"  # half precision reads the same file
    folder = cache_folder(cache) / "openvino" / f"{revision}-{kind}"
    recipe = {"encoder": revision, "precision": kind, "openvino": openvino.__version__, "group": GROUP}
    if not _is_complete(folder, recipe):
        with new_artefact(folder, KIND, VERSION, recipe, overwrite=True) as writer:
            openvino.save_model(_convert(network, name, precision), str(writer.folder / MODEL), compress_to_fp16=False)
            writer.finish()
    return folder / MODEL


def _is_complete(folder: Path, recipe: dict[str, Any]) -> bool:
    if not matches(folder, KIND, VERSION, recipe):
        return False
    try:
        check_files(folder, read_manifest(folder, KIND, VERSION), content=True)
    except ArtefactError:
        return False
    return True


def _convert(network: Network, name: str, precision: str) -> Any:
    """OpenVINO's model of a torch network: ids and mask (texts, tokens) -> states (texts, tokens, dimension)."""
    torch, frontends = require("torch", extra="minilm"), require("openvino.frontend", extra="runtimes")
    decoding = require("openvino.frontend.pytorch.ts_decoder", extra="runtimes")

    class LastStates(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = network.model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = torch.full((2, 8), network.pad, dtype=torch.int64)  # (texts, tokens)
    try:
        with warnings.catch_warnings(), quiet(require("transformers", extra="minilm")):
            warnings.simplefilter("ignore")  # of the tracer: branches on shapes, which other lengths do not take either
            decoder = decoding.TorchScriptPythonDecoder(LastStates().eval(), example_input=(ids, torch.ones_like(ids)))
        frontend = frontends.FrontEndManager().load_by_framework("pytorch")
        model = frontend.convert(frontend.load(decoder))
        model.reshape({at: [-1, -1] for at in range(2)})
    except Exception as error:  # whatever a tracer or a converter raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        kind = network.model.config.model_type
        raise UserError(f"OpenVINO cannot express {name} ({kind}: {reason}); take --runtime torch") from error
    if precision == "int8":
        _round_weights(model)
    return model


def _round_weights(model: Any) -> None:
    """Replace the weights of linear layers by int8 numbers times a scale for each group of inputs."""
    opset = require("openvino.opset13", extra="runtimes")
    for node in model.get_ordered_ops():
        right = node.input_value(1).get_node() if node.get_type_name() == "MatMul" else node
        if right.get_type_name() != "Constant" or right is node or _VALUES.search(right.get_friendly_name()):
            continue
        weights = np.array(right.get_data(), np.float32)
        weights = weights if node.get_attributes().get("transpose_b") else weights.T  # (outputs, inputs)
        rounded, scales = round_in_groups(weights)  # (outputs, groups, inputs of a group), (outputs, groups, 1)
        numbers = opset.multiply(opset.convert(opset.constant(rounded), "f32"), opset.constant(scales))
        restored = opset.reshape(numbers, opset.constant(np.array(weights.shape, np.int64)), special_zero=False)
        product = opset.matmul(node.input_value(0), restored, False, True)
        node.output(0).replace(product.output(0))
    model.validate_nodes_and_infer_types()


def round_in_groups(weights: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Weights (outputs, inputs) as int8 (outputs, groups, inputs of a group), and their scales (outputs, groups, 1).

    >>> rounded, scales = round_in_groups(np.array([[1.0, -2.0]], np.float32))
    >>> rounded.tolist(), (rounded * scales)[0, 0, 1].item()
    ([[[64, -127]]], -2.0)
    """
    outputs, inputs = weights.shape
    size = GROUP if inputs % GROUP == 0 else inputs
    groups = weights.reshape(outputs, inputs // size, size)
    scales = np.maximum(np.abs(groups).max(axis=2, keepdims=True), np.float32(1e-9)) / np.float32(127)
    return np.rint(groups / scales).astype(np.int8), scales
