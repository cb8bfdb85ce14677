"""Make a copy of a report that can be shared: nvtx-kernels scrub report.sqlite -o shared.sqlite.

Every command gives the same figures for the copy, a saved report (docs/report_file.md). It has only what answers
need, and its texts have only public words, such as those of PyTorch and of usual models. Every other word, and
every word of the report's users, hosts, folders and commands, becomes name1, name2 and so on. `--check` lists
possibly private words, and where they are. Exit status 1: the report cannot be read; 2: wrong usage, or the copy
cannot be written; 3: `--check` found something.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import run, save_trace, spare
from ..support.arguments import CommandParser
from ..support.text import printable

if TYPE_CHECKING:
    from ..trace import Trace
    from .fields import SharedTrace

WOULD_LEAK = 3
#: Names that `--check` prints at most.
MOST_SHOWN = 200


def parser(prog: str = "python -m analysis.scrub") -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = CommandParser(prog=prog, description=__doc__)
    parser.add_argument("report", type=Path, help="an nsys export, a .nsys-rep, a recording or a PyTorch trace")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("-o", "--output", type=Path, metavar="FILE", help="the copy, such as shared.sqlite")
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
    private: Counter[tuple[str, str]] = Counter()
    status = run(lambda: private.update(_check(options)) if options.check else _copy(options))
    return status or (WOULD_LEAK if private else 0)


def shared_of(report: Path, *, keep: Sequence[str] = (), of_copy: bool = False) -> tuple[Trace, SharedTrace]:
    """Return a report's shareable parts, with names that match `keep`, and with `of_copy` those of copies.

    `SharedTrace.changes` counts by field what that lacks. Raises NotAReport if the report cannot be read.
    """
    from ..readers import read
    from .fields import SharedTrace
    from .names import Names
    from .words import own_words

    trace = read(report)
    shared = SharedTrace(trace, Names(own_words=own_words(trace), keep=keep, of_copy=of_copy))
    return shared.trace(), shared


def _copy(options: argparse.Namespace) -> None:
    from ..presenters.output import write
    from ..support.progress import on_screen

    spare([options.report], options.output)
    with on_screen():
        copy, shared = shared_of(options.report, keep=options.keep)
        save_trace(copy, options.output)
    replaced = shared.names.replaced
    changes = f"{replaced:,} unknown words replaced" if replaced else "every word in it is known"
    write(f"{printable(str(options.output))}: {changes}.\n", None)


def possibly_private(report: Path, *, keep: Sequence[str] = ()) -> Counter[tuple[str, str]]:
    """Count what a copy of the report would lack, by field and text: nothing for what is a copy already.

    A copy is made again to the byte, so that it has no table, column, view or freed page besides.
    """
    from ..readers import NSYS_SQLITE, SAVED, reader_of
    from ..readers.nsys_tables import NEEDED, RECORDED_ALLOCATIONS
    from ..readers.saved import same_content, save
    from ..readers.sqlite import Database

    copy, shared = shared_of(report, keep=keep, of_copy=True)
    private = shared.changes
    format_ = reader_of(report).format
    if format_ != SAVED:
        private[format_, "(all that no answer needs)"] += 1
    elif not private:
        with tempfile.TemporaryDirectory() as folder:
            again = Path(folder) / "again.sqlite"
            save(copy, again)
            if not same_content(report, again):
                private[format_, "(bytes that this version does not write)"] += 1
    if format_ == NSYS_SQLITE:
        tables = Database(report).columns.keys() - {*NEEDED, RECORDED_ALLOCATIONS.name}
        private.update((table, "(all of the table)") for table in sorted(tables))
    return private


def _check(options: argparse.Namespace) -> Counter[tuple[str, str]]:
    from ..document import Column, Document, Row, Table
    from ..presenters import as_table
    from ..presenters.output import write
    from ..support.progress import on_screen

    with on_screen():
        private = possibly_private(options.report, keep=options.keep)
    name = options.report.name
    if not private:
        document = Document(f"{name}: nothing private found", ())
    else:
        columns = (Column("what", "what", "name"), Column("where", "in"), Column("count", "count", "count"))
        rows = tuple(Row((text, where, count)) for (where, text), count in private.items())
        more = len(rows) - MOST_SHOWN
        notes = [f"{more:,} more are not listed."] if more > 0 else []
        notes.append("scrub -o leaves all of it out, or replaces it; --keep NAME keeps names that may be seen.")
        table = Table("unknown", "Possibly private", columns, rows[:MOST_SHOWN])
        document = Document(f"{name} has possibly private content", (table,), tuple(notes))
    width, color = as_table.screen(sys.stdout.isatty())
    write(as_table.present(document, width=width, color=color, full_names=True), None)
    return private
