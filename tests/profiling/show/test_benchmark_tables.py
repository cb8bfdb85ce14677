import statistics
from dataclasses import replace

import pandas as pd
import pytest
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.cost import matmul_flops
from nvtx_kernels.profiling.show import notes
from nvtx_kernels.profiling.show.frames import frame
from nvtx_kernels.profiling.show.studies import TABLES

from tests.profiling.making.measured_rows import H200, failed, no_memory, row
from tests.profiling.making.shown_tables import headings, sentences, shown

MEASURED = (20, 22, 27)


def cells(table, **where):
    """The text of a table's lines in which columns read as given."""
    return [line for line in shown(table) if where.items() <= {**line}.items()]


def test_statistics_are_those_of_the_measured_steps():
    line = frame([row(measured=MEASURED)]).set_index("phase").loc["backward"]
    values = [2 * ms for ms in MEASURED]
    assert (line["n"], line["mean_ms"], line["median_ms"]) == (3, 46, 44)
    assert (line["min_ms"], line["max_ms"], line["first_ms"]) == (40, 54, 80)
    assert line["std_ms"] == pytest.approx(statistics.stdev(values))
    assert line["cv_percent"] == pytest.approx(100 * statistics.stdev(values) / 46)


def test_single_step_has_no_spread():
    [line] = cells(TABLES["times"](frame([row(measured=(20,))])), phase="forward")
    assert (line["mean ms"], line["std ms"], line["CV %"]) == ("20.000", "–", "–")


def test_repeats_are_pooled():
    line = frame([row(measured=(20,)), row(measured=(22,), repeat=1)]).iloc[0]
    assert (line["n"], line["processes"], line["mean_ms"], line["first_ms"]) == (2, 2, 21, 40)


def test_rows_that_nsys_watched_are_lines_of_their_own_with_a_warning():
    rows = [row(measured=(20,)), row(measured=(30,), state={**H200, "watched_by": "nsys"})]
    lines = frame(rows)
    forward = lines[lines["phase"] == "forward"]
    assert list(zip(forward["capture"], forward["mean_ms"], strict=True)) == [("none", 20), ("nsys", 30)]
    assert [note for note in notes.document(rows, lines, ()).notes if "Times under nsys are" in note]
    assert [line["tokens/s"] for line in cells(TABLES["fastest"](lines))] == ["32,000"]


def test_throughput_and_mfu_follow_from_flops_and_the_known_peak():
    line = frame([row(measured=(20,))]).set_index("phase").loc["step"]
    flops = 3 * matmul_flops(CONFIGS["small"], 4, 512)
    assert line["mean_ms"] == 64
    assert line["tokens_per_s"] == pytest.approx(2048 / 0.064)
    assert line["tflops"] == pytest.approx(flops / 0.064 / 1e12)
    assert line["mfu_percent"] == pytest.approx(100 * flops / 0.064 / 66.9e12)


def test_rows_of_a_changed_model_are_lines_of_their_own_with_its_flops():
    lines = frame([row(), row(size="small", layers=24), row(size="medium")])
    steps = lines[lines["phase"] == "step"].set_index("size")
    assert list(steps.index) == ["small", "medium", "small, layers 24"]
    assert [line["size"] for line in cells(TABLES["warmup"](lines), phase="step")] == list(steps.index)
    flops = steps["tflops"] * steps["mean_ms"] * 1e9
    deeper = matmul_flops(replace(CONFIGS["small"], layers=24), 4, 512)
    assert flops["small, layers 24"] == pytest.approx(3 * deeper)
    assert flops["small"] == pytest.approx(3 * matmul_flops(CONFIGS["small"], 4, 512))


def test_unknown_peak_is_a_dash():
    state = {"device_name": "NVIDIA Imaginary 1"}
    [line] = cells(TABLES["throughput"](frame([row(state=state, measured=(20,))])))
    assert (line["MFU %"], line["tokens/s"], line["parameters"]) == ("–", "32,000", "128,625,408")


def test_optimizer_has_no_flops():
    line = frame([row()]).set_index("phase").loc["optimizer"]
    assert pd.isna(line["tflops"])


def test_backward_is_given_as_timed_and_as_the_rest_of_the_step():
    [line] = cells(TABLES["backward"](frame([row(measured=(20,))])))
    timed = (line["forward ms"], line["backward ms"], line["/ forward"])
    assert timed == ("20.000", "40.000", "2")
    assert (line["total ms"], line["total - forward ms"], line["/ forward "]) == ("61.000", "41.000", "2.05")


def test_modes_subtract_the_forward_of_one_process_from_the_step_of_another():
    rows = [row(mode="forward", measured=(20, 22)), row(mode="forward-backward", measured=(25, 25))]
    [line] = cells(TABLES["modes"](frame(rows)))
    assert line["forward ms"] == "21.000 ± 1.414"
    assert (line["forward+backward ms"], line["backward ms"], line["/ forward"]) == (
        "76.000 ± 0.000",
        "55.000",
        "2.62",
    )


def test_modes_keep_what_ran_out_of_memory_or_was_not_measured():
    alone = [row(mode="forward", size=size, measured=(20,)) for size in ("small", "xl")]
    lines = cells(TABLES["modes"](frame([*alone, no_memory(mode="forward-backward", size="xl", steps=1)])))
    found = {line["size"]: (line["forward ms"], line["forward+backward ms"], line["result"]) for line in lines}
    assert found["small"] == ("20.000", "–", "ok")
    assert found["xl"] == ("20.000", "–", "OOM in backward, asked for 1.5 GiB")


def test_modes_name_the_warmup_that_was_varied():
    rows = [row(mode=mode, warmup=(9,)) for mode in ("forward", "forward-backward")]
    lines = cells(TABLES["modes"](frame([*rows, row(mode="forward", warmup=())])))
    assert [(line["warm-up"], line["n, both"]) for line in lines] == [("0", "–"), ("1", "2")]


def test_warmup_study_shows_the_first_step_apart():
    rows = [row(warmup=(), measured=(90, 20)), row(warmup=(90, 21), measured=(20, 20))]
    lines = cells(TABLES["warmup"](frame(rows)), phase="forward")
    assert [(line["warm-up"], line["first step ms"], line["mean ms"]) for line in lines] == [
        ("0", "90.000", "55.000"),
        ("2", "90.000", "20.000"),
    ]


def test_comparison_divides_by_the_first_value():
    rows = [row(dtype="bf16", measured=(10, 10)), row(dtype="fp32", measured=(20, 20))]
    lines = cells(TABLES["dtype"](frame(rows)), phase="forward")
    assert [(line["dtype"], line["/ dtype fp32"]) for line in lines] == [("fp32", "1"), ("bf16", "0.5")]


def test_comparison_goes_by_size_then_phase_then_value():
    rows = [row(size=size, dtype=dtype) for size in ("xl", "2.7B", "small") for dtype in ("bf16", "fp32")]
    lines = shown(TABLES["dtype"](frame(rows)))
    assert list(dict.fromkeys(line["size"] for line in lines)) == ["small", "xl", "2.7B"]
    assert list(dict.fromkeys(line["phase"] for line in lines)) == ["forward", "backward", "optimizer", "step"]
    assert [line["dtype"] for line in lines[:4]] == ["fp32", "bf16"] * 2


def test_lines_of_several_sessions_say_when():
    late = {**row(dtype="bf16"), "started": "2026-01-02T05:00:00Z"}
    lines = cells(TABLES["dtype"](frame([row(), late])), phase="step")
    assert [line["at, UTC"] for line in lines] == ["03:04", "05:00"]
    assert "at, UTC" not in headings(TABLES["dtype"](frame([row(), row(dtype="bf16")])))
    document = notes.document([row(), late], frame([row(), late]), ())
    assert any("2 sessions" in line for line in document.accounting)


def test_context_sweep_has_a_line_per_size_and_context():
    rows = [row(size=size, context_length=context) for size in ("medium", "small") for context in (1024, 128)]
    pairs = [(line["size"], line["context"]) for line in shown(TABLES["summary"](frame(rows)))]
    assert pairs == [("small", "128"), ("small", "1024"), ("medium", "128"), ("medium", "1024")]


def test_fastest_configuration_is_the_one_with_most_tokens_per_second():
    rows = [row(measured=(20,)), row(dtype="bf16", compile=True, measured=(5,)), row(dtype="tf32", measured=(9,))]
    watched = row(dtype="bf16", attention="sdpa", capture="bare", measured=(1,))
    [line] = cells(TABLES["fastest"](frame([*rows, watched])))
    assert (line["size"], line["dtype"], line["compile"], line["step ms"]) == ("small", "bf16", "yes", "19.000")


@pytest.mark.parametrize("name", ["times", "summary", "memory"])
def test_out_of_memory_is_a_line_with_phase_and_request(name):
    [line] = cells(TABLES[name](frame([row(), no_memory(size="2.7B")])), size="2.7B")
    assert line["result"] == "OOM in backward, asked for 1.5 GiB"
    assert set(line.values()) >= {"2.7B", "–"}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_made_of_any_rows(name):
    rows = [row(), row(mode="forward"), no_memory(size="xl"), failed(size="10B")]
    table = TABLES[name](frame(rows))
    assert len(set(headings(table))) == len(headings(table))
    assert all(isinstance(value, str) for line in shown(table) for value in line.values())


def test_notes_say_what_decided_the_numbers():
    rows = [
        row(clocks={"sm_mhz": 1980.0}, warnings=["TF32 is forced"]),
        row(capture="recorder"),
        failed(size="xl"),
    ]
    lines = frame(rows)
    document = notes.document(rows, lines, [TABLES["fastest"](lines)])
    text = "\n".join(sentences(document))
    for words in (
        "context 512",
        "AdamW foreach",
        "NVIDIA H200",
        "torch 2.11.0",
        "fp32: TF32 off",
        "1980",
        "H200 fp32 66.9",
    ):
        assert words in text
    pairs = zip(("SIGKILL", "forced", "recorder"), document.notes, strict=True)
    assert [words in line for words, line in pairs] == [True] * 3
