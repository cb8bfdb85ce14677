"""Report what is wrong with a report, and how to fix it.

nvtx-kernels doctor report.sqlite
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..cli import run, write
from ..support.arguments import CommandParser
from ..support.findings import Finding, as_json, is_bad, text

EPILOG = """\
without a report, `nvtx-kernels doctor` checks whether this machine can profile: --quick, --peaks

exit status: 0 the report can answer (warnings included), 1 something is wrong with it, 2 wrong usage
"""
WIDTH = 80


def parser(prog: str = "python -m analysis.doctor") -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = CommandParser(prog=prog, description=__doc__, epilog=EPILOG)
    parser.add_argument(
        "report",
        type=Path,
        help="an nsys export, a .nsys-rep, a recording, a PyTorch trace, or a rocprofv3 database",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.doctor") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    findings: list[Finding] = []
    status = run(lambda: findings.extend(_examined(options)))
    return status or int(is_bad(findings))


def _examined(options: argparse.Namespace) -> list[Finding]:
    from ..support.progress import on_screen
    from .checks import examine

    with on_screen():
        findings = examine(options.report)
    write(as_json(findings) if options.json else text(findings, WIDTH), None)
    return findings
