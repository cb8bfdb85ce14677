"""How long steps take, counted nanosecond by nanosecond; shares no code with `analysis`.

A program is a list of stretches of one process, in the order in which they are launched: each a kind (`step`,
`evaluation` or `warm-up`), the intervals (start, end, GPU) in which its work ran, and when its range opened.
"""

from dataclasses import dataclass

KINDS = ("window", "between", "lost", "evaluation", "warm-up", "recorder", "busy", "busy between")


@dataclass(frozen=True)
class Stretch:
    """A step, an evaluation or a warm-up; a step without work is none."""

    kind: str
    work: tuple[tuple[int, int, int], ...]
    opened: int = 0

    @property
    def start(self):
        return min(start for start, _, _ in self.work)

    @property
    def end(self):
        return max(end for _, end, _ in self.work)


def own_times(stretches, pauses=()):
    """Return the time of each step with work by kind, and its busy time of all GPUs, ns."""
    steps = [stretch for stretch in stretches if stretch.kind == "step" and stretch.work]
    pieces = [(work, stretch.kind) for stretch in stretches for work in stretch.work]
    pieces.sort(key=lambda piece: piece[0][0])  # of those that began together, the first launched comes first
    rows, before = [], begin_of_first(steps[0], stretches)
    for step in steps:
        end, lost = max(step.end, before), lost_before(step, stretches, before)
        counts = dict.fromkeys(KINDS, 0)
        for now in range(before, end):
            kind = "lost" if lost[0] <= now < lost[1] else taken_out(now, pieces, pauses)
            kind = kind or ("between" if now < step.start else "window")
            counts[kind] += 1
            if kind in ("window", "between"):
                running = len({gpu for (a, b, gpu), _ in pieces if a <= now < b})
                counts["busy"] += running
                counts["busy between"] += running * (kind == "between")
        rows.append({"own": counts["window"] + counts["between"], **counts})
        before = end
    return rows


def begin_of_first(step, stretches):
    """Return when the first step's time begins: with its range, but not before earlier work ended."""
    others = [work for stretch in stretches if stretch is not step for work in stretch.work]
    earlier = [end for start, end, _ in others if start < step.start]
    return min(max([step.opened, *earlier]), step.start)


def lost_before(step, stretches, before):
    """Return the time of steps without work right before a step, up to where its range opens."""
    number, opened = stretches.index(step), []
    for stretch in reversed([other for other in stretches[:number] if other.kind == "step"]):
        if stretch.work:
            return max(before, min(opened, default=step.opened)), max(before, step.opened)
        opened.append(stretch.opened)
    return before, before


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
