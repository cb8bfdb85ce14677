"""What was tried, as a table for people and as an object for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nvtx_kernels.analysis.document import Column, Document, Row, Table
from nvtx_kernels.analysis.support.units import UNITS_NS, digits_text, share_text, time_and_noise, time_in_digits

from .judging import USED, Arm, Verdict
from .order import Answer
from .predicting import Suggestion

WORDS: dict[Verdict, str] = {
    "use": "use it",
    "use_check_accuracy": "use it, check accuracy",
    "use_after": "use it after {}",
    "same_as": "saves the same as {}",
    "no_change": "no change",
    "slower": "slower",
    "not_known": "not known",
    "losses_differ": "faster, but losses differ",
    "fails": "fails: {}",
}
#: Rows of a table, beyond which the rest is named in a line; and lines to write.
MOST_ROWS, MOST_LINES = 9, 4
#: A memory factor is shown from this difference on.
MEMORY_FROM = 0.05
MOST_REASON = 60


def document_of(
    answer: Answer,
    program: str,
    unjoined: Sequence[Suggestion],
    notes: Sequence[str],
) -> Document:
    """Show what was tried: the answer, the table, the lines to write, and what was left out."""
    arms = [*answer.arms, *([answer.together] if answer.together else [])]
    listed, others = _divided(arms)
    columns = (
        Column("change", "change", "prose"),
        Column("predicted", "predicted"),
        Column("measured", "saves"),
        Column("losses", "losses"),
        Column("verdict", "verdict", "prose"),
    )
    rows = tuple(map(_row, listed))
    table = Table("arms", "", columns, rows, CAPTION if listed else "")
    tables = [table] if rows else []
    on = f" on {answer.device}" if answer.device else ""
    heading = f"{program}{on}: a step takes {time_in_digits(answer.base_ns)} without a profiler."
    accounting = [f"Write  {arm.write}" for arm in arms if arm.write][:MOST_LINES]
    if others:
        accounting.append(f"No change: {', '.join(others)}.")
    if answer.skipped:
        reasons = (f"{name} ({reason})" for name, reason in answer.skipped.items())
        accounting.append(f"Not tried: {', '.join(reasons)}.")
    if unjoined:
        rules = ", ".join(suggestion.rule for suggestion in unjoined)
        accounting.append(f"Suggested, and only you can change it: {rules} (then: try --against after.py).")
    refused = [f"Refused: {sentence}" for sentence in answer.refused[:2]]
    verdict_text = _summary(answer)
    return Document(
        heading,
        tuple(tables),
        tuple(accounting),
        (*refused, *notes),
        promised=lambda: as_object(answer),
        verdict=verdict_text,
    )


CAPTION = "saves: of a step, ± half of its 99.8% interval (?: more than a step). losses: by how much they differ."


def as_object(answer: Answer) -> dict[str, Any]:
    """Return the result for programs; docs/json.md describes it."""
    arms = [*answer.arms, *([answer.together] if answer.together else [])]
    return {"base_step_ns": answer.base_ns, "arms": [_arm_object(arm) for arm in arms]}


def _arm_object(arm: Arm) -> dict[str, Any]:
    gain = arm.gain
    is_known = gain is not None and not arm.lost
    noise_ns = gain.noise_ns if gain is not None and is_known else None
    return {
        "lever": arm.name,
        "rule": arm.rule,
        "predicted_ns": arm.predicted_ns[1] if arm.predicted_ns else None,
        "measured_ns": gain.saved_ns if gain is not None and is_known else None,
        "noise_ns": noise_ns if noise_ns is not None and math.isfinite(noise_ns) else None,
        "losses": f"not compared: {arm.lost}" if arm.lost else arm.losses.text if arm.losses else None,
        "verdict": arm.verdict,
        "after": list(arm.after),
        "memory_factor": arm.memory_factor,
        "pays_after_steps": arm.pays_after_steps,
        "write": arm.write,
    }


def _divided(arms: Sequence[Arm]) -> tuple[list[Arm], list[str]]:
    """Return the arms to show, and what the others are called: of many, those without a change."""
    if len(arms) <= MOST_ROWS:
        return list(arms), []
    plain = [arm for arm in arms if arm.verdict == "no_change" and arm.predicted_ns is None]
    return [arm for arm in arms if arm not in plain], [arm.called for arm in plain]


def _summary(answer: Answer) -> str:
    """Return the answer in a sentence."""
    together = answer.together
    if together is not None and together.gain is not None and not together.lost:
        after_ns = answer.base_ns - together.gain.saved_ns
        return f"With {' and '.join(together.after)} it takes {time_in_digits(after_ns)}."
    used = [arm for arm in answer.arms if arm.verdict in USED and arm.gain is not None]
    if not used:
        return "No change that was tried surely saves 2% of it or more."
    gain = used[0].gain
    assert gain is not None
    return f"With the change `{used[0].called}` it takes {time_in_digits(answer.base_ns - gain.saved_ns)}."


def predicted(arm: Arm) -> str:
    """Return the predicted saving: `12 to 32 ms`, or `–`."""
    if arm.predicted_ns is None:
        return "–"
    low_ns, high_ns = arm.predicted_ns
    unit = time_in_digits(high_ns).split()[1]
    low, high = (digits_text(ns / UNITS_NS[unit], 2) for ns in (low_ns, high_ns))
    return f"{low} to {high} {unit}" if low != high else f"{high} {unit}"


def measured(arm: Arm) -> str:
    """Return the measured saving: `11.8 ± 0.9 ms, 6%`, `12 ± ? ms, 6%` if that is more than a step, or `–`."""
    gain = arm.gain
    if gain is None or arm.lost:
        return "–"
    share = share_text(gain.share, 0).replace("-", "−")
    least_ns = 0.01 * gain.base_ns
    return f"{time_and_noise(gain.saved_ns, gain.noise_ns, least_ns)}, {share}"


def _row(arm: Arm) -> Row:
    return Row((arm.called, predicted(arm), measured(arm), _losses(arm), verdict(arm)))


def _losses(arm: Arm) -> str:
    return arm.losses.text if arm.losses and not arm.lost else "–"


def verdict(arm: Arm) -> str:
    """Return the verdict in words, with what else must be known."""
    reason = ", ".join(arm.after) if arm.verdict != "fails" else arm.lost[:MOST_REASON]
    text = WORDS[arm.verdict].format(reason)
    if arm.memory_factor is not None and abs(arm.memory_factor - 1) >= MEMORY_FROM:
        text += f", memory × {arm.memory_factor:.2f}"
    if arm.verdict in USED and arm.pays_after_steps:
        text += f", pays after {arm.pays_after_steps:,} steps"
    return text
