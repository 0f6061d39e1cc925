"""What is found out once per run, however many pairs and processes the run has."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from . import storage
from .errors import Blocked

STALE_SECONDS = 86_400.0


class _Finding(msgspec.Struct, kw_only=True):
    code: str = ""
    cause: str = ""
    remedy: str = ""


class RunScope:
    """One invocation of nox: its sessions, and the worker processes of ``-j``, share what was found out."""

    def __init__(self) -> None:
        # A worker's parent is the nox that a person started.
        owner = os.getppid() if "--parallel-worker" in sys.argv else os.getpid()
        self.id = f"{owner}-{_started(owner)}"
        self.folder = storage.cache_root() / "scopes" / self.id

    def once(self, subject: str, check: Callable[[], None]) -> None:
        """Run ``check`` if nobody of this run has yet; raises the Blocked that it raised, then and every time after.

        An index that does not answer is so found out once, not once per pair.
        """
        record = self.folder / sha256(subject.encode()).hexdigest()[:24]
        with storage.lock(record.with_suffix(".lock")):
            try:
                finding = msgspec.json.decode(record.read_bytes(), type=_Finding)
            except (OSError, msgspec.DecodeError):
                finding = _Finding()
                try:
                    check()
                except Blocked as blocked:
                    finding = _Finding(code=blocked.code, cause=blocked.cause, remedy=blocked.remedy)
                storage.write(record, msgspec.json.encode(finding))
        if finding.code:
            raise Blocked(finding.code, finding.cause, finding.remedy)

    def close(self) -> None:
        """Forget what this run found out, and what runs left that were killed."""
        if "--parallel-worker" not in sys.argv:
            storage.remove(self.folder)
        for folder in self.folder.parent.glob("*"):
            if _age(folder) > STALE_SECONDS:
                storage.remove(folder)


# Helpers


def _started(pid: int) -> str:
    """Return when a process started, in clock ticks since boot: process ids come again, this pair doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
