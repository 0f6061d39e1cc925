"""Imports torch in the pair's venv and collects each test file as on each machine, with and without its patch."""

from __future__ import annotations

import ast
import hashlib
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from . import process, storage
from .environment import Environment
from .errors import Blocked
from .matrix import Batch
from .outcomes import guard_effect
from .patching import Worktree
from .preflight import INSIDE, Preflight
from .results import GuardReport, Guards
from .upstream import Tree

MACHINES = ("x86_64", "aarch64")
SECONDS = 900.0
VERSION = 1


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """``torch`` is what torch says of itself, ``guards`` what guards do, by test file."""

    torch: dict[str, Any]
    guards: dict[str, GuardReport]


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    cases: list[str]
    marked: int
    error: str
    flags: dict[str, bool | int | str]

    @property
    def runnable(self) -> int:
        """Cases that would run: those marked as skipped prove nothing."""
        return len(self.cases) - self.marked


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    torch: dict[str, Any]
    items: list[_Item]


def collect(batch: Batch, preflight: Preflight, environment: Environment, tree: Tree, worktree: Worktree) -> Collected:
    """Return what importing torch and collecting the test files shows; nothing is run.

    The answer of the same venv, tree and patches is kept. Raises Blocked if torch (or torch_npu) can't be imported, or
    if a patch restores no case.
    """
    wanted = [
        (file.path, machine, patched)
        for file in batch.matrix.test_file
        for machine in MACHINES
        for patched in ((False, True) if file.path in worktree.patches else (False,))
    ]
    key = hashlib.sha256(
        msgspec.json.encode(
            [VERSION, environment.fingerprint, tree.blobs, sorted(worktree.patches.items()), wanted, _device(preflight)]
        )
    ).hexdigest()
    record = storage.cache_root() / "collected" / f"{key[:32]}.json"
    try:
        answer = msgspec.json.decode(record.read_bytes(), type=_Answer)
    except (OSError, msgspec.DecodeError):
        answer = _ask(preflight, environment, tree, worktree, wanted)
        storage.write(record, msgspec.json.encode(answer))
    by_item = dict(zip(wanted, answer.items, strict=True))
    guards = {
        file.path: _guards(file.path, by_item, worktree, (tree.path / file.path).read_bytes())
        for file in batch.matrix.test_file
    }
    for file, patch in worktree.patches.items():
        # Where the file can't be loaded at all, its run will say so; the patch is not to blame.
        if guard_effect(guards[file]) <= 0 and not guards[file].errors:
            counts = ", ".join(f"{entry.machine} {entry.unpatched} → {entry.patched}" for entry in guards[file].counts)
            raise Blocked(
                "patch-no-effect",
                f"{patch.patch} restores no case ({counts})",
                "Remove the patch from matrix.toml, or make it anew against this version of the file.",
            )
    return Collected(torch=answer.torch, guards=guards)


# Helpers


def _device(preflight: Preflight) -> list[str | int | None]:
    cann = preflight.machine.cann
    return [preflight.machine.npu_devices, cann.home if cann else None, cann.version if cann else None]


def _ask(
    preflight: Preflight,
    environment: Environment,
    tree: Tree,
    worktree: Worktree,
    wanted: list[tuple[str, str, bool]],
) -> _Answer:
    with tempfile.TemporaryDirectory(prefix="collect-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        pristine = Worktree(files={file: (tree.path / file).read_bytes() for file in tree.blobs}, patches={})
        pristine.write(scratch / "pristine")
        worktree.write(scratch / "patched")
        items = []
        for file, machine, patched in wanted:
            path = scratch / ("patched" if patched else "pristine") / file
            items.append({"folder": str(path.parent), "file": path.name, "machine": machine})
        order, answer = scratch / "order.json", scratch / "answer.json"
        order.write_bytes(msgspec.json.encode({"items": items}))
        ending, words = process.capture(
            [str(environment.python), str(INSIDE / "collect.py"), str(order), str(answer)],
            cwd=scratch,
            env=preflight.test_env | {"TMPDIR": str(scratch)},
            limit=SECONDS,
        )
        try:
            found = msgspec.json.decode(answer.read_bytes(), type=_Answer)
        except (OSError, msgspec.DecodeError):
            how = "took too long" if ending.timed_out else f"ended with {ending.returncode}"
            raise Blocked(
                "torch-import",
                f"importing torch in the pair's venv {how}: {' '.join(words.split()[-40:])}",
                "Try it by hand with the venv's python -c 'import torch'.",
            ) from None
    if "error" in found.torch:
        raise _import_failed(found.torch, npu=preflight.machine.cann is not None)
    return found


def _import_failed(torch: Mapping[str, Any], *, npu: bool) -> Blocked:
    """Return the block for an import that failed, naming the library or package that is missing."""
    words = str(torch["error"])
    summary = str(torch.get("summary", ""))
    library = re.search(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object", words)
    module = re.search(r"No module named '([\w.]+)'", words)
    symbol = re.search(r"undefined symbol: (\w+)", words)
    name = "torch-npu-import" if npu and "torch_npu" in words else "torch-import"
    subject = "torch_npu" if name == "torch-npu-import" else "torch"
    if library:
        owner = "CANN" if re.match(r"lib(hccl|ascend|acl|ge_|runtime|opapi)", library[1]) else "the system"
        return Blocked(
            name,
            f"import {subject} failed: the library {library[1]} is missing, which comes with {owner}",
            "Source CANN's set_env.sh, or name it as cann.set-env in matrix.toml."
            if owner == "CANN"
            else f"Install the system package that has {library[1]}.",
        )
    if module:
        return Blocked(
            name,
            f"import {subject} failed: the package {module[1]} is missing",
            "Add it to test-requirements in matrix.toml.",
        )
    if symbol:
        return Blocked(
            name,
            f"import {subject} failed: {summary}",
            "Torch, torch-npu and CANN don't fit each other: see the compatibility table of Ascend/pytorch.",
        )
    return Blocked(
        name, f"import {subject} failed: {summary}", "Try it by hand with the venv's python -c 'import torch'."
    )


def _guards(file: str, items: Mapping[tuple[str, str, bool], _Item], worktree: Worktree, source: bytes) -> GuardReport:
    counts = [
        Guards(
            machine=machine,
            unpatched=items[file, machine, False].runnable,
            patched=items[file, machine, True].runnable if file in worktree.patches else None,
        )
        for machine in MACHINES
    ]
    first, second = (items[file, machine, False] for machine in MACHINES)
    names: list[str] = []
    if (first.cases, first.marked) != (second.cases, second.marked):
        flags = {name for name in {*first.flags, *second.flags} if first.flags.get(name) != second.flags.get(name)}
        names = _guard_names(source, flags)
    errors = sorted(
        {item.error.strip().splitlines()[-1] for key, item in items.items() if key[0] == file and item.error.strip()}
    )
    return GuardReport(counts=counts, names=names, errors=errors)


def _guard_names(source: bytes, flags: set[str]) -> list[str]:
    """Return the flags that differ between machines where the file uses them, imported ones first, with their line."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in flags:
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "platform.machine",
            "os.uname",
            "platform.uname",
        ):
            name = f"{ast.unparse(node.func)}()"
            lines[name] = min(node.lineno, lines.get(name, node.lineno))
    roots = {name: line for name, line in lines.items() if name in imported or name.endswith("()")} or lines
    return [f"{name}, line {line}" for name, line in sorted(roots.items(), key=lambda entry: entry[1])]
