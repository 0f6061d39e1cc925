"""What the archived nights show together: strips of verdicts and cases, flips, first failures, slow cases."""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterable, Sequence

import msgspec

from . import document
from .archive import Night
from .compare import SLOWER_FACTOR, SLOWER_SECONDS, causes
from .errors import Blocked
from .outcomes import BAD
from .results import Case, Outcome, PairResult, Report, Verdict
from .wording import say_in

NIGHTS = 14
LISTED = 10
# Beyond this, reading the nights would hold up every report for what few look at.
MAX_BYTES = 200 << 20
VERDICT_MARKS = {
    Verdict.VERIFIED: "✓",
    Verdict.SAMPLE_OK: "≈",
    Verdict.FAILED: "✗",
    Verdict.HOLLOW: "○",
    Verdict.BLOCKED: "⊘",
    Verdict.NOT_RUN: "–",
}
ABSENT = "·"


class CaseHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A case over the nights: a mark for each, oldest first, and how often it changed between good and bad."""

    pair: str
    case: str
    strip: str
    flips: int
    first_failed: str = ""
    why: list[str] = []


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """A case's seconds, now and over the earlier nights (their median; None if there are too few to say)."""

    pair: str
    case: str
    now: float
    before: float | None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Some nights together. ``seconds`` is by pair: of each night, all its test files together, or None."""

    nights: list[str]
    verdicts: dict[str, str]
    cases: list[CaseHistory]
    slowest: list[Timing]
    slowing: list[Timing]
    seconds: dict[str, list[float | None]]


def parse(arguments: Sequence[str]) -> int:
    """Return the number of nights asked for; ends the process with status 2 if it isn't one."""
    if not arguments:
        return NIGHTS
    if len(arguments) > 1 or not arguments[0].isdecimal() or not 0 < int(arguments[0]) < 10_000:
        print(f"nox -s history -- {' '.join(arguments)}: expected a number of nights", file=sys.stderr)
        raise SystemExit(2)
    return int(arguments[0])


def gather(nights: Sequence[Night], *, latest: Report | None = None, last: int = NIGHTS) -> History | None:
    """Return the history of the ``last`` nights that can be read, and of ``latest`` after them; None without any."""
    reports: list[tuple[str, Report]] = []
    size = 0
    for night in reversed(nights[-last:]):
        try:
            size += (night.path / "report.json").stat().st_size
            if size > MAX_BYTES:
                break
            reports.insert(0, (night.name, night.report()))
        except (Blocked, OSError):
            continue
    if latest is not None and reports:
        reports.append(("latest", latest))
    return tell(reports) if reports else None


def tell(reports: Sequence[tuple[str, Report]]) -> History:
    """Return the history of named reports, oldest first."""
    labels = list(dict.fromkeys(column.label for _, report in reports for column in report.columns))
    columns = {label: [_column(report, label) for _, report in reports] for label in labels}
    names = [name for name, _ in reports]
    cases: list[CaseHistory] = []
    timings: list[Timing] = []
    for label, row in columns.items():
        found, timed = _cases(label, row, names)
        cases += found
        timings += timed
    cases.sort(key=lambda entry: (-entry.flips, entry.pair, entry.case))
    slowest = sorted(timings, key=lambda timing: (-timing.now, timing.pair, timing.case))
    return History(
        nights=names,
        verdicts={
            label: "".join(VERDICT_MARKS[column.verdict] if column else ABSENT for column in row)
            for label, row in columns.items()
        },
        cases=cases,
        slowest=slowest[:LISTED],
        slowing=[timing for timing in slowest if _is_slowing(timing)][:LISTED],
        seconds={label: [_seconds(column) for column in row] for label, row in columns.items()},
    )


def text(history: History | None, language: str = "en") -> str:
    """Return a history as a text for a terminal."""
    say = say_in(language)
    if history is None:
        return f"{say('history.none')}\n"
    return document.render("history.txt.jinja", language, history=history, listed=LISTED)


# Helpers


def _column(report: Report, label: str) -> PairResult | None:
    return next((column for column in report.columns if column.label == label), None)


def _mark(case: Case | None) -> str:
    if case is None or case.outcome is Outcome.NOT_RUN:
        return ABSENT
    if case.outcome in BAD:
        return "✗"
    return {Outcome.SKIPPED: "⊘", Outcome.FLAKY: "≈"}.get(case.outcome, "✓")


def _cases(
    label: str, row: Sequence[PairResult | None], names: Sequence[str]
) -> tuple[list[CaseHistory], list[Timing]]:
    by_night = [{case.key: case for case in column.cases} if column else {} for column in row]
    found: list[CaseHistory] = []
    timings: list[Timing] = []
    for key in sorted({key for cases in by_night for key in cases}):
        name = f"{key[0]} {key[1]}.{key[2]}"
        strip = "".join(_mark(cases.get(key)) for cases in by_night)
        said = strip.replace(ABSENT, "")
        flips = sum(a != b for a, b in itertools.pairwise(said))
        if flips or said[-1:] in ("✗", "≈"):
            found.append(_failure(CaseHistory(pair=label, case=name, strip=strip, flips=flips), row, names))
        seconds = [cases[key].seconds for cases in by_night if key in cases]
        known = [value for value in seconds if value is not None]
        if known and by_night[-1].get(key):
            before = statistics.median(known[:-1]) if len(known) > 3 else None
            timings.append(Timing(pair=label, case=name, now=known[-1], before=before))
    return found, timings


def _failure(history: CaseHistory, row: Sequence[PairResult | None], names: Sequence[str]) -> CaseHistory:
    """Add when the present failure began, and what changed with it."""
    first = history.strip.find("✗", history.strip.rfind("✓") + 1)
    if first < 0:
        return history
    before = next((row[place] for place in range(first - 1, -1, -1) if history.strip[place] != ABSENT), None)
    now = row[first]
    why = causes(before, now) if before is not None and now is not None else []
    return msgspec.structs.replace(history, first_failed=names[first], why=why)


def _is_slowing(timing: Timing) -> bool:
    return (
        timing.before is not None
        and timing.now > timing.before * SLOWER_FACTOR
        and timing.now - timing.before > SLOWER_SECONDS
    )


def _seconds(column: PairResult | None) -> float | None:
    known = _known(run.seconds for run in column.runs) if column else []
    return round(sum(known), 3) if known else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
