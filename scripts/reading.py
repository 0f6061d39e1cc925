"""Reads results that other machines wrote: result.json, report.json, JUnit XML. All of it is data, none is believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from defusedxml import DefusedXmlException, ElementTree

from . import outcomes, results
from .errors import Blocked
from .outcomes import verdict_of
from .results import Case, Outcome, PairResult, Report, Run, State

MAX_BYTES = 256 << 20
MAX_DEPTH = 50
NAMES = ("result.json", "report.json", "report.xml")


def read(place: Path) -> list[PairResult]:
    """Return the columns of a result.json, a report.json, a JUnit XML file, or of what a folder holds of these.

    A verdict is worked out again from the cases, never taken over. Raises Blocked(``bad-result``) with the reason.
    """
    if place.is_dir():
        found = sorted(place.rglob("result.json")) or [path for path in map(place.joinpath, NAMES) if path.is_file()]
        if not found:
            raise _bad(place, f"holds none of {', '.join(NAMES)}")
        return [column for path in found for column in read(path)]
    try:
        if place.stat().st_size > MAX_BYTES:
            raise _bad(place, f"is larger than {MAX_BYTES >> 20} MiB")
        data = place.read_bytes()
    except OSError as error:
        remedy = "Name a report.json, a report.xml or a folder of results that can be read."
        raise _bad(place, f"can't be read: {error.strerror}", remedy) from None
    columns = _from_xml(place, data) if data.lstrip()[:1] == b"<" else _from_json(place, data)
    return [_judged(column) for column in columns]


# Helpers


def _bad(place: Path, why: str, remedy: str = "Get the file again from the machine that wrote it.") -> Blocked:
    return Blocked("bad-result", f"{place} {why}", remedy)


def _judged(column: PairResult) -> PairResult:
    """Return the column with the verdict that its own cases and runs carry."""
    counted = [
        msgspec.structs.replace(run, outcomes=outcomes.count(case for case in column.cases if case.file == run.file))
        for run in column.runs
    ]
    column = msgspec.structs.replace(column, runs=counted)
    verdict, reason = verdict_of(column)
    return column if verdict is column.verdict else msgspec.structs.replace(column, verdict=verdict, reason=reason)


def _from_json(place: Path, data: bytes) -> list[PairResult]:
    try:
        has_columns = "columns" in msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        found = msgspec.json.decode(data, type=Report).columns if has_columns else [_decode_pair(data)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(place, f"is no result: {error}") from None
    for column in found:
        if column.schema != results.SCHEMA_VERSION:
            raise _bad(place, f"has schema {column.schema}, expected {results.SCHEMA_VERSION}")
    return found


def _decode_pair(data: bytes) -> PairResult:
    return msgspec.json.decode(data, type=PairResult)


def _from_xml(place: Path, data: bytes) -> list[PairResult]:
    try:
        root = ElementTree.fromstring(data, forbid_dtd=True)
    except DefusedXmlException as error:
        raise _bad(place, f"has a document type or entities, which a report has no use for: {error}") from None
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        raise _bad(place, f"is no XML: {error}") from None
    columns: dict[str, list[tuple[Run, list[Case]]]] = {}
    for suite, name in _suites(root, 0, place):
        pair = _property(suite, "pair") or _property(root, "pair") or place.stem
        columns.setdefault(pair, []).append(_run(suite, name))
    if not columns:
        raise _bad(place, f"has no test suite; its root is <{root.tag}>")
    return [
        PairResult(
            pair=pair,
            torch="?",
            torch_npu="?",
            python="?",
            verdict=results.Verdict.NOT_RUN,
            reason="",
            runs=[run for run, _ in runs],
            cases=[case for _, cases in runs for case in cases],
        )
        for pair, runs in columns.items()
    ]


def _suites(element: Any, depth: int, place: Path) -> Iterator[tuple[Any, str]]:
    """Yield every suite that has cases of its own, or says something without any, with its name."""
    if depth > MAX_DEPTH:
        raise _bad(place, f"nests suites deeper than {MAX_DEPTH}")
    inner = [child for child in element if child.tag in ("testsuite", "testsuites")]
    if element.tag == "testsuite" and (not inner or element.find("testcase") is not None):
        yield element, element.get("name") or "unnamed"
    for child in inner:
        yield from _suites(child, depth + 1, place)


def _property(element: Any, name: str) -> str | None:
    for found in element.iterfind("properties/property"):
        if found.get("name") == name:
            return str(found.get("value") or found.text or "") or None
    return None


def _run(suite: Any, name: str) -> tuple[Run, list[Case]]:
    file = suite.get("file") or name
    seen: dict[tuple[str, str], int] = {}
    cases = []
    for element in suite.iterfind("testcase"):
        key = (element.get("classname") or "", element.get("name") or "unnamed")
        seen[key] = seen.get(key, 0) + 1
        turn = f" [{seen[key]}]" if seen[key] > 1 else ""
        outcome, message = _outcome(element)
        seconds = _number(element.get("time"))
        cases.append(Case(file=file, cls=key[0], name=key[1] + turn, outcome=outcome, seconds=seconds, message=message))
    claimed = sum(int(_number(suite.get(attribute)) or 0) for attribute in ("failures", "errors"))
    state, reason = State.COMPLETE, ""
    if not cases:
        state = State.CRASHED if claimed else State.HOLLOW
        reason = f"the suite says {claimed} failures or errors and has no case" if claimed else "0 tests"
    elif all(case.outcome is Outcome.SKIPPED for case in cases):
        state, reason = State.HOLLOW, f"all {len(cases)} skipped"
    elif claimed > sum(case.outcome in outcomes.BAD for case in cases):
        state, reason = State.CRASHED, f"the suite says {claimed} failures or errors, its cases show fewer"
    run = Run(file=file, state=state, tests=len(cases), reason=reason, outcomes=outcomes.count(cases))
    return run, cases


def _outcome(element: Any) -> tuple[Outcome, str]:
    """Return the worst that a case's elements say, and all their words."""
    words = []
    outcome = Outcome.PASSED
    for tag, meaning in (("skipped", Outcome.SKIPPED), ("failure", Outcome.FAILED), ("error", Outcome.ERROR)):
        for child in element.iterfind(tag):
            outcome = meaning
            words += [part for part in (child.get("message"), child.text) if part]
    return outcome, "\n".join(dict.fromkeys(words))


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def conflicts(columns: Iterable[PairResult]) -> list[str]:
    """Return which columns are the same by pair, machine, mode and Python and yet differ."""
    seen: dict[tuple[object, ...], PairResult] = {}
    found = []
    for column in columns:
        key = (column.pair, column.machine, column.mode, column.python)
        if seen.setdefault(key, column) != column:
            where = ", ".join(str(part.value if isinstance(part, results.Mode) else part) for part in key if part)
            found.append(f"two different results of {where}")
    return found
