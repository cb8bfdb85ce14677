"""Answer the assignment's profiling questions: nvtx-kernels ask run/*.sqlite."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import add_range_rules, add_shape, detail_of, expand, opened_by, presented, run, spare, write
from ..errors import ReportError
from ..support.arguments import CommandParser
from ..views.glossary import help_text
from .asked import QUESTIONS

if TYPE_CHECKING:
    from ..document import Document
    from .sweep import Answered


def parser(prog: str = "python -m analysis.questions") -> argparse.ArgumentParser:
    """Describe the command line."""
    questions = "".join(f"  {letter}  {question}\n" for letter, question in QUESTIONS.items())
    epilog = f"profiling questions of Stanford CS336's second assignment:\n{questions}"
    epilog += f"\n{help_text('ask')}"
    parser = CommandParser(prog=prog, description=__doc__, epilog=epilog)
    parser.add_argument("report", type=Path, nargs="+", help="a report of any kind, several, or folders")
    group = parser.add_argument_group("what to answer")
    group.add_argument(
        "--questions", type=_letters, default="".join(QUESTIONS), metavar="LETTERS", help="such as a,c (all)"
    )
    group.add_argument(
        "--timed",
        type=Path,
        metavar="FILE",
        help="for (a): unprofiled times, by nvtx-kernels benchmark",
    )
    group.add_argument("--include-warmup", action="store_true", help="count the work of warm-up ranges too")
    add_range_rules(parser)
    add_shape(parser, every_index=False)
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.questions") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    return run(lambda: write(presented(answer(options), options), options.output))


def answer(options: argparse.Namespace) -> Document:
    """Return the answers; raises AnalysisError where no report has any."""
    from ..summary.parallel import Ranked, rank_all
    from . import answers, timed
    from .sweep import Answered

    paths = expand(options.report)
    spare(paths, options.output)
    detail = detail_of(options)
    times = timed.read(options.timed) if options.timed else ()
    if len(paths) == 1:  # what is wrong with it ends the command
        outcomes = [Ranked(paths[0].name, of_report(paths[0], options))]
    else:
        outcomes = rank_all(paths, partial(of_report, options=options))
    reports = [(outcome.name, outcome.report) for outcome in outcomes if isinstance(outcome.report, Answered)]
    if not reports:
        first = outcomes[0]
        raise ReportError(f"None of the {len(outcomes)} reports can be read. {first.name}: {first.problem}")
    problems = [(outcome.name, outcome.problem) for outcome in outcomes if outcome.problem]
    return answers.document(reports, options.questions, detail, problems=problems, times=times)


def of_report(path: Path, options: argparse.Namespace) -> Answered:
    """Read one report and ask it all that the questions need; raises AnalysisError where it gives no answer."""
    from .sweep import answered

    return answered(opened_by(path, options))


def _letters(text: str) -> str:
    """Read the letters of questions, and sort them; raises ArgumentTypeError, which argparse prints."""
    letters = set(text.replace(",", "").replace(" ", "").lower())
    if not letters or letters - set(QUESTIONS):
        raise argparse.ArgumentTypeError(f"{text!r} names no questions: write letters of {','.join(QUESTIONS)}")
    return "".join(letter for letter in QUESTIONS if letter in letters)
