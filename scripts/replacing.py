"""Finds what a package's source puts in the place of another package's names: from its syntax trees, nothing is run."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

# Calls that only look, whatever module and name they are given.
READING = {"getattr", "hasattr", "isinstance", "issubclass", "getattr_static"}
# What tables and helpers of monkey-patches are called.
PATCHING = re.compile(r"patch|replace|override|wrap|intercept", re.IGNORECASE)
PASSED_THROUGH = {"list", "tuple", "set", "sorted", "reversed", "frozenset"}
IMPORTING = {"importlib.import_module", "sys.modules.get"}
INTRODUCED = re.compile(rb"(?:\n|[.,(\"']|\bimport)\s*\Z")
COMPUTED = ""  # stands for a text that can't be known
MOST_ROWS = 500
WORDS_CHARACTERS = 120


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, by API: each with its file and line. ``unread`` are files that are no Python of this version."""

    found: dict[str, list[str]]
    files: int
    unread: list[str] = []


def search(root: Path, package: str, names: Mapping[str, Collection[str]]) -> Search:
    """Search the source of ``package`` below ``root`` for what replaces an API.

    ``names`` are the dotted names under which each API is known. A module or class that an API lies in counts as the
    API does, and so does a member of it. A computed name is found where it is put into the API's own module.
    """
    mentions = _Mentions({name for known in names.values() for name in known})
    found: dict[str, dict[str, None]] = {api: {} for api in names}
    files, unread = sorted((root / package).rglob("*.py")), []
    for path in files:
        shown = path.relative_to(root).as_posix()
        try:
            source = path.read_bytes()
            if not mentions(source):
                continue
            reader = _Reader(root, path, names)
            reader.read(ast.parse(source))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            unread.append(shown)
            continue
        for line, api, words in sorted(reader.hits):
            found[api].setdefault(f"{shown}:{line}: {words}")
    return Search(found={api: list(told) for api, told in found.items()}, files=len(files), unread=unread)


# Helpers

_Value = TypeVar("_Value")


class _Mentions:
    """Tells whether a file is worth parsing, which takes long: fast, and wrong only by letting too many through."""

    def __init__(self, names: Collection[str]) -> None:
        parts = [[re.escape(part.encode()) for part in name.split(".")[1:]] for name in names]
        self.last = [re.compile(part) for part in {part for each in parts for part in each[-1:]}]
        self.before = [re.compile(rb"%s\b" % part) for part in {part for each in parts for part in each[-2:-1]}]
        targets = {part for each in parts for part in each[:-2]}
        self.above = [re.compile(rb"%s\s*(?:=[^=]|[,\"'])" % part) for part in targets]

    def __call__(self, source: bytes) -> bool:
        """Return whether the last part of a name is in it, the module before it, or one above as a target or text."""
        return (
            any(pattern.search(source) for pattern in (*self.last, *self.above))
            # The parts before the last one are words like "api", which prose has too.
            or any(
                INTRODUCED.search(source, max(0, match.start() - 100), match.start())
                for pattern in self.before
                for match in pattern.finditer(source)
            )
        )


class _Scope:
    """The names of a module, class, function or turn of a loop, and what each may stand for."""

    def __init__(self, parent: _Scope | None = None) -> None:
        self.parent = parent
        self.module: _Scope = parent.module if parent else self
        self.names: dict[str, list[_Binding]] = {}
        self.globals: set[str] = set()
        self.known: dict[tuple[str, str], Any] = {}  # what a name was found to be, as a way of looking at it

    def add(self, name: str, binding: _Binding) -> None:
        scope = self.module if name in self.globals else self
        scope.names.setdefault(name, []).append(binding)

    def find(self, name: str) -> tuple[_Scope, list[_Binding]]:
        """Return what a name may stand for, and the scope that says so."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope, scope.names[name]
            scope = scope.parent
        return self.module, [None]

    def once(self, name: str, how: str, look: Callable[[list[_Binding]], _Value], otherwise: _Value) -> _Value:
        """Look at a name, the first time that it is asked for; one that leads back to itself is ``otherwise`` there."""
        scope, bindings = self.find(name)
        if (name, how) not in scope.known:
            scope.known[name, how] = otherwise
            scope.known[name, how] = look(bindings)
        value: _Value = scope.known[name, how]
        return value


# An expression and where it stands, the dotted name of something imported, or None for what can't be known.
_Placed: TypeAlias = tuple[ast.expr, _Scope]
_Binding: TypeAlias = _Placed | str | None
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


class _Reader:
    """Reads one file; ``hits`` are line, API and words of each place that replaces one."""

    def __init__(self, root: Path, path: Path, names: Mapping[str, Collection[str]]) -> None:
        self.root = root
        self.names = names
        self.all = {name for known in names.values() for name in known}
        self.tops = {name.partition(".")[0] for name in self.all}
        parts = path.relative_to(root).with_suffix("").parts
        self.package = parts[:-1]
        self.hits: set[tuple[int, str, str]] = set()

    def read(self, tree: ast.Module) -> None:
        scope = _Scope()
        self._bind(tree.body, scope)
        self._visit_all(tree.body, scope, patching=False)

    # What names stand for

    def _bind(self, body: Iterable[ast.AST], scope: _Scope) -> None:
        """Put into ``scope`` all that a block binds, nested blocks included, functions and classes left out."""
        nodes = list(_within(body))
        scope.globals.update(name for node in nodes if isinstance(node, ast.Global) for name in node.names)
        for node in nodes:
            match node:
                case ast.Import(names=aliases):
                    for alias in aliases:
                        top = alias.name.partition(".")[0]
                        scope.add(alias.asname or top, alias.name if alias.asname else top)
                case ast.ImportFrom(names=aliases):
                    base = ".".join(self._base(node))
                    for alias in aliases:
                        scope.add(alias.asname or alias.name, f"{base}.{alias.name}")
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        _spread(target, (value, scope), scope)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    _spread(target, (value, scope), scope)
                case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                    _spread(target, (value, scope), scope)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    scope.add(name, None)
                case ast.For(target=target) | ast.AsyncFor(target=target):
                    _spread(target, None, scope)
                case ast.withitem(optional_vars=ast.expr() as target):
                    _spread(target, None, scope)
                case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                    scope.add(name, None)

    def _base(self, node: ast.ImportFrom) -> list[str]:
        """Return the module that names are imported from, a relative one in full."""
        above = self.package[: len(self.package) - node.level + 1] if node.level else ()
        return [*above, *(node.module.split(".") if node.module else [])]

    def _dotted(self, node: ast.expr, scope: _Scope) -> set[str]:
        """Return the dotted names that an expression may stand for."""
        match node:
            case ast.Name(id=name):
                return scope.once(name, "dotted", self._dotted_of, set())
            case ast.Attribute(value=value, attr=name):
                return {f"{base}.{name}" for base in self._dotted(value, scope)}
            case ast.IfExp(body=first, orelse=second):
                return self._dotted(first, scope) | self._dotted(second, scope)
            case ast.Subscript(value=value, slice=key) if self._dotted(value, scope) == {"sys.modules"}:
                return self._strings(key, scope) - {COMPUTED}
            case ast.Call(func=function, args=[value, key, *_]) if _last(function) == "getattr":
                names = self._strings(key, scope) - {COMPUTED}
                return {f"{base}.{name}" for base in self._dotted(value, scope) for name in names}
            case ast.Call(func=ast.Name(id="__import__"), args=[key]):
                return {text.partition(".")[0] for text in self._strings(key, scope) - {COMPUTED}}
            case ast.Call(func=function, args=[key, *_]) if self._dotted(function, scope) & IMPORTING:
                return self._strings(key, scope) - {COMPUTED}
        return set()

    def _dotted_of(self, bindings: list[_Binding]) -> set[str]:
        found: set[str] = set()
        for binding in bindings:
            found |= {binding} if isinstance(binding, str) else self._dotted(*binding) if binding else set()
        return found

    def _strings(self, node: ast.expr, scope: _Scope) -> set[str]:
        """Return the texts that an expression may be."""
        match node:
            case ast.Constant(value=str(text)):
                return {text}
            case ast.Name(id=name):
                return scope.once(name, "strings", self._strings_of, {COMPUTED})
        return {COMPUTED}

    def _strings_of(self, bindings: list[_Binding]) -> set[str]:
        return {
            text
            for binding in bindings
            for text in (self._strings(*binding) if isinstance(binding, tuple) else {COMPUTED})
        }

    def _rows(self, node: ast.expr, scope: _Scope) -> list[_Placed] | None:
        """Return what an iterable holds if it is written out, or None."""
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items) | ast.Dict(keys=items):
                whole = [(item, scope) for item in items if item and not isinstance(item, ast.Starred)]
                return whole if len(whole) == len(items) else None
            case ast.BinOp(left=left, op=ast.Add() | ast.BitOr(), right=right):
                return _joined(self._rows, [(left, scope), (right, scope)])
            case ast.Name(id=name):
                return scope.once(name, "rows", partial(_joined, self._rows), None)
            case ast.Call(func=ast.Attribute(value=table, attr="items"), args=[]):
                return self._items(table, scope)
            case ast.Call(func=ast.Attribute(value=table, attr="keys"), args=[]):
                return self._rows(table, scope)
            case ast.Call(func=ast.Name(id=name), args=[inner]) if name in PASSED_THROUGH:
                return self._rows(inner, scope)
        return None

    def _items(self, table: ast.expr, scope: _Scope) -> list[_Placed] | None:
        """Return the items of a dictionary that is written out, each as a tuple."""
        match table:
            case ast.Dict(keys=keys, values=values) if None not in keys:
                entries = [[key, value] for key, value in zip(keys, values, strict=True) if key]
                return [(ast.Tuple(elts=entry, ctx=ast.Load()), scope) for entry in entries]
            case ast.Name(id=name):
                return scope.once(name, "items", partial(_joined, self._items), None)
        return None

    # What replaces something

    def _visit_all(self, nodes: Iterable[ast.AST], scope: _Scope, *, patching: bool) -> None:
        for node in nodes:
            self._visit(node, scope, patching=patching)

    def _visit(self, node: ast.AST, scope: _Scope, *, patching: bool) -> None:
        if isinstance(node, _FUNCTIONS):
            self._visit_function(node, scope)
            return
        if isinstance(node, ast.ClassDef):
            self._visit_all([*node.decorator_list, *node.bases, *node.keywords], scope, patching=False)
            inner = _Scope(scope)
            self._bind(node.body, inner)
            self._visit_all(node.body, inner, patching=False)
            return
        if isinstance(node, _COMPREHENSIONS):
            parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            self._visit_turns(node.generators, parts, scope, patching)
            return
        if isinstance(node, ast.For):
            self._visit_all([node.target, node.iter, *node.orelse], scope, patching=patching)
            for turn in self._turns(node.target, node.iter, scope):
                self._visit_all(node.body, turn, patching=patching)
            return
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name), *_])
                | ast.AnnAssign(target=ast.Name(id=name))
                | ast.AugAssign(target=ast.Name(id=name))
            ):
                patching = patching or bool(PATCHING.search(name))
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                self._hit(self._dotted(node, scope), node, _assigned(node))
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                self._hit(self._slot(node, scope), node, _assigned(node))
            case ast.Call():
                self._call(node, scope)
                patching = patching or bool(PATCHING.search(_last(node.func)))
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if key:
                        self._row([key, value], scope, patching)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                self._row(items, scope, patching)
        self._visit_all(ast.iter_child_nodes(node), scope, patching=patching)

    def _visit_function(self, node: _Function, scope: _Scope) -> None:
        arguments = node.args
        outside = [*arguments.defaults, *filter(None, arguments.kw_defaults), *getattr(node, "decorator_list", [])]
        self._visit_all(outside, scope, patching=False)
        inner = _Scope(scope)
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            inner.add(argument.arg, None)
        for extra in filter(None, [arguments.vararg, arguments.kwarg]):
            inner.add(extra.arg, None)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._bind(body, inner)
        self._visit_all(body, inner, patching=False)

    def _visit_turns(
        self, generators: list[ast.comprehension], parts: list[ast.expr], scope: _Scope, patching: bool
    ) -> None:
        if not generators:
            self._visit_all(parts, scope, patching=patching)
            return
        first, *rest = generators
        self._visit(first.iter, scope, patching=patching)
        for turn in self._turns(first.target, first.iter, scope):
            self._visit_all(first.ifs, turn, patching=patching)
            self._visit_turns(rest, parts, turn, patching)

    def _turns(self, target: ast.expr, iterable: ast.expr, scope: _Scope) -> Iterator[_Scope]:
        """Yield a scope for each turn of a loop over what is written out, or one in which the target is unknown."""
        rows = self._rows(iterable, scope)
        for row in rows if rows is not None and len(rows) <= MOST_ROWS else [None]:
            turn = _Scope(scope)
            _spread(target, row, turn)
            yield turn

    def _slot(self, node: ast.Subscript, scope: _Scope) -> set[str]:
        """Return what an item of ``sys.modules``, of a ``__dict__`` or of ``vars()`` stands for."""
        keys = self._strings(node.slice, scope) - {COMPUTED}
        match node.value:
            case ast.Attribute(value=owner, attr="__dict__"):
                return {f"{base}.{key}" for base in self._dotted(owner, scope) for key in keys}
            case ast.Call(func=ast.Name(id="vars"), args=[owner]):
                return {f"{base}.{key}" for base in self._dotted(owner, scope) for key in keys}
        return self._dotted(node, scope)

    def _call(self, node: ast.Call, scope: _Scope) -> None:
        """Look at a call that is given a module or class and names in it, as setattr is and helpers around it are."""
        name = _last(node.func)
        if name in READING:
            return
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Attribute) and name == "update":
            match node.func.value:
                case ast.Attribute(value=owner, attr="__dict__") | ast.Call(func=ast.Name(id="vars"), args=[owner]):
                    keys = [keyword.arg for keyword in node.keywords if keyword.arg]
                    arguments = [owner, *node.args, *(ast.Constant(value=key) for key in keys)]
        owners = {base for argument in arguments for base in self._dotted(argument, scope)}
        texts = {text for argument in arguments for text in self._texts(argument, scope)}
        words = _shortened(ast.unparse(node))
        self._hit({f"{base}.{text}" for base in owners for text in texts - {COMPUTED}}, node, words)
        if PATCHING.search(name):
            self._hit({text for text in texts if any(_is_at(text, name) for name in self.all)}, node, words)
        if name in ("setattr", "delattr") and len(node.args) > 1 and COMPUTED in self._strings(node.args[1], scope):
            for base in self._dotted(node.args[0], scope):
                self._hit_computed(base, node, f"{words}, a name that is computed")

    def _texts(self, node: ast.expr, scope: _Scope) -> set[str]:
        """Return the texts that an argument is or holds."""
        rows = self._rows(node, scope)
        return {
            text for item, where in (rows if rows else [(node, scope)]) for text in self._strings(item, where) if text
        }

    def _row(self, items: list[ast.expr], scope: _Scope, patching: bool) -> None:
        """Look at a row of a table: a module with a name in it, or (in a table of patches) what is to be replaced."""
        texts = {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}
        if not texts or len(items) == len(texts):
            return
        owners = {base for item in items for base in self._dotted(item, scope)}
        words = f"the table row {_shortened(ast.unparse(ast.Tuple(elts=items, ctx=ast.Load())))}"
        place = next(item for item in items if isinstance(item, ast.Constant))
        self._hit({f"{base}.{text}" for base in owners for text in texts}, place, words)
        if patching and isinstance(items[0], ast.Constant):
            first = str(items[0].value)
            wanted = {first} if first.partition(".")[0] in self.tops else {f"{top}.{first}" for top in self.tops}
            parts = [part for item in items[1:] for base in self._dotted(item, scope) for part in self._exports(base)]
            if parts:
                # A module in the place of a module: only what it exports is put there.
                wanted = {f"{target}.{part}" for target, part in itertools.product(wanted, parts)}
            self._hit(wanted, place, words)

    def _exports(self, module: str) -> list[str]:
        """Return ``__all__`` of a module of the package that is searched."""
        path = self.root.joinpath(*module.split("."))
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if path.relative_to(self.root).parts[0] != self.package[0] or not file.is_file():
                continue
            for node in ast.parse(file.read_bytes()).body:
                match node:
                    case ast.Assign(
                        targets=[ast.Name(id="__all__")], value=ast.List(elts=items) | ast.Tuple(elts=items)
                    ):
                        return [str(item.value) for item in items if isinstance(item, ast.Constant)]
        return []

    def _hit(self, targets: set[str], node: ast.AST, words: str) -> None:
        for target in targets:
            for api, known in self.names.items():
                if any(_is_at(name, target) or _is_at(target, name) for name in known):
                    self.hits.add((_line(node), api, words))

    def _hit_computed(self, owner: str, node: ast.AST, words: str) -> None:
        for api, known in self.names.items():
            if any(owner in (name, name.rpartition(".")[0]) for name in known):
                self.hits.add((_line(node), api, words))


def _is_at(name: str, place: str) -> bool:
    """Return whether a dotted name is ``place`` or below it."""
    return name == place or name.startswith(f"{place}.")


def _joined(look: Callable[[ast.expr, _Scope], list[_Placed] | None], bindings: list[_Binding]) -> list[_Placed] | None:
    """Return what all of several tables hold, or None if one of them can't be known."""
    found: list[_Placed] = []
    for binding in bindings:
        rows = look(*binding) if isinstance(binding, tuple) else None
        if rows is None:
            return None
        found += rows
    return found


def _within(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes below a block that share its names."""
    for node in body:
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef, *_COMPREHENSIONS)):
            yield from _within(ast.iter_child_nodes(node))


def _spread(target: ast.AST, binding: _Binding, scope: _Scope) -> None:
    """Bind a target, item by item where both sides are written out."""
    match target:
        case ast.Name(id=name):
            scope.add(name, binding)
        case ast.Starred(value=inner):
            _spread(inner, None, scope)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            items: list[ast.expr] = []
            where = scope
            if isinstance(binding, tuple) and isinstance(binding[0], ast.Tuple | ast.List):
                items, where = binding[0].elts, binding[1]
            plain = len(items) == len(targets) and not any(isinstance(each, ast.Starred) for each in (*items, *targets))
            for number, inner in enumerate(targets):
                _spread(inner, (items[number], where) if plain else None, scope)


def _last(function: ast.expr) -> str:
    """Return the last part of the name of what is called."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _assigned(target: ast.Attribute | ast.Subscript) -> str:
    words = ast.unparse(target)
    return f"del {words}" if isinstance(target.ctx, ast.Del) else f"{words} = …"


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _shortened(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= WORDS_CHARACTERS else f"{line[: WORDS_CHARACTERS - 1]}…"
