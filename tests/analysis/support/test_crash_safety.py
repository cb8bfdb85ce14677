"""What a command writes is the old file or the whole new one: killed, on a full disk, not allowed, or raced."""

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.analysis.making import hostile
from tests.analysis.making.bundled import OURS, unpacked
from tests.analysis.readers.test_hostile_files import may_not_override

OLD = b"what was there before"
KILLS = 4
# Commands that write a file, with REPORT and OUT for the two files.
WRITERS = {
    "a shared copy": ("analysis.scrub", "REPORT", "-o", "OUT"),
    "an answer": ("analysis.kernels", "REPORT", "--format", "csv", "-o", "OUT"),
    "a page": ("analysis.page", "REPORT", "-o", "OUT"),
    "a timeline": ("analysis.timeline", "REPORT", "-o", "OUT"),
}
every_writer = pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())


def words(writer, report, out):
    files = {"REPORT": str(report), "OUT": str(out)}
    return [sys.executable, "-m", *(files.get(word, word) for word in writer)]


def start(writer, report, out):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(words(writer, report, out), cwd=hostile.REPOSITORY, text=True, **pipes)


def ended(process):
    """Wait for a process; return its exit status and what it said."""
    _, err = process.communicate(timeout=hostile.WALL_SECONDS)
    return process.returncode, err


@pytest.fixture
def report(tmp_path):
    return unpacked(OURS[0], tmp_path)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "result").write_bytes(OLD)
    return tmp_path / "out"


def whole(writer, report, folder):
    """Write the result once without trouble, and return it."""
    assert ended(start(writer, report, folder / "whole")) == (0, "")
    result = (folder / "whole").read_bytes()
    (folder / "whole").unlink()
    return result


def writing(process, folder, known):
    """Wait until a process has begun to write beside its target, or has ended."""
    while process.poll() is None and len(list(folder.iterdir())) == known:
        time.sleep(0.001)


@pytest.mark.slow
@every_writer
def test_killed_at_any_moment_leaves_the_old_file_or_the_new(tmp_path, folder, writer):
    report, chance = hostile.distinct_kernels(tmp_path, 3_000), random.Random(1)
    result = whole(writer, report, folder)
    for _ in range(KILLS):
        process = start(writer, report, folder / "result")
        writing(process, folder, len(list(folder.iterdir())))
        time.sleep(chance.choice((0, 0.001, 0.01, 0.04)))
        process.kill()
        ended(process)
        assert (folder / "result").read_bytes() in (OLD, result)
    assert ended(start(writer, report, folder / "result")) == (0, "")
    assert (folder / "result").read_bytes() == result


@every_writer
def test_interrupted_leaves_nothing_beside_the_old_file(tmp_path, folder, writer):
    process = start(writer, hostile.distinct_kernels(tmp_path, 3_000), folder / "result")
    writing(process, folder, 1)
    process.send_signal(signal.SIGINT)
    status, err = ended(process)
    assert status in (0, 130)
    assert "Traceback" not in err
    assert [path.name for path in folder.iterdir()] == ["result"]


def on_small_disk(script, *arguments):
    """Run a shell script in a mount namespace of its own, or skip where the machine has none."""
    probe = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    if not shutil.which("unshare") or probe.returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    command = ["unshare", "-rm", "sh", "-c", script, "sh", *map(str, arguments)]
    return subprocess.run(command, cwd=hostile.REPOSITORY, capture_output=True, text=True, check=False)


FULL_DISK = """
mount -t tmpfs -o size=128k tmpfs "$1" && printf %s "$2" > "$1/result"
{command}
echo "status $?"; ls -A "$1"; cat "$1/result"
"""


@every_writer
def test_full_disk_leaves_the_old_file(report, folder, writer):
    command = shlex.join(words(writer, report, folder / "result"))
    done = on_small_disk(FULL_DISK.format(command=command), folder, OLD.decode())
    assert done.stdout == f"status 2\nresult\n{OLD.decode()}"
    assert done.stderr.startswith(f"error: {folder / 'result'} cannot be written: ")
    assert done.stderr.count("\n") == 1


@every_writer
def test_folder_that_may_not_be_written_is_said(report, folder, writer):
    folder.chmod(0o555)
    command = [*may_not_override(), *words(writer, report, folder / "result")]
    done = subprocess.run(command, cwd=hostile.REPOSITORY, capture_output=True, text=True, check=False)
    folder.chmod(0o755)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {folder / 'result'} cannot be written: Permission denied.\n"
    assert (folder / "result").read_bytes() == OLD


@pytest.mark.slow
@every_writer
def test_three_at_once_leave_one_whole_file(report, folder, writer):
    result = whole(writer, report, folder)
    processes = [start(writer, report, folder / "result") for _ in range(3)]
    assert [ended(process) for process in processes] == [(0, "")] * 3
    assert [path.name for path in folder.iterdir()] == ["result"]
    assert (folder / "result").read_bytes() == result


@pytest.mark.slow
def test_report_that_is_changed_while_it_is_copied_gives_no_copy(tmp_path, folder):
    report = hostile.distinct_kernels(tmp_path, 100_000)
    process = start(WRITERS["a shared copy"], report, folder / "result")
    writing(process, folder, 1)
    os.utime(report, (1, 1))
    status, err = ended(process)
    assert status in (0, 1)
    assert status == 0 or (err.startswith("error: ") and (folder / "result").read_bytes() == OLD)
    assert [path.name for path in folder.iterdir()] == ["result"]
