"""Files that readers find beside a report are of its folder, links followed, and of the folder that is served."""

import json
import os

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.agent.answers import Reports
from nvtx_kernels.analysis.errors import NotAReport
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.safety import content_of, opened_file, served_from

from tests.analysis.making import checks
from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.kineto import write_kineto
from tests.analysis.making.parquet_folders import as_parquet
from tests.analysis.readers.test_graph_annotations import GRAPH, NODES, replays

SIDE_FILE = "kernel_annotations_rank0_3.json"
SECRET = "TOPSECRET"


@pytest.fixture
def served(tmp_path):
    """Return a folder with a folder of one trace, whose side file would be in the first."""
    (tmp_path / "served" / "traces").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    write_kineto(tmp_path / "served" / "traces" / "t.pt.trace.json", replays(annotated=False))
    return tmp_path / "served"


def annotated(path):
    side = {str(GRAPH + node): [{"module_fqn": SECRET}] for node in range(1, len(NODES) + 1)}
    path.write_text(json.dumps(side))
    return path


def linked_outside(file):
    file.symlink_to(annotated(file.parents[1] / "outside" / "private.json"))


def through_a_folder(file):
    (file.parent / "there").symlink_to(file.parents[1] / "outside")
    annotated(file.parents[1] / "outside" / "private.json")
    file.symlink_to("there/private.json")


NOT_TO_BE_READ = {
    "a link outside": linked_outside,
    "a link through a folder": through_a_folder,
    "a dangling link": lambda file: file.symlink_to("nowhere.json"),
    "a link to itself": lambda file: file.symlink_to(file.name),
    "a link to a process's memory": lambda file: file.symlink_to("/proc/self/mem"),
    "a link to a file of root's": lambda file: file.symlink_to("/etc/shadow"),
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
}


@pytest.mark.parametrize("kind", NOT_TO_BE_READ)
def test_a_side_file_elsewhere_is_left_out_with_a_note(served, kind):
    NOT_TO_BE_READ[kind](served / SIDE_FILE)
    path = served / "traces" / "t.pt.trace.json"
    (note,) = (note for note in read(path).notes if note.startswith("Left out: "))
    assert SIDE_FILE in note
    assert "outside" not in note
    status, out, err = checks.said(kernels, path)
    assert (status, err, SECRET in out) == (0, "", False)


@pytest.mark.parametrize("kind", NOT_TO_BE_READ)
def test_an_agent_gets_nothing_of_a_side_file_elsewhere(served, kind):
    NOT_TO_BE_READ[kind](served / SIDE_FILE)
    answer = json.dumps(Reports(served).ranges("traces/t.pt.trace.json"))
    assert SECRET not in answer
    assert "tables" in json.loads(answer)


def test_an_agent_is_told_nothing_of_what_is_above_its_folder(served):
    annotated(served / SIDE_FILE)
    inner = Reports(served / "traces")
    alone = inner.ranges("t.pt.trace.json")
    assert SECRET not in json.dumps(alone)
    (served / SIDE_FILE).unlink()
    assert inner.ranges("t.pt.trace.json") == alone
    annotated(served / SIDE_FILE)
    assert SECRET in json.dumps(Reports(served).ranges("traces/t.pt.trace.json"))


def test_the_newest_side_file_that_can_be_read_is_read(served):
    (served / "kernel_annotations_rank0_9.json").symlink_to("nowhere.json")
    os.utime(annotated(served / "kernel_annotations_rank0_1.json"), (0, 0))
    old = {str(GRAPH + 1): [{"module_fqn": "newest"}]}
    (served / SIDE_FILE).write_text(json.dumps(old))
    trace = read(served / "traces" / "t.pt.trace.json")
    assert "newest" in trace.names
    assert SECRET not in trace.names


def test_a_served_folder_bounds_every_file_that_is_opened(served, tmp_path):
    private = annotated(tmp_path / "outside" / "private.json")
    assert SECRET.encode() in content_of(private, 1 << 20)
    with served_from(served), pytest.raises(NotAReport, match="leads elsewhere"):
        opened_file(private)
    with served_from(served), pytest.raises(NotAReport, match="leads elsewhere"):
        opened_file(served / "traces" / ".." / ".." / "outside" / "private.json")
    with served_from(served), pytest.raises(NotAReport, match="leads elsewhere"):
        opened_file(type(served)("/dev/stdin"))


@pytest.mark.parametrize("ending", ["-journal", "-wal", "-shm"])
def test_a_pipe_in_place_of_sqlites_own_file_is_not_waited_for(tmp_path, ending):
    path = build(tmp_path, ranges=[Range("forward", 0, 90)], **launched((10, 20)))
    os.mkfifo(f"{path}{ending}")
    with pytest.raises(NotAReport, match=f"report.sqlite{ending} next to the report is not a regular file"):
        read(path)


def test_a_table_of_a_parquet_folder_is_in_that_folder(tmp_path):
    path = build(tmp_path, ranges=[Range("forward", 0, 90)], **launched((10, 20)))
    tables = as_parquet(path, tmp_path / "tables")
    (tables / "NVTX_EVENTS.parquet").rename(tmp_path / "moved.parquet")
    (tables / "NVTX_EVENTS.parquet").symlink_to(tmp_path / "moved.parquet")
    with pytest.raises(NotAReport, match=r"NVTX_EVENTS\.parquet is not in .*tables"):
        read(tables)
