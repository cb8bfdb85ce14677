"""What the first sentences say, and the commands that they lead to."""

import json

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.support.units import counted
from nvtx_kernels.analysis.views.verdict import commands, verdict

from nvtx_kernels.__main__ import main
from tests.analysis.making.building import MAIN, Launch, Range, Work, build, launched
from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.subjects import SHARED, subject

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
STEP = (
    "A step takes 80.3 ms while recorded: 60.0 ms (75%) computing, 20.1 ms (25%) idle. The GPU is idle mostly "
    "while the CPU launches kernels one by one (9.89 ms, most in optimizer)."
)
OPTIMIZER = "Optimizer takes 17.0 ms (21%) of a step: 11.7 ms (69%) idle, 5.33 ms (31%) computing."
SOFTMAX = "The ranges asked for take {} of kernel time {}: backward 72%, forward 28%; none is GEMM."


def report_in(folder, name="recording.sqlite", **facts):
    """Build two steps of operators or kernels."""
    path = build(folder, ranges=RANGES, metadata=facts, **launched(*CALLS, name="aten::bmm"))
    return path.rename(folder / name)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"per_step": True}, STEP),
        ({}, STEP),
        ({"per_step": True, "phase": "optimizer"}, OPTIMIZER),
        ({"phase": "optimizer"}, OPTIMIZER),
        ({"per_step": True, "within": "softmax"}, SOFTMAX.format("6.57 ms", "in a step")),
        ({"within": "softmax"}, SOFTMAX.format("13.1 ms", "over 2 steps")),
    ],
)
def test_a_verdict_says_what_its_numbers_are_of(asked, says):
    assert verdict(subject(OURS, **asked).report) == says


def test_without_phases_and_steps_all_work_is_measured(tmp_path):
    said = verdict(subject(build(tmp_path, **launched((10, 20), (50, 60)))).report)
    assert said.startswith("The recorded work takes 50 ns: 30 ns (60%) idle, 20 ns (40%) computing.")
    assert "All figures are of the whole recorded time." in said


@pytest.mark.skipif(not GRAPHS.exists(), reason="reports that are too large to be kept here")
@pytest.mark.parametrize("asked", [{}, {"within": "forward"}])
def test_of_graphs_launched_whole_no_share_of_gemm_is_said(asked):
    assert "GEMM" not in verdict(subject(GRAPHS, per_step=True, **asked).report)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("sgemm", "void secret::k(int)"), " 50% of the kernel time is in kernels of unknown category."),
        (("softmax", "softmax"), ""),
    ],
)
def test_kernels_of_no_known_category_are_in_the_first_lines(tmp_path, names, says):
    work = [Work(number, 30 * number + 20, 30 * number + 40, name) for number, name in enumerate(names)]
    launches = [Launch(number, 5 * number, 5 * number + 1) for number in range(len(names))]
    said = verdict(subject(build(tmp_path, launches=launches, work=work)).report)
    assert said.partition("whole recorded time.")[2] == says


@pytest.mark.parametrize(
    ("path", "view"),
    [(OURS.parent / "h200_recorder.sqlite", "idle"), (SHARED / "h200" / "train_fp32.sqlite", "steps")],
    ids=["waits", "busy"],
)
def test_the_next_command_follows_from_the_verdict(path, view):
    if not path.exists():
        pytest.skip("reports that are too large to be kept here")
    found = commands(subject(path, per_step=True).report, "r.sqlite")
    views = f"in place of `open`: view {view}, view kernels or view fix"
    assert found == ("nvtx-kernels open r.sqlite", views)


@pytest.mark.parametrize(
    ("words", "scope"),
    [
        (("rank", "--kernels"), "ms per step"), (("rank", "--kernels", "--per-step"), "ms per step"),
        (("rank", "--totals"), "over 2 steps"), (("view", "idle"), "ms per step"),
        (("view", "attention", "--totals"), "over 2 steps"),
        (("rank", "--kernels", "--format", "markdown"), "ms per step"),
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
    assert said.startswith("A step takes 200 ns while recorded: 185 ns (92%) idle, 15 ns (8%) computing.")
    assert (
        "In no step, so left out: 10 ns of the 40 ns of all GPU work, 10 ns of the 10 ns of forward work." in said
    )


def test_the_next_commands_keep_what_counts_as_a_range(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    report_in(tmp_path, "my report.sqlite")
    assert kernels.main(["my report.sqlite", "--step", "step", "--phase-names", "forward=fit"]) == 2
    capsys.readouterr()
    assert kernels.main(["my report.sqlite", "--step", "step"]) == 0
    more = capsys.readouterr().out.splitlines()[-2:]
    assert more == [
        "More: nvtx-kernels open 'my report.sqlite' --step step",
        "  in place of `open`: view idle, view kernels or view fix",
    ]


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


def test_copies_alone_have_a_first_sentence_that_says_where_to(tmp_path):
    said = verdict(subject(build(tmp_path, ranges=[Range("step", 0, 50)], **COPIES)).report)
    assert said.startswith("The recorded work takes 59 ns: 58 ns (98%) copies to GPU.")


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "1 kernel"), (2, "2 kernels"), (137 / 3 + 137 / 3 + 137 / 3, "137 kernels"), (0.5, "0.50 kernels")],
)
def test_count_has_its_noun_and_no_decimals_that_rounding_made(count, text):
    assert counted(count, "kernel") == text
