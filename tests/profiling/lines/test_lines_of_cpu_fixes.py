"""From a program to the line of what to change first, on a CPU."""

import pytest
from nvtx_kernels.analysis.opened import opened

from tests.profiling.making.recordings import run_here

LOADER_AND_OPTIMIZER = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import nvtx_kernels as nk

class Slow(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, number):
        time.sleep(0.001)
        return torch.zeros(8)

torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(12)])
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

with nk.profile(model, optimizer, sys.argv[1]):
    for batch in DataLoader(Slow(), batch_size=4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

MODEL = """
import sys, torch
from torch import nn
import nvtx_kernels as nk

torch.manual_seed(0)
body = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(12)])
head = nn.Linear(128, 8)
model = nn.Sequential(body, head).to(torch.DTYPE)
optimizer = torch.optim.AdamW(TRAINED)
batch = torch.randn(256, 128, dtype=torch.DTYPE)

with nk.profile(model, optimizer, sys.argv[1]):
    for _ in range(12):
        BEFORE
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def of_model(*, dtype="float32", trained="model.parameters()", before="pass"):
    return MODEL.replace("DTYPE", dtype).replace("TRAINED", trained).replace("BEFORE", before)


#: A program with a mistake for each rule, and the text of the line that it is to name.
PROGRAMS = {
    "loader": (LOADER_AND_OPTIMIZER, "time.sleep"),
    "optimizer": (LOADER_AND_OPTIMIZER, "optimizer.step()"),
    "unused": (of_model(before="logits = model(batch)"), "logits = "),
    "untrained": (of_model(trained="[*head.parameters(), *body[:3].parameters()]"), "loss = "),
    "fp64": (of_model(dtype="float64"), "loss = "),
}


@pytest.mark.parametrize("rule", PROGRAMS)
def test_a_change_names_its_line(tmp_path, rule):
    program, text = PROGRAMS[rule]
    [number] = [number for number, line in enumerate(program.splitlines(), 1) if text in line]
    fixes = {fix.rule: fix for fix in opened(run_here(tmp_path, program)).fixes.fixes}
    assert fixes[rule].lines[0].line.at == f"train.py:{number}"
