"""What `view fix` says is at stake is what the changed program saves, in simulations that know both."""

from dataclasses import replace
from functools import partial
from itertools import count

import pytest
from nvtx_kernels.analysis.account import partition
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.measures.fixes import fixes_of
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.vocabulary import SETTING_HOOKS

from tests.analysis.making.building import OWN_DOMAIN, Range, annotation, write
from tests.analysis.making.simulated import (
    ELEMENTWISE,
    FP32_GEMM,
    MS,
    SOFTMAX,
    TF32_GEMM,
    US,
    recorded,
    simulated,
    step_ns,
)

TF32_SHARE = 67 / 494.7


def found(folder, program, run=None, slower=1.0, gpu="NVIDIA H200", **options):
    """Return what a recording of a program says, whose step without recording is known unless `options` differ."""
    known = {"unrecorded_step_ns": step_ns(program)} | options
    return fixes_of(
        partition(attribute(read(recorded(folder, program, run=run, slower=slower, gpu=gpu)))), **known
    )


def rule(answer, name):
    """Return a shown rule's row, else None."""
    return next((fix for fix in answer.fixes if fix.rule == name), None)


def training(
    machine, *, gemms=20, lasts=200 * US, gemm=FP32_GEMM, launches=20, pause=0, reads=False, copied=0, pinned=False
):
    """Run a step: a pause, a batch's copy, products between other kernels, and a read of the loss."""
    if pause:
        machine.host(pause)
    if copied:
        machine.upload(copied, pinned=pinned)
    else:
        machine.work(2 * US, 1, kind="memcpy", bytes=32768, source=1, target=2)
    with machine.range("forward"):
        for _ in range(launches // 2):
            machine.work(3 * US)
        machine.gemms(gemms, lasts, gemm)
    with machine.range("backward"):
        for _ in range(launches // 2):
            machine.work(3 * US)
    if reads:
        machine.read()


def test_an_upper_limit_of_the_step_leaves_room_for_a_faster_host(tmp_path):
    launching = partial(training, gemms=1, lasts=3 * US, launches=400, reads=True)
    known = found(tmp_path, launching)
    limit = found(tmp_path, launching, least_ns=0.6 * known.step_ns)
    assert (known.is_upper_limit, limit.is_upper_limit) == (False, True)
    assert known.factors[0] > 0.9
    assert limit.factors == (pytest.approx(0.6, abs=0.05), known.factors[1])


#: A program, the same with a change, and the rule that suggests it.
CHANGES = {
    "fp32": ({"reads": True}, {"reads": True, "gemm": TF32_GEMM, "lasts": round(200 * US * TF32_SHARE)}),
    "host_pause": ({"pause": 9 * MS, "reads": True}, {"pause": 20 * US, "reads": True}),
    "scalar_read": ({"pause": 3 * MS, "reads": True}, {"pause": 3 * MS, "reads": False}),
    "pageable_copy": (
        {"copied": 40 << 20, "reads": True},
        {"copied": 40 << 20, "reads": True, "pinned": True},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_saves_what_was_said(tmp_path, name):
    base, changed = (partial(training, **options) for options in CHANGES[name])
    fix = rule(found(tmp_path, base), name)
    saved = step_ns(base) - step_ns(changed)
    assert fix.alone_low_ns - 0.02 * saved <= saved <= fix.alone_ns + 0.02 * saved


def updated(machine, *, launches=150, name=ELEMENTWISE, update="Optimizer.step#AdamW.step"):
    """Run a step whose optimizer launches many kernels."""
    with machine.range("forward"):
        machine.gemms(10, 50 * US, TF32_GEMM)
    with machine.range(update):
        for _ in range(launches):
            machine.work(2 * US, name)
    machine.read()


def test_a_fused_optimizer_saves_its_launches(tmp_path):
    known = rule(found(tmp_path, updated, run={"parameters": 1_000_000, "optimizer": "AdamW"}), "optimizer")
    saved = step_ns(updated) - step_ns(partial(updated, launches=1, name="FusedAdamMathFunctor"))
    assert saved * 0.9 <= known.alone_low_ns <= known.alone_ns <= saved * 1.05
    fix = rule(found(tmp_path, updated), "optimizer")  # of unknown parameters, the launches are judged alone
    assert fix.alone_ns == pytest.approx(saved - fix.evidence["kernels_ns"], rel=0.15)
    assert fix.sentence.endswith("AdamW(fused=True)")


def test_an_optimizer_that_cannot_be_fused_is_not_even_tried(tmp_path):
    answer = found(tmp_path, partial(updated, update="Optimizer.step#LBFGS.step"))
    assert all(tried.rule != "optimizer" for tried in answer.silent)


def in_parts(machine, around="attention"):
    """Run a step of layers whose parts of attention have ranges of their own."""
    with machine.range("forward"):
        for _ in range(6):
            with machine.range(around):
                for part, kernels in (
                    ("scores", [TF32_GEMM]),
                    ("softmax", [ELEMENTWISE, SOFTMAX]),
                    ("last", [TF32_GEMM]),
                ):
                    with machine.range(part):
                        for kernel in kernels:
                            machine.work(100 * US, kernel)
    machine.read()


def test_parts_of_what_is_no_attention_are_silent(tmp_path):
    assert rule(found(tmp_path, partial(in_parts, around="gate")), "attention") is None


@pytest.mark.parametrize("name", ["one_range", "in_parts"])
def test_fused_attention_saves_the_score_kernels(tmp_path, name):
    program = {"one_range": one_range, "in_parts": in_parts}[name]
    fix = rule(found(tmp_path, program), "attention")
    assert fix.alone_low_ns == pytest.approx(12 * 100.5 * US, rel=0.02)
    products_ns = 2 * 6 * 100.5 * US
    assert fix.alone_ns == pytest.approx(fix.alone_low_ns + products_ns, rel=0.02)


def one_range(machine, softmax=SOFTMAX, between=ELEMENTWISE, last=TF32_GEMM):
    """Run a step of layers, each of one range."""
    with machine.range("forward"):
        for _ in range(6):
            with machine.range("attention"):
                for kernel in (TF32_GEMM, between, softmax, last):
                    machine.work(100 * US, kernel)
    machine.read()


def test_launching_is_told_where_the_cpu_limits(tmp_path):
    launching = rule(found(tmp_path, partial(training, gemms=0, launches=900, reads=True)), "launching")
    assert launching.alone_low_ns > 0.3 * launching.step_ns


def test_pauses_in_which_annotation_opens_backward_are_not_the_programs(tmp_path):
    def annotated(machine, name, domain):
        machine.gemms(5, 50 * US, TF32_GEMM)
        machine.wait()
        begin = machine.now
        machine.host(2 * MS)
        machine.gemms(5, 50 * US, TF32_GEMM)
        machine.rows.ranges.append(Range(name, begin + US, machine.now, domain=domain))

    def pauses(name, domain):
        machine = simulated(partial(annotated, name=name, domain=domain))
        machine.rows.ranges[:0] = annotation()
        answer = fixes_of(partition(attribute(read(write(tmp_path / "report.sqlite", machine.rows)))))
        return rule(answer, "host_pause")

    assert pauses("backward", OWN_DOMAIN) is None
    assert pauses("backward", 0).alone_low_ns > MS
    assert pauses(SETTING_HOOKS, 0) is None  # a capture range loses the domain's name


def test_a_pause_in_one_step_is_no_symptom(tmp_path):
    steps = iter(range(100))

    def once(machine):
        training(machine, pause=9 * MS if next(steps) % 6 == 3 else 0, reads=True)

    machine = simulated(once)
    answer = fixes_of(partition(attribute(read(write(tmp_path / "report.sqlite", machine.rows)))))
    assert rule(answer, "host_pause") is None


def test_changes_that_save_the_same_time_say_so_and_the_step_after_all_is_replayed(tmp_path):
    program = partial(training, pause=8 * MS, reads=True, gemms=60, gemm=TF32_GEMM)
    answer = found(tmp_path, program)
    pause, read_ = rule(answer, "host_pause"), rule(answer, "scalar_read")
    assert (pause.same_as, read_.same_as) == (("scalar_read",), ("host_pause",))
    both = step_ns(partial(training, pause=20 * US, reads=False, gemms=60, gemm=TF32_GEMM))
    assert answer.fixes[-1].then_ns == pytest.approx(both, rel=0.02)


def test_a_slower_recording_gives_a_range_that_holds_what_is_saved(tmp_path):
    base, changed = (partial(training, lasts=60 * US, launches=300, reads=True, gemm=gemm) for gemm in GEMMS)
    changed = partial(changed, lasts=round(60 * US * TF32_SHARE))
    true_ns = step_ns(base)
    report = recorded(tmp_path, base, slower=2.0)
    fix = rule(fixes_of(partition(attribute(read(report))), unrecorded_step_ns=true_ns), "fp32")
    assert fix.alone_low_ns <= true_ns - step_ns(changed) <= fix.alone_ns
    unknown = rule(fixes_of(partition(attribute(read(report)))), "fp32")
    assert unknown is None or unknown.alone_ns - unknown.alone_low_ns >= fix.alone_ns - fix.alone_low_ns


GEMMS = (FP32_GEMM, TF32_GEMM)


@pytest.mark.parametrize("share", [0.975, 1, 1.025])
def test_the_step_after_a_change_keeps_its_share_of_a_step_that_is_nearly_replayed(tmp_path, share):
    before, after = (partial(training, gemms=60, gemm=gemm) for gemm in GEMMS)
    after = partial(after, lasts=round(200 * US * TF32_SHARE))
    answer = found(tmp_path, before, unrecorded_step_ns=share * step_ns(before))
    assert answer.fits
    assert rule(answer, "fp32").then_ns == pytest.approx(share * step_ns(after), rel=0.01)


def test_pauses_are_as_long_as_the_step_without_recording_has_room_for(tmp_path):
    program = partial(training, pause=6 * MS, reads=True)
    alone, slowed = (
        rule(found(tmp_path, program, unrecorded_step_ns=step_ns(program) - less_ns), "host_pause")
        for less_ns in (0, 4 * MS)
    )
    assert alone.alone_ns == pytest.approx(6 * MS, rel=0.05)
    assert slowed is None or slowed.alone_ns < 4 * MS


def test_no_cost_of_recording_that_fits_leaves_what_the_gpu_decides(tmp_path):
    answer = found(tmp_path, partial(training, pause=9 * MS, reads=True), unrecorded_step_ns=3 * MS)
    assert {fix.rule for fix in answer.fixes} == {"host_pause", "fp32"}
    assert "no cost of recording" in answer.unjudged[-1]


@pytest.mark.parametrize("step_ms", [0.5, 3, 30])
def test_what_is_saved_of_a_step_that_no_cost_gives_is_less_than_it(tmp_path, step_ms):
    program = partial(training, pause=9 * MS, reads=True)
    answer = found(tmp_path, program, unrecorded_step_ns=step_ms * MS)
    assert not answer.fits
    assert answer.fixes
    for fix in answer.fixes:
        assert 0 < fix.alone_low_ns <= fix.alone_ns < fix.step_ns
        assert 0 < fix.then_ns < fix.step_ns


def test_on_an_unknown_gpu_products_are_judged_by_their_whole_time_if_names_tell_its_generation(tmp_path):
    unknown = partial(found, gpu="NVIDIA GeForce RTX 9999")
    fix = rule(unknown(tmp_path, partial(training, reads=True)), "fp32")
    assert fix.measured is None
    assert fix.alone_ns == pytest.approx(20 * 200 * US, rel=0.05)
    answer = unknown(tmp_path, partial(training, gemm="sgemm_128x128x8_NT_vec", reads=True))
    assert rule(answer, "fp32") is None
    assert "the peaks of the GPU are not known" in answer.unjudged[0]


def test_a_pause_of_a_single_step_is_no_suggestion(tmp_path):
    for steps, rules in ((1, set()), (2, {"host_pause"})):
        report = recorded(tmp_path, beside_a_pause, steps=steps)
        told = {fix.rule for fix in fixes_of(partition(attribute(read(report)))).fixes}
        assert told & {"host_pause"} == rules


LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize("where", [LOADING, "python code"])
def test_of_a_single_step_a_loader_is_known_by_its_range_even_before_the_first_call(tmp_path, where):
    def program(machine):
        with machine.range(where):
            machine.host(9 * MS)
        training(machine, reads=True)

    report = recorded(tmp_path, program, steps=1)
    told = {fix.rule: fix for fix in fixes_of(partition(attribute(read(report)))).fixes}
    assert ("host_pause" in told) == (where == LOADING)
    if where == LOADING:
        assert told["host_pause"].alone_ns == pytest.approx(9 * MS, rel=0.05)
        assert "num_workers" in told["host_pause"].short


def test_a_pause_that_one_step_lacks_is_as_long_as_it_takes(tmp_path):
    step = count()

    def pausing(machine):
        with machine.range("forward"):
            machine.gemms(2, 200 * US, TF32_GEMM)
            machine.wait()
            machine.host(0 if next(step) == 3 else 19 * MS)
            machine.gemms(2, 200 * US, TF32_GEMM)

    told = fixes_of(partition(attribute(read(recorded(tmp_path, pausing, steps=6)))))
    (pause,) = [fix for fix in told.fixes if fix.rule == "host_pause"]
    assert pause.sentence.startswith("The program computes for 19.0 ms")


def beside_a_pause(machine):
    """Run a step that pauses between two products."""
    with machine.range("forward"):
        machine.gemms(2, 200 * US, TF32_GEMM)
        machine.wait()
        machine.host(9 * MS)
        machine.gemms(2, 200 * US, TF32_GEMM)
    machine.wait()


def test_a_single_step_that_begins_late_saves_no_more_than_its_work(tmp_path):
    """What passes before its first call, such as loading, is no part of what a change saves."""

    def late(machine):
        machine.host(80 * MS)
        training(machine, reads=True)

    answer = fixes_of(partition(attribute(read(recorded(tmp_path, late, steps=1)))))
    fix = rule(answer, "fp32")
    assert answer.step_ns > 80 * MS
    assert fix.alone_ns <= 20 * 200 * US
    assert fix.then_ns == pytest.approx(answer.step_ns - fix.alone_ns, rel=0.02)


def test_places_of_steps_that_are_numbered_are_one_place(tmp_path):
    """PyTorch calls each step otherwise: ProfilerStep#3."""
    machine = simulated(partial(training, pause=9 * MS, reads=True))
    numbers = iter(range(100))
    named = [
        replace(row, name=f"ProfilerStep#{next(numbers)}") if row.name == "step" else row
        for row in machine.rows.ranges
    ]
    machine.rows.ranges[:] = [row for row in named if row.name != "forward" and row.name != "backward"]
    told = fixes_of(partition(attribute(read(write(tmp_path / "report.sqlite", machine.rows)))))
    assert rule(told, "host_pause").alone_ns == pytest.approx(9 * MS, rel=0.05)
