"""Programs set TF32 by PyTorch's older switch or its newer one; where they mix them, asking one of them fails."""

import pytest
import torch
from nvtx_kernels.analysis.readers import read

from tests.profiling.making import forked

pytestmark = pytest.mark.skipif(
    not hasattr(torch.backends.cudnn, "fp32_precision"), reason="PyTorch before 2.9 has the older switch alone"
)
OLDER = 'torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = False'
NEWER = 'torch.backends.cuda.matmul.fp32_precision = "tf32"; torch.backends.cudnn.conv.fp32_precision = "ieee"'
NEWER_OF_ALL = 'torch.backends.cuda.matmul.fp32_precision = "tf32"; torch.backends.cudnn.fp32_precision = "ieee"'
MIXED = f'torch.set_float32_matmul_precision("highest"); {NEWER}'

ASKED = """
import torch
from nvtx_kernels.profiling.machine import pytorch_settings
from nvtx_kernels.profiling.tf32 import products_take_tf32
{setting}
assert products_take_tf32()
settings = pytorch_settings()
assert (settings["float32_matmul_precision"], settings["cudnn_tf32"]) == ("high", False), settings
"""

RECORDED = f"""
import sys
import torch
from nvtx_kernels import profile
{MIXED}
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with profile(model, path=sys.argv[1], warmup=1, steps=2):
    for _ in range(4):
        model(torch.rand(4, 8)).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("setting", [OLDER, NEWER, NEWER_OF_ALL, MIXED])
def test_what_a_program_set_is_known_by_either_switch(setting):
    forked.run("-c", ASKED.format(setting=setting), check=True)


def test_a_program_that_mixes_them_is_recorded(tmp_path):
    report = tmp_path / "report.sqlite"
    forked.run("-c", RECORDED, report, check=True)
    assert read(report).provenance.run["float32_matmul_precision"] == "high"
