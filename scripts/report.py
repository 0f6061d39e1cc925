"""Merges the results of all pairs into one report, the same bytes for the same results, in every format."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from . import archive, document, history, junit, page, reading, results, storage
from .errors import Blocked
from .history import History
from .matrix import Batch
from .results import ApiRow, PairResult, Report
from .wording import LANGUAGES


def refresh(reports: Path, batch: Batch) -> Report:
    """Write the merged report of a batch's latest results and return it."""
    folder = results.folder_of(reports, batch)
    with storage.lock(folder.with_name(".latest.lock")):
        merged = merge(batch, results.load_all(reports, batch))
        write(folder, merged, history.gather(archive.nights(reports, batch), latest=merged))
    return merged


def latest(reports: Path, batch: Batch) -> Path:
    """Write the merged report of a batch's latest results and return its folder."""
    refresh(reports, batch)
    return results.folder_of(reports, batch)


def combine(reports: Path, batch: Batch, places: Sequence[Path]) -> Path:
    """Merge the results of other machines that lie at ``places`` into one report, and return its folder.

    The order of the places doesn't matter. Raises Blocked if one can't be read, or if two differ on the same column.
    """
    columns = [column for place in places for column in reading.read(place)]
    if conflicts := reading.conflicts(columns):
        raise Blocked("conflict", "; ".join(conflicts), "Leave one of the two out.")
    unique = {msgspec.json.encode(column): column for column in columns}
    there = {column.pair for column in columns}
    missing = [results.not_run(pair) for pair in batch.pairs if pair.name not in there]
    folder = reports / batch.matrix.batch / "merged"
    write(folder, merge(batch, [*unique.values(), *missing]))
    return folder


def write(folder: Path, merged: Report, nights: History | None = None) -> None:
    """Write a report in every format into ``folder``; ``nights`` are what came before it."""
    storage.write(folder / "report.json", results.encode(merged))
    storage.write(folder / "report.xml", junit.of_results(merged.batch, merged.columns))
    storage.write(folder / "report.html", page.html(merged, folder, nights).encode("utf-8", "backslashreplace"))
    for language in LANGUAGES:
        text = document.markdown(merged, language)
        storage.write(folder / document.name_of("report", language), text.encode("utf-8", "backslashreplace"))


def summarize(merged: Report) -> None:
    """Write the verdicts into the job summary of GitHub Actions, where this is such a job; the last one stands."""
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if os.environ.get("GITHUB_ACTIONS") == "true" and place:
        storage.write(Path(place), document.markdown(merged, "en").partition("\n## ")[0].encode())


def path_of(reports: Path, batch: Batch) -> Path:
    """Return the path of the report that a person opens."""
    return results.folder_of(reports, batch) / "report.html"


def merge(batch: Batch, columns: list[PairResult]) -> Report:
    """Return the report of ``columns``, in version order and each with a label of its own."""
    columns = labelled(columns)
    title = {language: str(getattr(batch.matrix.title, language)) for language in LANGUAGES}
    if any(column.is_sample for column in columns):
        title = {language: f"SAMPLE: {text}" for language, text in title.items()}
    return Report(
        title=title["en"],
        titles=title,
        batch=batch.matrix.batch,
        columns=columns,
        apis=[
            ApiRow(
                name=api.name,
                kind=api.kind.value,
                does={"en": api.does.en, "zh": api.does.zh},
                evidence={column.label: _evidence(column, api.name) for column in columns if column.evidence},
            )
            for api in batch.matrix.api
        ],
        reasons={patch.file: {"en": patch.reason.en, "zh": patch.reason.zh} for patch in batch.matrix.patch},
    )


def labelled(columns: Iterable[PairResult]) -> list[PairResult]:
    """Return columns in version order; a pair that stands more than once is told apart by machine, mode and Python."""
    ordered = sorted(columns, key=_order)
    times = Counter(column.pair for column in ordered)
    return [
        msgspec.structs.replace(
            column,
            label=column.pair
            if times[column.pair] == 1
            else " ".join(
                [column.pair, column.machine or "?", column.mode.value if column.mode else "?", f"py{column.python}"]
            ),
        )
        for column in ordered
    ]


# Helpers


def _evidence(column: PairResult, api: str) -> list[str]:
    """Return the passing cases that were seen to reach an API."""
    found = [entry for entry in (column.evidence.apis if column.evidence else []) if entry.api == api]
    return [f"{reach.file}::{reach.cls}.{reach.name}" for entry in found for reach in entry.passing]


def _order(column: PairResult) -> tuple[object, ...]:
    """Return what columns are ordered by: 2.7.1 before 2.10.0, names that are no version last."""
    try:
        version: tuple[object, ...] = (0, Version(column.pair.partition("-")[0]))
    except InvalidVersion:
        version = (1, column.pair)
    rest = (column.machine or "", column.mode.value if column.mode else "", column.python)
    return (*version, column.pair, *rest, msgspec.json.encode(column))
