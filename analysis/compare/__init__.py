"""Compare two reports: python -m analysis.compare before.sqlite after.sqlite --fail-on 'softmax > +5%'."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import (
    add_range_rules,
    add_shape,
    attributed,
    detail_of,
    positive,
    presented,
    run,
    spare,
    trace_of,
    write,
)

if TYPE_CHECKING:
    from ..report import Report
    from .rules import Verdict

RULE_VIOLATED = 3
GONE = " (only in A; --allow-missing accepts it)"


def parser(prog: str = "python -m analysis.compare") -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("a", type=Path, metavar="A", help="the report to compare with")
    parser.add_argument("b", type=Path, metavar="B", help="the report that may have changed")
    what = parser.add_argument_group("what to compare")
    what.add_argument(
        "--by", choices=("phase", "category", "range", "kernel"), help="one table instead of all four"
    )
    basis = what.add_mutually_exclusive_group()
    basis.add_argument(
        "--per-step", dest="basis", action="store_const", const="step",
        help="per measured step, and refuse reports without (the default where both have steps)",
    )  # fmt: skip
    basis.add_argument(
        "--totals", dest="basis", action="store_const", const="total", help="whole reports as they are"
    )
    what.add_argument("--all-work", action="store_true", help="copies, memsets and whole CUDA graphs too")
    what.add_argument("--include-warmup", action="store_true", help="count the work of warm-up ranges too")
    what.add_argument(
        "--top", type=positive, default=10, metavar="N", help="ranges and kernels shown (%(default)s)"
    )
    rules = parser.add_argument_group("what to fail on, with exit status 3")
    rules.add_argument(
        "--fail-on", action="append", default=[], metavar="RULE",
        help="such as 'softmax > +5%%', 'total > +0.3ms', 'phase:forward < -10%%' (several)",
    )  # fmt: skip
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
    violated = [one.rule.text + (GONE if one.only_in == "A" else "") for one in verdicts if one.violated]
    if violated:
        print(f"violated: {'; '.join(violated)}", file=sys.stderr)  # noqa: T201
    return status or (RULE_VIOLATED if violated else 0)


def _compare(options: argparse.Namespace) -> list[Verdict]:
    from . import changes as comparison
    from . import rules as thresholds
    from . import tables

    spare((options.a, options.b), options.output)
    detail = detail_of(options)
    rules = [thresholds.parse(text) for text in options.fail_on]
    a, b = _reports(options)
    compared = comparison.compare(a, b, basis=options.basis or "auto", all_work=options.all_work)
    verdicts = [thresholds.judge(rule, compared, allow_missing=options.allow_missing) for rule in rules]
    document = tables.compared(compared, verdicts, detail, by=options.by)
    write(presented(document, options), options.output)
    return verdicts


def _reports(options: argparse.Namespace) -> tuple[Report, Report]:
    """Read both reports; two files of one name are distinguished by their paths."""
    from .changes import named_apart

    paths = (options.a, options.b)
    a, b = named_apart([_report(path, options) for path in paths], paths)
    return a, b


def _report(path: Path, options: argparse.Namespace) -> Report:
    from ..summary.totals import summarize

    return summarize(attributed(trace_of(path), options), include_warm_up=options.include_warmup)
