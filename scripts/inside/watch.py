"""Runs one test file as run.py does, and writes as JSON lines which case reached which API while it ran.

Usage: python watch.py ORDER EVENTS STACKS SIGNAL FILE, of which all but ORDER are run.py's.

ORDER is a JSON file: ``apis`` (dotted names), ``touches`` (where the lines go) and ``scratch`` (a folder of its own).
Python processes that a test starts do the same: a folder below ``scratch`` is on their PYTHONPATH, in which this very
file is called sitecustomize.py.

What is watched keeps its identity: functions and classes stay the objects that they are. Calls and lines are seen by
sys.monitoring or, before Python 3.12, by probes in the code of the functions. (A trace or profile function makes all
code several times slower there, which is enough to let timers of tests run out.) Classes get special methods that note
what is made and read of them.
"""

from __future__ import annotations

import ast
import builtins
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
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

ORDER, CASE = "TNM_WATCH", "TNM_WATCH_CASE"
# What it means that a method of a class runs.
MEANINGS = {"__enter__": "enter", "__aenter__": "enter", "__exit__": "exit", "__aexit__": "exit"}
PROBE = "__watch__"
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
        self.is_seen = False


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
        # By the identity of code, or of the frame that runs it.
        self.roles: Dict[int, List[Role]] = {}
        self.lines: Dict[int, List[Api]] = {}
        self.defaults: Dict[int, Dict[str, Any]] = {}
        self.calls: Dict[int, List[Tuple[Role, str]]] = {}
        self.late: List[Tuple[Role, type]] = []
        self.hooks: List[Any] = []
        self.eyes = Monitoring(self) if sys.version_info >= (3, 12) else Probes(self)

    def install(self) -> None:
        """Wait for the modules of the APIs."""
        sys.meta_path.insert(0, Finder(self))
        self.find()

    def find(self, again: bool = True) -> None:
        """Look for those APIs that are there by now (``again``: or have become others), and watch them."""
        for api in self.apis:
            if again or api.found is None:
                self._find(api)
        late, self.late = self.late, []
        for role, cls in late:
            # A decorator may have given it another method after it was made.
            self._join(role, cls)

    @guarded
    def _find(self, api: Api) -> None:
        found, owner = look_up(api.name)
        if found is None or found is api.found:
            return
        api.found = found
        if isinstance(found, type):
            own = self._watch_class(api, found)
        else:
            name = api.name.rpartition(".")[2]
            role = Role(api, "call", name, None if isinstance(found, staticmethod) else owner)
            function = function_of(found)
            own = [function] if function and self._register(role, function, own=True) else []
            if role.owner is not None:
                self._follow(role)
        codes = [code for code in map(self.eyes.prepare, own) if code]
        for code in codes:
            for part in with_nested(code):
                self.lines.setdefault(id(part), []).append(api)
        self.touch.write(api=api.name, how="found", **describe(api, found, codes))

    def _watch_class(self, api: Api, cls: type) -> List[types.FunctionType]:
        """Watch a class; returns those of its methods that stand in its own file."""
        for name, what in MEANINGS.items():
            self._follow(Role(api, what, name, cls))
        self._follow(Role(api, "make", "__init__", cls))
        api.is_seen = observe(cls, functools.partial(self.touch, api, "read"))
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        functions = map(function_of, vars(cls).values())
        return [function for function in functions if function and function.__code__.co_filename == file]

    def _follow(self, role: Role) -> None:
        """Watch what a class has by the name of a role, and what classes below it have in its place."""
        waiting: List[Any] = [role.owner]
        while waiting:
            cls = waiting.pop()
            waiting += type.__subclasses__(cls)
            self._join(role, cls)
        follow(role.owner, functools.partial(self._made, role))

    def _made(self, role: Role, cls: type) -> None:
        self._join(role, cls)
        self.late.append((role, cls))

    @guarded
    def _join(self, role: Role, cls: type) -> None:
        if role.what != "make":
            for base in cls.__mro__:
                function = function_of(vars(base).get(role.name))
                if function is not None:
                    self._register(role, function)
            return
        make = attribute(cls, role.name)
        if not any(make is hook for hook in self.hooks):
            function = function_of(make)
            if function is None or not self._register(role, function, own=cls is role.owner):
                self._hook(role, cls)

    def _register(self, role: Role, function: types.FunctionType, own: bool = False) -> bool:
        code = self.eyes.prepare(function)
        if code is None:
            return False
        roles = self.roles.setdefault(id(code), [])
        if role not in roles:
            roles.append(role)
        if own:
            self.defaults[id(code)] = defaults_of(function)
        return True

    def _hook(self, role: Role, cls: Any) -> None:
        """Give a class an ``__init__`` that notes what is made, where what makes it can't be watched."""
        make = cls.__init__
        takes_none = make is object.__init__ and cls.__new__ is not object.__new__
        told = function_of(cls.__new__ if takes_none else make)
        names = told.__code__.co_varnames[1 : told.__code__.co_argcount] if told else ()
        defaults = defaults_of(told) if told and cls is role.owner else {}

        def note(made: Any, given: Dict[str, Any], how: str, error: str = "") -> None:
            through = "" if type(made) is role.owner else full_name(type(made))
            self.touch(role.api, how, error, through)
            for name, default in defaults.items():
                self.touch(role.api, "default" if given.get(name, default) is default else "explicit", name)

        @functools.wraps(make)
        def __init__(self: Any, *arguments: Any, **settings: Any) -> None:  # noqa: N807
            given = {**dict(zip(names, arguments)), **settings}  # noqa: B905 (Python 3.9 has no strict)
            try:
                make(self, *(() if takes_none else arguments), **({} if takes_none else settings))
            except BaseException as error:
                # What doesn't take these arguments never ran.
                if error.__traceback__ and error.__traceback__.tb_next:
                    note(self, given, "raised", type(error).__name__)
                raise
            note(self, given, "constructed")

        with contextlib.suppress(TypeError):  # a class that is written in C
            type.__setattr__(cls, "__init__", __init__)
            self.hooks.append(__init__)

    @guarded
    def started(self, frame: types.FrameType) -> None:
        """Note that a call begins."""
        code = frame.f_code
        meanings = []
        for role in self.roles.get(id(code), ()):
            through = role.through(frame)
            if through is not None:
                meanings.append((role, through))
        self.calls[id(frame)] = meanings
        arguments = frame.f_locals if meanings else {}
        for role, through in meanings:
            if role.what in ("call", "enter"):
                self.touch(role.api, "entered", through=through)
            for name, default in self.defaults.get(id(code), {}).items():
                given = arguments.get(name, default)
                self.touch(role.api, "default" if given is default else "explicit", name)

    @guarded
    def ended(self, frame: types.FrameType, error: str = "") -> None:
        """Note that a call has returned, or was left by an exception."""
        for role, through in self.calls.pop(id(frame), ()):
            handed = exception_handed_to(frame) if role.what == "exit" and not error else error
            if handed == "GeneratorExit":
                # Nobody waits for its end any more.
                continue
            if handed:
                self.touch(role.api, "raised", handed, through)
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
    """Sees calls and lines by sys.monitoring, of chosen code alone."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.prepared: Dict[int, types.CodeType] = {}
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            events = monitoring.events
            self.tool = next(tool for tool in (4, 3, 2, 1, 0) if monitoring.get_tool(tool) is None)
            monitoring.use_tool_id(self.tool, "watch")
            monitoring.register_callback(self.tool, events.PY_START, self._start)
            monitoring.register_callback(self.tool, events.PY_RETURN, self._return)
            monitoring.register_callback(self.tool, events.PY_UNWIND, self._unwind)
            monitoring.register_callback(self.tool, events.LINE, watcher.line)

    def prepare(self, function: types.FunctionType) -> Optional[types.CodeType]:
        """Watch a function from now on; returns its code."""
        code = function.__code__
        if sys.version_info >= (3, 12) and id(code) not in self.prepared:
            events = sys.monitoring.events
            for part in with_nested(code):
                sys.monitoring.set_local_events(self.tool, part, events.PY_START | events.PY_RETURN | events.LINE)
            self.prepared[id(code)] = code
            # An exception that leaves a frame can't be had for chosen code alone.
            sys.monitoring.set_events(self.tool, events.PY_UNWIND)
        return code

    def _start(self, _code: types.CodeType, _offset: int) -> None:
        self.watcher.started(_frame(1))

    def _return(self, _code: types.CodeType, _offset: int, _value: object) -> None:
        self.watcher.ended(_frame(1))

    def _unwind(self, code: types.CodeType, _offset: int, error: BaseException) -> None:
        if id(code) in self.prepared:
            self.watcher.ended(_frame(1), type(error).__name__)


class Probes:
    """Sees calls and lines by probes that are compiled into functions: the function stays, its code is another."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.files: Dict[str, Dict[Tuple[str, int], Tuple[types.CodeType, types.CodeType]]] = {}
        self.prepared: Dict[int, types.CodeType] = {}
        setattr(builtins, PROBE, self._probe)

    def prepare(self, function: types.FunctionType) -> Optional[types.CodeType]:
        """Watch a function from now on; returns its code, or None if its source can't be had."""
        code = function.__code__
        if id(code) not in self.prepared:
            if code.co_filename not in self.files:
                self.files[code.co_filename] = self._compile(code.co_filename)
            plain, probed = self.files[code.co_filename].get((code.co_name, code.co_firstlineno), (None, None))
            if plain is None or probed is None or plain != code:
                return None
            function.__code__ = probed
        return function.__code__

    def _compile(self, file: str) -> Dict[Tuple[str, int], Tuple[types.CodeType, types.CodeType]]:
        """Return the code of all functions of a file, by name and line: as it is, and with probes."""
        try:
            with open(file, "rb") as stream:
                source = stream.read()
            plain = compile(source, file, "exec", dont_inherit=True)
            tree = Prober().visit(ast.parse(source))
            probed = compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            return {}
        self.prepared.update((id(code), code) for code in with_nested(probed))
        by_place = {(code.co_name, code.co_firstlineno): code for code in with_nested(probed)}
        return {
            (code.co_name, code.co_firstlineno): (code, by_place[code.co_name, code.co_firstlineno])
            for code in with_nested(plain)
        }

    def _probe(self, what: str, line: int = 0) -> None:
        frame = _frame(1)
        if what == "line":
            self.watcher.line(frame.f_code, line)
        elif what == "start":
            self.watcher.started(frame)
        else:
            # By an exception a function is left twice, of which the first counts.
            self.watcher.ended(frame, sys.exc_info()[0].__name__ if what == "raise" else "")  # type: ignore[union-attr]


class Prober(ast.NodeTransformer):
    """Puts a probe before every statement of every function, and where the function begins and ends."""

    depth = 0

    def visit(self, node: ast.AST) -> Any:
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        self.depth += is_function
        self.generic_visit(node)
        self.depth -= is_function
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = self._between_probes(node.body)
        if self.depth and isinstance(node, ast.stmt) and leaves_a_trace(node):
            return [probe(node, "line", first_line(node)), node]
        return node

    def _between_probes(self, body: List[Any]) -> List[Any]:
        is_documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        head, rest = body[:is_documented], body[is_documented:]
        place = body[0]
        reraise = [probe(place, "raise"), ast.copy_location(ast.Raise(exc=None, cause=None), place)]
        handler = ast.ExceptHandler(type=None, name=None, body=reraise)
        watched = ast.Try(
            body=rest or [ast.Pass()],
            handlers=[ast.copy_location(handler, place)],
            orelse=[],
            finalbody=[probe(place, "end")],
        )
        return [*head, probe(place, "start"), ast.copy_location(watched, place)]


def probe(place: Any, *arguments: Any) -> ast.stmt:
    call = ast.Call(
        func=ast.Name(id=PROBE, ctx=ast.Load()), args=[ast.Constant(value=value) for value in arguments], keywords=[]
    )
    return ast.copy_location(ast.Expr(value=call), place)


class Finder:
    """Tells the watcher when a module of an API was imported."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.watcher.modules:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = Loader(spec.loader, self.watcher)
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


def observe(cls: Any, read: Callable[[str], None]) -> bool:
    """Have ``read`` called with the name of every public member that is read of an instance, if that can be."""
    original = cls.__getattribute__

    @functools.wraps(original)
    def __getattribute__(self: Any, name: str) -> Any:  # noqa: N807
        value = original(self, name)
        if name[:1] != "_":
            with contextlib.suppress(RecursionError):
                read(name)
        return value

    try:
        type.__setattr__(cls, "__getattribute__", __getattribute__)
    except TypeError:
        # A class that is written in C.
        return False
    return True


def follow(owner: Any, join: Callable[[type], None]) -> None:
    """Have ``join`` called with every class that is made below ``owner``."""
    own = vars(owner).get("__init_subclass__")

    def __init_subclass__(cls: Any, /, **settings: Any) -> None:  # noqa: N807
        if own is None:
            super(owner, cls).__init_subclass__(**settings)
        else:
            own.__get__(None, cls)(**settings)
        join(cls)

    with contextlib.suppress(TypeError):  # a class that is written in C
        type.__setattr__(owner, "__init_subclass__", classmethod(__init_subclass__))


def describe(api: Api, found: Any, codes: Sequence[types.CodeType]) -> Dict[str, Any]:
    """Return what of an API could be reached: its file, statements (first and last line) and members."""
    file = codes[0].co_filename if codes else None
    members = set()
    for cls in found.__mro__ if isinstance(found, type) else ():
        if cls.__module__ != "builtins":
            members |= {*vars(cls), *getattr(cls, "__dataclass_fields__", {})}
    return {
        "file": file,
        "statements": statements(file, {code.co_firstlineno for code in codes}) if file else [],
        "members": sorted(name for name in members if name[:1] != "_"),
        "watched": bool(codes) or api.is_seen,
    }


def statements(file: str, starts: Any) -> List[Tuple[int, int]]:
    """Return the first and last line of every statement in the functions that start in these lines."""
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
    return sorted(found)


def first_line(node: Any) -> int:
    return int(min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))]))


def leaves_a_trace(statement: ast.stmt) -> bool:
    """Return whether Python makes code for a statement: it makes none for docstrings and declarations."""
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
