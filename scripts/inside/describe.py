"""Says what APIs are like in this venv: where they stand, what they look like, what they pull in. None is called.

Usage: python describe.py ORDER ANSWER, two paths of JSON files.

ORDER is ``{"apis": [dotted names], "replacers": [packages]}``. ANSWER holds ``error`` if torch can't be imported, and
otherwise ``root`` (the folder that torch lies in), ``loaded`` (those of the replacers that torch has loaded) and
``apis``, in the order asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib
import inspect
import json
import os
import re
import signal
import sys
import types
from typing import Any, Iterator, Optional

TEXT_CHARACTERS = 4000
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
DEVICES = ("cuda", "npu", "xpu", "mtia", "mps")


def resolve(name: str) -> tuple[Any, Any, types.ModuleType]:
    """Return what a dotted name stands for, what it is an attribute of, and the last module on the way."""
    first, *rest = name.split(".")
    owner = value = module = importlib.import_module(first)
    for part in rest:
        owner = value
        if is_a(value, types.ModuleType):
            module = value
            value = of_module(value, part)
        elif not hasattr(value, part):
            raise AttributeError(f"{name.rpartition('.')[0]} has no '{part}'")
        else:
            value = getattr(value, part)
    return value, owner, module


def of_module(module: types.ModuleType, part: str) -> Any:
    """Return an attribute of a module, or a submodule that nobody has imported yet."""
    with contextlib.suppress(AttributeError):
        return getattr(module, part)
    full = f"{module.__name__}.{part}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
    raise AttributeError(f"{module.__name__} has no '{part}'")


def describe(name: str, root: str, replacers: list[str]) -> dict[str, Any]:
    """Return what an API is like, or ``problem``: why its name can't be imported."""
    modules, devices = set(sys.modules), initialised()
    try:
        value, owner, module = resolve(name)
    except BaseException as error:
        return {"name": name, "importable": False, "problem": plain(f"{type(error).__name__}: {error}")}
    facts = {
        "name": name,
        "importable": True,
        "modules": sorted(set(sys.modules) - modules),
        "initialised": sorted(initialised() - devices),
    }
    try:
        return {**facts, **look(name, value, owner, module, root, replacers)}
    except Exception as error:
        return {**facts, "problem": plain(f"it can't be looked at: {type(error).__name__}: {error}")}


def look(
    name: str, value: Any, owner: Any, module: types.ModuleType, root: str, replacers: list[str]
) -> dict[str, Any]:
    """Return what an API is like that was imported."""
    raw = vars_of(owner).get(name.rpartition(".")[2], value) if is_a(owner, type) else value
    code = implementation(raw)
    file, line, source = place_of(code, root)
    own = module_of(code) or module.__name__
    fields = list(fields_of(value)) if is_a(value, type) else []
    return {
        "kind": kind_of(value, raw, owner),
        "context_manager": is_context_manager(value),
        "signature": signature_of(value) if callable(value) else "",
        "fields": [plain(text) for _, text in fields],
        "members": list(members_of(value, {field for field, _ in fields}, root)) if is_a(value, type) else [],
        "module": own,
        "file": file,
        "line": line,
        "source_sha256": source,
        "file_sha256": digest_of(os.path.join(root, file)) if file else None,
        "names": sorted({name, *names_of(value, owner, code, name)}),
        "replaced_by": sorted(set(replacements(name, value, raw, {module, sys.modules.get(own)}, root, replacers))),
    }


# What it is


def kind_of(value: Any, raw: Any, owner: Any) -> str:
    if is_a(value, type):
        return "dataclass" if dataclasses.is_dataclass(value) else "class"
    if is_a(raw, property):
        return "property"
    if is_a(owner, type) and callable(value):
        return "method"
    if is_context_manager(value):
        return "context-manager"
    if is_a(value, types.ModuleType):
        return "module"
    return "function" if callable(value) else "object"


def is_context_manager(value: Any) -> bool:
    """Return whether ``with`` takes what a class or function gives; for functions, contextlib's decorators tell."""
    if is_a(value, type):
        return hasattr(value, "__enter__") and hasattr(value, "__exit__")
    decorators: tuple[Any, ...] = (contextlib.contextmanager, contextlib.asynccontextmanager)
    made_by = [decorate(is_context_manager).__code__ for decorate in decorators]
    return any(is_a(step, types.FunctionType) and step.__code__ in made_by for step in chain(value))


def chain(value: Any) -> Iterator[Any]:
    """Yield a function and what it wraps, down to the innermost one."""
    seen: list[Any] = []
    while value is not None and not any(value is step for step in seen):
        seen.append(value)
        yield value
        if is_a(value, (staticmethod, classmethod, types.MethodType)):
            value = value.__func__
        elif is_a(value, property):
            value = value.fget
        elif is_a(value, (functools.partial, functools.partialmethod, functools.cached_property)):
            value = value.func
        else:
            value = vars_of(value).get("__wrapped__")


def implementation(value: Any) -> Any:
    """Return the class or function that stands in the source."""
    return value if is_a(value, type) else list(chain(value))[-1]


def signature_of(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        # Built in, and without a text signature.
        return ""
    parameters = [
        each.replace(default=Sorted(each.default)) if is_a(each.default, (set, frozenset)) else each
        for each in signature.parameters.values()
    ]
    return plain(str(signature.replace(parameters=parameters)))


class Sorted:
    """A set with a text that is the same in every process."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"{type(self.values).__name__}({', '.join(sorted(map(repr, self.values)))})"


def fields_of(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the name of each field with a line that tells its type and default."""
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
            if field.default_factory is not dataclasses.MISSING:
                default = f" = {named(field.default_factory)}()"
            yield field.name, f"{field.name}: {annotation(field.type)}{default}"
    elif hasattr(cls, "__attrs_attrs__"):
        for attribute in cls.__attrs_attrs__:
            default = (
                "" if type(attribute.default).__name__ in ("_Nothing", "NothingType") else f" = {attribute.default!r}"
            )
            if hasattr(attribute.default, "factory"):
                default = f" = {named(attribute.default.factory)}()"
            yield attribute.name, f"{attribute.name}: {annotation(attribute.type)}{default}"
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        types_of = getattr(cls, "__annotations__", {})
        for name in cls._fields:
            default = f" = {cls._field_defaults[name]!r}" if name in cls._field_defaults else ""  # type: ignore[attr-defined]
            yield name, f"{name}: {annotation(types_of.get(name))}{default}"
    elif issubclass(cls, enum.Enum):
        for name, member in cls.__members__.items():
            yield name, f"{name} = {member.value!r}"
    else:
        for base in reversed(cls.__mro__):
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if not name.startswith("__"):
                    yield name, name


def members_of(cls: type, fields: set[str], root: str) -> Iterator[str]:
    """Yield the public methods and properties of a class, those of the standard library's bases left out."""
    for name in sorted({name for base in cls.__mro__ if is_below(base, root) for name in vars(base)}):
        if name.startswith("_") or name in fields:
            continue
        raw = vars_of(cls)[name]
        prefix = "abstract " if getattr(raw, "__isabstractmethod__", False) else ""
        if is_a(raw, property):
            yield f"{prefix}property {name}"
        elif is_a(raw, (staticmethod, classmethod)):
            yield f"{prefix}{type(raw).__name__} {name}{signature_of(raw.__func__)}"
        elif is_a(raw, type) or not callable(raw):
            yield f"{type(raw).__name__} {name}"
        else:
            yield f"{prefix}{name}{signature_of(raw)}"


def annotation(kind: Any) -> str:
    return kind if isinstance(kind, str) else inspect.formatannotation(kind)


def named(factory: Any) -> str:
    return str(getattr(factory, "__qualname__", type(factory).__qualname__))


# Where it stands


def place_of(value: Any, root: str) -> tuple[str, Optional[int], Optional[str]]:
    """Return file (from ``root``), first line and digest of the source of a class or function, where it has any."""
    try:
        file = inspect.getsourcefile(value) or ""
        lines, first = inspect.getsourcelines(value)
    except (OSError, TypeError):
        return "", None, None
    shown = os.path.relpath(file, root) if file.startswith(root + os.sep) else os.path.abspath(file)
    return shown, first, hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def digest_of(path: str) -> Optional[str]:
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return None


def names_of(value: Any, owner: Any, code: Any, name: str) -> Iterator[str]:
    """Yield the dotted names under which an API can be had as well: whoever assigns to one of them replaces it."""
    if is_a(code, (type, types.FunctionType)) and "<" not in code.__qualname__:
        yield f"{code.__module__}.{code.__qualname__}"
    is_member = is_a(owner, type)
    wanted, rest = (owner, f".{name.rpartition('.')[2]}") if is_member else (value, "")
    top = name.partition(".")[0]
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == top and isinstance(module, types.ModuleType):
            for attribute, found in list(vars(module).items()):
                if found is wanted:
                    yield f"{module_name}.{attribute}{rest}"


# What it pulls in, and who has touched it


def initialised() -> set[str]:
    """Return the devices that torch has started."""
    found = set()
    torch = sys.modules.get("torch")
    for device in DEVICES:
        with contextlib.suppress(Exception):
            if getattr(torch, device).is_initialized():
                found.add(f"torch.{device}")
    return found


def replacements(
    name: str, value: Any, raw: Any, modules: set[Optional[types.ModuleType]], root: str, replacers: list[str]
) -> Iterator[str]:
    """Yield what of an API, or beside it in its modules, comes from one of the packages ``replacers``."""
    parts = [(name, raw)]
    if is_a(value, type):
        parts += [
            (f"{name}.{part}", each)
            for base in reversed(value.__mro__)
            if is_below(base, root)
            for part, each in vars(base).items()
        ]
    for module in modules:
        if module and not origin_of(module, root, replacers):
            parts += [(f"{module.__name__}.{part}", each) for part, each in vars(module).items()]
    for part, each in parts:
        found = [origin for step in chain(each) for origin in [origin_of(step, root, replacers)] if origin]
        if found:
            yield f"{part} is {found[-1]}"


def origin_of(value: Any, root: str, replacers: list[str]) -> str:
    """Return where a value comes from, if that is one of ``replacers``."""
    module = module_of(value)
    for package in replacers:
        # A wrapper takes over the name and module of what it wraps; its code's file stays.
        file = value.__code__.co_filename if is_a(value, types.FunctionType) else ""
        if file.startswith(os.path.join(root, package) + os.sep):
            return f"{os.path.relpath(file, root)}:{value.__code__.co_firstlineno}"
        if module == package or module.startswith(f"{package}."):
            return module
    return ""


def module_of(value: Any) -> str:
    """Return the name of the module that a value, or else its type, was defined in."""
    if is_a(value, types.ModuleType):
        found = vars(value).get("__name__")
    elif is_a(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        found = value.__module__
    else:
        found = type(value).__module__
    return found if is_a(found, str) else ""


def is_below(cls: type, root: str) -> bool:
    """Return whether a class is defined in an installed package, not in the standard library."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return isinstance(file, str) and file.startswith(root + os.sep)


def vars_of(value: Any) -> dict[str, Any]:
    """Return the attributes of a value, of a class those of its bases too; nothing is evaluated."""
    if is_a(value, type):
        return {name: each for base in reversed(value.__mro__) for name, each in vars(base).items()}
    with contextlib.suppress(AttributeError):
        return dict(object.__getattribute__(value, "__dict__"))
    return {}


def is_a(value: Any, kinds: Any) -> bool:
    """Do as isinstance does, but ask the type alone: some of torch's objects answer whatever they are asked."""
    return issubclass(type(value), kinds)


def plain(text: str) -> str:
    """Return text that is the same in every process and that JSON can hold for every reader."""
    return ADDRESS.sub("0x…", text)[:TEXT_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def in_child(name: str, root: str, replacers: list[str], place: str) -> dict[str, Any]:
    """Describe an API in a forked child: what it imports is gone afterwards, and a crash is its own."""
    child = os.fork()
    if not child:
        try:
            with open(place, "w") as stream:
                json.dump(describe(name, root, replacers), stream)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    try:
        with open(place) as stream:
            return dict(json.load(stream))
    except (OSError, ValueError):
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        how = f"ended by {signal.Signals(number).name}" if number else f"exited with {os.WEXITSTATUS(status)}"
        return {"name": name, "importable": False, "problem": f"{how} while it was imported"}


def main() -> None:
    """Answer the order."""
    with open(sys.argv[1]) as stream:
        order = json.load(stream)
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except BaseException as error:
        answer: dict[str, Any] = {"error": plain(f"{type(error).__name__}: {error}")}
    else:
        root = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
        answer = {
            "root": root,
            "loaded": [package for package in order["replacers"] if package in sys.modules],
            "apis": [
                in_child(name, root, order["replacers"], f"{sys.argv[2]}.{number}")
                for number, name in enumerate(order["apis"])
            ],
        }
    with open(sys.argv[2], "w") as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main()
