"""Runs each test file of a pair in full, in a worktree of its own, and turns what happened into outcomes."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from . import outcomes, process, slots
from .collecting import Collected
from .environment import Environment
from .errors import Blocked
from .matrix import Batch, Pair, TestFile
from .patching import Worktree
from .preflight import INSIDE, Preflight
from .process import Ending
from .results import Case, Outcome, Run
from .upstream import blob_id

# The stack of where a file hangs is written at its limit; the process is ended this much later.
STACK_SECONDS = 1.0
MAX_STACK_CHARACTERS = 20_000

Finished = tuple[Run, list[Case]]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is: cases done of those planned (None until they are known)."""

    file: str
    done: int
    planned: int | None


def run_files(
    batch: Batch,
    pair: Pair,
    preflight: Preflight,
    environment: Environment,
    worktree: Worktree,
    collected: Collected,
    *,
    folder: Path,
    reruns: int,
    finished: Callable[[Run, list[Case]], None],
    progress: Callable[[Progress], None],
) -> None:
    """Run all test files and hand each one's run and cases to ``finished``.

    Logs are written below ``folder``. Files run side by side as far as the machine's cores allow, so ``finished`` and
    ``progress`` are called from other threads. An interruption ends all of them at once; what was learnt by then is
    handed over like the rest, before the exception goes on.
    """
    stopped = threading.Event()

    def one(file: TestFile) -> None:
        runner = _FileRunner(pair, preflight, environment, worktree, file, folder, progress)
        cores = preflight.machine.cores
        weight = slots.weight_of(timing_sensitive=file.timing_sensitive, cores=cores)
        with slots.take(weight, cores, stopped=stopped.is_set) as had:
            result = runner.attempt() if had else runner.never()
        for _ in range(reruns):
            if outcomes.is_clean(result[0]) or stopped.is_set():
                break
            # Alone on the machine: a rerun asks whether the load was to blame.
            with slots.take(cores, cores, stopped=stopped.is_set) as had:
                if had:
                    result = outcomes.after_rerun(result, runner.attempt(result[0].attempts + 1))
        finished(msgspec.structs.replace(result[0], guards=collected.guards.get(file.path)), result[1])

    files = batch.matrix.test_file
    sensitive = [file for file in files if file.timing_sensitive]
    others = [file for file in files if not file.timing_sensitive]
    cores = preflight.machine.cores
    if slots.fit_together(len(others), len(sensitive), cores):
        others, sensitive = [*sensitive, *others], []
    # Where cores are few, files that need quiet come last: they would hold up the others.
    for group in (others, sensitive):
        _side_by_side(one, group, stopped)


def _side_by_side(one: Callable[[TestFile], None], files: Sequence[TestFile], stopped: threading.Event) -> None:
    with ThreadPoolExecutor(max_workers=max(1, len(files))) as executor:
        futures = [executor.submit(one, file) for file in files]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stopped.set()
            process.stop_all()
            raise


def read_events(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events of a file of JSON lines; a line that a SIGKILL cut short is left out."""
    for line in data.split(b"\n"):
        try:
            event = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(event, dict):
            yield event


def command(file: str) -> tuple[str, str]:
    """Return the folder (relative to the tree) and the command that run a test file by hand."""
    folder, _, name = file.rpartition("/")
    return folder, f"python -m unittest {name}"


# Helpers


class _FileRunner:
    """Everything that runs of one test file have in common."""

    def __init__(
        self,
        pair: Pair,
        preflight: Preflight,
        environment: Environment,
        worktree: Worktree,
        file: TestFile,
        folder: Path,
        progress: Callable[[Progress], None],
    ) -> None:
        self.file = file
        self.expected = file.expected.get(pair.name)
        self.preflight = preflight
        self.environment = environment
        self.worktree = worktree
        self.folder = folder
        self.progress = progress

    def never(self) -> Finished:
        """Return the run of a file that was not started."""
        return self._judge([], Ending(returncode=None, seconds=0.0, interrupted=True), "", Path())

    def attempt(self, number: int = 1) -> Finished:
        """Run the file once."""
        scratch = Path(tempfile.mkdtemp(prefix="run-"))
        try:
            tree, temporary = scratch / "tree", scratch / "tmp"
            temporary.mkdir()
            self.worktree.write(tree)
            target = tree / self.file.path
            if blob_id(target.read_bytes()) != self.worktree.blob(self.file.path):
                raise Blocked(
                    "worktree", f"{target} is not as it was written", "Check the disk of the temporary folder."
                )
            events, stacks = scratch / "events.jsonl", scratch / "stacks.txt"
            log = self._log_path(number)
            log.parent.mkdir(parents=True, exist_ok=True)
            env = self.preflight.test_env | {
                "TMPDIR": str(temporary),
                "VIRTUAL_ENV": str(self.environment.python.parent.parent),
                "PATH": f"{self.environment.python.parent}:{self.preflight.test_env.get('PATH', '')}",
            }
            arguments = [str(INSIDE / "run.py"), str(events), str(stacks), str(self.file.limit), target.name]
            ending = process.run(
                [str(self.environment.python), *arguments],
                cwd=target.parent,
                env=env,
                log=log,
                limit=self.file.limit + STACK_SECONDS,
                scratch=[temporary, tree],
                while_running=_Follower(self.file.path, events, self.progress),
            )
            heard = events.read_bytes() if events.exists() else b""
            hung = stacks.read_text(errors="replace")[:MAX_STACK_CHARACTERS] if stacks.exists() else ""
            return self._judge(list(read_events(heard)), ending, hung, tree)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _judge(self, events: list[dict[str, Any]], ending: Ending, stacks: str, tree: Path) -> Finished:
        places = {str(tree): "", str(self.environment.python.parent.parent): "<venv>"} if tree.parts else {}
        run, cases = outcomes.judge(
            self.file.path,
            _relative(events, places),
            ending,
            expected=self.expected,
            stacks=_shorten(stacks, places) if ending.timed_out else "",
        )
        if ending.timed_out and stacks:
            cases = [
                msgspec.structs.replace(case, message=f"{case.message}\n{run.stacks}")
                if case.outcome is Outcome.TIMEOUT
                else case
                for case in cases
            ]
        folder, line = command(self.file.path)
        log = self._log_path(1)
        return (
            msgspec.structs.replace(
                run,
                command=f"cd {folder} && {line}",
                blob=self.worktree.blob(self.file.path),
                patch=self.worktree.patches.get(self.file.path),
                log=log.relative_to(self.folder.parent).as_posix() if tree.parts else None,
            ),
            cases,
        )

    def _log_path(self, number: int) -> Path:
        name = self.file.path if number == 1 else f"{self.file.path}.attempt-{number}"
        return self.folder / f"{name}.log"


class _Follower:
    """Reads on in a file of events while it grows, and tells how far the run is."""

    def __init__(self, file: str, events: Path, progress: Callable[[Progress], None]) -> None:
        self.file = file
        self.events = events
        self.progress = progress
        self.position = 0
        self.done = 0
        self.planned: int | None = None

    def __call__(self) -> None:
        try:
            with self.events.open("rb") as stream:
                stream.seek(self.position)
                data = stream.read()
        except OSError:
            return
        whole = data.rpartition(b"\n")[0]
        if not whole:
            return
        self.position += len(whole) + 1
        for event in read_events(whole):
            if event.get("event") == "planned":
                self.planned = len(event.get("cases", ()))
            self.done += event.get("event") == "stop"
        self.progress(Progress(file=self.file, done=self.done, planned=self.planned))


def _relative(events: list[dict[str, Any]], places: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Take this run's folders out of the messages: they are others every night."""
    for event in events:
        message = event.get("message")
        yield event | {"message": _shorten(message, places)} if isinstance(message, str) else event


def _shorten(text: str, places: Mapping[str, str]) -> str:
    for place, name in places.items():
        text = text.replace(f"{place}/", f"{name}/" if name else "").replace(place, name or ".")
    return text
