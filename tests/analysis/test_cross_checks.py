"""All views of a report agree with each other and with brute force: docs/attribution.md lists equal sums.

Each is asked per step and in total, with and without warm-up, of the real reports and of made ones with what these
lack: several ranks, other threads' work inside a step, warm-up between steps, graphs that ran whole.
"""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from nvtx_kernels.analysis import report as reports
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.attribution.steps import in_measured_steps, measured_steps
from nvtx_kernels.analysis.errors import NoGpuWork
from nvtx_kernels.analysis.measures.agreement import phase_times
from nvtx_kernels.analysis.measures.balance import balance
from nvtx_kernels.analysis.measures.communication import communicated
from nvtx_kernels.analysis.measures.exchanges import exchanges
from nvtx_kernels.analysis.measures.overlap import overlap
from nvtx_kernels.analysis.measures.steps import steps_of
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.requirements import require_work
from nvtx_kernels.analysis.summary.totals import summarize

from tests.analysis.making.building import Launch, Range, Rows, Work, process_of, thread
from tests.analysis.making.bundled import DATA, SHARED, unpacked
from tests.analysis.making.states import states
from tests.analysis.making.traces import trace_of

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def made(*pieces, ranks=1, ranges=(), apart=0):
    """Return the rows of a report: pieces are (launched at, start, end, name, stream[, thread]) of each rank.

    One launched at None has lost its launch. Ranks are `apart` from one another in time.
    """
    rows = Rows()
    for rank in range(ranks):
        main, later = thread(100 + rank), rank * apart
        for name, start, end in ranges:
            rows.ranges.append(Range(name, start + later, end + later, main))
        for at, start, end, name, stream, *other in pieces:
            number, on = len(rows.launches), thread(100 + rank, 500) if other else main
            kind = "graph" if name == "graph" else "memcpy" if name == 1 else "kernel"
            if at is not None:
                rows.launches.append(Launch(number, at + later, at + later + 1, on))
            begin, end_ns = start + rank + later, end + 2 * rank + later
            launch = None if at is None else number
            rows.work.append(Work(launch, begin, end_ns, name, kind, process_of(main), device=rank, stream=stream))
    return rows


STEPS = [
    ("warm-up", 0, 90),
    ("step 1", 100, 190),
    ("forward", 101, 150),
    ("step 2", 200, 290),
    ("forward", 201, 250),
]
MADE = {
    "another thread keeps the GPU busy": made(
        (110, 120, 140, "sgemm", 7), (160, 200, 210, "sgemm", 7), (210, 220, 230, "sgemm", 7),
        (5, 100, 290, "sgemm", 9, "other"), ranges=STEPS,
    ),
    "compute of warm-up and of no step hides": made(
        (10, 20, 125, "sgemm", 7), (110, 120, 140, ALL_REDUCE, 8), (120, 150, 160, "sgemm", 7),
        (193, 155, 240, "sgemm", 9), (210, 230, 260, ALL_REDUCE, 8), (220, 270, 280, 1, 9), ranges=STEPS,
    ),
    "warm-up between what is measured": made(
        (2, 3, 8, "sgemm", 7), (20, 30, 50, "sgemm", 7), (21, 60, 80, "sgemm", 7), (110, 120, 140, "sgemm", 7),
        (111, 130, 160, ALL_REDUCE, 8), ranges=[("warm-up", 10, 90), ("forward", 100, 190)],
    ),
    "two ranks": made(
        (110, 120, 140, ALL_REDUCE, 8), (120, 130, 160, "sgemm", 7), (210, 230, 260, ALL_REDUCE, 8),
        (220, 235, 240, "sgemm", 9), ranks=2, ranges=STEPS,
    ),
    "graphs that ran whole": made(
        (110, 120, 140, "graph", 7), (120, 125, 150, ALL_REDUCE, 8), (210, 230, 260, "graph", 7), ranges=STEPS,
    ),
    "steps overlap on the GPU": made(
        (110, 120, 230, "sgemm", 7), (210, 200, 260, "sgemm", 8), (220, 250, 280, ALL_REDUCE, 8), ranges=STEPS,
    ),
    "ranks half a step apart": made(
        (110, 120, 140, ALL_REDUCE, 8), (120, 130, 160, "sgemm", 7), (210, 230, 260, ALL_REDUCE, 8),
        (220, 235, 240, "sgemm", 9), ranks=2, ranges=STEPS, apart=50,
    ),
    "a lost launch": made(
        (110, 120, 140, "sgemm", 7), (None, 130, 190, "sgemm", 8), (210, 230, 260, ALL_REDUCE, 8), ranges=STEPS,
    ),
    "no steps and no ranges": made((10, 20, 30, "sgemm", 7), (15, 25, 60, ALL_REDUCE, 8), (70, 90, 95, 1, 7)),
}  # fmt: skip
REAL = sorted(path for folder in (DATA, SHARED / "h200", SHARED / "corpus") for path in folder.glob("*.sqlite*"))


@cache
def attributed(name):
    """Attribute all work of a made or a real report."""
    if name in MADE:
        return attribute(trace_of(MADE[name]))
    path = Path(name)
    return attribute(read(unpacked(name, Path(mkdtemp())) if path.suffix == ".xz" else path))


def cases():
    for name in [*MADE, *map(str, REAL)]:
        for per_step in (False, True):
            for include_warm_up in (False, True):
                yield pytest.param(
                    name, per_step, include_warm_up, id=f"{Path(name).name[:24]}-{per_step:d}{include_warm_up:d}"
                )


@pytest.mark.parametrize(("name", "per_step", "include_warm_up"), [*cases()])
def test_all_views_agree_with_each_other_and_with_brute_force(name, per_step, include_warm_up):
    whole = attributed(name)
    try:
        require_work(whole.trace)
    except NoGpuWork:
        pytest.skip("nothing ran on a GPU")
    if whole.trace.provenance.unit_of_work == "CPU":
        pytest.skip("of a CPU, which has no such states")
    counted = {"include_warm_up": include_warm_up}
    if per_step and not len(measured_steps(whole, **counted)):
        pytest.skip("no measured steps")
    expected = states(whole, per_step=per_step, include_warm_up=include_warm_up)
    seen = in_measured_steps(whole, **counted) if per_step else whole
    of_gpus, of_states = overlap(seen, **counted), balance(seen, **counted)
    assert sorted(
        (gpu.span_ns, gpu.busy_ns, gpu.compute_ns, gpu.communication_ns, gpu.hidden_ns) for gpu in of_gpus.gpus
    ) == sorted(
        tuple(times[key] for key in ("span", "busy", "compute", "communication", "hidden"))
        for times in expected.values()
    )
    if per_step or of_states.phases[0].name == "all work":
        rows = [row for row in of_states.phases if row.name in ("step", "all work")]
        assert [(row.gpu, row.span_ns, row.busy_ns) for row in rows] == [
            (gpu.gpu, gpu.span_ns, gpu.busy_ns) for gpu in of_gpus.gpus
        ]
        assert sum(owner.idle_ns for owner in of_states.owners) <= sum(row.idle_ns for row in rows)
    sums = communicated(exchanges(seen, **counted)).gpus
    for gpu in of_gpus.gpus:
        if gpu.communication_ns:
            assert (sums[gpu.gpu].time_ns, sums[gpu.gpu].hidden_ns) == (gpu.communication_ns, gpu.hidden_ns)
    report = summarize(whole, **counted)
    shown = (report.measured or report) if per_step else report
    kernel_ns = sum(times["kernel"] for times in expected.values())
    kernels = [row for row in shown.kernels if row.kind == "kernel"]
    assert sum(row.total_ns for row in kernels) == kernel_ns
    assert sum(row.kernel_ns for row in shown.phases) == kernel_ns
    assert sum(row.total_ns for row in report.kernels) + report.totals.excluded_ns == report.totals.work_ns
    if per_step:
        assert sum(step.kernel_ns for step in steps_of(whole, **counted)) == kernel_ns
        assert report.steps == len(measured_steps(whole, **counted))
        times = {row.name: row.kernel_ns for row in phase_times(seen, **counted)}
        assert times["step"] == kernel_ns
        assert sum(row.self_ns for row in shown.ranges) == kernel_ns
        mean = reports.per_step(report)
        assert sum(row.total_ns for row in mean.kernels if row.kind == "kernel") == pytest.approx(
            kernel_ns / report.steps
        )
    for row in shown.busy:
        of_phase = [each for each in of_states.phases if each.name == row.phase]
        assert (row.span_ns, row.busy_ns, row.kernels) == tuple(
            sum(getattr(each, key) for each in of_phase) for key in ("span_ns", "busy_ns", "kernels")
        )
