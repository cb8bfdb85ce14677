"""Measured peaks: what a device reaches, kept for the reports that are made later."""

import json

import pytest
import torch
from nvtx_kernels.profiling import annotate, doctor
from nvtx_kernels.profiling.annotate.counting import MARK, Counting, keep_peaks, known_peaks
from nvtx_kernels.profiling.doctor import gemm_peaks
from nvtx_kernels.profiling.doctor.gemm_peaks import KINDS, measure
from torch import nn

GPU = "NVIDIA H200"
FOUND = {"tflops": {"bf16": 700.5}, "gigabytes_per_s": 4100.0}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NVTX_KERNELS_CACHE", str(tmp_path))
    return tmp_path


def with_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: GPU)


def test_a_device_reaches_something_in_every_precision():
    before = torch.get_float32_matmul_precision()
    found = measure("cpu")
    assert set(found["tflops"]) == set(KINDS)
    assert all(rate > 0 for rate in (*found["tflops"].values(), found["gigabytes_per_s"]))
    assert torch.get_float32_matmul_precision() == before


def test_what_was_measured_is_kept_by_the_gpus_name(folder, monkeypatch):
    keep_peaks("another", {"tflops": {}})
    keep_peaks(GPU, FOUND)
    assert known_peaks() == {}
    with_gpu(monkeypatch)
    assert known_peaks() == FOUND


def test_a_folder_of_others_keeps_no_peaks(folder, monkeypatch):
    folder.chmod(0o777)
    with pytest.raises(OSError, match="others can write"):
        keep_peaks(GPU, FOUND)
    with_gpu(monkeypatch)
    monkeypatch.setattr(gemm_peaks, "measure", lambda: FOUND)
    (finding,) = doctor.measured_peaks()
    assert finding.what.startswith(
        f"{GPU} reaches bf16 700.5 TFLOP/s and 4100 GB/s, but that is not kept: others can"
    )


@pytest.mark.parametrize("text", ["", "[]", "{", '{"NVIDIA H200": 3}'])
def test_a_damaged_file_is_as_none(folder, monkeypatch, text):
    with_gpu(monkeypatch)
    (folder / "peaks.json").write_text(text)
    assert known_peaks() == {}


def test_counts_tell_what_was_measured(folder, monkeypatch):
    keep_peaks(GPU, FOUND)
    counting = Counting()
    with annotate.annotate_modules(nn.Linear(2, 2)) as _, counting.step():
        nn.Linear(2, 2)(torch.ones(1, 2))
    assert "peaks" not in json.loads(counting.texts()[0].removeprefix(MARK))
    with_gpu(monkeypatch)
    assert json.loads(counting.texts()[0].removeprefix(MARK))["peaks"] == FOUND


def test_the_doctor_measures_a_gpu_alone(folder, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    doctor.main(["--quick", "--peaks"])
    assert "no peaks were measured" in capsys.readouterr().out
    assert not (folder / "peaks.json").exists()


@pytest.mark.gpu
def test_the_doctor_keeps_what_the_gpu_reaches(folder, capsys):
    doctor.main(["--quick", "--peaks"])
    assert "TFLOP/s" in capsys.readouterr().out
    assert known_peaks()["tflops"]["bf16"] > known_peaks()["tflops"]["fp32"] > 1
