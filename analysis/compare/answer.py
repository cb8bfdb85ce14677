"""The answer to a comparison in a few sentences: is B faster, by how much, and is that known."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..support import noise
from ..support.units import digits_text, time_in_digits, time_unit
from ..views.account import state_name
from .change import Change
from .changes import Comparison

#: From this ratio of both times on, the sentence gives a multiple: "1.96 times as fast", "1.96 times as long".
MANIFOLD = 1.25
#: States that changed by at least this share of the difference are named.
MOSTLY = 0.5
#: Steps that are asked for are one of these numbers; where more are needed, runs are asked for.
ASKED_STEPS = (5, 10, 20, 30, 50, 100, 200)
RUNS = "three runs of each (compare A1 A2 A3 --to B1 B2 B3)"
NO_COMMON_STEPS = "Without steps on both sides, nothing says how much times vary."


class Answer(NamedTuple):
    """What decides (`step_ns` or `work_ns`), its change, and the sentences."""

    measure: str
    change: Change
    sentence: str

    def as_object(self) -> dict[str, Any]:
        """Return the answer as JSON has it."""
        return {
            "verdict": self.change.verdict,
            "measure": self.measure,
            **self.change.figures(("a_ns", "b_ns", "delta_ns", "change")),
            "sentence": self.sentence,
        }


def answer(comparison: Comparison) -> Answer:
    """Return the answer: by step time where both reports have it, else by what is compared."""
    step = comparison.step_time
    if step is None:
        total = comparison.total
        work = comparison.whole.removeprefix("all ")
        takes = "takes" if work == "work" else "take"
        per = "per step" if comparison.per_step else "in all"
        return Answer("work_ns", total, _sentence(comparison, total, f"{work} {takes} {{}} {per}"))
    subject = "a step takes at most {}" if comparison.steps.are_limits else "a step takes {}"
    if not (comparison.steps.are_alone or comparison.on_cpu):
        subject += " while recorded"
    sentences = [_sentence(comparison, step, subject)]
    if step.verdict == "differs":
        sentences.append(_mostly(comparison, step))
        if comparison.steps.limited and not comparison.steps.are_repeated:
            sentences.append(f"{_limited(comparison)}: to be sure, record {RUNS}.")
    return Answer("step_ns", step, " ".join(filter(None, sentences)))


def _sentence(comparison: Comparison, change: Change, subject: str) -> str:
    """Say whether B is faster, with both times, and how many steps say so."""
    a_ns, b_ns = change.a_ns, change.b_ns
    both = f"{subject.format(times(b_ns, a_ns))}{_steps(comparison, change)}"
    if change.verdict == "not known":
        by = f"{change.change:+.1%}".replace("-", "−") if change.change is not None else "not in A"
        return f"Cannot tell whether B is faster: {both}, {by}. {_reason(comparison, change)}"
    if change.verdict == "same":
        return f"Equal within {_within(comparison, change):.1%}: {both}."
    if not (a_ns and b_ns):
        return f"Only {'B' if b_ns else 'A'} has any: {both}."
    quotient = max(a_ns, b_ns) / min(a_ns, b_ns)
    if quotient < MANIFOLD:
        return f"B takes {abs(b_ns / a_ns - 1):.1%} {'less' if b_ns < a_ns else 'more'} time: {both}."
    decimals = 2 if quotient < 10 else 1 if quotient < 100 else 0
    often = f"{quotient:,.{decimals}f} times"
    return f"B {f'is {often} as fast' if b_ns < a_ns else f'takes {often} as long'}: {both}."


def _within(comparison: Comparison, change: Change) -> float:
    """Return by which share B differs from A at most, as its steps tell."""
    steps = comparison.steps
    bounds = [noise.bounds(a, b, level=steps.level) for a, b in steps.step_times]
    widest = max((max(-low, high) for low, high in bounds), default=noise.SAME_WITHIN)
    return max(min(widest, noise.SAME_WITHIN), abs(change.change or 0), 0.001)


def _reason(comparison: Comparison, change: Change) -> str:
    """Return the reason of an unknown verdict, and the next step."""
    steps = comparison.steps
    if not steps.are_known:
        return NO_COMMON_STEPS
    of_kinds = steps.step_times
    fewest = min(sum(map(len, side)) for kind in of_kinds for side in kind)
    if fewest < noise.SOME_STEPS:
        each = " of each kind" if len(of_kinds) > 1 else ""
        return f"Too few steps{each} ({fewest}): record {ASKED_STEPS[1]} or more."
    if comparison.is_opposite(change):
        return f"Recorded steps differ by {signed(comparison.account_delta_ns)}, the other way: record {RUNS}."
    if comparison.is_doubtful(change):
        return f"{_limited(comparison)}, so that runs differ too: record {RUNS}."
    spread = max(kind.spread_share for kind in comparison.measured("step_ns"))
    if steps.are_repeated:
        return f"Steps vary by {spread:.0%}, and so do runs: record more runs of each, or on a quiet machine."
    needed = max(noise.steps_to_tell(*kind) for kind in of_kinds)
    enough = [number for number in ASKED_STEPS if number >= max(needed, 1.5 * fewest)]
    more_steps = f"{enough[0]} steps, or " if enough else ""
    return f"Steps vary by {spread:.0%}: record {more_steps}{RUNS}."


def _mostly(comparison: Comparison, step: Change) -> str:
    """Name the one or two states whose changes are at least half of the difference of the accounts; else none.

    Where steps without recording are compared, recorded ones may say the opposite: then it says this instead.
    """
    delta_ns = comparison.account_delta_ns
    if comparison.is_opposite(step):
        return f"While recorded, the difference is {signed(delta_ns)}: the account does not explain it."
    names: list[str] = []
    sum_ns = 0.0
    for row in comparison.account[:2]:
        if row.delta_ns * delta_ns > 0:
            names.append(f"{state_name(row.key, on_cpu=comparison.on_cpu)} {signed(row.delta_ns)}")
            sum_ns += row.delta_ns
            if abs(sum_ns) >= MOSTLY * abs(delta_ns):
                return f"Mostly {' and '.join(names)}{' while recorded' * comparison.steps.are_alone}."
    return ""


def _limited(comparison: Comparison) -> str:
    return f"The CPU limits {' and '.join(comparison.steps.limited)}"


def _steps(comparison: Comparison, change: Change) -> str:
    """Return how many steps and recordings of each side there are, in brackets."""
    steps = comparison.steps
    if not steps.are_known:
        return ""
    a, b = map(len, steps.sides)
    parts = [_a_side(a, b, "recording")] if max(a, b) > 1 else []
    if steps.are_alone:
        parts += [_a_side(int(change.a_count), int(change.b_count), "step"), "without recording"]
    else:
        parts.append(_a_side(comparison.a.counted_steps, comparison.b.counted_steps, "step"))
    return f" ({', '.join(parts)})"


def _a_side(a: int, b: int, noun: str) -> str:
    count = f"{a:,} {noun}{'s' * (a != 1)}"
    return f"{count} a side" if a == b else f"{count} of A, {b:,} of B"


def times(now_ns: float, before_ns: float) -> str:
    """Return two times of three digits, such as `61.2 ms, was 141 ms`; of more if they would look the same."""
    now, before = time_in_digits(now_ns), time_in_digits(before_ns)
    if now == before and now_ns != before_ns:
        unit = time_unit([before_ns])
        now, before = (f"{digits_text(ns / unit.ns, 5)} {unit.name}" for ns in (now_ns, before_ns))
    return f"{now}, was {before}"


def signed(delta_ns: float) -> str:
    """Return a difference with its sign and unit."""
    return f"{'−' if delta_ns < 0 else '+'}{time_in_digits(abs(delta_ns))}"
