"""Make a copy of a report that can be shared: python -m analysis.scrub report.sqlite -o shared.sqlite.

Every command gives the same results for the copy; environment, processes,
output, command lines, paths, host, user and dates are not in it. `--check` lists what a report would leak, by kind
and count. Exit status 1: the report cannot be read; 2: wrong usage, or the copy cannot be written; 3: `--check`
found something.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import run
from ..support.text import printable

if TYPE_CHECKING:
    from .copying import Copied
    from .leaks import Leak

WOULD_LEAK = 3


def parser(prog: str = "python -m analysis.scrub") -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, help="an nsys export (.sqlite), a recording, or a PyTorch trace")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write the copy")
    what.add_argument("--check", action="store_true", help="list what the report would leak; write nothing")
    parser.add_argument(
        "--rename-ranges", action="store_true", help="new names for ranges; phases, steps and operators stay"
    )
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.scrub") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    found: list[Leak] = []
    status = run(lambda: found.extend(_check(options.report)) if options.check else _copy(options))
    return status or (WOULD_LEAK if found else 0)


def _copy(options: argparse.Namespace) -> None:
    from ..presenters.output import write
    from ..support.progress import on_screen
    from . import copying, traces

    copied_by = traces.copy if is_trace(options.report) else copying.copy
    with on_screen():
        copied = copied_by(options.report, options.output, rename_ranges=options.rename_ranges)
    write(f"{printable(str(options.output))}: {_said(copied)}\n", None)


def _check(report: Path) -> list[Leak]:
    from ..document import Column, Document, Row, Table
    from ..presenters import as_table
    from ..presenters.output import write
    from ..support.progress import on_screen
    from . import leaks, traces

    leaks_in = traces.leaks if is_trace(report) else leaks.leaks
    with on_screen():
        found = leaks_in(report)
    columns = (Column("kind", "what"), Column("count", "count", "count"), Column("where", "in", "name"))
    rows = tuple(Row((leak.kind, leak.count, ", ".join(leak.where))) for leak in found)
    heading = (
        f"{report.name} contains private data" if found else f"{report.name} contains nothing that looks private"
    )
    tables = (Table("leaks", "Private data that others would see", columns, rows),) if found else ()
    width, color = as_table.screen(sys.stdout.isatty())
    write(as_table.present(Document(heading, tables), width=width, color=color, full_names=True), None)
    return found


def _said(copied: Copied) -> str:
    """Describe what is in the copy, and what was changed in its names."""
    parts = [f"{copied.rows:,} rows"]
    if copied.renamed:
        parts.append(f"{copied.renamed:,} names of ranges replaced")
    if copied.cut:
        parts.append("cut out of names: " + ", ".join(f"{count} {word}" for word, count in copied.cut.items()))
    return "; ".join(parts) + "."


def is_trace(path: Path) -> bool:
    """Return whether a report is a PyTorch trace or SQLite; raise NotAReport for anything else."""
    from ..errors import NotAReport
    from ..readers import NSYS_SQLITE, PYTORCH_TRACE, reader_of

    format_ = reader_of(path).format
    if format_ in (NSYS_SQLITE, PYTORCH_TRACE):
        return format_ == PYTORCH_TRACE
    instead = "Make one with `nsys export --type sqlite` and share its copy."
    raise NotAReport(f"{path} is a {format_}, not a SQLite export. {instead}")
