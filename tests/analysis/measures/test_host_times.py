"""The host's times by phase say what recording cost each of them; if they do not give the step, none is used."""

import json
import random
from collections import Counter
from functools import partial

import numpy as np
import pytest
from nvtx_kernels.analysis import view as view_command
from nvtx_kernels.analysis.account import partition
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.measures.fixes import fixes_of
from nvtx_kernels.analysis.measures.replay import emptied_ns, timeline_of
from nvtx_kernels.analysis.measures.timeline import emptied
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.views.fix import as_object, not_used
from nvtx_kernels.analysis.vocabulary import PHASES

from tests.analysis.making.building import MARK, OWN_DOMAIN, Range, annotation, write
from tests.analysis.making.simulated import FP32_GEMM, MS, TF32_GEMM, US, recorded, simulated, step_ns

SLOWER, TF32_SHARE = 2.0, 67 / 494.7


def program(machine, *, gemm=60 * US, name=FP32_GEMM, launches=200, pause=0, reads=True):
    """Run a step whose forward may wait for what it computes, and whose other phases only launch."""
    begin(machine, "other")
    machine.host(pause)
    machine.work(2 * US, 1, kind="memcpy", bytes=32768, source=1, target=2)
    begin(machine, "forward")
    with machine.range("forward"):
        for _ in range(launches):
            machine.work(3 * US)
        machine.gemms(20, gemm, name)
        if reads:
            machine.read()
    begin(machine, "backward")
    with machine.range("backward"):
        for _ in range(2 * launches):
            machine.work(3 * US)
        machine.gemms(20, gemm, name)
    begin(machine, "optimizer")
    with machine.range("Optimizer.step#SGD.step"):
        for _ in range(launches // 2):
            machine.work(3 * US)
    begin(machine, None)


def begin(machine, phase):
    """Begin a phase: where steps are emptied, wait for all work, and note the host's time of the phase before."""
    times = getattr(machine, "times", None)
    if times is None:
        return
    before, since = machine.entered
    times[before] += machine.now - since
    machine.now = max([machine.now, *machine.ends.values()])
    machine.entered = phase, machine.now


def emptied_step(run=program, **options):
    """Return the true times of phases on a host that nothing records."""
    times = Counter()

    def step(machine):
        if not hasattr(machine, "times"):
            machine.times, machine.entered = times, (None, machine.now)
        times.clear()
        run(machine, **options)

    simulated(step, steps=2)
    del times[None]
    return times


def found(folder, host_ns, *, slower=SLOWER, **options):
    """Return the changes by a recording of a host that recording slows."""
    path = recorded(folder, lambda machine: program(machine, **options), slower=slower)
    return fixes_of(partition(attribute(read(path))), unrecorded_step_ns=true_step_ns(**options), host_ns=host_ns)


def test_the_emptied_step_is_replayed(tmp_path):
    attribution = attribute(read(recorded(tmp_path, program)))
    timeline = timeline_of(partition(attribution))
    (replayed,) = emptied_ns(emptied(timeline, attribution), np.ones(1))
    true_ns = emptied_step()
    for phase, ns in zip(PHASES, replayed, strict=True):
        assert ns == pytest.approx(true_ns.get(phase, 0), rel=0.03, abs=30 * US), phase


@pytest.mark.parametrize(
    "options",
    [{}, {"gemm": 200 * US}, {"pause": 3 * MS}, {"gemm": 400 * US, "reads": False}],
    ids=["by the host", "by both", "by a pause", "by the GPU"],
)
def test_host_times_give_the_step_and_figures_that_hold_what_is_saved(tmp_path, options):
    answer = found(tmp_path, emptied_step(**options), **options)
    assert answer.host_times_used
    assert answer.host_times_error == pytest.approx(0, abs=0.03)
    tf32 = {"name": TF32_GEMM, "gemm": round(options.get("gemm", 60 * US) * TF32_SHARE)}
    saved = true_step_ns(**options) - true_step_ns(**options | tf32)
    low, high = figure(answer)
    assert low - 0.01 * saved <= saved <= high + 0.01 * saved


def test_host_times_narrow_figures_where_the_step_does_not_tell_what_recording_cost(tmp_path):
    options = {"gemm": 400 * US, "reads": False}
    answer, without = found(tmp_path, emptied_step(**options), **options), found(tmp_path, {}, **options)
    assert (without.host_times_used, without.host_times_error) == (False, None)
    (low, high), (wide_low, wide_high) = figure(answer), figure(without)
    assert high - low < 0.5 * (wide_high - wide_low)


def test_steps_of_one_phase_are_emptied_one_by_one(tmp_path):
    def forwards(machine):
        with machine.range("forward"):
            for _ in range(100):
                machine.work(3 * US)

    attribution = attribute(read(recorded(tmp_path, forwards)))
    timeline = timeline_of(partition(attribution))
    (replayed,) = emptied_ns(emptied(timeline, attribution), np.ones(1))
    assert timeline.steps > 1
    assert replayed.sum() == pytest.approx(step_ns(forwards), rel=0.1)


def test_only_factors_near_the_hosts_that_give_the_step_are_tried(tmp_path):
    options = {"gemm": 3 * US}  # launches limit it
    answer = found(tmp_path, emptied_step(**options), **options)
    (fix,) = (fix for fix in answer.fixes if fix.rule == "launching")
    assert fix.alone_ns - fix.alone_low_ns < 0.06 * answer.step_ns


def test_a_phase_is_limited_by_launching_by_its_own_host_time(tmp_path):
    """Though nearly nothing remains of the host's time in another one."""
    options = {"gemm": 3 * US}
    answer = found(tmp_path, {**emptied_step(**options), "other": 1}, **options)
    assert answer.host_times_used
    assert "launching" in {fix.rule for fix in answer.fixes}


def figure(answer):
    """Return the ends of what TF32 saves."""
    one = next(each for each in (*answer.fixes, *answer.silent) if each.rule == "fp32")
    return one.alone_low_ns, one.alone_ns


def true_step_ns(**options):
    """Return a step's time on a host that nothing records."""
    return step_ns(lambda machine: program(machine, **options))


def test_an_emptied_step_of_a_slow_start_takes_no_longer_than_a_step(tmp_path):
    options = {"gemm": 3 * US}  # launches limit it
    times = {phase: 1.12 * ns for phase, ns in emptied_step(**options).items()}
    assert sum(times.values()) > 1.1 * true_step_ns(**options)
    answer = found(tmp_path, times, **options)
    assert answer.host_times_used
    assert answer.host_times_error == pytest.approx(0, abs=0.03)


def any_program(seed):
    """Return a program whose phases have kernels of any length, near the host's pace, and perhaps reads."""
    draw = random.Random(seed)
    phases = {"forward": "forward", "backward": "backward", "optimizer": "Optimizer.step#SGD.step"}
    work = {
        phase: [(draw.choice((8, 15, 40)) * US, draw.choice((2, 3, 5, 8, 12, 40)) * US) for _ in range(80)]
        for phase in phases
    }
    reads = {phase for phase in phases if draw.random() < 0.4}
    pause = draw.choice((0, 0, 3 * MS))

    def step(machine):
        begin(machine, "other")
        machine.host(pause)
        machine.work(2 * US, 1, kind="memcpy", bytes=32768, source=1, target=2)
        for phase, name in phases.items():
            begin(machine, phase)
            with machine.range(name):
                for host_ns, lasts in work[phase]:
                    machine.host(host_ns)
                    machine.work(lasts)
                if phase in reads:
                    machine.read()
        begin(machine, None)

    return step


@pytest.mark.parametrize("seed", range(10))
def test_host_times_give_the_step_of_any_program(tmp_path, seed):
    draw, run = random.Random(-seed), any_program(seed)
    path = recorded(tmp_path, run, slower=draw.uniform(1.2, 3))
    slow_start = draw.uniform(1, 1.14)
    host_ns = {phase: slow_start * ns for phase, ns in emptied_step(run).items()}
    answer = fixes_of(partition(attribute(read(path))), unrecorded_step_ns=step_ns(run), host_ns=host_ns)
    assert answer.host_times_error == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize(("share", "says"), [(1.4, "longer"), (0.7, "shorter")])
def test_host_times_that_do_not_give_the_step_are_not_used(tmp_path, share, says):
    options = {"gemm": 3 * US}
    times = {phase: share * ns for phase, ns in emptied_step(**options).items()}
    answer, without = found(tmp_path, times, **options), found(tmp_path, {}, **options)
    assert not answer.host_times_used
    assert (answer.factors, answer.fixes, answer.silent) == (without.factors, without.fixes, without.silent)
    (sentence,) = not_used(answer)
    assert says in sentence
    basis = as_object(answer)["fix_basis"]
    assert basis["host_times_used"] is False
    assert abs(basis["host_times_error"]) > 0.08
    assert not not_used(without)


@pytest.mark.parametrize("share", [1, 1.4])
def test_view_fix_uses_the_mark_of_steps_beside_the_recording(tmp_path, capsys, share):
    machine = simulated(partial(program, gemm=3 * US), slower=SLOWER)
    host_ns = {phase: round(share * ns) for phase, ns in emptied_step(gemm=3 * US).items()}
    mark = {"clock": "gpu", "where": "after", "host_ns": host_ns, "step_ns": [round(true_step_ns(gemm=3 * US))]}
    text = f"nvtx-kernels unrecorded: {json.dumps(mark)}"
    machine.rows.ranges[:0] = [*annotation(), Range(text, 0, None, event=MARK, domain=OWN_DOMAIN)]
    report = write(tmp_path / "report.sqlite", machine.rows)
    assert opened(report).fixes.host_times_used == (share == 1)
    assert view_command.main(["fix", str(report)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ("The host's times by phase are not used" in shown) == (share != 1)


def test_phases_of_the_report_without_a_time_get_the_factor_of_all(tmp_path):
    times = emptied_step()
    answer = found(tmp_path, {"forward": times["forward"], "prefill": times.total() - times["forward"]})
    assert answer.host_times_used
    assert answer.host_times_error == pytest.approx(0, abs=0.08)
