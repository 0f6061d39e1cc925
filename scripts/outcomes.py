"""The rules: what events make of a case, cases of a run, and runs of a pair. Pure functions, no files, no processes."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from .process import Ending
from .results import Case, GuardReport, Outcome, PairResult, Run, State, Verdict

Key = tuple[str, str]
GOOD = {Outcome.PASSED, Outcome.XFAILED, Outcome.FLAKY}
BAD = {Outcome.FAILED, Outcome.ERROR, Outcome.XPASSED, Outcome.CRASHED, Outcome.TIMEOUT}
BAD_STATES = {State.COLLECTION_ERROR, State.CRASHED, State.TIMEOUT}
# Of what unittest can say of one case the worst counts; of failures and errors the first.
WORST_FIRST = (Outcome.XPASSED, Outcome.SKIPPED, Outcome.XFAILED, Outcome.PASSED)
# unittest since Python 3.12: nothing was run.
EXIT_NO_TESTS = 5
MESSAGE_CHARACTERS = 60_000
# Once the cases of one run have said so much, each message is cut to the second figure: a result must stay readable.
RUN_CHARACTERS, LATE_CHARACTERS = 32 << 20, 1000


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line from the test process: what happened, in which process, ``t`` seconds after its begin."""

    event: Literal[
        "begin", "planned", "start", "stop", "outcome", "fixture", "collection-error", "module-skipped", "end", "unread"
    ]
    pid: int
    t: float = 0.0
    case: Key = ("", "")
    cases: list[Key] = []
    outcome: Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"] = "error"
    message: str = ""
    subtest: str = ""
    fixture: str = ""
    ran: int = 0
    ok: bool = False


def read_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of JSON lines; whatever else a line holds is an event called ``unread``.

    A last line without an end is left out: a SIGKILL cut it short.
    """
    for line in lines:
        if line.endswith(b"\n") and line.strip():
            try:
                yield msgspec.json.decode(line, type=Event)
            except (msgspec.DecodeError, RecursionError):
                yield Event(event="unread", pid=0)


def judge(
    file: str,
    events: Iterable[Event],
    ending: Ending,
    *,
    expected: int | None,
    limit: float | None = None,
    stacks: str = "",
) -> tuple[Run, list[Case]]:
    """Return the run and its cases that ``events`` and the process's ``ending`` amount to.

    ``expected`` is the least number of cases that proves something; ``stacks`` is where the process hung.
    """
    story = _Story(ending, limit, stacks)
    for event in events:
        story.hear(event)
    story.apply_fixtures()
    cases = story.cases(file)
    state, reason = _state(story, cases, expected)
    run = Run(
        file=file,
        state=state,
        tests=len(cases),
        expected=expected,
        seconds=round(ending.seconds, 3),
        outcomes=count(cases),
        reason=reason,
        broken_fixtures=story.broken_fixtures,
        findings=story.findings(cases, expected),
        exit_status=ending.returncode,
        ran=story.end.ran if story.end else None,
        unittest_seconds=story.unittest_seconds(),
        stacks=stacks,
    )
    return run, cases


def count(cases: Iterable[Case]) -> dict[str, int]:
    """Return how many cases have which outcome, in the order of Outcome, without those that none has."""
    counted = Counter(case.outcome for case in cases)
    return {outcome.value: counted[outcome] for outcome in Outcome if counted[outcome]}


def after_rerun(first: tuple[Run, list[Case]], second: tuple[Run, list[Case]]) -> tuple[Run, list[Case]]:
    """Return what a run amounts to whose file ran again because it had failed.

    A case that was good the second time only is ``flaky`` and keeps its first message; no case is lost.
    """
    number = first[0].attempts + 1
    before = {case.key: case for case in first[1]}
    after = {case.key: case for case in second[1]}
    cases = [
        _after_rerun(before.get(key), after.get(key), first[0], number) for key in dict.fromkeys([*after, *before])
    ]
    missing = [case for key, case in before.items() if key not in after]
    words = [first[0].reason, *first[0].broken_fixtures, *_counted(first[0], BAD | {Outcome.NOT_RUN})]
    findings = [
        *second[0].findings,
        *([f"not in attempt {number}: {_names(case.key[1:] for case in missing)}"] if missing else []),
        *(finding for finding in first[0].findings if finding.startswith("attempt ")),
        f"attempt {first[0].attempts}: {first[0].state.value}: {', '.join(word for word in words if word)}",
    ]
    run = msgspec.structs.replace(
        second[0], tests=len(cases), outcomes=count(cases), attempts=number, findings=findings
    )
    return run, cases


def has_failed(run: Run) -> bool:
    """Return whether a run has anything that another attempt could mend."""
    return run.state in BAD_STATES or bool(run.broken_fixtures or _counted(run, BAD | {Outcome.NOT_RUN}))


def verdict(
    runs: Sequence[Run], *, blocked: str = "", sample: bool = False, lacks: Sequence[str] = ()
) -> tuple[Verdict, str]:
    """Return the verdict of a pair and its reason. Worst wins, and nothing absent is ever good.

    ``lacks`` says what evidence of an API is missing: then the runs prove nothing of it, however well they went.
    """
    if blocked:
        return Verdict.BLOCKED, blocked
    failed = []
    for run in runs:
        words = _counted(run, BAD)
        if run.state in BAD_STATES:
            words.insert(0, f"{run.state.value} ({run.reason})" if run.reason else run.state.value)
        words += run.broken_fixtures
        if words:
            failed.append(f"{run.file}: {', '.join(words)}")
    if failed:
        return Verdict.FAILED, "; ".join(failed)
    if hollow := [f"{run.file}: {run.reason or 'no case passed'}" for run in runs if _proves_nothing(run)]:
        return Verdict.HOLLOW, "; ".join(hollow)
    missing = [
        f"{run.file}: {run.reason or ', '.join(_counted(run, {Outcome.NOT_RUN})) or 'not run'}"
        for run in runs
        if run.state is not State.COMPLETE or _counted(run, {Outcome.NOT_RUN})
    ]
    if missing or not runs:
        return Verdict.NOT_RUN, "; ".join(missing) or "no test file was run"
    if lacks:
        return Verdict.HOLLOW, "; ".join(lacks)
    total = Counter[str]()
    for run in runs:
        total.update(run.outcomes)
    told = [f"{number} {name}" for name, number in total.items() if number > 0]
    told += [f"{run.file} in {run.attempts} attempts" for run in runs if run.attempts > 1]
    return (Verdict.SAMPLE_OK if sample else Verdict.VERIFIED), ", ".join(told)


def verdict_of(result: PairResult) -> tuple[Verdict, str]:
    """Return the verdict that a result's own records amount to."""
    return verdict(
        result.runs,
        blocked=result.blocked.cause if result.blocked else "",
        sample=result.is_sample,
        lacks=result.evidence.problems if result.evidence else (),
    )


def guard_effect(guards: GuardReport) -> int:
    """Return how many cases a patch restores, over all machines; negative if it loses some anywhere."""
    changes = [entry.patched - entry.unpatched for entry in guards.counts if entry.patched is not None]
    return min(changes) if any(change < 0 for change in changes) else sum(changes)


def signal_name(number: int) -> str:
    """Return SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_line(text: str) -> str:
    """Return the last line of a text that says anything: of a traceback, the exception."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


# Helpers


class _Heard(msgspec.Struct, kw_only=True):
    """What the events say of one case."""

    started: float | None = None
    stopped: float | None = None
    outcomes: list[tuple[Outcome, str]] = []

    def add(self, outcome: str, message: str) -> None:
        self.outcomes.append((Outcome(outcome), message))

    def judge(self) -> tuple[Outcome | None, str]:
        """Return the outcome and its message: the first thing that went wrong, with the words of all."""
        told = [outcome for outcome, _ in self.outcomes]
        wrong = [outcome for outcome in told if outcome in (Outcome.FAILED, Outcome.ERROR)]
        outcome = next(iter([*wrong, *(outcome for outcome in WORST_FIRST if outcome in told)]), None)
        words = [message for kind, message in self.outcomes if message and (kind in wrong or not wrong)]
        return outcome, "\n".join(words)

    @property
    def seconds(self) -> float | None:
        if self.started is None or self.stopped is None:
            return None
        return round(max(0.0, self.stopped - self.started), 6)


class _Story:
    """The events of one run, by case."""

    def __init__(self, ending: Ending, limit: float | None, stacks: str) -> None:
        self.ending = ending
        self.how = how_it_ended(ending, limit)
        self.stacks = stacks
        self.pid: int | None = None
        self.planned: dict[Key, Key] = {}
        self.began: float | None = None
        self.heard: dict[Key, _Heard] = {}
        self.turns: Counter[Key] = Counter()
        self.running: list[tuple[Key, Key]] = []
        self.last: Key | None = None
        self.end: Event | None = None
        self.collection_errors: list[str] = []
        self.module_skip: str | None = None
        self.fixtures: list[Event] = []
        self.broken_fixtures: list[str] = []
        self.foreign = 0
        self.unread = 0

    def hear(self, event: Event) -> None:
        if event.event == "unread":
            self.unread += 1
            return
        if self.pid is None:
            self.pid = event.pid
        if event.pid != self.pid:
            # A forked child that came back into the runner tells the same tests over again.
            self.foreign += 1
            return
        match event.event:
            case "planned":
                turns: Counter[Key] = Counter()
                self.planned |= {_turn(case, turns): case for case in event.cases}
                self.began = event.t
            case "start":
                self.last = _turn(event.case, self.turns)
                self.running.append((self.last, event.case))
                self.heard[self.last] = _Heard(started=event.t)
            case "stop":
                key = self._running(event.case)
                if key:
                    self.running.remove((key, event.case))
                    self.heard[key].stopped = event.t
            case "outcome":
                # Python 3.12.1 skips without a start.
                key = self._running(event.case) or _turn(event.case, self.turns)
                words = f"sub-test {event.subtest}: {event.message}" if event.subtest else event.message
                self.heard.setdefault(key, _Heard()).add(event.outcome, words)
            case "fixture":
                self.fixtures.append(event)
            case "collection-error":
                self.collection_errors.append(event.message)
            case "module-skipped":
                self.module_skip = event.message
            case "end":
                self.end = event

    def _running(self, case: Key) -> Key | None:
        return next((key for key, base in reversed(self.running) if base == case), None)

    def apply_fixtures(self) -> None:
        """Give the cases that a class or module set-up took down its outcome and words; what took down none is told."""
        taken = {key for key in self.planned if key not in self.heard}
        for event in self.fixtures:
            below = set(event.cases)
            keys = [key for key in taken if self.planned[key] in below]
            for key in keys:
                self.heard.setdefault(key, _Heard()).add(event.outcome, f"{event.fixture}: {event.message}")
            if not keys and Outcome(event.outcome) in BAD:
                self.broken_fixtures.append(f"{event.fixture}: {event.outcome}: {last_line(event.message)}")

    def cases(self, file: str) -> list[Case]:
        """Return every case that was planned or heard of; what was running when the process ended is to blame."""
        blamed = set() if self.end else {key for key, _ in self.running}
        if not self.end and self.last and not self.heard[self.last].outcomes:
            # A KeyboardInterrupt goes through unittest, which then says nothing but that the test has stopped.
            blamed.add(self.last)
        cases = []
        room = RUN_CHARACTERS
        for key in dict.fromkeys([*self.planned, *self.heard]):
            heard = self.heard.get(key, _Heard())
            outcome, message = heard.judge()
            if key in blamed:
                outcome = self._blame()
                words = [message, self.stacks if outcome is Outcome.TIMEOUT else "", self._how_in_the_middle()]
                message = "\n".join(word for word in words if word)
            elif outcome is None:
                outcome, message = Outcome.NOT_RUN, self._why_not_run(heard)
            message = _cut(message, MESSAGE_CHARACTERS if room > 0 else LATE_CHARACTERS)
            room -= len(message)
            cases.append(
                Case(file=file, cls=key[0], name=key[1], outcome=outcome, seconds=heard.seconds, message=message)
            )
        return cases

    def _blame(self) -> Outcome:
        if self.ending.timed_out:
            return Outcome.TIMEOUT
        return Outcome.NOT_RUN if self.ending.interrupted else Outcome.CRASHED

    def _how_in_the_middle(self) -> str:
        # An early exit looks like an end; a signal or a time limit speaks for itself.
        return f"{self.how} in the middle" if self.how.startswith("exited") else self.how

    def _why_not_run(self, heard: _Heard) -> str:
        if heard.started is not None:
            return "it started, but no outcome was reported"
        return "planned, but never reported" if self.end else f"not reached: {self.how} {self.where()}"

    def where(self) -> str:
        """Return where in the run the process ended."""
        if self.end:
            return "after the last case"
        if self.running:
            return f"in {_names([self.running[-1][0]])}"
        if self.last:
            return f"after {_names([self.last])}"
        return "before the first case" if self.began is not None else "before a case was planned"

    def findings(self, cases: Sequence[Case], expected: int | None) -> list[str]:
        """Return what a reader should know beside the cases."""
        ending = self.ending
        unplanned = [key for key in self.heard if key not in self.planned] if self.began is not None else []
        silent = [key for key in self.planned if key not in self.heard] if self.end else []
        too_many = expected is not None and len(cases) > expected
        found = {
            f"reported but not planned: {_names(unplanned)}": unplanned,
            f"planned but never reported: {_names(silent)}": silent,
            "a forked child came back into the test runner; what it reported is left out": self.foreign,
            f"{self.unread} events could not be read": self.unread,
            f"left behind and ended: {_counted_names(ending.leftovers)}": ending.leftovers,
            f"could not be ended: {_counted_names(ending.survivors)}": ending.survivors,
            f"{ending.log_cut} bytes are left out of the log's middle": ending.log_cut,
            f"the log is not whole: {ending.log_error}": ending.log_error,
            f"{len(cases)} cases, matrix.toml expects {expected}: raise the number there": too_many,
        }
        return [words for words, is_so in found.items() if is_so]

    def unittest_seconds(self) -> float | None:
        return round(max(0.0, self.end.t - self.began), 3) if self.end and self.began is not None else None


def _turn(key: Key, turns: Counter[Key]) -> Key:
    """Return the key with its number if the same test is loaded more than once: ``test_a [2]``."""
    turns[key] += 1
    return key if turns[key] == 1 else (key[0], f"{key[1]} [{turns[key]}]")


def how_it_ended(ending: Ending, limit: float | None = None) -> str:
    """Return a process's ending in words."""
    if ending.timed_out:
        return "ended at the time limit" + (f" of {limit:g} s" if limit is not None else "")
    if ending.interrupted:
        return "interrupted"
    if ending.error:
        return ending.error if ending.returncode is not None else f"could not be started: {ending.error}"
    if ending.returncode is None:
        return "could not be ended"
    if ending.returncode < 0:
        return f"ended by {signal_name(-ending.returncode)}"
    return f"exited with {ending.returncode}"


def _state(story: _Story, cases: Sequence[Case], expected: int | None) -> tuple[State, str]:
    """Return the state of a run and why it is not ``complete``."""
    ending, end = story.ending, story.end
    if ending.interrupted:
        return State.NOT_RUN, story.how
    if ending.timed_out:
        return State.TIMEOUT, f"{story.how} {story.where()}"
    if story.collection_errors:
        return State.COLLECTION_ERROR, last_line(story.collection_errors[0])
    if story.module_skip is not None:
        return State.HOLLOW, f"the whole file is skipped: {story.module_skip}"
    if not end:
        return State.CRASHED, f"{story.how} {story.where()}"
    usual = {0 if end.ok else 1, *([EXIT_NO_TESTS] if end.ran == 0 else [])}
    if ending.returncode not in usual:
        return State.CRASHED, f"{story.how} after the last case, where unittest exits with {min(usual)}"
    if not end.ok and not story.broken_fixtures and not any(case.outcome in BAD for case in cases):
        return State.CRASHED, "unittest calls the run failed, though no case that was reported is"
    if not cases:
        return State.HOLLOW, f"0 tests, {_of(expected)}"
    if all(case.outcome is Outcome.SKIPPED for case in cases):
        reasons = "; ".join(dict.fromkeys(case.message for case in cases))
        return State.HOLLOW, f"all {len(cases)} skipped: {reasons[:LATE_CHARACTERS]}"
    if expected is not None and len(cases) < expected:
        return State.HOLLOW, f"{len(cases)} tests, {_of(expected)}"
    return State.COMPLETE, ""


def _after_rerun(before: Case | None, after: Case | None, first: Run, number: int) -> Case:
    """Return what one case amounts to; ``number`` is that of the second attempt, ``first`` the run before it."""
    if after is None:
        assert before is not None
        return before
    if before is None:
        before = msgspec.structs.replace(after, outcome=Outcome.NOT_RUN, message=first.reason)
    was_good = before.outcome in (Outcome.PASSED, Outcome.XFAILED)
    earlier = f"attempt {first.attempts} {before.outcome.value}: {before.message}"
    if before.outcome is Outcome.FLAKY and after.outcome in GOOD | {Outcome.SKIPPED}:
        return before
    if after.outcome in GOOD:
        words = _cut(f"{after.outcome.value} on attempt {number}\n{earlier}", MESSAGE_CHARACTERS)
        return after if was_good else msgspec.structs.replace(after, outcome=Outcome.FLAKY, message=words)
    if (before.outcome, before.message) == (after.outcome, after.message):
        return after
    words = _cut(f"{earlier}\nattempt {number} {after.outcome.value}: {after.message}", MESSAGE_CHARACTERS)
    # One that is skipped or not reached later on takes back no failure.
    return msgspec.structs.replace(
        before if before.outcome in BAD and after.outcome not in BAD else after, message=words
    )


def _proves_nothing(run: Run) -> bool:
    return run.state is State.HOLLOW or (run.state is State.COMPLETE and not _counted(run, GOOD | {Outcome.NOT_RUN}))


def _cut(text: str, limit: int) -> str:
    """Return the start and the end of a long text: its last line is often the telling one."""
    if len(text) <= limit:
        return text
    note = f"\n[... {len(text)} characters in all ...]\n"
    half = (limit - len(note)) // 2
    return text[:half] + note + text[-half:]


def _counted(run: Run, outcomes: Iterable[Outcome]) -> list[str]:
    """Return how many cases of a run have one of ``outcomes``, in words."""
    names = {outcome.value for outcome in outcomes}
    return [f"{number} {name}" for name, number in run.outcomes.items() if name in names and number > 0]


def _counted_names(names: Iterable[str]) -> str:
    return ", ".join(name if number == 1 else f"{name} ({number})" for name, number in sorted(Counter(names).items()))


def _names(keys: Iterable[Key]) -> str:
    return ", ".join(".".join(key) for key in keys)


def _of(expected: int | None) -> str:
    return f"{expected} expected" if expected is not None else "none expected"
