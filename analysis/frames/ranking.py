"""The answer as pandas frames, for notebooks and scripts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ..account import Partition
from ..attribution.causes import Attribution, Rules
from ..document import Document, without_commands
from ..measures.fix_list import Fixes
from ..measures.fixes import fixes_beside
from ..measures.steps import steps_of
from ..opened import Choices, Opened, Source, opened
from ..presenters import as_html, as_table
from ..report import Report, as_dict
from ..support.units import time_text
from ..views.overview import overview
from .milliseconds import Frame, Times, shown_in_ms

if TYPE_CHECKING:
    from .picture import Picture

WIDTH = 100


@dataclass(frozen=True, repr=False)
class Ranking:
    """A `Report` whose tables are frames; their columns are the fields of the row classes in `analysis.report`.

    Times are in nanoseconds over all measured steps, or per step if the ranking was made so. Where a frame is
    shown, they are in milliseconds.
    """

    report: Report
    partition: Partition

    @property
    def attribution(self) -> Attribution:
        """Every piece of work with the ranges that caused it."""
        return self.partition.attribution

    @cached_property
    def phases(self) -> Frame:
        """One row per phase: phase, kernel_ns, kernels, gemm_ns, gemm_kernels, work_ns."""
        return _frame(self.report.phases)

    @cached_property
    def ranges(self) -> Frame:
        """One row per path of ranges, outer before inner: path (a list of names), phase, instances and so on."""
        return _frame(self.report.ranges)

    @cached_property
    def kernels(self) -> Frame:
        """One row per path and kernel, longest first: path, phase, kind, kernel, category, count and times."""
        return _frame(self.report.kernels)

    @cached_property
    def totals(self) -> Times:
        """All work and its parts, ns: the parts sum to work_ns."""
        return Times(as_dict(self.report.totals))

    @property
    def step_ns(self) -> float | None:
        """How long a step takes, ns: from the end of one step's work to the end of the next's; None if unknown."""
        return self.report.step_ns

    @cached_property
    def step_times(self) -> Frame:
        """One row per measured step with work: step, process_id, first, own_ns, window_ns and so on."""
        return _frame(self.report.account.rows if self.report.account and self.report.account.has_steps else ())

    def overview(self) -> Document:
        """Return the overview of `nvtx-kernels rank`: the step as a bar, what to fix first, the slowest ranges."""
        return overview(self.report, found=self.fixes)

    @cached_property
    def fixes(self) -> Fixes:
        """What to change first, and how much of a step is at stake; `nvtx_kernels.fixes` has it as frames."""
        return fixes_beside(self.partition, self.report.recording)

    def show(self, width: int = WIDTH) -> None:
        """Print the overview."""
        print(as_table.present(self.overview(), width=width), end="")  # noqa: T201

    def plot(self) -> Picture:
        """Draw a step as a bar, phases, the longest ranges and the steps; needs matplotlib (extra `plot`)."""
        from .plots import figure

        steps = steps_of(self.partition.of_counted_steps) if self.report.counted_steps else ()
        return figure(self.report, [step.kernel_ns for step in steps])

    def __repr__(self) -> str:
        """Summarize the report in a few lines."""
        per = (
            "per step"
            if self.report.per_step
            else f"over {self.report.steps} steps"
            if self.report.steps
            else "total"
        )
        phases = ", ".join(f"{row.phase} {time_text(row.kernel_ns)}" for row in self.report.phases)
        return (
            f"Ranking of {self.report.provenance.file}: {time_text(self.report.totals.work_ns)} of work {per}\n"
            f"  phases: {phases}\n"
            f"  frames: .phases ({len(self.report.phases)} rows), .ranges ({len(self.report.ranges)}), "
            f".kernels ({len(self.report.kernels)}), .totals\n"
            f"  screens: .show(), .plot()"
        )

    def _repr_html_(self) -> str:
        """Show a notebook the overview."""
        return as_html.fragment(shown_in_ms(without_commands(self.overview())))


class Options(TypedDict, total=False):
    """What the functions of the library take: figures per step or (by default) in total, warm-up, and rules."""

    per_step: bool | None
    include_warm_up: bool
    rules: Rules | None
    unrecorded_step_ns: float | None


def opened_by(source: Source, options: Options) -> Opened:
    """Open a report as a command does.

    Raises analysis.errors.NotAReport if a path cannot be read, or NoGpuWork if there is no work.
    """
    rules = options.get("rules") or Rules()
    choices = Choices(
        rules,
        options.get("include_warm_up", False),
        options.get("per_step", False),
        unrecorded_step_ns=options.get("unrecorded_step_ns"),
    )
    return opened(source, choices)


def ranking(source: Source, **options: Unpack[Options]) -> Ranking:
    """Attribute, add up, and divide by the steps if asked to.

    `source` is a trace, or the path of a report to read. Raises analysis.errors.NotAReport if it cannot be read,
    or NoGpuWork if there is no work.
    """
    answer = opened_by(source, options)
    return Ranking(answer.report, answer.partition)


def _frame(rows: tuple[Any, ...]) -> Frame:
    return Frame([as_dict(row) for row in rows])
