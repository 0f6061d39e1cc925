"""report.html in a real browser: clicked, filtered, read, printed; nothing of a result is ever executed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page

from scripts import page as html_page
from scripts import wording
from scripts.results import Outcome
from tests import examples
from tests.browser import CHROMIUM, chromium

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; .ci/run installs it")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    log = folder / "2.7.1" / f"{examples.AGENT}.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"the end of the log {examples.HOSTILE}")
    report = examples.every_verdict()
    file = folder / "report.html"
    file.write_text(html_page.html(report, folder), encoding="utf-8", errors="backslashreplace")
    return file.as_uri()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test on any script error, dialog or request beyond the file itself."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
    page.on("request", lambda request: None if request.url.startswith("file:") else complaints.append(request.url))
    yield page
    context.close()
    assert complaints == []


def test_the_verdict_of_every_pair_is_on_top_in_words(page: Page, address: str) -> None:
    page.goto(address)

    told = page.locator(".verdicts strong").all_inner_texts()

    assert told == [
        "✓ 2.6.0: verified",
        "✗ 2.7.1: failed",
        "○ 2.8.0: hollow",
        "⊘ 2.9.0: blocked",
        "✓ 2.10.0: verified",
        "✗ 2.11.0: failed",
        "≈ 2.12.0: sample ok (verifies nothing)",
        "– 2.13.0: not run",
    ]
    assert page.locator(".verdicts").bounding_box()["y"] < 500  # type: ignore[index]
    assert "SAMPLE" in page.title()


def test_a_cell_of_the_grid_opens_its_run(page: Page, address: str) -> None:
    page.goto(address)

    page.locator("#files tbody tr").nth(0).get_by_role("button").nth(1).click()

    dialog = page.get_by_role("dialog")
    assert "2.7.1: test/distributed/elastic/agent/server/test/api_test.py" in dialog.inner_text()
    assert "Ran 30 tests in 1.769 s" in dialog.inner_text()
    assert "run=1-0" in page.url


def test_cases_that_are_not_passed_everywhere_come_first(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("#cases summary").first.click()

    page.wait_for_selector("#cases-table tbody tr")
    rows = page.locator("#cases-table tbody tr")
    bad = [bool(row.locator(".bad, .warn").count()) for row in rows.all()]

    assert bad == sorted(bad, reverse=True)
    assert sum(bad) == 5


def test_search_and_filter_find_a_case_and_can_be_sent_on(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("#cases summary").first.click()
    page.get_by_label("outcome").select_option("t")
    page.locator("#search").fill("LOCAL_timer sometest")
    assert page.locator("#count").inner_text() == "1 of 57 cases"
    sent = page.url

    page.goto("about:blank")
    page.goto(sent)

    assert page.locator("#cases-table tbody tr").count() == 1
    assert "timeout" in page.locator("#cases-table tbody").inner_text()


def test_a_case_shows_its_message_as_text_and_the_other_pairs(page: Page, address: str) -> None:
    page.goto(f"{address}#outcome=f")

    page.locator("#cases-table button", has_text="failed").first.click()

    dialog = page.get_by_role("dialog").inner_text()
    assert "</script><script>alert(1)</script>" in dialog
    assert "\\x00\\x1b[31m" in dialog
    assert "2.11.0: crashed" in dialog


def test_keyboard_alone_opens_and_closes_a_run(page: Page, address: str) -> None:
    page.goto(address)
    button = page.locator("#files tbody button").first
    button.focus()

    page.keyboard.press("Enter")
    assert page.get_by_role("dialog").is_visible()
    assert page.evaluate("document.activeElement.id") == "details-heading"
    page.keyboard.press("Escape")

    assert not page.get_by_role("dialog").is_visible()
    assert page.evaluate("document.activeElement.dataset.run") == button.get_attribute("data-run")


def test_the_page_switches_to_chinese_and_back(page: Page, address: str) -> None:
    page.goto(address)
    before = page.locator("body").inner_text()

    page.locator("#language").select_option("zh")
    chinese = page.locator("body").inner_text()
    page.locator("#language").select_option("en")

    assert "已验证" in chinese
    assert "Verdicts" not in chinese
    assert page.locator("body").inner_text() == before


@pytest.mark.parametrize("width", [320, 390, 1300])
def test_nothing_is_wider_than_the_screen(page: Page, address: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{address}#outcome=!")

    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(browser: Browser, address: str, scheme: str) -> None:
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    page = context.new_page()
    page.goto(address)

    for selector in ("body", ".good", ".bad", ".warn", ".verdicts p", "a"):
        assert page.locator(selector).first.evaluate(CONTRAST) >= 4.5, selector
    context.close()


# The contrast ratio of WCAG 2.1 between an element's colour and the page's.
CONTRAST = """element => {
  const light = (text) => {
    const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map((part) => {
      const value = part / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pair = [getComputedStyle(element).color, getComputedStyle(document.body).backgroundColor].map(light);
  return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
}"""


def test_tables_and_controls_have_names_for_a_screen_reader(page: Page, address: str) -> None:
    page.goto(f"{address}#outcome=!")

    assert page.locator("th:not([scope])").count() == 0
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, select, input')].filter((node) =>"
        " !node.textContent.trim() && !node.labels?.length && !node.getAttribute('aria-label')).length"
    )
    assert unnamed == 0
    assert page.locator("svg[role=img][aria-label]").count() == 1


def test_printing_opens_what_is_folded(page: Page, address: str) -> None:
    page.goto(address)

    page.pdf()

    assert page.locator("details:not([open])").count() == 0
    assert page.locator("#cases-table tbody tr").count() == 57


def test_a_log_link_stays_below_the_report() -> None:
    run, _ = examples.run(examples.TIMER, 1)
    for log in ("javascript:alert(1)", "../../etc/passwd", "/etc/passwd", "2.6.0/../../x.log"):
        assert msgspec.structs.replace(run, log=log).link("2.6.0") == ""
    honest = msgspec.structs.replace(run, log=f"2.6.0/{examples.TIMER}.log")
    assert honest.link("2.6.0") == f"2.6.0/{examples.TIMER}.log"


def test_every_outcome_has_a_letter_a_mark_and_a_word_in_both_languages() -> None:
    letters = [letter for _, _, letter in html_page.OUTCOME_TONES.values()]

    assert set(html_page.OUTCOME_TONES) == set(Outcome)
    assert len(set(letters)) == len(letters)
    for language in wording.LANGUAGES:
        assert all(f"outcome.{outcome.value}" in wording.load(language) for outcome in Outcome)


def test_the_page_needs_nothing_but_itself(address: str) -> None:
    text = Path(address.removeprefix("file://")).read_text()

    assert "src=" not in text.replace("img src=x", "")
    assert "http://" not in text
    assert "default-src 'none'" in text


def test_the_style_sheet_is_not_escaped(page: Page, address: str) -> None:
    page.goto(address)

    assert "Noto Sans CJK SC" in page.locator("body").evaluate("node => getComputedStyle(node).fontFamily")
