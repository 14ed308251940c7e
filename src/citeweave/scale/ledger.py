"""Which shards are still to be made, who has tried them, and which are given up.

    ledger = Ledger([0, 1, 2], tries=3)
    ledger.take("anna", {"anna": "attic", "ben": "cellar"})     0
    ledger.done(0)
    ledger.failed(1, "ValueError")          another worker gets it next; the third failure puts it aside

What failed goes to another node while there is one, then to another worker: a node that fails at everything costs each
shard one try. A shard whose worker died is given out alone from then on, so that of two shards in one process the one
that ends it is found. Knows no processes: names of workers and of nodes are any words.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence


class Ledger:
    """The state of every shard of one call."""

    def __init__(self, numbers: Sequence[int], tries: int) -> None:
        self.total, self.tries = len(numbers), tries
        self.given_up: dict[int, str] = {}
        """Number -> its last error."""

        self._waiting = deque(numbers)
        self._out: dict[int, tuple[str, str]] = {}  # number -> who makes it, and at which node
        self._failures: dict[int, list[tuple[str, str]]] = defaultdict(list)  # number -> who failed, and where
        self._alone: set[int] = set()

    @property
    def over(self) -> bool:
        return not self._waiting and not self._out

    @property
    def left(self) -> int:
        """Shards that are not made and not given up."""
        return len(self._waiting) + len(self._out)

    def held_by(self, worker: str) -> list[int]:
        return [number for number, (who, _) in self._out.items() if who == worker]

    def take(self, worker: str, nodes: Mapping[str, str], most: int = 2) -> int | None:
        """A shard for a worker that has fewer than `most`; None where there is none for it now.

        `nodes` are all workers that can be asked, with the node of each.
        """
        held = self.held_by(worker)
        if len(held) >= most or self._alone & set(held):
            return None
        for number in self._waiting:
            if number in self._alone and held:
                continue
            if worker in self._next(number, nodes):
                self._waiting.remove(number)
                self._out[number] = (worker, nodes[worker])
                return number
        return None

    def _next(self, number: int, nodes: Mapping[str, str]) -> Collection[str]:
        """Who may try a shard: those at other nodes than it failed at, else other workers, else all."""
        failures = self._failures.get(number)
        if failures is None:
            return nodes
        tried, places = (set(column) for column in zip(*failures, strict=True))
        elsewhere = [worker for worker, node in nodes.items() if node not in places]
        return elsewhere or nodes.keys() - tried or nodes

    def done(self, number: int) -> None:
        del self._out[number]

    def give_back(self, number: int) -> None:
        """Not the shard's fault: it is the next to be given out."""
        del self._out[number]
        self._waiting.appendleft(number)

    def failed(self, number: int, why: str, *, died: bool = False) -> bool:
        """Count a failure; true where it was the last one and the shard is put aside."""
        self._failures[number].append(self._out.pop(number))
        if died:
            self._alone.add(number)
        if len(self._failures[number]) >= self.tries:
            self.given_up[number] = why
            return True
        self._waiting.append(number)
        return False
