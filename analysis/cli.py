"""The common part of all commands of this package: reading reports, printing errors, showing results."""

from __future__ import annotations

import argparse
import gc
import glob
import os
import re
import shlex
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .document import FOR_MACHINES, WHOLE, Detail
from .errors import AnalysisError, UsageError
from .presenters import output
from .presenters.output import add_output as add_output
from .presenters.output import format_of
from .presenters.output import write as write
from .readers import expand as expand
from .readers import is_summary as is_summary
from .support import heap
from .support.files import discard_output

if TYPE_CHECKING:
    from .attribution.causes import Attribution
    from .document import Document
    from .opened import Choices, Opened
    from .readers.stack_frames import Functions
    from .report import Report
    from .trace import Trace

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
SELDOM = 300_000  # new objects


def run(command: Callable[[], None], *, starts_programs: bool = False) -> int:
    """Run a command and return its exit status; an error is one sentence on stderr."""
    try:
        with tuned_for_a_command(starts_programs=starts_programs):
            command()
        sys.stdout.flush()
    except AnalysisError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_status
    except MemoryError:
        print("error: not enough memory for this report.", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has read enough
        discard_output()
    return 0


@contextmanager
def tuned_for_a_command(*, starts_programs: bool) -> Iterator[None]:
    """Use this process for one task: keep freed memory and threads, and seldom look for cycles of objects.

    A command that starts the user's programs leaves them the environment as it is.
    """
    heap.keep()
    thresholds = gc.get_threshold()
    blas_threads = os.environ.get(BLAS_THREADS)
    # Most objects of a command stay until its end: with Python's own threshold, looking for cycles takes a tenth
    # of the time of ranking a small report.
    gc.set_threshold(max(SELDOM, thresholds[0]), *thresholds[1:])
    if not starts_programs:
        # When numpy is imported, OpenBLAS starts a thread for each core, which costs more processor time than
        # ranking a small report; nothing of this package uses them.
        os.environ[BLAS_THREADS] = blas_threads or "1"
    try:
        from .support import threads  # loads numpy, which reads the setting

        with threads.kept():
            yield
    finally:
        gc.set_threshold(*thresholds)
        if blas_threads is None and not starts_programs:
            os.environ.pop(BLAS_THREADS, None)


def add_range_rules(parser: argparse.ArgumentParser) -> Any:
    """Add the options that choose what counts as a range; return their group."""
    rules = parser.add_argument_group("what counts as a range")
    rules.add_argument(
        "--domain",
        action="append",
        default=[],
        metavar="NAME",
        help="count only the ranges of this NVTX domain (several)",
    )
    rules.add_argument(
        "--operators",
        choices=("auto", "keep", "hide"),
        default="auto",
        help="ranges of PyTorch's operators: as ranges where no other range is around them (auto), always (keep), "
        "or never (hide)",
    )
    rules.add_argument(
        "--step",
        default="",
        metavar="NAME",
        help="name of the ranges that are steps, if it is not step or iteration; * and ? stand for any characters",
    )
    rules.add_argument(
        "--steps-by",
        choices=("named", "updates", "ranges", "repetition"),
        help="what may show where steps begin, each with those before it: named, ranges with the name of a step; "
        "updates, the optimizer's updates; ranges, other ranges that repeat; repetition, kernels that repeat (the "
        "default; with --fail-on: ranges)",
    )
    rules.add_argument(
        "--phase-names",
        action="extend",
        default=[],
        type=_phase_names,
        metavar="PHASE=NAME,…",
        help="names of the ranges that are phases, if they are not the usual ones, such as "
        "forward='fit *',backward=bp",
    )
    add_beside(rules)
    return rules


def add_beside(group: Any) -> None:
    """Add the options of files that lie beside a report and say more of it."""
    group.add_argument(
        "--capture",
        type=Path,
        metavar="TRACES",
        help="PyTorch's traces of the capture of CUDA graphs: places the graphs' kernels in modules; or a file of "
        "dump_kernel_py_stacks: places them in Python functions",
    )
    group.add_argument(
        "--names",
        type=Path,
        metavar="FILE",
        help="the file that nk.names(model) wrote: names the modules in a PyTorch trace with stacks",
    )


def add_own_functions(group: Any) -> None:
    """Add the option that leaves out libraries' functions."""
    group.add_argument(
        "--own-functions",
        action="store_true",
        help="with --by function: leave out the functions of libraries",
    )


def functions_of(options: argparse.Namespace) -> Functions:
    """Return which Python functions are to become ranges; raises UsageError for one option without the other."""
    are_own = getattr(options, "own_functions", False)
    if getattr(options, "by", None) == "function":
        return "own" if are_own else "all"
    if are_own:
        raise UsageError("--own-functions goes with --by function.")
    return ""


def add_shape(parser: argparse.ArgumentParser, *, every_index: bool = True) -> Any:
    """Add the options that say how an answer is shown; return their group."""
    shape = parser.add_argument_group("how to show it")
    output.add_output(shape)
    shape.add_argument("--full-names", action="store_true", help="kernel names in full")
    if every_index:
        shape.add_argument(
            "--every-index", action="store_true", help="keep `layers.0`, `layers.1`, … apart in tables"
        )
    return shape


def _phase_names(text: str) -> list[tuple[str, str]]:
    """Read `forward=a*,backward=b`; raises ArgumentTypeError, which argparse prints."""
    from .vocabulary import PHASES

    pairs = [part.partition("=") for part in re.split(rf",(?=\s*(?:{'|'.join(PHASES)})\s*=)", text)]
    named = [(phase.strip(), called.strip().strip("'\"")) for phase, _, called in pairs]
    if any(phase not in PHASES or not called for phase, called in named):
        raise argparse.ArgumentTypeError(f"{text!r} does not name a phase: write forward='fit *',backward='bp'")
    return named


def trace_of(path: Path, functions: Functions = "") -> Trace:
    """Read a report, showing progress on a terminal; `functions` chooses which Python functions become ranges.

    Raises AnalysisError if it cannot be read, or contains no work.
    """
    from . import opened
    from .support.progress import on_screen

    with on_screen():
        return opened.trace_of(path, functions)


def choices_of(options: argparse.Namespace) -> Choices:
    """Return the choices of the options of `add_range_rules`, and of `kernels.add_part` if given.

    Formats for machines have sums where nothing is asked for.
    """
    from .attribution.causes import Rules
    from .opened import Choices

    per_step = getattr(options, "per_step", None)
    if "per_step" in options and per_step is None and detail_of(options).whole:
        per_step = False
    rules = Rules(
        domains=options.domain,
        operators=options.operators,
        step=options.step,
        phase_names=tuple(options.phase_names),
        evidence=_evidence_of(options),
    )
    warm_up = getattr(options, "include_warmup", False)
    unrecorded_ns = getattr(options, "unrecorded_step", None)
    functions = functions_of(options)
    return Choices(rules, warm_up, per_step, options.capture, options.names, functions, unrecorded_ns)


def _evidence_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the kinds of evidence that may tell steps without names; a rule for a build trusts no repetition."""
    from .report.evidence import FOUND, NAMED, TRUSTED

    if "evidence" in options:
        return tuple(options.evidence)
    if options.steps_by is None:
        return TRUSTED if getattr(options, "fail_on", None) else FOUND
    return () if options.steps_by == NAMED else FOUND[: FOUND.index(options.steps_by) + 1]


def attributed(path: Path, options: argparse.Namespace) -> Attribution:
    """Read a report and attribute its work; raises AnalysisError if it cannot be read, or contains no work."""
    from . import opened

    return opened.attributed(trace_of(path, functions_of(options)), choices_of(options))


def opened_by(path: Path, options: argparse.Namespace) -> Opened:
    """Read and attribute a report, and add it up; raises AnalysisError if it cannot be read, or has no work."""
    from . import opened

    return opened.opened(trace_of(path, functions_of(options)), choices_of(options))


def report_of(path: Path, options: argparse.Namespace) -> Report:
    """Return the sums of a report, or of the summary that `summarize` wrote of one."""
    if is_summary(path):
        from .summary.file import read_summary

        return read_summary(path)
    return opened_by(path, options).whole


def detail_of(options: argparse.Namespace) -> Detail:
    """Return how much of an answer the format and its options ask for."""
    if format_of(options.format, options.output) in FOR_MACHINES:
        return WHOLE
    names = {field.name for field in fields(Detail)}
    limits = {name: value for name, value in vars(options).items() if name in names and value is not None}
    return Detail(**({"ranges": limits["top"]} if "top" in limits else {}) | limits)


def spare(reports: Iterable[Path], into: Path | None) -> None:
    """Raise UsageError if the file to write is one of the reports to read."""
    for report in reports if into else ():
        with suppress(OSError):  # a missing or inaccessible file is reported where it is read or written
            if into and into.samefile(report):
                raise UsageError(f"{into} is a report to read; write the answer to another file.")


def save_trace(trace: Trace, path: Path) -> None:
    """Save a trace as a report; raises UsageError for a name that such a file cannot have, or if writing fails."""
    from .readers.saved import save
    from .support.text import printable

    if path.suffix not in ("", ".sqlite"):
        raise UsageError(f"A saved report is an SQLite file: -o {path.name.partition('.')[0]}.sqlite")
    try:
        save(trace, path)
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{printable(str(path))} cannot be written: {reason}.") from error


def as_typed(path: Path, options: argparse.Namespace) -> str:
    """Return a report and its range options as they are written on a command line."""
    return " ".join(filter(None, (shlex.quote(str(path)), _rules_as_typed(options))))


def all_as_typed(paths: Sequence[Path], options: argparse.Namespace) -> str:
    """Return several reports and their range options likewise: by a pattern, if that matches these alone."""
    names = [str(path) for path in paths]
    begin = os.path.commonprefix(names)  # noqa: RUF071 - of characters
    ends = [name[len(begin) :][::-1] for name in names]
    end = os.path.commonprefix(ends)[::-1]  # noqa: RUF071
    pattern = f"{begin}*{end}"
    is_plain = shlex.quote(begin + end) == begin + end
    matches_them = is_plain and sorted(glob.glob(pattern)) == sorted(names)  # noqa: PTH207 - the shell's own names
    return " ".join(filter(None, (pattern if matches_them else shlex.join(names), _rules_as_typed(options))))


def _rules_as_typed(options: argparse.Namespace) -> str:
    words = [word for name in options.domain for word in ("--domain", name)]
    words += ["--operators", options.operators] if options.operators != "auto" else []
    words += ["--step", options.step] if options.step else []
    words += ["--steps-by", options.steps_by] if options.steps_by else []
    words += [word for phase, name in options.phase_names for word in ("--phase-names", f"{phase}={name}")]
    return shlex.join([*words, *(["--include-warmup"] if options.include_warmup else [])])


def add_unrecorded_step(part: Any) -> None:
    """Add the option that gives the time of a step without recording."""
    part.add_argument(
        "--unrecorded-step",
        type=duration,
        metavar="TIME",
        help="the time of a step without recording, such as 68.9ms",
    )


def positive(text: str) -> int:
    """Read an integer ≥ 1; raises ArgumentTypeError, which argparse prints."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer ≥ 1")
    return int(text)


def phase_and_time(text: str) -> tuple[str, float]:
    """Read `forward=19.7ms` as a phase and nanoseconds; raises ArgumentTypeError, which argparse prints."""
    from .support.units import UNITS_NS

    match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+\.?\d*|\.\d+)\s*(ns|us|µs|ms|s)\s*", text)
    if not match or not float(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time of a phase: write forward=19.7ms")
    return match[1], float(match[2]) * UNITS_NS[match[3]]


def duration(text: str) -> float:
    """Read `68.9ms` as nanoseconds; raises ArgumentTypeError, which argparse prints."""
    from .support.units import UNITS_NS

    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(ns|us|µs|ms|s)\s*", text)
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write 68.9ms")
    return float(match[1]) * UNITS_NS[match[2]]


def say_written(path: Path, then: str) -> None:
    """Print what was written, its size, and the next step."""
    from .support.text import printable
    from .support.units import bytes_text

    output.print_text(f"{printable(str(path))}, {bytes_text(path.stat().st_size)}. {then}\n")


def presented(document: Document, options: argparse.Namespace) -> str | bytes:
    """Return a document in the format of the options of `add_output`."""
    format_ = format_of(options.format, options.output)
    return output.presented(document, format_, options.output, full_names=options.full_names)
