"""The benchmark's table: what is compared is told, the day before stays beside, and both READMEs get it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import clock, table
from tests.bench.table import Row
from tests.conftest import ROOT
from tests.running_support import eventually

START, END = table.MARKS


def row(name: str, figure: str, *, reached: bool | None = True) -> Row:
    both = {"en": name, "zh": f"{name} (zh)"}
    return Row(what=both, against={"en": "by hand", "zh": "手工"}, goal="≤ 1 ×", figure=figure, reached=reached)


def written(path: Path, run: str, *rows: Row) -> list[list[str]]:
    """Write a table and return its cells."""
    table.write(path, rows, "en", run)
    text = path.read_text()
    assert text.startswith(f"# Above\n{START}\n")
    assert text.endswith(f"{END}\nbelow\n")
    return [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("|")]


@pytest.fixture
def readme(tmp_path: Path) -> Path:
    path = tmp_path / "README.md"
    path.write_text(f"# Above\n{START}\n{END}\nbelow\n")
    return path


def test_a_first_run_has_one_column_of_figures(readme: Path) -> None:
    cells = written(readme, "Monday", row("warm", "0.7 ×"), row("cold", "1.3 ×", reached=False))
    assert cells[0] == ["what", "against", "goal", "Monday"]
    assert cells[2:] == [["warm", "by hand", "≤ 1 ×", "0.7 ×"], ["cold", "by hand", "≤ 1 ×", "1.3 × ✗"]]


def test_the_day_before_stays_beside_and_older_ones_go(readme: Path) -> None:
    written(readme, "Saturday", row("warm", "0.9 ×"))
    written(readme, "Sunday", row("warm", "0.8 ×"), row("gone", "2 ×"))
    cells = written(readme, "Monday", row("new", "1 ×"), row("warm", "0.7 ×"))
    assert cells[0] == ["what", "against", "goal", "Sunday", "Monday"]
    # What was not measured this time keeps its place.
    assert [line[0:1] + line[3:] for line in cells[2:]] == [
        ["warm", "0.8 ×", "0.7 ×"],
        ["gone", "2 ×", "–"],
        ["new", "–", "1 ×"],
    ]


def test_a_second_run_of_the_same_day_and_machine_adds_to_the_first(readme: Path) -> None:
    written(readme, "Sunday", row("warm", "0.8 ×"))
    written(readme, "Monday", row("warm", "0.7 ×"), row("cold", "1.3 ×"))
    cells = written(readme, "Monday", row("warm", "0.6 ×"), row("list", "0.1 s"))
    assert cells[0][3:] == ["Sunday", "Monday"]
    assert [line[0:1] + line[3:] for line in cells[2:]] == [
        ["warm", "0.8 ×", "0.6 ×"],
        ["cold", "–", "1.3 ×"],
        ["list", "–", "0.1 s"],
    ]


def test_what_neither_of_both_days_measured_goes(readme: Path) -> None:
    written(readme, "Saturday", row("gone", "2 ×"), row("warm", "0.9 ×"))
    written(readme, "Sunday", row("warm", "0.8 ×"))
    cells = written(readme, "Monday", row("warm", "0.7 ×"))
    assert cells[2:] == [["warm", "by hand", "≤ 1 ×", "0.8 ×", "0.7 ×"]]


def test_a_readme_without_a_place_for_it_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("# Above\n")
    with pytest.raises(SystemExit, match="has no place for the table"):
        table.write(path, [], "en", "Monday")
    assert path.read_text() == "# Above\n"


def test_ratios_are_those_of_figures_that_were_taken_together() -> None:
    assert clock.ratios([(1.0, 2.0), (30.0, 10.0), (1.0, 1.0)]) == clock.Spread(1.0, 0.5, 3.0)
    assert str(clock.differences([(1.0, 0.5)])) == "0.50 (0.50 – 0.50)"


def test_two_commands_are_taken_in_turn() -> None:
    order: list[str] = []

    def take(name: str) -> float:
        order.append(name)
        return float(len(order))

    assert clock.in_turn(lambda: take("a"), lambda: take("b"), 3) == [(1, 2), (4, 3), (5, 6)]
    assert "".join(order) == "abbaab"


def test_a_command_is_timed_from_outside_and_one_that_fails_is_no_figure(tmp_path: Path) -> None:
    code = "import time; held = bytearray(400_000_000); held[::4096] = held[::4096]; time.sleep(0.2); print('done')"
    used = clock.good(clock.run([sys.executable, "-c", code], cwd=tmp_path, env={}))
    assert 0.2 <= used.seconds < 20
    assert (used.output, used.status) == ("done\n", 0)
    assert 400 < used.megabytes < 480
    with pytest.raises(RuntimeError, match="ended with 3:\nwhy"):
        clock.good(clock.run(["sh", "-c", "echo why; exit 3"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}))


TIMED = """\
import signal
import subprocess
import sys
from pathlib import Path
from scripts import interrupts
from tests.bench import clock
interrupts.install()
code = "sleep 300 & echo $! > started.new; mv started.new started; wait"
clock.run(["sh", "-c", code], cwd=Path(sys.argv[1]), env={"PATH": "/usr/bin:/bin"})
"""


def test_an_interruption_ends_what_is_being_timed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    with subprocess.Popen([sys.executable, "-c", TIMED, str(tmp_path)], cwd=ROOT) as process:
        eventually(started.exists)
        process.send_signal(signal.SIGTERM)
    eventually(lambda: not Path("/proc", started.read_text().strip()).exists())
