"""Traces as kineto writes them on a GPU: the same answer as nsys's export of the same program."""

import json
from dataclasses import replace

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import NoGpuWork, NotAReport
from nvtx_kernels.analysis.readers.requirements import require_work
from nvtx_kernels.analysis.summary.totals import summarize

from nvtx_kernels import analysis
from tests.analysis.making.kineto import (
    ENGINE,
    GPU,
    STEP,
    Block,
    Call,
    Program,
    Work,
    event,
    events_of,
    operator,
    trace_text,
    write_kineto,
    write_nsys,
    write_old_kineto,
)
from tests.analysis.making.traces import summary


def report_of(path):
    """Return the answer for a report, without where it comes from."""
    report = summary(path)
    return replace(report, provenance=None)


def paths_of(trace):
    """Return the path of each kernel name."""
    return {row.kernel: row.path for row in summarize(attribute(trace)).kernels}


#: What a note on replayed graphs adds where the recording is PyTorch's, and where it is nsys's.
OF_PYTORCH = ", or let PyTorch 2.15 annotate its graphs (torch.cuda.graph_annotations)"
OF_NSYS = ", with `nsys profile --cuda-graph-trace=node`"


def test_trace_gives_the_report_of_nsys_for_the_same_program(tmp_path):
    report = report_of(write_kineto(tmp_path / "a.pt.trace.json", STEP))
    of_nsys = report_of(write_nsys(tmp_path / "a.sqlite", STEP))
    assert replace(report, notes=()) == replace(of_nsys, notes=())
    common = [note.replace(OF_NSYS, "") for note in of_nsys.notes]
    assert [note.replace(OF_PYTORCH, "") for note in report.notes] == common
    assert report.totals.linked_ns == 130_011
    assert report.totals.adopted_ns == 1_001
    backward = ("ProfilerStep#3", "backward")
    assert {row.path for row in report.kernels if row.phase == "backward"} == {
        backward, (*backward, "layer 0"), (*backward, "layer 1"),
    }  # fmt: skip


def test_old_trace_gives_the_report_of_nsys_but_for_its_microseconds(tmp_path):
    whole = STEP.scaled(1000)
    report = report_of(write_old_kineto(tmp_path / "old.json", whole))
    of_nsys = report_of(write_nsys(tmp_path / "a.sqlite", whole))
    common = {note.replace(OF_NSYS, "") for note in of_nsys.notes}
    assert {note.replace(OF_PYTORCH, "") for note in report.notes} - common == {
        "All times are whole microseconds, as older PyTorch wrote them: each kernel's is up to 1 µs too short."
    }
    assert replace(report, notes=()) == replace(of_nsys, notes=())


OLD_NODES = [
    replace(block, name=block.name.replace("Backward0", "Backward"), seq=None)
    for block in STEP.blocks
    if not block.name.startswith(ENGINE) and block.name != "backward"
]


def test_backward_of_pytorch_1_8_is_found_by_its_nodes_without_a_number(tmp_path):
    unnamed = replace(STEP, blocks=OLD_NODES).scaled(1000)
    path = write_old_kineto(tmp_path / "old.json", unnamed)
    path.write_text(path.read_text().replace("pt_autograd_0", "python3"))
    report = report_of(path)
    assert {row.phase: row.kernel_ns for row in report.phases}["backward"] == 131_012_000
    assert not any("MmBackward" in name for row in report.ranges for name in row.path if row.phase != "backward")


def test_trace_says_where_it_comes_from(tmp_path):
    rank = {"backend": "nccl", "rank": 3, "world_size": 8, "pg_count": 1, "nccl_version": "2.27.3"}
    idle = {**GPU, "id": 1, "name": "NVIDIA T1000"}  # nothing ran on it
    path = write_kineto(tmp_path / "a.json", STEP, gpus=[GPU, idle], distributedInfo=rank)
    trace = analysis.read(path)
    assert trace.provenance.gpus == ("NVIDIA H200",)
    assert (trace.provenance.tool, trace.provenance.schema) == ("PyTorch profiler", "1")
    assert trace.provenance.run == {"backend": "nccl", "rank": 3, "world_size": 8}
    assert [thread.name for thread in trace.threads] == ["python3", "pt_autograd_0"]
    assert trace.provenance.unit_of_work == "GPU"


@pytest.mark.parametrize("text", ["1666149715033200.123", '"1666149715033200.123"', "1.666149715033200123e15"])
def test_times_are_exact_to_the_nanosecond(tmp_path, text):
    kernel = event("kernel", "k", 0, 7, 0, 5, correlation=1).replace('"ts": 0.000', f'"ts": {text}')
    path = tmp_path / "a.json"
    path.write_text(trace_text([kernel]))
    work = analysis.read(path).work
    assert (work.start_ns[0], work.end_ns[0]) == (1_666_149_715_033_200_123, 1_666_149_715_033_200_128)


IGNORED = ("gpu_user_annotation", "python_function", "cuda_sync", "Trace", "ac2g")


def test_other_categories_are_left_out(tmp_path):
    noise = [event(category, "noise", 0, 7, 0, 2_000_000, correlation=11) for category in IGNORED]
    path = tmp_path / "noisy.json"
    path.write_text(trace_text([*noise, *events_of(STEP)]))
    assert report_of(path) == report_of(write_kineto(tmp_path / "a.json", STEP))


@pytest.mark.parametrize(("start", "end"), [(-400, 900), (200, 1_200), (-400, 1_200)])
def test_call_that_sticks_out_of_its_operator_is_its_operators(tmp_path, start, end):
    program = Program(
        blocks=[Block("part", 9_000, 21_500), operator("aten::mm", 10_000, 21_000, external=5)],
        calls=[Call(1, 10_500 + start, 20_500 + end, external=5)],
        work=[Work(1, 30_000, 31_000, "k")],
    )
    trace = analysis.read(write_kineto(tmp_path / "a.json", program))
    assert trace.launches.start_ns[0] >= 10_000
    assert trace.launches.end_ns[0] <= 21_000
    assert paths_of(trace)["k"] == ("part",)


def test_ids_of_two_processes_do_not_mix(tmp_path):
    one, other = (
        Program(
            blocks=[Block(f"rank {rank}", 0, 9_000, thread)],
            calls=[Call(n, 1_000 * n, 1_000 * n + 500, thread) for n in (1, 2, 3 + rank)],
            work=[Work(n, 20_000, 20_100, f"kernel {rank}", device=rank) for n in (1, 2, 3 + rank)],
            process=thread,
        )
        for rank, thread in enumerate((100, 200))
    )
    trace = analysis.read(write_kineto(tmp_path / "merged.json", one, other))
    assert paths_of(trace) == {"kernel 0": ("rank 0",), "kernel 1": ("rank 1",)}
    assert (trace.work.launch >= 0).all()
    assert trace.notes == ()


def test_work_that_could_be_of_either_process_is_nobodys(tmp_path):
    programs = [
        Program([Block("x", 0, 9_000, pid)], [Call(1, 10, 20, pid)], [Work(1, 30, 40)], process=pid)
        for pid in (100, 200)
    ]
    report = report_of(write_kineto(tmp_path / "merged.json", *programs))
    assert report.totals.outside_ns == report.totals.work_ns == 20
    assert report.notes[0] == "2 pieces of GPU work could be any of 2 processes'."


def test_trace_without_cpu_events_has_its_kernels_outside_all_ranges(tmp_path):
    trace = analysis.read(write_kineto(tmp_path / "a.json", Program(work=STEP.work)))
    totals = summarize(attribute(trace)).totals
    assert totals.outside_ns == totals.work_ns > 0
    assert (trace.work.launch == -1).all()


def test_trace_of_an_idle_gpu_counts_operators_and_says_so(tmp_path):
    path = write_kineto(tmp_path / "a.json", Program(blocks=STEP.blocks))
    trace = analysis.read(path)
    assert len(trace.work) == 7
    assert trace.provenance.unit_of_work == "CPU"
    assert trace.notes[0].startswith("The trace contains no GPU work and no launch of any, though the machine has")


def test_what_json_lacks_is_forgiven(tmp_path):
    text = trace_text(events_of(STEP)).replace(
        '"queued": 0,', '"queued": 0, "blocks per SM": inf, "warps per SM": -nan,'
    )
    path = tmp_path / "a.json"
    path.write_bytes(text.encode().replace(b"layer 0", b"layer\t\xe90"))
    assert "layer \ufffd0" in analysis.read(path).names


@pytest.mark.parametrize(
    "grid", [b"null", b"[4, 2]", b"[4.5, 2, 1]", b'"wide"', b'["\xe9", 2, 1]', b"[nan, 2, 1]"]
)
def test_a_grid_that_is_none_is_unknown(tmp_path, grid):
    path = tmp_path / "a.json"
    path.write_bytes(trace_text(events_of(STEP)).encode().replace(b"[4, 2, 1]", grid))
    assert set(analysis.read(path).work.grid.tolist()) == {0}


KERNEL = {"ph": "X", "cat": "kernel", "dur": 1}
FOREIGN = {
    "no events": ({"a": 1}, "it has no traceEvents. Of nsys's exports, the SQLite one is read"),
    "a list": ([{"ph": "X", "name": "x"}], "none of its events is"),
    "another tool's": ({"traceEvents": [{"ph": "X", "cat": "gpu", "ts": 1, "dur": 1}]}, "none of its events is"),
    "no event": ({"traceEvents": []}, "none of its events is"),
    "other types": ({"traceEvents": [{"ph": "X", "name": ["x"]}]}, "Expected `str`, got `array`"),
    "no time": ({"traceEvents": [{**KERNEL, "ts": "soon"}]}, "'soon' instead of a time"),
    "no clock": ({"traceEvents": [{**KERNEL, "ts": 10**17}]}, "a time beyond any clock"),
    "no end": ({"traceEvents": [{**KERNEL, "ts": float("inf")}]}, "'null' instead of a time"),
}


@pytest.mark.parametrize(("content", "sentence"), FOREIGN.values(), ids=FOREIGN.keys())
def test_other_json_is_refused_in_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(NotAReport) as refusal:
        analysis.read(path)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("cuda", "ProfilerActivity.CUDA"),
        ("mtia", "an MTIA device, whose events are not read"),
        ("xpu", "ProfilerActivity.XPU"),
    ],
)
def test_trace_of_an_untraced_device_says_what_it_has_and_names_the_activity(tmp_path, device, says):
    path = write_kineto(tmp_path / "a.pt.trace.json", replace(STEP, work=[]))
    path.write_text(path.read_text().replace("cuda_runtime", f"{device}_runtime"))
    with pytest.raises(
        NoGpuWork, match="saw 13 operators and blocks and 9 calls of the device, but no"
    ) as refusal:
        require_work(analysis.read(path))
    assert says in str(refusal.value)
    assert ("CUDA" in str(refusal.value)) == (device == "cuda")


def test_a_method_of_torchscript_opens_no_phase(tmp_path):
    blocks = [Block("## sdd_preprocess ##", 0, 900), Block("forward", 100, 800, category="cpu_op")]
    path = write_kineto(tmp_path / "a.json", Program(blocks, [Call(1, 200, 210)], [Work(1, 300, 400, "sgemm")]))
    (row,) = report_of(path).kernels
    assert (row.phase, row.path) == ("other", ("## sdd_preprocess ##",))
