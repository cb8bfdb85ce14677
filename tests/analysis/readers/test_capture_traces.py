"""Replays of CUDA graphs joined to a trace of their capture, as vLLM and SGLang write one."""

import json

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import NotAReport, UsageError
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.capture_traces import with_captures
from nvtx_kernels.analysis.summary.totals import summarize

from tests.analysis.making.kineto import MAIN, PROCESS, Block, Call, Program, Work, event, trace_text, write_kineto

#: The kernels of a graph, and the modules that launched them.
GRAPH = [("norm", "Norm_0"), ("gemm", "Mlp_0"), ("gemm", "Head_0"), ("add", "Head_0")]


def capture(folder, *graphs, executed=(), name="capture.json", end="cudaStreamEndCapture"):
    """Write the trace of a capture: each kernel launched inside a module inside Model_0."""
    folder.mkdir(exist_ok=True)
    events, at = [], 0
    for graph in graphs:
        begin, modules, calls = at, [], []
        for correlation, (kernel, module) in enumerate(graph, 100 + at):
            modules.append(event("python_function", f"nn.Module: {module}", PROCESS, MAIN, at + 1, at + 9))
            said = {"kernel": kernel, "correlation": correlation}
            calls.append(event("cuda_runtime", "cudaLaunchKernel", PROCESS, MAIN, at + 3, at + 5, **said))
            at += 10
        events += [event("python_function", "nn.Module: Model_0", PROCESS, MAIN, begin, at), *modules, *calls]
        events.append(event("cuda_runtime", end, PROCESS, MAIN, at + 1, at + 2))
        at += 10
    for number, kernel in enumerate(executed, 5000):
        said = {"kernel": kernel, "correlation": number}
        events.append(event("cuda_runtime", "cudaLaunchKernel", PROCESS, MAIN, 3, 4, **said))
        events.append(event("kernel", kernel, 0, 7, at, at + 5, correlation=number))
    (folder / name).write_text(trace_text(events))
    return folder


def replay(path, *graphs):
    """Write the trace of replays, each in a range of its own and then a kernel of no graph."""
    work, calls, blocks = [], [], []
    for number, names in enumerate(graphs):
        begin = 1000 * number
        blocks.append(Block(f"replay {number}", begin, begin + 100))
        calls.append(Call(number + 1, begin + 5, begin + 9, name="cudaGraphLaunch"))
        work += [
            Work(number + 1, begin + 100 + 50 * n, begin + 140 + 50 * n, name) for n, name in enumerate(names)
        ]
    calls.append(Call(900, 20, 22))
    return write_kineto(path, Program(blocks, calls, [*work, Work(900, 30, 35, "eager")]))


def paths_of(trace):
    report = summarize(attribute(trace))
    totals = report.totals
    assert (
        totals.own_ns + totals.captured_ns + totals.outside_ns
        == totals.work_ns
        == int(trace.work.duration_ns.sum())
    )
    return {(row.kernel, row.path) for row in report.kernels}


NAMES = [kernel for kernel, _ in GRAPH]
PLACED = {(kernel, ("replay 0", "Model_0", module)) for kernel, module in GRAPH} | {("eager", ("replay 0",))}


@pytest.mark.parametrize("end", ["cudaStreamEndCapture", "hipGraphInstantiateWithFlags"])
@pytest.mark.parametrize("order", [NAMES, ["add", "gemm", "norm", "gemm"]])
def test_replays_kernels_are_in_the_modules_of_the_capture(tmp_path, order, end):
    folder = capture(tmp_path / "capture_traces", GRAPH, executed=["norm", "warm up"], end=end)
    trace = with_captures(read(replay(tmp_path / "replay.json", order)), folder)
    assert paths_of(trace) == PLACED
    assert not trace.notes


def test_pieces_that_are_alike_are_replayed_in_their_order(tmp_path):
    pieces = [[("norm", "Norm_0"), ("gemm", f"Mlp_{layer}")] for layer in range(3)]
    folder = capture(tmp_path / "capture_traces", *pieces)
    trace = with_captures(read(replay(tmp_path / "replay.json", *[["norm", "gemm"]] * 3)), folder)
    found = {(path[0], path[-1]) for kernel, path in paths_of(trace) if kernel == "gemm"}
    assert found == {(f"replay {layer}", f"Mlp_{layer}") for layer in range(3)}


UNDECIDED = {
    "another kernel": ([[*NAMES, "more"]], [GRAPH], "of 1 of 1 replays of CUDA graphs are undecided: no"),
    "fewer kernels": ([NAMES[1:]], [GRAPH], "of 1 of 1 replays of CUDA graphs are undecided: no"),
    "alike in other modules": (
        [NAMES] * 3, [GRAPH, [(kernel, "Other_0") for kernel in NAMES]],
        "3 of 3 replays of CUDA graphs are undecided: several captured graphs have the same kernels",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNDECIDED)
def test_what_cannot_be_joined_stays_and_is_said(tmp_path, case):
    replays, graphs, note = UNDECIDED[case]
    path = replay(tmp_path / "replay.json", *replays)
    trace = with_captures(read(path), capture(tmp_path / "capture_traces", *graphs))
    assert note in trace.notes[-1]
    assert paths_of(trace) == paths_of(read(path))


def test_the_option_takes_a_folder_or_a_file(tmp_path, capsys):
    folder = capture(tmp_path / "capture_traces", GRAPH)
    path = replay(tmp_path / "replay.json", NAMES)
    for given in (folder, folder / "capture.json"):
        assert kernels.main([str(path), "--capture", str(given), "--format", "json"]) == 0
        ranges = [row["path"] for row in json.loads(capsys.readouterr().out)["ranges"]]
        assert ["replay 0", "Model_0", "Head_0"] in ranges


def test_a_folder_without_traces_and_a_file_that_is_none_are_refused(tmp_path):
    trace = read(replay(tmp_path / "replay.json", NAMES))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"has no traces of a capture .* VLLM_USE_V2_MODEL_RUNNER=0"):
        with_captures(trace, tmp_path / "empty")
    (tmp_path / "empty" / "a.json").write_text('{"traceEvents": [{"ph": "X", "cat": "python_function"')
    with pytest.raises(NotAReport, match="is truncated"):
        with_captures(trace, tmp_path / "empty")
    process_of_list = {"ph": "X", "cat": "python_function", "name": "nn.Module: A", "pid": [1], "ts": 1, "dur": 1}
    (tmp_path / "empty" / "a.json").write_text(json.dumps({"traceEvents": [process_of_list]}))
    with pytest.raises(NotAReport, match="got `array`"):
        with_captures(trace, tmp_path / "empty")
