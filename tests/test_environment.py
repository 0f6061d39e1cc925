"""A pair's venv: what is put into it, when it is built anew, and what stops it. Real uv, stub wheels, no network."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uv

from scripts import environment, matrix, pipeline, preflight, storage
from scripts.environment import Environment
from scripts.errors import Blocked
from scripts.preflight import Cann, Interpreter, Machine, Preflight
from scripts.scope import RunScope
from tests import stubs

OTHER_PYTHON = "3.99"


@functools.cache
def this_python() -> Interpreter:
    return preflight.find_interpreter(stubs.PYTHON, uv.find_uv_bin(), os.environ)


class Bench:
    """A folder of wheels, a batch, and a venv to build from them."""

    def __init__(self, folder: Path) -> None:
        self.links = folder / "links"
        self.links.mkdir()
        self.folder = folder
        self.venv = folder / "venv"
        self.calls = folder / "uv-calls.txt"
        self.cann: Cann | None = None
        self.interpreter = this_python()
        self.uv = self.script('exec "$UV" "$@"')
        self.scope = RunScope()

    def script(self, body: str) -> str:
        """Return a uv that notes its arguments, then does ``body`` (shell, with the real one in $UV)."""
        path = self.folder / "uv"
        path.write_text(f'#!/bin/sh\nUV={uv.find_uv_bin()}\necho "$@" >> {self.calls}\n{body}\n')
        path.chmod(0o755)
        return str(path)

    def uv_calls(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def preflight(self) -> Preflight:
        uv_env, handed = preflight.uv_environment(os.environ)
        machine = Machine(os="", machine=stubs.MACHINE, kernel="", glibc="", cores=2, npu_devices=0, cann=self.cann)
        return Preflight(
            machine=machine,
            interpreter=self.interpreter,
            uv=self.uv,
            uv_env=uv_env,
            test_env={},
            dropped=[],
            handed=handed,
        )

    def build(self, torch: str = "2.10.0", torch_npu: str | None = None, **keys: Any) -> Environment:
        """Build the venv of a batch with this one pair."""
        batch = matrix.load(stubs.write_batch(self.folder, pairs=[stubs.pair_row(torch, torch_npu)], **keys))
        return environment.build(batch, batch.pairs[0], self.preflight(), self.venv, self.scope)

    def run(self, code: str) -> str:
        return subprocess.run(
            [self.venv / "bin" / "python", "-c", code], check=True, capture_output=True, text=True
        ).stdout.strip()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    stubs.go_offline(monkeypatch, tmp_path / "links")
    return Bench(tmp_path)


@pytest.fixture
def pair(bench: Bench) -> Bench:
    """A bench with the wheels of one pair."""
    stubs.torch_wheel(bench.links, "2.10.0+cpu")
    stubs.torch_npu_wheel(bench.links, "2.10.0", "2.10.0+cpu")
    return bench


# Which torch


def test_a_cpu_build_is_preferred(pair: Bench) -> None:
    stubs.torch_wheel(pair.links, "2.10.0", cuda="12.8")
    stubs.torch_wheel(pair.links, "2.10.0+cu128", cuda="12.8")
    built = pair.build()
    assert (built.torch, built.cuda) == ("2.10.0+cpu", None)


def test_without_a_cpu_build_control_plane_mode_takes_another_and_says_which(bench: Bench) -> None:
    stubs.torch_wheel(bench.links, "2.10.0", cuda="12.8")
    stubs.torch_npu_wheel(bench.links, "2.10.0", "2.10.0+cpu")
    built = bench.build()
    assert (built.torch, built.cuda, built.torch_npu) == ("2.10.0", "12.8", "2.10.0")


def test_a_build_without_cuda_that_does_not_say_cpu_is_fine_for_an_npu(bench: Bench) -> None:
    stubs.torch_wheel(bench.links, "2.10.0")
    stubs.torch_npu_wheel(bench.links, "2.10.0", "2.10.0")
    bench.cann = Cann(home="/cann", version="8.5.0")
    assert bench.build().cuda is None


def test_a_cuda_build_blocks_an_npu_until_a_cpu_build_can_be_had(bench: Bench) -> None:
    stubs.torch_wheel(bench.links, "2.10.0", cuda="12.8")
    stubs.torch_npu_wheel(bench.links, "2.10.0", "2.10.0")
    bench.cann = Cann(home="/cann", version="8.5.0")
    for _ in range(2):
        with pytest.raises(Blocked, match="torch_npu refuses to load") as blocked:
            bench.build()
        assert blocked.value.code == "cuda-build"
    stubs.torch_wheel(bench.links, "2.10.0+cpu")
    assert bench.build().torch == "2.10.0+cpu"


def test_a_cuda_build_is_known_by_what_it_needs_before_gigabytes_are_downloaded_for_an_npu(bench: Bench) -> None:
    stubs.wheel(bench.links, "nvidia-cublas-cu12", "12.8", {})
    stubs.wheel(bench.links, "torch", "2.10.0", {}, requires=["nvidia-cublas-cu12"])
    stubs.torch_npu_wheel(bench.links, "2.10.0", "2.10.0")
    bench.cann = Cann(home="/cann", version="8.5.0")
    with pytest.raises(Blocked) as blocked:
        bench.build()
    assert blocked.value.code == "cuda-build"
    assert not bench.venv.exists()


@pytest.mark.parametrize(("there", "asked"), [("2.10.0", "2.10.0+cpu"), ("2.10.0+cpu", "2.10.0")])
def test_the_pairs_torch_is_taken_whichever_build_torch_npu_asks_for(bench: Bench, there: str, asked: str) -> None:
    stubs.torch_wheel(bench.links, there)
    stubs.torch_npu_wheel(bench.links, "2.10.0.post2", asked)
    assert bench.build("2.10.0", "2.10.0.post2").torch == there


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("home/.config/pip/pip.conf", "[global]\nfind-links = {links}\n", id="pip"),
        pytest.param("home/.config/uv/uv.toml", 'find-links = ["{links}"]', id="uv"),
        pytest.param("project/uv.toml", '[pip]\nfind-links = ["{links}"]', id="uv of this folder"),
    ],
)
def test_wheels_come_from_where_pip_or_uv_is_set_up_to_find_them(
    pair: Bench, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    for name in ("UV_FIND_LINKS", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(pair.folder / "home"))
    (pair.folder / "project").mkdir()
    monkeypatch.chdir(pair.folder / "project")
    with pytest.raises(Blocked):
        pair.build()
    path = pair.folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.format(links=pair.links))
    assert pair.build().torch == "2.10.0+cpu"


# What is really in it


def test_what_is_installed_is_read_back_with_its_wheels_hashes(bench: Bench) -> None:
    commit = "0123456789" * 4
    wheels = {
        "torch": stubs.torch_wheel(bench.links, "2.10.0+cpu", commit=commit),
        "torch-npu": stubs.torch_npu_wheel(bench.links, "2.10.0.post2", "2.10.0+cpu", requires=["pyyaml"]),
        "pyyaml": stubs.wheel(bench.links, "pyyaml", "6.0", {"yaml.py": ""}),
        "expecttest": stubs.wheel(bench.links, "expecttest", "0.3", {"expecttest.py": ""}),
    }
    built = bench.build("2.10.0", "2.10.0.post2", test_requirements=["expecttest"])
    assert (built.torch, built.torch_npu, built.git_version) == ("2.10.0+cpu", "2.10.0.post2", commit)
    assert {package.name: (package.wheel, package.sha256) for package in built.packages} == {
        name: (path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for name, path in wheels.items()
    }


def test_a_package_has_the_same_record_wherever_and_whenever_its_wheel_is_installed(pair: Bench) -> None:
    script = {"entry_points": "[console_scripts]\nhelp-me = helper:main\n"}
    path = stubs.wheel(pair.links, "helper", "1.0", {"helper.py": "def main(): pass"}, **script)
    records = []
    for place in ("here", "there"):
        pair.venv = pair.folder / place
        built = pair.build(test_requirements=["helper"])
        records.append({package.name: package.record for package in built.packages})
        os.utime(path, (0, 0))
    stubs.wheel(pair.links, "helper", "1.0", {"helper.py": "def main(): print()"}, **script)
    pair.venv = pair.folder / "changed"
    changed = {package.name: package.record for package in pair.build(test_requirements=["helper"]).packages}
    assert records[0] == records[1]
    assert {name for name in changed if changed[name] != records[0][name]} == {"helper"}
    assert None not in changed.values()


def test_the_wheel_that_is_named_is_the_one_that_is_installed(
    pair: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second"
    for links, where in ((pair.links, "first"), (second, "second")):
        stubs.wheel(links, "helper", "1.0", {"helper.py": f"FROM = 'any {where}'"})
        stubs.wheel(
            links,
            "helper",
            "1.0",
            {"helper.py": f"FROM = 'own {where}'"},
            tag=stubs.wheel_tag(stubs.PYTHON, stubs.MACHINE),
        )
    monkeypatch.setenv("UV_FIND_LINKS", f"{second},{pair.links}")
    built = pair.build(test_requirements=["helper"])
    (named,) = (package.sha256 for package in built.packages if package.name == "helper")
    kind, where = pair.run("import helper; print(helper.FROM)").split()
    links = {"first": pair.links, "second": second}[where]
    assert kind == "own"
    (path,) = links.glob("helper-1.0-cp*")
    assert named == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "alike",
    [
        [{"tag": f"py3-none-linux_{stubs.MACHINE}"}, {"tag": f"py3-none-manylinux_2_17_{stubs.MACHINE}"}, {}],
        [{"build": "1"}, {"build": "10"}, {"build": "2"}, {}],
        [{"local": "+cu128", "requires": ["of-no-index"]}, {}],
    ],
    ids=["own and official builds", "build numbers", "local versions"],
)
@pytest.mark.parametrize("served", [False, True], ids=["find-links", "index"])
def test_of_wheels_that_are_alike_the_named_one_is_installed(
    pair: Bench, monkeypatch: pytest.MonkeyPatch, alike: list[dict[str, Any]], served: bool
) -> None:
    for number, about in enumerate(alike):
        about = dict(about)
        version = "1.0" + about.pop("local", "")
        stubs.wheel(pair.links, "helper", version, {"helper.py": f"NUMBER = {number}"}, **about)
    if served:
        monkeypatch.delenv("UV_FIND_LINKS")
        monkeypatch.delenv("UV_OFFLINE")
    with stubs.index(pair.links) as url:
        if served:
            monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        built = pair.build(test_requirements=["helper"])
    (helper,) = (package for package in built.packages if package.name == "helper")
    assert helper.wheel
    with zipfile.ZipFile(pair.links / helper.wheel) as archive:
        assert archive.read("helper.py").decode() == f"NUMBER = {pair.run('import helper; print(helper.NUMBER)')}"
    assert hashlib.sha256((pair.links / helper.wheel).read_bytes()).hexdigest() == helper.sha256


@pytest.mark.parametrize("linked", [False, True])
def test_a_required_wheel_can_be_named_by_its_url_or_path(pair: Bench, linked: bool) -> None:
    wheel = stubs.wheel(pair.folder / "elsewhere", "helper", "1.0", {"helper.py": ""})
    if linked:
        wheel.rename(pair.folder / "content")
        wheel.symlink_to(pair.folder / "content")
    for requirement in (f"helper @ {wheel.as_uri()}", f"helper @ {wheel}"):
        built = pair.build(test_requirements=[requirement])
        assert {(package.name, package.wheel) for package in built.packages} >= {("helper", wheel.name)}
        assert pair.build(test_requirements=[requirement]).reused


def test_a_find_links_folder_that_is_gone_is_no_broken_wheel(pair: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", str(pair.folder / "gone"))
    with pytest.raises(Blocked) as blocked:
        pair.build()
    assert blocked.value.code == "index-unreachable"


def test_what_uvs_settings_would_build_from_source_is_told(pair: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pair.folder / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text('[project]\nname = "helper"\nversion = "1"\n')
    (pair.folder / "uv.toml").write_text(f'override-dependencies = ["helper @ {source.as_uri()}"]\n')
    monkeypatch.chdir(pair.folder)
    with pytest.raises(Blocked, match=r"helper would have to be built from its source \(no-wheel\)"):
        pair.build(test_requirements=["helper"])


def test_a_wheel_is_fetched_once_for_all_venvs_whatever_the_server_says_of_caching(
    pair: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = sorted(path.name for path in pair.links.iterdir())
    for name in ("UV_FIND_LINKS", "UV_OFFLINE"):
        monkeypatch.delenv(name)
    fetched: list[str] = []
    with stubs.index(pair.links, fetched=fetched) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        for place in ("here", "there"):
            pair.venv = pair.folder / place
            assert not pair.build().reused
            assert sorted(fetched) == wheels


# When it is built anew


def test_a_right_venv_is_reused_at_once_and_uv_is_not_even_asked(pair: Bench) -> None:
    first = pair.build()
    pair.run("import torch, torch_npu")  # leaves byte code
    before = pair.uv_calls()
    start = time.monotonic()
    second = pair.build()
    assert time.monotonic() - start < 1
    assert pair.uv_calls() == before
    assert (first.reused, second.reused) == (False, True)
    assert msgspec.structs.replace(second, reused=False) == first


def replace(path: Path, text: str) -> None:
    """Write a file as editors and installers do: a new one in its place."""
    path.unlink()
    path.write_text(text)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "half built": lambda venv: (venv / environment.STAMP).unlink(),
    "stamp cut short": lambda venv: os.truncate(venv / environment.STAMP, 40),
    "stamp of another version": lambda venv: (venv / environment.STAMP).write_text('{"version": 0}'),
    "package removed": lambda venv: shutil.rmtree(next(venv.glob("lib/*/*/torch_npu-*"))),
    "record changed": lambda venv: replace(next(venv.glob("lib/*/*/torch-*/RECORD")), ""),
    "file changed": lambda venv: replace(next(venv.glob("lib/*/*/torch/version.py")), "__version__ = '1'"),
    "file removed": lambda venv: next(venv.glob("lib/*/*/torch/version.py")).unlink(),
    "file added": lambda venv: next(venv.glob("lib/*/*/torch")).with_name("sneaky.pth").write_text("import os"),
    "settings changed": lambda venv: replace(venv / "pyvenv.cfg", f"home = {sys.base_prefix}/bin"),
    "interpreter gone": lambda venv: (venv / "bin" / "python").unlink(),
    "all gone": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_venv_that_is_not_what_it_was_is_built_anew(pair: Bench, damage: Callable[[Path], object]) -> None:
    first = pair.build()
    damage(pair.venv)
    second = pair.build()
    assert not second.reused
    assert second.packages == first.packages
    assert pair.run("import torch; print(torch.__version__)") == "2.10.0+cpu"
    assert not list(pair.venv.glob("lib/*/*/sneaky.pth"))


def test_it_is_built_anew_for_another_interpreter_and_for_one_that_was_replaced(pair: Bench, tmp_path: Path) -> None:
    pair.build()
    path = stubs.interpreter(tmp_path / "other")
    pair.interpreter = msgspec.structs.replace(this_python(), path=str(path))
    assert not pair.build().reused
    assert Path(pair.run("import sys; print(sys._base_executable)")) == path
    assert pair.build().reused
    shutil.copy(path, tmp_path / "copy")
    (tmp_path / "copy").replace(path)
    assert not pair.build().reused


def test_it_is_built_anew_when_matrix_toml_asks_for_something_else(pair: Bench) -> None:
    stubs.wheel(pair.links, "helper", "1.0", {"helper.py": ""})
    stubs.wheel(pair.links, "helper", "2.0", {"helper.py": ""})
    pair.build()
    for requirements, version in ((["helper<2"], "1.0"), (["helper"], "2.0")):
        built = pair.build(test_requirements=requirements)
        assert {package.name: package.version for package in built.packages}["helper"] == version


def test_an_install_that_was_killed_half_way_is_done_anew(bench: Bench) -> None:
    files = {f"torch/many/m{number}.py": "" for number in range(3000)}
    stubs.torch_wheel(bench.links, "2.10.0+cpu", files=files)
    stubs.torch_npu_wheel(bench.links, "2.10.0", "2.10.0+cpu")
    site = f"{bench.venv}/lib/python{stubs.PYTHON}/site-packages"
    bench.uv = bench.script(
        f"""case "$*" in "pip install"*)
            "$UV" "$@" & until ls {site}/torch/many/m*0.py; do :; done; kill -9 $!; wait $!; exit ;;
        esac >/dev/null 2>&1
        exec "$UV" "$@" """
    )
    with pytest.raises(Blocked) as blocked:
        bench.build()
    assert blocked.value.code == "uv-failed"
    half = len(list(Path(site).glob("torch/many/*")))
    bench.uv = bench.script('exec "$UV" "$@"')
    assert not bench.build().reused
    assert 0 < half < len(list(Path(site).glob("torch/many/*"))) == 3000


def test_what_a_stray_write_did_to_uvs_cache_is_never_installed_unseen(
    pair: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_LINK_MODE", "hardlink")
    pair.build()
    next(pair.venv.glob("lib/*/*/torch/version.py")).write_text("__version__ = '1'")  # through the link, into the cache
    with pytest.raises(Blocked, match=r"torch/version\.py is not the file.*uv cache clean torch") as blocked:
        pair.build()
    assert blocked.value.code == "damaged-package"
    assert not (pair.venv / environment.STAMP).exists()


# What stops it


@pytest.mark.parametrize(
    ("wanted", "others", "nearest"),
    [
        pytest.param("2.9.0", ["2.9.0.post2", "2.9.0.post9"], "nearest that has one: 2.9.0.post2", id="later"),
        pytest.param("2.9.0.post6", ["2.9.0", "2.9.0.post4"], "nearest that has one: 2.9.0.post4", id="earlier"),
        pytest.param("2.9.0.post6", ["2.9.0.post4", "2.9.0.post7"], "2.9.0.post4 and 2.9.0.post7", id="both"),
        pytest.param("2.9.0", ["2.8.0", "2.10.0"], "2.8.0 and 2.10.0", id="another line"),
        pytest.param("2.9.0", [], "nor has any other release", id="none"),
    ],
)
def test_a_wheel_that_there_is_not_is_named_with_the_nearest_release_before_a_venv_is_made(
    bench: Bench, wanted: str, others: list[str], nearest: str
) -> None:
    stubs.torch_wheel(bench.links, "2.9.0+cpu")
    stubs.torch_npu_wheel(bench.links, wanted, "2.9.0+cpu", python=OTHER_PYTHON)
    stubs.torch_npu_wheel(bench.links, wanted, "2.9.0+cpu", machine="riscv64")
    for version in others:
        stubs.torch_npu_wheel(bench.links, version, "2.9.0+cpu")
    with pytest.raises(Blocked) as blocked:
        bench.build("2.9.0", wanted)
    assert blocked.value.code == "no-wheel"
    python = this_python().version
    assert blocked.value.cause.startswith(f"torch-npu {wanted} has no wheel for Python {python} on {stubs.MACHINE}; ")
    assert blocked.value.cause.endswith(nearest)
    assert not bench.venv.exists()


def test_a_missing_torch_is_not_blamed_on_torch_npu(bench: Bench) -> None:
    stubs.torch_npu_wheel(bench.links, "2.10.0", "2.10.0+cpu")
    stubs.torch_wheel(bench.links, "2.9.1+cpu")
    with pytest.raises(Blocked, match=r"^torch 2\.10\.0 has no wheel for .*; nearest that has one: 2\.9\.1\+cpu"):
        bench.build()


def test_requirements_that_contradict_each_other_are_told_in_uvs_words(pair: Bench) -> None:
    stubs.wheel(pair.links, "helper", "1.0", {}, requires=["torch-npu<2"])
    with pytest.raises(Blocked, match="helper depend on torch-npu<2") as blocked:
        pair.build(test_requirements=["helper"])
    assert blocked.value.code == "no-wheel"


def closed_port() -> str:
    """Return the address of a port that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_an_index_that_does_not_answer_is_asked_once_per_run_and_not_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_OFFLINE")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://someone:s3cr3t@{closed_port()}/simple")
    start = time.monotonic()
    for pair in ("2.9.0", "2.10.0", "2.11.0"):
        bench.venv = bench.folder / f"venv-{pair}"
        with pytest.raises(Blocked, match="Connection refused") as blocked:
            bench.build(pair)
        assert blocked.value.code == "index-unreachable"
        assert "s3cr3t" not in str(blocked.value)
        assert not bench.venv.exists()
    assert time.monotonic() - start < 10
    assert len(bench.uv_calls()) == 1


@pytest.mark.parametrize("full", ["disk/venv", "disk/cache"])
def test_a_full_disk_is_called_one(pair: Bench, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    disk = pair.folder / "disk"
    disk.mkdir()
    pair.venv = pair.folder / full if full.endswith("venv") else pair.venv
    monkeypatch.setenv("UV_CACHE_DIR", str(pair.folder / (full if full.endswith("cache") else "cache")))
    before = stubs.namespace(mounts={disk: "size=40k"})
    pair.uv = pair.script(f'exec {shlex.join(before)} "$UV" "$@"')
    with pytest.raises(Blocked, match="No space left on device") as blocked:
        pair.build()
    assert blocked.value.code == "disk-full"


def test_a_wheel_that_is_broken_is_called_broken(pair: Bench) -> None:
    path = next(pair.links.glob("torch_npu-*"))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(Blocked, match=r"torch_npu-2\.10\.0") as blocked:
        pair.build()
    assert blocked.value.code == "broken-wheel"
    assert not pair.venv.exists()


# Once per run

WORKER = """
from scripts.errors import Blocked
from scripts.scope import RunScope

def check():
    print("asked")
    raise Blocked("index-unreachable", "no answer", "wait")

try:
    RunScope().once("index", check)
except Blocked as blocked:
    print(blocked)
"""


def test_all_workers_of_a_run_share_what_one_of_them_found_out() -> None:
    """Their parent is the nox that a person started; here it is the process of the tests."""
    with ThreadPoolExecutor(3) as executor:
        told = list(executor.map(lambda _: stubs.run_python(WORKER, after=["--parallel-worker"]), range(3)))
    told.append(stubs.run_python(WORKER))  # not a worker, so a run of its own
    blocked = str(Blocked("index-unreachable", "no answer", "wait"))
    assert sorted(told) == sorted([f"asked\n{blocked}\n"] * 2 + [f"{blocked}\n"] * 2)


def test_a_finding_holds_for_the_whole_run_and_not_for_the_next() -> None:
    asked: list[int] = []
    for _ in range(3):  # as many pairs, each of which closes its scope
        scope = RunScope()
        scope.once("index", lambda: asked.append(1))
        scope.close()
    assert len(asked) == 1
    stubs.run_python(WORKER)
    folders = storage.cache_root() / "scopes"
    assert len(list(folders.iterdir())) == 2
    RunScope().close()
    assert [folder.name for folder in folders.iterdir()] == [RunScope().id]


def test_a_finding_that_cannot_be_read_is_found_out_anew() -> None:
    scope = RunScope()
    scope.once("index", lambda: None)
    (record,) = (path for path in scope.folder.iterdir() if path.suffix != ".lock")
    whole = record.read_bytes()
    for data in (*(whole[:length] for length in range(len(whole))), b"\xff", b"[]", b'{"code": 1}'):
        asked: list[int] = []
        record.write_bytes(data)
        scope.once("index", lambda asked=asked: asked.append(1))  # type: ignore[misc]
        assert (asked, record.read_bytes()) == ([1], whole)


# Credentials


def test_the_indexs_password_is_used_and_written_nowhere(
    pair: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_OFFLINE", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    with stubs.index(pair.links, login="someone:s3cr3t") as url:
        (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {url}\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
        handed = pair.preflight().handed
        built = pair.build()
    assert built.torch == "2.10.0+cpu"
    # This machine's pip may have more to hand on.
    assert f"index-url = {url.replace('someone:s3cr3t@', '')}" in handed
    assert "s3cr3t" not in repr(handed)
    assert "s3cr3t" not in repr(built)
    ours = [path for root in (pair.venv, storage.cache_root()) for path in root.rglob("*") if path.is_file()]
    assert not [path for path in ours if b"s3cr3t" in path.read_bytes()]


def test_a_wheel_whose_metadata_its_builders_changed_is_no_damaged_one(bench: Bench) -> None:
    """As torch-npu 2.6.0's: its METADATA is not what its own RECORD names."""
    stubs.torch_wheel(bench.links, "2.10.0+cpu")
    requires = ["torch==2.10.0+cpu"]
    stubs.wheel(bench.links, "torch-npu", "2.10.0", {"torch_npu/__init__.py": ""}, requires=requires, summary="changed")
    assert bench.build().torch_npu == "2.10.0"


@pytest.mark.skipif(
    not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == Path("/tmp").stat().st_dev,
    reason="this machine has one file system only",
)
def test_a_cache_from_which_everything_must_be_copied_is_told(
    pair: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    near = pair.build()
    assert "copied" not in pipeline.describe(near)

    with tempfile.TemporaryDirectory(dir="/dev/shm") as cache:
        monkeypatch.setenv("UV_CACHE_DIR", cache)
        shutil.rmtree(pair.venv)
        far = pair.build()

        assert far.copied_from == cache
        assert f"copied, as uv's cache ({cache}) is on another file system" in pipeline.describe(far)
        assert pair.build().copied_from == ""
