"""Runs test files that stand in a test as text, the way the product runs them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import msgspec
import uv

from scripts import preflight, running
from scripts.collecting import Collected
from scripts.environment import Environment
from scripts.matrix import Batch, Matrix, Pair, TestFile, Text, Upstream
from scripts.patching import Worktree
from scripts.preflight import Cann, Interpreter, Machine, Preflight
from scripts.results import Case, Run
from scripts.running import Progress

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
# What every test file below starts with, so that a test shows what it is about and nothing else.
HEAD = """\
import os, signal, sys, time, unittest
from unittest import TestCase, TestSuite
"""
TOKEN = "RUNNING_TEST"


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a test file."""

    run: Run
    cases: list[Case]
    log: bytes
    seconds: float

    @property
    def outcomes(self) -> dict[str, str]:
        """Outcomes by ``Class.method``; a case that is there twice would be a lost one."""
        found = {f"{case.cls}.{case.name}": case.outcome.value for case in self.cases}
        assert len(found) == len(self.cases) == self.run.tests == sum(self.run.outcomes.values())
        return found

    def said(self, about: str) -> str:
        """Return what is said about a case, or what a field of the run holds."""
        for case in self.cases:
            if about == f"{case.cls}.{case.name}":
                return case.message
        value = getattr(self.run, about) if about != "log" else self.log.decode(errors="replace")
        return value if isinstance(value, str) else "; ".join(value)


def run(
    source: str | bytes,
    folder: Path,
    *,
    path: str = "test/api_test.py",
    python: str = sys.executable,
    limit: float = 60.0,
    expected: int | None = None,
    others: Mapping[str, str] = {},
) -> Ran:
    """Run one test file; ``others`` are files beside it. Fails if a process of it is alive afterwards."""
    token = uuid.uuid4().hex
    data = source if isinstance(source, bytes) else (HEAD + source).encode()
    start = time.monotonic()
    found, cases = running.run_file(
        TestFile(path=path, limit=limit, expected={}),
        Path(python),
        {**os.environ, TOKEN: token, "PYTHONUNBUFFERED": "1"},
        Worktree(files={path: data, **{name: text.encode() for name, text in others.items()}}, patches={}),
        folder=folder,
        expected=expected,
    )
    seconds = time.monotonic() - start
    assert not list(alive(token))
    log = folder / f"{path}.log"
    return Ran(run=found, cases=cases, log=log.read_bytes(), seconds=seconds)


def run_all(
    sources: Mapping[str, str],
    folder: Path,
    *,
    reruns: int = 0,
    cores: int = 2,
    limit: float = 60.0,
    sensitive: Collection[str] = (),
    env: Mapping[str, str] = {},
    finished: Callable[[Run, list[Case]], None],
    progress: Callable[[Progress], None] = lambda _: None,
) -> None:
    """Run test files as a session does."""
    title = Text(en="", zh="")
    pair = Pair(name="2.10.0", torch="2.10.0", torch_npu="2.10.0", python="3.11")
    files = [
        TestFile(path=path, limit=limit, expected={pair.name: 1}, timing_sensitive=path in sensitive)
        for path in sources
    ]
    matrix = Matrix(batch="small", title=title, upstream=Upstream(repository=[]), pair=[pair], test_file=files, api=[])
    running.run_files(
        Batch(path=folder / "matrix.toml", matrix=matrix, pairs=(pair,)),
        pair,
        bare_preflight({**preflight.test_environment(os.environ, None), **env}, cores=cores),
        bare_environment(Path(sys.executable)),
        Worktree(files={path: (HEAD + source).encode() for path, source in sources.items()}, patches={}),
        Collected(torch={}, guards={}),
        folder=folder,
        reruns=reruns,
        finished=finished,
        progress=progress,
    )


def bare_preflight(test_env: Mapping[str, str], *, cores: int = 2, cann: Cann | None = None) -> Preflight:
    """Return a preflight that says nothing but what a test gets to see."""
    return Preflight(
        machine=Machine(os="", machine="", kernel="", glibc="", cores=cores, npu_devices=0, cann=cann),
        interpreter=Interpreter(path="", version="", implementation="", machine="", libc=""),
        uv="",
        uv_env={},
        test_env=dict(test_env),
        dropped=[],
        handed=[],
    )


def bare_environment(python: Path, fingerprint: str = "") -> Environment:
    """Return an environment that is an interpreter and nothing else."""
    return Environment(
        python=python,
        fingerprint=fingerprint,
        torch="",
        torch_npu="",
        git_version=None,
        cuda=None,
        packages=[],
        reused=True,
    )


def autoload(cann: Cann | None) -> dict[str, str]:
    """Return what a test's environment has where there is no CANN."""
    return {} if cann else {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def alive(token: str) -> Iterator[str]:
    """Yield the command line of every process whose environment holds ``token``."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if token.encode() in (process / "environ").read_bytes() and process.name != str(os.getpid()):
                yield f"{process.name}: {(process / 'cmdline').read_bytes()!r}"
        except OSError:
            continue


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until ``condition`` holds; fails if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@functools.cache
def pythons() -> dict[str, str]:
    """Return the interpreters of this machine, by version: this one, pyenv's, and whatever uv finds."""
    found = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for version in VERSIONS:
        candidates = [sys.executable, *(str(path) for path in pyenv.glob(f"{version}.*/bin/python"))]
        find = [uv.find_uv_bin(), "python", "find", "--no-project", "--system", "--no-python-downloads", version]
        candidates.append(subprocess.run(find, capture_output=True, text=True, check=False).stdout.strip())
        for candidate in filter(None, candidates):
            ask = [candidate, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            try:
                answer = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
            except OSError:
                continue
            if answer.strip() == version:
                found[version] = candidate
                break
    return found
