"""The sessions as a user meets them: real nox, real uv, real git; stub wheels stand in for torch."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import stubs
from tests.conftest import ROOT
from tests.running_support import eventually
from tests.user import OK, User, make_user, one_file

PAIRS = ["2.6.0", "2.7.1", "2.8.0", "2.9.0", "2.10.0", "2.11.0", "2.12.0", "2.13.0"]
# Keys that may differ between two runs of the same thing; everything else may not.
TIMES = {"seconds", "unittest_seconds", "started", "finished", "venv_reused"}


def without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def descendants_of(marker: str) -> list[str]:
    """Return the command lines of all processes whose environment has ``marker``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@contextlib.contextmanager
def session(user: User, command: str, folder: Path, *, until: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a session in which the program ``until`` runs a test file by now."""
    marker = f"MARKER={folder}"
    with subprocess.Popen(
        user.command(command),
        cwd=ROOT,
        env=user.environment | {"MARKER": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        eventually(lambda: any(until in line and "a_test.py" in line for line in descendants_of(marker)), 60)
        yield process


def test_eight_pairs_side_by_side_make_one_report(tmp_path: Path) -> None:
    user = make_user(tmp_path, pairs=[stubs.pair_row(version) for version in reversed(PAIRS)])

    done = user.nox("-t verify -j 2")

    assert done.returncode == 0, done.stdout
    report = user.report()
    assert [column["pair"] for column in report["columns"]] == PAIRS
    assert {column["verdict"] for column in report["columns"]} == {"verified"}
    assert {column["mode"] for column in report["columns"]} == {"control-plane"}
    for column in report["columns"]:
        assert column["torch"] == f"{column['pair']}+cpu"
        assert [(run["state"], run["tests"], run["expected"]) for run in column["runs"]] == [("complete", 2, 2)]
        assert [case["outcome"] for case in column["cases"]] == ["passed", "passed"]
        counts = {
            entry["machine"]: (entry["unpatched"], entry["patched"]) for entry in column["runs"][0]["guards"]["counts"]
        }
        assert counts == {"x86_64": (2, 2), "aarch64": (0, 2)}
        assert column["runs"][0]["guards"]["names"] == ["IS_ARM64, line 3"]


def test_what_was_not_run_stands_in_the_report(tmp_path: Path) -> None:
    user = make_user(tmp_path, pairs=[stubs.pair_row("2.9.0"), stubs.pair_row("2.10.0")])

    assert user.nox("-s verify-2.10.0").returncode == 0

    assert user.column("2.9.0")["verdict"] == "not-run"
    assert user.column("2.10.0")["verdict"] == "verified"
    assert "| 2.9.0 | 2.9.0 | **not run** |" in (user.latest / "report.md").read_text()


# An API that no test file of these batches reaches.
UNREACHED = {
    "name": "torch.testing._internal.common_utils.run_tests",
    "kind": "function",
    "does": {"en": "Runs tests.", "zh": "运行测试。"},
}


@pytest.mark.parametrize(
    ("batch", "verdict", "reason"),
    [
        (one_file(OK) | {"api": [UNREACHED]}, "hollow", "run_tests: no test file imports it"),
        (one_file(OK.replace("def test_b(self): pass", "def test_b(self): self.fail('b')")), "failed", "1 failed"),
        (one_file(OK.replace("import", "import nothing_of_that_name\nimport", 1)), "failed", "collection-error"),
        (one_file("import unittest\n"), "hollow", "0 tests, 2 expected"),
        (one_file(OK.replace("    def test_b(self): pass\n", "")), "hollow", "1 tests, 2 expected"),
        (one_file(OK) | {"test_requirements": ["not-on-any-index"]}, "blocked", "not-on-any-index"),
        (one_file(OK) | {"upstream": {"repository": ["nowhere/{torch}"]}}, "blocked", "nowhere/2.10.0"),
    ],
)
def test_exit_status_is_zero_only_for_a_good_verdict(
    tmp_path: Path, batch: dict[str, Any], verdict: str, reason: str
) -> None:
    wheels = {key: value for key, value in batch.items() if key != "test_requirements"}
    user = make_user(tmp_path, **wheels)
    stubs.write_batch(tmp_path / "batch", **batch)

    done = user.nox("-s verify-2.10.0")

    assert done.returncode == 1
    column = user.column("2.10.0")
    assert column["verdict"] == verdict
    assert reason in column["reason"]
    assert reason in done.stdout
    if verdict == "blocked":
        assert re.fullmatch(r"[a-z-]+", column["blocked"]["code"])
        assert column["blocked"]["remedy"] in done.stdout


def test_a_second_run_needs_nothing_and_says_the_same(tmp_path: Path) -> None:
    user = make_user(tmp_path)
    user.nox("-s verify-2.10.0")
    first, document = user.report(), (user.latest / "report.md").read_text()
    tree = tmp_path / "batch" / "trees"
    links = tmp_path / "links"
    links.rename(tmp_path / "gone")

    done = user.nox("-s verify-2.10.0", UV_FIND_LINKS="")

    assert done.returncode == 0, done.stdout
    assert "reused" in done.stdout
    assert without_times(user.report()) == without_times(first)
    numbers = re.compile(r"\d+\.\d+ s|\| \d+\.\d \|")
    assert numbers.sub("", (user.latest / "report.md").read_text()) == numbers.sub("", document)
    assert tree.is_dir()


def test_list_reads_like_a_table_of_contents_and_gives_ci_its_jobs(tmp_path: Path) -> None:
    user = make_user(tmp_path, pairs=[stubs.pair_row("2.10.0"), stubs.pair_row("2.7.1", "2.7.1.post2")])

    listed = user.nox("-l").stdout
    jobs = json.loads(user.nox("-l --json -t verify").stdout)

    assert "verify-2.7.1 [verify] -> Verify torch 2.7.1 with torch-npu 2.7.1.post2." in listed
    assert listed.index("verify-2.7.1") < listed.index("verify-2.10.0") < listed.index("report ->")
    assert [job["session"] for job in jobs if "verify" in job["tags"]] == ["verify-2.7.1", "verify-2.10.0"]


def test_a_wrong_batch_ends_with_two_before_anything_is_built(tmp_path: Path) -> None:
    user = make_user(tmp_path)
    batch = tmp_path / "batch" / "matrix.toml"
    batch.write_text(batch.read_text().replace("limit", "limti"))

    done = user.nox("-s verify-2.10.0")

    assert done.returncode == 2
    assert "limti: unknown key; did you mean 'limit'?" in done.stdout
    assert not (tmp_path / "nox").exists()


@pytest.mark.parametrize("arguments", ["--reruns x", "--reruns 99", "--upstraem sample", "surplus"])
def test_wrong_arguments_end_with_two_and_what_is_known(tmp_path: Path, arguments: str) -> None:
    user = make_user(tmp_path)

    done = user.nox(f"-s verify-2.10.0 -- {arguments}")

    assert done.returncode == 2
    assert "known are --upstream SOURCE, --reruns N, --rebuild, --fresh" in done.stdout


def test_upstream_given_for_one_run_is_meant_from_where_the_user_is(tmp_path: Path) -> None:
    user = make_user(tmp_path, **one_file(OK))
    other = tmp_path / "elsewhere" / "test" / "a_test.py"
    other.parent.mkdir(parents=True)
    other.write_text(OK + "    def test_c(self): pass\n")

    done = user.nox(f"-s verify-2.10.0 -- --upstream {tmp_path / 'elsewhere'}")

    assert done.returncode == 0, done.stdout
    assert user.column("2.10.0")["runs"][0]["tests"] == 3
    assert "3 cases, matrix.toml expects 2" in (user.latest / "report.md").read_text()


def test_a_flaky_case_is_never_silently_a_pass(tmp_path: Path) -> None:
    marker = tmp_path / "ran-once"
    text = OK.replace(
        "def test_b(self): pass",
        f"def test_b(self):\n        import pathlib\n        p = pathlib.Path({str(marker)!r})\n"
        "        if not p.exists():\n            p.touch()\n            self.fail('the first time')",
    )
    user = make_user(tmp_path, **one_file(text))

    done = user.nox("-s verify-2.10.0 -- --reruns 2")

    assert done.returncode == 0, done.stdout
    column = user.column("2.10.0")
    flaky = next(case for case in column["cases"] if case["name"] == "test_b")
    assert flaky["outcome"] == "flaky"
    assert "the first time" in flaky["message"]
    assert "1 flaky" in column["reason"]
    assert "1 cases passed only when their file ran again" in (user.latest / "report.md").read_text()


@pytest.mark.parametrize("jobs", ["", "-j 2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interruption_ends_at_once_and_keeps_what_was_learnt(
    tmp_path: Path, number: signal.Signals, jobs: str
) -> None:
    hang = OK.replace("def test_b(self): pass", "def test_b(self):\n        import time\n        time.sleep(600)")
    user = make_user(tmp_path, **one_file(hang))
    with session(user, f"-t verify {jobs}", tmp_path, until="run.py") as process:
        time.sleep(0.3)
        process.send_signal(number)
        start = time.monotonic()
        output, _ = process.communicate(timeout=30)

    assert time.monotonic() - start < 10
    assert process.returncode not in (0, 1)
    assert "Traceback" not in output, output
    # Nothing failed, and nothing is said to have.
    assert "FAILED" not in output, output
    assert descendants_of(f"MARKER={tmp_path}") == []
    result = json.loads((user.latest / "2.10.0" / "result.json").read_text())
    assert result["verdict"] == "not-run"
    assert "interrupted by" in result["reason"]
    assert {case["name"]: case["outcome"] for case in result["cases"]} == {"test_a": "passed", "test_b": "not-run"}


def test_a_night_that_is_interrupted_says_so_and_the_next_one_tells(tmp_path: Path) -> None:
    count = tmp_path / "count"
    text = OK.replace(
        "def test_b(self): pass",
        f"def test_b(self):\n        import os, time\n        os.path.exists({str(count)!r}) or time.sleep(600)",
    )
    user = make_user(tmp_path, **one_file(text))
    with session(user, "-s nightly", tmp_path, until="run.py") as process:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "interrupted by SIGINT; the next night archives what was done by then" in output
    assert descendants_of(f"MARKER={tmp_path}") == []
    count.touch()
    assert "was cut short" in user.nox("-s nightly").stdout


def test_two_sessions_of_one_pair_do_not_mix(tmp_path: Path) -> None:
    slow = OK.replace("def test_b(self): pass", "def test_b(self):\n        import time\n        time.sleep(4)")
    user = make_user(tmp_path, **one_file(slow))
    user.nox("-s verify-2.10.0 -- --upstream nowhere")  # builds the venv

    both = [
        subprocess.Popen(
            user.command("-s verify-2.10.0"), cwd=ROOT, env=user.environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in both]

    assert sorted(process.returncode for process in both) == [0, 1]
    assert sum("another run holds" in output for output in outputs) == 1
    assert user.column("2.10.0")["verdict"] == "verified"


def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path) -> None:
    user = make_user(tmp_path, **one_file(OK))
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    user.nox("-s verify-2.10.0", TMPDIR=str(temporary))

    assert os.listdir(temporary) == []


def test_github_actions_gets_annotations_and_a_job_summary(tmp_path: Path) -> None:
    user = make_user(tmp_path, **one_file(OK.replace("def test_b(self): pass", "def test_b(self): self.fail('b')")))
    summary = tmp_path / "summary.md"

    done = user.nox("-s verify-2.10.0", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))

    assert "::error title=2.10.0 failed::test/a_test.py: 1 failed" in done.stdout.splitlines()
    assert "| 2.10.0 | 2.10.0 | **failed** |" in summary.read_text()
    assert "::error" not in user.nox("-s verify-2.10.0").stdout


def test_export_writes_what_a_pull_request_needs(tmp_path: Path) -> None:
    user = make_user(tmp_path)
    assert "Run nox -s verify-2.10.0 first" in user.nox("-s export -- 2.10.0").stdout
    user.nox("-s verify-2.10.0")

    done = user.nox("-s export -- 2.10.0")

    assert done.returncode == 0, done.stdout
    folder = tmp_path / "reports" / "stubs" / "export" / "2.10.0"
    patch = folder / "test_upstream" / f"{stubs.TEST_FILE}.patch"
    assert patch.read_text() == (tmp_path / "batch" / "patches" / "v2.10.0" / f"{stubs.TEST_FILE}.patch").read_text()
    english, chinese = (folder / "description.md").read_text(), (folder / "description.zh.md").read_text()
    assert "Collected as on aarch64: 0 cases." in english
    assert re.search(r"Run on \S+ \(.*mode control-plane\): Ran 2 tests in \d+\.\d{3} s, OK", english)
    assert "Verified: with the patch the file runs in full" in english
    assert "按 aarch64 收集：0 个用例。" in chinese
    subprocess.run(["git", "apply", "--check", str(patch)], cwd=tmp_path / "batch" / "trees" / "v2.10.0", check=True)


@pytest.mark.parametrize(("arguments", "words"), [("", "no pair was named"), ("2.1.0", "there is no pair '2.1.0'")])
def test_export_says_what_it_misses(tmp_path: Path, arguments: str, words: str) -> None:
    user = make_user(tmp_path)

    done = user.nox(f"-s export -- {arguments}")

    assert done.returncode == 1
    assert words in done.stdout


def test_a_patch_that_the_tree_has_already_counts_as_applied(tmp_path: Path) -> None:
    user = make_user(tmp_path)
    (tmp_path / "batch" / "trees" / "v2.10.0" / stubs.TEST_FILE).write_text(stubs.UNGUARDED)

    done = user.nox("-s verify-2.10.0")

    assert done.returncode == 0, done.stdout
    assert "was applied to the tree already" in done.stdout
    assert user.column("2.10.0")["runs"][0]["tests"] == 2


# Its cases hang when they run for the second time, which is while they are watched.
WATCHED = """\
import pathlib, time, unittest, unittest.mock
from torch.testing._internal.common_utils import run_tests
COUNT = pathlib.Path({count!r})
class T(unittest.TestCase):
    def test_a(self):
        COUNT.write_text(COUNT.read_text() + "x" if COUNT.exists() else "x")
        if len(COUNT.read_text()) == {hangs_at}:
            time.sleep(600)
    def test_b(self):
        with unittest.mock.patch("unittest.main"):
            run_tests()
"""


def watched(tmp_path: Path, hangs_at: int) -> tuple[User, Path]:
    count = tmp_path / "count"
    return make_user(tmp_path, **one_file(WATCHED.format(count=str(count), hangs_at=hangs_at)), api=[UNREACHED]), count


def test_the_venv_and_the_evidence_are_kept_until_they_are_to_be_new(tmp_path: Path) -> None:
    user, count = watched(tmp_path, hangs_at=0)

    runs: list[int] = []
    for arguments in ("", "", "-- --fresh", "-- --rebuild"):
        done = user.nox(f"-s verify-2.10.0 {arguments}")
        assert done.returncode == 0
        assert ("reused" in done.stdout) == (arguments in ("", "-- --fresh") and bool(runs))
        runs.append(len(count.read_text()))

    # The verdict's run, and where nothing is kept the watched one.
    assert runs == [2, 3, 5, 7]
    user.nox("-s nightly")
    assert len(count.read_text()) == 9
    assert user.column("2.10.0")["verdict"] == "verified"


def test_a_session_that_ends_while_its_evidence_is_measured_verifies_nothing(tmp_path: Path) -> None:
    user, _ = watched(tmp_path, hangs_at=2)
    with session(user, "-s verify-2.10.0", tmp_path, until="watch.py") as process:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)

    assert process.returncode not in (0, 1)
    result = json.loads((user.latest / "2.10.0" / "result.json").read_text())
    assert [run["state"] for run in result["runs"]] == ["complete"]
    assert result["verdict"] == "hollow"
    assert "its evidence was not measured" in result["reason"]


def test_docs_are_asked_while_tests_run_and_nobody_waits_for_them_who_is_interrupted(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/docs.git"
        docs = {"repository": [url], "path": ["{torch}/{page}.md"], "page": "elastic"}
        asked = tmp_path / "asked"
        waits = f"""\
            import pathlib, time, unittest
            class T(unittest.TestCase):
                def test_a(self):
                    deadline = time.monotonic() + 20
                    while not pathlib.Path({str(asked)!r}).exists():
                        assert time.monotonic() < deadline, "docs were not asked while this runs"
                        time.sleep(0.02)
                def test_b(self): pass
            """
        user = make_user(tmp_path, **one_file(textwrap.dedent(waits)), docs=docs)
        with session(user, "-s verify-2.10.0", tmp_path, until="run.py") as process:
            connection, _ = silent.accept()
            asked.touch()
            assert process.stdout is not None
            while not process.stdout.readline().startswith("described"):
                pass

            process.send_signal(signal.SIGTERM)
            start = time.monotonic()
            process.communicate(timeout=30)
        connection.close()

    assert time.monotonic() - start < 10
    eventually(lambda: descendants_of(f"MARKER={tmp_path}") == [])
    assert json.loads((user.latest / "2.10.0" / "result.json").read_text())["verdict"] == "verified"
