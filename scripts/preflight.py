"""Finds out whether this machine can try a pair at all, and what its processes shall see of the environment."""

from __future__ import annotations

import configparser
import itertools
import os
import platform
import re
import shutil
import socket
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from packaging.version import InvalidVersion, Version

from . import process, storage
from .errors import Blocked, without_secrets
from .matrix import Batch, Pair
from .scope import RunScope

INSIDE = Path(__file__).parent / "inside"
ETC = Path("/etc")
SHARED_MEMORY_BYTES = 16 << 20
DISK_BYTES = 2 << 30
GLIBC = Version("2.28")
PROBE_SECONDS = 60.0
INTERPRETER_SECONDS = 900.0
CONNECT_SECONDS = 5.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Variables that would change what is installed or what the tests see (torchrun's among them); all others are handed on.
DROPPED = re.compile(
    r"(PYTHON|PIP_|UV_|NOX|PYTEST|COV_|COVERAGE|CONDA_|TORCHELASTIC_|PET_|PYTORCH_TEST)\w*"
    r"|VIRTUAL_ENV\w*|__PYVENV_LAUNCHER__|MATRIX|MASTER_(ADDR|PORT)|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)"
)
KEPT = re.compile(r"PYTHON(UTF8|HASHSEED|IOENCODING|MALLOC)")
# uv's own settings are honoured as they stand, but for those that choose another interpreter, folder or version.
UV_DROPPED = re.compile(
    r"UV_(PYTHON|SYSTEM_PYTHON|ENV_FILE|ISOLATED|PROJECT\w*|WORKING_DIR\w*|VENV_\w+|BREAK_SYSTEM_PACKAGES"
    r"|(BUILD_)?CONSTRAINT|OVERRIDE|EXCLUDE\w*|RESOLUTION|PRERELEASE\w*|FORK_STRATEGY"
    r"|NO_BINARY\w*|REQUIRE_HASHES|NO_VERIFY_HASHES|FROZEN|LOCKED)"
)

CANN_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
CANN_FILES = (
    *(f"{platform.machine()}-linux/ascend_toolkit_install.info", "*/ascend_toolkit_install.info"),
    *("ascend_toolkit_install.info", "version.cfg", "*/ascend_*_install.info"),
)
# `version=8.3.RC1`, or `runtime_running_version=[7.7.0.1.238:8.1.RC1]` where the first is the component's own.
CANN_VERSION = re.compile(r"(?im)^(?:version=|\w+_running_version=\[(?:[^:\]\n]*:)?(?:CANN-)?)([0-9][\w.+-]*)")


class HandedOn(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of pip that uv gets where it has none of its own: ``variable`` or ``others`` in the environment."""

    pip: str
    variable: str
    others: tuple[str, ...] = ()
    separator: str = ""


HANDED_ON = (
    HandedOn(pip="index-url", variable="UV_DEFAULT_INDEX", others=("UV_INDEX_URL",)),
    HandedOn(pip="extra-index-url", variable="UV_INDEX", others=("UV_EXTRA_INDEX_URL",), separator=" "),
    HandedOn(pip="find-links", variable="UV_FIND_LINKS", separator=","),
    HandedOn(pip="cert", variable="SSL_CERT_FILE"),
)


class Cann(msgspec.Struct, frozen=True, kw_only=True):
    """CANN as it was found: its folder and version."""

    home: str
    version: str | None


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """An interpreter as its own probe describes it."""

    path: str
    version: str
    implementation: str
    machine: str
    libc: str


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, as far as a result may depend on it."""

    os: str
    machine: str
    kernel: str
    glibc: str
    cores: int
    npu_devices: int
    cann: Cann | None

    @property
    def device(self) -> list[str | int | None]:
        """What the answers of torch and of the tests depend on beside the venv."""
        return [self.npu_devices, self.cann.home if self.cann else None, self.cann.version if self.cann else None]


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """What the later stations work with.

    ``uv_env`` is uv's environment, ``test_env`` the tests'; ``dropped`` are the names of the caller's variables that
    neither gets; ``handed`` says what pip's configuration gave to uv.
    """

    machine: Machine
    interpreter: Interpreter
    uv: str
    uv_env: dict[str, str]
    test_env: dict[str, str]
    dropped: list[str]
    handed: list[str]


def check(batch: Batch, pair: Pair, *, uv: str, venv: Path, scope: RunScope) -> Preflight:
    """Check the surroundings of ``pair``; raises Blocked with the first cause that would spoil its runs."""
    scope.once("machine", lambda: _check_machine(venv))
    environment = _with_cann(batch)
    cann = find_cann(environment)
    uv_env, handed = uv_environment(environment)
    interpreter = find_interpreter(pair.python, uv, uv_env)
    machine = Machine(
        os=_os_name(),
        machine=platform.machine(),
        kernel=platform.release(),
        glibc=" ".join(platform.libc_ver()).strip(),
        cores=cores(),
        npu_devices=len(list(Path("/dev").glob("davinci[0-9]*"))),
        cann=cann,
    )
    test_env = test_environment(environment, cann)
    return Preflight(
        machine=machine,
        interpreter=interpreter,
        uv=uv,
        uv_env=uv_env,
        test_env=test_env,
        dropped=sorted(environment.keys() - uv_env.keys() - test_env.keys()),
        handed=handed,
    )


def cores() -> int:
    """Return the cores that this process may use: affinity, then the control group's quota."""
    available = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        available = min(available, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return available


def find_cann(environment: Mapping[str, str]) -> Cann | None:
    """Return the CANN that ``set_env.sh`` has put into ``environment``, or None.

    Raises Blocked if the environment names one that isn't there: it was meant, so doing without it is no answer.
    """
    if home := _cann_home(environment):
        return Cann(home=home, version=_cann_version(Path(home)))
    for name in CANN_HOMES:
        if environment.get(name):
            raise Blocked(
                "cann-path",
                f"{name} names {environment[name]}, which isn't there",
                "Source the set_env.sh of a CANN that is installed, or unset it to verify without CANN.",
            )
    return None


def uv_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return uv's environment, with pip's index settings where uv has none, and what was handed on so."""
    result = {
        name: value
        for name, value in environment.items()
        if not DROPPED.fullmatch(name) or (name.startswith("UV_") and not UV_DROPPED.fullmatch(name))
    }
    pip = _pip_settings(environment)
    configured = _uv_settings(environment)
    handed = []
    for setting in HANDED_ON:
        values = [value for value in pip.get(setting.pip, []) if _can_be_handed(setting, value)]
        if not values or setting.pip in configured or {setting.variable, *setting.others} & result.keys():
            continue
        result[setting.variable] = setting.separator.join(values) if setting.separator else values[-1]
        handed.append(f"{setting.pip} = {without_secrets(' '.join(values))}")
        if setting.variable == "UV_INDEX" and "index-strategy" not in configured:
            # pip takes the best version of all its indexes; uv by default only the first index that has the package.
            result.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return result, handed


def test_environment(environment: Mapping[str, str], cann: Cann | None) -> dict[str, str]:
    """Return the tests' environment."""
    result = {name: value for name, value in environment.items() if not DROPPED.fullmatch(name) or KEPT.fullmatch(name)}
    if cann:
        # CANN's set_env.sh puts its own packages there, which torch_npu needs; nobody else's folders are kept.
        folders = environment.get("PYTHONPATH", "").split(":")
        own = [folder for folder in folders if folder and _is_below(folder, cann.home)]
        result |= {"PYTHONPATH": ":".join(own)} if own else {}
    else:
        result["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if any(name.lower().endswith("_proxy") for name in result):
        # Stores and rendezvous of the tests talk to this machine, whatever proxy leads to the rest of the world.
        hosts = [*LOOPBACK, socket.gethostname(), socket.getfqdn()]
        given = [host for name in ("no_proxy", "NO_PROXY") for host in result.get(name, "").split(",") if host]
        result |= dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(dict.fromkeys([*given, *hosts])))
    result["PYTHONUNBUFFERED"] = "1"
    return result


def find_interpreter(wanted: str, uv: str, uv_env: Mapping[str, str]) -> Interpreter:
    """Return an interpreter of version ``wanted`` on which the tests can work.

    uv finds it (or downloads it, where its settings allow that). The answer is kept as long as nothing changes where uv
    looks, nor the interpreter itself. Raises Blocked if there is none, or if its ``qsize()`` doesn't work, which
    upstream's timers need.
    """
    looked = [
        platform.node(),
        wanted,
        uv,
        {
            name: value
            for name, value in sorted(uv_env.items())
            if name in ("PATH", "HOME") or name[:3] in ("UV_", "XDG")
        },
    ]
    name = storage.digest(looked)[:32]
    record = storage.cache_root() / "interpreters" / f"{name}.json"
    places = [file_state(place) for place in _interpreter_places(uv, uv_env)]
    try:
        found = msgspec.json.decode(record.read_bytes(), type=_Found)
        if found.state and (found.places, found.state) == (places, file_state(Path(found.interpreter.path))):
            return found.interpreter
    except (OSError, msgspec.DecodeError):
        pass
    interpreter = _search_interpreter(wanted, uv, uv_env)
    state = file_state(Path(interpreter.path))
    storage.write(record, msgspec.json.encode(_Found(interpreter=interpreter, state=state, places=places)))
    return interpreter


def file_state(path: Path) -> list[int]:
    """Return what changes when a file (or what a link leads to) is replaced; nothing if it isn't there."""
    try:
        about = path.stat()
    except OSError:
        return []
    return [about.st_size, about.st_mtime_ns, about.st_ino]


def same_release(found: str, wanted: str) -> bool:
    """Return whether two CANN versions are the same release (8.5.0 and 8.5.0.1 are not, 8.5 and 8.5.0 are)."""
    try:
        return Version(found) == Version(wanted)
    except InvalidVersion:
        return found.casefold() == wanted.casefold()


def last_words(output: str) -> str:
    """Return the part of a command's output that says why it failed, without credentials."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith(("error:", "cause:", "hint:", "×", "╰─▶", "fatal:"))]
    return without_secrets(" ".join(telling or lines[-3:])).removeprefix("error: ").removesuffix(".")[:1200]


# Helpers


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    interpreter: Interpreter
    state: list[int]
    places: list[list[int]]


def _interpreter_places(uv: str, uv_env: Mapping[str, str]) -> list[Path]:
    """Return the files and folders that change when uv would find another interpreter."""
    data = Path(uv_env.get("XDG_DATA_HOME") or storage.home() / ".local" / "share")
    managed = Path(uv_env.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    searched = [Path(folder) for folder in uv_env.get("PATH", "").split(":") if folder]
    return [Path(uv), INSIDE / "probe.py", managed, *searched, *_uv_config_files(uv_env)]


def _search_interpreter(wanted: str, uv: str, uv_env: Mapping[str, str]) -> Interpreter:
    request = f"cpython@{wanted}"
    ending, output = _uv_python(uv, uv_env, "find", "--no-project", "--system", request)
    if ending.returncode != 0:
        # A find doesn't download; an install does, honouring UV_PYTHON_DOWNLOADS and its mirrors.
        ending, output = _uv_python(uv, uv_env, "install", "--no-bin", request)
        if ending.returncode == 0:
            ending, output = _uv_python(uv, uv_env, "find", "--no-project", "--managed-python", request)
    if ending.returncode != 0:
        raise Blocked(
            "no-interpreter",
            f"no Python {wanted} was found, nor could uv get one: {ending.error or last_words(output)}",
            f"Install Python {wanted} with the system's package manager, or set UV_PYTHON_INSTALL_MIRROR.",
        )
    first = output.strip().splitlines()[-1]
    unfit: dict[str, str] = {}
    for path in itertools.chain([first], _installed(request, uv, uv_env)):
        if path in unfit:
            continue
        facts = _probe(path)
        if not facts["queue_size_error"]:
            return Interpreter(
                path=path,
                version=facts["version"],
                implementation=facts["implementation"],
                machine=facts["machine"],
                libc=facts["libc"],
            )
        unfit[path] = f"{path} (Python {facts['version']}): {facts['queue_size_error']}"
    raise Blocked(
        "unfit-interpreter",
        "multiprocessing.Queue().qsize(), which upstream's timers need, does not work on "
        f"{'; nor on '.join(unfit.values())}",
        f"Install a newer patch release of Python {wanted}, or the system's own.",
    )


def _uv_python(uv: str, uv_env: Mapping[str, str], command: str, *arguments: str) -> tuple[process.Ending, str]:
    argv = [uv, "python", command, *arguments]
    return process.capture(argv, cwd=Path("/"), env=uv_env, limit=INTERPRETER_SECONDS)


def _installed(request: str, uv: str, uv_env: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths of all installed interpreters that ``request`` fits."""
    _, output = _uv_python(uv, uv_env, "list", "--only-installed", "--output-format", "json", request)
    try:
        entries = msgspec.json.decode(output[output.index("[{") :], type=list[dict[str, object]])
    except (ValueError, msgspec.DecodeError):
        return
    yield from (str(entry["path"]) for entry in entries if entry.get("path"))


def _check_machine(venv: Path) -> None:
    """Check what holds for every pair on this machine."""
    if not Path("/proc/self/stat").exists():
        raise Blocked("not-linux", "this is not Linux with /proc", "Run it on Linux; torch-npu has no other wheels.")
    name, version = platform.libc_ver()
    if name == "glibc" and Version(version) < GLIBC:
        raise Blocked("glibc", f"glibc is {version}, torch's wheels need {GLIBC}", "Use AlmaLinux 8 or newer.")
    _check_host_name()
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        free = 0
    if free < SHARED_MEMORY_BYTES:
        raise Blocked(
            "shared-memory",
            f"/dev/shm has {free >> 20} MiB free, the tests need {SHARED_MEMORY_BYTES >> 20} MiB",
            "Enlarge it (docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm).",
        )
    place = next(folder for folder in (venv, *venv.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < DISK_BYTES:
        raise Blocked(
            "disk-full",
            f"{free / (1 << 30):.1f} GiB are free where the venvs lie, {DISK_BYTES >> 30} GiB are the least",
            "Free some space, for example with uv cache prune.",
        )


def _check_host_name() -> None:
    """Connect to this machine by its own name, as upstream's agent tests do."""
    host = socket.getfqdn()
    two = socket.has_dualstack_ipv6()
    try:
        with socket.create_server(
            ("", 0), family=socket.AF_INET6 if two else socket.AF_INET, dualstack_ipv6=two
        ) as server:
            socket.create_connection((host, server.getsockname()[1]), CONNECT_SECONDS).close()
    except OSError as error:
        raise Blocked(
            "host-name",
            f"this machine can't be reached by its own name '{host}': {error.strerror or error}; "
            "upstream's agent tests bind to it",
            f"Add '127.0.0.1 {host}' to /etc/hosts.",
        ) from None


def _probe(python: str) -> dict[str, str]:
    """Ask an interpreter what it is."""
    plain = {name: value for name, value in os.environ.items() if not DROPPED.fullmatch(name)}
    argv = [python, "-I", str(INSIDE / "probe.py")]
    ending, output = process.capture(argv, cwd=Path("/"), env=plain, limit=PROBE_SECONDS)
    try:
        return msgspec.json.decode(output.strip().splitlines()[-1], type=dict[str, str])
    except (msgspec.DecodeError, IndexError):
        raise Blocked(
            "no-interpreter",
            f"{python} does not run: {ending.error or last_words(output) or f'it ended with {ending.returncode}'}",
            "Install this Python anew.",
        ) from None


def _with_cann(batch: Batch) -> dict[str, str]:
    """Return the caller's environment, with CANN's set_env.sh sourced where the batch names it and nobody did yet."""
    environment = dict(os.environ)
    if batch.matrix.cann is None or _cann_home(environment):
        return environment
    script = storage.located(batch.matrix.cann.set_env, batch.root)
    if not script.is_file():
        raise Blocked("cann-path", f"cann.set-env names {script}, which isn't there", "Correct cann.set-env.")
    # A marker keeps what the script itself prints apart from the environment after it.
    marker = "\x01environment\x01"
    shell = f'source "$1"; printf "%s" "{marker}"; exec /usr/bin/env -0'
    argv = ["bash", "--noprofile", "--norc", "-c", shell, "bash", str(script)]
    ending, output = process.capture(argv, cwd=batch.root, env=environment, limit=PROBE_SECONDS)
    said, _, after = output.partition(marker)
    sourced = dict(entry.split("=", 1) for entry in after.split("\0") if "=" in entry)
    # Its exit status is no evidence: some end with a test that is false. What it is there for is.
    if not _cann_home(sourced):
        how = "took too long" if ending.timed_out else "set no ASCEND_HOME_PATH that is there"
        words = ending.error or last_words(said)
        raise Blocked(
            "cann-path",
            f"{script} {how} when it was sourced{words and f': {words}'}",
            f"Try it by hand: source {script}",
        )
    return sourced


def _cann_home(environment: Mapping[str, str]) -> str | None:
    homes = (environment.get(name) for name in CANN_HOMES)
    return next((home for home in homes if home and Path(home).is_dir()), None)


def _cann_version(home: Path) -> str | None:
    """Return the version that CANN's own files state: the toolkit's, or else another part's."""
    for pattern in CANN_FILES:
        for file in sorted(home.glob(pattern)):
            try:
                match = CANN_VERSION.search(file.read_text(errors="replace"))
            except OSError:
                continue
            if match:
                return match[1]
    return None


def _is_below(folder: str, home: str) -> bool:
    """Return whether a folder lies in ``home``, as it is written or as it is once links are followed."""
    written = Path(os.path.normpath(home)) in Path(os.path.normpath(folder)).parents
    return written or Path(home).resolve() in Path(folder).resolve().parents


def _os_name() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return platform.system()
    return f"{release.get('NAME', '')} {release.get('VERSION_ID', '')}".strip()


def _can_be_handed(setting: HandedOn, value: str) -> bool:
    match setting.pip:
        case "find-links":
            # uv fails on a folder that isn't there, pip only warns.
            return "://" in value or Path(value).is_dir()
        case "extra-index-url":
            return not value.startswith("file://") or Path(value.removeprefix("file://")).is_dir()
    return True


def _pip_settings(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return pip's settings for an install by name, as pip would find them; a later place wins.

    See "Configuration Files" in pip's documentation.
    """
    home = storage.home()
    named = environment.get("PIP_CONFIG_FILE", "")
    places: list[Path] = []
    if named != os.devnull:
        folders = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
        places += [*(Path(folder, "pip", "pip.conf") for folder in folders), ETC / "pip.conf"]
        if not Path(named).is_file():
            config_home = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
            places += [home / ".pip" / "pip.conf", config_home / "pip" / "pip.conf"]
        places += [Path(environment["VIRTUAL_ENV"], "pip.conf")] if environment.get("VIRTUAL_ENV") else []
        places += [Path(named)] if named else []
    found: dict[str, dict[str, list[str]]] = {"global": {}, "install": {}}
    for place in places:
        parser = configparser.RawConfigParser()
        try:
            parser.read(place, encoding="utf-8")
        except (OSError, configparser.Error, UnicodeDecodeError):
            continue
        for section, values in found.items():
            if parser.has_section(section):
                values.update({name.replace("_", "-"): value.split() for name, value in parser.items(section)})
    variables = {
        name.removeprefix("PIP_").lower().replace("_", "-"): value.split()
        for name, value in environment.items()
        if name.startswith("PIP_") and value
    }
    return found["global"] | found["install"] | variables


def _uv_settings(environment: Mapping[str, str]) -> set[str]:
    """Return the names of the settings that uv's own configuration files make, by pip's names for them."""
    found: set[str] = set()
    for file in _uv_config_files(environment):
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        table = _table(_table(table.get("tool")).get("uv")) if file.name == "pyproject.toml" else table
        for settings in (table, _table(table.get("pip"))):
            indexes = settings.get("index")
            found |= settings.keys()
            for index in indexes if isinstance(indexes, list) else []:
                found.add("index-url" if _table(index).get("default") else "extra-index-url")
    return found


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _uv_config_files(environment: Mapping[str, str]) -> list[Path]:
    """Return where uv looks for its configuration (it runs in the current folder)."""
    if environment.get("UV_NO_CONFIG"):
        return []
    if named := environment.get("UV_CONFIG_FILE"):
        return [Path(named)]
    own = Path(environment.get("XDG_CONFIG_HOME") or storage.home() / ".config")
    folders = [own, *map(Path, (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")), ETC]
    here = Path.cwd()
    project = [folder / name for folder in (here, *here.parents) for name in ("uv.toml", "pyproject.toml")]
    return [*project, *(folder / "uv" / "uv.toml" for folder in folders)]
