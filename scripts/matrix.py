"""Loads matrix.toml and proves that it can be used, before anything is built."""

from __future__ import annotations

import difflib
import enum
import re
import tomllib
import typing
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from .errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
COMMIT = re.compile(r"[0-9a-f]{40}")
PYTHON = re.compile(r"3\.\d{1,2}(\.\d{1,2})?")


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Base of everything that stands in matrix.toml."""


class Text(Row, frozen=True, kw_only=True):
    """One sentence in the languages of the reports."""

    en: str
    zh: str


class Kind(enum.Enum):
    """What an API is."""

    CLASS = "class"
    FUNCTION = "function"
    CONTEXT_MANAGER = "context-manager"
    METHOD = "method"


class Pair(Row, frozen=True, kw_only=True):
    """A torch version and a torch-npu version: one column of the report.

    ``name`` is the torch version unless two pairs share it. ``commit`` is the upstream commit that the tree must be
    at; ``cann`` the CANN release that this pair is verified with.
    """

    torch: str
    torch_npu: str
    python: str
    name: str = ""
    cann: str | None = None
    commit: str | None = None

    @property
    def version(self) -> Version:
        """The torch version, for ordering: 2.7.1 comes before 2.10.0."""
        return Version(self.torch)


class TestFile(Row, frozen=True, kw_only=True):
    """One upstream unittest file; ``limit`` is in seconds, ``expected`` the least number of cases by pair name."""

    path: str
    limit: float
    expected: dict[str, int]
    timing_sensitive: bool = False


class Patch(Row, frozen=True, kw_only=True):
    """A patch, and why it is needed; it lies at ``patches/v<torch>/<file>.patch`` beside matrix.toml."""

    file: str
    pairs: list[str]
    reason: Text


class Api(Row, frozen=True, kw_only=True):
    """An API of the batch."""

    name: str
    kind: Kind
    does: Text


class Upstream(Row, frozen=True, kw_only=True):
    """Where upstream's test tree comes from: sources are tried in order."""

    repository: list[str]
    tag: str = "v{torch}"
    strict: bool = False


class Cann(Row, frozen=True, kw_only=True):
    """Where CANN is when the environment doesn't say (cron): ``set-env`` is the path of its set_env.sh."""

    set_env: str


class Matrix(Row, frozen=True, kw_only=True):
    """A batch as its TOML file states it."""

    batch: str
    title: Text
    upstream: Upstream
    pair: list[Pair]
    test_file: list[TestFile]
    api: list[Api]
    patch: list[Patch] = []
    test_requirements: list[str] = []
    cann: Cann | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A validated batch: ``pairs`` in version order, and where its TOML file lies."""

    path: Path
    matrix: Matrix
    pairs: tuple[Pair, ...]

    @property
    def root(self) -> Path:
        """The folder that relative paths of the batch start from."""
        return self.path.parent

    def pair(self, name: str) -> Pair:
        """Return the pair called ``name``; raises KeyError."""
        return {pair.name: pair for pair in self.pairs}[name]

    def patches(self, pair: Pair) -> dict[str, Path]:
        """Return the patch of each test file that needs one for ``pair``, by the test file's path."""
        return {
            patch.file: self.root / "patches" / f"v{pair.torch}" / f"{patch.file}.patch"
            for patch in self.matrix.patch
            if pair.name in patch.pairs
        }


def load(path: Path) -> Batch:
    """Read and validate a batch.

    Raises ConfigError with one line per problem: the file, the key, what is wrong and what was meant perhaps.
    """
    try:
        data = tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise ConfigError(f"{path}: not found; MATRIX names a TOML file like matrix.toml") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path.name}: not readable as TOML: {error}") from None

    problems: list[str] = []
    _check_table(Matrix, data, "", problems)
    if not problems:
        matrix = msgspec.convert(data, Matrix)
        matrix = msgspec.structs.replace(
            matrix, pair=[msgspec.structs.replace(pair, name=pair.name or pair.torch) for pair in matrix.pair]
        )
        problems += _check_meaning(matrix, path.parent)
    if problems:
        raise ConfigError(*(f"{path.name}: {problem}" for problem in problems))
    pairs = tuple(sorted(matrix.pair, key=lambda pair: (pair.version, Version(pair.torch_npu), pair.name)))
    return Batch(path=path.resolve(), matrix=matrix, pairs=pairs)


def schema() -> dict[str, Any]:
    """Return the JSON schema of matrix.toml, generated from the types above."""
    return msgspec.json.schema(Matrix)


# Helpers


def _suggest(word: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; known are {', '.join(sorted(known))}"


def _check_table(row: type[msgspec.Struct], data: object, where: str, problems: list[str]) -> None:
    """Check ``data`` against ``row`` key by key, so that every mistake is named and not only the first."""
    if not isinstance(data, dict):
        problems.append(f"{where}: expected a table, found {_toml_type(data)}")
        return
    prefix = f"{where}." if where else ""
    fields = {field.encode_name: field for field in msgspec.structs.fields(row)}
    problems += [f"{prefix}{key}: unknown key{_suggest(key, fields)}" for key in data if key not in fields]
    for key, field in fields.items():
        if key not in data:
            if field.required:
                problems.append(f"{prefix}{key}: missing")
            continue
        value = data[key]
        inner = _struct_of(field.type)
        if typing.get_origin(field.type) is list and inner is not None:
            if not isinstance(value, list):
                problems.append(f"{prefix}{key}: expected an array of tables, found {_toml_type(value)}")
                continue
            for number, item in enumerate(value, 1):
                _check_table(inner, item, f"{prefix}{key}[{_label(item) or number}]", problems)
        elif inner is not None:
            _check_table(inner, value, f"{prefix}{key}", problems)
        else:
            try:
                msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                text = str(error).replace("`", "'")
                hint = ""
                if isinstance(field.type, type) and issubclass(field.type, enum.Enum):
                    hint = _suggest(str(value), [member.value for member in field.type])
                problems.append(f"{prefix}{key}: {text[:1].lower()}{text[1:]}{hint}")


def _struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    """Return the struct in ``S``, ``list[S]`` or ``S | None``."""
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None


def _toml_type(value: object) -> str:
    names = {dict: "a table", list: "an array", str: "a string", bool: "a boolean", int: "an integer", float: "a float"}
    return names.get(type(value), type(value).__name__)


def _label(item: object) -> str:
    if isinstance(item, dict):
        for key in ("name", "torch", "path", "file"):
            if isinstance(item.get(key), str):
                return str(item[key])
    return ""


def _check_meaning(matrix: Matrix, root: Path) -> list[str]:
    """Return what is wrong with a matrix whose keys and types are right."""
    problems: list[str] = []
    if not NAME.fullmatch(matrix.batch):
        problems.append(f"batch: '{matrix.batch}' can't name a folder; use letters, digits, dot, dash, underscore")
    if not matrix.upstream.repository:
        problems.append("upstream.repository: empty; name a git URL or a folder template")
    for key, templates in {"repository": matrix.upstream.repository, "tag": [matrix.upstream.tag]}.items():
        for template in templates:
            problems += [f"upstream.{key}: {problem}" for problem in _check_template(template)]
    for number, requirement in enumerate(matrix.test_requirements, 1):
        try:
            Requirement(requirement)
        except InvalidRequirement:
            problems.append(f"test-requirements[{number}]: '{requirement}' is not a requirement such as 'numpy<3'")
    problems += _check_pairs(matrix.pair)
    names = {pair.name for pair in matrix.pair}
    problems += _check_files(matrix, names)
    problems += _check_patches(matrix, names, root)
    seen: set[str] = set()
    for api in matrix.api:
        if api.name in seen:
            problems.append(f"api[{api.name}]: stands twice; an API is listed once")
        seen.add(api.name)
        if not all(part.isidentifier() for part in api.name.split(".")) or "." not in api.name:
            problems.append(
                f"api[{api.name}].name: not a dotted name such as 'torch.distributed.elastic.timer.expires'"
            )
    return problems


def _check_template(template: str) -> list[str]:
    try:
        template.format(torch="2.10.0", torch_npu="2.10.0")
    except (KeyError, IndexError, ValueError, AttributeError):
        return [f"'{template}' has a placeholder that isn't known; use {{torch}} or {{torch_npu}}"]
    return []


def _check_pairs(pairs: list[Pair]) -> list[str]:
    problems: list[str] = []
    if not pairs:
        problems.append("pair: empty; a batch has at least one pair")
    by_name: dict[str, Pair] = {}
    for pair in pairs:
        where = f"pair[{pair.name}]"
        for key, version in {"torch": pair.torch, "torch-npu": pair.torch_npu, "cann": pair.cann}.items():
            if version is not None and not _is_version(version):
                problems.append(f"{where}.{key}: '{version}' is not a version such as '2.10.0' or '2.7.1.post2'")
        if "+" in pair.torch:
            problems.append(
                f"{where}.torch: '{pair.torch}' names a build; leave '+…' out, a CPU build is preferred anyway"
            )
        if not PYTHON.fullmatch(pair.python):
            problems.append(f"{where}.python: '{pair.python}' is not a Python version such as '3.11'")
        if pair.commit is not None and not COMMIT.fullmatch(pair.commit):
            problems.append(f"{where}.commit: '{pair.commit}' is not a full commit id (40 hexadecimal digits)")
        if not NAME.fullmatch(pair.name):
            problems.append(f"{where}.name: '{pair.name}' can't name a session; use letters, digits, dot and dash")
        elif pair.name in by_name:
            same = by_name[pair.name]
            hint = (
                "remove one"
                if (same.torch, same.torch_npu, same.python) == (pair.torch, pair.torch_npu, pair.python)
                else f"give one a name of its own, such as name = '{pair.torch}-npu{pair.torch_npu}'"
            )
            problems.append(f"{where}: stands twice; {hint}")
        by_name.setdefault(pair.name, pair)
    return problems


def _check_files(matrix: Matrix, names: set[str]) -> list[str]:
    problems: list[str] = []
    if not matrix.test_file:
        problems.append("test-file: empty; a batch has at least one test file")
    seen: set[str] = set()
    for file in matrix.test_file:
        where = f"test-file[{file.path}]"
        if file.path in seen:
            problems.append(f"{where}: stands twice; a test file is listed once")
        seen.add(file.path)
        if problem := _leaves_root(file.path):
            problems.append(f"{where}.path: {problem}")
        elif not file.path.endswith(".py"):
            problems.append(f"{where}.path: not a Python file")
        if not 0 < file.limit <= 86_400:
            problems.append(f"{where}.limit: {file.limit:g} is not a number of seconds between 1 and 86400")
        for name, count in file.expected.items():
            if name not in names:
                problems.append(f"{where}.expected.{name}: no such pair{_suggest(name, names)}")
            elif count < 1:
                problems.append(f"{where}.expected.{name}: {count} cases prove nothing; expect at least 1")
        problems += [
            f"{where}.expected: says nothing of pair '{name}'; add the number of cases that must run"
            for name in sorted(names - file.expected.keys())
        ]
    return problems


def _check_patches(matrix: Matrix, names: set[str], root: Path) -> list[str]:
    problems: list[str] = []
    files = {file.path for file in matrix.test_file}
    torch = {pair.name: pair.torch for pair in matrix.pair}
    seen: set[tuple[str, str]] = set()
    for patch in matrix.patch:
        where = f"patch[{patch.file}]"
        if problem := _leaves_root(patch.file):
            problems.append(f"{where}.file: {problem}")
            continue
        if patch.file not in files:
            problems.append(f"{where}.file: no such test file{_suggest(patch.file, files)}")
            continue
        for name in patch.pairs:
            if name not in names:
                problems.append(f"{where}.pairs: no pair '{name}'{_suggest(name, names)}")
                continue
            if (patch.file, name) in seen:
                problems.append(f"{where}.pairs: '{name}' has two patches for this file; a file has one")
            seen.add((patch.file, name))
            path = root / "patches" / f"v{torch[name]}" / f"{patch.file}.patch"
            if not path.is_file():
                problems.append(f"{where}.pairs: no file {path.relative_to(root)} for '{name}'")
    return problems


def _leaves_root(path: str) -> str:
    """Return why ``path`` is not a plain path below the tree's root, or an empty string."""
    pure = PurePosixPath(path)
    if not path or "\\" in path or any(ord(character) < 32 for character in path):
        return f"{path!r} is not a path in upstream's tree"
    if pure.is_absolute() or ".." in pure.parts or str(pure) != path:
        return f"'{path}' leaves the tree or isn't plain; give it as upstream has it, such as 'test/a_test.py'"
    return ""


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
