"""Write a page to look at and to share: python -m analysis.page report.sqlite -o page.html."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import add_range_rules, attributed, run, say_written, spare, trace_of, write
from ..errors import UsageError

if TYPE_CHECKING:
    from ..attribution.causes import Attribution
    from ..report import Report

MAX_REPORTS = 8


def parser(prog: str = "python -m analysis.page") -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument(
        "reports", type=Path, nargs="+", metavar="REPORT",
        help="one report, or several: the first is what the others are compared with",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the page, one HTML file")
    parser.add_argument("--include-warmup", action="store_true", help="count the work of warm-up ranges too")
    add_range_rules(parser)
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.page") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    return run(lambda: _write(options))


def _write(options: argparse.Namespace) -> None:
    write(page(options), options.output)
    say_written(options.output, "Next: open it in a browser; it needs no other file.")


def page(options: argparse.Namespace) -> str:
    """Return the page.

    Raises AnalysisError where a report cannot answer or would be overwritten, or too many are given.
    """
    if len(options.reports) > MAX_REPORTS:
        raise UsageError(f"A page holds at most {MAX_REPORTS} reports; {len(options.reports)} were given.")
    spare(options.reports, options.output)
    from ..compare.changes import named_apart
    from . import as_html
    from .contents import contents

    answers = [_answer(path, options) for path in options.reports]
    reports = named_apart([report for _, report in answers], options.reports)
    return as_html.present(contents([(a, report) for (a, _), report in zip(answers, reports, strict=True)]))


def _answer(path: Path, options: argparse.Namespace) -> tuple[Attribution, Report]:
    from ..summary.totals import summarize

    attribution = attributed(trace_of(path), options)
    return attribution, summarize(attribution, include_warm_up=options.include_warmup)
