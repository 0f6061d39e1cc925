"""Stub wheels of torch and torch-npu, and small batches of their own: eight pairs are built offline in seconds.

Everything around them is real: uv resolves and installs these wheels as it does the real ones.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import hashlib
import http.server
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import threading
import urllib.parse
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from scripts import matrix
from scripts.upstream import blob_id

ROOT = Path(__file__).parent.parent
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
MACHINE = platform.machine()
COMMIT = "449b1768410104d3ed79d3bcfe4ba1d65c7f22c0"

TORCH = """\
import importlib.metadata
import os

from torch import version

__version__ = version.__version__

if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
    for entry in importlib.metadata.entry_points(group="torch.backends"):
        try:
            entry.load()()
        except Exception as error:
            raise RuntimeError(f"Failed to load the backend extension: {entry.name}. {error}") from error
"""

COMMON_UTILS = """\
import platform
import sys
import unittest

IS_ARM64 = platform.machine() in ("arm64", "aarch64")
IS_WINDOWS = sys.platform == "win32"
IS_MACOS = sys.platform == "darwin"
TEST_WITH_DEV_DBG_ASAN = TEST_WITH_TSAN = False
TestCase = unittest.TestCase


def run_tests():
    unittest.main()
"""

TORCH_NPU = """\
import types

import torch


def _autoload():
    torch.npu = types.SimpleNamespace(device_count=lambda: 2, get_device_name=lambda index: "Ascend910B")
"""

# A test file as upstream has them, with the guard that its patch lifts.
TEST_FILE = "test/timer/guarded_test.py"
GUARDED = """\
from torch.testing._internal.common_utils import IS_ARM64, IS_MACOS, TestCase

INVALID_PLATFORMS = IS_MACOS or IS_ARM64

if not INVALID_PLATFORMS:

    class TimerTest(TestCase):
        def test_a(self):
            pass

        def test_b(self):
            pass
"""
UNGUARDED = GUARDED.replace("IS_ARM64, IS_MACOS", "IS_MACOS").replace("IS_MACOS or IS_ARM64", "IS_MACOS")


def wheel(
    links: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    *,
    build: str = "",
    tag: str = "py3-none-any",
    requires: Iterable[str] = (),
    entry_points: str = "",
    summary: str = "",
) -> Path:
    """Write a valid wheel of ``files`` (content by path) into the folder ``links`` and return its path.

    A ``summary`` is put into its METADATA after RECORD was made, as torch-npu 2.6.0's builders did.
    """
    distribution = name.replace("-", "_")
    info = f"{distribution}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    pure = "true" if tag.endswith("-none-any") else "false"
    contents = {
        **files,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: stubs\nRoot-Is-Purelib: {pure}\nTag: {tag}\n",
        **({f"{info}/entry_points.txt": entry_points} if entry_points else {}),
    }
    record = [
        f"{path},sha256={_urlsafe(hashlib.sha256(text.encode()).digest())},{len(text.encode())}"
        for path, text in contents.items()
    ]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    contents[f"{info}/METADATA"] += f"Summary: {summary}\n" if summary else ""
    links.mkdir(parents=True, exist_ok=True)
    path = links / f"{'-'.join(filter(None, (distribution, version, build, tag)))}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in contents.items():
            # The time is fixed, so the same content gives the same bytes.
            archive.writestr(zipfile.ZipInfo(member), text)
    return path


def torch_wheel(
    links: Path,
    version: str,
    *,
    python: str = PYTHON,
    machine: str = MACHINE,
    cuda: str | None = None,
    commit: str = COMMIT,
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write a stub of torch: ``version`` as ``2.10.0+cpu``, ``files`` replace the stub's own or add to them."""
    return wheel(
        links,
        "torch",
        version,
        {
            "torch/__init__.py": TORCH,
            "torch/version.py": f"__version__ = {version!r}\ncuda = {cuda!r}\ngit_version = {commit!r}\n",
            "torch/testing/__init__.py": "",
            "torch/testing/_internal/__init__.py": "",
            "torch/testing/_internal/common_utils.py": COMMON_UTILS,
            **(files or {}),
        },
        tag=wheel_tag(python, machine),
    )


def torch_npu_wheel(
    links: Path,
    version: str,
    torch: str,
    *,
    python: str = PYTHON,
    machine: str = MACHINE,
    source: str = TORCH_NPU,
    requires: Iterable[str] = (),
) -> Path:
    """Write a stub of torch-npu that requires exactly ``torch`` (such as ``2.10.0+cpu``); ``source`` is its module."""
    return wheel(
        links,
        "torch-npu",
        version,
        {"torch_npu/__init__.py": source},
        tag=wheel_tag(python, machine),
        requires=[f"torch=={torch}", *requires],
        entry_points="[torch.backends]\ntorch_npu = torch_npu:_autoload\n",
    )


def wheel_tag(python: str, machine: str) -> str:
    """Return the tag that torch's wheels for Linux have, such as ``cp311-cp311-manylinux_2_28_x86_64``."""
    interpreter = f"cp{python.replace('.', '')}"
    return f"{interpreter}-{interpreter}-manylinux_2_28_{machine}"


def wheels_of(links: Path, batch: matrix.Batch, *, build: str = "+cpu") -> None:
    """Write all that the pairs of ``batch`` need into the folder ``links``; ``build`` is torch's local version."""
    for pair in batch.pairs:
        commit = pair.commit or COMMIT
        torch_wheel(links, pair.torch + build, python=pair.python, commit=commit)
        torch_npu_wheel(links, pair.torch_npu, pair.torch + build, python=pair.python)
    for requirement in map(Requirement, batch.matrix.test_requirements):
        wheel(links, requirement.name, "1.0", {f"{requirement.name.replace('-', '_')}_stub.py": ""})


def offline(links: Path) -> dict[str, str]:
    """Return an environment in which uv knows only the wheels in ``links``, for a process of its own."""
    mine = ("PIP_", "UV_", "ASCEND", "NOX", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(mine)} | {
        "PIP_CONFIG_FILE": os.devnull,
        "UV_FIND_LINKS": str(links),
        "UV_OFFLINE": "1",
    }


def go_offline(monkeypatch: pytest.MonkeyPatch, links: Path) -> None:
    """Give this process the environment of ``offline``, until the test ends."""
    environment = offline(links)
    for name in os.environ.keys() - environment.keys():
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@contextlib.contextmanager
def index(links: Path, *, login: str = "", fetched: list[str] | None = None) -> Iterator[str]:
    """Serve the wheels in ``links`` as a package index (PEP 503, 658) and yield its URL.

    It says nothing of how long its answers are good. ``login`` is ``user:password``; the names of wheels that are
    fetched are added to ``fetched``.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            expected = f"Basic {base64.b64encode(login.encode()).decode()}"
            if login and self.headers["Authorization"] != expected:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="stubs"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            kind, _, name = urllib.parse.unquote(self.path).strip("/").partition("/")
            if kind == "simple":
                files = [path for path in links.iterdir() if path.name.partition("-")[0] == name.replace("-", "_")]
                body = "".join(map(_link, files)).encode()
            elif name.endswith(".metadata"):
                body = _metadata(links / name.removesuffix(".metadata"))
            else:
                body = (links / name).read_bytes()
                if fetched is not None:
                    fetched.append(name)
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html" if kind == "simple" else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://{login and login + '@'}127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


def interpreter(folder: Path, startup: str = "") -> Path:
    """Make another installation of this Python in ``folder``, which runs ``startup`` first; return its path."""
    name = f"python{PYTHON}"
    library = folder / sys.platlibdir / name
    library.mkdir(parents=True, exist_ok=True)
    (folder / "bin").mkdir(exist_ok=True)
    for path in Path(sysconfig.get_path("stdlib")).iterdir():
        if path.name not in ("site-packages", "sitecustomize.py", "__pycache__"):
            (library / path.name).symlink_to(path)
    for path in Path(sys.base_prefix, "lib").glob("libpython*"):
        (folder / "lib" / path.name).symlink_to(path)
    (library / "sitecustomize.py").write_text(startup)
    shutil.copy2(Path(sys.base_prefix, "bin", name), folder / "bin" / name)
    return folder / "bin" / name


def namespace(*, mounts: Mapping[Path, str] | None = None, host: str | None = None) -> list[str]:
    """Return what to put before a command that shall have a tmpfs (its options by folder) or a host name of its own.

    Skips the test where the kernel gives no namespaces to this user.
    """
    unshare = ["unshare", "--map-root-user", "--mount", "--uts"]
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode != 0:
        pytest.skip("needs user namespaces, which this kernel or container doesn't give")
    lines = [f"mount -t tmpfs -o {options} tmpfs {folder}" for folder, options in (mounts or {}).items()]
    lines += [f"hostname {host}"] if host else []
    return [*unshare, "sh", "-c", " && ".join([*lines, 'exec "$@"']), "sh"]


def run_python(code: str, *, before: Sequence[str] = (), after: Sequence[str] = (), timeout: float = 60) -> str:
    """Run Python ``code`` in a process of its own and return what it prints; ``before`` and ``after`` its command."""
    argv = [*before, sys.executable, "-c", textwrap.dedent(code), *after]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pair_row(torch: str = "2.10.0", torch_npu: str | None = None, **keys: Any) -> dict[str, Any]:
    """Return a pair as matrix.toml has it, for the Python that runs the tests."""
    return {"torch": torch, "torch-npu": torch_npu or torch, "python": PYTHON, **keys}


def write_batch(
    folder: Path,
    *,
    pairs: Iterable[Mapping[str, Any]] | None = None,
    files: Mapping[str, str] | None = None,
    patched: Mapping[str, str] | None = None,
    expected: Mapping[str, int] | None = None,
    limit: float = 60,
    **keys: Any,
) -> Path:
    """Write a batch into ``folder`` and return the path of its matrix.toml.

    By default: one pair, one guarded test file, its patch, and a tree for each pair at ``trees/v<torch>``. ``files``
    are test files by path and ``patched`` those that have a patch (made here, for every pair) with what it leaves;
    ``expected`` is the number of cases by path (1 if it isn't there); ``keys`` replace whole keys of the TOML
    file, ``_`` standing for ``-``.
    """
    rows = [dict(row) for row in pairs or [pair_row()]]
    names = [row.get("name", row["torch"]) for row in rows]
    if files is None:
        files = {TEST_FILE: GUARDED}
        patched = {TEST_FILE: UNGUARDED} if patched is None else patched
        expected = {TEST_FILE: 2} if expected is None else expected
    patched = patched or {}
    for row in rows:
        for path, text in files.items():
            _write(folder / "trees" / f"v{row['torch']}" / path, text)
        for path, text in patched.items():
            _write(folder / "patches" / f"v{row['torch']}" / f"{path}.patch", patch_of(path, files[path], text))
    both = {"en": "A test.", "zh": "测试。"}
    table: dict[str, Any] = {
        "batch": "stubs",
        "title": both,
        "pair": rows,
        "upstream": {"repository": ["trees/v{torch}"]},
        "test-file": [
            {"path": path, "limit": limit, "expected": dict.fromkeys(names, (expected or {}).get(path, 1))}
            for path in files
        ],
        "patch": [{"file": path, "pairs": names, "reason": both} for path in patched],
        "api": [],
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }
    return _write(folder / "matrix.toml", "".join(f"{key} = {to_toml(value)}\n" for key, value in table.items()))


def patch_of(path: str, before: str, after: str) -> str:
    """Return the patch that git would make of a change to the file at ``path``."""
    old, new = blob_id(before.encode()), blob_id(after.encode())
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return f"diff --git a/{path} b/{path}\nindex {old}..{new} 100644\n{''.join(lines)}"


def to_toml(value: object) -> str:
    """Return a value as TOML, on one line."""
    match value:
        case Mapping():
            return "{ " + ", ".join(f"{json.dumps(key)} = {to_toml(item)}" for key, item in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(to_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


# Helpers


def _link(wheel: Path) -> str:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    url = f"/files/{urllib.parse.quote(wheel.name)}#sha256={digest}"
    return f'<a href="{url}" data-core-metadata="true">{wheel.name}</a>'


def _metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name)


def _urlsafe(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
