"""Profile the kernels of some ranges with Nsight Compute (ncu), and read its counters.

nvtx-kernels ncu report.sqlite --range 'backward > softmax' -- python train.py         # print ncu's command line
nvtx-kernels ncu report.sqlite --range 'backward > softmax' --run -- python train.py   # run it, and show counters
nvtx-kernels ncu report.sqlite --range 'backward > softmax' --read counters.csv        # show those of a file
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
    write,
)
from ..errors import UsageError
from ..support.arguments import CommandParser
from ..vocabulary import PHASES

if TYPE_CHECKING:
    from .filters import Filter

EPILOG = """\
without --run or --read   print ncu's command line, and how many kernels of the report its filter selects
--run                     run it: the program launches each of these kernels several times (minutes)
"""


def parser(prog: str = "python -m analysis.ncu") -> argparse.ArgumentParser:
    """Return the parser of the words before `--`, which the program follows."""
    parser = CommandParser(
        prog,
        f"{prog} report --range PATTERN [options] [-- program ...]",
        __doc__,
        EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("report", type=Path, help="an nsys export, a .nsys-rep, a recording, or a PyTorch trace")
    add = parser.add_argument_group("which kernels").add_argument
    add(
        "--range", default="", metavar="PATTERN", help="kernels in these ranges, such as 'backward > layers.3.mlp'"
    )
    add("--phase", action="append", default=[], choices=PHASES, help="kernels of this phase (several)")
    add("--kernel", default="", metavar="NAME", help="kernels whose name contains this")
    add("--include-warmup", action="store_true", help="kernels in warm-up ranges too")
    group = parser.add_argument_group("how ncu runs, and what is read")
    group.add_argument(
        "--metrics", default="", metavar="NAME,…", help="metrics to collect, in place of the usual ones"
    )
    add = group.add_mutually_exclusive_group().add_argument
    add("--run", action="store_true", help="run ncu on the program after --, and show the counters")
    add("--read", type=Path, metavar="FILE", help="show the counters of a file that ncu wrote with --csv")
    counters = Path("counters.csv")
    group.add_argument("--counters", type=Path, default=counters, metavar="FILE", help="ncu's file (%(default)s)")
    add_range_rules(parser)
    shape = parser.add_argument_group("how to show counters")
    add_output(shape)
    shape.add_argument("--top", type=positive, metavar="N", help="rows (10)")
    shape.add_argument("--full-names", action="store_true", help="kernel names in full")
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.ncu") -> int:
    """Run the command; return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    options = parser(prog).parse_args(words[:end])
    return run(lambda: _answer(options, words[end + 1 :]), starts_programs=True)


def _answer(options: argparse.Namespace, program: Sequence[str]) -> None:
    from .tool import as_typed, command, find_ncu, run_ncu
    from .wanted import Asked, kernels

    if not (options.range or options.phase or options.kernel):
        raise UsageError("Name the kernels to profile: --range 'backward > softmax', --phase or --kernel.")
    if options.run and not program:
        raise UsageError("--run needs the program, after --: … --run -- python train.py")
    if options.read and program:
        raise UsageError("--read reads what ncu wrote; the program after -- is for --run.")
    spare([options.report], options.output)
    spare([options.report], None if options.read else options.counters)
    request = Asked(options.range, tuple(options.phase), options.kernel, options.include_warmup)
    requested = kernels(attributed(options.report, options), request)
    if not options.read:
        from .filters import choose

        chosen = choose(requested)
        metrics = [name.strip() for name in options.metrics.split(",") if name.strip()]
        ncu = find_ncu() if options.run else "ncu"
        words = command(ncu, chosen, options.counters, metrics, program)
        if not options.run:
            write("\n".join([as_typed(words), "", *remarks(chosen), ""]), options.output)
            return
        sys.stderr.write("\n".join(remarks(chosen)) + "\n")
        run_ncu(words, options.counters)
    from ..attribution.steps import measured_steps
    from .counters import read
    from .joining import join
    from .tables import document

    file = options.read or options.counters
    steps = len(measured_steps(requested.attribution, include_warm_up=options.include_warmup))
    joined = join(requested, read(file), steps)
    write(presented(document(requested, joined, file, detail_of(options)), options), options.output)


def remarks(chosen: Filter) -> list[str]:
    """Return how close a filter comes to the wanted kernels, a comment of the shell's a sentence."""
    if chosen.exact and chosen.includes:
        lines = [f"By the report, it profiles exactly these {chosen.requested:,} kernels."]
    elif chosen.includes:
        lines = [
            f"By the report, it profiles these {chosen.requested:,} kernels and {chosen.surplus:,} others, "
            "launched under the same ranges and names."
        ]
    else:
        lines = [
            f"No NVTX filter selects these {chosen.requested:,} kernels, for at some of their launches no range "
            f"is open that a filter can name: this takes them by name and order, with {chosen.surplus:,} others, "
            "counted from where the report begins."
        ]
    if chosen.scope == "process":
        lines.append(
            "Push/pop ranges count per process here, as PyTorch launches backward from autograd's own thread."
        )
    return [f"# {line}" for line in lines]
