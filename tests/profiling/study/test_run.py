import json
import re
import resource

import pytest
import torch
from nvtx_kernels.analysis.views.headings import heading
from nvtx_kernels.profiling import run as command
from nvtx_kernels.profiling.run import main

from nvtx_kernels import analysis
from tests.analysis.making.checks import said
from tests.profiling.making.recordings import (
    kernels,
    launched_in,
    marks_of_times,
    python,
    range_names,
    rows,
    said_of,
)

GEMM = {"aten::mm", "aten::bmm", "aten::addmm"}
LAYERS = 2
MARK = "SELECT text, at_ns FROM marks WHERE text LIKE 'nvtx-kernels.run %'"
PARTS = [
    "embedding",
    "layer 0",
    "layer 1",
    "attention",
    "computing softmax",
    "ffn",
    "final norm",
    "lm head",
    "loss",
]
# Without a terminal, a line on standard error says what runs.
ANNOUNCED = "tiny ctx64 train fp32 b1 reference w1: 3 steps\n"
WRONG = [
    (["--size", "huge"], "size must be one of tiny, small, medium"),
    (["--steps", "many"], "invalid int value"),
    (["--year", "2023"], "choose from"),
    (["--device", "cpu", "--record", "out", "--json", "out"], "name the same file: give each its own"),
    (["--device", "cpu", "--emit-nvtx"], "ranges for operators need a recording: add --record FILE"),
    (["--device", "cpu", "--memory"], "allocations into a recording: add --record FILE"),
    (["--device", "cpu", "--flops", "--warmup", "0"], "with it, --warmup must be ≥ 1"),
]


def run(*options, **how):
    return python("-m", "profiling.run", "--size", "tiny", "--device", "cpu", *options, **how)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A recording of two training steps, and what the command printed."""
    path = tmp_path_factory.mktemp("trained") / "report.sqlite"
    words = ("--size", "tiny", "--device", "cpu", "--steps", 2, "--warmup", 1, "--record", path)
    status, out, err = said(command, *words)
    assert (status, err) == (0, ANNOUNCED)
    return path, out


def gemms(path, phase):
    return sum(name in GEMM for name in launched_in(path, phase))


def test_the_plain_command_times_every_phase():
    status, out, err = said(command, "--size", "tiny", "--device", "cpu")
    assert (status, err) == (0, ANNOUNCED.replace("3 steps", "4 steps"))
    lines = re.findall(r"^ *(forward|backward|optimizer|step) +([\d,]+\.\d{3}) ", out, re.MULTILINE)
    means = {phase: float(ms.replace(",", "")) for phase, ms in lines}
    assert set(means) == {"forward", "backward", "optimizer", "step"}
    assert 2 * means["step"] >= sum(means.values()) - 0.01


@pytest.mark.slow
def test_the_screen_names_everything_that_decides_a_number(trained):
    _, screen = trained
    words = "tiny 115,008 parameters batch context train fp32 TF32 off eager reference AdamW torch python Peak"
    assert [word for word in words.split() if word not in screen] == []
    assert "Reduced because this is a CPU: context length 64 not 512, batch size 1 not 4." in " ".join(
        screen.split()
    )


@pytest.mark.parametrize(("options", "word"), [(["--compile"], "torch.compile"), ([], "eager")])
def test_the_screen_says_whether_the_model_is_compiled_and_it_is(options, word, capsys, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, mode: compiled.append(model) or model)
    with torch._inductor.config.patch("cpp.enable_kernel_profile", False):
        assert main(["--size", "tiny", "--device", "cpu", "--mode", "forward", *options]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert [each for each in ("torch.compile", "eager") if f", {each}, " in screen] == [word]
    assert len(compiled) == len(options)


def test_times_under_nsys_are_labelled_and_others_are_not(trained, capsys, monkeypatch):
    label = "Under nsys the program is slower than alone, and so are these times."
    assert label not in " ".join(trained[1].split())
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    assert main(["--size", "tiny", "--device", "cpu", "--mode", "forward", "--warmup", "0"]) == 0
    assert label in " ".join(capsys.readouterr().out.split())


def test_a_recording_of_a_cpu_counts_its_operators(trained):
    path, screen = trained
    ((count,),) = rows(path, "SELECT count(*) FROM kernels")
    assert f"Recorded {count:,} operators." in " ".join(screen.split())


def test_a_training_step_launches_the_matrix_products_that_theory_counts(trained):
    path, _ = trained
    counts = {phase: gemms(path, phase) / 2 for phase in ("forward", "backward", "optimizer")}
    assert counts == {"forward": 9 * LAYERS + 1, "backward": 18 * LAYERS + 2, "optimizer": 0}


def test_the_analysis_gives_every_phase_its_kernels_and_leaves_none_over(trained):
    path, _ = trained
    ranking = analysis.rank(analysis.read(path))
    gemms_of = dict(zip(ranking.phases["phase"], ranking.phases["gemm_kernels"], strict=True))
    assert [gemms_of[phase] / 2 for phase in ("forward", "backward", "optimizer")] == [19, 38, 0]
    assert ranking.totals.own_ns == ranking.totals.work_ns == sum(ns for _, ns in kernels(path))


def test_only_the_measured_steps_are_recorded_and_all_work_lies_in_phases(trained):
    path, _ = trained
    names = range_names(path)
    assert (names.count("measure"), names.count("step"), names.count("warmup")) == (1, 2, 0)
    inside = sum(len(launched_in(path, phase)) for phase in ("forward", "backward", "optimizer"))
    assert inside == len(launched_in(path, "step")) == len(kernels(path))


def test_every_part_of_the_model_has_a_forward_and_a_backward_range(trained):
    path, _ = trained
    names = range_names(path)
    assert {part: names.count(part) >= 2 * 2 for part in PARTS} == dict.fromkeys(PARTS, True)


def test_one_mark_at_the_start_of_measure_says_what_ran(trained):
    path, _ = trained
    ((text, at),) = rows(path, MARK)
    word, _, told = text.partition(" ")
    told = json.loads(told)
    assert word == "nvtx-kernels.run"
    assert (told["size"], told["steps"], told["parameters"], told["tf32"]) == ("tiny", 2, 115_008, False)
    assert told["flops"]["forward > lm head"] == 2 * 64 * 64 * 256
    assert all(start < at < end for start, end in rows(path, "SELECT min(start_ns), max(end_ns) FROM ranges"))


def test_a_recording_has_what_a_step_takes_without_it(trained):
    path, _ = trained
    found = marks_of_times(path)
    assert found["recorded"] == {"shapes": ["fbA"] * 2, "sizes": [64] * 2, "allocations": []}
    timed = found["unrecorded"]
    assert (timed["where"], timed["shape"], timed["sizes"], len(timed["step_ns"])) == ("after", "fbA", 64, 5)
    assert {*timed["span_ns"]} == {"forward", "backward", "optimizer", "other"}
    assert timed["dropped"]["unsettled"] >= 4
    run = json.loads(rows(path, MARK)[0][0].partition(" ")[2])
    facts = ("float32_matmul_precision", "cudnn_tf32", "cudnn_benchmark", "parameter_tensors", "parameter_dtypes")
    assert [run[fact] for fact in facts] == ["highest", True, False, 21, {"float32": 21}]


def test_a_changed_model_is_named_on_the_screen_in_the_mark_and_in_the_analysis(tmp_path, capsys):
    path, name = tmp_path / "r.sqlite", "tiny, layers 3, heads 4"
    options = f"--size tiny --layers 3 --heads 4 --d-model 64 --device cpu --mode forward --record {path}"
    assert main(options.split()) == 0
    screen = " ".join(capsys.readouterr().out.split())
    told = (
        f"size {name},",
        f"{115_008 + 41_088:,} parameters",
        "more steps were run, to time a step without recording.",
    )
    assert [words for words in told if words not in screen] == []
    told = json.loads(rows(path, MARK)[0][0].partition(" ")[2])
    assert (told["size"], told["layers"], told["heads"], "d_model" in told) == (name, 3, 4, False)
    assert gemms(path, "forward") == 3 * (9 * 3 + 1)
    assert heading(analysis.rank(analysis.read(path)).report).count(f" · {name} · ") == 1


@pytest.mark.parametrize(
    ("mode", "expected"), [("forward", {"forward": 19}), ("forward-backward", {"forward": 19, "backward": 38})]
)
def test_modes_without_an_optimizer_run_no_more_than_they_say(tmp_path, capsys, mode, expected):
    path = tmp_path / "r.sqlite"
    options = f"--size tiny --device cpu --mode {mode} --steps 1 --warmup 0 --record {path}"
    assert main(options.split()) == 0
    assert {phase: gemms(path, phase) for phase in expected} == expected
    assert {"backward", "optimizer"} & set(range_names(path)) == set(expected) - {"forward"}


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_wrong_usage_exits_2_and_says_why(options, sentence):
    status, _, err = said(command, *options)
    assert (status, sentence in err) == (2, True)


@pytest.mark.parametrize("option", ["--record", "--json"])
def test_a_file_that_cannot_be_written_is_said_before_any_work(tmp_path, option):
    sentence = f"profiling.run: cannot write {tmp_path}: it is a folder\n"
    assert said(command, "--size", "tiny", "--device", "cpu", option, tmp_path) == (1, "", sentence)


@pytest.mark.slow
def test_full_memory_is_one_sentence_with_the_phase_a_row_and_status_1(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))

    path = tmp_path / "run.json"
    done = run("--context-length", 8192, "--batch-size", 64, "--json", path, preexec_fn=limit)
    assert done.returncode == 1
    sentence = "profiling.run: out of memory in forward: could not allocate another 32.00 GiB"
    assert done.stderr.splitlines()[1:] == [sentence]
    row = json.loads(path.read_text())
    assert (row["status"], row["phase"], row["requested_bytes"]) == ("oom", "forward", 32 << 30)


@pytest.mark.slow
def test_without_annotation_there_are_no_ranges_and_the_same_operators(trained, tmp_path):
    path = tmp_path / "r.sqlite"
    assert run("--steps", 2, "--warmup", 1, "--no-annotate", "--record", path).returncode == 0
    assert range_names(path) == []
    # An operator inside which ranges open is a row for each of them.
    assert {name for name, _ in kernels(path)} == {name for name, _ in kernels(trained[0])}


def test_operators_become_ranges_on_request(tmp_path, capsys):
    path = tmp_path / "r.sqlite"
    options = f"--size tiny --device cpu --mode forward-backward --steps 1 --emit-nvtx --record {path}"
    assert main(options.split()) == 0
    numbered = "SELECT 1 FROM ranges JOIN names ON names.row = name_id WHERE value = 'BmmBackward0' AND seq >= 0"
    assert len(rows(path, numbered)) == 9 * LAYERS + 1


def test_a_failing_program_says_how_it_ended_and_leaves_the_row_that_was_there(tmp_path, monkeypatch):
    path, row = tmp_path / "r.sqlite", tmp_path / "run.json"
    row.write_text("before")
    monkeypatch.setattr("nvtx_kernels.profiling.study.one_run.mark_text", lambda workload: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(f"--size tiny --device cpu --record {path} --json {row}".split())
    assert said_of(path)["interrupted_by"] == "ZeroDivisionError"
    assert range_names(path) == ["measure"]
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir() if each != path} == {"run.json": b"before"}
