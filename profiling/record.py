"""Run a Python program without changes, and record the work of its training.

nvtx-kernels record train.py --epochs 1
nvtx-kernels record -o report.sqlite -m package.train --epochs 1
"""

import argparse
import multiprocessing.process
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from nvtx_kernels.analysis.presenters.output import OTHER_SUFFIXES, SUFFIXES
from nvtx_kernels.analysis.support.arguments import CommandParser

import nvtx_kernels

from .cli import CommandError, ended
from .harmless import forgive, say
from .program import end_with, run

EPILOG = """\
ranges    forward, backward and optimizer, inside steps; a step ends with an update of the optimizer.
          Each model that the program calls has a range, and so have its submodules.
          Ranges that the program opens itself (nvtx, torch.cuda.nvtx, record_function) are recorded too.
ranks     torchrun --no-python nvtx-kernels record train.py: each rank writes a report, report.rank0.sqlite, …
nsys      under nsys, nsys records: -c cudaProfilerApi captures the measured steps
file      an earlier recording is replaced, unless this one has less: that is written to report-2.sqlite
exit      as the program ends without recording; 1 if the report could not be written; 2 wrong usage
"""
PACKAGE = Path(nvtx_kernels.__file__).resolve().parent
# Processes that libraries start to load data or to compile, in which no program trains.
HELPERS = ("torch.utils.data", "torch._inductor", "multiprocessing", "concurrent", "joblib", "datasets")
NOT_RECORDED = (
    "record: {} process{} that the program started {} not recorded. Start them with "
    "`torchrun --no-python nvtx-kernels record {}`, or use nvtx_kernels.profile in the function that they run."
)
MISPLACED = "record: {} is given to {}. If it is for record, write: nvtx-kernels record {}"


def parser(prog: str = "python -m profiling.record") -> argparse.ArgumentParser:
    """Return the parser of the options before the program."""
    parser = CommandParser(
        prog,
        f"{prog} [options] (script.py | -m module) ...",
        __doc__,
        EPILOG,
    )
    add = parser.add_argument
    add("-o", "--output", default="report.sqlite", metavar="FILE", help="the report to write (%(default)s)")
    add("--open", action="store_true", help="afterwards, write the report's page and open it in the browser")
    add("--no-modules", action="store_true", help="open a range for each model, and none for its submodules")
    add("--modules", action="store_true", help=argparse.SUPPRESS)  # of earlier versions, where it was no default
    add("--depth", type=int, metavar="N", help="levels of submodules that have ranges (all)")
    add("--flops", action="store_true", help="count FLOPs and bytes in the last step of warm-up")
    add("--memory", action="store_true", help="record what each range allocates and frees")
    add("--no-lines", action="store_true", help="trace no step for the lines of code that make calls")
    add("--warmup", type=int, metavar="N", help="steps before measuring (3; of fewer than six steps, one)")
    add("--steps", type=_steps, default=10, metavar="N", help="steps to measure, or `all` (%(default)s)")
    add("-m", dest="module", metavar="MODULE", help="run a module instead of a script, as python -m")
    add("program", nargs="?", help="the script, and what follows it its arguments")
    return parser


def _steps(text: str) -> int | None:
    return None if text == "all" else int(text)


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.record") -> int:
    """Run the program and return its exit status."""
    command = parser(prog)
    ours, program, is_module = split(command, list(sys.argv[1:] if arguments is None else arguments))
    options = command.parse_args(ours)
    if not program:
        command.error("name a script, or a module after -m")
    if not is_module and not Path(program[0]).exists():
        command.error(f"{program[0]} is not a file; use -m for a module")
    if (suffix := Path(options.output).suffix.lower()) in (*SUFFIXES, *OTHER_SUFFIXES) and suffix != ".sqlite":
        command.error(f"a recording is an SQLite file, not {suffix}: -o report.sqlite")
    words = misplaced(command, program, is_module)
    if words:
        others = [word for word in program[1:] if word not in words]
        right = shlex.join([*ours, *words, *(["-m"] if is_module else []), program[0], *others])
        say(MISPLACED.format(shlex.join(words), program[0], right))
    is_kept = any(word.startswith(("-o", "--output")) for word in words)
    raised: list[BaseException] = []
    result = ended(command, lambda: _record(options, program, raised, is_module=is_module, is_kept=is_kept))
    for error in raised:
        if not isinstance(error, SystemExit):
            end_with(error)
        if not result:
            raise error
    return result


def split(command: argparse.ArgumentParser, arguments: list[str]) -> tuple[list[str], list[str], bool]:
    """Split the command line into our options and the program's words; True if these begin with a module."""
    valued = {name for action in command._actions if action.nargs is None for name in action.option_strings}
    count = 0
    while count < len(arguments) and arguments[count].startswith("-") and arguments[count] != "-m":
        count += 2 if arguments[count] in valued else 1
    is_module = arguments[count : count + 1] == ["-m"]
    return arguments[:count], arguments[count + is_module :], is_module


def misplaced(command: argparse.ArgumentParser, program: Sequence[str], is_module: bool) -> list[str]:
    """Return the program's options that are called like ours, with values, unless its script mentions them."""
    path = Path(program[0])
    text = path.read_text(errors="replace") if not is_module and path.is_file() else ""
    actions = {name: action for action in command._actions for name in action.option_strings}
    words = []
    for word, value in pairwise([*program[1:], ""]):
        name, is_joined, _ = word.partition("=")
        action = actions.get(name)
        if action is None or name in ("-h", "--help", "-m") or name in text:
            continue
        words += [word, value] if action.nargs is None and not is_joined and value else [word]
    return words


def _record(
    options: argparse.Namespace, program: list[str], raised: list[BaseException], *, is_module: bool, is_kept: bool
) -> int:
    """Record the program, and return 0; note what it raised. An earlier report that `is_kept` is not replaced."""
    from .recorder.trace_file import TraceFileError, free_path
    from .training import Profile

    output = Path(options.output)
    try:
        profile = Profile(
            None,
            None,
            free_path(output) if is_kept else output,
            warmup=options.warmup,
            steps=options.steps,
            depth=0 if options.no_modules else options.depth,
            flops=options.flops,
            memory=options.memory,
            lines=not options.no_lines,
            every_model=True,
        )
    except ValueError as error:
        raise CommandError(str(error)) from error
    process = os.getpid()  # the program may fork others, which come here too
    try:
        with _counting_processes() as processes, profile:
            try:
                run(program, is_module=is_module)
            except SystemExit as ending:
                raised.append(ending)
    except TraceFileError as error:
        raise CommandError(str(error)) from error
    except (Exception, KeyboardInterrupt) as error:
        raised.append(error)
    if processes and process == os.getpid():
        es, were = ("", "was") if len(processes) == 1 else ("es", "were")
        say(NOT_RECORDED.format(len(processes), es, were, shlex.quote(program[0])))
    if options.open and profile.path.exists():
        _open_page(profile.path)
    return 0


@contextmanager
def _counting_processes() -> Iterator[list[str]]:
    """Yield a list of the functions that the program runs in processes of its own."""
    from .annotate.replacing import replaced

    process: Any = multiprocessing.process.BaseProcess
    start, functions = process.start, []

    def counted(self: Any) -> None:
        try:
            module = getattr(self._target or type(self).run, "__module__", "") or ""
            if module == "torch.multiprocessing.spawn" or not module.startswith(HELPERS):
                functions.append(module)
        except Exception:
            forgive("processes that the program starts are not counted")
        start(self)

    with replaced((process, "start", counted)):
        yield functions


def _open_page(report: Path) -> None:
    """Write the page next to the report, by the command, and open it."""
    import webbrowser

    page = report.with_suffix(".html")
    words = [sys.executable, "-m", "nvtx_kernels", "page", str(report), "-o", str(page)]
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if subprocess.run(words, env=environment).returncode == 0:
        webbrowser.open(page.absolute().as_uri())


if __name__ == "__main__":
    sys.exit(main())
