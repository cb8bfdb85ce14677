import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nvtx_kernels.profiling import nsys, nsys_program
from nvtx_kernels.profiling.study import nsight, nsys_reports, results
from nvtx_kernels.profiling.study.processes import Cell, measured
from nvtx_kernels.profiling.study.settings import Settings

from tests.profiling.making.measured_rows import CELL

TINY = ["--sizes", "tiny", "--contexts", "16", "--warmup", "0", "--steps", "1", "--device", "cpu"]
LIGHT = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"]
MEASURED = ["--capture-range=nvtx", "--nvtx-capture=measure@nvtx-kernels", "--capture-range-end=stop"]


@pytest.fixture
def standin(tmp_path, monkeypatch):
    """Put the stand-in on PATH as nsys, and return its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = Path(__file__).parents[1].joinpath("making", "standin_nsys.py").read_text()
    (folder / "nsys").write_text(f"#!{sys.executable}\n{script}")
    (folder / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


FLAGS = {
    "light": LIGHT,
    "ops": LIGHT,
    "graphs": [*LIGHT, "--cuda-graph-trace=node"],
    "memory": [*LIGHT, "--cuda-memory-usage=true"],
    "shapes": [*LIGHT, "--pytorch=autograd-shapes-nvtx"],
    # nsys refuses or ignores backtraces without CPU sampling, and Python's without CUDA's.
    "backtrace": [
        *("--trace=cuda,nvtx", "--sample=process-tree", "--cpuctxsw=none"),
        *("--cudabacktrace=all", "--python-backtrace=cuda"),
    ],
    "metrics": [*LIGHT, "--gpu-metrics-devices=cuda-visible"],
}


def test_every_preset_is_held_to_its_flags():
    assert list(FLAGS) == list(nsight.PRESETS)


@pytest.mark.parametrize("preset", FLAGS)
def test_printed_command_holds_the_presets_flags_and_then_the_users(standin, tmp_path, capsys, preset):
    extra = ["--", "--gpu-metrics-devices=0"]
    assert nsys.main([*TINY, "--reports", str(tmp_path), "--preset", preset, "--print-command", *extra]) == 0
    words = shlex.split(capsys.readouterr().out)
    flags, program = words[2 : words.index(sys.executable)], words[words.index("nvtx_kernels.profiling.run") :]
    output = (
        f"--output={tmp_path}/tiny_ctx00016_train_fp32_cpu_b1_w0_n1{'' if preset == 'light' else f'_{preset}'}"
    )
    assert flags == [*FLAGS[preset], output, "--force-overwrite=true", *MEASURED, "--gpu-metrics-devices=0"]
    assert ("--emit-nvtx" in program) == (preset == "ops")


@pytest.mark.parametrize(
    ("preset", "compiles", "is_range"),
    [("graphs", "reduce-overhead", False), ("light", "reduce-overhead", True), ("graphs", "on", True)],
)
def test_warm_up_is_captured_where_graphs_of_interest_are(standin, tmp_path, capsys, preset, compiles, is_range):
    options = ["--reports", str(tmp_path), "--preset", preset, "--compile", compiles, "--print-command"]
    assert nsys.main([*TINY, *options]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert any(word.startswith("--capture-range=") for word in words) is is_range


@pytest.mark.slow
def test_report_has_a_name_that_sorts_and_is_captured_again_when_gone(standin, tmp_path, capsys):
    folder = tmp_path / "reports"
    options = [*TINY, "--modes", "forward", "--reports", str(folder), "--export", "--", "--stats=true"]
    assert nsys.main(options) == 0
    report = folder / "tiny_ctx00016_forward_fp32_cpu_b1_w0_n1.nsys-rep"
    found = sorted(path.name for path in folder.iterdir())
    assert found == ["index.jsonl", report.name, report.with_suffix(".sqlite").name]
    flags = json.loads(report.read_text())["flags"]
    assert [flag for flag in flags if not flag.startswith("--output")][1:] == [
        *LIGHT,
        "--force-overwrite=true",
        *MEASURED,
        "--stats=true",
    ]
    assert "the program is slower than alone" in capsys.readouterr().out
    report.unlink()
    assert nsys.main(options) == 0
    assert (report.exists(), len(results.read(folder / "index.jsonl")[0])) == (True, 2)


def test_budget_that_lets_nothing_be_captured_is_said(standin, tmp_path, capsys):
    assert nsys.main([*TINY, "--reports", str(tmp_path), "--budget", "0"]) == 1
    assert capsys.readouterr().err == "profiling.nsys: there are no measurements to show\n"


@pytest.mark.slow
def test_run_without_memory_leaves_a_row_and_no_report(standin, tmp_path):
    kept = []
    cell = Cell(Settings(size="small", device="cpu", context_length=16), "nsys-light", memory_fraction=0.025)
    row = measured(cell, keep_report=lambda report, row: kept.append(report))
    assert (row["status"], kept) == ("oom", [])


@pytest.mark.slow
def test_printed_command_runs_as_it_stands(standin, tmp_path, capfd):
    folder = tmp_path / "a folder"
    assert nsys.main([*TINY, "--reports", str(folder), "--preset", "memory", "--print-command"]) == 0
    [line] = capfd.readouterr().out.splitlines()
    assert not folder.exists()
    folder.mkdir()
    subprocess.run(["/bin/sh", "-c", line], check=True)
    [report] = folder.iterdir()
    told = json.loads(report.read_text())
    assert told["flags"] == shlex.split(line)[1 : len(told["flags"]) + 1]
    assert report.name == "tiny_ctx00016_train_fp32_cpu_b1_w0_n1_memory.nsys-rep"


def test_missing_nsys_is_a_sentence_and_a_failed_row(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    if shutil.which("nsys") or list(nsys_program.installed()):
        pytest.skip("nsys is installed in one of its usual places")
    assert nsys.main(TINY) == 1
    assert "profiling.nsys: nsys was not found on PATH" in capsys.readouterr().err
    row = measured(Cell(Settings(size="tiny", device="cpu"), capture="nsys-light"))
    assert (row["status"], row["message"][:18]) == ("failed", "nsys was not found")


VERSIONS = [
    ("NVIDIA Nsight Systems version 2025.3.1.90-253136205150v0", (2025, 3, 1)),
    ("NVIDIA Nsight Systems version 2022.4.2.1-df9881f", (2022, 4, 2)),
]


@pytest.mark.parametrize(("said", "version"), VERSIONS)
def test_version_is_read_from_what_nsys_says(said, version, tmp_path):
    program = tmp_path / "nsys"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    assert nsys_program.version(str(program)) == version


@pytest.mark.parametrize("program", ["/bin/true", "/bin/false", "/nowhere/nsys"])
def test_program_that_says_no_version_is_refused(program):
    with pytest.raises(nsys_program.NsysError, match=program):
        nsys_program.version(program)


def test_model_preset_names_the_sizes_and_changed_dimensions_the_report(standin, tmp_path, capsys):
    options = ["--year", "2026", "--sizes", "xl", "--layers", "2", "--contexts", "16", "--device", "cpu"]
    assert nsys.main([*options, "--reports", str(tmp_path), "--print-command"]) == 0
    line = capsys.readouterr().out
    assert "--size 2.7B " in line
    assert "--layers 2" in line
    assert f"--output={tmp_path}/2.7B_ctx00016_train_fp32_cpu_b1_w1_n3_l2 " in line


NAMES = {
    "small_ctx00512_train_fp32_h200_foreach_w1_n2": {},
    "2.7B_ctx16384_forward_bf16_h200_sdpa_compiled_b8": {
        "size": "2.7B",
        "context_length": 16384,
        "mode": "forward",
        "dtype": "bf16",
        "attention": "sdpa",
        "compile": True,
        "optimizer": None,
        "batch_size": 8,
        "warmup": 5,
        "steps": 10,
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_name_says_what_is_unusual(name):
    cell = {**CELL, **NAMES[name], "capture": "nsys-light"}
    assert nsys_reports.name_of(cell, "NVIDIA H200") == name


GPUS = [("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("CPU (x)", "cpu")]


@pytest.mark.parametrize(("gpu", "words"), GPUS)
def test_gpu_name_fits_a_file_name(gpu, words):
    assert f"_fp32_{words}_foreach_" in nsys_reports.name_of({**CELL, "capture": "nsys-light"}, gpu)
