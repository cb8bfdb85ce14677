"""Ranges inside programs that torch.compile compiled with Inductor, here to C++ kernels.

What has no GPU in it: names, nesting, phases of paths, and that the program stays the one that it was.
"""

import ast
import os
import re
import textwrap
from collections import OrderedDict

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import range_stack
from nvtx_kernels.profiling.annotate.compiled import inductor, restore
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code
from torch.utils.checkpoint import checkpoint

from tests.profiling.making import forked
from tests.profiling.making.hearing import Heard, heard_from

LACKING = not hasattr(torch.fx.traceback, "annotate")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(LACKING, reason="this PyTorch is older than 2.10: a compiled program is one piece"),
]


class Block(nn.Module):
    """Two projections, and an activation in a region."""

    def __init__(self, breaks=False):
        super().__init__()
        self.up, self.down, self.breaks = nn.Linear(8, 16), nn.Linear(16, 8), breaks

    def forward(self, x):
        y = self.up(x)
        if self.breaks:
            torch._dynamo.graph_break()
        with annotate.region("activation") as part:
            y = part.output(torch.sin(y))
        return self.down(y)


class Net(nn.Module):
    """Blocks in a list, some of which are checkpointed."""

    def __init__(self, count=2, checkpointed=False, breaks=False):
        super().__init__()
        self.layers = nn.ModuleList(Block(breaks) for _ in range(count))
        self.checkpointed = checkpointed

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    counters.clear()
    torch.manual_seed(0)
    yield
    restore()


def data(rows=4):
    return torch.linspace(-1, 1, rows * 8).reshape(rows, 8)


def train(call, rows=4):
    call(data(rows)).sum().backward()


def compiled_paths(model, call=None):
    """Return the paths heard in a training step of a model, after one that compiled it."""
    with annotate.listen(Heard()):  # the model's own range is that of `__call__`, which is looked up here
        call = torch.compile(model) if call is None else call
        train(call)
    return heard_from(lambda: train(call))


FORWARD = [
    "Net", "Net/layer 0", "Net/layer 0/up", "Net/layer 0/activation", "Net/layer 0/down",
    "Net/layer 1", "Net/layer 1/up", "Net/layer 1/activation", "Net/layer 1/down",
]  # fmt: skip


def test_modules_and_regions_of_a_compiled_model_nest_as_those_of_the_eager_one():
    model = Net()
    with annotate.annotate_modules(model):
        eager = heard_from(lambda: train(model))
        heard = compiled_paths(model)
    assert eager[: len(FORWARD)] == FORWARD
    assert heard[: len(FORWARD)] == FORWARD
    backward = heard[len(FORWARD) :]
    assert {path for path in backward if " + " not in path} <= set(eager)
    assert list(dict.fromkeys(path for path in backward if path.endswith("/down"))) == [
        "Net/layer 1/down",
        "Net/layer 0/down",
    ]


@pytest.mark.parametrize("way", ["compiled before anything listened", "compiled in place"])
def test_the_call_of_a_compiled_model_has_one_range_however_it_was_compiled(way):
    model = Net()
    call = torch.compile(model) if "before" in way else model
    if call is model:
        model.compile()
    with annotate.annotate_modules(model):
        heard = compiled_paths(model, call)
        where = stored(model, call)
    assert heard[: len(FORWARD)] == FORWARD
    backward = heard[len(FORWARD) :]
    assert {path.split("/")[0] for path in (*backward, *where.values())} == {"Net"}
    assert not any("Net/Net" in path for path in backward)


def test_a_model_without_ranges_inside_has_that_of_its_call():
    model = Net()
    call = torch.compile(model)
    with annotate.annotate_modules(model, depth=0):
        assert {*compiled_paths(model, call)} == {"Net", "Net/activation"}  # regions are ranges all the same


def test_a_kernel_of_several_parts_is_named_for_them_below_what_they_share():
    class Parts(nn.Module):
        def forward(self, x):
            with annotate.region("sine"):
                x = torch.sin(x)
            with annotate.region("double"):
                return x * 2

    model = Parts()
    with annotate.annotate_modules(model):
        call = torch.compile(model)
        call(data())
        assert heard_from(lambda: call(data()))[-1].endswith("sine + double")


class Pair(nn.Module):
    """Two projections side by side."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return self.left(x) * self.right(x)


def stored(model, call):
    """Return of each parameter, by name, in which ranges its gradient is stored."""
    found, around = {}, list(range_stack.stack())

    def note(name):
        found[name] = "/".join(one.label.name for one in range_stack.stack() if one not in around)

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: note(name))
    with annotate.listen(Heard()):
        train(call)
    assert range_stack.stack() == around
    return found


def test_a_gradient_is_stored_in_the_range_of_what_computed_it():
    model = nn.Sequential(OrderedDict(first=nn.Linear(8, 8), pair=Pair()))
    with annotate.annotate_modules(model), annotate.listen(Heard()):
        call = torch.compile(model)
        train(call)
        found = stored(model, call)
    assert found == {
        "first.weight": "Sequential/first",
        "first.bias": "Sequential/first",
        "pair.left.weight": "Sequential/pair/left",
        "pair.right.weight": "Sequential/pair/right",
    }


def test_a_sum_of_gradients_that_no_module_makes_belongs_to_what_its_parts_share():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(8))

        def forward(self, x):
            for _ in range(3):
                x = x @ self.weight
            return x

    model = nn.Sequential(OrderedDict(first=nn.Linear(8, 8), twice=Twice()))
    with annotate.annotate_modules(model), annotate.listen(Heard()):
        _, (_, backward) = run_and_get_code(lambda: train(torch.compile(model)))
    # Inductor makes addmm of the sums of the weight's gradients: nodes without modules.
    calls = re.findall(r"nvtx_kernels_at\((-?\d+)\)|extern_kernels\.(addmm)\(", backward)
    sums = [int(calls[at - 1][0]) for at, (_, call) in enumerate(calls) if call and calls[at - 1][0]]
    paths = ast.literal_eval(re.search(r"NvtxKernelsRanges\((\(.*\)), 'model/backward'", backward)[1])
    assert {paths[number] for number in sums if number >= 0} == {("Sequential", "twice")}
    assert min(sums) >= 0


def test_hooks_on_leaves_end_with_the_pass():
    model = nn.Linear(8, 8)
    accumulators = [parameter.view_as(parameter).grad_fn.next_functions[0][0] for parameter in model.parameters()]
    calls = []
    with annotate.annotate_modules(model), annotate.listen(Heard()):
        call = torch.compile(model)
        loss = call(data()).sum()
        for _ in range(3):
            loss.backward(retain_graph=True)
            for node in accumulators:
                handle = node.register_prehook(lambda *_: None)
                calls.append(len(handle.hooks_dict_ref()))
                handle.remove()
    assert set(calls) == {1}


def test_layers_compiled_one_by_one_are_told_apart_by_the_range_around_each():
    model = Net(4)
    with annotate.annotate_modules(model):
        with annotate.listen(Heard()):
            for layer in model.layers:
                layer.compile()
        heard = compiled_paths(model, model)
    assert [path for path in heard if path.endswith("/up")][:4] == [f"Net/layer {n}/up" for n in range(4)]
    backward = dict.fromkeys([path for path in heard if path.endswith("/down")][4:])
    assert list(backward) == [f"Net/layer {n}/down" for n in (3, 2, 1, 0)]
    assert counters["stats"]["unique_graphs"] <= 2  # the first layer's input needs no gradient


def test_a_graph_break_keeps_the_ranges_on_both_sides():
    model = Net(1, breaks=True)
    with annotate.annotate_modules(model):
        heard = compiled_paths(model)
    assert {"Net/layer 0/up", "Net/layer 0/activation", "Net/layer 0/down"} <= set(heard)


def test_dynamic_shapes_keep_ranges_and_graphs():
    model = Net(1)
    with annotate.annotate_modules(model):
        call = torch.compile(model, dynamic=True, fullgraph=True)
        train(call)
        graphs = counters["stats"]["unique_graphs"]
        assert "Net/layer 0/down" in heard_from(lambda: train(call, rows=7))
    assert counters["stats"]["unique_graphs"] == graphs == 1


def test_what_backward_computes_again_is_marked():
    model = Net(2, checkpointed=True)
    with annotate.annotate_modules(model):
        heard = compiled_paths(model)
    assert "Net/recompute/layer 1/up" in heard
    assert not any("recompute" in path for path in heard[: len(FORWARD)])


def plain(code):
    """Return generated code without our lines, comments and indentation."""
    lines = (line.strip() for line in code.splitlines())
    return [line for line in lines if line and not line.startswith("#") and "vtx" not in line.lower()]


def code_of(model):
    torch.compiler.reset()
    model.zero_grad()
    call = torch.compile(model)
    graphs = torch._functorch.config.patch(enable_autograd_cache=False)
    with torch._inductor.config.patch(fx_graph_cache=False), graphs:  # its C++ may be compiled already
        result, codes = run_and_get_code(lambda: (out := call(data()), out.sum().backward())[0])
    return result, [parameter.grad.clone() for parameter in model.parameters()], codes


def test_the_compiled_program_and_its_results_are_those_without_annotation():
    model = Net()
    bare, bare_gradients, _ = code_of(model)
    with annotate.annotate_modules(model, compiled=False):
        *_, hooked_codes = code_of(model)
    with annotate.annotate_modules(model):
        ranged, gradients, codes = code_of(model)
    assert all("nvtx_kernels_at(0)" in code for code in codes)
    assert [plain(code) for code in codes] == [plain(code) for code in hooked_codes]
    assert torch.equal(ranged, bare)
    assert all(map(torch.equal, gradients, bare_gradients))


def test_models_without_annotation_are_compiled_without_ranges():
    model, other = Net(1), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    with annotate.annotate_modules(model):
        train(torch.compile(model))
        *_, codes = code_of(other)
    assert not any("nvtx" in code for code in codes)


def test_one_argument_switches_ranges_in_compiled_code_off():
    class Bare(nn.Module):
        def forward(self, x):
            return torch.sin(self.inner(x))

    model = Bare()
    model.inner = nn.Linear(8, 8)
    with annotate.annotate_modules(model, compiled=False):
        assert compiled_paths(model) == ["Bare", "Bare"]


def test_an_exception_in_compiled_code_closes_its_ranges():
    @torch.library.custom_op("nvtx_kernels_tests::fails", mutates_args=())
    def fails(x: torch.Tensor, now: bool) -> torch.Tensor:
        if x.shape[0] == 5:
            raise ValueError("fails")
        return x.clone()

    @fails.register_fake
    def _(x, now):
        return torch.empty_like(x)

    def program(x):
        with annotate.region("failing"):
            return torch.ops.nvtx_kernels_tests.fails(torch.sin(x), True)

    call, heard = torch.compile(program, dynamic=True), Heard()
    call(data())
    with annotate.listen(heard), pytest.raises(ValueError, match="fails"):
        call(data(5))
    assert heard.left_open() == []
    assert heard.paths == ["failing"]


def test_a_users_pass_still_runs_and_what_was_registered_comes_back():
    class Counting(torch._inductor.custom_graph_pass.CustomGraphPass):
        seen = 0

        def __call__(self, graph):
            self.seen += 1

        def uuid(self):
            return b"counting"

    counting, before = Counting(), {device: entry.wrapper_codegen for device, entry in inductor.wrappers().items()}
    model = Net(1)
    with annotate.annotate_modules(model), torch._inductor.config.patch(post_grad_custom_post_pass=counting):
        *_, codes = code_of(model)
        assert counting.seen == 2
        assert "nvtx_kernels_at" in codes[0]
    restore()
    assert {device: entry.wrapper_codegen for device, entry in inductor.wrappers().items()} == before


def test_a_compiled_optimizer_stays_one_piece_in_its_phase():
    model = Net(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step)
    with annotate.annotate_modules(model):
        train(torch.compile(model))
        step()

        def update():
            with annotate.range("optimizer"):
                step()

        assert heard_from(update) == ["optimizer"]


SECOND_PROCESS = """
    import torch
    from torch._dynamo.utils import counters
    from nvtx_kernels.profiling import annotate
    from tests.profiling.annotate.test_annotate_compiled import Net, compiled_paths
    model = Net()
    with annotate.annotate_modules(model):
        print(compiled_paths(model))
    print(counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


def test_a_second_process_takes_code_with_its_ranges_from_the_cache(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    program = ("-W", "ignore", "-c", textwrap.dedent(SECOND_PROCESS))
    first, second = (forked.run(*program, env=environment, check=True).stdout for _ in range(2))
    assert re.findall("Net/layer 1/down", second)
    assert first.splitlines()[0] == second.splitlines()[0]
    assert second.splitlines()[1] == "1 0"
