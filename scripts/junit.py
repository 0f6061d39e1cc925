"""JUnit XML: a view of results for CI servers, and a safe reader of other machines' reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree

from junitparser import Error, Failure, Skipped, TestCase, TestSuite

from .outcomes import last_line
from .results import Case, Outcome, PairResult, Run, State, Verdict

# What XML 1.0 can't hold, not even escaped ("Char" in its section 2.2), and the lone CR, which readers turn into LF.
UNPRINTABLE = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
DECLARATION = b"<?xml version='1.0' encoding='UTF-8'?>\n"
BAD_STATES = {State.HOLLOW, State.COLLECTION_ERROR, State.CRASHED, State.TIMEOUT, State.NOT_RUN}


def printable(text: str) -> str:
    r"""Return ``text`` with every character that XML can't hold written out, as ``\x00``."""
    return UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text.replace("\r\n", "\n"))


def of_run(result: PairResult, run: Run) -> bytes:
    """Return the JUnit document of one run."""
    return _document(_label(result), [_suite(result, run, [case for case in result.cases if case.file == run.file])])


def of_results(name: str, results: Iterable[PairResult]) -> bytes:
    """Return the JUnit document of all pairs: one suite per pair and test file, in order."""
    return _document(name, (suite for result in results for suite in _suites(result)))


# Helpers


def _label(result: PairResult) -> str:
    return result.label or result.pair


def _document(name: str, suites: Iterable[TestSuite]) -> bytes:
    """Return suites as one document, the same bytes whichever XML library junitparser found.

    Each suite is made, written and forgotten before the next: a report may have half a million cases.
    """
    written: list[bytes] = []
    totals = Counter[str]()
    seconds = 0.0
    for suite in suites:
        element = ElementTree.fromstring(suite.tostring())  # type: ignore[no-untyped-call]  # noqa: S314 (made here)
        totals.update({counted: int(element.get(counted, 0)) for counted in ("tests", "failures", "errors")})
        seconds += float(element.get("time", 0))
        ElementTree.indent(element, level=1)
        written.append(b"  " + ElementTree.tostring(element, encoding="UTF-8") + b"\n")
    attributes = {"name": printable(name), "time": f"{seconds:.3f}", **{key: str(totals[key]) for key in totals}}
    opening = ElementTree.tostring(ElementTree.Element("testsuites", attributes), encoding="UTF-8")
    return b"".join([DECLARATION, opening.removesuffix(b" />"), b">\n", *written, b"</testsuites>\n"])


def _suites(result: PairResult) -> Iterator[TestSuite]:
    cases: dict[str, list[Case]] = {run.file: [] for run in result.runs}
    for case in result.cases:
        cases.setdefault(case.file, []).append(case)
    for run in result.runs:
        yield _suite(result, run, cases[run.file])
    if not result.runs or result.verdict in (Verdict.BLOCKED, Verdict.NOT_RUN):
        yield _pair_suite(result)


def _suite(result: PairResult, run: Run, cases: Iterable[Case]) -> TestSuite:
    suite = TestSuite(printable(f"{_label(result)}/{run.file}"))
    suite.add_property("pair", result.pair)
    _add_properties(suite, result)
    suite.add_property("state", run.state.value)
    if run.blob:
        suite.add_property("blob", run.blob)
    if run.patch:
        suite.add_property("patch", run.patch.patch)
    found = [_case(_label(result), case) for case in cases]
    if run.state in BAD_STATES or run.broken_fixtures:
        # No CI server may show a run green that proves nothing: its state is a case of its own.
        words = "; ".join([part for part in (run.reason, *run.broken_fixtures) if part]) or run.state.value
        found.append(_state_case(_label(result), run.file, run.state.value, words))
    suite.add_testcases(found)
    _settle(suite)
    return suite


def _pair_suite(result: PairResult) -> TestSuite:
    suite = TestSuite(printable(_label(result)))
    suite.add_property("pair", result.pair)
    _add_properties(suite, result)
    words = result.reason
    if result.blocked:
        words = f"{result.blocked.code}: {result.blocked.cause} {result.blocked.remedy}"
    suite.add_testcase(_state_case(_label(result), "pair", result.verdict.value, words))
    _settle(suite)
    return suite


def _add_properties(suite: TestSuite, result: PairResult) -> None:
    upstream = result.upstream
    for name, value in (
        ("torch", result.torch),
        ("torch-npu", result.torch_npu),
        ("python", result.python),
        ("machine", result.machine),
        ("mode", result.mode.value if result.mode else None),
        ("upstream", upstream.source if upstream else None),
        ("commit", upstream.commit if upstream else None),
        ("verdict", result.verdict.value),
    ):
        if value is not None:
            suite.add_property(name, printable(value))


def _class_name(pair: str, file: str, cls: str) -> str:
    """Return the class name under which a CI server files a case: pair, file and class, each still to be told apart."""
    return printable(f"{pair.replace('.', '_')}.{file.removesuffix('.py').replace('/', '.')}.{cls}")


def _case(pair: str, case: Case) -> TestCase:
    found = TestCase(printable(case.name), _class_name(pair, case.file, case.cls), round(case.seconds or 0.0, 3))
    message = printable(case.message)
    last = last_line(message) or case.outcome.value
    match case.outcome:
        case Outcome.PASSED | Outcome.XFAILED:
            pass
        case Outcome.FLAKY:
            found.system_out = message
        case Outcome.SKIPPED:
            found.result = [Skipped(last)]
        case Outcome.FAILED | Outcome.XPASSED:
            found.result = [Failure(last, case.outcome.value)]
            found.result[0].text = message
        case _:
            found.result = [Error(last, case.outcome.value)]
            found.result[0].text = message
    return found


def _state_case(pair: str, file: str, state: str, words: str) -> TestCase:
    found = TestCase(state, _class_name(pair, file, "run"), 0.0)
    found.result = [Error(printable(words), state)]
    found.result[0].text = printable(words)
    return found


def _settle(suite: TestSuite) -> None:
    properties = suite._elem.find("properties")
    if properties is not None:
        suite._elem.remove(properties)
        suite._elem.insert(0, properties)
