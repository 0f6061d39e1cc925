"""What a verify costs, counted and not timed: processes started, imports of torch, bytes fetched, files written."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stubs
from tests.conftest import ROOT
from tests.test_upstream import Repository
from tests.user import User, count_packs

OTHER = "test/other/other_test.py"
API = {
    "name": "torch.testing._internal.common_utils.run_tests",
    "kind": "function",
    "does": {"en": "Runs tests.", "zh": "运行测试。"},
}
REACHES_IT = """\
import unittest
from unittest import mock
from torch.testing._internal.common_utils import run_tests
class T(unittest.TestCase):
    def test_a(self):
        with mock.patch("unittest.main"):
            run_tests()
"""
# Writes down what the process of the session starts: by itself, and under wardens.
AUDIT = """\
import json, os, sys
def note(event, arguments):
    if event in ("subprocess.Popen", "matrix.process"):
        argv = arguments[0] if event == "matrix.process" else arguments[1]
        line = json.dumps([event, [os.fspath(argument) for argument in argv]]) + "\\n"
        file = os.open(os.environ["COSTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line.encode())
        os.close(file)
sys.addaudithook(note)
"""
# What is known to all sessions of one nox: that this machine was looked at, and where the docs' branches are.
SHARED = re.compile(r"cache/torch-npu-matrix/(scopes/[^/]+/\w+(\.lock)?|docs/\w+\.refs)$")


class Costs:
    """A user whose sessions are watched, with one pair, two test files, a patch and an API."""

    def __init__(self, folder: Path) -> None:
        repository = Repository(folder / "repository")
        noise = random.Random(0)
        for name in ("docs/big.bin", "test/beside/big.bin", "big.bin"):
            path = repository.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(noise.randbytes(1 << 20))
        repository.commit({stubs.TEST_FILE: stubs.GUARDED, OTHER: REACHES_IT}, tag="v2.10.0")
        docs = Repository(folder / "docs")
        page = "- <term>Atlas A2</term>：支持\n"
        docs.commit({"pages/2.10.0/elastic.md": page, "src/code.py": "noise"}, tag="1")
        batch = stubs.write_batch(
            folder / "batch",
            files={stubs.TEST_FILE: stubs.GUARDED, OTHER: REACHES_IT},
            patched={stubs.TEST_FILE: stubs.UNGUARDED},
            expected={stubs.TEST_FILE: 2, OTHER: 1},
            api=[API],
            upstream={"repository": [repository.url]},
            docs={"repository": [docs.url], "path": ["pages/{torch}/{page}.md"], "page": "elastic"},
        )
        self.imports = folder / "imports"
        notes = f"import sys\nwith open({str(self.imports)!r}, 'a') as stream:\n    print(sys.argv[0], file=stream)\n"
        stubs.torch_wheel(folder / "links", "2.10.0+cpu", files={"torch/__init__.py": notes + stubs.TORCH})
        stubs.torch_npu_wheel(folder / "links", "2.10.0", "2.10.0+cpu")
        self.user = User(folder, batch, folder / "links")
        self.log = folder / "log"
        counting, self.packs = count_packs(folder)
        (folder / "audit").mkdir()
        (folder / "audit" / "sitecustomize.py").write_text(AUDIT)
        self.watched = {"COSTS": str(self.log), "PYTHONPATH": str(folder / "audit"), **counting}
        self.places = {
            "cache": Path(os.environ["XDG_CACHE_HOME"]),
            "reports": folder / "reports",
            "venv": folder / "nox",
        }

    def verify(self, *arguments: str, **environment: str) -> None:
        """Verify the pair; what was counted is that of this one run."""
        for path in (self.log, self.packs, self.imports):
            path.unlink(missing_ok=True)
        before = dict(self._files())
        done = self.user.nox("-s verify-2.10.0", *arguments, **self.watched, **environment)
        assert done.returncode == 0, done.stdout
        self.written = {name for name, state in self._files() if before.get(name) != state}

    @property
    def started(self) -> Counter[str]:
        """What ran under wardens, by program and subcommand or script."""
        return Counter(_called(argv) for event, argv in self._noted() if event == "matrix.process")

    @property
    def started_otherwise(self) -> Counter[str]:
        """What the session started without a warden."""
        popen = [argv for event, argv in self._noted() if event == "subprocess.Popen"]
        return Counter(_called(argv) for argv in popen if not argv[-1].endswith("warden.py"))

    @property
    def wardens(self) -> int:
        """How many wardens the session started."""
        return sum(argv[-1].endswith("warden.py") for event, argv in self._noted() if event == "subprocess.Popen")

    @property
    def torch_imports(self) -> Counter[str]:
        """Which programs imported torch."""
        lines = self.imports.read_text().splitlines() if self.imports.exists() else []
        return Counter(Path(line).name for line in lines)

    @property
    def bytes_fetched(self) -> int:
        """The size of all packs that were sent."""
        return self.packs.stat().st_size if self.packs.exists() else 0

    @property
    def byte_code(self) -> dict[str, int]:
        """When each file of byte code in the venv was written, in nanoseconds."""
        return {str(path): path.stat().st_mtime_ns for path in self.places["venv"].rglob("*.pyc")}

    def _noted(self) -> Iterator[tuple[str, list[str]]]:
        for line in self.log.read_text().splitlines():
            event, argv = json.loads(line)
            yield event, argv

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for place, root in self.places.items():
            for path in root.rglob("*"):
                if path.is_file() and path.suffix != ".pyc":
                    about = path.stat()
                    yield f"{place}/{path.relative_to(root)}", (about.st_ino, about.st_mtime_ns)


# Helpers


def _called(argv: list[str]) -> str:
    """Return a command without options and paths: ``git fetch``, ``uv pip compile``, ``run.py``."""
    program, *rest = argv
    scripts = [Path(argument).name for argument in rest if argument.endswith(".py") and "/inside/" in argument]
    if scripts:
        return scripts[0]
    words: list[str] = []
    before = ""
    for argument in rest:
        if before != "-c" and argument.replace("-", "").isalpha() and argument[0] != "-":
            words.append(argument)
        elif words:
            break
        before = argument
    return " ".join([Path(program).name, *words])


@pytest.fixture
def costs(tmp_path: Path) -> Costs:
    return Costs(tmp_path)


# What every verify writes, whatever it finds.
REPORT = {f"reports/stubs/latest/report.{form}" for form in ("html", "json", "md", "xml", "zh.md")}
RESULT = {
    "reports/stubs/latest/2.10.0/result.json",
    *(f"reports/stubs/latest/2.10.0/{file}.{form}" for file in (stubs.TEST_FILE, OTHER) for form in ("log", "xml")),
}
# 151 of them as this is written, of which 38 are the project's own.
MODULES = 165
# The program as which each test file runs, once for the verdict and, where nothing is kept, once watched.
RUN = "python -m unittest"


def test_a_warm_verify_starts_its_test_files_and_nothing_else(costs: Costs) -> None:
    costs.verify()

    costs.verify()

    # Docs are asked whether they have moved: nobody but they can know.
    assert costs.started == {"run.py": 2, "git ls-remote": 1}
    assert costs.wardens == 3
    # nox's own: whether its uv is new enough.
    assert set(costs.started_otherwise) <= {"uv self version"}
    assert costs.torch_imports == {RUN: 2}
    assert costs.bytes_fetched == 0
    assert {name for name in costs.written if not SHARED.match(name)} == REPORT | RESULT
    assert len(costs.written) == len(REPORT | RESULT) + 5


def test_fresh_evidence_costs_one_more_run_of_each_test_file(costs: Costs) -> None:
    costs.verify()

    costs.verify("-- --fresh")

    # Of the docs, and of the tag that no commit is pinned for.
    assert costs.started == {"run.py": 2, "watch.py": 2, "git ls-remote": 2}
    assert costs.torch_imports == {RUN: 4}
    assert costs.bytes_fetched == 0
    kinds = Counter(name.rsplit("/", 1)[0] for name in costs.written if name.startswith("cache/torch-npu-matrix/"))
    assert kinds["cache/torch-npu-matrix/evidence"] == 2


def test_a_first_verify_asks_for_everything_once(costs: Costs) -> None:
    costs.verify()

    assert costs.started == {
        "uv python find": 1,
        "probe.py": 1,
        "uv pip compile": 1,
        "uv venv": 1,
        "uv pip install": 1,
        "uv cache dir": 1,
        **dict.fromkeys(("git init", "git remote add origin", "git fetch", "git checkout", "git ls-tree"), 2),
        **dict.fromkeys(("git ls-remote", "git rev-parse"), 1),
        "collect.py": 1,
        "run.py": 2,
        "watch.py": 2,
        "describe.py": 1,
    }
    assert costs.wardens == sum(costs.started.values())
    # nox makes the empty venv that is built into, and asks whether its uv is new enough.
    assert set(costs.started_otherwise) <= {"uv self version", "uv venv"}
    assert costs.torch_imports == {"collect.py": 1, RUN: 4, "describe.py": 1}


def test_of_upstream_only_the_folders_of_the_test_files_are_fetched(costs: Costs) -> None:
    costs.verify()

    # Both test files and the folders above them, of a repository with 3 MiB that nobody wants.
    assert 0 < costs.bytes_fetched < 4096
    trees = [name for name in costs.written if name.startswith("cache/torch-npu-matrix/trees/")]
    assert sorted(name.partition("/tree/")[2] for name in trees) == ["", OTHER, stubs.TEST_FILE]


def test_byte_code_is_compiled_once_whatever_the_caller_has_set(costs: Costs) -> None:
    costs.verify("-- --fresh", PYTHONDONTWRITEBYTECODE="1")
    compiled = costs.byte_code
    assert any("torch/__pycache__/__init__." in path for path in compiled)

    costs.verify("-- --fresh", PYTHONDONTWRITEBYTECODE="1")

    assert costs.byte_code == compiled


def test_the_list_of_sessions_waits_for_few_imports() -> None:
    count = "import sys, nox, uv; before = len(sys.modules); import noxfile; print(len(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", count], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < MODULES
