"""Profile the kernels of some ranges with ncu, and read its counters: python -m analysis.ncu report.sqlite.

nvtx-kernels ncu report.sqlite --range 'backward > softmax' -- python train.py
nvtx-kernels ncu report.sqlite --range 'backward > softmax' --run -- python train.py
nvtx-kernels ncu report.sqlite --range 'backward > softmax' --read counters.csv
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import (
    add_output,
    add_range_rules,
    attributed,
    detail_of,
    positive,
    presented,
    run,
    spare,
    trace_of,
    write,
)
from ..errors import UsageError
from ..vocabulary import PHASES

if TYPE_CHECKING:
    from .choosing import Filter
    from .wanted import Kernels

EPILOG = """\
without --run or --read   print ncu's command line, and how many kernels of the report its filter selects
--run                     run it: the program launches its kernels again, each of them several times (minutes)
docs/counters.md          what ncu's filters can tell apart, and how its launches are joined with the report's
"""


def parser(prog: str = "python -m analysis.ncu") -> argparse.ArgumentParser:
    """Return the parser of the words before `--`, which the program follows."""
    parser = argparse.ArgumentParser(
        prog=prog, usage=f"{prog} report --range PATTERN [options] [-- program ...]", description=__doc__,
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("report", type=Path, help="an nsys export, a .nsys-rep, a recording, or a PyTorch trace")
    what = parser.add_argument_group("which kernels")
    what.add_argument(
        "--range", default="", metavar="PATTERN", help="those in ranges such as 'backward > softmax'"
    )
    what.add_argument(
        "--phase", action="append", default=[], choices=PHASES,
        help="those of this phase (several)",
    )  # fmt: skip
    what.add_argument("--kernel", default="", metavar="NAME", help="those whose name holds this")
    what.add_argument("--include-warmup", action="store_true", help="those in warm-up ranges too")
    how = parser.add_argument_group("how ncu runs, and what is read")
    how.add_argument(
        "--metrics", default="", metavar="NAME,…", help="what ncu collects, instead of the usual metrics"
    )
    what_to_do = how.add_mutually_exclusive_group()
    what_to_do.add_argument(
        "--run", action="store_true", help="run ncu on the program after --, and read what it writes"
    )
    what_to_do.add_argument("--read", type=Path, metavar="FILE", help="read what ncu wrote with --csv")
    how.add_argument(
        "--counters",
        type=Path,
        default=Path("counters.csv"),
        metavar="FILE",
        help="where ncu writes (%(default)s)",
    )
    add_range_rules(parser)
    shape = parser.add_argument_group("how to show counters")
    add_output(shape)
    shape.add_argument("--top", type=positive, metavar="N", help="rows (10)")
    shape.add_argument("--full-names", action="store_true", help="kernel names in full")
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.ncu") -> int:
    """Run the command; return its exit status."""
    ours, program = _split(list(sys.argv[1:] if arguments is None else arguments))
    options = parser(prog).parse_args(ours)
    return run(lambda: _answer(options, program), starts_programs=True)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line at its first `--`, which the program follows."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _answer(options: argparse.Namespace, program: Sequence[str]) -> None:
    _check(options, program)
    kernels = _kernels(options)
    if options.read:
        write(_counters(kernels, options.read, options), options.output)
        return
    from .choosing import choose

    chosen = choose(kernels)
    if options.run:
        _run(chosen, kernels, options, program)
    else:
        write(_printed(chosen, options, program), options.output)


def _check(options: argparse.Namespace, program: Sequence[str]) -> None:
    if not (options.range or options.phase or options.kernel):
        raise UsageError("Name the kernels to profile: --range 'backward > softmax', --phase or --kernel.")
    if options.run and not program:
        raise UsageError("--run needs the program, after --: … --run -- python train.py")
    if options.read and program:
        raise UsageError("--read reads what ncu wrote; the program after -- is for --run.")
    spare([options.report], options.output)
    spare([options.report], None if options.read else options.counters)


def _kernels(options: argparse.Namespace) -> Kernels:
    from .wanted import Asked, kernels

    attribution = attributed(trace_of(options.report), options)
    asked = Asked(options.range, tuple(options.phase), options.kernel, options.include_warmup)
    return kernels(attribution, asked)


def _printed(chosen: Filter, options: argparse.Namespace, program: Sequence[str]) -> str:
    from .tool import as_typed, command

    words = command("ncu", chosen, options.counters, _metrics(options), program)
    return "\n".join([as_typed(words), "", *said(chosen), ""])


def _metrics(options: argparse.Namespace) -> list[str]:
    return [name.strip() for name in options.metrics.split(",") if name.strip()]


def said(chosen: Filter) -> list[str]:
    """Report how close a filter comes to the wanted kernels, a comment of the shell's a sentence."""
    if chosen.exact and chosen.includes:
        found = f"By the report, it profiles exactly these {chosen.wanted:,} kernels."
    elif chosen.includes:
        found = (
            f"No filter selects exactly these {chosen.wanted:,} kernels: {chosen.surplus:,} others are launched "
            "under the same ranges and names. This is the nearest."
        )
    else:
        found = (
            f"No NVTX filter selects these {chosen.wanted:,} kernels, for at some of their launches no range is "
            f"open that a filter can name: this takes them by name and order, with {chosen.surplus:,} others, "
            "counted from where the report begins."
        )
    process = "Push/pop ranges count per process here, as PyTorch launches backward from autograd's own thread."
    return [f"# {line}" for line in (found, process) if line == found or chosen.scope == "process"]


def _run(chosen: Filter, kernels: Kernels, options: argparse.Namespace, program: Sequence[str]) -> None:
    from .tool import command, find_ncu, run_ncu

    words = command(find_ncu(), chosen, options.counters, _metrics(options), program)
    sys.stderr.write("\n".join(said(chosen)) + "\n")
    run_ncu(words, options.counters)
    write(_counters(kernels, options.counters, options), options.output)


def _counters(kernels: Kernels, file: Path, options: argparse.Namespace) -> str | bytes:
    from ..attribution.places import measured_steps
    from .counters import read
    from .joining import join
    from .tables import document

    steps = len(measured_steps(kernels.attribution, include_warm_up=options.include_warmup))
    return presented(document(kernels, join(kernels, read(file), steps), file, detail_of(options)), options)
