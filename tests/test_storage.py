"""Files that are whole or not there at all, whoever is killed while writing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts import storage
from tests.conftest import ROOT

# Stops in the middle of a write: its file is there, and not the one that it is to be.
HALF_WAY = textwrap.dedent(
    """\
    import os, sys
    from pathlib import Path
    from scripts import storage
    def stop(_):
        print("half-way", flush=True)
        sys.stdin.read()
    os.fsync = stop
    storage.write(Path(sys.argv[1]), b"theirs")
    """
)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that has stopped while it writes ``file``; it goes on when its input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", HALF_WAY, tmp_path / "file"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half-way\n"
        yield process
        process.kill()


def test_what_a_killed_writer_left_is_gone_with_the_next_write(writer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert len(os.listdir(tmp_path)) == 1
    writer.kill()
    writer.wait()

    storage.write(tmp_path / "file", b"ours")

    assert os.listdir(tmp_path) == ["file"]


def test_what_a_living_writer_has_begun_is_left_to_it(writer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    storage.write(tmp_path / "file", b"ours")
    assert (tmp_path / "file").read_bytes() == b"ours"

    writer.communicate()

    assert writer.returncode == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"theirs"}


def test_many_writers_of_one_file_do_not_sweep_each_other(tmp_path: Path) -> None:
    contents = [bytes([number]) * 10_000 for number in range(64)]

    with ThreadPoolExecutor(max_workers=8) as executor:
        list(executor.map(lambda data: storage.write(tmp_path / "file", data), contents))

    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() in contents
