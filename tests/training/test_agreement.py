"""Processes that are about to train different things say so, all of them, before anything is made.

The processes here are threads that meet at a barrier: what they tell each other is the real thing, how it travels is not.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from citeweave.core.errors import UserError
from citeweave.training import distributed
from citeweave.training.distributed import (
    ProcessGroup,
    check_agreement,
    check_shared_folder,
    exiting_without_peers,
    local_device,
)


@dataclass
class Room:
    """Where threads meet, as the processes of one machine do."""

    count: int
    told: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.count, timeout=300)

    def ask(self, check: Callable[[Any], None]) -> list[str]:
        """What the check says in every one of them; empty where it finds nothing."""

        def run(rank: int) -> str:
            try:
                check(InRoom(rank, self))
            except UserError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(run, range(self.count)))


@dataclass
class InRoom:
    """One of them, as `ProcessGroup` is."""

    rank: int
    room: Room

    @property
    def count(self) -> int:
        return self.room.count

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def exchange(self, value: Any) -> list[Any]:
        self.room.told[self.rank] = value
        self.room.barrier.wait()
        told = [self.room.told[rank] for rank in range(self.count)]
        self.room.barrier.wait()
        return told


GIVEN = {"corpus": "3fa", "training": {"batch": 32, "losses": {"triplet": {"margin": 1.0}}}}


def test_those_that_agree_go_on() -> None:
    assert Room(3).ask(lambda one: check_agreement(one, GIVEN)) == ["", "", ""]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({**GIVEN, "corpus": "b17"}, "has corpus b17, and process 0"),
        ({**GIVEN, "training": {"batch": 16, "losses": {"triplet": {"margin": 1.0}}}}, "has training.batch 16"),
        ({**GIVEN, "training": {"batch": 32, "losses": {"triplet": {}}}}, "has training.losses.triplet.margin absent"),
        ({**GIVEN, "teacher": "77c"}, "has teacher 77c"),
    ],
)
def test_the_first_that_was_given_something_else_is_named_to_all(other: dict[str, Any], told: str) -> None:
    found = Room(3).ask(lambda one: check_agreement(one, other if one.rank == 1 else GIVEN))
    assert len(set(found)) == 1
    assert found[0].startswith("process 1 (") and told in found[0]
    assert found[0].endswith("give all processes the same command and the same files")


def test_other_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.local()
    monkeypatch.setattr(distributed, "_version", lambda package: getattr(here, "version", "2.13.0"))

    def check(one: Any) -> None:
        if one.rank == 1:
            here.version = "2.11.0"
        check_agreement(one, GIVEN)

    found = Room(2).ask(check)
    assert found[0] == found[1]
    assert "has torch 2.11.0, and process 0" in found[0] and found[0].endswith("install the same on all machines")


def test_one_folder_for_all(tmp_path: Path) -> None:
    for _ in range(2):  # after a restart the mark of the first attempt lies there
        assert Room(2).ask(lambda one: check_shared_folder(one, tmp_path)) == ["", ""]


def test_a_folder_that_one_does_not_see_is_named_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "SHARED_WITHIN", 0.0)
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / "1" / "met").write_text("of another run")
    found = Room(2).ask(lambda one: check_shared_folder(one, tmp_path / str(one.rank)))
    assert all(line.startswith("process 1 (") and "-o must be on a file system that all" in line for line in found)


def test_one_alone_is_not_asked(tmp_path: Path) -> None:
    check_agreement(ProcessGroup(), GIVEN)
    check_shared_folder(ProcessGroup(), tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("asked", "beside", "cards", "found"),
    [
        ("auto", 2, 2, "cuda:1"),
        ("cuda", 8, 8, "cuda:1"),
        ("auto", 2, 0, "auto"),
        ("cpu", 2, 2, "cpu"),
        ("cuda", 2, 1, "2 processes were started on this machine, and torch sees 1 GPUs"),
        ("cuda:0", 2, 2, "--device is cuda:0, and 2 processes were started"),
        ("cuda:0", 1, 2, "cuda:0"),
    ],
)
def test_every_process_has_a_gpu_of_its_own(
    asked: str, beside: int, cards: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(beside))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    if " " in found:
        with pytest.raises(UserError, match=found):
            local_device(asked)
    else:
        assert local_device(asked) == found


@pytest.mark.parametrize(("backend", "count", "ends"), [("nccl", 2, True), ("gloo", 2, False), ("nccl", 1, False)])
def test_after_an_error_nobody_waits_for_others_to_leave(
    backend: str, count: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(distributed.dist, "get_backend", lambda: backend)
    monkeypatch.setattr(atexit, "register", registered.append)
    with pytest.raises(UserError), exiting_without_peers(ProcessGroup(0, count)):
        raise UserError("something")
    assert bool(registered) == ends
    with exiting_without_peers(ProcessGroup(0, count)):
        pass
    assert len(registered) == ends
