import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.profiling.study import results

from tests.profiling.making.measured_rows import H200, failed, file_of, no_memory, row

ROWS = [row(size="small"), row(size="medium"), no_memory(size="large")]
WHOLE = "".join(f"{json.dumps(each)}\n" for each in ROWS).encode()
ENDS = [index + 1 for index, byte in enumerate(WHOLE) if byte == ord("\n")]


@given(st.integers(0, len(WHOLE)))
def test_no_whole_row_is_lost_wherever_a_write_was_torn(cut):
    with TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        path.write_bytes(WHOLE[:cut])
        with results.appending(path) as append:
            append(ROWS[0])
        rows, torn = results.read(path)
    # A line whose row is whole and whose line end alone is missing counts too.
    kept = sum(end - 1 <= cut for end in ENDS)
    assert rows == [*ROWS[:kept], ROWS[0]]
    assert torn == int(cut not in (0, *ENDS, *(end - 1 for end in ENDS)))


def test_second_sweep_into_the_same_file_is_refused(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    refused = pytest.raises(results.ResultsError, match="another sweep is writing")
    with results.appending(path), refused, results.appending(path):
        pass
    with results.appending(path) as append:
        append(ROWS[1])
    assert results.read(path) == ([ROWS[1]], 0)


def test_full_disk_is_told_in_a_sentence():
    with (
        results.appending(Path("/dev/full")) as append,
        pytest.raises(results.ResultsError, match="No space left"),
    ):
        append(ROWS[0])


def test_folder_is_refused_as_a_file_of_results(tmp_path):
    with pytest.raises(results.ResultsError, match="written: Is a directory"), results.appending(tmp_path):
        pass
    with pytest.raises(results.ResultsError, match="cannot be read: Is a directory"):
        results.read(tmp_path)


def test_foreign_lines_are_counted_and_left_alone(tmp_path):
    path = file_of(tmp_path, ROWS[0], {"version": 99}, ["no", "row"], {**ROWS[1], "kind": "attention"})
    assert results.read(path) == ([ROWS[0]], 3)
    assert results.read(tmp_path / "absent.jsonl") == ([], 0)


WATCHED_H200 = {**H200, "watched_by": "nsys"}


def test_rows_that_nsys_watched_uninvited_stand_for_no_others():
    asked, watched = row(capture="nsys-light"), row(state=WATCHED_H200)
    assert results.latest([row(), watched]) == [row(), watched]
    assert results.identity(asked["cell"], H200) == results.identity(asked["cell"], WATCHED_H200)
    assert [results.capture_of(each) for each in (row(), watched, asked)] == ["none", "nsys", "nsys-light"]
    assert results.capture_of(row(state=WATCHED_H200, capture="bare")) == "nsys, bare"


MEASURED_BEFORE = Path(__file__).parents[3] / "reports" / "h200" / "measurements"


@pytest.mark.parametrize(("name", "kind"), [("measurements", results.MODEL), ("attention", results.ATTENTION)])
def test_rows_from_before_watchers_were_told_keep_their_identity(name, kind):
    rows, torn = results.read(MEASURED_BEFORE / f"{name}.jsonl", kind)
    machines = [{key: row["state"].get(key) for key in results.MACHINE} for row in rows]
    before = [json.dumps([row["cell"], seen], sort_keys=True) for row, seen in zip(rows, machines, strict=True)]
    assert (len(rows) > 50, torn) == (True, 0)
    assert [results.identity(row["cell"], row["state"]) for row in rows] == before


first, again, other_gpu = row(), row(measured=(1, 2)), row(state={"device_name": "NVIDIA L4"})
LATEST = {
    "a later row replaces an earlier one": ([first, again], [again]),
    "rows of other machines stand beside": ([first, other_gpu], [first, other_gpu]),
    "a failure counts while nothing else is there": ([failed()], [failed()]),
    "a failure is forgotten once the cell has a row": ([failed(), first], [first]),
    "an old row outlives a later failure": ([first, failed()], [first]),
    "out of memory is a result": ([failed(), no_memory()], [no_memory()]),
}


@pytest.mark.parametrize(("rows", "expected"), LATEST.values(), ids=LATEST)
def test_latest_row_of_each_cell_counts(rows, expected):
    assert results.latest(rows) == expected
