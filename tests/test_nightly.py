"""Nights: a fortnight of them, what they would have mailed, and what stays in the archive."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from scripts import archive, matrix, nightly, results
from scripts.errors import Blocked
from scripts.nightly import News, Options
from scripts.results import Block, Outcome, PairResult, State, Verdict
from tests import examples
from tests.conftest import ROOT

START = datetime(2026, 3, 1, 2, 30, tzinfo=UTC)
NEW, OLD = "2.10.0", "2.9.0"
FLAKY_CASE = "SomeTest.test_000"


class Nights:
    """A machine on which a night can be anything: ``verify`` writes what a test wants it to find."""

    def __init__(self, folder: Path, *, accepted: list[matrix.Accepted] | None = None, keep: int = 60) -> None:
        shipped = matrix.load(ROOT / "matrix.toml")
        pairs = tuple(pair for pair in shipped.pairs if pair.name in (OLD, NEW))
        table = msgspec.structs.replace(
            shipped.matrix, accepted=accepted or [], nightly=matrix.Nightly(keep=keep, days=365, free_gib=0.001)
        )
        self.batch = msgspec.structs.replace(shipped, matrix=table, pairs=pairs)
        self.reports = folder / "reports"
        self.time = START
        self.mails: list[str] = []

    def __call__(self, *columns: PairResult, pairs: list[str] | None = None) -> News | None:
        """Let a night find ``columns``, and return its news; a day passes."""

        def verify(log: Path) -> None:
            log.parent.mkdir(parents=True, exist_ok=True)
            for column in columns:
                results.save(self.reports, self.batch, column)

        return self.night(verify, pairs or [OLD, NEW])

    def night(self, verify: Callable[[Path], None], pairs: list[str]) -> News | None:
        try:
            news = nightly.nightly(self.reports, self.batch, Options(pairs=pairs), verify, now=lambda: self.time)
        finally:
            self.time += timedelta(days=1)
        self.mails.append(news.text if news else "")
        return news

    @property
    def archived(self) -> list[str]:
        return [night.name for night in archive.nights(self.reports, self.batch)]


def good(pair: str, **changes: object) -> PairResult:
    return msgspec.structs.replace(examples.column(pair, runs=[examples.run(examples.TIMER, 2)]), **changes)


def failing(pair: str) -> PairResult:
    return examples.column(pair, runs=[examples.run(examples.TIMER, 2, bad=[Outcome.FAILED])])


def blocked(pair: str) -> PairResult:
    return examples.column(pair, blocked=Block(code="index-unreachable", cause="no index", remedy="Check the network."))


# The names that examples gives to a case that isn't good are long; nights tell of cases by their own.
@pytest.fixture(autouse=True)
def plain_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "HOSTILE", "")


def test_a_fortnight(tmp_path: Path) -> None:
    accepted = matrix.Accepted(
        file=examples.TIMER, case=FLAKY_CASE, reason="upstream issue 1", expires=date(2026, 3, 10), pairs=[OLD]
    )
    nights = Nights(tmp_path, accepted=[accepted])
    first = nights(good(OLD), good(NEW))
    assert first is not None
    assert "the first night: 2 of 2 pairs are good" in first.text
    assert not first.worse

    assert nights(good(OLD), good(NEW)) is None  # 2: all as before

    regression = nights(good(OLD), failing(NEW))  # 3
    assert regression is not None
    assert regression.worse
    assert "2.10.0: verified → failed" in regression.text
    assert f"regressed: {examples.TIMER} {FLAKY_CASE}; passed → failed" in regression.text
    assert regression.verdicts == {OLD: "verified", NEW: "failed"}

    assert nights(good(OLD), failing(NEW)) is None  # 4: still failing is no news

    mended = nights(good(OLD), good(NEW))  # 5
    assert mended is not None
    assert not mended.worse
    assert "fixed" in mended.text

    unreachable = nights(blocked(OLD), good(NEW))  # 6
    assert unreachable is not None
    assert "2.9.0: verified → blocked: no index" in unreachable.text
    assert nights(blocked(OLD), good(NEW)) is None  # 7: news once, not every night

    assert nights(good(OLD), good(NEW)) is None  # 8: as it was when it was last tried

    flaky = nights(good(OLD), examples.column(NEW, runs=[examples.run(examples.TIMER, 2, bad=[Outcome.FLAKY])]))  # 9
    assert flaky is not None
    assert not flaky.worse
    assert "flaky" in flaky.text

    back = nights(failing(OLD), good(NEW))  # 10: accepted until the tenth, so only the flaky case is told of
    assert back is not None
    assert OLD not in back.text.replace(f"{OLD}.log", "")
    assert nights(failing(OLD), good(NEW)) is not None  # 11: the acceptance expired
    assert "no longer accepted since 2026-03-10" in nights.mails[-1]

    cut = tmp_path / "reports" / "elastic" / "night.json"

    def reboot(log: Path) -> None:
        results.save(nights.reports, nights.batch, good(NEW))
        raise SystemExit(137)

    with pytest.raises(SystemExit):  # 12
        nights.night(reboot, [OLD, NEW])
    assert cut.exists()

    after = nights(failing(OLD), good(NEW))  # 13
    assert after is not None
    assert "was cut short: 1 of 2 pairs were done" in after.text
    assert not cut.exists()
    assert nights(failing(OLD), good(NEW)) is None  # 14
    assert len(nights.archived) == 14


def test_a_regression_names_what_changed_with_it(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights(good(OLD), good(NEW))

    news = nights(good(OLD), msgspec.structs.replace(failing(NEW), torch="2.10.0+cu128"))

    assert news is not None
    assert "what changed with it: torch: 2.10.0+cpu → 2.10.0+cu128" in news.text


def test_a_pair_that_turns_hollow_is_worse(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights(good(OLD), good(NEW))

    news = nights(
        good(OLD), examples.column(NEW, runs=[examples.run(examples.TIMER, 0, State.HOLLOW, reason="0 tests")])
    )

    assert news is not None
    assert news.worse
    assert "2.10.0: verified → hollow" in news.text


def test_after_a_blocked_night_a_pair_is_compared_with_the_last_night_that_tried_it(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights(good(OLD), good(NEW))
    nights(blocked(OLD), good(NEW))

    news = nights(failing(OLD), good(NEW))

    assert news is not None
    assert news.worse
    assert "regressed" in news.text


def test_what_an_earlier_night_left_never_passes_for_tonights(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights(good(OLD), good(NEW))

    news = nights(good(OLD))

    assert news is not None
    assert news.verdicts == {OLD: "verified", NEW: "not-run"}


def test_a_night_of_some_pairs_says_nothing_of_the_others(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights(good(OLD), good(NEW))

    assert nights(good(NEW), pairs=[NEW]) is None


def test_two_nights_at_once_are_refused(tmp_path: Path) -> None:
    nights = Nights(tmp_path)

    def second(log: Path) -> None:
        with pytest.raises(Blocked) as refused:
            nightly.nightly(nights.reports, nights.batch, Options(pairs=[NEW]), lambda log: None, now=lambda: START)
        assert refused.value.code == "busy"

    nights.night(second, [OLD, NEW])


def test_a_mail_is_a_page_at_most(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights(*(examples.column(pair, runs=[examples.run(file, 200) for file in examples.FILES]) for pair in (OLD, NEW)))

    news = nights(
        *(
            examples.column(pair, runs=[examples.run(file, 200, bad=[Outcome.FAILED] * 150) for file in examples.FILES])
            for pair in (OLD, NEW)
        )
    )

    assert news is not None
    assert len(news.text.splitlines()) <= nightly.PAGE_LINES
    assert "more" in news.text


def test_pruning_keeps_the_newest_the_last_good_one_and_what_is_compared_with(tmp_path: Path) -> None:
    nights = Nights(tmp_path, keep=3)
    nights(good(OLD), good(NEW))
    for _ in range(3):
        nights(blocked(OLD), good(NEW))
    for _ in range(4):
        nights(blocked(OLD), failing(NEW))

    kept = nights.archived

    assert kept[0].startswith("2026-03-01")  # the last good one, and OLD's last try
    assert kept[-1].startswith("2026-03-08")
    assert len(kept) <= 5


def test_pruning_by_age_and_by_free_disk(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    for _ in range(6):
        nights(good(OLD), failing(NEW))
    now = START + timedelta(days=6)

    def left(**limits: int) -> int:
        wanted = {"keep": 60, "days": 365, "free_bytes": 0} | limits
        archive.prune(nights.reports, nights.batch, spare=[], now=now, **wanted)
        return len(nights.archived)

    assert left() == 6
    assert left(days=3) == 3
    assert left(free_bytes=1 << 62) == 1


def test_archived_nights_do_not_change_when_the_next_one_writes(tmp_path: Path) -> None:
    nights = Nights(tmp_path)

    def with_log(text: str) -> Callable[[Path], None]:
        def verify(log: Path) -> None:
            results.save(nights.reports, nights.batch, good(NEW))
            file = results.folder_of(nights.reports, nights.batch) / NEW / f"{examples.TIMER}.log"
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("w") as stream:
                stream.write(text)

        return verify

    nights.night(with_log("first"), [NEW])
    [first] = archive.nights(nights.reports, nights.batch)
    # A colleague, or a web server, reads it as well.
    assert oct(first.path.stat().st_mode & 0o777) == "0o755"
    before = {path: path.read_bytes() for path in first.path.rglob("*") if path.is_file()}
    nights.night(with_log("second"), [NEW])

    assert {path: path.read_bytes() for path in before} == before
    assert (first.path / NEW / f"{examples.TIMER}.log").read_text() == "first"


def test_reports_are_found_by_name_date_and_path(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights(good(OLD), good(NEW))
    nights(good(OLD), failing(NEW))

    def verdict(name: str) -> Verdict:
        _, report = archive.find(nights.reports, nights.batch, name, tmp_path)
        return next(column.verdict for column in report.columns if column.pair == NEW)

    assert verdict("2026-03-01") is Verdict.VERIFIED
    assert verdict("2026-03-02T023000Z") is Verdict.FAILED
    assert verdict("previous") is Verdict.FAILED
    assert verdict("latest") is Verdict.FAILED
    assert verdict("reports/elastic/archive/2026-03-01T023000Z") is Verdict.VERIFIED
    with pytest.raises(Blocked, match="latest, previous, 2026-03-01T023000Z"):
        verdict("last tuesday")


def test_a_damaged_night_is_passed_over(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights(good(OLD), good(NEW))
    nights(good(OLD), good(NEW))
    (archive.nights(nights.reports, nights.batch)[-1].path / "report.json").write_text("{")

    assert nights(good(OLD), good(NEW)) is None


@pytest.mark.parametrize("rubbish", ["", "{", "[]", '{"began": "yesterday", "pairs": []}'])
def test_a_damaged_mark_does_not_stop_the_next_night(tmp_path: Path, rubbish: str) -> None:
    nights = Nights(tmp_path)
    nights(good(OLD), good(NEW))
    (tmp_path / "reports" / "elastic" / "night.json").write_text(rubbish)

    assert nights(good(OLD), good(NEW)) is None


def test_a_hook_gets_the_news_as_json(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    news = nights(good(OLD), failing(NEW))
    assert news is not None
    target = tmp_path / "news.json"

    assert nightly.run_hook(f"cat > {target}", news) == ""

    told = json.loads(target.read_text())
    assert told["verdicts"] == {OLD: "verified", NEW: "failed"}
    assert told["text"] == news.text
    assert "ended with 3" in nightly.run_hook("exit 3", news)


def test_the_archive_survives_a_latest_that_is_deleted(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights(good(OLD), good(NEW))
    shutil.rmtree(results.folder_of(nights.reports, nights.batch))

    assert nights(good(OLD), good(NEW)) is None


def test_a_night_in_which_nothing_ran_is_worse_every_night(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights(good(OLD), good(NEW))

    def broken(log: Path) -> None:
        log.write_text("nox > option --jobs: invalid\n")

    for _ in range(2):
        news = nights.night(broken, [OLD, NEW])
        assert news is not None
        assert news.worse
        assert "no pair was run at all: nox > option --jobs: invalid" in news.text


@pytest.mark.parametrize("arguments", [["2.1.0"], ["--jobs", "nonsense"], ["--reruns", "-5"], ["--hoook", "x"]])
def test_wrong_arguments_end_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        nightly.parse(matrix.load(ROOT / "matrix.toml"), arguments)

    assert ended.value.code == 2
