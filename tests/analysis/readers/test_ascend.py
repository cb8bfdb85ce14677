"""What torch_npu writes of an Ascend NPU: kernels are events without a category, in a process of the hardware."""

import json

import pytest
from nvtx_kernels.analysis import doctor, kernels, view
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.trace import KERNEL

NPU = {"ph": "M", "name": "process_name", "pid": 8, "tid": 0, "args": {"name": "Ascend Hardware"}}
OPERATOR = {
    "ph": "X",
    "name": "aten::mm",
    "cat": "cpu_op",
    "pid": 1,
    "tid": 1,
    "ts": "10.000",
    "dur": 9.0,
    "args": {},
}


def task(name, start, kind, stream=3):
    """Return a task of the hardware that takes 20 µs."""
    args = {"Task Type": kind, "Model Id": 1, "Task Id": 0}
    return {"ph": "X", "name": name, "pid": 8, "tid": stream, "ts": f"{start}.000", "dur": 20.0, "args": args}


@pytest.fixture
def path(tmp_path):
    product, add = "aclnnMm_MatMulCommon_MatMulV2", "aclnnInplaceAdd_AddAiCore_Add"
    tasks = [
        task(product, 30, "AI_CORE"),
        task(add, 60, "AI_VECTOR_CORE", stream=4),
        task("wait", 90, "EVENT_WAIT"),
    ]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps([NPU, OPERATOR, *tasks]))
    return path


def test_kernels_of_an_npu_are_read_and_it_is_named(path):
    trace = read(path)
    assert trace.provenance.gpus == ("Ascend NPU",)
    assert (trace.work.kind == KERNEL).tolist() == [True, True]
    assert trace.work.stream_id.tolist() == [3, 4]
    assert trace.work.duration_ns.tolist() == [20_000, 20_000]


@pytest.mark.parametrize(
    "words", [[kernels], [kernels, "--by", "kernel"], [view, "idle"], [view, "fix"], [doctor]]
)
def test_no_answer_tells_of_cuda(path, words, capsys):
    command, *options = words
    command.main([*options, str(path)])
    said = "".join(capsys.readouterr())
    assert "CUDA" not in said
    assert "nsys" not in said
