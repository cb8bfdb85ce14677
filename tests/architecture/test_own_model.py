"""docs/questions.md under test: its walk through the assignment with a model of one's own, on a CPU."""

import json
import re
import textwrap
from pathlib import Path

import pytest

import nvtx_kernels.__main__
from tests.analysis.making import checks
from tests.profiling.making import forked

PAGE = (
    Path(__file__)
    .parents[2]
    .joinpath("docs", "questions.md")
    .read_text()
    .partition("## With a model of your own")[2]
)
ATTENTION, COMMANDS = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL).groups()
PROGRAM = f"""
import math
import nvtx_kernels as nk
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model), heads

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        causal = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
{textwrap.indent(ATTENTION, " " * 8)}
        return self.out(mixed.transpose(1, 2).reshape(B, T, D))

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Embedding(1000, 64), Attention(64, 4), nn.LayerNorm(64), nn.Linear(64, 1000)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    tokens = torch.randint(1000, (4, 129), device=device)
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
pytestmark = pytest.mark.slow  # a program that is recorded and one that is timed, each in its own process
IN_ONE_CALL = """
import torch, nvtx_kernels as nk
attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
with nk.profile(attention, path="report.sqlite", warmup=0):
    x = torch.randn(2, 4, 8)
    attention(x, x, x)[0].sum().backward()
"""


def own_process(folder, *words):
    """Run Python with these words in a folder, as what it runs is the main program; return what it wrote."""
    done = forked.run(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What every command of the page prints, by its first words and, of views, as JSON."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "train.py").write_text(PROGRAM)
    said = {}
    for line in COMMANDS.splitlines():
        _, *words = re.findall(r"'[^']*'|\S+", line.partition("#")[0])
        words = [str(folder / word) if word == "report.sqlite" else word.strip("'") for word in words]
        if words[0] in ("benchmark", "record"):
            said[words[0]] = own_process(folder, "-m", "nvtx_kernels", *words)
        else:
            status, out, err = checks.said(nvtx_kernels.__main__, *words, "--format", "json")
            assert status == 0, err
            name = words[1] if words[0] == "view" else words[0]
            said[name] = {table["key"]: table["rows"] for table in json.loads(out)["tables"]}
    return said


def test_phases_are_timed_after_each_number_of_warm_up_steps(ran):
    assert "train.py ran 15 steps, and was then stopped; what ends a step: steps of AdamW" in ran["benchmark"]
    assert all(f"{phase} " in ran["benchmark"] for phase in ("forward", "backward", "optimizer", "step"))


def test_flops_of_softmax_are_held_against_those_of_the_products(ran):
    assert [ran["ask"][f"e_{phase}"][0]["flops_ratio"] for phase in ("forward", "backward")] == [12.8, 32]
    scores = 4 * 4 * 128**2
    found = {(row["phase"], row["part"]): row["flops"] for row in ran["attention"]["rates"]}
    assert found["forward", "softmax"] == 5 * scores
    assert found["backward", "scores"] == found["backward", "final matmul"] == 2 * 2 * scores * 16


def test_a_region_has_flops_in_forward_and_in_backward(ran):
    flops = {row["phase"]: row["flops"] for row in ran["efficiency"]["efficiency"]}
    assert flops["backward"] == 2 * flops["forward"] > 0


def test_attention_in_one_call_is_said_to_have_no_parts(tmp_path):
    own_process(tmp_path, "-c", IN_ONE_CALL)
    status, out, err = checks.said(
        nvtx_kernels.__main__, "ask", str(tmp_path / "report.sqlite"), "--questions", "e"
    )
    assert (status, out) == (1, "")
    assert "nn.MultiheadAttention and scaled_dot_product_attention are one call without parts" in err
