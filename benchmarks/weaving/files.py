"""The files of a bundle: tokens, everything else but the weights, and the weights of the start model.

    tokens.xz     word pieces of all papers, uint16
    rest.xz       a pickled dictionary: open bundles of your own only
    weights.xz    matrices as bfloat16, their upper and lower bytes apart; all else float32

MiniLM and 200,000 abstracts take 55 MB.
"""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_TOKENS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 1, "pb": 1, "dict_size": 1 << 26}]
"""Numbers of two bytes: places of even and odd bytes differ."""


def write_bundle(folder: Path, bundle: dict[str, Any]) -> None:
    """A dictionary with `tokens` and what `Bundle` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = bundle["tokens"].astype(np.uint16).tobytes()
    rest = pickle.dumps({name: value for name, value in bundle.items() if name != "tokens"}, protocol=5)
    (folder / "tokens.xz").write_bytes(lzma.compress(tokens, lzma.FORMAT_XZ, filters=_TOKENS))
    (folder / "rest.xz").write_bytes(lzma.compress(rest))


def read_bundle(folder: Path) -> dict[str, Any]:
    tokens = np.frombuffer(lzma.decompress((folder / "tokens.xz").read_bytes()), np.uint16)
    rest: dict[str, Any] = _unpickled(folder / "rest.xz")
    return {**rest, "tokens": tokens}


def write_weights(path: Path, model: Any, used: NDArray[np.bool_]) -> None:
    """The weights of a BERT without its pooler; the rows of words that are not used are zeros."""
    plain, shapes, flat = {}, [], []
    for name, weight in model.state_dict().items():
        if name.startswith("pooler") or not weight.is_floating_point():
            continue
        if weight.dim() < 2:
            plain[name] = weight.float().numpy()
            continue
        if "word_embeddings" in name:
            weight = weight * torch.from_numpy(used)[:, None]
        shapes.append((name, tuple(weight.shape)))
        flat.append(weight.flatten())
    low, high = split_bytes(torch.cat(flat))
    value = {"plain": plain, "names": shapes, "config": model.config.to_dict(), "low": low, "high": high}
    path.write_bytes(lzma.compress(pickle.dumps(value, protocol=5)))


def read_model(path: Path) -> Any:
    """A BertModel in float32."""
    from transformers import BertConfig, BertModel

    value = _unpickled(path)
    state = {name: torch.from_numpy(weight) for name, weight in value["plain"].items()}
    sizes = [int(np.prod(shape)) for _, shape in value["names"]]
    parts: Any = torch.split(join_bytes(value["low"], value["high"]), sizes)
    for (name, shape), part in zip(value["names"], parts, strict=True):
        state[name] = part.reshape(shape).clone()
    model: Any = BertModel(BertConfig.from_dict(value["config"]), add_pooling_layer=False)  # type: ignore[no-untyped-call]
    missing = [name for name in model.load_state_dict(state, strict=False).missing_keys if "position_ids" not in name]
    if missing:
        raise ValueError(f"{path} lacks {missing[0]}; write the bundle again")
    return model.float()


def split_bytes(weights: torch.Tensor) -> tuple[bytes, bytes]:
    """Lower and upper bytes of weights (n,) in bfloat16: the upper ones, sign and exponent, compress well.

    >>> low, high = split_bytes(torch.tensor([1.0, -2.0]))
    >>> join_bytes(low, high).tolist()
    [1.0, -2.0]
    """
    both = weights.bfloat16().view(torch.int16).numpy().view(np.uint8).reshape(-1, 2)  # (n, 2)
    return both[:, 0].tobytes(), both[:, 1].tobytes()


def join_bytes(low: bytes, high: bytes) -> torch.Tensor:
    both = np.stack([np.frombuffer(low, np.uint8), np.frombuffer(high, np.uint8)], axis=1)  # (n, 2)
    return torch.from_numpy(both.reshape(-1)).view(torch.bfloat16).float()  # (n,)


def _unpickled(path: Path) -> Any:
    return pickle.loads(lzma.decompress(path.read_bytes()))  # noqa: S301
