"""Runtimes that compute an encoder's network: torch, OpenVINO or our own int8, behind one option.

    load_encoder("minilm", runtime="auto")                              the fastest one here
    load_encoder("minilm", runtime="openvino-int8")
    load_encoder("minilm", runtime=Runtime("openvino", threads=2, cache=Path("cache")), dtype="float16")

    torch      float32, bfloat16, float16          CPUs and GPUs
               float8                              GPUs of compute capability 8.9 or later; BERT-like models (`float8.py`)
    openvino   float32, float16, bfloat16, int8    CPUs; half precision where the processor supports it
    int8       int8                                ARM processors with the dot-product instruction (`int8_network.py`);
                                                   on other processors it is openvino's int8

A runtime is named alone or with its precision, as in `openvino-int8`. All but torch give the last layer alone, without
gradients, so they serve the poolings `cls` and `mean`, and no training.

A network is converted to OpenVINO once and kept in the cache:

    cache/openvino/1f0c...-int8/model.xml, model.bin      OpenVINO's own format
                                manifest.json             the encoder's revision; hashes are checked at every reading

In int8 the weights of linear layers are rounded to 8 bits, with one scale for every 64 inputs of an output, except for the
projections to the values of attention; the processor rounds the states in front of them the same way at run time ("dynamic
quantization"). One text is one request, so that nothing is padded; as many requests run at a time as there are threads.

The fastest runtime is measured once per machine. The installed ones are tried in the order of their usual speed. The first one
is chosen whose vectors of `sample_papers.json` have a cosine of at least 0.999 with those of torch in float32, and which takes
less time than torch. The choice is kept in the cache, by model, processor and releases, so that only the first start on a
machine measures. A runtime that is broken, or cannot compute the model, is reported and skipped. torch always works.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.metadata
import json
import logging
import platform
import re
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import artifact_matches, check_files, new_artifact, read_manifest
from citeweave.core.errors import ArtifactError, UserError, choose, require
from citeweave.core.executor import available_cores, instruction_sets, processor, run_in_threads
from citeweave.core.files import cache_folder, hash_json, read_input, write_json
from citeweave.encoders.model_folder import ASPECT_WORDS, TITLE_ABSTRACT, Settings
from citeweave.encoders.network import DTYPES, FLOAT8, Network, silence_transformers, speed_up, torch_dtype
from citeweave.encoders.pooling import text_vectors
from citeweave.encoders.tokens import TextReader, Tokens, sample_tokens
from citeweave.vectors.vectors import unit_rows

if TYPE_CHECKING:
    from torch import Tensor

LOG = logging.getLogger("citeweave")

KIND, VERSION = "openvino model", 1
MODEL = "model.xml"

GROUP = 64
"""Inputs that share a scale in OpenVINO's int8, of weights and of states."""

_VALUES = re.compile(r"\.(value|v|v_lin|v_proj)\.weight$")
"""Projections to the values of attention, as transformers names them: rounding them costs the most accuracy, so they stay float32."""

_HINTS = {"float32": ("f32", "FP32"), "float16": ("f16", "FP16"), "bfloat16": ("bf16", "BF16"), "int8": ("f32", "INT8")}
"""Precision -> OpenVINO's name for numbers that are not int8, and the capability that a processor needs."""

Floats = NDArray[np.float32]
Run = Callable[[Tokens], Floats]
"""The tokens of one text -> their states (tokens, dimension)."""

PRECISIONS = {"torch": DTYPES, "openvino": ("float32", "float16", "bfloat16", "int8"), "int8": ("int8",)}
"""Runtime -> its precisions."""

AUTO = "auto"
NAMES = (AUTO, *PRECISIONS)
POOLINGS = ("cls", "mean")
"""Poolings that need the last layer only."""

MIN_COSINE = 0.999
"""Lowest cosine with float32 of any sample text that is accepted of the fastest runtime."""

MIN_WEIGHTS = 2_000_000
"""A smaller network is computed by torch: there is nothing to gain."""

ROUNDS = 2
"""How often the sample texts are timed, after a first round that is not."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The runtime that computes a network, with its precision and options."""

    name: str = "torch"
    precision: str = ""
    """Empty means the `dtype` of `load_encoder`."""

    packed: bool | None = None
    """torch only: whether texts are read without padding; None means where that is faster."""

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
        """Parse the name of a runtime, with or without a precision.

        >>> Runtime.parse("openvino-int8").precision, Runtime.parse("torch").precision
        ('int8', '')
        """
        name, _, precision = text.partition("-")
        return cls(name, precision)

    @property
    def label(self) -> str:
        """The runtime as `parse` reads it: `torch`, `int8`, `openvino-int8`."""
        return f"{self.name}-{self.precision}" if self.precision and self.precision != self.name else self.name

    def for_dtype(self, dtype: str) -> Runtime:
        """Return the runtime of a network in this precision: auto is torch but in float32, and float8 is part of the label."""
        name = "torch" if self.name == AUTO and dtype != "float32" else self.name
        return replace(self, name=name, precision=FLOAT8 if (name, dtype) == ("torch", FLOAT8) else self.precision)

    def computes_in(self, dtype: str) -> str:
        """Return the precision of this runtime for a network of `dtype`."""
        return self.precision or ("int8" if self.name == "int8" else dtype)


def has_own_int8() -> bool:
    """Return whether this processor has the instructions of our own int8 network."""
    from citeweave.encoders.int8_tiles import has_instruction

    return has_instruction()


def check_runtime(runtime: Runtime, dtype: str, pooling: str, device: str) -> None:
    """Refuse a precision, pooling or device that a runtime does not support, before anything is loaded."""
    if runtime.name in ("torch", AUTO):
        if runtime.computes_in(dtype) == FLOAT8 and pooling in ("layers", "mix"):
            raise UserError(
                f"--precision is {FLOAT8}, which gives the last layer only, and pooling {pooling} needs all; use bfloat16"
            )
        return  # load_network checks the device
    precision = choose(runtime.computes_in(dtype), PRECISIONS[runtime.name], f"--precision with {runtime.name}")
    if pooling not in POOLINGS:
        needed = {ASPECT_WORDS: "weights on top of it", TITLE_ABSTRACT: "two texts per paper"}.get(pooling, "all")
        raise UserError(
            f"--runtime {runtime.name} gives the last layer only, and pooling {pooling} needs {needed}; use torch"
        )
    if device not in ("auto", "cpu"):
        raise UserError(f"--runtime {runtime.name} runs on the CPU, and --device is {device}; use --runtime torch")
    on_openvino = runtime.name == "openvino" or not has_own_int8()
    if on_openvino and precision not in (names := supported_precisions()):
        raise UserError(
            f"--precision is {precision}, which this processor does not support; use one of {', '.join(names)}"
        )


def network_in(
    runtime: Runtime, network: Network, reader: TextReader, name: str, *, dtype: str = "float32", revision: str = ""
) -> Network:
    """Convert a torch network to a runtime; its torch weights can then be freed. `name` is the model's, for errors.

    With a `revision` of the weights, a conversion is kept in the cache.
    """
    precision = runtime.computes_in(dtype)
    if runtime.name == "torch":
        wanted = torch_dtype(precision)
        if network.model.dtype != wanted:
            network = replace(network, model=copy.deepcopy(network.model).to(wanted))
        if precision == FLOAT8:
            from citeweave.encoders.float8 import float8_network

            return float8_network(network, name)
        network = replace(network, packed=runtime.packed)
        return speed_up(network) if runtime.compiled else network
    if runtime.name == "int8" and has_own_int8():
        from citeweave.encoders.int8_network import int8_network

        return int8_network(network, reader, name, runtime.threads)
    return _openvino_network(network, name, precision, revision=revision, threads=runtime.threads, cache=runtime.cache)


def revision_in(revision: str, runtime: Runtime, dtype: str) -> str:
    """Return the revision of vectors of this runtime; float32 of all, and half precision of torch, are not part of it.

    >>> revision_in("1f0c", Runtime("openvino"), "float32"), revision_in("1f0c", Runtime("openvino"), "int8")
    ('1f0c', '1f0c-openvino-int8')
    >>> revision_in("1f0c", Runtime("torch"), "float8")
    '1f0c-torch-float8'
    """
    precision = runtime.computes_in(dtype)
    if precision == FLOAT8:
        return f"{revision}-torch-{precision}"
    if runtime.name == "torch" or precision == "float32":
        return revision
    own = runtime.name == "int8" and has_own_int8()
    return f"{revision}-int8" if own else f"{revision}-openvino-{precision}"


def runtime_of(revision: str) -> str:
    """Return the runtime of vectors with this revision, as `Runtime.parse` reads it.

    >>> runtime_of("1f0c"), runtime_of("1f0c-int8"), runtime_of("1f0c-torch-float8")
    ('torch', 'int8', 'torch-float8')
    """
    label = revision.partition("-")[2]
    return label if label.partition("-")[0] in PRECISIONS else "torch"


def same_weights(one: str, other: str) -> bool:
    """Return whether two revisions are one model in any runtimes; their cosines differ by about 0.001.

    >>> same_weights("1f0c", "1f0c-int8"), same_weights("1f0c", "77aa")
    (True, False)
    """
    return one.partition("-")[0] == other.partition("-")[0]


# --- OpenVINO -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenVinoNetwork(Network):
    """A network that OpenVINO computes; `model` only holds its configuration."""

    run: Run | None = None
    threads: int = 1

    def padded(self, batch: Sequence[Tokens], *, every: bool = False) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the padded states of the last layer from OpenVINO; there are no others and no gradients."""
        assert self.run is not None and not every
        torch, run = require("torch", extra="minilm"), self.run
        shape = len(batch), max(map(len, batch))
        states, mask = np.zeros((*shape, self.dimension), np.float32), np.zeros(shape, np.int64)

        def read(row: int) -> None:
            tokens = batch[row]
            states[row, : len(tokens)], mask[row, : len(tokens)] = run(tokens), 1

        run_in_threads(len(batch), read, self.threads)
        return (torch.from_numpy(states),), torch.from_numpy(mask)


_FIRST_INFERENCE = threading.Lock()
"""The first inferences of threads are made one after the other: two at once may wait for each other for ever, one with the
interpreter's lock and one with a lock of OpenVINO (seen with 2026.4.1)."""


@functools.cache
def _openvino_core() -> Any:
    """Return OpenVINO's core, one for the whole process.

    The CPU plugin gives the thread that loads it a signal stack and frees it with the core. Freed in another thread, the
    stack of the first would stay set, and the next Ctrl-C would end the process with a segmentation fault.
    """
    return require("openvino", extra="runtimes").Core()


def supported_precisions() -> list[str]:
    """Return the precisions that OpenVINO supports on this processor."""
    capabilities = _openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return [precision for precision, (_, needed) in _HINTS.items() if needed in capabilities]


def _openvino_network(
    network: Network, name: str, precision: str, *, revision: str = "", threads: int = 0, cache: Path | None = None
) -> OpenVinoNetwork:
    """Convert a network to OpenVINO; with a `revision` of its weights the conversion is kept in the cache."""
    core, threads = _openvino_core(), threads or available_cores()
    model = core.read_model(str(_cached_model(network, name, precision, revision, cache))) if revision else None
    options = {
        "NUM_STREAMS": threads,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": _HINTS[precision][0],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP if precision == "int8" else 0,
    }
    compiled = core.compile_model(model or _convert(network, name, precision), "CPU", options)
    own = threading.local()  # a request serves one thread

    def run(tokens: Tokens) -> Floats:
        ids = np.asarray(tokens, np.int64)[None]  # (1, tokens)
        inputs = {0: ids, 1: np.ones_like(ids)}
        if hasattr(own, "request"):
            states: Floats = own.request.infer(inputs)[0][0]  # (tokens, dimension)
            return states
        with _FIRST_INFERENCE:
            own.request = compiled.create_infer_request()
            return cast(Floats, own.request.infer(inputs)[0][0])  # (tokens, dimension)

    shape = SimpleNamespace(config=network.model.config)
    return OpenVinoNetwork(shape, "cpu", network.pad, packed=False, run=run, threads=threads)


def _cached_model(network: Network, name: str, precision: str, revision: str, cache: Path | None) -> Path:
    """Return the converted OpenVINO model in the cache, converted where it is missing or damaged."""
    openvino = require("openvino", extra="runtimes")
    kind = precision if precision == "int8" else "float32"  # half precision reads the same file
    folder = cache_folder(cache) / "openvino" / f"{revision}-{kind}"
    recipe = {"encoder": revision, "precision": kind, "openvino": openvino.__version__, "group": GROUP}
    if not _is_complete(folder, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=True) as writer:
            openvino.save_model(_convert(network, name, precision), str(writer.folder / MODEL), compress_to_fp16=False)
            writer.finish()
    return folder / MODEL


def _is_complete(folder: Path, recipe: dict[str, Any]) -> bool:
    with contextlib.suppress(ArtifactError):
        if artifact_matches(folder, KIND, VERSION, recipe):
            check_files(folder, read_manifest(folder, KIND, VERSION), content=True)
            return True
    return False


def _convert(network: Network, name: str, precision: str) -> Any:
    """Convert a torch network to OpenVINO: ids and mask (texts, tokens) -> states (texts, tokens, dimension)."""
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
        with warnings.catch_warnings(), silence_transformers(require("transformers", extra="minilm")):
            warnings.simplefilter("ignore")  # of the tracer, about branches on shapes that no length takes
            decoder = decoding.TorchScriptPythonDecoder(LastStates().eval(), example_input=(ids, torch.ones_like(ids)))
        frontend = frontends.FrontEndManager().load_by_framework("pytorch")
        model = frontend.convert(frontend.load(decoder))
        model.reshape({at: [-1, -1] for at in range(2)})
    except Exception as error:  # tracers and converters may raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        kind = network.model.config.model_type
        raise UserError(f"OpenVINO cannot convert {name} ({kind}: {reason}); use --runtime torch") from error
    if precision == "int8":
        _round_weights(model)
    return model


def _round_weights(model: Any) -> None:
    """Replace the weights of an OpenVINO model's linear layers by int8 numbers with one scale per group of inputs."""
    opset = require("openvino.opset13", extra="runtimes")
    for node in model.get_ordered_ops():
        right = node.input_value(1).get_node() if node.get_type_name() == "MatMul" else node
        if right.get_type_name() != "Constant" or right is node or _VALUES.search(right.get_friendly_name()):
            continue
        weights = np.array(right.get_data(), np.float32)
        weights = weights if node.get_attributes().get("transpose_b") else weights.T  # (outputs, inputs)
        rounded, scales = _round_in_groups(weights)  # (outputs, groups, inputs of a group), (outputs, groups, 1)
        numbers = opset.multiply(opset.convert(opset.constant(rounded), "f32"), opset.constant(scales))
        restored = opset.reshape(numbers, opset.constant(np.array(weights.shape, np.int64)), special_zero=False)
        product = opset.matmul(node.input_value(0), restored, False, True)
        node.output(0).replace(product.output(0))
    model.validate_nodes_and_infer_types()


def _round_in_groups(weights: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Round weights (outputs, inputs) to int8 (outputs, groups, inputs of a group) with scales (outputs, groups, 1).

    >>> rounded, scales = _round_in_groups(np.array([[1.0, -2.0]], np.float32))
    >>> rounded.tolist(), (rounded * scales)[0, 0, 1].item()
    ([[[64, -127]]], -2.0)
    """
    outputs, inputs = weights.shape
    size = GROUP if inputs % GROUP == 0 else inputs
    groups = weights.reshape(outputs, inputs // size, size)
    scales = np.maximum(np.abs(groups).max(axis=2, keepdims=True), np.float32(1e-9)) / np.float32(127)
    return np.rint(groups / scales).astype(np.int8), scales


# --- the fastest runtime --------------------------------------------------------------------------------


def fastest(
    network: Network,
    reader: TextReader,
    settings: Settings,
    name: str,
    *,
    revision: str = "",
    requested: Runtime | None = None,
) -> tuple[Runtime, Network]:
    """Choose the fastest runtime for a float32 network of torch; with a `revision` the choice is kept in the cache."""
    requested = requested or Runtime(AUTO)
    plain = replace(requested, name="torch"), replace(network, packed=requested.packed)
    if network.device != "cpu" or settings.pooling not in POOLINGS or is_small(network):
        return plain
    labels = candidate_labels()
    path, key = _choice_file(revision, requested.cache, labels)
    chosen = _read_choice(path, key)
    if chosen == "torch" or not labels:
        return plain
    texts = [] if chosen else sample_tokens(reader)
    wanted, longest = (None, 0.0) if chosen else _measure(network, texts, settings)
    for label in [each for each in labels if chosen in (None, each)]:
        runtime = replace(Runtime.parse(label), threads=requested.threads, cache=requested.cache)
        try:
            converted = network_in(runtime, network, reader, name, revision=revision)
            if wanted is not None:
                vectors, seconds = _measure(converted, texts, settings)
                cosines = (unit_rows(vectors) * unit_rows(wanted)).sum(axis=1)  # (texts,), NaN where not finite
                if not (cosines.min() >= MIN_COSINE and seconds < longest):
                    continue
        except Exception as error:  # installations can be broken in any way
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            LOG.warning("--runtime %s cannot compute %s here (%s); trying the next one", label, name, reason)
            continue
        _write_choice(path, key, label)
        return runtime, converted
    _write_choice(path, key, "torch")
    return plain


def candidate_labels() -> list[str]:
    """Return the installed runtimes that may be faster here than torch in float32, the likeliest first."""
    labels = ["int8"] if has_own_int8() else []
    if "amx_bf16" in instruction_sets():
        labels.append("torch-bfloat16")
    if find_spec("openvino") is not None:
        is_arm = platform.machine() in ("aarch64", "arm64")  # which converts int8 to float before multiplying
        labels += [f"openvino-{precision}" for precision in (("float16", "float32") if is_arm else ("int8", "float32"))]
    return labels


def is_small(network: Network) -> bool:
    """Return whether a torch network is so small that another runtime gains nothing."""
    return sum(int(weight.numel()) for weight in network.model.parameters()) < MIN_WEIGHTS


def _measure(network: Network, texts: list[Tokens], settings: Settings) -> tuple[Floats, float]:
    """Return the vectors of texts in a network's runtime, (texts, dimension), and the shortest time in seconds."""
    torch, seconds = require("torch", extra="minilm"), []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        with torch.inference_mode():
            vectors = text_vectors(network, texts, settings).float().numpy()
        seconds.append(time.perf_counter() - start)
    return vectors, min(seconds[1:])


def _choice_file(revision: str, cache: Path | None, labels: list[str]) -> tuple[Path | None, str]:
    """Return the file in the cache with the fastest runtime of a model, and the key of this machine."""
    releases = {name: _release(name) for name in ("citeweave", "torch", "openvino", "numba")}
    key = hash_json([revision, processor(), sorted(instruction_sets()), labels, releases])
    return cache_folder(cache) / "runtimes" / f"{revision}.json" if revision else None, key


def _read_choice(path: Path | None, key: str) -> str | None:
    """Read the label of the runtime that an earlier start chose; None where there is none for this machine."""
    try:
        choice: Any = json.loads(read_input(path)) if path else None
    except (OSError, ValueError):
        return None
    return str(choice["runtime"]) if isinstance(choice, dict) and choice.get("key") == key else None


def _write_choice(path: Path | None, key: str, label: str) -> None:
    if path is not None:
        with contextlib.suppress(OSError):  # without a cache the next start measures again
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"runtime": label, "key": key})


def _release(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
