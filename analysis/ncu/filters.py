"""Expressions that select kernels by the stack of ranges at their launch, as `ncu --nvtx-include` reads them.

The syntax is that of the Nsight Compute CLI manual, "NVTX Filtering" (2025.3): `/` stands between names of
adjacent ranges, and behind a name that stands alone; `*` is any number of ranges between two; `[` before the first
name is the bottom of the stack and `]` behind the last its top; `domain@` comes first, and none is the default
domain; a backslash stands before any of `@ , [ ] / * +` in a name. Several expressions select what any selects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import combinations

from .stacks import Stack

# Names in an expression in addition to the guard; positions from the top of a stack from which they are taken.
MOST_NAMES, DEEPEST = 3, 8
_QUANTIFIER = re.compile(r"[@,\[\]/*+]")


@dataclass(frozen=True, slots=True)
class Expression:
    """Ranges that must be open: outer before inner, with any others between them unless it is `whole`.

    `bottom` asks that the first is the outermost of the stack; `whole` that the names are the stack.
    """

    names: Stack
    bottom: bool = False
    whole: bool = False

    def text(self, domain: str) -> str:
        """Return it as ncu reads it, of a domain; the default domain's name is empty."""
        names = [_escaped(name) for name in self.names]
        body = ("/" if self.whole else "/*/").join(names)
        closed = "]" if self.whole else "/" if len(names) == 1 and not self.bottom else ""
        prefix = f"{_escaped(domain)}@" if domain else ""
        return f"{prefix}{'[' if self.bottom or self.whole else ''}{body}{closed}"

    def matches(self, stack: Stack) -> bool:
        """Return whether it selects a launch under this stack."""
        if self.whole:
            return self.names == stack
        if self.bottom and stack[:1] != self.names[:1]:
            return False
        left = iter(stack)
        return all(name in left for name in self.names)


def _escaped(name: str) -> str:
    return _QUANTIFIER.sub(lambda found: f"\\{found[0]}", name)


@dataclass(frozen=True, slots=True)
class Groups:
    """Kernels by their stack: how many are wanted, and how many are not; the names that may stand in expressions.

    Every expression begins with `guard` where that is not empty and in the stack. `asked` finds the names of a
    stack that were asked for, None where it has not all of them.
    """

    wanted: Mapping[Stack, int]
    others: Mapping[Stack, int]
    usable: frozenset[str]
    guard: str = ""
    asked: Callable[[Stack], Stack | None] = lambda _: None


def cover(groups: Groups) -> list[Expression]:
    """Return few expressions that select all wanted stacks that any can select, and no stack of others alone.

    Others under the very stack of a wanted kernel are selected with it.
    """
    barred = Barred(stack for stack in groups.others if stack not in groups.wanted)
    found = _as_asked(groups)
    if _selects_all(found, groups) and not any(map(barred.refuse, found)):
        return found
    for most in range(1, MOST_NAMES + 1):
        found = _greedy(groups, barred, most)
        if len(found) <= 1 and _selects_all(found, groups):
            return found
    left = [stack for stack in groups.wanted if not _any(found, stack)]
    whole = [Expression(stack, whole=True) for stack in left if stack and groups.usable.issuperset(stack)]
    return [*found, *whole]


def _as_asked(groups: Groups) -> list[Expression]:
    """Make expressions of the very names that were asked for, of all stacks that have them."""
    named = [groups.asked(stack) for stack in groups.wanted]
    guarded = [
        (groups.guard, *names) if groups.guard and names[0] != groups.guard else names for names in named if names
    ]
    return [Expression(names) for names in dict.fromkeys(guarded) if groups.usable.issuperset(names)]


def selected(expressions: Iterable[Expression], stacks: Mapping[Stack, int]) -> int:
    """Count the kernels that any expression selects."""
    expressions = list(expressions)
    return sum(count for stack, count in stacks.items() if _any(expressions, stack))


def _selects_all(found: Collection[Expression], groups: Groups) -> bool:
    return all(_any(found, stack) for stack in groups.wanted)


def _any(expressions: Iterable[Expression], stack: Stack) -> bool:
    return any(one.matches(stack) for one in expressions)


def _greedy(groups: Groups, barred: Barred, most: int) -> list[Expression]:
    """Take, again and again, the expression that selects the most kernels not selected yet.

    What an expression gains never grows, so one is looked at again only when it seems the best.
    """
    selects = _candidates(groups, barred, most)
    left, chosen = set(groups.wanted), []
    queue = [(_cost(one, stacks, groups), order, one) for order, (one, stacks) in enumerate(selects.items())]
    heapify(queue)
    while queue and left:
        _, order, one = heappop(queue)
        gained = selects[one] & left
        cost = _cost(one, gained, groups)
        if gained and queue and (cost, order) > queue[0][:2]:
            heappush(queue, (cost, order, one))
        elif gained:
            chosen.append(one)
            left -= gained
    return chosen


def _cost(one: Expression, stacks: Collection[Stack], groups: Groups) -> tuple[int, ...]:
    """Rank an expression: by the kernels it selects, then the shorter, the unanchored, the one of inner ranges."""
    example = min(stacks, default=one.names)
    depth = sum(example.index(name) for name in one.names if name in example)
    return -sum(groups.wanted[stack] for stack in stacks), len(one.names), one.bottom, -depth


class Barred:
    """Stacks that no expression may select, ready to be asked by their names."""

    def __init__(self, stacks: Iterable[Stack]) -> None:
        self.stacks = list(stacks)
        self._with: dict[str, set[int]] = {}
        for at, stack in enumerate(self.stacks):
            for name in stack:
                self._with.setdefault(name, set()).add(at)

    def refuse(self, one: Expression) -> bool:
        """Return whether an expression selects any."""
        having = sorted((self._with.get(name, set()) for name in one.names), key=len)
        return any(one.matches(self.stacks[at]) for at in set.intersection(*having))


def _candidates(groups: Groups, barred: Barred, most: int) -> dict[Expression, set[Stack]]:
    """Return the expressions of up to so many names that select no barred stack, and what they select."""
    found: dict[Expression, set[Stack]] = {}
    refused: set[Expression] = set()
    for stack in groups.wanted:
        for one in _of_stack(stack, groups, most):
            if one not in found and one not in refused and barred.refuse(one):
                refused.add(one)
            if one not in refused:
                found.setdefault(one, set()).add(stack)
    return found


def _of_stack(stack: Stack, groups: Groups, most: int) -> Iterator[Expression]:
    """Make the expressions that select a stack, of its names near the top, and at the bottom."""
    usable = [at for at, name in enumerate(stack) if name in groups.usable]
    guard = next((at for at in usable if stack[at] == groups.guard), None)
    near = [at for at in usable if at >= len(stack) - DEEPEST and (guard is None or at > guard)]
    first = () if guard is None else (guard,)
    if guard is not None:
        yield Expression((stack[guard],))
    for count in range(1, most + 1):
        for places in combinations(near, count):
            yield Expression(tuple(stack[at] for at in (*first, *places)))
            if guard is None and 0 in usable:
                yield Expression(tuple(stack[at] for at in ((0, *places) if places[0] else places)), bottom=True)
