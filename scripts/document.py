"""The document that people send on, in Markdown: every sentence that states a fact comes from results."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment

from . import templating
from .apis import Drift, drift
from .outcomes import BAD, last_line
from .results import GOOD_VERDICTS, ApiEvidence, PairResult, Report, Run, State, Verdict
from .running import command
from .wording import Say, say_in

CONTROL = {number: f"\\x{number:02x}" for number in (*range(32), 0x7F)}
# An underscore within a word, as paths have them, is no markup and stays readable.
MARKUP = re.compile(r"[\\`*\[\]|#~]|(?<!\w)_|_(?!\w)")
BAD_OUTCOMES = {outcome.value for outcome in BAD}
MESSAGE_CHARACTERS = 300


def markdown(report: Report, language: str) -> str:
    """Return the document in ``language``."""
    say = say_in(language)
    files = list(dict.fromkeys(run.file for column in report.columns for run in column.runs))
    return render(
        "report.md.jinja",
        language,
        report=report,
        files=files,
        runs={(column.label, run.file): run for column in report.columns for run in column.runs},
        summary=_summary(report, say),
        samples=[column.label for column in report.columns if column.is_sample],
        control_plane=[
            column.label for column in report.columns if column.mode and column.mode.value == "control-plane"
        ],
        commands={file: "\n".join((f"cd {command(file)[0]}", command(file)[1])) for file in files},
        adaptations={file: list(_adaptation(report, file, say, language)) for file in files},
        bad=[
            (column.label, case)
            for column in report.columns
            for case in column.cases
            if case.outcome.value not in ("passed", "xfailed")
        ],
        conclusions=[*_conclusions(report, files, say), *_evidence_conclusions(report, say)],
        api_lines=list(_api_lines(report, say)),
        drift=drift_of(report),
        docs_lines=list(_docs_lines(report, say)),
        docs_labels=[column.label for column in report.columns if column.docs and column.docs.entries],
        docs_rows=_docs_rows(report, say),
        watched=any(column.evidence for column in report.columns),
        evidence=evidence_by_column(report),
        reached={api.name: reached(report, api.name) for api in report.apis},
    )


def render(template: str, language: str, **values: Any) -> str:
    """Return a Markdown template filled in, in ``language``."""
    return _environment().get_template(template).render(t=say_in(language), language=language, **values)


def name_of(stem: str, language: str) -> str:
    """Return the file name of a document in ``language``; English is the one without a mark."""
    return f"{stem}.md" if language == "en" else f"{stem}.{language}.md"


def cell(text: Any) -> str:
    """Return any text as it can stand in a Markdown table or paragraph: one line, nothing of it markup."""
    line = " ⏎ ".join(str(text).splitlines()).translate(CONTROL)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return MARKUP.sub(r"\\\g<0>", line)


def code(text: Any) -> str:
    """Return a text as inline code that can stand in a table; a backtick in it can't end it."""
    line = " ".join(str(text).splitlines()).translate(CONTROL).replace("|", "\\|")
    return f"`` {line} ``" if "`" in line else f"`{line}`"


def telling(message: str) -> str:
    """Return the line of a message that says most: the last, which names the exception."""
    line = last_line(message)
    return line if len(line) <= MESSAGE_CHARACTERS else f"{line[: MESSAGE_CHARACTERS - 1]}…"


def is_ok(run: Run) -> bool:
    """Return whether nothing of a run failed: what unittest prints as OK, and not for zero tests."""
    return run.state is State.COMPLETE and not BAD_OUTCOMES & run.outcomes.keys() and not run.broken_fixtures


def evidence_by_column(report: Report) -> dict[tuple[str, str], ApiEvidence]:
    """Return the evidence of each API by column and API; where a result knows nothing of an API, it has none."""
    found = {
        (column.label, entry.api): entry
        for column in report.columns
        for entry in (column.evidence.apis if column.evidence else ())
    }
    every = [(column.label, api.name) for column in report.columns if column.evidence for api in report.apis]
    return {key: found.get(key, ApiEvidence(api=key[1])) for key in every}


def reached(report: Report, api: str) -> list[tuple[list[str], list[str]]]:
    """Return the passing cases that reached an API, with the pairs in which just these did."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for column in report.columns:
        for entry in column.evidence.apis if column.evidence else ():
            if entry.api == api and entry.passing:
                cases = tuple(sorted(f"{reach.cls}.{reach.name}" for reach in entry.passing))
                groups.setdefault(cases, []).append(column.label)
    return [(pairs, list(cases)) for cases, pairs in groups.items()]


def drift_of(report: Report) -> list[Drift]:
    """Return what became of each API over the columns of which anything is known."""
    return drift({column.label: column.apis.apis for column in report.columns if column.apis and column.apis.apis})


# Helpers


@functools.cache
def _environment() -> Environment:
    environment = templating.environment(Path(__file__), autoescape=False)
    environment.filters |= {"cell": cell, "code": code, "telling": telling}
    environment.globals |= {"is_ok": is_ok}
    return environment


def _docs_lines(report: Report, say: Say) -> Iterable[str]:
    for column in report.columns:
        facts = column.docs
        if facts is None:
            continue
        if facts.code:
            yield say("docs.failed", label=column.label, cause=facts.cause, remedy=facts.remedy, code=facts.code)
        elif facts.file:
            yield say("docs.page", label=column.label, source=facts.source, branch=facts.branch, file=facts.file)
        if facts.stands_in:
            yield say("docs.stands-in", label=column.label, version=facts.stands_in)


def _docs_rows(report: Report, say: Say) -> dict[str, list[str]]:
    """Return what the docs state of each API, a cell per column of which anything is stated."""
    rows: dict[str, list[str]] = {}
    for column in report.columns:
        for entry in column.docs.entries if column.docs else ():
            hardware = ", ".join(f"{name} {'✔' if yes else '✘'}" for name, yes in entry.hardware.items())
            told = say(f"docs.{entry.support.value}")
            rows.setdefault(entry.name, []).append(f"{told} ({hardware})" if hardware else told)
    return rows


def _api_lines(report: Report, say: Say) -> Iterable[str]:
    known = [(column.label, column.apis) for column in report.columns if column.apis and column.apis.apis]
    for label, found in known:
        yield say("api.record", label=label, checked=found.checked, differing=len(found.differing))
        yield say("api.live" if found.live else "api.searched", label=label, searched=found.searched)
    for name in dict.fromkeys(facts.name for _, found in known for facts in found.apis):
        rows = [(label, facts) for label, found in known for facts in found.apis if facts.name == name]
        clean = [label for label, facts in rows if not facts.remarks]
        if clean:
            yield say("api.clean", name=name, pairs=", ".join(clean))
        for label, facts in rows:
            if facts.remarks:
                yield say("api.touched", name=name, label=label, what="; ".join(facts.remarks))


def _evidence_conclusions(report: Report, say: Say) -> Iterable[str]:
    for api in report.apis:
        rows = {label: entry for (label, name), entry in evidence_by_column(report).items() if name == api.name}
        enough = [label for label, entry in rows.items() if entry.passing and not entry.problems]
        if enough:
            yield say("evidence.enough", name=api.name, pairs=", ".join(enough))
        for label, entry in rows.items():
            if entry.problems:
                yield say("evidence.not-enough", name=api.name, pair=label, problems="; ".join(entry.problems))


def _summary(report: Report, say: Say) -> list[str]:
    counted = {verdict: sum(column.verdict is verdict for column in report.columns) for verdict in Verdict}
    return [
        say("summary.counts", number=number, verdict=say(f"verdict.{verdict.value}"))
        for verdict, number in counted.items()
        if number
    ]


def _adaptation(report: Report, file: str, say: Say, language: str) -> Iterable[str]:
    """Yield what was patched of a test file, per pair, and why."""
    plain: list[str] = []
    guards: list[str] = []
    patched: list[str] = []
    for column in report.columns:
        run = next((run for run in column.runs if run.file == file), None)
        if run is None or run.state is State.NOT_RUN:
            continue
        counts = {entry.machine: entry for entry in run.guards.counts} if run.guards else {}
        if run.patch is None:
            plain.append(column.label)
            if len({entry.unpatched for entry in counts.values()}) > 1 and run.guards:
                told = say(
                    "adaptation.guard-only",
                    pair=column.label,
                    x86=counts["x86_64"].unpatched,
                    arm=counts["aarch64"].unpatched,
                )
                guards.append(f"{told}; {say('adaptation.guard-names', names=', '.join(run.guards.names))}")
            continue
        patched.append(say("adaptation.patched", pair=column.label, patch=run.patch.patch))
        patched += [
            say(
                "adaptation.guard",
                pair=column.label,
                machine=entry.machine,
                unpatched=entry.unpatched,
                patched=entry.patched,
            )
            for entry in counts.values()
        ]
        if run.guards and run.guards.names:
            patched[-1] += f"; {say('adaptation.guard-names', names=', '.join(run.guards.names))}"
        patched.append(say("adaptation.proof", before=run.patch.before[:12], after=run.patch.after[:12]))
    if patched:
        if plain:
            yield say("adaptation.none-for", pairs=", ".join(plain))
        yield from patched
        if file in report.reasons:
            yield say("adaptation.reason", reason=report.reasons[file][language])
    elif plain:
        yield say("adaptation.none-for", pairs=", ".join(plain))
    yield from guards


def _conclusions(report: Report, files: list[str], say: Say) -> Iterable[str]:
    """Yield what the results carry, and nothing else."""
    by_verdict: dict[Verdict, list[PairResult]] = {verdict: [] for verdict in Verdict}
    for column in report.columns:
        by_verdict[column.verdict].append(column)
    for verdict in GOOD_VERDICTS:
        if by_verdict[verdict]:
            pairs = ", ".join(column.label for column in by_verdict[verdict])
            yield say(f"conclusion.{verdict.value}", pairs=pairs, files=len(files))
    for verdict in (Verdict.FAILED, Verdict.HOLLOW, Verdict.BLOCKED, Verdict.NOT_RUN):
        for column in by_verdict[verdict]:
            block = column.blocked
            yield say(
                f"conclusion.{verdict.value}",
                pair=column.label,
                reason=column.reason,
                remedy=block.remedy if block else "",
                code=block.code if block else "",
            )
    for file in files:
        complete = [
            column.label
            for column in report.columns
            if any(run.file == file and run.state is State.COMPLETE for run in column.runs)
        ]
        others = [column.label for column in report.columns if column.label not in complete]
        key = "file-none" if not complete else "file-some" if others else "file-all"
        yield say(
            f"conclusion.{key}",
            file=file,
            number=len(report.columns),
            pairs=", ".join(complete),
            others=", ".join(others),
        )
    for column in report.columns:
        flaky = sum(run.outcomes.get("flaky", 0) for run in column.runs)
        if flaky:
            yield say("conclusion.flaky", pair=column.label, number=flaky)
