"""Joining a Ray cluster, or starting one on this machine for the time of a command.

    with join("local", cores=2) as ray: ...             2 workers of 1 core, bound to 127.0.0.1, gone afterwards
    with join("10.0.0.5:6379", cores=0) as ray: ...     the driver's machine is a node of that cluster
    with join("ray://10.0.0.5:10001", cores=0) as ray:  the driver's machine is not

An address that does not answer is an error within some seconds: Ray itself would wait for two minutes. Starts no
nodes elsewhere; `ray start` does.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from citeweave.errors import UserError
from citeweave.extras import require

STORE = 256 << 20
"""Bytes of a local cluster's object store: some shards on their way; more of them go to the disk."""

CLIENT = "ray://"
_SECONDS = 8.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


@contextmanager
def join(address: str, cores: int) -> Iterator[ModuleType]:
    """Ray, connected; a local cluster ends with the block, another one goes on without us."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent anywhere
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # else Ray tells of deaths on stdout, amid our --json
    local = address == "local"
    if local:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's name for: bind to 127.0.0.1 only
    ray = require("ray", extra="ray")
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if local:
        how |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE}
        how |= {"object_spilling_directory": tempfile.gettempdir()}
    elif address != "auto":
        check_address(address)
    try:
        ray.init(address=address, **how)
    except getattr(ray.exceptions, "AuthenticationError", ()) as error:  # Rays before 2.52 have none
        raise UserError(
            f"{named(address)} asks for a token that this machine does not have ({_line(error)}); copy the head's "
            "with `ray get-auth-token`, see docs/scale.md"
        ) from None
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if "ersion mismatch" in str(error):
            raise UserError(
                f"{named(address)} runs another Ray or Python than this machine ({_line(error)}); install the same here"
            ) from None
        token = "" if local else "; if it asks for a token, as newer Rays do, set RAY_AUTH_MODE=token here too"
        raise UserError(f"{named(address)} cannot be joined ({_line(error)}); {_advice(address)}{token}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Refuse an address at which nothing, or something else than Ray, answers."""
    host, colon, port = address.removeprefix(CLIENT).rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(f"--on: {address!r} is no address; it must be HOST:PORT, ray://HOST:PORT, local or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS) as line:
            if "RAY_USE_TLS" in os.environ:
                return
            line.sendall(_PREFACE)
            answer = line.recv(9)
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise UserError(f"{named(address)} does not answer ({why}); {_advice(address)}") from None
    if len(answer) < 4 or answer[3] != _SETTINGS:  # a Ray server, of gRPC, opens with its settings (RFC 9113, 3.4)
        raise UserError(f"{named(address)} answers, but is not Ray; {_advice(address)}")


def named(address: str) -> str:
    return {"local": "a Ray cluster on this machine", "auto": "the Ray cluster of this machine"}.get(
        address, f"the Ray cluster {address}"
    )


def _advice(address: str) -> str:
    if address == "auto":
        return "start one with `ray start --head`, or take --on ray:local"
    if address == "local":
        return "look into /tmp/ray/session_latest/logs, and whether the disk is full"
    if address.startswith(CLIENT):
        return "see with `ray status` on its head whether it runs, and give the head's client port, usually 10001"
    return (
        "see with `ray status` on its head whether it runs, give the head's port, usually 6379, and start a node here "
        "with `ray start --address`, or take ray://HOST:10001 from a machine that is no node"
    )


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) < 300 else text[:300] + " ..."
