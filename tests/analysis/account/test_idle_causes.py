"""Why the GPU is idle: a report of a few rows for each rule, and planted programs."""

import json

import numpy as np
import pytest
from nvtx_kernels.analysis.account.cells import Gpus
from nvtx_kernels.analysis.account.gaps import gaps_of
from nvtx_kernels.analysis.account.idle import CAUSES, Pieces, pieces_of
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.report.account import COPY as COPIES
from nvtx_kernels.analysis.views.verdict import verdict
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
from tests.analysis.making.bundled import SHARED, needs_shared, unpacked
from tests.analysis.making.stacks import Event, launch
from tests.analysis.making.stacks import write as write_trace
from tests.analysis.making.subjects import screen, summarized, viewed

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


def causes_of(path):
    """Return the µs of each cause in all gaps between work."""
    attribution = attribute(read(path))
    gpus = Gpus(attribution.trace)
    gaps = gaps_of(attribution.trace, gpus.of_work)
    pieces = Pieces.joined([*pieces_of(attribution, gaps, gpus.of_work)])
    assert pieces.duration_ns.sum() == gaps.duration_ns.sum()
    return by_cause(zip(pieces.cause.tolist(), pieces.duration_ns.tolist(), strict=True))


def by_cause(pieces):
    """Add up pieces of (cause, ns), and return µs by the cause's name."""
    sums = np.zeros(len(CAUSES))
    for cause, ns in pieces:
        sums[cause] += ns / US
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


LOADING = {"data loading": 220 + 26, "host code": 10, "launching": 30}
NOT_LOADING = {"host code": 10 + 220, "launching": 26 + 30}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("enumerate(DataLoader)#__next__", LOADING), ("load_batch", LOADING), ("augment", NOT_LOADING)],
)
def test_a_gpu_waits_for_data_while_a_range_that_loads_is_open(tmp_path, name, expected):
    """Also what it launches then, but not its copies."""
    calls = [call(250, 270, COPY, 3), call(325, 330, correlation=2)]
    work = [ran(272, 274, 3, kind="memcpy"), ran(331, 340, 2)]
    path = report(tmp_path, calls, work, ranges=[Range(name, 30 * US, 300 * US)])
    assert causes_of(path) == expected | {"copy": 20, "latency": 3}


@pytest.mark.parametrize("names", [(), ("dataloader.py(9): __next__", "collate.py(1): collate")])
def test_a_function_that_loads_and_what_it_calls_are_data_loading(tmp_path, names):
    frames = [Event(name, (200 + 10 * n) * US, (800 - 10 * n) * US) for n, name in enumerate(names)]
    step_0 = Event("ProfilerStep#0", 0, 1_000 * US, "user_annotation")
    path = write_trace(tmp_path / "trace.json", step_0, launch(1, 10 * US), *frames, launch(2, 950 * US))
    assert causes_of(path).get("data loading", 0) == (600 if names else 0)


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


def test_a_loader_outside_of_the_steps_is_idle_time_of_the_next_step(tmp_path):
    path = steps(tmp_path)
    assert causes_of(path) == {"host code": 455, "launching": 5, "latency": 1}
    (gpu,) = summarized(path).account.gpus
    assert (gpu.steps, gpu.total_own_ns, gpu.idle_ns) == (1, 500 * US, 461 * US)
    assert {cause.cause: cause.total_ns / US for cause in gpu.causes} == causes_of(path)
    told = verdict(summarized(path))
    assert "461 µs (92%) idle, 39.0 µs (8%) computing" in told
    assert "The GPU is idle mostly while the CPU runs Python and other host code (455 µs)" in told


def test_what_warm_up_separates_is_not_between_steps(tmp_path):
    account = summarized(steps(tmp_path, warm_up=True)).account
    assert account.taken_out_ns == {"warm-up": 170 * US}
    assert account.rows[-1].own_ns == (500 - 170) * US


#: The planted programs: ms of their main causes in a step.
PLANTED = {
    "loader": {"host code": 13.72},
    "launch": {"launching": 3.40, "host code": 0.92, "latency": 0.34},
    "malloc": {"allocation": 5.36, "host code": 1.37},
    "gc": {"host code": 176.52},
}


@needs_shared
@pytest.mark.parametrize("name", PLANTED)
def test_planted_causes_are_those_of_a_step(tmp_path, name):
    account = summarized(unpacked(f"idle/{name}.sqlite.xz", tmp_path)).account
    (gpu,) = account.gpus
    causes = {cause.cause: cause.total_ns / gpu.steps / 1e6 for cause in gpu.causes}
    assert {cause: causes[cause] for cause in PLANTED[name]} == pytest.approx(PLANTED[name], abs=0.006)
    assert [*causes][: len(PLANTED[name])] == [*PLANTED[name]]
    (slow,) = account.outlying
    assert (slow.step, slow.more.what) == (0, "module loading")


@needs_shared
@pytest.mark.parametrize("name", PLANTED)
def test_idle_time_within_the_steps_is_what_the_programs_were_measured_to_have(tmp_path, name):
    rows = summarized(unpacked(f"idle/{name}.sqlite.xz", tmp_path)).account.rows
    idle_ns = [row.window_ns - (row.busy_ns - row.between_busy_ns) + row.recorder_ns for row in rows]
    truth = json.loads((SHARED / "idle/truth.json").read_text())[name]
    assert sum(idle_ns) / len(rows) == pytest.approx(truth["idle_ns"], abs=1)


def test_one_pause_is_told_with_what_remains_without_it(tmp_path):
    calls = [call(at, at + 2, correlation=number) for number, at in enumerate((0, 30, 90_000, 90_030), 1)]
    work = [ran(at, at + 5, number) for number, at in enumerate((3, 33, 90_003, 90_033), 1)]
    ranges = [Range("warm", 0, 50 * US), Range("fit", 89_000 * US, 91_000 * US)]
    told = verdict(summarized(build(tmp_path, ranges=ranges, launches=calls, work=work)))
    assert "90.0 ms is one pause, between warm and fit, 35.0 µs after the first work." in told
    assert "Without it the GPU is busy" in told


def test_a_gpu_without_gaps_is_told_in_a_sentence(tmp_path):
    path = build(tmp_path, launches=[Launch(1, 1, 2)], work=[Work(1, 3, 9)])
    with pytest.raises(ReportError, match="The GPU is never idle"):
        viewed("idle", path)


def test_copies_that_nothing_hides_are_no_idle_time(tmp_path):
    calls = [call(21, 24, COPY, 3), call(60, 65, correlation=2)]
    path = report(tmp_path, calls, [ran(25, 55, 3, kind="memcpy", name=1), ran(66, 70, 2)])
    (gpu,) = summarized(path).account.gpus
    assert gpu.total_ns(kind=COPIES) == gpu.total_ns(what="to GPU") == 30 * US
    assert "30.0 µs (43%) copies to GPU" in verdict(summarized(path))


@pytest.mark.parametrize("rule", CALL_RULES, ids=lambda rule: CALL_KINDS[rule.kind])
def test_names_of_calls_have_their_kind(rule):
    assert {kind_of_call(name) for name in rule.examples} == {rule.kind}
    assert rule.kind not in {kind_of_call(name) for name in rule.near_misses}
