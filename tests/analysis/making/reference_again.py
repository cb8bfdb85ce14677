"""What a backward computes again, as slowly as docs/attribution.md puts it."""

from tests.analysis.making.reference_threads import ENGINE


def recomputations(ranges, around):
    """Yield where such ranges begin and end, and their nodes; `around(range, among)` are those that contain it."""
    nested = [r for r in ranges if r.nested]
    if any(r.name == "recompute" for r in ranges):
        return
    callers = {r: [o for o in around(r, nested) if o.sort_key() < r.sort_key()][-1:] for r in nested}
    held = {r: climb(r, callers) for r in nested}
    for node in [r for r in nested if r.is_backward_operator]:
        inside = [r for r in nested if held[r][0] is node]
        again = [r for r in inside if r.is_operator and not r.is_backward_operator and r.seq is not None]
        if again and not any(is_module(r) for r in inside) and any(tells(r, node, callers) for r in inside):
            parts = [held[r][1] for r in again]
            yield min(r.start for r in parts), max(r.end for r in parts), node


def climb(range_, callers):
    """Return the innermost node or call of a module around a range, and what is directly below that."""
    child, above = range_, callers[range_]
    while above and not (above[0].is_backward_operator or is_module(above[0])):
        child, above = above[0], callers[above[0]]
    return (above[0] if above else None), child


def is_module(range_):
    return range_.part == "model/forward"


def tells(range_, node, callers):
    """Return whether a node runs it without recording a gradient, or runs the backward of what it computed."""
    if not range_.is_operator or callers[range_] != [node]:
        return False
    if range_.is_backward_operator:
        return range_.name.startswith(ENGINE) and not node.name.startswith(ENGINE)
    return range_.seq is None
