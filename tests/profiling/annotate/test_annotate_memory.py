"""Ten thousand annotated steps add nothing to memory."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from nvtx_kernels.profiling import annotate
from torch import nn

from tests.profiling.making.recordings import REPOSITORY

STEPS, WARM = 10_000, 5_000  # until the allocator has what it wants


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
    """Return how much more there is after ten thousand steps, how many ranges are open, and how deep they were."""
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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_is_flat_over_ten_thousand_steps(name):
    # In a process of its own: what other tests freed would be used first, or not.
    done = subprocess.run(
        [sys.executable, "-m", "tests.profiling.annotate.test_annotate_memory", name],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    objects, blocks, resident, still_open, deepest = json.loads(done.stdout.splitlines()[-1])
    # A range, a hook or a node for each step would be thousands.
    assert objects < 100
    assert blocks < 500
    # Allocators keep some megabytes more at times; 2 KiB a step would be 20 MiB.
    assert resident < 4 * 2**20
    assert still_open == 0
    assert deepest <= 4


if __name__ == "__main__":
    sys.stdout.write(json.dumps(grown(sys.argv[1])))
