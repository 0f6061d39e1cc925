"""JUnit XML: what CI servers read, and what is read from elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import junitparser
import msgspec
import pytest
from lxml import etree

from scripts import junit, reading, results
from scripts.errors import Blocked
from scripts.results import Outcome, State, Verdict
from tests import examples
from tests.conftest import ROOT

SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).with_name("jenkins-junit.xsd")))


def merged() -> bytes:
    report = examples.every_verdict()
    return junit.of_results(report.batch, report.columns)


def test_the_schema_that_jenkins_uses_accepts_it() -> None:
    SCHEMA.assertValid(etree.fromstring(merged()))


def test_junitparser_reads_back_every_case_of_every_pair() -> None:
    report = examples.every_verdict()

    read = {(suite.name, case.name) for suite in junitparser.JUnitXml.fromstring(merged()) for case in suite}
    written = {
        (f"{column.pair}/{case.file}", junit.printable(case.name)) for column in report.columns for case in column.cases
    }

    assert len(written) > 200
    assert written <= read


@pytest.mark.parametrize("pair", ["2.7.1", "2.8.0", "2.9.0", "2.11.0", "2.13.0"])
def test_no_ci_server_shows_a_pair_green_that_is_not_verified(pair: str) -> None:
    xml = junitparser.JUnitXml.fromstring(merged())

    suites = [suite for suite in xml if suite.name.split("/")[0] == pair]

    assert suites
    assert sum(suite.failures + suite.errors for suite in suites) > 0


def test_the_cause_and_the_remedy_of_a_block_are_in_it() -> None:
    xml = junitparser.JUnitXml.fromstring(merged())
    case = next(case for suite in xml for case in suite if suite.name == "2.9.0")

    assert "no-wheel: no wheel" in case.result[0].text
    assert "Point uv at an index" in case.result[0].text


def test_suites_carry_what_they_were_run_with() -> None:
    xml = junitparser.JUnitXml.fromstring(merged())
    suite = next(suite for suite in xml if suite.name.startswith("2.10.0/") and "local_timer" in suite.name)
    properties = {entry.name: entry.value for entry in suite.properties()}  # type: ignore[no-untyped-call]

    assert properties == {
        "pair": "2.10.0",
        "torch": "2.10.0+cpu",
        "torch-npu": "2.10.0",
        "python": "3.11.9",
        "machine": "aarch64",
        "mode": "npu",
        "upstream": "https://git.example/pytorch",
        "commit": "1" * 40,
        "verdict": "verified",
        "state": "complete",
        "blob": "8" * 40,
        "patch": examples.PATCH.patch,
    }


def test_two_files_of_one_name_keep_their_own_cases_when_merged() -> None:
    xml = junitparser.JUnitXml.fromstring(merged())
    keys = [(suite.name, case.classname, case.name) for suite in xml for case in suite]

    assert len(keys) == len(set(keys))
    assert {name.rpartition("/")[2] for name, _, _ in keys if name.startswith("2.6.0/")} == {
        "api_test.py",
        "local_timer_test.py",
    }


def test_the_bytes_do_not_depend_on_which_xml_library_is_installed() -> None:
    script = """
import sys
sys.modules["lxml"] = None
from scripts import junit
from tests import examples
report = examples.every_verdict()
sys.stdout.buffer.write(junit.of_results(report.batch, report.columns))
"""
    without = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True).stdout

    assert without == merged()


@pytest.mark.parametrize("text", ["\x00", "\x0b", "\x1b[0m", "\ud800", "\ufffe", "]]>", "<&>\"'", "a\r\nb"])
def test_text_that_xml_cannot_hold_is_shown_escaped(text: str) -> None:
    made, cases = examples.run(examples.TIMER, 1, bad=[Outcome.FAILED])
    column = examples.column("2.10.0", runs=[(made, [msgspec.structs.replace(cases[0], message=text)])])

    data = junit.of_results("b", [column])

    SCHEMA.assertValid(etree.fromstring(data))
    found = next(case for suite in junitparser.JUnitXml.fromstring(data) for case in suite)
    assert junit.printable(text).replace("\r\n", "\n") in (found.result[0].text or "").replace("\r\n", "\n")


def test_what_it_writes_it_reads(tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    file.write_bytes(merged())

    read = {column.pair: column for column in reading.read(file)}

    assert set(read) == {column.pair for column in examples.every_verdict().columns}
    assert read["2.6.0"].verdict is Verdict.VERIFIED
    assert all(read[pair].verdict is Verdict.FAILED for pair in ("2.7.1", "2.8.0", "2.9.0", "2.11.0", "2.13.0"))


BOMB = """<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>
<testsuite name="&c;"><testcase name="t"/></testsuite>"""
EXTERNAL = (
    """<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]><testsuite name="&b;"><testcase name="t"/></testsuite>"""
)


@pytest.mark.parametrize(
    "text", [BOMB, EXTERNAL, "<testsuite", "<a/>", "", "\x00", "[]", "{}", "<a>" * 100_000, "[" * 100_000]
)
def test_what_is_no_report_is_refused_in_words(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.xml"
    file.write_text(text)

    with pytest.raises(Blocked, match=r"report\.xml") as refused:
        reading.read(file)

    assert refused.value.code == "bad-result"


@pytest.mark.parametrize(
    ("text", "verdict", "cases"),
    [
        ('<testsuite name="s"><testcase name="a" classname="C"/></testsuite>', Verdict.VERIFIED, {"C.a": "passed"}),
        (
            '<testsuites><testsuite name="o"><testsuite name="i"><testcase name="a"/></testsuite>'
            '<testcase name="b"><failure message="m"/></testcase></testsuite></testsuites>',
            Verdict.FAILED,
            {".a": "passed", ".b": "failed"},
        ),
        ('<testsuite name="s" errors="1"/>', Verdict.FAILED, {}),
        (
            '<testsuite name="s" tests="3" failures="2"><testcase name="a"/></testsuite>',
            Verdict.FAILED,
            {".a": "passed"},
        ),
        ('<testsuite name="s" tests="0"/>', Verdict.HOLLOW, {}),
        ('<testsuite name="s"><testcase name="a"><skipped/></testcase></testsuite>', Verdict.HOLLOW, {".a": "skipped"}),
        (
            '<testsuite name="s"><testcase name="&lt;script&gt;alert(1)&lt;/script&gt;"/></testsuite>',
            Verdict.VERIFIED,
            {".<script>alert(1)</script>": "passed"},
        ),
        (
            '<testsuite name="s"><testcase name="a"/><testcase name="a"><error/></testcase></testsuite>',
            Verdict.FAILED,
            {".a": "passed", ".a [2]": "error"},
        ),
        (
            '<testsuite name="s"><testcase name="a"><failure/><error>both</error></testcase></testsuite>',
            Verdict.FAILED,
            {".a": "error"},
        ),
    ],
)
def test_other_reports_are_read_completely(tmp_path: Path, text: str, verdict: Verdict, cases: dict[str, str]) -> None:
    file = tmp_path / "other.xml"
    file.write_text(text)

    [column] = reading.read(file)

    assert {f"{case.cls}.{case.name}": case.outcome.value for case in column.cases} == cases
    assert column.verdict is verdict


def test_a_verdict_is_worked_out_again_and_never_taken_over(tmp_path: Path) -> None:
    honest = examples.column("2.10.0", runs=[examples.run(examples.TIMER, 1, bad=[Outcome.FAILED])])
    file = tmp_path / "result.json"
    file.write_bytes(results.encode(honest).replace(b'"verdict": "failed"', b'"verdict": "verified"'))

    [column] = reading.read(file)

    assert column.verdict is Verdict.FAILED
    assert column.runs[0].state is State.COMPLETE
