"""Annotation keeps no graph, in a forward either, and ten thousand steps add nothing to memory."""

import gc
import json
import sys
import weakref
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import places, range_stack
from torch import nn

from tests.profiling.making import forked
from tests.profiling.making.hearing import Heard
from tests.profiling.making.strangers.table import Model, x_of

STEPS, WARM = 10_000, 3_000  # until the allocator has what it wants


class Open:
    """A listener that only counts open ranges."""

    count = deepest = 0

    def push(self, name, payload):
        self.count += 1
        self.deepest = max(self.count, self.deepest)

    def pop(self):
        self.count -= 1

    def mark(self, message):
        pass


def fresh_graphs(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step


def kept_features(model, x):
    features = x * 2
    return lambda: model(features).sum().backward(retain_graph=True)


def one_graph(model, x):
    loss = model(x).square().sum()
    return lambda: loss.backward(retain_graph=True)


def graphs_of_graphs(model, x):
    def step():
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        gradient.sum().backward()
        x.grad = None

    return step


def failures(model, x):
    model[2].weight.register_hook(lambda _: 1 // 0)

    def step():
        with pytest.raises(ZeroDivisionError):
            model(x).sum().backward()

    return step


def forward_only(model, x):
    return lambda: model(x)


def memory():
    """Return Python's objects and blocks, and the process's resident memory in bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(gc.get_objects()), sys.getallocatedblocks(), pages * 4096


PROGRAMS = {
    program.__name__: program
    for program in (fresh_graphs, kept_features, one_graph, graphs_of_graphs, failures, forward_only)
}


def grown(name):
    """Return what there is more after ten thousand steps, how many ranges are open, and how deep they were."""
    heard, x = Open(), torch.ones(2, 4, requires_grad=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    with annotate.listen(heard), annotate.annotate_modules(model):
        step = PROGRAMS[name](model, x)
        for _ in range(WARM):
            step()
        before = memory()
        for _ in range(STEPS):
            step()
        grew = [after - first for after, first in zip(memory(), before, strict=True)]
    return [*grew, heard.count, heard.deepest]


class Kept:
    """Something that a graph keeps."""


class Keeps(torch.autograd.Function):
    """Keep something until the graph is freed."""

    living: ClassVar = weakref.WeakSet()

    @staticmethod
    def forward(ctx, x):
        ctx.kept = Kept()
        Keeps.living.add(ctx.kept)
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class DetachesOften(nn.Module):
    """A forward that makes many graphs, and needs the last alone."""

    def __init__(self):
        super().__init__()
        self.cell, self.most_kept = nn.Linear(4, 4), 0

    def forward(self, x):
        for _ in range(150):
            y = Keeps.apply(self.cell(x))
            x = y.detach()
            self.most_kept = max(self.most_kept, len(Keeps.living))
        return y


def test_after_thousands_of_steps_the_latest_parts_alone_are_kept():
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)
    with annotate.annotate_modules(model), annotate.listen(Open()):
        for _ in range(5_000):
            model(x).sum().backward()
        assert places.RECENT <= len(range_stack.here().places.table) <= places.RECENT * 9 // 8 + 6


def test_a_graph_that_is_kept_keeps_its_ranges():
    model, x = Model(), x_of()
    with annotate.annotate_modules(model):
        with annotate.listen(first := Heard()):
            loss = model(x).sum()
            forward = len(first.paths)
            loss.backward(retain_graph=True)
        with annotate.listen(Open()):
            for _ in range(2 * places.RECENT):
                model.layers[0].norm(x)
        with annotate.listen(again := Heard()):
            loss.backward()
    assert again.paths == first.paths[forward:] != []


def test_forward_keeps_no_graph_that_the_program_does_not():
    model = DetachesOften()
    with annotate.listen(Open()), annotate.annotate_modules(model):
        model(torch.ones(2, 4)).sum().backward()
    assert model.most_kept == 1
    assert len(Keeps.living) == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_is_flat_over_ten_thousand_steps(name):
    # In a process of its own: what other tests freed would be used first, or not.
    process = forked.run("-m", "tests.profiling.annotate.test_annotate_memory", name)
    assert process.returncode == 0, process.stderr
    objects, blocks, resident, still_open, deepest = json.loads(process.stdout.splitlines()[-1])
    # A range, a hook or a node for each step would be tens of thousands; of the latest parts, some hundreds more
    # are kept at one time than at another.
    assert objects < 1000
    assert blocks < 3000
    # Allocators keep a megabyte more at times; 2 KiB a step would be 20 MiB.
    assert resident < 2 * 2**20
    assert still_open == 0
    assert deepest <= 4


if __name__ == "__main__":
    sys.stdout.write(json.dumps(grown(sys.argv[1])))
