"""Runs each test file of a pair in full, in a worktree of its own, and turns what happened into outcomes."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from . import outcomes, process, slots
from .collecting import Collected
from .environment import Environment
from .errors import Blocked
from .matrix import Batch, Pair, TestFile
from .outcomes import Event
from .patching import Worktree
from .preflight import INSIDE, Preflight
from .process import Ending, LastWords
from .results import Case, Run
from .upstream import blob_id

# At its limit a file is asked for the stack of where it hangs, by a signal that tests don't use, and then ended.
STACK = LastWords(signal=signal.SIGRTMAX - 1, seconds=1.0)
MAX_STACK_CHARACTERS = 20_000
MAX_LINE_BYTES = 64 << 20

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
    cores = preflight.machine.cores

    def attempt(file: TestFile, room: slots.Room, number: int) -> Finished | None:
        with room:
            if not room.had:
                return None
            return run_file(
                file,
                environment.python,
                preflight.test_env,
                worktree,
                folder=folder,
                expected=file.expected.get(pair.name),
                number=number,
                stopped=stopped.is_set,
                progress=progress,
            )

    def one(file: TestFile, room: slots.Room) -> None:
        result = attempt(file, room, 1) or _never(file, worktree, file.expected.get(pair.name))
        while result[0].attempts <= reruns and outcomes.has_failed(result[0]):
            # Alone on the machine: a rerun asks whether the load was to blame.
            again = attempt(file, slots.take(cores, cores, stopped=stopped.is_set), result[0].attempts + 1)
            if again is None or stopped.is_set():
                break
            result = outcomes.after_rerun(result, again)
        finished(msgspec.structs.replace(result[0], guards=collected.guards.get(file.path)), result[1])

    slots.side_by_side(one, batch.matrix.test_file, cores, stopped)


def run_file(
    file: TestFile,
    python: Path,
    env: Mapping[str, str],
    worktree: Worktree,
    *,
    folder: Path,
    expected: int | None,
    number: int = 1,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Finished:
    """Run one file once, with ``python`` and in ``env``, and return its run and cases; ``number`` is the attempt's."""
    log = _log_path(folder, file, number)
    log.parent.mkdir(parents=True, exist_ok=True)
    with workplace(file, python, env, worktree) as place:
        stacks = place.own / "stacks.txt"
        ending = place.run(
            "run.py",
            [place.events, stacks, STACK.signal],
            log=log,
            limit=file.limit,
            stopped=stopped,
            while_running=_Follower(file.path, place.events, progress),
        )
        # This run's folders are others every night.
        places = {str(place.tree): "", str(place.temporary): "<tmp>", str(python.parent.parent): "<venv>"}
        hung = _shorten(_head(stacks, MAX_STACK_CHARACTERS), places) if ending.timed_out else ""
        with lines_of(place.events) as lines:
            heard = _relative(outcomes.read_events(lines), places)
            run, cases = outcomes.judge(file.path, heard, ending, expected=expected, limit=file.limit, stacks=hung)
    name = _log_path(folder, file, 1).relative_to(folder.parent).as_posix()
    return _described(run, file, worktree, log=name), cases


class Workplace(msgspec.Struct, frozen=True, kw_only=True):
    """The throw-away folders of one run: its worktree, its temporary folder, and ours, of which it is not told."""

    file: TestFile
    python: Path
    env: Mapping[str, str]
    root: Path

    @property
    def tree(self) -> Path:
        """The worktree in which the file runs."""
        return self.root / "tree"

    @property
    def temporary(self) -> Path:
        """The TMPDIR of the run."""
        return self.root / "tmp"

    @property
    def own(self) -> Path:
        """Where the program of ``scripts/inside`` writes what it has to tell."""
        return self.root / "own"

    @property
    def events(self) -> Path:
        """The JSON lines of what happens to cases."""
        return self.own / "events.jsonl"

    def run(
        self,
        program: str,
        arguments: Sequence[object],
        *,
        limit: float,
        log: Path | None = None,
        stopped: Callable[[], bool] = lambda: False,
        while_running: Callable[[], None] = lambda: None,
    ) -> Ending:
        """Run a program of ``scripts/inside`` on the test file, as the file would run by hand."""
        target = self.tree / self.file.path
        return process.run(
            [str(self.python), str(INSIDE / program), *map(str, arguments), target.name],
            cwd=target.parent,
            env={
                **self.env,
                "TMPDIR": str(self.temporary),
                "VIRTUAL_ENV": str(self.python.parent.parent),
                "PATH": f"{self.python.parent}:{self.env.get('PATH', '')}",
            },
            log=log,
            limit=limit,
            last_words=STACK,
            scratch=[self.temporary, self.tree],
            orphaned=[self.root],
            stopped=stopped,
            while_running=while_running,
        )


@contextlib.contextmanager
def workplace(file: TestFile, python: Path, env: Mapping[str, str], worktree: Worktree) -> Iterator[Workplace]:
    """Yield the folders for one run of ``file``, its worktree written and checked; they are gone afterwards."""
    place = Workplace(file=file, python=python, env=env, root=Path(tempfile.mkdtemp(prefix="run-")).resolve())
    try:
        place.temporary.mkdir()
        place.own.mkdir()
        worktree.write(place.tree)
        target = place.tree / file.path
        if blob_id(target.read_bytes()) != worktree.blob(file.path):
            raise Blocked("worktree", f"{target} is not as it was written", "Check the disk of the temporary folder.")
        yield place
    finally:
        shutil.rmtree(place.root, ignore_errors=True)


@contextlib.contextmanager
def lines_of(path: Path, position: int = 0) -> Iterator[Iterable[bytes]]:
    """Yield the lines of a file that a test process writes: none if it isn't there, and none longer than is sane."""
    try:
        stream: IO[bytes] = path.open("rb")
    except OSError:
        yield ()
        return
    with stream:
        stream.seek(position)
        yield iter(lambda: stream.readline(MAX_LINE_BYTES), b"")


def command(file: str) -> tuple[str, str]:
    """Return the folder (relative to the tree) and the command that run a test file by hand."""
    folder, _, name = file.rpartition("/")
    return folder, f"python -m unittest {name}"


# Helpers


def _never(file: TestFile, worktree: Worktree, expected: int | None) -> Finished:
    """Return the run of a file that was not started."""
    run, cases = outcomes.judge(
        file.path, [], Ending(returncode=None, seconds=0.0, interrupted=True), expected=expected
    )
    return _described(run, file, worktree, log=None), cases


def _described(run: Run, file: TestFile, worktree: Worktree, *, log: str | None) -> Run:
    folder, line = command(file.path)
    return msgspec.structs.replace(
        run,
        command=f"cd {folder} && {line}" if folder else line,
        blob=worktree.blob(file.path),
        patch=worktree.patches.get(file.path),
        log=log,
    )


def _log_path(folder: Path, file: TestFile, number: int) -> Path:
    return folder / (f"{file.path}.log" if number == 1 else f"{file.path}.attempt-{number}.log")


class _Follower:
    """Reads on in a file of events while it grows, and tells how far the run is."""

    def __init__(self, file: str, events: Path, progress: Callable[[Progress], None]) -> None:
        self.file = file
        self.events = events
        self.progress = progress
        self.position = 0
        self.pid: int | None = None
        self.done = 0
        self.planned: int | None = None

    def __call__(self) -> None:
        with lines_of(self.events, self.position) as lines:
            for event in outcomes.read_events(self._whole(lines)):
                self.pid = event.pid if self.pid is None else self.pid
                if event.event == "planned":
                    self.planned = len(event.cases)
                self.done += event.event == "stop" and event.pid == self.pid
        self.progress(Progress(file=self.file, done=self.done, planned=self.planned))

    def _whole(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            if not line.endswith(b"\n"):
                return
            self.position += len(line)
            yield line


def _head(path: Path, characters: int) -> str:
    with lines_of(path) as lines:
        return b"".join(itertools.islice(lines, characters)).decode(errors="replace")[:characters]


def _relative(events: Iterable[Event], places: Mapping[str, str]) -> Iterator[Event]:
    for event in events:
        yield msgspec.structs.replace(event, message=_shorten(event.message, places)) if event.message else event


def _shorten(text: str, places: Mapping[str, str]) -> str:
    for place, name in places.items():
        text = text.replace(f"{place}/", f"{name}/" if name else "").replace(place, name or ".")
    return text
