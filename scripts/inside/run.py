"""Runs one test file as ``python -m unittest <file>.py`` does, and writes what happens as JSON lines.

Usage: python run.py EVENTS STACKS LIMIT FILE

EVENTS takes one JSON object per line, written and flushed as it happens, so that a SIGKILL loses nothing that was
before it. STACKS takes the stack of every thread when LIMIT seconds are over. The exit status is unittest's.
"""

import faulthandler
import json
import os
import runpy
import sys
import time
import traceback
import unittest
import unittest.runner

MESSAGE_CHARACTERS = 20_000


class Recorder:
    """Appends events to a file that is opened anew for each: tests may close every descriptor or change folder."""

    def __init__(self, path):
        self.path = path
        self.pid = os.getpid()
        self.start = time.monotonic()

    def __call__(self, event, **fields):
        fields = {"event": event, "pid": os.getpid(), "t": round(time.monotonic() - self.start, 6), **fields}
        line = json.dumps(fields, ensure_ascii=True) + "\n"
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            # Out of descriptors, say. The outside sees the case as planned and not reported; nothing is made up here.
            return
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def key_of(test):
    """Return (class, method) of a test; the class with its module where that is not the test file's own."""
    owner = type(test)
    module = owner.__module__
    name = getattr(test, "_testMethodName", None)
    if not isinstance(name, str) or owner is unittest.FunctionTestCase:
        return [owner.__qualname__, str(test.id())]
    if module in (MODULE, "__main__"):
        return [owner.__qualname__, name]
    return [module + "." + owner.__qualname__, name]


def walk(suite):
    """Yield every test below ``suite`` in the order in which it will run."""
    if isinstance(suite, unittest.TestCase) or not hasattr(suite, "__iter__"):
        yield suite
        return
    for test in suite:
        if test is not None:
            for inner in walk(test):
                yield inner


def is_load_failure(test):
    return type(test).__module__ == "unittest.loader" and type(test).__name__ == "_FailedTest"


def cut(text):
    """Return the start and the end of a long text."""
    if len(text) <= MESSAGE_CHARACTERS:
        return text
    half = MESSAGE_CHARACTERS // 2
    return text[:half] + "\n[... {} characters left out ...]\n".format(len(text) - 2 * half) + text[-half:]


class EventResult(unittest.TextTestResult):
    """unittest's own result, console output included, that records every event as well."""

    def startTest(self, test):
        record("start", case=key_of(test))
        super().startTest(test)

    def stopTest(self, test):
        super().stopTest(test)
        record("stop", case=key_of(test))

    def addSuccess(self, test):
        super().addSuccess(test)
        self._outcome(test, "passed", "")

    def addError(self, test, err):
        super().addError(test, err)
        self._outcome(test, "error", self._exc_info_to_string(err, test))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._outcome(test, "failed", self._exc_info_to_string(err, test))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._outcome(test, "skipped", str(reason))

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self._outcome(test, "xfailed", self._exc_info_to_string(err, test))

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self._outcome(test, "xpassed", "unexpected success")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            kind = "failed" if issubclass(err[0], test.failureException) else "error"
            self._outcome(subtest, kind, self._exc_info_to_string(err, test))

    def _outcome(self, test, outcome, message):
        parent = getattr(test, "test_case", None)
        if parent is not None:
            label = test._subDescription()
            record("outcome", case=key_of(parent), outcome=outcome, message=cut(message), subtest=label)
        elif isinstance(test, unittest.suite._ErrorHolder):
            record("fixture", fixture=test.description, outcome=outcome, message=cut(message))
        elif is_load_failure(test):
            record("collection-error", message=cut(message))
        else:
            record("outcome", case=key_of(test), outcome=outcome, message=cut(message))


class EventRunner(unittest.TextTestRunner):
    """unittest's own runner, which tells what is planned before the first test starts."""

    def run(self, test):
        unittest.runner.TextTestRunner = unittest.TextTestRunner
        if EventRunner.used:
            # A test that runs a suite of its own is no part of the plan.
            return super().run(test)
        EventRunner.used = True
        self.resultclass = EventResult
        record("planned", cases=[key_of(case) for case in walk(test) if not is_load_failure(case)])
        result = super().run(test)
        record("end", ran=result.testsRun, ok=result.wasSuccessful())
        return result

    used = False


def main():
    """Run the file named by the last argument from the current folder."""
    global record, MODULE
    events, stacks, limit, file = sys.argv[1:]
    record = Recorder(events)
    MODULE = file[:-3]
    record("begin", python=sys.version.split()[0], file=file)
    stream = open(stacks, "w")
    faulthandler.dump_traceback_later(float(limit), file=stream)
    unittest.runner.TextTestRunner = EventRunner
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
