"""Encoders as ONNX files, made once and kept in a cache.

    exported(network, "1f0c...", precision="float32", cache=Path("cache"))   ->   cache/exported/1f0c...-float32/model.onnx

    model.onnx       input_ids (texts, tokens) int64, attention_mask (texts, tokens) int64
                     -> states (texts, tokens, dimension) float32; both axes are free
    manifest.json    of which encoder and by which releases it was made; its hash is checked at every reading

`int8` has the weights of all products as 8-bit numbers with a scale a column; what stands left of a product becomes
8-bit while it runs, with one scale for the whole batch (ONNX Runtime's dynamic quantization). Does not run anything.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from citeweave.artefacts.integrity import check_files
from citeweave.artefacts.manifest import read_manifest
from citeweave.artefacts.writing import matches, new_artefact
from citeweave.encoders.network import Network
from citeweave.errors import ArtefactError, UserError
from citeweave.extras import require
from citeweave.files import cache_folder

KIND, VERSION = "exported encoder", 1
MODEL = "model.onnx"
EXPORTED = ("float32", "int8")


def exported(network: Network, revision: str, *, precision: str, cache: Path | None = None) -> Path:
    """The ONNX file of a network, made where it is not there yet or damaged; `revision` names weights and tokenizer."""
    assert precision in EXPORTED
    folder = cache_folder(cache) / "exported" / f"{revision}-{precision}"
    recipe = {"encoder": revision, "precision": precision, "made with": _releases(precision)}
    if not _is_whole(folder, recipe):
        plain = None if precision == "float32" else exported(network, revision, precision="float32", cache=cache)
        with new_artefact(folder, KIND, VERSION, recipe, overwrite=True) as writer:
            if plain is None:
                _export(network, writer.folder / MODEL)
            else:
                _quantize(plain, writer.folder / MODEL)
            writer.finish()
    return folder / MODEL


def _is_whole(folder: Path, recipe: dict[str, Any]) -> bool:
    if not matches(folder, KIND, VERSION, recipe):
        return False
    try:
        check_files(folder, read_manifest(folder, KIND, VERSION), content=True)
    except ArtefactError:
        return False
    return True


def _releases(precision: str) -> dict[str, str]:
    names = ["torch", "transformers", "onnxscript"] + (["onnxruntime"] if precision == "int8" else [])
    for name in names:
        require(name, extra="minilm" if name in ("torch", "transformers") else "fast")
    return {name: importlib.metadata.version(name) for name in names}


def _export(network: Network, path: Path) -> None:
    torch = require("torch", extra="minilm")

    class LastStates(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = network.model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = torch.full((2, 8), network.pad, dtype=torch.int64)  # (texts, tokens); 1 would be taken for a constant
    mask = torch.ones_like(ids)
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with _silence():
        try:
            torch.onnx.export(
                LastStates().eval(),
                (ids, mask),
                str(path),
                input_names=["input_ids", "attention_mask"],
                output_names=["states"],
                dynamic_shapes=(free, free),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            kind = network.model.config.model_type
            raise UserError(
                f"the model ({kind}) cannot be written as ONNX by torch.onnx ({reason}); take --runtime torch"
            ) from error


def _quantize(plain: Path, path: Path) -> None:
    quantization = require("onnxruntime.quantization", extra="runtimes")
    with _silence():
        quantization.quantize_dynamic(
            plain,
            path,
            op_types_to_quantize=["MatMul"],  # embeddings and norms keep their float32
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},  # products of attention stay float32
        )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The exporters report their own progress and warn of packages that are not needed."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
