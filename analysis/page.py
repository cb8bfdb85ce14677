"""Write a page to look at and to share: python -m analysis.page report.sqlite -o page.html."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.command import add_range_rules, attributed, run, spare, write
from analysis.errors import UsageError

if TYPE_CHECKING:
    from analysis.attribution import Attribution
    from analysis.report import Report

MAX_REPORTS = 8


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="python -m analysis.page", description=__doc__)
    parser.add_argument(
        "reports", type=Path, nargs="+", metavar="REPORT",
        help="one report, or several: the first is what the others are compared with",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the page, one HTML file")
    parser.add_argument("--include-warmup", action="store_true", help="count the work of warm-up ranges too")
    add_range_rules(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(arguments)
    return run(lambda: write(page(options), options.output))


def page(options: argparse.Namespace) -> str:
    """Return the page.

    Raises AnalysisError where a report cannot answer or would be overwritten, or too many are given.
    """
    if len(options.reports) > MAX_REPORTS:
        raise UsageError(f"A page holds at most {MAX_REPORTS} reports; {len(options.reports)} were given.")
    spare(options.reports, options.output)
    from analysis.comparison import named_apart
    from analysis.page_parts.contents import contents
    from analysis.presenters import as_page

    answers = [_answer(path, options) for path in options.reports]
    reports = named_apart([report for _, report in answers], options.reports)
    return as_page.present(contents([(a, report) for (a, _), report in zip(answers, reports, strict=True)]))


def _answer(path: Path, options: argparse.Namespace) -> tuple[Attribution, Report]:
    from analysis.summary import summarize

    attribution = attributed(path, options)
    return attribution, summarize(attribution, include_warm_up=options.include_warmup)


if __name__ == "__main__":
    sys.exit(main())
