"""The answer to a comparison in a few sentences: is B faster, by how much, and is that known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from ..support import noise
from ..support.units import TIME_UNITS
from .changes import Change, Comparison

#: From this ratio of both times on, the sentence gives a multiple: "1.96 times as fast", "1.96 times as long".
MANIFOLD = 1.25
NUMBERS = ("no", "one", "two", "three", "four", "five")
REPEAT = "record each twice to be sure (compare A1 A2 --to B1 B2)"
NO_COMMON_STEPS = "Without measured steps on both sides, nothing says how much times vary."
AT_MOST = "{}'s step may take less than that: run both without a profiler (nvtx-kernels try --against)."
VARYING = "Steps vary too much: record more of them, or on a quiet machine."


class Answer(NamedTuple):
    """What decides (`step_ns` or `work_ns`), its change, and the sentences."""

    measure: str
    change: Change
    sentence: str

    def as_object(self) -> dict[str, Any]:
        """Return the answer as JSON has it."""
        change = self.change
        times = {"a_ns": change.a_ns, "b_ns": change.b_ns, "delta_ns": change.delta_ns, "change": change.change}
        return {"verdict": change.verdict, "measure": self.measure, **times, "sentence": self.sentence}


def answer(comparison: Comparison) -> Answer:
    """Return the answer: by step time where both reports have it, else by what is compared."""
    step = comparison.step_time()
    if step is None:
        total = comparison.total()
        scope = " per step" if comparison.per_step else " in all"
        subject = f"{comparison.whole.removeprefix('all ')} takes {{}}{scope}"
        if comparison.whole != "all work":
            subject = subject.replace("takes", "take")
        return Answer("work_ns", total, _sentence(comparison, total, subject, _spread_of(total)))
    spread = max(kind.spread for kind in comparison.measured("step_ns"))
    takes = "a step takes at most {}" if comparison.steps.are_limits else "a step takes {}"
    sentences = [_sentence(comparison, step, takes, spread, is_alone=comparison.steps.are_alone)]
    if step.verdict != "not known":
        sentences += [_of_work(comparison), _of_limits(comparison, step)]
    return Answer("step_ns", step, " ".join(filter(None, sentences)))


def _sentence(
    comparison: Comparison, change: Change, subject: str, spread: float, *, is_alone: bool = False
) -> str:
    """Say whether B is faster, with both times, and how many steps say so; `is_alone`: they were not recorded."""
    a_ns, b_ns, steps = change.a_ns, change.b_ns, _steps(comparison, is_alone)
    if change.verdict == "same":
        return f"No change: {subject.format(times(a_ns, b_ns, ' and '))}; steps vary by {spread:.1%}{steps}."
    if change.verdict == "not known":
        by = f" ({change.change:+.1%})".replace("-", "−") if change.change else ""
        both = subject.format(times(a_ns, b_ns, " and "))
        return f"Not known whether B differs: {both}{by}. {_reason(comparison, change)}"
    both = subject.format(times(b_ns, a_ns, "{}, was "))
    if not (a_ns and b_ns):
        return f"Only {'B' if b_ns else 'A'} has any: {both}{steps}."
    quotient = max(a_ns, b_ns) / min(a_ns, b_ns)
    if quotient < MANIFOLD:
        return f"B takes {abs(b_ns / a_ns - 1):.1%} {'less' if b_ns < a_ns else 'more'} time: {both}{steps}."
    often = f"{quotient:.2f}" if quotient < 10 else f"{quotient:.1f}" if quotient < 100 else f"{quotient:,.0f}"
    return f"B {f'is {often} times as fast' if b_ns < a_ns else f'takes {often} times as long'}: {both}{steps}."


def _reason(comparison: Comparison, change: Change) -> str:
    """Return the reason of an unknown verdict, and the next step."""
    if not comparison.steps.are_known:
        return NO_COMMON_STEPS
    if side := comparison.steps.side_that_may_be_faster(change.a_ns, change.b_ns):
        return AT_MOST.format(side)
    kinds = comparison.steps.kinds
    of_a, of_b = (min(sum(map(len, kind.rows[side])) for kind in kinds) for side in (0, 1))
    fewest = min(of_a, of_b)
    if fewest < noise.SOME_STEPS:
        are = "is" if fewest == 1 else "are"
        which = "a side" if of_a == of_b else "of A" if of_a < of_b else "of B"
        which = "of each kind" if len(kinds) > 1 else which
        some = f"{NUMBERS[fewest].capitalize()} step{'s' * (fewest != 1)} {which} {are} too few"
        return f"{some}: record {NUMBERS[noise.MANY_STEPS]} or more."
    if abs(change.change or 0) > noise.LARGE:
        return VARYING
    return f"{_limited(comparison)}: {REPEAT}." if comparison.steps.limited else VARYING


def _of_work(comparison: Comparison) -> str:
    """Return a sentence on the change of the GPU's work, or "" if it is unknown or the verdict is about it."""
    total = replace(comparison, all_work=True).total()
    on_cpu = comparison.a.provenance.unit_of_work == "CPU"
    name = "Self CPU time" if on_cpu else "GPU work"
    if total.verdict == "differs" and total.change is not None:
        by = f"{total.change:+.0%}".replace("-", "−")
        return f"{name} {by} ({times(total.a_ns, total.b_ns, ' → ')})."
    return f"{name}: no change ({times(total.a_ns, total.b_ns, ' and ')})." if total.verdict == "same" else ""


def _of_limits(comparison: Comparison, step: Change) -> str:
    """Say which side the CPU decides, where one recording of it is too little for a difference."""
    is_doubtful = comparison.steps.limited and not comparison.steps.are_repeated and step.verdict == "differs"
    return f"{_limited(comparison)}: {REPEAT}." if is_doubtful else ""


def _limited(comparison: Comparison) -> str:
    sides = comparison.steps.limited
    return f"{' and '.join(sides)} {'are' if len(sides) > 1 else 'is'} limited by the CPU"


def _spread_of(change: Change) -> float:
    """Return by how much the steps of the side that varies more do, as a share of its time."""
    sides = ((change.a_spread_ns, change.a_ns), (change.b_spread_ns, change.b_ns))
    return max((spread_ns / ns for spread_ns, ns in sides if spread_ns and ns), default=0.0)


def _steps(comparison: Comparison, is_alone: bool) -> str:
    """Return how many steps and recordings of each side there are, in brackets."""
    if not comparison.steps.are_known:
        return ""
    parts = []
    if comparison.steps.are_repeated or max(len(comparison.steps.a), len(comparison.steps.b)) > 1:
        parts.append(_a_side(len(comparison.steps.a), len(comparison.steps.b), "recording"))
    sides = comparison.steps.a, comparison.steps.b
    counts = [sum(len(one.alone_ns) for one in side) for side in sides] if is_alone else []
    of_a, of_b = counts or (comparison.a.steps, comparison.b.steps)
    parts.append(_a_side(of_a, of_b, "step"))
    parts += ["without recording"] if is_alone else []
    return f" ({', '.join(parts)})"


def _a_side(a: int, b: int, what: str) -> str:
    if a == b:
        return f"{a:,} {what}{'s' * (a != 1)} a side"
    return f"{a:,} {what}{'s' * (a != 1)} of A, {b:,} of B"


def times(first_ns: float, second_ns: float, between: str) -> str:
    """Return two times in the unit of the larger, which `between` has in place of {}, or else is written behind.

    Each has three digits, and more if both would look the same.
    """
    largest = max(abs(first_ns), abs(second_ns))
    unit_ns, name = next(((ns, name) for ns, name in TIME_UNITS if largest >= ns), TIME_UNITS[-1])
    in_unit = largest / unit_ns
    decimals = 0 if name == "ns" or in_unit >= 1000 else 2 if in_unit < 10 else 1 if in_unit < 100 else 0
    first, second = first_ns / unit_ns, second_ns / unit_ns
    if name != "ns" and first != second and f"{first:.{decimals}f}" == f"{second:.{decimals}f}":
        decimals += 1
    texts = f"{first:,.{decimals}f}", f"{second:,.{decimals}f}"
    if "{}" in between:
        return f"{texts[0]} {between.format(name)}{texts[1]}"
    return f"{texts[0]}{between}{texts[1]} {name}"
