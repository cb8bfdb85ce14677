"""Write the summary of one rank's report, a small file; `nvtx-kernels rank FOLDER` compares many of them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import add_range_rules, opened_by, run, say_written, spare
from ..presenters.output import write
from ..readers import SUMMARY
from ..support.arguments import CommandParser

if TYPE_CHECKING:
    from .reduce import Ranks


def parser(prog: str = "python -m analysis.ranks") -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog=prog, description=__doc__)
    parser.add_argument("report", type=Path, help="the report of one rank")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"(default: REPORT with {SUMMARY})")
    parser.add_argument("--rank", type=int, metavar="N", help="(default: what the report or its name says)")
    parser.add_argument("--host", default="", metavar="NAME", help="the host that the rank ran on")
    parser.set_defaults(include_warmup=False)
    add_range_rules(parser)
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.ranks") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    return run(lambda: _summarize(options))


def _summarize(options: argparse.Namespace) -> None:
    from ..summary.file import as_sqlite
    from ..views.job import RANK_IN_NAME

    path: Path = options.report
    output = options.output or path.with_name(path.name.partition(".")[0] + SUMMARY)
    spare([path], output)
    opened = opened_by(path, options)
    rank = options.rank if options.rank is not None else opened.whole.provenance.run.get("rank", -1)
    if rank < 0 and (number := RANK_IN_NAME.search(path.name)):
        rank = int(number[1])
    write(as_sqlite(opened.attribution, opened.whole, rank=rank, host=options.host), output)
    say_written(
        output, f"Next: nvtx-kernels rank {shlex.quote(str(output.parent))} compares all summaries of that folder."
    )


def reduced_summaries(paths: Sequence[Path], *, scheduler: str | None = None) -> Ranks:
    """Join these summaries, read in threads here or on a Dask cluster.

    Raises ReportError if none can be read, or if they count different work.
    """
    from ..summary.parallel import rank_all
    from ..support.progress import on_screen
    from .reduce import read_all, read_one, reduced

    if scheduler:
        ranked = rank_all(paths, read_one, scheduler=scheduler)
        return reduced([(rank.name, rank.report or rank.problem) for rank in ranked])
    with on_screen("reading summaries"):
        return reduced(read_all(paths))
