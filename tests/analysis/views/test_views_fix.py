"""The list of what to change first, as people and programs get it."""

import json
import re
from functools import partial

import pytest
from nvtx_kernels.analysis import kernels, view
from nvtx_kernels.analysis.doctor.checks import examine
from nvtx_kernels.analysis.measures.fix_list import Fix, Fixes, Silent
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page.contents import contents
from nvtx_kernels.analysis.report.account import LineTime
from nvtx_kernels.analysis.trace import Line
from nvtx_kernels.analysis.views import fix as fix_view
from nvtx_kernels.analysis.views.fix import first, fix_table, silent, without_changes

from nvtx_kernels import __main__ as first_screen
from tests.analysis.making.building import alter
from tests.analysis.making.simulated import FP32_GEMM, MS, TF32_GEMM, US, recorded, step_ns

GRAPHS = Silent("launching", "fewer launches", 20, 0)


def program(machine, *, gemm=FP32_GEMM, pause=6 * MS):
    """Run a step that pauses before its batch, multiplies, and reads its loss."""
    machine.host(pause)
    machine.work(2 * US, 1, kind="memcpy", bytes=32768, source=1, target=2)
    with machine.range("forward"):
        machine.gemms(30, 200 * US, gemm)
    machine.read()


def shown(capsys, command, *words):
    """Return what a command prints; it must succeed."""
    assert command.main([*map(str, words)]) == 0
    return capsys.readouterr().out


def test_rows_say_what_each_takes_alone_and_then(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    report = recorded(tmp_path, program)
    text = shown(capsys, view, "fix", report, "--unrecorded-step", f"{step_ns(program)}ns")
    assert "Fix first (of 12.1 ms without recording)\n" in text
    saved_ns = step_ns(program) - step_ns(partial(program, pause=20 * US))
    assert f" {saved_ns / MS:.2f} ms, {saved_ns / step_ns(program):.0%} " in text
    assert "(part of 1)" in text
    assert "while recorded" not in text


def test_all_rows_are_named_that_may_save_the_same_time():
    def fix(rule, then_ms, same_as=()):
        figures = {"alone_ns": 4 * MS, "alone_low_ns": 4 * MS, "then_ns": then_ms * MS, "step_ns": 20 * MS}
        return Fix(rule, f"{rule}: change", rule, (), 1, **figures, up_to=False, same_as=same_as, evidence={})

    advice = Fixes((fix("a", 16), fix("b", 12), fix("c", 12, ("a", "b"))), step_ns=20 * MS)
    then = [row.values[2] for row in fix_table(advice, advice.fixes).rows]
    assert then == [
        "16.0 ms",
        "12.0 ms",
        "(part of 1, 2)",
    ]
    assert [row.values[1] for row in first(advice)[0].rows][-1] == "part of 1, 2"


def test_without_the_unrecorded_step_the_list_says_that_it_is_of_the_recording(tmp_path, capsys):
    text = shown(capsys, view, "fix", recorded(tmp_path, program))
    assert " while recorded)\n" in text
    assert "such as --unrecorded-step 68ms." in " ".join(text.split())


def test_a_healthy_program_has_nothing_to_fix(tmp_path, capsys):
    healthy = partial(program, gemm=TF32_GEMM, pause=10 * US)
    text = shown(capsys, view, "fix", recorded(tmp_path, healthy), "--unrecorded-step", f"{step_ns(healthy)}ns")
    assert "Nothing to fix first" in text
    screen = " ".join(shown(capsys, kernels, tmp_path / "report.sqlite").split())
    assert "Fix first" not in screen
    assert "Nothing to fix first: no known change saves 2% or more of a step of 6" in screen


@pytest.mark.parametrize("command", [kernels, first_screen])
def test_the_first_screen_says_that_nothing_helps(tmp_path, capsys, command):
    report = recorded(tmp_path, partial(program, gemm=TF32_GEMM, pause=0))
    text = shown(capsys, command, report)
    assert "Fix first (" not in text
    assert "Nothing to fix first: no known change saves 2% or more of a step of 6" in " ".join(text.split())


def launched(machine):
    """Run a step of products, one launched after the other."""
    with machine.range("forward"):
        machine.gemms(300, 8 * US, FP32_GEMM)


@pytest.mark.parametrize("slower", [1, 3])
def test_what_may_be_at_stake_is_said_where_no_change_is_sure(tmp_path, capsys, slower):
    """A host that took three times as long may have done so without recording, or not."""
    report = recorded(tmp_path, launched, slower=slower)
    said = "No known change is sure to save 2% or more of a step of 6.35 ms. Possible: TF32 up to 156 µs, fewer"
    for command, words in ((view, ["fix", report]), (kernels, [report])):
        assert (said in " ".join(shown(capsys, command, *words).split())) is (slower == 3)
    assert (said in contents([opened(report)]).reports[0]["answer"]) is (slower == 3)


def test_changes_of_a_kind_that_save_too_little_are_told_together(tmp_path):
    low, high = (Silent("host_pause", "pauses of the program", ns, ns) for ns in (30_000.0, 40_000.0))
    said = silent(Fixes(silent=(low, high, Silent("fp32", "TF32", 90_000.0, 90_000.0)), step_ns=5 * MS))
    assert said == " Less at stake: pauses of the program 30 to 40 µs (2 places), TF32 90.0 µs."


SURE = Fix("a", "a: change", "change", (), 1, 4 * MS, 4 * MS, 6 * MS, 10 * MS, up_to=False, evidence={})


@pytest.mark.parametrize(("fixes", "says"), [((), " Possible: TF32 "), ((SURE,), " Less at stake: TF32 ")])
def test_beside_a_sure_change_others_are_at_stake_less(fixes, says):
    found = Fixes(fixes=fixes, silent=(Silent("fp32", "TF32", 900_000.0, 0.0),), step_ns=10 * MS)
    assert silent(found).startswith(says)
    assert bool(without_changes(found)) is (not fixes)


def test_the_overview_begins_with_three_rows_and_json_has_all(tmp_path, capsys):
    report = recorded(tmp_path, program)
    overview = shown(capsys, kernels, report)
    assert overview.index("A step takes") < overview.index("Fix first (") < overview.index("Kernel time by")
    whole = json.loads(shown(capsys, kernels, report, "--format", "json"))
    assert [fix["rule"] for fix in whole["fixes"]] == ["host_pause", "scalar_read", "fp32"]
    assert whole["fix_basis"]["replay_error"] == pytest.approx(0, abs=0.005)
    assert "fixes" not in json.loads(shown(capsys, kernels, report, "--format", "json", "--phase", "forward"))


@pytest.mark.parametrize("time", ["68.9", "0ms", "fast", "-3ms"])
def test_a_time_that_is_none_is_refused(time, tmp_path, capsys):
    with pytest.raises(SystemExit):
        view.main(["fix", str(recorded(tmp_path, program)), f"--unrecorded-step={time}"])
    assert "is not a time: write 68.9ms" in capsys.readouterr().err


def without_steps(folder):
    """Return a report of one pass through the program, in which nothing repeats, without a range called step."""
    return alter(recorded(folder, program, steps=1), "UPDATE NVTX_EVENTS SET text = 'part' WHERE text = 'step'")


def test_without_a_replay_every_screen_gives_bounds_and_the_reason(tmp_path, capsys):
    report = without_steps(tmp_path)
    page = contents([opened(report)]).reports[0]["fix"]
    for text in (shown(capsys, view, "fix", report), shown(capsys, kernels, report), json.dumps(page)):
        words = " ".join(text.split())
        assert re.search(
            r"Fix first(, by the GPU's time alone)? \((savings at most, out )?of 6\.00 ms of GPU work", words
        )
        assert "5.19 ms" in words
    for text in (shown(capsys, view, "fix", report), json.dumps(page)):
        words = " ".join(text.split())
        assert "at most 5.19 ms, 86%" in words
        assert (
            "What depends on the CPU is not judged: the report has no measured steps: what "
            "repeats has no copy, wait or update each time, so it may be layers of a model" in words
        )
    assert "then a step takes" not in shown(capsys, view, "fix", report)


def test_a_list_by_the_gpus_time_says_what_was_tried_and_what_only_a_replay_judges(tmp_path, capsys):
    text = " ".join(shown(capsys, view, "fix", without_steps(tmp_path)).split())
    assert (
        "Tried: TF32, 16 bits in place of TF32, sparse embeddings, lookups as products, distances by "
        "differences, slices in a loop, fused "
        "attention, checkpointing, gradients of what is not trained, second calls without gradient, outputs of "
        "frozen modules, padding, alignment, double precision, channels-last, copies between memory formats, "
        "chains of small kernels." in text
    )
    assert "Only a replay can judge: pauses of the program, new sizes, reading single numbers," in text
    assert "For a replay: push a range named step around each of them" in text


def test_json_says_what_figures_are_of(tmp_path, capsys):
    report = recorded(tmp_path, program)
    replayed = json.loads(shown(capsys, kernels, report, "--format", "json"))["fix_basis"]
    assert [replayed[key] for key in ("kind", "reason", "remedy", "per")] == ["replay", None, None, "step"]
    bounded = json.loads(shown(capsys, kernels, without_steps(tmp_path), "--format", "json"))
    basis = bounded["fix_basis"]
    assert (basis["kind"], basis["per"]) == ("gpu_time", "recording")
    assert basis["reason"] == basis["refused"]
    assert basis["reason"].startswith("the report has no measured steps: ")
    assert [fix["rule"] for fix in bounded["fixes"]] == ["fp32"]
    assert bounded["fixes"][0]["alone_ns"] <= bounded["fixes"][0]["step_ns"] == basis["step_ns"]


def test_the_doctor_says_by_what_changes_are_judged(tmp_path):
    report = recorded(tmp_path, program)
    assert any(finding.what == "view fix replays 6 steps" for finding in examine(report))
    (finding,) = (finding for finding in examine(without_steps(tmp_path)) if "view fix has" in finding.what)
    assert "no replay: the report has no measured steps: what repeats" in finding.what
    assert finding.fix.startswith("push a range named step")


@pytest.mark.parametrize(
    ("advice", "reason"),
    [
        (Fixes(step_ns=100), fix_view.NO_CHANGE_FITS),
        (Fixes(step_ns=100, silent=(GRAPHS,)), fix_view.UNKNOWN_COST),
        (Fixes(step_ns=100, silent=(GRAPHS,), is_unrecorded=True), "Possible: fewer launches up to 20 ns."),
    ],
    ids=["no change", "unknown cost", "known cost"],
)
def test_the_answer_says_why_nothing_is_suggested_for_idle_time(advice, reason):
    assert fix_view.without_changes(advice, is_idle=True).endswith(f" {reason}")
    assert reason not in fix_view.without_changes(advice) or reason.startswith("Possible")


@pytest.mark.parametrize(
    ("most", "lines", "shown"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", [], "loading a batch"),
        ("Optimizer.step#ReferenceAdamW.step", [], "…ReferenceAdamW.step"),
        ("encoder", ["train.py"], "train.py:7"),
        ("encoder", ["transformers/trainer.py"], "encoder"),
        ("", ["transformers/trainer.py"], "trainer.py:7"),
    ],
)
def test_a_place_is_the_programs_line_or_else_a_range(most, lines, shown):
    times = tuple(LineTime(Line(file, 7, "step"), None, 1) for file in lines)
    path = (most,) if most else ()
    fix = Fix("rule", "", "", (), 1, 1, 1, None, 1, up_to=False, most=path, lines=times)
    assert fix_view.place(fix) == shown
