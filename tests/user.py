"""A user with a shell, for tests that meet this project as users do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import nox
import virtualenv

from scripts import matrix
from tests import stubs
from tests.conftest import ROOT

OK = "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): pass\n    def test_b(self): pass\n"


class User:
    """Somebody with a shell: a batch, a folder for reports, and nox."""

    def __init__(self, folder: Path, batch: Path, links: Path) -> None:
        self.folder = folder
        self.latest = folder / "reports" / "stubs" / "latest"
        self.environment = stubs.offline(links) | {"MATRIX": str(batch), "REPORTS": str(folder / "reports")}

    def command(self, *arguments: str) -> list[str]:
        options, _, rest = " ".join(arguments).partition(" -- ")
        envdir = ["--envdir", str(self.folder / "nox")]
        return [sys.executable, "-m", "nox", *envdir, *options.split(), *(["--", *rest.split()] if rest else [])]

    def nox(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run nox in the checkout and return what it printed; no traceback may be in it."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=ROOT,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert "Traceback" not in done.stdout, done.stdout
        return done

    def report(self) -> dict[str, Any]:
        return dict(json.loads((self.latest / "report.json").read_text()))

    def column(self, pair: str) -> dict[str, Any]:
        return next(column for column in self.report()["columns"] if column["pair"] == pair)


def make_user(tmp_path: Path, **batch: Any) -> User:
    """Return a user whose batch is ``batch`` (see stubs.write_batch), with wheels for all its pairs."""
    path = stubs.write_batch(tmp_path / "batch", **batch)
    stubs.wheels_of(tmp_path / "links", matrix.load(path))
    return User(tmp_path, path, tmp_path / "links")


def one_file(text: str) -> dict[str, Any]:
    return {"files": {"test/a_test.py": text}, "expected": {"test/a_test.py": 2}}


def checkout(folder: Path) -> Path:
    """Make a checkout in which nox was installed as README says, and has been started once; needs no network.

    nox alone is in ``.venv``, so that it enters the environment that noxfile.py asks for, as it does at a user's.
    """
    (folder / "reports").mkdir(parents=True)
    shutil.copy2(ROOT / "noxfile.py", folder)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    _environment(folder / ".venv", leave_out=["msgspec"])
    _environment(folder / ".nox" / "_nox_script_mode")
    return folder


def count_packs(folder: Path) -> tuple[dict[str, str], Path]:
    """Return what makes git keep the packs that repositories of this machine send, and the file that they go to."""
    sent, hook, config = folder / "packs", folder / "hook", folder / "gitconfig"
    hook.write_text(f'#!/bin/sh\n"$@" | tee -a "{sent}"\n')
    hook.chmod(0o755)
    config.write_text(f"[uploadpack]\n\tpackObjectsHook = {hook}\n")
    return {"GIT_CONFIG_GLOBAL": str(config)}, sent


# Helpers


def _environment(folder: Path, leave_out: Collection[str] = ()) -> None:
    """Make a venv of what is installed here, but for the packages in ``leave_out``; it has pip of its own."""
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for path in Path(nox.__file__).parent.parent.iterdir():
        if path.name.partition("-")[0] not in (*leave_out, "pip"):
            (site / path.name).symlink_to(path)
    pip = max(Path(virtualenv.__file__).parent.glob("seed/wheels/embed/pip-*.whl"))
    zipfile.ZipFile(pip).extractall(site)
    (folder / "bin" / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    for name in ("nox", "pip"):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m {name} "$@"\n')
        command.chmod(0o755)
