"""Programs whose phases end in a synchronization, so that a work's time says its phase: SQL tells the truth."""

import lzma
import sqlite3
from collections import Counter
from functools import cache

import pytest
from nvtx_kernels.analysis.attribution.causes import HOW, attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.report import per_step
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.vocabulary import PHASES

from tests.analysis.making.bundled import SHARED, needs_shared

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


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("h200")

    @cache
    def unpack(name):
        path = folder / f"{name}.sqlite"
        path.write_bytes(lzma.decompress((SHARED / "h200" / f"{name}.sqlite.xz").read_bytes()))
        return path

    return unpack


def within(path, *names):
    """Return the time of the work that ran within ranges of these names, ns."""
    query = WITHIN.replace("{wanted}", ", ".join("?" * len(names)))
    with sqlite3.connect(path) as database:
        return dict(database.execute(query, names).fetchall())


@needs_shared
def test_phases_of_fsdp_are_those_that_the_clock_tells(unpacked):
    report = summarize(attribute(read(unpacked("fsdp2_llama"))))
    found = {row.phase: row.work_ns for row in report.phases if row.phase in PHASE_NAMES}
    assert found == within(unpacked("fsdp2_llama"), *PHASE_NAMES)
    assert report.totals.ambiguous_ns == 0


@needs_shared
def test_steps_of_fsdp_leave_out_those_without_a_range(unpacked):
    path, steps = unpacked("fsdp2_llama"), ("step 0", "step 1", "step 2")
    report = summarize(attribute(read(path)))
    mean = per_step(report)
    assert mean.totals.work_ns * mean.steps == pytest.approx(sum(within(path, *steps).values()), abs=1)
    assert mean.totals.work_ns * mean.steps + mean.unmeasured_ns == pytest.approx(report.totals.work_ns, abs=1)
    assert mean.unmeasured_ns > report.totals.work_ns / 2, "three steps without a range, and loading"


@needs_shared
def test_a_pipelines_backward_is_what_autograd_launched_within_its_range(unpacked):
    path = unpacked("pipeline_1f1b")
    attribution = attribute(read(path))
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
