"""Several processes that train one model: who am I, and sums over all of us.

    torchrun --nproc-per-node 2 -m citeweave train ...

torchrun names the processes in the environment; without it there is one. Every process holds the whole model; a step's
papers are dealt out among them. Does not start processes.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among all; `Processes()` is alone."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Every parameter's gradient becomes the sum of all processes' gradients, in one message a data type."""
        if self.count == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = self.sum(torch.cat([gradient.reshape(-1) for gradient in gradients]))  # (numbers of all parameters,)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.count > 1:
            dist.barrier()


def local_device(device: str) -> str:
    """The device of this process: of several that share a machine each takes its own GPU."""
    number = os.environ.get("LOCAL_RANK")
    return f"cuda:{number}" if number and device in ("auto", "cuda") and torch.cuda.is_available() else device


def join_processes(device: str) -> Processes:
    """This process among those that torchrun started, or alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        atexit.register(dist.destroy_process_group)  # a group cannot be joined a second time, so it lives as long as we
    return Processes(dist.get_rank(), dist.get_world_size())
