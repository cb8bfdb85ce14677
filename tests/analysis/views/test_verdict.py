"""The overview's first sentences, and the whole screen against files that were looked at."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.measures.balance import balance
from nvtx_kernels.analysis.support.units import counted
from nvtx_kernels.analysis.views.verdict import commands, verdict

from nvtx_kernels.__main__ import main
from tests.analysis.making.building import MAIN, Launch, Range, Work, build, launched, thread
from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.subjects import SHARED, attributed, subject

GOLDEN = Path(__file__).parent / "golden"
COMPILED = OURS.parent / "h200_compiled.sqlite"
GRAPHS = SHARED / "h200" / "cuda_graph_trace.sqlite"
RANGES = [
    Range(name, start + step, end + step)
    for step in (0, 10_000_000)
    for name, start, end in (
        ("step", 0, 9_000_000), ("forward", 100_000, 5_000_000), ("computing softmax", 1_100_000, 2_000_000),
        ("backward", 5_000_000, 8_000_000),
    )
]  # fmt: skip
CALLS = [
    (step + at, step + at + 200_000, MAIN)
    for step in (0, 10_000_000)
    for at in (200_000, 1_200_000, 5_200_000, 5_600_000)
]
SHARES = "backward 60%, forward 31%, optimizer 9%; 65% is GEMM."
STEP = "A step takes 80.5 ms while recorded. The GPU works for 60.1 ms of it (at least 75%)"
IDLE = (
    "The GPU is idle for 20.4 ms in a typical step, 9.78 ms of it while the CPU launches the next kernel (most in "
    "optimizer)."
)


def report_in(folder, name="recording.sqlite", **facts):
    """Build two steps of operators or kernels."""
    path = build(folder, ranges=RANGES, metadata=facts, **launched(*CALLS, name="aten::bmm"))
    return path.rename(folder / name)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("of", ["h200_train_fp32", "cpu_recording"])
def test_the_overview_is_the_screen_that_was_looked_at(of, width, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    if of == "cpu_recording":
        report_in(tmp_path, f"{of}.sqlite", NVTX_KERNELS_WORK="CPU")
    else:
        (tmp_path / f"{of}.sqlite").symlink_to(OURS)
    assert kernels.main([f"{of}.sqlite"]) == 0
    assert capsys.readouterr().out == (GOLDEN / f"{of}_{width}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"per_step": True}, f"{STEP}: {SHARES} {IDLE}"),
        ({}, f"{STEP}. The report contains 120 ms of kernel time over 2 steps: {SHARES} {IDLE}"),
        ({"per_step": True, "phase": "optimizer"}, "Optimizer takes 5.33 ms of kernel time in a step: none is "
         "GEMM. The GPU is busy 32% of optimizer (first start to last end of its work)."),
        ({"per_step": True, "within": "softmax"}, "The ranges asked for take 6.57 ms of kernel time in a step: "
         "backward 72%, forward 28%; none is GEMM."),
    ],
    ids=["per step", "totals", "phase", "range"],
)  # fmt: skip
def test_a_verdict_says_what_its_numbers_are_of(asked, says):
    assert verdict(subject(OURS, **asked).report) == says


def test_without_phases_and_steps_all_work_is_measured(tmp_path):
    path = build(tmp_path, **launched((10, 20), (50, 60)))
    assert verdict(subject(path).report).startswith("The report contains 20 ns of kernel time: ")
    assert "The GPU is busy 40% of the time" in verdict(subject(path).report)


@pytest.mark.skipif(not GRAPHS.exists(), reason="reports that are too large to be kept here")
def test_of_graphs_launched_whole_no_share_of_gemm_is_said():
    said = verdict(subject(GRAPHS, per_step=True).report)
    assert "(at least 87%), all of it in forward: >99% is in CUDA graphs launched whole" in said
    assert "GEMM" not in said


@pytest.mark.parametrize("path", [OURS, COMPILED], ids=lambda path: path.stem)
def test_the_report_holds_what_the_view_of_the_balance_measures(path):
    found = {row.name: row for row in balance(attributed(path)).phases}
    busy = subject(path).report.busy
    assert [row.phase for row in busy] == list(found)
    for row in busy:
        of = found[row.phase]
        assert (row.span_ns, row.busy_ns, row.waiting_ns) == (of.span_ns, of.busy_ns, of.waiting_ns)
        assert (row.kernels, row.gpus, row.verdict) == (of.kernels, 1, of.verdict)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("sgemm", "void secret::k(int)"), "50% is GEMM. 50% of it is in kernels of unknown category."),
        (
            ("softmax", "void secret::k(int)"),
            "none is known to be GEMM. 50% of it is in kernels of unknown category",
        ),
        (("softmax", "softmax"), ": none is GEMM. The GPU"),
    ],
)
def test_kernels_of_no_known_category_are_in_the_first_lines(tmp_path, names, says):
    work = [Work(number, 30 * number + 20, 30 * number + 40, name) for number, name in enumerate(names)]
    launches = [Launch(number, 5 * number, 5 * number + 1) for number in range(len(names))]
    assert says in verdict(subject(build(tmp_path, launches=launches, work=work)).report)


def test_times_of_ranks_that_run_at_once_are_not_what_a_phase_takes(tmp_path):
    other = thread(200)
    ranges = [Range("forward", 0, 100, each) for each in (MAIN, other)]
    path = build(tmp_path, ranges=ranges, **launched((10, 20, MAIN), (11, 20, other), lasts=40))
    assert verdict(subject(path).report).startswith("The GPUs together have 80 ns of kernel time of forward")


def test_a_phase_without_kernels_does_not_count_them(tmp_path):
    path = report_in(tmp_path)
    rows = [replace(row, verdict="copy-bound", kernels=0) for row in subject(path).report.busy]
    said = verdict(replace(subject(path).report, busy=tuple(rows)))
    assert "are busy with copies." in said
    assert "(0 kernels)" not in said


def test_two_gpus_add_up(tmp_path):
    path = report_in(tmp_path)
    one = subject(path).report.busy[0]
    two = replace(one, span_ns=2 * one.span_ns, busy_ns=2 * one.busy_ns, gpus=2)
    report = replace(subject(path).report, busy=(two,), step_time=None)
    assert "The GPUs are busy" in verdict(report)


@pytest.mark.parametrize(
    ("path", "view", "why"),
    [
        (OURS.parent / "h200_recorder.sqlite", "idle", "why the GPU is idle 34% of the step"),
        (SHARED / "h200" / "train_fp32.sqlite", "steps", "how much steps differ, and where"),
    ],
    ids=["waits", "busy"],
)
def test_the_next_command_follows_from_the_verdict(path, view, why):
    if not path.exists():
        pytest.skip("reports that are too large to be kept here")
    found = commands(subject(path, per_step=True).report, "r.sqlite")
    page = "nvtx-kernels page r.sqlite --open   # all of it, in the browser"
    assert found == (f"nvtx-kernels view {view} r.sqlite   # {why}", page)


@pytest.mark.parametrize(
    ("words", "scope"),
    [
        (("rank",), "ms per step"), (("rank", "--per-step"), "ms per step"),
        (("rank", "--totals"), "over 2 steps"), (("view", "phases"), "ms per step"),
        (("view", "balance", "--totals"), "over 2 steps"), (("rank", "--format", "markdown"), "ms per step"),
    ],
)  # fmt: skip
def test_people_see_a_steps_mean_unless_they_ask_for_totals(words, scope, capsys):
    assert main([*words, str(OURS)]) == 0
    assert scope in capsys.readouterr().out


@pytest.mark.parametrize(("words", "per_step"), [((), False), (("--totals",), False), (("--per-step",), True)])
def test_programs_get_totals_unless_they_ask_for_a_steps_mean(words, per_step, capsys):
    assert kernels.main([str(OURS), "--format", "json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["report"]["per_step"] is per_step


def test_much_work_between_steps_and_in_none_is_said_after_the_answer(tmp_path):
    ranges = [Range("step", 0, 100), Range("forward", 110, 190), Range("step", 200, 300), Range("step", 400, 500)]
    path = build(tmp_path, ranges=ranges, **launched((10, 20), (120, 130), (210, 220), (410, 420), (610, 620)))
    said = verdict(subject(path, per_step=True).report)
    assert said.startswith(
        "A step takes 200 ns while recorded. Left out, as in no step: 10 ns of 40 ns of all GPU work, 10 ns of "
        "10 ns of forward work. The GPU works for 15 ns of the step (at least 8%)"
    )


def test_the_next_commands_keep_what_counts_as_a_range(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    report_in(tmp_path, "my report.sqlite")
    assert kernels.main(["my report.sqlite", "--step", "step", "--phase-names", "forward=fit"]) == 2
    capsys.readouterr()
    assert kernels.main(["my report.sqlite", "--step", "step"]) == 0
    assert "nvtx-kernels page 'my report.sqlite' --step step --open" in capsys.readouterr().out


def test_a_phase_outside_the_steps_is_refused_with_the_way_to_see_it(tmp_path, capsys):
    ranges = [Range("step", 0, 90), Range("forward", 1, 80), Range("optimizer", 100, 190)]
    path = build(tmp_path, ranges=ranges, **launched((10, 20), (110, 120)))
    assert kernels.main([str(path), "--phase", "optimizer"]) == 1
    assert "no optimizer work in the measured steps (--totals counts all work)" in capsys.readouterr().err
    assert kernels.main([str(path), "--phase", "optimizer", "--totals"]) == 0


COPIES = {
    "launches": [Launch(1, 10, 20), Launch(2, 30, 40)],
    "work": [Work(n, start, start + 29, 1, "memcpy") for n, start in ((1, 30), (2, 60))],
}


def test_copies_alone_have_a_first_sentence_that_names_the_gpu_once(tmp_path):
    sentence = verdict(subject(build(tmp_path, ranges=[Range("step", 0, 50)], **COPIES)).report)
    begins = "No kernels ran: the work is 2 copies (58 ns). The GPU is busy 98% of the time"
    assert sentence == f"{begins} (first start to last end of its work), mostly with copies."


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "1 kernel"), (2, "2 kernels"), (137 / 3 + 137 / 3 + 137 / 3, "137 kernels"), (0.5, "0.50 kernels")],
)
def test_count_has_its_noun_and_no_decimals_that_rounding_made(count, text):
    assert counted(count, "kernel") == text
