"""Every figure of the overview of reports is that of rows, or of a command on a report that is kept."""

import csv
import json
import re

import pandas as pd
import pytest
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.cost import matmul_flops
from nvtx_kernels.profiling.study.frame import frame

from nvtx_kernels.__main__ import main
from tests.profiling.making.recordings import REPOSITORY

OVERVIEW = (REPOSITORY / "reports" / "README.md").read_text()
MEASUREMENTS = REPOSITORY / "reports" / "h200" / "measurements"
REPORT = REPOSITORY / "tests" / "data" / "h200_train_fp32.sqlite"
PLAIN = {"context_length": 512, "attention": "reference", "compile": False, "capture": "none", "warmup": 5}
TRAINING = {**PLAIN, "mode": "train", "optimizer": "foreach"}
FASTEST_ANY = {**PLAIN, "mode": "train", "attention": "sdpa", "compile": True, "dtype": "bf16"}
FASTEST = {**FASTEST_ANY, "optimizer": "foreach"}
SIZES = ("small", "medium", "large", "xl", "2.7B")


def table(header, below=""):
    """The cells of the lines below a header, the first after a text of the overview."""
    text = OVERVIEW[OVERVIEW.index(below) :].partition(f"\n| {header} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]


@pytest.fixture(scope="module")
def runs():
    """A line for each run and phase, of all runs of the overview."""
    texts = [(MEASUREMENTS / f"{name}.jsonl").read_text() for name in ("measurements", "compile")]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    lines = pd.concat([frame([row]) for row in rows], ignore_index=True)
    return lines.assign(at=lines["started"].str[11:16]).sort_values("started")


def of(runs, **cell):
    for name, value in cell.items():
        runs = runs[runs[name] == value]
    return runs


def one(runs, **cell):
    """The earliest run of a configuration."""
    return of(runs, **cell).iloc[0]


def test_answers_for_small_are_those_of_its_report(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    options, lines = [], [line for line in table("| small | medium | large | command") if "](" not in line[-1]]
    assert len(lines) == 16
    for label, figures, *_, command in lines:
        options = command.strip("`").split() or options
        words = (
            ["view", options[1], str(REPORT), *options[2:]]
            if options[0] == "view"
            else ["rank", str(REPORT), *options]
        )
        assert main(words) == 0
        shown = capsys.readouterr().out
        for figure in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", figures):
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d,]|\.\d)", shown), (label, figure)


def test_fastest_configurations_are_rows(runs):
    lines = table("size | AdamW | step, ms | tokens/s | TFLOP/s | MFU | at, UTC")
    assert [size for size, *_ in lines] == list(SIZES)
    for size, optimizer, *figures, at in lines:
        step = one(runs, **FASTEST | {"size": size, "optimizer": optimizer, "at": at, "phase": "step"})
        assert figures == [
            f"{step.mean_ms:.3f} ± {step.std_ms:.3f}",
            f"{step.tokens_per_s:,.0f}",
            f"{step.tflops:.0f}",
            f"{step.mfu_percent:.1f} %",
        ]


def test_phases_of_the_fastest_are_rows(runs):
    lines = table("sdpa, compiled, bf16 | AdamW | at, UTC | forward + backward, ms | optimizer, ms | step, ms")
    assert len(lines) == 6
    for size, optimizer, at, *figures in lines:
        run = of(runs, **FASTEST | {"size": size, "optimizer": optimizer, "at": at}).set_index("phase")["mean_ms"]
        assert figures == [f"{ms:.2f}" for ms in (run["forward"] + run["backward"], run["optimizer"], run["step"])]


def test_distance_to_the_published_backward_is_of_the_rows(runs):
    with (REPOSITORY / "benchmarks" / "published.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["source"] == "plain model"]
    published = {(line["size"], line["dtype"], line["phase"]): float(line["mean_ms"]) for line in lines}
    lines = table("| small | medium | large | xl | 2.7B")
    assert [line[0] for line in lines] == ["fp32", "tf32", "bf16"]
    for dtype, *figures in lines:
        ours = [one(runs, **TRAINING | {"size": size, "dtype": dtype, "phase": "backward"}) for size in SIZES]
        assert figures == [f"{run.mean_ms - published[run['size'], dtype, 'backward']:.1f}" for run in ours]


def test_forward_per_layer_is_of_the_rows(runs):
    lines = table("| small | medium | large | xl | 2.7B", below="Forward, ms per layer, here:")
    assert len(lines) == 3
    for dtype, *figures in lines:
        ours = [one(runs, **TRAINING | {"size": size, "dtype": dtype, "phase": "forward"}) for size in SIZES]
        assert figures == [f"{run.mean_ms / CONFIGS[run['size']].layers:.2f}" for run in ours]


def test_medians_of_the_forward_are_those_of_all_rows(runs):
    lines = table("forward, context 512, eager, warm-up 5 | medians of all runs, ms | longest / shortest")
    assert len(lines) == 6
    for configuration, medians, ratio in lines:
        size, dtype = configuration.split()
        forwards = of(runs, **PLAIN, size=size, dtype=dtype, phase="forward")
        ms = sorted(forwards[forwards["mode"] != "forward"]["median_ms"])
        assert (medians, ratio) == (", ".join(f"{median:.2f}" for median in ms), f"{ms[-1] / ms[0]:.2f}")


def test_sentences_are_of_the_rows(runs):
    def ms(statistic="mean_ms", **cell):
        return of(runs, **PLAIN | cell)[statistic].mean()

    small = {"size": "small", "mode": "forward", "dtype": "fp32", "phase": "step"}
    large = {**small, "size": "large", "mode": "train"}
    short = {"context_length": 128, "phase": "step", "statistic": "median_ms"}
    at_128 = {
        f"{size} {dtype}": ms(size=size, dtype=dtype, **short) for size in SIZES[:3] for dtype in ("bf16", "fp32")
    }
    next_day = of(runs[runs["started"].str.contains("-21T")], **FASTEST, phase="step").set_index("size")
    optimizers = of(runs[runs["started"].str.contains("-20T")], **{**FASTEST_ANY, "phase": "optimizer"})
    medians = optimizers.set_index(["size", "optimizer"])["median_ms"]
    fused = sorted(100 * medians[size, "fused"] / medians[size, "foreach"] for size in SIZES[:3])
    forward = matmul_flops(CONFIGS["2.7B"], 4, 512)
    largest = one(runs, **FASTEST_ANY, size="2.7B", phase="step")
    in_bf16 = [
        one(runs, **TRAINING, size="small", dtype="bf16", phase=phase).mean_ms for phase in ("forward", "backward")
    ]
    in_fp32 = [one(runs, **TRAINING, size=size, dtype="fp32", phase="optimizer").mean_ms for size in SIZES[:2]]
    sentences = [
        f"{ms(**small):.2f} against {ms(**small, capture='bare'):.2f} ms in a small forward step",
        f"{ms(**large):.1f} against {ms(**large, capture='bare'):.1f} in a large training step",
        f"{at_128['medium bf16']:.1f} against {at_128['medium fp32']:.1f} ms",
        f"{at_128['large bf16']:.1f} against {at_128['large fp32']:.1f})",
        f"small is a little faster ({at_128['small bf16']:.1f} against {at_128['small fp32']:.1f})",
        f"small's step took {next_day.mean_ms['small']:.2f} ms the next day",
        f"({next_day.tokens_per_s['small']:,.0f} tokens/s), medium's {next_day.mean_ms['medium']:.2f}",
        f"large's with foreach {next_day.mean_ms['large']:.2f}",
        f"takes {fused[0]:.0f} to {fused[-1]:.0f} % of foreach's time, by medians",
        f"{forward / 1e12:.3f} TFLOP forward",
        f"times 3 = {3 * forward / 1e12:.3f}; / {largest.mean_ms / 1e3:.6f} s = {largest.tflops:.1f} TFLOP/s",
        f"Of small's {in_bf16[0]:.2f} ms forward and {in_bf16[1]:.2f} ms backward in bf16",
        f"({in_fp32[0]:.2f} against 3.44 ms, {in_fp32[1]:.2f} against 10.27)",
    ]
    overview = " ".join(OVERVIEW.split())
    assert [sentence for sentence in sentences if sentence not in overview] == []
