"""Backward that only threads tell, and forward that backward computes again, in the views by phase."""

from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.measures.agreement import phase_times
from nvtx_kernels.analysis.measures.steps import steps_of
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.report import per_step
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.views.overview import overview
from nvtx_kernels.analysis.vocabulary import PHASES

from tests.analysis.making.building import AUTOGRAD, Range, build, launched

NAMED = {AUTOGRAD: "pt_autograd_0"}
# A step that opens no backward range: (20, 22) is forward's, (320, 322) autograd's.
STEP = [Range("step", 0, 1000), Range("forward", 10, 200)]
CALLS = [(20, 22), (320, 322, AUTOGRAD)]


def attributed(folder, *ranges, calls=CALLS):
    return attribute(read(build(folder, ranges=[*STEP, *ranges], thread_names=NAMED, **launched(*calls))))


def test_backward_that_only_its_thread_tells_is_in_every_view_by_phase(tmp_path):
    found = attributed(tmp_path)
    (step,) = steps_of(found)
    phase_ns = dict(zip(PHASES, step.phase_ns, strict=True))
    assert phase_ns == dict.fromkeys(PHASES, 0) | {"forward": 10, "backward": 10}
    launches = {row.phase: row.kernels for row in summarize(found).busy}
    assert (launches["forward"], launches["backward"], launches["step"]) == (1, 1, 2)
    times = {row.name: (row.ranges, row.cpu_ns, row.kernel_ns, row.verdict) for row in phase_times(found)}
    assert times["backward"] == (0, None, 10, "no range")
    assert {row.phase: row.kernel_ns for row in summarize(found).phases} == {"forward": 10, "backward": 10}


def test_rows_of_one_path_say_their_phases(tmp_path):
    shown = overview(summarize(attributed(tmp_path, calls=[(300, 302), *CALLS])), with_kernels=True).tables
    names = {str(row.values[0]) for table in shown if table.key == "ranges" for row in table.rows}
    assert {"step (other)", "step (backward)"} <= names, names


def test_work_outside_the_steps_is_in_no_mean(tmp_path):
    warm, late = [Range("forward", 2000, 2090)], (2010, 2020)
    report = summarize(attributed(tmp_path, *warm, calls=[*CALLS, late]))
    mean = per_step(report)
    assert (report.totals.work_ns, mean.totals.work_ns, mean.unmeasured_ns) == (30, 20, 10)
    assert {row.phase: row.kernels for row in mean.phases} == {"forward": 1, "backward": 1}
    assert {row.path: row.instances for row in mean.ranges} == {("step",): 1, ("step", "forward"): 1}
    left_out = "Left out: 10 ns in no step: set-up or evaluation (--totals counts it)."
    assert overview(mean, with_kernels=True).accounting[-1] == left_out
