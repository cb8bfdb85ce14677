"""The pieces of which periods are made: symbols, anchors, segments, joins, begins."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.attribution.evidence.anchors import anchors, runs_of
from nvtx_kernels.analysis.attribution.evidence.arrays import reach_before, sums_before
from nvtx_kernels.analysis.attribution.evidence.joins import joined
from nvtx_kernels.analysis.attribution.evidence.repetition import refusal, repeated_periods
from nvtx_kernels.analysis.attribution.evidence.segments import segments_at
from nvtx_kernels.analysis.attribution.evidence.sequence import Sequence, sequence_of
from nvtx_kernels.analysis.attribution.steps import measured_steps, step_of_nodes
from nvtx_kernels.analysis.support.small_numbers import median_of_each, positions_between

from tests.analysis.making.looping import CLOSE, COPY, OPEN, backward, forward, report_of, update
from tests.analysis.making.traces import path_of, trace_of

PERIOD = "abbcabd"


def sequence(text, waits=(), updates="u", products="gh"):
    """Return a sequence of one symbol a letter, 10 µs apart; the host waits before some positions."""
    letters = np.array([ord(letter) - 97 for letter in text], np.int64)
    count = len(letters)
    start_ns = np.arange(count, dtype=np.int64) * 10_000
    pause_ns = np.full(count, 5_000, np.int64)
    marked = [np.isin(letters, [ord(letter) - 97 for letter in some]) for some in (products, updates, "")]
    waits_ns = np.array([start_ns[position] - 1 for position in waits], np.int64)
    weight = np.full(count, 1 / count)
    rows = np.arange(count)
    return Sequence(rows, start_ns, start_ns + 5_000, pause_ns, letters, letters, weight, *marked, waits_ns, True)


def begins(text, letter):
    """Return where a letter is."""
    return np.array([place for place, other in enumerate(text) if other == letter], np.int64)


def test_medians_of_groups_are_those_of_their_values():
    random = np.random.default_rng(1)
    group, values = random.integers(0, 9, 500), random.integers(0, 2**40, 500)
    medians = [sorted(values[group == number].tolist()) for number in range(10)]
    expected = [of_group[len(of_group) // 2] if of_group else 0 for of_group in medians]
    assert median_of_each(group, values, 10).tolist() == expected


def test_stretches_are_all_positions_of_intervals():
    number, position = positions_between(np.array([2, 10]), np.array([5, 12]))
    assert number.tolist() == [0, 0, 0, 1, 1]
    assert position.tolist() == [2, 3, 4, 10, 11]
    assert sums_before(np.array([True, False, True])).tolist() == [0, 1, 1, 2]
    assert reach_before(np.array([5, 3, 9]), np.array([1])).tolist() == [1, 5, 5]


@pytest.mark.parametrize("length", [1, 2, 4])
def test_runs_are_equal_where_all_their_symbols_are(length):
    text = "".join(Random(length).choice("abc") for _ in range(200))
    runs = runs_of(sequence(text).symbol, length).tolist()
    for one in range(0, 190, 7):
        for other in range(0, 190, 11):
            assert (runs[one] == runs[other]) == (text[one : one + length] == text[other : other + length])


def test_anchors_are_symbols_at_even_distances():
    work = sequence(PERIOD * 20)
    counts = {len(positions) for positions in anchors(work.symbol, work.weight)}
    assert 20 in counts
    random = sequence("".join(Random(1).choice("abcdefghij") for _ in range(400)))
    assert not any(len(positions) in range(15, 25) for positions in anchors(random.symbol, random.weight))


def test_a_segment_shares_what_it_has_in_common_with_the_typical_one():
    text = PERIOD * 3 + "abbcxyz" + PERIOD * 3
    work = sequence(text)
    segments = segments_at(work.symbol, work.weight, np.arange(0, len(text), 7))
    assert segments.similarity.round(2).tolist() == [1, 1, 1, 0.4, 1, 1, 1]
    assert segments.explained() == pytest.approx(6 / 7)
    assert segments.extra[3] == pytest.approx(3 / 7)


@pytest.mark.parametrize(
    ("layers", "waits", "count"),
    [
        (["abc"] * 4 + ["gh"], (), 6),  # layers, then products that they lack
        (["abc"] * 4, range(0, 72, 12), 6),  # micro-batches, of which each fourth waits
        (["abc"] * 4, (), 24),
        (["abu"] * 4 + ["gh"], (), 24),  # an update in each: what else every fourth does is in no period
    ],
)
def test_segments_are_joined_where_every_kth_has_something_of_its_own(layers, waits, count):
    text = "".join(layers) * 6
    work = sequence(text, waits)
    assert abs(len(joined(work, work.symbol, begins(text, "a"))) - count) <= 1


def test_periods_begin_after_the_longest_pause():
    work = sequence("cabdabb" * 10)
    pause_ns = work.pause_ns.copy()
    pause_ns[::7] = 400_000  # before c
    periods = repeated_periods(replace(work, pause_ns=pause_ns))
    assert periods.begin.tolist() == list(range(0, 70, 7))


@pytest.mark.parametrize(("waits", "is_loop"), [((), False), (range(0, 70, 7), True)])
def test_what_repeats_is_a_loop_only_with_signs_of_one(waits, is_loop):
    work = sequence(PERIOD * 10, waits)
    assert (refusal(repeated_periods(work)) == "") == is_loop


def test_work_whose_launch_times_are_unknown_is_placed_by_the_gpus_clock():
    step = [COPY, OPEN("forward"), *forward(4), CLOSE, *backward(4), *update()]
    trace = replace(trace_of(report_of(step * 8)), launch_times_known=False)
    attribution = attribute(trace)
    step = step_of_nodes(attribution, include_warm_up=False)[attribution.node]
    inside = np.flatnonzero(step >= 0)
    assert len(measured_steps(attribution)) == 8
    assert {path_of(attribution, attribution.node[row])[0] for row in inside} == {"step"}
    assert not sequence_of(trace, np.arange(len(trace.work))).on_host
