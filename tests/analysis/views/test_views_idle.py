"""Why the GPU is idle: a report of a few rows for each rule, planted programs, and all reports."""

import json
import lzma

import numpy as np
import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.measures.idle import CAUSES, idle_time
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.views import idle_words, verdict
from nvtx_kernels.analysis.vocabulary import SETTING_HOOKS
from nvtx_kernels.analysis.vocabulary.calls import CALL_KINDS, CALL_RULES, kind_of_call

import nvtx_kernels as nk
from tests.analysis.making.building import (
    AUTOGRAD,
    MAIN,
    OWN_DOMAIN,
    START_END,
    TIMELINE,
    WORKER,
    Launch,
    Overhead,
    Range,
    Work,
    annotation,
    build,
)
from tests.analysis.making.bundled import SHARED, needs_shared
from tests.analysis.making.stacks import Event, launch
from tests.analysis.making.stacks import write as write_trace
from tests.analysis.making.subjects import REPORTS, attributed, screen, table, viewed

US = 1000
SYNC, MALLOC, FREE, COPY = (
    "cudaDeviceSynchronize_v3020",
    "cudaMalloc_v3020",
    "cudaFree_v3020",
    "cudaMemcpyAsync_v3020",
)
QUERY = "cudaEventQuery_v3020"
LOAD, RECORD, GRAPH = "cuLibraryLoadData", "cudaEventRecord_v3020", "cudaGraphLaunch_v10000"


def call(start, end, name="cudaLaunchKernel_v7000", correlation=None, thread=MAIN):
    """Return a call, in microseconds."""
    return Launch(correlation, start * US, end * US, thread, name=name)


def ran(start, end, correlation, name="a", **more):
    """Return a kernel, in microseconds."""
    return Work(correlation, start * US, end * US, name, **more)


FIRST = call(0, 5, correlation=1)
LAST_AT_225 = call(225, 230, correlation=2)


def report(folder, calls, work, **more):
    """Write a report whose GPU is idle from 20 µs on: a kernel ran from 10 to 20 µs, launched from 0 to 5."""
    ranges = [Range("step", 0, 2_000 * US), *more.pop("ranges", ())]
    return build(folder, ranges=ranges, launches=[FIRST, *calls], work=[ran(10, 20, 1), *work], **more)


#: What the CPU did, what the GPU then did, and the expected causes with their times in µs.
RULES = {
    "a launch": ([call(25, 30, correlation=2)], [ran(31, 40, 2)], {"launching": 10, "latency": 1}),
    "host code": ([LAST_AT_225], [ran(231, 240, 2)], {"host code": 205, "launching": 5, "latency": 1}),
    "host code of 99 µs": ([call(104, 105, correlation=2)], [ran(106, 110, 2)], {"launching": 85, "latency": 1}),
    "host code of 100 µs": (
        [call(105, 106, correlation=2)],
        [ran(107, 110, 2)],
        {"host code": 85, "launching": 1, "latency": 1},
    ),
    "a wait between launches": (
        [call(6, 24, SYNC), call(60, 65, correlation=2)],
        [ran(66, 70, 2)],
        {"synchronization": 4, "launching": 41, "latency": 1},
    ),
    **{
        name: (
            [call(22, 72, *of_call), call(75, 80, correlation=2)],
            [ran(81, 90, 2)],
            {"launching": 10, cause: 50, "latency": 1},
        )
        for name, of_call, cause in (
            ("polling", [QUERY], "synchronization"),
            ("an allocation", [MALLOC], "allocation"),
            ("a copy's call", [COPY, 3], "copy"),
            ("loading of a module", [LOAD], "module loading"),
        )
    },
    "a free in a call of no kind": (
        [call(22, 90, RECORD), call(30, 60, FREE), call(95, 97, correlation=2)],
        [ran(98, 99, 2)],
        {"allocation": 30, "launching": 47, "latency": 1},
    ),
    "loading in a launch": (
        [call(30, 70, LOAD), call(25, 75, correlation=2)],
        [ran(76, 90, 2)],
        {"launching": 5, "module loading": 50, "latency": 1},
    ),
    "a kernel's long first launch": (
        [call(25, 126, correlation=2)],
        [ran(127, 130, 2, "b")],
        {"launching": 5, "module loading": 101, "latency": 1},
    ),
    "a kernel's long second launch": (
        [call(25, 126, correlation=2)],
        [ran(127, 130, 2, "a")],
        {"launching": 106, "latency": 1},
    ),
    "a kernel's short first launch": (
        [call(25, 125, correlation=2)],
        [ran(126, 130, 2, "b")],
        {"launching": 105, "latency": 1},
    ),
    "launched before": ([call(6, 8, correlation=2)], [ran(30, 40, 2)], {"between kernels": 10}),
    "launched long before": ([call(6, 8, correlation=2)], [ran(31, 40, 2)], {"queue": 11}),
    "begun late": ([call(25, 30, correlation=2)], [ran(41, 50, 2)], {"launching": 10, "queue": 11}),
    "a graph's nodes": (
        [call(25, 30, GRAPH, 2)],
        [ran(31, 40, 2), ran(43, 50, 2)],
        {"launching": 10, "latency": 1, "between kernels": 3},
    ),
}


def causes_of(path, *, between=False):
    """Return the µs of each cause in the steps, or between them."""
    idle = idle_time(attribute(read(path)))
    chosen = idle.windows.between[idle.window_of_piece] == between
    sums = np.bincount(idle.pieces.cause[chosen], idle.pieces.duration_ns[chosen], len(CAUSES)) / US
    return {cause: us for cause, us in zip(CAUSES, sums.tolist(), strict=True) if us}


@pytest.mark.parametrize(("calls", "work", "expected"), RULES.values(), ids=RULES)
def test_each_rule_gives_idle_time_its_cause(tmp_path, calls, work, expected):
    assert causes_of(report(tmp_path, calls, work)) == expected


def test_the_profilers_own_time_is_the_profilers(tmp_path):
    flush = [Overhead(40 * US, 60 * US), Overhead(70 * US, 80 * US, WORKER)]
    path = report(tmp_path, [call(90, 95, correlation=2)], [ran(96, 99, 2)], overhead=flush)
    assert causes_of(path) == {"launching": 55, "profiler": 20, "latency": 1}


@pytest.mark.parametrize("thread", [MAIN, AUTOGRAD])
@pytest.mark.parametrize("names", [annotation(), []], ids=["named", "after a capture began"])
def test_setting_hooks_is_the_profilers(tmp_path, names, thread):
    hooks = Range(SETTING_HOOKS, 40 * US, 60 * US, domain=OWN_DOMAIN, event=START_END, category=TIMELINE)
    following = Launch(2, 90 * US, 95 * US, thread)
    path = report(tmp_path, [following], [ran(96, 99, 2)], ranges=[*names, hooks])
    assert causes_of(path) == {"launching": 55, "profiler": 20, "latency": 1}


@pytest.mark.parametrize(
    ("name", "cause"), [("Lazy Function Loading", "module loading"), ("Activity Buffer Request", "profiler")]
)
def test_what_a_trace_calls_overhead_is_loading_or_the_profilers(tmp_path, name, cause):
    overhead = Event(name, 200 * US, 500 * US, "overhead")
    step_0 = Event("ProfilerStep#0", 0, 1_000 * US, "user_annotation")
    path = write_trace(tmp_path / "trace.json", step_0, launch(1, 10 * US), overhead, launch(2, 950 * US))
    assert causes_of(path)[cause] == 300


@pytest.mark.parametrize(("waits", "exposed_by"), [(24, "cudaDeviceSynchronize"), (None, None)])
def test_host_code_after_a_wait_names_the_call(tmp_path, waits, exposed_by):
    calls = [call(6, waits, SYNC)] if waits else []
    path = report(tmp_path, [*calls, LAST_AT_225], [ran(231, 240, 2)])
    pieces = nk.idle(path, pieces=True).set_index("cause")
    assert pieces.loc["host code", "exposed_by"] == exposed_by or (exposed_by is None and not waits)


def test_a_prefetchers_copy_does_not_decide(tmp_path):
    copies = [call(60, 64, COPY, 3, WORKER), LAST_AT_225]
    path = report(tmp_path, copies, [ran(65, 70, 3, kind="memcpy"), ran(231, 240, 2)])
    assert causes_of(path) == {"host code": 45 + 155, "launching": 5, "latency": 1}


def test_work_without_a_launch_has_an_unknown_cause(tmp_path):
    path = build(tmp_path, launches=[FIRST], work=[ran(10, 20, 1), ran(31, 40, 9)])
    assert causes_of(path) == {"unknown": 11}
    assert "The cause of 11.00 µs is unknown" in screen(viewed("idle", path))


@pytest.mark.parametrize(("thread", "expected"), [(AUTOGRAD, "launching"), (WORKER, "host code")])
def test_threads_that_run_in_turn_are_one(tmp_path, thread, expected):
    ranges = [Range("backward", 8 * US, 300 * US), Range("helper", 1, 300 * US, WORKER)]
    launches = [FIRST, call(60, 65, correlation=2, thread=thread), call(70, 75, correlation=3)]
    work = [ran(10, 20, 1), ran(66, 90, 2), ran(91, 95, 3)]
    names = {AUTOGRAD: "pt_autograd_0", WORKER: "prefetch"}
    path = build(tmp_path, ranges=ranges, launches=launches, work=work, thread_names=names)
    causes = causes_of(path)
    assert causes.pop(expected) >= 40
    assert sum(causes.values()) <= 8


def steps(folder, *, warm_up=False):
    """Write two steps with a loader of 400 µs between them, or with a step of warm-up there."""
    names = [("step", 0, 100), ("step", 500, 600)]
    launches, work = [call(0, 5, correlation=1), call(505, 510, correlation=2)], [ran(10, 50, 1), ran(511, 550, 2)]
    if warm_up:
        names.append(("warmup step", 200, 300))
        launches.append(call(205, 210, correlation=3))
        work.append(ran(211, 220, 3))
    ranges = [Range(name, start * US, end * US) for name, start, end in names]
    return build(folder, ranges=ranges, launches=launches, work=work)


def test_a_loader_outside_of_the_steps_is_idle_time_between_them(tmp_path):
    path = steps(tmp_path)
    assert causes_of(path) == {}
    assert causes_of(path, between=True) == {"host code": 455, "launching": 5, "latency": 1}
    told = verdict.verdict(summarize(attribute(read(path))))
    assert "idle for 461 µs in a typical step, 455 µs of it due to host code" in told


def test_what_warm_up_separates_is_not_between_steps(tmp_path):
    assert causes_of(steps(tmp_path, warm_up=True), between=True) == {}


#: The planted programs: the cause that the answer names, and ms per step of the causes.
PLANTED = {
    "loader": ("host code", {"module loading": 17.40, "host code": 13.49}),
    "launch": ("launching", {"module loading": 13.59, "launching": 3.37, "host code": 1.51}),
    "malloc": ("allocation", {"module loading": 15.68, "allocation": 5.50, "host code": 1.26}),
    "gc": ("host code", {"host code": 176.68, "module loading": 14.44}),
}


@needs_shared
@pytest.mark.parametrize("name", PLANTED)
def test_planted_causes_are_found(tmp_path, name):
    path, (headline, expected) = tmp_path / "report.sqlite", PLANTED[name]
    path.write_bytes(lzma.decompress((SHARED / f"idle/{name}.sqlite.xz").read_bytes()))
    causes = table(viewed("idle", path, per_step=True), "idle")
    found = {row["cause"]: row["idle_ns"] / 1e6 for row in causes}
    assert {cause: found[cause] for cause in expected} == pytest.approx(expected, abs=0.006)
    planted = json.loads((SHARED / "idle/truth.json").read_text())[name]
    assert sum(row["idle_ns"] for row in causes) == pytest.approx(planted["idle_ns"], abs=1)
    told = verdict.verdict(summarize(attributed(path)))
    assert idle_words.DURING.get(headline, f"due to {headline}") in told
    assert "Step 0 loads modules: " in told


def test_one_pause_is_told_with_what_remains_without_it(tmp_path):
    calls = [call(at, at + 2, correlation=number) for number, at in enumerate((0, 30, 90_000, 90_030), 1)]
    work = [ran(at, at + 5, number) for number, at in enumerate((3, 33, 90_003, 90_033), 1)]
    ranges = [Range("warm", 0, 50 * US), Range("fit", 89_000 * US, 91_000 * US)]
    told = verdict.verdict(summarize(attribute(read(build(tmp_path, ranges=ranges, launches=calls, work=work)))))
    assert "90.0 ms of it is one pause, between warm and fit, 35.0 µs after the first work." in told
    assert "Without it the GPU is busy" in told


def test_a_gpu_without_gaps_is_told_in_a_sentence(tmp_path):
    path = build(tmp_path, ranges=[Range("step", 0, 100)], launches=[Launch(1, 1, 2)], work=[Work(1, 3, 9)])
    with pytest.raises(ReportError, match="The GPU is never idle"):
        viewed("idle", path)


def test_copies_alone_are_shown_beside_idle_time(tmp_path):
    calls = [call(21, 24, COPY, 3), call(60, 65, correlation=2)]
    path = report(tmp_path, calls, [ran(25, 55, 3, kind="memcpy"), ran(66, 70, 2)])
    (alone,) = table(viewed("idle", path), "alone")
    assert (alone["kind"], alone["time_ns"]) == ("only copies ran", 30 * US)
    assert "GPU busy with copies or communication only" in screen(viewed("idle", path))


@pytest.mark.parametrize("rule", CALL_RULES, ids=lambda rule: CALL_KINDS[rule.kind])
def test_names_of_calls_have_their_kind(rule):
    assert {kind_of_call(name) for name in rule.examples} == {rule.kind}
    assert rule.kind not in {kind_of_call(name) for name in rule.near_misses}


def test_idle_frames_keep_their_columns_and_name_the_cause():
    path = REPORTS[-1]
    frame, pieces = nk.idle(path), nk.idle(path, pieces=True)
    assert list(frame)[:6] == ["range", "idle_ns", "share", "gaps", "largest_ns", "unlaunched_share"]
    assert set(frame["cause"]) <= set(CAUSES)
    assert set(pieces["cause"]) <= set(CAUSES)
    assert ((pieces["end_ns"] - pieces["start_ns"]) > 0).all()
