"""Run a Python program without changes, and record the work of its training.

nvtx-kernels record train.py --epochs 1
nvtx-kernels record -o report.sqlite --modules -m package.train --epochs 1
"""

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .cli import CommandError, ended

EPILOG = """\
ranges    warmup > step > forward, backward, optimizer, then measure > step > ...: a step is one step of the first
          optimizer that steps. Each model that the program calls has a range; with --modules its submodules, too.
          Ranges that the program opens itself (nvtx, torch.cuda.nvtx, record_function) are recorded as they are.
nsys      under nsys nothing is recorded here: -c cudaProfilerApi captures the measured steps
exit      the program's own status; 1 if the report could not be written; 2 wrong usage
"""


def parser(prog: str = "python -m profiling.record") -> argparse.ArgumentParser:
    """Return the parser of the options before the program."""
    this = argparse.ArgumentParser(
        prog, f"{prog} [options] (script.py | -m module) ...", __doc__, EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    this.add_argument(
        "-o", "--output", default="report.sqlite", metavar="FILE", help="the report to write (%(default)s)"
    )
    this.add_argument("--modules", action="store_true", help="open a range for every submodule of each model")
    this.add_argument("--depth", type=int, metavar="N", help="with --modules, levels of submodules (all)")
    this.add_argument("--flops", action="store_true", help="count FLOPs and bytes in the last step of warm-up")
    this.add_argument("--memory", action="store_true", help="record what each range allocates and frees")
    this.add_argument("--warmup", type=int, default=1, metavar="N", help="steps before measuring (%(default)s)")
    this.add_argument("--steps", type=int, metavar="N", help="steps to measure (all that follow)")
    this.add_argument("-m", dest="module", metavar="MODULE", help="run a module instead of a script, as python -m")
    this.add_argument("program", nargs="?", help="the script, and what follows it its arguments")
    return this


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.record") -> int:
    """Run the program and return its exit status."""
    this = parser(prog)
    ours, program, is_module = split(this, list(sys.argv[1:] if arguments is None else arguments))
    asked = this.parse_args(ours)
    if not program:
        this.error("name a script, or a module after -m")
    if not is_module and not Path(program[0]).is_file():
        this.error(f"{program[0]} is not a file; use -m for a module")
    return ended(this, lambda: _record(asked, program, is_module))


def split(this: argparse.ArgumentParser, arguments: list[str]) -> tuple[list[str], list[str], bool]:
    """Split the command line into our options and the program's words; True if these begin with a module."""
    valued = {name for action in this._actions if action.nargs is None for name in action.option_strings}
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "-m":
        at += 2 if arguments[at] in valued else 1
    is_module = arguments[at : at + 1] == ["-m"]
    return arguments[:at], arguments[at + is_module :], is_module


def _record(asked: argparse.Namespace, program: list[str], is_module: bool) -> int:
    from .recorder.trace_file import TraceFileError
    from .training import Profile

    try:
        profile = Profile(
            None, None, asked.output, warmup=asked.warmup, steps=asked.steps,
            depth=asked.depth if asked.modules else 0, flops=asked.flops, memory=asked.memory,
            every_model=True,
        )  # fmt: skip
    except ValueError as error:
        raise CommandError(str(error)) from error
    try:
        with profile:
            return _status(program, is_module)
    except TraceFileError as error:
        raise CommandError(str(error)) from error


def _status(program: list[str], is_module: bool) -> int:
    """Run the program as the main one, and return its exit status."""
    before = sys.argv, list(sys.path)
    sys.argv = program
    sys.path.insert(0, "" if is_module else str(Path(program[0]).resolve().parent))
    run: Any = runpy.run_module if is_module else runpy.run_path
    try:
        run(program[0], run_name="__main__", **({"alter_sys": True} if is_module else {}))
    except SystemExit as ending:
        if ending.code is not None and not isinstance(ending.code, int):
            sys.stderr.write(f"{ending.code}\n")
            return 1
        return ending.code or 0
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
    return 0


if __name__ == "__main__":
    sys.exit(main())
