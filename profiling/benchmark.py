"""Measure every combination of settings, each in its own process, or a program as it is, and print a table.

python -m profiling.benchmark --sizes small,medium --modes forward,train --dtypes fp32,bf16
python -m profiling.benchmark --warmup 0,1,5 --steps 10 train.py --batch-size 8
python -m profiling.benchmark --study warmup --sizes small
python -m profiling.benchmark --results benchmark.jsonl --by dtype --format markdown --plot times.png
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cli import (
    CommandParser,
    Removed,
    add_longest,
    add_output,
    add_running,
    ended,
    list_of,
    times,
)
from .study.studies import BY, COLUMNS, STUDIES, add_lists

DESCRIPTION = "Time every combination of the course model's settings, or your own program."
#: The options that a program can have; all others are settings of the course's model.
OF_PROGRAMS = ("program", "warmup", "steps", "by", "columns", "phases", "format", "output", "plot", "help")
EPILOG = """\
attention  without a list: attention alone; see benchmark --attention --help
exit       0 done, also with out-of-memory rows; 1 a configuration failed, or a file could not be used;
           2 wrong usage; 130 interrupted
"""


def parser(prog: str = "python -m profiling.benchmark") -> argparse.ArgumentParser:
    """Return the options of the command."""
    options = CommandParser(prog, None, DESCRIPTION, EPILOG)
    add_lists(options, "--preset", "--model-preset")
    add = options.add_argument
    add("--captures", metavar="LIST", type=list_of(str), help="none, bare, recorder, nsys-light, ...")
    add("--repeats", type=times, default=1, metavar="N", help="measure everything N times, and pool")
    add("--study", choices=STUDIES, default="times", metavar="NAME", help=f"{', '.join(STUDIES)} (default times)")
    add("--against", action=Removed, use="nvtx-kernels try --levers none --against '{}' before.py")
    add("program", nargs=argparse.REMAINDER, help="your own script and its arguments: time its phases")
    add_running(options, "benchmark.jsonl")
    add_longest(options)
    showing = options.add_argument_group("showing")
    add = showing.add_argument
    add("--by", choices=BY, metavar="NAME", help=", ".join(BY))
    add("--columns", metavar="LIST", type=list_of(str), help=f"groups of columns: {', '.join(COLUMNS)}")
    add("--phases", metavar="LIST", type=list_of(str), help="only these, as forward,step")
    add_output(showing)
    add("--steps-listing", action="store_true", help="print every step's time before the table")
    add("--plot", metavar="FILE", type=Path, help="draw mean times with their spread (png, svg, pdf)")
    return options


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.benchmark") -> int:
    """Run the command and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--attention" in words:
        place = words.index("--attention")
        if words[place + 1 : place + 2] == [] or words[place + 1].startswith("-"):  # alone, not a list of kinds
            from .attention import main as of_attention

            return of_attention([*words[:place], *words[place + 1 :]], prog=f"{prog} --attention")
    command = parser(prog)
    options = vars(command.parse_args(words))
    for group in options["columns"] or ():
        if group not in COLUMNS:
            command.error(f"columns must be of {', '.join(COLUMNS)}, not {group}")
    if options["program"]:
        script = options["program"][0]
        if not Path(script).is_file():
            command.error(f"{script} is not a file: write the script to time, and before it the options")
        for action in command._actions:
            if not action.option_strings or options.get(action.dest, action.default) == action.default:
                continue
            if action.dest not in OF_PROGRAMS:
                command.error(f"{action.option_strings[0]} is of the course's model, and {script} has its own")
        if len(options["steps"] or ()) > 1:
            command.error("--steps is one number with a program, such as --steps 10")
        return ended(command, lambda: _time_program(options))

    def work() -> int:
        # Pandas and PyTorch take seconds to import.
        from .study import sweeps

        return sweeps.benchmark(options)

    return ended(command, work, goes_on=True)


def _time_program(options: Mapping[str, Any]) -> int:
    from .program import report, status_of
    from .study.program_times import show_times

    raised: list[Exception] = []

    def run() -> int:
        try:
            return status_of(options["program"])
        except Exception as error:
            raised.append(error)
            raise

    try:
        return show_times(options, run)
    except Exception as error:
        if error not in raised:
            raise
        return report(error)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
