"""Any encoder as a whole folder: deltas added in, so that programs which know no citeweave can load it.

    write_whole("weave", "folder/")
    SentenceTransformer("folder/")                the vectors of load_encoder("weave")

The folder's card is the model's own, where its manifest holds what the card is made of; else it names what was copied.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from citeweave.artefacts.manifest import Manifest, read_manifest
from citeweave.artefacts.writing import new_artefact
from citeweave.encoders.aspects import find_heads, save_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.locating import locate
from citeweave.encoders.saved.card_facts import card_of_facts
from citeweave.encoders.saved.model_card import ModelCard
from citeweave.encoders.saving import DTYPES, save_encoder
from citeweave.errors import ArtefactError, choose

KIND, VERSION = "encoder", 1
CARD = "card"
"""The fact of a manifest that holds what a model's card is made of."""


def write_whole(model: str | Path, folder: str | Path, *, dtype: str = "float32", overwrite: bool = False) -> Manifest:
    """Write an encoder, by name or folder, as a sentence-transformers folder; `dtype` is that of the saved weights."""
    choose(dtype, DTYPES, "--dtype")
    encoder = load_encoder(model, device="cpu")
    recipe = {"copy of": encoder.revision, "dtype": dtype}
    with new_artefact(Path(folder), KIND, VERSION, recipe, overwrite=overwrite) as writer:
        card = _card(model, encoder.name, encoder.revision)
        save_encoder(writer.folder, encoder.network, encoder.reader.tokenizer, encoder.settings, card=card, dtype=dtype)
        if (heads := find_heads(model)) is not None:
            save_heads(writer.folder, heads)
        writer.facts = {"model": encoder.name, "revision": encoder.revision, **_facts_of(model)}
        return writer.finish()


def _card(model: str | Path, name: str, revision: str) -> ModelCard:
    known = _facts_of(model).get(CARD)
    if isinstance(known, dict):
        return card_of_facts(known)
    return ModelCard(name, about=f"A copy of {name}, revision {revision}.")


def _facts_of(model: str | Path) -> dict[str, Any]:
    try:
        return dict(read_manifest(locate(model).folder, KIND, VERSION).facts)
    except ArtefactError:
        return {}
