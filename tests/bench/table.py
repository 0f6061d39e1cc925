"""The table of figures that README.md and README.zh.md show: this day's beside the one before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.bench.clock import Spread

MARKS = "<!-- bench -->", "<!-- end of bench -->"
HEADS = {"en": ("what", "against", "goal"), "zh": ("什么", "对照", "目标")}
ABSENT = "–"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, with what it is compared with and what it is to be; ``what`` and ``against`` by language."""

    what: dict[str, str]
    against: dict[str, str]
    goal: str
    figure: str
    reached: bool | None = None

    @property
    def told(self) -> str:
        """The figure, and a mark where it misses its goal."""
        return f"{self.figure} ✗" if self.reached is False else self.figure


def bounded(what: dict[str, str], against: dict[str, str], figure: Spread, most: float, unit: str) -> Row:
    """Return the row of a figure whose median is to be at most ``most``."""
    reached = figure.median <= most
    return Row(what=what, against=against, goal=f"≤ {most} {unit}", figure=f"{figure} {unit}", reached=reached)


def write(path: Path, rows: Sequence[Row], language: str, day: str) -> None:
    """Put ``rows`` into the table of a README, as the column of ``day`` (and machine).

    What the same day measured already and this run didn't stays in it. Beside it stays the newest column of another
    day; a row that neither has goes.
    """
    text = path.read_text(encoding="utf-8")
    start, end = MARKS
    before, _, rest = text.partition(f"{start}\n")
    old, mark, after = rest.partition(end)
    if not mark:
        raise SystemExit(f"{path} has no place for the table: {start} … {end}")
    path.write_text(f"{before}{start}\n{render(rows, language, day, old)}{end}{after}", encoding="utf-8")


def render(rows: Sequence[Row], language: str, day: str, old: str) -> str:
    """Return the table in Markdown; ``old`` is the one before it."""
    earlier, known = _read(old)
    days = [*[name for name in earlier if name != day][-1:], day]
    _, against, goal = HEADS[language]
    for row in rows:
        cells = known.setdefault(row.what[language], {})
        cells |= {against: row.against[language], goal: row.goal, day: row.told}
    heads = [*HEADS[language], *days]
    lines = [heads, ["---"] * len(heads)]
    for what, cells in known.items():
        if any(cells.get(name, ABSENT) != ABSENT for name in days):
            lines.append([what, *(cells.get(head, ABSENT) for head in heads[1:])])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# Helpers


def _read(old: str) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Return the days of a table, and its cells by row and head."""
    table = [re.split(r"\s*\|\s*", line.strip())[1:-1] for line in old.splitlines() if line.startswith("|")]
    if not table:
        return [], {}
    heads = table[0]
    return heads[3:], {cells[0]: dict(zip(heads[1:], cells[1:], strict=False)) for cells in table[2:]}
