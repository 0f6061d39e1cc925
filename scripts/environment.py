"""Builds a pair's venv with uv, or finds that it is right already, and reads back what is really in it."""

from __future__ import annotations

import ast
import hashlib
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import Version

from . import process, storage
from .errors import Blocked
from .matrix import Batch, Pair
from .preflight import Interpreter, Preflight, last_words
from .scope import RunScope

STAMP = "torch-npu-matrix.json"
STAMP_VERSION = 1
RESOLVE_SECONDS = 600.0
INSTALL_SECONDS = 3600.0


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """An installed package: ``wheel`` is its file name, ``sha256`` the wheel's, ``record`` that of its RECORD."""

    name: str
    version: str
    wheel: str | None = None
    sha256: str | None = None
    record: str | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """A venv and what is in it, read back from its files.

    ``git_version`` is the commit that torch says it was built from; ``cuda`` is None for a CPU build; ``reused`` says
    whether the venv was there already.
    """

    python: Path
    fingerprint: str
    torch: str
    torch_npu: str
    git_version: str | None
    cuda: str | None
    packages: list[Package]
    reused: bool


class _Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished venv was built from; it is written last, so a half-built venv has none."""

    version: int
    wanted: str
    interpreter: str
    interpreter_stat: list[int]
    packages: list[Package]


def build(batch: Batch, pair: Pair, preflight: Preflight, venv: Path, scope: RunScope) -> Environment:
    """Return the pair's venv at ``venv``, built anew unless it is right already.

    Raises Blocked if there is no wheel, no index, or no room.
    """
    wanted = hashlib.sha256(
        msgspec.json.encode([STAMP_VERSION, pair.torch, pair.torch_npu, pair.python, batch.matrix.test_requirements])
    ).hexdigest()
    with storage.lock(venv.with_name(f"{venv.name}.lock")):
        stamp = _read_stamp(venv)
        reused = stamp is not None and stamp.wanted == wanted and _is_right(stamp, venv, preflight.interpreter)
        if stamp is None or not reused:
            stamp = _build(batch, pair, preflight, venv, wanted, scope)
        return _describe(stamp, venv, reused=reused)


def site_packages(venv: Path) -> Path:
    """Return the venv's site-packages; raises FileNotFoundError if there is none."""
    for folder in sorted(venv.glob("lib/python3*/site-packages")):
        return folder
    raise FileNotFoundError(venv)


# Helpers


def _build(batch: Batch, pair: Pair, preflight: Preflight, venv: Path, wanted: str, scope: RunScope) -> _Stamp:
    lock = _resolve(batch, pair, preflight, scope)
    (venv / STAMP).unlink(missing_ok=True)
    _uv(preflight, ["venv", "-q", "--clear", "--no-project", "--python", preflight.interpreter.path, str(venv)])
    with tempfile.TemporaryDirectory(prefix="tnm-") as name:
        lock_file = Path(name, "pylock.toml")
        lock_file.write_text(lock)
        python = str(venv / "bin" / "python")
        _uv(
            preflight, ["pip", "install", "-q", "--no-deps", "--python", python, "-r", str(lock_file)], preview="pylock"
        )
    wheels = _wheels(lock)
    packages = [
        msgspec.structs.replace(package, wheel=wheels[package.name][0], sha256=wheels[package.name][1])
        if package.name in wheels
        else package
        for package in _installed(venv)
    ]
    stamp = _Stamp(
        version=STAMP_VERSION,
        wanted=wanted,
        interpreter=preflight.interpreter.path,
        interpreter_stat=_file_state(venv / "bin" / "python"),
        packages=packages,
    )
    storage.write(venv / STAMP, msgspec.json.encode(stamp))
    return stamp


def _resolve(batch: Batch, pair: Pair, preflight: Preflight, scope: RunScope) -> str:
    """Return a lock (PEP 751) of the pair: a CPU build of torch where one can be had, another one otherwise.

    x86_64 wheels of torch-npu up to 2.11 require ``torch==X+cpu`` and say nothing of other builds, so the pair's
    torch overrides what torch-npu asks for.
    """
    tests = batch.matrix.test_requirements
    attempts: list[tuple[str, list[str]]] = [(f"{pair.torch}+cpu", [])]
    if "UV_TORCH_BACKEND" not in preflight.uv_env and "UV_OFFLINE" not in preflight.uv_env:
        attempts.append((f"{pair.torch}+cpu", ["--torch-backend", "cpu"]))
    attempts.append((pair.torch, []))
    failure: Blocked | None = None
    for torch, options in attempts:
        requirements = [f"torch=={torch}", f"torch-npu=={pair.torch_npu}", *tests]
        try:
            if options:
                # An index that can't be reached is asked once per run, and not waited for: it is optional.
                scope.once("CPU index", lambda: _can_reach_cpu_index(preflight))
            return _compile(preflight, requirements, [f"torch=={torch}"], options)
        except Blocked as blocked:
            failure = blocked
            if blocked.code == "index-unreachable" and not options:
                raise
    assert failure is not None
    if failure.code == "no-wheel":
        raise Blocked("no-wheel", f"{failure.cause}.{_nearest(pair, preflight)}", failure.remedy)
    raise failure


def _can_reach_cpu_index(preflight: Preflight) -> None:
    _compile(
        preflight,
        ["torch"],
        [],
        ["--torch-backend", "cpu", "--no-deps"],
        UV_HTTP_RETRIES="0",
        UV_HTTP_CONNECT_TIMEOUT="4",
    )


def _compile(
    preflight: Preflight, requirements: Sequence[str], overrides: Sequence[str], options: Sequence[str], **extra: str
) -> str:
    """Resolve ``requirements`` for the pair's interpreter without a venv; raises Blocked."""
    with tempfile.TemporaryDirectory(prefix="tnm-") as name:
        work = Path(name)
        (work / "requirements.txt").write_text("\n".join(requirements))
        (work / "overrides.txt").write_text("\n".join(overrides))
        argv = [
            *(preflight.uv, "pip", "compile", "-q", "--no-header", "--format", "pylock.toml"),
            *("--python", preflight.interpreter.path, "--only-binary", ":all:", "--override", "overrides.txt"),
            *(*options, "-o", "pylock.toml", "requirements.txt"),
        ]
        ending, words = process.capture(argv, cwd=work, env={**preflight.uv_env, **extra}, limit=RESOLVE_SECONDS)
        if ending.returncode == 0:
            return (work / "pylock.toml").read_text()
    # uv's exit status: 1 for a resolution that has no solution, 2 for what kept it from resolving.
    if ending.returncode == 1:
        raise Blocked(
            "no-wheel",
            f"no set of wheels for Python {preflight.interpreter.version} on {preflight.machine.machine} "
            f"satisfies {', '.join(requirements[:2])}: {last_words(words)}",
            "Correct the pair in matrix.toml, or its python; or point uv at an index that has the wheels (README.md).",
        )
    raise Blocked(
        "index-unreachable",
        f"the package index could not be used: {ending.error or last_words(words) or 'uv took too long'}",
        "Check the network, or set UV_DEFAULT_INDEX or pip's index-url to a mirror (README.md).",
    )


def _nearest(pair: Pair, preflight: Preflight) -> str:
    """Return a sentence that names the releases of torch-npu nearest to the pair's that do have a wheel."""
    version = Version(pair.torch_npu)
    line = f"{version.base_version}"
    below = f"torch-npu>={line},<{pair.torch_npu}"
    above = f"torch-npu>{pair.torch_npu},<{version.major}.{version.minor}.{version.micro + 1}"
    found = []
    for requirement, resolution in ((below, "highest"), (above, "lowest")):
        try:
            lock = _compile(preflight, [requirement], [], ["--no-deps", "--resolution", resolution])
        except Blocked:
            continue
        found += [str(package["version"]) for package in tomllib.loads(lock).get("packages", [])]
    if not found:
        return f" No torch-npu {line} has a wheel for this Python and machine."
    return f" torch-npu {' and '.join(found)} {'has' if len(found) == 1 else 'have'} one."


def _uv(preflight: Preflight, arguments: Sequence[str], *, preview: str = "") -> None:
    env = {**preflight.uv_env, **({"UV_PREVIEW_FEATURES": preview} if preview else {})}
    ending, output = process.capture([preflight.uv, *arguments], cwd=Path.home(), env=env, limit=INSTALL_SECONDS)
    if ending.returncode == 0:
        return
    words = ending.error or last_words(output) or f"it ended with {ending.returncode}"
    if "No space left" in output or "os error 28" in output:
        raise Blocked("disk-full", f"the disk is full: {words}", "Free some space, for example with uv cache prune.")
    raise Blocked("install", f"uv {' '.join(arguments[:2])} failed: {words}", "Read uv's words, then run this again.")


def _read_stamp(venv: Path) -> _Stamp | None:
    try:
        return msgspec.json.decode((venv / STAMP).read_bytes(), type=_Stamp)
    except (OSError, msgspec.DecodeError):
        return None


def _is_right(stamp: _Stamp, venv: Path, interpreter: Interpreter) -> bool:
    """Return whether a venv is still what its stamp says: interpreter, and every package by its RECORD."""
    if stamp.version != STAMP_VERSION or stamp.interpreter != interpreter.path:
        return False
    if not stamp.interpreter_stat or stamp.interpreter_stat != _file_state(venv / "bin" / "python"):
        return False
    plain = [msgspec.structs.replace(package, wheel=None, sha256=None) for package in stamp.packages]
    return plain == _installed(venv)


def _file_state(path: Path) -> list[int]:
    try:
        about = path.stat()
    except OSError:
        return []
    return [about.st_size, about.st_mtime_ns, about.st_ino]


def _installed(venv: Path) -> list[Package]:
    """Return what is installed, from the metadata that lies there."""
    found = []
    try:
        folders = list(site_packages(venv).glob("*.dist-info"))
    except FileNotFoundError:
        return []
    for folder in folders:
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        try:
            record = hashlib.sha256((folder / "RECORD").read_bytes()).hexdigest()
        except OSError:
            record = None
        found.append(Package(name=canonicalize_name(name), version=version, record=record))
    return sorted(found, key=lambda package: package.name)


def _wheels(lock: str) -> dict[str, tuple[str, str | None]]:
    """Return the wheel's file name and sha256 by package, from a lock."""
    found: dict[str, tuple[str, str | None]] = {}
    for package in tomllib.loads(lock).get("packages", []):
        entries = [*package.get("wheels", []), *([package["archive"]] if "archive" in package else [])]
        for entry in entries[:1]:
            place = entry.get("url") or entry.get("path") or entry.get("name") or ""
            name = unquote(urlsplit(place).path).rpartition("/")[2]
            sha256 = entry.get("hashes", {}).get("sha256")
            if sha256 is None and entry.get("path") and Path(entry["path"]).is_file():
                with open(entry["path"], "rb") as stream:
                    sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            found[canonicalize_name(package["name"])] = (name, sha256)
    return found


def _describe(stamp: _Stamp, venv: Path, *, reused: bool) -> Environment:
    versions = {package.name: package.version for package in stamp.packages}
    facts = _torch_version(site_packages(venv) / "torch" / "version.py")
    return Environment(
        python=venv / "bin" / "python",
        fingerprint=hashlib.sha256(msgspec.json.encode(stamp)).hexdigest(),
        torch=facts.get("__version__") or versions.get("torch", "?"),
        torch_npu=versions.get("torch-npu", "?"),
        git_version=facts.get("git_version"),
        cuda=facts.get("cuda"),
        packages=stamp.packages,
        reused=reused,
    )


def _torch_version(path: Path) -> dict[str, str | None]:
    """Return the constants of torch/version.py without importing torch, which takes seconds."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError):
        return {}
    found: dict[str, str | None] = {}
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Constant) and isinstance(targets[0], ast.Name):
            found[targets[0].id] = value.value if isinstance(value.value, str) else None
    return found
