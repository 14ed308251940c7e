"""The transformer network: batches of token ids in, states of the tokens out, padded or packed.

    states   (texts, tokens, dimension)    of the last layer, or of every layer
    mask     (texts, tokens)               1 at a token, 0 where a shorter text is padded at its end

On CUDA in half precision (its weights, or `torch.autocast` around the call) models of the BERT family read texts without
padding, see `packed.py`. For long runs compile the layers: they take less time and memory, after some seconds at the first batch
of embedding and at the first of training.

    network = speed_up(network)
    with torch.autocast("cuda", torch.bfloat16):                    # weights stay float32, so do their gradients
        vectors = text_vectors(network, batch, settings)            # pooling.py; differentiable
    loss(vectors).backward()

Loads safetensors only, never code from the folder. Does not tokenize and does not pool.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from citeweave.core.errors import CiteweaveError, InputError, UserError, choose, require
from citeweave.core.progress import Reporter
from citeweave.encoders.pooling import PaddedStates, States, TokenStates
from citeweave.encoders.tokens import TextReader, Tokens

if TYPE_CHECKING:
    from torch import Tensor

FLOAT8 = "float8"
"""Products of weights and states in 8 bits (`float8.py`), everything else in bfloat16."""

DTYPES = ("float32", "bfloat16", "float16", FLOAT8)

COMPILING_PAYS = {"embedding": 2_000_000_000, "training": 300_000_000}
"""Tokens from which compiling layers is chosen by itself: on an H200 it takes 10 seconds for embedding and 25 for training, and
saves 0.006 microseconds of a token embedded and 0.1 of a token trained on (docs/performance.md)."""


@dataclass(frozen=True, slots=True)
class Network:
    """A transformer network, loaded on its device. See `load_network`."""

    model: Any
    device: str
    pad: int
    packed: bool | None = None
    """Whether texts are read without padding; None = where that is faster. True packs on a CPU too, slowly."""

    compiled: bool = False
    """Whether packed layers are compiled; see `speed_up`."""

    @property
    def dimension(self) -> int:
        return int(self.model.config.hidden_size)

    @property
    def is_torch(self) -> bool:
        """Whether torch computes the network; others only hold the configuration of their model."""
        return hasattr(self.model, "parameters")

    @property
    def longest(self) -> int | None:
        """The number of tokens that the network has positions for; None where there is no limit."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        if not isinstance(positions, int) or positions < 1:
            return None
        table = getattr(getattr(self.model, "embeddings", None), "position_embeddings", None)
        unused = getattr(table, "padding_idx", None)  # RoBERTa counts its positions from here on
        return positions if unused is None else positions - int(unused) - 1

    @property
    def packs(self) -> bool:
        """Whether the network reads texts without padding at the moment; `torch.autocast` may change it."""
        if self.packed is False:
            return False
        require("torch", extra="minilm")
        from citeweave.encoders.packed import can_pack

        return can_pack(self.model, self.device, slowly=self.packed is True)

    def states(self, batch: Sequence[Tokens], *, first_only: bool = False) -> States:
        """Return the network's last states of a batch, with gradients where enabled; `first_only` for `cls()` alone."""
        if not self.packs:
            layers, mask = self.padded(batch)
            return PaddedStates(layers[0], mask)
        from citeweave.encoders.packed import packed_states
        from citeweave.encoders.packed_batch import pack

        batch_on_device = pack(batch, self.pad, self.device)
        return packed_states(self.model, batch_on_device, first_only=first_only, compiled=self.compiled)

    def token_states(self, batch: Sequence[Tokens]) -> TokenStates:
        """Return the network's last states of every token of a batch, with gradients where enabled."""
        return cast(TokenStates, self.states(batch))

    def padded(self, batch: Sequence[Tokens], *, every: bool = False) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the padded states of the last layer, or with `every` of the embeddings and all layers, and the mask.

        Differentiable.
        """
        torch = require("torch", extra="minilm")
        longest = max(map(len, batch))
        longest += 0 if self.device == "cpu" else -longest % 8  # the shapes that kernels are fast on
        ids = np.full((len(batch), longest), self.pad, np.int64)  # (texts, tokens)
        mask = np.zeros(ids.shape, np.int64)  # (texts, tokens)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        on_device = torch.from_numpy(mask).to(self.device)
        output = self.model(
            input_ids=torch.from_numpy(ids).to(self.device), attention_mask=on_device, output_hidden_states=every
        )
        return (tuple(output.hidden_states) if every else (output.last_hidden_state,)), on_device


def speed_up(network: Network) -> Network:
    """Return the network with layers that are compiled at the first batch, where torch can; for long runs."""
    require("torch", extra="minilm")
    from citeweave.encoders.packed import can_compile

    return replace(network, compiled=can_compile(network.model, network.device))


def pays_to_compile(work: str, tokens: float, reporter: Reporter) -> bool:
    """Return whether a run of `COMPILING_PAYS` is long enough to compile the layers, and say so."""
    pays = tokens >= COMPILING_PAYS[work]
    if pays:
        reporter.say(
            f"{work} of about {tokens:,.0f} tokens: layers are compiled first where torch can, for less than a minute"
        )
    return pays


def torch_dtype(dtype: str) -> Any:
    """Return torch's dtype of the weights of a network that computes in `dtype`."""
    return getattr(require("torch", extra="minilm"), "bfloat16" if dtype == FLOAT8 else dtype)


def load_network(folder: Path, device: str, dtype: str) -> tuple[Network, Any]:
    """Load the network of a Hugging Face folder, and its tokenizer."""
    torch, transformers = require("torch", extra="minilm"), require("transformers", extra="minilm")
    place = _device(device)
    _check_dtype(choose(dtype, DTYPES, "--precision"), place)
    with silence_transformers(transformers), torch.random.fork_rng(devices=[]):  # unused heads are drawn at random
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
            model, report = transformers.AutoModel.from_pretrained(
                folder,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                dtype=torch_dtype(dtype),
            )
        except Exception as error:  # a damaged folder can fail in any way
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise InputError(
                f"{folder} cannot be loaded as an encoder ({reason}); "
                "check that transformers' AutoModel and AutoTokenizer load it without remote code"
            ) from error
    _check_complete(folder, model, report)
    pad = _check_vocabulary(folder, model, tokenizer)
    if model.config.model_type == "mpnet":
        from citeweave.encoders.mpnet_attention import fuse_attention

        fuse_attention(model)
    return Network(model.eval().to(place), place, pad), tokenizer


def draw_weights(model: Any, seed: int) -> str:
    """Replace all weights of a network by random ones, as transformers initializes its class; return their SHA-256.

    Pooling weights that citeweave added, such as a mix of layers, stay as they begin.
    """
    torch = require("torch", extra="minilm")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(model)(model.config).state_dict()
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in fresh:
                tensor.copy_(fresh[name])
                digest.update(fresh[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def refuse_unusable(folder: Path | str) -> Iterator[None]:
    """Turn any failure of loading a transformer network into one clear error; tokenizers even panics, beyond Exception."""
    try:
        yield
    except CiteweaveError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(
            f"{folder} cannot be used as an encoder ({reason}); check that transformers' AutoModel and AutoTokenizer load "
            "it without remote code, and read a text"
        ) from error


def check_can_read(network: Network, reader: TextReader, folder: Path) -> None:
    """Check that a transformer network and its tokenizer fit, by reading a known and an unknown word before a corpus."""
    torch = require("torch", extra="minilm")
    with refuse_unusable(folder), torch.inference_mode():
        tokens = [ids for ids in reader.read(["a", "\u2603"]) if len(ids)]
        if tokens:
            network.token_states(tokens)


def _check_vocabulary(folder: Path, model: Any, tokenizer: Any) -> int:
    """Return the padding id; refuse a tokenizer with ids that the network has no embedding for.

    Padding is masked, so where the network has no embedding for its id, any other id does.
    """
    pad = tokenizer.pad_token_id
    rows = int(model.get_input_embeddings().weight.shape[0])
    highest = max((number for number in tokenizer.get_vocab().values() if number != pad), default=-1)
    if highest >= rows:
        raise InputError(
            f"{folder}: its tokenizer gives ids up to {highest:,}, and its network reads {rows:,}; "
            "tokenizer and weights are of different models: copy the whole folder again"
        )
    return 0 if pad is None or pad >= rows else int(pad)


def _check_complete(folder: Path, model: Any, report: dict[str, Any]) -> None:
    lacking = sorted(name for name in report["missing_keys"] if "pooler" not in name)  # the pooler is not used
    if lacking:
        raise InputError(
            f"{folder} lacks {len(lacking)} of the model's weights, such as {lacking[0]}; "
            "config.json and the weights are of different models: copy the whole folder again"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise UserError(f"{folder} holds an encoder with a decoder ({model.config.model_type}); give an encoder alone")
    if not isinstance(getattr(model.config, "hidden_size", None), int):
        raise UserError(f"{folder} holds no text encoder ({model.config.model_type}); give a BERT-like model")


def _device(device: str) -> str:
    torch = require("torch", extra="minilm")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if not match:
        raise UserError(f"--device is {device!r}; it must be one of auto, cpu, cuda, cuda:0, cuda:1, ...")
    if device != "cpu" and int(match[1] or 0) >= torch.cuda.device_count():
        raise UserError(f"--device is {device}, and torch sees {torch.cuda.device_count()} GPUs; use --device cpu")
    return device


def _check_dtype(dtype: str, device: str) -> None:
    """Refuse half precision on a CPU without it, where it is hundreds of times slower than float32, and float8 on old GPUs."""
    torch = require("torch", extra="minilm")
    if dtype == FLOAT8 and device != "cpu" and not has_float8(device):
        place = torch.cuda.get_device_name(device)
        raise UserError(f"--precision is {dtype}, for which {place} has no fast arithmetic; use bfloat16")
    if device == "cpu" and (
        dtype in ("float16", FLOAT8) or (dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported())
    ):
        raise UserError(
            f"--precision is {dtype}, for which this processor has no fast arithmetic; use float32 or a GPU"
        )


def has_float8(device: str) -> bool:
    """Return whether a GPU and torch can multiply 8-bit floats, which needs triton as well."""
    torch = require("torch", extra="minilm")
    has_kernels = hasattr(torch, "_scaled_mm") and importlib.util.find_spec("triton") is not None
    return has_kernels and bool(torch.cuda.get_device_capability(device) >= (8, 9))


@contextmanager
def silence_transformers(transformers: Any) -> Iterator[None]:
    """Silence the progress bars and warnings of transformers; what matters is checked here."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
