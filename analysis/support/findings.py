"""Findings on a report or a machine, each with its fix: the output of two commands."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from .text import printable

Level = Literal["good", "warning", "problem"]
SIGNS: dict[Level, str] = {"good": "ok", "warning": "warning", "problem": "PROBLEM"}
INDENT, ENDLESS = 9, 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: a level, a sentence, and a remedy."""

    level: Level
    what: str
    fix: str = ""


def is_bad(findings: Sequence[Finding]) -> bool:
    """Return whether anything must be mended."""
    return any(finding.level == "problem" for finding in findings)


def as_json(findings: Sequence[Finding]) -> str:
    """Return findings for programs: ASCII, so that names of a report cannot control a terminal."""
    return json.dumps([asdict(finding) for finding in findings], indent=1) + "\n"


def text(findings: Sequence[Finding], width: int = ENDLESS) -> str:
    """Return findings for people in lines of `width` letters, each with its fix, and how many are wrong."""
    lines: list[str] = []
    for finding in findings:
        sentences = [(SIGNS[finding.level], finding.what), *([("", f"fix: {finding.fix}")] if finding.fix else [])]
        for sign, words in sentences:
            start = f"{sign:{INDENT}}"
            lines += textwrap.wrap(
                printable(words),
                width,
                initial_indent=start,
                subsequent_indent=" " * INDENT,
                break_on_hyphens=False,
            )
    counts = []
    for level in ("problem", "warning"):
        number = sum(finding.level == level for finding in findings)
        counts.append(f"{number} {level}{'' if number == 1 else 's'}")
    return "\n".join([*lines, f"{', '.join(counts)}."]) + "\n"
