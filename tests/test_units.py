"""Nights as cron and systemd start them: with next to no environment, and a mail only if there is something to read."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts import matrix
from tests import stubs, user
from tests.conftest import ROOT

SCHEDULE = ROOT / "scripts" / "schedule"
SERVICE, TIMER = "torch-npu-matrix@.service", "torch-npu-matrix@.timer"
# As CANN's: it is needed to load torch_npu, and only its set_env.sh leads there.
NEEDS_CANN = f"import os\nassert os.environ['ASCEND_OPP_PATH'] == '/opp'\n{stubs.TORCH_NPU}"


class Machine:
    """A server with CANN, and a checkout on it of which cron knows no more than the path."""

    def __init__(self, folder: Path) -> None:
        self.checkout = user.checkout(folder / "checkout")
        self.home = folder / "home"
        toolkit = folder / "Ascend" / "ascend-toolkit"
        toolkit.mkdir(parents=True)
        (toolkit / "version.cfg").write_text("version=8.5.0\n")
        set_env = toolkit / "set_env.sh"
        set_env.write_text(f"export ASCEND_HOME_PATH={toolkit} ASCEND_OPP_PATH=/opp\n")
        batch = stubs.write_batch(
            self.checkout,
            **user.one_file(user.OK),
            cann={"set-env": str(set_env)},
            pairs=[stubs.pair_row(cann="8.5.0")],
        )
        links = folder / "links"
        stubs.wheels_of(links, matrix.load(batch))
        stubs.torch_npu_wheel(links, "2.10.0", "2.10.0+cpu", source=NEEDS_CANN)
        settings = self.home / ".config" / "uv" / "uv.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(f"offline = true\nno-index = true\nextra-index-url = []\nfind-links = ['{links}']\n")
        self.path = "/usr/bin:/bin"
        if not shutil.which(f"python{stubs.PYTHON}", path=self.path):
            # As a crontab names it where Python lies elsewhere.
            self.path += f":{Path(sys.base_prefix, 'bin')}"

    def run(self, command: list[str], environment: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
        bare = [f"{name}={value}" for name, value in {"HOME": str(self.home), "PATH": self.path, **environment}.items()]
        return subprocess.run(["env", "-i", *bare, *command], cwd=cwd, capture_output=True, text=True, timeout=120)

    def cron(self) -> subprocess.CompletedProcess[str]:
        """Run the crontab's command as cron does; what it prints on either stream would be mailed."""
        lines = (SCHEDULE / "crontab").read_text().replace("/path/to/checkout", str(self.checkout)).splitlines()
        lines = [line for line in lines if not line.startswith("#")]
        variables = dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))
        (job,) = (line for line in lines if not re.match(r"\w+=", line))
        assert "%" not in job  # cron would take it for a line end
        environment = {"SHELL": "/bin/sh", "LOGNAME": "user", **variables}
        return self.run(["/bin/sh", "-c", job.split(maxsplit=5)[5]], environment, self.home)

    def systemd(self) -> subprocess.CompletedProcess[str]:
        """Run the service's command as systemd does."""
        service = unit(SERVICE)["Service"]
        expanded = {name: value.replace("%f", str(self.checkout)) for name, value in service.items()}
        environment = dict(entry.split("=", 1) for entry in shlex.split(expanded["Environment"]))
        return self.run(shlex.split(expanded["ExecStart"]), environment, Path(expanded["WorkingDirectory"]))

    def break_a_case(self) -> None:
        file = self.checkout / "trees" / "v2.10.0" / "test" / "a_test.py"
        file.write_text(user.OK.replace("def test_b(self): pass", "def test_b(self): self.fail('b')"))

    def misspell_a_key(self) -> None:
        batch = self.checkout / "matrix.toml"
        batch.write_text(batch.read_text().replace("limit", "limti"))


def unit(name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(SCHEDULE / name)
    return parser


def test_nights_of_cron_and_systemd_tell_what_is_news_and_nothing_else(tmp_path: Path) -> None:
    machine = Machine(tmp_path)

    first = machine.cron()
    assert (first.returncode, first.stderr) == (0, "")
    assert "the first night: 1 of 1 pairs are good" in first.stdout
    (column,) = json.loads((machine.checkout / "reports" / "stubs" / "latest" / "report.json").read_text())["columns"]
    assert (column["verdict"], column["mode"]) == ("verified", "npu")

    second = machine.cron()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")

    by_systemd = machine.systemd()
    assert (by_systemd.returncode, by_systemd.stdout) == (0, "")

    machine.break_a_case()
    worse = machine.cron()
    assert worse.returncode == 1
    assert worse.stderr == ""
    assert worse.stdout.startswith("WORSE than before\n")
    assert "regressed: test/a_test.py T.test_b; passed → failed" in worse.stdout
    assert "nox >" not in worse.stdout
    assert len(list((machine.checkout / "reports" / "stubs" / "archive").iterdir())) == 4

    machine.misspell_a_key()
    unable = machine.cron()
    assert unable.returncode == 2
    assert "limti: unknown key; did you mean 'limit'?" in unable.stdout


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze, which comes with systemd")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    nox = tmp_path / "checkout" / ".venv" / "bin" / "nox"
    nox.parent.mkdir(parents=True)
    nox.write_text("#!/bin/sh\n")
    nox.chmod(0o755)
    escaped = subprocess.check_output(["systemd-escape", "--path", str(tmp_path / "checkout")], text=True).strip()
    units = []
    for name in (SERVICE, TIMER):
        shutil.copy2(SCHEDULE / name, tmp_path)
        units.append(tmp_path / name.replace("@", f"@{escaped}"))

    done = subprocess.run(["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True)

    # What systemd does not know it ignores with a warning, and ends with 0.
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_and_cron_begin_at_the_same_time() -> None:
    timer = unit(TIMER)

    calendar = re.fullmatch(r"\*-\*-\* (\d+):(\d+):00", timer["Timer"]["OnCalendar"])

    assert calendar
    hour, minute = map(int, calendar.groups())
    assert f"\n{minute} {hour} * * * /" in (SCHEDULE / "crontab").read_text()
    assert timer["Install"]["WantedBy"] == "timers.target"
