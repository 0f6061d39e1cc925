"""Keeps the reports of past nights: adds, finds and prunes them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from . import results, storage
from .errors import Blocked
from .matrix import Batch
from .results import Report

TIME_FORMAT = "%Y-%m-%dT%H%M%SZ"
TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{6}Z(-\d+)?")


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """An archived report, by its folder, named for the UTC time at which the night began."""

    path: Path

    @property
    def name(self) -> str:
        """The UTC time, as ``2026-11-30T023000Z``."""
        return self.path.name

    @property
    def began(self) -> datetime:
        """When the night began."""
        return datetime.strptime(self.name[:18], TIME_FORMAT).replace(tzinfo=UTC)

    def report(self) -> Report:
        """Return the report; raises Blocked(``bad-result``) if it can't be read."""
        return load(self.path / "report.json")


def load(path: Path) -> Report:
    """Read a report.json; raises Blocked(``bad-result``) if it isn't one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, ValueError, RecursionError) as error:
        raise Blocked("bad-result", f"{path} can't be used: {error}", "Name a report.json of this project.") from None


def nights(reports: Path, batch: Batch) -> list[Night]:
    """Return the archived nights of a batch, oldest first."""
    folder = reports / batch.matrix.batch / "archive"
    if not folder.is_dir():
        return []
    names = sorted(path.name for path in folder.iterdir() if TIME.fullmatch(path.name))
    return [Night(path=folder / name) for name in names if (folder / name / "report.json").is_file()]


def add(reports: Path, batch: Batch, began: datetime, pairs: Sequence[str], write: Callable[[Path], None]) -> Night:
    """Archive a night under the time at which it began: its pairs' results, and the report that ``write`` makes of it.

    The caller holds the lock of nightly.
    """
    latest = results.folder_of(reports, batch)
    name = began.astimezone(UTC).strftime(TIME_FORMAT)
    folder = reports / batch.matrix.batch / "archive"
    target = folder / name
    for number in range(2, 1000):
        if not target.exists():
            break
        target = folder / f"{name}-{number}"
    with storage.new_folder(target) as building:
        for pair in pairs:
            if (latest / pair).is_dir():
                shutil.copytree(latest / pair, building / pair, copy_function=_link)
        write(building)
    return Night(path=target)


def find(reports: Path, batch: Batch, name: str, base: Path) -> tuple[str, Report]:
    """Return a report by name: a path (relative to ``base``), ``latest``, ``previous``, or a date or time of a night.

    Raises Blocked if there is none.
    """
    archived = nights(reports, batch)
    if name == "latest":
        return name, load(results.folder_of(reports, batch) / "report.json")
    if name == "previous":
        if not archived:
            raise Blocked("no-report", "no night is archived yet", "Run nox -s nightly first.")
        return archived[-1].name, archived[-1].report()
    if chosen := [night for night in archived if night.name.startswith(name)]:
        return chosen[-1].name, chosen[-1].report()
    path = base / name
    if path.is_dir():
        path = path / "report.json"
    if path.is_file():
        return name, load(path)
    known = ", ".join(["latest", "previous", *(night.name for night in archived[-3:])])
    raise Blocked("no-report", f"there is no report '{name}'", f"Give a report.json, its folder, or one of {known}.")


def prune(
    reports: Path, batch: Batch, *, keep: int, days: int, free_bytes: int, spare: Sequence[Night], now: datetime
) -> list[str]:
    """Remove old nights and return their names: beyond ``keep``, older than ``days``, or while the disk is short.

    Nights in ``spare``, the newest one, and the newest one in which every pair was good always stay.
    """
    archived = nights(reports, batch)
    kept = {night.name for night in spare} | {night.name for night in archived[-1:]}
    good = next((night for night in reversed(archived) if _is_good(night)), None)
    if good:
        kept.add(good.name)
    removed = []
    for position, night in enumerate(archived):
        too_many = len(archived) - position > keep
        too_old = now - night.began > timedelta(days=days)
        short = shutil.disk_usage(night.path).free < free_bytes
        if night.name not in kept and (too_many or too_old or short):
            # Renamed first: a night that is half removed must not be taken for one.
            doomed = night.path.with_name(f".{night.name}.removed")
            night.path.rename(doomed)
            storage.remove(doomed)
            removed.append(night.name)
    return removed


# Helpers


def _link(source: str, target: str) -> None:
    """Take a file over without copying it where it is only ever replaced as a whole; logs are written in place."""
    if not source.endswith(".log"):
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


def _is_good(night: Night) -> bool:
    try:
        return all(column.is_good for column in night.report().columns)
    except Blocked:
        return False
