"""Say whether B is faster than A, and where.

nvtx-kernels compare before.sqlite after.sqlite --fail-on 'softmax > +5%'

With several recordings of each, it also knows how much recordings differ:
nvtx-kernels compare a1.sqlite a2.sqlite --to b1.sqlite b2.sqlite
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import (
    add_range_rules,
    add_shape,
    detail_of,
    is_summary,
    opened_by,
    positive,
    presented,
    run,
    spare,
    write,
)
from ..errors import UsageError
from ..support.arguments import CommandParser

if TYPE_CHECKING:
    from ..report import Report
    from .rules import Verdict
    from .sides import Side

RULE_VIOLATED = 3
GONE = " (only in A; --allow-missing accepts it)"


def parser(prog: str = "python -m analysis.compare") -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog=prog, description=__doc__)
    parser.add_argument(
        "reports",
        type=Path,
        nargs="+",
        metavar="REPORT",
        help="A and B: the report to compare with, and the changed one; with --to, recordings of A",
    )
    parser.add_argument("--to", type=Path, nargs="+", default=[], metavar="REPORT", help="recordings of B")
    compared = parser.add_argument_group("what to compare")
    compared.add_argument(
        "--by", choices=("account", "phase", "category", "range", "kernel"), help="one table instead of these"
    )
    over = compared.add_mutually_exclusive_group()
    over.add_argument(
        "--per-step",
        action="store_true",
        default=None,
        help="per measured step (the default if both have steps); refuse reports without steps",
    )
    over.add_argument("--totals", dest="per_step", action="store_false", help="whole reports as they are")
    compared.add_argument("--all-work", action="store_true", help="copies, memsets and whole CUDA graphs too")
    compared.add_argument("--include-warmup", action="store_true", help="count the work of warm-up ranges too")
    compared.add_argument(
        "--top", type=positive, default=5, metavar="N", help="ranges and kernels shown (%(default)s)"
    )
    rules = parser.add_argument_group("what to fail on, with exit status 3")
    rules.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="RULE",
        help="such as 'step time > +5%% beyond spread', 'softmax > +5%%', 'data loading > +1ms', "
        "'phase:forward < -10%%' (several)",
    )
    rules.add_argument("--allow-missing", action="store_true", help="do not fail if B lacks the range of a rule")
    add_range_rules(parser)
    add_shape(parser)
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.compare") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    verdicts: list[Verdict] = []
    status = run(lambda: verdicts.extend(_compare(options)))
    violated = [
        verdict.rule.text + (GONE if verdict.only_in == "A" else "") for verdict in verdicts if verdict.violated
    ]
    if violated:
        print(f"violated: {'; '.join(violated)}", file=sys.stderr)  # noqa: T201
    return status or (RULE_VIOLATED if violated else 0)


def _compare(options: argparse.Namespace) -> list[Verdict]:
    from .changes import compare, named_apart
    from .rules import judge, parse
    from .tables import compared

    before, after = _sides(options)
    spare((*before, *after), options.output)
    if options.output and options.output.suffix.lower() in (".html", ".htm") and not options.format:
        page = shlex.join(["nvtx-kernels", "page", str(before[0]), str(after[0]), "-o", str(options.output)])
        raise UsageError(f"compare writes no page; use: {page}")
    detail = detail_of(options)
    rules = [parse(text) for text in options.fail_on]
    (a, steps_a), (b, steps_b) = (_read(paths, options) for paths in (before, after))
    a, b = named_apart((a, b), (before[0], after[0])) if len(before) == len(after) == 1 else (a, b)
    sides = (steps_a, steps_b)
    comparison = compare(a, b, per_step=options.per_step, all_work=options.all_work, sides=sides)
    verdicts = [judge(rule, comparison, allow_missing=options.allow_missing) for rule in rules]
    write(presented(compared(comparison, verdicts, detail, by=options.by), options), options.output)
    return verdicts


def _sides(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """Return the recordings of A and of B; raises UsageError for anything but two reports without --to."""
    if options.to:
        return options.reports, options.to
    if len(options.reports) != 2:
        count = len(options.reports)
        raise UsageError(
            f"{count} report{'s' * (count > 1)} of {'one side' if count == 1 else 'which side?'}: write "
            "`compare A B`, or `compare A1 A2 --to B1 B2` with several recordings of each."
        )
    return options.reports[:1], options.reports[1:]


def _read(paths: Sequence[Path], options: argparse.Namespace) -> tuple[Report, Side]:
    """Read the recordings of one side, or summaries, and return them as one report with the steps of each."""
    from .sides import joined, of_summary, recorded

    recordings = []
    for path in paths:
        if is_summary(path):
            recordings.append(of_summary(path))
        else:
            opened = opened_by(path, options)
            recordings.append((opened.whole, recorded(opened)))
    return joined(recordings, paths)
