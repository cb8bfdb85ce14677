"""Whose work a compiled kernel is: by what the graph nodes do that it was made of."""

import operator
from collections import OrderedDict

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import compiled
from nvtx_kernels.profiling.annotate.compiled import restore
from nvtx_kernels.profiling.annotate.compiled.names import COMPUTES, MOVES, VIEWS, kernel_path, work_of
from torch import nn

from tests.profiling.annotate.test_annotate_compiled import compiled_paths
from tests.profiling.making.hearing import Heard

aten, prims = torch.ops.aten, torch.ops.prims
LACKING = not hasattr(torch.fx.traceback, "annotate")


def node_of(target, *inputs):
    """Return a node with this target, whose inputs are an input of the graph, or what is given."""
    graph = torch.fx.Graph()
    made = [graph.placeholder("x") if one is None else graph.call_function(one) for one in inputs]
    return graph.call_function(target, tuple(made))


@pytest.mark.parametrize(
    ("target", "work"),
    [
        (aten.view.default, VIEWS),
        (aten._unsafe_view.default, VIEWS),
        (aten.split.Tensor, VIEWS),
        (aten.permute.default, VIEWS),
        (operator.getitem, VIEWS),
        (prims.convert_element_type.default, MOVES),
        (aten.clone.default, MOVES),
        (aten.copy_.default, MOVES),
        (aten.add.Tensor, COMPUTES),
        (aten.add_.Tensor, COMPUTES),
        (aten.cat.default, COMPUTES),
        (aten.sum.dim_IntList, COMPUTES),
        (aten.embedding.default, COMPUTES),
    ],
)
def test_operators_compute_move_or_view(target, work):
    assert work_of(node_of(target, None)) == work


def test_what_follows_from_constants_alone_moves_and_what_follows_from_an_input_or_chance_computes():
    assert work_of(node_of(aten.ge.Tensor, prims.iota.default, aten.full.default)) == MOVES
    assert work_of(node_of(aten.ge.Tensor, prims.iota.default, None)) == COMPUTES
    assert work_of(node_of(aten.gt.Scalar, aten.rand.default)) == COMPUTES
    assert work_of(node_of(aten.rand.default)) == COMPUTES


def meta(*path, again=False):
    stack = {str(depth): (name, None) for depth, name in enumerate(path)}
    return {"nn_module_stack": stack, "partitioner_tag": "is_forward" if again else "is_backward"}


NORM, CAST, SELF = meta("layer", "norm"), meta("layer", "up"), meta("layer")


@pytest.mark.parametrize(
    ("nodes", "path"),
    [
        ([(COMPUTES, NORM), (MOVES, CAST)], ("layer", "norm")),
        ([(COMPUTES, NORM), (VIEWS, SELF), (MOVES, CAST), (COMPUTES, SELF)], ("layer", "norm + self")),
        ([(MOVES, CAST), (VIEWS, NORM)], ("layer", "up")),
        ([(MOVES, NORM), (MOVES, CAST)], ("layer", "norm + up")),
        ([(VIEWS, NORM), (VIEWS, CAST)], ("layer", "norm + up")),
        ([(COMPUTES, {}), (MOVES, CAST), (VIEWS, NORM)], ("layer", "up")),
        ([(COMPUTES, meta("layer", "act", again=True)), (MOVES, CAST)], ("recompute", "layer", "act")),
        ([(COMPUTES, {})], ()),
    ],
)
def test_a_kernel_is_named_for_those_of_its_nodes_that_do_the_most(nodes, path):
    assert kernel_path(nodes, lambda _key, value: value[0], backward=True) == path


def test_a_release_that_names_kernels_otherwise_has_keys_of_its_own(monkeypatch):
    model = nn.Linear(2, 2)
    graph = torch.fx.Graph()
    graph.call_function(aten.add.Tensor).meta["nn_module_stack"] = {str(id(model)): ("L['self']", nn.Linear)}
    program = torch.fx.GraphModule(nn.Module(), graph)
    with annotate.annotate_modules(model):
        compiled._install()
        now = compiled._digest(program)
        monkeypatch.setattr(compiled, "FORMAT", compiled.FORMAT - 1)
        assert now
        assert compiled._digest(program) not in ("", now)
    restore()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(LACKING, reason="this PyTorch is older than 2.10: a compiled program is one piece")
def test_autocast_leaves_a_norm_its_kernel_and_a_projection_the_cast_of_its_weight():
    torch.compiler.reset()
    model = nn.Sequential(
        OrderedDict(norm=nn.LayerNorm(8), up=nn.Linear(8, 8), act=nn.Tanh(), down=nn.Linear(8, 8))
    )
    with annotate.annotate_modules(model), annotate.listen(Heard()), torch.autocast("cpu", torch.bfloat16):
        heard = compiled_paths(model, torch.compile(model))
    restore()
    forward = heard[: heard.index("Sequential/down") + 1]
    assert list(dict.fromkeys(forward)) == [
        "Sequential", "Sequential/norm", "Sequential/up", "Sequential/act", "Sequential/down",
    ]  # fmt: skip
    assert not any("norm + up" in path or "act + down" in path for path in heard)
