"""What generated code calls: one open path at a time, whatever else opens ranges on the thread or fails."""

import pytest
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import range_stack
from nvtx_kernels.profiling.annotate.compiled.ranges import NOWHERE, Ranges

from tests.profiling.making.hearing import Heard, heard_from

PATHS = (("layer 0", "up"), ("layer 0", "down"), ("layer 1",), ("layer 1", "up"))


def generated(*numbers):
    with Ranges(PATHS, "model/forward").opened() as at:
        for number in numbers:
            at(number)


@pytest.mark.parametrize(
    ("numbers", "heard"),
    [
        ((0, 1), ["layer 0", "layer 0/up", "layer 0/down"]),
        ((0, 0), ["layer 0", "layer 0/up"]),
        ((1, 2, 3), ["layer 0", "layer 0/down", "layer 1", "layer 1/up"]),
        ((3, 2, 3), ["layer 1", "layer 1/up", "layer 1/up"]),
        ((0, NOWHERE, 0), ["layer 0", "layer 0/up", "layer 0", "layer 0/up"]),
    ],
)
def test_a_move_opens_and_closes_what_differs(numbers, heard):
    assert heard_from(lambda: generated(*numbers)) == heard
    assert range_stack.stack() == []


def test_a_range_opened_between_two_moves_and_left_open_is_closed_with_the_first():
    def program():
        with Ranges(PATHS, "model/forward").opened() as at:
            at(0)
            range_stack.push(range_stack.AutomaticRange(range_stack.stack()[-1].label))
            at(1)

    assert heard_from(program) == ["layer 0", "layer 0/up", "layer 0/up/up", "layer 0/down"]
    assert range_stack.stack() == []


def test_an_interrupt_while_a_path_is_opened_leaves_nothing_open(monkeypatch):
    heard, opened = Heard(), range_stack.open_in

    def interrupted(ranges, one):
        opened(ranges, one)
        if one.label.name == "up":
            raise KeyboardInterrupt

    monkeypatch.setattr(range_stack, "open_in", interrupted)
    with annotate.listen(heard), pytest.raises(KeyboardInterrupt):
        generated(0)
    assert heard.left_open() == []
    assert range_stack.stack() == []
