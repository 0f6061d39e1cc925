"""What Ascend/pytorch's docs say of an API: every form of page, and every place that a page may be at. Real git."""

from __future__ import annotations

import contextlib
import shutil
import socket
import textwrap
import threading
import time
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from scripts import docpage, docs, matrix, storage
from scripts.docpage import Statement, Support
from scripts.docs import DocsFacts
from scripts.errors import ConfigError
from scripts.scope import RunScope
from tests import stubs
from tests.test_upstream import Repository, write

A2, A3, NEW = "Atlas A2训练系列产品", "Atlas A3训练系列产品", "Ascend 950DT"
YES, NO, SAID_NOTHING, MOSTLY = Support.SUPPORTED, Support.UNSUPPORTED, Support.NO_STATEMENT, Support.EXCEPTION

# Each page says of torch.t.expires that it is supported and of torch.t.Client.acquire that it isn't, of torch.t.mostly
# that some hardware is excepted, and of torch.t.unsaid nothing.
FORMS = {
    "A": """\
        # torch.t

        <a name="t"></a>
        <table><thead align="left"><tr><th class="c" width="60%"><p id="p1"><a name="p1"></a>API名称</p>
        </th><th><p>是否支持</p></th><th>限制与说明</th></tr></thead>
        <tbody>
        <tr><td class="c"><p id="p2"><a name="p2"></a>torch.t.expires</p>
        </td><td><p>是</p></td><td></td></tr>
        <tr><td>torch.t.Client.acquire</td><td>否</td><td>-</td></tr>
        <tr><td>torch.t.mostly</td><td>是<br>暂不支持<term>Ascend 950DT</term></td><td></td></tr>
        <tr><td>torch.t.unsaid</td><td>&nbsp; </td><td></td></tr>
        </tbody></table>
        """,
    "B": """\
        > [!NOTE]
        > 若API“是否支持”为“是”，“限制与说明”为“-”，说明此API和原生API支持度保持一致。

        |API名称|是否支持|限制与说明|
        |--|--|--|
        |torch.t.expires|是|支持fp32|
        |torch.t.Client.acquire|否|-|
        |torch.t.mostly|是，暂不支持Ascend 950DT|-|
        |torch.t.unsaid|-|-|
        """,
    "B in English": """\
        | API Name               | Supported                      | Restrictions and Notes |
        | :--------------------- | :----------------------------: | ---------------------: |
        | torch.t.expires        | Yes                            | -                      |
        | torch.t.Client.acquire | No                             | -                      |
        | torch.t.mostly         | Yes, not supported on Ascend 950DT | -                  |
        | torch.t.unsaid         |                                | -                      |
        """,
    "C": """\
        |API名称|NPU形式名称|是否支持|限制与说明|
        |--|--|--|--|
        |[torch.t.expires](https://e.example/t.html#torch.t.expires)|torch_npu.t.expires|是|-|
        |[torch.t.Client.acquire](https://e.example/t.html#x)|-|否|-|
        |[torch.t.mostly](https://e.example/t.html#y)|-|是（暂不支持<term>Ascend 950DT</term>）|-|
        |[torch.t.unsaid](https://e.example/t.html#z)|-||-|
        """,
    "D": """\
        |API名称|是否支持|限制与说明|
        |--|--|--|
        |`torch.t.expires`|是|-|
        |torch.t.Client.acquire()|否|-|
        |torch.t.mostly|是<br>暂不支持<term>Ascend 950DT</term>|-|
        |torch.t.unsaid|
        """,
    "E": """\
        ## Timers

        ### torch.t.expires

        <div style="margin-left: 2em">

        **原生文档**：[torch.t.expires](https://e.example/t.html#torch.t.expires)

        **是否支持**：是

        **限制与说明**：支持fp32

        </div>

        ### _`class`_ torch.t.Client

        **是否支持**：是

        > <font size="3">acquire()</font>

        **是否支持**：否

        ### torch.t.mostly

        **是否支持**：是，暂不支持<term>Ascend 950DT</term>

        ### torch.t.unsaid

        **限制与说明**：支持fp32
        """,
    "F": """\
        ### torch.t.expires

        <div style="margin-left: 2em">

        **支持情况**：

        | 硬件 | 是否支持 |
        | ---- | :----: |
        | <term>Atlas A2 训练系列产品</term> | ✔ |
        | <term>Ascend 950DT</term> | ✔ |

        </div>

        ### <code><i>class</i></code> torch.t.Client

        **支持情况**：

        | 硬件 | 是否支持 |
        | ---- | :----: |
        | <term>Atlas A2 训练系列产品</term> | ✔ |

        > <font size="3">acquire()</font>

        <div style="margin-left: 2em">

        **支持情况**：

        | 硬件 | 是否支持 |
        | ---- | :----: |
        | <term>Atlas A2 训练系列产品</term> | ✘ |
        | <term>Ascend 950DT</term> | &#10007; |

        </div>

        ### torch.t.mostly

        **支持情况**：

        | 硬件 | 是否支持 |
        | ---- | :----: |
        | <term>Ascend 950DT</term> | ✘ |
        | <term>Atlas A2 训练系列产品</term> | &#10004; |

        ### torch.t.unsaid
        """,
    "G": """\
        ### torch.t.expires

        **产品支持情况**：

        <!-- npu="910b" id1 -->
        - <term>Atlas A2训练系列产品</term>：支持
        <!-- end id1 -->
        <!-- npu="950" id2 -->
        - <term>Ascend 950DT</term>：支持
        <!-- end id2 -->

        ### <code><i>class</i></code> torch.t.Client

        **产品支持情况**：

        - <term>Atlas A2 训练系列产品</term>：支持

        > <font size="3">acquire()</font>

        **产品支持情况**：

        - <term>Atlas A2 训练系列产品</term>：不支持
        - <term>Ascend 950DT</term>：不支持

        ### torch.t.mostly

        **产品支持情况**：

        - <term>Atlas A2 训练系列产品</term>：支持
        - <term>Ascend 950DT</term>：不支持

        ### torch.t.unsaid

        **产品支持情况**：
        """,
}
NAMES = ("torch.t.expires", "torch.t.Client.acquire", "torch.t.mostly", "torch.t.unsaid", "torch.t.absent")


def read(page: str, *names: str) -> list[Statement]:
    return list(docpage.read(textwrap.dedent(page), names).values())


def supports(page: str, *names: str) -> list[Support]:
    return [statement.support for statement in read(page, *names)]


@pytest.mark.parametrize(("form", "page"), FORMS.items(), ids=FORMS.keys())
def test_every_form_of_page_is_read(form: str, page: str) -> None:
    found = read(page, *NAMES)
    assert [statement.support for statement in found] == [YES, NO, MOSTLY, SAID_NOTHING, Support.NO_ENTRY]
    assert [statement.hardware.get(NEW) for statement in found][2] is False
    if form in ("F", "G"):
        assert [statement.hardware for statement in found[:3]] == [
            {A2: True, NEW: True},
            {A2: False, NEW: False},
            {A2: True, NEW: False},
        ]


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ("|API名称|是否支持|\n|--|--|\n|torch.a|是|\n", 3),
        (
            "\n<table>\n<tr><th>API名称</th><th>是否支持</th></tr>\n<tr>\n<td>torch.a</td>\n<td>是</td></tr></table>\n",
            4,
        ),
        ("### torch.a\n\n\n**是否支持**：是\n", 4),
        ("### torch.a\n**支持情况**：\n\n| 硬件 | 是否支持 |\n|--|--|\n| A | ✔ |\n", 4),
        ("### torch.a\n**产品支持情况**：\n\n\n- A：支持\n", 5),
        ("<!--\n\n-->\n### torch.a\n", 4),
        ("torch\n\ntorch.a\n", 3),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
def test_the_line_is_where_it_is_said(page: str, line: int, end: str) -> None:
    assert docpage.read(page.replace("\n", end), ["torch.a"])["torch.a"].line == line


@pytest.mark.parametrize(
    ("cell", "support", "hardware"),
    [
        ("是", YES, {}),
        ("**是**", YES, {}),
        ("Yes", YES, {}),
        ("Y", YES, {}),
        ("✔", YES, {}),
        ("✅", YES, {}),
        ("支持", YES, {}),
        ("是，支持bf16，不支持fp64", MOSTLY, {}),
        ("是<br>暂不支持<term>Ascend 950DT</term>", MOSTLY, {NEW: False}),
        (
            "是<br/>不支持 <term>Ascend 950DT</term>、<term>Atlas A3 训练系列产品</term>",
            MOSTLY,
            {NEW: False, A3: False},
        ),
        ("是<br>暂不支持<term>X1</term>和<term>X2</term>", MOSTLY, {"X1": False, "X2": False}),
        ("是，暂不支持Atlas A2 训练系列产品、Ascend 950DT。", MOSTLY, {A2: False, NEW: False}),
        ("Yes<br>Not yet supported on <term>Ascend 950DT</term>", MOSTLY, {NEW: False}),
        ("Yes, except Ascend 950DT", MOSTLY, {NEW: False}),
        ("是，仅支持<term>Atlas A3 训练系列产品</term>", MOSTLY, {A3: True}),
        ("是，仅支持<term>X1</term>，暂不支持<term>X2</term>", MOSTLY, {"X2": False}),
        ("是（支持fp32）", YES, {}),
        ("否", NO, {}),
        ("No", NO, {}),
        ("✘", NO, {}),
        ("不支持", NO, {}),
        ("暂不支持", NO, {}),
        ("否，暂不支持", NO, {}),
        ("否，仅<term>Ascend 950DT</term>支持", Support.UNKNOWN_FORM, {}),
        ("", SAID_NOTHING, {}),
        (" - ", SAID_NOTHING, {}),
        ("N/A", SAID_NOTHING, {}),
        ("&nbsp;", SAID_NOTHING, {}),
        ("部分支持", Support.UNKNOWN_FORM, {}),
        ("是否支持待确认", Support.UNKNOWN_FORM, {}),
        ("Yesterday", Support.UNKNOWN_FORM, {}),
        ("Nothing", Support.UNKNOWN_FORM, {}),
        ("3", Support.UNKNOWN_FORM, {}),
    ],
)
def test_what_a_cell_or_a_line_says(cell: str, support: Support, hardware: dict[str, bool]) -> None:
    (in_table,) = read(f"|API名称|是否支持|\n|--|--|\n|torch.a|{cell}|\n", "torch.a")
    (in_html,) = read(
        f"<table><tr><th>API</th><th>是否支持</th></tr><tr><td>torch.a</td><td><p>{cell}</p></td></tr></table>",
        "torch.a",
    )
    (in_line,) = read(f"### torch.a\n\n**是否支持**：{cell}\n", "torch.a")
    for found in (in_table, in_html, in_line):
        assert (found.support, found.hardware) == (support, hardware)


@pytest.mark.parametrize(
    ("marks", "support", "hardware"),
    [
        (["✔", "✔"], YES, {"A": True, "B": True}),
        (["✔", "✘"], MOSTLY, {"A": True, "B": False}),
        (["×", "x"], NO, {"A": False, "B": False}),
        (["√", "No"], MOSTLY, {"A": True, "B": False}),
        (["✔", "?"], Support.UNKNOWN_FORM, {"A": True}),
        (["✔", ""], YES, {"A": True}),
        (["-", ""], SAID_NOTHING, {}),
        ([], SAID_NOTHING, {}),
    ],
)
def test_what_hardware_by_hardware_comes_to(marks: list[str], support: Support, hardware: dict[str, bool]) -> None:
    rows = "".join(f"| {name} | {mark} |\n" for name, mark in zip("AB", marks, strict=False))
    items = "".join(f"- {name}：{mark}\n" for name, mark in zip("AB", marks, strict=False))
    for listed in (f"| 硬件 | 是否支持 |\n|--|--|\n{rows}", items):
        (found,) = read(f"### torch.a\n\n**支持情况**：\n\n{listed}", "torch.a")
        assert (found.support, found.hardware) == (support, hardware)


def test_a_row_that_names_no_hardware_says_nothing() -> None:
    (found,) = read("### torch.a\n\n| 硬件 | 是否支持 |\n|--|--|\n| A | ✔ |\n| | ✘ |\n", "torch.a")
    assert (found.support, found.hardware) == (YES, {"A": True})


def test_words_of_any_length_are_told_in_one_short_line() -> None:
    long, longer = (
        read(f"|API|Supported|\n|--|--|\n|torch.a|{'词' * count}|\n", "torch.a")[0].words for count in (200, 201)
    )
    assert (long, longer) == ("词" * 200, "词" * 199 + "…")
    assert read("|API|Supported|\n|--|--|\n|torch.a|perhaps<br>  later|\n", "torch.a")[0].words == "perhaps later"


def test_a_list_with_something_else_in_it_is_not_understood() -> None:
    (found,) = read("### torch.a\n\n**产品支持情况**：\n\n- A：支持\n- 待验证\n", "torch.a")
    assert (found.support, found.words) == (Support.UNKNOWN_FORM, "待验证: ?")


# Entries


def test_a_method_that_has_no_entry_is_not_taken_for_its_class() -> None:
    page = "### _`class`_ torch.t.Client\n\n**是否支持**：是\n"
    assert supports(page, "torch.t.Client", "torch.t.Client.acquire") == [YES, Support.NO_ENTRY]


def test_a_method_belongs_to_the_class_above_it_until_another_heading_comes() -> None:
    page = """\
    ### torch.t.A
    > run()

    **是否支持**：是

    ### torch.t.B
    > run()

    **是否支持**：否

    ## Others
    > run()

    **是否支持**：是
    """
    assert supports(page, "torch.t.A.run", "torch.t.B.run", "torch.t.run") == [YES, NO, Support.NO_ENTRY]


def test_an_entry_that_says_nothing_does_not_borrow_from_the_next() -> None:
    page = "### torch.t.a\n\n### torch.t.b\n\n**是否支持**：是\n"
    assert supports(page, "torch.t.a", "torch.t.b") == [SAID_NOTHING, YES]


@pytest.mark.parametrize("page", FORMS.values(), ids=FORMS.keys())
def test_what_follows_is_read_as_well_and_the_end_needs_no_line_of_its_own(page: str) -> None:
    page = textwrap.dedent(page).rstrip("\n")
    again = f"{page}\n\n### torch.t.later\n\n**是否支持**：否"
    assert supports(page, *NAMES) == [YES, NO, MOSTLY, SAID_NOTHING, Support.NO_ENTRY]
    assert supports(again, "torch.t.expires", "torch.t.later") == [YES, NO]


def test_a_table_of_html_may_stand_in_one_line() -> None:
    page = "<table><tr><th>API</th><th>Supported</th></tr><tr><td>torch.t.a</td><td>Yes</td></tr></table>\n"
    assert supports(f"{page}\n### torch.t.b\n\n**是否支持**：否\n", "torch.t.a", "torch.t.b") == [YES, NO]


def test_a_quote_that_is_prose_is_no_method() -> None:
    page = "### torch.t.Client\n\n> acquire\n\n> 说明：**支持情况** 见下\n\n**是否支持**：是\n"
    assert supports(page, "torch.t.Client", "torch.t.Client.acquire") == [YES, Support.NO_ENTRY]


def test_columns_are_found_by_their_heads() -> None:
    page = "|序号|是否支持|API名称|\n|-|-|-|\n|1|是|torch.t.a|\n|2|否|torch.t.b|\n"
    assert supports(page, "torch.t.a", "torch.t.b") == [YES, NO]


def test_a_table_may_stand_without_its_outer_bars() -> None:
    page = "API名称 | 是否支持\n--- | ---\ntorch.t.a | 是\ntorch.t.b | 否\n\ntorch.t.c | 是\n"
    assert supports(page, "torch.t.a", "torch.t.b", "torch.t.c") == [YES, NO, Support.UNKNOWN_FORM]


def test_a_bar_that_is_escaped_ends_no_cell() -> None:
    page = r"""
    |API名称|限制|是否支持|
    |--|--|--|
    |torch.t.a|int \| None|是|
    """
    assert supports(page, "torch.t.a") == [YES]


def test_a_cell_of_html_that_spans_rows_does_not_shift_the_others() -> None:
    page = """\
    <table>
    <tr><th>模块</th><th>API名称</th><th>是否支持</th></tr>
    <tr><td rowspan="2">t</td><td>torch.t.a</td><td>是</td></tr>
    <tr><td>torch.t.b</td><td>否</td></tr>
    <tr><td>u</td><td>torch.t.c</td><td rowspan=2>是</td></tr>
    <tr><td>u</td><td>torch.t.d</td></tr>
    <tr><td>u</td><td>torch.t.e</td><td>否</td></tr>
    </table>
    """
    names = [f"torch.t.{letter}" for letter in "abcde"]
    assert supports(page, *names) == [YES, NO, YES, YES, NO]


@pytest.mark.parametrize(
    "page",
    [
        "### torch.t.a\n\n**Restrictions**: none\n\n**Works**: certainly\n\n说明 torch.t.b\n",
        "|Name|Works|\n|--|--|\n|torch.t.b|是|\n",
        "- torch.t.b：支持\n",
        "torch.t.b is supported\n",
        "<p>torch.t.b</p><p>是</p>\n",
    ],
)
def test_a_name_in_no_known_form_is_not_an_absent_one(page: str) -> None:
    (found,) = read(page, "torch.t.b")
    assert found.support is Support.UNKNOWN_FORM
    assert found.line == next(number for number, line in enumerate(page.splitlines(), 1) if "torch.t.b" in line)


@pytest.mark.parametrize("text", ["torch.t.acquired", "torch.t.a.b", "xtorch.t.a", "my.torch.t.a", "torch.t"])
def test_a_part_of_another_name_is_not_the_name(text: str) -> None:
    assert supports(f"|API名称|是否支持|\n|--|--|\n|{text}|是|\n\n{text}\n", "torch.t.a") == [Support.NO_ENTRY]


def test_what_stands_in_comments_or_code_is_not_said() -> None:
    page = """\
    <!-- ### torch.t.a
    **是否支持**：是 -->
    ```markdown
    ### torch.t.b

    **是否支持**：是
    ```
    ~~~
    ```
    ### torch.t.b
    ~~~
    ### torch.t.c

    **是否支持**：是
    """
    names = ("torch.t.a", "torch.t.b", "torch.t.c")
    assert supports(page, *names) == [Support.NO_ENTRY, Support.NO_ENTRY, YES]
    assert read(page, "torch.t.c")[0].line == 14


def test_an_entry_that_contradicts_itself_says_neither() -> None:
    table = "| 硬件 | 是否支持 |\n|--|--|\n| A | {} |\n\n"
    page = f"### torch.t.a\n\n**支持情况**：\n\n{table.format('✔')}**支持情况**：\n\n{table.format('✘')}"
    assert supports(page, "torch.t.a") == [Support.UNKNOWN_FORM]
    assert supports(page.replace("✘", "✔"), "torch.t.a") == [YES]


ROW = "|API名称|是否支持|\n|--|--|\n|torch.t.a|{}|\n\n"


@pytest.mark.parametrize(
    ("cells", "support"),
    [
        (("是", "是"), YES),
        (("是", "-"), YES),
        (("-", "否"), NO),
        (("是", "否"), Support.UNKNOWN_FORM),
        (("是", "是<br>暂不支持<term>Ascend 950DT</term>"), Support.UNKNOWN_FORM),
    ],
)
def test_two_entries_that_contradict_each_other_say_neither(cells: tuple[str, str], support: Support) -> None:
    (found,) = read("".join(ROW.format(cell) for cell in cells), "torch.t.a")
    assert found.support is support
    if support is Support.UNKNOWN_FORM:
        assert "line 3: supported; line 7: " in found.words


# Any text at all

FRAGMENTS = st.sampled_from(
    [
        *(
            "|",
            "|--|--|",
            "|API名称|是否支持|",
            "| 硬件 | 是否支持 |",
            "|torch.t.a|",
            "是",
            "否",
            "✔",
            "<br>",
            "暂不支持",
        ),
        *("<term>", "</term>", "Ascend 950DT", "### ", "> ", "torch.t.a", "b()", "_`class`_ ", "**是否支持**：", "- "),
        *("**支持情况**：", "：支持", "<!--", "-->", "```", "~~~", "&#10004;", "&#x", "&#99999999999;", "[", "](", ")"),
        *(
            "<table>",
            "<tr>",
            "<td rowspan='2'>",
            "</td>",
            "</table>",
            "<![x",
            "<!x[",
            "<script>",
            "\\",
            "\n",
            "\n\n",
            "\r",
        ),
        *("\x00", "\u2028", "\ufeff", "\u200b", "\ud800", "(", "é"),
    ]
)


@hypothesis.given(st.one_of(st.text(max_size=300), st.lists(FRAGMENTS, max_size=40).map("".join)))
@hypothesis.settings(max_examples=400, deadline=None, database=None)
def test_any_text_is_read_and_nothing_is_claimed_that_it_does_not_name(text: str) -> None:
    found = docpage.read(text, ["torch.t.a", "torch.t.a.b", "torch.never.named"])
    assert list(found) == ["torch.t.a", "torch.t.a.b", "torch.never.named"]
    assert found["torch.never.named"] == Statement(support=Support.NO_ENTRY)
    for statement in found.values():
        assert (statement.line is None) == (statement.support is Support.NO_ENTRY)


@pytest.mark.parametrize(
    "unit",
    [
        "<!--",
        "<table>",
        "<td rowspan=9>",
        "|",
        "|-",
        "[",
        "](",
        "### ",
        "> ",
        "<term>",
        "**是否支持**：",
        " ",
        "<",
        "&",
        "```",
    ],
)
@pytest.mark.parametrize("end", ["", "\n"], ids=["one line", "lines"])
def test_a_page_that_repeats_itself_is_read_in_no_time(unit: str, end: str) -> None:
    start = time.monotonic()
    docpage.read(f"### torch.t.a\n{(unit + end) * 20_000}\n", ["torch.t.a"])
    assert time.monotonic() - start < 3


# Pages in folders

PATHS = ["docs/api/pytorch_{torch_dashed}/{page}.md", "docs/apis/pytorch_{torch_dashed}/{page}.md"]
NEW_PATH, OLD_PATH = "docs/api/pytorch_{}/t.md", "docs/apis/pytorch_{}/t.md"
SUPPORTED, REFUSED, APART = (f"|API名称|是否支持|\n|--|--|\n|torch.a|{cell}|\n" for cell in ("是", "否", "-"))


def load(folder: Path, *sources: str, torch: str = "2.10.0", **keys: object) -> matrix.Batch:
    both = {"en": "A test.", "zh": "测试。"}
    table = {"repository": list(sources), "path": PATHS, "page": "t", **keys}
    api = [{"name": "torch.a", "kind": "function", "does": both}]
    return matrix.load(stubs.write_batch(folder, pairs=[stubs.pair_row(torch)], docs=table, api=api))


def check(folder: Path, *sources: str, torch: str = "2.10.0", **keys: object) -> DocsFacts:
    """Return what the docs in ``sources`` state of torch.a in one pair."""
    batch = load(folder / "batch", *sources, torch=torch, **keys)
    found = docs.check(batch, batch.pairs[0], RunScope())
    assert found is not None
    return found


def stated(facts: DocsFacts) -> Support | str:
    """Return what is stated of the one API, or the code of what kept it from being looked up."""
    if facts.code:
        assert (facts.entries, bool(facts.cause), bool(facts.remedy)) == ([], True, True)
        return facts.code
    (entry,) = facts.entries
    assert entry.name == "torch.a"
    return entry.support


def test_a_batch_without_docs_is_compared_with_none(tmp_path: Path) -> None:
    batch = matrix.load(stubs.write_batch(tmp_path))
    assert docs.check(batch, batch.pairs[0], RunScope()) is None


def test_the_page_is_that_of_the_pairs_version(tmp_path: Path) -> None:
    for version, page in (("2-1-0", REFUSED), ("2-10-0", SUPPORTED), ("2-11-0", REFUSED)):
        write(tmp_path / NEW_PATH.format(version), page)
    facts = check(tmp_path, str(tmp_path))
    assert stated(facts) is YES
    assert facts.entries[0].place == "docs/api/pytorch_2-10-0/t.md:3"
    assert (facts.source, facts.file, facts.stands_in) == (str(tmp_path), "docs/api/pytorch_2-10-0/t.md", "")


def test_of_several_paths_and_sources_the_first_that_has_the_page_is_taken(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first / OLD_PATH.format("2-10-0"), SUPPORTED)
    write(second / NEW_PATH.format("2-10-0"), REFUSED)
    write(second / OLD_PATH.format("2-10-0"), APART)
    assert stated(check(tmp_path, str(first), str(second))) is YES
    assert stated(check(tmp_path, str(second), str(first))) is NO
    (tmp_path / "third").mkdir()
    facts = check(tmp_path, str(tmp_path / "third"), str(first))
    assert (stated(facts), facts.tried) == (YES, [f"{tmp_path / 'third'}: no page for 2.10.0"])


def test_a_folder_may_be_named_from_the_batch_and_by_version(tmp_path: Path) -> None:
    write(tmp_path / "batch" / "pages-2.10.0" / NEW_PATH.format("2-10-0"), SUPPORTED)
    assert stated(check(tmp_path, "pages-{torch}")) is YES


def test_no_page_is_said_of_a_source_that_was_looked_through(tmp_path: Path) -> None:
    write(tmp_path / NEW_PATH.format("2-9-0"), SUPPORTED)
    assert stated(check(tmp_path, str(tmp_path))) is Support.NO_FILE


def test_no_page_is_not_said_where_one_source_could_not_be_looked_through(tmp_path: Path) -> None:
    facts = check(tmp_path, str(tmp_path / "nowhere"), str(tmp_path))
    assert stated(facts) == "docs-folder"
    assert facts.cause == f"there is no folder {tmp_path / 'nowhere'} with docs"
    write(tmp_path / NEW_PATH.format("2-10-0"), SUPPORTED)
    facts = check(tmp_path, str(tmp_path / "nowhere"), str(tmp_path))
    assert (stated(facts), facts.tried) == (YES, [f"there is no folder {tmp_path / 'nowhere'} with docs"])


def test_the_nearest_older_page_stands_in_where_that_is_wanted_and_says_so(tmp_path: Path) -> None:
    for version, page in (("2-7-1", REFUSED), ("2-9-0", REFUSED), ("2-11-0", REFUSED)):
        write(tmp_path / NEW_PATH.format(version), page)
    write(tmp_path / OLD_PATH.format("2-9-1"), SUPPORTED)
    write(tmp_path / OLD_PATH.format("next"), REFUSED)
    facts = check(tmp_path, str(tmp_path), nearest=True)
    assert (stated(facts), facts.stands_in, facts.file) == (YES, "2.9.1", "docs/apis/pytorch_2-9-1/t.md")
    assert stated(check(tmp_path, str(tmp_path), torch="2.7.0", nearest=True)) is Support.NO_FILE


def test_a_link_out_of_the_folder_is_no_page(tmp_path: Path) -> None:
    page = write(tmp_path / "elsewhere.md", SUPPORTED)
    (tmp_path / "docs" / "docs" / "api" / "pytorch_2-10-0").mkdir(parents=True)
    (tmp_path / "docs" / NEW_PATH.format("2-10-0")).symlink_to(page)
    assert stated(check(tmp_path, str(tmp_path / "docs"))) is Support.NO_FILE


def test_a_page_that_is_no_text_says_nothing(tmp_path: Path) -> None:
    (tmp_path / NEW_PATH.format("2-10-0")).parent.mkdir(parents=True)
    (tmp_path / NEW_PATH.format("2-10-0")).write_bytes(bytes(range(256)) * 20)
    assert stated(check(tmp_path, str(tmp_path))) is Support.NO_ENTRY


# Pages in git


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "repository")
    made.commit({NEW_PATH.format("2-10-0"): SUPPORTED, "src/big.bin": "big"}, tag="1")
    return made


def forget_run() -> None:
    """Make what comes next another run."""
    storage.remove(RunScope().folder)


def test_a_page_comes_from_the_branch_that_is_named_with_its_commit(tmp_path: Path, repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.git("checkout", "-q", "-b", "v2.10.0-docs")
    other = repository.commit({NEW_PATH.format("2-10-0"): REFUSED}, tag="2")
    repository.git("checkout", "-q", "main")
    by_default = check(tmp_path, repository.url)
    named = check(tmp_path, repository.url, branch=["v{torch}-docs"])
    assert (stated(by_default), by_default.branch, by_default.commit) == (YES, "", first)
    assert (stated(named), named.branch, named.commit) == (NO, "v2.10.0-docs", other)
    assert named.source == repository.url


def test_branches_are_tried_in_order(tmp_path: Path, repository: Repository) -> None:
    repository.git("branch", "empty")
    repository.git("checkout", "-q", "empty")
    repository.git("rm", "-q", "-r", "docs")
    repository.commit({}, tag="2")
    facts = check(tmp_path, repository.url, branch=["missing", "empty", "main"])
    assert (stated(facts), facts.branch) == (YES, "main")
    assert facts.tried == [
        f"{repository.url}: no branch missing",
        f"{repository.url}, empty: no page for 2.10.0",
    ]
    assert stated(check(tmp_path, repository.url, branch=["missing", "empty"])) is Support.NO_FILE


def test_an_older_page_of_git_may_stand_in(tmp_path: Path, repository: Repository) -> None:
    facts = check(tmp_path, repository.url, torch="2.12.0", nearest=True)
    assert (stated(facts), facts.stands_in) == (YES, "2.10.0")


def test_only_pages_are_fetched(tmp_path: Path, repository: Repository) -> None:
    """Everything else is gone from the repository, so whoever asks for it gets an error."""
    blob = repository.git("rev-parse", "HEAD:src/big.bin")
    (repository.folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert stated(check(tmp_path, repository.url)) is YES


def test_a_run_fetches_once_for_all_pairs_and_the_next_one_again(tmp_path: Path, repository: Repository) -> None:
    page = {NEW_PATH.format("2-11-0"): REFUSED}
    repository.commit(page, tag="2")
    assert stated(check(tmp_path, repository.url)) is YES
    moved = repository.commit({NEW_PATH.format("2-11-0"): SUPPORTED}, tag="3")
    assert stated(check(tmp_path, repository.url, torch="2.11.0")) is NO
    forget_run()
    facts = check(tmp_path, repository.url, torch="2.11.0")
    assert (stated(facts), facts.commit) == (YES, moved)


def test_a_repository_that_is_gone_blocks_this_check_alone(tmp_path: Path, repository: Repository) -> None:
    shutil.rmtree(repository.folder)
    facts = check(tmp_path, repository.url)
    assert stated(facts) == "docs-unreachable"
    assert repository.url in facts.cause


def test_who_does_not_answer_is_asked_once_whatever_the_pairs_and_branches(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        asked: list[int] = []

        def refuse() -> None:
            while not done.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = server.accept()
                    asked.append(1)
                    connection.close()

        done = threading.Event()
        thread = threading.Thread(target=refuse)
        thread.start()
        url = f"git://127.0.0.1:{server.getsockname()[1]}/docs"
        try:
            for torch in ("2.9.0", "2.10.0"):
                assert stated(check(tmp_path, url, torch=torch, branch=["a", "b"])) == "docs-unreachable"
        finally:
            done.set()
            thread.join()
    assert len(asked) == 1


def test_what_was_fetched_before_is_used_where_nobody_answers_and_is_said_to_be(
    tmp_path: Path, repository: Repository
) -> None:
    first = check(tmp_path, repository.url)
    shutil.rmtree(repository.folder)
    forget_run()
    facts = check(tmp_path, repository.url)
    assert (stated(facts), facts.commit) == (YES, first.commit)
    assert first.tried == []
    assert "what was fetched before is used" in facts.tried[0]


def test_that_a_branch_was_missing_once_says_nothing_when_nobody_answers(
    tmp_path: Path, repository: Repository
) -> None:
    assert stated(check(tmp_path, repository.url, branch=["missing"])) is Support.NO_FILE
    shutil.rmtree(repository.folder)
    forget_run()
    assert stated(check(tmp_path, repository.url, branch=["missing"])) == "docs-unreachable"


def test_a_branch_that_comes_later_is_found(tmp_path: Path, repository: Repository) -> None:
    assert stated(check(tmp_path, repository.url, branch=["later"])) is Support.NO_FILE
    repository.git("branch", "later")
    forget_run()
    assert stated(check(tmp_path, repository.url, branch=["later"])) is YES


def test_a_password_is_told_nobody(tmp_path: Path) -> None:
    facts = check(tmp_path, "http://user:hunter2@127.0.0.1:1/docs.git")
    assert stated(facts) == "docs-unreachable"
    assert "127.0.0.1" in facts.cause
    assert "hunter2" not in str(facts)


def test_a_cache_that_cannot_be_written_blocks_this_check_alone(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    assert stated(check(tmp_path, repository.url)) == "cache"


# matrix.toml


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"repository": []}, "docs.repository: empty; name at least one"),
        ({"path": []}, "docs.path: empty; name at least one"),
        ({"page": "../t"}, "docs.page: '../t' is not a page such as 'torch-distributed-elastic'"),
        ({"path": ["../{page}.md"]}, "docs.path[1]: '../x.md' leaves the tree; give it as upstream has it, such as"),
        ({"path": ["/{page}.md"]}, "docs.path[1]: '/x.md' leaves the tree"),
        (
            {"path": ["a.md", "{pages}.md"]},
            "docs.path[2]: '{pages}.md' has a placeholder that isn't known; use {torch}, ",
        ),
        ({"branch": ["-f"]}, "docs.branch[1]: '-f' is nothing that git could be given"),
        (
            {"branch": ["{page}"]},
            "docs.branch[1]: '{page}' has a placeholder that isn't known; use {torch}, {torch_npu} or",
        ),
        ({"repository": ["{torch:x}"]}, "docs.repository[1]: '{torch:x}' has a placeholder that isn't known"),
        ({"nearest": 1}, "docs.nearest: expected a boolean, found an integer"),
        ({"near": True}, "docs.near: unknown key; did you mean 'nearest'?"),
    ],
)
def test_a_table_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, keys: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "docs", **keys)  # type: ignore[arg-type]
    (line,) = error.value.problems
    assert line.startswith(f"matrix.toml: {problem}")
