"""Whatever a test file does: its cases are all there, each with what happened to it, and nothing proves too much."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lxml.etree
import msgspec
import pytest

from scripts import junit, process, results, running
from scripts.inside.run import LATE_CHARACTERS, MESSAGE_CHARACTERS, Recorder
from scripts.results import Case, PairResult, Run, State, Verdict
from scripts.running import Progress
from scripts.upstream import blob_id
from tests.conftest import ROOT
from tests.running_support import HEAD, VERSIONS, Ran, eventually, pythons, run, run_all


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A test file and what is right to say of it.

    ``cases`` are all of its outcomes; ``said`` holds a fragment of what must be said about a case or in a field of the
    run, by its name.
    """

    source: str | bytes
    cases: dict[str, str] = {}
    state: str = "complete"
    said: dict[str, str] = {}
    path: str = "test/api_test.py"
    others: dict[str, str] = {}
    expected: int | None = None
    limit: float = 20.0


@pytest.fixture(autouse=True)
def quick_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less for what a file leaves behind and for what it says of a hang."""
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(running, "STACK", msgspec.structs.replace(running.STACK, seconds=0.5))


def check(example: Example, folder: Path) -> None:
    """Run an example on every Python that is there, and compare."""

    def on(version: str) -> Ran:
        return run(
            example.source,
            folder / version,
            path=example.path,
            python=pythons()[version],
            limit=example.limit,
            expected=example.expected,
            others=example.others,
        )

    with ThreadPoolExecutor(max_workers=len(VERSIONS)) as executor:
        found = dict(zip(pythons(), executor.map(on, pythons()), strict=True))
    assert {version: ran.outcomes for version, ran in found.items()} == dict.fromkeys(found, example.cases)
    assert {version: ran.run.state.value for version, ran in found.items()} == dict.fromkeys(found, example.state)
    for about, words in example.said.items():
        for version, ran in found.items():
            assert words in ran.said(about), (version, about)
    # Whatever it leaves, and however it hangs.
    assert max(ran.seconds for ran in found.values()) < example.limit + 5


# The rows of cases/README.md, "tests/"

ROWS = {
    "zero tests": Example(
        source="""
if sys.platform == "another":
    class Guarded(TestCase):
        def test_never_defined(self): pass
""",
        expected=14,
        state="hollow",
        said={"reason": "0 tests, 14 expected"},
    ),
    "import error": Example(
        source="""
import a_module_that_is_not_there
class T(TestCase):
    def test_a(self): pass
""",
        state="collection-error",
        said={"reason": "No module named 'a_module_that_is_not_there'"},
    ),
    "module skip": Example(
        source="raise unittest.SkipTest('not on this machine')",
        state="hollow",
        said={"reason": "not on this machine"},
    ),
    "all skipped": Example(
        source="""
@unittest.skip("all of it")
class T(TestCase):
    def test_a(self): pass
    def test_b(self): pass
""",
        cases={"T.test_a": "skipped", "T.test_b": "skipped"},
        expected=2,
        state="hollow",
        said={"reason": "all 2 skipped: all of it", "T.test_a": "all of it"},
    ),
    "set-up of a class fails": Example(
        source="""
class T(TestCase):
    @classmethod
    def setUpClass(cls): raise OSError("no device")
    def test_a(self): pass
    def test_b(self): pass
class U(TestCase):
    def test_c(self): pass
""",
        cases={"T.test_a": "error", "T.test_b": "error", "U.test_c": "passed"},
        said={"T.test_a": "no device", "T.test_b": "no device"},
    ),
    "all outcomes": Example(
        source="""
class T(TestCase):
    def test_pass(self): pass
    def test_fail(self): self.assertEqual(1, 2)
    def test_error(self): raise KeyError("k")
    @unittest.skip("why")
    def test_skip(self): pass
    @unittest.expectedFailure
    def test_xfail(self): self.fail()
    @unittest.expectedFailure
    def test_xpass(self): pass
    def test_sub(self):
        for i in range(3):
            with self.subTest(i=i): self.assertNotEqual(i, 1)
    def tearDown(self):
        if self._testMethodName == "test_fail": raise OSError("and the tear-down too")
""",
        cases={
            "T.test_pass": "passed",
            "T.test_fail": "failed",
            "T.test_error": "error",
            "T.test_skip": "skipped",
            "T.test_xfail": "xfailed",
            "T.test_xpass": "xpassed",
            "T.test_sub": "failed",
        },
        said={"T.test_fail": "1 != 2", "T.test_skip": "why", "T.test_sub": "i=1", "T.test_error": "KeyError: 'k'"},
    ),
    "killed": Example(
        source="""
class T(TestCase):
    def test_1(self): pass
    def test_2(self): os.kill(os.getpid(), signal.SIGKILL)
    def test_3(self): pass
""",
        cases={"T.test_1": "passed", "T.test_2": "crashed", "T.test_3": "not-run"},
        state="crashed",
        said={"T.test_2": "SIGKILL", "T.test_3": "not reached", "reason": "ended by SIGKILL in T.test_2"},
    ),
    "exit with 0 in the middle": Example(
        source="""
class T(TestCase):
    def test_1(self): pass
    def test_2(self): os._exit(0)
    def test_3(self): pass
""",
        cases={"T.test_1": "passed", "T.test_2": "crashed", "T.test_3": "not-run"},
        state="crashed",
        said={"T.test_2": "exited with 0 in the middle", "reason": "exited with 0 in T.test_2"},
    ),
    "a hang": Example(
        source="""
class T(TestCase):
    def test_1(self): pass
    def test_2(self): self.where_it_hangs()
    def test_3(self): pass
    def where_it_hangs(self): time.sleep(3600)
""",
        limit=2.5,
        cases={"T.test_1": "passed", "T.test_2": "timeout", "T.test_3": "not-run"},
        state="timeout",
        said={
            "T.test_2": "where_it_hangs",
            "stacks": "where_it_hangs",
            "reason": "the time limit of 2.5 s in T.test_2",
        },
    ),
    "a child is left": Example(
        source="""
import subprocess
class T(TestCase):
    def test_1(self): self.child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
""",
        cases={"T.test_1": "passed"},
        said={"findings": "left behind and ended: sleep"},
    ),
    "bytes that XML can't hold": Example(
        source=r"""
class T(TestCase):
    def test_control(self): sys.stdout.write("\x1b[31m\x00\x08\ufffe"); self.fail("\x1b \x00 \ud800 ]]> <&")
    def test_name(self):
        with self.subTest(name="a\nb|c<d>"): self.fail("| pipe\nand newline")
""",
        cases={"T.test_control": "failed", "T.test_name": "failed"},
        said={"T.test_control": "\x1b \x00 \\ud800 ]]> <&", "T.test_name": "| pipe\nand newline"},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_row_of_the_cases(name: str, tmp_path: Path) -> None:
    check(ROWS[name], tmp_path)


def test_a_case_that_fails_twice_has_both_messages(tmp_path: Path) -> None:
    ran = run(ROWS["all outcomes"].source, tmp_path)
    assert "1 != 2" in ran.said("T.test_fail")
    assert "and the tear-down too" in ran.said("T.test_fail")
    assert ran.run.ran == 7


def test_no_text_breaks_the_files_of_a_report(tmp_path: Path) -> None:
    ran = run(ROWS["bytes that XML can't hold"].source, tmp_path)
    pair = PairResult(
        pair="2.10.0",
        torch="2.10.0",
        torch_npu="2.10.0",
        python="3.11",
        verdict=Verdict.FAILED,
        reason="",
        runs=[ran.run],
        cases=ran.cases,
    )
    assert msgspec.json.decode(results.encode(pair), type=PairResult) == pair
    text = "".join(map(str, lxml.etree.fromstring(junit.of_run(pair, ran.run)).itertext()))
    assert r"\x1b \x00 \ud800 ]]> <&" in text
    assert b"\x00\x08" in ran.log


def test_files_of_one_name_stay_two(tmp_path: Path) -> None:
    source = "class T(TestCase):\n    def test_a(self): self.assertEqual(__file__.count('one'), 1)\n"
    one = run(source, tmp_path, path="test/one/api_test.py")
    two = run(source, tmp_path, path="test/two/api_test.py")
    assert [(case.key, case.outcome.value) for case in (*one.cases, *two.cases)] == [
        (("test/one/api_test.py", "T", "test_a"), "passed"),
        (("test/two/api_test.py", "T", "test_a"), "failed"),
    ]


# Whatever else a unittest file may do

SUITES = {
    "load_tests: the same test three times, nested": Example(
        source="""
class T(TestCase):
    turns = []
    def test_a(self):
        self.turns.append(1)
        self.assertNotEqual(len(self.turns), 2)
def load_tests(loader, tests, pattern):
    return TestSuite([TestSuite([T("test_a")]), TestSuite([TestSuite([T("test_a"), T("test_a")])])])
""",
        cases={"T.test_a": "passed", "T.test_a [2]": "failed", "T.test_a [3]": "passed"},
    ),
    "load_tests: one object twice": Example(
        source="""
class T(TestCase):
    def test_a(self): pass
def load_tests(loader, tests, pattern):
    test = T("test_a")
    return TestSuite([test, test])
""",
        cases={"T.test_a": "passed", "T.test_a [2]": "passed"},
    ),
    "load_tests: a suite that makes its tests as it goes": Example(
        source="""
class T(TestCase):
    def test_a(self): pass
    def test_b(self): self.fail("b")
def load_tests(loader, tests, pattern):
    suite = TestSuite()
    suite._tests = (T(name) for name in ("test_a", "test_b"))
    return suite
""",
        cases={"T.test_a": "passed", "T.test_b": "failed"},
    ),
    "load_tests fails": Example(
        source="""
class T(TestCase):
    def test_a(self): pass
def load_tests(loader, tests, pattern): raise OSError("no list of tests")
""",
        state="collection-error",
        said={"reason": "no list of tests"},
    ),
    "load_tests gives what is no suite": Example(
        source="def load_tests(loader, tests, pattern): return (test for test in tests)",
        state="collection-error",
        said={"reason": "TypeError"},
    ),
    "doctests": Example(
        source='''
import doctest
def twice(x):
    """
    >>> twice(2)
    4
    """
    return 2 * x
def thrice(x):
    """
    >>> thrice(2)
    7
    """
    return 3 * x
def load_tests(loader, tests, pattern):
    tests.addTests(doctest.DocTestSuite(sys.modules[__name__]))
    return tests
''',
        cases={"doctest.DocTestCase.api_test.thrice": "failed", "doctest.DocTestCase.api_test.twice": "passed"},
        said={"doctest.DocTestCase.api_test.thrice": "Expected:\n    7\nGot:\n    6"},
    ),
    "function test cases": Example(
        source="""
def good(): pass
def bad(): raise ValueError("bad")
def load_tests(loader, tests, pattern):
    return TestSuite([unittest.FunctionTestCase(good), unittest.FunctionTestCase(bad)])
""",
        cases={"unittest.case.FunctionTestCase.good": "passed", "unittest.case.FunctionTestCase.bad": "error"},
    ),
    "one class under two names, another defined twice": Example(
        source="""
class T(TestCase):
    def test_a(self): pass
Again = T
class U(TestCase):
    def test_lost_by_python_itself(self): pass
class U(TestCase):
    def test_b(self): pass
""",
        cases={"T.test_a": "passed", "T.test_a [2]": "passed", "U.test_b": "passed"},
    ),
    "classes of a sibling module": Example(
        source="""
from shared import Shared
class Own(Shared): device = "own"
""",
        others={
            "test/shared.py": """
import unittest
class Shared(unittest.TestCase):
    device = "none"
    def test_a(self): self.assertEqual(self.device, "own")
"""
        },
        cases={"Own.test_a": "passed", "shared.Shared.test_a": "failed"},
    ),
    "a module that a suite names is not there": Example(
        source="""
class T(TestCase):
    def test_a(self): pass
def load_tests(loader, tests, pattern):
    tests.addTests(loader.loadTestsFromName("not_there"))
    return tests
""",
        cases={"T.test_a": "passed"},
        state="collection-error",
        said={"reason": "not_there"},
    ),
    "a name that is no identifier": Example(
        source="class T(TestCase):\n    def test_a(self): pass",
        path="test/my-test.py",
        cases={"T.test_a": "passed"},
    ),
    "no folder": Example(
        source="class T(TestCase):\n    def test_a(self): pass",
        path="api_test.py",
        cases={"T.test_a": "passed"},
    ),
    "it runs unittest when it is imported": Example(
        source="""
class T(TestCase):
    def test_a(self): self.fail("a")
from unittest.main import main
main(module=None, argv=["x", __name__ + ".T"], exit=False)
class U(TestCase):
    def test_b(self): pass
""",
        cases={"T.test_a": "failed", "U.test_b": "passed"},
    ),
    "it puts runners of its own in unittest's place": Example(
        source="""
class Nothing:
    def __init__(self, *_, **__): pass
    def run(self, test): sys.exit(0)
unittest.TextTestRunner = unittest.runner.TextTestRunner = unittest.TestProgram = Nothing
class T(TestCase):
    def test_a(self): self.fail("a")
""",
        cases={"T.test_a": "failed"},
    ),
    "a test runs a suite of its own": Example(
        source="""
class Inner(TestCase):
    def test_inner(self): self.fail("expected by the outer one")
class T(TestCase):
    def test_a(self):
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(Inner)
        self.assertFalse(unittest.TextTestRunner(stream=sys.stdout).run(suite).wasSuccessful())
        self.assertFalse(unittest.main(module=None, argv=["x", "api_test.Inner"], exit=False).result.wasSuccessful())
def load_tests(loader, tests, pattern): return loader.loadTestsFromTestCase(T)
""",
        cases={"T.test_a": "passed"},
    ),
    "a test reports another one's outcome as well": Example(
        source="""
class Inner(TestCase):
    def test_inner(self): self.fail("inner")
class T(TestCase):
    def test_a(self): Inner("test_inner").run(self._outcome.result)
def load_tests(loader, tests, pattern): return loader.loadTestsFromTestCase(T)
""",
        cases={"T.test_a": "passed", "Inner.test_inner": "failed"},
        said={"findings": "reported but not planned: Inner.test_inner"},
    ),
    "a test stops the run": Example(
        source="""
class T(TestCase):
    def test_a(self): self._outcome.result.stop()
    def test_b(self): pass
""",
        cases={"T.test_a": "passed", "T.test_b": "not-run"},
        said={"findings": "planned but never reported: T.test_b"},
    ),
    "a test that says nothing": Example(
        source="""
class Silent(TestCase):
    def run(self, result=None):
        result.startTest(self)
        result.stopTest(self)
    def test_a(self): pass
""",
        cases={"Silent.test_a": "not-run"},
        said={"Silent.test_a": "no outcome was reported"},
    ),
    "a failure that no case shows": Example(
        source="""
class T(TestCase):
    def test_a(self): self._outcome.result.failures.append((self, "by hand"))
""",
        cases={"T.test_a": "passed"},
        state="crashed",
        said={"reason": "unittest calls the run failed"},
    ),
    "fewer than expected": Example(
        source="class T(TestCase):\n    def test_a(self): pass",
        cases={"T.test_a": "passed"},
        expected=2,
        state="hollow",
        said={"reason": "1 tests, 2 expected"},
    ),
    "more than expected": Example(
        source="class T(TestCase):\n    def test_a(self): pass\n    def test_b(self): pass",
        cases={"T.test_a": "passed", "T.test_b": "passed"},
        expected=1,
        said={"findings": "2 cases, matrix.toml expects 1"},
    ),
}

CASES = {
    "asynchronous tests": Example(
        source="""
import asyncio
class T(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self): await asyncio.sleep(0)
    async def test_good(self): await asyncio.sleep(0)
    async def test_bad(self): await asyncio.sleep(0); self.fail("after an await")
    async def test_cancelled(self): raise asyncio.CancelledError
    async def asyncTearDown(self): await asyncio.sleep(0)
""",
        cases={"T.test_good": "passed", "T.test_bad": "failed", "T.test_cancelled": "error"},
        said={"T.test_bad": "after an await"},
    ),
    "exceptions that end programs": Example(
        source="""
class T(TestCase):
    def test_generator_exit(self): raise GeneratorExit
    def test_system_exit(self): sys.exit(0)
""",
        cases={"T.test_generator_exit": "error", "T.test_system_exit": "error"},
        said={"T.test_system_exit": "SystemExit: 0"},
    ),
    "an interrupt from within": Example(
        source="""
class T(TestCase):
    def test_1(self): pass
    def test_2(self): raise KeyboardInterrupt
    def test_3(self): pass
""",
        cases={"T.test_1": "passed", "T.test_2": "crashed", "T.test_3": "not-run"},
        state="crashed",
        said={"T.test_2": "ended by SIGINT", "reason": "after T.test_2"},
    ),
    "an error in each place": Example(
        source="""
class T(TestCase):
    def setUp(self):
        if "set_up" in self.id(): raise OSError("no set-up")
    def tearDown(self):
        if "tear_down" in self.id(): raise OSError("no tear-down")
    def test_set_up(self): pass
    def test_tear_down(self): pass
    def test_clean_up(self): self.addCleanup(self.fail, "no clean-up")
    def test_skip_then_tear_down(self): self.skipTest("why")
""",
        cases={
            "T.test_set_up": "error",
            "T.test_tear_down": "error",
            "T.test_clean_up": "failed",
            "T.test_skip_then_tear_down": "error",
        },
        said={"T.test_set_up": "no set-up", "T.test_tear_down": "no tear-down", "T.test_clean_up": "no clean-up"},
    ),
    "texts that can't be had": Example(
        source=r"""
class Mute(Exception):
    def __str__(self): raise RuntimeError
    __repr__ = __str__
class Endless(Exception):
    __cause__ = property(lambda self: 1 / 0)
class Mumble:
    def __repr__(self): raise RuntimeError("no text")
class T(TestCase):
    def test_error(self): raise Mute
    def test_trace(self): raise Endless
    @unittest.skip(404)
    def test_skip_number(self): pass
    def test_sub(self):
        with self.subTest(it=Mumble()): self.fail("sub-test")
        with self.subTest(it="\ud800"): self.fail("surrogate")
    def test_surrogate(self): self.fail("\udcff")
""",
        cases={
            "T.test_error": "error",
            "T.test_trace": "error",
            "T.test_skip_number": "skipped",
            "T.test_sub": "failed",
            "T.test_surrogate": "failed",
        },
        said={
            "T.test_error": "Mute",
            "T.test_trace": "Endless: (its text could not be had)",
            "T.test_skip_number": "404",
            "T.test_surrogate": "\\udcff",
            "T.test_sub": "sub-test",
        },
    ),
    "a reason to skip that unittest itself dies of": Example(
        source="""
class Mute(Exception):
    def __str__(self): raise RuntimeError
class T(TestCase):
    def test_a(self): self.skipTest(Mute())
    def test_b(self): pass
""",
        cases={"T.test_a": "crashed", "T.test_b": "not-run"},
        state="crashed",
        said={"T.test_a": "exited with 1 in the middle"},
    ),
    "sub-tests": Example(
        source="""
class T(TestCase):
    def test_skips_one(self):
        for i in range(2):
            with self.subTest(i=i):
                if i: self.skipTest("not this one")
    @unittest.expectedFailure
    def test_xfails(self):
        with self.subTest(i=1): self.fail()
    def test_huge(self):
        with self.subTest(it="x" * 1_000_000): self.fail("y" * 1_000_000)
    def test_many(self):
        for i in range(300):
            with self.subTest(i=i): raise OSError(f"number {i}.")
""",
        cases={
            "T.test_skips_one": "skipped",
            "T.test_xfails": "xfailed",
            "T.test_huge": "failed",
            "T.test_many": "error",
        },
        said={"T.test_skips_one": "not this one", "T.test_huge": "characters left out", "T.test_many": "number 99."},
    ),
    "mocks of what recording works with": Example(
        source="""
from unittest import mock
class T(TestCase):
    def setUp(self):
        for name in ("time.monotonic", "os.getpid", "os.open", "os.write", "os.close", "os.fstat", "json.dumps"):
            patch = mock.patch(name, side_effect=ValueError(name))
            patch.start()
            self.addCleanup(patch.stop)
    def test_a(self): self.fail("a")
    def test_b(self): pass
""",
        cases={"T.test_a": "failed", "T.test_b": "passed"},
    ),
}

FIXTURES = {
    "set-up of a module fails": Example(
        source="""
def setUpModule(): raise OSError("no device")
class T(TestCase):
    def test_a(self): pass
class U(TestCase):
    def test_b(self): pass
""",
        cases={"T.test_a": "error", "U.test_b": "error"},
        said={"T.test_a": "no device", "U.test_b": "no device"},
    ),
    "set-up of a module skips": Example(
        source="""
def setUpModule(): raise unittest.SkipTest("no device")
class T(TestCase):
    def test_a(self): pass
""",
        cases={"T.test_a": "skipped"},
        state="hollow",
        said={"T.test_a": "no device", "reason": "all 1 skipped"},
    ),
    "set-up of a class skips": Example(
        source="""
class T(TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("no device")
    def test_a(self): pass
class U(TestCase):
    def test_b(self): pass
""",
        cases={"T.test_a": "skipped", "U.test_b": "passed"},
        said={"T.test_a": "no device"},
    ),
    "set-up of another module fails": Example(
        source="""
from shared import Shared
class T(TestCase):
    def test_a(self): pass
    def test_b(self): os._exit(3)
def load_tests(loader, tests, pattern):
    return TestSuite([T("test_a"), Shared("test_shared"), T("test_b")])
""",
        others={
            "test/shared.py": """
import unittest
def setUpModule(): raise OSError("no share")
class Shared(unittest.TestCase):
    def test_shared(self): pass
"""
        },
        cases={"T.test_a": "passed", "shared.Shared.test_shared": "error", "T.test_b": "crashed"},
        state="crashed",
    ),
    "set-up of a class fails the second time": Example(
        source="""
class T(TestCase):
    turns = []
    @classmethod
    def setUpClass(cls):
        cls.turns.append(1)
        if len(cls.turns) > 1: raise OSError("once was enough")
    def test_a(self): pass
    def test_b(self): pass
class U(TestCase):
    def test_c(self): pass
def load_tests(loader, tests, pattern): return TestSuite([T("test_a"), U("test_c"), T("test_b")])
""",
        cases={"T.test_a": "passed", "U.test_c": "passed", "T.test_b": "error"},
        said={"T.test_b": "once was enough"},
    ),
    "set-up and clean-up of a class fail": Example(
        source="""
class T(TestCase):
    @classmethod
    def setUpClass(cls):
        cls.addClassCleanup(cls.clean)
        raise OSError("no device")
    @classmethod
    def clean(cls): raise OSError("no clean-up")
    def test_a(self): pass
""",
        cases={"T.test_a": "error"},
        said={"T.test_a": "no clean-up"},
    ),
    "tear-down of a class fails": Example(
        source="""
class T(TestCase):
    @classmethod
    def tearDownClass(cls): raise OSError("device lost")
    def test_a(self): pass
""",
        cases={"T.test_a": "passed"},
        said={"broken_fixtures": "tearDownClass (api_test.T): error: OSError: device lost"},
    ),
    "clean-up of a class fails": Example(
        source="""
class T(TestCase):
    @classmethod
    def setUpClass(cls): cls.addClassCleanup(cls.clean)
    @classmethod
    def clean(cls): raise OSError("no clean-up")
    def test_a(self): pass
""",
        cases={"T.test_a": "passed"},
        said={"broken_fixtures": "OSError: no clean-up"},
    ),
    "tear-down of a module fails": Example(
        source="""
def tearDownModule(): raise OSError("device lost")
class T(TestCase):
    def test_a(self): pass
""",
        cases={"T.test_a": "passed"},
        said={"broken_fixtures": "tearDownModule (api_test): error: OSError: device lost"},
    ),
    "clean-up of a module fails": Example(
        source="""
def clean(): raise OSError("no clean-up")
def setUpModule(): unittest.addModuleCleanup(clean)
class T(TestCase):
    def test_a(self): pass
""",
        cases={"T.test_a": "passed"},
        said={"broken_fixtures": "OSError: no clean-up"},
    ),
    "set-up and clean-up of a module fail": Example(
        source="""
def clean(): raise OSError("no clean-up")
def setUpModule():
    unittest.addModuleCleanup(clean)
    raise OSError("no device")
class T(TestCase):
    def test_a(self): pass
""",
        cases={"T.test_a": "error"},
        said={"T.test_a": "no device"},
    ),
    "tear-down and clean-up of a class fail": Example(
        source="""
class T(TestCase):
    @classmethod
    def setUpClass(cls): cls.addClassCleanup(cls.clean)
    @classmethod
    def clean(cls): raise OSError("no clean-up")
    @classmethod
    def tearDownClass(cls): raise OSError("device lost")
    def test_a(self): pass
""",
        cases={"T.test_a": "passed"},
        said={"broken_fixtures": "OSError: no clean-up"},
    ),
    "the process ends in a set-up": Example(
        source="""
class T(TestCase):
    def test_a(self): pass
class U(TestCase):
    @classmethod
    def setUpClass(cls): sys.exit(0)
    def test_b(self): pass
""",
        cases={"T.test_a": "passed", "U.test_b": "not-run"},
        state="crashed",
        said={"reason": "exited with 0 after T.test_a"},
    ),
    "the process ends in the last tear-down": Example(
        source="""
def tearDownModule(): os._exit(0)
class T(TestCase):
    def test_a(self): pass
""",
        cases={"T.test_a": "passed"},
        state="crashed",
        said={"reason": "exited with 0 after T.test_a"},
    ),
}

ENDINGS = {
    "exit while it is imported": Example(
        source="sys.exit(0)\nclass T(TestCase):\n    def test_a(self): pass",
        state="collection-error",
        said={"reason": "SystemExit: 0"},
    ),
    "interrupt while it is imported": Example(
        source="raise KeyboardInterrupt", state="collection-error", said={"reason": "KeyboardInterrupt"}
    ),
    "hard exit while it is imported": Example(
        source="os._exit(0)", state="crashed", said={"reason": "exited with 0 before a case was planned"}
    ),
    "syntax error": Example(
        source="def (:\n", state="collection-error", said={"reason": "SyntaxError: invalid syntax"}
    ),
    "source that is not UTF-8": Example(
        source=b"x = '\xff'\n", state="collection-error", said={"reason": "SyntaxError"}
    ),
    "class that can't be made": Example(
        source="""
class T(TestCase):
    def __init__(self, name): raise OSError("no case")
    def test_a(self): pass
""",
        state="collection-error",
        said={"reason": "no case"},
    ),
    "segmentation fault": Example(
        source="import ctypes\nclass T(TestCase):\n    def test_a(self): ctypes.string_at(0)",
        cases={"T.test_a": "crashed"},
        state="crashed",
        said={"T.test_a": "ended by SIGSEGV"},
    ),
    "abort": Example(
        source="class T(TestCase):\n    def test_a(self): os.abort()",
        cases={"T.test_a": "crashed"},
        state="crashed",
        said={"T.test_a": "ended by SIGABRT"},
    ),
    "alarm": Example(
        source="class T(TestCase):\n    def test_a(self): signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(60)",
        cases={"T.test_a": "crashed"},
        state="crashed",
        said={"T.test_a": "ended by SIGALRM"},
    ),
    "endless recursion": Example(
        source="class T(TestCase):\n    def test_a(self): self.test_a()",
        cases={"T.test_a": "error"},
        said={"T.test_a": "RecursionError"},
    ),
    "stack overflow": Example(
        source="""
import ctypes, threading
class T(TestCase):
    def test_a(self):
        threading.stack_size(1 << 16)
        thread = threading.Thread(target=self.deeper)
        thread.start()
        thread.join()
    def deeper(self): ctypes.CFUNCTYPE(None)(self.deeper)()
""",
        cases={"T.test_a": "crashed"},
        state="crashed",
        said={"T.test_a": "ended by SIGSEGV"},
    ),
    "the exit status is changed after a pass": Example(
        source="import atexit\natexit.register(os._exit, 7)\nclass T(TestCase):\n    def test_a(self): pass",
        cases={"T.test_a": "passed"},
        state="crashed",
        said={"reason": "exited with 7 after the last case, where unittest exits with 0"},
    ),
    "the exit status is that of no tests after a pass": Example(
        source="import atexit\natexit.register(os._exit, 5)\nclass T(TestCase):\n    def test_a(self): pass",
        cases={"T.test_a": "passed"},
        state="crashed",
    ),
    "the exit status hides a failure": Example(
        source="import atexit\natexit.register(os._exit, 0)\nclass T(TestCase):\n    def test_a(self): self.fail()",
        cases={"T.test_a": "failed"},
        state="crashed",
        said={"reason": "exited with 0 after the last case, where unittest exits with 1"},
    ),
    "a crash at the very end": Example(
        source="import atexit\natexit.register(os.abort)\nclass T(TestCase):\n    def test_a(self): pass",
        cases={"T.test_a": "passed"},
        state="crashed",
        said={"reason": "ended by SIGABRT after the last case"},
    ),
    "a hang at the very end": Example(
        source="""
import threading
class T(TestCase):
    def test_a(self): threading.Thread(target=time.sleep, args=(3600,)).start()
""",
        limit=2.5,
        cases={"T.test_a": "passed"},
        state="timeout",
        said={"reason": "after the last case", "stacks": "in _shutdown"},
    ),
    "a hang while it is imported": Example(
        source="time.sleep(3600)",
        limit=2.5,
        state="timeout",
        said={"reason": "before a case was planned", "stacks": "api_test.py"},
    ),
    "a hang that fends off the end": Example(
        source="""
import faulthandler
class T(TestCase):
    def test_a(self):
        faulthandler.cancel_dump_traceback_later()
        os.closerange(3, 1024)
    def test_b(self):
        for number in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}: signal.signal(number, signal.SIG_IGN)
        while True: time.sleep(3600)
""",
        limit=2.5,
        cases={"T.test_a": "passed", "T.test_b": "timeout"},
        state="timeout",
        said={"T.test_b": "in test_b"},
    ),
    "endless output": Example(
        source="class T(TestCase):\n    def test_a(self):\n        while True: os.write(1, b'x' * 65536)",
        limit=2.5,
        cases={"T.test_a": "timeout"},
        state="timeout",
        said={"findings": "bytes are left out of the log's middle"},
    ),
}

SURROUNDINGS = {
    "it closes the console": Example(
        source="""
class T(TestCase):
    def test_a(self): sys.stdout.close(); sys.stderr.close()
    def test_b(self): self.fail("b")
    def test_c(self): pass
""",
        cases={"T.test_a": "passed", "T.test_b": "failed", "T.test_c": "passed"},
        said={"log": "FAILED (failures=1)"},
    ),
    "it closes every descriptor": Example(
        source="""
class T(TestCase):
    def test_a(self): os.closerange(0, 256)
    def test_b(self): self.fail("b")
    def test_c(self): pass
""",
        cases={"T.test_a": "passed", "T.test_b": "failed", "T.test_c": "passed"},
        said={"log": "FAILED (failures=1)"},
    ),
    "the disk is full for a while": Example(
        source="""
import resource
def limit(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
class T(TestCase):
    def test_a(self): limit(os.path.getsize("../../own/events.jsonl") + 30)
    def test_b(self): pass
    def test_c(self): limit(resource.RLIM_INFINITY); self.fail("c")
    def test_d(self): pass
""",
        cases={"T.test_a": "not-run", "T.test_b": "not-run", "T.test_c": "failed", "T.test_d": "passed"},
        said={"T.test_a": "no outcome was reported", "T.test_b": "never reported", "findings": "1 events could not be"},
    ),
    "it replaces the console": Example(
        source="""
class T(TestCase):
    def test_a(self): sys.stdout = sys.stderr = None
    def test_b(self): self.fail("b")
""",
        cases={"T.test_a": "passed", "T.test_b": "failed"},
    ),
    "it goes elsewhere": Example(
        source="""
class T(TestCase):
    def test_a(self): os.chdir("/")
    def test_b(self): self.fail("b")
""",
        cases={"T.test_a": "passed", "T.test_b": "failed"},
    ),
    "it deletes its own file, then its folder": Example(
        source="""
import shutil
class T(TestCase):
    def test_a(self): os.remove(__file__)
    def test_b(self): shutil.rmtree(os.path.dirname(os.path.abspath(__file__)))
    def test_c(self): self.fail("c")
    def test_d(self): pass
""",
        cases={"T.test_a": "passed", "T.test_b": "passed", "T.test_c": "failed", "T.test_d": "passed"},
    ),
    "output that is no text": Example(
        source=r"class T(TestCase):" "\n    " r"def test_a(self): os.write(1, b'\xff\xfe\x00 tail\n')",
        cases={"T.test_a": "passed"},
        said={"log": "\x00 tail"},
    ),
    "200 MB of output": Example(
        source="class T(TestCase):\n    def test_a(self):\n        for _ in range(200): os.write(1, b'x' * (1 << 20))",
        cases={"T.test_a": "passed"},
        said={"findings": "bytes are left out of the log's middle", "log": "\nOK\n"},
    ),
    "a child that comes back into the runner": Example(
        source="""
class T(TestCase):
    def test_a(self):
        self.child = os.fork()
        if self.child: os.waitpid(self.child, 0)
    def test_b(self): self.assertTrue(self.id() and os.getpid() == PARENT)
PARENT = os.getpid()
""",
        cases={"T.test_a": "passed", "T.test_b": "passed"},
        said={"findings": "a forked child came back into the test runner"},
    ),
    "a child that goes on when its parent has gone": Example(
        source="""
class T(TestCase):
    def test_a(self):
        if os.fork(): os._exit(0)
    def test_b(self): pass
""",
        cases={"T.test_a": "crashed", "T.test_b": "not-run"},
        state="crashed",
    ),
    "daemons": Example(
        source="""
class T(TestCase):
    def test_a(self):
        if not os.fork():
            os.setsid()
            if not os.fork():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
                time.sleep(3600)
            os._exit(0)
        os.wait()
""",
        cases={"T.test_a": "passed"},
        said={"findings": "left behind and ended: python"},
    ),
    "a daemon is gone once it was killed": Example(
        source="""
class T(TestCase):
    def test_a(self):
        reading, writing = os.pipe()
        if not os.fork():
            daemon = os.fork()
            if daemon: os.write(writing, b"%d" % daemon); os._exit(0)
            time.sleep(3600)
        daemon = int(os.read(reading, 99))
        os.wait()
        os.kill(daemon, signal.SIGKILL)
        with self.assertRaises(ProcessLookupError):
            while True: os.kill(daemon, 0); time.sleep(0.01)
""",
        limit=10.0,
        cases={"T.test_a": "passed"},
    ),
    "processes that fork on and on": Example(
        source="""
class T(TestCase):
    def test_a(self):
        if os.fork(): return time.sleep(0.05)
        for _ in range(200):
            if os.fork(): os._exit(0)
            time.sleep(0.02)
        os._exit(0)
""",
        cases={"T.test_a": "passed"},
        said={"findings": "left behind and ended: python"},
    ),
    "it kills its parent": Example(
        source="""
import subprocess
class T(TestCase):
    def test_a(self): pass
    def test_b(self):
        subprocess.Popen(["sleep", "3600"], start_new_session=True)
        os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
        time.sleep(60)
    def test_c(self): pass
""",
        cases={"T.test_a": "passed", "T.test_b": "crashed", "T.test_c": "not-run"},
        state="crashed",
        said={"reason": "its warden was killed in T.test_b"},
    ),
    "it spawns": Example(
        source="""
import multiprocessing
def work(queue): queue.put((__name__, sys.argv))
class T(TestCase):
    def test_a(self):
        spawn = multiprocessing.get_context("spawn")
        queue = spawn.Queue()
        child = spawn.Process(target=work, args=(queue,))
        child.start()
        self.assertEqual(queue.get(timeout=30), ("api_test", ["python -m unittest", "api_test.py"]))
        child.join()
""",
        cases={"T.test_a": "passed"},
    ),
    "it forks where warnings are errors": Example(
        source="""
import warnings
class T(TestCase):
    def test_a(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if not os.fork(): os._exit(0)
            os.wait()
        self.assertEqual(caught, [])
""",
        cases={"T.test_a": "passed"},
    ),
}
OTHERS = {**SUITES, **CASES, **FIXTURES, **ENDINGS, **SURROUNDINGS}


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_a_file_does(name: str, tmp_path: Path) -> None:
    check(OTHERS[name], tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_runs_on(version: str) -> None:
    if version not in pythons():
        pytest.skip(f"there is no Python {version} on this machine")
    assert pythons()[version]


def test_seconds_are_those_of_the_case_and_of_the_run(tmp_path: Path) -> None:
    ran = run("time.sleep(0.2)\nclass T(TestCase):\n    def test_a(self): time.sleep(0.3)\n", tmp_path)
    case, whole = ran.cases[0].seconds, ran.run.seconds
    assert case
    assert whole
    assert ran.run.unittest_seconds
    assert 0.3 <= case <= ran.run.unittest_seconds
    assert ran.run.unittest_seconds + 0.2 <= whole <= ran.seconds


def test_a_file_has_folders_of_its_own_which_no_message_names(tmp_path: Path) -> None:
    source = """
import shutil, tempfile
class T(TestCase):
    def test_a(self):
        venv = os.path.dirname(os.path.dirname(sys.executable))
        self.assertEqual((os.environ["VIRTUAL_ENV"], shutil.which("python")), (venv, f"{venv}/bin/python"))
        self.assertEqual(tempfile.gettempdir(), os.environ["TMPDIR"])
        print(tempfile.mkdtemp(), os.getcwd(), file=sys.stdout)
        self.fail(f"{tempfile.gettempdir()}/file {os.getcwd()} {sys.executable}.")
"""
    first, second = run(source, tmp_path / "1"), run(source, tmp_path / "2")
    assert first.cases[0].message == second.cases[0].message
    assert 'File "test/api_test.py", line ' in first.cases[0].message
    assert first.cases[0].message.endswith("AssertionError: <tmp>/file test <venv>/bin/python.\n")
    folders = [Path(name) for name in first.log.decode().split()[:2]]
    assert all(folder.is_absolute() and not folder.exists() for folder in folders)
    assert tempfile.gettempdir() in str(folders[0])


def test_progress_waits_for_whole_events(tmp_path: Path) -> None:
    events, heard = tmp_path / "events", list[Progress]()
    follower = running._Follower("api_test.py", events, heard.append)
    plan, stop = (
        json.dumps({"pid": 1, **event}) + "\n"
        for event in ({"event": "planned", "cases": [["T", "a"]]}, {"event": "stop", "case": ["T", "a"]})
    )
    follower()
    for text in (plan[:20], plan[20:] + stop[:9], stop[9:], stop.replace("1", "2")):
        with events.open("a") as stream:
            stream.write(text)
        follower()
    assert [(now.planned, now.done) for now in heard] == [(None, 0), (None, 0), (1, 0), (1, 1), (1, 1)]


def test_messages_get_short_once_too_much_was_said(tmp_path: Path) -> None:
    record = Recorder(str(tmp_path / "events"), "api_test")
    record.room = MESSAGE_CHARACTERS
    for _ in range(2):
        record("module-skipped", message="x" * 100_000)
    lengths = [len(json.loads(line)["message"]) for line in (tmp_path / "events").read_text().splitlines()]
    assert MESSAGE_CHARACTERS < lengths[0] < MESSAGE_CHARACTERS + 99
    assert LATE_CHARACTERS < lengths[1] < LATE_CHARACTERS + 99


def test_many_cases_are_all_there(tmp_path: Path) -> None:
    source = """
class T(TestCase): pass
for number in range(3000): setattr(T, f"test_{number}_{'x' * 400}", lambda self: None)
"""
    ran = run(source, tmp_path)
    assert (ran.run.state, ran.run.outcomes, ran.run.ran) == (State.COMPLETE, {"passed": 3000}, 3000)
    assert ran.run.findings == []


# All files of a pair


class Told:
    """Keeps what run_files hands over."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.cases: dict[str, list[Case]] = {}
        self.order: list[str] = []

    def __call__(self, run: Run, cases: list[Case]) -> None:
        self.runs[run.file] = run
        self.cases[run.file] = cases
        self.order.append(run.file)

    def __getitem__(self, file: str) -> dict[str, str]:
        return {case.name: case.outcome.value for case in self.cases[file]}


def test_every_file_is_run_and_described(tmp_path: Path) -> None:
    told = Told()
    source = "class T(TestCase):\n    def test_a(self): print('here')\n"
    run_all({"a/api_test.py": source, "b/api_test.py": source}, tmp_path / "2.10.0", finished=told)
    assert set(told.runs) == {"a/api_test.py", "b/api_test.py"}
    run = told.runs["b/api_test.py"]
    assert (run.state, run.tests, run.expected, run.exit_status, run.ran, run.attempts) == (
        State.COMPLETE,
        1,
        1,
        0,
        1,
        1,
    )
    assert (run.command, run.log) == ("cd b && python -m unittest api_test.py", "2.10.0/b/api_test.py.log")
    assert run.blob == blob_id((HEAD + source).encode())
    assert run.log
    log = (tmp_path / run.log).read_text()
    assert log.startswith("here\n.\n---")
    assert re.search(r"Ran 1 test in [\d.]+s\n\nOK\n$", log)


@pytest.mark.parametrize(("cores", "beside"), [(1, 0), (2, 1), (4, 2), (6, 3), (8, 3)])
def test_a_timing_sensitive_file_starts_first_and_has_half_the_machine(tmp_path: Path, cores: int, beside: int) -> None:
    source = f"""
class T(TestCase):
    def test_a(self):
        with open({str(tmp_path / "times")!r}, "a") as stream:
            print(__name__, time.time(), file=stream, flush=True)
            time.sleep(0.8)
            print(__name__, time.time(), file=stream, flush=True)
"""
    told = Told()
    names = ["one.py", "two.py", "three.py", "quiet.py"]
    run_all(dict.fromkeys(names, source), tmp_path / "p", cores=cores, sensitive=["quiet.py"], finished=told)
    assert {run.state for run in told.runs.values()} == {State.COMPLETE}
    times: dict[str, list[float]] = {}
    for line in (tmp_path / "times").read_text().splitlines():
        times.setdefault(line.split()[0], []).append(float(line.split()[1]))
    quiet = times.pop("quiet")
    starts = [quiet[0], *(start for start, _ in times.values() if quiet[0] < start < quiet[1])]
    assert max(sum(start <= at < end for start, end in times.values()) for at in starts) == beside
    assert all(quiet[0] < end for _, end in times.values())


def turns(folder: Path, *outcomes: str) -> str:
    """Return a test file whose case does another thing each time it runs."""
    return f"""
with open({str(folder / "turns")!r}, "a+b") as stream:
    turn = stream.tell()
    stream.write(b".")
class T(TestCase):
    def test_a(self): exec({outcomes!r}[turn])
    def test_b(self): pass
"""


@pytest.mark.parametrize(
    ("reruns", "outcomes", "right", "attempts"),
    [
        (2, ("pass",), "passed", 1),
        (0, ("self.fail('first')", "pass"), "failed", 1),
        (2, ("self.fail('first')", "pass"), "flaky", 2),
        (2, ("os.abort()", "raise OSError('second')", "pass"), "flaky", 3),
        (1, ("self.fail('first')", "os._exit(0)"), "crashed", 2),
        (1, ("self.fail('first')", "self.skipTest('why')"), "failed", 2),
        (2, ("self.skipTest('why')",), "skipped", 1),
    ],
)
def test_a_file_that_failed_runs_again_and_never_passes_silently(
    reruns: int, outcomes: tuple[str, ...], right: str, attempts: int, tmp_path: Path
) -> None:
    told = Told()
    run_all({"api_test.py": turns(tmp_path, *outcomes)}, tmp_path / "p", reruns=reruns, finished=told)
    run = told.runs["api_test.py"]
    assert told["api_test.py"]["test_a"] == right
    assert run.attempts == attempts
    logs = {path.name for path in (tmp_path / "p").iterdir()}
    assert logs == {"api_test.py.log", *(f"api_test.py.attempt-{number}.log" for number in range(2, attempts + 1))}
    if right in ("flaky", "failed"):
        assert re.search(r"first$|first\n|ended by SIGABRT", told.cases["api_test.py"][0].message)


def test_what_is_heard_while_files_run_is_told(tmp_path: Path) -> None:
    source = "class T(TestCase):\n" + "".join(f"    def test_{n}(self): time.sleep(0.2)\n" for n in range(4))
    heard: list[Progress] = []
    run_all({"api_test.py": source}, tmp_path / "p", finished=Told(), progress=heard.append)
    assert {progress.planned for progress in heard} <= {None, 4}
    done = [progress.done for progress in heard if progress.planned]
    assert done == sorted(done)
    assert {1, 2, 3} <= set(done)


def test_an_error_of_the_session_ends_all_files_and_nothing_later(tmp_path: Path) -> None:
    sources = {
        "fast.py": "class T(TestCase):\n    def test_a(self): pass\n",
        "slow.py": "class T(TestCase):\n    def test_a(self): time.sleep(60)\n",
    }
    told = Told()
    planned = threading.Event()

    def progress(now: Progress) -> None:
        if now.file == "slow.py" and now.planned:
            planned.set()

    def finished(run: Run, cases: list[Case]) -> None:
        told(run, cases)
        if run.file == "fast.py":
            planned.wait()
            raise OSError("disk full")

    start = time.monotonic()
    with pytest.raises(OSError, match="disk full"):
        run_all(sources, tmp_path / "p", finished=finished, progress=progress)
    assert time.monotonic() - start < 10
    assert (told.runs["slow.py"].state, told["slow.py"]) == (State.NOT_RUN, {"test_a": "not-run"})
    run_all({"fast.py": sources["fast.py"]}, tmp_path / "p", finished=told)
    assert told.runs["fast.py"].state is State.COMPLETE


def test_a_file_runs_again_when_it_is_alone(tmp_path: Path) -> None:
    times = str(tmp_path / "times")
    tell = f"with open({times!r}, 'a') as stream: print(__name__, file=stream)\n"
    sources = {
        "again.py": tell + turns(tmp_path, "self.fail('first')", "pass"),
        "other.py": f"time.sleep(1)\n{tell}class T(TestCase):\n    def test_a(self): pass\n",
    }
    told = Told()
    run_all(sources, tmp_path / "p", reruns=1, finished=told)
    assert told["again.py"]["test_a"] == "flaky"
    assert Path(times).read_text().split() == ["again", "other", "again"]


def test_a_rerun_that_is_stopped_takes_nothing_back(tmp_path: Path) -> None:
    second = tmp_path / "second"
    sources = {
        "again.py": turns(tmp_path, "self.fail('first')", f"open({str(second)!r}, 'w').close(); time.sleep(60)"),
        "other.py": "class T(TestCase):\n    def test_a(self): pass\n",
    }
    told = Told()

    def finished(run: Run, cases: list[Case]) -> None:
        told(run, cases)
        if run.file == "other.py":
            while not second.exists():
                time.sleep(0.01)
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run_all(sources, tmp_path / "p", reruns=1, finished=finished)
    assert told["again.py"] == {"test_a": "failed", "test_b": "passed"}
    assert (told.runs["again.py"].state, told.runs["again.py"].attempts) == (State.COMPLETE, 1)


INTERRUPTED = """
import pathlib, sys
from scripts import interrupts
from scripts.errors import Interrupted
from tests.running_support import run_all
interrupts.install()
slow = "class T(TestCase):\\n    def test_a(self): pass\\n    def test_b(self): time.sleep(60)\\n"
sources = {"fast.py": slow.replace("60", "0"), "slow.py": slow, "quiet.py": slow}
files = []
def told(run, cases):
    files.append(run.file)
    print(run.file, run.state.value, [case.outcome.value for case in cases], flush=True)
def progress(now):
    if files and now.file == "slow.py" and now.done: print("ready", flush=True)
try:
    run_all(sources, pathlib.Path(sys.argv[1]), reruns=1, sensitive=["quiet.py"], finished=told, progress=progress)
except Interrupted as interrupted:
    print(interrupted.signal_name)
"""


def signalled(number: int, folder: Path) -> list[str]:
    """Return what a session says that gets a signal while its second file runs."""
    (folder / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, folder / "p"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        text=True,
    ) as session:
        assert session.stdout is not None
        lines = []
        for line in session.stdout:
            lines.append(line)
            if line == "ready\n":
                break
        session.send_signal(number)
        start = time.monotonic()
        lines += session.communicate()[0].splitlines(keepends=True)
    assert time.monotonic() - start < 10
    return [line.strip() for line in lines if line != "ready\n"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_interruption_ends_at_once_and_keeps_what_was_learnt(name: str, tmp_path: Path) -> None:
    told = signalled(signal.Signals[name], tmp_path)
    assert (told[0], told[-1]) == ("fast.py complete ['passed', 'passed']", name)
    assert sorted(told[1:-1]) == ["quiet.py not-run ['passed', 'not-run']", "slow.py not-run ['passed', 'not-run']"]


def test_a_session_that_is_killed_leaves_no_folder(tmp_path: Path) -> None:
    assert signalled(signal.SIGKILL, tmp_path) == ["fast.py complete ['passed', 'passed']"]
    eventually(lambda: not list((tmp_path / "tmp").iterdir()))
