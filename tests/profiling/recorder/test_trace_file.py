import shutil
import signal
import sqlite3

import numpy as np
import pytest
from nvtx_kernels.analysis.errors import NotAReport
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.trace import Launches
from nvtx_kernels.profiling import recorder
from nvtx_kernels.profiling.recorder.trace_file import TraceFile, TraceFileError

from tests.analysis.making import nodes
from tests.profiling.making import forked
from tests.profiling.making.recordings import recorded_before, rows, train, writing

CALL = Launches(np.array([1]), np.array([2]), np.array([0], np.int32)).columns()
COUNT = "SELECT count(*) FROM launches"

WRITE_FOREVER = """
import itertools, sys
import numpy as np
from nvtx_kernels.profiling.recorder.trace_file import TraceFile
calls = {name: np.ones(1000, np.int64) for name in ("start_ns", "end_ns", "thread")}
trace = TraceFile(sys.argv[1])
for batch in itertools.count():
    trace.append("launches", calls)
    print(batch, flush=True)
"""


def test_a_name_is_stored_once_and_found_by_its_position(tmp_path):
    with writing(tmp_path / "r.sqlite") as trace:
        numbers = [trace.name_number(text) for text in ("aten::mm", "ä\n💡", "aten::mm")]
        trace.commit()
        numbers.append(trace.name_number("later"))
    assert numbers == [0, 1, 0, 2]
    names = [(0, "aten::mm"), (1, "ä\n💡"), (2, "later")]
    assert rows(tmp_path / "r.sqlite", "SELECT row, value FROM names") == names


def test_parts_follow_one_another_and_what_is_committed_is_a_report(tmp_path):
    with writing(tmp_path / "r.sqlite") as trace:
        trace.thread_number(7)
        for _ in range(2):
            trace.append("launches", CALL)
            trace.commit()
            assert len(read(trace.unfinished).launches) == trace.count("launches")
    launches = read(tmp_path / "r.sqlite").launches
    assert (launches.start_ns.tolist(), launches.thread.tolist()) == ([1, 1], [0, 0])


def test_a_report_without_a_row_is_an_empty_trace(tmp_path):
    with writing(tmp_path / "r.sqlite"):
        pass
    trace = read(tmp_path / "r.sqlite")
    assert [len(part) for part in (trace.work, trace.launches, trace.ranges, trace.names)] == [0] * 4


def test_the_report_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "r.sqlite"
    with writing(path) as trace:
        trace.append("launches", CALL)
        assert not path.exists()
    assert [file.name for file in tmp_path.iterdir()] == ["r.sqlite"]


def test_an_error_in_the_block_leaves_the_old_report_and_nothing_else(tmp_path):
    path = tmp_path / "r.sqlite"
    old = recorded_before(path)
    with pytest.raises(ZeroDivisionError), writing(path) as trace:
        trace.append("launches", {**CALL, "end_ns": [1 // 0]})
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("r.sqlite", old)]


def test_of_two_writers_the_last_to_publish_wins_whole(tmp_path):
    path = tmp_path / "r.sqlite"
    with writing(path) as slow:
        slow.append("launches", CALL)
        slow.append("launches", CALL)
        with writing(path) as quick:
            quick.append("launches", CALL)
        assert rows(path, COUNT) == [(1,)]
    assert rows(path, COUNT) == [(2,)]


@pytest.mark.parametrize(
    ("path", "reason"),
    [("", "it is a folder"), ("none/r.sqlite", "No such file"), ("a_file/r", "Not a directory")],
)
def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path, path, reason):
    (tmp_path / "a_file").touch()
    with pytest.raises(TraceFileError, match=f"cannot write .*{reason}"):
        TraceFile(tmp_path / path)


@pytest.mark.parametrize("made", ["pipe", "characters", "disk", "bound_socket"])
def test_what_is_no_file_is_refused_at_once_and_stays(tmp_path, made):
    target = getattr(nodes, made)(tmp_path)
    mode = target.lstat().st_mode
    with pytest.raises(TraceFileError, match=f"cannot write {target}: It is"):
        TraceFile(target)
    assert target.lstat().st_mode == mode
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_to_a_report_is_followed(tmp_path):
    (tmp_path / "link").symlink_to("r.sqlite")
    with writing(tmp_path / "link") as trace:
        trace.append("launches", CALL)
    assert (tmp_path / "link").is_symlink()
    assert rows(tmp_path / "r.sqlite", COUNT) == [(1,)]


def test_a_report_is_readable_by_whom_the_umask_lets(tmp_path):
    with writing(tmp_path / "r.sqlite") as trace:
        trace.append("launches", CALL)
    (tmp_path / "plain").touch()
    assert (tmp_path / "r.sqlite").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_kill_while_writing_leaves_the_old_report(tmp_path):
    path = tmp_path / "r.sqlite"
    old = recorded_before(path)
    with forked.start("-c", WRITE_FOREVER, path) as writer:
        assert [writer.stdout.readline() for _ in range(5)] == [b"0\n", b"1\n", b"2\n", b"3\n", b"4\n"]
        writer.send_signal(signal.SIGKILL)
    assert path.read_bytes() == old


KILLED_IN_A_LATER_PART = """
import os, sys
import numpy as np
from nvtx_kernels.profiling.recorder.trace_file import TraceFile
from tests.profiling.making.recordings import head
trace = TraceFile(sys.argv[1])
thread = np.zeros(1_500_000, np.int32)
calls = {"start_ns": np.full(1_500_000, 1 << 50), "end_ns": np.full(1_500_000, 1 << 50), "thread": thread}
trace.thread_number(7)
trace.append("launches", {name: column[:10] for name, column in calls.items()})
trace.append("calls_of_launch", {"value": np.zeros(10, np.uint16)})
trace.call_number("cudaLaunchKernel")
trace.commit(head(on_gpu=True))
trace.thread_number(8)
trace.append("launches", calls | {"thread": calls["thread"] + 1})
os.kill(os.getpid(), 9)
"""


def test_a_kill_in_a_later_part_leaves_the_parts_before(tmp_path):
    done = forked.run("-c", KILLED_IN_A_LATER_PART, tmp_path / "r.sqlite")
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.stat().st_size > 1 << 20  # some of the later part's pages are written
    trace = read(left)
    assert len(trace.launches) == len(trace.calls.of_launch) == 10


def test_a_part_whose_writing_failed_leaves_its_calls_without_names(tmp_path):
    with writing(tmp_path / "r.sqlite", on_gpu=True) as trace:
        trace.thread_number(7)
        trace.append("calls_of_launch", {"value": np.zeros(1, np.uint16)})
        trace.call_number("cudaLaunchKernel")
        for _ in range(2):
            trace.append("launches", CALL)
    assert {*read(tmp_path / "r.sqlite").calls.names} == {""}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE marks SET thread = 'one'", "not a whole report"),
        ("UPDATE marks SET thread = 99", ""),
        ("UPDATE marks SET text = 7", ""),
        ("UPDATE pauses SET thread = 99", "pauses.thread leads outside of threads"),
        ("UPDATE work SET launch = -1", ""),
        ("DELETE FROM work", ""),
        ("UPDATE trace SET value = '{\"ranges_dropped\": -1}' WHERE what = 'recording'", "not a whole report"),
        ("UPDATE trace SET value = '{\"work\": -1}' WHERE what = 'rows'", "is not whole"),
        ("UPDATE trace SET value = '{\"launches\": 0}' WHERE what = 'rows'", "work.launch leads outside"),
        ("DELETE FROM trace WHERE what IN ('recording', 'rows')", ""),
    ],
)
def test_a_recording_that_was_changed_is_read_or_refused(recorded, tmp_path, change, says):
    path = tmp_path / "r.sqlite"
    shutil.copyfile(recorded, path)
    with sqlite3.connect(path) as database:
        database.execute(change)
    if not says:
        assert read(path).names
        return
    with pytest.raises(NotAReport, match=says):
        read(path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a recording of two steps, written in a pause after each."""
    path = tmp_path_factory.mktemp("recorded") / "r.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(recorder.LIMIT_VARIABLE, str(-(1 << 40)))
        with recorder.record(path, device="cpu", steps=None):
            train(steps=2)
    return path
