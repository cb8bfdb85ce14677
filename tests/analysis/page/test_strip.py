"""A step in time: boxes by stream, phase and range that cover its work, with the gaps between them."""

import numpy as np
import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.page.strip import MAX_BOXES, MAX_MOMENTS, memory_curve, strip
from nvtx_kernels.analysis.readers import read

from tests.analysis.making.allocated import two_steps as with_allocations
from tests.analysis.making.building import Launch, Range, Work, build, steps_lasting
from tests.analysis.making.bundled import OURS, unpacked


def of(report):
    return strip(attribute(read(report)), include_warm_up=False)


def made(folder, *work, ranges=()):
    """A step with pieces of work, each (start, end, stream), in ranges of their order in time."""
    launches = [Launch(number, 10 * number, 10 * number + 2) for number in range(1, len(work) + 1)]
    pieces = [Work(number, start, end, "k", stream=stream) for number, (start, end, stream) in enumerate(work, 1)]
    return build(folder, ranges=[Range("step 0", 0, 100_000), *ranges], launches=launches, work=pieces)


def test_a_box_ends_at_a_gap_and_at_another_range_phase_or_stream(tmp_path):
    ranges = [Range("forward", 9, 35), Range("layer", 29, 35), Range("backward", 39, 55)]
    work = ((100, 200, 7), (200, 300, 7), (300, 400, 7), (400, 500, 7), (600, 700, 7))
    drawn = of(made(tmp_path, *work, (150, 250, 9), ranges=ranges))
    assert drawn["streams"] == ["GPU 0 · stream 7", "GPU 0 · stream 9"]
    assert list(zip(drawn["stream"], drawn["start"], drawn["end"], strict=True)) == [
        (0, 0, 200), (0, 200, 300), (0, 300, 400), (0, 500, 600), (1, 50, 150),
    ]  # fmt: skip
    assert drawn["phase"] == ["forward", "forward", "backward", "backward", "other"]
    assert [drawn["paths"][path][-1] for path in drawn["path"]] == [
        "forward",
        "layer",
        "backward",
        "backward",
        "step 0",
    ]
    assert (drawn["ns"][0], drawn["count"][0], drawn["step"], drawn["steps"]) == (200, 2, 0, 1)


def test_the_step_of_the_median_time_is_drawn(tmp_path):
    drawn = of(steps_lasting(tmp_path, 500, 100, 300))
    assert (drawn["step"], drawn["span_ns"], drawn["steps"]) == (2, 300, 3)


@pytest.mark.parametrize("name", OURS)
def test_boxes_hold_all_work_of_the_step_and_are_of_bounded_number(tmp_path, name):
    attribution = attribute(read(unpacked(name, tmp_path)))
    drawn = strip(attribution, include_warm_up=False)
    assert 0 < len(drawn["start"]) <= MAX_BOXES
    assert sum(drawn["ns"]) <= attribution.trace.work.duration_ns.sum()
    assert max(drawn["end"]) == drawn["span_ns"]
    assert all(np.array(drawn["ns"]) <= np.array(drawn["end"]) - drawn["start"])


def test_many_short_pieces_are_joined(tmp_path):
    work = [(1000 + 3 * number, 1001 + 3 * number, 7) for number in range(2 * MAX_BOXES)]
    drawn = of(made(tmp_path, *work))
    assert len(drawn["start"]) <= MAX_BOXES
    assert sum(drawn["count"]) == 2 * MAX_BOXES


def test_memory_is_drawn_with_who_holds_the_peak(tmp_path):
    curve = memory_curve(attribute(read(with_allocations(tmp_path))), include_warm_up=False)
    assert max(curve["held"]) >= curve["peak_bytes"]
    assert len(curve["at_ns"]) <= MAX_MOMENTS
    assert curve["holders"]
    assert memory_curve(attribute(read(made(tmp_path, (100, 200, 7)))), include_warm_up=False) is None
