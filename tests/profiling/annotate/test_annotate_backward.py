"""Backward ranges where programs are not plain: what is opened, and that nothing changes."""

from collections import OrderedDict
from contextlib import suppress

import pytest
import torch
from nvtx_kernels.profiling import annotate
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.profiling.making.hearing import Heard, heard_from, leaf, linear
from tests.profiling.making.strangers.harness import Operators


def backward_of(loss):
    with annotate.range("backward"):
        loss.sum().backward()


def two_regions():
    weight = leaf()
    backward_of(linear("second", linear("first", leaf(), weight), weight))


def nested():
    weight = leaf()
    with annotate.region("layer") as part:
        x = part.output(linear("second", linear("first", leaf(), weight) * 2, weight) * 2)
    backward_of(x)


def no_differentiable_input():
    with annotate.region("embedding") as part:
        x = part.output(torch.nn.functional.embedding(torch.tensor([1, 2]), leaf()))
    backward_of(linear("second", x, leaf()))


def some_inputs_without_gradient():
    backward_of(linear("mixed", torch.ones(4, 4), leaf()))


def unused_output():
    with annotate.region("two outputs") as part:
        used, _ = part.output((leaf() * 2, leaf() * 3))
    backward_of(used)


def outputs_in_containers():
    with annotate.region("containers") as part:
        result = part.output({"list": [leaf() * 2, {"tuple": (leaf() * 3, None, 1)}]})
    backward_of(result["list"][1]["tuple"][0])


def retained_graph():
    loss = linear("twice", leaf(), leaf()).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def double_backward():
    x = leaf()
    (gradient,) = torch.autograd.grad(linear("part", x, leaf()).pow(2).sum(), x, create_graph=True)
    backward_of(gradient)


def gradient_of_one_weight():
    weight = leaf()
    x = linear("second", linear("first", leaf(), leaf()), weight)
    with annotate.range("backward"):
        torch.autograd.grad(x.sum(), [weight])


def in_place_on_input():
    x = leaf() * 1
    with annotate.region("in place") as part:
        x.mul_(2)
        part.output(x)
    backward_of(x)


@annotate.region("in place")
def double_(x):
    x.mul_(2)


def in_place_on_argument_of_decorated_function():
    x = leaf() * 1
    double_(x)
    backward_of(x)


def in_place_on_output():
    x = linear("changed", leaf(), leaf()) * 1
    backward_of(x.add_(1))


def in_place_on_view_of_output():
    with annotate.region("view") as part:
        x = part.output((leaf() * 2).t())
    backward_of(x.add_(1))


def output_is_an_input():
    with annotate.region("passes through") as part:
        x = part.output(leaf())
    backward_of(linear("after", x, leaf()))


def no_gradients_recorded():
    with torch.no_grad():
        linear("first", leaf(), leaf())
    with torch.inference_mode():
        linear("second", leaf(), leaf())


def reentrant_checkpoint():
    x = checkpoint(lambda x: linear("layer", x, leaf()), linear("before", leaf(), leaf()), use_reentrant=True)
    backward_of(x)


def checkpoint_of_a_region():
    x = checkpoint(lambda x: linear("layer", x, leaf()), linear("before", leaf(), leaf()), use_reentrant=False)
    backward_of(x)


class CheckpointsItsParts(nn.Module):
    """A block that checkpoints its own forward, as Hugging Face's layers do."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return checkpoint(lambda x: self.down(self.up(x).tanh()).tanh(), x, use_reentrant=False)


class outer(nn.Sequential):  # noqa: N801
    """Named as a range."""


def checkpoint_inside_a_module():
    model = outer(OrderedDict(layer=CheckpointsItsParts(), head=nn.Linear(2, 2)))
    with annotate.annotate_modules(model):
        backward_of(model(torch.ones(1, 2)))


def backward_inside_a_region():
    with annotate.region("step"):
        linear("part", leaf(), leaf()).sum().backward()


def decorated_and_recursive():
    @annotate.region("call")
    def call(x, depth):
        return call(x * 2, depth - 1) * 3 if depth else x * 4

    backward_of(call(leaf(), 1))


# What is heard after the forward, in the order of its beginning; forward paths stand before the bar.
PROGRAMS = {
    two_regions: "first second | backward backward/second backward/first",
    nested: "layer layer/first layer/second | backward backward/layer backward/layer/second backward/layer/first",
    no_differentiable_input: "embedding second | backward backward/second backward/embedding",
    some_inputs_without_gradient: "mixed | backward backward/mixed",
    unused_output: "two-outputs | backward backward/two-outputs",
    outputs_in_containers: "containers | backward backward/containers",
    retained_graph: "twice | twice twice",
    # What the first backward made is of its part, too; between that and the forward are nodes of no part.
    double_backward: "part | part backward backward/part backward/part",
    gradient_of_one_weight: "first second | backward backward/second",
    in_place_on_input: "in-place | backward backward/in-place",
    in_place_on_argument_of_decorated_function: "in-place | backward backward/in-place",
    in_place_on_output: "changed | backward backward/changed",
    in_place_on_view_of_output: "view | backward backward/view",
    output_is_an_input: "passes-through after | backward backward/after",
    no_gradients_recorded: "first second |",
    reentrant_checkpoint: (
        "before layer | backward backward/recompute backward/recompute/layer backward/layer backward/before"
    ),
    checkpoint_of_a_region: (
        "before layer | backward backward/layer backward/recompute backward/recompute/layer backward/layer"
        " backward/before"
    ),
    checkpoint_inside_a_module: (
        "outer outer/layer outer/layer/up outer/layer/down outer/head | backward backward/outer"
        " backward/outer/head backward/outer/layer backward/outer/layer/recompute"
        " backward/outer/layer/recompute/up backward/outer/layer/recompute"
        " backward/outer/layer/recompute/down backward/outer/layer/down backward/outer/layer/up"
    ),
    backward_inside_a_region: "step step/part | step/part",
    decorated_and_recursive: "call call/call | backward backward/call backward/call/call",
}
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


@each_program
def test_backward_ranges(program):
    heard = [path.replace(" ", "-") for path in heard_from(program)]
    assert heard == PROGRAMS[program].replace("|", "").split()


@each_program
def test_annotation_adds_no_operator_that_computes(program):
    with Operators() as plain:
        program()
    with Operators() as annotated:
        heard_from(program)
    assert annotated.names == plain.names


class Fails(torch.autograd.Function):
    """Fail in backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError


@pytest.mark.parametrize("phase", ["inside a phase", "with no phase"])
def test_backward_that_raises_leaves_nothing_open(phase):
    heard, x, seen = Heard(), leaf() * 1, []
    with annotate.listen(heard):
        linear("unused", x, leaf())
        failing = linear("outer", Fails.apply(linear("inner", leaf(), leaf())), leaf())
        with pytest.raises(ArithmeticError):
            backward_of(failing) if phase == "inside a phase" else failing.sum().backward()
        assert heard.left_open() == []
        x.grad_fn.register_prehook(lambda _: seen.append(heard.left_open()))
        x.sum().backward()
    assert seen == [[]]


def test_annotated_helper_in_a_backward_is_inside_the_region_it_serves():
    class Helped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            with annotate.region("helper") as part:
                return part.output(gradient * 2)

    def program():
        with annotate.region("layer") as part:
            x = part.output(Helped.apply(linear("product", leaf(), leaf())))
        x.sum().backward()

    assert heard_from(program) == ["layer", "layer/product", "layer", "layer/helper", "layer/product"]


def test_gradient_is_accumulated_in_the_region_that_made_it():
    heard, weights = Heard(), [leaf(), leaf()]
    with annotate.listen(heard):
        with annotate.region("outer") as part:
            x = part.output(linear("second", linear("first", torch.ones(4, 4), weights[0]), weights[1]))
        for weight in weights:
            weight.register_post_accumulate_grad_hook(lambda _: heard.mark(heard.left_open()))
        x.sum().backward()
    assert heard.marks == [["outer", "second"], ["outer", "first"]]


def test_gradients_of_a_fan_out_are_summed_in_the_region_that_made_the_last():
    heard, sums = Heard(), []

    class Sums(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.overloadpacket is torch.ops.aten.add:
                sums.append(heard.left_open())
            return function(*args, **(kwargs or {}))

    with annotate.listen(heard):
        x = linear("first", leaf(), leaf())
        loss = (x + linear("second", x, torch.ones(4, 4))).sum()
        with Sums():
            loss.backward()
    assert sums == [["second"]]


def test_work_before_an_inner_region_counts_for_the_outer_one_that_names_no_output():
    heard, seen = Heard(), []
    with annotate.listen(heard):
        with annotate.region("outer"):
            before = leaf() * 2
            x = linear("inner", before, leaf())
        before.grad_fn.register_hook(lambda *_: seen.append(heard.left_open()))
        x.sum().backward()
    assert seen == [["outer"]]


def test_region_that_raises_says_nothing_about_its_output(capsys):
    def program():
        with suppress(KeyError), annotate.region("raises"):
            raise KeyError(leaf() * 2)

    assert heard_from(program) == ["raises"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("before", ["nothing", "a product", "another branch"])
def test_range_of_a_region_in_no_other_ends_with_its_last_node(before):
    heard, x, seen = Heard(), leaf(), []
    start = x * 1 if before != "nothing" else x
    other = x.cos() if before == "another branch" else 0
    for tensor in (start, other):
        if getattr(tensor, "grad_fn", None) is not None:
            tensor.grad_fn.register_hook(lambda *_: seen.append(heard.left_open()))
    with annotate.listen(heard):
        (linear("part", start, leaf()) + other).sum().backward()
    assert seen == [[]] * {"nothing": 0, "a product": 1, "another branch": 2}[before]
    assert heard.left_open() == []
