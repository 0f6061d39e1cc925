"""A night: every pair, archived, compared with what was known before, and told only if there is something to tell."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec

from . import archive, difference, history, process, report, results, storage
from .archive import Night
from .commandline import Parser
from .compare import Category, ColumnChange, Comparison, compare, summed, tally
from .errors import Blocked
from .matrix import Accepted, Batch
from .results import GOOD_VERDICTS, PairResult, Report, Verdict

HOOK_SECONDS = 60.0
# A mail is a page at most.
PAGE_LINES = 60
UNTRIED = (Verdict.BLOCKED, Verdict.NOT_RUN)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What stands behind ``--`` of the nightly session: pairs (all if empty), and what is handed on."""

    pairs: list[str]
    upstream: list[str] = []
    reruns: int = 0
    jobs: str = "auto"
    hook: str = ""


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What a night has to tell: the mail, and what a hook gets as JSON."""

    night: str
    before: str
    worse: bool
    text: str
    verdicts: dict[str, str]
    comparison: Comparison
    notes: list[str]
    report: str


class _Running(msgspec.Struct, frozen=True, kw_only=True):
    """The mark of a night under way: if it is there at the start of the next, that night was cut short."""

    began: str
    pairs: list[str]


def parse(batch: Batch, arguments: Sequence[str]) -> Options:
    """Read the arguments; ends the process with status 2 and a line of help if they are wrong."""
    parser = Parser("nightly", "usage: [PAIR ...] [--upstream S] [--reruns N] [--hook CMD]")
    parser.add_argument("pairs", nargs="*")
    parser.add_argument("--upstream", action="append", default=[])
    parser.add_argument("--reruns", type=int, default=0)
    parser.add_argument("--jobs", default="auto")
    parser.add_argument("--hook", default="")
    found = parser.parse_args(list(arguments))
    known = [pair.name for pair in batch.pairs]
    if wrong := [name for name in found.pairs if name not in known]:
        parser.error(f"there is no pair '{wrong[0]}'; known are {', '.join(known)}")
    if found.jobs != "auto" and not (found.jobs.isdecimal() and 0 < int(found.jobs) < 1000):
        parser.error(f"--jobs {found.jobs}: expected auto or a number")
    parser.check_reruns(found.reruns)
    return Options(pairs=found.pairs or known, **{key: value for key, value in vars(found).items() if key != "pairs"})


def nightly(
    reports: Path, batch: Batch, options: Options, verify: Callable[[Path], None], *, now: Callable[[], datetime]
) -> News | None:
    """Run a night and return its news, or None if all is as before.

    ``verify`` runs the pairs and writes their results; what they print goes into the file that it gets. Raises
    Blocked(``busy``) if another night is under way.
    """
    home = reports / batch.matrix.batch
    with storage.lock(home / ".nightly.lock", wait=0):
        notes = _finish_a_night_cut_short(reports, batch)
        began = now()
        mark = home / "night.json"
        storage.write(mark, msgspec.json.encode(_Running(began=began.isoformat(), pairs=options.pairs)))
        for name in options.pairs:
            # What was there before is archived; left lying, it would pass for tonight's.
            storage.remove(results.folder_of(reports, batch) / name)
        log = home / "nightly.log"
        verify(log)
        tried = [name for name in options.pairs if (results.folder_of(reports, batch) / name / "result.json").exists()]
        if not tried:
            # Nothing compares well with anything: this must not pass for a night in which all was as before.
            notes.append(f"no pair was run at all: {_last_words(log)}")
        report.refresh(reports, batch)
        past = archive.nights(reports, batch)
        night = _archive(reports, batch, began, options.pairs)
        mark.unlink()
        merged = night.report()
        tonight = [column for column in merged.columns if column.pair in options.pairs]
        news = _news(batch, night, _only(merged, tonight), past, notes, began.date(), nothing_ran=not tried)
        keep = batch.matrix.nightly
        archive.prune(
            reports,
            batch,
            keep=keep.keep,
            days=keep.days,
            free_bytes=int(keep.free_gib * (1 << 30)),
            spare=_baselines(past, [column.pair for column in merged.columns]),
            now=began,
        )
    return news


def arguments(options: Options) -> list[str]:
    """Return the arguments with which nox runs the pairs of a night."""
    sessions = [f"verify-{name}" for name in options.pairs]
    upstream = [part for source in options.upstream for part in ("--upstream", source)]
    # What was measured some other night is not tonight's evidence.
    return ["-s", *sessions, "-j", options.jobs, "--", "--fresh", *upstream, "--reruns", str(options.reruns)]


def run_hook(command: str, news: News) -> str:
    """Give the news as JSON to a command's standard input; returns what went wrong, or nothing."""
    with tempfile.NamedTemporaryFile(prefix="tnm-", suffix=".json") as file:
        file.write(results.encode(news))
        file.flush()
        line = f"{command} < {shlex.quote(file.name)}"
        ending, words = process.capture(["sh", "-c", line], cwd=Path.cwd(), env=os.environ, limit=HOOK_SECONDS)
    if ending.returncode == 0:
        return ""
    how = "took too long" if ending.timed_out else f"ended with {ending.returncode}"
    return f"the hook {how}: {' '.join(words.split()[-30:])}"


# Helpers


def _finish_a_night_cut_short(reports: Path, batch: Batch) -> list[str]:
    """Archive what a night that never ended had found, and return the sentence that says so."""
    mark = reports / batch.matrix.batch / "night.json"
    try:
        running = msgspec.json.decode(mark.read_bytes(), type=_Running)
        began = datetime.fromisoformat(running.began)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError, ValueError):
        mark.unlink(missing_ok=True)
        return []
    night = _archive(reports, batch, began, running.pairs)
    mark.unlink()
    done = [column.pair for column in night.report().columns if column.verdict not in UNTRIED]
    return [f"the night {night.name} was cut short: {len(done)} of {len(running.pairs)} pairs were done; archived so"]


def _archive(reports: Path, batch: Batch, began: datetime, pairs: Sequence[str]) -> Night:
    """Archive the latest results of ``pairs``; the others were not run this night, whatever lies there of them."""
    columns = [
        column if column.pair in pairs else results.not_run(batch.pair(column.pair), "not asked for this night")
        for column in results.load_all(reports, batch)
    ]
    merged = report.merge(batch, columns)
    nights = history.gather(archive.nights(reports, batch), latest=merged)
    return archive.add(reports, batch, began, pairs, lambda folder: report.write(folder, merged, nights))


def _only(merged: Report, columns: list[PairResult]) -> Report:
    return msgspec.structs.replace(merged, columns=columns)


def _baselines(past: Sequence[Night], pairs: Sequence[str]) -> list[Night]:
    """Return for each pair the newest night in which it was tried: what a next night is compared with."""
    found: dict[str, Night] = {}
    for night in reversed(past):
        missing = [pair for pair in pairs if pair not in found]
        if not missing:
            break
        try:
            tried = {column.pair for column in night.report().columns if column.verdict not in UNTRIED}
        except Blocked:
            continue
        found |= {pair: night for pair in missing if pair in tried}
    return list(dict.fromkeys(found.values()))


def _before(past: Sequence[Night], tonight: Report) -> tuple[str, Report, dict[str, PairResult]]:
    """Return what is known of tonight's pairs: each as it was when last tried, and each as it was last night."""
    baseline: list[PairResult] = []
    last: dict[str, PairResult] = {}
    name = "nothing"
    for night in reversed(past):
        try:
            columns = night.report().columns
        except Blocked:
            continue
        name = night.name if name == "nothing" else name
        for column in columns:
            last.setdefault(column.pair, column)
            wanted = any(column.pair == other.pair for other in tonight.columns)
            if wanted and column.verdict not in UNTRIED and all(column.pair != other.pair for other in baseline):
                baseline.append(column)
    return name, _only(tonight, baseline), last


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "nox left no log"
    return " ".join(line.strip() for line in lines[-5:] if line.strip())[:600] or "nox said nothing"


def _news(
    batch: Batch,
    night: Night,
    tonight: Report,
    past: Sequence[Night],
    notes: list[str],
    today: date,
    *,
    nothing_ran: bool,
) -> News | None:
    name, baseline, last = _before(past, tonight)
    comparison = compare(baseline, tonight, old_name=name, new_name=night.name)
    previous = past[-1].began.date() if past else today - timedelta(days=1)
    columns = []
    for change in comparison.columns:
        was = last.get(change.label)
        if all(change.label != column.label for column in baseline.columns):
            # Never tried before: there is nothing to compare its cases with.
            change = msgspec.structs.replace(change, cases=[], runs=[], why=[], counts={})
        if change.verdict in UNTRIED and was is not None and was.verdict is change.verdict:
            # It was news the first night; the remedy has not come yet.
            continue
        columns.append(_without_accepted(batch, change, today))
    notes = [*notes, *_expired(batch, tonight, previous, today)]
    comparison = summed(comparison.old, comparison.new, columns)
    if not past:
        bad = [change for change in columns if change.verdict not in GOOD_VERDICTS]
        notes.append(f"the first night: {len(columns) - len(bad)} of {len(columns)} pairs are good")
    elif comparison.is_empty and not notes:
        return None
    worse = (
        nothing_ran
        or comparison.is_worse
        or any(change.verdict is Verdict.FAILED and change.label not in last for change in columns)
    )
    where = str(night.path / "report.html")
    return News(
        night=night.name,
        before=name,
        worse=worse,
        text=_page(comparison, notes, worse, where),
        verdicts={column.pair: column.verdict.value for column in tonight.columns},
        comparison=comparison,
        notes=notes,
        report=where,
    )


def _without_accepted(batch: Batch, change: ColumnChange, today: date) -> ColumnChange:
    """Return the change of a pair without the failures that matrix.toml accepts: they are known."""
    accepted = {
        (entry.file, entry.case)
        for entry in batch.matrix.accepted
        if entry.expires >= today and (not entry.pairs or change.label.partition(" ")[0] in entry.pairs)
    }
    cases = [
        msgspec.structs.replace(case, category=Category.STILL_FAILING, changed=False)
        if (case.file, f"{case.cls}.{case.name}") in accepted
        and case.category in (Category.REGRESSED, Category.NEW_FAIL)
        else case
        for case in change.cases
    ]
    if cases == change.cases:
        return change
    only_known = not any(case.category in (Category.REGRESSED, Category.NEW_FAIL) and case.changed for case in cases)
    if only_known and change.verdict is Verdict.FAILED and not change.runs:
        change = msgspec.structs.replace(change, old_verdict=change.verdict, why=[])
    return msgspec.structs.replace(change, cases=cases, counts=tally(cases))


def _expired(batch: Batch, tonight: Report, previous: date, today: date) -> list[str]:
    """Return a sentence for each accepted failure whose time ran out since the night before."""
    return [
        f"no longer accepted since {entry.expires}: {entry.file} {entry.case} ({entry.reason})"
        for entry in batch.matrix.accepted
        if previous <= entry.expires < today and _fails(entry, tonight)
    ]


def _fails(entry: Accepted, tonight: Report) -> bool:
    return any(
        (case.file, f"{case.cls}.{case.name}") == (entry.file, entry.case)
        for column in tonight.columns
        for case in column.cases
        if case.outcome.value not in ("passed", "xfailed", "skipped")
    )


def _page(comparison: Comparison, notes: Sequence[str], worse: bool, where: str) -> str:
    """Return the mail: what got worse, why, and where to look."""
    lines = ["WORSE than before" if worse else "changed, nothing worse", *notes, ""]
    lines += difference.render(comparison, "text", lines=8).splitlines()
    if len(lines) > PAGE_LINES - 2:
        lines = [*lines[: PAGE_LINES - 3], f"… {len(lines) - PAGE_LINES + 3} more lines: see the report"]
    return "\n".join([*lines, "", where]) + "\n"


def utc_now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)
