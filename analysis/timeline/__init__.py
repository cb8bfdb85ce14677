"""Write a report as a timeline for ui.perfetto.dev: nvtx-kernels timeline report.sqlite -o trace.json.gz.

With `--format collapsed`, write a flame graph's stacks instead: each path of ranges with its own GPU time. With
`--by function`, of the Python functions of a PyTorch trace with stacks, below their phase.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..cli import add_own_functions, add_range_rules, attributed, run, say_written, spare
from ..errors import UsageError
from ..support.arguments import CommandParser

BATCH = 10_000
#: The formats, and what to do with a file of each.
NEXT = {
    "chrome": "Next: open it at https://ui.perfetto.dev, or in chrome://tracing.",
    "collapsed": "Next: open it at https://www.speedscope.app, or draw it with inferno-flamegraph.",
}


def parser(prog: str = "python -m analysis.timeline") -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = CommandParser(prog=prog, description=__doc__)
    parser.add_argument("report", type=Path, help="an nsys export (.sqlite), a .nsys-rep, or a recording")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the trace; compressed if it ends with .gz",
    )
    parser.add_argument(
        "--format",
        choices=NEXT,
        default="chrome",
        help="chrome: for Perfetto (default); collapsed: stacks for speedscope or inferno, own GPU time in ns",
    )
    parser.add_argument("--by", choices=("function",), help="with --format collapsed: stacks of Python functions")
    add_own_functions(parser)
    parser.add_argument(
        "--no-arrows", action="store_true", help="leave out the arrows from launches to work, for a smaller file"
    )
    add_range_rules(parser)
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.timeline") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    return run(lambda: _write(options))


def _write(options: argparse.Namespace) -> None:
    from ..support.files import write_lines
    from .as_chrome_trace import chrome_trace
    from .as_collapsed import collapsed_stacks, function_stacks

    spare([options.report], options.output)
    if options.by and options.format != "collapsed":
        raise UsageError("--by function goes with --format collapsed.")
    attribution = attributed(options.report, options)
    if options.by:
        lines = function_stacks(attribution)
    elif options.format == "collapsed":
        lines = collapsed_stacks(attribution)
    else:
        lines = chrome_trace(attribution, arrows=not options.no_arrows)
    try:
        write_lines(_watched(lines) if sys.stderr.isatty() else lines, options.output)
    except OSError as error:
        raise UsageError(f"{options.output} cannot be written: {error.strerror}.") from error
    say_written(options.output, NEXT[options.format])


def _watched(lines: Iterable[str]) -> Iterator[str]:
    """Show on stderr how many events are written."""
    from rich.console import Console

    with Console(stderr=True).status("writing") as status:
        for number, line in enumerate(lines):
            if number % BATCH == 0:
                status.update(f"writing: {number:,} events")
            yield line
