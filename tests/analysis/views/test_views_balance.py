"""Does the GPU wait for launches: against plain Python on an H200's report, and on a report for each verdict."""

from dataclasses import replace

import pytest
from nvtx_kernels.analysis import view
from nvtx_kernels.analysis.errors import ReportError

from tests.analysis.making import building
from tests.analysis.making.building import Launch, Range, Work, annotation, build, launched, module, thread
from tests.analysis.making.plain_sql import OURS, rows, value
from tests.analysis.making.subjects import by, subject, table, viewed, viewer


def test_median_lag_is_that_of_sql():
    lags = [lag for (lag,) in rows(OURS, "SELECT start - called FROM during WHERE range = 'forward' ORDER BY 1")]
    row = by(viewed("balance", OURS), "queue", "phase")["forward"]
    assert row["median_lag_ns"] == pytest.approx(lags[len(lags) // 2], rel=0.02)
    assert row["kernels"] == value(OURS, "SELECT count(*) FROM during WHERE range = 'forward'")


def one_forward(tmp_path, *work):
    """Build a forward whose launches are (called, returned, started, ended)."""
    launches = [Launch(n, called, returned) for n, (called, returned, _, _) in enumerate(work)]
    done = [Work(n, started, ended) for n, (_, _, started, ended) in enumerate(work)]
    return build(tmp_path, ranges=[Range("forward", 0, 1000)], launches=launches, work=done)


VERDICTS = [
    # 40 of 100 busy, and each next launch returns only when the GPU has long been idle.
    ("launch-bound", [(10, 12, 100, 120), (170, 178, 180, 200)]),
    ("GPU-bound", [(10, 12, 100, 195), (14, 16, 199, 300)]),
    # It waits for launches, but for a fifth of the time only.
    ("undecided", [(10, 12, 100, 140), (158, 159, 160, 200)]),
    # The work was launched long ago: it is not for launches that the GPU is idle.
    ("between kernels", [(10, 12, 100, 120), (14, 16, 180, 200)]),
]


@pytest.mark.parametrize(("verdict", "work"), VERDICTS)
def test_verdict_follows_from_busy_share_and_launches(tmp_path, verdict, work):
    (row,) = table(viewed("balance", one_forward(tmp_path, *work)), "balance")
    assert (row["phase"], row["verdict"]) == ("forward", verdict)


FILLED = [
    ("copy-bound", 60, Work(1, 160, 300, "[copy]", "memcpy")),
    ("communication-bound", 60, Work(1, 160, 300, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")),
    ("GPU-bound", 60, Work(1, 160, 300, "sgemm")),
    ("GPU-bound", 200, Work(1, 160, 300, "[copy]", "memcpy")),  # the kernel runs besides
]


@pytest.mark.parametrize(("verdict", "kernel_ns", "other"), FILLED)
def test_a_busy_phase_is_bound_by_what_fills_it(tmp_path, verdict, kernel_ns, other):
    launches = [Launch(0, 10, 12), Launch(1, 14, 16)]
    done = [Work(0, 100, 100 + kernel_ns), other]
    report = build(tmp_path, ranges=[Range("forward", 0, 1000)], launches=launches, work=done)
    (row,) = table(viewed("balance", report), "balance")
    assert (row["phase"], row["verdict"]) == ("forward", verdict)


def test_idle_time_that_waits_for_a_launch_ends_when_the_call_returns(tmp_path):
    (row,) = table(viewed("balance", one_forward(tmp_path, (10, 12, 100, 120), (150, 170, 180, 200))), "balance")
    assert (row["idle_ns"], row["unlaunched_ns"]) == (60, 50)


def test_a_gap_belongs_to_the_range_that_launched_the_next_work(tmp_path):
    layers = [Range("layer 0", 5, 60), Range("layer 1", 100, 160)]
    ranges = [Range("forward", 0, 500), *layers, Range("loss", 200, 260)]
    report = build(tmp_path, ranges=ranges, **launched((10, 20), (110, 120), (210, 220), (230, 235)))
    gaps = by(viewed("balance", report), "gaps", "range")
    assert {name: (row["gaps"], row["idle_ns"], row["largest_ns"]) for name, row in gaps.items()} == {
        "layer *": (1, 90, 90), "loss": (2, 95, 90),
    }  # fmt: skip


def test_gpus_of_two_processes_are_told_apart(tmp_path):
    first, second = launched((10, 20), (40, 50)), launched((10, 20, thread(300)), first=1)
    ranges = [Range("forward", 0, 100), Range("forward", 0, 100, thread(300))]
    report = build(tmp_path, ranges=ranges, launches=first["launches"] + second["launches"],
                   work=first["work"] + second["work"])  # fmt: skip
    found = table(viewed("balance", report), "balance")
    assert [(row["gpu"], row["span_ns"]) for row in found] == [("GPU 0 of 100", 40), ("GPU 0 of 300", 10)]
    assert building.process_of(thread(300)) != building.process_of(thread(100))


def test_without_phases_and_steps_the_span_is_that_of_all_work(tmp_path):
    document = viewed("balance", build(tmp_path, **launched((10, 20), (40, 50))))
    assert [(row["phase"], row["span_ns"]) for row in table(document, "balance")] == [("all work", 40)]
    assert "No range opens a phase" in " ".join(document.notes)


@pytest.mark.parametrize(("phase", "where"), [(None, "of the steps"), ("forward", "of forward")])
def test_idle_gaps_say_whose_they_are(phase, where):
    *_, phases, gaps = viewed("balance", OURS, phase=phase).tables
    assert f"idle time {where}." in gaps.caption
    assert phases.caption.startswith("A long lag is good")


def test_gaps_of_a_phase_outside_the_steps_are_not_called_those_of_the_steps(tmp_path):
    ranges = [Range("step", 0, 90), Range("forward", 100, 190)]
    report = build(tmp_path, ranges=ranges, **launched((5, 10), (40, 45), (105, 110), (150, 155)))
    assert viewed("balance", report).tables[-1].caption.startswith("% is of the idle time of the spans above.")


def test_one_phase_alone_hides_the_others():
    (row,) = table(viewed("balance", OURS, phase="backward"), "balance")
    assert row["phase"] == "backward"


@pytest.mark.parametrize("name", ["balance", "overlap", "communication"])
def test_a_cpu_has_no_launches_to_wait_for(tmp_path, name):
    asked = subject(build(tmp_path, ranges=[Range("forward", 0, 100)], **launched((10, 20))))
    on_cpu = replace(asked.report.provenance, unit_of_work="CPU")
    with pytest.raises(ReportError, match="CPU"):
        viewer(name).view(replace(asked, report=replace(asked.report, provenance=on_cpu)))


def annotated_forward(folder, modules):
    """Build a forward of so many modules, between whose two kernels the GPU waits for a millisecond."""
    inside = [module(f"layer {n}", 20_000 + 30_000 * n, 40_000 + 30_000 * n) for n in range(modules)]
    kernels = [Work(0, 100_000, 300_000), Work(1, 1_310_000, 1_500_000)]
    launches = [Launch(0, 10_000, 12_000), Launch(1, 1_200_000, 1_300_000)]
    ranges = [*annotation(), Range("forward", 0, 2_000_000), *inside]
    folder.mkdir()
    return viewed("balance", build(folder, ranges=ranges, launches=launches, work=kernels))


def test_what_annotation_cost_is_reported_and_where_it_could_change_the_verdict(tmp_path):
    said = [" ".join(annotated_forward(tmp_path / str(modules), modules).notes) for modules in (4, 32)]
    assert "Annotation adds about 120 µs to forward; kernel times are unaffected." in said[0]
    assert "would be" not in said[0]
    assert "about 960 µs to forward;" in said[1]
    assert "Without this cost forward would be mixed" in said[1]


def test_work_without_duration_outside_the_steps_is_all_that_is_shown(tmp_path, capsys):
    report = build(tmp_path, ranges=[Range("step", 0, 500)], **launched((900, 910), (920, 930), lasts=0))
    assert view.main(["balance", str(report)]) == 0
    assert "\nall work " in capsys.readouterr().out


def test_a_step_of_which_only_phases_say_what_bounds_it_refers_to_them():
    shown = by(viewed("balance", OURS), "balance", "phase")
    assert [shown[name]["verdict"] for name in ("optimizer", "step")] == ["launch-bound", "see phases"]
