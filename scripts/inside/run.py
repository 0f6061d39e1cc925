"""Runs one test file as ``python -m unittest <file>.py`` does, and writes what happens as JSON lines.

Usage: python run.py EVENTS STACKS SIGNAL FILE

EVENTS takes one JSON object per line, written as it happens, so that a SIGKILL loses nothing that was before it.
STACKS takes the stack of every thread whenever SIGNAL (a number) arrives. The exit status is unittest's.
"""

from __future__ import annotations

import collections.abc
import contextlib
import faulthandler
import fcntl
import io
import json
import os
import runpy
import sys
import time
import traceback
import unittest
from typing import Any, Iterator

MESSAGE_CHARACTERS = 20_000
# Once so much was said in one run, each message is cut to the second figure.
RUN_CHARACTERS, LATE_CHARACTERS = 32 << 20, 500
# Tests that close descriptors in bulk seldom go as far as this one.
HIGH_DESCRIPTOR = 512

# Tests put mocks in the place of what they like; recording works with what was there before.
_open, _write, _close, _fstat, _getpid, _monotonic = os.open, os.write, os.close, os.fstat, os.getpid, time.monotonic
_encode = json.JSONEncoder().encode


class Recorder:
    """Appends events to a file that is opened anew for each: tests may close every descriptor or change folder."""

    def __init__(self, path: str, module: str) -> None:
        self.path = path
        self.module = module
        self.start = _monotonic()
        self.room = RUN_CHARACTERS
        self.is_torn = False

    def __call__(self, event: str, **fields: Any) -> None:
        """Write one event; a process forked from the run is told apart by its ``pid``."""
        if "message" in fields:
            fields["message"] = words(fields["message"], MESSAGE_CHARACTERS if self.room > 0 else LATE_CHARACTERS)
            self.room -= len(fields["message"])
        about = {"event": event, "pid": _getpid(), "t": round(_monotonic() - self.start, 6)}
        line = ("\n" * self.is_torn + _encode({**about, **fields}) + "\n").encode()
        try:
            handle = _open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            # Out of descriptors, say. Outside, the case counts as planned and not reported; nothing is made up here.
            return
        try:
            self.is_torn = True
            self.is_torn = _write(handle, line) < len(line)
        except OSError:
            # The disk is full.
            pass
        finally:
            _close(handle)

    def key(self, test: Any) -> list[str]:
        """Return (class, method) of a test; the class with its module where that is not the test file's own.

        A test that has a name of its own, as a doctest or a FunctionTestCase has, goes by that one.
        """
        owner = type(test)
        is_own = owner.__module__ in (self.module, "__main__")
        cls = owner.__qualname__ if is_own else f"{owner.__module__}.{owner.__qualname__}"
        name = getattr(test, "_testMethodName", "")
        if getattr(owner, "id", None) is not unittest.TestCase.id:
            try:
                name = test.id()
            except Exception:
                name = name or getattr(test, "__name__", owner.__qualname__)
        return [words(cls), words(name)]


class Stacks:
    """Has the stack of every thread written to a file when a signal arrives; no thread waits for it, nor a lock."""

    def __init__(self, path: str, number: int) -> None:
        self.path = path
        self.number = number
        self.handle = -1
        self.inode = -1
        self.arm()

    def arm(self) -> None:
        """Make sure that the signal is heard: a test before may have closed the file."""
        try:
            if self.inode < 0 or not self._is_open():
                self.handle = high(_open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644))
                self.inode = _fstat(self.handle).st_ino
            faulthandler.register(self.number, file=self.handle, all_threads=True)
        except OSError:
            pass

    def _is_open(self) -> bool:
        try:
            return _fstat(self.handle).st_ino == self.inode
        except OSError:
            return False


class Console(io.TextIOBase):
    """Standard error, for unittest's own words: they may fail to be written, but a test that closed it goes on."""

    def __init__(self) -> None:
        self.handle = -1
        with contextlib.suppress(OSError):
            self.handle = high(os.dup(2))

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError):
            while data:
                data = data[_write(self.handle, data) :]
        return len(text)


def high(handle: int) -> int:
    """Move a descriptor out of the way of tests that close the low ones."""
    try:
        moved = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    except OSError:
        return handle
    _close(handle)
    return moved


def words(value: Any, limit: int = MESSAGE_CHARACTERS) -> str:
    """Return anything as text that every encoding can hold; of a long one the start and the end."""
    try:
        text = str(value)
    except Exception:
        text = f"({type(value).__name__}: its text could not be had)"
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def walk(suite: Any) -> Iterator[Any]:
    """Yield every test below ``suite`` in the order in which it will run."""
    if isinstance(suite, unittest.TestCase) or not hasattr(suite, "__iter__"):
        yield suite
        return
    if isinstance(getattr(suite, "_tests", None), collections.abc.Iterator):
        # Looking at such a suite would use it up.
        suite._tests = list(suite._tests)
    for test in suite:
        if test is not None:
            yield from walk(test)


def is_load_failure(test: Any) -> bool:
    """Return whether unittest made this test up to report a file that can't be loaded."""
    return type(test).__module__ == "unittest.loader" and type(test).__name__ == "_FailedTest"


class EventResult(unittest.TextTestResult):
    """unittest's own result, console output included, that records every event as well.

    An event is recorded before unittest prints it, so that nothing that goes wrong there is lost.
    """

    record: Recorder
    stacks: Stacks
    planned: list[Any]

    def startTest(self, test: Any) -> None:  # noqa: N802
        self.stacks.arm()
        if not is_load_failure(test):
            self.record("start", case=self.record.key(test))
        super().startTest(test)

    def stopTest(self, test: Any) -> None:  # noqa: N802
        if not is_load_failure(test):
            self.record("stop", case=self.record.key(test))
        super().stopTest(test)

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        self._tell(test, "passed", "")
        super().addSuccess(test)

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        self._tell(test, "error", self._exc_info_to_string(err, test))
        super().addError(test, err)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self._tell(test, "failed", self._exc_info_to_string(err, test))
        super().addFailure(test, err)

    def addSkip(self, test: Any, reason: Any) -> None:  # noqa: N802
        self._tell(test, "skipped", reason)
        super().addSkip(test, words(reason))

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self._tell(test, "xfailed", self._exc_info_to_string(err, test))
        super().addExpectedFailure(test, err)

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        self._tell(test, "xpassed", "unexpected success")
        super().addUnexpectedSuccess(test)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            kind = "failed" if issubclass(err[0], test.failureException) else "error"
            self._tell(subtest, kind, self._exc_info_to_string(err, test))
        super().addSubTest(test, subtest, err)

    def getDescription(self, test: Any) -> str:  # noqa: N802
        try:
            return super().getDescription(test)
        except Exception:
            # The parameters of a sub-test that can't be shown, say.
            return ".".join(self.record.key(getattr(test, "test_case", test)))

    def _exc_info_to_string(self, err: Any, test: Any) -> str:
        try:
            return str(super()._exc_info_to_string(err, test))  # type: ignore[misc]
        except Exception:
            return f"{err[0].__name__}: (its text could not be had)\n"

    def _tell(self, test: Any, outcome: str, message: Any) -> None:
        parent = getattr(test, "test_case", None)
        if parent is not None:
            about = {"case": self.record.key(parent), "subtest": describe(test)}
            self.record("outcome", outcome=outcome, message=message, **about)
        elif type(test).__name__ == "_ErrorHolder":
            self.record(
                "fixture",
                fixture=test.description,
                outcome=outcome,
                message=message,
                cases=self._below(test.description),
            )
        elif is_load_failure(test):
            self.record("collection-error", message=message)
        else:
            self.record("outcome", case=self.record.key(test), outcome=outcome, message=message)

    def _below(self, fixture: str) -> list[list[str]]:
        """Return the cases that a fixture is set up for, by unittest's description of it: ``setUpClass (module.T)``."""

        def is_below(test: Any) -> bool:
            owner = type(test)
            scopes = {"setUpModule": owner.__module__, "setUpClass": f"{owner.__module__}.{owner.__qualname__}"}
            return any(fixture == f"{name} ({scope})" for name, scope in scopes.items())

        return [self.record.key(test) for test in self.planned if is_below(test)]


def describe(subtest: Any) -> str:
    """Return the parameters of a sub-test as unittest shows them."""
    try:
        return words(subtest._subDescription())
    except Exception:
        return "(its parameters could not be shown)"


class EventRunner(unittest.TextTestRunner):
    """unittest's own runner, which tells what is planned before the first test starts."""

    resultclass = EventResult  # type: ignore[assignment]

    def __init__(self, **settings: Any) -> None:
        super().__init__(stream=Console(), **settings)

    def run(self, test: Any) -> Any:
        record = EventResult.record
        EventResult.planned = [case for case in walk(test) if not is_load_failure(case)]
        record("planned", cases=[record.key(case) for case in EventResult.planned])
        result = super().run(test)
        record("end", ran=result.testsRun, ok=result.wasSuccessful())
        return result


class EventProgram(unittest.TestProgram):
    """unittest's own program for this one run; those that tests start themselves are unittest's."""

    def __init__(self, **settings: Any) -> None:
        sys.modules["unittest.main"].main = unittest.TestProgram  # type: ignore[attr-defined]
        super().__init__(**settings)

    def createTests(self, *arguments: Any, **settings: Any) -> None:  # noqa: N802
        try:
            super().createTests(*arguments, **settings)
        except unittest.SkipTest as skip:
            EventResult.record("module-skipped", message=skip)
            raise
        except BaseException:
            EventResult.record("collection-error", message=traceback.format_exc())
            raise

    def runTests(self) -> None:  # noqa: N802
        self.testRunner = EventRunner
        super().runTests()


def main() -> None:
    """Run the file named by the last argument from the current folder."""
    events, stacks, number, file = sys.argv[1:]
    EventResult.record = Recorder(events, file[: -len(".py")])
    EventResult.record("begin")
    EventResult.stacks = Stacks(stacks, int(number))
    sys.modules["unittest.main"].main = EventProgram  # type: ignore[attr-defined]
    # As `python -m unittest` has them: the folder first on the path, and a __main__ that spawned children skip.
    sys.path[0] = os.getcwd()
    sys.argv = ["python -m unittest", file]
    runpy.run_module("unittest", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
