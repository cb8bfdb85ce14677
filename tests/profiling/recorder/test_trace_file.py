import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from nvtx_kernels.profiling.recorder.trace_file import (
    PRODUCT,
    TABLES,
    TraceFile,
    TraceFileError,
    creating,
    global_tid,
)

from tests.analysis.making import nodes
from tests.profiling.making.recordings import REPOSITORY, recorded_before, rows, writing

REPORT_OF_NSYS = REPOSITORY.parent / "shared" / "h200" / "train_fp32.sqlite"
# Those that nsys has too, and whose shape is its own; that report recorded no events of CUDA.
OTHERS = {"TARGET_INFO_GPU", "ThreadNames", "NVTX_KERNELS_ALLOCATIONS", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"}
TABLES_OF_NSYS = sorted(set(TABLES) - OTHERS)
CALL = {"start": 1, "end": 2, "eventClass": 0, "nameId": 1, "returnValue": 0}
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"

WRITE_FOREVER = """
import itertools, sys
from nvtx_kernels.profiling.recorder.trace_file import TraceFile
row = {"start": 1, "end": 2, "eventClass": 0, "nameId": 1, "returnValue": 0}
trace = TraceFile(sys.argv[1])
for batch in itertools.count():
    trace.add("CUPTI_ACTIVITY_KIND_RUNTIME", [row] * 1000)
    print(batch, flush=True)
"""


def columns(path: Path, table: str) -> list[tuple]:
    return [(name, kind, notnull) for _, name, kind, notnull, *_ in rows(path, f"PRAGMA table_info({table})")]


@pytest.mark.skipif(not REPORT_OF_NSYS.exists(), reason="the reports in ../shared are not here")
@pytest.mark.parametrize("table", TABLES_OF_NSYS)
def test_tables_have_the_columns_types_and_constraints_of_nsys(tmp_path, table):
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as database:
        database.execute(creating(table))
    assert columns(tmp_path / "r.sqlite", table) == columns(REPORT_OF_NSYS, table)


def test_a_created_table_has_the_columns_it_promises(tmp_path):
    with writing(tmp_path / "r.sqlite") as trace:
        trace.add(RUNTIME, [CALL])
    names = [column.rstrip("*") for column in TABLES[RUNTIME].split()]
    assert [name for name, *_ in columns(tmp_path / "r.sqlite", RUNTIME)] == names


def test_ids_pack_host_process_and_thread_as_nsys_does():
    packed = global_tid(pid=4_194_000, tid=77)
    assert (packed >> 48, packed >> 24 & 0xFFFFFF, packed & 0xFFFFFF) == (1, 4_194_000, 77)


def test_a_text_is_stored_once_and_found_by_its_id(tmp_path):
    with writing(tmp_path / "r.sqlite") as trace:
        numbers = [trace.text_id(text) for text in ("aten::mm", "ä\n💡", "aten::mm")]
    assert numbers == [1, 2, 1]
    assert rows(tmp_path / "r.sqlite", "SELECT id, value FROM StringIds") == [(1, "aten::mm"), (2, "ä\n💡")]


def test_a_table_exists_only_once_it_has_a_row(tmp_path):
    with writing(tmp_path / "r.sqlite") as trace:
        assert trace.add("NVTX_EVENTS", []) == 0
        assert trace.add(RUNTIME, [CALL, CALL]) == 2
    assert rows(tmp_path / "r.sqlite", "SELECT name FROM sqlite_master") == [(RUNTIME,)]


def test_a_row_without_a_required_column_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(TraceFileError, match=r"cannot write .*NOT NULL"), writing(tmp_path / "r.sqlite") as trace:
        trace.add(RUNTIME, [{"start": 1}])


def test_the_report_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "r.sqlite"
    with writing(path) as trace:
        trace.add(RUNTIME, [CALL])
        assert not path.exists()
    assert [file.name for file in tmp_path.iterdir()] == ["r.sqlite"]


def test_an_error_in_the_block_leaves_the_old_report_and_nothing_else(tmp_path):
    path = tmp_path / "r.sqlite"
    old = recorded_before(path)
    with pytest.raises(ZeroDivisionError), writing(path) as trace:
        trace.add(RUNTIME, [{**CALL, "end": 1 // 0}])
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("r.sqlite", old)]


def test_of_two_writers_the_last_to_publish_wins_whole(tmp_path):
    path = tmp_path / "r.sqlite"
    product = {"name": "EXPORT_PRODUCT_NAME", "value": PRODUCT}
    with writing(path) as slow:
        slow.add(RUNTIME, [CALL] * 3)
        with writing(path) as quick:
            quick.add(RUNTIME, [CALL])
            quick.commit([product])
        assert rows(path, f"SELECT count(*) FROM {RUNTIME}") == [(1,)]
    assert rows(path, f"SELECT count(*) FROM {RUNTIME}") == [(3,)]


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
        trace.add(RUNTIME, [CALL])
    assert (tmp_path / "link").is_symlink()
    assert rows(tmp_path / "r.sqlite", f"SELECT count(*) FROM {RUNTIME}") == [(1,)]


def test_a_report_is_readable_by_whom_the_umask_lets(tmp_path):
    with writing(tmp_path / "r.sqlite") as trace:
        trace.add(RUNTIME, [CALL])
    (tmp_path / "plain").touch()
    assert (tmp_path / "r.sqlite").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_kill_while_writing_leaves_the_old_report(tmp_path):
    path = tmp_path / "r.sqlite"
    old = recorded_before(path)
    command = [sys.executable, "-c", WRITE_FOREVER, str(path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert [writer.stdout.readline() for _ in range(5)] == ["0\n", "1\n", "2\n", "3\n", "4\n"]
        writer.send_signal(signal.SIGKILL)
    assert path.read_bytes() == old
