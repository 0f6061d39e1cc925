"""report.html: one self-contained page, readable from a mail attachment, without a server or a network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from . import templating, wording
from .document import drift_of, evidence_by_column, is_ok, reached
from .history import LISTED, History
from .results import Case, Outcome, Report, Run, State, Verdict
from .templating import TEMPLATES

# Colour is never the only sign: each has a mark and a word beside it.
CONTROL = {number: f"\\x{number:02x}" for number in (*range(32), 0x7F) if chr(number) not in "\n\t"}
VERDICT_TONES = {
    Verdict.VERIFIED: ("good", "✓"),
    Verdict.SAMPLE_OK: ("warn", "≈"),
    Verdict.FAILED: ("bad", "✗"),
    Verdict.HOLLOW: ("warn", "○"),
    Verdict.BLOCKED: ("warn", "⊘"),
    Verdict.NOT_RUN: ("none", "–"),
}
OUTCOME_TONES = {
    Outcome.PASSED: ("good", "✓", "p"),
    Outcome.FAILED: ("bad", "✗", "f"),
    Outcome.ERROR: ("bad", "✗", "e"),
    Outcome.SKIPPED: ("warn", "⊘", "s"),
    Outcome.XFAILED: ("good", "✓", "x"),
    Outcome.XPASSED: ("bad", "✗", "u"),
    Outcome.CRASHED: ("bad", "☠", "c"),
    Outcome.TIMEOUT: ("bad", "◷", "t"),
    Outcome.NOT_RUN: ("warn", "–", "n"),
    Outcome.FLAKY: ("warn", "≈", "k"),
}
SECTIONS = (
    ("verdicts", "page.verdicts"),
    ("files", "page.files"),
    ("cases", "page.cases"),
    ("apis", "apis.heading"),
    ("guards", "page.guards"),
    ("patches", "page.patches"),
    ("environments", "page.environments"),
)
TAIL_BYTES = 6_000
MESSAGE_CHARACTERS = 6_000
STATIC_ROWS = 200
ABSENT = "."


def html(report: Report, logs: Path | None = None, history: History | None = None) -> str:
    """Return the page. ``logs`` is the folder of the report; the ends of logs of runs that are not good are shown.

    ``history`` are the archived nights before it.
    """
    files = list(dict.fromkeys(run.file for column in report.columns for run in column.runs))
    counted = [(verdict, sum(column.verdict is verdict for column in report.columns)) for verdict in Verdict]
    bad = [
        (column.label, case)
        for column in report.columns
        for case in column.cases
        if case.outcome not in (Outcome.PASSED, Outcome.XFAILED)
    ]
    return fill(
        "report.html.jinja",
        "en",
        report=report,
        js=(TEMPLATES / "report.js").read_text(),
        data=_embed(_data(report, files, logs)),
        files=files,
        runs={(column.label, run.file): run for column in report.columns for run in column.runs},
        counts=[(verdict.value, number) for verdict, number in counted if number],
        samples=[column.label for column in report.columns if column.is_sample],
        control_plane=[
            column.label for column in report.columns if column.mode and column.mode.value == "control-plane"
        ],
        sections=[*SECTIONS, *([("history", "history.heading")] if history else [])],
        listed=LISTED,
        evidence=evidence_by_column(report),
        drift=drift_of(report),
        reached={api.name: reached(report, api.name) for api in report.apis},
        bad=bad[:STATIC_ROWS],
        patched=any(run.patch for column in report.columns for run in column.runs),
        plot=_plot(report, files),
        history=history,
        trend=_trend(history) if history else "",
        tone=lambda verdict: VERDICT_TONES[verdict][0],
        mark=lambda verdict: VERDICT_TONES[verdict][1],
        run_tone=lambda run: _run_sign(run)[0],
        run_mark=lambda run: _run_sign(run)[1],
    )


def fill(template: str, language: str, **values: Any) -> str:
    """Return an HTML template filled in; whatever is in the values is text, never markup."""
    environment = templating.environment(Path(__file__), autoescape=True, finalize=_visible)
    css = (TEMPLATES / "report.css").read_text()
    translator = _Translator(wording.say_in(language))
    return environment.get_template(template).render(t=translator, css=css, language=language, **values)


# Helpers


def _visible(value: Any) -> Any:
    """Return text with its control characters written out, and anything else as it is."""
    return value.translate(CONTROL) if isinstance(value, str) and not isinstance(value, Markup) else value


class _Translator:
    """Looks up English texts for the page as it is sent; the page itself changes them to another language."""

    def __init__(self, say: wording.Say) -> None:
        self.say = say

    def __call__(self, key: str, **values: Any) -> str:
        if "verdict" in values:
            values = values | {"verdict": self.say(f"verdict.{values['verdict']}")}
        return self.say(key, **values)


def _run_sign(run: Run) -> tuple[str, str]:
    if run.state is State.NOT_RUN:
        return "none", "–"
    if run.state is State.HOLLOW:
        return "warn", "○"
    return ("good", "✓") if is_ok(run) else ("bad", "✗")


def _embed(value: object) -> str:
    """Return JSON that can stand inside a script element, whatever is in it."""
    text = msgspec.json.encode(value).decode()
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _data(report: Report, files: list[str], logs: Path | None) -> dict[str, Any]:
    numbers = {file: number for number, file in enumerate(files)}
    return {
        "columns": [column.label for column in report.columns],
        "files": files,
        "titles": report.titles,
        "texts": {language: _texts(language) for language in wording.LANGUAGES},
        "letters": {letter: outcome.value for outcome, (_, _, letter) in OUTCOME_TONES.items()},
        "marks": {outcome.value: mark for outcome, (_, mark, _) in OUTCOME_TONES.items()},
        "tones": {outcome.value: tone for outcome, (tone, _, _) in OUTCOME_TONES.items()},
        "cases": _cases(report, numbers),
        "runs": {
            f"{number}-{numbers[run.file]}": _run(run, column.label, logs)
            for number, column in enumerate(report.columns)
            for run in column.runs
        },
    }


def _texts(language: str) -> dict[str, str]:
    return {key: text for key, text in wording.load(language).items() if not key.startswith(("export.", "diff."))}


def _cases(report: Report, files: Mapping[str, int]) -> list[list[Any]]:
    """Return each case as file, class, name, a letter per column, milliseconds per column, messages by column."""
    found: dict[tuple[str, str, str], list[Any]] = {}
    width = len(report.columns)
    for number, column in enumerate(report.columns):
        for case in column.cases:
            row = found.get(case.key)
            if row is None:
                row = found[case.key] = [
                    files[case.file],
                    _visible(case.cls),
                    _visible(case.name),
                    [ABSENT] * width,
                    [None] * width,
                    {},
                ]
            _place(row, number, case)
    for row in found.values():
        row[3] = "".join(row[3])
    return list(found.values())


def _place(row: list[Any], number: int, case: Case) -> None:
    row[3][number] = OUTCOME_TONES[case.outcome][2]
    if case.seconds is not None:
        row[4][number] = round(case.seconds * 1000)
    if case.message and case.outcome is not Outcome.PASSED:
        row[5][str(number)] = _visible(case.message[-MESSAGE_CHARACTERS:])


def _run(run: Run, label: str, logs: Path | None) -> dict[str, Any]:
    said = ""
    if run.ran is not None:
        tests = "1 test" if run.ran == 1 else f"{run.ran} tests"
        said = f"Ran {tests} in {run.unittest_seconds or 0:.3f} s"
    return {
        "state": run.state.value,
        "tests": run.tests,
        "expected": run.expected,
        "reason": run.reason,
        "command": run.command,
        "said": said,
        "findings": [*run.broken_fixtures, *run.findings],
        "stacks": run.stacks,
        "log": run.link(label),
        "patch": run.patch.patch if run.patch else "",
        "tail": "" if is_ok(run) or logs is None else _tail(logs, run.link(label)),
    }


def _tail(folder: Path, link: str) -> str:
    try:
        with (folder / link).open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            return str(_visible(stream.read().decode(errors="replace")))
    except OSError:
        return ""


def _plot(report: Report, files: list[str]) -> str:
    """Return bars of seconds per test file and pair, as SVG; empty where nothing ran."""
    columns = [column for column in report.columns if any(run.seconds for run in column.runs)]
    if not columns or len(columns) * len(files) > 400:
        return ""
    runs = {(column.label, run.file): run for column in columns for run in column.runs}
    longest = max((run.seconds or 0) for run in runs.values()) or 1
    top = 10 ** math.floor(math.log10(longest))
    top *= math.ceil(longest / top)
    bar, gap, left, height = 16, 5, 40, 110
    width = left + max(320, len(columns) * (bar + gap + 18)) + 10
    step = (width - left - 10) / len(columns)
    parts = []
    for number, file in enumerate(files):
        base = (number + 1) * (height + 60) - 24
        parts.append(f'<text x="0" y="{base - height - 12}" font-weight="600">{escape(file)}</text>')
        parts += [
            f'<path class="axis" d="M {left} {base - part * height:.0f} H {width}"/>'
            f'<text x="{left - 6}" y="{base - part * height + 4:.0f}" text-anchor="end">{top * part:g}</text>'
            for part in (0, 0.5, 1)
        ]
        for place, column in enumerate(columns):
            run = runs.get((column.label, file))
            x = left + place * step + (step - bar) / 2
            parts.append(
                f'<text x="{x + bar / 2:.0f}" y="{base + 15}" text-anchor="middle">{escape(column.label[:12])}</text>'
            )
            if run and run.seconds:
                tall = run.seconds / top * height
                tone = "bar" if is_ok(run) else "bar bad"
                told = escape(f"{column.label}: {run.seconds:.1f} s, {run.state.value}")
                parts.append(
                    f'<rect class="{tone}" x="{x:.0f}" y="{base - tall:.1f}" width="{bar}" height="{max(tall, 1):.1f}">'
                    f"<title>{told}</title></rect>"
                )
    total = len(files) * (height + 60)
    label = escape(f"seconds of {len(files)} test files in {len(columns)} pairs")
    opening = f'<svg viewBox="0 0 {width:.0f} {total}" width="{width:.0f}" role="img" aria-label="{label}">'
    return f"{opening}{''.join(parts)}</svg>"


def _trend(history: History) -> str:
    """Return a line per pair of the seconds that its files took, night by night, as SVG."""
    rows = {label: values for label, values in history.seconds.items() if sum(v is not None for v in values) > 1}
    if not rows or len(rows) > 40:
        return ""
    longest = max(value for values in rows.values() for value in values if value is not None) or 1.0
    width, height, left = 560, 34, 150
    step = (width - left - 60) / max(1, len(history.nights) - 1)
    parts = []
    for number, (label, values) in enumerate(rows.items()):
        base = (number + 1) * (height + 12)
        points = [(left + place * step, base - value / longest * height) for place, value in enumerate(values) if value]
        line = " ".join(f"{x:.0f},{y:.1f}" for x, y in points)
        last = next(value for value in reversed(values) if value is not None)
        parts.append(
            f'<text x="0" y="{base}">{escape(label[:22])}</text><polyline class="line" points="{line}"/>'
            f'<text x="{width - 50}" y="{base}">{last:.1f} s</text>'
        )
    total = len(rows) * (height + 12) + 10
    told = escape(f"seconds of {len(rows)} pairs over {len(history.nights)} nights")
    return f'<svg viewBox="0 0 {width} {total}" width="{width}" role="img" aria-label="{told}">{"".join(parts)}</svg>'
