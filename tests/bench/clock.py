"""Times whole commands from outside, and compares two of them in turn so that a noisy machine is noisy for both."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

GRACE_SECONDS = 20.0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a command took: seconds of wall time, the largest resident size of one of its processes in MB."""

    seconds: float
    megabytes: float
    status: int
    output: str


def run(argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str]) -> Usage:
    """Run a command to its end; what it prints is kept. An interruption ends it with all that it started."""
    with tempfile.TemporaryFile() as stream:
        start = time.monotonic()
        process = subprocess.Popen(
            [str(argument) for argument in argv],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            # Of all that it waited for as well.
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            _end(process)
            raise
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        stream.seek(0)
        output = stream.read().decode(errors="replace")
    return Usage(seconds=seconds, megabytes=used.ru_maxrss * 1024 / 1e6, status=process.returncode, output=output)


def good(usage: Usage) -> Usage:
    """Return ``usage`` if its command ended with 0; raises RuntimeError with what it printed otherwise."""
    if usage.status:
        raise RuntimeError(f"a command that was to be timed ended with {usage.status}:\n{usage.output[-3000:]}")
    return usage


def in_turn(first: Callable[[], float], second: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """Return the seconds of both, side by side: A B, B A, A B …"""
    found = []
    for number in range(rounds):
        if number % 2:
            b = second()
            found.append((first(), b))
        else:
            found.append((first(), second()))
    return found


class Spread(msgspec.Struct, frozen=True):
    """The median of several figures, with the least and the greatest."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} – {self.most:.2f})"


def spread(figures: Sequence[float]) -> Spread:
    """Return what several figures come to."""
    return Spread(statistics.median(figures), min(figures), max(figures))


def ratios(pairs: Sequence[tuple[float, float]]) -> Spread:
    """Return the ratios of figures that were taken side by side."""
    return spread([first / second for first, second in pairs])


def differences(pairs: Sequence[tuple[float, float]]) -> Spread:
    """Return the differences of figures that were taken side by side."""
    return spread([first - second for first, second in pairs])


# Helpers


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
