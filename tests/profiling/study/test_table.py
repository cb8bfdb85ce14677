import io
import json
import statistics
from dataclasses import replace

import pandas as pd
import pytest
from nvtx_kernels.analysis.presenters import as_table, presenter
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.cost import matmul_flops
from nvtx_kernels.profiling.study.frame import frame
from nvtx_kernels.profiling.study.studies import BY, COLUMNS
from nvtx_kernels.profiling.study.table import document, table

from tests.profiling.making.measured_rows import H200, attention_row, failed, no_memory, row
from tests.profiling.making.shown_tables import headings, sentences, shown

MEASURED = (20, 22, 27)


def lines_of(rows, *how, **where):
    """The text of the table's lines in which columns read as given."""
    return [line for line in shown(table(frame(rows), *how)) if where.items() <= {**line}.items()]


def test_statistics_are_those_of_the_measured_steps():
    line = frame([row(measured=MEASURED)]).set_index("phase").loc["backward"]
    times = [2 * ms for ms in MEASURED]
    assert (line["n"], line["mean_ms"], line["median_ms"]) == (3, 46, 44)
    assert (line["min_ms"], line["max_ms"], line["first_ms"]) == (40, 54, 80)
    assert line["std_ms"] == pytest.approx(statistics.stdev(times))
    assert line["cv_percent"] == pytest.approx(100 * statistics.stdev(times) / 46)


def test_single_step_has_no_spread_and_repeats_are_pooled():
    [line] = lines_of([row(measured=(20,))], phase="forward")
    assert (line["mean ms"], line["std ms"], line["CV %"]) == ("20.000", "–", "–")
    line = frame([row(measured=(20,)), row(measured=(22,), repeat=1)]).iloc[0]
    assert (line["n"], line["processes"], line["mean_ms"], line["first_ms"]) == (2, 2, 21, 40)


def test_rows_that_nsys_watched_are_lines_of_their_own_with_a_warning():
    rows = [row(measured=(20,)), row(measured=(30,), state={**H200, "watched_by": "nsys"})]
    forward = frame(rows).query("phase == 'forward'")
    assert list(zip(forward["capture"], forward["mean_ms"], strict=True)) == [("none", 20), ("nsys", 30)]
    assert [note for note in document(rows).notes if "Under nsys the program is slower" in note]


def test_throughput_and_mfu_follow_from_flops_and_the_known_peak():
    line = frame([row(measured=(20,))]).set_index("phase").loc["step"]
    flops = 3 * matmul_flops(CONFIGS["small"], 4, 512)
    assert line["mean_ms"] == 64
    assert line["tokens_per_s"] == pytest.approx(2048 / 0.064)
    assert line["tflops"] == pytest.approx(flops / 0.064 / 1e12)
    assert line["mfu_percent"] == pytest.approx(100 * flops / 0.064 / 67.0e12)


def test_rows_of_a_changed_model_are_lines_of_their_own_with_its_flops():
    lines = frame([row(), row(size="small", layers=24), row(size="medium")])
    steps = lines[lines["phase"] == "step"].set_index("size")
    assert list(steps.index) == ["small", "medium", "small, layers 24"]
    flops = steps["tflops"] * steps["mean_ms"] * 1e9
    deeper = matmul_flops(replace(CONFIGS["small"], layers=24), 4, 512)
    assert flops["small, layers 24"] == pytest.approx(3 * deeper)
    assert flops["small"] == pytest.approx(3 * matmul_flops(CONFIGS["small"], 4, 512))


def test_unknown_peak_is_a_dash_and_the_optimizer_has_no_flops():
    rows = [row(state={"device_name": "NVIDIA Imaginary 1"}, measured=(20,))]
    [step] = lines_of(rows, "phase", ["rates"], phase="step")
    [optimizer] = lines_of(rows, "phase", ["rates"], phase="optimizer")
    assert (step["MFU %"], step["tokens/s"], optimizer["TFLOP/s"]) == ("–", "32,000", "–")
    assert "128,625,408 parameters" in " ".join(document(rows).accounting)


def test_phases_are_compared_with_the_forward_of_their_configuration():
    lines = lines_of([row(size="small"), row(size="xl", measured=(40, 40))])
    assert [
        (line["size"], line["phase"], line["/ forward"]) for line in lines if line["phase"] != "optimizer"
    ] == [
        *(("small", "forward", "1"), ("small", "backward", "2"), ("small", "step", "3.19")),
        *(("xl", "forward", "1"), ("xl", "backward", "2"), ("xl", "step", "3.1")),
    ]


def test_modes_are_subtracted_one_process_from_another_and_a_negative_difference_is_said():
    rows = [row(mode="forward", measured=(20, 22)), row(mode="forward-backward", measured=(25, 25))]
    forward, both = lines_of(rows, "mode", ["times"], ["step"])
    assert (forward["mean ms"], forward["std ms"], both["mean ms"]) == ("22.000", "1.414", "76.000")
    assert (both["/ mode forward"], both["- mode forward ms"]) == ("3.45", "54.000")
    rows[0] = row(mode="forward", measured=(99, 99))
    assert "the difference is no backward" in document(rows, "mode", ["times"], ["step"]).notes[0]


def test_modes_keep_what_ran_out_of_memory_or_was_not_measured():
    alone = [row(mode="forward", size=size, measured=(20,)) for size in ("small", "xl")]
    lost = no_memory(mode="forward-backward", size="xl", steps=1)
    lines = lines_of([*alone, lost], "mode", ["times"], ["step"])
    assert [(line["size"], line["mode"], line["mean ms"], line["result"]) for line in lines] == [
        ("small", "forward", "21.000", "ok"),
        ("xl", "forward-backward", "–", "OOM in backward, asked for 1.5 GiB"),
        ("xl", "forward", "21.000", "ok"),
    ]


def test_warmup_study_shows_the_first_step_apart():
    rows = [row(warmup=(), measured=(90, 20)), row(warmup=(90, 21), measured=(20, 20))]
    lines = lines_of(rows, "warmup", ["first", "times"], phase="forward")
    assert [(line["warm-up"], line["first step ms"], line["mean ms"]) for line in lines] == [
        ("0", "90.000", "55.000"),
        ("2", "90.000", "20.000"),
    ]


def test_comparison_divides_by_the_first_value_and_goes_by_size_then_phase_then_value():
    times, sizes = {"bf16": (10, 10), "fp32": (20, 20)}, ("xl", "2.7B", "small")
    rows = [row(size=size, dtype=dtype, measured=ms) for size in sizes for dtype, ms in times.items()]
    lines = lines_of(rows, "dtype")
    forward = [(line["dtype"], line["/ dtype fp32"]) for line in lines if line["phase"] == "forward"]
    assert forward == [("fp32", "1"), ("bf16", "0.5")] * 3
    assert list(dict.fromkeys(line["size"] for line in lines)) == ["small", "xl", "2.7B"]
    assert list(dict.fromkeys(line["phase"] for line in lines)) == ["forward", "backward", "optimizer", "step"]
    assert [line["dtype"] for line in lines[:4]] == ["fp32", "bf16"] * 2


def test_lines_of_several_sessions_say_when():
    late = {**row(dtype="bf16"), "started": "2026-01-02T05:00:00Z"}
    lines = lines_of([row(), late], "dtype", phase="step")
    assert [line["at, UTC"] for line in lines] == ["03:04", "05:00"]
    assert "at, UTC" not in headings(table(frame([row(), row(dtype="bf16")]), "dtype"))
    assert any("2 sessions" in line for line in document([row(), late]).accounting)


def test_attention_alone_has_the_same_table_with_what_it_holds():
    rows = [attention_row(kind="sdpa", held_bytes=1 << 30), attention_row(kind="reference", held_bytes=3 << 30)]
    lines = lines_of(rows, "kind", phase="forward")
    assert [(line["kind"], line["before backward GiB"]) for line in lines] == [("reference", "3"), ("sdpa", "1")]
    assert "one head" in " ".join(document(rows).accounting)


@pytest.mark.parametrize("groups", COLUMNS)
@pytest.mark.parametrize("by", BY)
def test_table_can_be_made_of_any_rows(by, groups):
    rows = [row(), row(mode="forward"), no_memory(size="xl"), failed(size="10B")]
    answer = table(frame(rows), by, [groups])
    assert len(set(headings(answer))) == len(headings(answer))
    assert all(isinstance(text, str) for line in shown(answer) for text in line.values())


def test_notes_say_what_decided_the_numbers():
    rows = [
        row(clocks={"sm_mhz": 1980.0}, warnings=["TF32 is forced"]),
        row(capture="recorder"),
        failed(size="xl"),
    ]
    answer = document(rows, "capture", ["rates"])
    text = "\n".join(sentences(answer))
    expected = ("context 512", "AdamW foreach", "NVIDIA H200", "torch 2.11.0", "fp32: TF32 off", "1980", "fp32 67")
    assert [words for words in expected if words not in text] == []
    pairs = zip(("SIGKILL", "forced", "recorder"), answer.notes, strict=True)
    assert [words in line for words, line in pairs] == [True] * 3


MARKDOWN = """\
| size   | phase    | peak GiB | n | / forward | result                             |
|:-------|:---------|---------:|--:|----------:|:-----------------------------------|
| small  | forward  |        3 | 2 |         1 | ok                                 |
| small  | backward |        4 | 2 |         2 | ok                                 |
| small  | step     |        4 | 2 |      3.05 | ok                                 |
| large  | backward |        – | – |         – | OOM in backward, asked for 1.5 GiB |
"""
TWO = [row(mode="forward-backward"), no_memory(size="large", mode="forward-backward")]


def test_tables_of_results_are_drawn_by_the_presenters_of_reports():
    text = presenter("markdown").present(document(TWO, "phase", ["memory"]))
    assert "".join(MARKDOWN.split()).replace("-", "") in "".join(text.split()).replace("-", "")


@pytest.mark.parametrize("width", [20, 80, 200])
def test_no_number_is_cut_however_narrow_the_screen(width):
    text = as_table.present(document(TWO), width=width)
    assert "…" not in text
    backward = next(line for line in text.splitlines() if " backward " in line and "42.000" in line)
    assert backward.split()[:5] == ["small", "backward", "42.000", "2.828", "6.73"]


def test_csv_and_json_hold_the_same_numbers():
    answer = document(TWO)
    from_csv = pd.read_csv(io.StringIO(presenter("csv").present(answer)))
    from_json = pd.DataFrame(json.loads(presenter("json").present(answer))["tables"][0]["rows"])
    numbers = list(from_json.select_dtypes("number").columns)
    pd.testing.assert_frame_equal(from_csv[numbers], from_json[numbers], check_dtype=False, rtol=1e-9)
