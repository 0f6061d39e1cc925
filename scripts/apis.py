"""Says what each API of the batch is in a pair's venv, whether it was touched, and how it differs over the pairs."""

from __future__ import annotations

import csv
import difflib
import enum
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from . import process, replacing, storage
from .environment import Environment, is_recorded
from .matrix import Batch, Kind
from .preflight import INSIDE, Preflight

VERSION = 1
SECONDS = 300.0
MOST_TOLD = 20
# What drives a device, by its first names: an API of the control plane pulls in none of it.
DEVICE_MODULES = (
    *("torch_npu", "acl", "te", "tbe", "hccl", "tvm", "torchair", "mindspeed"),
    *(
        "torch.cuda",
        "torch.xpu",
        "torch.mtia",
        "torch.mps",
        "torch._inductor.codegen",
        "triton",
        "cuda",
        "cupy",
        "pynvml",
    ),
)
REPLACER = "torch_npu"
# What kinds an API may be found to be, by what matrix.toml says that it is.
FOUND_AS = {
    Kind.CLASS: ("class", "dataclass"),
    Kind.FUNCTION: ("function", "context-manager"),
    Kind.METHOD: ("method",),
}


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """An API as it is installed.

    ``problem`` says why it can't be imported at its name, or what is not as it should be. ``fields`` and ``members``
    are one line each, of a class; ``module`` is where it is defined; ``file`` (from site-packages), ``line`` and
    ``source_sha256`` are its source, where it has one. ``modules`` were loaded for it beyond those of ``import torch``.
    """

    name: str
    importable: bool
    problem: str = ""
    kind: str = ""
    context_manager: bool = False
    signature: str = ""
    fields: list[str] = []
    members: list[str] = []
    module: str = ""
    file: str = ""
    line: int | None = None
    source_sha256: str | None = None
    file_sha256: str | None = None
    modules: list[str] = []
    replaced_by: list[str] = []


class ApiFacts(Seen, frozen=True, kw_only=True):
    """An API, and what is known of it from outside.

    ``record_ok`` says whether its file is the wheel's, ``replaced_by`` what torch_npu puts in its place, and
    ``device_modules`` which of its modules drive a device.
    """

    record_ok: bool | None = None
    device_modules: list[str] = []

    @property
    def remarks(self) -> list[str]:
        """What a reader should know of it: nothing, if it is what the wheel and matrix.toml say."""
        found = [self.problem] if self.problem else []
        if self.record_ok is False:
            found.append(f"{self.file} is not the file that the wheel's RECORD names")
        found += [f"replaced by {place}" for place in self.replaced_by]
        return found + [f"loads the device module {module}" for module in self.device_modules]


class ApiReport(msgspec.Struct, frozen=True, kw_only=True):
    """The APIs of a pair; ``problem`` says why nothing is known of them.

    ``differing`` are source files that are not what their wheel's RECORD says, of ``checked``. Whether torch_npu
    replaces APIs was found out by looking at them (``live``), or else by searching ``searched`` of its files, all but
    those that are ``unread``.
    """

    apis: list[ApiFacts] = []
    problem: str = ""
    checked: int = 0
    differing: list[str] = []
    live: bool = False
    searched: int = 0
    unread: list[str] = []


class Change(enum.Enum):
    """What became of an API from one pair to the next of which anything is known."""

    FIRST = "first"
    SAME = "same"
    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """An API in one pair, against the pair before; ``diff`` says what changed."""

    label: str
    change: Change
    diff: list[str] = []


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """An API over all pairs, in their order."""

    name: str
    steps: list[Step]


class _Looked(Seen, frozen=True, kw_only=True):
    """What describe.py says of an API: ``names`` are all that it goes by, ``initialised`` devices that it started."""

    names: list[str] = []
    initialised: list[str] = []


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    error: str = ""
    root: str = ""
    loaded: list[str] = []
    apis: list[_Looked] = []


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    answer: _Answer
    search: replacing.Search | None


def look(batch: Batch, preflight: Preflight, environment: Environment) -> ApiReport:
    """Return what the APIs of the batch are in the pair's venv.

    What the same venv said before is kept; its files are compared with their RECORD each time. Never raises for what it
    finds: that is told in the report.
    """
    names = [api.name for api in batch.matrix.api]
    key = storage.digest([VERSION, environment.fingerprint, names, *preflight.machine.device])
    place = storage.cache_root() / "apis" / f"{key[:32]}.json"
    kept = _read(place, names)
    if kept is None:
        answer = _ask(preflight, environment, names)
        if isinstance(answer, str):
            return ApiReport(problem=answer)
        known = {looked.name: looked.names or [looked.name] for looked in answer.apis}
        live = REPLACER in answer.loaded
        kept = _Kept(answer=answer, search=None if live else replacing.search(Path(answer.root), REPLACER, known))
        storage.write(place, msgspec.json.encode(kept))
    kinds = {api.name: api.kind for api in batch.matrix.api}
    checked, differing = _compare_records(Path(kept.answer.root), {name.partition(".")[0] for name in names})
    apis = [_facts(looked, kinds[looked.name], kept.search, checked, differing) for looked in kept.answer.apis]
    return ApiReport(
        apis=apis,
        checked=len(checked),
        differing=_told(differing),
        live=kept.search is None,
        searched=kept.search.files if kept.search else 0,
        unread=kept.search.unread if kept.search else [],
    )


def drift(columns: Mapping[str, Sequence[ApiFacts]]) -> list[Drift]:
    """Return what became of each API over the pairs: facts by the label of each column, in order.

    A column that says nothing of an API is ``unknown``, and the one after it is compared with the last that does.
    """
    names = dict.fromkeys(facts.name for column in columns.values() for facts in column)
    found = []
    for name in names:
        steps: list[Step] = []
        last: ApiFacts | None = None
        for label, column in columns.items():
            facts = next((facts for facts in column if facts.name == name), None)
            steps.append(_step(label, last, facts))
            last = facts or last
        found.append(Drift(name=name, steps=steps))
    return found


def is_device_module(name: str) -> bool:
    """Return whether a module is one of those that drive a device."""
    return any(name == device or name.startswith(f"{device}.") for device in DEVICE_MODULES)


# Helpers


def _read(place: Path, names: list[str]) -> _Kept | None:
    try:
        kept = msgspec.json.decode(place.read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return None
    return kept if [looked.name for looked in kept.answer.apis] == names else None


def _ask(preflight: Preflight, environment: Environment, names: list[str]) -> _Answer | str:
    """Return what the venv says of the APIs, or why it says nothing."""
    with tempfile.TemporaryDirectory(prefix="apis-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        order, answer = scratch / "order.json", scratch / "answer.json"
        order.write_bytes(msgspec.json.encode({"apis": names, "replacers": [REPLACER]}))
        ending, words = process.capture(
            [str(environment.python), str(INSIDE / "describe.py"), str(order), str(answer)],
            cwd=scratch,
            env=preflight.test_env | {"TMPDIR": str(scratch)},
            limit=SECONDS,
        )
        try:
            found = msgspec.json.decode(answer.read_bytes(), type=_Answer)
        except (OSError, msgspec.DecodeError):
            how = "took too long" if ending.timed_out else f"ended with {ending.returncode}"
            said = ending.error or " ".join(words.split()[-40:])
            return f"the process that looks at the APIs {how}: {said}"
    return f"torch can't be imported: {found.error}" if found.error else found


def _facts(
    looked: _Looked, kind: Kind, search: replacing.Search | None, checked: set[str], differing: Mapping[str, str]
) -> ApiFacts:
    problem = looked.problem
    is_as_said = looked.context_manager if kind is Kind.CONTEXT_MANAGER else looked.kind in FOUND_AS[kind]
    if looked.kind and not is_as_said:
        problem = f"it is a {looked.kind}, matrix.toml says {kind.value}"
    seen = {field: getattr(looked, field) for field in Seen.__struct_fields__}
    seen |= {"problem": problem} | ({"replaced_by": search.found.get(looked.name, [])} if search else {})
    return ApiFacts(
        **seen,
        record_ok=looked.file in checked and looked.file not in differing if looked.file else None,
        device_modules=[
            *filter(is_device_module, looked.modules),
            *(f"{device} (started)" for device in looked.initialised),
        ],
    )


def _told(differing: Mapping[str, str]) -> list[str]:
    told = [f"{file}: {how}" for file, how in differing.items()]
    more = len(told) - MOST_TOLD
    return told if more <= 0 else [*told[:MOST_TOLD], f"and {more} more"]


def _compare_records(root: Path, packages: set[str]) -> tuple[set[str], dict[str, str]]:
    """Compare all Python files of ``packages`` with the RECORDs of their wheels; return them, and those that differ."""
    wanted: dict[str, str] = {}
    for record in sorted(root.glob("*.dist-info/RECORD")):
        with record.open(encoding="utf-8", errors="replace", newline="") as stream:
            for row in csv.reader(stream):
                if len(row) > 1 and row[0].endswith(".py") and row[0].partition("/")[0] in packages:
                    wanted[row[0]] = row[1]
    there = {
        f"{folder}/{file}".removeprefix(f"{root}/")
        for package in packages
        for folder, _, files in os.walk(root / package)  # a third of rglob's time, and torch has 2,000 files
        for file in files
        if file.endswith(".py")
    }
    differing = {}
    for file in sorted(there | wanted.keys()):
        if file not in wanted:
            differing[file] = "in no wheel's RECORD"
        elif file not in there:
            differing[file] = "missing"
        elif not is_recorded(root / file, wanted[file]):
            differing[file] = "not the file that RECORD names"
    return there | wanted.keys(), differing


def _step(label: str, last: ApiFacts | None, facts: ApiFacts | None) -> Step:
    if facts is None:
        return Step(label=label, change=Change.UNKNOWN)
    if not facts.importable:
        was_there = last is not None and last.importable
        return Step(label=label, change=Change.GONE if was_there else Change.ABSENT, diff=[facts.problem])
    if last is None or not last.importable:
        return Step(label=label, change=Change.NEW if last else Change.FIRST)
    diff = list(difflib.unified_diff(_lines(last), _lines(facts), lineterm="", n=0))[2:]
    diff = [line for line in diff if not line.startswith("@@")]
    if not diff and last.source_sha256 != facts.source_sha256:
        diff = ["source changed"]
    return Step(label=label, change=Change.CHANGED if diff else Change.SAME, diff=diff)


def _lines(facts: ApiFacts) -> list[str]:
    """Return an API as lines that tell what a caller sees of it."""
    return [
        f"{facts.kind} of {facts.module}",
        *([f"signature {facts.signature}"] if facts.signature else []),
        *(f"field {field}" for field in facts.fields),
        *(f"member {member}" for member in facts.members),
    ]
