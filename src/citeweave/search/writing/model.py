"""The model of an index, loaded to make more of its vectors; another one than made those that are there is refused."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from citeweave.encoders.aspects import AspectHeads, find_heads, save_heads
from citeweave.encoders.embedding import SHARD
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import UserError
from citeweave.search.index import Index
from citeweave.search.state import HEADS
from citeweave.search.writing.vectors import Embedding


def open_embedding(
    index: Index,
    model: str | Path | None = None,
    *,
    device: str = "auto",
    shard: int = SHARD,
    encoder: TorchEncoder | None = None,
    sentences: bool = False,
) -> Embedding:
    """The model where it was when the index was made, or where `model` says it is now; `encoder` is one loaded before.

    `sentences` asks for their vectors also where the index has none so far.
    """
    where = str(model or index.model)
    if not model and Path(where).is_absolute() and not Path(where).is_dir():
        raise UserError(f"the model of {index.folder} is no longer at {where}; say with --model where it is")
    encoder = encoder or load_encoder(where, device=device, runtime=index.runtime)
    facts = index.state.facts
    sentences = sentences or bool(facts.get("sentences"))
    how = Embedding(encoder, find_heads(where), str(facts["dtype"]), sentences, shard)
    if index.provenance is not None:
        index.provenance.check_same(how.provenance)
        if (how.heads.hash if how.heads else "") != facts.get("heads"):
            raise UserError(
                f"{index.folder} was made with other aspect heads than those of {where}; give the index's own model "
                "with --model, or build the index again"
            )
    return how


def model_facts(how: Embedding | None) -> dict[str, Any]:
    """What a state tells about the model: nothing before there are vectors."""
    heads = how.heads if how else None
    return {
        "provenance": asdict(how.provenance) if how else None,
        "aspects": list(heads.names) if heads else [],
        "heads": heads.hash if heads else "",
    }


def write_heads(folder: Path, heads: AspectHeads | None) -> None:
    """Keep the heads beside the segments, in a folder of their own name; before a state names them."""
    if heads is not None:
        place = folder / HEADS / heads.hash
        place.mkdir(parents=True, exist_ok=True)
        save_heads(place, heads)
