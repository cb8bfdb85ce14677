"""The ranges between calls of models where nothing trains, as slowly as docs/attribution.md puts it."""

from itertools import pairwise

from tests.analysis.making.building import process_of

CALLS = ("model/forward", "model/no gradient", "model/evaluation")


def gaps_between_calls(ranges, parents):
    """Return where such ranges begin and end, and one of the calls on their threads, given ranges of a report."""
    trains = {
        process_of(r.thread)
        for r in ranges
        if r.part == "model/backward" or r.phase in ("backward", "optimizer") or r.is_backward_operator
    }
    called = [r for r in parents if r.part in CALLS and process_of(r.thread) not in trains]
    return [
        (low, high, next(r for r in called if r.thread == thread))
        for thread in sorted({r.thread for r in called})
        for low, high in gaps_of(
            [r for r in called if r.thread == thread],
            [r for r in ranges if r.thread == thread],
            [r for r in parents if r.thread == thread],
        )
    ]


def gaps_of(called, ranges, parents):
    """Return the gaps of one thread."""
    calls = []
    for r in sorted(called, key=lambda r: r.sort_key()):
        if calls and r.start < calls[-1][1]:
            calls[-1] = (calls[-1][0], max(calls[-1][1], r.end))
        else:
            calls.append((r.start, r.end))
    longer = [with_forward(call, calls, parents) for call in calls]
    users = [r for r in parents if not r.is_operator]
    steps = [r for r in sorted(users, key=lambda r: r.sort_key()) if r.is_called(("step",))]
    last = next((r.end for r in steps if r.contains(*longer[-1])), longer[-1][1])
    between = [(low, high) for (_, low), (high, _) in pairwise([*longer, (last, last)]) if low < high]
    turns = [r.start for r in ranges if r.phase or r.is_called(("step", "warmup"))]
    return [
        piece
        for gap in between
        for piece in pieces_of(*gap, users)
        if not any(piece[0] < turn < piece[1] for turn in turns)
    ]


def pieces_of(low, high, users):
    """Return a gap in pieces, cut where a range has only one of its ends in it."""
    alone = [r for r in users if (low < r.start < high) != (low < r.end < high)]
    cuts = {moment for r in alone for moment in (r.start, r.end) if low < moment < high}
    return pairwise([low, *sorted(cuts), high])


def with_forward(call, calls, parents):
    """Return a call with the ranges `forward` that contain it, and no other."""
    around = [
        r for r in parents if r.phase == "forward" and [other for other in calls if r.contains(*other)] == [call]
    ]
    return min([call[0], *(r.start for r in around)]), max([call[1], *(r.end for r in around)])
