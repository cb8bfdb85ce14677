"""Show where a report's time goes, by phase, module and kernel, and what to change."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .cli import (
    add_own_functions,
    add_range_rules,
    add_shape,
    add_unrecorded_step,
    all_as_typed,
    as_typed,
    choices_of,
    detail_of,
    expand,
    is_summary,
    opened_by,
    positive,
    presented,
    report_of,
    run,
    spare,
    trace_of,
    write,
)
from .errors import ReportError, UsageError
from .support.arguments import CommandParser, Removed
from .vocabulary import PHASES

if TYPE_CHECKING:
    from .document import Document
    from .measures.rank_evidence import RankEvidence
    from .opened import Opened
    from .report import Report
    from .summary.parallel import Ranked
    from .views.overview import ByLine

    #: A report, and what it shows of its rank if it may be of a job.
    Held: TypeAlias = tuple[Report, RankEvidence | None]

T = TypeVar("T")
#: How the assignment calls it: then with all kernels.
AS_MODULE = "python -m analysis.kernels"
REPORTS = (
    "an nsys export (.sqlite), a .nsys-rep, a recording or a PyTorch profiler trace; several, or a folder of "
    "them, such as one per rank, are compared"
)


def parser(prog: str = AS_MODULE) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog=prog, usage="%(prog)s [options] report [report ...]", description=__doc__)
    parser.add_argument("report", type=Path, nargs="+", help=REPORTS)
    part = add_part(parser)
    part.add_argument(
        "--by",
        choices=("kernel", "category", "range", "line", "function"),
        help="one ranking instead of the overview; function needs a PyTorch trace with stacks, line that or a "
        "recording with lines",
    )
    part.add_argument(
        "--kernels",
        action="store_true",
        default=prog == AS_MODULE,
        help="also the kernels of each phase and range",
    )
    add_own_functions(part)
    part.add_argument("--view", action=Removed, use="nvtx-kernels view {} …")
    add_unrecorded_step(part)
    part.add_argument(
        "--like-nsys",
        action="store_true",
        help="count like `nsys stats`: only the launching thread's ranges, by name",
    )
    add_range_rules(parser)
    shape = add_shape(parser)
    shape.add_argument("--no-cache", action="store_true", help=argparse.SUPPRESS)  # without effect since 0.3
    add_scheduler(shape)
    return parser


def add_part(parser: argparse.ArgumentParser, *, takes_range: bool = True) -> Any:
    """Add the options that choose the part of a report to look at; return their group."""
    part = parser.add_argument_group("what to look at")
    if takes_range:
        part.add_argument(
            "--range",
            metavar="PATTERN",
            help="only these: a name, 'attention > softmax', layers.3.mlp",
        )
    part.add_argument(
        "--phase",
        action="append",
        choices=PHASES,
        metavar="PHASE",
        help=f"{', '.join(PHASES[:-1])} or {PHASES[-1]} (several)",
    )
    part.add_argument(
        "--top",
        type=positive,
        metavar="N",
        help="rows per table (10; 5 in the overview)",
    )
    over = part.add_mutually_exclusive_group()
    over.add_argument(
        "--per-step",
        action="store_true",
        default=None,
        help="means of a measured step (the default of tables)",
    )
    over.add_argument(
        "--totals", dest="per_step", action="store_false", help="sums (the default of csv, json and parquet)"
    )
    part.add_argument("--include-warmup", action="store_true", help="count the work of warm-up ranges too")
    return part


def add_scheduler(group: Any) -> None:
    """Add the option of commands that read several reports at once."""
    group.add_argument(
        "--scheduler", metavar="ADDRESS", help="read several reports on a Dask cluster, such as tcp://head:8786"
    )


def main(arguments: Sequence[str] | None = None, *, prog: str = AS_MODULE) -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    return run(lambda: write(answer(options), options.output))


def answer(options: argparse.Namespace) -> str | bytes:
    """Return the text that the command prints, or the bytes that it writes to a file.

    Raises AnalysisError if a report cannot answer, or the options do not go together.
    """
    paths = reports_to_read(options)
    if options.like_nsys:  # nsys's own figures, which are those of all work of a report
        from .views.like_nsys import like_nsys

        if any((options.range, options.phase, options.by, options.per_step)):
            raise UsageError("--like-nsys is shown without --range, --phase, --by or --per-step.")
        require_one(paths, "--like-nsys")
        document = like_nsys(trace_of(paths[0]), detail_of(options))
    elif len(paths) > 1:
        document = _compared(paths, options)
        if document.verdict and not any(map(is_summary, paths)):
            from .views.verdict import commands_of_job

            document = replace(document, next=commands_of_job(all_as_typed(paths, options)))
    else:
        from .opened import scaled
        from .summary.selection import part_of
        from .views.overview import overview
        from .views.verdict import commands

        fixes = lines = None
        program = ""
        of_summary = is_summary(paths[0])
        if of_summary:
            if options.by == "line":
                raise UsageError(f"{paths[0]} is a summary, which has no lines: rank the report.")
            report = scaled(report_of(paths[0], options), choices_of(options).per_step)
        else:
            opened = opened_by(paths[0], options)
            report = opened.report
            fixes = None if options.by or options.range or options.phase else opened.fixes
            lines = _by_line(opened, options)
            program = opened.program if fixes and fixes.fixes else ""
        report = part_of(report, options.range, options.phase)
        document = overview(
            report, detail_of(options), by=options.by, found=fixes, with_kernels=options.kernels, by_line=lines
        )
        if document.verdict and not of_summary:  # of a summary, no view can be shown
            document = replace(document, next=commands(report, as_typed(paths[0], options), program=program))
    return presented(document, options)


def _by_line(opened: Opened, options: argparse.Namespace) -> ByLine | None:
    """Return a function for the part to look at with its kernels named by lines; None without lines."""
    from .summary.selection import part_of

    if options.by != "line" and not opened.has_lines:
        return None
    return lambda: (part_of(opened.by_line, options.range, options.phase), opened.lines_called)


def reports_to_read(options: argparse.Namespace) -> list[Path]:
    """Return the paths of the reports; raises UsageError where the answer cannot be written."""
    paths = expand(options.report)
    spare(paths, options.output)
    detail_of(options)  # raises for a format that needs a file
    return paths


def require_one(paths: Sequence[Path], command: str) -> None:
    """Raise UsageError if several reports are given to what takes one."""
    if len(paths) > 1:
        raise UsageError(
            f"{command} takes one report, but {len(paths)} were given; `nvtx-kernels rank` alone compares them."
        )


def _compared(paths: Sequence[Path], options: argparse.Namespace) -> Document:
    """Compare several reports, each ranked in its own process or on a cluster."""
    from .opened import is_per_step
    from .summary.selection import part_of
    from .summary.together import same_evidence
    from .views.job import answer_of
    from .views.ranks import ranks

    if options.by:
        require_one(paths, "--by")
    if all(map(is_summary, paths)):
        from .ranks import reduced_summaries
        from .ranks.document import ranks_document

        return ranks_document(reduced_summaries(paths, scheduler=options.scheduler), detail_of(options))
    is_of_job = not (any(map(is_summary, paths)) or options.range or options.phase)
    read = partial(_held if is_of_job else _alone, options=options)
    held = read_all(paths, read, options)

    def again(paths: Sequence[Path], kinds: tuple[str, ...]) -> list[Ranked[Report]]:
        """Read reports with steps by these kinds of evidence."""
        nonlocal held
        of_kinds = argparse.Namespace(**vars(options), evidence=kinds)
        held = read_all(paths, partial(read.func, options=of_kinds), options)
        return _reports(held)

    ranked, note = same_evidence(paths, _reports(held), again)
    answer = answer_of(held) if is_of_job else None
    chosen = [
        replace(entry, report=part_of(entry.report, options.range, options.phase)) if entry.report else entry
        for entry in ranked
    ]
    per_step = is_per_step((entry.report for entry in ranked if entry.report), choices_of(options).per_step)
    is_short = not options.kernels
    document = ranks(chosen, detail_of(options), per_step=per_step, of_job=answer, is_short=is_short)
    return replace(document, notes=(note, *document.notes)) if note else document


def _reports(held: Sequence[Ranked[Held]]) -> list[Ranked[Report]]:
    """Return the reports alone."""
    from .summary.parallel import Ranked

    return [Ranked(entry.name, entry.report[0] if entry.report else None, entry.problem) for entry in held]


def _alone(path: Path, options: argparse.Namespace) -> Held:
    """Return a report; other processes call this."""
    return report_of(path, options), None


def _held(path: Path, options: argparse.Namespace) -> Held:
    """Return a report, and what it shows of its rank; other processes call this."""
    from .measures.rank_evidence import rank_evidence

    opened = opened_by(path, options)
    return opened.whole, rank_evidence(opened.partition)


def read_all(paths: Sequence[Path], read: Callable[[Path], T], options: argparse.Namespace) -> list[Ranked[T]]:
    """Return the result of `read` for each report; raises ReportError if it fails for all."""
    from .summary.parallel import rank_all

    ranked = rank_all(paths, read, scheduler=options.scheduler)
    if not any(entry.report for entry in ranked):
        raise ReportError(f"None of {len(ranked)} reports can be ranked. {ranked[0].name}: {ranked[0].problem}")
    return ranked


if __name__ == "__main__":
    sys.exit(main())
