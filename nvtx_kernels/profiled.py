"""`nvtx_kernels.profile`: what `profiling.training` records, shown by `analysis`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from .analysis import rank
from .analysis.errors import UsageError
from .profiling.training import Profile

if TYPE_CHECKING:
    from .analysis.frames.ranking import Ranking


class profile(Profile):  # noqa: N801 - called like a function, as torch.profiler's is
    """Annotate, record and count the steps of one block of a training program; `show` prints the overview.

    >>> with profile(model, optimizer, "report.sqlite") as p:
    ...     for batch in data:
    ...         train_step(batch)
    >>> p.show()

    `model` and `optimizer` may each be one, several, or None. Steps are those of the last optimizer
    given, or of the first that steps if none is given; call `p.step()` to count them yourself. `warmup` steps come
    first, then `steps` are measured (None: all that follow), and the report is written when they are done, or
    when the block ends. `depth`, `only` and `skip` are those of `annotate_modules`. With `flops`,
    the last step of warm-up is counted: FLOPs and bytes by range, for `--view efficiency`. With
    `memory`, every allocation and free is recorded, for `--view memory`.
    """

    @cached_property
    def ranking(self) -> Ranking:
        """Return the ranked report: per step, or including warm-up if nothing else ran.

        Raises UsageError under nsys, which writes the report when the program has ended.
        """
        if self.is_watched:
            raise UsageError(f"nsys writes the report when this program has ended. Then: {self.outcome.next}")
        measured = self.phases.measured > 0
        return rank(self.path, per_step=measured, include_warm_up=not measured)

    def show(self) -> None:
        """Print the overview; under nsys, how to get it."""
        if self.is_watched:
            print(self.outcome.text())  # noqa: T201
        else:
            self.ranking.show()

    def _repr_html_(self) -> str | None:
        """Show a notebook the overview."""
        return None if self.is_watched or not self.path.exists() else self.ranking._repr_html_()
