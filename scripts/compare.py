"""What changed between two reports: every case gets exactly one category, and the sums prove it. Pure functions."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from .environment import Package
from .outcomes import BAD, last_line
from .results import GOOD_VERDICTS, Case, Outcome, PairResult, Report, Run, State, Verdict

# A case is slower when it takes this many times as long, and this much longer at that.
SLOWER_FACTOR = 2.0
SLOWER_SECONDS = 1.0
Key = tuple[str, str, str]


class Side(enum.Enum):
    """What one report says of a case."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"
    FLAKY = "flaky"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Category(enum.Enum):
    """What became of a case. ``still-skipped`` says that neither side shows anything of it."""

    REGRESSED = "regressed"
    NEW_FAIL = "new-fail"
    NEWLY_SKIPPED = "newly-skipped"
    REMOVED = "removed"
    FLAKY = "flaky"
    STILL_FAILING = "still-failing"
    NOT_COMPARABLE = "not-comparable"
    FIXED = "fixed"
    UN_SKIPPED = "un-skipped"
    NEW_PASS = "new-pass"  # noqa: S105
    MOVED = "moved"
    STILL_SKIPPED = "still-skipped"
    STILL_PASSING = "still-passing"


WORSE = frozenset({Category.REGRESSED, Category.NEW_FAIL, Category.NEWLY_SKIPPED, Category.REMOVED})
SILENT = frozenset({Category.STILL_PASSING, Category.STILL_SKIPPED})


class CaseChange(msgspec.Struct, frozen=True, kw_only=True):
    """A case and its category; ``changed`` says whether a reader of both reports would see a difference."""

    file: str
    cls: str = msgspec.field(name="class")
    name: str
    category: Category
    changed: bool
    old: Outcome | None = None
    new: Outcome | None = None
    message: str = ""
    message_changed: bool = False
    moved_from: str = ""


class Slower(msgspec.Struct, frozen=True, kw_only=True):
    """A case that takes much longer than before, in seconds."""

    case: str
    old: float
    new: float


class ColumnChange(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a pair. ``why`` are the changes of its surroundings and inputs; ``runs`` those of its runs."""

    old_label: str
    label: str
    old_verdict: Verdict
    verdict: Verdict
    old_reason: str
    reason: str
    why: list[str]
    runs: list[str]
    cases: list[CaseChange]
    slower: list[Slower]
    counts: dict[str, int]

    @property
    def lost_its_proof(self) -> bool:
        """Whether the pair was proven before and tonight's run proves nothing or fails."""
        return self.old_verdict in GOOD_VERDICTS and self.verdict in (
            Verdict.FAILED,
            Verdict.HOLLOW,
        )

    @property
    def is_worse(self) -> bool:
        """Whether something of the pair got worse."""
        return self.lost_its_proof or any(change.category in WORSE and change.changed for change in self.cases)

    @property
    def is_news(self) -> bool:
        """Whether there is anything to tell of the pair."""
        return bool(
            self.why
            or self.runs
            or self.slower
            or self.old_verdict is not self.verdict
            or any(change.changed for change in self.cases)
        )


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All pairs of two reports. ``counts`` is by category; its sum is ``total``, the number of cases of both."""

    old: str
    new: str
    columns: list[ColumnChange]
    counts: dict[str, int]
    total: int

    @property
    def is_empty(self) -> bool:
        """Whether the two reports say the same."""
        return not any(column.is_news for column in self.columns)

    @property
    def is_worse(self) -> bool:
        """Whether anything got worse."""
        return any(column.is_worse for column in self.columns)

    def has(self, wanted: Iterable[Category]) -> bool:
        """Whether some case changed into one of these categories."""
        chosen = set(wanted)
        return any(change.category in chosen and change.changed for column in self.columns for change in column.cases)


def category(old: Side, new: Side) -> Category:
    """Return the one category of a case; raises ValueError for a case that neither side has."""
    match old, new:
        case Side.ABSENT, Side.ABSENT:
            raise ValueError("a case that neither side has")
        case (Side.UNKNOWN, _) | (_, Side.UNKNOWN):
            return Category.NOT_COMPARABLE
        case _, Side.ABSENT:
            return Category.REMOVED
        case Side.SKIPPED, Side.SKIPPED:
            return Category.STILL_SKIPPED
        case _, Side.SKIPPED:
            return Category.NEWLY_SKIPPED
        case ((Side.GOOD | Side.FLAKY), Side.BAD):
            return Category.REGRESSED
        case Side.BAD, Side.BAD:
            return Category.STILL_FAILING
        case _, Side.BAD:
            return Category.NEW_FAIL
        case (_, Side.FLAKY) | (Side.FLAKY, _):
            return Category.FLAKY
        case Side.GOOD, Side.GOOD:
            return Category.STILL_PASSING
        case Side.BAD, Side.GOOD:
            return Category.FIXED
        case Side.SKIPPED, Side.GOOD:
            return Category.UN_SKIPPED
    return Category.NEW_PASS


def compare(old: Report, new: Report, *, old_name: str, new_name: str) -> Comparison:
    """Return what changed from ``old`` to ``new``; a pair that one side lacks is not comparable, never fixed."""
    columns = [compare_columns(*both) for both in _matched(old.columns, new.columns)]
    return summed(old_name, new_name, columns)


def compare_pairs(old: PairResult, new: PairResult) -> Comparison:
    """Return what changed between two pairs, of one report say."""
    return summed(old.label or old.pair, new.label or new.pair, [compare_columns(old, new)])


def compare_columns(old: PairResult, new: PairResult) -> ColumnChange:
    """Return what became of one pair."""
    before = {case.key: case for case in old.cases}
    after = {case.key: case for case in new.cases}
    runs = ({run.file: run for run in old.runs}, {run.file: run for run in new.runs})
    moves = _moves(before, after)
    moved_away = set(moves.values())
    changes = []
    for key in sorted({*before, *after} - moved_away):
        was = before.get(moves.get(key, key))
        now = after.get(key)
        sides = _side(was, key, old, runs[0]), _side(now, key, new, runs[1])
        changes.append(_change(key, was, now, sides, moves.get(key)))
    return ColumnChange(
        old_label=old.label or old.pair,
        label=new.label or new.pair,
        old_verdict=old.verdict,
        verdict=new.verdict,
        old_reason=old.reason,
        reason=new.reason,
        why=causes(old, new),
        runs=_run_changes(*runs) if old.runs and new.runs else [],
        cases=changes,
        slower=_slower(before, after),
        counts=tally(changes),
    )


def summed(old: str, new: str, columns: list[ColumnChange]) -> Comparison:
    """Return the comparison of these columns, with its sums."""
    counts = Counter[str]()
    for column in columns:
        counts.update(column.counts)
    ordered = {entry.value: counts[entry.value] for entry in Category if counts[entry.value]}
    return Comparison(old=old, new=new, columns=columns, counts=ordered, total=sum(len(c.cases) for c in columns))


def tally(changes: Sequence[CaseChange]) -> dict[str, int]:
    """Return how many cases are in which category, the worst first."""
    counted = Counter(change.category for change in changes)
    return {entry.value: counted[entry] for entry in Category if counted[entry]}


def causes(old: PairResult, new: PairResult) -> list[str]:
    """Return the changes of surroundings and inputs, each as ``what: old → new``: the usual why of a regression."""
    if Verdict.NOT_RUN in (old.verdict, new.verdict) and not (old.environment and new.environment):
        return []
    facts = [_facts(old), _facts(new)]
    return [
        f"{name}: {facts[0].get(name, 'absent')} → {facts[1].get(name, 'absent')}"
        for name in dict.fromkeys([*facts[0], *facts[1]])
        if facts[0].get(name) != facts[1].get(name)
    ]


def same_words(old: str, new: str) -> bool:
    """Return whether two messages say the same, apart from what differs in every run: addresses, numbers, names."""
    return _essence(old) == _essence(new)


# Helpers


def _matched(old: Sequence[PairResult], new: Sequence[PairResult]) -> list[tuple[PairResult, PairResult]]:
    """Return the columns of both sides that belong together: by pair, machine, mode and Python, else by pair alone."""
    left = list(old)
    found: list[tuple[PairResult, PairResult]] = []
    for column in new:
        same_pair = [other for other in left if other.pair == column.pair]
        exact = [other for other in same_pair if _identity(other) == _identity(column)]
        alone = sum(other.pair == column.pair for other in new) == 1 and len(same_pair) == 1
        match = exact[0] if exact else same_pair[0] if alone else None
        if match is not None:
            left.remove(match)
        found.append((match or _missing(column), column))
    return found + [(column, _missing(column)) for column in left]


def _identity(column: PairResult) -> tuple[object, ...]:
    return (column.machine, column.mode, ".".join(column.python.split(".")[:2]))


def _missing(column: PairResult) -> PairResult:
    return PairResult(
        pair=column.pair,
        label=column.label,
        torch=column.torch,
        torch_npu=column.torch_npu,
        python=column.python,
        verdict=Verdict.NOT_RUN,
        reason="not in this report",
    )


def _side(case: Case | None, key: Key, column: PairResult, runs: Mapping[str, Run]) -> Side:
    run = runs.get(key[0])
    if column.verdict in (Verdict.BLOCKED,) or run is None or run.state is State.NOT_RUN:
        return Side.UNKNOWN
    if case is None:
        # Only a run that was complete can say that a case is not there.
        return Side.ABSENT if run.state is State.COMPLETE else Side.UNKNOWN
    if case.outcome in BAD:
        return Side.BAD
    match case.outcome:
        case Outcome.SKIPPED if run.state is not State.HOLLOW:
            return Side.SKIPPED
        case Outcome.FLAKY:
            return Side.FLAKY
        case Outcome.PASSED | Outcome.XFAILED if run.state is not State.HOLLOW:
            return Side.GOOD
    return Side.UNKNOWN


def _change(
    key: Key, was: Case | None, now: Case | None, sides: tuple[Side, Side], moved_from: Key | None
) -> CaseChange:
    found = category(*sides)
    words_changed = bool(found is Category.STILL_FAILING and was and now and not same_words(was.message, now.message))
    if found is Category.STILL_PASSING and moved_from:
        found = Category.MOVED
    return CaseChange(
        file=key[0],
        cls=key[1],
        name=key[2],
        category=found,
        changed=found not in SILENT and (sides[0] is not sides[1] or words_changed or found is Category.MOVED),
        old=was.outcome if was else None,
        new=now.outcome if now else None,
        message=now.message if now and sides[1] in (Side.BAD, Side.FLAKY) else "",
        message_changed=words_changed,
        moved_from=".".join(moved_from) if moved_from else "",
    )


def _moves(before: Mapping[Key, Case], after: Mapping[Key, Case]) -> dict[Key, Key]:
    """Return where a case was before, for those that have the same method and body elsewhere now."""
    gone = [case for key, case in before.items() if key not in after and case.body]
    found: dict[Key, Key] = {}
    for key, case in after.items():
        if key in before or not case.body:
            continue
        candidates = [other for other in gone if (other.name, other.body) == (case.name, case.body)]
        rivals = [other for other in after.values() if other.key not in before and other.body == case.body]
        if len(candidates) == 1 and len([other for other in rivals if other.name == case.name]) == 1:
            found[key] = candidates[0].key
    return found


def _run_changes(old: Mapping[str, Run], new: Mapping[str, Run]) -> list[str]:
    found = []
    for file in dict.fromkeys([*old, *new]):
        was, now = old.get(file), new.get(file)
        if was is None or now is None:
            found.append(f"{file}: {'was not in the batch' if was is None else 'is not in the batch any more'}")
        elif was.state is not now.state:
            found.append(f"{file}: {was.state.value} → {now.state.value}" + (f" ({now.reason})" if now.reason else ""))
    return found


def _facts(column: PairResult) -> dict[str, str]:
    """Return what a result depends on, by name."""
    found: dict[str, str | None] = {
        "torch": column.torch,
        "torch-npu": column.torch_npu,
        "Python": column.python,
        "machine": column.machine,
        "mode": column.mode.value if column.mode else None,
    }
    if column.upstream:
        found |= {"upstream": column.upstream.source, "commit": column.upstream.commit}
    if column.environment:
        environment = column.environment
        found |= {
            "OS": environment.os,
            "glibc": environment.glibc,
            "kernel": environment.kernel,
            "cores": str(environment.cores),
            "CANN": environment.cann.version or "unknown" if environment.cann else None,
            "NPUs": f"{environment.npu_devices} {environment.npu_name or ''}".strip(),
            "CUDA build": environment.cuda,
        }
        for package in environment.packages:
            found[f"package {package.name}"] = _package(package)
    for run in column.runs:
        found[f"file {run.file}"] = run.blob
        found[f"patch of {run.file}"] = run.patch.after if run.patch else None
        if run.guards:
            told = ", ".join(f"{entry.machine} {entry.unpatched}/{entry.patched}" for entry in run.guards.counts)
            found[f"guards of {run.file}"] = f"{told} {'; '.join(run.guards.names)}".strip()
    for facts in column.apis.apis if column.apis else ():
        source = (facts.source_sha256 or "no source")[:12]
        found[f"API {facts.name}"] = f"{facts.kind} {facts.signature} ({source})" if facts.importable else facts.problem
    for entry in column.docs.entries if column.docs else ():
        told = ", ".join(f"{name} {'yes' if yes else 'no'}" for name, yes in entry.hardware.items())
        found[f"docs of {entry.name}"] = f"{entry.support.value} {told}".strip()
    for api in column.evidence.apis if column.evidence else ():
        lines = f"{len(api.executed)} of {len(api.lines)} lines"
        found[f"evidence of {api.api}"] = f"{len(api.passing)} cases, {lines}, {', '.join(api.behaviours)}"
    return {name: value for name, value in found.items() if value is not None}


def _package(package: Package) -> str:
    return f"{package.version} ({package.sha256[:12]})" if package.sha256 else package.version


def _slower(before: Mapping[Key, Case], after: Mapping[Key, Case]) -> list[Slower]:
    found = []
    for key, now in after.items():
        was = before.get(key)
        old, new = was.seconds if was else None, now.seconds
        if old is not None and new is not None and new > old * SLOWER_FACTOR and new - old > SLOWER_SECONDS:
            found.append(Slower(case=".".join(key), old=old, new=new))
    return found


def _essence(message: str) -> str:
    """Return a message's last line without what is another in every run."""
    line = last_line(message)
    line = re.sub(r"0x[0-9a-fA-F]+", "0x…", line)
    line = re.sub(r"/tmp/\S+", "/tmp/…", line)
    return re.sub(r"\d+(\.\d+)?", "#", line)
