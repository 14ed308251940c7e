"""What `--on` says: where shards are made, and by how many.

>>> parse_on("ray:local,workers=2")
On(address='local', workers=2, cpus=1, gpus=1.0, tries=3)
>>> parse_on("ray://head:10001,gpus=0.5").address
'ray://head:10001'
>>> parse_on("ray:workers=4") == parse_on("ray,workers=4")
True
"""

from __future__ import annotations

from dataclasses import dataclass

from citeweave.errors import UserError, choose

_FORM = "ray, ray:local, ray:auto, ray:HOST:6379 or ray://HOST:10001, then options such as workers=2, cpus=4"


@dataclass(frozen=True, slots=True)
class On:
    """Where shards are made."""

    address: str = "local"
    """`local`: a cluster for the time of the command; `auto`: the one that runs on this machine; else its address."""

    workers: int = 0
    """At most so many; 0 = as many as there is room for."""

    cpus: int = 1
    """Cores of a worker, and its threads."""

    gpus: float = 1.0
    """Graphics cards of a worker, where the work wants one and the cluster has any; 0.5 = two workers a card."""

    tries: int = 3
    """How often a shard may fail before it is left out."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("cpus", 1), ("tries", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--on: {name} is {getattr(self, name)}; it must be at least {least}")
        if not 0 <= self.gpus <= 64:
            raise UserError(f"--on: gpus is {self.gpus}; it must be a number from 0, without graphics cards, to 64")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise UserError(
                f"--on: gpus is {self.gpus}; over 1 it must be a whole number: Ray shares one card, not two"
            )


def parse_on(text: str) -> On:
    """`ray:local,workers=2` -> what it means."""
    engine, *parts = [part.strip() for part in text.split(",")]
    if engine.startswith("ray://"):
        address = engine
    elif engine == "ray" or engine.startswith("ray:"):
        address = engine[4:]
        if "=" in address:
            parts, address = [address, *parts], ""
    else:
        raise UserError(f"--on is {text!r}; it must be {_FORM}")
    kinds: dict[str, type[int] | type[float]] = {"workers": int, "cpus": int, "gpus": float, "tries": int}
    values: dict[str, float] = {}
    for part in parts:
        name, _, value = part.partition("=")
        choose(name, kinds, "an option of --on")
        try:
            values[name] = kinds[name](value)
        except ValueError:
            raise UserError(f"--on: {name} is {value!r}; it must be a number, such as {name}=2") from None
    return On(address or "local", **values)  # type: ignore[arg-type]
