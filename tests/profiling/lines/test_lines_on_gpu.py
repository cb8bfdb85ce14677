"""Lines of CUDA's calls: reads, copies, allocations, waits and kernels, also of backward's own thread."""

import numpy as np
import pytest
import torch
from nvtx_kernels.analysis.account.sums import idle_places
from nvtx_kernels.analysis.measures.fixes import fixes_of
from nvtx_kernels.analysis.opened import opened

from tests.profiling.making.recordings import run_here

pytestmark = pytest.mark.gpu

PROGRAM = """
import sys, torch
from torch import nn
import nvtx_kernels as nk

class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(512, 512) / 512)

    def forward(self, x):
        y = torch.sin(x @ self.weight)
        y = torch.sigmoid(y)
        return y

torch.manual_seed(0)
model = Part().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    batch = torch.rand(4096, 512)
    x = batch.cuda()
    loss = torch.log1p(model(x)).mean()
    loss.backward()
    shown = loss.item()
    copied = model.weight.detach().cpu()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    large = torch.empty(64 << 20, device="cuda")
    del large
    optimizer.step()
    optimizer.zero_grad()

with nk.profile(model, optimizer, sys.argv[1]):
    for _ in range(40):
        train()
"""
NUMBER = {text: number for number, text in enumerate(PROGRAM.splitlines(), 1)}
#: The lines at which a call of CUDA is expected in each step, by how its name begins.
CALLS = {
    "cudaMemcpyAsync": {"batch.cuda()", "loss.item()", "detach().cpu()"},
    "cudaStreamSynchronize": {"batch.cuda()", "loss.item()", "detach().cpu()"},
    "cudaDeviceSynchronize": {"torch.cuda.synchronize()"},
    "cudaFree": {"empty_cache()"},
}
#: And kernels, by a part of their names, with whether they are of backward.
KERNELS = {("sin_kernel", False): "torch.sin(", ("sigmoid_kernel", False): "torch.sigmoid("}


def number_of(part):
    (number,) = [number for text, number in NUMBER.items() if part in text]
    return number


@pytest.fixture(scope="module")
def partition(tmp_path_factory):
    """Record the program."""
    return opened(run_here(tmp_path_factory.mktemp("lines"), PROGRAM)).partition


def test_nearly_all_calls_and_kernels_of_measured_steps_have_a_line(partition):
    attribution = partition.of_counted_steps
    lines, launches = attribution.lines, attribution.trace.launches
    of_work = lines.of_launch[attribution.trace.work.launch]
    assert (of_work >= 0).mean() >= 0.99
    in_steps = (launches.start_ns >= lines.span_ns[1]) & (launches.start_ns < lines.begun_ns[-1])
    assert (lines.of_launch[in_steps] >= 0).mean() >= 0.98


@pytest.mark.parametrize("call", CALLS)
def test_a_call_has_the_line_that_makes_it(partition, call):
    attribution = partition.attribution
    names, lines, launches = attribution.trace.calls, attribution.lines, attribution.trace.launches
    named = np.array([name.startswith(call) for name in names.names])[names.of_launch]
    rows = np.flatnonzero(named & (launches.start_ns >= lines.span_ns[1]) & (lines.of_launch >= 0))
    known = {lines.sources[number].lines[0].line for number in lines.of_launch[rows].tolist()}
    assert {number_of(part) for part in CALLS[call]} <= known


@pytest.mark.parametrize(("name", "is_backward"), KERNELS)
def test_a_kernel_has_the_line_that_launches_it(partition, name, is_backward):
    attribution = partition.of_counted_steps
    work, lines, names = attribution.trace.work, attribution.lines, attribution.trace.names
    rows = [row for row, number in enumerate(work.name_id.tolist()) if name in names[number]]
    sources = [lines.sources[number] for number in lines.of_launch[work.launch[rows]].tolist() if number >= 0]
    forward = {source.lines[0].line for source in sources if bool(source.backward) == is_backward}
    assert forward == {number_of(KERNELS[name, is_backward])}


def test_kernels_of_backward_have_lines_of_forward_and_the_call_of_backward(partition):
    attribution = partition.of_counted_steps
    of_work = attribution.lines.of_launch[attribution.trace.work.launch]
    in_backward = [
        number for number, phase in zip(of_work.tolist(), attribution.phase.tolist(), strict=True) if phase == 1
    ]
    sources = [attribution.lines.sources[number] for number in in_backward if number >= 0]
    linked = [source for source in sources if source.backward is not None]
    assert len(linked) >= 0.9 * len(in_backward) > 0
    assert {source.backward.line for source in linked} == {number_of("loss.backward()")}


#: The lines of which each rule is, where it speaks.
LINES_OF_RULES = {
    "host_pause": {"torch.rand(4096", "batch.cuda()"},
    "pageable_copy": {"batch.cuda()"},
    "scalar_read": {"loss.item()"},
    "to_cpu": {"detach().cpu()"},
    "allocating": {"empty_cache()", "torch.empty("},
    "device_sync": {"torch.cuda.synchronize()"},
}


def test_changes_have_the_line_of_their_calls(partition):
    told = {fix.rule: fix.lines for fix in fixes_of(partition).fixes if fix.rule in LINES_OF_RULES}
    assert told
    for rule, lines in told.items():
        assert lines, rule
        assert lines[0].line.line in {number_of(part) for part in LINES_OF_RULES[rule]}, rule


def test_a_wait_is_told_with_its_line(partition):
    places = idle_places(partition, lambda path: path)
    told = {place.cause: place.lines[0].line.line for place in places if place.lines}
    assert told.get("allocation") in {number_of("empty_cache()"), number_of("torch.empty(")}
    assert torch.cuda.is_available()
