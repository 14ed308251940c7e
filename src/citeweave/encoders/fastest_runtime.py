"""The fastest runtime for a network on this processor, for `--runtime auto`: measured once per machine.

    chosen = fastest(network, reader, settings, "minilm", revision="1f0c...")
    chosen.runtime, chosen.network

The installed runtimes are tried in the order of their usual speed. The first one is chosen whose vectors of `sample_texts.py`
have a cosine of at least 0.999 with those of torch in float32, and which takes less time than torch. The choice is kept in
the cache, by model, processor and releases, so that only the first start on a machine measures. A runtime that is broken, or
cannot compute the model, is reported and skipped. torch always works.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import platform
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import require
from citeweave.core.executor import instruction_sets, processor
from citeweave.core.files import cache_folder, hash_json, write_json
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import text_vectors
from citeweave.encoders.runtimes import POOLINGS, Runtime, has_own_int8, network_in
from citeweave.encoders.sample_texts import sample_texts
from citeweave.encoders.tokens import TextReader, Tokens

LOG = logging.getLogger("citeweave")

MIN_COSINE = 0.999
"""Lowest accepted cosine with float32 of any sample text."""

MIN_WEIGHTS = 2_000_000
"""A smaller network is computed by torch: there is nothing to gain."""

ROUNDS = 2
"""How often the sample texts are timed, after a first round that is not."""


@dataclass(frozen=True, slots=True)
class FastestRuntime:
    """The fastest runtime, and the network that it computes."""

    runtime: Runtime
    network: Network


def fastest(
    network: Network,
    reader: TextReader,
    settings: Settings,
    name: str,
    *,
    revision: str = "",
    requested: Runtime | None = None,
) -> FastestRuntime:
    """Choose the fastest runtime for a float32 network of torch; with a `revision` the choice is kept in the cache."""
    requested = requested or Runtime("auto")
    plain = FastestRuntime(replace(requested, name="torch"), replace(network, packed=requested.packed))
    if network.device != "cpu" or settings.pooling not in POOLINGS or is_small(network):
        return plain
    candidates = [
        replace(Runtime.parse(label), threads=requested.threads, cache=requested.cache) for label in candidate_labels()
    ]
    cached = _CachedChoice.of(revision, requested.cache, [each.label for each in candidates])
    chosen = cached.read()
    if chosen == "torch" or not candidates:
        return plain
    trial = _Trial(network, reader, settings, name, revision)
    for candidate in candidates if chosen is None else [each for each in candidates if each.label == chosen]:
        converted = trial.build(candidate)
        if converted is not None and (chosen is not None or trial.passes(candidate, converted)):
            cached.write(candidate.label)
            return FastestRuntime(candidate, converted)
    cached.write("torch")
    return plain


def candidate_labels() -> list[str]:
    """Return the installed runtimes that may be faster here than torch in float32, the likeliest first."""
    labels, features = [], instruction_sets()
    if has_own_int8():
        labels.append("int8")
    if "amx_bf16" in features:
        labels.append("torch-bfloat16")
    if find_spec("openvino") is not None:
        is_arm = platform.machine() in ("aarch64", "arm64")  # which converts int8 to float before multiplying
        labels += [f"openvino-{precision}" for precision in (("float16", "float32") if is_arm else ("int8", "float32"))]
    return labels


@dataclass
class _Trial:
    """Tries runtimes for one network: accuracy and speed on the sample texts."""

    network: Network
    reader: TextReader
    settings: Settings
    name: str
    revision: str

    def __post_init__(self) -> None:
        self._reference: tuple[NDArray[np.float32], float] | None = None
        self._texts: list[Tokens] = []

    def build(self, runtime: Runtime) -> Network | None:
        """Convert the network to a runtime that may be the fastest; None, with a warning, where that fails."""
        try:
            return network_in(runtime, self.network, self.reader, self.name, revision=self.revision)
        except Exception as error:  # installations can be broken in any way
            self._warn(runtime, error)
            return None

    def passes(self, runtime: Runtime, converted: Network) -> bool:
        """Return whether a runtime is accurate enough and faster than float32 in torch."""
        if self._reference is None:
            self._texts = [tokens for tokens in self.reader.read(sample_texts()) if len(tokens)]
            self._reference = self._measure(self.network)
        vectors, seconds = self._reference
        try:
            found, duration = self._measure(converted)
        except Exception as error:  # likewise
            self._warn(runtime, error)
            return False
        lowest = float(np.min(_cosines(found, vectors)))
        return bool(np.isfinite(found).all()) and lowest >= MIN_COSINE and duration < seconds

    def _measure(self, network: Network) -> tuple[NDArray[np.float32], float]:
        """Return the vectors of the sample texts (texts, dimension), and the shortest time in seconds."""
        torch, seconds = require("torch", extra="minilm"), []
        for _ in range(1 + ROUNDS):
            start = time.perf_counter()
            with torch.inference_mode():
                vectors = text_vectors(network, self._texts, self.settings).float().numpy()
            seconds.append(time.perf_counter() - start)
        return vectors, min(seconds[1:])

    def _warn(self, runtime: Runtime, error: Exception) -> None:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        LOG.warning("--runtime %s cannot compute %s here (%s); trying the next one", runtime.label, self.name, reason)


def _cosines(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosine of each vector with its reference, (rows,)."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: NDArray[np.float32] = (one * other).sum(axis=1) / np.maximum(lengths, 1e-12)
    return cosines


def is_small(network: Network) -> bool:
    """Return whether a torch network is so small that another runtime gains nothing."""
    return sum(int(weight.numel()) for weight in network.model.parameters()) < MIN_WEIGHTS


@dataclass(frozen=True, slots=True)
class _CachedChoice:
    """The runtime that an earlier start chose, in the cache."""

    path: Path | None
    key: str

    @classmethod
    def of(cls, revision: str, cache: Path | None, labels: list[str]) -> _CachedChoice:
        releases = {name: _release(name) for name in ("citeweave", "torch", "openvino", "numba")}
        key = hash_json([revision, processor(), sorted(instruction_sets()), labels, releases])
        return cls(cache_folder(cache) / "runtimes" / f"{revision}.json" if revision else None, key)

    def read(self) -> str | None:
        """Read the label of the cached runtime; None where there is none for this model on this machine."""
        try:
            choice: Any = json.loads(self.path.read_text(encoding="utf-8")) if self.path else None
        except (OSError, ValueError):
            return None
        return str(choice["runtime"]) if isinstance(choice, dict) and choice.get("key") == self.key else None

    def write(self, label: str) -> None:
        if self.path is not None:
            with contextlib.suppress(OSError):  # without a cache the next start measures again
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self.path, {"runtime": label, "key": self.key})


def _release(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
