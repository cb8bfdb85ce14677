"""What a backward computes again is told from PyTorch's numbers; a higher derivative is no recomputation."""

import numpy as np
import pytest
import torch
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.attribution.places import Paths
from nvtx_kernels.analysis.readers import read
from torch import nn
from torch.profiler import profile, record_function
from torch.utils.checkpoint import checkpoint

BLOCKS = 2


class Model(nn.Module):
    """Blocks of two layers each, whose forward runs through `call`."""

    def __init__(self, call):
        super().__init__()
        self.call = call
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(BLOCKS)
        )

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            with record_function(f"layer {number}"):
                x = self.call(block, x)
        return x.square().mean()


def kept(block, x):
    return block(x)


def later(block, x):
    return checkpoint(block, x, use_reentrant=False)


def reentrant(block, x):
    return checkpoint(block, x, use_reentrant=True)


def penalized(model, x):
    """A gradient that is differentiated itself, as in a gradient penalty."""
    (gradient,) = torch.autograd.grad(model(x), x, create_graph=True)
    return gradient.square().sum()


def attributed(path, loss):
    loss().backward()  # what the first pass alone does is not recorded
    with profile() as profiler, record_function("step"):
        loss().backward()
    profiler.export_chrome_trace(str(path))
    return attribute(read(path))


def recomputed(attribution):
    """The names of the operators that ran again, and the paths where they are placed."""
    again = np.append(attribution.recompute, False)[attribution.node]
    names, work = attribution.trace.names, attribution.trace.work
    return [names[name] for name in work.name_id[again].tolist()]


@pytest.mark.parametrize("call", [later, reentrant])
def test_checkpointed_blocks_are_computed_again_in_backward(call, tmp_path):
    model, x = Model(call), torch.randn(4, 8, requires_grad=True)
    names = recomputed(attributed(tmp_path / "trace.json", lambda: model(x)))
    assert (names.count("aten::addmm"), names.count("aten::tanh")) == (2 * BLOCKS, BLOCKS)
    assert not {"aten::mm", "aten::tanh_backward"} & {*names}


@pytest.mark.parametrize("loss", [lambda model, x: model(x), penalized], ids=["plain", "gradient penalty"])
def test_nothing_is_computed_again_where_nothing_is_checkpointed(loss, tmp_path):
    model, x = Model(kept), torch.randn(4, 8, requires_grad=True)
    assert recomputed(attributed(tmp_path / "trace.json", lambda: loss(model, x))) == []


def test_recomputed_work_is_below_its_part_of_the_model(tmp_path):
    model, x = Model(later), torch.randn(4, 8, requires_grad=True)
    attribution = attributed(tmp_path / "trace.json", lambda: model(x))
    paths = Paths(attribution)
    nodes = np.unique(attribution.node[np.append(attribution.recompute, False)[attribution.node]])
    found = {paths.names[number] for number in paths.names_of_node[nodes].tolist()}
    assert found == {("step", f"layer {number}", "recompute") for number in range(BLOCKS)}
