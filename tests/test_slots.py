"""Cores are shared by all processes: who needs quiet is alone, nobody waits for ever, and the dead hold nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts import slots
from tests.conftest import ROOT
from tests.running_support import eventually

# Takes slots again and again, and writes when it had them: "name weight start end".
TAKER = """
import pathlib, sys, time
from scripts import slots
name, weight, cores, seconds, rounds, file = sys.argv[1:]
for _ in range(int(rounds)):
    with slots.take(int(weight), int(cores)) as room:
        start = time.monotonic()
        with open(file, "a") as stream:
            print("in", name, file=stream, flush=True)
        time.sleep(float(seconds))
        with open(file, "a") as stream:
            print(name, weight, start, time.monotonic(), file=stream, flush=True)
"""


class Turn:
    """A time during which slots were held."""

    def __init__(self, line: str) -> None:
        self.name, weight, start, end = line.split()
        self.weight, self.start, self.end = int(weight), float(start), float(end)


@pytest.fixture
def taker(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started = []

    def start(
        name: str, weight: int, *, cores: int = 2, seconds: float = 0.01, rounds: int = 1
    ) -> subprocess.Popen[bytes]:
        arguments = [name, weight, cores, seconds, rounds, tmp_path / "turns"]
        found = subprocess.Popen([sys.executable, "-c", TAKER, *map(str, arguments)], cwd=ROOT)
        started.append(found)
        return found

    yield start
    for found in started:
        found.kill()
        found.wait()


def lines(folder: Path) -> list[str]:
    return (folder / "turns").read_text().splitlines() if (folder / "turns").exists() else []


def turns(folder: Path) -> list[Turn]:
    return [Turn(line) for line in lines(folder) if not line.startswith("in ")]


def wait_for(folder: Path, name: str) -> None:
    eventually(lambda: f"in {name}" in lines(folder))


def most_at_once(found: list[Turn]) -> int:
    """Return the greatest weight that was held at one time."""
    return max(sum(other.weight for other in found if other.start <= turn.start < other.end) for turn in found)


def test_who_needs_quiet_is_alone(taker: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    takers = [taker("plain", 1, rounds=12), taker("plain", 1, rounds=12), taker("quiet", 2, rounds=6)]
    assert [found.wait(30) for found in takers] == [0, 0, 0]
    found = turns(tmp_path)
    assert len(found) == 30
    assert most_at_once(found) == 2


def test_two_who_need_all_get_it_in_turn(taker: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    takers = [taker(name, 4, cores=4, rounds=8) for name in ("one", "two")]
    assert [found.wait(30) for found in takers] == [0, 0]
    assert most_at_once(turns(tmp_path)) == 4


def test_who_needs_all_is_not_overtaken_for_ever(taker: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        taker(name, 1, seconds=0.05, rounds=1000)
        wait_for(tmp_path, name)
    start = time.monotonic()
    assert taker("all", 2).wait(20) == 0
    # Its own start included.
    assert time.monotonic() - start < 5


def test_who_waits_for_all_lets_nobody_starve(taker: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    for name in ("a", "b"):
        taker(name, 2, seconds=0.05, rounds=1000)
        wait_for(tmp_path, name)
    assert taker("plain", 1, rounds=3).wait(20) == 0


def test_a_holder_that_is_killed_holds_nothing(taker: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    holder = taker("holder", 2, seconds=60)
    wait_for(tmp_path, "holder")
    # One that waits is killed as well: it kept the gate.
    waiter = taker("waiter", 2)
    time.sleep(0.5)
    waiter.kill()
    waiter.wait()
    holder.kill()
    holder.wait()
    with slots.take(2, 2) as room:
        assert room.had


def test_who_is_stopped_while_it_waits_goes_without(
    taker: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    taker("holder", 1, seconds=60)
    wait_for(tmp_path, "holder")
    asked: list[float] = []

    def stopped() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 3

    with slots.take(2, 2, stopped=stopped) as room:
        assert not room.had
    # It has given back what it had gathered.
    with slots.take(1, 2) as room:
        assert room.had


def test_threads_of_one_process_share_too(tmp_path: Path) -> None:
    with slots.take(1, 2) as first, slots.take(1, 2) as second:
        assert first.had
        assert second.had
        with slots.take(1, 2, stopped=lambda: True) as third:
            assert not third.had


def test_what_is_asked_beyond_the_machine_is_the_machine() -> None:
    with slots.take(4, 2) as room:
        assert room.had


@pytest.mark.parametrize(
    ("cores", "plain", "quiet"), [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 2), (8, 1, 4), (192, 1, 4)]
)
def test_weights(cores: int, plain: int, quiet: int) -> None:
    assert slots.weight_of(timing_sensitive=False, cores=cores) == plain
    assert slots.weight_of(timing_sensitive=True, cores=cores) == quiet
