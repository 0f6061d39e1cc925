"""Shares the cores of this machine between all runs of all pairs, so that a timing-sensitive one has quiet."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from filelock import FileLock, Timeout

from .matrix import TestFile

QUIET_CORES = 4
POLL_SECONDS = 0.02
Value = TypeVar("Value")


class Room:
    """Cores of this machine that one run holds, until the end of its ``with`` block or of the process.

    ``had`` is False for one that was stopped before it had them.
    """

    def __init__(self, locks: Sequence[FileLock], *, had: bool) -> None:
        self.locks = locks
        self.had = had

    def __enter__(self) -> bool:
        return self.had

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lock in self.locks:
            lock.release(force=True)


def take(weight: int, cores: int, *, stopped: Callable[[], bool] = lambda: False) -> Room:
    """Wait for ``weight`` of the machine's ``cores``, or until ``stopped`` is true.

    Locks die with their holder. Whoever waits keeps the gate, so that one who needs many cores is not overtaken for
    ever by those who need one.
    """
    weight = min(weight, cores)
    held: list[FileLock] = []
    gate = _lock("gate")
    slots = [_lock(f"slot-{number}") for number in range(cores)]
    try:
        while not _try(gate):
            if stopped():
                return Room((), had=False)
            time.sleep(POLL_SECONDS)
        while True:
            for slot in slots:
                if len(held) < weight and not slot.is_locked and _try(slot):
                    held.append(slot)
            if len(held) == weight:
                return Room(tuple(held), had=True)
            if stopped():
                break
            time.sleep(POLL_SECONDS)
    except BaseException:
        Room(held, had=False).__exit__(None, None, None)
        raise
    finally:
        gate.release(force=True)
    Room(held, had=False).__exit__(None, None, None)
    return Room((), had=False)


def side_by_side(
    work: Callable[[TestFile, Room], Value], files: Sequence[TestFile], cores: int, stopped: threading.Event
) -> dict[str, Value]:
    """Call ``work`` for each file once the machine has room for it, in other threads; returns what each gave, by path.

    ``work`` gives the room back. Timing-sensitive files come first: they wait rather than work, and what comes after
    them fills the rest of the machine meanwhile. The first exception, and an interruption of this thread, sets
    ``stopped``; it is raised when all have ended.
    """

    def one(file: TestFile, room: Room) -> Value:
        try:
            return work(file, room)
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(max_workers=max(1, len(files))) as executor:
        try:
            futures = {}
            for file in sorted(files, key=lambda file: not file.timing_sensitive):
                weight = weight_of(timing_sensitive=file.timing_sensitive, cores=cores)
                futures[executor.submit(one, file, take(weight, cores, stopped=stopped.is_set))] = file
            return {futures[future].path: future.result() for future in as_completed(futures)}
        except BaseException:
            stopped.set()
            raise


def weight_of(*, timing_sensitive: bool, cores: int) -> int:
    """Return how many cores a run needs.

    A timing-sensitive one has half the machine, of which it uses one core and what its children need for a moment. On
    two cores, twenty runs beside another file's failed no more often than twenty by hand (README.md, "How fast").
    """
    return max(1, min(QUIET_CORES, cores // 2)) if timing_sensitive else 1


# Helpers


def _folder() -> Path:
    """Return this machine's folder of locks: a home folder may be shared with other machines."""
    folder = Path(os.environ.get("TNM_SLOTS", f"/tmp/torch-npu-matrix-{os.getuid()}"))
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _lock(name: str) -> FileLock:
    # Not of one thread: it is taken in one and given back in another.
    return FileLock(_folder() / name, thread_local=False)


def _try(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True
