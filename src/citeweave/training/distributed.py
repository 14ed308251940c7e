"""Training with several processes: rendezvous, sums of gradients, FSDP shards, checks that all ranks agree.

    torchrun --nproc-per-node 2 -m citeweave train ...

torchrun (or accelerate, or Slurm) names the processes in the environment; otherwise there is one. The papers of a step
are divided among them, and the sum of all gradients is the gradient of the complete batch. Gradients are summed here
and not by torch's DistributedDataParallel, which averages, and which needs every process to call one module's forward
once per backward: here processes encode their papers in different numbers of parts, and losses over the complete batch
encode them twice. Does not start or restart processes: torchrun does.

Rendezvous. torchrun keeps one store of keys and values through its restarts (torch 2.13, c10d rendezvous). A process of
the second attempt may find there the address at which one of the first attempt listened, and wait for it forever. So
every attempt gets a name of its own, and its keys are under that name:

    process 0 draws a name, all others draw a token of their own and write it beside the name that they read;
    process 0 answers under its name with the tokens of all, when all have joined;
    a process continues when the answer holds its token: no earlier attempt can know it.

FSDP. Models that do not fit on one device are sharded by torch's fully sharded data parallel (FSDP2; Zhao et al. 2023)
with `--set training.parallel=fsdp`:

    every weight, its gradient and the optimizer's two moments     1 / processes of it on each
    a layer that is being computed                                 complete, for as long as that takes
    embeddings                                                     complete from a step's first forward to its end
    in bfloat16: a layer's weights as they were computed with      complete, 2 bytes each, until its backward is done

Weights outside the transformer (aspect heads, a learned pooling) are small and complete on every process. All processes
gather a sharded layer at once, so each must run as many forwards as the others (`step.py`). Checkpoints and models hold
complete weights, so a run can resume with another number of processes, or unsharded.

Agreement. Processes on several machines read their own copies of inputs and packages. If one differed, training would
not fail but mix two things, or wait forever; so the first difference is reported on every process before it starts.
"""

from __future__ import annotations

import atexit
import heapq
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
from numpy.typing import NDArray
from torch import Tensor
from torch import distributed as dist
from torch.nn.utils import get_total_norm

from citeweave.core.errors import CiteweaveError, UserError
from citeweave.encoders.pooling import is_pooling_weight
from citeweave.training.options import TrainingOptions
from citeweave.training.partial import encoder_layers
from citeweave.version import __version__

_ROOM = "citeweave/meeting"
_POLL_SECONDS = 0.02


def _join_rendezvous(limit: timedelta) -> tuple[Any, int, int]:
    """Join the rendezvous of all processes; return a store of this attempt alone, the rank, and the number of ranks."""
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, count = next(rendezvous("env://", timeout=limit))
    name = agree_on_attempt(PrefixStore(_ROOM, store), rank, count, limit)
    return PrefixStore(f"{_ROOM}/{name}", store), rank, count


def agree_on_attempt(store: Any, rank: int, count: int, limit: timedelta) -> str:
    """Agree with the other ranks on a name of this attempt that no process of an earlier attempt has."""
    token, end = secrets.token_hex(8), time.monotonic() + limit.total_seconds()
    if rank == 0:
        store.set("name", token)
    while time.monotonic() < end:
        if rank == 0:
            tokens = _read_tokens(store, token, count)
            if tokens is not None:
                store.set(f"answer/{token}", json.dumps(tokens))
                return token
        elif store.check(["name"]):
            name = store.get("name").decode()
            store.set(f"come/{rank}", json.dumps([name, token]))
            if store.check([f"answer/{name}"]) and json.loads(store.get(f"answer/{name}")).get(str(rank)) == token:
                return str(name)
        time.sleep(_POLL_SECONDS)
    raise CiteweaveError(
        f"process {rank} of {count} has waited {limit} for the others; check that all machines run the same torchrun command"
    )


def _read_tokens(store: Any, name: str, count: int) -> dict[str, str] | None:
    """Read the tokens of all other ranks, once all have read this attempt's name; None until then."""
    keys = [f"come/{rank}" for rank in range(1, count)]
    if not store.check(keys):
        return None
    joined = [json.loads(store.get(key)) for key in keys]
    if any(read != name for read, _ in joined):
        return None
    return {str(rank): token for rank, (_, token) in enumerate(joined, start=1)}


# The process group

BUCKET = 2**23
"""Numbers summed at a time; the next bucket is concatenated meanwhile."""

WAIT_TIMEOUT = timedelta(days=7)
"""How long processes wait while one of them works alone, as in tokenizing; a dead process is noticed at once."""

SUM_TIMEOUT = timedelta(minutes=30)
"""How long a sum may take before a hanging process ends all of them."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Rank of this process among all that train one model; `ProcessGroup()` is a single process."""

    rank: int = 0
    count: int = 1
    control: Any = None
    """Torch group for barriers and small messages, on the CPU whatever device computes."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def name(self) -> str:
        """Name of this process in messages: process 1 of 2 (host)."""
        return f"process {self.rank} of {self.count} ({socket.gethostname()})"

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.count > 1:
            with self._naming_lost_peers():
                dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace every gradient by its sum over all processes; FSDP has already summed sharded ones."""
        plain = [parameter for parameter in parameters if not is_shard(parameter)]
        if self.count == 1 or not plain:
            return
        gradients = [_gradient(parameter) for parameter in plain]
        with self._naming_lost_peers():
            sent = [(bucket, *_start_sum(bucket)) for bucket in _buckets(gradients)]
            for bucket, flat, work in sent:
                work.wait()
                parts = torch.split(flat, [gradient.numel() for gradient in bucket])
                for gradient, part in zip(bucket, parts, strict=True):
                    gradient.copy_(part.view_as(gradient))

    def wait(self) -> None:
        """Wait until all processes have called this; it may take days."""
        if self.count > 1:
            with self._naming_lost_peers():
                dist.barrier(group=self.control)

    def exchange(self, value: Any) -> list[Any]:
        """Send a JSON value to all processes and return the values of all, by rank."""
        if self.count == 1:
            return [value]
        text = np.frombuffer(json.dumps(value).encode(), np.uint8).copy()
        with self._naming_lost_peers():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            dist.all_gather(sizes, torch.tensor([len(text)]), group=self.control)
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(text)] = torch.from_numpy(text)
            received = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.count)]
            dist.all_gather(received, padded, group=self.control)
        return [json.loads(bytes(each[: int(size)].tolist())) for each, size in zip(received, sizes, strict=True)]

    @contextmanager
    def _naming_lost_peers(self) -> Iterator[None]:
        """Turn torch's error about a lost process into one line that says how to resume."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
            raise CiteweaveError(
                f"{self.name} lost the others ({reason}); see their messages above or below this line. The last checkpoint "
                "is kept: torchrun --max-restarts resumes from it, and so does the same command"
            ) from None


def local_device(device: str) -> str:
    """Return the device of this process: its own GPU where several processes share a machine."""
    number, local_count = os.environ.get("LOCAL_RANK"), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local_count > 1 and device.startswith("cuda:"):
        raise UserError(
            f"--device is {device}, and {local_count} processes were started on this machine; give --device cuda, so that "
            "each uses a GPU of its own"
        )
    if not number or device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    if local_count > torch.cuda.device_count():
        raise UserError(
            f"{local_count} processes were started on this machine, and torch sees {torch.cuda.device_count()} GPUs; start "
            "one process per GPU (torchrun --nproc-per-node), or give --device cpu"
        )
    return f"cuda:{number}"


def join_processes(device: str) -> ProcessGroup:
    """Join the process group that torchrun started; without torchrun a group of one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return ProcessGroup()
    if not dist.is_initialized():
        on_gpu = device.startswith("cuda")
        if on_gpu:
            torch.cuda.set_device(device)
        store, rank, count = _join_rendezvous(SUM_TIMEOUT)
        backend = "nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=SUM_TIMEOUT)
        atexit.register(dist.destroy_process_group)  # it cannot be joined twice, so it lasts as long as the process
        _CONTROL_GROUP.append(dist.new_group(backend="gloo", timeout=WAIT_TIMEOUT))
    return ProcessGroup(dist.get_rank(), dist.get_world_size(), _CONTROL_GROUP[0])


@contextmanager
def exiting_without_peers(processes: ProcessGroup) -> Iterator[None]:
    """Exit a distributed run without leaving the process group after an error on a GPU.

    Leaving needs all processes in NCCL, and the others wait for this one's part of a sum: none would exit, and torchrun
    would have nothing to restart.
    """
    try:
        yield
    except BaseException:
        if processes.count > 1 and dist.get_backend() == "nccl":
            atexit.register(_exit_now)
        raise


def _exit_now() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


_CONTROL_GROUP: list[Any] = []
"""Torch group for barriers and messages, once it exists."""


def _gradient(parameter: Tensor) -> Tensor:
    """Return a parameter's gradient; zeros where this process did not use the parameter."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield gradients in their order in buckets of about `BUCKET` numbers."""
    bucket, numbers = [], 0
    for gradient in gradients:
        bucket.append(gradient)
        numbers += gradient.numel()
        if numbers >= BUCKET:
            yield bucket
            bucket, numbers = [], 0
    if bucket:
        yield bucket


def _start_sum(bucket: Sequence[Tensor]) -> tuple[Tensor, Any]:
    """Start summing concatenated gradients over all processes; return them and the pending operation."""
    flat = torch.cat([gradient.reshape(-1) for gradient in bucket])  # (numbers of the bucket,)
    return flat, dist.all_reduce(flat, async_op=True)


def balance_costs(costs: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """Divide a batch among `count` processes at about equal cost: each next most expensive item to the least loaded.

    Graham 1969; each process keeps its items in their original order.

    >>> [mine.tolist() for mine in balance_costs(np.array([1, 5, 2, 3]), 2)]
    [[0, 1], [2, 3]]
    """
    if count == 1:
        return [np.arange(len(costs))]
    loads = [(0, rank) for rank in range(count)]
    assigned: list[list[int]] = [[] for _ in range(count)]
    for number in np.argsort(-costs, kind="stable").tolist():
        load, rank = loads[0]
        assigned[rank].append(number)
        heapq.heapreplace(loads, (load + int(costs[number]), rank))
    return [np.array(sorted(mine), np.int64) for mine in assigned]


# FSDP: one model in shards


def check_shardable(options: TrainingOptions, pooling: str) -> None:
    """Refuse options and poolings that FSDP would not train correctly."""
    from torch.distributed.fsdp import FSDPModule

    reasons = {
        "training.parts is 'heads', which uses an encoder that is not trained": options.parts == "heads",
        "the mlm loss reads the word embeddings outside of the model": "mlm" in options.losses,
        "training.compiled compiles complete layers": options.compiled,
        f"encoder.pooling {pooling!r} reads more than the last layer": pooling not in ("cls", "mean"),
    }
    for reason, holds in reasons.items():
        if holds:
            raise UserError(f"training.parallel is 'fsdp', and {reason}; use training.parallel=ddp")
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise UserError(
            f"training.parallel is 'fsdp', whose sums torch {torch.__version__} cannot do; install a newer torch, such "
            "as 2.13, or use training.parallel=ddp"
        )


def shard_model(model: Any, processes: ProcessGroup, device: str) -> None:
    """Shard a model in place by FSDP, layer by layer; its parameters become other objects of the same names."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(device.partition(":")[0], (processes.count,))
    unsharded = {parameter for name, parameter in model.named_parameters() if is_pooling_weight(name)}
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, ignored_params=unsharded)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # parts have shares of one batch's loss, so gradients are summed, never averaged
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def is_shard(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded by FSDP."""
    return hasattr(tensor, "full_tensor")


def _local_shard(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, or the tensor itself."""
    shard: Tensor = tensor.to_local() if is_shard(tensor) else tensor  # type: ignore[attr-defined]
    return shard


def gather_full(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Gather complete tensors on the CPU; all processes must call it, and only those with `keep` get them."""
    gathered = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if is_shard(tensor) else tensor  # type: ignore[attr-defined]
        if keep:
            gathered[name] = full.detach().contiguous().cpu()
    return gathered


def place_like(tensor: Tensor, full: Tensor) -> Tensor:
    """Return a complete tensor on the device of another one, and sharded like it."""
    placed = full.to(tensor.device)
    if not is_shard(tensor):
        return placed
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    return distribute_tensor(placed, mesh, placements, src_data_rank=None)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float, processes: ProcessGroup) -> None:
    """Clip the norm of distributed gradients together, over the shards of all processes (Pascanu et al. 2013)."""
    parameters = list(parameters)
    if not any(map(is_shard, parameters)):
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    shards, unsharded = ([_local_shard(each) for each in gradients if is_shard(each) == kind] for kind in (True, False))
    squares = processes.sum(get_total_norm(shards) ** 2)  # ()
    norm = (squares + get_total_norm(unsharded) ** 2).sqrt() if unsharded else squares.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
    for gradient in shards + unsharded:
        gradient.mul_(factor)


def _layers(model: Any) -> list[Any]:
    try:
        return list(encoder_layers(model)[1])
    except UserError:  # a model without a list of layers is sharded as one
        return []


# Checks that all ranks agree

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")
"""Packages that affect tokens, random numbers and gradients."""

SHARED_WITHIN = 30.0
"""Seconds in which a file must appear on all machines; network file systems have a delay."""


def check_agreement(processes: ProcessGroup, inputs: Mapping[str, Any]) -> None:
    """Check that all ranks have the same inputs and package versions; report the first difference on all of them."""
    if processes.count == 1:
        return
    own = {"host": socket.gethostname(), "versions": _versions(), "inputs": _flatten(inputs)}
    received = processes.exchange(own)
    first = received[0]
    for rank, other in enumerate(received):
        for kind in ("versions", "inputs"):
            left, right = first[kind], other[kind]
            for name in [name for name in {**left, **right} if left.get(name) != right.get(name)]:
                advice = {
                    "versions": "install the same on all machines",
                    "inputs": "give all processes the same command and the same files",
                }
                raise UserError(
                    f"process {rank} ({other['host']}) has {name} {right.get(name, 'absent')}, and process 0 "
                    f"({first['host']}) {left.get(name, 'absent')}; {advice[kind]}"
                )


def check_shared_folder(processes: ProcessGroup, folder: Path) -> None:
    """Check that all ranks see the same output folder, since they share checkpoints."""
    if processes.count == 1:
        return
    mark = folder / "met"
    token = secrets.token_hex(8) if processes.is_first else ""
    if processes.is_first:
        mark.write_text(token, encoding="utf-8")
    token = processes.exchange(token)[0]
    seen = processes.exchange([_wait_for_file(mark, token), socket.gethostname()])
    for rank, (sees, host) in enumerate(seen):
        if not sees:
            raise UserError(
                f"process {rank} ({host}) does not see {folder}, which process 0 ({seen[0][1]}) has created; -o must be on a "
                "file system that all machines share"
            )


def _wait_for_file(mark: Path, token: str) -> bool:
    """Return whether a file with this content appears in time."""
    end = time.monotonic() + SHARED_WITHIN
    while True:
        try:
            if mark.read_text(encoding="utf-8") == token:
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


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested options into dotted names, to compare them between ranks.

    >>> _flatten({"corpus": "3fa", "training": {"batch": 8, "losses": {"triplet": {}}}})
    {'corpus': '3fa', 'training.batch': 8, 'training.losses.triplet': '{}'}
    """
    if not isinstance(value, Mapping) or not value:
        return {path: value if isinstance(value, int | float | str | bool) else str(value)}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flatten(inner, f"{path}.{key}" if path else str(key))
    return flat
