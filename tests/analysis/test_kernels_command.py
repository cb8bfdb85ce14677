"""The commands `rank` and `view`: in a process of its own where the process matters, else called directly."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import pandas as pd
import pytest
from nvtx_kernels.analysis.cli import BLAS_THREADS, run
from nvtx_kernels.analysis.support.text import cells
from nvtx_kernels.analysis.views.registry import VIEWS

import nvtx_kernels.__main__
from tests.analysis.making import checks
from tests.analysis.making.answering import answering
from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.plain_sql import GEMM, OURS, rows, value

REPOSITORY = Path(__file__).parents[2]
# A time or a count; shares may lose their decimals.
FIGURE = re.compile(r"(?<!\S)(?:[\d,]*\.\d\d+|\d{1,3}(?:,\d{3})+)(?!\S)")
COMPILED = OURS.parent / "h200_compiled.sqlite"
PARTS = ("own_ns", "adopted_ns", "linked_ns", "captured_ns", "outside_ns", "ambiguous_ns", "excluded_ns")
KEYS = {
    "totals": {"work_ns", "kernel_ns", *PARTS},
    "phases": {"phase", "kernel_ns", "kernels", "gemm_ns", "gemm_kernels", "work_ns"},
    "ranges": {
        "path", "phase", "instances", "kernels", "self_ns", "inclusive_ns", "self_work_ns", "span_ns", "cpu_ns",
    },
    "kernels": {"path", "phase", "kind", "kernel", "category", "count", "total_ns", "min_ns", "max_ns"},
    "busy": {"phase", "span_ns", "busy_ns", "waiting_ns", "kernels", "gpus", "verdict"},
    "fixes": {
        "rule", "sentence", "where", "count", "alone_ns", "alone_low_ns", "then_ns", "step_ns", "up_to", "same_as",
        "evidence", "measured",
    },
    "fix_basis": {
        "replay_error", "refused", "step_ns", "is_unrecorded", "is_upper_limit", "factors", "steps", "silent",
        "unjudged", "host_times_used", "host_times_error", "kind", "reason", "remedy", "per",
    },
}  # fmt: skip


said = partial(checks.said, nvtx_kernels.__main__)


@cache
def answered(*words):
    """Return the output of a call, in this process, that must succeed without a word on stderr."""
    status, out, err = said(*words)
    assert (status, err) == (0, "")
    return out


def as_json(*words):
    return json.loads(answered("rank", OURS, "--format", "json", *words))


def test_json_has_the_keys_that_were_promised_and_no_row_lacks_one():
    whole = as_json()
    assert set(whole) == {"report", "account", "steps", "idle", "idle_on_cpu", *KEYS}
    assert set(whole["totals"]) == KEYS["totals"]
    assert set(whole["fix_basis"]) == KEYS["fix_basis"]
    for name in ("phases", "ranges", "kernels", "busy", "fixes"):
        assert whole[name]
        assert all(set(row) >= KEYS[name] for row in whole[name])


def test_gemm_launches_of_an_h200_step_are_109_forward_and_218_backward():
    phases = {row["phase"]: row["gemm_kernels"] for row in as_json("--per-step")["phases"]}
    assert phases == {"forward": 109, "backward": 218, "optimizer": 0}
    for phase, count in phases.items():
        assert value(OURS, f"SELECT count(*) FROM during WHERE range = ? AND {GEMM}", phase) == 2 * count


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_kernel_time_of_a_phase_is_that_of_sql(phase):
    (row,) = [row for row in as_json()["phases"] if row["phase"] == phase]
    assert [(row["kernels"], row["kernel_ns"])] == rows(
        OURS, "SELECT count(*), sum(ns) FROM during WHERE range = ?", phase
    )


def test_phase_and_range_keep_their_part():
    whole, part = as_json(), as_json("--phase", "forward", "--range", "computing softmax")
    assert {row["phase"] for row in part["phases"]} == {"forward"}
    assert {row["path"][-1] for row in part["kernels"]} == {"computing softmax"}
    assert part["totals"] == whole["totals"]
    assert sum(row["total_ns"] for row in part["kernels"]) == sum(
        row["total_ns"] for row in whole["kernels"]
        if row["phase"] == "forward" and row["path"][-1] == "computing softmax"
    )  # fmt: skip


def test_per_step_divides_everything_but_extremes():
    whole, mean = as_json(), as_json("--per-step")
    for before, after in zip(whole["kernels"], mean["kernels"], strict=True):
        assert (after["total_ns"], after["count"]) == (before["total_ns"] / 2, before["count"] / 2)
        assert (after["min_ns"], after["max_ns"]) == (before["min_ns"], before["max_ns"])
    assert (whole["report"]["per_step"], mean["report"]["per_step"]) == (False, True)


@pytest.mark.parametrize("by", ["kernel", "category", "range"])
def test_one_ranking_has_one_table_of_at_most_top_rows(by):
    shown = answered("rank", OURS, "--by", by, "--top", "3")
    assert shown.count("\n\n") == 2  # the heading, the table, the accounting
    if by != "category":
        rows = [line for line in shown.split("\n\n")[1].splitlines() if FIGURE.search(line)]
        assert len(rows) == (5 if by == "range" else 3)  # no phase is left out of the tree of ranges
        assert "more" in shown


@pytest.mark.parametrize(
    "words",
    [("rank",), ("rank", "--by", "category"), ("rank", "--by", "range"), ("view", "steps"), ("view", "idle")],
)
def test_csv_and_parquet_hold_the_same_rows(tmp_path, words):
    table = list(csv.DictReader(io.StringIO(answered(*words, OURS, "--format", "csv"))))
    answered(*words, OURS, "-o", tmp_path / "rows.parquet")
    frame = pd.read_parquet(tmp_path / "rows.parquet")
    assert list(frame.columns) == list(table[0])
    assert [str(found) for found in frame.iloc[:, 0]] == [row[frame.columns[0]] for row in table]


def test_full_names_are_full_and_wrapped_on_the_screen():
    name = value(OURS, "SELECT name FROM kernels GROUP BY name ORDER BY sum(ns) DESC LIMIT 1")
    short, full = (answered("rank", OURS, "--by", "kernel", *words) for words in ((), ("--full-names",)))
    column = "".join(line.split("  ")[0] for line in full.split("\n\n")[1].splitlines())
    assert name.replace(" ", "") in column.replace(" ", "")
    assert name not in short


def test_warm_up_is_left_out_and_said_so_unless_it_is_asked_for(tmp_path):
    ranges = [Range("warm-up", 0, 90), Range("step", 100, 190), Range("forward", 101, 180)]
    report = build(tmp_path, ranges=ranges, **launched((10, 20), (110, 120)))
    assert "of warm-up (--include-warmup counts it)" in answered("rank", report, "--kernels", "--totals")
    assert "Left out: 10 ns of warm-up" in answered("rank", report, "--kernels")
    assert "of warm-up" not in answered("rank", report, "--kernels", "--include-warmup")


def test_a_report_of_warm_up_alone_says_how_to_see_it(tmp_path):
    report = build(tmp_path, ranges=[Range("warm-up", 0, 90)], **launched((10, 20)))
    says = "error: All GPU work is in warm-up and left out; --include-warmup counts it.\n"
    for words in (["rank"], ["rank", "--per-step"], ["view", "steps"], ["view", "idle"]):
        assert said(*words, report)[::2] == (1, says)
    assert "warm-up" in answered("rank", report, "--include-warmup")


def test_an_output_file_is_whole_or_untouched(tmp_path):
    output = tmp_path / "out.md"
    output.write_text("before")
    assert said("rank", tmp_path / "none.sqlite", "--format", "markdown", "-o", output)[0] == 1
    assert output.read_text() == "before"
    assert answered("rank", OURS, "--format", "markdown", "-o", output) == ""
    assert output.read_text() == answered("rank", OURS, "--format", "markdown")
    assert [path.name for path in tmp_path.iterdir()] == ["out.md"]


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("rank", "none.sqlite"), 1, "does not exist"),
        (("rank", __file__), 1, "not a report"),
        (("rank", OURS, "--range", "conv"), 1, "No range matches"),
        (("rank", OURS, "--phase", "other"), 1, "no other work"),
        (("rank", OURS, "--view", "steps"), 2, "--view was removed; use: nvtx-kernels view steps …"),
        (("rank", OURS, "--view", "\x1b[31mred"), 2, "--view was removed; use: nvtx-kernels view \\x1b[31mred …"),
        (("rank", OURS, "--\x1b[31mred"), 2, "there is no --\\x1b[31mred"),
        (("rank", OURS, "--tpo", "3"), 2, "there is no --tpo (did you mean --top?)"),
        (("rank", OURS, "--by", "kernels"), 2, "there is no 'kernels' (did you mean kernel?)"),
        (("rank", OURS, "--like-nsys", "--by", "range"), 2, "without --range"),
        (("rank", OURS, "--top", "0"), 2, "must be an integer ≥ 1"),
        (("rank", OURS, "--top", "many"), 2, "'many' must be an integer ≥ 1"),
        (("rank", OURS, COMPILED, "--by", "range"), 2, "--by takes one report, but 2 were"),
        (("rank", OURS, COMPILED, "--like-nsys"), 2, "--like-nsys takes one report"),
        (("rank", OURS, "--format", "parquet"), 2, "-o FILE"),
        (("rank", OURS, "-o", "/nowhere/out.txt"), 2, "cannot be written"),
        (("rank", OURS, "-o", "o" * 300), 2, "cannot be written: File name too long"),
        (("rank", "r" * 300), 1, "cannot be read: File name too long"),
        (("rank", OURS, "--domain", "mine"), 2, "no NVTX domain"),
        *(
            (("rank", OURS, "--phase-names", text), 2, "write forward='fit *',backward='bp'")
            for text in ("fit", "forwards=fit", "forward=", "forward=fit,backwards=bp=1,optimizer=")
        ),
        (("rank",), 2, "required"),
        (("view",), 2, "required: NAME"),
        (("view", "stpes", OURS), 2, "there is no 'stpes' (did you mean steps?)"),
        (("view", "fix", OURS, "--range", "ffn"), 2, "there is no --range"),
        (("view", "steps", OURS, "--kernel", "gemm"), 2, "there is no --kernel"),
        (("view", "agreement", OURS, "--timed", "forward=soon"), 2, "forward=19.7ms"),
        (("view", "kernels", OURS, "--kernel", "conv2d"), 1, "No kernel name contains"),
        (("view", "balance", OURS), 2, "there is no 'balance'; choose from agreement"),
        (("view", "idle", OURS, COMPILED), 2, "`view idle` takes one report, but 2 were"),
    ],
)
def test_what_cannot_be_answered_is_one_line_and_a_status(words, status, says):
    got, out, err = said(*words)
    assert (got, out, err.count("\n")) == (status, "", 1)
    assert err.startswith("error: ")
    assert says in err


@pytest.mark.parametrize("words", [(), ("--by", "range"), ("--by", "kernel", "--per-step"), ("--like-nsys",)])
def test_80_columns_are_enough_for_people(words):
    # The commands to copy are as long as the report's path.
    screen = answered("rank", OURS, *words).partition("\nMore:")[0]
    assert max(map(cells, screen.splitlines())) <= 80


def screens(monkeypatch, widths, *words):
    """Return what a command shows on screens of these widths, without the commands to copy."""
    shown = []
    for width in widths:
        monkeypatch.setenv("COLUMNS", str(width))
        status, out, _ = said(*words, answering(words[-1]))
        assert status == 0
        shown.append(out.partition("\nMore:")[0])
    return shown


def test_the_screen_may_be_wider_or_narrower(monkeypatch):
    shown = screens(monkeypatch, (72, 140), "rank")
    widths = [max(map(cells, screen.splitlines())) for screen in shown]
    assert widths[0] <= 72 < widths[1] <= 140


@pytest.mark.parametrize(
    "words",
    [
        ("rank", "--kernels"),
        ("rank", "--by", "range"),
        ("rank", "--like-nsys"),
        *(("view", view) for view in VIEWS),
    ],
)
def test_no_number_is_cut_on_a_screen_that_is_too_narrow(words, monkeypatch):
    wide, narrow = screens(monkeypatch, (200, 40), *words)
    assert sorted(FIGURE.findall(narrow)) == sorted(FIGURE.findall(wide))


def test_shares_of_some_ranges_name_them_as_their_whole():
    assert "The ranges asked for take 6.57 ms of kernel time" in answered("rank", OURS, "--range", "softmax")
    kernels = answered("rank", OURS, "--kernels", "--range", "softmax")
    assert "% is of all kernel time in the ranges asked for." in kernels
    phase = answered("rank", OURS, "--range", "softmax", "--phase", "forward", "--by", "range")
    assert "% is of the forward phase's kernel time in the ranges asked for." in " ".join(phase.split())
    assert "ranges asked for" not in answered("rank", OURS)


def test_help_names_every_view_and_its_question():
    shown = " ".join(said("view", "--help")[1].split())
    assert all(name in shown and view.question in shown for name, view in VIEWS.items())


def test_help_of_a_view_is_of_its_own_options():
    shown = {name: said("view", name, "--help")[1] for name in VIEWS}
    for name, text in shown.items():
        assert max(map(len, text.splitlines())) <= 80
        assert VIEWS[name].question in " ".join(text.split())
    assert [name for name in VIEWS if "--kernel NAME" in shown[name]] == ["kernels"]
    assert [name for name in VIEWS if "--timed PHASE=TIME" in shown[name]] == ["agreement"]
    assert {name for name in VIEWS if "--range PATTERN" in shown[name]} == {
        name for name, view in VIEWS.items() if view.takes_range
    }


def test_the_reader_of_a_pipe_may_stop_early():
    piped = subprocess.run(f"{sys.executable} -m analysis.kernels {OURS} --format csv | head -1", shell=True,
                           capture_output=True, text=True, cwd=REPOSITORY, check=True)  # fmt: skip
    assert piped.stdout.startswith("table,path,phase,kind,kernel")
    assert piped.stderr == ""


PHASES = [Range("fit", 0, 90), Range("bp", 100, 190), Range("optimizer step", 200, 290)]


@pytest.fixture
def three_phases(tmp_path):
    return str(build(tmp_path, ranges=PHASES, **launched((10, 20), (110, 120), (210, 220))))


def phases_of(*words):
    return [row["phase"] for row in json.loads(answered("rank", *words, "--format", "json"))["phases"]]


@pytest.mark.parametrize(
    ("options", "phases"),
    [
        ([], ["optimizer", "other"]),
        (["--phase-names", "forward=fit,backward='b?'"], ["forward", "backward", "optimizer"]),
        (["--phase-names", "forward=fit", "--phase-names", "backward=bp"], ["forward", "backward", "optimizer"]),
        (["--phase-names", "optimizer=FIT"], ["optimizer", "other"]),
    ],
)
def test_phases_are_those_whose_names_are_given(three_phases, options, phases):
    assert phases_of(three_phases, *options) == phases


def test_phases_asked_for_one_by_one_are_all_shown(three_phases):
    asked = ["--phase", "forward", "--phase", "backward"]
    named = ["--phase-names", "forward=fit,backward=bp"]
    assert phases_of(three_phases, *named, *asked) == ["forward", "backward"]


def test_a_phase_name_that_no_range_has_is_wrong_usage(three_phases):
    status, _, err = said("rank", three_phases, "--phase-names", "forward=train")
    assert status == 2
    assert "No range is called 'train'. Ranges: fit, bp, optimizer step." in err


@pytest.mark.parametrize(
    ("given", "programs", "inside"), [(None, False, "1"), ("3", False, "3"), (None, True, None)]
)
def test_commands_start_no_threads_of_blas_and_leave_the_environment(monkeypatch, given, programs, inside):
    monkeypatch.delenv(BLAS_THREADS, raising=False)
    if given:
        monkeypatch.setenv(BLAS_THREADS, given)
    seen = []
    assert run(lambda: seen.append(os.environ.get(BLAS_THREADS)), starts_programs=programs) == 0
    assert (seen, os.environ.get(BLAS_THREADS)) == ([inside], given)
