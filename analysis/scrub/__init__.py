"""Make a copy of a report that can be shared: nvtx-kernels scrub report.sqlite -o shared.sqlite.

Every command gives the same figures for the copy. It has only the tables and columns that the analysis reads, and
its texts have only public words, such as those of PyTorch and of usual models. Every other word, and every word of
the report's users, hosts, folders and commands, becomes name1, name2 and so on. `--check` lists possibly private
words, and where they are. Exit status 1: the report cannot be read; 2: wrong usage, or the copy cannot be written;
3: `--check` found something.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import run
from ..support.arguments import CommandParser
from ..support.text import printable

if TYPE_CHECKING:
    from .copying import SharedTables, Unknown
    from .traces import SharedTrace

WOULD_LEAK = 3
#: Names that `--check` prints at most.
MOST_SHOWN = 200


def parser(prog: str = "python -m analysis.scrub") -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = CommandParser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="an nsys export (.sqlite), a recording, or a PyTorch trace")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write the copy")
    action.add_argument("--check", action="store_true", help="list possibly private words, and where they are")
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="NAME",
        help="keep names like 'my layer *' (several)",
    )
    parser.add_argument("--rename-ranges", action="store_true", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.scrub") -> int:
    """Run the command; return its exit status."""
    command_line = parser(prog)
    options = command_line.parse_args(arguments)
    if options.rename_ranges:
        command_line.error(
            "--rename-ranges is gone: unknown words are always replaced; use --keep NAME for those to keep"
        )
    unknown: list[Unknown] = []
    status = run(lambda: unknown.extend(_check(options)) if options.check else _copy(options))
    return status or (WOULD_LEAK if unknown else 0)


def sharing_of(report: Path, *, keep: Sequence[str] = (), of_copy: bool = False) -> SharedTables | SharedTrace:
    """Return the shareable part of a report, with names that match `keep`, and with `of_copy` those of copies.

    Raises NotAReport if it cannot be read, or is neither SQLite nor a PyTorch trace.
    """
    from ..errors import NotAReport
    from ..readers import NSYS_SQLITE, PYTORCH_TRACE, reader_of
    from .copying import SharedTables
    from .traces import SharedTrace

    format_ = reader_of(report).format
    if format_ in (NSYS_SQLITE, PYTORCH_TRACE):
        sharing = SharedTrace if format_ == PYTORCH_TRACE else SharedTables
        return sharing(report, keep=keep, of_copy=of_copy)
    if format_.startswith("nsys"):
        instead = "Make one with `nsys export --type sqlite` and scrub that."
        raise NotAReport(f"{report} is an {format_}, not an SQLite export. {instead}")
    raise NotAReport(f"{report} is a {format_}, which cannot be copied: share the output of a command instead.")


def _copy(options: argparse.Namespace) -> None:
    from ..errors import UsageError
    from ..presenters.output import write
    from ..support.progress import on_screen

    target: Path = options.output
    with on_screen():
        sharing = sharing_of(options.report, keep=options.keep)
        with suppress(OSError):  # a missing or inaccessible file is reported where it is written
            if target.samefile(options.report):
                raise UsageError(f"{target} is the report itself. Name another file with -o.")
        try:
            rows = sharing.write(target)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"{printable(str(target))} cannot be written: {reason}.") from error
    replaced = sharing.names.replaced
    changes = f"{replaced:,} unknown words replaced" if replaced else "every word in it is known"
    write(f"{printable(str(target))}: {rows:,} rows; {changes}.\n", None)


def _check(options: argparse.Namespace) -> list[Unknown]:
    from ..document import Column, Document, Row, Table
    from ..presenters import as_table
    from ..presenters.output import write
    from ..support.progress import on_screen

    with on_screen():
        sharing = sharing_of(options.report, keep=options.keep, of_copy=True)
        unknown = [row for row in sharing.unknown() if row.count]
    name = options.report.name
    if not unknown:
        document = Document(f"{name}: nothing private found", ())
    else:
        columns = (Column("what", "what", "name"), Column("where", "in"), Column("count", "count", "count"))
        rows = tuple(Row((row.text, row.where, row.count)) for row in unknown[:MOST_SHOWN])
        more = len(unknown) - MOST_SHOWN
        notes = [f"{more:,} more are not listed."] if more > 0 else []
        notes.append("scrub -o leaves tables out and replaces names; --keep NAME keeps names that may be seen.")
        table = Table("unknown", "Possibly private", columns, rows)
        document = Document(f"{name} has possibly private content", (table,), tuple(notes))
    width, color = as_table.screen(sys.stdout.isatty())
    write(as_table.present(document, width=width, color=color, full_names=True), None)
    return unknown
