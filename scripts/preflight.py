"""Finds out whether this machine can try a pair at all, and what its processes shall see of the environment."""

from __future__ import annotations

import configparser
import os
import platform
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from . import process, storage
from .errors import Blocked
from .matrix import Batch, Pair
from .scope import RunScope

INSIDE = Path(__file__).parent / "inside"
SHARED_MEMORY_BYTES = 16 << 20
DISK_BYTES = 2 << 30
GLIBC = Version("2.28")
PROBE_SECONDS = 60.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Variables that would change what is installed or what the tests see; everything else is handed on.
DROPPED = re.compile(
    r"(PYTHON|PIP_|UV_|NOX|PYTEST|COV_|COVERAGE)\w*|VIRTUAL_ENV\w*|CONDA_\w+|__PYVENV_LAUNCHER__|MATRIX"
)
KEPT = re.compile(r"PYTHON(UTF8|HASHSEED|IOENCODING|MALLOC)")
# uv's own settings are honoured as they stand, but for those that would choose another interpreter or folder.
UV_DROPPED = (
    "UV_PYTHON",
    "UV_PROJECT_ENVIRONMENT",
    "UV_WORKING_DIRECTORY",
    "UV_CONSTRAINT",
    "UV_OVERRIDE",
    "UV_EXCLUDE_NEWER",
)
SECRET = re.compile(r"(?<=://)[^/@\s]+@")


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
    test_env, dropped = test_environment(environment, cann)
    return Preflight(
        machine=machine,
        interpreter=interpreter,
        uv=uv,
        uv_env=uv_env,
        test_env=test_env,
        dropped=dropped,
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
    """Return the CANN that ``set_env.sh`` has put into ``environment``, or None."""
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        home = environment.get(name)
        if home and Path(home).is_dir():
            return Cann(home=home, version=_cann_version(Path(home)))
    return None


def uv_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return uv's environment, with pip's index settings where uv has none, and what was handed on so."""
    result = {
        name: value
        for name, value in environment.items()
        if name not in UV_DROPPED and (name.startswith(("UV_", "PIP_")) or not DROPPED.fullmatch(name))
    }
    pip = _pip_settings(environment)
    handed = []
    for setting, variable, separator in (
        ("index-url", "UV_DEFAULT_INDEX", None),
        ("extra-index-url", "UV_INDEX", " "),
        ("find-links", "UV_FIND_LINKS", ","),
        ("cert", "SSL_CERT_FILE", None),
    ):
        values = pip.get(setting, [])
        if setting == "find-links":
            # uv fails on a folder that isn't there, pip only warns.
            values = [value for value in values if "://" in value or Path(value).is_dir()]
        if setting == "extra-index-url":
            values = [value for value in values if not value.startswith("file://") or Path(value[7:]).is_dir()]
        if not values or variable in result or (variable == "UV_DEFAULT_INDEX" and "UV_INDEX_URL" in result):
            continue
        if variable == "UV_INDEX" and "UV_EXTRA_INDEX_URL" in result:
            continue
        result[variable] = separator.join(values) if separator else values[-1]
        handed.append(f"{setting} = {SECRET.sub('', ' '.join(values))}")
    if (
        "UV_INDEX" in result
        and "extra-index-url" in pip
        and any(entry.startswith("extra-index-url") for entry in handed)
    ):
        # pip takes the best version of all its indexes; uv by default only the first index that has the package.
        result.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return {name: value for name, value in result.items() if not name.startswith("PIP_")}, handed


def test_environment(environment: Mapping[str, str], cann: Cann | None) -> tuple[dict[str, str], list[str]]:
    """Return the tests' environment and the names of the caller's variables that are not in it."""
    dropped = sorted(name for name in environment if DROPPED.fullmatch(name) and not KEPT.fullmatch(name))
    result = {name: value for name, value in environment.items() if name not in dropped}
    if cann and "PYTHONPATH" in environment:
        # CANN's set_env.sh puts its own packages there, which torch_npu needs; nobody else's folders are kept.
        root = Path(cann.home).resolve().parent
        folders = [folder for folder in environment["PYTHONPATH"].split(":") if folder]
        own = [folder for folder in folders if root in Path(folder).resolve().parents]
        result |= {"PYTHONPATH": ":".join(own)} if own else {}
    # Stores and rendezvous of the tests talk to this machine, whatever proxy leads to the rest of the world.
    hosts = [*LOOPBACK, socket.gethostname(), socket.getfqdn()]
    if any(name.lower().endswith("_proxy") for name in result):
        for name in ("no_proxy", "NO_PROXY"):
            given = [host for host in result.get(name, "").split(",") if host]
            result[name] = ",".join(dict.fromkeys([*given, *hosts]))
    result["PYTHONUNBUFFERED"] = "1"
    if cann is None:
        result["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return result, dropped


def find_interpreter(wanted: str, uv: str, uv_env: Mapping[str, str]) -> Interpreter:
    """Return an interpreter of version ``wanted`` on which the tests can work.

    uv finds it (or downloads it, where its settings allow that). Raises Blocked if there is none, or if its
    ``qsize()`` doesn't work, which upstream's timers need.
    """
    home = Path.home()
    ending, output = process.capture([uv, "python", "find", "--no-project", "--system", wanted], cwd=home, env=uv_env)
    if ending.returncode != 0:
        # A find doesn't download; an install does, honouring UV_PYTHON_DOWNLOADS and its mirrors.
        install = [uv, "python", "install", "--no-bin", wanted]
        ending, output = process.capture(install, cwd=home, env=uv_env, limit=900)
        if ending.returncode == 0:
            find = [uv, "python", "find", "--no-project", "--managed-python", wanted]
            ending, output = process.capture(find, cwd=home, env=uv_env)
    if ending.returncode != 0:
        raise Blocked(
            "no-interpreter",
            f"no Python {wanted} was found, nor could uv get one: {last_words(output)}",
            f"Install Python {wanted} with the system's package manager, or set UV_PYTHON_INSTALL_MIRROR.",
        )
    first = output.strip().splitlines()[-1]
    unfit = []
    for path in dict.fromkeys([first, *_installed(wanted, uv, uv_env)]):
        facts = _probe(path)
        if not facts["queue_size_error"]:
            return Interpreter(
                path=path,
                version=facts["version"],
                implementation=facts["implementation"],
                machine=facts["machine"],
                libc=facts["libc"],
            )
        unfit.append(f"{path} (Python {facts['version']}): {facts['queue_size_error']}")
    raise Blocked(
        "unfit-interpreter",
        f"multiprocessing.Queue().qsize(), which upstream's timers need, does not work on {'; nor on '.join(unfit)}",
        f"Install a newer patch release of Python {wanted}, or the system's own.",
    )


def last_words(output: str) -> str:
    """Return the part of a command's output that says why it failed, without credentials."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith(("error:", "cause:", "hint:", "×", "╰─▶", "fatal:"))]
    return SECRET.sub("", " ".join(telling or lines[-3:]))[:1200]


# Helpers


def _installed(wanted: str, uv: str, uv_env: Mapping[str, str]) -> list[str]:
    """Return the paths of all installed interpreters of version ``wanted``."""
    argv = [uv, "python", "list", "--only-installed", "--output-format", "json", wanted]
    ending, output = process.capture(argv, cwd=Path.home(), env=uv_env)
    try:
        entries = msgspec.json.decode(output[output.index("[") :], type=list[dict[str, object]])
    except (ValueError, msgspec.DecodeError):
        return []
    return [str(entry["path"]) for entry in entries if entry.get("path")] if ending.returncode == 0 else []


def _check_machine(venv: Path) -> None:
    """Check what holds for every pair on this machine."""
    if not Path("/proc/self/stat").exists():
        raise Blocked("not-linux", "this is not Linux with /proc", "Run it on Linux; torch-npu has no other wheels.")
    name, version = platform.libc_ver()
    if name == "glibc" and Version(version) < GLIBC:
        raise Blocked("glibc", f"glibc is {version}, torch's wheels need {GLIBC}", "Use AlmaLinux 8 or newer.")
    host = socket.getfqdn()
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise Blocked(
            "host-name",
            f"this machine's name '{host}' does not resolve ({error.strerror or error}), "
            "and upstream's agent tests bind to it",
            f"Add '127.0.0.1 {host}' to /etc/hosts.",
        ) from None
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


def _probe(python: str) -> dict[str, str]:
    """Ask an interpreter what it is; the answer is kept as long as its file stays the same."""
    real = Path(python).resolve()
    about = real.stat()
    key = re.sub(r"\W+", "-", str(real)).strip("-")
    record = storage.cache_root() / "interpreters" / f"{key}-{about.st_mtime_ns}-{about.st_size}.json"
    try:
        return msgspec.json.decode(record.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        pass
    argv = [python, "-I", str(INSIDE / "probe.py")]
    ending, output = process.capture(argv, cwd=Path.home(), env=_plain_environment(), limit=PROBE_SECONDS)
    try:
        facts = msgspec.json.decode(output.strip().splitlines()[-1], type=dict[str, str])
    except (msgspec.DecodeError, IndexError):
        raise Blocked(
            "no-interpreter",
            f"{python} does not run: {ending.error or last_words(output) or f'it ended with {ending.returncode}'}",
            "Install this Python anew.",
        ) from None
    if not facts["queue_size_error"]:
        storage.write(record, msgspec.json.encode(facts))
    return facts


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not DROPPED.fullmatch(name)}


def _with_cann(batch: Batch) -> dict[str, str]:
    """Return the caller's environment, with CANN's set_env.sh sourced where the batch names it and nobody did yet."""
    environment = dict(os.environ)
    if batch.matrix.cann is None or find_cann(environment):
        return environment
    script = Path(batch.matrix.cann.set_env).expanduser()
    if not script.is_absolute():
        script = batch.root / script
    if not script.is_file():
        raise Blocked("cann-path", f"cann.set-env names {script}, which isn't there", "Correct cann.set-env.")
    # A marker keeps what the script itself prints apart from the environment after it.
    marker = "\x01environment\x01"
    shell = f'source "$1" >/dev/null 2>&1 || exit 1; printf "%s" "{marker}"; env -0'
    ending, output = process.capture(
        ["bash", "-c", shell, "bash", str(script)], cwd=batch.root, env=environment, limit=PROBE_SECONDS
    )
    if ending.returncode != 0 or marker not in output:
        raise Blocked("cann-path", f"{script} failed when it was sourced", f"Run: source {script}")
    pairs = (line.partition("=") for line in output.partition(marker)[2].split("\0") if "=" in line)
    return {name: value for name, _, value in pairs}


def _cann_version(home: Path) -> str | None:
    """Return the version that CANN's own files state."""
    for pattern in ("version.cfg", "*/ascend_toolkit_install.info", "ascend_toolkit_install.info", "*/version.info"):
        for file in sorted(home.glob(pattern)):
            try:
                text = file.read_text(errors="replace")
            except OSError:
                continue
            match = re.search(r"(?im)^\s*(?:\w*version\w*)\s*=\s*\[?(?:[\d.]*:)?([0-9][\w.]*)", text)
            if match:
                return match[1]
    return None


def same_release(found: str, wanted: str) -> bool:
    """Return whether two CANN versions are the same release (8.5.0 and 8.5.0.1 are not, 8.5 and 8.5.0 are)."""
    try:
        return Version(found) == Version(wanted)
    except InvalidVersion:
        return found == wanted


def _os_name() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return platform.system()
    return f"{release.get('NAME', '')} {release.get('VERSION_ID', '')}".strip()


def _pip_settings(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return pip's index settings by name, as pip would find them: global, user, site, PIP_CONFIG_FILE, environment.

    See "Configuration Files" in pip's documentation; a later place wins.
    """
    found: dict[str, list[str]] = {}
    named = environment.get("PIP_CONFIG_FILE", "")
    places: list[Path] = []
    if named != os.devnull:
        config_home = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        config_dirs = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
        places += [Path(folder, "pip", "pip.conf") for folder in config_dirs]
        places += [Path("/etc/pip.conf"), Path.home() / ".pip" / "pip.conf", config_home / "pip" / "pip.conf"]
        places += [Path(named)] if named else []
    for place in places:
        parser = configparser.RawConfigParser()
        try:
            parser.read(place)
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                for name, value in parser.items(section):
                    found[name.replace("_", "-")] = value.split()
    for name, value in environment.items():
        if name.startswith("PIP_") and value:
            found[name[4:].lower().replace("_", "-")] = value.split()
    return found
