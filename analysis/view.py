"""Answer one question about a report: why is the GPU idle, what does attention cost, ….

nvtx-kernels view idle report.sqlite
nvtx-kernels view idle --help
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cli import (
    add_range_rules,
    add_shape,
    add_unrecorded_step,
    detail_of,
    opened_by,
    phase_and_time,
    presented,
    run,
    write,
)
from .kernels import REPORTS, add_part, add_scheduler, read_all, reports_to_read, require_one
from .readers import ENDINGS
from .support.arguments import CommandParser
from .views.glossary import help_text
from .views.registry import VIEWS, subject_of, viewer

if TYPE_CHECKING:
    from .report import Report
    from .views.registry import Subject


def parser(prog: str = "python -m analysis.view") -> argparse.ArgumentParser:
    """Return the parser of all views, each with options of its own."""
    parser = CommandParser(prog=prog, description=__doc__)
    views = parser.add_subparsers(title="views (each has --help)", dest="view", metavar="NAME", required=True)
    for name, view in VIEWS.items():
        _add_options(views.add_parser(name, help=view.question, **_described(name)), name)
    return parser


def _described(name: str) -> dict[str, Any]:
    """Return the texts above and below the options in a view's help."""
    return {"description": VIEWS[name].question, "epilog": help_text(name)}


def _add_options(parser: argparse.ArgumentParser, name: str) -> None:
    view = VIEWS[name]
    parser.set_defaults(view=name, range=None, kernel="", by="", timed=[], launches=False, unrecorded_step=None)
    one_report = "an nsys export (.sqlite), a .nsys-rep, a recording or a PyTorch profiler trace"
    parser.add_argument("report", type=Path, nargs="+", help=REPORTS if view.takes_many else one_report)
    part = add_part(parser, takes_range=view.takes_range)
    if name == "kernels":
        part.add_argument(
            "--kernel",
            default="",
            metavar="NAME",
            help="a part of a kernel's name: explain its launches, and give ncu's command line",
        )
        part.add_argument(
            "--by",
            choices=("operator",),
            default="",
            help="kernels under the operators of PyTorch that launched them",
        )
    if name == "agreement":
        part.add_argument(
            "--timed",
            action="append",
            default=[],
            type=phase_and_time,
            metavar="PHASE=TIME",
            help="a time measured elsewhere, such as forward=19.7ms (several)",
        )
    if name == "idle":
        part.add_argument(
            "--launches",
            action="store_true",
            help="also the lag from launch calls to their work",
        )
    if name == "fix":
        add_unrecorded_step(part)
    add_range_rules(parser)
    shape = add_shape(parser)
    shape.add_argument("--no-cache", action="store_true", help=argparse.SUPPRESS)  # without effect since 0.3
    if view.takes_many:
        add_scheduler(shape)


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.view") -> int:
    """Run the command; return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in VIEWS:
        name = words.pop(0)
        view_parser: argparse.ArgumentParser = CommandParser(
            prog=f"{prog} {name}", usage="%(prog)s [options] report", **_described(name)
        )
        _add_options(view_parser, name)
    else:
        view_parser = parser(prog)  # which lists the views, or reports that this is not a view
        if words and (words[0].endswith(ENDINGS) or Path(words[0]).exists()):
            named = next((word for word in words if word in VIEWS), "NAME")
            view_parser.error(f"the view comes before the report: {prog} {named} {words[0]}")
    options = view_parser.parse_args(words)
    return run(lambda: write(answer(options), options.output))


def answer(options: argparse.Namespace) -> str | bytes:
    """Return the text that the command prints, or the bytes that it writes to a file.

    Raises AnalysisError if a report cannot answer, or the options do not go together.
    """
    paths = reports_to_read(options)
    if len(paths) == 1:
        return presented(viewer(options.view).view(_subject(paths[0], options)), options)
    if not VIEWS[options.view].takes_many:
        require_one(paths, f"`view {options.view}`")
    held = read_all(paths, partial(_held, options=options), options)
    return presented(viewer(options.view).of_ranks(held, detail_of(options)), options)


def _subject(path: Path, options: argparse.Namespace) -> Subject:
    """Return the subject of a view: the requested part of a report, and the work that it counts."""
    of_view: dict[str, Any] = {
        "detail": detail_of(options),
        "timed": dict(options.timed),
        "kernel": options.kernel,
        "by": options.by,
    }
    of_view |= {"launches": options.launches, "unrecorded_step_ns": options.unrecorded_step}
    opened = opened_by(path, options)
    return subject_of(options.view, opened, options.range or "", options.phase or (), **of_view)


def _held(path: Path, options: argparse.Namespace) -> tuple[Report, Any]:
    """Return one report of several, and what the view needs of it; other processes call this."""
    subject = _subject(path, options)
    return subject.report, viewer(options.view).held_by(subject)


if __name__ == "__main__":
    sys.exit(main())
