"""What is found out once per run, however many pairs and processes the run has."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from . import process, storage
from .errors import Blocked


class _Finding(msgspec.Struct, kw_only=True):
    code: str = ""
    cause: str = ""
    remedy: str = ""


class RunScope:
    """One invocation of nox: its sessions, and the worker processes of ``-j``, share what was found out."""

    def __init__(self) -> None:
        # A worker's parent is the nox that a person started.
        owner = os.getppid() if "--parallel-worker" in sys.argv else os.getpid()
        # Process ids come again, and a home folder may be shared with other machines.
        self.id = f"{_machine()}-{owner}-{process.started(owner)}"

    @property
    def folder(self) -> Path:
        """Where the findings of this run lie."""
        return storage.cache_root() / "scopes" / self.id

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
        """Forget what runs of this machine found out that are over; this one may have more pairs to come."""
        try:
            folders = list(self.folder.parent.glob(f"{_machine()}-*"))
        except Blocked:
            # Without a cache there is nothing to forget, and who needed it was told so.
            return
        for folder in folders:
            owner, _, started = folder.name.removeprefix(f"{_machine()}-").partition("-")
            if not owner.isdigit() or process.started(int(owner)) != started:
                storage.remove(folder)


# Helpers


def _machine() -> str:
    return re.sub(r"[^\w.]", "_", platform.node())
