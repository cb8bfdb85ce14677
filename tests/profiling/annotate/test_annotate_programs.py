"""Random programs: every autograd node runs under the path of the region that created it."""

import os
from bisect import bisect_right

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nvtx_kernels.profiling import annotate

from tests.profiling.making.hearing import nodes_of

OPERATIONS = {
    "sin": lambda a, b: a.sin(),
    "exp": lambda a, b: a.exp(),
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "matmul": lambda a, b: a @ b,
    "transpose": lambda a, b: a.t(),
    "view": lambda a, b: a.reshape(4).view(2, 2),
    "constant": lambda a, b: a.detach(),
    "leaf": lambda a, b: torch.full((2, 2), 0.5, requires_grad=True),
    "in place": lambda a, b: (a * 1.0).add_(b),
    "slow softmax": lambda a, b: torch.exp(a - torch.max(a, dim=-1, keepdim=True).values),
}
SPOT = st.integers(0, 30)
RETURNED = st.integers(1, 2)
STATEMENT = st.tuples(st.sampled_from(sorted(OPERATIONS)), SPOT, SPOT)
BLOCK = st.recursive(
    st.lists(STATEMENT, min_size=1, max_size=4),
    lambda block: st.lists(STATEMENT | st.tuples(st.just("region"), block, RETURNED), min_size=1, max_size=4),
    max_leaves=12,
)


class Paths:
    """The path open now, and which path was open at which sequence number of autograd."""

    def __init__(self):
        self.stack, self.numbers, self.paths = [], [0], [()]

    def push(self, name, payload):
        self.stack.append(payload)
        self.note()

    def pop(self):
        self.stack.pop()
        self.note()

    def note(self):
        self.numbers.append(torch.autograd._get_sequence_nr())
        self.paths.append(tuple(self.stack))

    def at(self, number):
        return self.paths[bisect_right(self.numbers, number) - 1]


def run(block, tensors, count):
    for statement in block:
        if statement[0] == "region":
            count[0] += 1
            with annotate.region("part", payload=count[0]) as part:
                inside = list(tensors)
                run(statement[1], inside, count)
                tensors += part.output(inside[-statement[2] :])
        else:
            kind, first, second = statement
            tensors.append(OPERATIONS[kind](tensors[first % len(tensors)], tensors[second % len(tensors)]))


def forward(block):
    leaf = torch.tensor([[0.1, -0.2], [0.3, 0.4]], requires_grad=True)
    tensors = [leaf]
    run(block, tensors, [0])
    return leaf, torch.stack([leaf, *tensors[-3:]]).sum()


# A branch of the outer region's own that passes by the inner one.
PASSING_BY = [("region", [("sin", 0, 0), ("region", [("exp", 0, 0)], 1), ("add", 1, 2)], 1)]
# An inner region that returns what nobody uses.
UNUSED = [("region", [("add", 0, 0), ("add", 0, 0), ("region", [("add", 0, 2), ("add", 0, 1)], 2)], 1)]


@example(PASSING_BY)
@example(UNUSED)
# CI tries more programs than a run of the tests by hand.
@settings(max_examples=300 if os.environ.get("CI") else 150, deadline=None)
@given(st.tuples(st.just("region"), BLOCK, RETURNED).map(lambda region: [region]))
def test_every_node_runs_under_the_region_that_made_it(block):
    listener, wrong = Paths(), []
    with annotate.listen(listener):
        loss = forward(block)[1]
        assert listener.stack == []
        for node in nodes_of(loss.grad_fn):
            number = node._sequence_nr()
            if number < 2**63:
                expected = listener.at(number)
                node.register_hook(
                    lambda *_, expected=expected: (
                        wrong.append(tuple(listener.stack)) if tuple(listener.stack) != expected else None
                    )
                )
        loss.backward()
    assert wrong == []
    assert listener.stack == []


@settings(max_examples=100, deadline=None)
@given(BLOCK)
def test_program_computes_the_same_with_and_without_annotation(block):
    plain_leaf, plain_loss = forward(block)
    plain_loss.backward()
    with annotate.listen(Paths()):
        leaf, loss = forward(block)
        loss.backward()
    torch.testing.assert_close(loss, plain_loss, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(leaf.grad, plain_leaf.grad, rtol=0, atol=0, equal_nan=True)
