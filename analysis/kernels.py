"""Rank the GPU kernels of each NVTX range: python -m analysis.kernels report.sqlite."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .cli import (
    Later,
    add_range_rules,
    add_shape,
    as_typed,
    attributed,
    detail_of,
    expand,
    phase_and_time,
    positive,
    presented,
    run,
    spare,
    trace_of,
    write,
)
from .errors import ReportError, UsageError
from .views.registry import VIEWS
from .vocabulary import PHASES

if TYPE_CHECKING:
    from .attribution.causes import Attribution
    from .document import Document
    from .report import Report
    from .summary.parallel import Ranked
    from .views.registry import Subject

T = TypeVar("T")


def parser(prog: str = "python -m analysis.kernels") -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    questions = "".join(f"  {name:<10} {view.question}\n" for name, view in VIEWS.items())
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, epilog=f"views:\n{questions}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "report", type=Path, nargs="+",
        help="an nsys export (.sqlite), a .nsys-rep, a recording or a PyTorch profiler trace; several, or a "
        "folder of them, such as one per rank, are compared",
    )  # fmt: skip
    what = parser.add_argument_group("what to rank")
    instead = what.add_mutually_exclusive_group()
    instead.add_argument(
        "--by", choices=("kernel", "category", "range"), help="one ranking instead of the overview"
    )
    instead.add_argument("--view", choices=tuple(VIEWS), help="the answer to one question, see below")
    what.add_argument("--kernel", metavar="NAME", help="a part of the name of the kernel to --view explain")
    what.add_argument(
        "--timed", action="append", default=[], type=phase_and_time, metavar="PHASE=TIME",
        help="a time measured elsewhere, such as forward=19.7ms, for --view agreement (several)",
    )  # fmt: skip
    what.add_argument("--range", metavar="PATTERN", help="only ranges matching a name, or 'attention > softmax'")
    what.add_argument(
        "--phase", action="append", choices=PHASES,
        help="only this phase (several)",
    )  # fmt: skip
    what.add_argument(
        "--top", type=positive, metavar="N",
        help="rows per table (10; ranges of the overview: 5); of a tree the ranges with the most time, with the "
        "phases and what is around them",
    )  # fmt: skip
    over = what.add_mutually_exclusive_group()
    over.add_argument(
        "--per-step", action="store_true", default=None,
        help="the mean of a measured step (the default for text if a report has steps)",
    )  # fmt: skip
    over.add_argument(
        "--totals", dest="per_step", action="store_false", help="sums (the default of csv, json and parquet)"
    )
    what.add_argument(
        "--split-fused", action="store_true",
        help="with --by range: estimate each range's part of fused kernels' time, by the bytes that it writes",
    )  # fmt: skip
    what.add_argument("--include-warmup", action="store_true", help="count the work of warm-up ranges too")
    add_range_rules(parser).add_argument(
        "--like-nsys", action="store_true",
        help="only the launching thread's ranges, by range name, with the columns of `nsys stats`",
    )  # fmt: skip
    shape = add_shape(parser)
    shape.add_argument(
        "--no-cache",
        action="store_true",
        help="do not cache the summary of a large report (in your cache folder, or NVTX_KERNELS_CACHE)",
    )
    shape.add_argument(
        "--scheduler", metavar="ADDRESS", help="rank several reports on a Dask cluster, such as tcp://head:8786"
    )
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.kernels") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    return run(lambda: write(answer(options), options.output))


def answer(options: argparse.Namespace) -> str | bytes:
    """Return the text that the command prints, or the bytes that it writes to a file.

    Raises AnalysisError if the report cannot answer, or the options do not go together.
    """
    paths = _checked(options)
    if len(paths) > 1:
        return presented(_of_many(paths, options), options)
    trace = Later(trace_of, paths[0])
    attribution = Later(attributed, trace, options)
    if options.like_nsys:
        from .views.like_nsys import like_nsys

        return presented(like_nsys(trace(), detail_of(options)), options)
    subject = _subject(summarized(paths[0], attribution, options), attribution, options)
    document = _viewed(subject, options)
    if document.verdict:
        from .views.verdict import commands

        document = replace(document, next=commands(subject.report, as_typed(paths[0], options)))
    return presented(document, options)


def _checked(options: argparse.Namespace) -> list[Path]:
    """Return the paths of the reports; raises UsageError for options that do not go together."""
    _check(options)
    paths = expand(options.report)
    spare(paths, options.output)
    detail_of(options)  # raises for a format that needs a file
    if len(paths) > 1:
        _check_many(len(paths), options)
    return paths


def _check(options: argparse.Namespace) -> None:
    if options.kernel and options.view != "explain":
        raise UsageError("--kernel names the kernel for --view explain.")
    if options.timed and options.view != "agreement":
        raise UsageError("--timed gives a time to --view agreement.")
    if options.split_fused and options.by != "range":
        raise UsageError("--split-fused splits rows of --by range.")
    if options.view and options.range and not VIEWS[options.view].takes_range:
        raise UsageError(f"--view {options.view} is about phases: --range does not narrow it, --phase does.")
    if options.like_nsys and any((options.view, options.range, options.phase, options.by, options.per_step)):
        raise UsageError("--like-nsys is shown without --view, --range, --phase, --by or --per-step.")


def _check_many(count: int, options: argparse.Namespace) -> None:
    """Raise UsageError for options that take one report, if several are given."""
    view = options.view and not VIEWS[options.view].takes_many
    of_one = {"--view": view, "--by": options.by, "--like-nsys": options.like_nsys}
    asked = " and ".join(name for name, value in of_one.items() if value)
    if asked:
        raise UsageError(f"{asked} takes one report, but {count} were given; without it, they are compared.")


def summary(path: Path, options: argparse.Namespace) -> Report:
    """Return the summary of a whole report: the cached one if it is valid, else a new one."""
    return summarized(path, Later(attributed, Later(trace_of, path), options), options)


def summarized(path: Path, attribution: Later, options: argparse.Namespace) -> Report:
    """Return the summary of a whole report, the cached one if it is still valid."""
    from .summary.cache import kept

    anew = Later(_summarize, attribution, options)
    rules = {
        "domains": options.domain, "operators": options.operators, "step": options.step,
        "phase_names": options.phase_names, "warm_up": options.include_warmup,
    }  # fmt: skip
    found: Report = anew() if options.no_cache else kept(path, rules, anew)
    return found


def _summarize(attribution: Attribution, options: argparse.Namespace) -> Report:
    from .summary.totals import summarize

    return summarize(attribution, include_warm_up=options.include_warmup)


def _split(report: Report) -> Report:
    from .measures.fused import NOT_SAID, split_fused

    if not any(report.provenance.writes.values()):
        raise ReportError(NOT_SAID)
    return split_fused(report)


def _scaled(report: Report, options: argparse.Namespace) -> Report:
    """Return the report per step unless totals are requested."""
    from . import report as reports

    return reports.per_step(report) if _is_per_step([report], options) else report


def _is_per_step(found: Sequence[Report], options: argparse.Namespace) -> bool:
    """Return whether figures are per step: as requested, else for text if all reports have work in steps."""
    if options.per_step is not None or detail_of(options).whole:
        return bool(options.per_step)
    return all(report.steps and (report.measured or report).kernels for report in found)


def _selected(report: Report, options: argparse.Namespace) -> Report:
    """Select the requested ranges, unless the view does, and phases."""
    from .summary import selection

    if options.range and not _matches_ranges(options):
        report = selection.of_ranges(report, options.range)
    return selection.of_phases(report, *options.phase) if options.phase else report


def _matches_ranges(options: argparse.Namespace) -> bool:
    return bool(options.view) and VIEWS[options.view].matches_ranges


def _of_many(paths: Sequence[Path], options: argparse.Namespace) -> Document:
    """Compare several reports, each ranked in its own process or on a cluster."""
    from .views.ranks import ranks

    if options.view:
        from .views.registry import viewer_of_many

        held = _all_of(paths, partial(_held, options=options), options)
        return viewer_of_many(options.view).of_ranks(held, detail_of(options))
    ranked = _all_of(paths, partial(summary, options=options), options)
    kept = [replace(one, report=_selected(one.report, options)) if one.report else one for one in ranked]
    per_step = _is_per_step([one.report for one in ranked if one.report], options)
    return ranks(kept, detail_of(options), per_step=per_step)


def _all_of(paths: Sequence[Path], each: Callable[[Path], T], options: argparse.Namespace) -> list[Ranked[T]]:
    """Return what `each` makes of the reports; raises ReportError if it makes nothing of any."""
    from .summary.parallel import rank_all

    ranked = rank_all(paths, each, scheduler=options.scheduler)
    if not any(one.report for one in ranked):
        raise ReportError(f"None of {len(ranked)} reports can be ranked. {ranked[0].name}: {ranked[0].problem}")
    return ranked


def _held(path: Path, options: argparse.Namespace) -> tuple[Report, Any]:
    """Return one report of several, and what the view needs of it; other processes call this."""
    from .views.registry import viewer_of_many

    attribution = Later(attributed, Later(trace_of, path), options)
    subject = _subject(summarized(path, attribution, options), attribution, options)
    return subject.report, viewer_of_many(options.view).held_by(subject)


def _counted(attribution: Attribution, report: Report) -> Attribution:
    """Return the work that views count: per step, only that in measured steps."""
    from .attribution.places import in_measured_steps

    if not report.per_step:
        return attribution
    return in_measured_steps(attribution, include_warm_up=report.warm_up_included)


def _viewed(subject: Subject, options: argparse.Namespace) -> Document:
    """Answer the view's question, or the project's."""
    from .views.overview import overview
    from .views.registry import viewer

    if not options.view:
        return overview(subject.report, subject.detail, by=options.by)
    return viewer(options.view).view(subject)


def _subject(found: Report, attribution: Later, options: argparse.Namespace) -> Subject:
    """Return what a view looks at: the requested part of a report."""
    from .views.registry import Subject

    whole = _scaled(_split(found) if options.split_fused else found, options)
    return Subject(
        _selected(whole, options),
        Later(_counted, attribution, whole),
        detail_of(options),
        unselected=whole,
        some_phases=bool(options.phase),
        timed=dict(options.timed),
        kernel=options.kernel or "",
        ranges=options.range if options.range and _matches_ranges(options) else "",
    )


if __name__ == "__main__":
    sys.exit(main())
