"""Imports torch as the tests will, and collects (never runs) test files as they would be on other machines.

Usage: python collect.py ORDER ANSWER, two paths of JSON files. ORDER is ``{"items": [{"folder", "file", "machine"}]}``;
ANSWER holds ``torch`` (versions, or why the import failed) and ``items``, in the order asked for: the cases, the
cases marked as skipped, the error if the file can't be loaded, and the file's global flags.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
import unittest
from typing import Any, Iterator

FORK_SECONDS = 300


def torch_facts() -> dict[str, Any]:
    """Import torch and return what it says of itself, or ``{"error": traceback}``."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except BaseException as error:
        return {"error": traceback.format_exc(), "summary": f"{type(error).__name__}: {error}"}
    facts: dict[str, Any] = {
        "version": str(torch.__version__),
        "git_version": getattr(torch.version, "git_version", None),
        "cuda": getattr(torch.version, "cuda", None),
        "npu_loaded": "torch_npu" in sys.modules,
        "npu_count": 0,
        "npu_name": None,
    }
    if facts["npu_loaded"]:
        try:
            facts["npu_count"] = torch.npu.device_count()
            facts["npu_name"] = torch.npu.get_device_name(0) if facts["npu_count"] else None
        except Exception as error:
            facts["npu_error"] = f"{type(error).__name__}: {error}"
    return facts


def pretend(machine: str) -> None:
    """Make this process believe that it runs on ``machine``."""
    real = platform.uname()
    platform.machine = lambda: machine
    platform.uname = lambda: real._replace(machine=machine)
    system = os.uname()
    os.uname = lambda: os.uname_result((*system[:4], machine))


def walk(suite: Any) -> Iterator[unittest.TestCase]:
    """Yield every test below ``suite``."""
    if isinstance(suite, unittest.TestCase):
        yield suite
        return
    for test in suite:
        if test is not None:
            yield from walk(test)


def is_marked(test: unittest.TestCase) -> bool:
    """Return whether a test carries a skip decorator that is in force, on its method or its class."""
    method = getattr(test, getattr(test, "_testMethodName", ""), None)
    return bool(getattr(type(test), "__unittest_skip__", False) or getattr(method, "__unittest_skip__", False))


def collect(file: str) -> dict[str, Any]:
    """Load a file of the current folder as ``python -m unittest`` does."""
    sys.path[0] = os.getcwd()
    module = file[:-3]
    loader = unittest.TestLoader()
    try:
        tests = list(walk(loader.loadTestsFromNames([module])))
    except BaseException as error:
        return {"cases": [], "marked": 0, "error": f"{type(error).__name__}: {error}", "flags": {}}
    tests = [test for test in tests if type(test).__name__ != "_FailedTest"]
    values = vars(sys.modules[module]) if module in sys.modules else {}
    return {
        "cases": sorted(f"{type(test).__qualname__}.{getattr(test, '_testMethodName', test.id())}" for test in tests),
        "marked": sum(is_marked(test) for test in tests),
        "error": "\n".join(map(str, loader.errors)),
        "flags": {name: value for name, value in values.items() if isinstance(value, (bool, int, str))},
    }


def collect_in_child(item: dict[str, str]) -> dict[str, Any]:
    """Collect one item in a forked child: what it imports or pretends is gone afterwards."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        answer: dict[str, Any] = {"cases": [], "marked": 0, "error": "collection ended early", "flags": {}}
        try:
            os.close(reading)
            pretend(item["machine"])
            os.chdir(item["folder"])
            answer = collect(item["file"])
        finally:
            with os.fdopen(writing, "w") as stream:
                json.dump(answer, stream)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    try:
        return dict(json.loads(text))
    except ValueError:
        return {"cases": [], "marked": 0, "error": "the process that collected the file crashed", "flags": {}}


def main() -> None:
    """Answer the order."""
    with open(sys.argv[1]) as stream:
        order = json.load(stream)
    facts = torch_facts()
    items = [] if "error" in facts else [collect_in_child(item) for item in order["items"]]
    with open(sys.argv[2], "w") as stream:
        json.dump({"torch": facts, "items": items}, stream)


if __name__ == "__main__":
    main()
