import io
import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from nvtx_kernels.profiling import attention
from nvtx_kernels.profiling.attention import main
from nvtx_kernels.profiling.study import results
from nvtx_kernels.profiling.study.attention import KINDS, Case, function_of, measure
from nvtx_kernels.profiling.study.frame import frame
from nvtx_kernels.profiling.study.plots import drawing
from nvtx_kernels.profiling.study.settings import SettingsError
from nvtx_kernels.profiling.study.table import document, table

from tests.analysis.making.checks import said
from tests.profiling.making import forked
from tests.profiling.making.shown_tables import shown

CASE = Case(d=16, length=64, kind="reference", dtype="fp32", batch_size=2, warmup=1, steps=2, device="cpu")
SCORES_BYTES = 2 * 64 * 64 * 4
INPUT_BYTES = 4 * (2 * 64 * 16 * 4)
GRID = ["--dims=16", "--lengths=32,64", "--batch-size=2", "--steps=2", "--warmup=1", "--device=cpu"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_times_forward_and_backward(kind):
    row = measure(replace(CASE, kind=kind))
    assert (row["status"], len(row["warmup"]), len(row["measured"])) == ("ok", 1, 2)
    assert all(ms > 0 for times in row["measured"] for ms in (times["forward"], times["backward"]))


def test_reference_holds_scores_before_backward_and_sdpa_does_not():
    held = {kind: measure(replace(CASE, kind=kind))["held_bytes"] for kind in ("reference", "sdpa")}
    assert held["reference"] >= INPUT_BYTES + 2 * SCORES_BYTES
    assert INPUT_BYTES < held["sdpa"] < INPUT_BYTES + SCORES_BYTES


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k == "compiled")) for k in KINDS])
def test_all_kinds_compute_the_same(kind):
    torch.manual_seed(0)
    inputs = torch.randn(3, 2, 1, 64, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
    torch.testing.assert_close(function_of(kind)(*inputs), expected)


def test_cases_that_nsys_watched_say_so():
    row = measure(CASE)
    rows = [row, {**row, "state": {**row["state"], "watched_by": "nsys"}}]
    lines = shown(table(frame(rows), "capture"))
    assert [line["capture"] for line in lines if line["phase"] == "forward"] == ["none", "nsys"]
    warned = ["Under nsys the program is slower" in " ".join(document(some).notes) for some in (rows, rows[:1])]
    assert warned == [True, False]


@pytest.mark.parametrize("wrong", [{"kind": "flash"}, {"d": 0}, {"steps": 0}, {"warmup": -1}])
def test_impossible_case_is_refused(wrong):
    with pytest.raises(SettingsError):
        replace(CASE, **wrong)


@pytest.mark.slow
def test_command_resumes_and_shows(tmp_path, capsys):
    path, kinds = tmp_path / "attention.jsonl", ["--kinds", "reference,sdpa"]
    assert main([*GRID, *kinds, "--lengths", "32", "--into", str(path), "--format", "json"]) == 0
    before, _ = results.read(path, results.ATTENTION)
    assert main([*GRID, *kinds, "--into", str(path), "--format", "json"]) == 0
    after, _ = results.read(path, results.ATTENTION)
    assert (len(before), len(after), after[:2]) == (2, 4, before)
    told = json.loads(capsys.readouterr().out.split("\n}\n", 1)[1])["tables"][0]["rows"]
    assert [(line["kind"], line["length"]) for line in told if line["phase"] == "forward"] == [
        ("reference", 32),
        ("reference", 64),
        ("sdpa", 32),
        ("sdpa", 64),
    ]
    assert main(["--results", str(path)]) == 0
    assert "before" in capsys.readouterr().out


@pytest.mark.slow
def test_lack_of_memory_is_a_line_and_the_grid_goes_on(tmp_path):
    lengths = ["--kinds", "reference", "--lengths", "4096,32", "--memory-fraction", "0.03"]
    options = [*GRID, *lengths, "--into", str(tmp_path / "rows.jsonl"), "--format", "csv"]
    done = forked.run("-m", "profiling.attention", *options, check=True)
    lines = pd.read_csv(io.StringIO(done.stdout)).drop_duplicates("length").set_index("length")
    assert lines["status"].to_dict() == {4096: "oom", 32: "ok"}
    assert lines["phase"][4096] in ("forward", "backward")
    assert lines["requested_bytes"][4096] >= 2 * 4096 * 4096 * 4


@pytest.mark.slow
def test_plot_has_a_line_per_kind_and_dimension(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")
    path, picture = tmp_path / "rows.jsonl", tmp_path / "attention.png"
    assert main([*GRID, "--kinds", "reference,sdpa", "--into", str(path)]) == 0
    assert main(["--results", str(path), "--plot", str(picture)]) == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"
    rows, _ = results.read(path, results.ATTENTION)
    panels = drawing(frame(rows)).axes
    assert [panel.get_xscale() for panel in panels] == ["log"] * 3
    assert {bar.get_label() for bar in panels[0].containers} == {"reference", "sdpa"}


def test_what_the_command_cannot_do_is_refused(tmp_path):
    refused = {
        "kind must be one of reference, compiled, sdpa": ["--device", "cpu", "--kinds", "flash"],
        "device must be cuda, cuda:N or cpu, not tpu": ["--device", "tpu"],
        "there is no --longest": ["--longest", "3"],
    }
    for sentence, words in refused.items():
        status, _, err = said(attention, *words, "--into", tmp_path / "rows")
        assert (status, sentence in err) == (2, True)
    assert said(attention, "--results", tmp_path / "absent")[0] == 1
