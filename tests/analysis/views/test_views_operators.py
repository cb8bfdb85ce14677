"""`view efficiency` of traces with shapes, and `view kernels`."""

import json

import pytest
import torch
from nvtx_kernels.analysis import kernels, view
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.measures import efficiency
from nvtx_kernels.analysis.measures.operators import WorkShapes, operator_rows
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.views.efficiency import view as efficiency_of
from nvtx_kernels.analysis.views.registry import subject_of
from nvtx_kernels.profiling.annotate.counting import Counting
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tests.analysis.making.shaped import Shaped, recorded


def product(t, us=100):
    kernel = t.kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", us)
    return t.operator("aten::mm", [[1024, 512], [512, 2048]], "c10::BFloat16", inside=[kernel])


@pytest.fixture
def trace(tmp_path):
    t = Shaped()
    steps = [
        t.block(f"step {n}", [t.block("forward", [t.block("mlp", [product(t), product(t, 50)])])])
        for n in range(3)
    ]
    return t.write(tmp_path / "trace.json", *steps)


def answer(capsys, *arguments):
    assert view.main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_operators_stand_with_sizes_rates_and_time_above_the_least(capsys, trace):
    text = answer(capsys, "efficiency", trace)
    assert "mm 1024×2048×512" in text
    assert "bf16, forward > mlp" in text
    assert "Note: Peaks: H100" in text


def test_programs_get_every_value_of_every_operator(capsys, trace):
    (table,) = [
        t
        for t in json.loads(answer(capsys, "efficiency", trace, "--format", "json", "--per-step"))["tables"]
        if t["key"] == "operators"
    ]
    rows, flops = table["rows"], 2 * 2 * 1024 * 512 * 2048
    called = [(row["operator"], row["shape"], row["dtype"], row["module"]) for row in rows]
    assert called == [("aten::mm", "1024×2048×512", "bf16", f"step {n} > forward > mlp") for n in range(3)]
    sums = [sum(row[key] for row in rows) for key in ("calls", "kernel_ns", "flops")]
    assert sums == pytest.approx([2, 150_000, flops])
    for row in rows:
        assert row["peak_share"] == pytest.approx(row["bound_ns"] / row["kernel_ns"])
        assert row["above_ns"] == pytest.approx(row["kernel_ns"] - row["bound_ns"])


def test_the_unknown_share_is_told(capsys, tmp_path):
    t = Shaped()
    experts = t.operator("vllm::moe_forward", [[888, 3072]], inside=[t.kernel("bmm_MxE4m3_sm100f", 100)])
    text = answer(capsys, "efficiency", t.write(tmp_path / "trace.json", t.block("step 0", [product(t), experts])))
    assert "Shapes do not tell what 50.0% of the kernel time computes: vllm::moe_forward" in " ".join(text.split())


def test_a_trace_without_shapes_says_how_to_record_them(tmp_path):
    t = Shaped()
    path = t.write(
        tmp_path / "trace.json", t.block("step 0", [t.operator("aten::mm", inside=[t.kernel("gemm", 5)])])
    )
    with pytest.raises(ReportError, match="record_shapes=True"):
        efficiency_of(subject_of("efficiency", opened(path)))


def test_kernels_stand_under_the_operator_that_launched_them(capsys, trace):
    lines = answer(capsys, "kernels", "--by", "operator", trace).splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("aten::mm"))
    assert lines[place].split()[-3:] == ["150.00", "100.0", "2"]
    assert lines[place + 1].startswith("  sm90_xmma_gemm")


def test_kernels_alone_are_those_of_rank(capsys, trace):
    shown = [
        part for part in answer(capsys, "kernels", trace).split("\n\n") if part.startswith(("Kernel", "Slow"))
    ]
    assert kernels.main([str(trace)]) == 0
    assert [part.splitlines()[0] for part in shown] == [
        "Kernel time by phase and category, µs per step",
        "Slowest ranges, own kernels only, µs per step",
    ]
    assert "\n\n".join(shown) in capsys.readouterr().out


# --- FLOPs by range, as annotation counts them while the program runs


class Attention(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(16, 48), nn.Linear(16, 16), causal

    def forward(self, x):
        with record_function("project"):
            q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        with record_function("attend"):
            mixed = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(-2))


def transformer():
    model, x = nn.Sequential(Attention(causal=True), Attention(causal=False)), torch.randn(2, 6, 16)
    return lambda: model(x).square().mean().backward()


def images():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, groups=8, stride=2), nn.ConvTranspose2d(8, 4, 2)
    )
    x, y = torch.randn(2, 3, 9, 9), torch.randint(4, (2,))

    def step():
        with record_function("network"):
            features = model(x)
        with record_function("loss"):
            loss = cross_entropy(features.mean((2, 3)), y)
        loss.backward()

    return step


def recurrent():
    cell, head, x = nn.GRUCell(8, 16), nn.Linear(16, 4), torch.randn(5, 3, 8)

    def step():
        hidden = x.new_zeros(3, 16)
        for number, part in enumerate(x):
            with record_function(f"time {number}"):
                hidden = cell(part, hidden)
        with record_function("head"):
            loss = head(hidden).sum()
        loss.backward()

    return step


def updated():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(5, 8)

    def step():
        with record_function("forward"):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def checkpointed():
    block, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)), torch.randn(5, 8, requires_grad=True)

    def step():
        # Stopping early leaves an operator in the trace that computes nothing.
        with record_function("block"), set_checkpoint_early_stop(False):
            out = checkpoint(block, x, use_reentrant=False)
        out.sum().backward()

    return step


PROGRAMS = [transformer, images, recurrent, updated, checkpointed]


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_flops_by_range_are_those_that_annotation_counts_as_the_program_runs(make, tmp_path):
    step = make()
    with Counting().step() as counting:
        step()
    report = opened(recorded(tmp_path / "trace.json", step))
    rows = operator_rows(WorkShapes(report.attribution), steps=2)
    forward = {}
    for row in rows:
        if row.phase != "backward" and row.flops:
            path = row.path[1:]
            forward[path] = forward.get(path, 0) + row.flops
    theirs = {}
    for (phase, path), figures in counting.of.items():
        if phase != "backward" and figures.flops:
            theirs[path] = theirs.get(path, 0) + figures.flops.total()
    joined = efficiency.joined_by_shapes(report.whole, rows)
    assert joined.all_computed.total == counting.flops > 0
    named = {path: flops for path, flops in theirs.items() if path}
    assert {path: forward.get(path) for path in named} == named
