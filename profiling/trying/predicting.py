"""What a recording's answer suggests, joined to the levers that carry it out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .judging import Arm
from .patch import PACKAGES

COMPILE = "torch.compile"


@dataclass(frozen=True)
class Suggestion:
    """A change that the answer suggests: its rule, its sentence, and what it saves, at least and at most, ns."""

    rule: str
    sentence: str
    low_ns: float
    high_ns: float


def suggestions_of(report: Path) -> tuple[dict[str, Suggestion], str]:
    """Return the suggestions of a report's answer, by rule, and why it suggests nothing where that is known.

    Of several suggestions of one rule the one that saves most is taken.
    """
    words = [sys.executable, "-m", "nvtx_kernels", "rank", str(report), "--format", "json"]
    paths = (str(PACKAGES[0].parent), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    outcome = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if outcome.returncode:
        lines = outcome.stderr.strip().splitlines() or [""]
        return {}, lines[-1]
    answer = json.loads(outcome.stdout)
    suggestions: dict[str, Suggestion] = {}
    for fix in answer.get("fixes") or ():
        suggestion = Suggestion(fix["rule"], fix["sentence"], fix["alone_low_ns"], fix["alone_ns"])
        other = suggestions.get(suggestion.rule)
        if other is None or other.high_ns < suggestion.high_ns:
            suggestions[suggestion.rule] = suggestion
    return suggestions, (answer.get("fix_basis") or {}).get("refused") or ""


def join(arms: Iterable[Arm], suggestions: Mapping[str, Suggestion]) -> list[Suggestion]:
    """Give each arm the suggestion that it carries out; return those that no arm does."""
    left = dict(suggestions)
    for arm in arms:
        rules = arm.lever.rules if arm.lever else ()
        carried_out = [rule for rule in rules if rule in suggestions and _is_for(arm, suggestions[rule])]
        arm.rule = next(iter((*carried_out, *rules)), None)
        if carried_out:
            suggestion = suggestions[carried_out[0]]
            arm.predicted_ns = suggestion.low_ns, suggestion.high_ns
            left.pop(suggestion.rule, None)
    return list(left.values())


def _is_for(arm: Arm, suggestion: Suggestion) -> bool:
    """Return whether an arm does what is suggested: compiling helps no program that must read less before it."""
    is_compiling = arm.lever is not None and arm.lever.kind == "compile"
    return not is_compiling or COMPILE in suggestion.sentence
