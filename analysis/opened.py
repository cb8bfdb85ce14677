"""Opening a report: read it, require work, attribute it, add it up, and decide whether figures are per step.

Commands, the library, the agent, the page, questions, the doctor and `compare` all open reports here, so that one
report gives the same figures everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from . import report as reports
from .account import Partition
from .attribution.causes import Attribution, Rules, attribute
from .attribution.lines import named_by_line, names_kernels
from .measures.fix_list import Fixes
from .measures.fixes import fixes_beside
from .measures.steps import StepTimes, step_times
from .readers import read
from .readers.requirements import require_work
from .report import Report
from .summary.totals import accounted, renamed
from .trace import MODULE_BODY, Line, Trace

if TYPE_CHECKING:
    from .readers.stack_frames import Functions

Source = Trace | Path | str


@dataclass(frozen=True, slots=True)
class Choices:
    """What counts of a report, and what its figures are divided by.

    `per_step` is True for means of a measured step, False for sums, None for means where steps have work.
    `capture` are PyTorch's traces of the capture of CUDA graphs, and `names` is what `nk.names` wrote. `functions`
    are the Python functions of a trace with stacks that become ranges.
    """

    rules: Rules = field(default_factory=Rules)
    include_warm_up: bool = False
    per_step: bool | None = None
    capture: Path | None = None
    names: Path | None = None
    functions: Functions = ""
    unrecorded_step_ns: float | None = None  # how long a step takes without recording, measured elsewhere


@dataclass(frozen=True)
class Opened:
    """A report that was attributed and added up.

    `partition` and `whole` are of all its work; `report` and `counted` of what is shown, per step or in total.
    """

    partition: Partition
    whole: Report
    asked_per_step: bool | None = None

    @property
    def attribution(self) -> Attribution:
        """The attribution of all work."""
        return self.partition.attribution

    @property
    def trace(self) -> Trace:
        """What was read."""
        return self.attribution.trace

    @cached_property
    def per_step(self) -> bool:
        """Whether figures are per step."""
        return is_per_step([self.whole], self.asked_per_step)

    @cached_property
    def report(self) -> Report:
        """The sums, divided by the steps if figures are per step; raises ReportError if there are no steps."""
        return scaled(self.whole, self.asked_per_step)

    @property
    def has_lines(self) -> bool:
        """Whether the line of any kernel is known."""
        return names_kernels(self.attribution)

    @property
    def program(self) -> str:
        """The script whose lines we traced while it was recorded: `train.py`; "" if it is unknown."""
        lines = self.attribution.lines
        if lines is None or self.trace.provenance.is_of_pytorch:
            return ""
        outermost = [source.lines[-1] for source in lines.sources if source.lines]
        scripts = {line.file for line in outermost if line.function == MODULE_BODY and line.file.endswith(".py")}
        return scripts.pop() if len(scripts) == 1 else ""

    @property
    def lines_called(self) -> dict[str, Line]:
        """The lines by what people read."""
        lines = self.attribution.lines
        if lines:
            return {source.lines[0].called: source.lines[0] for source in lines.sources}
        return {}

    @cached_property
    def by_line(self) -> Report:
        """The same with kernels named by the lines that launch them; raises ReportError if no line is known."""
        named = named_by_line(self.attribution)
        return scaled(renamed(named, self.partition, self.whole), self.asked_per_step)

    @cached_property
    def counted(self) -> Attribution:
        """The work that the figures are of: in the steps that count if they are per step, else all."""
        if self.per_step:
            return self.partition.of_counted_steps
        return self.attribution

    @cached_property
    def fixes(self) -> Fixes:
        """What to change first, and how much of a step is at stake; without recording, if that is known."""
        return fixes_beside(self.partition, self.whole.recording)

    @cached_property
    def step_times(self) -> StepTimes:
        """The time of each row in every step that counts, ns."""
        return step_times(self.partition.of_counted_steps, include_warm_up=self.whole.warm_up_included)


def is_per_step(some: Iterable[Report], choice: bool | None = None) -> bool:
    """Return whether figures of these reports are per step: as asked, else if steps of all of them have work."""
    if choice is None:
        return all(report.has_work_in_steps for report in some)
    return choice


def scaled(report: Report, choice: bool | None = None) -> Report:
    """Return the report per step if figures are; raises ReportError if this was asked for and it has no steps."""
    if is_per_step([report], choice):
        return reports.per_step(report)
    return report


def trace_of(source: Source, functions: Functions = "") -> Trace:
    """Return a trace, read if it is a path, then with some Python functions as ranges.

    Raises analysis.errors.NotAReport if it cannot be read, or NoGpuWork if it contains no work.
    """
    return require_work(source if isinstance(source, Trace) else read(source, functions=functions))


def joined(trace: Trace, choices: Choices) -> Trace:
    """Return a trace with the facts in files beside the report; raises AnalysisError if one cannot be read."""
    if choices.capture:
        from .readers.capture_traces import with_captures
        from .readers.graph_stacks import has_stacks, with_stacks

        is_of_stacks = choices.capture.is_file() and has_stacks(choices.capture)
        trace = (with_stacks if is_of_stacks else with_captures)(trace, choices.capture)
    if choices.names:
        from .readers.given_names import with_names

        trace = with_names(trace, choices.names)
    return trace


def attributed(source: Source, choices: Choices) -> Attribution:
    """Read a report unless it is a trace, and attribute its work; raises AnalysisError if it cannot be read."""
    return attribute(joined(trace_of(source, choices.functions), choices), choices.rules)


def opened(source: Source, choices: Choices = Choices()) -> Opened:
    """Read a report unless it is a trace, attribute its work, and add it up.

    Raises AnalysisError if it cannot be read, or contains no work.
    """
    partition, totals = accounted(
        attributed(source, choices),
        include_warm_up=choices.include_warm_up,
        unrecorded_step_ns=choices.unrecorded_step_ns,
    )
    return Opened(partition, totals, choices.per_step)
