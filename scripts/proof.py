"""Proves that a patch restores tests and does nothing else, on the syntax trees before and after it."""

from __future__ import annotations

import ast
import builtins
import difflib
import enum
import platform
import re
import sys
import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence

# Names that unittest or Python gives a meaning to: a block that defines one does more than restore tests.
MAGIC = re.compile(r"load_tests|(setUp|tearDown)Module|__\w+__")
SKIPPING_CALLS = ("print", "sys.exit", "exit")
STATEMENT_CHARACTERS = 80


def prove(before: bytes, after: bytes) -> list[str]:
    """Return what a patch does beyond lifting guards: nothing, if it only restores tests.

    Outside classes and functions, a guard (the test of an ``if``, or a flag that only such tests use) may lose
    operands, become True or False, or go, its block staying. What then runs more often may only define names that
    nothing else defines; what runs less often may only skip. Imports and flags may go that nothing but those guards
    needed. Every other statement is there as it was, in the same order and in the same block.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file's own, such as an invalid escape sequence
        try:
            old = ast.parse(before)
        except _UNREADABLE as error:
            version = platform.python_version()
            return [f"is for a file that Python {version} can't parse, nox may need the pair's Python: {error}"]
        try:
            return list(dict.fromkeys(_Proof(old, ast.parse(after)).problems()))
        except _UNREADABLE as error:
            return [f"leaves a file that can't be parsed and compared: {error}"]


# Helpers

# A number of 5000 digits is a ValueError; deep nesting is one of the latter two.
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


class _Effect(enum.Enum):
    """How often a condition is true after a change."""

    SAME = 0
    MORE = 1
    LESS = -1

    def flipped(self) -> _Effect:
        return _Effect(-self.value)


class _Proof:
    """The comparison of two modules, and what is known of their names so far."""

    def __init__(self, old: ast.Module, new: ast.Module) -> None:
        self.old, self.new = old, new
        self.bound = Counter(_bound(new))
        self.found: list[str] = []
        self.dropped: set[str] = set()  # names that lifted guards used
        self.lost: dict[str, str] = {}  # imports and flags that went, in words
        self.flags: dict[str, _Effect] = {}  # flags whose value changed
        self.in_guards: Counter[str] = Counter()  # how often guards and flags mention a name

    def problems(self) -> list[str]:
        self._compare(self.old.body, self.new.body)
        mentions = Counter(_mentions(self.new))
        for name, what in self.lost.items():
            if name not in self.dropped:
                self.found.append(f"removes {what}")
            elif mentions[name]:
                self.found.append(f"removes {what}, which is used elsewhere")
        for name in self.flags:
            if not self.in_guards[name] or mentions[name] != self.in_guards[name] + 1:
                self.found.append(f"changes the flag {name}, which is not for guards alone")
        packages = _packages(self.old) - _packages(self.new) - sys.stdlib_module_names
        self.found += [f"no longer imports the package {name}" for name in sorted(packages)]
        return self.found

    def _compare(self, old_body: Sequence[ast.stmt], new_body: Sequence[ast.stmt]) -> None:
        """Compare two blocks outside classes and functions."""
        new = _one_name_each(new_body)
        old = self._unwrapped(_one_name_each(old_body), new)
        for olds, news in _aligned(old, new):
            if [type(statement) for statement in olds] == [type(statement) for statement in news]:
                for before, after in zip(olds, news, strict=True):
                    self._compare_statements(before, after)
            else:
                for statement in olds:
                    self._gone(statement)
                self.found += [f"adds {_words(statement)}" for statement in news]

    def _compare_statements(self, old: ast.stmt, new: ast.stmt) -> None:
        match old, new:
            case ast.If(), ast.If():
                effect = self._guard(old.test, new.test)
                if effect is None:
                    self.found.append(f"changes the guard '{_text(old.test)}' to '{_text(new.test)}'")
                    effect = _Effect.SAME
                self._reaches(effect, new.body, new)
                self._reaches(effect.flipped(), new.orelse, new)
                self._compare(old.body, new.body)
                self._compare(old.orelse, new.orelse)
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Assign(targets=[ast.Name(id=same)]) if name == same:
                # As text it may be the same and still change, with a flag in it.
                if not _same(old, new) or self.flags.keys() & set(_names(new.value)):
                    effect = self._guard(old.value, new.value)
                    if effect is None:
                        self.found.append(f"changes {_words(old)} to {_words(new)}")
                    elif effect is not _Effect.SAME:
                        self.flags[name] = effect
            case _ if _same(old, new):
                pass
            case ast.ClassDef(name=name), ast.ClassDef(name=same) if name == same:
                self._compare_classes(old, new)
            case _ if _words(old) == _words(new):
                self.found.append(f"changes {_words(old)}")
            case _:
                self.found.append(f"changes {_words(old)} to {_words(new)}")

    def _compare_classes(self, old: ast.ClassDef, new: ast.ClassDef) -> None:
        """Say what is not the same in two classes that are not the same."""
        changes = []
        for olds, news in _aligned(old.body, new.body):
            if [_key(statement) for statement in olds] == [_key(statement) for statement in news]:
                pairs = zip(olds, news, strict=True)
                changes += [
                    f"changes {_words(before, old.name)}" for before, after in pairs if not _same(before, after)
                ]
            else:
                changes += [f"removes {_words(statement, old.name)}" for statement in olds]
                changes += [f"adds {_words(statement, new.name)}" for statement in news]
        self.found += changes or [f"changes the bases or decorators of {_words(new)}"]

    def _unwrapped(self, old: list[ast.stmt], new: list[ast.stmt]) -> list[ast.stmt]:
        """Return ``old`` with each block whose guard went in its guard's place."""
        kept = {_key(statement) for statement in new}
        found = []
        for statement in old:
            match statement:
                case ast.If(test=test, body=body, orelse=[]) if (
                    _key(statement) not in kept
                    and kept.issuperset(map(_key, _one_name_each(body)))
                    and not _binds(test)
                ):
                    self.dropped.update(_names(test))
                    self._reaches(_Effect.MORE, body, statement)
                    found += _one_name_each(body)
                case _:
                    found.append(statement)
        return found

    def _gone(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import(names=[alias]) | ast.ImportFrom(names=[alias]):
                self.lost[_name_of(alias)] = _words(statement)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.lost[name] = _words(statement)
                self.dropped.update(_names(value))
            case ast.If(test=test, body=body, orelse=[]) if all(map(_only_skips, body)) and not _binds(test):
                self.dropped.update(_names(test))
            case _:
                self.found.append(f"removes {_words(statement)}")

    def _guard(self, old: ast.expr, new: ast.expr) -> _Effect | None:
        """Return what the change of a guard or flag does, and keep in mind which names are in it."""
        names = Counter(_names(new))
        self.in_guards += names
        self.dropped.update(set(_names(old)) - names.keys())
        return self._effect(old, new)

    def _effect(self, old: ast.expr, new: ast.expr) -> _Effect | None:
        """Return how often ``new`` is true, measured by ``old``, if it is ``old`` with operands dropped; else None."""
        match old, new:
            case ast.Name(id=name), ast.Name(id=same) if name == same:
                return self.flags.get(name, _Effect.SAME)
            case ast.UnaryOp(op=ast.Not(), operand=inner), ast.UnaryOp(op=ast.Not(), operand=new_inner):
                effect = self._effect(inner, new_inner)
                return effect and effect.flipped()
            case ast.BoolOp(), _ if not isinstance(new, ast.Constant):
                return self._effect_of_fewer(old, new)
            case _ if _same(old, new):
                return None if self.flags.keys() & set(_names(new)) else _Effect.SAME
            case _, ast.Constant(value=bool(value)) if not _binds(old):
                return _Effect.MORE if value else _Effect.LESS
        return None

    def _effect_of_fewer(self, old: ast.BoolOp, new: ast.expr) -> _Effect | None:
        """Return the effect of dropping operands of ``and`` or ``or``."""
        when_dropped = _Effect.LESS if isinstance(old.op, ast.Or) else _Effect.MORE
        wanted = list(new.values) if isinstance(new, ast.BoolOp) and type(new.op) is type(old.op) else [new]
        effects = set()
        for value in old.values:
            effect = self._effect(value, wanted[0]) if wanted else None
            if effect is not None:
                del wanted[0]
            elif _binds(value):
                return None
            effects.add(effect or when_dropped)
        effects -= {_Effect.SAME}
        if wanted or len(effects) > 1:
            return None
        return effects.pop() if effects else _Effect.SAME

    def _reaches(self, effect: _Effect, block: Iterable[ast.stmt], guard: ast.If) -> None:
        """Check that a block may run more or less often than before."""
        if effect is _Effect.LESS and not all(map(_only_skips, block)):
            self.found.append(f"keeps a block from running that the guard '{_text(guard.test)}' had let run")
        if effect is not _Effect.MORE:
            return
        for statement in block:
            if isinstance(statement, ast.If):
                self._reaches(effect, [*statement.body, *statement.orelse], guard)
            elif not _only_defines(statement):
                self.found.append(f"makes {_words(statement)} run, which the guard '{_text(guard.test)}' had kept out")
            for name in _bound(statement):
                if MAGIC.fullmatch(name) or hasattr(builtins, name) or name == "*":
                    self.found.append(f"makes {name} be defined, which means more than a test does")
                elif self.bound[name] != 1:
                    self.found.append(f"makes a second {name} be defined, which hides the first")


def _same(old: ast.AST, new: ast.AST) -> bool:
    return ast.dump(old) == ast.dump(new)


def _aligned(
    old: Sequence[ast.stmt], new: Sequence[ast.stmt]
) -> Iterator[tuple[Sequence[ast.stmt], Sequence[ast.stmt]]]:
    """Yield what corresponds to each other in two blocks, in order; together that is all of both."""
    matcher = difflib.SequenceMatcher(None, list(map(_key, old)), list(map(_key, new)), autojunk=False)
    for _, start, end, new_start, new_end in matcher.get_opcodes():
        yield old[start:end], new[new_start:new_end]


def _key(statement: ast.stmt) -> Hashable:
    """Return what tells a statement from its neighbours while its guard, value or body changes."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return type(statement), name
        case ast.Assign(targets=[ast.Name(id=name)]):
            return ast.Assign, name
        case ast.If(body=body, orelse=orelse):
            return ast.If, tuple(map(_key, body)), tuple(map(_key, orelse))
    return ast.dump(statement)


def _one_name_each(block: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Return a block with each import of several names as that many imports."""
    found: list[ast.stmt] = []
    for statement in block:
        match statement:
            case ast.Import(names=names):
                found += [ast.Import(names=[alias]) for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                found += [ast.ImportFrom(module=module, names=[alias], level=level) for alias in names]
            case _:
                found.append(statement)
    return found


def _bound(node: ast.AST, *, inner: bool = False) -> Iterator[str]:
    """Yield each name that a node binds in its module, as often as it does; ``inner`` is what has names of its own."""
    match node:
        case ast.Global(names=names):
            yield from names
        case ast.NamedExpr(target=ast.Name(id=name)) if inner:
            yield name  # a decorator or a default may bind it outside
        case _ if inner:
            pass
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.alias():
            yield _name_of(node)
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
    inner = inner or isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _bound(child, inner=inner)


def _name_of(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _names(expression: ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(expression) if isinstance(node, ast.Name))


def _mentions(tree: ast.Module) -> Iterator[str]:
    """Yield every name in a module, and every text that could be one: getattr and globals() take those."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.keyword):
            for _, value in ast.iter_fields(node):
                yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, str))


def _packages(tree: ast.Module) -> set[str]:
    """Return the packages that a module imports from; importing one may do more than give its names."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
    return found


def _binds(expression: ast.expr) -> bool:
    return any(isinstance(node, ast.NamedExpr) for node in ast.walk(expression))


def _only_defines(statement: ast.stmt) -> bool:
    match statement:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=targets):
            return not any(
                isinstance(node, ast.Attribute | ast.Subscript) for part in targets for node in ast.walk(part)
            )
    return _is_idle(statement)


def _only_skips(statement: ast.stmt) -> bool:
    match statement:
        case ast.Raise(exc=ast.Call(func=exception)) | ast.Raise(exc=ast.expr() as exception):
            return ast.unparse(exception).rpartition(".")[2] == "SkipTest"
        case ast.Expr(value=ast.Call(func=function)):
            return ast.unparse(function) in SKIPPING_CALLS
    return _is_idle(statement)


def _is_idle(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _words(statement: ast.stmt, owner: str = "") -> str:
    """Return what to call a statement, in a class called ``owner`` perhaps."""
    match statement:
        case ast.ClassDef(name=name):
            return f"{owner}.{name}" if owner else f"class {name}"
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return f"{owner}.{name}" if owner else f"function {name}"
        case ast.Import(names=[alias]) | ast.ImportFrom(names=[alias]):
            return f"the import of {_name_of(alias)}"
    return f"the statement '{_text(statement)}'" + (f" of {owner}" if owner else "")


def _text(node: ast.AST) -> str:
    line = ast.unparse(node).splitlines()[0]
    return line if len(line) <= STATEMENT_CHARACTERS else f"{line[: STATEMENT_CHARACTERS - 1]}…"
