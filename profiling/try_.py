"""Apply known changes to a program, one at a time, and measure what each saves.

nvtx-kernels try train.py --epochs 1
nvtx-kernels try --levers tf32,fused --against 'after.py --lr 1' train.py
nvtx-kernels try torchrun --nproc-per-node 2 train.py
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nvtx_kernels.analysis.support.arguments import did_you_mean

from .cli import CommandError, CommandParser, UsageError, add_output, ended, list_of, times
from .record import split

if TYPE_CHECKING:
    from .trying.order import Choice, Program
    from .trying.overlay import Place

NO_LEVER = "none"
GIB, WIDTH = 1 << 30, 80
EPILOG = """\
how       the program runs about twenty times, 30 to 100 steps each: recorded once, then with and without each
          change. Losses and weights are compared. The table says what to write
levers    {levers}
harmless  files that it writes to its folder and caches do not stay, and it may not connect. It is stopped after
          its last step: no `finally`, no atexit. Needs Linux with user namespaces; without, --in-place
exit      0 measured; 1 it cannot be tried; 2 wrong usage; 130 interrupted
"""
#: Programs that start training processes without being one.
STARTERS = ("accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "python", "python3", "horovodrun")
IS_OVERLAY = (
    "try: {program} runs about twenty times. Nothing that it writes to its folder, temporary files and caches "
    "stays; elsewhere it may not write{allowed}.{network}"
)
IS_IN_PLACE = (
    "try: {program} runs about twenty times, in place: what it writes to its folder, temporary files and caches "
    "stays. Python may not write elsewhere{allowed}; what C++ code and commands write is not noticed.{network}"
)
NO_NETWORK = " Python may not connect to other machines; what C++ code and commands do is not noticed."
NO_OVERLAY = (
    "the folder cannot be protected here ({}): --in-place runs the program where it is, and what it writes to its "
    "folder stays"
)
NO_RECORDING = "the program could not be recorded"
NO_PREDICTION = "Nothing was predicted: {}."
INTERRUPTED = "Interrupted: this was measured until then."
#: After this time a second Ctrl-C is another one, s: `timeout` sends two.
AGAIN_S = 1.0
STARTS_RANKS = (
    "{} starts processes of its own, where no change can be applied: name the script, or torchrun with its "
    "options before the script"
)
#: Variables that say where libraries keep what they have downloaded or compiled; and where most do.
CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "MPLCONFIGDIR")
USUAL_CACHES = ("~/.cache", "~/.triton")


def parser(prog: str = "python -m profiling.try_") -> argparse.ArgumentParser:
    """Return the parser of the options before the program."""
    options = CommandParser(
        prog,
        f"{prog} [options] ([torchrun …] script.py | -m module) ...",
        __doc__,
        EPILOG.format(levers="tf32, fused, compile, workers, …: docs/try.md has the list"),
    )
    add = options.add_argument
    add("--levers", metavar="LIST", type=list_of(str), help="try only these, or `none`")
    add("--against", metavar="PROGRAM", help="also measure another script with its arguments, as 'after.py'")
    add("--report", type=Path, metavar="FILE", help="take the predictions from this recording, and make none")
    add("--keep", type=Path, metavar="FOLDER", help="keep the recording, and what was measured of it, here")
    add("--steps", type=times, default=20, metavar="N", help="steps that a process counts (%(default)s)")
    add("--rounds", type=times, default=4, metavar="N", help="how often a change is measured (%(default)s)")
    add("--budget", type=float, default=300.0, metavar="S", help="end after about S seconds (%(default)s)")
    add("-m", dest="module", metavar="MODULE", help="run a module instead of a script, as python -m")
    add("program", nargs="?", help="the script, and what follows it its arguments")
    add_output(options)
    add = options.add_argument_group("what the program may do").add_argument
    add("--allow-writes", action="append", type=Path, default=[], metavar="PATH", help="write to this folder")
    add("--allow-network", action="store_true", help="connect to other machines")
    add("--in-place", action="store_true", help="run without an overlay: files that it writes stay")
    add("--scratch", type=float, default=2.0, metavar="GIB", help="memory for what it writes (%(default)s)")
    return options


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.try_") -> int:
    """Run the command and return its exit status."""
    command = parser(prog)
    ours, words, is_module = split(command, list(sys.argv[1:] if arguments is None else arguments))
    options = command.parse_args(ours)
    if not words:
        command.error("name a script, or a module after -m")
    if not hasattr(os, "fork"):
        command.error("this needs a system that can fork processes: Linux, or macOS with --in-place")
    return ended(command, lambda: _try(options, words, is_module))


def _try(options: argparse.Namespace, words: list[str], is_module: bool) -> int:
    """Try the changes, and show what came of it; raises UsageError and CommandError."""
    from nvtx_kernels.analysis.presenters.output import format_of, presented, write

    from .trying.document import document_of
    from .trying.keeper import Keeper
    from .trying.order import Trying, arms_of
    from .trying.predicting import join, suggestions_of

    format_ = format_of(options.format, options.output)
    program, choice = program_of(words, is_module), _choice(options)
    results = Path(tempfile.mkdtemp(prefix="nvtx-kernels-try-"))
    try:
        place = _place(options, results)
        with Keeper(place) as keeper, _stopped_by_interrupt(keeper.stop):
            reason = "" if place.is_in_place else keeper.check()
            if reason:
                raise UsageError(NO_OVERLAY.format(reason))
            _announce(options, program.words[0])
            trying = Trying(keeper, program, choice, _say)
            report = options.report
            if report is None and choice.levers != ():
                report = trying.record(results / "report.sqlite")
            suggestions, refused = suggestions_of(report) if report else ({}, NO_RECORDING)
            arms = arms_of(choice)
            unjoined = join(arms, suggestions)
            answer = trying.go(arms)
            is_unpredicted = refused and not suggestions and choice.levers != ()
            notes = [NO_PREDICTION.format(refused.rstrip("."))] if is_unpredicted else []
            if answer.is_interrupted:
                notes.insert(0, INTERRUPTED)
            document = document_of(answer, shlex.join(words), unjoined, notes)
            if options.keep:
                _keep(options.keep, report, presented(document, "json", None))
    except OSError as error:
        raise CommandError(str(error)) from error
    finally:
        shutil.rmtree(results, ignore_errors=True)
    write(presented(document, format_, options.output), options.output)
    return 130 if answer.is_interrupted else 0


@contextmanager
def _stopped_by_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C call `stop`, so that what was measured is shown; another one, a while later, ends all."""
    first_s = None

    def interrupted(*_: object) -> None:
        nonlocal first_s
        now_s = time.monotonic()
        first_s = first_s or now_s
        if now_s - first_s > AGAIN_S:
            raise KeyboardInterrupt
        stop()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _choice(options: argparse.Namespace) -> Choice:
    """Return the levers to try; raises UsageError for a lever that does not exist."""
    from .trying.levers import BY_NAME
    from .trying.order import Choice

    levers = None if options.levers is None else tuple(name for name in options.levers if name != NO_LEVER)
    for name in levers or ():
        if name not in BY_NAME:
            raise UsageError(
                f"there is no lever {name}{did_you_mean(name, BY_NAME)}; there are {', '.join(BY_NAME)}"
            )
    against = program_of(shlex.split(options.against), False) if options.against else None
    if levers == () and against is None:
        raise UsageError("--levers none leaves nothing to try but another program: --against 'after.py'")
    return Choice(levers, against, options.steps, options.rounds, options.budget)


def program_of(words: Sequence[str], is_module: bool) -> Program:
    """Return a program; raises UsageError for what is no script, and for what starts processes of its own."""
    from .trying.order import Program

    name = Path(words[0]).name
    if is_module:
        return Program(tuple(words), is_module=True)
    if name == "torchrun":
        from torch.distributed.run import get_args_parser

        options = get_args_parser().parse_args(list(words[1:]))
        if options.module or options.no_python:
            raise UsageError("torchrun must start a script: torchrun [options] train.py")
        count = len(words) - len(options.training_script_args) - 1
        script = program_of(words[count:], False)
        return Program(script.words, launcher=tuple(words[1:count]))
    if name in STARTERS:
        raise UsageError(STARTS_RANKS.format(name))
    if not Path(words[0]).is_file():
        raise UsageError(f"{words[0]} is not a file; use -m for a module")
    return Program(tuple(words))


def _place(options: argparse.Namespace, results: Path) -> Place:
    """Return where the program runs; raises UsageError for folders that do not exist, and for /."""
    from .trying.overlay import Place

    folder = Path.cwd()
    if folder == Path(folder.anchor):
        raise UsageError(f"the program's folder is {folder}: run it from a folder of its own")
    for path in options.allow_writes:
        if not path.is_dir():
            raise UsageError(f"--allow-writes {path}: there is no such folder")
    caches = [Path(os.environ[name]) for name in CACHES if os.environ.get(name)]
    caches += [Path(name).expanduser() for name in USUAL_CACHES]
    folders = [folder, Path(tempfile.gettempdir()), *caches]
    return Place(
        tuple(str(path.resolve()) for path in folders if path.is_dir()),
        tuple(str(path.resolve()) for path in options.allow_writes),
        str(results.resolve()),
        round(options.scratch * GIB),
        is_in_place=options.in_place,
        may_connect=options.allow_network,
    )


def _announce(options: argparse.Namespace, program: str) -> None:
    """Say before the program starts what cannot be kept from happening."""
    allowed = "".join(f", but to {path}" for path in options.allow_writes)
    network = "" if options.allow_network else NO_NETWORK
    sentence = IS_IN_PLACE if options.in_place else IS_OVERLAY
    text = sentence.format(program=program, allowed=allowed, network=network)
    sys.stderr.write(f"{textwrap.fill(text, WIDTH)}\n")


def _say(doing: str) -> None:
    """Say what is being done, which takes minutes."""
    sys.stderr.write(f"try: {doing} …\n")
    sys.stderr.flush()


def _keep(folder: Path, report: Path | None, answer: str | bytes) -> None:
    """Keep a recording, and what was measured."""
    from nvtx_kernels.analysis.support.files import replace_file

    folder.mkdir(parents=True, exist_ok=True)
    if report is not None:
        replace_file(folder / "report.sqlite", report.read_bytes())
    replace_file(folder / "try.json", answer if isinstance(answer, bytes) else answer.encode())


if __name__ == "__main__":
    sys.exit(main())
