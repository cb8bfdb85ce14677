"""One line around a training loop: its modules, phases and steps as ranges, and a report of what they launched.

    with profile(model, optimizer, "report.sqlite") as p:
        for batch in data:
            train_step(batch)

Under nsys nothing is recorded here: the ranges are NVTX's, and the measured steps lie between cudaProfilerStart
and Stop and inside the range `measure`, so that `-c cudaProfilerApi` and `-c nvtx -p measure@nvtx-kernels` capture
them.

This room may import `recorder`, `annotate` and `lines`. It promises that the loop goes on as it would without it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from nvtx_kernels.analysis.support.units import bytes_text
from nvtx_kernels.analysis.vocabulary.step_ends import no_step_text
from torch import nn
from torch.optim import Optimizer

from .. import annotate
from ..annotate import optimizers
from ..annotate.counting import leave_inert
from ..annotate.interrupts import Held, Surely, entering
from ..annotate.modules import Choice
from ..costly_settings import costly_settings, odd_sizes
from ..harmless import say
from ..lines.user_code import packages_of
from ..machine import optimizer_flags, parameter_facts, pytorch_settings, updated_tensors, versions
from ..recorder import GOES_ON
from ..recorder.recording import IN_BLOCK, NO_WORK
from ..recorder.steps import STEPS, Bounds
from .capture import Capture
from .loop import FROM_FIRST_CALL, WHOLE_BLOCK, Phases
from .roots import annotating_roots

T = TypeVar("T")
NO_WARM_UP = "flops counts the last step of warm-up: with it, warmup must be ≥ 1"
CALL = 'profile(model, optimizer, "report.sqlite")'
NO_MODEL = "No model was given: its phases are backward and optimizer, and its ranges the program's own."
NO_STEP = "No optimizer step and no model call was seen."
ENDED_BEFORE = "The program ended with {} before its first step."
NO_WORK_BEFORE, ONCE_IT_TRAINS = (
    "no work: the program ended with {} before its first step",
    "record again once it trains",
)
IN_PROGRAM = "let it train in this process before it ends; of several, torchrun --no-python nvtx-kernels record …"
ALL_WARM_UP = "Every step was warm-up: run more, or measure from the first one (warmup=0, --warmup 0)."


class Outcome(NamedTuple):
    """A report's path and size in bytes, its steps (also as text), remarks, and the next command."""

    path: Path
    size: int
    warmed: int
    measured: int
    steps: str
    remarks: tuple[str, ...]
    next: str

    def text(self) -> str:
        """Return the lines to show."""
        file_text = f"{self.path}, {bytes_text(self.size)}" if self.size else f"{self.path}"
        return "\n".join((f"{file_text}, {self.steps}. Next: {self.next}", *self.remarks))


class Profile:
    """Annotates, records and counts the steps of one block; `outcome` is the result.

    The arguments are those of `nvtx_kernels.profile`. With `every_model`, each module that the program calls is
    annotated as a model.
    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Module] | Mapping[str, nn.Module] | None = None,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        path: str | Path = "report.sqlite",
        *,
        warmup: int | None = None,
        steps: int | None = STEPS,
        depth: int | None = None,
        only: Choice | None = None,
        skip: Choice = (),
        flops: bool = False,
        memory: bool = False,
        lines: bool = True,
        every_model: bool = False,
    ) -> None:
        self.path = Path(path)
        called, models = (list(model), list(model.values())) if isinstance(model, Mapping) else (None, model)
        remedy = "profile(model, optimizer, path)"
        self._models: list[nn.Module] = _several(models, nn.Module, "a model must be a torch.nn.Module", remedy)
        self._optimizers = _several(optimizer, Optimizer, "an optimizer must be a torch.optim.Optimizer", CALL)
        self._names = called or [None] * len(self._models)
        if flops and warmup == 0:
            raise ValueError(NO_WARM_UP)
        self._choice: dict[str, Any] = {"depth": depth, "only": only, "skip": skip}
        self._every_model = every_model
        self._capture = Capture(flops=flops, memory=memory, lines=lines, facts=self._facts)
        bounds = Bounds.of(warmup, steps, is_watched=self._capture.is_watched)
        bounds = bounds._replace(fewest=0) if self._capture.is_later else bounds  # all of warm-up is uncaptured
        names = optimizers.named(self._optimizers)
        self._phases = Phases(self._capture, bounds, names, self._say_goes_on, self._is_settled)
        self._ranges = ExitStack()
        self._is_leaving = False
        self._has_begun = False

    @property
    def outcome(self) -> Outcome:
        """Return a summary of the recording, and the next command."""
        phases, capture = self._phases, self._capture
        warmed = f" after {phases.warmed} of warm-up" if phases.warmed else ""
        by = f" ({phases.counted_by})" if phases.counted_by and phases.measured else ""
        steps = f"{phases.measured} step{'' if phases.measured == 1 else 's'}{warmed}{by}"
        if phases.warmed and not phases.measured:
            steps = f"no measured step, {phases.warmed} of warm-up"
        path, size, report = Path("what nsys records"), 0, "REPORT.nsys-rep"
        if not capture.is_watched:
            path = self.path
            report = shlex.quote(str(self.path))
            size = path.stat().st_size if path.exists() else 0
        command = f"nvtx-kernels rank {report}"
        if capture.recording is None or not capture.recording.ended_early:
            command += "" if phases.measured else " --include-warmup"
        recording = capture.recording
        if recording is not None and recording.is_over and not recording.works:
            if phases.error:
                return Outcome(path, size, 0, 0, NO_WORK_BEFORE.format(phases.error), (), ONCE_IT_TRAINS)
            return Outcome(path, size, 0, 0, NO_WORK, (), IN_PROGRAM if self._every_model else IN_BLOCK)
        remarks = [recording.about_old(path)] if recording is not None and recording.is_over else []
        if not self._models and not self._every_model:
            remarks.append(NO_MODEL)
        if not phases.measured:
            no_step = ENDED_BEFORE.format(phases.error) if phases.error else NO_STEP
            remarks.append(ALL_WARM_UP if phases.warmed else no_step)
        is_whole = phases.counted_by in (WHOLE_BLOCK, FROM_FIRST_CALL)
        unused = phases.unused if is_whole else []
        if is_whole:
            from_first_call = phases.counted_by == FROM_FIRST_CALL
            remarks.append(no_step_text(unused, from_first_call=from_first_call, is_recording=True))
        remarks += [f"{name}.step() was never called." for name in phases.never_updated if name not in unused]
        if capture.counting is not None and capture.counting.trouble:
            remarks.append(f"The report has no FLOPs: {capture.counting.trouble}.")
        if capture.allocations.trouble:
            remarks.append(f"The report has no memory by range: {capture.allocations.trouble}.")
        if capture.recording is not None and capture.recording.shortfall:
            remarks.append(capture.recording.shortfall)
        return Outcome(
            path,
            size,
            phases.warmed,
            phases.measured,
            steps,
            tuple(filter(None, remarks)),
            command,
        )

    def step(self) -> None:
        """End a step; where this is called, no optimizer's updates do."""
        self._phases.step()

    def count_steps_of(self, trainer: str) -> None:
        """Say who calls `step()`, where that is no program but a trainer, such as Lightning's."""
        self._phases.calls_by = trainer

    def __enter__(self) -> Self:
        entering(self)
        try:
            with Held():
                self.path = self._capture.start(self.path, self._terminate, lambda: self._phases.content)
                self._has_begun = True
                self._ranges.enter_context(self._phases.running())
                for name, model in zip(self._names, self._models, strict=True):
                    self._sees_root(model)
                    self._ranges.enter_context(annotate.annotate_modules(model, name=name, **self._choice))
                if self._every_model:
                    self._ranges.enter_context(annotating_roots(self._sees_root, **self._choice))
        except BaseException:
            with Held(), self._capture.block, self._ranges:
                raise
        return self

    @Surely
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_leaving = True
        with Held():
            try:
                self._ranges.__exit__(kind, error, trace)
            finally:
                self._capture.stop(kind, error, trace)
            leave_inert()
            self._capture.add(self._phases.unrecorded)
            self._say_outcome()

    def _terminate(self) -> None:
        """End the last step and write the report before SIGTERM ends the process."""
        self._phases.interrupt("Terminated")
        self._capture.terminate()
        self._say_outcome()

    def _say_outcome(self) -> None:
        """Print the file that was written, its place and the next command; errors were printed before."""
        recording = self._capture.recording
        if not self._has_begun:
            return
        if recording is None:
            say(self.outcome.text())
        elif recording.is_written:
            self.path = self.path.with_name(recording.path.name)
            say(self.outcome.text())
        elif recording.is_over and not recording.works:
            why = f" before {self._phases.error}" if self._phases.error else ""
            then = "" if why else f" Next: {self.outcome.next}"
            say(f"No report was written: no work was seen{why}. {recording.about_old(self.path)}{then}")

    def _sees_root(self, model: nn.Module) -> None:
        self._capture.packages |= packages_of(model.modules())

    def _is_settled(self) -> None:
        """Handle that the steps after the report were timed, which the program may have gone on without."""

    def _say_goes_on(self) -> None:
        if self._capture.recording is not None:
            self.path = self.path.with_name(self._capture.recording.path.name)
        if not self._is_leaving:
            say(f"{self.path}: {self.outcome.steps}. {GOES_ON}")

    def _facts(self) -> dict[str, Any]:
        """Return the facts on the run for the report."""
        facts: dict[str, Any] = {}
        if self._models:
            facts["model"] = ", ".join(type(model).__name__ for model in self._models)
            facts |= parameter_facts(weight for model in self._models for weight in model.parameters())
        if trained := self._optimizers or optimizers.updated():
            optimizer = trained[-1]
            facts |= {"optimizer": type(optimizer).__name__, **optimizer_flags(optimizer)}
            facts |= {"updated_tensors": updated_tensors(trained)}
        if trained and not self._models:
            groups = (group["params"] for optimizer in trained for group in optimizer.param_groups)
            facts |= parameter_facts(weight for group in groups for weight in group)
        if autocast := self._phases.autocast:
            facts["autocast"] = autocast
        if odd := odd_sizes(self._models):
            facts["odd_sizes"] = odd
        return facts | pytorch_settings() | costly_settings() | versions()


def _several(
    value: T | Iterable[T] | None,
    kind: type[T],
    sentence: str,
    remedy: str,
) -> list[T]:
    """Return the models or optimizers given; raise TypeError, with a remedy, for anything else."""
    if value is None:
        return []
    arguments: list[T] = [value] if isinstance(value, kind) else list(value)  # type: ignore[arg-type]
    for argument in arguments:
        if not isinstance(argument, kind):
            raise TypeError(f"{sentence}, not {type(argument).__name__}: {remedy}")
    return arguments
