"""What an API is in a venv, who has touched it, and what became of it from one pair to the next."""

from __future__ import annotations

import json
import os
import subprocess
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

from scripts import apis, replacing, storage
from scripts.apis import ApiFacts, ApiReport, Change
from scripts.matrix import Api, Batch, Kind, Matrix, Text, Upstream
from scripts.preflight import INSIDE, Cann
from tests import stubs
from tests.running_support import autoload, bare_environment, bare_preflight, pythons

TIMER = """\
import contextlib


@contextlib.contextmanager
def expires(after, scope=None):
    yield


class TimerClient:
    def acquire(self, scope: str) -> None:
        pass
"""
EXPIRES = "torch.timer.expires"
ACQUIRE = "torch.timer.TimerClient.acquire"


class Bench:
    """A stub of torch and torch_npu on the path, and APIs in it to look at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.python = Path(sys.executable)
        self.fingerprint = "venv"
        self.cann: Cann | None = None

    def install(self, files: Mapping[str, str], npu: str = stubs.TORCH_NPU) -> None:
        """Install torch with ``files`` in it (by their path below torch/) and torch_npu with ``npu`` as its module."""
        within = {f"torch/{path}": textwrap.dedent(text) for path, text in files.items()}
        for wheel in (
            stubs.torch_wheel(self.folder, "2.10.0+cpu", files=within),
            stubs.torch_npu_wheel(self.folder, "2.10.0", "2.10.0+cpu", source=textwrap.dedent(npu)),
        ):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(self.site)

    def look(self, *names: str, kinds: Mapping[str, Kind] = {}) -> ApiReport:
        """Return what is said of the APIs; ``kinds`` are those of matrix.toml."""
        both = Text(en="A test.", zh="测试。")
        matrix = Matrix(
            batch="apis",
            title=both,
            upstream=Upstream(repository=[]),
            pair=[],
            test_file=[],
            api=[Api(name=name, kind=kinds.get(name, Kind.CONTEXT_MANAGER), does=both) for name in names],
        )
        env = {"PATH": os.defpath, "PYTHONPATH": str(self.site)} | autoload(self.cann)
        preflight = bare_preflight(env, cann=self.cann)
        environment = bare_environment(self.python, self.fingerprint)
        return apis.look(Batch(path=self.folder / "matrix.toml", matrix=matrix, pairs=()), preflight, environment)

    def see(self, name: str) -> ApiFacts:
        """Return what is said of one API."""
        report = self.look(name)
        assert report.problem == ""
        (facts,) = report.apis
        return facts


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.install({"timer.py": TIMER})
    return made


# What it is

KINDS = {
    "function": ("def api(a, *, b: int = 1) -> str: ...", "function", "(a, *, b: int = 1) -> str", [], []),
    "built in": ("from math import sqrt as api", "function", "(x, /)", [], []),
    "context manager": (
        "import contextlib\n@contextlib.contextmanager\ndef api(after=1.0): yield",
        "context-manager",
        "(after=1.0)",
        [],
        [],
    ),
    "context manager, decorated again": (
        """\
        import contextlib, functools
        def noted(function):
            @functools.wraps(function)
            def inner(*args): return function(*args)
            return inner
        @noted
        @contextlib.contextmanager
        def api(after): yield
        """,
        "context-manager",
        "(after)",
        [],
        [],
    ),
    "function that is decorated": (
        """\
        import functools
        @functools.lru_cache
        def api(after): pass
        """,
        "function",
        "(after)",
        [],
        [],
    ),
    "dataclass": (
        """\
        import dataclasses
        @dataclasses.dataclass
        class api:
            state: int
            failures: dict = dataclasses.field(default_factory=dict)
            name: str = "x"
            def is_failed(self) -> bool: ...
        """,
        "dataclass",
        "(state: int, failures: dict = <factory>, name: str = 'x') -> None",
        ["state: int", "failures: dict = dict()", "name: str = 'x'"],
        ["is_failed(self) -> bool"],
    ),
    "attrs-like class": (
        """\
        class NOTHING: pass
        NOTHING.__name__ = "_Nothing"
        class Factory: factory = list
        class Attribute:
            def __init__(self, name, type, default):
                self.name, self.type, self.default = name, type, default
        class api:
            __attrs_attrs__ = (
                Attribute("a", int, NOTHING()), Attribute("b", "str", 2), Attribute("c", list, Factory())
            )
            def __init__(self, a, b=2): ...
        """,
        "class",
        "(a, b=2)",
        ["a: int", "b: str = 2", "c: list = list()"],
        [],
    ),
    "named tuple": (
        "import typing\nclass api(typing.NamedTuple):\n    a: int\n    b: str = 'x'",
        "class",
        "(a: int, b: str = 'x')",
        ["a: int", "b: str = 'x'"],
        [],
    ),
    "slots": (
        "class api:\n    __slots__ = ('worker_id', 'scope_id', '__weakref__')",
        "class",
        "()",
        ["worker_id", "scope_id"],
        [],
    ),
    "members": (
        """\
        import abc
        class Base(abc.ABC):
            @abc.abstractmethod
            def acquire(self, scope: str): ...
            def release(self): ...
        class api(Base):
            LIMIT = 3
            @property
            def size(self): ...
            @classmethod
            def make(cls, n): ...
            @staticmethod
            def of(n): ...
            class Inner: ...
            def release(self, scope): ...
            def _private(self): ...
        """,
        "class",
        "()",
        [],
        [
            "type Inner",
            "int LIMIT",
            "abstract acquire(self, scope: str)",
            "classmethod make(cls, n)",
            "staticmethod of(n)",
            "release(self, scope)",
            "property size",
        ],
    ),
}


def test_kind_signature_fields_and_members_are_told(bench: Bench) -> None:
    bench.install({f"a{number}.py": source for number, (source, *_) in enumerate(KINDS.values())})
    told = zip(KINDS, bench.look(*(f"torch.a{number}.api" for number in range(len(KINDS)))).apis, strict=True)
    assert {what: (facts.kind, facts.signature, facts.fields, facts.members) for what, facts in told} == {
        what: row[1:] for what, row in KINDS.items()
    }


def test_the_members_of_an_enumeration_are_its_values(bench: Bench) -> None:
    bench.install({"a.py": "import enum\nclass api(str, enum.Enum):\n    UP = 'up'\n    DOWN = 'down'"})
    assert bench.see("torch.a.api").fields == ["UP = 'up'", "DOWN = 'down'"]
    assert bench.see("torch.a.api").members == []


def test_what_belongs_to_a_class_is_told_by_its_kind(bench: Bench) -> None:
    source = """\
    class T:
        LIMIT = 1
        def method(self): ...
        @classmethod
        def made(cls): ...
        @property
        def size(self): ...
    """
    bench.install({"a.py": source})
    wanted = {
        "torch.a.T.method": "method",
        "torch.a.T.made": "method",
        "torch.a.T.size": "property",
        "torch.a.T.LIMIT": "object",
        "torch.a.T": "class",
        "torch.a": "module",
    }
    assert {facts.name: facts.kind for facts in bench.look(*wanted).apis} == wanted


SAID = {
    "class": ("class api: ...", Kind.CLASS, ""),
    "class, not function": ("class api: ...", Kind.FUNCTION, "it is a class, matrix.toml says function"),
    "class that with does not take": (
        "class api: ...",
        Kind.CONTEXT_MANAGER,
        "it is a class, matrix.toml says context-manager",
    ),
    "class that with takes": (
        "class api:\n    def __enter__(self): ...\n    def __exit__(self, *_): ...",
        Kind.CONTEXT_MANAGER,
        "",
    ),
    "dataclass": ("import dataclasses\n@dataclasses.dataclass\nclass api: ...", Kind.CLASS, ""),
    "function": ("def api(): ...", Kind.FUNCTION, ""),
    "function, not method": ("def api(): ...", Kind.METHOD, "it is a function, matrix.toml says method"),
    "generator": ("def api(): yield", Kind.CONTEXT_MANAGER, "it is a function, matrix.toml says context-manager"),
    "context manager": ("import contextlib\n@contextlib.contextmanager\ndef api(): yield", Kind.FUNCTION, ""),
    "asynchronous context manager": (
        "import contextlib\n@contextlib.asynccontextmanager\nasync def api(): yield",
        Kind.CONTEXT_MANAGER,
        "",
    ),
}


def test_another_kind_than_matrix_toml_says_is_a_problem(bench: Bench) -> None:
    bench.install({f"a{number}.py": source for number, (source, *_) in enumerate(SAID.values())})
    kinds = {f"torch.a{number}.api": kind for number, (_, kind, _) in enumerate(SAID.values())}
    told = zip(SAID, bench.look(*kinds, kinds=kinds).apis, strict=True)
    assert {what: facts.problem for what, facts in told} == {what: problem for what, (_, _, problem) in SAID.items()}


def test_where_an_api_stands_is_where_its_source_is_not_its_public_name(bench: Bench) -> None:
    api = (
        "import functools\n\n\ndef noted(f):\n    return functools.wraps(f)(lambda: f())\n\n\n@noted\ndef api(): ...\n"
    )
    bench.install({"a/__init__.py": "from .impl import api", "a/impl.py": api})
    facts = bench.see("torch.a.api")
    assert (facts.module, facts.file, facts.line) == ("torch.a.impl", "torch/a/impl.py", 8)


def test_the_source_digest_is_that_of_the_api_alone(bench: Bench) -> None:
    def digests(source: str) -> tuple[str | None, str | None]:
        bench.install({"a.py": source})
        bench.fingerprint += "x"
        facts = bench.see("torch.a.T.api")
        return facts.source_sha256, facts.file_sha256

    first = digests("class T:\n    def api(self):\n        return 1\n")
    moved = digests("X = 1\n\n\nclass T:\n    def api(self):\n        return 1\n")
    other = digests("class T:\n    def api(self):\n        return 2\n")
    assert first[0] == moved[0] != other[0]
    assert len({first[1], moved[1], other[1]}) == 3


def test_what_differs_from_process_to_process_is_left_out(bench: Bench) -> None:
    bench.install({"a.py": "def api(a=object(), b={'x', 'y', 'z', 'w'}): ..."})
    assert bench.see("torch.a.api").signature == "(a=<object object at 0x…>, b=set('w', 'x', 'y', 'z'))"


@pytest.mark.parametrize("version", pythons())
def test_every_python_that_a_pair_may_have_says_the_same(bench: Bench, version: str, tmp_path: Path) -> None:
    order, answer = tmp_path / "order", tmp_path / "answer"
    order.write_text(json.dumps({"apis": [EXPIRES, ACQUIRE], "replacers": ["torch_npu"]}))
    argv = [pythons()[version], str(INSIDE / "describe.py"), str(order), str(answer)]
    env = {"PYTHONPATH": str(bench.site), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run(argv, env=env, check=True)
    expires, acquire = json.loads(answer.read_text())["apis"]
    assert (expires["kind"], expires["signature"], expires["line"]) == ("context-manager", "(after, scope=None)", 4)
    assert (acquire["kind"], acquire["signature"], acquire["line"]) == ("method", "(self, scope: str) -> None", 10)


# Names that can't be imported


@pytest.mark.parametrize(
    ("files", "name", "problem"),
    [
        ({}, "torch.timer.nothing", "AttributeError: torch.timer has no 'nothing'"),
        ({}, "torch.nothing.api", "AttributeError: torch has no 'nothing'"),
        ({}, "torch.timer.TimerClient.nothing", "AttributeError: torch.timer.TimerClient has no 'nothing'"),
        ({}, "nothing.api", "ModuleNotFoundError: No module named 'nothing'"),
        ({"a.py": "import nothing"}, "torch.a.api", "ModuleNotFoundError: No module named 'nothing'"),
        ({"a.py": "raise SystemExit('no')"}, "torch.a.api", "SystemExit: no"),
        ({"a.py": "import os; os._exit(3)"}, "torch.a.api", "exited with 3 while it was imported"),
        ({"a.py": "import ctypes; ctypes.string_at(0)"}, "torch.a.api", "ended by SIGSEGV while it was imported"),
    ],
)
def test_a_name_that_cannot_be_imported_says_why_and_spoils_no_other(
    bench: Bench, files: dict[str, str], name: str, problem: str
) -> None:
    bench.install({"timer.py": TIMER, **files})
    bad, good = bench.look(name, EXPIRES).apis
    assert (bad.importable, bad.problem) == (False, problem)
    assert (bad.kind, bad.file, bad.record_ok) == ("", "", None)
    assert (good.importable, good.problem) == (True, "")


def test_an_attribute_comes_before_a_submodule_of_the_same_name_as_for_a_user(bench: Bench) -> None:
    bench.install(
        {"a/__init__.py": "from .api import api", "a/api.py": "def api(): ...", "b/__init__.py": "", "b/c.py": ""}
    )
    assert bench.see("torch.a.api").kind == "function"
    assert bench.see("torch.b.c").kind == "module"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise ImportError('libgomp.so.1')", "torch can't be imported: ImportError: libgomp.so.1"),
        ("import os; print('last words', flush=True); os._exit(7)", "looks at the APIs ended with 7: last words"),
    ],
)
def test_without_torch_nothing_is_known(bench: Bench, source: str, problem: str) -> None:
    bench.install({"__init__.py": source})
    report = bench.look(EXPIRES)
    assert problem in report.problem
    assert report.apis == []


def test_without_a_python_nothing_is_known(bench: Bench) -> None:
    bench.python = Path("/nonexistent/python")
    assert "/nonexistent/python" in bench.look(EXPIRES).problem


# What it pulls in


def test_the_modules_that_an_api_pulls_in_are_those_that_torch_alone_does_not(bench: Bench) -> None:
    bench.install(
        {
            "__init__.py": f"{stubs.TORCH}\nimport torch.cuda, colorsys\n",
            "cuda/__init__.py": "",
            "cuda/graphs.py": "",
            "a.py": "import colorsys, neighbour, torch.cuda.graphs\nclass api: ...",
            "b.py": "class api: ...",
        }
    )
    (bench.site / "neighbour.py").touch()
    first, second = bench.look("torch.a.api", "torch.b.api").apis
    assert first.modules == ["neighbour", "torch.a", "torch.cuda.graphs"]
    assert first.device_modules == ["torch.cuda.graphs"]
    assert (second.modules, second.device_modules) == (["torch.b"], [])


def test_a_device_that_an_import_starts_is_told(bench: Bench) -> None:
    bench.install(
        {
            "__init__.py": f"{stubs.TORCH}\nimport torch.cuda\n",
            "cuda.py": "STARTED = []\ndef is_initialized(): return bool(STARTED)",
            "a.py": "import torch\ntorch.cuda.STARTED.append(1)\nclass api: ...",
            "b.py": "class api: ...",
        }
    )
    assert [facts.device_modules for facts in bench.look("torch.a.api", "torch.b.api").apis] == [
        ["torch.cuda (started)"],
        [],
    ]


@pytest.mark.parametrize(
    ("module", "is_one"),
    [
        ("torch_npu", True),
        ("torch_npu.npu", True),
        ("acl", True),
        ("triton.language", True),
        ("torch.cuda.graphs", True),
        ("torch_npux", False),
        ("torch.distributed.elastic.timer", False),
        ("tempfile", False),
    ],
)
def test_device_modules_are_told_by_their_first_names(module: str, is_one: bool) -> None:
    assert apis.is_device_module(module) is is_one


# The wheel's own files


def test_what_is_installed_is_what_the_wheels_say(bench: Bench) -> None:
    report = bench.look(EXPIRES, ACQUIRE)
    assert [facts.record_ok for facts in report.apis] == [True, True]
    assert report.differing == []
    # Those of torch, not of torch_npu.
    assert report.checked == len(list((bench.site / "torch").rglob("*.py")))


def test_a_file_of_torch_that_somebody_changed_added_or_removed_is_named(bench: Bench) -> None:
    bench.install({"timer.py": TIMER, "other.py": "def api(): ...", "gone.py": ""})
    before = bench.look(EXPIRES, "torch.other.api")
    with (bench.site / "torch" / "timer.py").open("a") as stream:
        stream.write("\nexpires = None\n")
    (bench.site / "torch" / "added.py").touch()
    (bench.site / "torch" / "gone.py").unlink()
    # Even where the answer about the API itself is one that was kept.
    after = bench.look(EXPIRES, "torch.other.api")
    assert before.differing == []
    assert after.differing == [
        "torch/added.py: in no wheel's RECORD",
        "torch/gone.py: missing",
        "torch/timer.py: not the file that RECORD names",
    ]
    assert [facts.record_ok for facts in after.apis] == [False, True]


def test_without_a_record_no_file_is_the_wheels_and_the_list_stays_short(bench: Bench) -> None:
    bench.install({"timer.py": TIMER, **{f"a{number:02}.py": "" for number in range(30)}})
    (record,) = bench.site.glob("torch-*.dist-info/RECORD")
    record.write_text("garbage\n\n,\n")
    report = bench.look(EXPIRES)
    assert [facts.record_ok for facts in report.apis] == [False]
    assert report.differing[0] == "torch/__init__.py: in no wheel's RECORD"
    assert len(report.differing) == 21
    assert report.differing[-1] == f"and {report.checked - 20} more"


def test_an_api_whose_source_lies_outside_the_wheels_is_not_the_wheels(bench: Bench) -> None:
    (bench.site / "elsewhere.py").write_text("def api(): ...\n")
    bench.install({"a.py": "from elsewhere import api"})
    facts = bench.see("torch.a.api")
    assert (facts.file, facts.record_ok) == ("elsewhere.py", False)


def test_an_api_without_source_has_no_record_to_differ_from(bench: Bench) -> None:
    bench.install({"a.py": "from math import hypot as api"})
    facts = bench.see("torch.a.api")
    assert (facts.file, facts.line, facts.source_sha256, facts.record_ok) == ("", None, None, None)


# Replaced by torch_npu, seen by looking at it

LIVE = {
    "nothing": ("pass", []),
    "function": ("torch.timer.expires = replacement", ["torch.timer.expires is torch_npu/__init__.py:6"]),
    "wrapper that takes over its name and module": (
        "torch.timer.expires = functools.wraps(torch.timer.expires)(lambda *a: None)",
        ["torch.timer.expires is torch_npu/__init__.py:10"],
    ),
    "context manager": (
        "torch.timer.expires = contextlib.contextmanager(replacement)",
        ["torch.timer.expires is torch_npu/__init__.py:6"],
    ),
    "partial": (
        "torch.timer.expires = functools.partial(replacement, 1)",
        ["torch.timer.expires is torch_npu/__init__.py:6"],
    ),
    "something else in the module": (
        "torch.timer.contextlib = types.SimpleNamespace(); torch.timer.logger = Logger()",
        ["torch.timer.logger is torch_npu"],
    ),
    "something else elsewhere": ("torch.other = replacement", []),
}


@pytest.mark.parametrize(("statement", "found"), LIVE.values(), ids=LIVE.keys())
def test_in_mode_npu_the_object_itself_tells_who_made_it(bench: Bench, statement: str, found: list[str]) -> None:
    npu = f"""\
    import contextlib, functools, types
    import torch.timer

    class Logger: ...

    def replacement(*a):
        yield

    def _autoload():
        {statement}
    """
    bench.install({"timer.py": TIMER}, npu)
    bench.cann = Cann(home="/cann", version="8.5.0")
    report = bench.look(EXPIRES)
    assert report.live
    assert sorted(set(report.apis[0].replaced_by)) == found


@pytest.mark.parametrize(
    ("statement", "of_class", "of_method"),
    [
        ("TimerClient.acquire = replacement", ["torch.timer.TimerClient.acquire"], ["torch.timer.TimerClient.acquire"]),
        ("TimerClient.release = replacement", ["torch.timer.TimerClient.release"], []),
        ("torch.timer.TimerClient = Client", ["torch.timer.TimerClient"], ["torch.timer.TimerClient"]),
    ],
)
def test_in_mode_npu_a_class_is_looked_at_member_by_member(
    bench: Bench, statement: str, of_class: list[str], of_method: list[str]
) -> None:
    npu = f"""\
    import torch.timer
    from torch.timer import TimerClient

    class Client(TimerClient): ...

    def replacement(self): ...

    def _autoload():
        {statement}
    """
    bench.install({"timer.py": TIMER}, npu)
    bench.cann = Cann(home="/cann", version="8.5.0")
    report = bench.look("torch.timer.TimerClient", ACQUIRE)
    found = [sorted({text.partition(" is ")[0] for text in facts.replaced_by}) for facts in report.apis]
    assert found == [of_class, of_method]


def test_in_mode_control_plane_the_source_of_torch_npu_tells_it(bench: Bench) -> None:
    npu = "import torch.timer\n\n\ndef _autoload():\n    torch.timer.expires = print\n"
    bench.install({"timer.py": TIMER}, npu)
    report = bench.look(EXPIRES, ACQUIRE)
    assert (report.live, report.searched, report.unread) == (False, 1, [])
    assert [facts.replaced_by for facts in report.apis] == [["torch_npu/__init__.py:5: torch.timer.expires = …"], []]


def test_a_name_that_torch_lacks_is_searched_for_all_the_same(bench: Bench) -> None:
    bench.install({"timer.py": TIMER}, "import torch.timer\ntorch.timer.later = print\n")
    facts = bench.look("torch.timer.later").apis[0]
    assert (facts.importable, facts.replaced_by) == (False, ["torch_npu/__init__.py:2: torch.timer.later = …"])


def test_every_name_that_an_api_goes_by_counts(bench: Bench) -> None:
    """Who assigns to the name where it is defined, or to one that another module of torch has, replaces it too."""
    files = {"timer/__init__.py": "from .impl import expires", "timer/impl.py": TIMER, "user.py": "import torch.timer"}
    for place in ("torch.timer.expires", "torch.timer.impl.expires"):
        bench.fingerprint = place
        bench.install(files, f"import torch.timer.impl\n{place} = print\n")
        assert bench.see(EXPIRES).replaced_by == [f"torch_npu/__init__.py:2: {place} = …"]


# Replaced by a package, found in its source

API = "torch.timer.expires"
# Each line that is to be found ends with #! here.
REPLACING = {
    "assignment": """\
        import torch
        torch.timer.expires = new #!
        """,
    "alias of a module": """\
        import torch.timer as t
        t.expires = new #!
        """,
    "module by from-import": """\
        from torch import timer
        timer.expires = new #!
        """,
    "import within the function": """\
        def patch():
            from torch import timer as t
            t.expires = new #!
        """,
    "alias by assignment": """\
        import torch
        t = torch.timer
        t.expires = new #!
        """,
    "alias in an outer function": """\
        def a():
            from torch import timer
            def b():
                timer.expires = new #!
        """,
    "global alias": """\
        def a():
            global t
            from torch import timer as t
        def b():
            t.expires = new #!
        """,
    "one of two targets": """\
        import torch
        a, torch.timer.expires = 1, new #!
        """,
    "with an annotation": """\
        import torch
        torch.timer.expires: object = new #!
        """,
    "deleted": """\
        import torch
        del torch.timer.expires #!
        """,
    "setattr": """\
        import torch
        setattr(torch.timer, 'expires', new) #!
        """,
    "setattr on a name that is text": """\
        import torch
        NAME = 'expires'
        setattr(torch.timer, NAME, new) #!
        """,
    "through importlib": """\
        import importlib
        m = importlib.import_module('torch.timer')
        m.expires = new #!
        """,
    "through sys.modules": """\
        import sys
        sys.modules['torch.timer'].expires = new #!
        """,
    "through getattr": """\
        import torch
        getattr(torch, 'timer').expires = new #!
        """,
    "through __dict__": """\
        import torch
        torch.timer.__dict__['expires'] = new #!
        """,
    "through vars": """\
        import torch
        vars(torch.timer)['expires'] = new #!
        """,
    "through an update of __dict__": """\
        import torch
        torch.timer.__dict__.update(expires=new) #!
        """,
    "the module as a whole": """\
        import torch
        torch.timer = new #!
        """,
    "the module in sys.modules": """\
        import sys
        sys.modules['torch.timer'] = new #!
        """,
    "an attribute of it": """\
        import torch
        torch.timer.expires.__wrapped__ = new #!
        """,
    "loop over the items of a dictionary": """\
        import torch
        for k, v in {'expires': new, 'x': new}.items():
            setattr(torch.timer, k, v) #!
        """,
    "loop over a table": """\
        import torch
        TABLE = [('a', 1), ('expires', 2)]
        for k, v in TABLE:
            setattr(torch.timer, k, v) #!
        """,
    "loop over tables that are joined": """\
        import torch
        A = ['a']
        B = A + ['expires']
        for k in sorted(B):
            setattr(torch.timer, k, new) #!
        """,
    "loop that names the module": """\
        import torch
        for k, m in [('expires', torch.timer)]: #!
            setattr(m, k, new) #!
        """,
    "comprehension": """\
        import torch
        [setattr(torch.timer, k, new) for k in ('a', 'expires')] #!
        """,
    "a name that is computed": """\
        import torch
        for k in names():
            setattr(torch.timer, k, new) #!
        """,
    "a helper": """\
        import torch
        swap(torch.timer, 'expires', new) #!
        """,
    "a helper with a list of names": """\
        import torch
        wrap_all(torch.timer, ['a', 'expires']) #!
        """,
    "a helper with a table": """\
        import torch
        TABLE = {'expires': torch.timer} #!
        apply(TABLE)
        """,
    "a table of patches": """\
        patches = [['nn', new], ['timer.expires', new]] #!
        apply_all(patches)
        """,
    "a table of patches in a call": "apply_patches([['timer.expires', new]])  #!",
    "through __import__": "__import__('torch.timer').timer.expires = new #!",
    "alias with an annotation": """\
        import torch
        t: object = torch.timer
        t.expires = new #!
        """,
    "loops over what is not all written out": """\
        import torch
        for k in ['a', *others]:
            setattr(torch.timer, k, new) #!
        for k in {'a': 1, **others}:
            setattr(torch.timer, k, new) #!
        for k, v in {'a': 1, **others}.items():
            setattr(torch.timer, k, v) #!
        """,
    "a table of patches that grows": """\
        patches = []
        patches += [['timer.expires', new]] #!
        """,
    "a decorator": """\
        @patch('torch.timer.expires', new) #!
        def f(): pass
        """,
    "an alias in an expression": """\
        import torch
        if t := torch.timer:
            t.expires = new #!
        """,
    "a patch by its full name": "patch('torch.timer.expires', new)  #!",
    "a module of patches without __all__": """\
        from torch_npu import other
        patches = [['timer', other]] #!
        """,
    "a module of patches that exports it": """\
        from torch_npu import with_it
        patches = [['timer', with_it]] #!
        """,
}
NOT_REPLACING = {
    "only imported": """\
        from torch.timer import expires
        expires = new
        """,
    "only used": """\
        import torch
        with torch.timer.expires(after=3) as timer:
            pass
        """,
    "only looked at": """\
        import torch
        if hasattr(torch.timer, 'expires'):
            x = getattr(torch.timer, 'expires')
        """,
    "another API": """\
        import torch
        torch.timer.configure = new
        """,
    "another module's": """\
        import torch
        torch.other.expires = new
        """,
    "one that only starts like it": """\
        import torch
        torch.timer.expires_later = new
        """,
    "a subclass": """\
        import torch
        class Mine(torch.timer.T):
            expires = new
        """,
    "an instance": """\
        from torch import timer
        t = timer.T()
        t.expires = new
        """,
    "self": """\
        class T:
            def f(self):
                self.timer.expires = new
        """,
    "a parameter of the module's name": """\
        from torch import timer
        def f(timer):
            timer.expires = new
        """,
    "a local of the module's name": """\
        from torch import timer
        def f():
            timer = make()
            timer.expires = new
        """,
    "a computed name on another module": """\
        import torch
        for k in names():
            setattr(torch.nn, k, new)
        """,
    "a computed name far above": """\
        import torch
        for k in names():
            setattr(torch, k, new)
        """,
    "a loop over other names": """\
        import torch
        for k in ('a', 'b'):
            setattr(torch.timer, k, new)
        """,
    "rows that only seem to fit together": """\
        import torch
        for k, m in [('expires', torch.nn), ('a', torch.timer)]:
            setattr(m, k, new)
        """,
    "a loop over a table of other names": """\
        import torch
        TABLE = [('a', 1), ('b', 2)]
        for k, v in TABLE:
            setattr(torch.timer, k, v)
        """,
    "loops over a dictionary of other names": """\
        import torch
        TABLE = {'a': 1, 'b': 2}
        for k in TABLE:
            setattr(torch.timer, k, new)
        for k in TABLE.keys():
            setattr(torch.timer, k, new)
        for k, v in TABLE.items():
            setattr(torch.timer, k, v)
        """,
    "a loop over tables of other names that are joined": """\
        import torch
        A = ['a']
        for k in sorted(A + ['b']):
            setattr(torch.timer, k, new)
        """,
    "another dictionary's item": "MODULES['torch.timer'].expires = new",
    "what a call of that name gives": "make('torch.timer').expires = new",
    "what with and a star bind": """\
        from torch import timer
        def f():
            with make() as timer:
                timer.expires = new
        def g(y):
            *timer, x = y
            timer.expires = new
        """,
    "what a loop has left": """\
        from torch import timer
        def f(timers):
            for timer in timers:
                pass
            timer.expires = new
        """,
    "a table that is no patch": "rows = [['timer.expires', 3]]",
    "a module of patches that does not export it": """\
        from torch_npu import without_it
        patches = [['timer', without_it]]
        """,
    "a comment and a text": """\
        # torch.timer.expires = new
        TEXT = 'torch.timer.expires = new'
        """,
    "an alias that leads back to itself": """\
        t = t.expires
        t.expires = new
        """,
}
OTHERS = {"other.py": "", "with_it.py": "__all__ = ['a', *others, 'expires']", "without_it.py": "__all__ = ('a',)"}


def write(path: Path, data: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def search(folder: Path, source: str) -> list[str]:
    for name, text in {"source.py": source, **OTHERS}.items():
        write(folder / "torch_npu" / name, text)
    return replacing.search(folder, "torch_npu", {API: [API]}).found[API]


@pytest.mark.parametrize("source", REPLACING.values(), ids=REPLACING.keys())
def test_what_replaces_a_name_is_found_with_its_line(tmp_path: Path, source: str) -> None:
    source = textwrap.dedent(source)
    found = [text.split(":")[:2] for text in search(tmp_path, source)]
    marked = [number for number, line in enumerate(source.splitlines(), 1) if line.endswith("#!")]
    assert found == [["torch_npu/source.py", str(number)] for number in marked]


@pytest.mark.parametrize("source", NOT_REPLACING.values(), ids=NOT_REPLACING.keys())
def test_what_replaces_nothing_is_not_accused(tmp_path: Path, source: str) -> None:
    assert search(tmp_path, textwrap.dedent(source)) == []


def test_a_method_is_replaced_with_its_class_and_by_itself_and_not_by_its_sibling(tmp_path: Path) -> None:
    source = "from torch.timer import T\nT.acquire = new\nT.release = new\nimport torch\ntorch.timer.T = new\n"
    write(tmp_path / "torch_npu" / "a.py", source)
    acquire, release, cls = "torch.timer.T.acquire", "torch.timer.T.release", "torch.timer.T"
    found = replacing.search(tmp_path, "torch_npu", {name: [name] for name in (acquire, release, cls)}).found
    lines = {name: [int(text.split(":")[1]) for text in texts] for name, texts in found.items()}
    assert lines == {acquire: [2, 5], release: [3, 5], cls: [2, 3, 5]}


def test_relative_imports_are_those_of_the_package(tmp_path: Path) -> None:
    """A package may have modules that are called as torch's are."""
    write(tmp_path / "torch_npu" / "torch" / "user.py", "from . import timer\ntimer.expires = new\n")
    assert replacing.search(tmp_path, "torch_npu", {API: [API]}).found == {API: []}


@pytest.mark.parametrize(
    "data", [b"torch.timer.expires = (", b"expires = \x00", b"\xff expires", b"expires = " + b"-" * 99_999 + b"1"]
)
def test_a_file_that_is_no_python_is_told_and_the_others_are_read(tmp_path: Path, data: bytes) -> None:
    write(tmp_path / "torch_npu" / "bad.py", data)
    write(tmp_path / "torch_npu" / "good.py", "import torch\ntorch.timer.expires = new\n")
    found = replacing.search(tmp_path, "torch_npu", {API: [API]})
    assert (found.files, found.unread) == (2, ["torch_npu/bad.py"])
    assert found.found == {API: ["torch_npu/good.py:2: torch.timer.expires = …"]}


def test_names_that_lead_to_many_others_take_no_time(tmp_path: Path) -> None:
    rebound = "".join(f"x = x.a{number} or y.b{number}\ny = x if y else y.c\n" for number in range(200))
    source = f"import torch\nx = y = torch\n{rebound}\ntorch.timer.expires = x\n"
    start = time.monotonic()
    assert search(tmp_path, source) == [f"torch_npu/source.py:{source.count(chr(10))}: torch.timer.expires = …"]
    assert time.monotonic() - start < 2


PARTS = ["torch", "timer", "expires", "sys", "modules", "x", "y"]
EXPRESSIONS = st.recursive(
    st.sampled_from(
        [*PARTS, "'expires'", "'torch.timer'", "(1)", "{'expires': torch.timer}", "[]", "{**x}", "(*x, 'y')"]
    ),
    lambda inner: st.one_of(
        st.builds("{}.{}".format, inner, st.sampled_from(PARTS)),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("setattr({}, {}, {})".format, inner, inner, inner),
        st.builds("patch(*{}, **{}, a={})".format, inner, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("[{} for x, *y in {} if {}]".format, inner, inner, inner),
        st.builds("(lambda x, *y, **z: {})".format, inner),
        st.builds("{}.items()".format, inner),
    ),
    max_leaves=8,
)
STATEMENTS = st.one_of(
    st.builds("{} = {}".format, st.sampled_from(["x", "x, y", "x.y", "[x, *y]", "vars(x)[y]"]), EXPRESSIONS),
    st.builds("for x, y in {}: setattr(x, y, {})".format, EXPRESSIONS, EXPRESSIONS),
    st.builds("def f(a, /, b=1, *c, d, **e): global x; x = {}".format, EXPRESSIONS),
    st.builds("import torch.timer as {}".format, st.sampled_from(PARTS)),
    st.builds(
        "from {} import {}".format, st.sampled_from([".", "..", "...x", "torch"]), st.sampled_from([*PARTS, "*"])
    ),
    EXPRESSIONS,
)


@hypothesis.given(st.lists(STATEMENTS, max_size=6))
@hypothesis.settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_whatever_else_is_in_a_file_the_replacement_in_it_is_found(tmp_path: Path, statements: list[str]) -> None:
    source = "\n".join([*statements, "def last():", "    import torch", "    torch.timer.expires = new"])
    assert search(tmp_path, source)[-1] == f"torch_npu/source.py:{len(statements) + 3}: torch.timer.expires = …"


# What is kept


def test_a_second_answer_needs_no_process(bench: Bench) -> None:
    first = bench.look(EXPIRES)
    bench.python = Path("/nonexistent/python")
    assert bench.look(EXPIRES) == first


@pytest.mark.parametrize("change", ["venv", "apis", "cann"])
def test_an_answer_is_that_of_this_venv_and_these_apis_only(bench: Bench, change: str) -> None:
    bench.look(EXPIRES)
    bench.python = Path("/nonexistent/python")
    match change:
        case "venv":
            bench.fingerprint = "another venv"
        case "cann":
            bench.cann = Cann(home="/cann", version="8.5.0")
    assert bench.look(*([EXPIRES, ACQUIRE] if change == "apis" else [EXPIRES])).problem


@pytest.mark.parametrize("change", [{"answer": {}}, {"answer": {"apis": []}}, {"search": 1}, {}], ids=str)
def test_an_answer_that_was_garbled_is_asked_for_anew(bench: Bench, change: dict[str, object]) -> None:
    first = bench.look(EXPIRES)
    (record,) = (storage.cache_root() / "apis").iterdir()
    whole = record.read_bytes()
    record.write_bytes(msgspec.json.encode(msgspec.json.decode(whole) | change) if change else whole[: len(whole) // 2])
    assert bench.look(EXPIRES) == first
    assert record.read_bytes() == whole


def test_a_failure_is_not_kept(bench: Bench) -> None:
    python, bench.python = bench.python, Path("/nonexistent/python")
    assert bench.look(EXPIRES).problem
    bench.python = python
    assert bench.look(EXPIRES).problem == ""


# Drift

BASE = ApiFacts(
    name="torch.a.T",
    importable=True,
    kind="class",
    signature="(a)",
    fields=["a: int"],
    members=["run(self)"],
    module="torch.a",
    file="torch/a.py",
    line=3,
    source_sha256="1",
    file_sha256="1",
)
ABSENT = ApiFacts(name="torch.a.T", importable=False, problem="torch.a has no 'T'")


def changed(**fields: object) -> ApiFacts:
    return msgspec.structs.replace(BASE, **fields)


def steps(*columns: ApiFacts | None) -> list[tuple[Change, list[str]]]:
    """Return what becomes of the one API over pairs of which each says this of it, or nothing."""
    found = apis.drift({str(number): [facts] if facts else [] for number, facts in enumerate(columns)})
    if not found:
        return []
    (drift,) = found
    assert [step.label for step in drift.steps] == [str(number) for number in range(len(columns))]
    return [(step.change, step.diff) for step in drift.steps]


@pytest.mark.parametrize(
    ("before", "after", "change", "diff"),
    [
        (None, BASE, Change.FIRST, []),
        (None, ABSENT, Change.ABSENT, ["torch.a has no 'T'"]),
        (BASE, BASE, Change.SAME, []),
        (BASE, None, Change.UNKNOWN, []),
        (BASE, ABSENT, Change.GONE, ["torch.a has no 'T'"]),
        (ABSENT, ABSENT, Change.ABSENT, ["torch.a has no 'T'"]),
        (ABSENT, BASE, Change.NEW, []),
        (ABSENT, None, Change.UNKNOWN, []),
        (BASE, changed(line=9, file_sha256="2", modules=["x"]), Change.SAME, []),
        (BASE, changed(source_sha256="2"), Change.CHANGED, ["source changed"]),
        (BASE, changed(signature="(a, b)", source_sha256="2"), Change.CHANGED, ["-signature (a)", "+signature (a, b)"]),
        (BASE, changed(fields=["a: int", "b: int = 1"]), Change.CHANGED, ["+field b: int = 1"]),
        (BASE, changed(members=[]), Change.CHANGED, ["-member run(self)"]),
        (BASE, changed(kind="dataclass"), Change.CHANGED, ["-class of torch.a", "+dataclass of torch.a"]),
        (BASE, changed(module="torch.b"), Change.CHANGED, ["-class of torch.a", "+class of torch.b"]),
    ],
)
def test_what_became_of_an_api_from_one_pair_to_the_next(
    before: ApiFacts | None, after: ApiFacts | None, change: Change, diff: list[str]
) -> None:
    # A column that is known makes the API stand in the table at all.
    assert steps(before, after, BASE)[1] == (change, diff)


def test_a_pair_of_which_nothing_is_known_is_passed_over_not_compared_with() -> None:
    other = changed(signature="(b)")
    assert [change for change, _ in steps(BASE, None, BASE, None, other)] == [
        Change.FIRST,
        Change.UNKNOWN,
        Change.SAME,
        Change.UNKNOWN,
        Change.CHANGED,
    ]


def test_every_api_that_a_pair_knows_stands_in_the_table_once() -> None:
    other = msgspec.structs.replace(BASE, name="torch.a.U")
    found = apis.drift({"1": [BASE], "2": [other, BASE]})
    assert [(drift.name, [step.change for step in drift.steps]) for drift in found] == [
        ("torch.a.T", [Change.FIRST, Change.SAME]),
        ("torch.a.U", [Change.UNKNOWN, Change.FIRST]),
    ]


def test_no_pair_no_table() -> None:
    assert apis.drift({}) == []


def test_remarks_are_what_a_reader_should_know() -> None:
    clean = apis.ApiFacts(name="a.b", importable=True, file="a.py", record_ok=True)
    touched = msgspec.structs.replace(
        clean, problem="it is a function", record_ok=False, replaced_by=["npu.py:3"], device_modules=["acl"]
    )

    assert clean.remarks == []
    assert msgspec.structs.replace(clean, record_ok=None).remarks == []
    assert touched.remarks == [
        "it is a function",
        "a.py is not the file that the wheel's RECORD names",
        "replaced by npu.py:3",
        "loads the device module acl",
    ]
