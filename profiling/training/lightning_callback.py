"""A callback that records steps of Lightning's `Trainer` with nvtx-kernels: kernels by module, in every phase.

    lightning.Trainer(..., callbacks=[ProfilerCallback("report.sqlite", warmup=2, steps=5)])

This file needs Lightning alone, and can be copied into a program as it is; it imports nvtx-kernels when training
begins. (PyTorch's own profiler is `lightning.pytorch.profilers.PyTorchProfiler`.)
"""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback


class ProfilerCallback(Callback):  # type: ignore[misc]
    """Records the first steps of `Trainer.fit`; afterwards, training goes on without a profiler.

    A step is one in which the optimizers step. `options` are further arguments of `nvtx_kernels.profile`: `warmup`
    and `steps` are the numbers of steps, `depth`, `only` and `skip` choose modules.
    """

    def __init__(self, path: str | Path = "report.sqlite", **options: Any) -> None:
        self.path, self.options = path, options
        self._profile: Any = None
        self._last_step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record."""
        if self._profile is None:
            import nvtx_kernels

            self._last_step = trainer.global_step
            self._profile = nvtx_kernels.profile(pl_module, None, self.path, **self.options)
            self._profile.count_steps_of("Lightning's Trainer")
            self._profile.__enter__()
            atexit.register(self._end)  # where neither of the hooks below is called

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Count a step, unless gradients accumulate on."""
        if self._profile is not None and trainer.global_step > self._last_step:
            self._last_step = trainer.global_step
            self._profile.step()

    def on_train_end(self, *_: Any) -> None:
        """Write what was recorded, if that is not done."""
        self._end()

    def on_exception(self, *_: Any) -> None:
        """Write what was recorded before training raised."""
        self._end()

    def _end(self) -> None:
        atexit.unregister(self._end)
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.__exit__(None, None, None)
