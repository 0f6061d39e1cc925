"""The merged report: the same bytes for the same results, and no sentence that the results do not carry."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from markdown_it import MarkdownIt

from scripts import apis, docpage, document, junit, matrix, page, report, results, templating, wording
from scripts.errors import Blocked
from scripts.results import Outcome, PairResult, Verdict
from tests import examples
from tests.conftest import ROOT

GOLDEN = Path(__file__).parent / "golden"
BATCH = matrix.load(ROOT / "matrix.toml")
FORMATS: dict[str, Callable[[results.Report], bytes]] = {
    "report.json": results.encode,
    "report.xml": lambda merged: junit.of_results(merged.batch, merged.columns),
    "report.md": lambda merged: document.markdown(merged, "en").encode(),
    "report.zh.md": lambda merged: document.markdown(merged, "zh").encode(),
    "report.html": lambda merged: page.html(merged).encode(),
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_bytes_of_every_format_are_pinned(name: str) -> None:
    """After a change that is meant, UPDATE_GOLDEN=1 writes them anew; read the difference before it is committed."""
    made = FORMATS[name](examples.every_verdict())
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / name).write_bytes(made)

    assert made == (GOLDEN / name).read_bytes()


def test_the_order_in_which_results_come_does_not_matter() -> None:
    columns = examples.every_verdict().columns
    first = results.encode(report.merge(BATCH, columns))

    for order in itertools.islice(itertools.permutations(columns), 0, 40_000, 4_001):
        assert results.encode(report.merge(BATCH, list(order))) == first


def test_report_json_keeps_its_contract() -> None:
    merged = msgspec.json.decode(results.encode(examples.every_verdict()))

    assert merged["schema"] == 1
    assert {"title", "columns", "apis"} <= merged.keys()
    for column in merged["columns"]:
        wanted = "pair torch torch_npu python machine mode upstream verdict reason runs cases"
        assert set(wanted.split()) <= column.keys()
        for run in column["runs"]:
            assert {"file", "state", "tests", "expected", "seconds", "outcomes"} <= run.keys()
        for case in column["cases"]:
            assert {"file", "class", "name", "outcome", "seconds", "message"} <= case.keys()
        if column["upstream"]:
            assert {"source", "tag", "commit"} <= column["upstream"].keys()
    assert {api["name"].rpartition(".")[2] for api in merged["apis"]} >= {"RunResult", "TimerRequest"}
    assert all("evidence" in api for api in merged["apis"])


@pytest.mark.parametrize("language", wording.LANGUAGES)
def test_nothing_in_a_result_is_markup_in_the_document(language: str) -> None:
    text = document.markdown(examples.every_verdict(), language)

    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or ()]

    assert not [token for token in (*tokens, *inline) if token.type in ("html_block", "html_inline", "image")]
    links = [str(token.attrs["href"]) for token in inline if token.type == "link_open"]
    assert links == []
    headings = [token for token in tokens if token.type == "heading_open"]
    plain = document.markdown(examples.calm(examples.every_verdict()), language)
    assert len(headings) == len([t for t in MarkdownIt("commonmark").parse(plain) if t.type == "heading_open"])


def test_tables_of_the_document_have_the_same_number_of_cells_in_every_row() -> None:
    rows: list[int] = []
    for token in MarkdownIt("commonmark").enable("table").parse(document.markdown(examples.every_verdict(), "en")):
        if token.type == "tr_open":
            rows.append(0)
        elif token.type in ("td_open", "th_open"):
            rows[-1] += 1
        elif token.type == "table_close":
            assert len(set(rows)) == 1
            rows.clear()


@pytest.mark.parametrize("language", wording.LANGUAGES)
def test_conclusions_say_of_each_pair_what_its_verdict_is(language: str) -> None:
    merged = examples.every_verdict()
    say = wording.say_in(language)
    text = document.markdown(merged, language)
    heading = say("conclusion.heading")
    conclusions = text[text.index(f"## 7. {heading}") : text.index("## 8.")]

    verified = say("conclusion.verified", pairs="2.6.0, 2.10.0", files=3)
    assert verified in conclusions
    for pair in ("2.7.1", "2.8.0", "2.9.0", "2.11.0", "2.13.0"):
        verdict = next(column.verdict for column in merged.columns if column.pair == pair)
        opening = say(f"conclusion.{verdict.value}", pair=pair, reason="\0", remedy="", code="").partition("\0")[0]
        assert opening in conclusions
    assert say("conclusion.flaky", pair="2.10.0", number=1) in conclusions


def test_with_nothing_verified_no_sentence_says_so() -> None:
    columns = [column for column in examples.every_verdict().columns if column.verdict is not Verdict.VERIFIED]

    text = document.markdown(report.merge(BATCH, columns), "en")

    assert not re.search(r"(?<!not )\bverified\. ", text)
    assert "complete in all" not in text


def test_the_document_says_why_the_guard_is_there_with_its_source() -> None:
    for language in wording.LANGUAGES:
        text = document.markdown(examples.every_verdict(), language)
        assert "qsize()" in text
        assert "158342" in text
        assert "14" in text[text.index("aarch64") :]


def test_both_languages_have_the_same_texts_with_the_same_values() -> None:
    english, chinese = (wording.load(language) for language in wording.LANGUAGES)

    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert set(re.findall(r"{(\w+)}", text)) == set(re.findall(r"{(\w+)}", chinese[key])), key


def test_every_text_is_used_and_every_text_that_is_used_exists() -> None:
    sources = [*templating.TEMPLATES.glob("*"), *(ROOT / "scripts").glob("*.py")]
    code = "\n".join(path.read_text() for path in sources)
    used = set(
        re.findall(
            r"""["']((?:summary|environment|apis|adaptation|runs|cases|conclusion|provenance|page|export|diff|history|evidence|api|docs)\.[a-z-]+)["']""",
            code,
        )
    )
    families = {f"{family}.{entry.value}" for family, kind in FAMILIES.items() for entry in kind}
    spoken = set(wording.load("en"))

    assert used <= spoken
    assert spoken - used - families - {f"conclusion.{key}" for key in ("file-all", "file-some", "file-none")} == {
        "language"
    }


FAMILIES = {
    "verdict": results.Verdict,
    "mode": results.Mode,
    "outcome": results.Outcome,
    "state": results.State,
    "conclusion": results.Verdict,
    "api": apis.Change,
    "docs": docpage.Support,
}


def test_results_of_many_machines_make_one_report_whatever_their_order(tmp_path: Path) -> None:
    places = []
    for machine in ("aarch64", "x86_64"):
        column = examples.column("2.10.0", runs=[examples.run(examples.TIMER, 1)])
        places.append(_save(tmp_path / machine, msgspec.structs.replace(column, machine=machine)))
    places.append(_save(tmp_path / "other", examples.column("2.7.1", runs=[examples.run(examples.TIMER, 1)])))

    one = report.combine(tmp_path / "one", BATCH, places)
    two = report.combine(tmp_path / "two", BATCH, [*places[::-1], places[0]])

    for name in FORMATS:
        assert (one / name).read_bytes() == (two / name).read_bytes()
    merged = msgspec.json.decode((one / "report.json").read_bytes(), type=results.Report)
    assert [column.label for column in merged.columns if column.pair in ("2.7.1", "2.10.0")] == [
        "2.7.1",
        "2.10.0 aarch64 npu py3.11.9",
        "2.10.0 x86_64 npu py3.11.9",
    ]
    assert sum(column.verdict is Verdict.NOT_RUN for column in merged.columns) == 6


def test_two_different_results_of_one_column_are_refused_by_name(tmp_path: Path) -> None:
    good = examples.column("2.10.0", runs=[examples.run(examples.TIMER, 1)])
    bad = examples.column("2.10.0", runs=[examples.run(examples.TIMER, 1, bad=[Outcome.FAILED])])
    places = [_save(tmp_path / "a", good), _save(tmp_path / "b", bad)]

    with pytest.raises(Blocked, match=r"two different results of 2\.10\.0, aarch64, npu, 3\.11\.9") as refused:
        report.combine(tmp_path, BATCH, places)

    assert refused.value.code == "conflict"


def _save(folder: Path, column: PairResult) -> Path:
    folder.mkdir(parents=True)
    (folder / "result.json").write_bytes(results.encode(column))
    return folder


def test_writing_grows_with_the_number_of_cases_and_not_with_its_square() -> None:
    def seconds(cases: int) -> float:
        column = examples.column("2.10.0", runs=[examples.run(examples.TIMER, cases)])
        start = time.process_time()
        for write in FORMATS.values():
            write(report.merge(BATCH, [column]))
        return time.process_time() - start

    seconds(100)
    assert seconds(16_000) / seconds(2_000) < 24  # 8 if it grows linearly, 64 with the square
