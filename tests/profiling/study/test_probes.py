"""Whether the machine does what was asked; the GPU, its rounding and nvidia-smi are pretended."""

import sys

import pytest
import torch
from nvtx_kernels.profiling.study import probes
from nvtx_kernels.profiling.study.settings import Settings, apply_precision
from nvtx_kernels.profiling.study.workload import Workload

from tests.profiling.making.pretended_gpu import UUID, moved, pretend

TINY = Settings(size="tiny", context_length=16, batch_size=1, mode="forward", warmup=0, steps=1, device="cpu")
MATMUL = torch.Tensor.__matmul__
DROPPED_BITS = 13


def in_tf32(a, b):
    """Multiply as a tensor core does: operands keep 10 bits of mantissa, sums are FP32."""
    half = 1 << (DROPPED_BITS - 1)
    bits = [((x.view(torch.int32) + half) >> DROPPED_BITS) << DROPPED_BITS for x in (a, b)]
    return MATMUL(*(each.view(torch.float32) for each in bits))


def in_fp32(a, b):
    return MATMUL(a.double(), b.double()).float()


@pytest.fixture
def products(monkeypatch):
    """Decide how the device multiplies, and put PyTorch's precision back afterwards."""
    yield lambda how: monkeypatch.setattr(torch.Tensor, "__matmul__", how)
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("how", "rounds"), [(in_tf32, True), (in_fp32, False)])
def test_rounded_products_are_seen(products, how, rounds):
    products(how)
    assert probes.products_use_tf32("cpu") is rounds


OTHER = "{} was asked for, but TF32 is {} (NVIDIA_TF32_OVERRIDE or a backend flag)"
COMPUTED = "{} was asked for, but this device computes FP32 products in {}"
# dtype, cuBLAS's variable, how the device multiplies, what is said.
PRECISIONS = [
    ("fp32", "", in_fp32, []),
    ("tf32", "", in_tf32, []),
    ("bf16", "", in_fp32, []),
    ("fp32", "", in_tf32, [COMPUTED.format("fp32", "TF32")]),
    ("tf32", "", in_fp32, [COMPUTED.format("tf32", "full FP32")]),
    ("fp32", "1", in_tf32, [OTHER.format("fp32", "allowed"), COMPUTED.format("fp32", "TF32")]),
    ("tf32", "0", in_fp32, [OTHER.format("tf32", "forbidden"), COMPUTED.format("tf32", "full FP32")]),
]


@pytest.mark.parametrize(("dtype", "override", "how", "sentences"), PRECISIONS)
def test_precision_that_was_not_asked_for_is_said(dtype, override, how, sentences, products, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    settings = Settings(size="tiny", dtype=dtype, device="cpu")
    apply_precision(settings)
    products(how)
    assert probes.warnings(settings) == sentences


READINGS = [
    ("1980, 1980, 2619, 45, 312.50\n", [1980, 1980, 2619, 45, 312.5]),
    ("1980, 1980, 2619, 45, [N/A]\n", [1980, 1980, 2619, 45]),
    ("No devices were found\n", None),
    ("", None),
]
NAMES = ["sm_mhz", "max_sm_mhz", "memory_mhz", "celsius", "watts"]


@pytest.mark.parametrize(("text", "values"), READINGS)
def test_readings_have_units_and_missing_ones_are_left_out(text, values):
    assert probes.parsed_readings(text) == (values and dict(zip(NAMES, values, strict=False)))


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Put a shell script on PATH as nvidia-smi, and return what writes it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script = tmp_path / "nvidia-smi"

    def write(*lines):
        script.write_text("\n".join(["#!/bin/sh", *lines]))
        script.chmod(0o755)

    return write


class Waits(list):
    """A log that makes a file once the GPU was waited for twice."""

    def __init__(self, path):
        self.path = path

    def append(self, said):
        super().append(said)
        if self.count("GPU is waited for") == 2:
            self.path.touch()


def test_clocks_are_read_while_steps_run(smi, tmp_path, monkeypatch):
    until_steps_ran = f"until [ -e {tmp_path}/ran ]; do sleep 0.01; done"
    smi(f'echo "$@" > {tmp_path}/asked', until_steps_ran, "echo 1755, 1980, 2619, 45, 312.5")
    workload = Workload(TINY)
    pretend(monkeypatch, Waits(tmp_path / "ran"))
    found = probes.clocks_under_load(moved(workload))
    assert found == dict(zip(NAMES, [1755, 1980, 2619, 45, 312.5], strict=True))
    asked = (tmp_path / "asked").read_text()
    assert f"--id=GPU-{UUID}" in asked
    assert "--query-gpu=clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw " in asked


def test_nvidia_smi_that_hangs_is_given_up(smi, monkeypatch):
    late = "import time; time.sleep(20); print('1755, 1980, 2619, 45, 312.5')"
    smi(f'exec {sys.executable} -c "{late}"')
    workload = Workload(TINY)
    pretend(monkeypatch, [])
    monkeypatch.setattr(probes, "LONGEST_READING_S", 0.2)
    assert probes.clocks_under_load(moved(workload)) is None


def test_without_gpu_or_nvidia_smi_there_are_no_clocks(tmp_path, monkeypatch):
    workload = Workload(TINY)
    assert probes.clocks_under_load(workload) is None
    pretend(monkeypatch, [])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probes.clocks_under_load(moved(workload)) is None
