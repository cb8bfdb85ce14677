"""How long a step takes, as data: what `measures/step_time.py` finds of each step, and of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

#: By how much the steps' own times differ, longest from shortest, as a share of their median, from which the
#: median counts.
UNEVEN = 0.2


@dataclass(frozen=True, slots=True)
class StepRow:
    """One measured step with work, ns.

    `own_ns` is from the end of the step before to its own end, without what was taken out: `window_ns`, from the
    first start of its work to the last end, and `between_ns` before it. A first step has only its window. On a CPU
    the step's range takes the place of its work, and nothing is busy.
    """

    step: int  # its place among the measured steps, as in `view steps`
    process_id: int
    first: bool  # of its process: no step before it tells when its time began
    own_ns: int
    window_ns: int
    between_ns: int
    evaluation_ns: int  # taken out, like the two below
    warm_up_ns: int
    recorder_ns: int  # in which the recorder kept the program waiting
    busy_ns: int | None  # of its own time, when any work ran; added over its GPUs
    between_busy_ns: int | None  # of the time between
    gpus: int
    # Of a step that generates, whose model's calls show their positions: its own time, divided.
    prefill_ns: int | None = None
    decode_ns: int | None = None
    decode_calls: int | None = None
    tokens: int | None = None  # None if a call decodes several, which may be refused


@dataclass(frozen=True, slots=True)
class StepTime:
    """What a step takes, ns: the mean of the steps' own times, or their median if they are uneven.

    First steps are left out, unless there are no others. Times of GPUs are the mean of a GPU.
    """

    rows: tuple[StepRow, ...]

    @property
    def compared(self) -> Sequence[StepRow]:
        """The steps whose own times count."""
        return [row for row in self.rows if not row.first] or self.rows

    @property
    def is_known_by_window(self) -> bool:
        """Whether only first steps are known, whose time before their first work is not."""
        return all(row.first for row in self.rows)

    @property
    def spread(self) -> float | None:
        """By how much own times differ, longest from shortest, as a share of their median; None for one."""
        own_ns = [row.own_ns for row in self.compared]
        middle_ns = median(own_ns)
        return (max(own_ns) - min(own_ns)) / middle_ns if len(own_ns) > 1 and middle_ns else None

    @property
    def is_uneven(self) -> bool:
        """Whether the steps differ so much that their median counts."""
        own_ns = [row.own_ns for row in self.compared]
        return max(own_ns) - min(own_ns) > UNEVEN * median(own_ns)

    @property
    def step_ns(self) -> float:
        """How long a step takes."""
        return self._typical(row.own_ns for row in self.compared)

    @property
    def busy_ns(self) -> float | None:
        """How long a GPU works in a step; None on a CPU."""
        busy_ns = [row.busy_ns / row.gpus for row in self.compared if row.busy_ns is not None]
        return self._typical(busy_ns) if busy_ns else None

    @property
    def between_ns(self) -> float | None:
        """How long it is from one step's work to the next's; None where no two steps follow one another."""
        return None if self.is_known_by_window else self._typical(row.between_ns for row in self.compared)

    @property
    def between_busy_ns(self) -> float | None:
        """How long a GPU works in that time; None on a CPU too."""
        busy_ns = [row.between_busy_ns / row.gpus for row in self.compared if row.between_busy_ns is not None]
        return self._typical(busy_ns) if busy_ns and not self.is_known_by_window else None

    @property
    def generating(self) -> Sequence[StepRow]:
        """The steps that generate, if all do whose own times count."""
        return self.compared if all(row.decode_calls for row in self.compared) else []

    @property
    def prefill_ns(self) -> float | None:
        """How long a step's prompts take; None if it does not generate."""
        return self._of_generating("prefill_ns")

    @property
    def decode_ns(self) -> float | None:
        """How long it takes for the tokens after the prompts."""
        return self._of_generating("decode_ns")

    @property
    def decode_calls(self) -> float | None:
        """How many calls of the model that takes."""
        return self._of_generating("decode_calls")

    @property
    def tokens(self) -> float | None:
        """How many positions these calls make; None if unknown."""
        return self._of_generating("tokens")

    @property
    def token_ns(self) -> float | None:
        """How long one of these takes."""
        return self.decode_ns / self.tokens if self.decode_ns is not None and self.tokens else None

    @property
    def gpus(self) -> int:
        """How many GPUs the steps of a process work on, at most; 0 on a CPU."""
        return max(row.gpus for row in self.rows)

    @property
    def taken_out_ns(self) -> dict[str, int]:
        """The times that were taken out of all steps, ns, by kind; kinds without any are missing."""
        sums = {
            "evaluation": sum(row.evaluation_ns for row in self.rows),
            "warm-up": sum(row.warm_up_ns for row in self.rows),
            "pauses of the recorder": sum(row.recorder_ns for row in self.rows),
        }
        return {name: ns for name, ns in sums.items() if ns}

    def _of_generating(self, name: str) -> float | None:
        """Return the mean of a figure; if the steps are uneven, of those that are their median."""
        rows = sorted(self.generating, key=lambda row: row.own_ns)
        middle = rows[(len(rows) - 1) // 2 : len(rows) // 2 + 1] if self.is_uneven else rows
        figures = [getattr(row, name) for row in middle]
        return sum(figures) / len(figures) if figures and None not in figures else None

    def _typical(self, figures: Iterable[float]) -> float:
        figures = list(figures)
        return median(figures) if self.is_uneven else sum(figures) / len(figures)


def merged_step_times(times: Iterable[StepTime | None]) -> StepTime | None:
    """Return the steps of several ranks together; None where none of them has any."""
    rows = tuple(row for time in times if time is not None for row in time.rows)
    return StepTime(rows) if rows else None
