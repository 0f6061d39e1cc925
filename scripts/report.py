"""Merges the results of all pairs into one report, the same bytes for the same results, in every format."""

from __future__ import annotations

from pathlib import Path

from . import document, junit, results, storage
from .matrix import Batch
from .results import ApiEvidence, PairResult, Report
from .wording import LANGUAGES


def refresh(reports: Path, batch: Batch) -> Report:
    """Write the merged report of a batch's latest results and return it."""
    folder = results.folder_of(reports, batch)
    with storage.lock(folder.with_name(".latest.lock")):
        merged = merge(batch, results.load_all(reports, batch))
        storage.write(folder / "report.json", results.encode(merged))
        storage.write(folder / "report.xml", junit.encode(junit.of_results(batch.matrix.batch, merged.columns)))
        for language in LANGUAGES:
            text = document.markdown(merged, language)
            storage.write(folder / name_of(language), text.encode("utf-8", "backslashreplace"))
    return merged


def name_of(language: str) -> str:
    """Return the file name of the document in ``language``."""
    return "report.md" if language == "en" else f"report.{language}.md"


def path_of(reports: Path, batch: Batch) -> Path:
    """Return the path of the report that a person opens."""
    return results.folder_of(reports, batch) / name_of("en")


def merge(batch: Batch, columns: list[PairResult]) -> Report:
    """Return the report of ``columns``, which stand in version order."""
    title = {language: str(getattr(batch.matrix.title, language)) for language in LANGUAGES}
    if any(column.is_sample for column in columns):
        title = {language: f"SAMPLE: {text}" for language, text in title.items()}
    return Report(
        title=title["en"],
        titles=title,
        batch=batch.matrix.batch,
        columns=columns,
        apis=[
            ApiEvidence(name=api.name, kind=api.kind.value, does={"en": api.does.en, "zh": api.does.zh}, evidence={})
            for api in batch.matrix.api
        ],
        reasons={patch.file: {"en": patch.reason.en, "zh": patch.reason.zh} for patch in batch.matrix.patch},
    )
