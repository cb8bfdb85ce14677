"""Programs whose phases end in a synchronization, so that a work's time says its phase: SQL tells the truth."""

import sqlite3
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from nvtx_kernels.analysis.attribution.causes import HOW
from nvtx_kernels.analysis.report import per_step
from nvtx_kernels.analysis.vocabulary import PHASES

from tests.analysis.making.bundled import needs_shared, unpacked
from tests.analysis.making.subjects import attributed, summarized

WORK = ("KERNEL", "MEMCPY", "MEMSET")
# Every piece of work within a range of some name, by time alone; the threads that launched it do not matter.
WITHIN = """
WITH names AS (SELECT start, end, globalTid >> 24 AS process, COALESCE(text, value) AS name
               FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId WHERE eventType = 59)
SELECT name, SUM(w.end - w.start)
FROM names n JOIN ({work}) w ON w.start >= n.start AND w.end <= n.end AND w.globalPid >> 24 = process
WHERE name IN ({wanted}) GROUP BY name
""".replace(
    "{work}", " UNION ALL ".join(f"SELECT start, end, globalPid FROM CUPTI_ACTIVITY_KIND_{t}" for t in WORK)
)
PHASE_NAMES = ("forward", "backward", "optimizer")


@cache
def report_of(name):
    return unpacked(f"h200/{name}.sqlite.xz", Path(mkdtemp()))


def within(path, *names):
    """Return the time of the work that ran within ranges of these names, ns."""
    query = WITHIN.replace("{wanted}", ", ".join("?" * len(names)))
    with sqlite3.connect(path) as database:
        return dict(database.execute(query, names).fetchall())


@needs_shared
def test_phases_of_fsdp_are_those_that_the_clock_tells():
    report = summarized(report_of("fsdp2_llama"))
    found = {row.phase: row.work_ns for row in report.phases if row.phase in PHASE_NAMES}
    assert found == within(report_of("fsdp2_llama"), *PHASE_NAMES)
    assert report.totals.ambiguous_ns == 0


@needs_shared
def test_steps_of_fsdp_leave_out_those_without_a_range():
    path, steps = report_of("fsdp2_llama"), ("step 0", "step 1", "step 2")
    report = summarized(path)
    mean = per_step(report)
    assert mean.totals.work_ns * mean.steps == pytest.approx(sum(within(path, *steps).values()), abs=1)
    assert mean.totals.work_ns * mean.steps + mean.unmeasured_ns == pytest.approx(report.totals.work_ns, abs=1)
    assert mean.unmeasured_ns > report.totals.work_ns / 2, "three steps without a range, and loading"


@needs_shared
def test_a_pipelines_backward_is_what_autograd_launched_within_its_range():
    path = report_of("pipeline_1f1b")
    attribution = attributed(path)
    counted, work, threads = Counter(), attribution.trace.work, attribution.trace.threads
    for row, (how, phase) in enumerate(zip(attribution.how, attribution.phase, strict=True)):
        thread = threads[attribution.trace.launches.thread[work.launch[row]]].name
        name = "autograd" if "autograd" in thread else "main"
        phase = PHASES[phase].replace("forward", "other")  # the range names two phases
        counted[name, HOW[how], phase] += int(work.end_ns[row] - work.start_ns[row])
    truth = within(path, "forward and backward", "optimizer")
    assert counted["main", "own", "optimizer"] == truth["optimizer"]
    assert (
        counted["main", "own", "other"] + counted["autograd", "adopted", "backward"]
        == truth["forward and backward"]
    )
    assert {key for key in counted if "autograd" in key} == {("autograd", "adopted", "backward")}
