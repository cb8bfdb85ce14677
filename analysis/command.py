"""What all commands of this package share: how they read reports, print errors and write results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.errors import AnalysisError, UsageError
from analysis.files import replace_file

if TYPE_CHECKING:
    from analysis.attribution import Attribution
    from analysis.tables import Document
    from analysis.trace import Trace

# Formats that programs read: every row, every index and full names.
FOR_MACHINES = frozenset({"csv", "json", "parquet"})


def run(command: Callable[[], None]) -> int:
    """Run a command and return its exit status; what went wrong is one sentence on stderr."""
    try:
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def add_range_rules(parser: argparse.ArgumentParser) -> Any:
    """Add the options that say what counts as a range; return their group."""
    rules = parser.add_argument_group("what counts as a range")
    rules.add_argument(
        "--domain", action="append", default=[], metavar="NAME", help="only this NVTX domain (several)"
    )
    rules.add_argument(
        "--operators", choices=("auto", "keep", "hide"), default="auto",
        help="PyTorch's operator ranges: hidden inside other ranges (auto), always shown, or never",
    )  # fmt: skip
    rules.add_argument(
        "--step", default="", metavar="NAME",
        help="what the measured steps are called, if not step or iteration: a range's name, with * and ?",
    )  # fmt: skip
    return rules


def trace_of(path: Path) -> Trace:
    """Read a report, showing on a terminal how far it is.

    Raises AnalysisError where it cannot be read, or holds no work.
    """
    from analysis.absence import require_work
    from analysis.progress import on_screen
    from analysis.readers import read

    with on_screen():
        trace = read(path)
    require_work(trace)
    return trace


def attributed(path: Path, options: argparse.Namespace) -> Attribution:
    """Read a report and attribute its work by the options of `add_range_rules`; raises as `trace_of` does."""
    from analysis.attribution import Rules, attribute

    rules = Rules(domains=options.domain, operators=options.operators, step=options.step)
    return attribute(trace_of(path), rules)


def spare(reports: Iterable[Path], output: Path | None) -> None:
    """Raise UsageError where the file to write is one of the reports to read."""
    if output and any(_same_file(output, report) for report in reports):
        raise UsageError(f"{output} is a report to read; the answer needs a file of its own.")


def _same_file(one: Path, other: Path) -> bool:
    with suppress(OSError):  # what is not there, or cannot be looked at, is told where it is read or written
        return one.samefile(other)
    return False


def positive(text: str) -> int:
    """Read a whole number of at least 1; raises ArgumentTypeError, which argparse prints."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def presented(document: Document, options: argparse.Namespace) -> str:
    """Return a document in the format asked for: a table as wide as the screen, or any text of `presenters`."""
    from analysis.presenters import as_table, presenter

    if options.format != "table":
        return presenter(options.format).present(document)
    width, color = as_table.screen(options.output is None and sys.stdout.isatty())
    return as_table.present(document, width=width, color=color, full_names=options.full_names)


def write(result: str | bytes, output: Path | None) -> None:
    """Print a result, or put it in a file: the old one stays until the new one is whole.

    Raises UsageError where the file cannot be written, and for bytes without a file.
    """
    if output is None:
        if isinstance(result, bytes):
            raise UsageError("This format is no text: name a file for it with -o FILE.")
        sys.stdout.write(result)
        return
    try:
        replace_file(output, result if isinstance(result, bytes) else result.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
