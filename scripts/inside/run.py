"""Runs one test file as ``python -m unittest <file>.py`` does, and writes what happens as JSON lines.

Usage: python run.py EVENTS STACKS LIMIT FILE

EVENTS takes one JSON object per line, written as it happens, so that a SIGKILL loses nothing that was before it.
STACKS takes the stack of every thread when LIMIT seconds are over. The exit status is unittest's.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import sys
import time
import traceback
import unittest
import unittest.runner
from typing import Any, Iterator

MESSAGE_CHARACTERS = 20_000


class Recorder:
    """Appends events to a file that is opened anew for each: tests may close every descriptor or change folder."""

    def __init__(self, path: str, module: str) -> None:
        self.path = path
        self.module = module
        self.start = time.monotonic()
        self.has_runner = False

    def __call__(self, event: str, **fields: Any) -> None:
        """Write one event; a process forked from the run is told apart by its ``pid``."""
        about = {"event": event, "pid": os.getpid(), "t": round(time.monotonic() - self.start, 6)}
        line = json.dumps({**about, **fields}, ensure_ascii=True) + "\n"
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            # Out of descriptors, say. Outside, the case counts as planned and not reported; nothing is made up here.
            return
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def key(self, test: Any) -> list[str]:
        """Return (class, method) of a test; the class with its module where that is not the test file's own."""
        owner = type(test)
        name = getattr(test, "_testMethodName", None)
        if not isinstance(name, str) or owner is unittest.FunctionTestCase:
            return [owner.__qualname__, str(test.id())]
        if owner.__module__ in (self.module, "__main__"):
            return [owner.__qualname__, name]
        return [f"{owner.__module__}.{owner.__qualname__}", name]


def walk(suite: Any) -> Iterator[Any]:
    """Yield every test below ``suite`` in the order in which it will run."""
    if isinstance(suite, unittest.TestCase) or not hasattr(suite, "__iter__"):
        yield suite
        return
    for test in suite:
        if test is not None:
            yield from walk(test)


def is_load_failure(test: Any) -> bool:
    """Return whether unittest made this test up to report a file that can't be loaded."""
    return type(test).__module__ == "unittest.loader" and type(test).__name__ == "_FailedTest"


def cut(text: str) -> str:
    """Return the start and the end of a long text."""
    if len(text) <= MESSAGE_CHARACTERS:
        return text
    half = MESSAGE_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def make_result_class(record: Recorder) -> Any:
    """Return unittest's own result class, console output included, that records every event as well.

    An event is recorded before unittest prints it: a test may have closed the console.
    """

    class EventResult(unittest.TextTestResult):
        def startTest(self, test: Any) -> None:  # noqa: N802
            if not is_load_failure(test):
                record("start", case=record.key(test))
            super().startTest(test)

        def stopTest(self, test: Any) -> None:  # noqa: N802
            if not is_load_failure(test):
                record("stop", case=record.key(test))
            super().stopTest(test)

        def addSuccess(self, test: Any) -> None:  # noqa: N802
            self._record(test, "passed", "")
            super().addSuccess(test)

        def addError(self, test: Any, err: Any) -> None:  # noqa: N802
            self._record(test, "error", self._words(err, test))
            super().addError(test, err)

        def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
            self._record(test, "failed", self._words(err, test))
            super().addFailure(test, err)

        def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
            self._record(test, "skipped", str(reason))
            super().addSkip(test, reason)

        def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
            self._record(test, "xfailed", self._words(err, test))
            super().addExpectedFailure(test, err)

        def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
            self._record(test, "xpassed", "unexpected success")
            super().addUnexpectedSuccess(test)

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
            if err is not None:
                kind = "failed" if issubclass(err[0], test.failureException) else "error"
                self._record(subtest, kind, self._words(err, test))
            super().addSubTest(test, subtest, err)

        def _words(self, err: Any, test: Any) -> str:
            try:
                return str(super()._exc_info_to_string(err, test))  # type: ignore[misc]
            except Exception:
                # An exception whose own __str__ fails, say.
                return f"{err[0].__name__}: (its text could not be had)"

        def _record(self, test: Any, outcome: str, message: str) -> None:
            message = cut(message)
            parent = getattr(test, "test_case", None)
            if parent is not None:
                record("outcome", case=record.key(parent), outcome=outcome, message=message, subtest=describe(test))
            elif type(test).__name__ == "_ErrorHolder":
                record("fixture", fixture=test.description, outcome=outcome, message=message)
            elif is_load_failure(test):
                record("collection-error", message=message)
            else:
                record("outcome", case=record.key(test), outcome=outcome, message=message)

    return EventResult


def describe(subtest: Any) -> str:
    """Return the parameters of a sub-test as unittest shows them."""
    try:
        return str(subtest._subDescription())
    except Exception:
        return "(its parameters could not be shown)"


def make_runner_class(record: Recorder) -> Any:
    """Return unittest's own runner class, which tells what is planned before the first test starts."""
    plain = unittest.TextTestRunner

    class EventRunner(plain):  # type: ignore[misc, valid-type]
        def run(self, test: Any) -> Any:
            unittest.runner.TextTestRunner = plain  # type: ignore[misc]
            if record.has_runner:
                # A test that runs a suite of its own is no part of the plan.
                return super().run(test)
            record.has_runner = True
            self.resultclass = make_result_class(record)
            record("planned", cases=[record.key(case) for case in walk(test) if not is_load_failure(case)])
            result = super().run(test)
            record("end", ran=result.testsRun, ok=result.wasSuccessful())
            return result

    return EventRunner


def main() -> None:
    """Run the file named by the last argument from the current folder."""
    events, stacks, limit, file = sys.argv[1:]
    record = Recorder(events, file[: -len(".py")])
    record("begin", python=sys.version.split()[0], file=file)
    faulthandler.dump_traceback_later(float(limit), file=open(stacks, "w"))
    unittest.runner.TextTestRunner = make_runner_class(record)  # type: ignore[misc]
    # As `python -m unittest` has them: the folder first on the path, and a __main__ that spawned children skip.
    sys.path[0] = os.getcwd()
    sys.argv = ["python -m unittest", file]
    try:
        runpy.run_module("unittest", run_name="__main__", alter_sys=True)
    except unittest.SkipTest as skip:
        record("module-skipped", message=cut(str(skip)))
        raise
    except Exception:
        record("collection-error", message=cut(traceback.format_exc()))
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
