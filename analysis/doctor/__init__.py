"""Report what is wrong with a report, and how to fix it: python -m analysis.doctor report.sqlite."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import run
from ..presenters.output import write
from ..support.text import printable

if TYPE_CHECKING:
    from .checks import Finding

SIGNS = {"good": "ok", "warning": "warning", "problem": "PROBLEM"}
EPILOG = "exit status: 0 the report can answer (warnings included), 1 something is wrong with it, 2 wrong usage"
WIDTH, INDENT = 80, 9


def parser(prog: str = "python -m analysis.doctor") -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, epilog=EPILOG)
    parser.add_argument("report", type=Path, help="an nsys export, a .nsys-rep, a recording, or a PyTorch trace")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.doctor") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    found: list[Finding] = []
    status = run(lambda: found.extend(_examined(options)))
    return status or int(any(finding.level == "problem" for finding in found))


def _examined(options: argparse.Namespace) -> list[Finding]:
    from ..support.progress import on_screen
    from .checks import examine

    with on_screen():
        found = examine(options.report)
    write(as_json(found) if options.json else text(found), None)
    return found


def as_json(found: Sequence[Finding]) -> str:
    """Return findings for programs."""
    return json.dumps([asdict(finding) for finding in found], indent=1, ensure_ascii=False) + "\n"


def text(found: Sequence[Finding]) -> str:
    """Return the findings as text: each with its fix below it, and the number of problems."""
    lines = [line for finding in found for line in _lines(finding)]
    counts = [_count(found, level) for level in ("problem", "warning")]
    return "\n".join([*lines, f"{', '.join(counts)}."]) + "\n"


def _count(found: Sequence[Finding], level: str) -> str:
    number = sum(finding.level == level for finding in found)
    return f"{number} {level}{'' if number == 1 else 's'}"


def _lines(finding: Finding) -> list[str]:
    said = [(SIGNS[finding.level], finding.what), *([("", f"fix: {finding.fix}")] if finding.fix else [])]
    return [
        line
        for sign, words in said
        for line in textwrap.wrap(
            printable(words), WIDTH, initial_indent=f"{sign:{INDENT}}", subsequent_indent=" " * INDENT,
            break_on_hyphens=False,
        )
    ]  # fmt: skip
