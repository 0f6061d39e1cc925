"""Shares the cores of this machine between all runs of all pairs, so that a timing-sensitive one has quiet."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from .matrix import TestFile

QUIET_CORES = 4
POLL_SECONDS = 0.02
Value = TypeVar("Value")


class Room(contextlib.ExitStack):
    """Cores of this machine that one run holds, until the end of its ``with`` block or of the process.

    ``had`` is False for one that was stopped before it had them.
    """

    had = False


def take(weight: int, cores: int, *, stopped: Callable[[], bool] = lambda: False) -> Room:
    """Wait for ``weight`` of the machine's ``cores``, or until ``stopped`` is true.

    Locks die with their holder. Whoever waits keeps the gate, so that one who needs many cores is not overtaken for
    ever by those who need one.
    """
    gate, slots = _lock("gate"), [_lock(f"slot-{number}") for number in range(cores)]
    with Room() as waiting, Room() as room:
        for locks, number, holder in (([gate], 1, waiting), (slots, min(weight, cores), room)):
            while not _gather(locks, number, holder):
                if stopped():
                    return Room()
                time.sleep(POLL_SECONDS)
        had = room.pop_all()
    had.had = True
    return had


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


def _gather(locks: Sequence[FileLock], number: int, holder: Room) -> bool:
    """Take what is free, up to ``number`` of the ``locks``, for ``holder``; returns whether it has so many now."""
    held = sum(lock.is_locked for lock in locks)
    for lock in locks:
        if held < number and not lock.is_locked and _try(lock):
            holder.callback(lock.release, force=True)
            held += 1
    return held == number


def _try(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True
