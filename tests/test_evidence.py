"""Which case reached which API, seen while the tests run; and what is evidence, and what is not."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from scripts import evidence, matrix, storage
from scripts.environment import Environment
from scripts.errors import ConfigError
from scripts.evidence import ApiEvidence, Evidence, Found, How, Touch, Watched
from scripts.matrix import Api, Batch, Kind, Matrix, Text, Upstream
from scripts.matrix import TestFile as File
from scripts.patching import Worktree
from scripts.preflight import Cann, Interpreter, Machine, Preflight
from scripts.results import Case, Outcome
from tests.running_support import pythons

FILE = "test/gadget_test.py"
APIS = {
    "gadget.configure": Kind.FUNCTION,
    "gadget.fetch": Kind.FUNCTION,
    "gadget.expires": Kind.CONTEXT_MANAGER,
    "gadget.bare": Kind.CONTEXT_MANAGER,
    "gadget.Guard": Kind.CONTEXT_MANAGER,
    "gadget.connection": Kind.CONTEXT_MANAGER,
    "gadget.Client.acquire": Kind.METHOD,
    "gadget.Client.named": Kind.METHOD,
    "gadget.Client.ratio": Kind.METHOD,
    "gadget.Client.plain": Kind.METHOD,
    "gadget.double": Kind.FUNCTION,
    "gadget.cached": Kind.FUNCTION,
    "gadget.late.call": Kind.FUNCTION,
    "gadget.Result": Kind.CLASS,
    "gadget.Point": Kind.CLASS,
    "gadget.GadgetError": Kind.CLASS,
}
# The package whose APIs are watched: its public names stand elsewhere than its code.
GADGET = {
    "test/gadget/__init__.py": "from gadget.api import *\n",
    "test/gadget/late.py": "def call():\n    pass\n",
    "test/gadget/api.py": '''\
import abc, contextlib, dataclasses, functools, inspect, typing

def configure(client):
    """Keeps a client."""
    global kept
    if client == "bad":
        raise ValueError(client)
    kept = client

async def fetch(channel, *, retries=3):
    for _ in range(retries):
        await channel
    return retries

@contextlib.contextmanager
def expires(after, client=None):
    if client is None:
        raise LookupError("no client")
    caller = inspect.stack()[1].function
    client.acquire(after)
    try:
        yield caller
    finally:
        with contextlib.suppress(KeyError):
            raise KeyError
        client.acquire(-1)

@contextlib.contextmanager
def bare():
    yield

class Guard:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        return kind is KeyError

@contextlib.asynccontextmanager
async def connection(channel):
    await channel
    yield channel
    await channel

class Client(abc.ABC):
    @abc.abstractmethod
    def acquire(self, scope):
        """Takes hold of a scope."""
    @classmethod
    def named(cls, name):
        return name
    @staticmethod
    def plain():
        pass
    @property
    def ratio(self):
        return 1

double = lambda number=1: 2 * number
cached = functools.lru_cache(maxsize=None)(double)

@dataclasses.dataclass
class Result:
    state: str
    failures: dict = dataclasses.field(default_factory=dict)

    def is_failed(self):
        return self.state == "failed"
    @property
    def count(self):
        return len(self.failures)

class Point(typing.NamedTuple):
    x: int
    y: int = 0

class GadgetError(Exception):
    pass
''',
}
# What every case below stands behind.
HEAD = """\
import asyncio, copy, dataclasses, functools, inspect, multiprocessing, os, pickle, signal, subprocess, sys, threading
import unittest, weakref
from unittest import mock
import gadget

class Local(gadget.Client):
    def acquire(self, scope):
        return scope

class Channel:
    def __await__(self):
        yield

def drive(coroutine):
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value

def work():
    gadget.configure(1)

def hang():
    with gadget.expires(1, Local()):
        os.kill(os.getpid(), signal.SIGKILL)

def run(method, target):
    child = multiprocessing.get_context(method).Process(target=target)
    child.start()
    child.join(60)
    return child.exitcode

def fork(target):
    pid = os.fork()
    if not pid:
        try:
            target()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)

LEFT = [threading.Event()]

def python(code):
    subprocess.run([sys.executable, "-c", code], check=True)
"""
# A case by name: its body, and what it is to be seen to show of which API. In brackets: through which override, and
# whether a child did so.
ACQUIRE = "Client.acquire: normal [gadget_test.Local]"
EXPIRES = "expires: client=explicit normal"
CASES: dict[str, tuple[str, list[str]]] = {
    "nothing": ("self.assertTrue(gadget.configure)", []),
    "function": ("gadget.configure(1)", ["configure: normal"]),
    "function that raises": (
        "self.assertRaises(ValueError, gadget.configure, 'bad')",
        ["configure: exception exception=ValueError"],
    ),
    "both ways": (
        "gadget.configure(1); self.assertRaises(ValueError, gadget.configure, 'bad')",
        ["configure: exception exception=ValueError normal"],
    ),
    "coroutine": ("self.assertEqual(3, drive(gadget.fetch(Channel())))", ["fetch: normal retries=default"]),
    "coroutine that was told": ("drive(gadget.fetch(Channel(), retries=0))", ["fetch: normal retries=explicit"]),
    "coroutine under asyncio": (
        "asyncio.run(gadget.fetch(asyncio.sleep(0), retries=1))",
        ["fetch: normal retries=explicit"],
    ),
    "coroutine that is broken off": (
        """
        coroutine = gadget.fetch(Channel())
        coroutine.send(None)
        self.assertRaises(ZeroDivisionError, coroutine.throw, ZeroDivisionError())
        """,
        ["fetch: exception exception=ZeroDivisionError retries=default"],
    ),
    "coroutine that never ran": ("gadget.fetch(Channel()).close()", []),
    "context manager": ("with gadget.expires(1, Local()): pass", [ACQUIRE, EXPIRES]),
    "context manager that refuses": (
        "with self.assertRaises(LookupError), gadget.expires(1): pass",
        ["expires: client=default exception exception=LookupError"],
    ),
    "context manager as decorator": ("gadget.bare()(work)()", ["bare: normal", "configure: normal"]),
    "context manager that was not entered": ("gadget.expires(1)", []),
    "exception through a context manager": (
        "with self.assertRaises(OSError), gadget.bare(): raise OSError",
        ["bare: exception exception=OSError"],
    ),
    "class as context manager": ("with gadget.Guard(): pass", ["Guard: normal"]),
    "class as context manager with an exception": (
        "with gadget.Guard(): raise KeyError",
        ["Guard: exception exception=KeyError normal"],
    ),
    "asynchronous context manager": (
        """
        async def use():
            async with gadget.connection(Channel()) as channel:
                await channel
        drive(use())
        """,
        ["connection: normal"],
    ),
    "override": ("Local().acquire(1)", [ACQUIRE]),
    "override of an override": (
        """
        class Remote(Local):
            def acquire(self, scope):
                return super().acquire(scope)
        Remote().acquire(1)
        """,
        ["Client.acquire: normal [gadget_test.GadgetTest.{}.<locals>.Remote] [gadget_test.Local]"],
    ),
    "decorated override": (
        """
        def logged(function):
            @functools.wraps(function)
            def wrapper(*arguments):
                return function(*arguments)
            return wrapper
        class Remote(gadget.Client):
            @logged
            def acquire(self, scope): pass
        Remote().acquire(1)
        """,
        ["Client.acquire: normal [gadget_test.GadgetTest.{}.<locals>.Remote]"],
    ),
    "override from beside": (
        """
        class Mixin:
            def acquire(self, scope): pass
        class Remote(Mixin, gadget.Client): pass
        Mixin().acquire(1)
        Remote().acquire(1)
        """,
        ["Client.acquire: normal [gadget_test.GadgetTest.{}.<locals>.Mixin]"],
    ),
    "namesakes": (
        """
        class Other:
            def acquire(self, scope): pass
        def acquire(client): pass
        Other().acquire(1)
        acquire(Local())
        threading.Lock().acquire()
        """,
        [],
    ),
    "abstract method": (
        """
        class Remote(gadget.Client):
            def acquire(self, scope):
                super().acquire(scope)
        Remote().acquire(1)
        """,
        ["Client.acquire: normal [gadget_test.GadgetTest.{}.<locals>.Remote]"],
    ),
    "static method": ("Local.plain()", ["Client.plain: normal"]),
    "lambda": ("gadget.double()", ["cached: normal number=default", "double: normal number=default"]),
    "import in the middle": ("import gadget.late; gadget.late.call()", ["late.call: normal"]),
    "class method": ("Local.named('a')", ["Client.named: normal"]),
    "property": ("Local().ratio", ["Client.ratio: normal"]),
    "mock that wraps": (
        """
        client = Local()
        client.acquire = mock.MagicMock(wraps=client.acquire)
        with gadget.expires(1, client): pass
        self.assertEqual([mock.call(1), mock.call(-1)], client.acquire.mock_calls)
        """,
        [ACQUIRE, EXPIRES],
    ),
    "mock that stands in": (
        "mock.create_autospec(Local, instance=True).acquire(1); mock.create_autospec(gadget.Result)('a').is_failed()",
        [],
    ),
    "mock in the place of an API": (
        "with mock.patch('gadget.configure') as configure: gadget.configure(1)",
        [],
    ),
    "construction": ("gadget.Result('done')", ["Result: failures=default normal"]),
    "construction of a subclass": (
        """
        class Special(gadget.Result):
            def __init__(self):
                self.state = "special"
        self.assertFalse(Special().is_failed())
        """,
        ["Result: normal read=is_failed read=state [gadget_test.GadgetTest.{}.<locals>.Special]"],
    ),
    "failed construction": ("self.assertRaises(TypeError, gadget.Result)", []),
    "reading": (
        """
        result = gadget.Result("failed", {0: 1})
        self.assertEqual(({0: 1}, 1), (result.failures, getattr(result, "count")))
        self.assertFalse(hasattr(result, "colour"))
        """,
        ["Result: failures=explicit normal read=count read=failures"],
    ),
    "reading what was made before": ("self.assertEqual('fixed', self.fixed.state)", ["Result: read=state"]),
    "reading by a method": (
        "self.assertTrue(gadget.Result('failed').is_failed())",
        ["Result: failures=default normal read=is_failed read=state"],
    ),
    "named tuple": ("self.assertEqual(0, gadget.Point(1).y)", ["Point: normal read=y y=default"]),
    "class without a constructor": (
        "self.assertEqual(('a',), gadget.GadgetError('a').args)",
        ["GadgetError: normal read=args"],
    ),
    "thread": ("thread = threading.Thread(target=work); thread.start(); thread.join()", ["configure: normal"]),
    "thread that is left behind": (
        "LEFT.append(threading.Thread(target=lambda: LEFT[0].wait() and work())); LEFT[1].start()",
        ["configure: normal"],
    ),
    "thread that is left behind, the case after": ("LEFT[0].set(); LEFT[1].join()", []),
    "fork": ("fork(work)", ["configure: normal [child]"]),
    "fork in a thread": (
        "thread = threading.Thread(target=fork, args=(work,)); thread.start(); thread.join()",
        ["configure: normal [child]"],
    ),
    "process that is forked": ("self.assertEqual(0, run('fork', work))", ["configure: normal [child]"]),
    "process that is spawned": ("self.assertEqual(0, run('spawn', work))", ["configure: normal [child]"]),
    "process of the fork server": ("self.assertEqual(0, run('forkserver', work))", ["configure: normal [child]"]),
    "another process of it": ("self.assertEqual(0, run('forkserver', work))", ["configure: normal [child]"]),
    "process that is killed": (
        "self.assertEqual(-9, run('fork', hang))",
        [f"{ACQUIRE} [child]", "expires: client=explicit [child]"],
    ),
    "interpreter": ("python('import gadget; gadget.configure(1)')", ["configure: normal [child]"]),
    "grandchild": (
        """python('import os, sys, subprocess; '
               'subprocess.run([sys.executable, "-c", "import gadget; gadget.configure(1)"], check=True)')""",
        ["configure: normal [child]"],
    ),
    "closed descriptors": ("fork(lambda: (os.closerange(3, 256), work()))", ["configure: normal [child]"]),
    "mocks everywhere": (
        """
        with mock.patch("os.open"), mock.patch("os.write"), mock.patch("os.getpid"), mock.patch("json.dumps"):
            work()
        """,
        ["configure: normal"],
    ),
    "import anew": (
        """
        import importlib
        before = gadget.api.configure
        for module in (gadget, gadget.api):
            self.addCleanup(vars(module).update, vars(module).copy())
        importlib.reload(gadget.api)
        importlib.reload(gadget)
        self.assertIsNot(before, gadget.configure)
        gadget.configure(1)
        """,
        ["configure: normal"],
    ),
    # What must be as if nobody watched:
    "pickles": (
        """
        result = pickle.loads(pickle.dumps(gadget.Result("done", {1: 2})))
        self.assertEqual(gadget.Result("done", {1: 2}), result)
        self.assertIs(gadget.Result, type(result))
        for api in (gadget.configure, gadget.expires, gadget.Result, Local.acquire):
            self.assertIs(api, pickle.loads(pickle.dumps(api)))
        self.assertEqual(gadget.Point(1), copy.copy(gadget.Point(1)))
        self.assertEqual("a", pickle.loads(pickle.dumps(gadget.GadgetError("a"))).args[0])
        """,
        [
            "GadgetError: normal read=args",
            "Point: normal y=default",
            "Result: failures=explicit normal read=failures read=state",
        ],
    ),
    "identity": (
        """
        self.assertEqual(["state", "failures"], [field.name for field in dataclasses.fields(gadget.Result)])
        self.assertEqual("(after, client=None)", str(inspect.signature(gadget.expires)))
        self.assertEqual(["client"], list(inspect.signature(gadget.configure).parameters))
        self.assertTrue(inspect.isfunction(gadget.configure) and inspect.isclass(gadget.Result))
        self.assertTrue(inspect.getsource(gadget.configure).startswith("def configure(client):"))
        self.assertEqual("Result(state='a', failures={})", repr(gadget.Result("a")))
        self.assertEqual((1, 0), gadget.Point(1))
        self.assertRaisesRegex(AttributeError, "'Result' object has no attribute 'colour'", lambda: self.fixed.colour)
        """,
        ["Point: normal y=default", "Result: failures=default normal read=failures read=state"],
    ),
    "stack": (
        """
        with gadget.expires(1, Local()) as caller:
            self.assertEqual("__enter__", caller)
        self.assertEqual(0, sum(frame.filename.endswith("watch.py") for frame in inspect.stack()[:3]))
        """,
        [ACQUIRE, EXPIRES],
    ),
    "garbage": (
        """
        result = gadget.Result("a")
        seen = weakref.ref(result)
        del result
        self.assertIsNone(seen())
        """,
        ["Result: failures=default normal"],
    ),
}


def method(name: str) -> str:
    return "test_" + "".join(character if character.isalpha() else "_" for character in name)


def source_of_cases() -> str:
    """Return the test file that has them all."""
    text = f"{HEAD}\nclass GadgetTest(unittest.TestCase):\n"
    text += "    @classmethod\n    def setUpClass(cls):\n        cls.fixed = gadget.Result('fixed')\n"
    for name, (body, _) in CASES.items():
        text += f"    def {method(name)}(self):\n{textwrap.indent(textwrap.dedent(body).strip(), ' ' * 8)}\n"
    return text


class Bench:
    """Test files to watch, in an environment of this machine's Python."""

    def __init__(self, python: str = sys.executable) -> None:
        self.python = Path(python)
        self.fingerprint = "venv"
        self.cann: Cann | None = None
        self.apis = [Api(name=name, kind=kind, does=Text(en="", zh="")) for name, kind in APIS.items()]
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1"}

    def watch(
        self,
        sources: Mapping[str, str],
        *,
        outcomes: Mapping[str, Outcome] = {},
        fresh: bool = False,
        limit: float = 60,
    ) -> Watched:
        """Watch test files; ``outcomes`` are the verdict's, by case of the first file."""
        pair = matrix.Pair(name="2.10.0", torch="2.10.0", torch_npu="2.10.0", python="3.11")
        files = [File(path=path, limit=limit, expected={}) for path in sources if path.endswith("_test.py")]
        batch = Batch(
            path=Path("matrix.toml"),
            matrix=Matrix(
                batch="small",
                title=Text(en="", zh=""),
                upstream=Upstream(repository=[]),
                pair=[pair],
                test_file=files,
                api=self.apis,
            ),
            pairs=(pair,),
        )
        machine = Machine(os="", machine="", kernel="", glibc="", cores=2, npu_devices=0, cann=self.cann)
        preflight = Preflight(
            machine=machine,
            interpreter=Interpreter(path="", version="", implementation="", machine="", libc=""),
            uv="",
            uv_env={},
            test_env=self.env,
            dropped=[],
            handed=[],
        )
        environment = Environment(
            python=self.python,
            fingerprint=self.fingerprint,
            torch="",
            torch_npu="",
            git_version=None,
            cuda=None,
            packages=[],
            reused=True,
        )
        every = {**GADGET, **sources}
        worktree = Worktree(files={path: text.encode() for path, text in every.items()}, patches={})
        cases = [case_of(files[0].path, name, outcome) for name, outcome in outcomes.items()]
        return evidence.watch(batch, preflight, environment, worktree, cases, fresh=fresh)


def case_of(file: str, name: str, outcome: Outcome = Outcome.PASSED) -> Case:
    cls, _, method = name.rpartition(".")
    return Case(file=file, cls=cls, name=method, outcome=outcome)


@functools.cache
def seen(version: str) -> tuple[Watched, Evidence]:
    """Return what comes of watching CASES with one Python."""
    bench = Bench(pythons()[version])
    watched = bench.watch({FILE: source_of_cases()})
    return watched, evidence.evidence_of(watched, watched.cases, bench.apis)


def told(found: Evidence, case: str) -> list[str]:
    """Return what one case is said to have shown, as CASES has it."""
    lines = []
    for api in found.apis:
        for reach in api.reached:
            if reach.name == method(case):
                brackets = [f" [{place}]" for place in (*reach.through, *(["child"] if reach.child else []))]
                lines.append(f"{api.api.removeprefix('gadget.')}: {' '.join(reach.behaviours)}{''.join(brackets)}")
    return sorted(lines)


@pytest.fixture(params=pythons())
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("case", CASES)
def test_what_a_case_reaches_is_seen(version: str, case: str) -> None:
    _, expected = CASES[case]
    assert told(seen(version)[1], case) == sorted(line.replace("{}", method(case)) for line in expected)


def test_every_case_passes_as_if_nobody_watched(version: str) -> None:
    watched, found = seen(version)
    assert {case.name: case.message for case in watched.cases if case.outcome is not Outcome.PASSED} == {}
    assert len(watched.cases) == len(CASES)
    assert found.findings == []
