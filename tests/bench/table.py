"""The table of figures that README.md and README.zh.md show: this run's beside the one before."""

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


def write(path: Path, rows: Sequence[Row], language: str, run: str) -> None:
    """Put ``rows`` into the table of a README, as the column ``run``; of what was there, the newest column stays.

    A run that measured a part only leaves the other rows without a figure of its own.
    """
    text = path.read_text(encoding="utf-8")
    start, end = MARKS
    before, _, rest = text.partition(f"{start}\n")
    old, mark, after = rest.partition(end)
    if not mark:
        raise SystemExit(f"{path} has no place for the table: {start} … {end}")
    path.write_text(f"{before}{start}\n{render(rows, language, run, old)}{end}{after}", encoding="utf-8")


def render(rows: Sequence[Row], language: str, run: str, old: str) -> str:
    """Return the table in Markdown; ``old`` is the one before it."""
    name, known = _newest(old, run)
    table = {what: [*cells, ABSENT] for what, cells in known.items() if cells[-1] != ABSENT}
    for row in rows:
        what = row.what[language]
        earlier = [known[what][-1] if what in known else ABSENT] if name else []
        table[what] = [row.against[language], row.goal, *earlier, row.told]
    heads = [*HEADS[language], *([name] if name else []), run]
    lines = [heads, ["---"] * len(heads), *([what, *cells] for what, cells in table.items())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# Helpers


def _newest(old: str, run: str) -> tuple[str, dict[str, list[str]]]:
    """Return the newest column of a table that is not ``run``'s: its name, and by row the cells up to its figure."""
    table = [re.split(r"\s*\|\s*", line.strip())[1:-1] for line in old.splitlines() if line.startswith("|")]
    columns = [number for number, head in enumerate(table[0]) if number > 2 and head != run] if table else []
    if not columns:
        return "", {}
    newest = columns[-1]
    return table[0][newest], {cells[0]: [*cells[1:3], cells[newest]] for cells in table[2:] if len(cells) > newest}
