"""Run a Python program without changes, and record the work of its training.

nvtx-kernels record train.py --epochs 1
nvtx-kernels record -o report.sqlite --modules -m package.train --epochs 1
"""

import argparse
import multiprocessing.process
import os
import runpy
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvtx_kernels.analysis.presenters.output import OTHER_SUFFIXES, SUFFIXES
from nvtx_kernels.analysis.support.arguments import CommandParser

import nvtx_kernels

from .cli import CommandError, ended

EPILOG = """\
ranges    forward, backward and optimizer, inside steps; a step ends with an update of the optimizer.
          Each model that the program calls has a range, and with --modules its submodules too.
          Ranges that the program opens itself (nvtx, torch.cuda.nvtx, record_function) are recorded too.
ranks     torchrun --no-python nvtx-kernels record train.py: each rank writes a report, report.rank0.sqlite, …
nsys      under nsys, nsys records: -c cudaProfilerApi captures the measured steps
exit      the program's own status; 1 if the report could not be written; 2 wrong usage; 130 after Ctrl-C
"""
PACKAGE = Path(nvtx_kernels.__file__).resolve().parent
#: Where this package's own frames are, and what runs a program, in tracebacks.
OUR_FILES = (f"{PACKAGE}{os.sep}", f"{Path(__file__).resolve().parent}{os.sep}", "<frozen runpy>")
# Processes that libraries start to load data or to compile, in which no program trains.
HELPERS = ("torch.utils.data", "torch._inductor", "multiprocessing", "concurrent", "joblib", "datasets")
NOT_RECORDED = (
    "record: {} process{} that the program started {} not recorded. Start them with "
    "`torchrun --no-python nvtx-kernels record {}`, or use nvtx_kernels.profile in the function that they run.\n"
)


def parser(prog: str = "python -m profiling.record") -> argparse.ArgumentParser:
    """Return the parser of the options before the program."""
    parser = CommandParser(
        prog,
        f"{prog} [options] (script.py | -m module) ...",
        __doc__,
        EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-o", "--output", default="report.sqlite", metavar="FILE", help="the report to write (%(default)s)")
    add("--open", action="store_true", help="afterwards, write the report's page and open it in the browser")
    add("--modules", action="store_true", help="open a range for every submodule of each model")
    add("--depth", type=int, metavar="N", help="with --modules, levels of submodules (all)")
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
    if not is_module and not Path(program[0]).is_file():
        command.error(f"{program[0]} is not a file; use -m for a module")
    if (suffix := Path(options.output).suffix.lower()) in (*SUFFIXES, *OTHER_SUFFIXES) and suffix != ".sqlite":
        command.error(f"a recording is an SQLite file, not {suffix}: -o report.sqlite")
    for word in misplaced(command, program, is_module):
        sys.stderr.write(f"record: {word} is given to {program[0]}; for record, write it before the program\n")
    return ended(command, lambda: _record(options, program, is_module))


def split(command: argparse.ArgumentParser, arguments: list[str]) -> tuple[list[str], list[str], bool]:
    """Split the command line into our options and the program's words; True if these begin with a module."""
    valued = {name for action in command._actions if action.nargs is None for name in action.option_strings}
    count = 0
    while count < len(arguments) and arguments[count].startswith("-") and arguments[count] != "-m":
        count += 2 if arguments[count] in valued else 1
    is_module = arguments[count : count + 1] == ["-m"]
    return arguments[:count], arguments[count + is_module :], is_module


def misplaced(command: argparse.ArgumentParser, program: Sequence[str], is_module: bool) -> list[str]:
    """Return the program's options that are called like ours, unless its script mentions them."""
    text = "" if is_module else Path(program[0]).read_text(errors="replace")
    ours = {name for action in command._actions for name in action.option_strings} - {"-h", "--help", "-m"}
    options = [word.partition("=")[0] for word in program[1:]]
    return [word for word in options if word in ours and word not in text]


def _record(options: argparse.Namespace, program: list[str], is_module: bool) -> int:
    from .recorder.process import Terminated
    from .recorder.trace_file import TraceFileError
    from .training import Profile

    try:
        profile = Profile(
            None,
            None,
            options.output,
            warmup=options.warmup,
            steps=options.steps,
            depth=options.depth if options.modules else 0,
            flops=options.flops,
            memory=options.memory,
            lines=not options.no_lines,
            every_model=True,
        )
    except ValueError as error:
        raise CommandError(str(error)) from error
    try:
        with _counting_processes() as processes, profile:
            status = status_of(program, is_module=is_module)
    except TraceFileError as error:
        raise CommandError(str(error)) from error
    except Terminated:
        status = 128 + signal.SIGTERM
    except KeyboardInterrupt:
        sys.stderr.write(f"record: {program[0]} was interrupted\n")
        status = 130
    except Exception as error:
        if not print_without_ours(error):
            raise
        status = 1
    if processes:
        es, were = ("", "was") if len(processes) == 1 else ("es", "were")
        sys.stderr.write(NOT_RECORDED.format(len(processes), es, were, shlex.quote(program[0])))
    if options.open and profile.path.exists():
        _open_page(profile.path)
    return status


def status_of(program: list[str], *, is_module: bool) -> int:
    """Run the program as the main one, and return its exit status."""
    from .recorder.process import Terminated

    before = sys.argv, list(sys.path)
    sys.argv = program
    sys.path.insert(0, "" if is_module else str(Path(program[0]).resolve().parent))
    run: Any = runpy.run_module if is_module else runpy.run_path
    try:
        run(program[0], run_name="__main__", **({"alter_sys": True} if is_module else {}))
    except Terminated:
        raise
    except SystemExit as ending:
        if ending.code is not None and not isinstance(ending.code, int):
            sys.stderr.write(f"{ending.code}\n")
            return 1
        return ending.code or 0
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
    return 0


@contextmanager
def _counting_processes() -> Iterator[list[str]]:
    """Yield a list of the functions that the program runs in processes of its own."""
    from .annotate.replacing import replaced

    process: Any = multiprocessing.process.BaseProcess
    start, functions = process.start, []

    def counted(self: Any) -> None:
        module = getattr(self._target or type(self).run, "__module__", "") or ""
        if module == "torch.multiprocessing.spawn" or not module.startswith(HELPERS):
            functions.append(module)
        start(self)

    with replaced((process, "start", counted)):
        yield functions


def print_without_ours(error: BaseException) -> bool:
    """Print a traceback of the program's frames; return False for an error of our own."""
    report = traceback.TracebackException.from_exception(error)
    chain: list[traceback.TracebackException | None] = [report]
    for link in chain:
        if link is not None:
            frames = [frame for frame in link.stack if not frame.filename.startswith(OUR_FILES)]
            if link is report and (not frames or report.stack[-1].filename.startswith(OUR_FILES[:2])):
                return False
            link.stack[:] = frames
            chain += [link.__cause__, link.__context__]
    sys.stderr.writelines(report.format())
    return True


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
