"""`nvtx_kernels.profile`: what `profiling.training` records, shown by `analysis`."""

from __future__ import annotations

from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import analysis
from .analysis.errors import AnalysisError, ReportError, UsageError
from .profiling.training import Profile

if TYPE_CHECKING:
    from .analysis.frames.ranking import Ranking


class Page:
    """A report's page in a file; a notebook shows it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        """Return where it is."""
        return f"{self.path}: open it in a browser"

    def _repr_html_(self) -> str:
        """Show a notebook the page."""
        page = escape(self.path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="800" style="border: none"></iframe>'


class profile(Profile):  # noqa: N801 - called like a function, as torch.profiler's is
    """Annotate, record and count the steps of one block of a training program; `show` prints the overview.

    >>> with profile(model, optimizer, "report.sqlite") as p:
    ...     for batch in data:
    ...         train_step(batch)
    >>> p.show()

    `model` and `optimizer` may each be one, several, or None; models may have names, `{"G": g, "D": d}`. A step
    ends with each update of the last optimizer given that updates, or else of the last that began to update; call
    `p.step()` to end them yourself. `warmup` steps come first, then `steps` are measured (None: all that follow),
    and the report is written when they are done, or when the block ends. `depth`, `only` and `skip` are those of
    `annotate_modules`. With `flops`, the last step of warm-up is counted: FLOPs and bytes by range, for
    `view efficiency`. With `memory`, every allocation and free is recorded, for `view memory`.
    """

    @cached_property
    def ranking(self) -> Ranking:
        """Return the ranked report: per step, or including warm-up if no step was measured.

        Raises UsageError under nsys, which writes the report when the program has ended.
        """
        measured = self.outcome.measured > 0
        try:
            return self.rank(per_step=measured, include_warm_up=not measured)
        except ReportError:
            recording = self._capture.recording
            if recording is None or not recording.ended_early:
                raise
            return self.rank(include_warm_up=True)

    def rank(self, **options: Any) -> Ranking:
        """Rank the report with the options of `nvtx_kernels.rank`.

        Raises UsageError under nsys, which writes the report when the program has ended.
        """
        self._require_report()
        return analysis.rank(self.path, **options)

    def page(self, path: str | Path | None = None) -> Page:
        """Write the report's page, by default next to it; a notebook shows what this returns.

        Raises UsageError under nsys, which writes the report when the program has ended.
        """
        from .analysis.opened import Choices
        from .analysis.page import page_of
        from .analysis.presenters.output import write

        self._require_report()
        output = self.path.with_suffix(".html") if path is None else Path(path)
        write(page_of([self.path], Choices(include_warm_up=not self.outcome.measured)), output)
        return Page(output)

    def _require_report(self) -> None:
        if self._capture.is_watched:
            raise UsageError(f"nsys writes the report when this program has ended. Then: {self.outcome.next}")

    def show(self) -> None:
        """Print the overview, or the reason why it is missing; under nsys, how to get it."""
        if self._capture.is_watched:
            print(self.outcome.text())  # noqa: T201
            return
        try:
            self.ranking.show()
        except AnalysisError as error:
            print(f"{self.path}: {error}")  # noqa: T201

    def _repr_html_(self) -> str | None:
        """Show a notebook the overview."""
        return None if self._capture.is_watched or not self.path.exists() else self.ranking._repr_html_()
