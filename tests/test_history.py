"""History: what many nights show together."""

from __future__ import annotations

import msgspec
import pytest

from scripts import history, outcomes, page
from scripts.results import Case, Outcome, PairResult, Report
from tests import examples

P, F, S, N = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED, Outcome.NOT_RUN


def night(outcome: Outcome | None, seconds: float = 0.5, **changes: object) -> Report:
    """Return the report of a night with one pair and one case (none where ``outcome`` is None)."""
    cases = [Case(file=examples.TIMER, cls="T", name="test_a", outcome=outcome, seconds=seconds)] if outcome else []
    run = msgspec.structs.replace(examples.run(examples.TIMER, len(cases))[0], outcomes=outcomes.count(cases))
    column: PairResult = examples.column("2.10.0", runs=[(run, cases)])
    return Report(
        title="t",
        batch="b",
        apis=[],
        columns=[msgspec.structs.replace(column, label="2.10.0", evidence=None, **changes)],
    )


def of(*sequence: Outcome | None) -> history.History:
    return history.tell([(f"night {number}", night(outcome)) for number, outcome in enumerate(sequence, 1)])


@pytest.mark.parametrize(
    ("sequence", "strip", "flips", "first_failed"),
    [
        ([P, F, F], "✓✗✗", 1, "night 2"),
        ([P, F, P, F], "✓✗✓✗", 3, "night 4"),
        ([F, F, F], "✗✗✗", 0, "night 1"),
        ([P, None, N, F], "✓··✗", 1, "night 4"),
        ([P, F, P], "✓✗✓", 2, ""),
        ([P, S, S], "✓⊘⊘", 1, ""),
    ],
)
def test_a_case_that_changed_is_a_strip(
    sequence: list[Outcome | None], strip: str, flips: int, first_failed: str
) -> None:
    [case] = of(*sequence).cases

    assert (case.strip, case.flips, case.first_failed) == (strip, flips, first_failed)


def test_cases_that_never_changed_are_left_out() -> None:
    assert of(P, P, P).cases == []


def test_the_first_failure_names_what_changed_with_it() -> None:
    nights = [("1", night(P)), ("2", night(F, torch="2.10.0+cu128"))]

    [case] = history.tell(nights).cases

    assert case.first_failed == "2"
    assert case.why == ["torch: 2.10.0+cpu → 2.10.0+cu128"]


def test_a_case_is_slowing_against_the_median_of_its_past() -> None:
    steady = [night(P, 1.0), night(P, 9.0), night(P, 1.1), night(P, 1.0)]

    assert history.tell([(str(n), report) for n, report in enumerate([*steady, night(P, 1.2)])]).slowing == []
    [slowing] = history.tell([(str(n), report) for n, report in enumerate([*steady, night(P, 4.0)])]).slowing
    assert (slowing.before, slowing.now) == (1.05, 4.0)


def test_verdicts_are_a_strip_per_pair() -> None:
    assert of(P, F, P).verdicts == {"2.10.0": "✓✗✓"}


def test_the_text_and_the_page_show_it() -> None:
    told = of(P, F, F)

    text = history.text(told)
    html = page.html(examples.every_verdict(), history=told)

    assert "✓✗✗  2.10.0" in text
    assert "failed first in night 2" in text
    assert "✓✗✗" in html
    assert "polyline" in html


@pytest.mark.parametrize("arguments", [["x"], ["0"], ["-1"], ["1", "2"]])
def test_a_wrong_number_of_nights_ends_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        history.parse(arguments)

    assert ended.value.code == 2
