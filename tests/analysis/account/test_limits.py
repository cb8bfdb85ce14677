"""What limits a phase: a report for each rule, and plain SQL on an H200's."""

import pytest
from nvtx_kernels.analysis import view
from nvtx_kernels.analysis.report.limits import limit

from tests.analysis.making.building import Launch, Range, Work, annotation, build, launched, module, thread
from tests.analysis.making.plain_sql import OURS, rows, value
from tests.analysis.making.subjects import by, summarized, table, viewed


def one_forward(tmp_path, *work):
    """Build a forward whose launches are (called, returned, started, ended)."""
    launches = [Launch(n, called, returned) for n, (called, returned, _, _) in enumerate(work)]
    done = [Work(n, started, ended) for n, (_, _, started, ended) in enumerate(work)]
    return build(tmp_path, ranges=[Range("forward", 0, 1000)], launches=launches, work=done)


def limits_of(path):
    """Return the rows of what limits each phase."""
    return {row.phase: row for row in summarized(path).busy}


VERDICTS = [
    # 40 of 100 busy, and each next launch returns only when the GPU has long been idle.
    ("launch-bound", [(10, 12, 100, 120), (170, 178, 180, 200)]),
    ("GPU-bound", [(10, 12, 100, 195), (14, 16, 199, 300)]),
    # It waits for launches, but for a fifth of the time only.
    ("undecided", [(10, 12, 100, 140), (158, 159, 160, 200)]),
    # The work was launched long ago: it is not for launches that the GPU is idle.
    ("between kernels", [(10, 12, 100, 120), (14, 16, 129, 140), (18, 20, 149, 160), (22, 24, 169, 180)]),
]


@pytest.mark.parametrize(("verdict", "work"), VERDICTS)
def test_the_limit_follows_from_busy_share_and_cause(tmp_path, verdict, work):
    limits = limits_of(one_forward(tmp_path, *work))
    assert {phase: row.verdict for phase, row in limits.items()} == {"forward": verdict, "all work": verdict}


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
    path = build(tmp_path, ranges=[Range("forward", 0, 1000)], launches=launches, work=done)
    assert limits_of(path)["forward"].verdict == verdict


BUSY, IDLE = {"compute": 30}, {"idle": 70}


@pytest.mark.parametrize(
    ("causes", "says"),
    [
        ({"launching": 35, "host code": 34}, "launch-bound"),
        ({"launching": 34, "host code": 36}, "host code"),
        ({"launching": 30, "host code": 20, "copy": 20}, "undecided"),
        ({"unknown": 70}, "undecided"),
    ],
)
def test_a_cause_with_half_of_the_idle_time_limits(causes, says):
    assert limit(0.3, BUSY | IDLE, causes) == says
    assert limit(0.75, BUSY | IDLE, causes) == "undecided"
    assert limit(0.9, BUSY | IDLE, causes) == "GPU-bound"


def test_idle_time_that_waits_for_a_launch_ends_when_the_call_returns(tmp_path):
    limits = limits_of(one_forward(tmp_path, (10, 12, 100, 120), (150, 170, 180, 200)))
    assert {(row.span_ns - row.busy_ns, row.waiting_ns) for row in limits.values()} == {(60, 50)}


def test_median_lag_is_that_of_sql():
    lags = [lag for (lag,) in rows(OURS, "SELECT start - called FROM during WHERE range = 'forward' ORDER BY 1")]
    row = by(viewed("idle", OURS, launches=True), "launches", "phase")["forward"]
    assert row["median_lag_ns"] == pytest.approx(lags[len(lags) // 2], rel=0.02)
    assert row["launches"] >= value(OURS, "SELECT count(*) FROM during WHERE range = 'forward'")


def test_idle_time_belongs_to_the_range_then_open(tmp_path):
    layers = [Range("layer 0", 5, 60), Range("layer 1", 100, 160)]
    ranges = [Range("forward", 0, 500), *layers, Range("loss", 200, 260)]
    path = build(tmp_path, ranges=ranges, **launched((10, 20), (110, 120), (210, 220), (230, 235)))
    idle = {}
    for row in table(viewed("idle", path, whole=True), "places"):
        idle[row["range"]] = idle.get(row["range"], 0) + row["idle_ns"]
    assert idle == {"forward": 40 + 40, "forward > layer *": 29 + 21 + 29, "forward > loss": 21 + 5}


def test_gpus_of_two_processes_are_told_apart(tmp_path):
    first, second = launched((10, 20), (40, 50)), launched((10, 20, thread(300)), first=1)
    ranges = [Range("forward", 0, 100), Range("forward", 0, 100, thread(300))]
    path = build(tmp_path, ranges=ranges, launches=first["launches"] + second["launches"],
                 work=first["work"] + second["work"])  # fmt: skip
    gpus = {gpu.gpu: gpu.total_own_ns for gpu in summarized(path).account.gpus}
    assert gpus == {"GPU 0 of 100": 40, "GPU 0 of 300": 10}


@pytest.mark.parametrize("modules", [4, 32])
def test_what_annotation_cost_is_reported(tmp_path, modules):
    """Its forward has so many modules, between whose two kernels the GPU waits for a millisecond."""
    inside = [module(f"layer {n}", 20_000 + 30_000 * n, 40_000 + 30_000 * n) for n in range(modules)]
    kernels = [Work(0, 100_000, 300_000), Work(1, 1_310_000, 1_500_000)]
    launches = [Launch(0, 10_000, 12_000), Launch(1, 1_200_000, 1_300_000)]
    ranges = [*annotation(), Range("forward", 0, 2_000_000), *inside]
    document = viewed("idle", build(tmp_path, ranges=ranges, launches=launches, work=kernels))
    said = f"Annotation adds about {30 * modules} µs to forward; kernel times are unaffected."
    assert said in document.notes


def test_work_without_duration_outside_the_steps_is_refused_in_a_sentence(tmp_path, capsys):
    path = build(tmp_path, ranges=[Range("step", 0, 500)], **launched((900, 910), (920, 930), lasts=0))
    assert view.main(["idle", str(path)]) == 1
    assert capsys.readouterr().err == "error: The GPU is never idle in what is measured.\n"
