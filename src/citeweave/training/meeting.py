"""How processes that a launcher started find each other, also after a restart.

    store, rank, count = meet(timedelta(minutes=30))

torchrun keeps one store of keys and values through its restarts (torch 2.13, c10d rendezvous). A process of the second
attempt may find there the address at which one of the first attempt listened, and waits for it for ever. So every
attempt gets a name of its own, and its keys lie under that:

    process 0 draws a name, all others draw a word of their own and write it beside the name that they read;
    process 0 answers under its name with the words of all, when all have come;
    a process goes on when the answer holds its word: no earlier attempt can know it.
"""

from __future__ import annotations

import json
import secrets
import time
from datetime import timedelta
from typing import Any

from citeweave.errors import CiteweaveError

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
