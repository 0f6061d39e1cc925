"""The time of what grows: a tree that is fetched, reports that are merged, compared and read in a browser."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from scripts import junit, results, upstream
from scripts.matrix import Batch, Pair
from scripts.results import Case, Mode, Outcome, PairResult, Run, State, Verdict
from scripts.scope import RunScope
from tests.bench.clock import Usage, good, run
from tests.bench.sessions import Checkout
from tests.bench.table import ABSENT, Row
from tests.browser import CHROMIUM, chromium
from tests.conftest import ROOT
from tests.user import count_packs

# Pairs and cases of each: 10, 100 and 1,000 times what eight pairs have today.
SIZES = ((10, 500), (20, 2_500), (100, 5_000))
FILES = 10


def of_a_fetch(folder: Path, batch: Batch, pair: Pair, url: str) -> Iterator[Row]:
    """Yield what a cold fetch of a tree takes against a shallow clone; both from a copy on this machine."""
    mirror = folder / "mirror.git"
    tag = batch.matrix.upstream.tag.format(torch=pair.torch, torch_npu=pair.torch_npu)
    git = ["git", "clone", "-q", "--depth=1", f"--branch={tag}"]
    good(run([*git, "--bare", url, mirror], cwd=folder, env=os.environ))
    subprocess.run(["git", "config", "uploadpack.allowFilter", "true"], cwd=mirror, check=True)
    counting, counted = count_packs(folder)
    with mock.patch.dict(os.environ, {**counting, "XDG_CACHE_HOME": str(folder / "cache")}):
        start = time.monotonic()
        tree = upstream.fetch(batch, pair, [mirror.as_uri()], ROOT, RunScope())
        ours = time.monotonic() - start, counted.stat().st_size / 1e6, len(tree.blobs)
        counted.unlink()
        clone = good(run([*git, mirror.as_uri(), folder / "clone"], cwd=folder, env=os.environ))
    files = sum(len(names) for _, _, names in os.walk(folder / "clone"))
    theirs = clone.seconds, counted.stat().st_size / 1e6, files
    yield Row(
        what={"en": f"cold fetch of {tag}: MB, files, seconds", "zh": f"首次获取 {tag}：MB、文件数、秒"},
        against={
            "en": "a shallow clone: {1:.1f} MB, {2}, {0:.1f} s".format(*theirs),
            "zh": "浅克隆：{1:.1f} MB、{2}、{0:.1f} s".format(*theirs),
        },
        goal="≤ 3 MB",
        figure="{1:.2f} MB, {2}, {0:.1f} s".format(*ours),
        reached=ours[1] <= 3,
    )


def of_reports(folder: Path) -> Iterator[Row]:
    """Yield what merging, comparing and reading take at the three sizes."""
    checkout = Checkout(folder)
    latest = checkout.reports / "elastic" / "merged"
    good(checkout.run("-l"))
    taken = []
    for pairs, cases in SIZES:
        number = pairs * cases
        place = folder / f"{number}"
        documents = _results(place, pairs, cases)
        # What takes a second is told from nox's own start by more runs than one.
        rounds = 3 if number < 100_000 else 1
        runs = [good(checkout.run("-s", "report", "--", place / "results")) for _ in range(rounds)]
        merged = sorted(runs, key=lambda usage: usage.seconds)[rounds // 2]
        theirs = _merged_by_others(documents, place)
        taken.append(merged.seconds)
        is_last = (pairs, cases) == SIZES[-1]
        yield Row(
            what={"en": f"{number:,} cases merged, all formats", "zh": f"合并 {number:,} 个用例，全部格式"},
            against={
                "en": f"junitparser merge and junit2html: {_told(theirs)}",
                "zh": f"junitparser merge 与 junit2html：{_told(theirs)}",
            },
            goal="≤ 60 s, 1000 MB" if is_last else ABSENT,
            figure=_told(merged),
            reached=merged.seconds <= 60 and merged.megabytes <= 1000 if is_last else None,
        )
        compared = _compared(checkout, latest, place, pairs, cases)
        yield Row(
            what={"en": f"two reports of {number:,} cases compared", "zh": f"比较两份各 {number:,} 个用例的报告"},
            against={"en": ABSENT, "zh": ABSENT},
            goal="≤ 20 s" if is_last else ABSENT,
            figure=_told(compared),
            reached=compared.seconds <= 20 if is_last else None,
        )
    # The rest is nox's own start.
    growth = (taken[2] - taken[0]) / (taken[1] - taken[0])
    numbers = [pairs * cases for pairs, cases in SIZES]
    linear = (numbers[2] - numbers[0]) / (numbers[1] - numbers[0])
    yield Row(
        what={
            "en": f"growth from {numbers[1]:,} to {numbers[2]:,} cases",
            "zh": f"从 {numbers[1]:,} 到 {numbers[2]:,} 个用例的增长",
        },
        against={"en": f"linear: {linear:.0f} ×", "zh": f"线性：{linear:.0f} ×"},
        goal=f"≤ {1.5 * linear:.0f} ×",
        figure=f"{growth:.1f} ×",
        reached=growth <= 1.5 * linear,
    )
    yield from _of_the_page(latest / "report.html", numbers[2])


# Helpers


def _merged_by_others(documents: Sequence[Path], folder: Path) -> Usage:
    merged, page = folder / "merged.xml", folder / "merged.html"
    commands = Path(sys.executable).parent
    one = good(run([commands / "junitparser", "merge", *documents, merged], cwd=folder, env=os.environ))
    two = good(run([commands / "junit2html", merged, page], cwd=folder, env=os.environ))
    most = max(one.megabytes, two.megabytes)
    return Usage(seconds=one.seconds + two.seconds, megabytes=most, status=0, output="")


def _compared(checkout: Checkout, latest: Path, place: Path, pairs: int, cases: int) -> Usage:
    """Compare the report in ``latest`` with one in which other cases fail."""
    before = place / "before"
    shutil.copytree(latest, before)
    _results(place, pairs, cases, failing=89)
    good(checkout.run("-s", "report", "--", place / "results"))
    compared = checkout.run("-s", "diff", "--", before / "report.json", latest / "report.json")
    if "regressed" not in compared.output:
        raise RuntimeError(f"two reports were to be compared:\n{compared.output[-3000:]}")
    return compared


def _told(usage: Usage) -> str:
    return f"{usage.seconds:.1f} s, {usage.megabytes:.0f} MB"


def _results(folder: Path, pairs: int, cases: int, *, failing: int = 97) -> list[Path]:
    """Write the results of so many pairs below ``folder``; returns the same as JUnit documents."""
    documents = []
    for number in range(pairs):
        name = f"2.{number}.0"
        each = cases // FILES
        result = PairResult(
            pair=name,
            torch=name,
            torch_npu=name,
            python="3.11",
            machine="x86_64",
            mode=Mode.CONTROL_PLANE,
            verdict=Verdict.FAILED,
            reason="",
            runs=[
                Run(file=f"test/f{file}.py", state=State.COMPLETE, tests=each, expected=each, seconds=3.0)
                for file in range(FILES)
            ],
            cases=[
                Case(
                    file=f"test/f{case % FILES}.py",
                    cls=f"Class{case // 50}",
                    name=f"test_method_number_{case}",
                    outcome=Outcome.PASSED if case % failing else Outcome.FAILED,
                    seconds=0.01,
                    message="" if case % failing else "Traceback (most recent call last):\n" * 20,
                )
                for case in range(cases)
            ],
        )
        place = folder / "results" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "result.json").write_bytes(results.encode(result))
        documents.append(folder / f"{name}.xml")
        documents[-1].write_bytes(junit.of_results(name, [result]))
    return documents


def _of_the_page(report: Path, number: int) -> Iterator[Row]:
    if CHROMIUM is None:
        return
    with chromium() as browser:
        page = browser.new_page()
        times = [time.monotonic()]
        page.goto(report.as_uri())
        times.append(time.monotonic())
        page.locator("#cases summary").first.click()
        page.wait_for_selector("#cases-table tbody tr")
        times.append(time.monotonic())
        page.locator("#search").fill("number_4999")
        page.wait_for_function("document.getElementById('count').textContent.length > 0")
        times.append(time.monotonic())
    loaded, opened, searched = (after - before for before, after in itertools.pairwise(times))
    yield Row(
        what={
            "en": f"report.html of {number:,} cases in Chromium",
            "zh": f"Chromium 打开 {number:,} 例的 report.html",
        },
        against={"en": "loaded, case table opened, searched", "zh": "加载、打开用例表、搜索"},
        goal=ABSENT,
        figure=f"{loaded:.1f} s, {opened:.1f} s, {searched:.1f} s",
    )
