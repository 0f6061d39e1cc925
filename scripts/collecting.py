"""Imports torch in the pair's venv and collects each test file as on each machine, with and without its patch."""

from __future__ import annotations

import ast
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
IMPORT_SECONDS = 300.0
FILE_SECONDS = 120.0
VERSION = 2
# What says which machine this is, and would be a guard's root.
MACHINE_CALLS = {"platform.machine", "platform.uname", "platform.processor", "os.uname", "sysconfig.get_platform"}
UNNAMED = "a guard that could not be named"
# Which library or package a failed import lacks, the first that fits: what it says, where that comes from, what to do.
BY_HAND = "Try it by hand with the venv's python -c 'import torch'."
SOURCE_CANN = "Source CANN's set_env.sh, or name it as cann.set-env in matrix.toml."
LACKS = (
    (
        r"(lib(?:ascend_hal|drvdsmi|dcmi)[\w.+-]*\.so[\w.]*): cannot open shared object",
        "the library {}, which comes with the NPU driver,",
        "Install the driver, or hand it to the container (/usr/local/Ascend/driver).",
    ),
    (
        r"(lib(?:hccl|ascend|acl|ge_|runtime|opapi|nnopbase|profapi|msprof|error_manager)[\w.+-]*\.so[\w.]*)"
        r": cannot open shared object",
        "the library {}, which comes with CANN,",
        SOURCE_CANN,
    ),
    (
        r"(lib[\w.+-]*\.so[\w.]*): cannot open shared object",
        "the library {}",
        "Install the system package that has it.",
    ),
    (r"No module named '((?:acl|te|tbe)(?:\.[\w.]+)?)'", "the package {}, which comes with CANN,", SOURCE_CANN),
    (r"No module named '([\w.]+)'", "the package {}", "Add it (yaml is pyyaml) to test-requirements in matrix.toml."),
)


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """``torch`` is what torch says of itself, ``guards`` what guards do, by test file."""

    torch: dict[str, Any]
    guards: dict[str, GuardReport]


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    cases: list[str]
    marked: int
    error: str
    flags: dict[str, str]
    ended: bool

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
    key = storage.digest(
        [
            VERSION,
            environment.fingerprint,
            tree.blobs,
            sorted(worktree.patches.items()),
            wanted,
            preflight.machine.device,
        ]
    )
    record = storage.cache_root() / "collected" / f"{key[:32]}.json"
    answer = _read(record, len(wanted))
    if answer is None:
        limits = {file.path: min(file.limit, FILE_SECONDS) for file in batch.matrix.test_file}
        answer = _ask(preflight, environment, tree, worktree, wanted, limits)
        # What crashed or hung may do so by chance, and is asked again.
        if all(item.ended for item in answer.items):
            storage.write(record, msgspec.json.encode(answer))
    by_item = dict(zip(wanted, answer.items, strict=True))
    guards = {
        file.path: _guards(file.path, by_item, worktree, (tree.path / file.path).read_bytes())
        for file in batch.matrix.test_file
    }
    for file, patch in worktree.patches.items():
        # A file that can't be loaded says so itself, and a tree that has the patch already shows no more cases.
        if guard_effect(guards[file]) <= 0 and not guards[file].errors and not patch.already_applied:
            counts = ", ".join(f"{entry.machine} {entry.unpatched} → {entry.patched}" for entry in guards[file].counts)
            raise Blocked(
                "patch-no-effect",
                f"{patch.patch} restores no case ({counts})",
                "Remove the patch from matrix.toml, or make it anew against this version of the file.",
            )
    return Collected(torch=answer.torch, guards=guards)


# Helpers


def _read(record: Path, items: int) -> _Answer | None:
    """Return an answer that was kept, if it is one to so many items."""
    try:
        answer = msgspec.json.decode(record.read_bytes(), type=_Answer)
    except (OSError, msgspec.DecodeError):
        return None
    return answer if len(answer.items) == items else None


def _ask(
    preflight: Preflight,
    environment: Environment,
    tree: Tree,
    worktree: Worktree,
    wanted: list[tuple[str, str, bool]],
    limits: Mapping[str, float],
) -> _Answer:
    with tempfile.TemporaryDirectory(prefix="collect-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        pristine = Worktree(files={file: (tree.path / file).read_bytes() for file in tree.blobs}, patches={})
        items = []
        for number, (file, machine, patched) in enumerate(wanted):
            # What a file does to its folder while it is imported is its own affair.
            folder = scratch / str(number)
            (worktree if patched else pristine).write(folder)
            path = folder / file
            about = {"name": file, "folder": str(path.parent), "file": path.name, "machine": machine}
            items.append(about | {"limit": limits[file]})
        order, answer = scratch / "order.json", scratch / "answer.json"
        order.write_bytes(msgspec.json.encode({"items": items}))
        ending, words = process.capture(
            [str(environment.python), str(INSIDE / "collect.py"), str(order), str(answer)],
            cwd=scratch,
            env=preflight.test_env | {"TMPDIR": str(scratch)},
            limit=IMPORT_SECONDS + sum(limits[file] for file, _, _ in wanted),
        )
        try:
            found = msgspec.json.decode(answer.read_bytes(), type=_Answer)
        except (OSError, msgspec.DecodeError):
            how = "took too long" if ending.timed_out else f"ended with {ending.returncode}"
            if ending.returncode is None:
                how = f"could not be started: {ending.error}"
            raise Blocked(
                "torch-import",
                f"the process that imports torch in the pair's venv {how}: {' '.join(words.split()[-40:])}",
                BY_HAND,
            ) from None
    if "error" in found.torch:
        raise _import_failed(found.torch, npu=preflight.machine.cann is not None)
    return found


def _import_failed(torch: Mapping[str, Any], *, npu: bool) -> Blocked:
    """Return the block for an import that failed, naming the library or package that is missing."""
    words = str(torch["error"])
    summary = str(torch.get("summary", ""))
    is_npu = npu and "torch_npu" in words
    cause, remedy = summary, BY_HAND
    for pattern, what, how in LACKS:
        if match := re.search(pattern, words):
            cause, remedy = f"{what.format(match[1])} is missing", how
            break
    else:
        if "undefined symbol" in words:
            remedy = "Torch, torch-npu and CANN don't fit each other: see the compatibility table of Ascend/pytorch."
    subject = "torch_npu" if is_npu else "torch"
    return Blocked("torch-npu-import" if is_npu else "torch-import", f"import {subject} failed: {cause}", remedy)


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
        both = first.flags.keys() & second.flags.keys()
        names = _guard_names(source, {name for name in both if first.flags[name] != second.flags[name]})
    errors = sorted(
        {item.error.strip().splitlines()[-1] for key, item in items.items() if key[0] == file and item.error.strip()}
    )
    return GuardReport(counts=counts, names=names, errors=errors)


def _guard_names(source: bytes, flags: set[str]) -> list[str]:
    """Return what differs between machines where the file uses it, imported things first, each with its line."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return [UNNAMED]
    imports = _imports(tree)
    lines: dict[str, int] = {}
    roots: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name in flags:
                roots |= {name} & imports.keys()
            case ast.Attribute(ctx=ast.Load()) if (name := ast.unparse(node)) in flags:
                roots.add(name)
            case ast.Call(func=function) if _dotted(function, imports) in MACHINE_CALLS:
                name = f"{ast.unparse(function)}()"
                roots.add(name)
            case _:
                continue
        lines[name] = min(node.lineno, lines.get(name, node.lineno))
    told = sorted((line, name) for name, line in lines.items() if name in roots or not roots)
    return [f"{name}, line {line}" for line, name in told] or [UNNAMED]


def _imports(tree: ast.Module) -> dict[str, str]:
    """Return what each imported name stands for: ``{"m": "platform.machine"}``."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _dotted(function: ast.expr, imports: Mapping[str, str]) -> str:
    first, dot, rest = ast.unparse(function).partition(".")
    return f"{imports.get(first, first)}{dot}{rest}"
