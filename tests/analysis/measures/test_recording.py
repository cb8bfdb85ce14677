"""A step without its recording: by marks of timed steps, as given by hand, and when neither is trusted."""

import json

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.measures.recording import OTHER_WORK
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.readers.marks import read_mark
from nvtx_kernels.analysis.report import as_object
from nvtx_kernels.analysis.report.recording import Recording
from nvtx_kernels.analysis.views.verdict import verdict

import nvtx_kernels as nk
from tests.analysis.making.building import MAIN, MARK, Launch, Range, Work, build
from tests.analysis.making.subjects import SHARED, by, subject, viewed

MS = 1_000_000
TIMED = {
    "version": 1, "clock": "gpu", "step_ns": [40 * MS, 41 * MS, 40 * MS], "where": "after", "shape": "fbA",
    "sizes": 64, "span_ns": {"forward": [12 * MS], "backward": [20 * MS], "optimizer": [6 * MS]},
    "allocations": [10, 1000], "dropped": {"unsettled": 4},
}  # fmt: skip
MEASURED = {"shapes": ["fbA"] * 3, "sizes": [64] * 3, "allocations": [[10, 1000]] * 3}
#: What steps of batches that vary measure.
VARYING = MEASURED | {"allocations": [[8, 1000], [10, 1000], [11, 1000]]}
KEYS = ["step_ns", "unrecorded_step_ns", "unrecorded_low_ns", "unrecorded_high_ns", "clock", "steps", "phases",
        "trusted", "reason", "factors", "pauses_ns", "is_upper_limit"]  # fmt: skip


def recorded(folder, timed=None, measured=None, *, busy=0.602, before=False, pause_ms=0):
    """Write three steps of 60 ms while recorded: a pause, and three phases in which the GPU works for 36.1."""
    ranges, launches, work = [], [], []
    if before:
        launches.append(Launch(99, 1, 2))
        work.append(Work(99, 3, 4))
    for step in range(3):
        at = 10 * MS + 60 * MS * step
        ranges.append(Range("step", at, at + 60 * MS))
        for phase, begin, end in (("forward", pause_ms, 18), ("backward", 18, 50), ("optimizer", 50, 60)):
            ranges.append(Range(phase, at + begin * MS, at + end * MS))
            lasts = int((end - begin) * MS * busy)
            for piece in range(2):  # at both ends of the phase
                number, half = len(launches), lasts // 2
                start = at + begin * MS + 1000 if not piece else at + end * MS - half
                launches.append(Launch(number, start - 900, start - 800))
                work.append(Work(number, start, start + half - 2000))
    for name, mark in (("unrecorded", timed), ("recorded", measured)):
        if mark is not None:
            text = f"nvtx-kernels {name}: {json.dumps(mark)}"
            ranges.append(Range(text, 200 * MS, None, MAIN, 0, MARK))
    return build(folder, ranges=ranges, launches=launches, work=work)


def told(path):
    return as_object(subject(path, per_step=True).report)["report"]["recording"]


def test_a_marked_step_is_told_without_recording(tmp_path):
    path = recorded(tmp_path, TIMED, MEASURED)
    cost = told(path)
    assert list(cost) == KEYS
    assert (cost["unrecorded_step_ns"], cost["steps"], cost["trusted"], cost["reason"]) == (40 * MS, 3, True, "")
    assert cost["phases"]["forward"]["busy_share"] == pytest.approx(18 * 0.602 / 12, abs=0.01)
    said = verdict(subject(path, per_step=True).report)
    assert said.startswith("A step takes 60.0 ms while recorded: 36.1 ms (60%) computing, ")
    assert "Without recording, it takes 40.0 ms, 10% of it idle: recording adds most of the idle time." in said


@pytest.mark.parametrize(
    ("timed", "measured", "options", "reason"),
    [
        (None, None, {}, "How long a step takes without recording is not known."),
        ({"where": "before"}, MEASURED, {"before": True}, "Warm-up was watched by nsys too"),
        ({"shape": "fbAfb"}, MEASURED, {}, OTHER_WORK),
        ({"sizes": 70}, MEASURED, {}, OTHER_WORK),
        ({"allocations": [10, 1100]}, MEASURED, {}, OTHER_WORK),
        ({"allocations": [20, 1000]}, VARYING, {}, OTHER_WORK),
        ({"step_ns": [30 * MS]}, MEASURED, {}, "Recording slows the GPU, too: a step has 36.1 ms of GPU work"),
        ({"step_ns": [70 * MS]}, MEASURED, {}, "The time without recording is not used: the machine changed pace"),
        (
            {"step_ns": [10 * MS]}, MEASURED, {},
            "The steps timed without recording are of another kind: recorded ones pause for 23.9 ms",
        ),
    ],
    ids=["no mark", "watched", "shape", "sizes", "allocations", "an outlier", "more work", "pace", "pauses"],
)  # fmt: skip
def test_what_is_not_trusted_is_told_as_recorded_with_the_reason(tmp_path, timed, measured, options, reason):
    path = recorded(tmp_path, timed and {**TIMED, **timed}, measured, **options)
    cost, report = told(path), subject(path, per_step=True).report
    said = verdict(report)
    assert not cost["trusted"]
    assert cost["reason"].startswith(reason)
    assert said.startswith("A step takes 60.0 ms while recorded: 36.1 ms (60%) computing, 23.9 ms (40%) idle.")
    assert reason not in said
    assert (cost["reason"] in report.notes) is (timed is not None)


def test_steps_that_vary_by_themselves_are_of_one_kind(tmp_path):
    timed = TIMED | {"allocations": [12, 1000]}
    assert told(recorded(tmp_path, timed, VARYING))["trusted"]


@pytest.mark.parametrize(("mark", "step_ms"), [(TIMED, 40), ({**TIMED, "sizes": 70}, 60), (None, 60)])
def test_what_to_fix_first_is_of_a_trusted_step_without_recording(tmp_path, mark, step_ms):
    path = recorded(tmp_path, mark, MEASURED)
    for found in (nk.rank(path).fixes, opened(path).fixes):
        assert (found.step_ns, found.is_unrecorded) == (pytest.approx(step_ms * MS, rel=0.02), step_ms == 40)


#: Timed before a capture of nsys.
BEFORE = {**TIMED, "where": "before"}


def test_a_mark_before_an_unwatched_capture_is_trusted(tmp_path):
    cost = told(recorded(tmp_path, BEFORE, MEASURED, busy=0.61))
    assert (cost["trusted"], cost["is_upper_limit"]) == (True, False)  # the GPU works for 91% of the step


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize(
    ("busy", "timed", "of_step", "of_phases"),
    [
        (0.62, {}, "GPU-bound", ["GPU-bound"] * 3),
        (0.5, {}, "undecided", ["undecided"] * 3),  # 75% of the step at least, and all of it at most
        (0.24, {}, "host code", ["host code"] * 3),  # 36% at least, and 60% at most
        (0.29, {}, "host code", ["host code", *["undecided"] * 2]),  # of backward, 46% at least, and 77% at most
        (0.5, {"span_ns": {"forward": [9 * MS]}}, "undecided", ["GPU-bound", *["undecided"] * 2]),
    ],
    ids=["GPU-bound", "unknown", "limited", "nearly", "a phase"],
)  # fmt: skip
def test_a_time_next_to_a_profiler_limits_the_step_unless_the_gpu_sets_the_pace(
    tmp_path, busy, timed, of_step, of_phases, where
):
    path = recorded(tmp_path, {**TIMED, "where": where, **timed}, MEASURED, busy=busy)
    report = subject(path, per_step=True).report
    cost, idle = report.recording, f"{1 - 60 * busy / 40:.0%}"
    assert cost.is_upper_limit is (busy < 0.6)
    at_most = "at most " if cost.is_upper_limit else ""
    assert f"Without recording, it takes {at_most}40.0 ms, {at_most}{idle} of it idle" in verdict(report)
    steps = next(table for table in viewed("steps", path, per_step=True).tables if table.key == "steps")
    assert f"As recorded; without recording, a step takes {at_most}40.0 ms." in steps.caption
    rows = by(viewed("idle", path, per_step=True, whole=True), "limits", "phase")
    phases = ("forward", "backward", "optimizer")
    assert [rows[name]["verdict"] for name in ("step", *phases)] == [of_step, *of_phases]
    assert [row.verdict for row in report.busy if row.phase in phases] == of_phases
    fixes = opened(path).fixes
    assert (fixes.is_unrecorded, fixes.is_upper_limit) == (True, cost.is_upper_limit)
    notes = " ".join(viewed("fix", path, per_step=True).notes)
    assert ("Alone, a step may be shorter. Give its time" in notes) is cost.is_upper_limit
    assert "Unrecorded, a step is shorter" not in notes


@pytest.mark.parametrize(("between_ms", "is_trusted"), [(2, False), (5, True)])
def test_recorded_steps_may_pause_a_tenth_of_a_step_longer_than_timed_ones(tmp_path, between_ms, is_trusted):
    """They pause for 8 ms, and timed steps of 40 ms for all that is between their phases."""
    spans = {**TIMED["span_ns"], "forward": [(14 - between_ms) * MS], "other": [between_ms * MS]}
    cost = told(recorded(tmp_path, {**TIMED, "span_ns": spans}, MEASURED, pause_ms=8))
    assert cost["pauses_ns"] == pytest.approx(8 * MS, rel=0.01)
    reason = "" if is_trusted else "the program waits longer in recorded steps than in warm-up."
    assert (cost["trusted"], cost["reason"].partition(": ")[2]) == (is_trusted, reason)


def test_a_step_that_is_no_limit_is_none_at_its_longest_either():
    bounds = {"unrecorded_low_ns": 39 * MS, "unrecorded_high_ns": 41 * MS, "where": "after"}
    cost = Recording(60 * MS, 36.5 * MS, 40 * MS, **bounds, clock="gpu", steps=3, trusted=True)
    assert not cost.is_upper_limit
    assert cost.busy_between("step", 0.6) == (pytest.approx(36.5 / 41), pytest.approx(36.5 / 39))


@pytest.mark.parametrize("mark", [{"clock": "cpu"}, {"is_detached": True}])
def test_a_time_of_the_clock_or_after_a_profiler_that_is_detached_is_the_step(tmp_path, mark):
    cost = told(recorded(tmp_path, {**TIMED, **mark}, MEASURED, busy=0.2))
    assert (cost["trusted"], cost["is_upper_limit"]) == (True, False)


@pytest.mark.parametrize(
    ("step_ns", "says"),
    [
        ([38 * MS, 40 * MS, 52 * MS], "40.0 ms (single steps 38.0 to 52.0 ms), "),
        ([40 * MS], "about 40.0 ms, "),
    ],
)
def test_steps_that_vary_are_told_as_a_range_and_one_as_about(tmp_path, step_ns, says):
    path = recorded(tmp_path, {**TIMED, "step_ns": step_ns}, MEASURED)
    assert f"Without recording, it takes {says}" in verdict(subject(path, per_step=True).report)


@pytest.mark.parametrize(
    "mark",
    ['{"step_ns": []}', '{"step_ns": [-1], "clock": "gpu", "where": "after"}', '{"clock": "moon"}', "[1]",
     "{" * 9999, '{"step_ns": [1e300], "clock": "gpu", "where": "after"}',
     '{"step_ns": ["1"], "clock": "gpu", "where": "after"}'],
)  # fmt: skip
def test_a_mark_that_does_not_fit_says_nothing(mark):
    found, unfit = read_mark(f"nvtx-kernels unrecorded: {mark}")
    assert found is None
    assert unfit


def test_a_step_measured_elsewhere_is_taken_from_the_command_and_the_call(tmp_path, capsys):
    path = recorded(tmp_path)
    assert kernels.main([str(path), "--unrecorded-step", "40ms"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "A step takes 60.0 ms while recorded: 36.1 ms (60%) computing" in said
    assert "Without recording, it takes 40.0 ms, 10% of it idle" in said
    assert nk.rank(path, unrecorded_step_ns=40e6).report.recording.trusted
    assert not nk.rank(path, unrecorded_step_ns=20e6).report.recording.trusted


@pytest.mark.skipif(not (SHARED / "gains").exists(), reason="reports that are too large to be kept here")
@pytest.mark.parametrize(
    ("name", "step", "busy"),
    [("loader", 68.9, 66), ("small", 27.2, 27), ("sync.nsys", 33.3, 88), ("images.record", 38.8, 92),
     ("embed.record", 4.46, 65)],
)  # fmt: skip
def test_recorded_programs_are_as_busy_as_their_unrecorded_steps_say(tmp_path, name, step, busy):
    import lzma

    path = tmp_path / f"{name}.sqlite"
    path.write_bytes(lzma.decompress((SHARED / "gains" / f"{name}.sqlite.xz").read_bytes()))
    cost = nk.rank(path, unrecorded_step_ns=step * 1e6).report.recording
    assert cost.trusted
    assert round(100 * cost.busy_ns / cost.unrecorded_step_ns) == pytest.approx(busy, abs=1)


@pytest.mark.parametrize(
    ("timed", "verdict_of_step", "of_forward"),
    [
        (None, "host code", "host code"),
        (TIMED, "GPU-bound", "GPU-bound"),
        ({**TIMED, "step_ns": [38 * MS, 40 * MS, 52 * MS]}, "undecided", "undecided"),
        ({**TIMED, "step_ns": [58 * MS] * 3}, "undecided", "GPU-bound"),
        ({**TIMED, "span_ns": {}}, "GPU-bound", "undecided"),
    ],
    ids=["no mark", "marked", "varies", "slower", "no phases"],
)
def test_limits_follow_the_step_without_recording(tmp_path, timed, verdict_of_step, of_forward):
    path = recorded(tmp_path, timed, MEASURED, busy=0.62)
    rows = by(viewed("idle", path, per_step=True, whole=True), "limits", "phase")
    report = subject(path, per_step=True).report
    assert (rows["step"]["verdict"], rows["forward"]["verdict"]) == (verdict_of_step, of_forward)
    assert {row.phase: row.verdict for row in report.busy}["forward"] == of_forward
