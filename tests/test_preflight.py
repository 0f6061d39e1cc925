"""Whether this machine can try a pair: each thing that would spoil a run is blocked by name, or kept from the run."""

from __future__ import annotations

import ast
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import hypothesis
import pytest
import uv
from hypothesis import strategies as st

from scripts import environment, matrix, preflight, storage
from scripts.errors import Blocked
from scripts.preflight import Cann, Preflight
from scripts.scope import RunScope
from tests import stubs

UV = uv.find_uv_bin()
NO_QSIZE = """\
import multiprocessing.queues


def qsize(self):
    raise NotImplementedError


multiprocessing.queues.Queue.qsize = qsize
"""
CHECK = """\
from pathlib import Path
from scripts.errors import Blocked
from tests import test_preflight
try:
    test_preflight.check(Path({folder!r}))
    print("fit")
except Blocked as blocked:
    print(blocked)
"""


@pytest.fixture(autouse=True)
def plain_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with an empty home folder and no settings at all."""
    (tmp_path / "links").mkdir()
    stubs.go_offline(monkeypatch, tmp_path / "links")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "SSL_CERT_FILE", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))
    monkeypatch.setattr(preflight, "ETC", tmp_path / "etc")


def check(folder: Path, uv: str = UV, python: str = stubs.PYTHON, **keys: object) -> Preflight:
    """Check the surroundings of a batch in ``folder`` with one pair."""
    pair = stubs.pair_row() | {"python": python}
    batch = matrix.load(stubs.write_batch(folder, pairs=[pair], **keys))  # type: ignore[arg-type]
    return preflight.check(batch, batch.pairs[0], uv=uv, venv=folder / "venv", scope=RunScope())


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# Interpreters


def on_path(monkeypatch: pytest.MonkeyPatch, *pythons: Path) -> None:
    """Let uv find these interpreters and no others."""
    monkeypatch.setenv("PATH", ":".join(str(python.parent) for python in pythons))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", "/nonexistent")


def test_an_interpreter_without_a_queue_size_is_unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfit = stubs.interpreter(tmp_path / "unfit", NO_QSIZE)
    on_path(monkeypatch, unfit)
    with pytest.raises(Blocked, match=rf"qsize.* does not work on {unfit} .*NotImplementedError") as blocked:
        check(tmp_path)
    assert blocked.value.code == "unfit-interpreter"
    assert "newer patch release" in blocked.value.remedy


def test_another_interpreter_of_the_version_is_taken_if_that_one_is_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit, fit = stubs.interpreter(tmp_path / "unfit", NO_QSIZE), stubs.interpreter(tmp_path / "fit")
    on_path(monkeypatch, unfit, fit)
    assert check(tmp_path).interpreter.path == str(fit)


def test_the_remedy_for_an_unfit_interpreter_works_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = stubs.interpreter(tmp_path / "python", NO_QSIZE)
    on_path(monkeypatch, python)
    with pytest.raises(Blocked, match="unfit-interpreter"):
        check(tmp_path)
    shutil.rmtree(tmp_path / "python")
    stubs.interpreter(tmp_path / "python")
    assert check(tmp_path).interpreter.path == str(python)


def test_a_version_that_is_not_there_and_cannot_be_had_is_blocked(tmp_path: Path) -> None:
    with pytest.raises(Blocked, match=r"no Python 3\.99 was found, nor could uv get one") as blocked:
        check(tmp_path, python="3.99")
    assert blocked.value.code == "no-interpreter"


def counting_uv(folder: Path) -> tuple[str, Callable[[], int]]:
    """Return a uv that counts how often it is started."""
    calls = folder / "calls"
    script = write(folder / "uv", f'#!/bin/sh\necho >> {calls}\nexec {UV} "$@"\n')
    script.chmod(0o755)
    return str(script), lambda: len(calls.read_text().splitlines())


def test_a_machine_is_probed_once_and_not_once_per_pair(tmp_path: Path) -> None:
    uv, count = counting_uv(tmp_path)
    first, asked = check(tmp_path, uv), count()
    start = time.monotonic()
    second = check(tmp_path, uv)
    assert time.monotonic() - start < 0.2
    assert count() == asked > 0
    assert second == first


def replace_interpreter(python: Path) -> None:
    shutil.copy(python, python.with_name("new"))
    python.with_name("new").replace(python)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda python: replace_interpreter(python), id="it was replaced"),
        pytest.param(
            lambda python: write(python.parent.parent.parent / "first/bin/python", ""), id="PATH has a new file"
        ),
        pytest.param(lambda _: write(Path.home() / ".config/uv/uv.toml", ""), id="uv has new settings"),
    ],
)
def test_an_interpreter_is_looked_for_anew_when_the_answer_might_be_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    uv, count = counting_uv(tmp_path)
    (tmp_path / "first" / "bin").mkdir(parents=True)
    on_path(
        monkeypatch, tmp_path / "first/bin/python", python := stubs.interpreter(tmp_path / "python"), Path("/bin/sh")
    )
    before = check(tmp_path, uv).interpreter
    asked = count()
    change(python)
    assert check(tmp_path, uv).interpreter == before
    assert count() > asked


def test_an_interpreter_put_in_front_of_another_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first" / "bin").mkdir(parents=True)
    on_path(monkeypatch, tmp_path / "first/bin/python", second := stubs.interpreter(tmp_path / "second"))
    assert check(tmp_path).interpreter.path == str(second)
    first = stubs.interpreter(tmp_path / "first")
    assert check(tmp_path).interpreter.path == str(first)


# The machine


def test_an_ordinary_machine_is_fit(tmp_path: Path) -> None:
    ready = check(tmp_path)
    assert ready.interpreter.version.startswith(f"{stubs.PYTHON}.")
    assert (ready.machine.machine, ready.machine.cann, ready.machine.cores >= 1) == (stubs.MACHINE, None, True)


@pytest.mark.parametrize(
    ("mount", "host", "told"),
    [
        pytest.param("/dev/shm", None, "/dev/shm has 1 MiB free, the tests need 16 MiB (shared-memory)", id="memory"),
        pytest.param(
            "{venv}", None, "0.0 GiB are free where the venvs lie, 2 GiB are the least (disk-full)", id="disk"
        ),
        pytest.param(None, "nowhere.invalid", "can't be reached by its own name 'nowhere.invalid'", id="host name"),
    ],
)
def test_what_the_machine_lacks_is_named(tmp_path: Path, mount: str | None, host: str | None, told: str) -> None:
    (tmp_path / "venv").mkdir()
    mounts = {Path(mount.format(venv=tmp_path / "venv")): "size=1m"} if mount else {}
    before = stubs.namespace(mounts=mounts, host=host)
    assert told in stubs.run_python(CHECK.format(folder=str(tmp_path)), before=before)


def test_too_old_a_glibc_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.17"))
    with pytest.raises(Blocked, match=r"glibc is 2\.17, torch's wheels need 2\.28"):
        check(tmp_path)


@pytest.mark.parametrize("home", ["/dev/null/home", "{tmp}/file", "/proc/self"])
def test_a_home_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    write(tmp_path / "file", "")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", home.format(tmp=tmp_path))
    with pytest.raises(Blocked, match="Set XDG_CACHE_HOME") as blocked:
        check(tmp_path)
    assert blocked.value.code == "cache"
    RunScope().close()


def nobody() -> list[str]:
    """Return what to put before a command that shall be run by a user who has no account, no home and no rights."""
    return [*stubs.namespace(), "unshare", "--user", "--map-user=54321", "env", "-u", "HOME"]


def test_a_user_without_a_home_needs_none_if_the_cache_is_elsewhere(tmp_path: Path) -> None:
    code = CHECK.format(folder=str(tmp_path))
    assert stubs.run_python(code, before=nobody()) == "fit\n"
    assert "Set XDG_CACHE_HOME" in stubs.run_python(code, before=[*nobody(), "-u", "XDG_CACHE_HOME"])


def test_a_cache_that_is_there_and_not_to_be_written_is_named(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / storage.PROJECT
    cache.mkdir(parents=True)
    cache.chmod(0o555)
    before = [*nobody(), f"XDG_CACHE_HOME={cache.parent}"]
    told = stubs.run_python(CHECK.format(folder=str(tmp_path)), before=before)
    assert f"{cache} can't be written (cache). Set XDG_CACHE_HOME" in told


# Variables


TESTS_SEE, UV_SEES, BOTH_SEE, NEITHER = "tests", "uv", "both", "neither"
VARIABLES = {
    **dict.fromkeys(["UV_PYTHON", "UV_RESOLUTION", "UV_PROJECT", "UV_OVERRIDE", "UV_SYSTEM_PYTHON"], NEITHER),
    **dict.fromkeys(["UV_CACHE_DIR", "UV_HTTP_TIMEOUT", "UV_PYTHON_DOWNLOADS", "UV_INDEX_MIRROR_PASSWORD"], UV_SEES),
    **dict.fromkeys(["PIP_TARGET", "PIP_REQUIRE_VIRTUALENV", "NOX_CACHE_DIR", "NOXSESSION", "PYTEST_ADDOPTS"], NEITHER),
    **dict.fromkeys(["PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PYTHONSTARTUP"], NEITHER),
    **dict.fromkeys(["VIRTUAL_ENV", "CONDA_PREFIX", "__PYVENV_LAUNCHER__", "MATRIX"], NEITHER),
    **dict.fromkeys(["MASTER_ADDR", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "PET_NNODES"], NEITHER),
    **dict.fromkeys(["PYTHONHASHSEED", "PYTHONUTF8"], TESTS_SEE),
    **dict.fromkeys(["OMP_NUM_THREADS", "LD_LIBRARY_PATH", "HTTPX_PROXY", "RANKING"], BOTH_SEE),
}


def test_what_would_change_a_run_reaches_neither_uv_nor_the_tests_and_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, {"UV_CACHE_DIR": f"{tmp_path}/cache", "UV_PYTHON_DOWNLOADS": "never"}.get(name, "3"))
    ready = check(tmp_path)
    seen = {
        (True, True): BOTH_SEE,
        (True, False): TESTS_SEE,
        (False, True): UV_SEES,
        (False, False): NEITHER,
    }
    assert {name: seen[name in ready.test_env, name in ready.uv_env] for name in VARIABLES} == VARIABLES
    assert set(ready.dropped) & VARIABLES.keys() == {name for name, who in VARIABLES.items() if who == NEITHER}


def test_nothing_in_the_working_directory_is_taken_for_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch_npu/__init__.py", "torch/__init__.py", "json.py", "platform.py", "multiprocessing.py"):
        write(tmp_path / "here" / name, "raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "here"))
    ready = check(tmp_path)
    code = "import json, multiprocessing, platform; print('right')"
    done = subprocess.run(
        [ready.interpreter.path, "-c", code], env=ready.test_env, cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stdout == "right\n"


@pytest.mark.parametrize("given", [{}, {"no_proxy": "one.example"}, {"no_proxy": "one.example", "NO_PROXY": "::1,x"}])
@pytest.mark.parametrize("proxy", ["http_proxy", "HTTPS_PROXY", "all_proxy"])
def test_a_proxy_is_not_for_this_machine(proxy: str, given: dict[str, str]) -> None:
    env = preflight.test_environment({proxy: "http://proxy.example:3128"} | given, None)
    hosts = {"localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()}
    assert env["no_proxy"] == env["NO_PROXY"]
    assert set(env["no_proxy"].split(",")) == hosts.union(*(value.split(",") for value in given.values()))


def test_without_a_proxy_nothing_is_said_of_proxies() -> None:
    assert not [name for name in preflight.test_environment({}, None) if name.lower() == "no_proxy"]


# CANN

INFO = """\
package_name=Ascend-cann-toolkit
version={version}
innerversion=V100R001C23SPC001B231
compatible_version=[V100R001C15],[V100R001C18]
arch=aarch64
os=linux
path=/usr/local/Ascend/ascend-toolkit/{version}/aarch64-linux
"""
CFG = "# version: 1.0\nruntime_running_version=[{both}]\ncompiler_running_version=[{both}]\n"


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"aarch64-linux/ascend_toolkit_install.info": INFO.format(version="8.3.RC1")}, "8.3.RC1"),
        ({"x86_64-linux/ascend_toolkit_install.info": INFO.format(version="9.2.0-beta.2")}, "9.2.0-beta.2"),
        ({"ascend_toolkit_install.info": INFO.format(version="8.5.0")}, "8.5.0"),
        ({"aarch64-linux/ascend_ops_install.info": INFO.format(version="8.5.0")}, "8.5.0"),
        ({"version.cfg": CFG.format(both="7.6.0.1.220:8.0.0")}, "8.0.0"),
        ({"version.cfg": CFG.format(both="7.6.T13.0.B094:8.0.T63")}, "8.0.T63"),
        ({"version.cfg": CFG.format(both="1.83.T8.0.B128:CANN-1.83")}, "1.83"),
        ({"version.cfg": CFG.format(both="8.5.0")}, "8.5.0"),
        (
            {
                "version.cfg": CFG.format(both="7.7.0.1.238:8.1.RC1"),
                "aarch64-linux/ascend_toolkit_install.info": INFO.format(version="8.5.0"),
            },
            "8.5.0",
        ),
        ({"runtime/version.info": "Version=7.6.0.1.220\n"}, None),
        ({"version.cfg": "\0\ufffd=[1"}, None),
        ({}, None),
    ],
)
def test_cann_is_found_with_the_version_that_its_own_files_state(
    tmp_path: Path, files: Mapping[str, str], version: str | None
) -> None:
    home = tmp_path / "cann"
    home.mkdir()
    for name, text in files.items():
        write(home / name, text)
    assert preflight.find_cann({"ASCEND_HOME_PATH": str(home)}) == Cann(home=str(home), version=version)


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        ("8.5.0", "8.5.0", True),
        ("8.5", "8.5.0", True),
        ("8.5.0.1", "8.5.0", False),
        ("8.3.RC1", "8.3.rc1", True),
        ("8.3.RC2", "8.3.RC1", False),
        ("9.2.0-beta.2", "9.2.0b2", True),
        ("8.0.T63", "8.0.t63", True),
        ("8.0.T63", "8.0", False),
    ],
)
def test_releases_of_cann_are_compared_as_versions(found: str, wanted: str, same: bool) -> None:
    assert preflight.same_release(found, wanted) == same


def set_env(folder: Path, body: str = "") -> Path:
    """Write a set_env.sh like CANN's below ``folder``, with the folders it speaks of."""
    home = folder / "ascend-toolkit" / "8.5.0"
    write(home / "version.cfg", CFG.format(both="8.5.0"))
    (home / "python" / "site-packages").mkdir(parents=True, exist_ok=True)
    link = folder / "ascend-toolkit" / "latest"
    if not link.is_symlink():
        link.symlink_to("8.5.0")
    return write(
        folder / "ascend-toolkit" / "set_env.sh",
        f"""
        export ASCEND_TOOLKIT_HOME={link}
        export LD_LIBRARY_PATH=$ASCEND_TOOLKIT_HOME/lib64:$LD_LIBRARY_PATH
        export PYTHONPATH=$ASCEND_TOOLKIT_HOME/python/site-packages:$PYTHONPATH
        export ASCEND_HOME_PATH=$ASCEND_TOOLKIT_HOME
        {body}
        """,
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("", id="plain"),
        pytest.param("echo loading; echo warning >&2; echo ASCEND_HOME_PATH=/wrong", id="prints"),
        pytest.param("[ -f /nonexistent ] && . /nonexistent", id="ends with a status of 1"),
        pytest.param("export X=$NOT_SET/x; set -eu", id="uses unset variables"),
        pytest.param("export Y=$'a=b\\nASCEND_HOME_PATH=/wrong'", id="has a value of two lines"),
    ],
)
def test_the_set_env_that_matrix_toml_names_is_sourced_even_for_cron(tmp_path: Path, body: str) -> None:
    script = set_env(tmp_path, body)
    code = f"""\
from pathlib import Path
from tests import test_preflight
ready = test_preflight.check(Path({str(tmp_path)!r}), cann={{"set-env": {str(script)!r}}})
print(ready.machine.cann.version, ready.test_env["PYTHONPATH"], ready.test_env.get("TORCH_DEVICE_BACKEND_AUTOLOAD"))
"""
    cron = [
        "env",
        "-i",
        "UV_OFFLINE=1",
        f"XDG_CACHE_HOME={tmp_path}/cache",
        "PATH=/usr/bin:/bin",
        f"PYTHONPATH={tmp_path}",
    ]
    home = tmp_path / "ascend-toolkit" / "latest"
    assert stubs.run_python(code, before=cron) == f"8.5.0 {home}/python/site-packages None\n"


@pytest.mark.parametrize("named", ["/absolute", "relative", "~/at home"])
def test_set_env_may_be_named_in_three_ways(tmp_path: Path, named: str) -> None:
    folder = {"/": tmp_path / "cann", "r": tmp_path, "~": Path.home()}[named[0]]
    script = set_env(folder)
    name = {"/": str(script), "r": "ascend-toolkit/set_env.sh", "~": "~/ascend-toolkit/set_env.sh"}[named[0]]
    cann = check(tmp_path, cann={"set-env": name}).machine.cann
    assert cann and cann.version == "8.5.0"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("echo no driver found; exit 3", "no driver found"),
        ("export ASCEND_HOME_PATH=/nonexistent ASCEND_TOOLKIT_HOME=", "set no ASCEND_HOME_PATH that is there"),
        ("unset ASCEND_HOME_PATH ASCEND_TOOLKIT_HOME", "set no ASCEND_HOME_PATH that is there"),
        ("sleep 60", "took too long"),
    ],
)
def test_a_set_env_that_does_not_work_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str
) -> None:
    monkeypatch.setattr(preflight, "PROBE_SECONDS", 1.0)
    script = set_env(tmp_path, body)
    with pytest.raises(Blocked, match=told) as blocked:
        check(tmp_path, cann={"set-env": str(script)})
    assert blocked.value.code == "cann-path"
    assert str(script) in blocked.value.cause


def test_a_set_env_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Blocked, match=r"cann\.set-env names .*/missing\.sh, which isn't there"):
        check(tmp_path, cann={"set-env": "missing.sh"})


def test_what_was_sourced_by_hand_is_not_sourced_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "mine"))
    cann = check(tmp_path, cann={"set-env": str(set_env(tmp_path))}).machine.cann
    assert cann and cann.home == str(tmp_path / "mine")


def test_a_cann_that_was_sourced_and_then_removed_does_not_turn_into_no_cann(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", "/nonexistent/cann")
    with pytest.raises(Blocked, match="ASCEND_HOME_PATH names /nonexistent/cann, which isn't there") as blocked:
        check(tmp_path)
    assert blocked.value.code == "cann-path"
    cann = check(tmp_path, cann={"set-env": str(set_env(tmp_path))}).machine.cann
    assert cann and cann.version == "8.5.0"


def test_of_pythonpath_only_canns_own_folders_reach_the_tests(tmp_path: Path) -> None:
    home = set_env(tmp_path).parent / "latest"  # a link to 8.5.0
    (home / "opp").symlink_to("../opp-8.5.0")
    (tmp_path / "ascend-toolkit" / "opp-8.5.0" / "tbe").mkdir(parents=True)
    others = [tmp_path / "mine", home.parent, home / "../mine", ""]
    own = [home / "python/site-packages", home.resolve() / "python/site-packages", home / "opp/tbe"]
    given = {"PYTHONPATH": ":".join(map(str, [*others[:2], *own, *others[2:]]))}
    env = preflight.test_environment(given, Cann(home=str(home), version=None))
    assert env["PYTHONPATH"].split(":") == list(map(str, own))


def test_without_cann_torch_npu_is_not_loaded_and_with_it_torch_decides() -> None:
    assert preflight.test_environment({}, None)["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in preflight.test_environment({}, Cann(home="/cann", version=None))


# pip's settings for uv


def handed(**variables: str) -> tuple[dict[str, str], list[str]]:
    """Return what of uv's environment is not in ``variables``, and what is said of it."""
    env, said = preflight.uv_environment(variables)
    return {name: value for name, value in env.items() if variables.get(name) != value}, said


PLACES = {
    "etc/pip.conf": {},
    "xdg/pip/pip.conf": {"XDG_CONFIG_DIRS": "{tmp}/other:{tmp}/xdg"},
    "home/.pip/pip.conf": {},
    "home/.config/pip/pip.conf": {},
    "config/pip/pip.conf": {"XDG_CONFIG_HOME": "{tmp}/config"},
    "venv/pip.conf": {"VIRTUAL_ENV": "{tmp}/venv"},
    "mine.conf": {"PIP_CONFIG_FILE": "{tmp}/mine.conf"},
}


@pytest.mark.parametrize("place", PLACES)
def test_pips_index_is_handed_to_uv_wherever_it_is_set(tmp_path: Path, place: str) -> None:
    write(tmp_path / place, "[global]\nindex-url = https://mirror.example/simple\n")
    variables = {name: value.format(tmp=tmp_path) for name, value in PLACES[place].items()}
    assert handed(**variables) == (
        {"UV_DEFAULT_INDEX": "https://mirror.example/simple"},
        ["index-url = https://mirror.example/simple"],
    )


def test_of_several_places_the_last_wins_as_it_does_for_pip(tmp_path: Path) -> None:
    variables = {"XDG_CONFIG_DIRS": f"{tmp_path}/xdg", "VIRTUAL_ENV": f"{tmp_path}/venv"}
    for number, place in enumerate(
        ["xdg/pip/pip.conf", "home/.pip/pip.conf", "home/.config/pip/pip.conf", "venv/pip.conf"]
    ):
        write(tmp_path / place, f"[global]\nindex_url = https://{number}.example\n")
        assert handed(**variables)[0]["UV_DEFAULT_INDEX"] == f"https://{number}.example"
    variables["PIP_CONFIG_FILE"] = str(write(tmp_path / "mine.conf", "[install]\nindex-url = https://mine.example\n"))
    assert handed(**variables)[0]["UV_DEFAULT_INDEX"] == "https://mine.example"
    variables["PIP_INDEX_URL"] = "https://variable.example"
    assert handed(**variables)[0]["UV_DEFAULT_INDEX"] == "https://variable.example"


def test_a_config_file_named_to_pip_replaces_the_users_and_dev_null_all(tmp_path: Path) -> None:
    write(tmp_path / "home/.config/pip/pip.conf", "[global]\nindex-url = https://user.example\n")
    named = write(tmp_path / "mine.conf", "[global]\ncert = /some/ca.pem\n")
    assert "UV_DEFAULT_INDEX" not in handed(PIP_CONFIG_FILE=str(named))[0]
    assert handed(PIP_CONFIG_FILE="/dev/null") == ({}, [])


def test_every_index_setting_is_handed_on_as_uv_wants_it(tmp_path: Path) -> None:
    write(
        tmp_path / "home/.config/pip/pip.conf",
        f"""\
[global]
extra-index-url =
    https://one.example/simple
    https://two.example/simple
    file://{tmp_path}/gone
find-links = {tmp_path}/links {tmp_path}/gone https://files.example/
cert = /some/ca.pem
timeout = 5
""",
    )
    assert handed() == (
        {
            "UV_INDEX": "https://one.example/simple https://two.example/simple",
            "UV_INDEX_STRATEGY": "unsafe-best-match",
            "UV_FIND_LINKS": f"{tmp_path}/links,https://files.example/",
            "SSL_CERT_FILE": "/some/ca.pem",
        },
        [
            "extra-index-url = https://one.example/simple https://two.example/simple",
            f"find-links = {tmp_path}/links https://files.example/",
            "cert = /some/ca.pem",
        ],
    )


PIP_HAS = {
    "PIP_INDEX_URL": "https://pip.example",
    "PIP_EXTRA_INDEX_URL": "https://more.pip.example",
    "PIP_FIND_LINKS": "https://files.pip.example",
    "PIP_CERT": "/pip.pem",
}
HANDED = {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY", "UV_FIND_LINKS", "SSL_CERT_FILE"}


@pytest.mark.parametrize(
    ("variable", "kept_back"),
    [
        ("UV_DEFAULT_INDEX", {"UV_DEFAULT_INDEX"}),
        ("UV_INDEX_URL", {"UV_DEFAULT_INDEX"}),
        ("UV_INDEX", {"UV_INDEX", "UV_INDEX_STRATEGY"}),
        ("UV_EXTRA_INDEX_URL", {"UV_INDEX", "UV_INDEX_STRATEGY"}),
        ("UV_INDEX_STRATEGY", {"UV_INDEX_STRATEGY"}),
        ("UV_FIND_LINKS", {"UV_FIND_LINKS"}),
        ("SSL_CERT_FILE", {"SSL_CERT_FILE"}),
    ],
)
def test_uvs_own_variables_win(variable: str, kept_back: set[str]) -> None:
    env, _ = preflight.uv_environment(PIP_HAS | {variable: "uv's own"})
    assert env[variable] == "uv's own"
    assert env.keys() == HANDED - kept_back | {variable}


@pytest.mark.parametrize(
    ("settings", "kept_back"),
    [
        ('index-url = "https://uv.example"', {"UV_DEFAULT_INDEX"}),
        ('[[index]]\nurl = "https://uv.example"\ndefault = true', {"UV_DEFAULT_INDEX"}),
        ('[[index]]\nurl = "https://uv.example"', {"UV_INDEX", "UV_INDEX_STRATEGY"}),
        ('extra-index-url = ["https://uv.example"]', {"UV_INDEX", "UV_INDEX_STRATEGY"}),
        ('index-strategy = "first-index"', {"UV_INDEX_STRATEGY"}),
        ('[pip]\nfind-links = ["https://uv.example"]', {"UV_FIND_LINKS"}),
        ("offline = true", set()),
        ("not TOML", set()),
    ],
)
@pytest.mark.parametrize("place", ["user", "system", "named", "project", "pyproject"])
def test_uvs_own_configuration_files_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, settings: str, kept_back: set[str]
) -> None:
    variables = PIP_HAS | {"XDG_CONFIG_DIRS": f"{tmp_path}/xdg", "XDG_CONFIG_HOME": f"{tmp_path}/config"}
    monkeypatch.chdir(write(tmp_path / "project" / "sub" / "x", "").parent)
    match place:
        case "user":
            write(tmp_path / "config/uv/uv.toml", settings)
        case "system":
            write(tmp_path / "xdg/uv/uv.toml", settings)
        case "named":
            variables["UV_CONFIG_FILE"] = str(write(tmp_path / "mine.toml", settings))
        case "project":
            write(tmp_path / "project/uv.toml", settings)
        case "pyproject":
            below = re.sub(r"(?m)^(\[+)", r"\1tool.uv.", settings)
            write(tmp_path / "project/pyproject.toml", below if below != settings else f"[tool.uv]\n{settings}")
    env, _ = preflight.uv_environment(variables)
    assert env.keys() & HANDED == HANDED - kept_back


def test_what_is_said_of_the_settings_has_no_secrets() -> None:
    env, said = handed(
        PIP_INDEX_URL="https://me:p@ss@mirror.example/simple",
        PIP_FIND_LINKS="https://token@one.example/x https://two.example/x?key=s3cr3t",
    )
    assert env["UV_DEFAULT_INDEX"] == "https://me:p@ss@mirror.example/simple"
    assert said == [
        "index-url = https://mirror.example/simple",
        "find-links = https://one.example/x https://two.example/x",
    ]


@hypothesis.given(st.binary(max_size=200))
@hypothesis.example(b"index-url = x")
@hypothesis.example(b"[tool]\nuv = 1")
@hypothesis.example(b"[[index]]\n[pip]\nindex = 1")
@hypothesis.settings(
    max_examples=100,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_no_configuration_file_brings_it_down(tmp_path: Path, data: bytes) -> None:
    for name in ("home/.config/pip/pip.conf", "home/.config/uv/uv.toml"):
        write(tmp_path / name, "").write_bytes(data)
    preflight.uv_environment({})


# Codes

# Scripts rely on these: one may be added, none may change.
CODES = {
    *("cann-path", "cache", "disk-full", "glibc", "host-name", "no-interpreter", "not-linux", "shared-memory"),
    *(
        "unfit-interpreter",
        "broken-wheel",
        "cuda-build",
        "damaged-package",
        "index-unreachable",
        "no-wheel",
        "uv-failed",
    ),
    *("busy", "upstream-file", "upstream-folder", "upstream-source", "upstream-tag", "upstream-unreachable", "git"),
    *("patch-no-effect", "torch-import", "torch-npu-import", "mismatch", "system"),
}


def codes(source: str) -> set[str]:
    """Return the codes of all blocks that a module makes."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("Blocked", "Block", "_refused"):
            values = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "code")]
            # One of two codes stands there as `x if … else y`.
            parts = [
                part for value in values if isinstance(value, ast.Constant | ast.IfExp) for part in ast.walk(value)
            ]
            found |= {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return found


def test_codes_are_single_words_that_stay() -> None:
    modules = [path for path in (stubs.ROOT / "scripts").glob("*.py") if path.name != "errors.py"]
    found = {code for module in modules for code in codes(module.read_text())}
    found |= {code for code, *_ in environment.FAILURES}
    assert not CODES - found
    assert not [code for code in found if not re.fullmatch(r"[a-z]+(-[a-z]+)*", code)]
