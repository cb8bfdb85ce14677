"""What a step is, decided over events as slowly as the definition reads; shares no code with `analysis`."""

from tests.analysis.making.training_facts import flat

BACKWARD = "(backward)"


def decided(events, given=(), warmup=1):
    """Return the positions of the events of each measured step, without those of evaluation.

    Positions count the events that are no ranges of the program. Of those, `warmup` alone is known here.
    """
    around = [kinds for _, kinds in flat(events)]
    events = [event for event, _ in flat(events)]
    updates = updates_of(events)
    ends = ends_of(events, updates, given)
    first, steps = 0, []
    trains = bool(updates) or any(event.kind == "B" for event in events)
    if not ends and not trains:
        first = next((n for n, event in enumerate(events) if event.kind in "FNE"), 0)
    for end in ends or [len(events) - 1]:
        steps.append(range(first, end + 1))
        first = end + 1
    steps = [step for step in steps if any(events[n].kind != "P" for n in step)]
    moments = {*ends, *(n for moments in updates.values() for n in moments)}
    by_calls = any(event.kind == "P" for event in events)
    removed = evaluation(events, steps, moments, by_calls) if trains else set()
    kept = [[n for n in step if events[n].kind != "P" and n not in removed] for step in steps]
    numbered = [(step, left) for step, left in zip(steps, kept, strict=True) if left]
    if any("W" in kinds for kinds in around):
        return [left for step, left in numbered if not (ends and "W" in around[step[-1]])]
    if warmup and ends:
        firsts = [moments[0] for moments in updates.values() if len(moments) > 1 and moments[0] <= ends[-1]]
        late = [k + 1 for k, (step, _) in enumerate(numbered) if firsts and step[-1] < max(firsts)]
        warmup = max(warmup, late[-1] + 1 if late else bool(firsts))
    return [left for _, left in numbered[warmup if ends else 0 :]]


def updates_of(events):
    """Return the positions at which each optimizer updated; those in a backward are one together."""
    updates = {}
    for position, event in enumerate(events):
        name = event.of if event.kind in ("U", "R", "X") else BACKWARD if event.inside else None
        if name:
            updates.setdefault(name, []).append(position)
    return updates


def ends_of(events, updates, given):
    """Return the positions of the events that end a step."""
    calls = [position for position, event in enumerate(events) if event.kind == "P"]
    if calls or not updates:
        return calls
    inside = {optimizer for event in events for optimizer in event.inside} - updates.keys()
    chosen = [name if name in updates else BACKWARD for name in given if name in updates or name in inside]
    return updates[(chosen or [name for name in updates if len(updates[name]) > 1] or [*updates])[-1]]


def evaluation(events, steps, moments, by_calls):
    """Return the positions of what is evaluation, in the steps and outside of them."""
    calls = [position for position, event in enumerate(events) if event.kind == "E"]
    trained = {event.of for event in events if event.kind == "F"}
    belonging = set()
    for model in {events[position].of for position in calls}:
        share = sum(any(n in step and events[n].of == model for n in calls) for step in steps)
        is_part = 2 * share >= len(steps) if len(steps) >= 3 else model not in trained
        is_part |= by_calls and share == len(steps) > 1
        belonging |= {model} if is_part else set()
    removed, last = set(), None
    for position in (position for position in calls if events[position].of not in belonging):
        between = range(last, position) if last is not None else ()
        if last is not None and not any(n in moments or events[n].kind in ("F", "B") for n in between):
            removed |= {*between}
        removed.add(position)
        last = position
    return removed
