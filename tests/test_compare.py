"""Comparing: the truth table, the sums, and what a reader is told."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts import compare, difference, results
from scripts.compare import Category, Side, category
from scripts.results import Case, Outcome, PairResult, Report, State, Verdict
from tests import examples

G, B, S, F, A, U = Side.GOOD, Side.BAD, Side.SKIPPED, Side.FLAKY, Side.ABSENT, Side.UNKNOWN
# Rows are the old side, columns the new one.
TABLE = """
            good            bad             skipped         flaky           absent          unknown
good        still-passing   regressed       newly-skipped   flaky           removed         not-comparable
bad         fixed           still-failing   newly-skipped   flaky           removed         not-comparable
skipped     un-skipped      new-fail        still-skipped   flaky           removed         not-comparable
flaky       flaky           regressed       newly-skipped   flaky           removed         not-comparable
absent      new-pass        new-fail        newly-skipped   flaky           -               not-comparable
unknown     not-comparable  not-comparable  not-comparable  not-comparable  not-comparable  not-comparable
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [(row[0], ROWS[0][place], cell) for row in ROWS[1:] for place, cell in enumerate(row[1:])],
)
def test_every_pair_of_sides_has_one_category(old: str, new: str, expected: str) -> None:
    if expected == "-":
        with pytest.raises(ValueError, match="neither side"):
            category(Side(old), Side(new))
    else:
        assert category(Side(old), Side(new)).value == expected


def test_the_table_has_every_side() -> None:
    assert [row[0] for row in ROWS[1:]] == ROWS[0] == [side.value for side in Side]


def column(outcomes: dict[str, Outcome], *, state: State = State.COMPLETE, **changes: object) -> PairResult:
    """Return a pair with one test file whose cases have these outcomes, by method."""
    run, _ = examples.run(examples.TIMER, len(outcomes), state, reason="because")
    cases = [
        Case(
            file=examples.TIMER,
            cls="T",
            name=name,
            outcome=outcome,
            seconds=0.5,
            message="" if outcome is Outcome.PASSED else f"AssertionError: {name}",
            body=f"body of {name}",
        )
        for name, outcome in outcomes.items()
    ]
    made = examples.column("2.10.0", runs=[(run, cases)])
    return msgspec.structs.replace(made, **changes)


def categories(old: PairResult, new: PairResult) -> dict[str, str]:
    return {change.name: change.category.value for change in compare.compare_columns(old, new).cases}


OUTCOMES = st.sampled_from(Outcome)
CASES = st.dictionaries(st.sampled_from([f"test_{letter}" for letter in "abcdefgh"]), OUTCOMES)
STATES = st.sampled_from(State)


@given(old=CASES, new=CASES, states=st.tuples(STATES, STATES))
def test_categories_partition_the_union_of_cases(
    old: dict[str, Outcome], new: dict[str, Outcome], states: tuple[State, State]
) -> None:
    found = compare.compare_columns(column(old, state=states[0]), column(new, state=states[1]))

    assert sorted(change.name for change in found.cases) == sorted({*old, *new})
    assert sum(found.counts.values()) == len({*old, *new})


@given(cases=CASES, state=STATES)
def test_a_report_compared_with_itself_is_empty(cases: dict[str, Outcome], state: State) -> None:
    report = Report(title="t", titles={}, batch="b", columns=[column(cases, state=state)], apis=[])

    comparison = compare.compare(report, report, old_name="a", new_name="b")

    assert comparison.is_empty
    assert not comparison.is_worse
    for form in ("text", "md", "html"):
        assert difference.render(comparison, form) == ""


def test_two_runs_of_the_same_failure_are_the_same() -> None:
    words = (
        "Traceback …\n  File x, line 3\nOSError: [Errno 98] port 45123 of <object at 0x7f12ab> in /tmp/tnm-12/a ({})"
    )
    old, new = (
        column({"test_a": Outcome.FAILED}, cases=[_with_words(words.format(seconds))])
        for seconds in ("0.123 s", "11.9 s")
    )

    assert not compare.compare_columns(old, new).is_news


def test_another_message_of_the_same_failure_is_news() -> None:
    old, new = (
        column({"test_a": Outcome.FAILED}, cases=[_with_words(words)]) for words in ("KeyError: 'a'", "ValueError: b")
    )

    [change] = compare.compare_columns(old, new).cases

    assert change.category is Category.STILL_FAILING
    assert change.message_changed
    assert change.changed


def test_a_missing_side_is_unknown_and_never_fixed() -> None:
    failing = column({"test_a": Outcome.FAILED})
    for gone in (
        column({}, state=State.NOT_RUN),
        column({}, state=State.CRASHED),
        column({"test_a": Outcome.PASSED}, state=State.HOLLOW),
        column({}, verdict=Verdict.BLOCKED, runs=[]),
        column({"test_a": Outcome.NOT_RUN}),
    ):
        assert categories(failing, gone) == {"test_a": "not-comparable"}
        assert categories(gone, failing) == {"test_a": "not-comparable"}


def test_a_case_that_moved_with_its_body_is_moved_and_counted_once() -> None:
    old = column({"test_a": Outcome.PASSED, "test_b": Outcome.PASSED})
    moved = [msgspec.structs.replace(case, cls="Other") if case.name == "test_a" else case for case in old.cases]
    new = msgspec.structs.replace(old, cases=moved)

    found = compare.compare_columns(old, new)

    assert {change.name: change.category.value for change in found.cases} == {
        "test_a": "moved",
        "test_b": "still-passing",
    }
    assert found.cases[0].moved_from == f"{examples.TIMER}.T.test_a"


def test_a_case_that_moved_and_fails_is_regressed() -> None:
    old = column({"test_a": Outcome.PASSED})
    [case] = old.cases
    new = msgspec.structs.replace(old, cases=[msgspec.structs.replace(case, cls="Other", outcome=Outcome.FAILED)])

    assert categories(old, new) == {"test_a": "regressed"}


def test_a_case_whose_body_changed_did_not_move() -> None:
    old = column({"test_a": Outcome.PASSED})
    [case] = old.cases
    new = msgspec.structs.replace(old, cases=[msgspec.structs.replace(case, cls="Other", body="another")])

    found = compare.compare_columns(old, new)

    assert sorted((change.cls, change.category.value) for change in found.cases) == [
        ("Other", "new-pass"),
        ("T", "removed"),
    ]


def test_a_regression_names_what_changed_with_it() -> None:
    old = column({"test_a": Outcome.PASSED})
    environment = old.environment
    assert environment is not None
    assert environment.cann is not None
    new = column(
        {"test_a": Outcome.FAILED},
        torch="2.10.0+cu128",
        environment=msgspec.structs.replace(
            environment, cann=msgspec.structs.replace(environment.cann, version="9.1.0")
        ),
    )

    text = difference.render(compare.compare_pairs(old, new), "text")

    assert "regressed: test/distributed/elastic/timer/api_test.py T.test_a; passed → failed" in text
    assert "what changed with it: torch: 2.10.0+cpu → 2.10.0+cu128" in text
    assert "what changed with it: CANN: 8.5.0 → 9.1.0" in text


@pytest.mark.parametrize(
    ("old", "new", "slower"), [(0.1, 0.9, False), (3.0, 5.5, False), (1.0, 3.5, True), (5.0, 4.0, False)]
)
def test_durations_matter_only_beyond_the_threshold(old: float, new: float, slower: bool) -> None:
    sides = [
        msgspec.structs.replace(made, cases=[msgspec.structs.replace(made.cases[0], seconds=seconds)])
        for seconds in (old, new)
        for made in [column({"test_a": Outcome.PASSED})]
    ]

    assert bool(compare.compare_columns(*sides).slower) is slower


@pytest.mark.parametrize(
    ("new", "fail_on", "status"),
    [
        ({"test_a": Outcome.PASSED}, ["worse"], 0),
        ({"test_a": Outcome.FAILED}, ["worse"], 1),
        ({"test_a": Outcome.FAILED}, [], 0),
        ({"test_a": Outcome.FAILED}, ["nothing"], 0),
        ({"test_a": Outcome.SKIPPED, "test_b": Outcome.PASSED}, ["worse"], 1),
        ({"test_a": Outcome.SKIPPED, "test_b": Outcome.PASSED}, ["regressed"], 0),
        ({"test_a": Outcome.PASSED, "test_b": Outcome.PASSED}, ["worse"], 0),
        ({"test_a": Outcome.PASSED, "test_b": Outcome.PASSED}, ["news"], 1),
        ({"test_b": Outcome.PASSED}, ["worse"], 1),
    ],
)
def test_the_exit_status_says_whether_something_got_worse(
    new: dict[str, Outcome], fail_on: list[str], status: int
) -> None:
    comparison = compare.compare_pairs(column({"test_a": Outcome.PASSED}), column(new))

    assert difference.exit_status(comparison, fail_on) == status


def test_a_verified_pair_that_is_hollow_now_is_worse_though_no_case_says_so() -> None:
    old = column({"test_a": Outcome.PASSED})
    new = column({}, state=State.HOLLOW, verdict=Verdict.HOLLOW, reason="0 tests, 1 expected")

    comparison = compare.compare_pairs(old, new)

    assert comparison.is_worse
    assert "2.10.0: verified → hollow: 0 tests, 1 expected" in difference.render(comparison, "text")


def test_columns_belong_together_by_pair_machine_mode_and_python() -> None:
    arm, intel = (column({"test_a": Outcome.PASSED}, machine=machine) for machine in ("aarch64", "x86_64"))
    broken = msgspec.structs.replace(arm, cases=[msgspec.structs.replace(arm.cases[0], outcome=Outcome.FAILED)])
    old = Report(title="t", titles={}, batch="b", columns=[intel, arm], apis=[])
    new = Report(title="t", titles={}, batch="b", columns=[broken, intel], apis=[])

    comparison = compare.compare(old, new, old_name="a", new_name="b")

    assert comparison.counts == {"regressed": 1, "still-passing": 1}


def test_markup_in_a_name_is_text_in_every_format() -> None:
    made, cases = examples.run(examples.TIMER, 1, bad=[Outcome.FAILED])
    new = examples.column("2.10.0", runs=[(made, cases)])
    old = msgspec.structs.replace(new, cases=[msgspec.structs.replace(cases[0], outcome=Outcome.PASSED)])

    for form in ("md", "html"):
        assert "<script>" not in difference.render(compare.compare_pairs(old, new), form)
    decoded = msgspec.json.decode(difference.render(compare.compare_pairs(old, new), "json"), type=compare.Comparison)
    assert decoded.columns[0].cases[0].name == cases[0].name


def test_the_sum_is_the_number_of_cases_of_both() -> None:
    report = examples.every_verdict()
    for old, new in itertools.product([report], repeat=2):
        comparison = compare.compare(old, new, old_name="a", new_name="b")
        assert comparison.total == sum(comparison.counts.values()) == sum(len(c.cases) for c in report.columns)


def _with_words(words: str) -> Case:
    return Case(file=examples.TIMER, cls="T", name="test_a", outcome=Outcome.FAILED, seconds=0.5, message=words)


def test_results_without_schema_changes_round_trip() -> None:
    made = column({"test_a": Outcome.PASSED})

    assert msgspec.json.decode(results.encode(made), type=PairResult) == made
