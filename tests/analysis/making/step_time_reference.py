"""How long steps take, counted nanosecond by nanosecond; shares no code with `analysis`.

A program is a list of stretches of one process, in the order in which they are launched: each a kind (`step`,
`evaluation` or `warm-up`) and the intervals (start, end, GPU) in which its work ran.
"""

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Stretch:
    """A step, an evaluation or a warm-up, and when its work ran."""

    kind: str
    work: tuple[tuple[int, int, int], ...]


def own_times(stretches, pauses=()):
    """Return for each step (own, window, between, taken out by kind, busy ns of all GPUs)."""
    steps = [stretch.work for stretch in stretches if stretch.kind == "step"]
    pieces = [(work, stretch.kind) for stretch in stretches for work in stretch.work]
    pieces.sort(key=lambda piece: piece[0][0])  # of those that began together, the first launched comes first
    found, before = [], None
    for work in steps:
        start, end = min(w[0] for w in work), max(w[1] for w in work)
        first = before is None
        before = start if first else before
        end = max(end, before)
        counts = dict.fromkeys(
            ("window", "between", "evaluation", "warm-up", "recorder", "busy", "busy between"), 0
        )
        for now in range(before, end):
            kind = taken_out(now, pieces, pauses) or ("between" if now < start else "window")
            counts[kind] += 1
            if kind in ("window", "between"):
                running = len({gpu for (a, b, gpu), _ in pieces if a <= now < b})
                counts["busy"] += running
                counts["busy between"] += running * (kind == "between")
        found.append({"first": first, "own": counts["window"] + counts["between"], **counts})
        before = end
    return found


def taken_out(now, pieces, pauses):
    """Return what a nanosecond is that is no part of a step's time, or nothing.

    Evaluation is from the end of the work that began before it to the end of its own.
    """
    for kind in ("evaluation", "warm-up"):
        for number, ((start, _, _), of) in enumerate(pieces):
            ends = [b for (_, b, _), _ in pieces[:number]]
            reach = max([*ends, pieces[number][0][1]])
            if of == kind and (max(ends) if ends else start) <= now < reach:
                return kind
    if any(a <= now < b for a, b in pauses) and not any(a <= now < b for (a, b, _), _ in pieces):
        return "recorder"
    return ""


def step_ns(steps):
    """Return what a step takes: the mean of own times, or their median where they differ by over 20% of it."""
    own = [step["own"] for step in steps if not step["first"]] or [step["own"] for step in steps]
    uneven = max(own) - min(own) > 0.2 * median(own)
    return median(own) if uneven else sum(own) / len(own)
