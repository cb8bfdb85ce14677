"""Rank the GPU kernels of each NVTX range: python -m analysis.kernels report.sqlite."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.command import (
    FOR_MACHINES,
    add_range_rules,
    attributed,
    positive,
    presented,
    run,
    spare,
    trace_of,
    write,
)
from analysis.errors import ReportError, UsageError
from analysis.presenters import PRESENTERS
from analysis.report_paths import expand
from analysis.views.registry import VIEWS

if TYPE_CHECKING:
    from analysis.attribution import Attribution
    from analysis.report import Report
    from analysis.tables import Document

FORMATS = (*PRESENTERS, "parquet")
EVERY_ROW = 2**31


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    questions = "".join(f"  {name:<10} {view.question}\n" for name, view in VIEWS.items())
    parser = argparse.ArgumentParser(
        prog="python -m analysis.kernels", description=__doc__, epilog=f"views:\n{questions}",
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
        "--timed", action="append", default=[], type=_timed, metavar="PHASE=TIME",
        help="a time measured elsewhere, such as forward=19.7ms, for --view agreement (several)",
    )  # fmt: skip
    what.add_argument("--range", metavar="PATTERN", help="only ranges matching a name, or 'attention > softmax'")
    what.add_argument("--phase", choices=("forward", "backward", "optimizer", "other"), help="only this phase")
    what.add_argument(
        "--top", type=positive, default=10, metavar="N",
        help="rows per table; of a tree the longest ranges, with the phases and what is around them (%(default)s)",
    )  # fmt: skip
    what.add_argument("--per-step", action="store_true", help="divide by the number of measured steps")
    what.add_argument("--include-warmup", action="store_true", help="count the work of warm-up ranges too")
    add_range_rules(parser).add_argument(
        "--like-nsys", action="store_true",
        help="only the launching thread's ranges, by range name, with the columns of `nsys stats`",
    )  # fmt: skip
    shape = parser.add_argument_group("how to show it")
    shape.add_argument("--format", choices=FORMATS, default="table")
    shape.add_argument("--full-names", action="store_true", help="kernel names in full")
    shape.add_argument("--every-index", action="store_true", help="keep `layer 0`, `layer 1`, … apart in tables")
    shape.add_argument(
        "--no-cache", action="store_true", help="neither use nor keep a big report's summary beside it"
    )
    shape.add_argument(
        "--scheduler", metavar="ADDRESS", help="rank several reports on a Dask cluster, such as tcp://head:8786"
    )
    shape.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to a file instead of the screen")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(arguments)
    return run(lambda: write(answer(options), options.output))


def answer(options: argparse.Namespace) -> str | bytes:
    """Return what the command prints, or what it puts in a file.

    Raises AnalysisError where the report cannot answer, or the options do not go together.
    """
    _check(options)
    paths = expand(options.report)
    spare(paths, options.output)
    if len(paths) > 1:
        _check_many(len(paths), options)
        return _presented(_of_many(paths, options), options)
    if options.like_nsys:
        from analysis.like_nsys import like_nsys

        return _presented(like_nsys(trace_of(paths[0]), grouped=options.format not in FOR_MACHINES), options)
    attribution = cache(lambda: attributed(paths[0], options))
    report = narrowed(summary(paths[0], options, attribution), options)
    if options.view:
        return _presented(_viewed(attribution, report, options), options)
    if options.format == "json":
        from analysis.presenters import as_json

        return as_json.present(report)
    return _presented(_document(report, options), options)


def _check(options: argparse.Namespace) -> None:
    if options.kernel and options.view != "explain":
        raise UsageError("--kernel names the kernel that --view explain takes apart.")
    if options.timed and options.view != "agreement":
        raise UsageError("--timed gives a time to --view agreement.")
    if options.view and options.range and not VIEWS[options.view].takes_range:
        raise UsageError(f"--view {options.view} is about phases: --range does not narrow it, --phase does.")
    if options.like_nsys and (options.range or options.phase or options.by or options.per_step):
        raise UsageError("--like-nsys shows all that nsys counts, without --range, --phase, --by or --per-step.")
    if options.view and options.like_nsys:
        raise UsageError("--like-nsys is an answer by itself, without --view.")
    if options.format == "parquet" and options.output is None:
        raise UsageError("Parquet is no text: name a file for it with -o FILE.")


def _check_many(count: int, options: argparse.Namespace) -> None:
    """Raise UsageError for what is asked of several reports and said of one only."""
    of_one = {"--view": options.view, "--by": options.by, "--like-nsys": options.like_nsys}
    asked = " and ".join(name for name, value in of_one.items() if value)
    if asked:
        raise UsageError(f"{asked} is about one report; {count} were given, which are compared without it.")


def summary(
    path: Path, options: argparse.Namespace, attribution: Callable[[], Attribution] | None = None
) -> Report:
    """Return the summary of a whole report: the kept one where there is a true one, else a new one."""
    from analysis.cache import kept

    def anew() -> Report:
        from analysis.summary import summarize

        found = attribution() if attribution else attributed(path, options)
        return summarize(found, include_warm_up=options.include_warmup)

    rules = {
        "domains": options.domain, "operators": options.operators, "step": options.step,
        "warm_up": options.include_warmup,
    }  # fmt: skip
    return anew() if options.no_cache else kept(path, rules, anew)


def narrowed(report: Report, options: argparse.Namespace) -> Report:
    """Keep what was asked for, per step if asked for that."""
    from analysis import report as reports

    return _selected(reports.per_step(report) if options.per_step else report, options)


def _selected(report: Report, options: argparse.Namespace) -> Report:
    """Keep the ranges and the phase that were asked for."""
    from analysis import selection

    report = selection.of_ranges(report, options.range) if options.range else report
    return selection.of_phase(report, options.phase) if options.phase else report


def _of_many(paths: Sequence[Path], options: argparse.Namespace) -> Document:
    """Compare several reports, each ranked in a process of its own or on a cluster."""
    from dataclasses import replace

    from analysis.many import rank_all
    from analysis.views.ranks import ranks

    ranked = rank_all(paths, partial(summary, options=options), scheduler=options.scheduler)
    if not any(one.report for one in ranked):
        raise ReportError(
            f"None of the {len(ranked)} reports can be ranked. {ranked[0].name}: {ranked[0].problem}"
        )
    kept = [replace(one, report=_selected(one.report, options)) if one.report else one for one in ranked]
    whole = options.format in FOR_MACHINES
    return ranks(
        kept, top=EVERY_ROW if whole else options.top, per_step=options.per_step,
        full_names=options.full_names or whole, every_index=options.every_index or whole, whole=whole,
    )  # fmt: skip


def _viewed(attribution: Callable[[], Attribution], report: Report, options: argparse.Namespace) -> Document:
    from analysis.views.registry import Subject, viewer

    whole = options.format in FOR_MACHINES
    subject = Subject(
        report,
        attribution,
        one_phase=options.phase is not None,
        timed=dict(options.timed),
        whole=whole,
        top=EVERY_ROW if whole else options.top,
        full_names=options.full_names or whole,
        every_index=options.every_index or whole,
        kernel=options.kernel or "",
    )
    return viewer(options.view).view(subject)


def _document(report: Report, options: argparse.Namespace) -> Document:
    from analysis import selection
    from analysis.views.everything import everything
    from analysis.views.overview import overview

    if options.format in FOR_MACHINES:
        return everything(report, by=options.by)
    shown = report if options.every_index else selection.with_indices_collapsed(report)
    return overview(shown, by=options.by, top=options.top, full_names=options.full_names)


def _presented(document: Document, options: argparse.Namespace) -> str | bytes:
    if options.format == "parquet":
        from analysis.presenters import as_parquet

        return as_parquet.present(document)
    return presented(document, options)


def _timed(text: str) -> tuple[str, float]:
    found = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+\.?\d*|\.\d+)\s*(ns|us|µs|ms|s)\s*", text)
    if not found or not float(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time of a phase: write forward=19.7ms")
    return found[1], float(found[2]) * {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}[found[3]]


if __name__ == "__main__":
    sys.exit(main())
