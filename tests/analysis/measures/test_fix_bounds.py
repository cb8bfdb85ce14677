"""Where nothing can be replayed, the same rules bound what a change saves by the GPU's time, and say why."""

from functools import partial

import pytest
from nvtx_kernels.analysis.account import partition
from nvtx_kernels.analysis.attribution.causes import Rules, attribute
from nvtx_kernels.analysis.measures.fix_bounds import bounds_of
from nvtx_kernels.analysis.measures.fix_list import GPU_TIME, REPLAY
from nvtx_kernels.analysis.measures.fix_rules import RULES
from nvtx_kernels.analysis.measures.fixes import fixes_of
from nvtx_kernels.analysis.measures.host_line import Refused
from nvtx_kernels.analysis.readers import read

from tests.analysis.making import simulated
from tests.analysis.making.building import AUTOGRAD, Launch, Work, alter, write
from tests.analysis.making.simulated import FP32_GEMM, MS, SOFTMAX, TF32_GEMM, US, recorded
from tests.analysis.making.simulated_kineto import FORMS, kineto_recorded
from tests.analysis.making.wasteful import ROOM
from tests.analysis.measures.test_fixes import TF32_SHARE, one_range
from tests.analysis.measures.test_near_misses import ALIGNED, DOUBLE_GEMM, SPEAKS, computed_again
from tests.analysis.measures.test_replay import two_streams


def found(report, **rules):
    """Return what to change first in a report."""
    return fixes_of(partition(attribute(read(report), Rules(**rules))))


def bounds(report):
    """Return the bounds of a report that could be replayed."""
    return bounds_of(partition(attribute(read(report))), Refused("asked for"))


def products(machine, *, gemm=FP32_GEMM, lasts=200 * US, count=20):
    """Run a step of products, some elementwise kernels, and a wait."""
    with machine.range("forward"):
        machine.gemms(count, lasts, gemm)
        for _ in range(10):
            machine.work(20 * US)
    machine.wait()


#: A program, the same with the change, and the rule whose bound the saving must respect.
CHANGES = {
    "fp32": (products, partial(products, gemm=TF32_GEMM, lasts=round(200 * US * TF32_SHARE))),
    "alignment": (
        partial(products, gemm=ALIGNED.format(1)),
        partial(products, gemm=ALIGNED.format(8), lasts=200 * US // 8),
    ),
    "fp64": (partial(products, gemm=DOUBLE_GEMM), partial(products, gemm=TF32_GEMM, lasts=30 * US)),
    "recompute": (computed_again, partial(products, gemm=TF32_GEMM, count=30)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_saves_no_more_than_its_bound(tmp_path, name):
    base, changed = CHANGES[name]
    answer = bounds(recorded(tmp_path, base, run=ROOM))
    (fix,) = (fix for fix in answer.fixes if fix.rule == name)
    saved_ns = simulated.step_ns(base) - simulated.step_ns(changed)
    assert 0.9 * fix.alone_ns <= saved_ns <= 1.02 * fix.alone_ns <= 1.02 * answer.step_ns
    assert fix.then_ns == pytest.approx(answer.step_ns - fix.alone_ns)


@pytest.mark.parametrize("case", SPEAKS)
def test_a_bound_is_no_less_than_what_a_replay_says(tmp_path, case):
    report = recorded(tmp_path, SPEAKS[case][1])
    replayed = {fix.rule: fix for fix in found(report).fixes}
    needs_host = {rule.name for rule in RULES if rule.needs_host}
    bounded = {fix.rule: fix for fix in bounds(report).fixes}
    assert not needs_host & bounded.keys()
    for rule in replayed.keys() - needs_host:
        assert replayed[rule].alone_ns <= bounded[rule].alone_ns * 1.01


def test_attention_is_bounded_by_its_scores_and_the_products_around_them(tmp_path):
    answer = bounds(recorded(tmp_path, one_range))
    (fix,) = (fix for fix in answer.fixes if fix.rule == "attention")
    products_ns = 2 * 6 * 100 * US
    assert fix.alone_ns == pytest.approx(fix.evidence["kernels_ns"] + products_ns)


def without_steps(report):
    """Return the report with its steps called otherwise."""
    return alter(report, "UPDATE NVTX_EVENTS SET text = 'part' WHERE text = 'step'")


def without_names(report):
    """Return the report with calls that have no name."""
    return alter(report, "UPDATE StringIds SET value = '' WHERE value LIKE 'cuda%'")


def test_without_steps_bounds_are_of_all_that_was_recorded(tmp_path):
    report = recorded(tmp_path, products, steps=6)
    of_step = bounds(report)
    answer = found(without_steps(report), evidence=())
    assert (answer.kind, answer.per) == (GPU_TIME, "recording")
    assert answer.reason.startswith("the report has no measured steps: no range is called a step")
    assert answer.step_ns == pytest.approx(6 * of_step.step_ns, rel=0.02)
    assert answer.fixes[0].alone_ns == pytest.approx(6 * of_step.fixes[0].alone_ns, rel=0.02)


def at_once(machine):
    """Let another thread launch while this one does."""
    calls = [call for call in machine.rows.launches if call.name.startswith("cudaLaunch")]
    other = [Launch(10_000 + n, call.start + US, call.end + US, AUTOGRAD) for n, call in enumerate(calls)]
    machine.rows.work.extend(Work(call.correlation, call.end, call.end + 10) for call in other)
    machine.rows.launches.extend(other)


def test_a_report_whose_calls_have_no_names_says_so_and_what_to_record(tmp_path):
    answer = found(without_names(recorded(tmp_path, products)))
    assert answer.reason == "the report does not say which API calls the program made"
    assert answer.remedy.startswith("record: nsys profile")
    assert answer.fixes[0].rule == "fp32"


def test_threads_that_launch_at_once_leave_bounds(tmp_path):
    machine = simulated.simulated(products)
    at_once(machine)
    answer = found(write(tmp_path / "report.sqlite", machine.rows))
    assert answer.reason.startswith("several threads launch at once")
    assert (answer.kind, answer.remedy) == (GPU_TIME, "")


@pytest.mark.parametrize("form", [*FORMS, None])
def test_a_trace_of_several_streams_is_replayed_if_it_says_what_they_wait_for(tmp_path, form):
    program = partial(two_streams, waits=True)
    answer = found(kineto_recorded(tmp_path / "r.pt.trace.json", simulated.simulated(program), form))
    if form:
        assert (answer.kind, answer.reason) == (REPLAY, "")
        assert answer.step_ns == pytest.approx(simulated.step_ns(program), rel=0.01)
    else:
        assert "2 streams" in answer.reason
        assert "enable_cuda_sync_events=True" in answer.remedy


def test_no_remedy_of_nvidias_is_given_for_an_amd_gpu(tmp_path):
    path = kineto_recorded(tmp_path / "r.pt.trace.json", simulated.simulated(two_streams), None)
    path.write_text(path.read_text().replace('"cuda', '"hip').replace('"hip_runtime"', '"cuda_runtime"'))
    answer = found(path)
    assert "2 streams" in answer.reason
    assert answer.remedy == ""


def overlapping(machine):
    """Run products on two streams at once."""
    for _ in range(10):
        machine.work(MS, FP32_GEMM)
        machine.work(MS, FP32_GEMM, stream=9)
    machine.wait()
    machine.wait(9)


def test_no_bound_is_above_the_time_in_which_the_gpu_works(tmp_path):
    answer = bounds(recorded(tmp_path, overlapping))
    assert answer.step_ns <= simulated.step_ns(overlapping) < 1.2 * answer.step_ns
    assert answer.fixes[0].alone_ns <= answer.step_ns


def test_of_several_gpus_the_busiest_is_counted(tmp_path):
    machine = simulated.simulated(products)
    others = [Work(w.correlation, w.end, w.end + US, SOFTMAX, device=1) for w in machine.rows.work]
    machine.rows.work.extend(others)
    answer = bounds(write(tmp_path / "report.sqlite", machine.rows))
    assert answer.step_ns == pytest.approx(20 * 200 * US + 10 * 20 * US, rel=0.01)


#: A kernel of fp32 on a GPU of unknown peaks, and words of the sentence; None where nothing is judged.
GENERATIONS = [
    ("ampere_sgemm_128x64_nn", "(TF32) or bf16"),
    ("void cutlass_80_simt_sgemm_128x64_8x5_nn_align1", "(TF32) or bf16"),
    ("volta_sgemm_128x64_nn", "use fp16"),
    ("sgemm_128x128x8_NT_vec", None),
]


@pytest.mark.parametrize(("gemm", "remedy"), GENERATIONS)
def test_on_an_unknown_gpu_names_of_kernels_tell_what_can_be_allowed(tmp_path, gemm, remedy):
    answer = bounds(recorded(tmp_path, partial(products, gemm=gemm), gpu="NVIDIA Unheard Of"))
    if remedy is None:
        assert "fp32" not in {fix.rule for fix in answer.fixes}
        assert "peaks of the GPU are not known" in answer.unjudged[0]
    else:
        assert remedy in answer.fixes[0].sentence
        assert answer.fixes[0].alone_ns == pytest.approx(20 * 200 * US)


def fp32_again(machine):
    """Run a step that computes again in fp32 what it had computed in TF32."""
    with machine.range("forward"):
        machine.gemms(10, 200 * US, TF32_GEMM)
    with machine.range("backward"):
        with machine.range("forward"):
            machine.gemms(10, 200 * US, FP32_GEMM)
        machine.work(2 * US)
    machine.wait()


def test_changes_of_the_same_work_are_told_to_save_the_same_time(tmp_path):
    rules = {fix.rule: fix.same_as for fix in bounds(recorded(tmp_path, fp32_again, run=ROOM)).fixes}
    assert rules == {"recompute": ("fp32",), "fp32": ("recompute",)}
    assert {fix.same_as for fix in bounds(recorded(tmp_path, products)).fixes} == {()}
