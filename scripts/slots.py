"""Shares the cores of this machine between all runs of all pairs, so that a timing-sensitive one has quiet."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

QUIET_CORES = 4
POLL_SECONDS = 0.02


@contextlib.contextmanager
def take(weight: int, cores: int, *, stopped: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Hold ``weight`` of the machine's ``cores``; yields whether they were had (False: ``stopped`` became true).

    Locks die with their holder. Whoever waits keeps the gate, so that one who needs many cores is not overtaken for
    ever by those who need one.
    """
    folder = _folder()
    held: list[FileLock] = []
    gate = FileLock(folder / "gate")
    try:
        while not _try(gate):
            if stopped():
                yield False
                return
            time.sleep(POLL_SECONDS)
        while len(held) < min(weight, cores):
            for number in range(cores):
                slot = FileLock(folder / f"slot-{number}")
                if len(held) < min(weight, cores) and not _is_held(held, slot) and _try(slot):
                    held.append(slot)
            if len(held) < min(weight, cores):
                if stopped():
                    yield False
                    return
                time.sleep(POLL_SECONDS)
        gate.release()
        yield True
    finally:
        gate.release(force=True)
        for slot in held:
            slot.release(force=True)


def weight_of(*, timing_sensitive: bool, cores: int) -> int:
    """Return how many cores a run needs: a timing-sensitive one has the machine, or a good part of it, to itself."""
    return min(cores, QUIET_CORES) if timing_sensitive else 1


def fit_together(plain: int, timing_sensitive: int, cores: int) -> bool:
    """Return whether so many runs of both kinds have room on the machine at the same time."""
    return plain + timing_sensitive * QUIET_CORES <= cores


# Helpers


def _folder() -> Path:
    """Return this machine's folder of locks: a home folder may be shared with other machines."""
    folder = Path(os.environ.get("TNM_SLOTS", f"/tmp/torch-npu-matrix-{os.getuid()}"))
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _try(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _is_held(held: list[FileLock], slot: FileLock) -> bool:
    return any(lock.lock_file == slot.lock_file for lock in held)
