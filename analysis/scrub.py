"""Make a copy of a report that can be shared: python -m analysis.scrub report.sqlite -o shared.sqlite.

The copy answers every question that analysis.kernels can ask, with the same results; environment, processes,
output, command lines, paths, host, user and dates are not in it. Exit status 1: the report cannot be read;
2: wrong usage, or the copy cannot be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.command import run


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.scrub", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, help="an nsys export (.sqlite), or a recording")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="where to write the copy")
    parser.add_argument(
        "--rename-ranges", action="store_true", help="new names for ranges; phases, steps and operators stay"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(arguments)
    return run(lambda: _copy(options))


def _copy(options: argparse.Namespace) -> None:
    from analysis.scrubbing.copying import copy

    require_sqlite(options.report)
    copied = copy(options.report, options.output, rename_ranges=options.rename_ranges)
    print(f"{options.output}: {copied.rows:,} rows")  # noqa: T201


def require_sqlite(path: Path) -> None:
    """Raise NotAReport, saying what a file is, unless it is a SQLite database."""
    from analysis.errors import NotAReport
    from analysis.readers import SQLITE_MAGIC, read

    try:
        if path.is_file() and path.open("rb").read(len(SQLITE_MAGIC)) == SQLITE_MAGIC:
            return
    except OSError:
        pass
    read(path)
    raise NotAReport(f"{path} is no SQLite export. Make one with `nsys export --type sqlite` and give that.")


if __name__ == "__main__":
    sys.exit(main())
