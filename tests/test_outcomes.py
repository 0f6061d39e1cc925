"""The rules as truth tables: outcome of a case, state of a run, verdict of a pair, and what a rerun changes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import outcomes
from scripts.outcomes import BAD, BAD_STATES, GOOD
from scripts.process import Ending
from scripts.results import Case, Outcome, Run, State, Verdict

FILE = "test/api_test.py"
SIX = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def judge(
    *events: dict[str, Any] | bytes, returncode: int | None = 0, expected: int | None = None, **ending: Any
) -> tuple[Run, list[Case]]:
    """Judge events as the test process would have written them; each is of process 1 unless it says otherwise."""
    lines = [
        event if isinstance(event, bytes) else json.dumps({"pid": 1, **event}).encode() + b"\n" for event in events
    ]
    ended = Ending(returncode=returncode, seconds=1.0, **ending)
    return outcomes.judge(FILE, outcomes.read_events(lines), ended, expected=expected)


def planned(*names: str) -> dict[str, Any]:
    return {"event": "planned", "cases": [["T", name] for name in names]}


def ran(name: str, *told: str, t: float = 0.0, seconds: float = 0.5) -> list[dict[str, Any]]:
    """Return the events of a case that unittest said ``told`` of."""
    case = {"case": ["T", name]}
    return [
        {"event": "start", "t": t, **case},
        *({"event": "outcome", "outcome": outcome, "message": f"{outcome} words", **case} for outcome in told),
        {"event": "stop", "t": t + seconds, **case},
    ]


def end(ran: int = 1, *, ok: bool = True) -> dict[str, Any]:
    return {"event": "end", "ran": ran, "ok": ok}


def told(cases: list[Case]) -> dict[str, str]:
    return {f"{case.cls}.{case.name}": case.outcome.value for case in cases}


# A case


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        *(((outcome,), outcome) for outcome in SIX),
        # Of failures and errors the first counts, and either before all else.
        (("failed", "error"), "failed"),
        (("error", "failed"), "error"),
        *(((other, "failed"), "failed") for other in SIX if other != "error"),
        *(((other, "error"), "error") for other in SIX if other != "failed"),
        # Of the rest the worst.
        (("passed", "skipped"), "skipped"),
        (("passed", "xfailed"), "xfailed"),
        (("skipped", "xpassed"), "xpassed"),
        (("passed", "xpassed"), "xpassed"),
        (("xfailed", "skipped"), "skipped"),
        ((), "not-run"),
    ],
)
def test_outcome_of_a_case(said: tuple[str, ...], outcome: str) -> None:
    assert told(judge(planned("test_a"), *ran("test_a", *said), end())[1]) == {"T.test_a": outcome}


def test_message_has_the_words_of_everything_that_went_wrong_and_of_nothing_else() -> None:
    case = judge(planned("test_a"), *ran("test_a", "skipped", "failed", "error"), end())[1][0]
    assert case.message == "failed words\nerror words"


def test_sub_test_is_named_in_the_message() -> None:
    events = ran("test_a", "failed")
    events[1]["subtest"] = "(i=1)"
    assert judge(planned("test_a"), *events, end())[1][0].message == "sub-test (i=1): failed words"


def test_seconds_are_those_between_start_and_stop() -> None:
    events = [*ran("test_a", "passed", t=2.0, seconds=0.25), *ran("test_b", "passed", seconds=-1.0)]
    run, cases = judge(planned("test_a", "test_b", "test_c"), *events, {**end(), "t": 9.5})
    assert [case.seconds for case in cases] == [0.25, 0.0, None]
    assert run.unittest_seconds == 9.5
    assert judge({**planned(), "t": 9.5}, end(0))[0].unittest_seconds == 0.0


@pytest.mark.parametrize(
    ("ending", "outcome", "message"),
    [
        ({"returncode": -9}, "crashed", "ended by SIGKILL"),
        ({"returncode": -64}, "crashed", "ended by SIGRTMAX"),
        ({"returncode": -63}, "crashed", "ended by signal 63"),
        ({"returncode": 0}, "crashed", "exited with 0 in the middle"),
        ({"returncode": 3}, "crashed", "exited with 3 in the middle"),
        ({"returncode": -9, "error": "its warden was killed"}, "crashed", "its warden was killed"),
        ({"returncode": -9, "timed_out": True}, "timeout", "ended at the time limit"),
        ({"returncode": None, "timed_out": True}, "timeout", "ended at the time limit"),
        ({"returncode": -9, "interrupted": True}, "not-run", "interrupted"),
    ],
)
def test_what_was_running_at_the_end_is_to_blame(ending: dict[str, Any], outcome: str, message: str) -> None:
    events = [planned("test_a", "test_b", "test_c"), *ran("test_a", "passed"), ran("test_b")[0]]
    cases = judge(*events, **ending)[1]
    assert told(cases) == {"T.test_a": "passed", "T.test_b": outcome, "T.test_c": "not-run"}
    assert cases[1].message == message
    assert cases[2].message.startswith("not reached: ")


def test_what_a_case_said_before_it_crashed_stays() -> None:
    case = judge(planned("test_a"), *ran("test_a", "failed")[:-1], returncode=-11)[1][0]
    assert (case.outcome, case.message) == (Outcome.CRASHED, "failed words\nended by SIGSEGV")


@pytest.mark.parametrize(
    ("events", "ending", "right"),
    [
        # A KeyboardInterrupt: unittest says that the test has stopped, and nothing more.
        (ran("test_a"), {"returncode": -2}, "crashed"),
        (ran("test_a", "passed"), {"returncode": -2}, "passed"),
        ([*ran("test_a"), end()], {}, "not-run"),
        # What has an end was not running then.
        ([*ran("test_a", "passed")[:-1], end()], {}, "passed"),
    ],
)
def test_who_is_to_blame_beside_what_was_running(
    events: list[dict[str, Any]], ending: dict[str, Any], right: str
) -> None:
    assert told(judge(planned("test_a"), *events, **ending)[1]) == {"T.test_a": right}


def test_a_case_within_another_of_the_same_name_has_its_own_outcome() -> None:
    inner, outer = ran("test_a", "failed"), ran("test_a", "passed")
    cases = judge(planned("test_a"), outer[0], *inner, *outer[1:], end())[1]
    assert told(cases) == {"T.test_a": "passed", "T.test_a [2]": "failed"}


def test_a_nested_case_and_the_one_around_it_are_both_to_blame() -> None:
    run, cases = judge(planned("test_a"), ran("test_a")[0], ran("test_inner")[0], returncode=-9)
    assert told(cases) == {"T.test_a": "crashed", "T.test_inner": "crashed"}
    assert run.reason == "ended by SIGKILL in T.test_inner"


def test_stack_of_a_hang_stands_in_its_case() -> None:
    events = outcomes.read_events([json.dumps({"pid": 1, "event": "start", "case": ["T", "test_a"]}).encode() + b"\n"])
    ending = Ending(returncode=-9, seconds=9.0, timed_out=True)
    run, cases = outcomes.judge(FILE, events, ending, expected=None, limit=8.5, stacks="File x, line 1")
    assert cases[0].message == "File x, line 1\nended at the time limit of 8.5 s"
    assert run.stacks == "File x, line 1"


@pytest.mark.parametrize("outcome", ["error", "skipped"])
def test_set_up_takes_its_own_cases_down_and_no_other(outcome: str) -> None:
    fixture = {"event": "fixture", "fixture": "setUpClass (api_test.T)", "outcome": outcome, "message": "no device"}
    run, cases = judge(
        planned("test_a", "test_b", "test_c"),
        *ran("test_a", "passed"),
        {**fixture, "cases": [["T", "test_a"], ["T", "test_b"]]},
        end(ok=outcome == "skipped"),
        returncode=int(outcome == "error"),
    )
    assert run.broken_fixtures == []
    assert told(cases) == {"T.test_a": "passed", "T.test_b": outcome, "T.test_c": "not-run"}
    assert cases[1].message == "setUpClass (api_test.T): no device"


# A run


@pytest.mark.parametrize(
    ("events", "ending", "expected", "state", "reason"),
    [
        ([planned("a"), *ran("a", "passed"), end()], {}, 1, "complete", ""),
        ([planned("a"), *ran("a", "failed"), end(ok=False)], {"returncode": 1}, 1, "complete", ""),
        ([planned("a"), *ran("a", "xfailed"), end()], {}, 1, "complete", ""),
        ([planned("a"), *ran("a", "passed"), end()], {}, None, "complete", ""),
        ([planned("a"), *ran("a", "passed"), end()], {}, 2, "hollow", "1 tests, 2 expected"),
        ([planned("a"), *ran("a", "skipped"), end()], {}, 1, "hollow", "all 1 skipped: skipped words"),
        ([planned(), end(0)], {}, 14, "hollow", "0 tests, 14 expected"),
        ([planned(), end(0)], {"returncode": 5}, None, "hollow", "0 tests, none expected"),
        ([planned(), end(0, ok=False)], {"returncode": 5}, 1, "crashed", "unittest calls the run failed"),
        ([{"event": "module-skipped", "message": "why"}], {"returncode": 1}, 1, "hollow", "skipped: why"),
        ([{"event": "collection-error", "message": "x\nE: y"}], {"returncode": 1}, 1, "collection-error", "E: y"),
        # Whatever unittest says, the exit status must be the one that goes with it.
        ([planned("a"), *ran("a", "passed"), end()], {"returncode": 1}, 1, "crashed", "exited with 1 after the last"),
        ([planned("a"), *ran("a", "passed"), end()], {"returncode": 5}, 1, "crashed", "exited with 5 after the last"),
        ([planned("a"), *ran("a", "passed"), end()], {"returncode": -6}, 1, "crashed", "SIGABRT after the last case"),
        ([planned("a"), *ran("a", "failed"), end(ok=False)], {}, 1, "crashed", "where unittest exits with 1"),
        ([planned("a"), *ran("a", "passed"), end(ok=False)], {"returncode": 1}, 1, "crashed", "calls the run failed"),
        # No end was heard.
        ([], {}, 1, "crashed", "exited with 0 before a case was planned"),
        ([planned("a")], {"returncode": -11}, 1, "crashed", "ended by SIGSEGV before the first case"),
        ([planned("a"), ran("a")[0]], {}, 1, "crashed", "exited with 0 in T.a"),
        ([planned("a", "b"), *ran("a", "passed")], {}, 1, "crashed", "exited with 0 after T.a"),
        ([], {"returncode": None, "error": "python: not there"}, 1, "crashed", "could not be started: python"),
        # The limit and an interruption come before all else.
        ([planned("a"), ran("a")[0]], {"returncode": -9, "timed_out": True}, 1, "timeout", "the time limit in T.a"),
        ([planned("a"), *ran("a", "passed"), end()], {"timed_out": True}, 1, "timeout", "after the last case"),
        ([planned("a"), *ran("a", "passed"), end()], {"interrupted": True}, 1, "not-run", "interrupted"),
        ([], {"returncode": None, "interrupted": True}, 1, "not-run", "interrupted"),
    ],
)
def test_state_of_a_run(
    events: list[dict[str, Any]], ending: dict[str, Any], expected: int | None, state: str, reason: str
) -> None:
    run = judge(*events, expected=expected, **ending)[0]
    assert run.state.value == state
    assert reason in run.reason
    assert bool(run.reason) == (state != "complete")


@pytest.mark.parametrize(
    ("events", "ending", "finding"),
    [
        ([planned("a"), *ran("b", "passed"), end()], {}, "reported but not planned: T.b"),
        ([planned("a", "b"), *ran("a", "passed"), end()], {}, "planned but never reported: T.b"),
        ([planned("a"), {**end(), "pid": 2}], {}, "a forked child came back"),
        ([planned("a"), b"{ \n", b"[]\n"], {}, "2 events could not be read"),
        ([planned()], {"leftovers": ["sleep", "python", "sleep"]}, "left behind and ended: python, sleep (2)"),
        ([planned()], {"survivors": ["npu"]}, "could not be ended: npu"),
        ([planned()], {"log_cut": 7}, "7 bytes are left out of the log's middle"),
        ([planned()], {"log_error": "No space left"}, "the log is not whole: No space left"),
        ([planned("a", "b")], {"expected": 1}, "2 cases, matrix.toml expects 1: raise the number there"),
    ],
)
def test_what_a_reader_should_know_is_a_finding(events: list[Any], ending: dict[str, Any], finding: str) -> None:
    assert [words for words in judge(*events, **ending)[0].findings if words.startswith(finding)]


@pytest.mark.parametrize("plan", [[planned("a")], []])
def test_a_run_that_keeps_to_its_plan_or_has_none_has_no_finding(plan: list[dict[str, Any]]) -> None:
    assert judge(*plan, *ran("a", "passed"), end(), expected=1)[0].findings == []


def test_the_process_that_speaks_first_is_the_one_that_is_heard() -> None:
    events = [planned("a"), *ran("a", "passed"), end()]
    assert told(judge(*({**event, "pid": 7} for event in events))[1]) == {"T.a": "passed"}


def test_what_a_forked_child_says_changes_nothing() -> None:
    own = [planned("a", "b"), *ran("a", "passed"), *ran("b", "failed"), end(ok=False)]
    child = [{**event, "pid": 2} for event in [planned("c"), *ran("b", "passed"), *ran("c", "failed"), end()]]
    assert judge(*own, returncode=1)[1] == judge(*own[:5], *child, *own[5:], returncode=1)[1]


def test_a_tear_down_that_fails_is_told_where_no_case_shows_it() -> None:
    fixture = {"event": "fixture", "fixture": "tearDownClass (m.T)", "outcome": "error", "message": "Traceback\nE: x"}
    run = judge(planned("a"), *ran("a", "passed"), fixture, end(ok=False), returncode=1)[0]
    assert run.broken_fixtures == ["tearDownClass (m.T): error: E: x"]
    assert outcomes.verdict([run])[0] is Verdict.FAILED
    assert outcomes.has_failed(run)


def test_a_tear_down_that_skips_breaks_nothing() -> None:
    fixture = {"event": "fixture", "fixture": "tearDownClass (m.T)", "outcome": "skipped", "message": "why"}
    assert judge(planned("a"), *ran("a", "passed"), fixture, end())[0].broken_fixtures == []


# Whatever a test process writes

KEYS = st.tuples(st.sampled_from(["T", "U", "a.b"]), st.sampled_from(["test_a", "test_b", "", "\n"]))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=5
)
EVENTS = st.fixed_dictionaries(
    {"event": st.sampled_from(["begin", "planned", "start", "stop", "outcome", "fixture", "end", "module-skipped"])},
    optional={
        "pid": st.sampled_from([1, 1, 1, 2]),
        "t": st.floats(allow_nan=False),
        "case": KEYS,
        "cases": st.lists(KEYS, max_size=6),
        "outcome": st.sampled_from(SIX),
        "message": st.text(),
        "subtest": st.text(),
        "fixture": st.sampled_from(["setUpClass (m.T)", "tearDownModule (m)"]),
        "ok": st.booleans(),
        "ran": st.integers(0, 9),
    },
)
GARBAGE = st.fixed_dictionaries(
    {
        "event": st.sampled_from(["planned", "start", "outcome", "flaky", "end"]) | ANYTHING,
        "pid": st.just(1) | ANYTHING,
    },
    optional=dict.fromkeys(("t", "case", "cases", "outcome", "message", "fixture", "subtest", "ran", "ok"), ANYTHING),
)
ENDINGS = st.builds(
    Ending,
    returncode=st.sampled_from([0, 1, 5, -9, None]),
    seconds=st.floats(0, 1e6),
    timed_out=st.booleans(),
    interrupted=st.booleans(),
    error=st.sampled_from(["", "x"]),
)


@settings(max_examples=300, deadline=None)
@given(
    lines=st.lists((EVENTS | GARBAGE).map(lambda event: json.dumps(event).encode() + b"\n") | st.binary(), max_size=30),
    names=st.lists(KEYS, min_size=1, max_size=4, unique=True),
    ending=ENDINGS,
    expected=st.none() | st.integers(0, 5),
    cut=st.integers(0, 40),
)
def test_no_event_breaks_a_run_or_loses_a_planned_case(
    lines: list[bytes], names: list[tuple[str, str]], ending: Ending, expected: int | None, cut: int
) -> None:
    plan = json.dumps({"event": "planned", "pid": 1, "cases": names}).encode() + b"\n"
    data = plan + b"".join(lines)
    whole = data[: len(data) - min(cut, len(data) - len(plan))].splitlines(keepends=True)
    run, cases = outcomes.judge(FILE, outcomes.read_events(whole), ending, expected=expected)
    keys = [case.key for case in cases]
    assert len(set(keys)) == len(keys) == run.tests == sum(run.outcomes.values())
    assert {(FILE, *name) for name in names} <= set(keys)
    if outcomes.verdict([run])[0] is Verdict.VERIFIED:
        assert all(case.outcome in GOOD | {Outcome.SKIPPED} for case in cases)
        assert any(case.outcome in GOOD for case in cases)
        assert ending.returncode == 0


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null\n",
        b"{}\n",
        b'{"event":"end","pid":1,"x":' + b"[" * 100_000 + b"\n",
        b'{"event":"start","pid":1,"case":["T"]}\n',
        b'{"event":"start","pid":1,"case":["T",1]}\n',
        b'{"event":"start","pid":"1","case":["T","a"]}\n',
        b'{"event":"outcome","pid":1,"case":["T","a"],"outcome":"flaky"}\n',
        b'{"event":"outcome","pid":1,"case":["T","a"],"outcome":"passed","t":1e999}\n',
        b'{"event":"outcome","pid":1,"case":["T","a"],"message":"\\ud800"}\n',
        b'{"event":"outcome","pid":1,"case":["T","a"],"outcome":"passed"}',
        b'\xff{"event":"end","pid":1}\n',
    ],
)
def test_a_line_that_is_no_event_proves_nothing(line: bytes) -> None:
    run, cases = judge(planned("a"), line)
    assert (told(cases), run.state) == ({"T.a": "not-run"}, State.CRASHED)


def test_a_result_stays_readable_however_much_is_said() -> None:
    names = [f"test_{number}" for number in range(700)]
    events = [event for name in names for event in ran(name, "failed")]
    for event in events:
        event.update(message="x" * 100_000 if event["event"] == "outcome" else "")
    cases = judge(planned(*names), *events, end(700, ok=False), returncode=1)[1]
    assert outcomes.MESSAGE_CHARACTERS - 2 < len(cases[0].message) <= outcomes.MESSAGE_CHARACTERS
    assert outcomes.LATE_CHARACTERS - 2 < len(cases[-1].message) <= outcomes.LATE_CHARACTERS
    assert sum(len(case.message) for case in cases) < 2 * outcomes.RUN_CHARACTERS


def test_a_long_message_keeps_its_last_line() -> None:
    events = ran("a", "failed")
    events[1]["message"] = "x" * 100_000
    assert judge(planned("a"), *events[:-1], returncode=-11)[1][0].message.endswith("x\nended by SIGSEGV")


# A pair


def run_of(state: State, *names: Outcome, **fields: Any) -> Run:
    return Run(file=FILE, state=state, tests=len(names), outcomes={name.value: 1 for name in names}, **fields)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("names", [*itertools.combinations(Outcome, 1), *itertools.combinations(Outcome, 2), ()])
def test_verdict_of_one_run(state: State, names: tuple[Outcome, ...]) -> None:
    if state in BAD_STATES or BAD & set(names):
        right = Verdict.FAILED
    elif state is State.HOLLOW:
        right = Verdict.HOLLOW
    elif state is State.NOT_RUN or Outcome.NOT_RUN in names:
        right = Verdict.NOT_RUN
    else:
        right = Verdict.VERIFIED if GOOD & set(names) else Verdict.HOLLOW
    run = run_of(state, *names)
    assert outcomes.verdict([run])[0] is right
    assert outcomes.verdict([run], blocked="no wheel") == (Verdict.BLOCKED, "no wheel")
    lacks = Verdict.HOLLOW if right is Verdict.VERIFIED else right
    assert outcomes.verdict([run], lacks=["nothing reached it"])[0] is lacks
    sample = Verdict.SAMPLE_OK if right is Verdict.VERIFIED else right
    assert outcomes.verdict([run], sample=True)[0] is sample


EXAMPLES = {
    Verdict.FAILED: run_of(State.COMPLETE, Outcome.PASSED, Outcome.ERROR),
    Verdict.HOLLOW: run_of(State.HOLLOW, Outcome.SKIPPED, reason="all 1 skipped"),
    Verdict.NOT_RUN: run_of(State.NOT_RUN, reason="interrupted"),
    Verdict.VERIFIED: run_of(State.COMPLETE, Outcome.PASSED, Outcome.SKIPPED),
}


@pytest.mark.parametrize("kinds", list(itertools.product(EXAMPLES, repeat=3)))
def test_the_worst_run_gives_the_verdict(kinds: tuple[Verdict, ...]) -> None:
    assert outcomes.verdict([EXAMPLES[kind] for kind in kinds])[0] is min(kinds, key=list(EXAMPLES).index)


@pytest.mark.parametrize("sample", [False, True])
def test_no_runs_are_no_pass(sample: bool) -> None:
    assert outcomes.verdict([], sample=sample) == (Verdict.NOT_RUN, "no test file was run")


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (run_of(State.COMPLETE, Outcome.FAILED, Outcome.XPASSED), f"{FILE}: 1 failed, 1 xpassed"),
        (run_of(State.CRASHED, Outcome.CRASHED, reason="SIGKILL"), f"{FILE}: crashed (SIGKILL), 1 crashed"),
        (run_of(State.COMPLETE, Outcome.PASSED, broken_fixtures=["tearDown: x"]), f"{FILE}: tearDown: x"),
        (run_of(State.HOLLOW, reason="0 tests"), f"{FILE}: 0 tests"),
        (run_of(State.COMPLETE, Outcome.SKIPPED), f"{FILE}: no case passed"),
        (run_of(State.COMPLETE, Outcome.PASSED, Outcome.NOT_RUN), f"{FILE}: 1 not-run"),
        (run_of(State.NOT_RUN), f"{FILE}: not run"),
        (run_of(State.COMPLETE, Outcome.PASSED, Outcome.FLAKY, attempts=2), f"1 passed, 1 flaky, {FILE} in 2 attempts"),
    ],
)
def test_a_verdict_says_why(run: Run, reason: str) -> None:
    assert outcomes.verdict([run])[1] == reason


@pytest.mark.parametrize("outcomes_of_elsewhere", [{"passed": 0}, {"passed": -1}, {"unheard-of": 3}])
def test_counts_from_elsewhere_prove_nothing(outcomes_of_elsewhere: dict[str, int]) -> None:
    run = Run(file=FILE, state=State.COMPLETE, outcomes=outcomes_of_elsewhere)
    assert outcomes.verdict([run])[0] is Verdict.HOLLOW


# Reruns


def attempt(outcome: Outcome | None, number: int = 1, **fields: Any) -> tuple[Run, list[Case]]:
    """Return an attempt with one case of ``outcome`` (None: without it) beside one that always passes."""
    cases = [Case(file=FILE, cls="T", name="steady", outcome=Outcome.PASSED)]
    if outcome:
        cases.append(Case(file=FILE, cls="T", name="test_a", outcome=outcome, message=f"words {number}"))
    run = Run(file=FILE, state=State.COMPLETE, tests=len(cases), outcomes=outcomes.count(cases), **fields)
    return run, cases


P, X, F, E, S, N, K = (
    Outcome.PASSED,
    Outcome.XFAILED,
    Outcome.FAILED,
    Outcome.ERROR,
    Outcome.SKIPPED,
    Outcome.NOT_RUN,
    Outcome.FLAKY,
)


@pytest.mark.parametrize(
    ("first", "second", "right"),
    [
        # Good both times; good only now; what never was heard of before was not good before either.
        *[(P, P, P), (X, X, X), (P, X, X), (X, P, P)],
        *[(first, second, K) for first in (*BAD, S, N, None) for second in (P, X)],
        # Bad now.
        *[(first, second, second) for first in (*Outcome, None) for second in (*BAD,)],
        # Neither now: no failure is taken back by a skip or by not getting there.
        *[(first, second, first) for first in BAD for second in (S, N, None)],
        *[(P, S, S), (P, N, N), (P, None, P), (S, S, S), (S, N, N), (S, None, S), (N, N, N), (N, S, S), (N, None, N)],
        *[(X, S, S), (X, N, N), (X, None, X), (None, S, S), (None, N, N)],
        # Flaky stays flaky.
        *[(K, P, K), (K, X, K), (K, S, K), (K, N, N), (K, None, K)],
    ],
)
def test_a_case_after_a_rerun(first: Outcome | None, second: Outcome | None, right: Outcome) -> None:
    run, cases = outcomes.after_rerun(attempt(first, 1), attempt(second, 2))
    assert told(cases) == {"T.steady": "passed", "T.test_a": right.value}
    assert (run.tests, run.outcomes, run.attempts) == (2, outcomes.count(cases), 2)
    message = next(case.message for case in cases if case.name == "test_a")
    if first in BAD | {K}:
        assert "words 1" in message
    if second in BAD:
        assert message.endswith("words 2")


def test_the_same_failure_again_is_told_once() -> None:
    cases = outcomes.after_rerun(attempt(F, 1), attempt(F, 1))[1]
    assert cases[1].message == "words 1"


def test_a_file_that_needed_two_attempts_says_so_even_if_no_case_shows_it() -> None:
    first, second = attempt(P), attempt(P)
    crashed = Run(file=FILE, state=State.CRASHED, reason="ended by SIGSEGV after the last case", tests=2), first[1]
    run, cases = outcomes.after_rerun(crashed, second)
    assert set(told(cases).values()) == {"passed"}
    assert run.findings == ["attempt 1: crashed: ended by SIGSEGV after the last case"]
    assert "in 2 attempts" in outcomes.verdict([run])[1]


def test_every_attempt_is_told_of() -> None:
    result = attempt(F, 1)
    for number, outcome in enumerate((E, P, None), start=2):
        result = outcomes.after_rerun(result, attempt(outcome, number))
    run, cases = result
    assert told(cases) == {"T.steady": "passed", "T.test_a": "flaky"}
    assert run.attempts == 4
    assert run.findings == [
        "not in attempt 4: T.test_a",
        "attempt 1: complete: 1 failed",
        "attempt 2: complete: 1 error",
        "attempt 3: complete: ",
    ]
    assert "words 1" in cases[-1].message


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("outcome", Outcome)
def test_what_a_rerun_may_mend(state: State, outcome: Outcome) -> None:
    right = state in BAD_STATES or outcome in BAD | {Outcome.NOT_RUN}
    assert outcomes.has_failed(run_of(state, outcome)) is right
