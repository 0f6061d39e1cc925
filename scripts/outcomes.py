"""The rules: what events make of a case, cases of a run, and runs of a pair. Pure functions, no files, no processes."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .process import Ending
from .results import Case, GuardReport, Outcome, PairResult, Run, State, Verdict

Key = tuple[str, str]
GOOD = {Outcome.PASSED, Outcome.XFAILED, Outcome.FLAKY}
BAD = {Outcome.FAILED, Outcome.ERROR, Outcome.XPASSED, Outcome.CRASHED, Outcome.TIMEOUT}
BAD_STATES = {State.COLLECTION_ERROR, State.CRASHED, State.TIMEOUT}
FIXTURE = re.compile(r"(setUpClass|tearDownClass|setUpModule|tearDownModule) \((?P<what>[^)]*)\)")
MESSAGE_CHARACTERS = 60_000


class _Heard(msgspec.Struct, kw_only=True):
    """What the events say of one case."""

    started: float | None = None
    stopped: float | None = None
    outcomes: list[tuple[Outcome, str]] = []

    def judge(self) -> tuple[Outcome | None, str]:
        """Return the outcome and its message: the first thing that went wrong, with the words of all."""
        wrong = [outcome for outcome, _ in self.outcomes if outcome in (Outcome.FAILED, Outcome.ERROR)]
        rank = [Outcome.XPASSED, Outcome.XFAILED, Outcome.SKIPPED, Outcome.PASSED]
        others = sorted((outcome for outcome, _ in self.outcomes if outcome in rank), key=rank.index)
        outcome = next(iter([*wrong, *others]), None)
        if outcome is Outcome.SKIPPED and any(other is Outcome.PASSED for other in others):
            # Only a sub-test was skipped: the case itself ran to its end.
            outcome = Outcome.PASSED
        words = [message for kind, message in self.outcomes if message and (kind in wrong or not wrong)]
        return outcome, "\n".join(words)[:MESSAGE_CHARACTERS]


def judge(
    file: str, events: Iterable[Mapping[str, Any]], ending: Ending, *, expected: int | None, stacks: str = ""
) -> tuple[Run, list[Case]]:
    """Return the run and its cases that ``events`` and the process's ``ending`` amount to.

    ``expected`` is the least number of cases that proves something; ``stacks`` is where the process hung.
    """
    story = _Story(file)
    for event in events:
        story.hear(event)
    story.apply_fixtures()
    cases = story.cases(ending)
    state, reason = _state(story, cases, ending, expected)
    run = Run(
        file=file,
        state=state,
        tests=len(cases),
        expected=expected,
        seconds=round(ending.seconds, 3),
        outcomes=count(cases),
        reason=reason,
        broken_fixtures=story.broken_fixtures(),
        findings=story.findings(cases, ending, expected),
        exit_status=ending.returncode,
        ran=story.end.get("ran"),
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

    A case that passed only the second time is ``flaky`` and keeps its first message; nothing becomes ``passed``.
    """
    before = {case.key: case for case in first[1]}
    cases = []
    for case in second[1]:
        was = before.get(case.key)
        if was is not None and was.outcome not in GOOD | {Outcome.SKIPPED} and case.outcome is Outcome.PASSED:
            words = f"passed on attempt {first[0].attempts + 1}; first {was.outcome.value}: {was.message}"
            case = msgspec.structs.replace(case, outcome=Outcome.FLAKY, message=words)
        elif was is not None and was.outcome is Outcome.FLAKY and case.outcome is Outcome.PASSED:
            case = was
        elif was is not None and case.outcome in BAD and was.outcome is Outcome.PASSED:
            case = msgspec.structs.replace(case, message=f"passed on an earlier attempt, then: {case.message}")
        cases.append(case)
    findings = [
        *second[0].findings,
        f"attempt {first[0].attempts}: {first[0].state.value}, {first[0].reason or 'failed cases'}",
    ]
    run = msgspec.structs.replace(second[0], outcomes=count(cases), attempts=first[0].attempts + 1, findings=findings)
    return run, cases


def is_clean(run: Run) -> bool:
    """Return whether a run has nothing that a rerun could mend."""
    return (
        run.state is State.COMPLETE
        and not any(run.outcomes.get(outcome.value) for outcome in BAD)
        and not run.broken_fixtures
    )


def verdict(runs: Sequence[Run], *, blocked: str = "", sample: bool = False) -> tuple[Verdict, str]:
    """Return the verdict of a pair and its reason. Worst wins, and nothing absent is ever good."""
    if blocked:
        return Verdict.BLOCKED, blocked
    failed = []
    for run in runs:
        bad = {name: number for name, number in run.outcomes.items() if Outcome(name) in BAD}
        words = [f"{number} {name}" for name, number in bad.items()]
        if run.state in BAD_STATES:
            words.insert(0, f"{run.state.value} ({run.reason})" if run.reason else run.state.value)
        words += run.broken_fixtures
        if words:
            failed.append(f"{run.file}: {', '.join(words)}")
    if failed:
        return Verdict.FAILED, "; ".join(failed)
    if hollow := [f"{run.file}: {run.reason}" for run in runs if run.state is State.HOLLOW]:
        return Verdict.HOLLOW, "; ".join(hollow)
    missing = [
        f"{run.file}: {run.reason or 'not run'}"
        for run in runs
        if run.state is not State.COMPLETE or run.outcomes.get(Outcome.NOT_RUN.value)
    ]
    if missing or not runs:
        return Verdict.NOT_RUN, "; ".join(missing) or "no test file was run"
    total = Counter[str]()
    for run in runs:
        total.update(run.outcomes)
    told = ", ".join(f"{number} {name}" for name, number in total.items() if Outcome(name) in GOOD | {Outcome.SKIPPED})
    return (Verdict.SAMPLE_OK if sample else Verdict.VERIFIED), told


def verdict_of(result: PairResult) -> tuple[Verdict, str]:
    """Return the verdict that a result's own records amount to."""
    return verdict(result.runs, blocked=result.blocked.cause if result.blocked else "", sample=result.is_sample)


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


# Helpers


class _Story:
    """The events of one run, by case."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.module = file.rpartition("/")[2].removesuffix(".py")
        self.pid: int | None = None
        self.planned: list[Key] | None = None
        self.heard: dict[Key, _Heard] = {}
        self.turns: Counter[Key] = Counter()
        self.current: Key | None = None
        self.end: dict[str, Any] = {}
        self.times: list[float] = []
        self.collection_errors: list[str] = []
        self.module_skip: str | None = None
        self.fixtures: list[tuple[str, Outcome, str]] = []
        self.foreign = 0

    def hear(self, event: Mapping[str, Any]) -> None:
        kind = event.get("event")
        if kind == "begin" and self.pid is None:
            self.pid = event.get("pid")
        if event.get("pid") != self.pid:
            # A forked child that came back into the runner tells the same tests over again.
            self.foreign += 1
            return
        time = float(event.get("t") or 0.0)
        match kind:
            case "planned":
                turns: Counter[Key] = Counter()
                self.planned = [_turn(_key(case), turns) for case in event["cases"]]
                self.times.append(time)
            case "start":
                self.current = _turn(_key(event["case"]), self.turns)
                self.heard[self.current] = _Heard(started=time, outcomes=[])
            case "stop":
                if self.current:
                    self.heard[self.current].stopped = time
                self.current = None
            case "outcome":
                key = self.current or _key(event["case"])
                heard = self.heard.setdefault(key, _Heard(outcomes=[]))
                message = str(event["message"])
                if event.get("subtest"):
                    message = f"sub-test {event['subtest']}: {message}"
                heard.outcomes.append((Outcome(event["outcome"]), message))
            case "fixture":
                self.fixtures.append((str(event["fixture"]), Outcome(event["outcome"]), str(event["message"])))
            case "collection-error":
                self.collection_errors.append(str(event["message"]))
            case "module-skipped":
                self.module_skip = str(event["message"])
            case "end":
                self.end = dict(event)
                self.times.append(time)

    def apply_fixtures(self) -> None:
        """Give the cases that a class or module fixture took down the fixture's outcome and words."""
        for name, outcome, message in self.fixtures:
            match = FIXTURE.fullmatch(name)
            if not match or not match[1].startswith("setUp"):
                continue
            for key in self.planned or ():
                cls = key[0] if "." in key[0] and key[0].startswith(self.module) else f"{self.module}.{key[0]}"
                whole_module = match[1] == "setUpModule"
                if key not in self.heard and (whole_module or match["what"] in (cls, key[0], f"__main__.{key[0]}")):
                    self.heard[key] = _Heard(outcomes=[(outcome, f"{name}: {message}")])

    def cases(self, ending: Ending) -> list[Case]:
        """Return every case that was planned or heard of; what was running when the process ended is to blame."""
        cases = []
        for key in dict.fromkeys([*(self.planned or ()), *self.heard]):
            heard = self.heard.get(key, _Heard(outcomes=[]))
            outcome, message = heard.judge()
            if key == self.current:
                how = how_it_ended(ending)
                outcome = (
                    Outcome.TIMEOUT if ending.timed_out else Outcome.NOT_RUN if ending.interrupted else Outcome.CRASHED
                )
                message = "\n".join(part for part in (how, message) if part)
            elif outcome is None:
                outcome, message = Outcome.NOT_RUN, self._why_not_run(heard, ending)
            seconds = (
                round(heard.stopped - heard.started, 6)
                if heard.started is not None and heard.stopped is not None
                else None
            )
            cases.append(
                Case(file=self.file, cls=key[0], name=key[1], outcome=outcome, seconds=seconds, message=message)
            )
        return cases

    def _why_not_run(self, heard: _Heard, ending: Ending) -> str:
        if heard.started is not None:
            return "it started and ended, but no outcome was reported"
        if self.end:
            return "planned, but never reported"
        return f"not reached: {how_it_ended(ending)}"

    def findings(self, cases: Sequence[Case], ending: Ending, expected: int | None) -> list[str]:
        """Return what a reader should know beside the cases."""
        found = []
        unplanned = sorted(set(self.heard) - set(self.planned or ()))
        if self.planned is not None and unplanned:
            found.append(f"reported but not planned: {', '.join('.'.join(key) for key in unplanned)}")
        silent = [key for key in self.planned or () if key not in self.heard]
        if self.end and silent:
            found.append(f"planned but never reported: {', '.join('.'.join(key) for key in silent)}")
        if self.foreign:
            found.append("a forked child came back into the test runner; what it reported is left out")
        if ending.leftovers:
            found.append(f"left behind and ended: {', '.join(ending.leftovers)}")
        if ending.log_cut:
            found.append(f"{ending.log_cut} bytes are left out of the log's middle")
        if expected is not None and len(cases) > expected:
            found.append(f"{len(cases)} cases, matrix.toml expects {expected}: raise the number there")
        return found

    def broken_fixtures(self) -> list[str]:
        """Return the fixtures that failed after their cases had passed: no case shows it."""
        return [
            f"{name}: {outcome.value}: {_last_line(message)}"
            for name, outcome, message in self.fixtures
            if name.startswith("tearDown") and outcome in BAD
        ]

    def unittest_seconds(self) -> float | None:
        return round(self.times[-1] - self.times[0], 3) if self.end and len(self.times) > 1 else None


def _key(pair: Sequence[str]) -> Key:
    return (str(pair[0]), str(pair[1]))


def _turn(key: Key, turns: Counter[Key]) -> Key:
    """Return the key with its number if the same test is loaded more than once: ``test_a [2]``."""
    turns[key] += 1
    return key if turns[key] == 1 else (key[0], f"{key[1]} [{turns[key]}]")


def how_it_ended(ending: Ending) -> str:
    """Return a process's ending in words."""
    if ending.timed_out:
        return f"ended at the time limit after {ending.seconds:.0f} s"
    if ending.interrupted:
        return ending.error or "interrupted"
    if ending.returncode is None:
        return f"could not be started: {ending.error}"
    if ending.returncode < 0:
        return f"ended by {signal_name(-ending.returncode)}"
    return f"exited with {ending.returncode} in the middle"


def _state(story: _Story, cases: Sequence[Case], ending: Ending, expected: int | None) -> tuple[State, str]:
    """Return the state of a run and why it is not ``complete``."""
    if ending.interrupted:
        return State.NOT_RUN, how_it_ended(ending)
    if ending.timed_out:
        return State.TIMEOUT, how_it_ended(ending)
    if story.collection_errors:
        return State.COLLECTION_ERROR, _last_line(story.collection_errors[0])
    if story.module_skip is not None:
        return State.HOLLOW, f"the whole file is skipped: {story.module_skip}"
    if not story.end:
        where = "" if story.planned is not None else ", before a case was planned"
        return State.CRASHED, how_it_ended(ending) + where
    if ending.returncode not in (0, 1, 5):
        how = how_it_ended(ending).removesuffix(" in the middle")
        return State.CRASHED, f"{how} after the last case"
    if ending.returncode == 1 and story.end.get("ok"):
        return State.CRASHED, "exited with 1 though no case failed"
    if not cases:
        return State.HOLLOW, f"0 tests, {_of(expected)}"
    if all(case.outcome is Outcome.SKIPPED for case in cases):
        reasons = "; ".join(dict.fromkeys(case.message for case in cases))
        return State.HOLLOW, f"all {len(cases)} skipped: {reasons}"
    if expected is not None and len(cases) < expected:
        return State.HOLLOW, f"{len(cases)} tests, {_of(expected)}"
    return State.COMPLETE, ""


def _of(expected: int | None) -> str:
    return f"{expected} expected" if expected is not None else "none expected"


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
