"""One model over several processes, none of which holds all of it: torch's fully sharded data parallel (FSDP2).

    citeweave train ... --set training.parallel=fsdp          under torchrun

    every weight, its gradient and the optimizer's two moments     1 / processes of it on each
    a layer that is being computed                                 whole, for as long as that takes
    embeddings                                                     whole from a step's first reading to its end
    in bfloat16: a layer's weights as they were computed with      whole, 2 bytes each, until the gradient has passed

Zhao et al. 2023 (PyTorch FSDP). Weights that are not of the transformer (aspect heads, a learned pooling) are small and
stay whole on every process. A sharded layer is gathered by all processes at once: each must read as often as the others,
which `stepping.py` sees to. Does not train and does not write: checkpoints and models hold whole weights, so that a run
may go on with another number of processes, or unsharded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from citeweave.encoders.saved.aspect_words import is_of_pooling
from citeweave.errors import UserError
from citeweave.training.options import TrainingOptions
from citeweave.training.partial import encoder_layers
from citeweave.training.processes import Processes


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
