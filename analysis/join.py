"""Save a report of any format as one SQLite file, with what lies beside it joined in.

nvtx-kernels join trace.pt.trace.json.gz --names names.json -o report.sqlite
nvtx-kernels join graphs.nsys-rep --capture captures/ -o report.sqlite
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .cli import add_beside, run, save_trace, say_written, spare
from .support.arguments import CommandParser

NEXT = "Next: nvtx-kernels {0}, or: sqlite3 {0} 'SELECT * FROM kernels LIMIT 5'"


def parser(prog: str = "python -m analysis.join") -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog=prog, description=__doc__)
    parser.add_argument("report", type=Path, help="an nsys export, a .nsys-rep, a recording or a PyTorch trace")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the file, such as r.sqlite"
    )
    add_beside(parser)
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.join") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    return run(lambda: _join(options))


def _join(options: argparse.Namespace) -> None:
    from .opened import Choices, joined, trace_of
    from .scrub.names import with_known_surroundings

    spare([options.report], options.output)
    trace = joined(trace_of(options.report), Choices(capture=options.capture, names=options.names))
    save_trace(with_known_surroundings(trace), options.output)
    say_written(options.output, NEXT.format(options.output))


if __name__ == "__main__":
    sys.exit(main())
