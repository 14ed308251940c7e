"""How processes that a launcher started find each other, also after a restart.

    store, rank, count = meet(timedelta(minutes=30))

torchrun keeps one store of keys and values through its restarts (torch 2.13, c10d rendezvous). A process of the second
attempt may find there the address at which one of the first attempt listened, and waits for it for ever. So every
attempt gets a name of its own, and its keys lie under that:

    process 0 draws a name, all others draw a word of their own and write it beside the name that they read;
    process 0 answers under its name with the words of all, when all have come;
    a process goes on when the answer holds its word: no earlier attempt can know it.

Several processes that train one model: who am I, sums over all of us, and waiting for each other.

    torchrun --nproc-per-node 2 -m citeweave train ...

torchrun (or accelerate, or Slurm) names the processes in the environment; without that there is one. A step's papers are
dealt out among them, and the sum of all gradients is the gradient of the whole batch. Why gradients are summed here and
not by torch's DistributedDataParallel: that one wants every process to call one module's forward once a backward, and
averages. A step here reads papers in as many parts as they need, some processes one more than others, packed texts by
the weights themselves, and losses over the whole batch need their second reading; the sum after the last part is right
for all of these. Models that do not fit a device are sharded by torch's FSDP: see `sharding.py`.

Does not start processes, and does not restart them: torchrun does.

One model over several processes, none of which holds all of it: torch's fully sharded data parallel (FSDP2).

    citeweave train ... --set training.parallel=fsdp          under torchrun

    every weight, its gradient and the optimizer's two moments     1 / processes of it on each
    a layer that is being computed                                 whole, for as long as that takes
    embeddings                                                     whole from a step's first reading to its end
    in bfloat16: a layer's weights as they were computed with      whole, 2 bytes each, until the gradient has passed

Zhao et al. 2023 (PyTorch FSDP). Weights that are not of the transformer (aspect heads, a learned pooling) are small and
stay whole on every process. A sharded layer is gathered by all processes at once: each must read as often as the others,
which `stepping.py` sees to. Does not train and does not write: checkpoints and models hold whole weights, so that a run
may go on with another number of processes, or unsharded.

Whether several processes are about to train the same thing: versions, data, options, and one folder for all.

    check_agreement(processes, {"corpus": corpus.hash, "training": {"batch": 32}})
    check_shared(processes, Path(".model.citeweave-1f0c2a9b/kept/..."))

Processes on several machines read their own copies of inputs and packages. One that differs would not fail: it would
train something between, or wait for ever. Here it is named, on every process, before anything is made.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.utils import get_total_norm

from citeweave.core.errors import CiteweaveError, UserError
from citeweave.encoders.text_vectors import is_of_pooling
from citeweave.training.options import TrainingOptions
from citeweave.training.partial import encoder_layers
from citeweave.version import __version__

_ROOM = "citeweave/meeting"
_EVERY = 0.02


def meet(limit: timedelta) -> tuple[Any, int, int]:
    """A store that only this attempt uses, the rank of this process, and the number of all."""
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, count = next(rendezvous("env://", timeout=limit))
    name = agree_on_name(PrefixStore(_ROOM, store), rank, count, limit)
    return PrefixStore(f"{_ROOM}/{name}", store), rank, count


def agree_on_name(store: Any, rank: int, count: int, limit: timedelta) -> str:
    """The name of this attempt, the same on all of its processes and on none of an earlier one."""
    word, end = secrets.token_hex(8), time.monotonic() + limit.total_seconds()
    if rank == 0:
        store.set("name", word)
    while time.monotonic() < end:
        if rank == 0:
            words = _words(store, word, count)
            if words is not None:
                store.set(f"answer/{word}", json.dumps(words))
                return word
        elif store.check(["name"]):
            name = store.get("name").decode()
            store.set(f"come/{rank}", json.dumps([name, word]))
            if store.check([f"answer/{name}"]) and json.loads(store.get(f"answer/{name}")).get(str(rank)) == word:
                return str(name)
        time.sleep(_EVERY)
    raise CiteweaveError(
        f"process {rank} of {count} has waited {limit} for the others; look whether all machines run the same torchrun line"
    )


def _words(store: Any, name: str, count: int) -> dict[str, str] | None:
    """The words of all other processes, when all have read the name."""
    keys = [f"come/{rank}" for rank in range(1, count)]
    if not store.check(keys):
        return None
    told = [json.loads(store.get(key)) for key in keys]
    if any(read != name for read, _ in told):
        return None
    return {str(rank): word for rank, (_, word) in enumerate(told, start=1)}


# Several processes that train one model: who am I, sums over all of us, and waiting for each other.

BUCKET = 2**23
"""Numbers that are summed at a time: the next ones are laid together meanwhile."""

PATIENCE = timedelta(days=7)
"""How long processes wait where one of them works alone, as at tokenizing; one that died is noticed at once."""

SUMMING = timedelta(minutes=30)
"""How long a sum may take; a process that hangs ends all of them then."""


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among all; `Processes()` is alone."""

    rank: int = 0
    count: int = 1
    waiting: Any = None
    """The group over which processes wait and tell each other small things, whatever device they compute on."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def name(self) -> str:
        """For messages: process 1 of 2 (host)."""
        return f"process {self.rank} of {self.count} ({socket.gethostname()})"

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.count > 1:
            with self._telling():
                dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Every parameter's gradient becomes the sum of all processes' gradients; sharded ones are summed already."""
        plain = [parameter for parameter in parameters if not hasattr(parameter, "full_tensor")]
        if self.count == 1 or not plain:
            return
        gradients = [_gradient(parameter) for parameter in plain]
        with self._telling():
            sent = [(bucket, *_send(bucket)) for bucket in _buckets(gradients)]
            for bucket, flat, work in sent:
                work.wait()
                parts = torch.split(flat, [gradient.numel() for gradient in bucket])
                for gradient, part in zip(bucket, parts, strict=True):
                    gradient.copy_(part.view_as(gradient))

    def wait(self) -> None:
        """Go on when all have come here; it may take days."""
        if self.count > 1:
            with self._telling():
                dist.barrier(group=self.waiting)

    def tell(self, value: Any) -> list[Any]:
        """What every process told, by rank: JSON values."""
        if self.count == 1:
            return [value]
        text = np.frombuffer(json.dumps(value).encode(), np.uint8).copy()
        with self._telling():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            dist.all_gather(sizes, torch.tensor([len(text)]), group=self.waiting)
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(text)] = torch.from_numpy(text)
            told = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.count)]
            dist.all_gather(told, padded, group=self.waiting)
        return [json.loads(bytes(each[: int(size)].tolist())) for each, size in zip(told, sizes, strict=True)]

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Another process that went away is told in one line."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
            raise CiteweaveError(
                f"{self.name} lost the others ({reason}); what happened to them is told above or below this line. The "
                "last checkpoint is kept: torchrun --max-restarts goes on from it, and so does the same command"
            ) from None


def local_device(device: str) -> str:
    """The device of this process: of several that share a machine each takes its own GPU."""
    number, beside = os.environ.get("LOCAL_RANK"), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if beside > 1 and device.startswith("cuda:"):
        raise UserError(
            f"--device is {device}, and {beside} processes were started on this machine; give --device cuda, by which "
            "each takes a GPU of its own"
        )
    if not number or device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    if beside > torch.cuda.device_count():
        raise UserError(
            f"{beside} processes were started on this machine, and torch sees {torch.cuda.device_count()} GPUs; start "
            "one process a GPU (torchrun --nproc-per-node), or give --device cpu"
        )
    return f"cuda:{number}"


def join_processes(device: str) -> Processes:
    """This process among those that torchrun started, or alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes()
    if not dist.is_initialized():
        on_gpu = device.startswith("cuda")
        if on_gpu:
            torch.cuda.set_device(device)
        store, rank, count = meet(SUMMING)
        backend = "nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=SUMMING)
        atexit.register(dist.destroy_process_group)  # a group cannot be joined a second time, so it lives as long as we
        _WAITING.append(dist.new_group(backend="gloo", timeout=PATIENCE))
    return Processes(dist.get_rank(), dist.get_world_size(), _WAITING[0])


@contextmanager
def ending_at_once(processes: Processes) -> Iterator[None]:
    """After an error inside, a process on a GPU ends without leaving its group.

    Leaving is a meeting of all in NCCL, and the others wait for this one's part of a sum: nobody would end, and torchrun
    would have nothing to restart.
    """
    try:
        yield
    except BaseException:
        if processes.count > 1 and dist.get_backend() == "nccl":
            atexit.register(_end)
        raise


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


_WAITING: list[Any] = []
"""The group for waiting, once it is made."""


def _gradient(parameter: Tensor) -> Tensor:
    """Its gradient; zeros where this process had no part in it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients in the order given, about `BUCKET` numbers at a time."""
    bucket, numbers = [], 0
    for gradient in gradients:
        bucket.append(gradient)
        numbers += gradient.numel()
        if numbers >= BUCKET:
            yield bucket
            bucket, numbers = [], 0
    if bucket:
        yield bucket


def _send(bucket: Sequence[Tensor]) -> tuple[Tensor, Any]:
    """Begin to sum some gradients, laid end to end."""
    flat = torch.cat([gradient.reshape(-1) for gradient in bucket])  # (numbers of the bucket,)
    return flat, dist.all_reduce(flat, async_op=True)


# One model over several processes, none of which holds all of it: torch's fully sharded data parallel (FSDP2).


def check_shards(options: TrainingOptions, pooling: str) -> None:
    """Refuse what would not be trained right in shards."""
    from torch.distributed.fsdp import FSDPModule

    reasons = {
        "training.parts is 'heads', which reads with an encoder that is not trained": options.parts == "heads",
        "the mlm loss reads the word embeddings outside of the model": "mlm" in options.losses,
        "training.compiled compiles whole layers": options.compiled,
        f"encoder.pooling {pooling!r} reads more than the last layer": pooling not in ("cls", "mean"),
    }
    for reason, holds in reasons.items():
        if holds:
            raise UserError(f"training.parallel is 'fsdp', and {reason}; take training.parallel=ddp")
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise UserError(
            f"training.parallel is 'fsdp', whose sums torch {torch.__version__} cannot do; install a newer torch, such "
            "as 2.13, or take training.parallel=ddp"
        )


def shard_model(model: Any, processes: Processes, device: str) -> None:
    """Shard a model in place, every layer apart; its parameters are other objects afterwards, by the same names."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(device.partition(":")[0], (processes.count,))
    whole = {parameter for name, parameter in model.named_parameters() if is_of_pooling(name)}
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, ignored_params=whole)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # parts are shares of one batch's loss: gradients are summed, never averaged
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def is_shard(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def own_shard(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    found: Tensor = tensor.to_local() if is_shard(tensor) else tensor  # type: ignore[attr-defined]
    return found


def take_whole(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Whole tensors on the CPU; of shards all processes must ask, and those that do not `keep` them get none."""
    found = {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if is_shard(tensor) else tensor  # type: ignore[attr-defined]
        if keep:
            found[name] = whole.detach().contiguous().cpu()
    return found


def like(tensor: Tensor, whole: Tensor) -> Tensor:
    """A whole tensor as another one lies: on its device, and the same shard where that is one."""
    placed = whole.to(tensor.device)
    if not is_shard(tensor):
        return placed
    from torch.distributed.tensor import distribute_tensor

    mesh, places = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    return distribute_tensor(placed, mesh, places, src_data_rank=None)


def clip_gradients(parameters: Iterable[Tensor], longest: float, processes: Processes) -> None:
    """Shorten all gradients together to a length, over the shards of all processes (Pascanu et al. 2013)."""
    parameters = list(parameters)
    if not any(map(is_shard, parameters)):
        torch.nn.utils.clip_grad_norm_(parameters, longest)
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    shards, wholes = ([own_shard(each) for each in gradients if is_shard(each) == kind] for kind in (True, False))
    squares = processes.sum(get_total_norm(shards) ** 2)  # ()
    length = (squares + get_total_norm(wholes) ** 2).sqrt() if wholes else squares.sqrt()
    factor = (longest / (length + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
    for gradient in shards + wholes:
        gradient.mul_(factor)


def _layers(model: Any) -> list[Any]:
    try:
        return list(encoder_layers(model)[1])
    except UserError:  # no list of layers of its own: it is sharded as one piece
        return []


# Whether several processes are about to train the same thing: versions, data, options, and one folder for all.

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")
"""Packages that decide about tokens, random numbers and gradients."""

SEEN_WITHIN = 30.0
"""Seconds in which a file must appear on all machines; network file systems are a little late."""


def check_agreement(processes: Processes, made_of: Mapping[str, Any]) -> None:
    """Compare what every process was given and runs with; the first difference is told on all of them."""
    if processes.count == 1:
        return
    own = {"host": socket.gethostname(), "versions": _versions(), "given": _flat(made_of)}
    told = processes.tell(own)
    first = told[0]
    for rank, other in enumerate(told):
        for kind in ("versions", "given"):
            left, right = first[kind], other[kind]
            for name in [name for name in {**left, **right} if left.get(name) != right.get(name)]:
                who = f"process {rank} ({other['host']}) has {name} {right.get(name, 'absent')}"
                raise UserError(
                    f"{who}, and process 0 ({first['host']}) {left.get(name, 'absent')}; "
                    + (
                        "install the same on all machines"
                        if kind == "versions"
                        else "give all processes the same command and the same files"
                    )
                )


def check_shared(processes: Processes, folder: Path) -> None:
    """Refuse an output that only some of the processes see: checkpoints must be one for all."""
    if processes.count == 1:
        return
    mark = folder / "met"
    word = secrets.token_hex(8) if processes.is_first else ""
    if processes.is_first:
        mark.write_text(word, encoding="utf-8")
    word = processes.tell(word)[0]
    seen = [[sees, host] for sees, host in processes.tell([_appears(mark, word), socket.gethostname()])]
    for rank, (sees, host) in enumerate(seen):
        if not sees:
            raise UserError(
                f"process {rank} ({host}) does not see {folder}, which process 0 ({seen[0][1]}) has made; -o must lie on a "
                "file system that all machines share"
            )


def _appears(mark: Path, word: str) -> bool:
    end = time.monotonic() + SEEN_WITHIN
    while True:
        try:
            if mark.read_text(encoding="utf-8") == word:
                return True
        except OSError:
            pass
        if time.monotonic() > end:
            return False
        time.sleep(0.2)


def _versions() -> dict[str, str]:
    return {"citeweave": __version__, **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """
    >>> _flat({"corpus": "3fa", "training": {"batch": 8, "losses": {"triplet": {}}}})
    {'corpus': '3fa', 'training.batch': 8, 'training.losses.triplet': '{}'}
    """
    if not isinstance(value, Mapping) or not value:
        return {path: value if isinstance(value, int | float | str | bool) else str(value)}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _flat(inner, f"{path}.{key}" if path else str(key))
    return found
