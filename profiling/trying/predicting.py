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
from .levers import LEVERS, Lever
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
    """Give each arm the suggestion that it carries out; return those that no lever does, tried or not."""
    for arm in arms:
        if arm.lever is None:
            continue
        of_rules = [suggestions[rule] for rule in arm.lever.rules if rule in suggestions]
        carried_out = next((each for each in of_rules if _is_for(arm.lever, each)), None)
        arm.rule = carried_out.rule if carried_out else next(iter(arm.lever.rules), None)
        if carried_out:
            arm.predicted_ns = carried_out.low_ns, carried_out.high_ns
    return [each for each in suggestions.values() if not any(_is_for(lever, each) for lever in LEVERS)]


def _is_for(lever: Lever, suggestion: Suggestion) -> bool:
    """Return whether a lever does what is suggested: compiling helps no program that must read less before it."""
    is_of_rule = suggestion.rule in lever.rules
    return is_of_rule and (lever.kind != "compile" or COMPILE in suggestion.sentence)
