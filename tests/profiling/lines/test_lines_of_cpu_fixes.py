"""From a program to the line of what to change first, on a CPU."""

import pytest
from nvtx_kernels.analysis.opened import opened

from tests.profiling.making.recordings import run_here

PROGRAM = """
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


@pytest.fixture(scope="module")
def fixes(tmp_path_factory):
    """Record the program, and return what to change first by rule."""
    report = run_here(tmp_path_factory.mktemp("lines"), PROGRAM)
    return {fix.rule: fix for fix in opened(report).fixes.fixes}


@pytest.mark.parametrize(("rule", "text"), [("loader", "time.sleep"), ("optimizer", "optimizer.step()")])
def test_a_change_names_its_line(fixes, rule, text):
    [number] = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if text in line]
    assert fixes[rule].lines[0].line.at == f"train.py:{number}"
