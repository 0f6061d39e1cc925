"""Runs one test file as run.py does, and writes as JSON lines which case reached which API while it ran.

Usage: python watch.py ORDER EVENTS STACKS SIGNAL FILE, of which all but ORDER are run.py's.

ORDER is a JSON file: ``apis`` (dotted names), ``touches`` (where the lines go) and ``scratch`` (a folder of its own).
Python processes that a test starts do the same: a folder below ``scratch`` is on their PYTHONPATH, in which this very
file is called sitecustomize.py.

What is watched keeps its identity. Calls and lines are seen from outside, by sys.monitoring or, before Python 3.12, by
a trace function; only a class gets a ``__getattribute__`` that notes what is read of its instances.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import os
import sys
import threading
import types
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

ORDER, CASE = "TNM_WATCH", "TNM_WATCH_CASE"
MAKES, ENTERS, LEAVES = ("__init__", "__new__"), ("__enter__", "__aenter__"), ("__exit__", "__aexit__")
MOST_DECORATORS = 20

# Tests put mocks in the place of what they like; watching works with what was there before.
_open, _write, _close, _getpid, _replace = os.open, os.write, os.close, os.getpid, os.replace
_environ, _encode, _frame = os.environ, json.JSONEncoder().encode, sys._getframe
_ident, _threads, _current_threads = threading.get_ident, threading._active, threading.enumerate  # type: ignore[attr-defined]

Case = Tuple[str, str]


class Api:
    """A name of the order, and what stands there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: Any = None
        self.parameters: Dict[str, Any] = {}


class Role:
    """What it means that a piece of code runs: ``what`` is ``call``, ``make``, ``enter`` or ``exit`` of ``api``.

    If there is an ``owner``, it means so only where the first argument is one of that class.
    """

    def __init__(self, api: Api, what: str, name: str, owner: Optional[type]) -> None:
        self.api = api
        self.what = what
        self.name = name
        self.owner = owner

    def through(self, frame: types.FrameType) -> Optional[str]:
        """Return the name of the class whose code runs if it is not the API's own, None if this is another's code."""
        owner = self.owner
        if owner is None:
            return ""
        first = first_argument(frame)
        # Not isinstance, which believes what a mock says of its class.
        line = first.__mro__ if issubclass(type(first), type) else type(first).__mro__
        if not any(cls is owner for cls in line):
            return None
        if self.what != "call":
            return "" if line[0] is owner else full_name(line[0])
        for cls in line:
            function = function_of(vars(cls).get(self.name))
            if function is not None and function.__code__ is frame.f_code:
                return "" if any(cls is base for base in owner.__mro__) else full_name(cls)
        return None


class Call:
    """A call that has not ended: what it is of, and the last exception that was seen in it."""

    def __init__(self, meanings: List[Tuple[Role, str]]) -> None:
        self.meanings = meanings
        self.error = ""
        self.is_fresh = False


class Touches:
    """Appends lines to a file that is opened anew for each, so that a SIGKILL loses nothing that was before it.

    What a process has said of a case, it doesn't say again.
    """

    def __init__(self, path: str, scratch: str) -> None:
        self.path = path
        self.scratch = scratch
        self.case: Optional[Case] = None
        self.cases: weakref.WeakKeyDictionary[threading.Thread, Case] = weakref.WeakKeyDictionary()
        self.seen: Set[Tuple[Any, ...]] = set()
        self.is_child = False

    def __call__(self, api: Api, how: str, detail: str = "", through: str = "") -> None:
        """Note that the case that is running has touched ``api``; between cases nobody has."""
        case = self.of_thread()
        key = (case, api.name, how, detail, through)
        if case is not None and key not in self.seen:
            self.seen.add(key)
            self.write(case=case, api=api.name, how=how, detail=detail, through=through, child=self.is_child)

    def of_thread(self) -> Optional[Case]:
        """Return the case that this thread belongs to."""
        thread = _threads.get(_ident())
        return self.case if thread is None else self.cases.get(thread, self.case)

    def write(self, **fields: Any) -> None:
        self._append(self.path, os.O_APPEND, fields)

    def begin(self, case: Case) -> None:
        """Hold ``case`` for the one that is running, in this process and in those that are started from now on."""
        self.case = case
        self._tell(case)

    def end(self) -> None:
        """Hold no case for running; threads that outlive theirs stay its own."""
        for thread in _current_threads():
            if self.case is not None and thread is not threading.main_thread():
                self.cases.setdefault(thread, self.case)
        self.case = None
        self._tell(None)

    def inherit(self, case: Optional[Case]) -> None:
        """Be the child of a process in which ``case`` was running."""
        self.is_child = True
        self.seen.clear()
        self.case = case

    def running(self) -> Optional[Case]:
        """Return the case that is running in the process of the tests."""
        try:
            with open(os.path.join(self.scratch, "case.json"), encoding="utf-8") as stream:
                return as_case(stream.read())
        except OSError:
            return None

    def _tell(self, case: Optional[Case]) -> None:
        _environ[CASE] = _encode(case)
        path = os.path.join(self.scratch, "case.json")
        self._append(f"{path}.new", os.O_TRUNC, case)
        with contextlib.suppress(OSError):
            _replace(f"{path}.new", path)

    def _append(self, path: str, mode: int, value: Any) -> None:
        try:
            handle = _open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, 0o644)
        except OSError:
            # Out of descriptors, say.
            return
        try:
            _write(handle, (_encode(value) + "\n").encode())
        except OSError:
            # The disk is full.
            pass
        finally:
            _close(handle)


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Have a fault of the watcher told, and never thrown into what is watched."""

    @functools.wraps(method)
    def guard(self: Watcher, *arguments: Any, **settings: Any) -> None:
        try:
            method(self, *arguments, **settings)
        except Exception as error:
            with contextlib.suppress(Exception):
                self.touch.write(api="", how="fault", detail=f"{method.__name__}: {type(error).__name__}: {error}")

    return guard


class Watcher:
    """Finds the APIs as soon as their modules are imported, and notes what runs of them."""

    def __init__(self, order: str) -> None:
        with open(order, encoding="utf-8") as stream:
            content = json.load(stream)
        self.touch = Touches(content["touches"], content["scratch"])
        self.apis = [Api(name) for name in content["apis"]]
        self.modules = {name for api in self.apis for name in prefixes(api.name)}
        # By the identity of the code, which is kept alive for that; and by name, for what overrides.
        self.codes: Dict[int, List[Role]] = {}
        self.names: Dict[str, List[Role]] = {}
        self.lines: Dict[int, List[Api]] = {}
        self.known: Dict[int, types.CodeType] = {}
        self.calls: Dict[int, Call] = {}
        self.defaults: Dict[int, Dict[str, Any]] = {}
        self.eyes = Monitoring(self) if sys.version_info >= (3, 12) else Tracing(self)

    def install(self) -> None:
        """Wait for the modules of the APIs."""
        sys.meta_path.insert(0, Finder(self))
        self.find()

    def find(self, again: bool = True) -> None:
        """Look for those APIs that are there by now (``again``: or have become others), and watch them."""
        for api in self.apis:
            if again or api.found is None:
                self._find(api)

    @guarded
    def _find(self, api: Api) -> None:
        found, owner = look_up(api.name)
        if found is not None and found is not api.found:
            api.found = found
            codes = self._watch(api, found, owner)
            self.touch.write(api=api.name, how="found", **describe(api, found, codes))
            self.eyes.open(self.known.values())

    def _watch(self, api: Api, found: Any, owner: Optional[type]) -> List[types.CodeType]:
        """Register the code of an API; returns that of which lines are counted."""
        if isinstance(found, type):
            for what, names in (("make", MAKES), ("enter", ENTERS), ("exit", LEAVES)):
                for name in names:
                    values = [vars(cls).get(name) for cls in found.__mro__]
                    self._register(Role(api, what, name, found), values)
            observe(found, functools.partial(self.touch, api))
            functions = [function_of(value) for value in vars(found).values()]
            file = getattr(sys.modules.get(found.__module__), "__file__", None)
            own = [function.__code__ for function in functions if function]
            own = [code for code in own if code.co_filename == file]
        else:
            name = api.name.rpartition(".")[2]
            self._register(Role(api, "call", name, None if isinstance(found, staticmethod) else owner), [found])
            function = function_of(found)
            own = [function.__code__] if function else []
        for code in own:
            for part in with_nested(code):
                self.lines.setdefault(id(part), []).append(api)
                self.known[id(part)] = part
        return own

    def _register(self, role: Role, values: Sequence[Any]) -> None:
        for value in values:
            function = function_of(value)
            if function is not None:
                code = function.__code__
                self.codes.setdefault(id(code), []).append(role)
                self.known[id(code)] = code
                if role.what in ("make", "call"):
                    self.defaults[id(code)] = defaults_of(function)
                    role.api.parameters.update(self.defaults[id(code)])
        if role.owner is not None:
            self.names.setdefault(role.name, []).append(role)

    def concerns(self, code: types.CodeType) -> bool:
        """Return whether code may be an API's or one that overrides it."""
        return id(code) in self.known or code.co_name in self.names

    @guarded
    def started(self, frame: types.FrameType) -> None:
        """Note that a call begins."""
        code = frame.f_code
        meanings = []
        by_code = self.codes.get(id(code), ())
        for role in dict.fromkeys((*by_code, *self.names.get(code.co_name, ()))):
            through = role.through(frame)
            if through is not None:
                meanings.append((role, through))
        if not meanings:
            # Another call may have had this very address.
            self.calls.pop(id(frame), None)
            return
        self.calls[id(frame)] = Call(meanings)
        arguments = frame.f_locals
        for role, through in meanings:
            if role.what in ("call", "enter"):
                self.touch(role.api, "entered", through=through)
            if role in by_code:
                for name, default in self.defaults.get(id(code), {}).items():
                    if name in arguments:
                        self.touch(role.api, "default" if arguments[name] is default else "explicit", name)

    @guarded
    def ended(self, frame: types.FrameType, error: str = "") -> None:
        """Note that a call has returned, or was left by an exception."""
        call = self.calls.pop(id(frame), None)
        for role, through in call.meanings if call else ():
            if role.what == "exit" and not error:
                error = exception_handed_to(frame)
            if error:
                self.touch(role.api, "raised", error, through)
            elif role.what == "make":
                self.touch(role.api, "constructed", through=through)
            elif role.what != "enter":
                self.touch(role.api, "left", through=through)

    @guarded
    def line(self, code: types.CodeType, number: int) -> None:
        """Note that a line runs."""
        for api in self.lines.get(id(code), ()):
            self.touch(api, "line", str(number))


class Monitoring:
    """Sees calls and lines by sys.monitoring: code that is none of ours is asked about once, and never again."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.tool = -1

    def open(self, codes: Iterable[types.CodeType]) -> None:
        """Watch ``codes``, and whatever else concerns the watcher."""
        if sys.version_info < (3, 12):
            return
        monitoring = sys.monitoring
        events = monitoring.events
        if self.tool < 0:
            self.tool = next(tool for tool in (4, 3, 2, 1, 0) if monitoring.get_tool(tool) is None)
            monitoring.use_tool_id(self.tool, "watch")
            monitoring.register_callback(self.tool, events.PY_START, self._start)
            monitoring.register_callback(self.tool, events.PY_RETURN, self._return)
            monitoring.register_callback(self.tool, events.PY_UNWIND, self._unwind)
            monitoring.register_callback(self.tool, events.LINE, self.watcher.line)
            # An exception that leaves a frame can't be had for chosen code alone.
            monitoring.set_events(self.tool, events.PY_START | events.PY_UNWIND)
        for code in codes:
            monitoring.set_local_events(self.tool, code, events.PY_RETURN | events.LINE)
        monitoring.restart_events()

    def resume(self) -> None:
        """See to it that a thread is watched: all are."""

    def _start(self, code: types.CodeType, _offset: int) -> Any:
        if sys.version_info < (3, 12):
            return None
        if not self.watcher.concerns(code):
            return sys.monitoring.DISABLE
        self.watcher.started(_frame(1))
        if id(_frame(1)) in self.watcher.calls and not sys.monitoring.get_local_events(self.tool, code):
            sys.monitoring.set_local_events(self.tool, code, sys.monitoring.events.PY_RETURN)
        return None

    def _return(self, _code: types.CodeType, _offset: int, _value: object) -> None:
        self.watcher.ended(_frame(1))

    def _unwind(self, code: types.CodeType, _offset: int, error: BaseException) -> None:
        if self.watcher.concerns(code):
            self.watcher.ended(_frame(1), type(error).__name__)


class Tracing:
    """Sees calls and lines by a trace function (not by a profile function, which is called for C functions as well)."""

    def __init__(self, watcher: Watcher) -> None:
        import opcode

        self.watcher = watcher
        self.trace = self._tracer()
        self.beginning: Set[int] = set()
        self.is_open = False
        codes = opcode.opmap
        self.start_of_code = codes.get("RESUME")
        self.returns, self.yields = codes["RETURN_VALUE"], codes["YIELD_VALUE"]
        self.delegates = bytes([codes["YIELD_FROM"]]) if "YIELD_FROM" in codes else None

    def open(self, _codes: Iterable[types.CodeType]) -> None:
        """Watch this thread, and all that are started from now on; what is done outside of cases is not slowed down."""
        self.is_open = True
        threading.settrace(self.trace)
        if self.watcher.touch.case is not None:
            self.resume()

    def resume(self) -> None:
        """See to it that this thread is watched."""
        if self.is_open:
            sys.settrace(self.trace)

    def _tracer(self) -> Callable[..., Any]:
        # Called for every call in the process.
        known, names = self.watcher.known, self.watcher.names

        def trace(frame: types.FrameType, _event: str, _arg: Any) -> Optional[Callable[..., Any]]:
            code = frame.f_code
            return self._called(frame) if id(code) in known or code.co_name in names else None

        return trace

    def _called(self, frame: types.FrameType) -> Callable[..., Any]:
        if self._is_start(frame):
            # It begins with its first line; a coroutine that is closed before that has none.
            self.beginning.add(id(frame))
        call = self.watcher.calls.get(id(frame))
        if call:
            call.is_fresh = False
        return self._local

    def _local(self, frame: types.FrameType, event: str, arg: Any) -> Callable[..., Any]:
        if id(frame) in self.beginning:
            self.beginning.discard(id(frame))
            if event == "line":
                self.watcher.started(frame)
        if event == "line":
            self.watcher.line(frame.f_code, frame.f_lineno)
        call = self.watcher.calls.get(id(frame))
        if call:
            if event == "exception":
                call.error = arg[0].__name__
            elif event == "return" and not self._is_pause(frame, call):
                is_return = frame.f_code.co_code[frame.f_lasti] == self.returns
                self.watcher.ended(frame, "" if is_return else call.error)
            call.is_fresh = event == "exception"
        return self._local

    def _is_start(self, frame: types.FrameType) -> bool:
        """Return whether a call begins: a generator that goes on is announced as a call as well."""
        if self.start_of_code is None:
            return frame.f_lasti < 0
        opcode, argument = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
        return opcode == self.start_of_code and argument == 0

    def _is_pause(self, frame: types.FrameType, call: Call) -> bool:
        """Return whether a generator or coroutine only yields: that is announced as a return."""
        code, last = frame.f_code.co_code, frame.f_lasti
        if call.is_fresh:
            # What is thrown into a generator comes out where it yields.
            return False
        # While it delegates to another, the last instruction is the one before YIELD_FROM, which will be done again.
        return code[last] == self.yields or code[last + 2 : last + 3] == self.delegates


class Finder:
    """Tells the watcher when a module of an API was imported."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.watcher.modules:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = Loader(spec.loader, self.watcher)  # type: ignore[assignment]
                return spec
        return None


class Loader:
    """Stands in the place of a loader until it has loaded its module."""

    def __init__(self, loader: Any, watcher: Watcher) -> None:
        self.loader = loader
        self.watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.watcher.find()


def prefixes(name: str) -> Iterator[str]:
    """Yield what may be the module of a dotted name, the longest first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def look_up(name: str) -> Tuple[Any, Optional[type]]:
    """Return what stands at a dotted name and the class that it stands in; nothing is imported for that."""
    for module in prefixes(name):
        if module in sys.modules:
            found: Any = sys.modules[module]
            owner = None
            for part in name[len(module) + 1 :].split("."):
                owner = found if isinstance(found, type) else None
                found = attribute(found, part)
            return found, owner
    return None, None


def attribute(value: Any, name: str) -> Any:
    """Return an attribute as it is stored, without running any code of a module or class for that."""
    places = value.__mro__ if isinstance(value, type) else (value,)
    for place in places:
        if name in getattr(place, "__dict__", {}):
            return vars(place)[name]
    return None


def function_of(value: Any) -> Optional[types.FunctionType]:
    """Return the function that is inside all decorators, if it is one."""
    for _ in range(MOST_DECORATORS):
        kind = type(value)
        if issubclass(kind, (staticmethod, classmethod)):
            value = value.__func__
        elif issubclass(kind, property):
            value = value.fget
        elif issubclass(kind, functools.cached_property):
            value = value.func
        else:
            # What functools.wraps leaves, and never an attribute that is made up for the asking.
            try:
                own = object.__getattribute__(value, "__dict__")
            except AttributeError:
                break
            if "__wrapped__" not in own:
                break
            value = own["__wrapped__"]
    return value if type(value) is types.FunctionType else None


def first_argument(frame: types.FrameType) -> Any:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def exception_handed_to(frame: types.FrameType) -> str:
    """Return the name of the exception that an ``__exit__`` was called with."""
    for name in frame.f_code.co_varnames[1:]:
        kind = frame.f_locals.get(name)
        kind = kind[0] if isinstance(kind, tuple) and kind else kind
        return kind.__name__ if isinstance(kind, type) else ""
    return ""


def defaults_of(function: types.FunctionType) -> Dict[str, Any]:
    """Return the parameters of a function that have a default, and the default."""
    code, given = function.__code__, function.__defaults__ or ()
    last = {code.co_varnames[code.co_argcount - number]: value for number, value in enumerate(reversed(given), 1)}
    return {**last, **(function.__kwdefaults__ or {})}


def with_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code and that of all functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_nested(constant)


def full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def observe(cls: Any, touch: Callable[..., None]) -> None:
    """Have it noted what is read of the class's instances, and that they are made if no Python code does that."""
    read, make = cls.__getattribute__, cls.__init__
    takes_none = make is object.__init__ and cls.__new__ is not object.__new__

    @functools.wraps(read)
    def __getattribute__(self: Any, name: str) -> Any:  # noqa: N807
        value = read(self, name)
        if name[:1] != "_":
            with contextlib.suppress(RecursionError):
                touch("read", name)
        return value

    @functools.wraps(make)
    def __init__(self: Any, *arguments: Any, **settings: Any) -> None:  # noqa: N807
        if takes_none:
            make(self)
        else:
            make(self, *arguments, **settings)
        touch("constructed", through="" if type(self) is cls else full_name(type(self)))

    with contextlib.suppress(TypeError):  # a class that is written in C
        type.__setattr__(cls, "__getattribute__", __getattribute__)
        if not any(function_of(vars(base).get(name)) for base in cls.__mro__ for name in MAKES):
            type.__setattr__(cls, "__init__", __init__)


def describe(api: Api, found: Any, codes: Sequence[types.CodeType]) -> Dict[str, Any]:
    """Return what of an API could be reached: its file, its statements (first and last line), members, parameters."""
    file = codes[0].co_filename if codes else None
    members = set()
    for cls in found.__mro__ if isinstance(found, type) else ():
        if cls.__module__ != "builtins":
            members |= {*vars(cls), *getattr(cls, "__dataclass_fields__", {})}
    return {
        "file": file,
        "statements": statements(file, {code.co_firstlineno for code in codes}) if file else [],
        "members": sorted(name for name in members if name[:1] != "_"),
        "parameters": sorted(api.parameters),
        "watched": bool(codes or isinstance(found, type)),
    }


def statements(file: str, starts: Any) -> List[Tuple[int, int]]:
    """Return the first and last line of every statement in the functions that start in these lines."""
    import ast

    try:
        with open(file, "rb") as stream:
            tree = ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError):
        return []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and first_line(node) in starts:
            for statement in ast.walk(node):
                if isinstance(statement, ast.stmt) and statement is not node and leaves_a_trace(statement):
                    below = [first_line(inner) for inner in ast.walk(statement) if isinstance(inner, ast.stmt)]
                    later = [line for line in below if line > first_line(statement)]
                    last = min(later) - 1 if later else statement.end_lineno or statement.lineno
                    found.add((first_line(statement), last))
        elif isinstance(node, ast.Lambda) and node.lineno in starts:
            found.add((node.body.lineno, node.body.end_lineno or node.body.lineno))
    return sorted(found)


def first_line(node: Any) -> int:
    return int(min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))]))


def leaves_a_trace(statement: Any) -> bool:
    """Return whether Python makes code for a statement: it makes none for docstrings and declarations."""
    import ast

    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return not is_constant and not isinstance(statement, (ast.Global, ast.Nonlocal))


def as_case(text: str) -> Optional[Case]:
    try:
        cls, name = json.loads(text)
    except (TypeError, ValueError):
        return None
    return str(cls), str(name)


def after_fork(watcher: Watcher, is_fork_server: bool) -> None:
    touch = watcher.touch
    if is_fork_server:
        # It was started by whichever case came first, and forks for all of them.
        touch.inherit(touch.running())
        _environ[CASE] = _encode(touch.case)
    else:
        touch.inherit(touch.of_thread())
    watcher.eyes.resume()


def join() -> None:
    """Watch this process, which a test has started."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if place != folder]
    if ORDER not in _environ:
        return
    watcher = Watcher(_environ[ORDER])
    watcher.touch.inherit(as_case(_environ.get(CASE, "")))
    with open("/proc/self/cmdline", "rb") as stream:
        is_fork_server = b"multiprocessing.forkserver" in stream.read()
    os.register_at_fork(after_in_child=lambda: after_fork(watcher, is_fork_server))
    watcher.install()


def hand_on() -> None:
    """Import the sitecustomize that this process would have had."""
    own = sys.modules.pop(__name__)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        pass
    finally:
        sys.modules.setdefault(__name__, own)


def main() -> None:
    """Run the file named by the last argument, watched."""
    order = sys.argv.pop(1)
    watcher = Watcher(order)
    touch = watcher.touch
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.py")
    spec = importlib.util.spec_from_file_location("run", path)
    assert spec is not None and spec.loader is not None
    run: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    own = _getpid()
    turns: Dict[Case, int] = {}

    class Recorder(run.Recorder):  # type: ignore[misc]
        def __call__(self, event: str, **fields: Any) -> None:
            if _getpid() == own and event == "start":
                case = tuple(fields["case"])
                turns[case] = turns.get(case, 0) + 1
                watcher.find(again=False)
                watcher.eyes.resume()
                touch.begin(case if turns[case] == 1 else (case[0], f"{case[1]} [{turns[case]}]"))
            super().__call__(event, **fields)
            if _getpid() == own and event == "stop":
                touch.end()

    run.Recorder = Recorder
    site = os.path.join(touch.scratch, "site")
    os.makedirs(site)
    os.symlink(os.path.abspath(__file__), os.path.join(site, "sitecustomize.py"))
    _environ[ORDER] = order
    _environ["PYTHONPATH"] = os.pathsep.join(filter(None, [site, _environ.get("PYTHONPATH")]))
    os.register_at_fork(after_in_child=lambda: after_fork(watcher, False))
    watcher.install()
    run.main()


if __name__ == "__main__":
    main()
elif __name__ == "sitecustomize":
    try:
        join()
    finally:
        hand_on()
