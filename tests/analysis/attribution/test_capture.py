"""Kernels of CUDA graphs' replays: phases by launch, modules by capture."""

from nvtx_kernels.analysis.doctor.checks import examine

from tests.analysis.making.building import Launch, Node, Range, Work, build
from tests.analysis.making.bundled import needs_shared, unpacked
from tests.analysis.making.parquet_folders import as_parquet
from tests.analysis.making.plain_sql import value
from tests.analysis.making.traces import attributed, summary

#: A graph captured in a warm-up's forward, and replayed by one launch in a step's.
CAPTURE = [Range("warmup", 0, 100), Range("forward", 1, 99), Range("Net", 2, 98), Range("layer 3", 10, 20)]
REPLAY = [Range("step", 200, 300), Range("forward", 201, 299)]
NODES = (Node(7, 15), Node(8, 110, original=7), Node(9, 50))


def replayed(folder, nodes=NODES):
    work = [Work(1, 270 + n, 280 + n, node=node) for n, node in enumerate((8, 9))]
    ranges = [*CAPTURE, *REPLAY]
    return attributed(build(folder, ranges=ranges, nodes=[*nodes], launches=[Launch(1, 250, 260)], work=work))


def test_path_is_the_launchs_and_then_the_captures_without_its_phases(tmp_path):
    assert replayed(tmp_path) == ["captured: step > forward > Net > layer 3", "captured: step > forward > Net"]


def test_parquet_says_the_same(tmp_path):
    replayed(tmp_path)
    folder = as_parquet(tmp_path / "report.sqlite", tmp_path / "folder", narrow=True)
    assert attributed(folder) == attributed(tmp_path / "report.sqlite")


def test_report_and_doctor_say_how_to_have_the_modules_of_a_replay(tmp_path):
    replayed(tmp_path, nodes=())
    [note] = [note for note in summary(tmp_path / "report.sqlite").notes if "in CUDA graphs" in note]
    assert note.startswith("The modules of 2 of 2 kernels in CUDA graphs are unknown")
    assert "record from before the graphs are captured on" in note
    assert len([one for one in examine(tmp_path / "report.sqlite") if "in CUDA graphs" in one.what]) == 1
    replayed(tmp_path)
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
