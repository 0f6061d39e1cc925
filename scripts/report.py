"""Merges the results of all pairs into one report, the same bytes for the same results, in every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from . import junit, results, storage
from .matrix import Batch
from .results import ApiEvidence, PairResult, Report, Verdict

TEMPLATES = Path(__file__).parent / "templates"
CONTROL = {number: f"\\x{number:02x}" for number in range(32)} | {0x7F: "\\x7f"}


def refresh(reports: Path, batch: Batch) -> Report:
    """Write the merged report of a batch's latest results and return it."""
    folder = results.folder_of(reports, batch)
    with storage.lock(folder.with_name(".latest.lock")):
        merged = merge(batch, results.load_all(reports, batch))
        storage.write(folder / "report.json", results.encode(merged))
        storage.write(folder / "report.xml", junit.encode(junit.of_results(batch.matrix.batch, merged.columns)))
        storage.write(folder / "report.md", markdown(merged).encode("utf-8", "backslashreplace"))
    return merged


def path_of(reports: Path, batch: Batch) -> Path:
    """Return the path of the report that a person opens."""
    return results.folder_of(reports, batch) / "report.md"


def merge(batch: Batch, columns: list[PairResult]) -> Report:
    """Return the report of ``columns``, which stand in version order."""
    sample = any(column.is_sample for column in columns)
    return Report(
        title=f"SAMPLE: {batch.matrix.title.en}" if sample else batch.matrix.title.en,
        batch=batch.matrix.batch,
        columns=columns,
        apis=[
            ApiEvidence(name=api.name, kind=api.kind.value, does={"en": api.does.en, "zh": api.does.zh}, evidence={})
            for api in batch.matrix.api
        ],
    )


def markdown(merged: Report) -> str:
    """Return the report as Markdown."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 (Markdown: the cell filter escapes)
    )
    environment.filters |= {"cell": cell, "code": code, "short": lambda text: str(text)[:12]}
    return environment.get_template("report.md.jinja").render(report=merged, **_views(merged))


def cell(text: Any) -> str:
    """Return any text as it can stand in a Markdown table or paragraph: one line, nothing of it markup."""
    line = " ⏎ ".join(part for part in str(text).splitlines()) if text else ""
    line = line.translate(CONTROL)
    for special in "\\`*_[]|#":
        line = line.replace(special, f"\\{special}")
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code(text: Any) -> str:
    """Return a text as inline code that can stand in a table; a backtick in it can't end it."""
    line = str(text).translate(CONTROL).replace("|", "\\|")
    fence = "`" if "`" not in line else "``"
    return f"{fence}{line}{fence}"


# Helpers


def _views(merged: Report) -> dict[str, Any]:
    files: dict[str, None] = {}
    for column in merged.columns:
        files |= dict.fromkeys(run.file for run in column.runs)
    runs = {(column.pair, run.file): run for column in merged.columns for run in column.runs}
    counts = {verdict.value: sum(column.verdict is verdict for column in merged.columns) for verdict in Verdict}
    bad = [
        (column.pair, case)
        for column in merged.columns
        for case in column.cases
        if case.outcome.value not in ("passed", "xfailed")
    ]
    return {
        "files": list(files),
        "runs": runs,
        "counts": {name: number for name, number in counts.items() if number},
        "bad": bad,
    }
