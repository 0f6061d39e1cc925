"""Imports torch as the tests will, and collects (never runs) test files as they would be on other machines.

Usage: python collect.py ORDER ANSWER, two paths of JSON files.

ORDER is ``{"items": [{"name", "folder", "file", "machine", "limit"}]}``. ANSWER holds ``torch`` (versions, or why the
import failed) and ``items``, in the order asked for: the cases, how many are marked as skipped, the error if the file
can't be loaded, the values that its guards may use, and whether it came to an end by itself.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import platform
import signal
import sys
import time
import traceback
import types
import unittest
from typing import Any, Iterator, Optional

TICK_SECONDS = 0.005
VALUE_CHARACTERS, ERROR_CHARACTERS = 200, 4000

# Test files may put something else in the place of these while they are imported.
_encode, _getpid, _exit, _open, _write = json.JSONEncoder().encode, os.getpid, os._exit, os.open, os.write


def import_torch() -> dict[str, Any]:
    """Import torch and return what it says of itself, or ``{"error": traceback}``."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]

        return {
            "version": str(torch.__version__),
            "git_version": getattr(torch.version, "git_version", None),
            "cuda": getattr(torch.version, "cuda", None),
            "npu_loaded": "torch_npu" in sys.modules,
            "npu_count": 0,
            "npu_name": None,
        }
    except BaseException as error:
        return {"error": plain(traceback.format_exc()), "summary": plain(f"{type(error).__name__}: {error}")}


def npu_facts() -> dict[str, Any]:
    """Ask the NPU. It comes last: what it starts in this process must not be in the forked ones."""
    torch = sys.modules["torch"]
    try:
        count = torch.npu.device_count()
        return {"npu_count": count, "npu_name": str(torch.npu.get_device_name(0)) if count else None}
    except Exception as error:
        return {"npu_error": plain(f"{type(error).__name__}: {error}")}


def plain(text: str) -> str:
    """Return text that JSON can hold for every reader."""
    return text[-ERROR_CHARACTERS:].encode("utf-8", "backslashreplace").decode()


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
    with open(file, "rb") as stream:
        source = stream.read()
    loader = unittest.TestLoader()
    error = ""
    tests: list[unittest.TestCase] = []
    values: Optional[dict[str, Any]] = None
    try:
        tests = [test for test in walk(loader.loadTestsFromNames([module])) if type(test).__name__ != "_FailedTest"]
        error = "\n".join(map(str, loader.errors))
    except BaseException as failure:
        # A file that skips itself as a whole has no case, and no error.
        error = "" if isinstance(failure, unittest.SkipTest) else f"{type(failure).__name__}: {failure}"
        values = values_when_it_failed(failure, file)
    if values is None:
        values = getattr(sys.modules.get(module), "__dict__", {})
    return {
        "cases": sorted(
            plain(f"{type(test).__qualname__}.{getattr(test, '_testMethodName', test.id())}") for test in tests
        ),
        "marked": sum(is_marked(test) for test in tests),
        "error": plain(error),
        "flags": dict(flags(source, values)),
        "ended": True,
    }


def values_when_it_failed(failure: BaseException, file: str) -> Optional[dict[str, Any]]:
    """Return the global values of a file at the line of it that raised ``failure``."""
    trace = failure.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == "<module>" and os.path.basename(code.co_filename) == file:
            return trace.tb_frame.f_globals
        trace = trace.tb_next
    return None


def flags(source: bytes, values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a guard may be made of, by its name in the file: ``IS_ARM64``, or ``common_utils.IS_ARM64``."""
    names = [name for name in values if not name.startswith("__")]
    with contextlib.suppress(SyntaxError, ValueError):
        names += [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    for name in names:
        value = look_up(name, values)
        if type(value) in (bool, int, str):
            yield plain(name), ascii(value)[:VALUE_CHARACTERS]


def look_up(name: str, values: dict[str, Any]) -> Any:
    """Return what a dotted name stands for, as far as it leads through modules."""
    first, *rest = name.split(".")
    value = values.get(first)
    for part in rest:
        if not isinstance(value, types.ModuleType):
            return None
        try:
            value = getattr(value, part)
        except Exception:
            return None
    return value


def collect_in_child(item: dict[str, Any], place: str) -> dict[str, Any]:
    """Collect one item in a forked child, which answers in the file ``place``.

    What it imports or pretends is gone afterwards; when it crashes or hangs, only this item is lost.
    """
    lost: dict[str, Any] = {"cases": [], "marked": 0, "flags": {}, "ended": False}
    child = os.fork()
    if not child:
        own = _getpid()
        try:
            os.setsid()
            pretend(item["machine"])
            os.chdir(item["folder"])
            try:
                found = collect(item["file"])
            except BaseException as error:
                found = {**lost, "ended": True, "error": plain(f"{type(error).__name__}: {error}")}
            data = _encode(found).encode()
            # A test file may fork while it is imported.
            if _getpid() == own:
                _write_all(_open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), data)
        finally:
            _exit(0)
    end = time.monotonic() + item["limit"]
    status = None
    while status is None:
        ended, code = os.waitpid(child, os.WNOHANG)
        if ended:
            status = code
        elif time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {**lost, "error": f"still being collected after {item['limit']:g} s"}
        else:
            time.sleep(TICK_SECONDS)
    try:
        with open(place) as stream:
            return dict(json.load(stream))
    except (OSError, ValueError):
        how = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        told = f"ended by {signal.Signals(how).name}" if how else f"exited with {os.WEXITSTATUS(status)}"
        return {**lost, "error": f"{told} while it was collected"}


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[_write(handle, data) :]


def main() -> None:
    """Answer the order."""
    with open(sys.argv[1]) as stream:
        order = json.load(stream)
    torch = import_torch()
    items: list[dict[str, Any]] = []
    hung: dict[str, dict[str, Any]] = {}
    for item in order["items"] if "error" not in torch else []:
        # A file that hung once is not waited for again.
        found = hung.get(item["name"]) or collect_in_child(item, f"{sys.argv[2]}.{len(items)}")
        if found["error"].startswith("still"):
            hung[item["name"]] = found
        items.append(found)
    if torch.get("npu_loaded"):
        torch.update(npu_facts())
    with open(sys.argv[2], "w") as stream:
        json.dump({"torch": torch, "items": items}, stream)


if __name__ == "__main__":
    main()
