"""PyTorch traces without the work of a GPU: answered in CPU time if nothing was launched, else refused."""

import gzip
import json

import pytest
from nvtx_kernels.analysis.doctor.checks import examine
from nvtx_kernels.analysis.errors import NoGpuWork
from nvtx_kernels.analysis.opened import trace_of
from nvtx_kernels.analysis.views.verdict import verdict

from nvtx_kernels import analysis
from tests.analysis.making.kineto import GPU, STEP, Call, Program, event, operator, trace_text, write_kineto
from tests.analysis.making.subjects import summarized, viewed

CPU = [operator("aten::linear", 0, 900), operator("aten::addmm", 100, 800)]
CUDNN = [operator("aten::conv2d", 0, 900), operator("aten::cudnn_convolution", 100, 800)]
ASKING = Call(1, 10, 20, name="cudaGetDeviceCount")
LAUNCH = Call(1, 10, 20)
HAS_GPU = "though the machine has a GPU (NVIDIA H200)"
NO_GPU, NOT_RECORDED = "CPU time of operators, no GPU", "the GPU's work was not recorded"


@pytest.mark.parametrize(
    ("blocks", "calls", "gpus", "note", "heading"),
    [
        (CPU, [], [], "The trace contains no GPU work: self CPU time of operators", NO_GPU),
        (CPU, [], [GPU], HAS_GPU, NO_GPU),
        (CPU, [ASKING], [GPU], HAS_GPU, NO_GPU),
        (CUDNN, [], [], "The program ran on a GPU (aten::cudnn_convolution)", NOT_RECORDED),
        (CUDNN, [ASKING], [GPU], "The program ran on a GPU (aten::cudnn_convolution)", NOT_RECORDED),
    ],
    ids=["no GPU", "idle GPU", "calls that launch nothing", "cuDNN", "cuDNN and a GPU"],
)
def test_trace_without_launches_is_answered_in_cpu_time(tmp_path, blocks, calls, gpus, note, heading):
    path = write_kineto(tmp_path / "cpu.json", Program(blocks, calls), gpus=gpus)
    trace = analysis.read(path)
    assert (trace.provenance.unit_of_work, trace.provenance.gpus) == ("CPU", ())
    assert trace.work.duration_ns.sum() == 900
    assert note in " ".join(trace.notes)
    assert heading in viewed("kernels", path).heading


def test_first_sentence_says_that_the_gpu_was_not_recorded(tmp_path):
    path = write_kineto(tmp_path / "cudnn.json", Program(CUDNN))
    assert verdict(summarized(path)).startswith("The GPU's work was not recorded: what follows is CPU time.")
    plain = write_kineto(tmp_path / "cpu.json", Program(CPU))
    assert verdict(summarized(plain)).startswith("The recorded work takes 900 ns: 900 ns (100%) in operators.")


@pytest.mark.parametrize(
    ("calls", "cause"),
    [
        ([LAUNCH], "The GPU's own records are missing: 1 call launched work, and the profiler got none of it."),
        ([LAUNCH, Call(2, 30, 40), ASKING], "missing: 2 calls launched work"),
        ([Call(1, 10, 20, name="hipGraphLaunch")], "wait for it before the profiler stops (torch.accelerator"),
        ([Call(1, 10, 20, category="mtia_runtime")], "It is of an MTIA device, whose events are not read."),
    ],
)
def test_launches_without_work_are_refused_with_what_is_missing(tmp_path, calls, cause):
    path = write_kineto(tmp_path / "lost.json", Program(CPU, calls))
    with pytest.raises(NoGpuWork, match="contains no work") as refusal:
        trace_of(path)
    assert cause in str(refusal.value)
    assert [finding.level for finding in examine(path)] == ["problem"]


@pytest.mark.parametrize(("on_cpu", "word"), [(True, "operator"), (False, "kernel")])
def test_whole_microseconds_are_told_of_what_is_counted(tmp_path, on_cpu, word):
    whole = Program([operator("aten::mm", n * 10_000, n * 10_000 + 5000) for n in range(20)])
    program = whole if on_cpu else STEP.scaled(1000)
    notes = " ".join(analysis.read(write_kineto(tmp_path / "whole.json", program)).notes)
    assert f"each {word}'s is up to 1 µs too short" in notes


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_bare_array_of_2021_is_read_as_the_trace_around_it(tmp_path, pack):
    whole = write_kineto(tmp_path / "whole.json", STEP)
    bare = tmp_path / "bare.json"
    bare.write_bytes(pack(json.dumps(json.loads(whole.read_text())["traceEvents"], indent=1).encode()))
    found, wanted = analysis.read(bare), analysis.read(whole)
    for column in ("start_ns", "end_ns", "launch", "name_id"):
        assert getattr(found.work, column).tolist() == getattr(wanted.work, column).tolist()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[1, 2]", "is not a trace of PyTorch's profiler"),
        ('[{"frame": {}}]', "none of its events is an operator"),
        ("[]", "none of its events is an operator"),
        ('[{"ph": "X"}, ', "is truncated"),
        ('[{"ph": "X"}] {"a": 1}', "is damaged: more follows its events"),
    ],
)
def test_other_arrays_are_refused(tmp_path, text, cause):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(analysis.errors.NotAReport, match=cause):
        analysis.read(path)


def test_trace_of_a_cupti_range_profiler_is_no_trace_of_a_cpu(tmp_path):
    path = tmp_path / "ranges.json"
    launches = [event("cuda_runtime", "cudaLaunchKernel", 1, 1, 10, 20, correlation=1)]
    path.write_text(trace_text([*launches, event("cpu_op", "aten::mm", 1, 1, 0, 90)]))
    with pytest.raises(NoGpuWork, match="1 call launched work"):
        trace_of(path)
