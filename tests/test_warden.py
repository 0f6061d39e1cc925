"""Nothing outlives a command: neither its own end, nor its limit, nor the end of whoever asked for it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scripts import process, results, storage, warden
from scripts.process import Ending, LastWords
from tests.conftest import ROOT
from tests.running_support import alive, eventually

# TNM_KILLS=100 takes about a minute.
KILLS = int(os.environ.get("TNM_KILLS", "25"))
HEAD = "import ctypes, os, signal, subprocess, sys, threading, time\n"


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)


@pytest.fixture
def token() -> Iterator[str]:
    """Yield a word that stands in the environment of all processes of a test; none may be alive at its end."""
    word = uuid.uuid4().hex
    yield word
    eventually(lambda: not list(alive(word)))


def run(source: str, token: str, **settings: Any) -> Ending:
    """Run Python source under a warden."""
    settings = {"cwd": Path.cwd(), "env": {**os.environ, "TOKEN": token}, **settings}
    return process.run([sys.executable, "-I", "-S", "-c", HEAD + textwrap.dedent(source)], **settings)


# What a command may leave behind

LEFT = {
    "a child in another session": "subprocess.Popen(['sleep', '3600'], start_new_session=True)",
    "a child that holds the output": "subprocess.Popen(['sleep', '3600'])",
    "a child that has stopped": "os.kill(subprocess.Popen(['sleep', '3600']).pid, signal.SIGSTOP)",
    "a grandchild whose parent was killed": """
        parent = subprocess.Popen(["sh", "-c", "sleep 3600 & echo; wait"], stdout=subprocess.PIPE)
        parent.stdout.readline()
        parent.kill()
        parent.wait()
    """,
    "a daemon": """
        if not os.fork():
            os.setsid()
            if os.fork(): os._exit(0)
            os.chdir("/")
            os.closerange(0, 256)
            time.sleep(3600)
        os.wait()
    """,
    "one that ignores every request to end": """
        if not os.fork():
            for number in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(number, signal.SIG_IGN)
            time.sleep(3600)
        time.sleep(0.1)
    """,
    "one in a group of its own, one in that of another": """
        first = subprocess.Popen(["sleep", "3600"], preexec_fn=os.setpgrp)
        subprocess.Popen(["sleep", "3600"], preexec_fn=lambda: os.setpgid(0, first.pid))
    """,
    "a crowd": "for _ in range(200): os.fork() or time.sleep(3600)",
    "one that forks on and on": """
        if not os.fork():
            while True: os.fork() and os._exit(0)
    """,
    "one that forks on and on, each in a session of its own": """
        if not os.fork():
            while True: os.fork() and os._exit(0); os.setsid(); time.sleep(0.001)
    """,
}


@pytest.mark.parametrize("left", LEFT)
def test_what_a_command_leaves_is_ended(left: str, token: str) -> None:
    ending = run(LEFT[left], token)
    assert (ending.returncode, ending.survivors) == (0, [])
    assert ending.leftovers
    assert not list(alive(token))


@pytest.mark.parametrize("left", LEFT)
def test_a_limit_ends_everything_and_blames_nobody(left: str, token: str) -> None:
    ending = run(f"{textwrap.dedent(LEFT[left])}\ntime.sleep(3600)", token, limit=0.4)
    assert (ending.timed_out, ending.returncode, ending.leftovers) == (True, -signal.SIGKILL, [])
    assert not list(alive(token))


def test_what_ends_by_itself_in_good_time_is_not_left_behind(token: str) -> None:
    assert run("os.fork() or time.sleep(0.1)", token).leftovers == []


def test_what_has_ended_unasked_for_is_not_left_behind(token: str) -> None:
    source = "os.fork() or (subprocess.Popen(['true']), time.sleep(3600))\ntime.sleep(0.2)"
    assert len(run(source, token).leftovers) == 1


def test_a_limit_leaves_time_for_last_words(token: str, tmp_path: Path) -> None:
    source = """
        def speak(*_): print("last words", flush=True)
        signal.signal(signal.SIGUSR1, speak)
        while True: time.sleep(3600)
    """
    ending = run(
        source, token, limit=0.5, last_words=LastWords(signal=signal.SIGUSR1, seconds=0.5), log=tmp_path / "log"
    )
    assert (tmp_path / "log").read_text() == "last words\n"
    assert (ending.timed_out, ending.returncode) == (True, -signal.SIGKILL)
    assert 0.9 < ending.seconds < 3


def test_another_thread_can_end_a_command_at_once(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 60.0)
    stopped = threading.Event()
    threading.Timer(0.5, stopped.set).start()
    start = time.monotonic()
    ending = run("subprocess.run(['sleep', '3600'])", token, stopped=stopped.is_set)
    assert (ending.interrupted, ending.leftovers) == (True, [])
    assert time.monotonic() - start < 5
    assert run("pass", token).returncode == 0


# The caller

CALLER = """
import os, pathlib, signal, sys, tempfile
from scripts import interrupts, process
if sys.argv[2] == "handled":
    interrupts.install()
folder = pathlib.Path(sys.argv[1])
tempfile.tempdir = str(folder / f"tnm-{os.getpid()}-1")
os.mkdir(tempfile.tempdir)
command = "import subprocess, time; subprocess.Popen(['sleep', '3600'], start_new_session=True); " + sys.argv[3]
process.run(
    [sys.executable, "-c", command],
    cwd=folder,
    env=os.environ,
    scratch=[folder / "scratch"],
    orphaned=[folder / "orphaned"],
    while_running=lambda: print("running", flush=True) if (folder / "ready").exists() else None,
)
"""
COMMAND = """
import multiprocessing.shared_memory, pathlib
held = multiprocessing.shared_memory.SharedMemory(create=True, size=9)
pathlib.Path('ready').write_text(held.name)
time.sleep(3600)
"""


@pytest.fixture
def caller(tmp_path: Path, token: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Return a process that runs a command, once that runs; the command has made all that a command can leave."""
    started = []

    def start(handling: str) -> subprocess.Popen[str]:
        for name in ("scratch", "orphaned"):
            (tmp_path / name / "below").mkdir(parents=True)
            (tmp_path / name / "below" / "file").touch()
        command = f"exec({COMMAND!r})"
        found = subprocess.Popen(
            [sys.executable, "-c", CALLER, str(tmp_path), handling, command],
            cwd=ROOT,
            env={**os.environ, "TOKEN": token},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(found)
        assert found.stdout is not None
        assert found.stdout.readline() == "running\n"
        return found

    yield start
    for found in started:
        found.kill()
        found.communicate()


def wardens(caller: int) -> list[int]:
    """Return the process ids of a caller's guard and of its keeper."""
    found = []
    for _ in range(2):
        caller = int(Path(f"/proc/{caller}/task/{caller}/children").read_text().split()[0])
        found.append(caller)
    return found


@pytest.mark.parametrize(
    ("handling", "number"),
    [
        ("plain", signal.SIGKILL),
        ("plain", signal.SIGTERM),
        ("plain", signal.SIGINT),
        ("handled", signal.SIGKILL),
        ("handled", signal.SIGTERM),
        ("handled", signal.SIGHUP),
        ("whole group", signal.SIGKILL),
    ],
)
def test_the_end_of_the_caller_ends_everything(
    handling: str, number: int, caller: Callable[[str], subprocess.Popen[str]], token: str, tmp_path: Path
) -> None:
    found = caller(handling)
    segment = Path("/dev/shm", (tmp_path / "ready").read_text())
    assert segment.exists()
    os.killpg(found.pid, number) if handling == "whole group" else found.send_signal(number)
    found.wait(30)
    eventually(lambda: not list(alive(token)))
    eventually(lambda: not (segment.exists() or (tmp_path / "scratch").exists()))
    # A caller that can still clean up may have use for the rest.
    is_gone = number == signal.SIGKILL or (handling == "plain" and number != signal.SIGINT)
    eventually(lambda: (tmp_path / "orphaned").exists() is not is_gone)
    # So does the temporary folder that is the caller's alone.
    eventually(lambda: (tmp_path / f"tnm-{found.pid}-1").exists() is not is_gone)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_warden_that_is_killed_leaves_nothing(
    killed: int, caller: Callable[[str], subprocess.Popen[str]], token: str, tmp_path: Path
) -> None:
    found = caller("plain")
    segment = Path("/dev/shm", (tmp_path / "ready").read_text())
    os.kill(wardens(found.pid)[killed], signal.SIGKILL)
    found.wait(10)
    assert not list(alive(token))
    assert not segment.exists()
    assert not (tmp_path / "scratch").exists()
    assert (tmp_path / "orphaned").exists()


def test_a_command_ends_though_all_of_its_wardens_are_killed(
    caller: Callable[[str], subprocess.Popen[str]], token: str
) -> None:
    found = caller("plain")
    guard, keeper = wardens(found.pid)
    command = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0]
    os.kill(keeper, signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    found.wait(10)
    eventually(lambda: not Path("/proc", command).exists())
    # What it started has nobody left who could end it.
    for left in alive(token):
        os.kill(int(left.partition(":")[0]), signal.SIGKILL)


def test_a_request_to_end_is_the_callers_to_hear(caller: Callable[[str], subprocess.Popen[str]], token: str) -> None:
    found = caller("plain")
    before = set(alive(token))
    for pid in wardens(found.pid):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    time.sleep(0.5)
    assert set(alive(token)) == before


@pytest.mark.parametrize("victim", ["os.getppid()", "int(open(f'/proc/{os.getppid()}/stat').read().split()[3])"])
def test_a_command_that_kills_its_warden_is_told_of(victim: str, token: str) -> None:
    ending = run(f"os.kill({victim}, signal.SIGKILL); time.sleep(3600)", token)
    assert (ending.returncode, ending.interrupted, ending.error) == (-9, False, "its warden was killed")


def test_no_process_shows_what_a_command_was_given(token: str) -> None:
    secret = uuid.uuid4().hex
    shown: list[bytes] = []

    def look() -> None:
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.exists()]
        shown.extend(line for line in lines if secret.encode() in line)

    ending = run(
        "assert os.environ['SECRET']; time.sleep(1)", token, env={**os.environ, "SECRET": secret}, while_running=look
    )
    assert (ending.returncode, shown) == (0, [])
    run(f"{secret!r}; time.sleep(1)", token, while_running=look)
    assert len(set(shown)) == 1


# The console


def test_output_is_kept_byte_for_byte(token: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 999 + b"no line end"
    source = "for _ in range(999): os.write(1, bytes(range(256)))\nos.write(2, b'no line end')"
    ending = run(source, token, log=tmp_path / "log")
    assert (tmp_path / "log").read_bytes() == data
    assert ending.log_cut == 0


@pytest.mark.parametrize("size", [0, 1, 1000, 1001, 5000, 70_000, 300_000])
def test_output_that_is_too_long_loses_its_middle(
    size: int, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_BYTES", 1000)
    whole = b"".join(b"%07d\n" % number for number in range(size // 8 + 1))[:size]
    (tmp_path / "whole").write_bytes(whole)
    ending = process.run(["cat", str(tmp_path / "whole")], cwd=tmp_path, env={"TOKEN": token}, log=tmp_path / "log")
    cut = max(0, size - 1000)
    note = b"\n[... %d bytes left out here ...]\n" % cut if cut else b""
    assert (tmp_path / "log").read_bytes() == whole[:500] + note + whole[500 + cut :]
    assert ending.log_cut == cut


def test_what_was_written_last_is_there_though_a_child_holds_the_output(token: str, tmp_path: Path) -> None:
    run("subprocess.Popen(['sleep', '3600']); print('last')", token, log=tmp_path / "log")
    assert (tmp_path / "log").read_text() == "last\n"


def test_a_console_that_can_not_be_written_ends_no_command(token: str) -> None:
    ending = run("print('x' * 100)", token, log=Path("/dev/full"))
    assert (ending.returncode, ending.log_error) == (0, "No space left on device")


@pytest.mark.parametrize(
    ("argv", "cwd", "log", "error"),
    [
        (["not-there"], ".", "log", "not-there: No such file or directory"),
        (["./file"], ".", "log", "./file: Permission denied"),
        (["true"], "not-there", "log", "not-there: No such file or directory"),
        (["true"], ".", "not-there/log", "not-there/log: No such file or directory"),
    ],
)
def test_a_command_that_can_not_be_started(argv: list[str], cwd: str, log: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ending = process.run(argv, cwd=tmp_path / cwd, env=os.environ, log=tmp_path / log, scratch=[scratch])
    assert ending.returncode is None
    assert ending.error.removeprefix(f"{tmp_path}/") == error
    assert not scratch.exists()


def test_a_command_starts_with_nothing_of_its_warden(token: str, tmp_path: Path) -> None:
    source = """
        print(sorted(os.listdir("/proc/self/fd")), os.getsid(0) == os.getpid(), sys.stdin.read() == "")
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        print(status["SigBlk"].strip(), bin(int(status["SigIgn"], 16)))
    """
    run(source, token, log=tmp_path / "log")
    # 3 lists the folder; Python itself ignores SIGPIPE (13) and SIGXFSZ (25).
    assert (tmp_path / "log").read_text().splitlines() == [
        "['0', '1', '2', '3'] True True",
        f"0000000000000000 {bin(1 << 12 | 1 << 24)}",
    ]


# Folders and shared memory


def test_a_folder_without_permissions_goes_and_what_it_links_to_stays() -> None:
    child = os.fork()
    if not child:
        status = 1
        with contextlib.suppress(BaseException):
            if os.getuid() == 0:
                # Nothing is forbidden to root.
                os.setuid(65534)
            folder, outside = (Path(tempfile.mkdtemp(dir="/tmp")) for _ in range(2))
            (folder / "a/b/c").mkdir(parents=True)
            (folder / "a/b/c/file").touch()
            (folder / "d").mkdir()
            (folder / "d/outside").symlink_to(outside)
            outside.chmod(0o500)
            for name, mode in {"a/b/c": 0, "a/b": 0, "a": 0, "d": 0o500}.items():
                (folder / name).chmod(mode)
            warden.remove(str(folder))
            status = 2 * folder.exists() + 4 * (outside.stat().st_mode & 0o777 != 0o500)
            outside.rmdir()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def segment(name: str) -> Path:
    return Path("/dev/shm") / name.format(token=uuid.uuid4().hex, pid=os.getpid())


def stays(path: Path, source: str, token: str) -> bool:
    """Return whether a file is there after ``source`` has run; it is gone then."""
    try:
        run(source, token)
        return path.exists()
    finally:
        path.unlink(missing_ok=True)


DIE = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("name", ["psm_{token}", "sem.mp-{token}", "torch_1234567_{token}", "pym-1234567-{token}"])
def test_shared_memory_that_a_killed_command_leaves_is_removed(name: str, token: str) -> None:
    path = segment(name)
    run(f"open({str(path)!r}, 'w').close(); {DIE}", token)
    assert not path.exists()


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(1)", "os._exit(0)"])
def test_shared_memory_that_nobody_has_open_stays_where_nothing_was_killed(ending: str, token: str) -> None:
    """A run beside this one may open it again."""
    path = segment("psm_{token}")
    assert stays(path, f"open({str(path)!r}, 'w').close(); {ending}", token)


def test_shared_memory_that_a_killed_child_leaves_is_removed(token: str) -> None:
    path = segment("psm_{token}")
    child = f"import time; open({str(path)!r}, 'w').close(); time.sleep(3600)"
    wait = f"while not os.path.exists({str(path)!r}): time.sleep(0.01)"
    run(
        f"import subprocess\nsubprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n{wait}", token
    )
    assert not path.exists()


@pytest.mark.parametrize("name", ["someone-else-{token}", "torch_{pid}_{token}", "pym-{pid}-{token}"])
def test_shared_memory_of_others_stays(name: str, token: str) -> None:
    path = segment(name)
    assert stays(path, f"open({str(path)!r}, 'w').close(); {DIE}", token)


def test_semaphores_that_a_run_beside_it_makes_stay(token: str) -> None:
    """Those of the spawn context stay in /dev/shm for the children to open; glibc maps them under another name."""
    made = []
    beside = threading.Timer(0.3, lambda: made.append(multiprocessing.get_context("spawn").Semaphore()))
    beside.start()
    run(f"time.sleep(0.8); {DIE}", token)
    beside.join()
    [semaphore] = made
    assert Path("/dev/shm", semaphore._semlock.name.replace("/", "sem.")).exists()  # type: ignore[attr-defined]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's file")
def test_shared_memory_of_another_user_stays(token: str) -> None:
    path = segment("psm_{token}")
    assert stays(path, f"open({str(path)!r}, 'w').close(); os.chown({str(path)!r}, 65534, 65534); {DIE}", token)


def test_shared_memory_from_before_stays(token: str) -> None:
    path = segment("psm_{token}")
    path.touch()
    assert stays(path, DIE, token)


@pytest.mark.parametrize("use", ["open", "mapped"])
def test_shared_memory_in_use_stays(use: str, token: str) -> None:
    path = segment("psm_{token}")
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import mmap, os, sys, time\n"
            "while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])): time.sleep(0.01)\n"
            "stream = open(sys.argv[1], 'r+b')\n"
            "held = mmap.mmap(stream.fileno(), 0) if sys.argv[2] == 'mapped' else stream\n"
            "print(stream.close() if held is not stream else 0, flush=True)\n"
            "time.sleep(3600)",
            path,
            use,
        ],
        stdout=subprocess.PIPE,
    )
    try:
        run(f"open({str(path)!r}, 'wb').write(b'x' * 4096); time.sleep(0.5); {DIE}", token)
        assert path.exists()
    finally:
        holder.kill()
        holder.communicate()
        path.unlink(missing_ok=True)


# A session that is killed at any moment

SESSION = """
import os, pathlib, sys
from scripts import pipeline, process, results, running, storage
from scripts.matrix import TestFile
from scripts.patching import Worktree
from scripts.results import Case, Outcome, PairResult, Verdict

process.GRACE_SECONDS = 0.0
pipeline.use_own_scratch()
print("ready", flush=True)
reports = pathlib.Path(sys.argv[1])
source = '''
import multiprocessing.shared_memory, os, subprocess, tempfile, unittest
class T(unittest.TestCase):
    def test_a(self):
        tempfile.mkstemp()
        name = f"psm_{os.environ['TOKEN']}_{os.getpid()}"
        held = multiprocessing.shared_memory.SharedMemory(name, create=True, size=9)
        subprocess.Popen(["sleep", "3600"], start_new_session=True)
        subprocess.run(["sleep", "0.1"])
        os._exit(3)
'''
while True:
    run, cases = running.run_file(
        TestFile(path="test/api_test.py", limit=9, expected={}),
        pathlib.Path(sys.executable),
        os.environ,
        Worktree(files={"test/api_test.py": source.encode()}, patches={}),
        folder=reports,
        expected=1,
    )
    cases *= 3000
    told = {"pair": "p", "torch": "2.10.0", "torch_npu": "2.10.0", "python": "3.11"}
    result = PairResult(**told, verdict=Verdict.FAILED, reason="", runs=[run], cases=cases)
    storage.write(reports / "result.json", results.encode(result))
"""


def test_a_session_may_be_killed_at_any_moment(token: str, tmp_path: Path) -> None:
    temporary, reports = tmp_path / "tmp", tmp_path / "reports"
    temporary.mkdir()
    env = {**os.environ, "TOKEN": token, "TMPDIR": str(temporary)}
    chance = random.Random(0)

    def kill_one(number: int) -> None:
        folder = reports / str(number % 2)
        with subprocess.Popen(
            [sys.executable, "-c", SESSION, folder], cwd=ROOT, env=env, stdout=subprocess.PIPE
        ) as session:
            assert session.stdout is not None
            assert session.stdout.readline() == b"ready\n"
            if number < 2:
                eventually((folder / "result.json").exists)
            time.sleep(chance.uniform(0, 0.6))
            session.kill()
        if (folder / "result.json").exists():
            assert len(results.load(folder / "result.json").cases) == 3000

    # Two at once: what one leaves is swept while the other works.
    with ThreadPoolExecutor(max_workers=2) as executor:
        list(executor.map(kill_one, range(KILLS)))
    eventually(lambda: not list(alive(token)))
    assert not list(Path("/dev/shm").glob(f"*{token}*"))
    sweep = "from scripts import pipeline; pipeline.use_own_scratch()"
    subprocess.run([sys.executable, "-c", sweep], cwd=ROOT, env=env, check=True)
    assert len(list(temporary.iterdir())) == 1
    for folder in reports.iterdir():
        storage.write(folder / "result.json", b"")
    assert not list(reports.glob("*/.*"))


# Signals

HANDLER = """
import sys, time
from scripts import interrupts
from scripts.errors import Interrupted
interrupts.install()
try:
    print("ready", flush=True)
    time.sleep(60)
except Interrupted as interrupted:
    print(interrupted.signal_name, flush=True)
    time.sleep(0.5)
    print("saved", flush=True)
    raise
"""


def start_handler(*arguments: str, source: str = HANDLER, **settings: Any) -> subprocess.Popen[str]:
    found = subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )
    assert found.stdout is not None
    assert found.stdout.readline() == "ready\n"
    return found


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_is_told_once_and_leaves_time_to_save(name: str) -> None:
    found = start_handler()
    found.send_signal(signal.Signals[name])
    assert found.stdout is not None
    assert found.stdout.readline() == f"{name}\n"
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        found.send_signal(again)
    assert found.communicate() == ("saved\n", f"interrupted by {name}\n")
    assert found.returncode != 0


def test_a_hang_up_that_nohup_ignores_stays_ignored() -> None:
    found = start_handler(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    found.send_signal(signal.SIGHUP)
    found.send_signal(signal.SIGTERM)
    assert found.communicate()[0] == "SIGTERM\nsaved\n"


PARENT = """
import os, subprocess, sys, time
worker = [sys.executable, "-c", sys.argv[1], "--parallel-worker"]
with subprocess.Popen(worker, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as process:
    if sys.argv[2] == "late":
        process.stdout.readline()
    print("ready", flush=True)
    time.sleep(60)
"""


SLEEP = """
try:
    print("ready", flush=True)
except OSError:
    pass
time.sleep(60)
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_parallel_worker_ends_with_its_parent(when: str, token: str) -> None:
    seconds = 0.5 if when == "early" else 0
    worker = f"import time\ntime.sleep({seconds})\nfrom scripts import interrupts\ninterrupts.install()\n{SLEEP}"
    found = start_handler(worker, when, source=PARENT, env={**os.environ, "TOKEN": token})
    assert list(alive(token))
    found.kill()
    found.communicate()
    eventually(lambda: not list(alive(token)))
