"""The peers of gpu_speed.py: the usual padded encoder and training step, and sentence-transformers' own.

usual_encode      transformers' model on batches sorted by length and cut by padded tokens, mean pooling
usual_step        anchors, positives and negatives in three padded forwards under autocast, gradients added up
sentence_transformer, loop_of_sentence_transformers      the same model as a SentenceTransformer; its encode and TripletLoss
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import triplet_margin_loss

from citeweave.encoders.batches import batches

Step = Callable[[Any, np.ndarray, Any], None]


def padded(tokens: list[np.ndarray]) -> dict[str, torch.Tensor]:
    ids = np.zeros((len(tokens), max(map(len, tokens))), np.int64)  # (texts, tokens)
    mask = np.zeros_like(ids)
    for row, one in enumerate(tokens):
        ids[row, : len(one)], mask[row, : len(one)] = one, 1
    named = {"input_ids": ids, "attention_mask": mask}
    return {name: torch.from_numpy(array).pin_memory().to("cuda", non_blocking=True) for name, array in named.items()}


@torch.inference_mode()
def usual_encode(model: Any, tokens: list[np.ndarray], budget: int) -> np.ndarray:
    found = np.zeros((len(tokens), model.config.hidden_size), np.float32)
    on_their_way = []
    for rows in batches(np.array([len(ids) for ids in tokens]), budget):
        inputs = padded([tokens[row] for row in rows])
        weights = inputs["attention_mask"].unsqueeze(-1).float()
        states = model(**inputs).last_hidden_state.float() * weights
        on_their_way.append((rows, (states.sum(1) / weights.sum(1)).to("cpu", non_blocking=True)))
    torch.cuda.synchronize()
    for rows, vectors in on_their_way:
        found[rows] = vectors.numpy()
    return found


def usual_step(tokens: list[np.ndarray], micro: int) -> Step:
    def step(model: Any, triplets: np.ndarray, optimizer: Any) -> None:
        for start in range(0, len(triplets), micro):
            part = triplets[start : start + micro]
            with torch.autocast("cuda", torch.bfloat16):
                three = [model(**padded([tokens[row] for row in rows])).last_hidden_state[:, 0] for rows in part.T]
            loss = triplet_margin_loss(*(vectors.float() for vectors in three), reduction="sum") / len(triplets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def sentence_transformer(model: Any, tokens: list[np.ndarray], pooling: str) -> tuple[Any, list[str]]:
    """The model with a tokenizer of one word a token, and the texts that it reads as these tokens."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1} | {f"w{number}": number for number in range(2, model.config.vocab_size)}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", model_max_length=512
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder))
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder, model_kwargs={"dtype": model.dtype})
        transformer.max_seq_length = 512
    pool = Pooling(model.config.hidden_size, pooling)
    peer = SentenceTransformer(modules=[transformer, pool], device="cuda")
    return peer, [" ".join(f"w{number}" for number in ids) for ids in tokens]


def loop_of_sentence_transformers(tokens: list[np.ndarray], micro: int) -> Step:
    """What its trainer does at a step; the texts are padded beforehand, so that its tokenizer costs nothing."""
    from sentence_transformers.losses import TripletLoss

    made: dict[int, Any] = {}

    def step(model: Any, triplets: np.ndarray, optimizer: Any) -> None:
        if id(model) not in made:
            made.clear()
            peer = sentence_transformer(model, [], "cls")[0].train()
            made[id(model)] = (
                TripletLoss(peer, triplet_margin=1.0),
                torch.optim.AdamW(peer.parameters(), 2e-5, fused=True),
            )
        loss_of, own = made[id(model)]
        for start in range(0, len(triplets), micro):
            part = triplets[start : start + micro]
            with torch.autocast("cuda", torch.bfloat16):
                features = [padded([tokens[row] for row in rows]) for rows in part.T]
                loss = loss_of(features, None) * (len(part) / len(triplets))
            loss.backward()
        own.step()
        own.zero_grad(set_to_none=True)

    return step
