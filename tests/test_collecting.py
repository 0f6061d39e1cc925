"""What each machine would collect, with and without the patch, found out without running a test."""

from __future__ import annotations

import os
import sys
import textwrap
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from scripts import collecting, matrix, patching, storage, upstream
from scripts.collecting import Collected
from scripts.errors import Blocked
from scripts.preflight import Cann
from scripts.scope import RunScope
from tests import stubs
from tests.running_support import autoload, bare_environment, bare_preflight

ONE_TEST = "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_a(self):\n        pass\n"
FILE = "test/a_test.py"


class Bench:
    """A stub of torch on the path, and test files to collect with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.install(stubs.torch_wheel(folder / "links", "2.10.0+cpu"))
        self.python = Path(sys.executable)
        self.fingerprint = "venv"
        self.cann: Cann | None = None

    def install(self, *wheels: Path) -> None:
        for path in wheels:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(self.site)

    def collect(
        self, files: Mapping[str, str] | None = None, patched: Mapping[str, str] | None = None, limit: float = 60
    ) -> Collected:
        """Collect a batch of test files (the stubs' own guarded one by default)."""
        batch = matrix.load(stubs.write_batch(self.folder, files=files, patched=patched, limit=limit))
        pair = batch.pairs[0]
        tree = upstream.fetch(batch, pair, [], self.folder, RunScope())
        env = {"PATH": os.defpath, "PYTHONPATH": str(self.site)} | autoload(self.cann)
        preflight = bare_preflight(env, cann=self.cann)
        environment = bare_environment(self.python, self.fingerprint)
        return collecting.collect(batch, preflight, environment, tree, patching.prepare(batch, pair, tree))

    def counts(self, source: str) -> tuple[int, int, list[str]]:
        """Return how many cases a file has on x86_64 and on aarch64, and what makes the difference."""
        report = self.collect({FILE: source}).guards[FILE]
        assert not report.errors
        x86_64, aarch64 = report.counts
        assert (x86_64.machine, aarch64.machine) == ("x86_64", "aarch64")
        return x86_64.unpatched, aarch64.unpatched, report.names


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# Guards


def test_the_four_numbers_and_the_guard_are_seen_on_any_machine(bench: Bench) -> None:
    (report,) = bench.collect().guards.values()
    assert [(entry.machine, entry.unpatched, entry.patched) for entry in report.counts] == [
        ("x86_64", 2, 2),
        ("aarch64", 0, 2),
    ]
    assert report.names == ["IS_ARM64, line 3"]


def test_without_a_patch_the_patched_numbers_are_unknown_not_equal(bench: Bench) -> None:
    (report,) = bench.collect({FILE: ONE_TEST}).guards.values()
    assert [entry.patched for entry in report.counts] == [None, None]


GUARDS = {
    "none": (ONE_TEST, 1, 1, []),
    "a flag": (stubs.GUARDED, 2, 0, ["IS_ARM64, line 3"]),
    "a flag of a module": (
        """\
        from torch.testing._internal import common_utils as utils
        import unittest
        if not utils.IS_ARM64:
            class T(unittest.TestCase):
                def test_a(self): pass
        """,
        1,
        0,
        ["utils.IS_ARM64, line 3"],
    ),
    "a flag by its full name": (
        """\
        import torch.testing._internal.common_utils
        import unittest
        class T(unittest.TestCase):
            @unittest.skipUnless(torch.testing._internal.common_utils.IS_ARM64, "only there")
            def test_a(self): pass
            def test_b(self): pass
        """,
        1,
        2,
        ["torch.testing._internal.common_utils.IS_ARM64, line 4"],
    ),
    "a decorator of a class": (
        """\
        import unittest
        from torch.testing._internal.common_utils import IS_ARM64
        @unittest.skipIf(IS_ARM64, "not there")
        class T(unittest.TestCase):
            def test_a(self): pass
            def test_b(self): pass
        """,
        2,
        0,
        ["IS_ARM64, line 3"],
    ),
    "two at once": (
        """\
        import os, unittest
        from torch.testing._internal.common_utils import IS_ARM64
        class T(unittest.TestCase):
            @unittest.skipIf(os.uname().machine == "aarch64", "not there")
            def test_a(self): pass
            @unittest.skipIf(IS_ARM64, "not there")
            def test_b(self): pass
        """,
        2,
        0,
        ["os.uname(), line 4", "IS_ARM64, line 6"],
    ),
    "a call": (
        """\
        import platform, unittest
        ARM = "aarch64" in platform.machine()
        BAD = ARM or False
        if not BAD:
            class T(unittest.TestCase):
                def test_a(self): pass
        """,
        1,
        0,
        ["platform.machine(), line 2"],
    ),
    "a call under another name": (
        """\
        from platform import machine as which
        import platform as p, unittest
        class T(unittest.TestCase):
            if which() != "aarch64" and p.uname().machine != "aarch64":
                def test_a(self): pass
        """,
        1,
        0,
        ["p.uname(), line 4", "which(), line 4"],
    ),
    "a skip of the whole file": (
        """\
        import unittest
        from torch.testing._internal.common_utils import IS_ARM64
        if IS_ARM64:
            raise unittest.SkipTest("not on this machine")
        LATER = True
        class T(unittest.TestCase):
            if LATER:
                def test_a(self): pass
        """,
        1,
        0,
        ["IS_ARM64, line 3"],
    ),
    "load_tests": (
        """\
        import unittest
        from torch.testing._internal.common_utils import IS_ARM64
        class T(unittest.TestCase):
            def test_a(self): pass
        def load_tests(loader, tests, pattern):
            return unittest.TestSuite() if IS_ARM64 else tests
        """,
        1,
        0,
        ["IS_ARM64, line 6"],
    ),
    "something out of sight": (
        """\
        import unittest
        exec("import pl" "atform\\nhidden = [platform.mach" "ine()]")
        if hidden != ["aarch64"]:
            class T(unittest.TestCase):
                def test_a(self): pass
        """,
        1,
        0,
        ["a guard that could not be named"],
    ),
}


@pytest.mark.parametrize(("source", "x86_64", "aarch64", "names"), GUARDS.values(), ids=GUARDS.keys())
def test_a_guard_is_found_and_named_with_its_line(
    bench: Bench, source: str, x86_64: int, aarch64: int, names: list[str]
) -> None:
    assert bench.counts(textwrap.dedent(source)) == (x86_64, aarch64, names)


def test_a_patch_that_restores_no_case_is_refused(bench: Bench) -> None:
    only_macos = stubs.UNGUARDED
    lifted = only_macos.replace("import IS_MACOS, TestCase", "import TestCase").replace("= IS_MACOS", "= False")
    with pytest.raises(Blocked, match=r"restores no case \(x86_64 2 → 2, aarch64 2 → 2\)") as blocked:
        bench.collect({FILE: only_macos}, {FILE: lifted})
    assert blocked.value.code == "patch-no-effect"


# Torch


def test_torch_tells_what_it_is(bench: Bench) -> None:
    facts = bench.collect().torch
    assert (facts["version"], facts["git_version"], facts["cuda"]) == ("2.10.0+cpu", stubs.COMMIT, None)
    assert facts["npu_loaded"] is False


def test_with_cann_torch_npu_is_loaded_and_the_npu_is_told(bench: Bench) -> None:
    bench.install(stubs.torch_npu_wheel(bench.folder / "links", "2.10.0", "2.10.0+cpu"))
    bench.cann = Cann(home="/cann", version="8.5.0")
    facts = bench.collect().torch
    assert (facts["npu_loaded"], facts["npu_count"], facts["npu_name"]) == (True, 2, "Ascend910B")


NO_LIBRARY = "raise ImportError('{}: cannot open shared object file: No such file or directory')"


@pytest.mark.parametrize(
    ("source", "cause", "remedy"),
    [
        ("import yaml_not_there", "the package yaml_not_there is missing", "test-requirements"),
        (NO_LIBRARY.format("libgomp.so.1"), "the library libgomp.so.1 is missing", "system package"),
        (
            "import ctypes; ctypes.CDLL('libnot-there.so.3')",
            "the library libnot-there.so.3 is missing",
            "system package",
        ),
        ("raise ImportError('x.so: undefined symbol: _ZN3c104impl')", "undefined symbol: _ZN3c104impl", "don't fit"),
        ("raise RuntimeError('some new trouble')", "RuntimeError: some new trouble", "by hand"),
        ("raise SystemExit(3)", "SystemExit: 3", "by hand"),
        ("import os; print('last words', flush=True); os._exit(7)", "ended with 7: last words", "by hand"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended with -11", "by hand"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_told_by_what_it_lacks(
    bench: Bench, source: str, cause: str, remedy: str
) -> None:
    bench.install(stubs.torch_wheel(bench.folder / "links", "2.10.0", files={"torch/__init__.py": source}))
    with pytest.raises(Blocked) as blocked:
        bench.collect()
    assert blocked.value.code == "torch-import"
    assert cause in blocked.value.cause
    assert remedy in blocked.value.remedy


@pytest.mark.parametrize(
    ("source", "cause", "remedy"),
    [
        (NO_LIBRARY.format("libhccl.so"), "the library libhccl.so, which comes with CANN, is missing", "set_env.sh"),
        (NO_LIBRARY.format("libascend_hal.so"), "libascend_hal.so, which comes with the NPU driver,", "driver"),
        ("import tbe.common", "the package tbe, which comes with CANN, is missing", "set_env.sh"),
        ("import decorator_not_there", "the package decorator_not_there is missing", "test-requirements"),
        ("raise RuntimeError('Two accelerators cannot be used')", "Two accelerators cannot be used", "by hand"),
    ],
)
def test_a_torch_npu_that_cannot_be_imported_is_told_by_what_it_lacks(
    bench: Bench, source: str, cause: str, remedy: str
) -> None:
    bench.install(stubs.torch_npu_wheel(bench.folder / "links", "2.10.0", "2.10.0+cpu", source=source))
    bench.cann = Cann(home="/cann", version="8.5.0")
    with pytest.raises(Blocked) as blocked:
        bench.collect()
    assert blocked.value.code == "torch-npu-import"
    assert cause in blocked.value.cause
    assert remedy in blocked.value.remedy
    bench.cann = None
    assert bench.collect().torch["npu_loaded"] is False


# Test files that don't behave

MISBEHAVED = {
    "leaves": ("import os; os._exit(0)", "exited with 0 while it was collected"),
    "leaves with a status": ("import os; os._exit(3)", "exited with 3 while it was collected"),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "ended by SIGSEGV while it was collected"),
    "kills itself": ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL while it was collected"),
    "leaves it to a child": (
        "import os, time\nif os.fork():\n    time.sleep(0.2)\n    os._exit(3)",
        "exited with 3 while it was collected",
    ),
    "exits": ("raise SystemExit('no')", "SystemExit: no"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt:"),
    "lacks a package": ("import not_there", "ModuleNotFoundError: No module named 'not_there'"),
    "no Python": ("def", "SyntaxError: invalid syntax (bad_test.py, line 1)"),
    "recursion": ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
    "words that no JSON holds": ("raise ValueError('\\udcff')", "ValueError: \\udcff"),
}


@pytest.mark.parametrize(("source", "told"), MISBEHAVED.values(), ids=MISBEHAVED.keys())
def test_a_file_that_cannot_be_collected_spoils_no_other(bench: Bench, source: str, told: str) -> None:
    guards = bench.collect({"test/bad_test.py": source, FILE: ONE_TEST}).guards
    assert guards["test/bad_test.py"].errors == [told]
    assert [entry.unpatched for entry in guards["test/bad_test.py"].counts] == [0, 0]
    assert (guards[FILE].errors, [entry.unpatched for entry in guards[FILE].counts]) == ([], [1, 1])


def test_a_file_that_hangs_is_waited_for_once(bench: Bench) -> None:
    hangs = f"""\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open({str(bench.folder / "tried")!r}, "a") as stream:
    stream.write("x")
while True:
    time.sleep(1)
"""
    guards = bench.collect({"test/bad_test.py": hangs, FILE: ONE_TEST}, limit=1).guards
    assert guards["test/bad_test.py"].errors == ["still being collected after 1 s"]
    assert [entry.unpatched for entry in guards[FILE].counts] == [1, 1]
    assert (bench.folder / "tried").read_text() == "x"


@pytest.mark.parametrize(
    "prelude",
    [
        pytest.param("import os; os.chdir('/')", id="changes the folder"),
        pytest.param("import os; os.remove(__file__)", id="deletes itself"),
        pytest.param("import os; os.closerange(0, 256)", id="closes every file"),
        pytest.param("import os; os.fork()", id="forks"),
        pytest.param("import sys; print('x' * 10**6); sys.stdout.close()", id="closes the console"),
        pytest.param("import subprocess; subprocess.Popen(['sleep', '300'])", id="starts a process"),
        pytest.param("import json; json.dump = json.dumps = json.JSONEncoder.encode = None", id="replaces json"),
        pytest.param("import os; os._exit = os.open = os.write = os.getpid = None", id="replaces os"),
        pytest.param("HUGE = 10**400; NAN = float('nan'); ODD = '\\udcff'", id="has values that no JSON holds"),
    ],
)
def test_a_file_that_does_what_it_likes_is_collected_all_the_same(bench: Bench, prelude: str) -> None:
    start = time.monotonic()
    assert bench.counts(f"{prelude}\n{ONE_TEST}") == (1, 1, [])
    assert time.monotonic() - start < 10


# What is kept


def forbid_processes(bench: Bench) -> None:
    bench.python = Path("/nonexistent/python")


def test_a_second_answer_needs_no_process(bench: Bench) -> None:
    first = bench.collect()
    forbid_processes(bench)
    assert bench.collect() == first


@pytest.mark.parametrize("change", ["tree", "patch", "venv", "cann"])
def test_an_answer_is_that_of_this_venv_tree_and_patch_only(bench: Bench, change: str) -> None:
    guarded, patched = {stubs.TEST_FILE: stubs.GUARDED}, {stubs.TEST_FILE: stubs.UNGUARDED}
    bench.collect(guarded, patched)
    forbid_processes(bench)
    match change:
        case "tree":
            guarded, patched = ({file: f"{text}\n" for file, text in each.items()} for each in (guarded, patched))
        case "patch":
            patched = {stubs.TEST_FILE: stubs.UNGUARDED.replace("= IS_MACOS", "= False")}
        case "venv":
            bench.fingerprint = "another venv"
        case "cann":
            bench.cann = Cann(home="/cann", version="8.5.0")
    with pytest.raises(Blocked, match="could not be started"):
        bench.collect(guarded, patched)


def test_what_hung_or_crashed_is_asked_again(bench: Bench) -> None:
    once = f"import os, pathlib\nplace = pathlib.Path({str(bench.folder / 'tried')!r})\n"
    once += "if not place.exists():\n    place.touch()\n    os._exit(1)\n"
    assert bench.collect({FILE: once + ONE_TEST}).guards[FILE].errors
    assert bench.collect({FILE: once + ONE_TEST}).guards[FILE].errors == []


@pytest.mark.parametrize("change", [{"items": []}, {"items": [1]}, {"torch": 1}, {}], ids=str)
def test_an_answer_that_was_garbled_is_asked_for_anew(bench: Bench, change: dict[str, object]) -> None:
    first = bench.collect({FILE: ONE_TEST})
    (record,) = (storage.cache_root() / "collected").iterdir()
    whole = record.read_bytes()
    record.write_bytes(msgspec.json.encode(msgspec.json.decode(whole) | change) if change else whole[: len(whole) // 2])
    assert bench.collect({FILE: ONE_TEST}) == first
    assert record.read_bytes() == whole


@hypothesis.given(st.binary(max_size=200))
@hypothesis.settings(
    max_examples=30,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_no_answer_that_was_kept_brings_it_down(bench: Bench, data: bytes) -> None:
    bench.python = Path(sys.executable)
    bench.collect({FILE: ONE_TEST})
    (record,) = (storage.cache_root() / "collected").iterdir()
    whole = record.read_bytes()
    record.write_bytes(data)
    forbid_processes(bench)
    with pytest.raises(Blocked, match="could not be started"):
        bench.collect({FILE: ONE_TEST})
    record.write_bytes(whole)
