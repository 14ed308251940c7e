"""Devices by name, several of them at once.

>>> device_names("cpu,cpu")
['cpu', 'cpu']

Whether a device is there is found out when an encoder is loaded onto it.
"""

from __future__ import annotations

from citeweave.errors import UserError
from citeweave.extras import require


def device_names(text: str) -> list[str]:
    """`cpu`, `cuda:0,cuda:1`, or `cuda:all` for every graphics card."""
    if text == "cuda:all":
        torch = require("torch", extra="minilm")
        if not torch.cuda.device_count():
            raise UserError("--device is cuda:all, and torch sees no GPU; take --device cpu")
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UserError(f"--device is {text!r}; it must be one device, or several such as cuda:0,cuda:1")
    return names
