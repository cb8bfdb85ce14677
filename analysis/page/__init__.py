"""Write a page to look at and to share: nvtx-kernels page report.sqlite --open."""

from __future__ import annotations

import argparse
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import add_range_rules, choices_of, expand, is_summary, run, say_written, spare, trace_of, write
from ..errors import UsageError
from ..support.arguments import CommandParser

if TYPE_CHECKING:
    from ..opened import Choices

MAX_REPORTS = 8


def parser(prog: str = "python -m analysis.page") -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = CommandParser(prog=prog, description=__doc__)
    parser.add_argument(
        "reports",
        type=Path,
        nargs="+",
        metavar="REPORT",
        help="one report; several, to compare them with the first; or a folder of reports or summaries",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the page, one HTML file; without it, next to the first report, with the ending .html",
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--include-warmup", action="store_true", help="count the work of warm-up ranges too")
    add_range_rules(parser)
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.page") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    return run(lambda: _write(options))


def _write(options: argparse.Namespace) -> None:
    options.output = options.output or _beside(options.reports[0])
    write(page(options), options.output)
    is_open = options.open and webbrowser.open(options.output.resolve().as_uri())
    then = (
        "No browser was found: open it by hand." if options.open else "Next: open it in a browser, or add --open."
    )
    say_written(options.output, "" if is_open else f"{then} It needs no other file.")


def _beside(report: Path) -> Path:
    """Return where the page of a report goes: next to it, in place of an earlier page alone.

    Raises UsageError for a file of that name that is no page.
    """
    from ..presenters.as_html import PAGE

    report = report if report.name not in ("", "..") else report.resolve()
    name = report.name.removesuffix(".gz").removesuffix(".xz")
    page = report.with_name(f"{Path(name).stem}.html")
    if page.is_file():
        with page.open("rb") as file:
            is_page = PAGE.encode() in file.read(4096)
        if not is_page:
            raise UsageError(f"{page} is not a page of this command: name another with -o.")
    return page


def page(options: argparse.Namespace) -> str:
    """Return the page.

    Raises AnalysisError where a report cannot answer or would be overwritten, or too many are given.
    """
    paths = expand(options.reports)
    if all(map(is_summary, paths)):
        from ..ranks import reduced_summaries
        from ..ranks.page import ranks_page

        spare(paths, options.output)
        return ranks_page(reduced_summaries(paths))
    if len(paths) > MAX_REPORTS:
        raise UsageError(f"A page holds at most {MAX_REPORTS} reports; {len(paths)} were given.")
    spare(paths, options.output)
    return page_of(paths, choices_of(options))


def page_of(reports: Sequence[Path], choices: Choices) -> str:
    """Return the page of one or more reports; the first is what the others are compared with.

    Raises AnalysisError if one cannot be read, or contains no work.
    """
    from ..compare.changes import named_apart
    from ..opened import opened
    from . import as_html
    from .contents import contents

    answers = [opened(trace_of(path), choices) for path in reports]
    named = named_apart([answer.whole for answer in answers], reports)
    return as_html.present(
        contents([replace(answer, whole=whole) for answer, whole in zip(answers, named, strict=True)])
    )
