"""Watches each test file in a run beside the verdict's, and says which passing cases reached which API."""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from . import outcomes, slots, storage
from .environment import Environment
from .matrix import Api, Batch, Kind, TestFile
from .patching import Worktree
from .preflight import INSIDE, Preflight
from .results import PROVES, ApiEvidence, Case, Evidence, Outcome, Reach, State
from .running import STACK, lines_of, workplace

# What is watched takes longer, and may fail for that alone.
LIMIT_FACTOR = 2
ATTEMPTS = 3
Key = tuple[str, str, str]


class How(enum.Enum):
    """What a case did to an API. ``detail`` of a touch is the exception, member, parameter or line."""

    ENTERED = "entered"
    LEFT = "left"
    RAISED = "raised"
    CONSTRUCTED = "constructed"
    READ = "read"
    DEFAULT = "default"
    EXPLICIT = "explicit"
    LINE = "line"


COMES_THROUGH = {How.LEFT, How.RAISED, How.CONSTRUCTED, How.READ}


class Touch(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a case was seen to do to an API.

    ``through`` is the override or subclass by which it did so; ``child`` says that a process did which it had started.
    """

    file: str
    cls: str = msgspec.field(name="class")
    name: str
    api: str
    how: How
    detail: str = ""
    through: str = ""
    child: bool = False

    @property
    def key(self) -> Key:
        """The case's key."""
        return (self.file, self.cls, self.name)

    @property
    def behaviours(self) -> list[str]:
        """What this shows of the API, in the words of ``require-behaviours``."""
        match self.how:
            case How.LEFT | How.CONSTRUCTED:
                return ["normal"]
            case How.RAISED:
                return ["exception", f"exception={self.detail}"]
            case How.READ:
                return [f"read={self.detail}"]
            case How.DEFAULT | How.EXPLICIT:
                return [f"{self.detail}={self.how.value}"]
        return []


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """An API as it was there while tests ran: its source, and what of it could be reached.

    ``statements`` are first and last lines; ``watched`` is False for what is not written in Python.
    """

    api: str
    source: str = ""
    statements: list[tuple[int, int]] = []
    members: list[str] = []
    watched: bool = True


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What watching has seen. ``cases`` are as they ended while they were watched."""

    found: list[Found] = []
    touches: list[Touch] = []
    cases: list[Case] = []
    findings: list[str] = []


def watch(
    batch: Batch,
    preflight: Preflight,
    environment: Environment,
    worktree: Worktree,
    cases: Sequence[Case],
    *,
    fresh: bool = False,
) -> Watched:
    """Run every test file of the batch once more, watched; ``cases`` are the verdict's.

    What was seen with the same venv, worktree and APIs is kept, so that nothing is run for it again unless it is to be
    ``fresh``.
    """
    apis = [api.name for api in batch.matrix.api]
    if not apis:
        return Watched()
    files = batch.matrix.test_file
    records = _records(files, apis, preflight, environment, worktree)
    proving = {
        file.path: {case.key for case in cases if case.file == file.path and case.outcome in PROVES} for file in files
    }
    seen = {} if fresh else {path: kept for path in records if (kept := _kept(records[path], proving[path]))}

    stopped = threading.Event()

    def one(file: TestFile, room: slots.Room) -> Watched:
        # Who is stopped raises in the end, so what is missing then goes nowhere.
        with room:
            run = functools.partial(_run, file, apis, preflight, environment, worktree, stopped.is_set)
            return _watched(run, proving[file.path]) if room.had else Watched()

    unseen = [file for file in files if file.path not in seen]
    for path, found in slots.side_by_side(one, unseen, preflight.machine.cores, stopped).items():
        storage.write(records[path], msgspec.json.encode(found))
        seen[path] = found
    return _merged([seen[file.path] for file in files])


def evidence_of(watched: Watched, cases: Sequence[Case], apis: Sequence[Api]) -> Evidence:
    """Return the evidence that ``watched`` gives of each API, given the cases of the verdict's run."""
    by_key = {case.key: case for case in cases}
    found = {entry.api: entry for entry in watched.found}
    unlike = []
    for case in watched.cases:
        other = by_key.get(case.key)
        outcome = Outcome.PASSED if other and other.outcome is Outcome.FLAKY else other and other.outcome
        if outcome is not case.outcome:
            was = other.outcome.value if other else "not there"
            words = f": {case.message}" if case.message else ""
            unlike.append(f"{_name(case.key)} is {was}, but {case.outcome.value} while it is watched{words}")
    return Evidence(
        apis=[
            _evidence(api, found.get(api.name), [touch for touch in watched.touches if touch.api == api.name], by_key)
            for api in apis
        ],
        findings=[*watched.findings, *unlike],
    )


# Helpers


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of scripts/inside/watch.py."""

    api: str
    how: str
    case: tuple[str, str] = ("", "")
    detail: str = ""
    through: str = ""
    child: bool = False
    file: str | None = None
    statements: list[tuple[int, int]] = []
    members: list[str] = []
    watched: bool = True


def _records(
    files: Sequence[TestFile], apis: list[str], preflight: Preflight, environment: Environment, worktree: Worktree
) -> dict[str, Path]:
    """Return where that is kept which was seen in each file, with this venv, worktree and these APIs."""
    watchers = [(INSIDE / name).read_text() for name in ("watch.py", "run.py")]
    blobs = sorted((name, worktree.blob(name)) for name in worktree.files)
    folder = storage.cache_root() / "evidence"
    found = {}
    for file in files:
        asked = [*watchers, environment.fingerprint, file.path, apis, *preflight.machine.device, blobs]
        found[file.path] = folder / f"{storage.digest(asked)[:32]}.json"
    return found


def _kept(record: Path, proving: set[Key]) -> Watched | None:
    """Return what was seen in an earlier run, if all that passes now passed then."""
    try:
        kept = msgspec.json.decode(record.read_bytes(), type=Watched)
    except (OSError, msgspec.DecodeError):
        return None
    return None if _failed(kept, proving) else kept


def _watched(run: Callable[[], Watched], proving: set[Key]) -> Watched:
    """Return what is seen in one file: in another ``run`` of it as well, if a case fails that passes otherwise."""
    attempts: list[Watched] = []
    while not attempts or (_failed(attempts[-1], proving) and len(attempts) < ATTEMPTS):
        attempts.append(run())
    # The last attempt counts, but what was seen in another was seen.
    return msgspec.structs.replace(_merged(attempts), cases=attempts[-1].cases, findings=attempts[-1].findings)


def _failed(watched: Watched, proving: set[Key]) -> set[Key]:
    """Return the cases that pass in the verdict's run, but did not while they were watched."""
    return proving - {case.key for case in watched.cases if case.outcome is Outcome.PASSED}


def _merged(parts: Sequence[Watched]) -> Watched:
    found: dict[str, Found] = {}
    for entry in (entry for part in parts for entry in part.found):
        # A test may have put something else in its place for a while.
        if entry.api not in found or not found[entry.api].watched:
            found[entry.api] = entry
    return Watched(
        found=list(found.values()),
        touches=sorted({touch for part in parts for touch in part.touches}, key=_order),
        cases=[case for part in parts for case in part.cases],
        findings=[finding for part in parts for finding in part.findings],
    )


def _run(
    file: TestFile,
    apis: list[str],
    preflight: Preflight,
    environment: Environment,
    worktree: Worktree,
    stopped: Callable[[], bool],
) -> Watched:
    with workplace(file, environment.python, preflight.test_env, worktree) as place:
        order, touches = place.own / "order.json", place.own / "touches.jsonl"
        order.write_bytes(msgspec.json.encode({"apis": apis, "touches": str(touches), "scratch": str(place.own)}))
        ending = place.run(
            "watch.py",
            [order, place.events, place.own / "stacks.txt", STACK.signal],
            limit=file.limit * LIMIT_FACTOR,
            stopped=stopped,
        )
        with lines_of(place.events) as events:
            run, cases = outcomes.judge(file.path, outcomes.read_events(events), ending, expected=None)
        with lines_of(touches) as written:
            lines = list(_decoded(written))
    findings = [f"{file.path}: a fault of the watcher: {line.detail}" for line in lines if line.how == "fault"]
    if run.state not in (State.COMPLETE, State.HOLLOW):
        findings.append(f"{file.path}: {run.state.value} while it was watched: {run.reason}")
    return Watched(
        found=[_found(line, place.tree) for line in lines if line.how == "found"],
        touches=_touches(file.path, lines),
        cases=[msgspec.structs.replace(case, seconds=None, message=outcomes.last_line(case.message)) for case in cases],
        findings=list(dict.fromkeys(findings)),
    )


def _decoded(lines: Iterable[bytes]) -> Iterator[_Line]:
    """Yield what can be read: a SIGKILL cuts lines short, and a test may write what it likes."""
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, RecursionError):
            continue


def _found(line: _Line, tree: Path) -> Found:
    source = (line.file or "").rpartition("/site-packages/")[2].removeprefix(f"{tree}/")
    return Found(
        api=line.api,
        source=source,
        statements=line.statements,
        members=line.members,
        watched=line.watched,
    )


def _touches(file: str, lines: Iterable[_Line]) -> list[Touch]:
    hows = {how.value for how in How}
    return [
        Touch(
            file=file,
            cls=line.case[0],
            name=line.case[1],
            api=line.api,
            how=How(line.how),
            detail=line.detail,
            through=line.through,
            child=line.child,
        )
        for line in lines
        if line.how in hows
    ]


def _order(touch: Touch) -> tuple[object, ...]:
    number = int(touch.detail) if touch.how is How.LINE and touch.detail.isdecimal() else 0
    return (touch.key, touch.api, touch.how.value, number, touch.detail, touch.through, touch.child)


def _evidence(api: Api, found: Found | None, touches: list[Touch], cases: Mapping[Key, Case]) -> ApiEvidence:
    if api.kind is Kind.CONTEXT_MANAGER:
        # To make one is nothing yet.
        touches = [touch for touch in touches if touch.how is not How.CONSTRUCTED]
    by_case: dict[Key, list[Touch]] = {}
    for touch in touches:
        by_case.setdefault(touch.key, []).append(touch)
    # As the verdict's run has them; what only the watched run had comes last.
    order = [*(key for key in cases if key in by_case), *(key for key in by_case if key not in cases)]
    reached = [_reach(key, by_case[key], cases.get(key)) for key in order]
    proven = [touch for touch in touches if (case := cases.get(touch.key)) and case.outcome in PROVES]
    ran = {int(touch.detail) for touch in proven if touch.how is How.LINE and touch.detail.isdecimal()}
    statements = found.statements if found else []
    behaviours = _behaviours(proven)
    evidence = ApiEvidence(
        api=api.name,
        reached=reached,
        source=found.source if found else "",
        lines=[first for first, _ in statements],
        executed=[first for first, last in statements if any(first <= line <= last for line in ran)],
        behaviours=behaviours,
        members=found.members if found else [],
        read=sorted({touch.detail for touch in proven if touch.how is How.READ}),
    )
    missing = [
        *_missing_at_all(evidence, found, came_through=any(touch.how in COMES_THROUGH for touch in proven)),
        *(words for case in api.require if (words := _missing_case(case, evidence, cases))),
        *(f"no passing case shows {behaviour}" for behaviour in api.require_behaviours if behaviour not in behaviours),
    ]
    return msgspec.structs.replace(evidence, problems=[f"{api.name}: {words}" for words in missing])


def _reach(key: Key, touches: list[Touch], case: Case | None) -> Reach:
    return Reach(
        file=key[0],
        cls=key[1],
        name=key[2],
        outcome=case.outcome if case else Outcome.NOT_RUN,
        behaviours=_behaviours(touches),
        through=sorted({touch.through for touch in touches if touch.through}),
        child=any(touch.child for touch in touches),
    )


def _behaviours(touches: Iterable[Touch]) -> list[str]:
    return sorted({behaviour for touch in touches for behaviour in touch.behaviours})


def _missing_at_all(evidence: ApiEvidence, found: Found | None, *, came_through: bool) -> list[str]:
    """Return why there is no evidence, if there is none."""
    if not found:
        return ["no test file imports it"]
    if not found.watched:
        return ["it has no Python source that could be watched"]
    if not evidence.reached:
        return ["no case reached it"]
    if not evidence.passing:
        told = ", ".join(
            f"{_name((reach.file, reach.cls, reach.name))} ({reach.outcome.value})" for reach in evidence.reached
        )
        return [f"no case that reached it passed: {told}"]
    if not came_through:
        return ["passing cases entered it, but were not seen to leave it"]
    return []


def _missing_case(required: str, evidence: ApiEvidence, cases: Mapping[Key, Case]) -> str:
    """Return why a required case is no evidence, or an empty string."""
    case = next((case for case in cases.values() if _name(case.key) == required), None)
    if case is None:
        return f"{required}, which is required, is not there"
    if case.outcome not in PROVES:
        return f"{required}, which is required, is {case.outcome.value}"
    if not any((reach.file, reach.cls, reach.name) == case.key for reach in evidence.reached):
        return f"{required}, which is required, did not reach it"
    return ""


def _name(key: Key) -> str:
    file, cls, name = key
    return f"{file}::{cls}.{name}"
