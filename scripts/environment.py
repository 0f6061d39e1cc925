"""Builds a pair's venv with uv, or finds that it is right already, and reads back what is really in it."""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from packaging import tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from . import process, storage
from .errors import Blocked
from .matrix import Batch, Pair
from .preflight import Interpreter, Preflight, file_state, last_words
from .scope import RunScope

STAMP = "torch-npu-matrix.json"
STAMP_VERSION = 2
RESOLVE_SECONDS = 600.0
INSTALL_SECONDS = 3600.0
INSTALLERS = re.compile(rb"\.\./|[^/]+\.dist-info/(INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_cache\.json),")
CPU_INDEX = ["--torch-backend", "cpu"]
# What uv's words mean, the first that fits: code, words, cause (None: what was tried), remedy.
FAILURES = (
    ("disk-full", r"No space left on device|os error 28\b", "the disk is full", "Free some space: uv cache prune."),
    (
        "index-unreachable",
        r"network was disabled|could not be queried|error sending request|HTTP status|Failed to fetch|timed out"
        "|`--find-links`",
        "the package index could not be used",
        "Check the network, or set UV_DEFAULT_INDEX or pip's index-url to a mirror (README.md).",
    ),
    (
        "no-wheel",
        "No solution found",
        None,
        "Correct the pair in matrix.toml, or its python; or point uv at an index that has the wheels (README.md).",
    ),
    (
        "broken-wheel",
        r"Failed to (extract|read|unzip|install)|uncompressed|[Ii]nvalid wheel|[Hh]ash mismatch",
        "a wheel is broken",
        "Have it built or downloaded anew where the index or find-links folder got it from.",
    ),
)


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """An installed package: ``wheel`` is its file name, ``sha256`` the wheel's.

    ``record`` is the digest of its RECORD, the same wherever the wheel is installed.
    """

    name: str
    version: str
    wheel: str | None = None
    sha256: str | None = None
    record: str | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """A venv and what is in it, read back from its files.

    ``git_version`` is the commit that torch says it was built from; ``cuda`` is None for a CPU build; ``reused`` says
    whether the venv was there already. ``copied_from`` is uv's cache where that is on another file system, so that
    gigabytes are copied for each venv instead of linked.
    """

    python: Path
    fingerprint: str
    torch: str
    torch_npu: str
    git_version: str | None
    cuda: str | None
    packages: list[Package]
    reused: bool
    copied_from: str = ""


class _Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished venv was built from and is made of; it is written last, so a half-built venv has none."""

    version: int
    wanted: str
    interpreter: str
    contents: str
    packages: list[Package]


class _Wheel(msgspec.Struct, frozen=True, kw_only=True):
    """The one wheel of a package that is installed, and its URL.

    ``by_name`` if its name and hash lead uv to it: all that an index has of this package is known by hash.
    """

    name: str
    version: str
    url: str
    sha256: str | None
    by_name: bool = False

    @property
    def file(self) -> str:
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    @property
    def pin(self) -> str:
        """The requirement that this wheel alone meets.

        By name where that is possible: uv's cache knows a wheel from an index by its name, and shares it with whatever
        else installs it. One that is asked for by URL is fetched anew whenever the server doesn't say for how long it
        is good.
        """
        if self.by_name:
            # "==" would let 1.0+cu128 pass for 1.0.
            return f"{self.name}==={self.version} --hash=sha256:{self.sha256}"
        return f"{self.name} @ {self.url}{f'#sha256={self.sha256}' if self.sha256 else ''}"


def build(
    batch: Batch, pair: Pair, preflight: Preflight, venv: Path, scope: RunScope, *, anew: bool = False
) -> Environment:
    """Return the pair's venv at ``venv``, built anew unless it is right already, or in any case.

    Raises Blocked if there is no wheel, no index, no room, or (where torch_npu is to be loaded) no CPU build.
    """
    wanted = storage.digest([STAMP_VERSION, pair.torch, pair.torch_npu, pair.python, batch.matrix.test_requirements])
    needs_cpu = preflight.machine.cann is not None
    with storage.lock(venv.with_name(f"{venv.name}.lock")):
        stamp = None if anew else _read_stamp(venv)
        reused = stamp is not None and stamp.wanted == wanted and _is_right(stamp, venv, preflight.interpreter)
        if stamp is None or not reused or (needs_cpu and _describe(stamp, venv, reused=True).cuda):
            stamp, reused = _build(batch, pair, preflight, venv, wanted, scope), False
        built = _describe(stamp, venv, reused=reused)
        if not reused:
            built = msgspec.structs.replace(built, copied_from=_other_file_system(preflight, venv))
    if needs_cpu and built.cuda:
        raise _cuda_build(built.torch)
    return built


def site_packages(venv: Path) -> Path:
    """Return the venv's site-packages; raises FileNotFoundError if there is none."""
    for folder in sorted(venv.glob("lib/python3*/site-packages")):
        return folder
    raise FileNotFoundError(venv)


def is_recorded(path: Path, recorded: str) -> bool:
    """Return whether a file has the hash that a RECORD gives for it, such as ``sha256=…``."""
    algorithm, _, digest = recorded.partition("=")
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, algorithm).digest()
    except (OSError, ValueError):
        return False
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode() == digest


# Helpers


def _build(batch: Batch, pair: Pair, preflight: Preflight, venv: Path, wanted: str, scope: RunScope) -> _Stamp:
    wheels, options = _resolve(batch, pair, preflight, scope)
    with tempfile.TemporaryDirectory(prefix="tnm-") as name:
        pins = Path(name, "requirements.txt")
        pins.write_text("".join(f"{wheel.pin}\n" for wheel in wheels), encoding="utf-8")
        install = ["pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--verify-hashes", *options]
        for arguments in (
            ["venv", "-q", "--clear", "--no-project", "--python", preflight.interpreter.path, str(venv)],
            [*install, "--python", str(venv / "bin" / "python"), "-r", str(pins)],
        ):
            ending, output = _uv(preflight, arguments, INSTALL_SECONDS)
            if ending.returncode != 0:
                raise _failure(f"uv {arguments[0]}", ending, output)
    by_name = {wheel.name: wheel for wheel in wheels}
    packages = [
        msgspec.structs.replace(package, wheel=by_name[package.name].file, sha256=by_name[package.name].sha256)
        if package.name in by_name
        else package
        for package in _installed(venv)
    ]
    _check_records(venv)
    stamp = _Stamp(
        version=STAMP_VERSION,
        wanted=wanted,
        interpreter=preflight.interpreter.path,
        contents=_contents(venv),
        packages=packages,
    )
    storage.write(venv / STAMP, msgspec.json.encode(stamp))
    return stamp


def _resolve(batch: Batch, pair: Pair, preflight: Preflight, scope: RunScope) -> tuple[list[_Wheel], list[str]]:
    """Return the wheels of the pair, and uv's options that find them.

    torch is a CPU build where one can be had, another one otherwise.

    x86_64 wheels of torch-npu up to 2.11 require ``torch==X+cpu`` and say nothing of other builds, so the pair's
    torch overrides what torch-npu asks for.
    """
    if "UV_OFFLINE" not in preflight.uv_env:
        scope.once("package index", lambda: _reach(preflight, ["torch-npu"], []))
    cpu, plain = f"torch=={pair.torch}+cpu", f"torch=={pair.torch}"
    attempts: list[tuple[str, list[str]]] = [(cpu, []), (plain, [])]
    if not preflight.uv_env.keys() & {"UV_TORCH_BACKEND", "UV_OFFLINE"}:
        attempts.insert(1, (cpu, CPU_INDEX))
    failure: Blocked | None = None
    for torch, options in attempts:
        try:
            if options:
                # An index that can't be reached is asked once per run, and not waited for: it is optional.
                scope.once("CPU index", lambda: _reach(preflight, ["torch"], CPU_INDEX))
            requirements = [torch, f"torch-npu=={pair.torch_npu}", *batch.matrix.test_requirements]
            wheels = _compile(preflight, requirements, options, overrides=[torch])
        except Blocked as blocked:
            failure = blocked
            if blocked.code != "no-wheel" and not options:
                raise
            continue
        if preflight.machine.cann and any(wheel.name.startswith("nvidia-cublas") for wheel in wheels):
            # Known before gigabytes are downloaded in vain.
            raise _cuda_build(plain)
        return wheels, options
    assert failure is not None
    raise _missing(pair, preflight) or failure


def _missing(pair: Pair, preflight: Preflight) -> Blocked | None:
    """Return the block that names which of both has no wheel here, and its nearest release that has one."""
    for name, version in (("torch-npu", pair.torch_npu), ("torch", pair.torch)):
        if _release(preflight, f"{name}=={version}"):
            continue
        base = Version(version).base_version
        line = Version(version).release
        after = ".".join(map(str, (*line[:-1], line[-1] + 1)))
        # A ">2.9.0" would leave out 2.9.0.post2.
        for lowest, below in ((f">={base},", f",<{after}"), ("", "")):
            near = [
                _release(preflight, f"{name}{lowest}<{version}"),
                _release(preflight, f"{name}>={version},!={version}{below}", "--resolution", "lowest"),
            ]
            if any(near):
                break
        found = " and ".join(release for release in near if release)
        return Blocked(
            "no-wheel",
            f"{name} {version} has no wheel for Python {preflight.interpreter.version} on {preflight.machine.machine}; "
            f"{f'nearest that has one: {found}' if found else 'nor has any other release'}",
            "Correct the pair in matrix.toml, or its python; or point uv at an index that has the wheel (README.md).",
        )
    return None


def _release(preflight: Preflight, requirement: str, *options: str) -> str | None:
    """Return the release that ``requirement`` gives here, on its own."""
    try:
        return _compile(preflight, [requirement], ["--no-deps", *options])[0].version
    except (Blocked, IndexError):
        return None


def _reach(preflight: Preflight, requirements: Sequence[str], options: Sequence[str]) -> None:
    """Raise Blocked within seconds if an index doesn't answer; uv itself may try for a minute."""
    quick = {"UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "10", "UV_HTTP_CONNECT_TIMEOUT": "4"}
    try:
        _compile(preflight, requirements, ["--no-deps", *options], **quick)
    except Blocked as blocked:
        if blocked.code == "index-unreachable" or options:
            raise


def _compile(
    preflight: Preflight,
    requirements: Sequence[str],
    options: Sequence[str],
    overrides: Sequence[str] = (),
    **variables: str,
) -> list[_Wheel]:
    """Resolve ``requirements`` for the pair's interpreter without a venv; raises Blocked."""
    with tempfile.TemporaryDirectory(prefix="tnm-") as name:
        asked, overriding, lock = (Path(name, file) for file in ("requirements.txt", "overrides.txt", "pylock.toml"))
        asked.write_text("\n".join(requirements), encoding="utf-8")
        overriding.write_text("\n".join(overrides), encoding="utf-8")
        arguments = [
            *("pip", "compile", "-q", "--no-header", "--format", "pylock.toml", "--only-binary", ":all:"),
            *("--python", preflight.interpreter.path, "--override", str(overriding)),
            *(*options, "-o", str(lock), str(asked)),
        ]
        ending, output = _uv(preflight, arguments, RESOLVE_SECONDS, variables)
        if ending.returncode != 0:
            raise _failure(f"no set of wheels for {', '.join(requirements)}", ending, output)
        return _wheels(tomllib.loads(lock.read_text(encoding="utf-8")), lock.parent, preflight.interpreter)


def _uv(
    preflight: Preflight, arguments: Sequence[str], limit: float, variables: Mapping[str, str] | None = None
) -> tuple[process.Ending, str]:
    """Run uv where nox runs, so that a configuration file or a relative path means what it means to uv there."""
    env = {**preflight.uv_env, "UV_PREVIEW_FEATURES": "pylock", **(variables or {})}
    return process.capture([preflight.uv, *arguments], cwd=Path.cwd(), env=env, limit=limit)


def _failure(what: str, ending: process.Ending, output: str) -> Blocked:
    """Return the block for a uv that failed: its exit status says little, its words say which kind it is."""
    words = ending.error or last_words(output)
    if not words:
        words = "uv took too long" if ending.timed_out else f"it ended with {ending.returncode}"
    for code, signs, cause, remedy in FAILURES:
        if re.search(signs, output):
            return Blocked(code, f"{cause or what}: {words}", remedy)
    return Blocked("uv-failed", f"{what} failed: {words}", "Mend what uv says, then run this again.")


def _cuda_build(torch: str) -> Blocked:
    return Blocked(
        "cuda-build",
        f"only a CUDA build of {torch} could be had, beside which torch_npu refuses to load",
        "Point uv at an index or folder that has a CPU build (+cpu): UV_TORCH_BACKEND=cpu, UV_INDEX or UV_FIND_LINKS.",
    )


def _read_stamp(venv: Path) -> _Stamp | None:
    try:
        return msgspec.json.decode((venv / STAMP).read_bytes(), type=_Stamp)
    except (OSError, msgspec.DecodeError):
        return None


def _is_right(stamp: _Stamp, venv: Path, interpreter: Interpreter) -> bool:
    """Return whether a venv is still what its stamp says: its interpreter, and every file in it."""
    return (stamp.version, stamp.interpreter, stamp.contents) == (STAMP_VERSION, interpreter.path, _contents(venv))


def _contents(venv: Path) -> str:
    """Return a digest of all files of a venv by name, size and time, byte code left out; takes a tenth of a second.

    Whether they were what their wheels say was proven when they were installed.
    """
    digest = hashlib.sha256()
    try:
        folders = [site_packages(venv)]
    except FileNotFoundError:
        folders = []
    for path in (venv / "pyvenv.cfg", venv / "bin" / "python"):
        digest.update(repr(file_state(path)).encode())
    while folders:
        folder = folders.pop()
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    folders.append(Path(entry.path))
            else:
                about = entry.stat(follow_symlinks=False)
                digest.update(f"{entry.path}\0{about.st_size}\0{about.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _check_records(venv: Path) -> None:
    """Prove that every installed file is the one that its wheel's RECORD names; raises Blocked.

    uv installs hard links into its cache, so what once wrote to a file in some venv has changed it in all of them. A
    wheel's metadata says nothing of this: torch-npu 2.6.0's own METADATA is not what its RECORD names.
    """
    root = site_packages(venv)
    rows = []
    for record in sorted(root.glob("*.dist-info/RECORD")):
        with record.open(encoding="utf-8", newline="") as stream:
            rows += [
                (record.parent.name, *row[:2])
                for row in csv.reader(stream)
                if len(row) > 1 and row[1] and not row[0].startswith(f"{record.parent.name}/")
            ]

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        right = executor.map(lambda row: is_recorded(root / row[1], row[2]), rows)
        damaged = [row for row, is_right in zip(rows, right, strict=True) if not is_right]
    if damaged:
        name = damaged[0][0].partition("-")[0]
        raise Blocked(
            "damaged-package",
            f"{damaged[0][1]} is not the file that {damaged[0][0]} says it is ({len(damaged)} such files)",
            f"uv's cache is damaged: run uv cache clean {name}, then this again.",
        )


def _installed(venv: Path) -> list[Package]:
    """Return what is installed, from the metadata that lies there."""
    found = []
    try:
        folders = list(site_packages(venv).glob("*.dist-info"))
    except FileNotFoundError:
        return []
    for folder in folders:
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        found.append(Package(name=canonicalize_name(name), version=version, record=_record(folder / "RECORD")))
    return sorted(found, key=lambda package: package.name)


def _record(path: Path) -> str | None:
    """Return the digest of a RECORD without the lines that an installer adds to it."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return None
    return hashlib.sha256(b"\n".join(sorted(line for line in lines if not INSTALLERS.match(line)))).hexdigest()


def _wheels(lock: Mapping[str, Any], folder: Path, interpreter: Interpreter) -> list[_Wheel]:
    """Return one wheel for each package of a lock (PEP 751) in ``folder``, the one with the best tag.

    uv names every wheel that would do, from every source; what is said to be installed is to be what is installed.
    """
    version = [int(part) for part in interpreter.version.split(".")[:2]]
    platforms = list(tags.platform_tags())
    order = [
        *tags.cpython_tags(version, platforms=platforms),
        *tags.compatible_tags(version, f"cp{version[0]}{version[1]}", platforms),
    ]
    ranks = {tag: rank for rank, tag in enumerate(order)}

    def preference(wheel: _Wheel) -> tuple[int, tuple[object, ...]]:
        try:
            _, _, build, of_file = parse_wheel_filename(wheel.file)
        except InvalidWheelFilename:
            return -len(ranks), ()
        return -min(ranks.get(tag, len(ranks)) for tag in of_file), build

    found = []
    for package in lock.get("packages", []):
        indexed = package.get("wheels", [])
        entries = indexed or ([package["archive"]] if "archive" in package else [])
        if not entries:
            raise Blocked(
                "no-wheel",
                f"{package['name']} would have to be built from its source",
                "Name a wheel of it where uv's settings name a repository or a folder.",
            )
        wheels = [
            _Wheel(
                name=canonicalize_name(package["name"]),
                version=package["version"],
                # The name is the wheel's, wherever a link leads.
                url=entry.get("url") or Path(os.path.abspath(folder / entry["path"])).as_uri(),  # noqa: PTH100
                sha256=entry.get("hashes", {}).get("sha256"),
            )
            for entry in entries
        ]
        # Of a find-links folder, no hash is known until uv has made its own choice.
        by_name = bool(indexed) and all(re.match("https?:", wheel.url) and wheel.sha256 for wheel in wheels)
        found.append(msgspec.structs.replace(max(wheels, key=preference), by_name=by_name))
    return found


def _describe(stamp: _Stamp, venv: Path, *, reused: bool) -> Environment:
    versions = {package.name: package.version for package in stamp.packages}
    facts = _torch_version(site_packages(venv) / "torch" / "version.py")
    return Environment(
        python=venv / "bin" / "python",
        fingerprint=storage.digest(stamp),
        torch=facts.get("__version__") or versions.get("torch", "?"),
        torch_npu=versions.get("torch-npu", "?"),
        git_version=facts.get("git_version"),
        cuda=facts.get("cuda"),
        packages=stamp.packages,
        reused=reused,
    )


def _other_file_system(preflight: Preflight, venv: Path) -> str:
    """Return uv's cache if files can't be linked from it into the venv; an empty string otherwise."""
    _, output = _uv(preflight, ["cache", "dir"], RESOLVE_SECONDS)
    cache = Path((output.splitlines() or [""])[-1].strip())
    return str(cache) if cache.is_dir() and cache.stat().st_dev != venv.stat().st_dev else ""


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
