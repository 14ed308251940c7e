"""Several processes that train one model: who am I, sums over all of us, and waiting for each other.

    torchrun --nproc-per-node 2 -m citeweave train ...

torchrun (or accelerate, or Slurm) names the processes in the environment; without that there is one. A step's papers are
dealt out among them, and the sum of all gradients is the gradient of the whole batch. Why gradients are summed here and
not by torch's DistributedDataParallel: that one wants every process to call one module's forward once a backward, and
averages. A step here reads papers in as many parts as they need, some processes one more than others, packed texts by
the weights themselves, and losses over the whole batch need their second reading; the sum after the last part is right
for all of these. Models that do not fit a device are sharded by torch's FSDP: see `sharding.py`.

Does not start processes, and does not restart them: torchrun does.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from citeweave.errors import CiteweaveError, UserError
from citeweave.training.meeting import meet

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
