"""The fastest way to compute a network on this processor: what `--runtime auto` takes, and how it is chosen.

    runtime, network = fastest(network, reader, settings, "minilm", revision="1f0c...")

The runtimes that are installed are tried in the order of what they usually reach. The first one counts whose vectors of
`sample_texts.py` have a cosine of at least 0.999 with those of torch in float32, and which takes less time than torch.
The outcome is kept in the cache, by model, processor and releases, so that only the first start on a machine measures.
A runtime that is broken, or cannot express the model, is named and passed over. torch is always there.
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
from citeweave.encoders.runtimes import POOLINGS, Runtime, has_own_int8, network_in
from citeweave.encoders.text_vectors import text_vectors
from citeweave.encoders.tokens import TextReader, Tokens, sample_texts

LOG = logging.getLogger("citeweave")

MIN_COSINE = 0.999
"""The least cosine with float32 that a text of the sample may have."""

MIN_WEIGHTS = 2_000_000
"""A network with fewer weights is computed by torch: there is nothing to gain."""

ROUNDS = 2
"""The sample is timed so often, after one round that is not."""


@dataclass(frozen=True, slots=True)
class Fastest:
    """A runtime and the network that it computes."""

    runtime: Runtime
    network: Network


def fastest(
    network: Network,
    reader: TextReader,
    settings: Settings,
    name: str,
    *,
    revision: str = "",
    asked: Runtime | None = None,
) -> Fastest:
    """The fastest runtime of a network of torch in float32; with a `revision` of its weights the choice is kept."""
    asked = asked or Runtime("auto")
    plain = Fastest(replace(asked, name="torch"), replace(network, packed=asked.packed))
    if network.device != "cpu" or settings.pooling not in POOLINGS or is_small(network):
        return plain
    candidates = [
        replace(Runtime.parse(label), threads=asked.threads, cache=asked.cache) for label in candidate_labels()
    ]
    kept = _Kept.of(revision, asked.cache, [each.label for each in candidates])
    chosen = kept.read()
    if chosen == "torch" or not candidates:
        return plain
    trial = _Trial(network, reader, settings, name, revision)
    for candidate in candidates if chosen is None else [each for each in candidates if each.label == chosen]:
        made = trial.build(candidate)
        if made is not None and (chosen is not None or trial.passes(candidate, made)):
            kept.write(candidate.label)
            return Fastest(candidate, made)
    kept.write("torch")
    return plain


def candidate_labels() -> list[str]:
    """Runtimes that are installed and may be faster here than torch in float32, the likeliest first."""
    found, features = [], instruction_sets()
    if has_own_int8():
        found.append("int8")
    if "amx_bf16" in features:
        found.append("torch-bfloat16")
    if find_spec("openvino") is not None:
        is_arm = platform.machine() in ("aarch64", "arm64")  # there int8 is restored to float before it is multiplied
        found += [f"openvino-{precision}" for precision in (("float16", "float32") if is_arm else ("int8", "float32"))]
    return found


@dataclass
class _Trial:
    """One network, and how each runtime does on the sample."""

    network: Network
    reader: TextReader
    settings: Settings
    name: str
    revision: str

    def __post_init__(self) -> None:
        self._reference: tuple[NDArray[np.float32], float] | None = None
        self._texts: list[Tokens] = []

    def build(self, runtime: Runtime) -> Network | None:
        """The network in a runtime; None, with a line that says so, where that fails."""
        try:
            return network_in(runtime, self.network, self.reader, self.name, revision=self.revision)
        except Exception as error:  # an installation may be broken in any way
            self._pass_over(runtime, error)
            return None

    def passes(self, runtime: Runtime, made: Network) -> bool:
        """Whether vectors are near enough to those of float32, and come sooner."""
        if self._reference is None:
            self._texts = [tokens for tokens in self.reader.read(sample_texts()) if len(tokens)]
            self._reference = self._measure(self.network)
        vectors, seconds = self._reference
        try:
            found, taken = self._measure(made)
        except Exception as error:  # likewise
            self._pass_over(runtime, error)
            return False
        least = float(np.min(_cosines(found, vectors)))
        return bool(np.isfinite(found).all()) and least >= MIN_COSINE and taken < seconds

    def _measure(self, network: Network) -> tuple[NDArray[np.float32], float]:
        """Vectors of the sample (texts, dimension), and the least seconds that they took."""
        torch, seconds = require("torch", extra="minilm"), []
        for _ in range(1 + ROUNDS):
            start = time.perf_counter()
            with torch.inference_mode():
                vectors = text_vectors(network, self._texts, self.settings).float().numpy()
            seconds.append(time.perf_counter() - start)
        return vectors, min(seconds[1:])

    def _pass_over(self, runtime: Runtime, error: Exception) -> None:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        LOG.warning("--runtime %s cannot compute %s here (%s); taking the next one", runtime.label, self.name, reason)


def _cosines(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of every row with its counterpart, (rows,)."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    found: NDArray[np.float32] = (one * other).sum(axis=1) / np.maximum(lengths, 1e-12)
    return found


def is_small(network: Network) -> bool:
    """Whether a network of torch has so few weights that another runtime gains nothing."""
    return sum(int(weight.numel()) for weight in network.model.parameters()) < MIN_WEIGHTS


@dataclass(frozen=True, slots=True)
class _Kept:
    """The choice of an earlier start."""

    path: Path | None
    key: str

    @classmethod
    def of(cls, revision: str, cache: Path | None, labels: list[str]) -> _Kept:
        releases = {name: _release(name) for name in ("citeweave", "torch", "openvino", "numba")}
        key = hash_json([revision, processor(), sorted(instruction_sets()), labels, releases])
        return cls(cache_folder(cache) / "runtimes" / f"{revision}.json" if revision else None, key)

    def read(self) -> str | None:
        """The label of a runtime; None where nothing is known of this model on this machine."""
        try:
            known: Any = json.loads(self.path.read_text(encoding="utf-8")) if self.path else None
        except (OSError, ValueError):
            return None
        return str(known["runtime"]) if isinstance(known, dict) and known.get("key") == self.key else None

    def write(self, label: str) -> None:
        if self.path is not None:
            with contextlib.suppress(OSError):  # a cache that cannot be written costs a measurement, nothing else
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self.path, {"runtime": label, "key": self.key})


def _release(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
