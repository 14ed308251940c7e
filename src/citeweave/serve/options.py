"""What a server is allowed and told: limits, hosts, folders. Written to the environment for further worker processes.

    >>> options = ServeOptions(allow_hosts=("papers.example.org",), time_limit=5)
    >>> ServeOptions.from_environment(options.to_environment()) == options
    True

Holds values only; `limits.py` and `security.py` keep them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from citeweave.core.errors import UserError, choose
from citeweave.encoders.runtimes import Runtime

VARIABLE = "CITEWEAVE_SERVE"
"""Name of the environment variable that tells a worker process what to serve."""

LOGS = ("json", "text", "none")
"""Form of a line for every request; faults are told in any."""

_AT_LEAST = {
    "max_body": 1024,
    "max_headers": 1024,
    "max_url": 256,
    "concurrent": 1,
    "threads": 1,
    "batch_texts": 1,
    "batch_waiting": 1,
}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the server: limits, allowed hosts, folders, log format."""

    allow_hosts: tuple[str, ...] = ()
    """Names under which the server may be asked, besides localhost, 127.0.0.1 and [::1]; `*` = any."""

    samples: str = ""
    """Folder of mined samples to show, empty = none."""

    corpus: str = ""
    """The corpus that the samples were mined from."""

    model: str = ""
    """Where the model of the first index is now, if it moved."""

    device: str = "auto"
    runtime: str = ""
    """What computes the model that reads texts; empty = what the index was made with. Another one is no other model:
    scores differ by about 0.001."""

    max_body: int = 2**20
    """Bytes of a request's body."""

    max_headers: int = 16_384
    """Bytes of all headers of a request together."""

    max_url: int = 8192
    """Bytes of a path with its query string."""

    time_limit: float = 30.0
    """Seconds of a request, reading it included."""

    concurrent: int = 64
    """Requests worked on at a time; the next is told to come back."""

    rate: float = 0.0
    """Requests a second of one client address, 0 = any number; a burst of twice as many is let through."""

    threads: int = 16
    """Threads that search; compiled code runs in them at the same time."""

    batch_wait: float = 0.003
    """Seconds that a text waits for others, to be encoded together."""

    batch_texts: int = 64
    """Texts that are encoded together."""

    batch_waiting: int = 1024
    """Texts that may wait to be encoded; more are refused."""

    log: str = "text"
    debug: bool = False
    """Tracebacks of our own faults go to the log."""

    def __post_init__(self) -> None:
        choose(self.log, LOGS, "--log")
        if self.runtime:
            Runtime.parse(self.runtime)  # refuses what is none
        for name, least in _AT_LEAST.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if not 0 < self.time_limit <= 3600:
            raise UserError(f"--time-limit is {self.time_limit}; it must be more than 0 and at most 3600 seconds")
        if self.rate < 0 or self.batch_wait < 0:
            raise UserError("--rate must be 0, for any number of requests, or more")

    def to_environment(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls, text: str) -> ServeOptions:
        return cls.from_mapping(json.loads(text))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ServeOptions:
        return cls(**{**values, "allow_hosts": tuple(values.get("allow_hosts", ()))})
