import json

import pandas as pd
import pytest
from nvtx_kernels.profiling import benchmark
from nvtx_kernels.profiling.run import parser
from nvtx_kernels.profiling.study import results
from nvtx_kernels.profiling.study.frame import frame
from nvtx_kernels.profiling.study.processes import Cell, product
from nvtx_kernels.profiling.study.settings import Settings, SettingsError, with_defaults

from tests.analysis.making.checks import said
from tests.profiling.making.measured_rows import CELL, H200, failed, file_of, no_memory, row
from tests.profiling.making.recordings import python

ROWS = [row(size="small"), row(size="small", mode="forward"), row(size="medium", dtype="bf16")]
WRONG = [
    (["--sizes", "huge", "--device", "cpu"], "size must be one of tiny, small"),
    (["--steps", "1,none"], "1,none is not a valid list"),
    (["--compile", "maybe"], "maybe is not a valid list"),
    (["--captures", "telepathy", "--device", "cpu"], "capture must be one of none, bare, recorder"),
    (["--columns", "chairs"], "columns must be of times, first, rates, memory, not chairs"),
    (["--by", "chairs"], "there is no 'chairs'"),
    (["--repeats", "0"], "0 is not a number of times"),
    (["--memory-fraction", "nan"], "nan is not a share"),
    (["--format", "xml"], "there is no 'xml'"),
    (["--format", "parquet"], "Parquet is binary: use -o FILE"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_what_cannot_be_is_refused_before_anything_is_measured(options, sentence, tmp_path):
    status, _, err = said(benchmark, *options, "--into", tmp_path / "rows.jsonl")
    assert (status, sentence in " ".join(err.split())) == (2, True)


def lines_of(*options):
    """The lines of whole steps that the command writes as JSON."""
    _, text, _ = said(benchmark, *options, "--phases", "step", "--format", "json")
    return json.loads(text)["tables"][0]["rows"]


def test_file_is_shown_without_measuring(tmp_path):
    lines = lines_of("--results", file_of(tmp_path, *ROWS))
    assert [(line["size"], line["mode"]) for line in lines] == [
        ("small", "forward"),
        ("small", "train"),
        ("medium", "train"),
    ]


def test_file_is_shown_without_pytorch(tmp_path):
    options = ["--results", str(file_of(tmp_path, *ROWS))]
    for module in ("benchmark", "attention"):
        program = f"import sys; sys.modules['torch'] = None; from profiling.{module} import main; main({options})"
        done = python("-c", program)
        assert (done.returncode, "NVIDIA H200" in done.stdout) == (0, module == "benchmark"), done.stderr


SELECTIONS = [
    (["--sizes", "medium"], 1),
    (["--layers", "12"], 2),
    (["--layers", "24,36", "--d-model", "1024"], 1),
    (["--modes", "train"], 2),
    (["--dtypes", "fp32,bf16", "--optimizer", "foreach"], 3),
    (["--captures", "none"], 3),
]


@pytest.mark.parametrize(("options", "count"), SELECTIONS)
def test_lists_select_from_a_file(options, count, tmp_path):
    assert len(lines_of("--results", file_of(tmp_path, *ROWS), *options)) == count


def test_captures_none_leaves_out_what_nsys_watched(tmp_path):
    rows = [row(measured=(30,), state={**H200, "watched_by": "nsys"}), row(measured=(20,))]
    path = file_of(tmp_path, *rows)
    for more, captures in (([], ["none", "nsys"]), (["--captures", "none"], ["none"])):
        assert [line["capture"] for line in lines_of("--results", path, *more)] == captures


def test_steps_listed_say_that_nsys_watched(tmp_path):
    path = file_of(tmp_path, row(state={**H200, "watched_by": "nsys"}))
    assert "capture nsys\n" in said(benchmark, "--results", path, "--steps-listing")[1]


def test_several_files_are_shown_together(tmp_path):
    files = [file_of(tmp_path, ROWS[0]), tmp_path / "other.jsonl"]
    files[1].write_text(json.dumps(ROWS[2]))
    assert [line["device_name"] for line in lines_of("--results", *files)] == ["NVIDIA H200"] * 2


def test_out_of_memory_is_no_failure_and_a_failure_is(tmp_path):
    assert said(benchmark, "--results", file_of(tmp_path, row(), no_memory(size="xl")))[0] == 0
    assert said(benchmark, "--results", file_of(tmp_path, row(), failed(size="xl")))[0] == 1


def test_nothing_to_show_is_said(tmp_path):
    told = [
        said(benchmark, "--results", tmp_path / "absent.jsonl"),
        said(benchmark, "--results", file_of(tmp_path), "--sizes", "small"),
    ]
    assert [(status, err.partition(": ")[2]) for status, _, err in told] == [
        (1, f"{tmp_path}/absent.jsonl does not exist\n"),
        (1, "there are no measurements to show\n"),
    ]


def test_steps_are_listed_as_they_ran(tmp_path):
    rows = [row(measured=(20, 22)), row(mode="forward")]
    lines = said(benchmark, "--results", file_of(tmp_path, *rows), "--steps-listing")[1].splitlines()
    begin = lines.index("Forward:")
    assert lines[begin : begin + 7] == [
        "Forward:",
        "  Warmup steps:",
        "    Step 1: 0.040000 seconds",
        "  Measurement steps:",
        "    Step 1: 0.020000 seconds",
        "    Step 2: 0.022000 seconds",
        "  Mean: 0.021000 ± 0.001414 seconds (CV: 6.73%)",
    ]
    assert "  Backward-only (total - forward): 0.043000 seconds (2.05x forward)" in lines
    # A step of mode forward is its forward, and is not listed twice.
    assert (lines.count("Forward:"), lines.count("Step:")) == (2, 1)


def test_tables_go_to_a_file_whole(tmp_path):
    path = tmp_path / "table.csv"
    said(benchmark, "--results", file_of(tmp_path, *ROWS), "-o", path)
    rows = pd.read_csv(path)
    assert rows["phase"].tolist() == list(frame(results.latest(ROWS))["phase"])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.jsonl", "table.csv"]


def test_product_holds_no_cell_twice():
    lists = {
        "size": ["tiny"],
        "device": ["cpu"],
        "optimizer": ["reference", "fused"],
        "mode": ["forward", "train"],
    }
    cells = product(lists, repeats=2)
    modes = [(cell.settings.mode, cell.key["optimizer"], cell.repeat) for cell in cells]
    once = [("forward", None), ("train", "reference"), ("train", "fused")]
    assert modes == [(*cell, repeat) for repeat in (0, 1) for cell in once]


def test_unknown_capture_is_refused():
    with pytest.raises(SettingsError, match="nsys-light, nsys-ops"):
        product({"size": ["tiny"]}, captures=["nsys-heavy"])


def test_xl_of_2026_is_measured_as_27b_and_that_is_said(tmp_path):
    rows = file_of(tmp_path, row(size="xl"), row(size="2.7B"))
    options = ["--results", rows, "--sizes", "xl", "--phases", "step", "--format", "json", "--year", "2026"]
    _, out, err = said(benchmark, *options)
    assert [line["size"] for line in json.loads(out)["tables"][0]["rows"]] == ["2.7B"]
    assert err == "profiling.benchmark: xl of 2026 is 2.7B here, 3,406,809,600 parameters\n"


def test_key_of_a_cell_is_what_it_was_before_dimensions_could_be_changed():
    assert Cell(Settings(device="cpu", heads=12)).key == Cell(Settings(device="cpu")).key
    assert set(Cell(Settings(device="cpu")).key) == set(CELL)
    assert Cell(Settings(device="cpu", layers=4)).key == {**Cell(Settings(device="cpu")).key, "layers": 4}
    assert Cell(Settings(device="cpu", layers=4)).label.startswith("small, layers 4 ctx512 train")


@pytest.mark.parametrize("compiles", [False, True, "reduce-overhead"])
def test_options_of_a_cell_ask_for_its_settings(compiles):
    settings = Settings(
        size="tiny", compile=compiles, warmup=0, mode="forward", dtype="bf16", device="cpu", layers=3
    )
    cell = Cell(settings, capture="recorder", memory_fraction=0.5)
    options = vars(parser().parse_args(cell.options("/there")))
    assert with_defaults(options) == settings
    assert (options["record"], options["memory_fraction"]) == ("/there/recording.sqlite", 0.5)
