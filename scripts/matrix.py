"""Loads matrix.toml and proves that it can be used, before anything is built."""

from __future__ import annotations

import datetime
import difflib
import enum
import os
import re
import string
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec
from packaging.requirements import Requirement
from packaging.version import Version

from .errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What stands beside the folders of pairs and batches.
TAKEN = re.compile(r"report\..*|readme\.md", re.IGNORECASE)
COMMIT = re.compile(r"[0-9a-f]{40}")
CANN = re.compile(r"[0-9]+(\.[0-9A-Za-z]+)+")
# What a template may have in braces.
PLACEHOLDERS = ("torch", "torch_npu")
WHEEL = re.compile(r"(https?://|file:/|/)[^?#]+\.whl([?#].*)?")
# Older interpreters can't run scripts/inside.
PYTHON = re.compile(r"3\.(9|[1-9][0-9])(\.[0-9]{1,2})?")
LIMIT_SECONDS = 86_400
MOST_CASES = 1_000_000
MOST_KEPT = 100_000
TOML_TYPES = {
    dict: "a table",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    datetime.date: "a date",
}
ONE_LINE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\S[^\x00-\x1f\x7f-\x9f\u2028\u2029]*")
LONG_WORD = re.compile(r"(\S{80})\S{80,}(\S{20})")

CASE = re.compile(r"[^\s.]+(\.[^\s.]+)+( \[\d+\])?")
BEHAVIOUR = re.compile(r"normal|exception|(?!\d)\w+=(?!\d)\w+")

RowType = TypeVar("RowType", bound="Row")


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
    """An API of the batch.

    ``require`` names cases that must be seen to reach it (``path::Class.method``), ``require_behaviours`` what passing
    cases must show of it: ``normal``, ``exception`` (``exception=ValueError``), ``read=<member>`` of a class, and
    ``<parameter>=default`` or ``=explicit``.
    """

    name: str
    kind: Kind
    does: Text
    require: list[str] = []
    require_behaviours: list[str] = []


class Upstream(Row, frozen=True, kw_only=True):
    """Where upstream's test tree comes from: sources are tried in order."""

    repository: list[str]
    tag: str = "v{torch}"
    strict: bool = False


class Cann(Row, frozen=True, kw_only=True):
    """Where CANN is when the environment doesn't say (cron): ``set-env`` is the path of its set_env.sh."""

    set_env: str


class Accepted(Row, frozen=True, kw_only=True):
    """A failure that is known, and no news until the day ``expires``.

    ``case`` is ``Class.method``; without ``pairs`` it is accepted for all.
    """

    file: str
    case: str
    reason: str
    expires: datetime.date
    pairs: list[str] = []


class Docs(Row, frozen=True, kw_only=True):
    """Where Ascend/pytorch's docs say what is supported: of sources, branches and paths, the first that has the page.

    ``path`` may have ``{torch_dashed}`` (2-10-0) and ``{page}`` in it; without ``branch`` it is the repository's own
    first one. With ``nearest``, the page of the newest older version stands in for one that isn't there, and is named.
    """

    repository: list[str]
    path: list[str]
    page: str
    branch: list[str] = []
    nearest: bool = False


class Nightly(Row, frozen=True, kw_only=True):
    """Which nights are kept: at most ``keep``, none older than ``days``, fewer while less than ``free-gib`` is free."""

    keep: int = 60
    days: int = 180
    free_gib: float = 5.0


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
    accepted: list[Accepted] = []
    nightly: Nightly = Nightly()
    docs: Docs | None = None


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
            patch.file: _patch_path(self.root, pair.torch, patch.file)
            for patch in self.matrix.patch
            if pair.name in patch.pairs
        }


def load(path: Path) -> Batch:
    """Read and validate a batch.

    Raises ConfigError with one line per problem: the file, the key, what is wrong and what was meant perhaps.
    """
    # Not Path.resolve, which raises RuntimeError for a link to itself.
    real = Path(os.path.realpath(path))
    try:
        data = tomllib.loads(real.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise _refused(f"{path}: not found; MATRIX names a TOML file like matrix.toml") from None
    except OSError as error:
        raise _refused(f"{path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _refused(f"{path.name}: not UTF-8: byte {error.object[error.start]:#x} in line {line}") from None
    except RecursionError:
        raise _refused(f"{path.name}: not readable as TOML: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError is one; a number of 5000 digits is another
        raise _refused(f"{path.name}: not readable as TOML: {error}") from None

    problems: list[str] = []
    _check(Matrix, data, "", problems)
    problems += _check_meaning(data, real.parent)
    if problems:
        raise _refused(*(f"{path.name}: {problem}" for problem in problems))
    matrix = msgspec.convert(data, Matrix)
    matrix = msgspec.structs.replace(matrix, pair=[_named(pair) for pair in matrix.pair])
    pairs = tuple(sorted(matrix.pair, key=lambda pair: (pair.version, Version(pair.torch_npu), pair.name)))
    return Batch(path=real, matrix=matrix, pairs=pairs)


def schema() -> dict[str, Any]:
    """Return the JSON schema of matrix.toml, generated from the types above."""
    return msgspec.json.schema(Matrix)


# Helpers


def _refused(*problems: str) -> ConfigError:
    """Return the error whose problems are one printable line each, whatever the file has in its strings."""
    return ConfigError(*(LONG_WORD.sub(r"\1…\2", "".join(map(_printable, problem))) for problem in problems))


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _suggest(word: str, known: Iterable[str]) -> str:
    close = _closest(word, known)
    return f"; did you mean '{close}'?" if close else f"; known are {', '.join(sorted(known))}"


def _closest(word: str, known: Iterable[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    return next((by_lower[match] for match in difflib.get_close_matches(word[:100].lower(), by_lower, n=1)), "")


def _named(pair: Pair) -> Pair:
    return msgspec.structs.replace(pair, name=pair.name or pair.torch)


def _check(kind: Any, value: object, where: str, problems: list[str]) -> None:
    """Check keys and types of ``value`` against the annotation ``kind``: every mistake is named, not only the first."""
    if isinstance(kind, types.UnionType):
        kind = typing.get_args(kind)[0]
    arguments = typing.get_args(kind)
    base = typing.get_origin(kind) or kind
    if issubclass(base, msgspec.Struct):
        expected: tuple[type, ...] = (dict,)
    elif issubclass(base, enum.Enum):
        expected = (str,)
    else:
        expected = (float, int) if base is float else (base,)
    if type(value) not in expected:
        names = {**TOML_TYPES, list: "an array of tables" if _is_row(arguments) else TOML_TYPES[list]}
        found = TOML_TYPES.get(type(value), "a date or time")
        problems.append(f"{where}: expected {names[expected[0]]}, found {found}")
    elif isinstance(value, list):
        for number, item in enumerate(value, 1):
            _check(arguments[0], item, f"{where}[{_label(item) or number}]", problems)
    elif isinstance(value, dict) and not issubclass(base, msgspec.Struct):
        for key, item in value.items():
            _check(arguments[1], item, f"{where}.{key}", problems)
    elif isinstance(value, dict):
        _check_table(base, value, f"{where}." if where else "", problems)
    elif base is float and isinstance(value, int) and value.bit_length() > 64:
        problems.append(f"{where}: out of range")
    elif issubclass(base, enum.Enum):
        values = [member.value for member in base]
        if value not in values:
            problems.append(f"{where}: '{value}' is none of its values{_suggest(str(value), values)}")


def _check_table(row: type[msgspec.Struct], table: dict[str, Any], prefix: str, problems: list[str]) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(row)}
    meant = set()
    for key in table:
        if key in fields:
            _check(fields[key].type, table[key], f"{prefix}{key}", problems)
        else:
            problems.append(f"{prefix}{key}: unknown key{_suggest(key, fields)}")
            meant.add(_closest(key, fields))
    problems += [
        f"{prefix}{key}: missing"
        for key, field in fields.items()
        if field.required and key not in table and key not in meant
    ]


def _is_row(arguments: tuple[Any, ...]) -> bool:
    return bool(arguments) and issubclass(arguments[0], msgspec.Struct)


def _label(item: object, keys: Iterable[str] = ("name", "torch", "path", "file")) -> str:
    """Return what a row is called: the first of ``keys`` that names it."""
    values = [item.get(key) for key in keys] if isinstance(item, dict) else []
    return next((value for value in values if isinstance(value, str) and value), "")


def _sound(row: type[RowType], value: object) -> RowType | None:
    """Return ``value`` as a row, or None if its keys or types are wrong, which was said already."""
    problems: list[str] = []
    _check(row, value, "", problems)
    return None if problems else msgspec.convert(value, row)


def _rows(row: type[RowType], data: Mapping[str, Any], key: str) -> list[RowType]:
    """Return the sound rows of a section."""
    items = data.get(key)
    found = [_sound(row, item) for item in items] if isinstance(items, list) else []
    return [item for item in found if item is not None]


def _names(data: Mapping[str, Any], section: str, *keys: str) -> set[str] | None:
    """Return what the rows of a section are called, unsound ones too; None if that can't be known."""
    items = data.get(section)
    names = {_label(item, keys) for item in items} if isinstance(items, list) else {""}
    return None if "" in names else names


def _check_meaning(data: Mapping[str, Any], root: Path) -> list[str]:
    """Return what is wrong beyond keys and types, in all that has the right ones."""
    problems: list[str] = []
    pairs = [_named(pair) for pair in _rows(Pair, data, "pair")]
    names = _names(data, "pair", "name", "torch")
    paths = _names(data, "test-file", "path")
    batch = data.get("batch")
    if isinstance(batch, str) and (not NAME.fullmatch(batch) or TAKEN.fullmatch(batch)):
        problems.append(f"batch: '{batch}' can't name a folder; use letters, digits, dot, dash, underscore")
    problems += [f"{key}: empty; a batch has at least one" for key in ("pair", "test-file") if data.get(key) == []]
    problems += _check_text("title", _sound(Text, data.get("title")))
    problems += _check_upstream(_sound(Upstream, data.get("upstream")))
    cann = _sound(Cann, data.get("cann"))
    if cann and not ONE_LINE.fullmatch(cann.set_env):
        problems.append(f"cann.set-env: '{cann.set_env}' is not the path of a set_env.sh")
    requirements = data.get("test-requirements")
    for number, requirement in enumerate(requirements if isinstance(requirements, list) else [], 1):
        if isinstance(requirement, str):
            problems += [f"test-requirements[{number}]: {problem}" for problem in _check_requirement(requirement)]
    problems += _check_pairs(pairs)
    problems += _check_files(_rows(TestFile, data, "test-file"), names)
    problems += _check_patches(_rows(Patch, data, "patch"), pairs, names, paths, root)
    problems += _check_apis(_rows(Api, data, "api"), paths)
    problems += _check_accepted(_rows(Accepted, data, "accepted"), names, paths)
    problems += _check_nightly(_sound(Nightly, data.get("nightly")))
    problems += _check_docs(_sound(Docs, data.get("docs")))
    return problems


def _check_accepted(rows: list[Accepted], names: set[str] | None, paths: set[str] | None) -> list[str]:
    problems: list[str] = []
    for row in rows:
        where = f"accepted[{row.case}]"
        if paths is not None and row.file not in paths:
            problems.append(f"{where}.file: no such test file{_suggest(row.file, paths)}")
        if not CASE.fullmatch(row.case):
            problems.append(f"{where}.case: '{row.case}' is not a case such as 'SomeTest.test_it'")
        if names is not None:
            unknown = [name for name in row.pairs if name not in names]
            problems += [f"{where}.pairs: no pair '{name}'{_suggest(name, names)}" for name in unknown]
        if not ONE_LINE.fullmatch(row.reason):
            problems.append(f"{where}.reason: '{row.reason}' is not one line of text")
    return problems


def _check_docs(docs: Docs | None) -> list[str]:
    if docs is None:
        return []
    lists = {"repository": docs.repository, "branch": docs.branch, "path": docs.path}
    problems = [f"docs.{key}: empty; name at least one" for key in ("repository", "path") if not lists[key]]
    for key, templates in lists.items():
        known = (*PLACEHOLDERS, "torch_dashed", *(["page"] if key == "path" else []))
        for number, template in enumerate(templates, 1):
            wrong = _check_template(template, known)
            if key == "path" and not wrong:
                wrong = list(filter(None, [_leaves_root(template.format(**dict.fromkeys(known, "x")))]))
            problems += [f"docs.{key}[{number}]: {problem}" for problem in wrong]
    if not NAME.fullmatch(docs.page):
        problems.append(f"docs.page: '{docs.page}' is not a page such as 'torch-distributed-elastic'")
    return problems


def _check_nightly(nightly: Nightly | None) -> list[str]:
    limits = {"keep": nightly.keep, "days": nightly.days, "free-gib": nightly.free_gib} if nightly else {}
    return [
        f"nightly.{key}: {value} is not a number from 1 to {MOST_KEPT}"
        for key, value in limits.items()
        if not 1 <= value <= MOST_KEPT
    ]


def _check_text(where: str, text: Text | None) -> list[str]:
    languages = {"en": text.en, "zh": text.zh} if text else {}
    return [
        f"{where}.{language}: '{words}' is not one line of text"
        for language, words in languages.items()
        if not ONE_LINE.fullmatch(words)
    ]


def _check_upstream(upstream: Upstream | None) -> list[str]:
    if upstream is None:
        return []
    problems = [] if upstream.repository else ["upstream.repository: empty; name a git URL or a folder template"]
    for number, template in enumerate(upstream.repository, 1):
        problems += [f"upstream.repository[{number}]: {problem}" for problem in _check_template(template)]
    return problems + [f"upstream.tag: {problem}" for problem in _check_template(upstream.tag)]


def _check_template(template: str, known: tuple[str, ...] = PLACEHOLDERS) -> list[str]:
    if not ONE_LINE.fullmatch(template) or template.startswith("-"):
        return [f"'{template}' is nothing that git could be given"]
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        return [f"'{template}' is not a template: {error}; a brace itself is written twice"]
    if all(name in (None, *known) and not (spec or conversion) for _, name, spec, conversion in fields):
        return []
    *others, last = (f"{{{name}}}" for name in known)
    return [f"'{template}' has a placeholder that isn't known; use {', '.join(others)} or {last}"]


def _check_pairs(pairs: list[Pair]) -> list[str]:
    problems: list[str] = []
    for number, pair in enumerate(pairs):
        where = f"pair[{pair.name}]"
        torch = _check_torch(pair.torch)
        problems += [f"{where}.torch: {problem}" for problem in torch]
        problems += [f"{where}.torch-npu: {problem}" for problem in _check_version(pair.torch_npu)]
        if pair.cann is not None and not CANN.fullmatch(pair.cann):
            problems.append(f"{where}.cann: '{pair.cann}' is not a version such as '8.5.0' or '8.3.RC1'")
        if not PYTHON.fullmatch(pair.python):
            problems.append(f"{where}.python: '{pair.python}' is not a Python version such as '3.11', from 3.9 on")
        if pair.commit is not None and not COMMIT.fullmatch(pair.commit):
            problems.append(f"{where}.commit: '{pair.commit}' is not a full commit id (40 hexadecimal digits)")
        named = NAME.fullmatch(pair.name) and not TAKEN.fullmatch(pair.name)
        if not named and not (torch and pair.name == pair.torch):
            problems.append(f"{where}.name: '{pair.name}' can't name a session; use letters, digits, dot and dash")
        for other in pairs[:number]:
            if msgspec.structs.replace(other, name=pair.name) == pair:
                problems.append(f"{where}: stands twice; remove one")
            elif other.name == pair.name:
                own = f"{pair.torch}-npu{pair.torch_npu}"
                problems.append(f"{where}: stands twice; give one a name of its own, such as name = '{own}'")
            elif _folder(other.name) == _folder(pair.name):
                problems.append(f"{where}.name: too like '{other.name}', both would have one folder; rename one")
            else:
                continue
            break
    return problems


def _folder(name: str) -> str:
    """Return ``name`` without what nox drops for a venv's folder: '2.10.0' and '2-10-0' share one, 'a' and 'A' too."""
    return re.sub(r"[\W_]+", "-", name.lower()).strip("-")


def _check_torch(text: str) -> list[str]:
    if "+" in text:
        return [f"'{text}' names a build; leave '+…' out, a CPU build is preferred anyway"]
    return _check_version(text)


def _check_version(text: str) -> list[str]:
    try:
        version = Version(text)
    except ValueError:  # InvalidVersion is one; a number of 5000 digits is another
        return [f"'{text}' is not a version such as '2.10.0' or '2.7.1.post2'"]
    # Tags and wheels have the full and normal form: v2.10.0, never vv2.10.0 or v2.10.
    numbers = ".".join(map(str, (*version.release, 0, 0)[: max(3, len(version.release))]))
    normal = str(version).replace(version.base_version.rpartition("!")[2], numbers, 1)
    return [f"'{text}' is not how releases are named; did you mean '{normal}'?"] if text != normal else []


def _check_requirement(text: str) -> list[str]:
    try:
        url = Requirement(text).url
        # Wheels only: what is built on the spot has no hash, and may be another thing tomorrow.
        if url is None or WHEEL.fullmatch(url):
            return []
    except (ValueError, RecursionError):
        return [f"'{text}' is not a requirement such as 'numpy<3'"]
    return [f"'{text}' names no wheel; name a package of an index, or a .whl by its URL or whole path"]


def _check_files(files: list[TestFile], names: set[str] | None) -> list[str]:
    problems: list[str] = []
    seen: set[str] = set()
    for file in files:
        where = f"test-file[{file.path}]"
        if file.path in seen:
            problems.append(f"{where}: stands twice; a test file is listed once")
        seen.add(file.path)
        if problem := _leaves_root(file.path):
            problems.append(f"{where}.path: {problem}")
        elif not file.path.endswith(".py") or not PurePosixPath(file.path).stem.isidentifier():
            problems.append(f"{where}.path: not a Python file that can be imported, such as 'test/a_test.py'")
        if not 0 < file.limit <= LIMIT_SECONDS:
            problems.append(f"{where}.limit: {file.limit:g} is not a number of seconds up to {LIMIT_SECONDS}")
        for name, count in file.expected.items():
            if names is not None and name not in names:
                problems.append(f"{where}.expected.{name}: no such pair{_suggest(name, names)}")
            elif count < 1:
                problems.append(f"{where}.expected.{name}: {count} cases prove nothing; expect at least 1")
            elif count > MOST_CASES:
                problems.append(f"{where}.expected.{name}: {count} cases are more than a file has")
        problems += [
            f"{where}.expected: says nothing of pair '{name}'; add the number of cases that must run"
            for name in sorted((names or set()) - file.expected.keys())
        ]
    return problems


def _check_patches(
    patches: list[Patch], pairs: list[Pair], names: set[str] | None, paths: set[str] | None, root: Path
) -> list[str]:
    problems: list[str] = []
    torch = {pair.name: pair.torch for pair in pairs if not _check_torch(pair.torch)}
    seen: set[tuple[str, str]] = set()
    for patch in patches:
        where = f"patch[{patch.file}]"
        problems += _check_text(f"{where}.reason", patch.reason)
        if problem := _leaves_root(patch.file):
            problems.append(f"{where}.file: {problem}")
            continue
        if paths is not None and patch.file not in paths:
            problems.append(f"{where}.file: no such test file{_suggest(patch.file, paths)}")
            continue
        if not patch.pairs:
            problems.append(f"{where}.pairs: empty; name the pairs that the patch is for")
        for name in patch.pairs:
            if names is not None and name not in names:
                problems.append(f"{where}.pairs: no pair '{name}'{_suggest(name, names)}")
            elif (patch.file, name) in seen:
                problems.append(f"{where}.pairs: '{name}' has two patches for this file; a file has one")
            elif name in torch:
                path = _patch_path(root, torch[name], patch.file)
                if not os.path.isfile(path):  # noqa: PTH113 (it takes every error for a no)
                    beside = path.relative_to(root)
                    problems.append(f"{where}.pairs: no file {beside} for '{name}' beside this TOML file")
            seen.add((patch.file, name))
    return problems


def _patch_path(root: Path, torch: str, file: str) -> Path:
    return root / "patches" / f"v{torch}" / f"{file}.patch"


def _check_apis(apis: list[Api], paths: set[str] | None) -> list[str]:
    problems: list[str] = []
    seen: set[str] = set()
    for api in apis:
        where = f"api[{api.name}]"
        if api.name in seen:
            problems.append(f"{where}: stands twice; an API is listed once")
        seen.add(api.name)
        if not all(part.isidentifier() for part in api.name.split(".")) or "." not in api.name:
            problems.append(f"{where}.name: not a dotted name such as 'torch.distributed.elastic.timer.expires'")
        problems += _check_text(f"{where}.does", api.does)
        for required in api.require:
            file, _, case = required.partition("::")
            if not CASE.fullmatch(case):
                problems.append(f"{where}.require: '{required}' is not a case such as 'a_test.py::SomeTest.test_it'")
            elif paths is not None and file not in paths:
                problems.append(f"{where}.require: no such test file{_suggest(file, paths)}")
        examples = "'normal', 'exception=ValueError', 'client=default' or 'read=state'"
        problems += [
            f"{where}.require-behaviours: '{behaviour}' is nothing like {examples}"
            for behaviour in api.require_behaviours
            if not BEHAVIOUR.fullmatch(behaviour)
        ]
    return problems


def _leaves_root(path: str) -> str:
    """Return why ``path`` is not a plain path below the tree's root, or an empty string."""
    parts = path.split("/")
    if PurePosixPath(path).is_absolute() or ".." in parts:
        return f"'{path}' leaves the tree; give it as upstream has it, such as 'test/a_test.py'"
    # A part that starts with a dash would be taken for an option.
    plain = all(part not in ("", ".") and part[0] != "-" and len(part.encode()) <= 200 for part in parts)
    if not plain or "\\" in path or not path.isprintable() or len(path.encode()) > 1000:
        return f"'{path}' is not a path as upstream has it, such as 'test/a_test.py'"
    return ""
