"""The table of operators against PyTorch's own registry, and a trace's shapes against the running operator."""

import json

import pytest
import torch
from nvtx_kernels.analysis.operators import cost_of
from nvtx_kernels.analysis.operators.calls import call_of_text
from nvtx_kernels.profiling.annotate import operator_cost
from torch.nn.functional import conv1d, conv2d, conv_transpose2d, scaled_dot_product_attention
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry


class Costs(TorchDispatchMode):
    """Collects the cost of each operator."""

    def __init__(self):
        super().__init__()
        self.all = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.all.append((str(func), operator_cost.cost(func, args, kwargs or {}, out)))
        return out


def leaf(*shape, **options):
    return torch.randn(*shape, **options, requires_grad=True)


CONVOLUTIONS = {
    "plain": lambda: conv2d(leaf(2, 3, 9, 9), leaf(4, 3, 3, 3), leaf(4)),
    "strided": lambda: conv2d(leaf(2, 3, 9, 8), leaf(4, 3, 3, 2), stride=(2, 1), padding=(1, 0)),
    "dilated": lambda: conv1d(leaf(2, 3, 20), leaf(4, 3, 3), dilation=2),
    "transposed": lambda: conv_transpose2d(leaf(2, 3, 5, 5), leaf(3, 4, 3, 3), stride=2, output_padding=1),
}
OTHERS = {
    "mm": lambda: leaf(3, 4) @ leaf(4, 5),
    "bmm": lambda: leaf(2, 3, 4) @ leaf(2, 4, 5),
    "addmm": lambda: torch.addmm(leaf(5), leaf(3, 4), leaf(4, 5)),
    "baddbmm": lambda: torch.baddbmm(leaf(2, 3, 5), leaf(2, 3, 4), leaf(2, 4, 5)),
}
PROGRAMS = CONVOLUTIONS | OTHERS


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_flops_are_those_of_pytorchs_counter(program):
    with FlopCounterMode(display=False) as theirs:
        program().sum().backward()
    with Costs() as ours:
        program().sum().backward()
    assert sum(cost.flops or 0 for _, cost in ours.all) == theirs.get_total_flops() > 0


def test_a_grouped_weights_gradient_counts_once_and_not_for_each_group():
    with Costs() as ours:
        conv2d(leaf(2, 8, 9, 9), leaf(8, 1, 3, 3), groups=8).sum().backward()
    forward = 2 * 2 * 8 * 7 * 7 * 9
    assert [cost.flops for _, cost in ours.all if cost.flops] == [forward, 2 * forward]


FUSED = [
    torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_efficient_attention,
    torch.ops.aten._scaled_dot_product_cudnn_attention,
]


QUERIES_AND_KEYS = [((2, 4, 6, 8), (2, 4, 10, 8)), ((1, 8, 5, 16), (1, 2, 5, 16))]


@pytest.mark.parametrize("shapes", QUERIES_AND_KEYS, ids=["longer keys", "grouped queries"])
@pytest.mark.parametrize("operator", FUSED, ids=str)
def test_fused_attention_counts_as_in_pytorchs_registry(operator, shapes):
    query, key = (torch.empty(shape, device="meta") for shape in shapes)
    theirs = flop_registry[operator](query, key, key, out_val=query)
    text = [
        json.dumps([[*shapes[0]], [*shapes[1]], [*shapes[1]]]).encode(),
        b'["float", "float", "float"]',
        b"",
        b"",
    ]
    assert cost_of(call_of_text(f"aten::{operator.__name__}", *text)).flops == theirs
    backward = getattr(torch.ops.aten, f"{operator.__name__}_backward")
    theirs = flop_registry[backward](query, query, key, key, out_val=query)
    text[0] = json.dumps([[*shapes[0]], [*shapes[0]], [*shapes[1]], [*shapes[1]]]).encode()
    assert cost_of(call_of_text(f"aten::{backward.__name__}", *text)).flops == theirs


def test_attention_of_the_cpu_counts_as_that_of_gpus():
    query, key = leaf(2, 4, 6, 8), leaf(2, 4, 6, 8)
    with Costs() as ours:
        scaled_dot_product_attention(query, key, key, is_causal=True).sum().backward()
    forward = 2 * 2 * 4 * 6 * 6 * 16
    assert [cost.flops for _, cost in ours.all if cost.flops] == [forward, 5 * forward // 2]


#: Operators whose bytes follow from the recorded shapes, as they run: element-wise, reduced, picked, copied.
MOVING = {
    "add": lambda: torch.randn(8, 4) + torch.randn(4),
    "mixed": lambda: torch.randn(8, 4) * torch.randn(8, 4).bfloat16(),
    "compare": lambda: torch.randn(8, 4) > 0,
    "where": lambda: torch.where(torch.ones(8, 4, dtype=torch.bool), torch.randn(8, 4), torch.randn(4)),
    "gelu": lambda: torch.nn.functional.gelu(leaf(8, 4)).sum().backward(),
    "softmax": lambda: torch.softmax(leaf(8, 4), -1).sum().backward(),
    "sum": lambda: torch.randn(8, 4, 2).sum((0, 2)),
    "mean": lambda: torch.randn(8, 4).mean(-1, keepdim=True),
    "cast": lambda: torch.randn(8, 4).bfloat16().double(),
    "gather": lambda: torch.randn(8, 4).gather(1, torch.zeros(8, 2, dtype=torch.int64)),
    "select": lambda: torch.randn(8, 4).index_select(0, torch.tensor([1, 2, 3])),
    "pool": lambda: torch.nn.functional.max_pool2d(torch.randn(1, 2, 9, 9), 3, 2, 1),
    "embedding": lambda: torch.nn.functional.embedding(torch.tensor([1, 2]), leaf(100, 4)).sum().backward(),
    "expand": lambda: torch.randn(1, 4).expand(8, 4) * torch.randn(8, 4),
}


@pytest.mark.parametrize("program", MOVING.values(), ids=MOVING)
def test_a_trace_tells_the_bytes_that_the_running_operator_moves(program, tmp_path):
    with Costs() as running:
        program()
    with profile(record_shapes=True) as profiler:
        program()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    recorded = {}
    for event in events:
        if event.get("cat") == "cpu_op":
            keys = ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")
            texts = [json.dumps(event["args"].get(key, [])).encode() for key in keys]
            if found := call_of_text(event["name"], *texts):
                recorded.setdefault(event["name"], set()).add(cost_of(found).bytes)
    compared = 0
    for name, cost in running.all:
        of_trace = recorded.get("aten::" + name.split(".")[1], set()) - {None}
        if of_trace and cost.bytes:
            assert cost.bytes in of_trace, name
            compared += 1
    assert compared
