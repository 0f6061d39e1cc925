"""One pair's walk through the stations: keeps what each found, and writes the result whatever happens on the way."""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

import msgspec

from . import interrupts, junit, outcomes, preflight, process, report, results, storage
from .apis import ApiReport
from .bodies import bodies
from .collecting import Collected
from .commandline import Parser
from .console import Console
from .docs import DocsFacts
from .environment import Environment
from .errors import Blocked, Interrupted
from .evidence import Watched, evidence_of
from .matrix import Batch, Pair
from .patching import Worktree
from .preflight import Preflight
from .results import ApiEvidence, Case, Evidence, Mode, PairResult, Run, State, Verdict
from .running import Finished, Progress
from .scope import RunScope
from .upstream import Tree

P = ParamSpec("P")
Value = TypeVar("Value")
SCRATCH = re.compile(r"tnm-(\d+)-(\d+)")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What may stand behind ``--`` of a verify session."""

    upstream: list[str] = []
    reruns: int = 0
    rebuild: bool = False
    fresh: bool = False


def parse(arguments: Sequence[str]) -> Options:
    """Read a verify session's arguments; ends the process with status 2 and a line of help if they are wrong."""
    parser = Parser("verify-<pair>", "known are --upstream SOURCE, --reruns N, --rebuild, --fresh")
    parser.add_argument("--upstream", action="append", default=[])
    parser.add_argument("--reruns", type=int, default=0)
    parser.add_argument("--rebuild", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args(list(arguments))
    parser.check_reruns(options.reruns)
    return Options(
        upstream=options.upstream,
        reruns=options.reruns,
        rebuild=options.rebuild,
        fresh=options.fresh or options.rebuild,
    )


class Work:
    """What is known so far of one pair. A context: at its end the result is written and the report refreshed.

    The stations' values are set as they come; what is missing at the end says how far the pair came.
    """

    preflight: Preflight | None = None
    environment: Environment | None = None
    tree: Tree | None = None
    worktree: Worktree | None = None
    collected: Collected | None = None
    watched: Watched | None = None
    described: ApiReport | None = None
    docs: DocsFacts | None = None

    def __init__(self, batch: Batch, pair: Pair, *, reports: Path, options: Options) -> None:
        self.batch = batch
        self.pair = pair
        self.reports = reports
        self.options = options
        self.console = Console()
        self.scope = RunScope()
        self.folder = results.folder_of(reports, batch) / pair.name
        self.started = datetime.now(UTC)
        self.finished: dict[str, Finished] = {}
        self.result: PairResult | None = None

    def __enter__(self) -> Work:
        use_own_scratch()
        lock = storage.lock(self.folder.with_name(f".{self.pair.name}.lock"), wait=0)
        try:
            lock.__enter__()
        except Blocked as busy:
            # Another session is at this very pair; its result is not ours to write.
            self.console.line(f"{busy.cause}; {busy.remedy}")
            raise SystemExit(1) from None
        self.lock = lock
        self.console.line(f"{self.pair.name}: torch {self.pair.torch}, torch-npu {self.pair.torch_npu}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, OSError):
            # The disk or a permission, whichever station it was: a cause, not a traceback.
            error = Blocked("system", f"{type(error).__name__}: {error}", "Mend that, then run this again.")
        elif isinstance(error, Exception) and not isinstance(error, Blocked):
            error = self._fault(error)
        try:
            self.result = self._result(error)
            self._write(self.result)
        finally:
            self.lock.__exit__(None, None, None)
            shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)
        self.console.result(self.result)
        self.console.annotate(self.result)
        if isinstance(error, Interrupted):
            self.console.line(f"interrupted by {error.signal_name}; what was found out by then is in the report")
            raise SystemExit(interrupts.EXIT[error.signal_name])
        return True

    def stage(self, name: str, station: Callable[P, Value], *args: P.args, **kwargs: P.kwargs) -> Value:
        """Run a station, keep its value under ``name`` for the result, and say what it came to."""
        with self.console.stage(name) as say:
            value = station(*args, **kwargs)
            say(describe(value))
        setattr(self, name, value)
        return value

    def ran(self, run: Run, cases: list[Case]) -> None:
        """Keep what a run came to, and say so."""
        known = bodies(self.worktree.files[run.file]) if self.worktree else {}
        cases = [msgspec.structs.replace(case, body=known.get((case.cls, case.name))) for case in cases]
        self.finished[run.file] = run, cases
        self.console.run(run)

    @property
    def cases(self) -> list[Case]:
        """The cases of all files that ran, in matrix.toml's order."""
        files = self.batch.matrix.test_file
        return [case for file in files for case in self.finished.get(file.path, (None, []))[1]]

    def progress(self, progress: Progress) -> None:
        """Say how far a run is."""
        self.console.progress(progress)

    def tell(self) -> PairResult:
        """Write the table of all pairs and where the report is; returns this pair's result."""
        assert self.result is not None
        try:
            merged = report.refresh(self.reports, self.batch)
        except Exception as error:
            blocked = self._fault(error)
            self.console.line(f"the report could not be written: {blocked.cause} {blocked.remedy}")
            raise SystemExit(1) from None
        self.console.table(merged)
        report.summarize(merged)
        self.console.line(str(report.path_of(self.reports, self.batch)))
        self.scope.close()
        return self.result

    @property
    def told(self) -> str:
        """The verdict in a few words, for the last line of a session."""
        return f"{self.result.verdict.value} - {self.result.reason}" if self.result else "not run"

    # Helpers

    def _fault(self, error: Exception) -> Blocked:
        """Keep the traceback of a fault of this tool in a file; the pair was not tried."""
        file = self.folder / "fault.txt"
        storage.write(file, "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace"))
        return Blocked("fault", f"a fault of this tool: {type(error).__name__}: {error}", f"Report it with {file}.")

    def _result(self, error: BaseException | None) -> PairResult:
        blocked = results.block_of(error) if isinstance(error, Blocked) else None
        files = self.batch.matrix.test_file
        not_reached = {
            file.path: Run(
                file=file.path, state=State.NOT_RUN, expected=file.expected.get(self.pair.name), reason="not reached"
            )
            for file in files
        }
        runs = [self.finished.get(file.path, (not_reached[file.path], []))[0] for file in files]
        found = PairResult(
            pair=self.pair.name,
            torch=self.environment.torch if self.environment else self.pair.torch,
            torch_npu=self.environment.torch_npu if self.environment else self.pair.torch_npu,
            python=self.preflight.interpreter.version if self.preflight else self.pair.python,
            machine=self.preflight.machine.machine if self.preflight else None,
            mode=self._mode(),
            verdict=Verdict.NOT_RUN,
            reason="",
            upstream=results.upstream_facts(self.pair, self.tree, self.environment) if self.tree else None,
            environment=results.environment_facts(
                self.pair, self.preflight, self.environment, self.collected.torch if self.collected else {}
            )
            if self.preflight and self.environment
            else None,
            blocked=blocked,
            mismatches=self._mismatches(),
            runs=runs,
            cases=self.cases,
            evidence=self._evidence(),
            apis=self.described,
            docs=self.docs,
            started=self.started.isoformat(timespec="seconds"),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        if blocked is None and found.mismatches and self.batch.matrix.upstream.strict and self.finished:
            found = msgspec.structs.replace(
                found,
                blocked=results.Block(
                    code="mismatch",
                    cause="; ".join(found.mismatches),
                    remedy="Correct the pair, or set upstream.strict = false.",
                ),
            )
        verdict, reason = outcomes.verdict_of(found)
        if isinstance(error, Interrupted) and verdict is Verdict.NOT_RUN:
            done = sum(run.state is State.COMPLETE for run in runs)
            reason = f"interrupted by {error.signal_name} after {done} of {len(runs)} test files"
        return msgspec.structs.replace(found, verdict=verdict, reason=reason)

    def _evidence(self) -> Evidence | None:
        """Return the evidence; where the files ran and it was not measured, that is what is missing of every API."""
        apis = self.batch.matrix.api
        if self.watched:
            return evidence_of(self.watched, self.cases, apis)
        if not self.finished:
            return None
        unmeasured = "its evidence was not measured"
        return Evidence(apis=[ApiEvidence(api=api.name, problems=[f"{api.name}: {unmeasured}"]) for api in apis])

    def _mode(self) -> Mode | None:
        if self.preflight is None:
            return None
        if self.collected is None:
            return Mode.NPU if self.preflight.machine.cann else Mode.CONTROL_PLANE
        return Mode.NPU if self.collected.torch.get("npu_loaded") else Mode.CONTROL_PLANE

    def _mismatches(self) -> list[str]:
        """Return what was tested that is not what matrix.toml or the wheel names, both sides each."""
        found = []
        tree, built = self.tree, self.environment
        if tree and tree.commit and self.pair.commit and tree.commit != self.pair.commit:
            found.append(f"{tree.tag} of {tree.source} is commit {tree.commit}, matrix.toml pins {self.pair.commit}")
        if tree and tree.commit and built and built.git_version and tree.commit != built.git_version:
            found.append(f"the tree is commit {tree.commit}, the wheel was built from {built.git_version}")
        if built and built.git_version and self.pair.commit and built.git_version != self.pair.commit:
            found.append(f"the wheel was built from {built.git_version}, matrix.toml pins {self.pair.commit}")
        if built and built.cuda:
            found.append(f"torch is a CUDA {built.cuda} build: no CPU build could be had")
        cann = self.preflight.machine.cann if self.preflight else None
        if self.preflight and self.preflight.machine.npu_devices and not cann:
            found.append("there are NPUs, but no CANN was found: source its set_env.sh, or name it as cann.set-env")
        if cann and self.pair.cann and not (cann.version and preflight.same_release(cann.version, self.pair.cann)):
            found.append(
                f"CANN is {cann.version or 'of an unknown version'}, the pair is verified with {self.pair.cann}"
            )
        if self.worktree and not (tree and tree.is_sample):
            for patch in self.worktree.patches.values():
                if not patch.fits:
                    made_for = f"was made for blob {patch.made_for}" if patch.made_for else "names no blob"
                    found.append(f"{patch.patch} {made_for}, the file is {patch.before}")
                if patch.already_applied:
                    found.append(f"{patch.patch} was applied to the tree already")
        for facts in self.described.apis if self.described else ():
            found += [f"{facts.name}: {what}" for what in facts.remarks]
        return found

    def _write(self, result: PairResult) -> None:
        for run in result.runs:
            path = self.folder / f"{run.file}.xml"
            if run.log:
                storage.write(path, junit.of_run(result, run))
            else:
                # A log of an earlier night beside tonight's result would speak for a run that wasn't.
                path.unlink(missing_ok=True)
                path.with_suffix("").with_name(f"{Path(run.file).name}.log").unlink(missing_ok=True)
        results.save(self.reports, self.batch, result)


def begin(station: Callable[P, Value], *args: P.args, **kwargs: P.kwargs) -> Future[Value]:
    """Start a station beside those that follow; its value, or what it raises, is its future's.

    A session that is interrupted does not wait for it.
    """
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(station(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=getattr(station, "__name__", ""), daemon=True).start()
    return future


def named(session: Callable[..., None], help_line: str) -> Callable[..., None]:
    """Return a session with its line of ``nox -l``."""
    session.__doc__ = help_line
    return session


@functools.singledispatch
def describe(value: object) -> str:
    """Return what a station came to, in one line."""
    return str(value)


@describe.register
def _(value: Preflight) -> str:
    machine = value.machine
    cann = f"CANN {machine.cann.version or 'of unknown version'}" if machine.cann else "no CANN"
    handed = (
        f", pip's {', '.join(entry.partition(' =')[0] for entry in value.handed)} handed to uv" if value.handed else ""
    )
    return f"{machine.os} {machine.machine}, Python {value.interpreter.version}, {cann}, {machine.cores} cores{handed}"


@describe.register
def _(value: Environment) -> str:
    build = f"CUDA {value.cuda} build" if value.cuda else "CPU build"
    reused = ", reused" if value.reused else ""
    copied = (
        f"; copied, as uv's cache ({value.copied_from}) is on another file system: UV_CACHE_DIR may name a nearer one"
        if value.copied_from
        else ""
    )
    return f"torch {value.torch} ({build}), torch-npu {value.torch_npu}{reused}{copied}"


@describe.register
def _(value: Tree) -> str:
    return f"{value.source}, {value.tag}, commit {value.commit or 'unknown'}, {len(value.blobs)} files"


@describe.register
def _(value: Worktree) -> str:
    applied = [f"{patch.patch}: {patch.before[:8]} → {patch.after[:8]}" for patch in value.patches.values()]
    return "; ".join(applied) or "no patch"


@describe.register
def _(value: Collected) -> str:
    told = []
    for file, guards in value.guards.items():
        if guards.names:
            counts = ", ".join(
                f"{entry.machine} {entry.unpatched}" + ("" if entry.patched is None else f" → {entry.patched}")
                for entry in guards.counts
            )
            told.append(f"{file}: {counts} ({', '.join(guards.names)})")
    return "; ".join(told) or "the same cases on every machine"


@describe.register
def _(value: Watched) -> str:
    reached = {(touch.api, touch.key) for touch in value.touches}
    told = [f"{entry.api.rpartition('.')[2]} {sum(api == entry.api for api, _ in reached)}" for entry in value.found]
    return f"cases that reached an API: {', '.join(told)}" if told else "no API was reached"


@describe.register
def _(value: ApiReport) -> str:
    touched = sum(bool(facts.remarks) for facts in value.apis)
    how = "looked at" if value.live else f"{value.searched} files of torch_npu searched"
    return value.problem or f"{len(value.apis)} APIs, {touched} touched or not as stated; {how}"


@describe.register
def _(value: DocsFacts) -> str:
    if value.code:
        return f"not checked: {value.cause}"
    counted = Counter(entry.support.value for entry in value.entries)
    return f"{value.file or 'no page'}: {', '.join(f'{number} {name}' for name, number in counted.items())}"


def use_own_scratch() -> None:
    """Give this process a temporary folder of its own, and remove those of processes that were killed."""
    base = Path(os.environ.get("TMPDIR") or "/tmp")
    for left in base.glob("tnm-*"):
        match = SCRATCH.fullmatch(left.name)
        if match and process.started(int(match[1])) != match[2]:
            shutil.rmtree(left, ignore_errors=True)
    own = base / f"tnm-{os.getpid()}-{process.started(os.getpid())}"
    own.mkdir(mode=0o700, exist_ok=True)
    tempfile.tempdir = str(own)
