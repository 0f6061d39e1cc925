"""The time of sessions: against the same work by hand, by tox, and against a nox session that does nothing."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scripts import matrix, outcomes, patching, preflight, results, running, upstream
from scripts.environment import STAMP
from scripts.matrix import Batch, Pair
from scripts.scope import RunScope
from tests import stubs
from tests.bench.clock import Usage, differences, good, in_turn, ratios, run, spread
from tests.bench.table import ABSENT, Row, bounded
from tests.conftest import ROOT
from tests.user import checkout

# Timing-sensitive cases fail once in a while, if ever: a few runs say nothing of them.
TIMING_ROUNDS = 20
# Test files that are asleep for so many seconds, ten times the sample's: what is awake needs few cores then.
ASLEEP = {"test/agent_test.py": 2.0, "test/api_test.py": 0.5, "test/local_timer_test.py": 21.0}
TIMED = """\
import time
with open({starts!r}, "a") as stream:
    print(time.time(), file=stream)
import unittest
class T(unittest.TestCase):
    def test_a(self):
        time.sleep({seconds})
"""
EMPTY = """\
import nox
@nox.session(venv_backend="none")
def empty(session):
    pass
"""
# A machine with more cores than this one, for tests that sleep.
MANY_CORES = """\
import os
os.cpu_count = lambda: 64
os.sched_getaffinity = lambda pid: set(range(64))
"""


class Hand:
    """Somebody who runs the test files of a pair one after another, as a document of today says they were run."""

    def __init__(self, folder: Path, batch: Batch, pair: Pair, sources: Sequence[str], venv: Path) -> None:
        tree = upstream.fetch(batch, pair, sources, ROOT, RunScope())
        self.source = tree.source
        self.batch = batch
        self.pair = pair
        self.venv = venv
        self.folder = folder / pair.name
        patching.prepare(batch, pair, tree).write(self.folder)
        self.failures = 0

    def run(self) -> float:
        """Run all files; returns the seconds that took."""
        env = preflight.test_environment(os.environ, None)
        return sum(self._run(folder, line, env) for folder, line in self.commands)

    @property
    def commands(self) -> list[tuple[Path, str]]:
        """In which folder which command runs a test file."""
        commands = [running.command(file.path) for file in self.batch.matrix.test_file]
        return [(self.folder / folder, line) for folder, line in commands]

    def _run(self, folder: Path, line: str, env: dict[str, str]) -> float:
        usage = run([self.venv / "bin" / "python", *line.split()[1:]], cwd=folder, env=env)
        self.failures += usage.status != 0
        return usage.seconds


class Checkout:
    """This checkout in a user's hands: nox alone in a venv, and reports of its own."""

    def __init__(self, folder: Path) -> None:
        self.nox = checkout(folder / "user") / ".venv" / "bin" / "nox"
        self.reports = folder / "reports"
        # As in a shell: the session that runs the benchmark has settings and a venv of its own.
        mine = ("NOX", "PYTHON", "VIRTUAL_ENV")
        path = [folder for folder in os.environ["PATH"].split(":") if not folder.startswith(sys.prefix)]
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(mine)} | {
            "PATH": ":".join(path),
            "REPORTS": str(self.reports),
            "PIP_QUIET": "1",
        }

    def run(self, *arguments: str | Path) -> Usage:
        """Run nox in it."""
        return run([self.nox, *arguments], cwd=ROOT, env=self.env)


class Tool:
    """Somebody who verifies pairs with this project."""

    def __init__(self, folder: Path, batch: Batch, sources: Sequence[str]) -> None:
        self.checkout = Checkout(folder)
        self.latest = results.folder_of(self.checkout.reports, batch)
        self.sources = [part for source in sources for part in ("--upstream", source)]
        self.failures = 0

    def run(self, pairs: Sequence[Pair], *options: str) -> float:
        """Verify pairs and return the seconds that took."""
        sessions = [f"verify-{pair.name}" for pair in pairs]
        usage = self.checkout.run("-s", *sessions, *options, "--", *self.sources)
        found = [results.load(self.latest / pair.name / "result.json") for pair in pairs]
        failed = {(result.pair, run.file) for result in found for run in result.runs if outcomes.has_failed(run)}
        self.failures += len(failed)
        if not failed:
            good(usage)
        return usage.seconds


def of_pair(tool: Tool, hand: Hand) -> Iterator[Row]:
    """Yield what a warm verify of one pair takes, and how many of its runs have failed cases."""
    tool.run([hand.pair])
    hand.run()
    tool.failures = hand.failures = 0
    pairs = in_turn(lambda: tool.run([hand.pair]), hand.run, TIMING_ROUNDS)
    sample = hand.source == upstream.SAMPLE
    trees = {"en": "the sample", "zh": "自带样例"} if sample else {"en": "upstream's tree", "zh": "上游测试树"}
    yield bounded(
        {"en": f"warm verify of {hand.pair.name}, {trees['en']}", "zh": f"{hand.pair.name} 热运行，{trees['zh']}"},
        {"en": "the same files by hand, in the same venv", "zh": "同一 venv 中逐个手工运行"},
        ratios(pairs),
        0.75,
        "×",
    )
    yield _failures(hand.pair.name, TIMING_ROUNDS * len(hand.commands), tool, [hand])


def of_all(folder: Path, tool: Tool, hands: Sequence[Hand], rounds: int) -> Iterator[Row]:
    """Yield what all pairs take side by side, against a loop by hand and against tox."""
    pairs = [hand.pair for hand in hands]

    def ours() -> float:
        return tool.run(pairs, "-j", "auto")

    # Builds the venvs that the others use, or copy.
    ours()
    tox = _tox(folder, hands)

    def by_hand() -> float:
        return sum(hand.run() for hand in hands)

    by_hand()
    tox()
    tool.failures = 0
    for hand in hands:
        hand.failures = 0
    both = {"en": f"all {len(pairs)} pairs, -j auto", "zh": f"全部 {len(pairs)} 个版本对，-j auto"}
    against = {"en": "by hand, one after another", "zh": "逐个手工运行"}
    yield bounded(both, against, ratios(in_turn(ours, by_hand, rounds)), 0.6, "×")
    yield _failures("-j auto", rounds * sum(len(hand.commands) for hand in hands), tool, hands)
    yield Row(
        what={language: f"{words}, tox" for language, words in both.items()},
        against={"en": "tox -p auto with tox-uv", "zh": "tox -p auto 与 tox-uv"},
        goal=ABSENT,
        figure=f"{ratios(in_turn(ours, tox, rounds))} ×",
    )


def of_itself(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield the time of all that is not torch or tests, with stub wheels and test files that only sleep."""
    quick = Stubs(folder / "quick", dict.fromkeys(ASLEEP, 0.0))
    quick.verify()
    quick.empty("-s", "empty")
    yield bounded(
        {"en": "the tool's own time, three files started", "zh": "工具自身用时（启动三个文件）"},
        {"en": "over a nox session that does nothing", "zh": "比空 nox 会话多"},
        differences(in_turn(lambda: quick.verify().seconds, lambda: quick.empty("-s", "empty").seconds, rounds)),
        1.0,
        "s",
    )
    yield bounded(
        {"en": "until the first test file starts, warm", "zh": "热运行至首个测试文件启动"},
        {"en": "from the command on", "zh": "自命令起"},
        spread([quick.first_start() for _ in range(rounds)]),
        1.5,
        "s",
    )
    yield bounded(
        {"en": "the list of sessions, nox -l", "zh": "列出会话，nox -l"},
        {"en": "over that of an empty noxfile", "zh": "比空 noxfile 多"},
        differences(in_turn(lambda: quick.list().seconds, lambda: quick.empty("-l").seconds, rounds)),
        0.3,
        "s",
    )
    many = Stubs(folder / "many", ASLEEP, pairs=8, cores=True)
    many.verify("-t", "verify", "-j", "8")
    side_by_side = in_turn(
        lambda: many.verify("-t", "verify", "-j", "8").seconds, lambda: many.verify("-s", "verify-2.0.0").seconds, 2
    )
    yield bounded(
        {
            "en": "8 pairs where cores are many (said to be 64), tests that sleep",
            "zh": "8 个版本对，核数充足（假定 64），休眠的测试",
        },
        {"en": "one of them alone", "zh": "单独运行其中一对"},
        ratios(side_by_side),
        1.2,
        "×",
    )


class Stubs:
    """A user with stub wheels, as many pairs as wanted, and test files that sleep."""

    def __init__(self, folder: Path, asleep: dict[str, float], *, pairs: int = 1, cores: bool = False) -> None:
        self.starts = folder / "starts"
        files = {path: TIMED.format(starts=str(self.starts), seconds=seconds) for path, seconds in asleep.items()}
        batch = stubs.write_batch(
            folder / "batch", pairs=[stubs.pair_row(f"2.{number}.0") for number in range(pairs)], files=files
        )
        _be_timing_sensitive(batch)
        stubs.wheels_of(folder / "links", matrix.load(batch))
        self.home = checkout(folder / "checkout")
        (folder / "many").mkdir()
        (folder / "many" / "sitecustomize.py").write_text(MANY_CORES)
        self.env = stubs.offline(folder / "links") | {
            "MATRIX": str(batch),
            "REPORTS": str(folder / "reports"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            **({"PYTHONPATH": str(folder / "many"), "TNM_SLOTS": str(folder / "slots")} if cores else {}),
        }
        (folder / "slots").mkdir()
        (folder / "empty").mkdir()
        head = (ROOT / "noxfile.py").read_text().partition('"""')[0]
        (folder / "empty" / "noxfile.py").write_text(head + EMPTY)
        self.nothing = folder / "empty" / "noxfile.py"

    def verify(self, *which: str) -> Usage:
        """Verify all pairs, or those named."""
        return good(self._nox(*(which or ("-t", "verify"))))

    def empty(self, *arguments: str) -> Usage:
        """Run nox with a noxfile whose one session, ``empty``, does nothing."""
        return good(self._nox("-f", str(self.nothing), "--envdir", str(self.home / ".nox"), *arguments))

    def list(self) -> Usage:
        """List the sessions of this project."""
        return good(self._nox("-l"))

    def first_start(self) -> float:
        """Return how long after the command the first test file started, in seconds."""
        self.starts.unlink(missing_ok=True)
        start = time.time()
        self.verify()
        return min(map(float, self.starts.read_text().split())) - start

    def _nox(self, *arguments: str) -> Usage:
        return run([self.home / ".venv" / "bin" / "nox", *arguments], cwd=self.home, env=self.env)


# Helpers


def _failures(what: str, runs: int, tool: Tool, hands: Sequence[Hand]) -> Row:
    by_hand = sum(hand.failures for hand in hands)
    return Row(
        what={"en": f"failed runs of a test file, {what}", "zh": f"测试文件失败的运行次数，{what}"},
        against={"en": "by hand", "zh": "手工运行"},
        goal=f"≤ {by_hand}/{runs}",
        figure=f"{tool.failures}/{runs}",
        reached=tool.failures <= by_hand,
    )


def _be_timing_sensitive(batch: Path) -> None:
    path = '"test/local_timer_test.py",'
    batch.write_text(batch.read_text().replace(path, f'{path} "timing-sensitive" = true,'))


def _tox(folder: Path, hands: Sequence[Hand]) -> Callable[[], float]:
    """Return what runs the same files with tox, in venvs of its own with the same packages, and gives its seconds."""
    folder = folder / "tox"
    folder.mkdir()
    names = [f"v{hand.pair.name.replace('.', '')}" for hand in hands]
    text = f"[tox]\nno_package = true\nenv_list = {', '.join(names)}\n"
    for name, hand in zip(names, hands, strict=True):
        stamp = json.loads((hand.venv / STAMP).read_text())
        packages = [f"{package['name']}=={package['version']}" for package in stamp["packages"]]
        overrides = folder / f"{name}.txt"
        overrides.write_text("".join(f"{package}\n" for package in packages if package.startswith("torch==")))
        commands = [f"sh -c 'cd {place} && {line}'" for place, line in hand.commands]
        text += f"\n[testenv:{name}]\nbase_python = python{hand.pair.python}\nallowlist_externals = sh\npass_env = *\n"
        text += f"set_env =\n  UV_OVERRIDE={overrides}\n  TORCH_DEVICE_BACKEND_AUTOLOAD=0\n"
        text += "".join(f"{key} =\n{_indented(lines)}" for key, lines in (("deps", packages), ("commands", commands)))
    (folder / "tox.ini").write_text(text)
    env = preflight.uv_environment(os.environ)[0]
    argv = [sys.executable, "-m", "tox", "run-parallel", "-p", "auto", "-c", str(folder / "tox.ini")]
    return lambda: good(run(argv, cwd=folder, env=env)).seconds


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"  {line}\n" for line in lines)
