"""A callback that profiles steps of Hugging Face's `Trainer`.

    Trainer(..., callbacks=[ProfilerCallback()])                              # PyTorch's profiler: a trace
    Trainer(..., callbacks=[ProfilerCallback(profiler="nvtx-kernels")])       # nvtx-kernels: a report, by module

This file needs PyTorch and transformers alone, and can be copied into a program or into transformers as it is; it
imports nvtx-kernels when training begins, and only if that is the profiler.
"""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import TrainerCallback

#: The profilers, and the file that each writes into the output folder if no path is given.
PROFILERS = {"pytorch": "trace.json.gz", "nvtx-kernels": "report.sqlite"}
#: Steps of warm-up: usual, and of trainings with fewer steps than FEW.
WARMUP, WARMUP_OF_FEW, FEW = 3, 1, 6


class _Session(Protocol):
    def step(self) -> None: ...

    def stop(self) -> None: ...


class ProfilerCallback(TrainerCallback):  # type: ignore[misc]
    """A [`TrainerCallback`] that profiles the first steps of training, which then goes on without a profiler.

    A step is one of the `Trainer`'s: it includes all micro-batches whose gradients are accumulated.

    Args:
        profiler (`str`, *optional*, defaults to `"pytorch"`):
            `"pytorch"` writes a trace of `torch.profiler`. `"nvtx-kernels"` writes a report of kernels by module,
            in forward, backward and optimizer; it needs `pip install 'nvtx-kernels[profiling]'`.
        path (`str` or `Path`, *optional*):
            The file to write; `trace.json.gz` or `report.sqlite` in `args.output_dir` by default. Where several
            processes train, each file has the process's number in its name.
        warmup (`int`, *optional*):
            How many steps come before those that are recorded: 3 by default, or 1 if training has fewer than 6.
        steps (`int`, *optional*, defaults to 10):
            How many steps to record; `None` records all that follow.
        options (`dict[str, Any]`, *optional*):
            Further arguments of `torch.profiler.profile` or of `nvtx_kernels.profile`, such as `with_stack=True`.

    Example:
    ```python
    trainer = Trainer(model, args, train_dataset=data, callbacks=[ProfilerCallback(warmup=2, steps=5)])
    trainer.train()
    ```
    """

    def __init__(
        self,
        profiler: str = "pytorch",
        path: str | Path | None = None,
        *,
        warmup: int | None = None,
        steps: int | None = 10,
        **options: Any,
    ) -> None:
        if profiler not in PROFILERS:
            raise ValueError(f"there is no profiler {profiler!r}: choose from {', '.join(PROFILERS)}")
        self.profiler, self.path = profiler, path
        self.warmup, self.steps, self.options = warmup, steps, options
        self._session: _Session | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Begin to profile."""
        if self._session is not None:
            return
        path = Path(args.output_dir) / PROFILERS[self.profiler] if self.path is None else Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.profiler == "pytorch":
            warmup = (WARMUP_OF_FEW if state.max_steps < FEW else WARMUP) if self.warmup is None else self.warmup
            if args.world_size > 1:
                stem, _dot, suffixes = path.name.partition(".")
                path = path.with_name(f"{stem}_rank{args.process_index}.{suffixes}")
            steps = max(1, state.max_steps - warmup) if self.steps is None else self.steps
            self._session = _begin_pytorch(path, warmup, steps, self.options)
        else:
            self._session = _NvtxKernels(model, path, warmup=self.warmup, steps=self.steps, **self.options)
        atexit.register(self._end)  # where training raises, nobody calls on_train_end

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Count a step of training."""
        if self._session is not None:
            self._session.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Write what was recorded, if that is not done."""
        self._end()

    def _end(self) -> None:
        atexit.unregister(self._end)
        session, self._session = self._session, None
        if session is not None:
            session.stop()


def _begin_pytorch(path: Path, warmup: int, steps: int, options: dict[str, Any]) -> _Session:
    """Return PyTorch's profiler, which watches the last step of warm-up, too, and then records."""
    schedule = torch.profiler.schedule(wait=max(0, warmup - 1), warmup=min(1, warmup), active=steps, repeat=1)

    def write(profile: torch.profiler.profile) -> None:
        profile.export_chrome_trace(str(path))

    # Without a list of activities, it records what this PyTorch supports: CPU, CUDA, XPU.
    profile = torch.profiler.profile(schedule=schedule, on_trace_ready=write, **options)
    profile.start()
    return profile


class _NvtxKernels:
    """A recording of nvtx-kernels, which annotates the model's modules."""

    def __init__(self, model: Any, path: Path, **options: Any) -> None:
        import nvtx_kernels

        self._profile = nvtx_kernels.profile(model, None, path, **options)
        self._profile.count_steps_of("Hugging Face's Trainer")
        self._profile.__enter__()

    def step(self) -> None:
        self._profile.step()

    def stop(self) -> None:
        self._profile.__exit__(None, None, None)
