"""What a session tells the person before it: a line per stage as it happens, a table at the end."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from .errors import Blocked
from .outcomes import last_line
from .results import PairResult, Report, Run, State, Verdict
from .running import Progress

MARKS = {
    Verdict.VERIFIED: "ok",
    Verdict.SAMPLE_OK: "ok",
    Verdict.FAILED: "FAILED",
    Verdict.HOLLOW: "HOLLOW",
    Verdict.BLOCKED: "BLOCKED",
    Verdict.NOT_RUN: "-",
}
COLOURS = {"ok": "32", "FAILED": "31", "HOLLOW": "33", "BLOCKED": "35", "-": "2"}
PROGRESS_SECONDS = 10.0


class _Quiet(logging.Filter):
    """Keeps nox from announcing a session whose output is its result."""

    def __init__(self, sessions: Iterable[str]) -> None:
        super().__init__()
        self.lines = re.compile(rf"(Running session|Session) ({'|'.join(sessions)})\b(?!.*(failed|abort))")

    def filter(self, record: logging.LogRecord) -> bool:
        return not self.lines.match(record.getMessage())


def quiet(*sessions: str) -> None:
    """Let these sessions print their result and nothing else: it may go into a file, or into a mail by cron."""
    logging.getLogger("nox").addFilter(_Quiet(sessions))


class Console:
    """Writes for a person; colour only on a terminal, annotations only under GitHub Actions."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        terminal = self.stream.isatty()
        self.colour = terminal and not os.environ.get("NO_COLOR")
        self.told: dict[str, float] = {}

    def line(self, text: str = "") -> None:
        """Write one line at once, so that it is there when something hangs."""
        try:
            print(text, file=self.stream, flush=True)
        except UnicodeEncodeError:
            encoding = self.stream.encoding or "ascii"
            print(text.encode(encoding, "backslashreplace").decode(encoding), file=self.stream, flush=True)
        except (OSError, ValueError):
            # Nobody reads any more; the report is written all the same.
            pass

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[str], None]]:
        """Announce a stage's outcome with its time; the block says what it came to."""
        start = time.monotonic()
        said: list[str] = []
        try:
            yield said.append
        except Blocked as blocked:
            self.line(f"{name:<12} {self._paint('BLOCKED')} {blocked.code}")
            raise
        self.line(f"{name:<12} {'; '.join(said)} [{time.monotonic() - start:.1f} s]")

    def run(self, run: Run) -> None:
        """Tell what a run came to."""
        mark = (
            "ok"
            if run.state is State.COMPLETE and not set(run.outcomes) - {"passed", "skipped", "xfailed", "flaky"}
            else "FAILED"
        )
        mark = {State.HOLLOW: "HOLLOW", State.NOT_RUN: "-"}.get(run.state, mark)
        told = ", ".join(f"{number} {name}" for name, number in run.outcomes.items())
        of = "" if run.expected is None else f"/{run.expected}"
        seconds = "" if run.seconds is None else f" in {run.seconds:.1f} s"
        reason = f" - {run.reason}" if run.reason else ""
        self.line(
            f"{'run':<12} {self._paint(mark)} {run.file}: {run.tests}{of} tests{seconds} ({told or 'none'}){reason}"
        )

    def progress(self, progress: Progress) -> None:
        """Tell from time to time how far a long run is."""
        now = time.monotonic()
        since = self.told.setdefault(progress.file, now)
        if now - since >= PROGRESS_SECONDS:
            self.told[progress.file] = now
            planned = "?" if progress.planned is None else progress.planned
            self.line(f"{'running':<12} {progress.file}: {progress.done} of {planned} cases done")

    def result(self, result: PairResult) -> None:
        """Tell the verdict; on failure what failed, what was expected, and what to do."""
        mark = self._paint(MARKS[result.verdict])
        self.line()
        self.line(f"{result.pair}: {mark} {result.verdict.value} - {result.reason}")
        if result.blocked:
            self.line(f"  what to do: {result.blocked.remedy}")
        for mismatch in result.mismatches:
            self.line(f"  note: {mismatch}")
        for case in result.cases:
            if case.outcome.value not in ("passed", "skipped", "xfailed", "flaky"):
                last = last_line(case.message)
                self.line(f"  {case.outcome.value}: {case.file} {case.cls}.{case.name}: {last[:200]}")

    def annotate(self, result: PairResult) -> None:
        """Tell GitHub Actions what is not good, as an annotation of the job.

        The form is that of "Workflow commands for GitHub Actions": percent, line ends, and in the title colons and
        commas are escaped.
        """
        if os.environ.get("GITHUB_ACTIONS") != "true" or result.is_good:
            return
        words = result.reason + (f" {result.blocked.remedy}" if result.blocked else "")
        for character in "%\r\n":
            words = words.replace(character, f"%{ord(character):02X}")
        level = "warning" if result.verdict in (Verdict.BLOCKED, Verdict.NOT_RUN) else "error"
        self.line(f"::{level} title={result.pair} {result.verdict.value}::{words}")

    def table(self, report: Report) -> None:
        """Write the table of all pairs."""
        rows = [("pair", "torch-npu", "verdict", "tests", "mode")]
        for column in report.columns:
            tests = sum(run.tests for run in column.runs)
            expected = sum(run.expected or 0 for run in column.runs)
            told = f"{tests}/{expected}" if column.runs else "-"
            rows.append(
                (column.pair, column.torch_npu, column.verdict.value, told, column.mode.value if column.mode else "-")
            )
        widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
        self.line()
        for row in rows:
            self.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        self.line()

    def _paint(self, mark: str) -> str:
        return f"\x1b[{COLOURS[mark]}m{mark}\x1b[0m" if self.colour else mark
