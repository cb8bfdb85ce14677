"""Kernels of CUDA graphs' replays: phases by launch, modules by capture."""

import pytest
from nvtx_kernels.analysis.doctor.checks import examine

from tests.analysis.making.building import AUTOGRAD, Launch, Node, Range, Work, build
from tests.analysis.making.bundled import needs_shared, unpacked
from tests.analysis.making.parquet_folders import as_parquet
from tests.analysis.making.plain_sql import value
from tests.analysis.making.traces import attributed, summary

#: A graph captured in a warm-up's forward, and replayed by one launch in a step's.
CAPTURE = [Range("warmup", 0, 100), Range("forward", 1, 99), Range("Net", 2, 98), Range("layer 3", 10, 20)]
REPLAY = [Range("step", 200, 300), Range("forward", 201, 299)]
LAUNCH = Launch(1, 250, 260)
NODES = [Node(7, 15), Node(8, 110, original=7), Node(9, 50)]


def replayed(folder, *ranges, nodes=NODES, made=(8, 9), launch=LAUNCH):
    work = [Work(1, 270 + n, 280 + n, node=node) for n, node in enumerate(made)]
    return attributed(build(folder, ranges=[*CAPTURE, *ranges], nodes=nodes, launches=[launch], work=work))


def test_path_is_the_launchs_and_then_the_captures_without_its_phases(tmp_path):
    assert replayed(tmp_path, *REPLAY) == [
        "captured: step > forward > Net > layer 3",
        "captured: step > forward > Net",
    ]


def test_what_the_capture_shares_with_the_launch_counts_once(tmp_path):
    assert replayed(tmp_path, *REPLAY, Range("Net", 202, 298)) == [
        "captured: step > forward > Net > layer 3",
        "own: step > forward > Net",
    ]


@pytest.mark.parametrize(
    ("nodes", "made"),
    [([], (8,)), (NODES, (10,)), (NODES, (None,)), ([Node(8, 15, original=7)], (8,)), ([Node(8, 120)], (8,))],
    ids=["no table", "an unknown node", "no node", "a clone of an unknown one", "created in no range"],
)
def test_a_kernel_whose_capture_tells_nothing_stays_where_its_launch_is(tmp_path, nodes, made):
    assert replayed(tmp_path, *REPLAY, nodes=nodes, made=made) == ["own: step > forward"]


def test_a_clone_of_a_clone_was_created_where_the_first_was(tmp_path):
    nodes = [*NODES, Node(11, 120, original=8), Node(12, 130, original=13), Node(13, 140, original=12)]
    assert replayed(tmp_path, *REPLAY, nodes=nodes, made=(11,)) == ["captured: step > forward > Net > layer 3"]
    assert replayed(tmp_path, *REPLAY, nodes=nodes, made=(12,)) == ["own: step > forward"]


def test_a_backward_captured_on_autograds_thread_is_led_there(tmp_path):
    backward = Range("softmax", 30, 40, AUTOGRAD)
    found = replayed(tmp_path, *REPLAY, backward, nodes=[Node(8, 35, AUTOGRAD)], made=(8,))
    assert found == ["captured: step > forward > softmax"]


def test_a_launch_in_no_range_has_the_captures(tmp_path):
    assert replayed(tmp_path, made=(8,)) == ["captured: Net > layer 3"]


def test_parquet_says_the_same(tmp_path):
    replayed(tmp_path, *REPLAY)
    folder = as_parquet(tmp_path / "report.sqlite", tmp_path / "folder", narrow=True)
    assert attributed(folder) == attributed(tmp_path / "report.sqlite")


def test_report_and_doctor_say_how_to_have_the_modules_of_a_replay(tmp_path):
    replayed(tmp_path, *REPLAY, nodes=[])
    [note] = [note for note in summary(tmp_path / "report.sqlite").notes if "in CUDA graphs" in note]
    assert note.startswith("The modules of 2 of 2 kernels in CUDA graphs are unknown")
    assert "record the capture too" in note
    assert len([one for one in examine(tmp_path / "report.sqlite") if "in CUDA graphs" in one.what]) == 1
    replayed(tmp_path, *REPLAY)
    assert not any("in CUDA graphs" in one.what for one in examine(tmp_path / "report.sqlite"))


def kernels_by_module(path):
    rows = [row for row in summary(path).ranges if row.path[0] == "step 3" and row.path[2:]]
    return {row.path[1:]: row.self_kernels for row in rows}


@needs_shared
def test_replays_of_a_compiled_model_launch_in_each_module_what_it_launches_without_graphs(tmp_path):
    found = kernels_by_module(unpacked("h200/compiled_default.sqlite.xz", tmp_path))
    assert (len(found), sum(found.values())) == (180, 347)
    assert kernels_by_module(unpacked("h200/compiled_reduce_overhead.sqlite.xz", tmp_path)) == found


@needs_shared
def test_all_work_of_replays_in_steps_is_led_to_its_capture(tmp_path):
    path = unpacked("h200/compiled_reduce_overhead.sqlite.xz", tmp_path)
    after = "start > (SELECT max(end) FROM NVTX_EVENTS WHERE text = 'warmup') AND graphNodeId > 0"
    tables = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMSET")
    expected = sum(value(path, f"SELECT sum(end - start) FROM {table} WHERE {after}") for table in tables)
    assert summary(path).totals.captured_ns == expected
