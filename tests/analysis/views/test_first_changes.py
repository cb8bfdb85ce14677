"""The first screen's list of what to change: what to do to what, what it saves, and where."""

import re
import shlex
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
from nvtx_kernels.analysis import read, view
from nvtx_kernels.analysis.measures.fix_subject import FixSubject
from nvtx_kernels.analysis.measures.host_line import SYNCHRONIZES
from nvtx_kernels.analysis.measures.launch_rules import launching
from nvtx_kernels.analysis.measures.replay import timeline_of
from nvtx_kernels.analysis.opened import opened

from nvtx_kernels.__main__ import main
from tests.analysis.making import wasteful
from tests.analysis.making.simulated import FP32_GEMM, MS, US, recorded
from tests.analysis.measures.test_fixes import training

PROGRAMS = {
    "to_cpu": partial(wasteful.trained, after=wasteful.computing_on_cpu),
    "from_cpu": partial(wasteful.trained, in_forward=wasteful.made_on_cpu),
    "allocating": partial(wasteful.trained, after=wasteful.allocating),
    "one_by_one": partial(wasteful.trained, after=wasteful.averaging, lasts=20 * US),
    "anomaly": partial(wasteful.trained, in_backward=wasteful.checked, lasts=20 * US),
    "device_sync": partial(wasteful.trained, in_backward=wasteful.synchronizing),
    "compile": partial(wasteful.trained, in_forward=wasteful.chained),
    "fp32": partial(wasteful.trained, gemm=FP32_GEMM),
    "fp64": partial(wasteful.trained, gemm=wasteful.DOUBLE_GEMM),
    "layouts": partial(wasteful.trained, in_forward=wasteful.converting),
    "layout_copies": wasteful.reformatting,
    "left_in_tf32": wasteful.partly_in_tf32,
    "dense_rows": wasteful.looking_up,
    "untrained": wasteful.distilled,
    "frozen": partial(wasteful.distilled, in_vain=False),
    "padding": wasteful.of_tokens,
    "one_hot": partial(wasteful.trained, in_forward=wasteful.by_one_hot),
    "distances": partial(wasteful.trained, in_forward=wasteful.of_pairs),
    "slices": partial(wasteful.trained, in_backward=wasteful.of_slices),
    "second_forward": wasteful.evaluated,
    "new_sizes": wasteful.of_lengths,
    "micro_batches": wasteful.accumulating,
    "launching": partial(wasteful.trained, lasts=US, gemms=300),
}


def rows_of(screen):
    """Return the lines of each row of the list on a screen."""
    _, _, behind = screen.partition("\nFix first (")
    lines = re.split(r"\n\n|\nMore: ", behind)[0].splitlines()[1:]
    begins = [number for number, line in enumerate(lines) if re.match(r"\d\. ", line)]
    return [lines[begin:end] for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True)]


#: What the first row of each says: the cause, how often a step, and what to do.
SAYS = {
    "to_cpu": "Do not copy 32 MiB a step to the CPU: use it on the GPU, or copy every N steps",
    "one_by_one": r"One call for all tensors \(torch._foreach_…\): a loop launches 160 kernels a step",
    "from_cpu": r"Make tensors on the GPU \(device=x.device\): 4 MiB a step are made on the CPU",
    "allocating": r"Remove torch.cuda.empty_cache\(\) from the loop: \d+ cudaMalloc, \d+ cudaFree a step",
    "anomaly": r"Remove torch.autograd.set_detect_anomaly\(True\): it waits \d+ times a step",
    "device_sync": r"Remove torch.cuda.synchronize\(\) from the step \(\d+ a step\)",
    "compile": r"torch.compile\(model\) for \d+ memory-bound kernels",
    "fp32": r'torch.set_float32_matmul_precision\("high"\): TF32 for \d+ GEMMs',
    "fp64": r"float32 instead of float64 \(.float\(\)\): \d+ GEMMs compute in fp64",
    "layouts": r"memory_format=torch.channels_last for model and images: \d+ layout conversions",
    "layout_copies": r"Keep tensors channels_last between convolutions: \d+ copies change the format",
    "left_in_tf32": r"bf16 for \d+ GEMMs in TF32, for which autocast is off",
    "dense_rows": r"Embedding\(sparse=True\) with Adagrad: all rows are updated, few are used",
    "untrained": r"requires_grad_\(False\) for Net.teacher: no optimizer uses its gradients",
    "frozen": "Compute outputs of the frozen Net.teacher once, if inputs come again",
    "padding": "Pad to the longest sample, in multiples of 64: 256 of 512 positions are used",
    "one_hot": r"F.embedding\(ids, table\) in place of one_hot\(ids\) @ table: 4 products a step",
    "distances": r"torch.cdist in place of \(a − b\)² summed: 24 kernels write all differences",
    "slices": r"x.unbind\(1\) before the loop in place of x\[:, t\] inside: 20 slices a step",
    "second_forward": "Use outputs of the first call of Net, if the second has the same inputs",
    "new_sizes": r"Pad to few lengths \(multiples of 64\): a new length takes 6.00 ms",
    "micro_batches": r"Run the 4 micro-batches of a step as 1 \(larger batch size\): if memory has room",
    "launching": r'torch.compile\(mode="reduce-overhead"\), CUDA graphs: \d+ small kernels a step',
}


@pytest.fixture(scope="module", params=PROGRAMS)
def named_report(request, tmp_path_factory):
    """The name of a program and its report."""
    program = PROGRAMS[request.param]
    folder = tmp_path_factory.mktemp("report")
    run = wasteful.OF_TABLE | wasteful.UNTRAINED | wasteful.FROZEN
    run |= wasteful.PADDED if request.param == "padding" else {}
    return request.param, recorded(folder, program, run=run)


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_row_says_the_cause_and_the_remedy_and_names_the_line(named_report, capsys, monkeypatch, width):
    name, report = named_report
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([str(report)]) == 0
    screen = capsys.readouterr().out
    rows = rows_of(screen)
    assert len(screen.splitlines()) <= 25
    assert max(len(line) for row in rows for line in row) <= width
    assert max(map(len, rows)) <= {60: 4, 80: 2, 140: 1}[width]
    text = " ".join(" ".join(rows[0]).split())
    words = re.sub(r"( about| up to)? [\d.–]+ [µm]s train\.py:\d+:", "", text)
    assert re.match(r"1\. .*?[µm]s +train\.py:\d+: ", rows[0][0])
    assert width < 140 or re.fullmatch(rf"1\. {SAYS[name]}", words)


FULL = {"dtype": "fp32", "tf32": False}


def chained_products(machine):
    """Run a forward of products in fp32 and of kernels that only move memory, between backward and update."""
    wasteful.trained(machine, in_forward=wasteful.chained, gemm=FP32_GEMM)


@pytest.mark.parametrize(
    ("program", "run", "left_out"),
    [(chained_products, FULL, True), (PROGRAMS["fp32"], FULL, True), (chained_products, {}, False)],
)
def test_what_undoes_the_runs_choice_is_no_row(tmp_path, capsys, program, run, left_out):
    report = recorded(tmp_path, program, run=run)
    assert main([str(report)]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert bool(re.search(r"Left out: TF32 \(.*? ms\), as the run asked for full fp32\.", screen)) is left_out
    assert ("set_float32_matmul_precision" in screen) is not left_out
    assert main(["view", "fix", str(report)]) == 0
    assert "set_float32_matmul_precision" in capsys.readouterr().out


def test_a_compiled_program_is_not_told_to_compile(tmp_path, capsys):
    for name in ("compile", "launching"):
        folder = tmp_path / name
        folder.mkdir()
        assert main([str(recorded(folder, PROGRAMS[name], run={"compile": True}))]) == 0
        assert "torch.compile(" not in capsys.readouterr().out


@pytest.mark.parametrize("script", ["train.py", "my programs/fit.py"])
def test_the_command_that_measures_names_the_program(tmp_path, capsys, script):
    assert main([str(recorded(tmp_path, PROGRAMS["to_cpu"], script=script))]) == 0
    assert capsys.readouterr().out.endswith(f"  nvtx-kernels try {shlex.quote(script)} measures the changes\n")


def test_no_program_is_invented(tmp_path, capsys):
    assert main([str(recorded(tmp_path, partial(training, reads=True)))]) == 0
    screen = capsys.readouterr().out
    assert "Fix first" in screen
    assert "try" not in screen.rpartition("More: ")[2]


def pausing(machine, around=""):
    """Run a step whose program stops the GPU between backward and optimizer."""
    with machine.range("backward"):
        machine.gemms(8, 200 * US)
        machine.read()
    with machine.range(around) if around else nullcontext():
        machine.host(6 * MS)
    with machine.range("optimizer"):
        machine.work(20 * US)


@pytest.mark.parametrize(
    ("around", "remedy"),
    [
        ("", "Python between backward and optimizer: shorten it, or run it every N steps"),
        (
            "gc.collect",
            "Call gc.collect() less often, or gc.freeze() after warm-up (between backward and optimizer)",
        ),
    ],
)
def test_a_pause_is_named_by_what_is_around_it(tmp_path, capsys, monkeypatch, around, remedy):
    monkeypatch.setenv("COLUMNS", "140")
    assert main([str(recorded(tmp_path, partial(pausing, around=around)))]) == 0
    screen = capsys.readouterr().out
    assert re.search(rf"1\. .* ms +{around or 'code after backward'}: +{re.escape(remedy)}", screen)
    assert "another thread" not in screen


def reading_inside(machine):
    """Run a forward of small kernels that reads numbers to decide by them."""
    with machine.range("forward"):
        for _ in range(20):
            machine.gemms(10, US)
            machine.read()


def test_reads_inside_of_forward_are_named_and_counted(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    assert main([str(recorded(tmp_path, reading_inside))]) == 0
    screen = capsys.readouterr().out
    assert "20 waits a step for .item(), `if tensor`, nonzero(): use masks or torch.where(c, a, b)" in screen


def test_without_lines_a_row_names_the_range_inside_the_step(tmp_path, capsys):
    assert main([str(recorded(tmp_path, partial(training, reads=True)))]) == 0
    assert re.match(r"1\. .* ms forward: ", rows_of(capsys.readouterr().out)[0][0])


def test_the_list_with_reasons_says_the_line_first(tmp_path, capsys):
    assert view.main(["fix", str(recorded(tmp_path, PROGRAMS["to_cpu"]))]) == 0
    assert "1. train.py:60: 1 copy brings 32 MiB" in " ".join(capsys.readouterr().out.split())


def test_what_stops_cuda_graphs_concerns_the_reads_and_the_waits_behind_them(tmp_path):
    partition = opened(read(recorded(tmp_path, reading_inside))).partition
    subject = FixSubject(partition.attribution, timeline_of(partition))
    (symptom,) = launching(subject, np.ones(1))
    calls = symptom.host.calls
    reads = np.isin(calls, subject.work.call[subject.timeline.copied.to_cpu])
    assert len(calls) == 2 * 20 * subject.steps
    assert reads.sum() == 20 * subject.steps
    assert (subject.host.kind[calls[~reads]] == SYNCHRONIZES).all()
