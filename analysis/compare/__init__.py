"""Compare two reports: nvtx-kernels compare before.sqlite after.sqlite --fail-on 'softmax > +5%'."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import add_range_rules, add_shape, detail_of, opened_by, positive, presented, run, spare, write
from ..errors import UsageError
from ..support.arguments import CommandParser

if TYPE_CHECKING:
    from ..measures.steps import StepTimes
    from ..report import Report
    from .rules import Verdict

RULE_VIOLATED = 3
GONE = " (only in A; --allow-missing accepts it)"


def parser(prog: str = "python -m analysis.compare") -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog=prog, description=__doc__)
    parser.add_argument("a", type=Path, metavar="A", help="the report to compare with")
    parser.add_argument("b", type=Path, metavar="B", help="the report that may have changed")
    compared = parser.add_argument_group("what to compare")
    compared.add_argument(
        "--by", choices=("phase", "category", "range", "kernel"), help="one table instead of all four"
    )
    basis = compared.add_mutually_exclusive_group()
    basis.add_argument(
        "--per-step",
        dest="basis",
        action="store_const",
        const="step",
        help="per measured step, and refuse reports without (the default where both have steps)",
    )
    basis.add_argument(
        "--totals", dest="basis", action="store_const", const="total", help="whole reports as they are"
    )
    compared.add_argument("--all-work", action="store_true", help="copies, memsets and whole CUDA graphs too")
    compared.add_argument("--include-warmup", action="store_true", help="count the work of warm-up ranges too")
    compared.add_argument(
        "--top", type=positive, default=10, metavar="N", help="ranges and kernels shown (%(default)s)"
    )
    rules = parser.add_argument_group("what to fail on, with exit status 3")
    rules.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="RULE",
        help="such as 'softmax > +5%%', 'total > +0.3ms', 'phase:forward < -10%%', 'total > +2%% beyond spread' "
        "(several)",
    )
    rules.add_argument(
        "--allow-missing", action="store_true", help="do not fail where B no longer has what a rule names"
    )
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

    spare((options.a, options.b), options.output)
    if options.output and options.output.suffix.lower() in (".html", ".htm") and not options.format:
        page = shlex.join(["nvtx-kernels", "page", str(options.a), str(options.b), "-o", str(options.output)])
        raise UsageError(f"compare writes no page; use: {page}")
    detail = detail_of(options)
    rules = [parse(text) for text in options.fail_on]
    paths = (options.a, options.b)
    reports, times = zip(*(_with_steps(path, options) for path in paths), strict=True)
    a, b = named_apart(reports, paths)
    comparison = compare(a, b, basis=options.basis or "auto", all_work=options.all_work, times=times)
    verdicts = [judge(rule, comparison, allow_missing=options.allow_missing) for rule in rules]
    write(presented(compared(comparison, verdicts, detail, by=options.by), options), options.output)
    return verdicts


def _with_steps(path: Path, options: argparse.Namespace) -> tuple[Report, StepTimes]:
    """Read a report, or the summary of one, with the times of its steps."""
    if path.suffix == ".parquet":
        from ..summary.file import read_step_times, read_summary

        return read_summary(path), read_step_times(path)
    opened = opened_by(path, options)
    return opened.whole, opened.step_times
