"""Compare two reports: python -m analysis.compare before.sqlite after.sqlite --fail-on 'softmax > +5%'."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.command import add_range_rules, attributed, positive, presented, run, spare, write
from analysis.presenters import PRESENTERS

if TYPE_CHECKING:
    from analysis.comparison import Comparison
    from analysis.report import Report
    from analysis.thresholds import Verdict

FORMATS = tuple(dict.fromkeys((*PRESENTERS, "json")))
RULE_VIOLATED = 3


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="python -m analysis.compare", description=__doc__)
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
    add_range_rules(parser)
    shape = parser.add_argument_group("how to show it")
    shape.add_argument("--format", choices=FORMATS, default="table")
    shape.add_argument("--full-names", action="store_true", help="kernel names in full")
    shape.add_argument("--every-index", action="store_true", help="keep `layer 0`, `layer 1`, … apart in tables")
    shape.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to a file instead of the screen")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(arguments)
    verdicts: list[Verdict] = []
    status = run(lambda: verdicts.extend(_compare(options)))
    violated = [verdict.rule.text for verdict in verdicts if verdict.violated]
    if violated:
        print(f"violated: {'; '.join(violated)}", file=sys.stderr)  # noqa: T201
    return status or (RULE_VIOLATED if violated else 0)


def _compare(options: argparse.Namespace) -> list[Verdict]:
    from analysis import comparison, thresholds

    spare((options.a, options.b), options.output)
    rules = [thresholds.parse(text) for text in options.fail_on]
    a, b = _reports(options)
    compared = comparison.compare(a, b, basis=options.basis or "auto", all_work=options.all_work)
    verdicts = [thresholds.judge(rule, compared) for rule in rules]
    write(_presented(compared, verdicts, options), options.output)
    return verdicts


def _reports(options: argparse.Namespace) -> tuple[Report, Report]:
    """Read both reports; two files of one name are told apart by their paths."""
    from analysis.comparison import named_apart

    paths = (options.a, options.b)
    a, b = named_apart([_report(path, options) for path in paths], paths)
    return a, b


def _report(path: Path, options: argparse.Namespace) -> Report:
    from analysis.summary import summarize

    return summarize(attributed(path, options), include_warm_up=options.include_warmup)


def _presented(comparison: Comparison, verdicts: list[Verdict], options: argparse.Namespace) -> str:
    from analysis.presenters import as_comparison_json, presenter
    from analysis.views.comparison import compared, everything_compared

    if options.format == "json":
        return as_comparison_json.present(comparison, verdicts)
    if options.format == "csv":
        return presenter("csv").present(everything_compared(comparison, verdicts, by=options.by))
    document = compared(
        comparison, verdicts, by=options.by, top=options.top, full_names=options.full_names,
        every_index=options.every_index,
    )  # fmt: skip
    return presented(document, options)


if __name__ == "__main__":
    sys.exit(main())
