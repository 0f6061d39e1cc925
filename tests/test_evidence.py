"""Which case reached which API, seen while the tests run; and what is evidence, and what is not."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from scripts import evidence, matrix, storage
from scripts.errors import ConfigError
from scripts.evidence import Found, How, Touch, Watched
from scripts.matrix import Api, Batch, Kind, Matrix, Text, Upstream
from scripts.matrix import TestFile as File
from scripts.patching import Worktree
from scripts.preflight import INSIDE, Cann
from scripts.results import ApiEvidence, Case, Evidence, Outcome
from tests.conftest import ROOT
from tests.running_support import bare_environment, bare_preflight, pythons

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
    "gadget.Client.size": Kind.METHOD,
    "gadget.Client.plain": Kind.METHOD,
    "gadget.odd": Kind.FUNCTION,
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
    @functools.cached_property
    def size(self):
        return 3
    @staticmethod
    def plain():
        pass
    @property
    def ratio(self):
        return 1

def odd(number, *, step=1):
    "Has statements of many kinds."
    total = 0
    def add(to_add):
        """Adds."""
        nonlocal total
        if to_add < 0: raise ValueError
        elif to_add == 0:
            return "nothing"
        else:
            total += (
                to_add
            )
    class Inner:
        """Stands inside."""
        kept = step
        def get(self): return super().__hash__() and self.kept
    for each in range(number): add(each)
    while total > 100:
        total -= 1
    else:
        total += 0
    kept = (
        10 // total
    )
    return total, Inner().get(), add.__doc__

def double(number=1):
    return 2 * number

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
import traceback, unittest, weakref
from unittest import mock
import gadget

class Local(gadget.Client):
    def acquire(self, scope):
        return scope

@dataclasses.dataclass
class Coloured(gadget.Result):
    colour: str = "blue"

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
    with gadget.Guard(), gadget.expires(1, Local()):
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
    "function of many kinds of statements": (
        "self.assertEqual((3, 2, 'Adds.'), gadget.odd(3, step=2))",
        ["odd: normal step=explicit"],
    ),
    "function that is left in the middle of a statement": (
        "self.assertRaises(ZeroDivisionError, gadget.odd, 0)",
        ["odd: exception exception=ZeroDivisionError step=default"],
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
    "context manager that is abandoned": (
        "manager = gadget.expires(1, Local()); manager.__enter__(); del manager",
        [ACQUIRE, "expires: client=explicit"],
    ),
    "class as context manager that is only made": ("gadget.Guard()", []),
    "class as context manager": ("with gadget.Guard(): pass", ["Guard: normal"]),
    "class as context manager with an exception": (
        "with gadget.Guard(): raise KeyError",
        ["Guard: exception exception=KeyError"],
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
    "cached function": ("gadget.cached()", ["cached: normal number=default", "double: normal number=default"]),
    "import in the middle": ("import gadget.late; gadget.late.call()", ["late.call: normal"]),
    "class method": ("Local.named('a')", ["Client.named: normal"]),
    "property": ("Local().ratio", ["Client.ratio: normal"]),
    "cached property": ("client = Local(); client.size, client.size", ["Client.size: normal"]),
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
    "construction that is refused": ("self.assertRaises(TypeError, gadget.Result)", []),
    "construction that fails": (
        """
        class Special(gadget.Result):
            def __setattr__(self, name, value):
                raise OSError
        self.assertRaises(OSError, Special, "a")
        """,
        ["Result: exception exception=OSError failures=default [gadget_test.GadgetTest.{}.<locals>.Special]"],
    ),
    "construction of a subclass that is decorated": (
        "self.assertEqual('red', Coloured('a', colour='red').colour)",
        ["Result: normal read=colour [gadget_test.Coloured]"],
    ),
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
    "fork after the same": ("work(); fork(work)", ["configure: normal [child]"]),
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
        [f"{ACQUIRE} [child]", "expires: client=explicit [child]", "Guard: [child]"],
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
        self.assertTrue(inspect.iscoroutinefunction(gadget.fetch))
        self.assertEqual("SourceFileLoader", type(gadget.__loader__).__name__)
        self.assertIs(gadget.__loader__, gadget.__spec__.loader)
        self.assertEqual("Keeps a client.", gadget.configure.__doc__)
        self.assertTrue(inspect.getsource(gadget.configure).startswith("def configure(client):"))
        self.assertEqual("Result(state='a', failures={})", repr(gadget.Result("a")))
        self.assertEqual((1, 0), gadget.Point(1))
        self.assertRaisesRegex(AttributeError, "'Result' object has no attribute 'colour'", lambda: self.fixed.colour)
        """,
        ["Point: normal y=default", "Result: failures=default normal read=failures read=state"],
    ),
    "tracebacks": (
        """
        def steps(call):
            try:
                call()
            except (ValueError, OSError) as error:
                return [(step.name, step.line) for step in traceback.extract_tb(error.__traceback__)]
        def throw():
            with gadget.bare():
                raise OSError
        self.assertEqual([("configure", "raise ValueError(client)")], steps(lambda: gadget.configure("bad"))[2:])
        self.assertEqual(["steps", "throw"], [name for name, _ in steps(throw)])
        """,
        ["bare: exception exception=OSError", "configure: exception exception=ValueError"],
    ),
    "speed": (
        "self.assertEqual((None, None), (sys.gettrace(), sys.getprofile()))",
        [],
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
        preflight = bare_preflight(self.env, cann=self.cann)
        environment = bare_environment(self.python, self.fingerprint)
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
                behaviours = [f" {behaviour}" for behaviour in reach.behaviours]
                lines.append(f"{api.api.removeprefix('gadget.')}:{''.join([*behaviours, *brackets])}")
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


@pytest.mark.parametrize(
    ("api", "case", "executed"),
    [
        ("configure", "function", ['if client == "bad":', "kept = client"]),
        ("configure", "function that raises", ['if client == "bad":', "raise ValueError(client)"]),
        (
            "expires",
            "context manager",
            [
                "if client is None:",
                "caller = inspect.stack()[1].function",
                "client.acquire(after)",
                "try:",
                "yield caller",
                "with contextlib.suppress(KeyError):",
                "raise KeyError",
                "client.acquire(-1)",
            ],
        ),
        ("fetch", "coroutine that was told", ["for _ in range(retries):", "return retries"]),
        ("Result", "reading by a method", ['return self.state == "failed"']),
        ("Client.acquire", "abstract method", []),
        (
            "odd",
            "function of many kinds of statements",
            [
                "total = 0",
                "def add(to_add):",
                "if to_add < 0: raise ValueError",
                "elif to_add == 0:",
                'return "nothing"',
                "total += (",
                "class Inner:",
                "kept = step",
                "def get(self): return super().__hash__() and self.kept",
                "for each in range(number): add(each)",
                "while total > 100:",
                "total += 0",
                "kept = (",
                "return total, Inner().get(), add.__doc__",
            ],
        ),
        (
            "odd",
            "function that is left in the middle of a statement",
            [
                "total = 0",
                "def add(to_add):",
                "class Inner:",
                "kept = step",
                "def get(self): return super().__hash__() and self.kept",
                "for each in range(number): add(each)",
                "while total > 100:",
                "total += 0",
                "kept = (",
            ],
        ),
        ("cached", "cached function", ["return 2 * number"]),
    ],
)
def test_lines_are_those_of_the_api_that_passing_cases_executed(
    version: str, api: str, case: str, executed: list[str]
) -> None:
    """Declarations and docstrings are no lines that could be executed."""
    watched, _ = seen(version)
    bench = Bench()
    passed = [case_of(FILE, f"GadgetTest.{method(case)}")]
    found = {entry.api: entry for entry in evidence.evidence_of(watched, passed, bench.apis).apis}[f"gadget.{api}"]
    source = GADGET["test/gadget/api.py"].splitlines()
    assert [source[number - 1].strip() for number in found.executed] == executed
    assert found.source == "test/gadget/api.py"


def test_lines_that_could_be_executed_are_counted_alike_everywhere(version: str) -> None:
    lines = {entry.api.removeprefix("gadget."): len(entry.lines) for entry in seen(version)[1].apis}
    assert lines == {
        "configure": 3,
        "fetch": 3,
        "expires": 9,
        "bare": 1,
        "Guard": 2,
        "connection": 3,
        "Client.acquire": 0,
        "Client.named": 1,
        "Client.ratio": 1,
        "Client.size": 1,
        "Client.plain": 1,
        "odd": 15,
        "double": 1,
        "cached": 1,
        "late.call": 1,
        "Result": 2,
        "Point": 0,
        "GadgetError": 0,
    }


def test_members_of_a_class_are_known_whether_they_are_read_or_not() -> None:
    found = {entry.api: entry for entry in seen(min(pythons()))[1].apis}
    assert found["gadget.Result"].members == ["count", "failures", "is_failed", "state"]
    assert found["gadget.Point"].read == ["y"]
    assert {"x", "y"} <= set(found["gadget.Point"].members)


# One test file at a time


@pytest.fixture
def bench() -> Bench:
    return Bench()


def calling(body: str, *, head: str = "") -> str:
    """Return a test file with one case."""
    text = f"import os, sys, time, unittest\nfrom pathlib import Path\nimport gadget\n{head}\n"
    return f"{text}class T(unittest.TestCase):\n    def test_a(self):\n{textwrap.indent(body, ' ' * 8)}\n"


def touched(watched: Watched) -> set[str]:
    """Return the APIs that were left, by case."""
    return {f"{touch.name}: {touch.api}" for touch in watched.touches if touch.how is How.LEFT}


def test_a_case_that_is_loaded_twice_has_its_number(bench: Bench) -> None:
    body = "gadget.configure(1) if Path('second').exists() else Path('second').touch()"
    twice = "def load_tests(*_):\n    return unittest.TestSuite([T('test_a'), T('test_a')])\n"
    watched = bench.watch({FILE: calling(body) + twice})
    assert touched(watched) == {"test_a [2]: gadget.configure"}
    assert [case.name for case in watched.cases] == ["test_a", "test_a [2]"]


def test_a_child_that_comes_back_into_the_runner_stays_that_of_its_case(bench: Bench) -> None:
    more = "    def test_b(self):\n        gadget.configure(1)\n"
    watched = bench.watch({FILE: calling("os.fork()") + more})
    assert {(touch.name, touch.child) for touch in watched.touches} == {("test_b", False), ("test_a", True)}


def test_a_mock_that_stands_for_an_api_for_a_while_does_not_hide_it(bench: Bench) -> None:
    body = "with mock.patch('gadget.configure'):\n    import gadget.late\ngadget.configure(1)"
    watched = bench.watch({FILE: calling(body, head="from unittest import mock")})
    (found,) = (entry for entry in watched.found if entry.api == "gadget.configure")
    assert (found.watched, len(found.statements)) == (True, 3)
    assert touched(watched) == {"test_a: gadget.configure"}


def test_test_files_of_one_name_have_their_own_cases(bench: Bench) -> None:
    one, other = "test/one/gadget_test.py", "test/other/gadget_test.py"
    path = "sys.path.insert(0, os.path.abspath('..'))"
    files = {one: calling("gadget.configure(1)"), other: calling("pass")}
    watched = bench.watch({name: f"import os, sys\n{path}\n{text}" for name, text in files.items()})
    assert {touch.key for touch in watched.touches} == {(one, "T", "test_a")}
    assert len(watched.cases) == 2


def test_what_a_python_path_brings_is_kept_for_children(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.greeting = 'hello'\n")
    bench.env["PYTHONPATH"] = str(tmp_path)
    # Debian's Python has one of its own.
    code = """
import gadget, os, sys, sysconfig
gadget.configure(1)
assert greeting == "hello"
places = [place for place in sys.path if os.path.exists(f"{place}/sitecustomize.py")]
assert set(places) - {sysconfig.get_path("stdlib")} == {sys.argv[1]}, sys.path
"""
    body = f"import subprocess\nsubprocess.run([sys.executable, '-c', {code!r}, {str(tmp_path)!r}], check=True)"
    watched = bench.watch({FILE: calling(body)})
    assert [case.message for case in watched.cases] == [""]
    assert touched(watched) == {"test_a: gadget.configure"}


def test_code_whose_source_has_changed_is_left_alone(bench: Bench) -> None:
    bench.python = Path(pythons()[min(pythons())])
    moving = """
import gadget, pathlib
here = pathlib.Path(__file__)
here.write_text(here.read_text().replace("return 'first'", "return 'other'"))
class Remote(gadget.Client):
    def acquire(self, scope):
        return 'first'
"""
    body = "import moving\nself.assertEqual('first', moving.Remote().acquire(1))"
    watched = bench.watch({FILE: calling(body), "test/moving.py": moving})
    assert [(case.outcome, case.message) for case in watched.cases] == [(Outcome.PASSED, "")]


@pytest.mark.parametrize(
    ("body", "finding"),
    [
        ("os._exit(3)", "crashed while it was watched: exited with 3 in T.test_a"),
        ("os.kill(os.getpid(), 9)", "crashed while it was watched: ended by SIGKILL in T.test_a"),
        ("time.sleep(60)", "timeout while it was watched: ended at the time limit in T.test_a"),
        ("class Odd(gadget.Client, metaclass=Meta): pass", "a fault of the watcher: _join: RuntimeError: no line"),
    ],
)
def test_what_spoils_watching_is_told_and_what_was_seen_is_kept(bench: Bench, body: str, finding: str) -> None:
    odd = """
class Meta(type(gadget.Client)):
    @property
    def __mro__(cls):
        raise RuntimeError("no line")
"""
    watched = bench.watch({FILE: calling(f"gadget.configure(1)\n{body}", head=odd)}, limit=1)
    assert watched.findings == [f"{FILE}: {finding}"]
    assert touched(watched) == {"test_a: gadget.configure"}


# What is kept


class Noted:
    """A test file that notes each time that its case is run."""

    def __init__(self, folder: Path, body: str) -> None:
        self.note = folder / "runs"
        self.note.touch()
        note = f"with open({str(self.note)!r}, 'a') as stream:\n    stream.write('.')\n"
        self.source = calling(f"{note}runs = os.path.getsize({str(self.note)!r})\n{body}")

    @property
    def runs(self) -> int:
        return len(self.note.read_text())


def test_a_second_answer_needs_no_run_unless_it_is_to_be_fresh(bench: Bench, tmp_path: Path) -> None:
    file = Noted(tmp_path, "gadget.configure(1)")
    first = bench.watch({FILE: file.source})
    assert touched(first) == {"test_a: gadget.configure"}
    assert (bench.watch({FILE: file.source}), file.runs) == (first, 1)
    assert (bench.watch({FILE: file.source}, fresh=True), file.runs) == (first, 2)
    bench.python = Path("/nonexistent/python")
    assert bench.watch({FILE: file.source}) == first


@pytest.mark.parametrize("change", ["tree", "venv", "apis", "cann", "garbled", "watcher"])
def test_an_answer_is_that_of_this_venv_worktree_and_these_apis_only(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    file = Noted(tmp_path, "gadget.configure(1)")
    others: dict[str, str] = {}
    bench.watch({FILE: file.source})
    match change:
        case "tree":
            others["test/beside.py"] = ""
        case "venv":
            bench.fingerprint = "another venv"
        case "apis":
            del bench.apis[-1]
        case "cann":
            bench.cann = Cann(home="/cann", version="8.5.0")
        case "garbled":
            (record,) = (storage.cache_root() / "evidence").iterdir()
            record.write_bytes(record.read_bytes()[:-9])
        case "watcher":
            another = shutil.copytree(INSIDE, tmp_path / "inside")
            monkeypatch.setattr("scripts.evidence.INSIDE", another)
            with (another / "watch.py").open("a") as stream:
                stream.write("# another\n")
    assert touched(bench.watch({FILE: file.source, **others})) == {"test_a: gadget.configure"}
    assert file.runs == 2


@pytest.mark.parametrize(
    ("verdict", "body", "runs", "apis"),
    [
        (Outcome.PASSED, "gadget.configure(1)", 1, {"configure"}),
        (Outcome.FAILED, "gadget.configure(1); self.fail()", 1, {"configure"}),
        (Outcome.PASSED, "gadget.configure(1); self.fail()", evidence.ATTEMPTS, {"configure"}),
        (Outcome.FLAKY, "gadget.configure(1); self.fail()", evidence.ATTEMPTS, {"configure"}),
        (
            Outcome.PASSED,
            "gadget.configure(1) or self.fail() if runs < 2 else gadget.double()",
            2,
            {"configure", "double"},
        ),
    ],
)
def test_what_passes_but_fails_while_it_is_watched_is_watched_again(
    bench: Bench, tmp_path: Path, verdict: Outcome, body: str, runs: int, apis: set[str]
) -> None:
    file = Noted(tmp_path, body)
    watched = bench.watch({FILE: file.source}, outcomes={"T.test_a": verdict})
    assert file.runs == runs
    assert {touch.api.removeprefix("gadget.") for touch in watched.touches if touch.how is How.LEFT} - {
        "cached"
    } == apis
    assert len(watched.cases) == 1


def test_an_answer_of_a_file_that_failed_by_chance_is_not_believed(bench: Bench, tmp_path: Path) -> None:
    file = Noted(tmp_path, "self.assertGreater(runs, 1)\ngadget.configure(1)")
    assert touched(bench.watch({FILE: file.source}, outcomes={"T.test_a": Outcome.FAILED})) == set()
    assert touched(bench.watch({FILE: file.source}, outcomes={"T.test_a": Outcome.PASSED})) == {
        "test_a: gadget.configure"
    }


# What is evidence

CONFIGURE = "gadget.configure"


def touch(name: str, how: How, detail: str = "", *, through: str = "", child: bool = False) -> Touch:
    return Touch(file=FILE, cls="T", name=name, api=CONFIGURE, how=how, detail=detail, through=through, child=child)


def judged(
    touches: Sequence[Touch],
    outcomes: Mapping[str, Outcome],
    *,
    require: Sequence[str] = (),
    behaviours: Sequence[str] = (),
    found: Found | None = Found(api=CONFIGURE),  # noqa: B008
) -> ApiEvidence:
    api = Api(
        name=CONFIGURE,
        kind=Kind.FUNCTION,
        does=Text(en="", zh=""),
        require=[f"{FILE}::{case}" for case in require],
        require_behaviours=list(behaviours),
    )
    watched = Watched(found=[found] if found else [], touches=list(touches))
    cases = [case_of(FILE, f"T.{name}", outcome) for name, outcome in outcomes.items()]
    (only,) = evidence.evidence_of(watched, cases, [api]).apis
    return only


ENDED = [touch("test_a", How.ENTERED), touch("test_a", How.LEFT)]
PASSED = {"test_a": Outcome.PASSED}


@pytest.mark.parametrize(
    ("touches", "outcomes", "problem"),
    [
        (ENDED, PASSED, None),
        (ENDED, {"test_a": Outcome.FLAKY}, None),
        ([touch("test_a", How.RAISED, "OSError")], PASSED, None),
        ([touch("test_a", How.CONSTRUCTED)], PASSED, None),
        ([touch("test_a", How.READ, "state")], PASSED, None),
        ([*ENDED, touch("test_b", How.LEFT)], {"test_a": Outcome.FAILED, "test_b": Outcome.PASSED}, None),
        ([], PASSED, "no case reached it"),
        *(
            (ENDED, {"test_a": outcome}, f"no case that reached it passed: {FILE}::T.test_a ({outcome.value})")
            for outcome in Outcome
            if outcome not in (Outcome.PASSED, Outcome.FLAKY)
        ),
        (ENDED, {}, f"no case that reached it passed: {FILE}::T.test_a (not-run)"),
        (
            [*ENDED[:1], touch("test_a", How.DEFAULT, "read"), touch("test_a", How.LINE, "1")],
            PASSED,
            "passing cases entered it, but were not seen to leave it",
        ),
        (
            [touch("test_a", How.ENTERED), touch("test_b", How.LEFT)],
            {"test_a": Outcome.PASSED, "test_b": Outcome.ERROR},
            "passing cases entered it, but were not seen to leave it",
        ),
    ],
)
def test_only_passing_cases_that_came_through_are_evidence(
    touches: list[Touch], outcomes: dict[str, Outcome], problem: str | None
) -> None:
    assert judged(touches, outcomes).problems == ([f"{CONFIGURE}: {problem}"] if problem else [])


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (None, "no test file imports it"),
        (Found(api=CONFIGURE, watched=False), "it has no Python source that could be watched"),
    ],
)
def test_an_api_that_could_not_be_watched_has_no_evidence(found: Found | None, problem: str) -> None:
    assert judged([], PASSED, found=found).problems == [f"{CONFIGURE}: {problem}"]


@pytest.mark.parametrize(
    ("case", "outcomes", "problem"),
    [
        ("T.test_a", PASSED, None),
        ("T.test_b", PASSED, "is not there"),
        ("T.test_b", {**PASSED, "test_b": Outcome.SKIPPED}, "is skipped"),
        ("T.test_b", {**PASSED, "test_b": Outcome.PASSED}, "did not reach it"),
    ],
)
def test_a_required_case_passes_and_reaches_the_api(
    case: str, outcomes: dict[str, Outcome], problem: str | None
) -> None:
    expected = [f"{CONFIGURE}: {FILE}::{case}, which is required, {problem}"] if problem else []
    assert judged(ENDED, outcomes, require=[case]).problems == expected


@pytest.mark.parametrize(
    ("behaviour", "shown"),
    [
        ("normal", touch("test_a", How.LEFT)),
        ("normal", touch("test_a", How.CONSTRUCTED)),
        ("exception", touch("test_a", How.RAISED, "OSError")),
        ("exception=OSError", touch("test_a", How.RAISED, "OSError")),
        ("read=state", touch("test_a", How.READ, "state")),
        ("client=default", touch("test_a", How.DEFAULT, "client")),
        ("client=explicit", touch("test_a", How.EXPLICIT, "client")),
    ],
)
def test_a_required_behaviour_is_shown_by_a_passing_case(behaviour: str, shown: Touch) -> None:
    other = touch("test_b", How.RAISED, "KeyError") if behaviour == "normal" else touch("test_b", How.LEFT)
    outcomes = {"test_a": Outcome.PASSED, "test_b": Outcome.PASSED}
    assert judged([shown, other], outcomes, behaviours=[behaviour]).problems == []
    assert judged([shown, other], {**outcomes, "test_a": Outcome.FAILED}, behaviours=[behaviour]).problems == [
        f"{CONFIGURE}: no passing case shows {behaviour}"
    ]


def test_cases_that_reached_an_api_stand_in_the_order_of_the_run_with_all_that_they_showed() -> None:
    touches = [touch("test_a", How.LEFT, child=True), touch("test_b", How.READ, "state", through="b.B")]
    touches += [touch("test_a", How.EXPLICIT, "client", through="a.A")]
    reached = judged(touches, {"test_b": Outcome.FAILED, "test_c": Outcome.PASSED, "test_a": Outcome.PASSED}).reached
    assert [(reach.name, reach.outcome, reach.behaviours, reach.through, reach.child) for reach in reached] == [
        ("test_b", Outcome.FAILED, ["read=state"], ["b.B"], False),
        ("test_a", Outcome.PASSED, ["client=explicit", "normal"], ["a.A"], True),
    ]


@pytest.mark.parametrize(
    ("verdict", "watched", "finding"),
    [
        (Outcome.PASSED, Outcome.PASSED, None),
        (Outcome.FLAKY, Outcome.PASSED, None),
        (Outcome.PASSED, Outcome.FAILED, "is passed, but failed while it is watched: AssertionError: 1"),
        (Outcome.FAILED, Outcome.PASSED, "is failed, but passed while it is watched: AssertionError: 1"),
        (None, Outcome.PASSED, "is not there, but passed while it is watched: AssertionError: 1"),
    ],
)
def test_a_case_that_ends_otherwise_while_it_is_watched_is_told(
    verdict: Outcome | None, watched: Outcome, finding: str | None
) -> None:
    ended = msgspec.structs.replace(case_of(FILE, "T.test_a", watched), message="AssertionError: 1")
    cases = [case_of(FILE, "T.test_a", verdict)] if verdict else []
    found = evidence.evidence_of(Watched(cases=[ended]), cases, []).findings
    assert found == ([f"{FILE}::T.test_a {finding}"] if finding else [])


# What a batch may ask for

BATCH = """
batch = "small"
title = { en = "Small", zh = "小" }
pair = [{ torch = "2.10.0", torch-npu = "2.10.0", python = "3.11" }]
upstream.repository = ["trees"]
test-file = [{ path = "test/a_test.py", limit = 1, expected = { "2.10.0" = 1 } }]
api = [{ name = "torch.f", kind = "function", does = { en = "f", zh = "f" }, REQUIRE }]
"""


def test_requirements_are_read(tmp_path: Path) -> None:
    path = tmp_path / "matrix.toml"
    require = (
        'require = ["test/a_test.py::T.test_a"], require-behaviours = ["normal", "exception=OSError", "a=default"]'
    )
    path.write_text(BATCH.replace("REQUIRE", require), encoding="utf-8")
    (api,) = matrix.load(path).matrix.api
    assert api.require == ["test/a_test.py::T.test_a"]
    assert api.require_behaviours == ["normal", "exception=OSError", "a=default"]


@pytest.mark.parametrize(
    ("require", "problem"),
    [
        ('require = ["T.test_a"]', "require: 'T.test_a' is not a case such as 'a_test.py::SomeTest.test_it'"),
        (
            'require = ["test/a_test.py::T"]',
            "require: 'test/a_test.py::T' is not a case such as 'a_test.py::SomeTest.test_it'",
        ),
        ('require = ["test/b_test.py::T.test_a"]', "require: no such test file; did you mean 'test/a_test.py'?"),
        ('require = "T"', "require: expected an array, found a string"),
        *(
            (
                f'require-behaviours = ["{wrong}"]',
                f"require-behaviours: '{wrong}' is nothing like 'normal', 'exception=ValueError', 'client=default' or "
                "'read=state'",
            )
            for wrong in ("fast", "=default", "client=", "client = default", "1=2")
        ),
    ],
)
def test_a_requirement_that_means_nothing_is_told(tmp_path: Path, require: str, problem: str) -> None:
    path = tmp_path / "matrix.toml"
    path.write_text(BATCH.replace("REQUIRE", require), encoding="utf-8")
    with pytest.raises(ConfigError) as wrong:
        matrix.load(path)
    assert wrong.value.problems == (f"matrix.toml: api[torch.f].{problem}",)


def test_the_documents_ten_claims_are_required() -> None:
    apis = matrix.load(ROOT / "matrix.toml").matrix.api
    claims = {"RunResult": 2, "TimerRequest": 1, "configure": 2, "expires": 3, "acquire": 1, "release": 1}
    assert {api.name.rpartition(".")[2]: len(api.require) for api in apis} == claims
