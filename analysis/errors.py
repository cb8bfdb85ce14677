"""Everything that can go wrong with a report, as one small tree.

AnalysisError             one clear sentence and a next step; the command prints it and exits
├── UsageError            the command was called wrongly                          exit 2
└── ReportError           this report cannot answer                               exit 1
    ├── NotAReport        the file is not a report, or cannot be read
    ├── NoGpuWork         the report contains no GPU work to rank
    └── TooTangled        its ranges nest or cross beyond what can be drawn
"""

from __future__ import annotations

from .support.text import printable

#: What to do with a damaged report, whichever tool wrote it.
AGAIN = "Export or record it again."


class AnalysisError(Exception):
    """Base of every error this package raises on purpose; its text is for people."""

    exit_status = 1

    def __str__(self) -> str:
        """Return the sentence; what it repeats of a file cannot drive a terminal."""
        return printable(super().__str__())


class UsageError(AnalysisError):
    """The command was called in a way that has no answer."""

    exit_status = 2


class ReportError(AnalysisError):
    """The report cannot answer the question."""


class NotAReport(ReportError):  # noqa: N818 - reads as the sentence it prints
    """The file is not a profile that a reader knows, or it cannot be read."""


class NoGpuWork(ReportError):  # noqa: N818
    """The report contains no GPU work; the message gives the likely reason."""


class TooTangled(ReportError):  # noqa: N818
    """The ranges nest deeper, or cross each other more often, than any real program's."""
