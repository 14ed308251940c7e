"""Embedding by a crew: what its workers must know to make the very shards that this process would make.

    elsewhere = Elsewhere(crew, Loading("minilm"))
    embed_papers(corpus, encoder, "vectors", EmbeddingOptions(elsewhere=elsewhere))

The corpus, the model, a file of full texts and a token store are opened by each worker, by the path that they have
here: they must lie in folders that all machines share. Loads nothing itself; `remote.py` does, in the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from citeweave.corpus.corpus import Corpus
from citeweave.crew import Crew, Work
from citeweave.encoders.encoder import Encoder
from citeweave.encoders.streaming.shards import Hired
from citeweave.encoders.token_store import TokenStore

MAKER = "citeweave.encoders.streaming.remote:embed_maker"


@dataclass(frozen=True, slots=True)
class Loading:
    """How a worker loads its encoder; as `load_aspect_encoder` takes it."""

    model: str
    aspect: str = ""
    device: str = "cpu"
    runtime: str = "torch"
    compiled: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    """pooling, max_tokens, dtype, batch_tokens: JSON values."""

    def __post_init__(self) -> None:
        if Path(self.model).exists():  # a folder, and workers have other working folders
            object.__setattr__(self, "model", str(Path(self.model).absolute()))


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Who makes the shards, with which encoder."""

    crew: Crew
    loading: Loading

    def hire(self, corpus: Corpus, encoder: Encoder, kind: str, how: Mapping[str, Any]) -> Hired:
        """The work of one embedding; `kind` is papers, sentences or chunks, `how` what its maker asks beside."""
        given = {
            "corpus": {"folder": str(corpus.folder.absolute()), "hash": corpus.hash},
            "loading": asdict(self.loading) | {"settings": dict(self.loading.settings)},
            "revision": encoder.revision,
            "kind": kind,
            "how": dict(how),
            "beside": fingerprints(how),
        }
        return Hired(self.crew, Work(MAKER, given, label="embedding", gpu=self.loading.device.startswith("cuda")))


def fingerprints(how: Mapping[str, Any]) -> dict[str, str]:
    """What is read beside corpus and model, by path: the hash of a token store, the bytes of a file of full texts."""
    found = {}
    if how.get("tokens"):
        store = TokenStore.open(how["tokens"])
        found[how["tokens"]] = store.manifest.hash if store.manifest else ""
    if how.get("full_text"):
        found[how["full_text"]] = f"{Path(how['full_text']).stat().st_size} bytes"
    return found
