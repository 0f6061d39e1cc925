"""Shows a comparison: as text for a terminal or a mail, Markdown, HTML or JSON. Nothing changed is an empty text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from . import archive, document, page, results
from .commandline import MISUSE, Parser
from .compare import WORSE, CaseChange, Category, ColumnChange, Comparison, compare, compare_pairs
from .errors import Blocked
from .matrix import Batch
from .results import PairResult, Verdict
from .wording import LANGUAGES, say_in

FORMATS = ("text", "md", "html", "json")
# A mail is a page at most: so many lines of one kind, per pair.
LINES = 12
EXIT_SAME, EXIT_WORSE, EXIT_IMPOSSIBLE = 0, 1, MISUSE


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What stands behind ``--`` of the diff session."""

    old: str
    new: str
    format: str
    language: str
    fail_on: list[str]


def parse(arguments: Sequence[str]) -> Options:
    """Read the arguments; ends the process with status 2 and a line of help if they are wrong."""
    parser = Parser("diff", f"usage: OLD NEW [--format {'|'.join(FORMATS)}] [--fail-on …]")
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--format", choices=FORMATS, default="text")
    parser.add_argument("--language", choices=LANGUAGES, default="en")
    parser.add_argument("--fail-on", default="worse", dest="fail_on")
    found = parser.parse_args(list(arguments))
    fail_on = [name for name in found.fail_on.split(",") if name]
    known = {"worse", "news", "nothing", *(entry.value for entry in Category)}
    if wrong := [name for name in fail_on if name not in known]:
        parser.error(f"--fail-on {wrong[0]}: known are {', '.join(sorted(known))}")
    return Options(old=found.old, new=found.new, format=found.format, language=found.language, fail_on=fail_on)


def diff(reports: Path, batch: Batch, base: Path, options: Options) -> tuple[str, int]:
    """Return the comparison as a text, and the exit status; raises Blocked if it can't be made."""
    pairs = {column.pair: column for column in results.load_all(reports, batch)}
    if options.old in pairs and options.new in pairs and not (base / options.old).exists():
        comparison = compare_pairs(_tried(pairs[options.old]), _tried(pairs[options.new]))
    else:
        old_name, old = archive.find(reports, batch, options.old, base)
        new_name, new = archive.find(reports, batch, options.new, base)
        comparison = compare(old, new, old_name=old_name, new_name=new_name)
        if not any(_comparable(column) for column in comparison.columns):
            raise Blocked(
                "no-common-pair", f"{old_name} and {new_name} have no pair that both tried", "Name two other reports."
            )
    return render(comparison, options.format, options.language), exit_status(comparison, options.fail_on)


def exit_status(comparison: Comparison, fail_on: Sequence[str]) -> int:
    """Return 1 if the comparison has what ``fail_on`` names, else 0."""
    worse = "worse" in fail_on and comparison.is_worse
    news = "news" in fail_on and not comparison.is_empty
    named = comparison.has(entry for entry in Category if entry.value in fail_on)
    return EXIT_WORSE if worse or news or named else EXIT_SAME


def render(comparison: Comparison, form: str, language: str = "en", *, lines: int = LINES) -> str:
    """Return a comparison in one of FORMATS."""
    if form == "json":
        return results.encode(comparison).decode()
    say = say_in(language)
    values: dict[str, Any] = {
        "comparison": comparison,
        "columns": [column for column in comparison.columns if column.is_news],
        "summary": say(
            "diff.counts",
            total=comparison.total,
            counts=", ".join(f"{number} {name}" for name, number in comparison.counts.items()),
        ),
        "headline": _headline(say),
        "shown": lambda column: [change for change in _ordered(column) if change.changed],
        "line": _line(say),
        "limit": lines,
        "worse": WORSE,
    }
    if form == "html":
        return page.fill("diff.html.jinja", language, **values)
    return document.render(f"diff.{'txt' if form == 'text' else form}.jinja", language, **values)


# Helpers


def _tried(column: PairResult) -> PairResult:
    if column.verdict is Verdict.NOT_RUN and not column.cases:
        raise Blocked("no-result", f"pair {column.pair}: {column.reason}", f"Run nox -s verify-{column.pair} first.")
    return column


def _comparable(column: ColumnChange) -> bool:
    return any(change.category is not Category.NOT_COMPARABLE for change in column.cases) or (
        Verdict.NOT_RUN not in (column.old_verdict, column.verdict)
    )


def _ordered(column: ColumnChange) -> list[CaseChange]:
    order = list(Category)
    return sorted(column.cases, key=lambda change: (order.index(change.category), change.file, change.cls, change.name))


def _headline(say: Callable[..., str]) -> Callable[[ColumnChange], str]:
    def headline(column: ColumnChange) -> str:
        label = column.label if column.label == column.old_label else f"{column.old_label} → {column.label}"
        old, new = (say(f"verdict.{verdict.value}") for verdict in (column.old_verdict, column.verdict))
        if column.old_verdict is column.verdict:
            return say("diff.same-verdict", label=label, verdict=new)
        return say("diff.verdict-change", label=label, old=old, new=new, reason=column.reason[:300])

    return headline


def _line(say: Callable[..., str]) -> Callable[[CaseChange], str]:
    def line(change: CaseChange) -> str:
        parts = [f"{change.file} {change.cls}.{change.name}"]
        if change.old and change.new and change.old is not change.new:
            parts.append(f"{change.old.value} → {change.new.value}")
        if change.moved_from:
            parts.append(say("diff.moved", place=change.moved_from))
        if change.message_changed:
            parts.append(say("diff.message-changed"))
        if change.message:
            parts.append(document.telling(change.message))
        return "; ".join(parts)

    return line
