"""The row of one run: what stands in it, and when it is written."""

import json
import statistics
from pathlib import Path

import pytest
from nvtx_kernels.profiling.annotate import range_stack
from nvtx_kernels.profiling.run import main
from nvtx_kernels.profiling.study import results
from nvtx_kernels.profiling.study.one_run import Capture
from nvtx_kernels.profiling.study.processes import Cell, measured
from nvtx_kernels.profiling.study.settings import Settings

from tests.profiling.making.hearing import heard_from
from tests.profiling.study.test_run import ANNOUNCED, run

TINY = {"size": "tiny", "context_length": 64, "batch_size": 1, "warmup": 1, "steps": 2, "device": "cpu"}
OPTIONS = ["--size", "tiny", "--device", "cpu", "--steps", "2"]


@pytest.mark.slow
def test_json_is_the_row_of_a_sweep_with_the_times_of_the_screen(tmp_path):
    path = tmp_path / "run.json"
    done = run("--steps", 2, "--json", path)
    [told], torn = results.read(path)
    swept = measured(Cell(Settings(**TINY)))
    assert (done.returncode, done.stderr, torn) == (0, ANNOUNCED, 0)
    assert told.keys() == swept.keys()
    assert (told["cell"], told["state"], told["status"]) == (swept["cell"], swept["state"], "ok")
    assert set(told["phase_peak_bytes"]) == {"forward", "backward", "optimizer"}
    assert f"{statistics.fmean(times['step'] for times in told['measured']):,.3f}" in done.stdout
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_under_nsys_the_row_says_so_and_no_more_steps_run(tmp_path, monkeypatch):
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    path = tmp_path / "run.json"
    paths = heard_from(lambda: main([*OPTIONS, "--json", str(path)]))
    told = json.loads(path.read_text())
    assert told["state"]["watched_by"] == "nsys"
    assert [told[name] for name in ("phase_peak_bytes", "clocks", "warnings")] == [None, None, []]
    assert len([each for each in paths if each.endswith("step/forward")]) == 1 + 2
    assert len([each for each in paths if each.endswith("forward")]) == 1 + 2


def test_row_that_cannot_be_put_into_place_leaves_everything_as_it_was(tmp_path, monkeypatch):
    def replace(self, target):
        raise OSError("No space left on device")

    (tmp_path / "run.json").write_text("before")
    monkeypatch.setattr(Path, "replace", replace)
    assert main([*OPTIONS, "--json", str(tmp_path / "run.json")]) == 1
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("run.json", "before")]


CAPTURES = [
    (Capture(), False, "none"),
    (Capture(), True, "bare"),
    (Capture("r.sqlite"), False, "recorder"),
    (Capture(None, operators=True), False, "emit-nvtx"),
    (Capture("r.sqlite", operators=True), False, "recorder, emit-nvtx"),
]


@pytest.mark.parametrize(("capture", "off", "name"), CAPTURES)
def test_row_says_how_its_steps_were_watched(capture, off, name, monkeypatch):
    monkeypatch.setattr(range_stack, "off", off)
    assert capture.name == name
