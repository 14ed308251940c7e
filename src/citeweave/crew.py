"""Work in shards that other processes or machines can do: what is asked of them, and nothing of how.

    work = Work("citeweave.encoders.streaming.remote:embed_maker", {"corpus": "/data/corpus", "model": "minilm"})
    for number, made in crew.make(work, [0, 1, 2]):       # as they finish, in any order, each number once
        save(number, made)

`maker` names a function of this package. A worker calls it once, with `given`, and gets a function from a shard's
number to its bytes: what `np.savez` writes, or JSON. The caller writes the bytes where a run without a crew would have
written them, so that an interrupted run goes on in the same way. Knows no engine: `scale/` has the one for Ray.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Make = Callable[[int], bytes]
"""Number of a shard -> its bytes."""

PACKAGE = "citeweave."


@dataclass(frozen=True, slots=True)
class Work:
    """What any process needs to make shards: plain data."""

    maker: str
    """`module:function` inside citeweave; called once a worker, as `maker(**given)`. If the function it gives has an
    attribute `overlaps` that is true, two shards may be asked of it at a time, from two threads."""

    given: Mapping[str, Any] = field(default_factory=dict)
    """JSON values only: absolute folders, names, options."""

    label: str = ""
    """What is being done, in progress lines and errors."""

    unit: str = "papers"
    gpu: bool = False
    """Whether a worker wants a graphics card where there are any."""

    def __post_init__(self) -> None:
        assert json.loads(json.dumps(dict(self.given))) == dict(self.given), "work is told in JSON values"


class Crew(Protocol):
    """Whoever makes shards."""

    def make(self, work: Work, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Every shard once, as they finish; at the end `ShardError` where some could not be made."""
        ...


class Alone:
    """A crew of this very process: the plainest there is."""

    def make(self, work: Work, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        make = resolve(work.maker)(**work.given)
        for number in numbers:
            yield number, make(number)


def resolve(maker: str) -> Callable[..., Make]:
    """The function that a work names; only functions of this package are called.

    >>> resolve("citeweave.scale.rehearsal:squares")(wait=0)(3)
    b'9'
    >>> resolve("os:system")
    Traceback (most recent call last):
    ValueError: 'os:system' is not a function of citeweave
    """
    module, colon, name = maker.partition(":")
    if not (colon and module.startswith(PACKAGE) and name.isidentifier()):
        raise ValueError(f"{maker!r} is not a function of citeweave")
    found = getattr(importlib.import_module(module), name, None)
    if not callable(found) or getattr(found, "__module__", "") != module:
        raise ValueError(f"{maker!r} is not a function of citeweave")
    return found  # type: ignore[no-any-return]
