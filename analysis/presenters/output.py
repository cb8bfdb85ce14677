"""The format and destination of an answer, for all commands that write tables."""

from __future__ import annotations

import sys
from argparse import _ActionsContainer
from pathlib import Path

from ..document import Document
from ..errors import UsageError
from ..support.files import discard_output, replace_file
from ..support.text import on_terminal, printable
from . import PRESENTERS, presenter

SUFFIXES = {suffix: format_ for format_, suffix in PRESENTERS.items()}
FORMATS = f"{', '.join(list(PRESENTERS)[:-1])} or {list(PRESENTERS)[-1]} (default: by FILE's ending, else table)"
#: Endings of files that no presenter writes.
OTHER_SUFFIXES = (".xlsx", ".xls", ".ods", ".pdf", ".docx", ".png", ".svg", ".sqlite", ".feather", ".gz", ".zip")


def add_output(options: _ActionsContainer) -> None:
    """Add the options that choose a format and a file."""
    options.add_argument("--format", choices=PRESENTERS, metavar="FORMAT", help=FORMATS)
    options.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to this file, not to the screen")


def format_of(format_: str | None, output: Path | None) -> str:
    """Return the requested format, else that of the file's suffix, else a table.

    Raises UsageError for a binary format without a file, and for a file that looks like another format.
    """
    if output and not format_ and output.suffix.lower() in OTHER_SUFFIXES:
        raise UsageError(
            f"No answer is written as {output.suffix}: use one of {', '.join(SUFFIXES)}, or name a --format."
        )
    chosen = format_ or (SUFFIXES.get(output.suffix.lower()) if output else None) or "table"
    if chosen == "parquet" and output is None:
        raise UsageError("Parquet is binary: use -o FILE.")
    return chosen


def presented(document: Document, format_: str, output: Path | None, *, full_names: bool = False) -> str | bytes:
    """Return a document in a format: a table as wide as the screen, or what any other presenter writes."""
    if format_ != "table":
        text: str | bytes = presenter(format_).present(document)
        to_terminal = output is None and sys.stdout.isatty()
        return on_terminal(text) if to_terminal and isinstance(text, str) else text
    from . import as_table

    width, color = as_table.screen(output is None and sys.stdout.isatty())
    return as_table.present(document, width=width, color=color, full_names=full_names)


def write(result: str | bytes, output: Path | None) -> None:
    """Print a result, or write it to a file: the old one stays until the new one is complete.

    Raises UsageError if it cannot be written.
    """
    if output is None:
        print_text(result if isinstance(result, str) else result.decode())
        return
    try:
        replace_file(output, result if isinstance(result, bytes) else result.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"{printable(str(output))} cannot be written: {error.strerror}.") from error


def print_text(text: str) -> None:
    """Print text as it is; raises UsageError if standard output is on a full disk, or fails otherwise."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()  # what is still buffered would fail once more at the end
        raise UsageError(f"The answer cannot be written to standard output: {error.strerror}.") from error
