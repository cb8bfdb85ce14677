"""Callbacks that profile the training loops of Hugging Face and Lightning, which hide their steps.

    Trainer(..., callbacks=[integrations.hugging_face("report.sqlite", warmup=2, steps=5)])
    lightning.Trainer(..., callbacks=[integrations.lightning("report.sqlite", warmup=2, steps=5)])

Options are those of `profile`. Accelerate needs none: `with profile(model, optimizer): ...` around its loop.
The libraries are imported when needed, and are not installed with this package.
"""

from __future__ import annotations

import atexit
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import Profile

__all__ = ["hugging_face", "lightning"]

#: Where Lightning's Callback may be found: the package of today, and the one of before.
LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def __dir__() -> list[str]:
    return __all__  # what completion offers


class Block:
    """A profile that begins and ends when the library says so, once for each training."""

    def __init__(self, path: str | Path, options: dict[str, Any], trainer: str = "") -> None:
        self.path, self.options, self.trainer = path, options, trainer
        self.profile: Profile | None = None

    def begin(self, model: Any) -> None:
        """Begin to profile, unless that has begun."""
        if self.profile is None:
            self.profile = Profile(model, None, self.path, **self.options)
            self.profile._count_steps_of(self.trainer)
            self.profile.__enter__()
            atexit.register(self.end)  # where training raises, the library says no end

    def step(self) -> None:
        """Count a step of training."""
        if self.profile is not None:
            self.profile.step()

    def end(self) -> None:
        """End, write the report, and print the next command."""
        atexit.unregister(self.end)
        profile, self.profile = self.profile, None
        if profile is not None:
            profile.__exit__(None, None, None)


def hugging_face(path: str | Path = "report.sqlite", **options: Any) -> Any:
    """Return a TrainerCallback that profiles `Trainer.train`; a step is one of the trainer's.

    Evaluation and checkpoints between the steps are in no step.
    """
    transformers = _library("transformers", "transformers")
    block = Block(path, options, "Hugging Face's Trainer")

    class ProfilerCallback(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, *_: Any, model: Any = None, **__: Any) -> None:
            block.begin(model)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            block.step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            block.end()

    return ProfilerCallback()


def lightning(path: str | Path = "report.sqlite", **options: Any) -> Any:
    """Return a Callback that profiles `Trainer.fit`; a step is one in which the optimizers step.

    Validation between the steps is in no step.
    """
    library = _library(next(filter(_is_there, LIGHTNING), LIGHTNING[0]), "lightning")
    block = Block(path, options, "Lightning's Trainer")

    class ProfilerCallback(library.Callback):  # type: ignore[misc, name-defined]
        last_step = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.last_step = trainer.global_step
            block.begin(module)

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step > self.last_step:  # not between batches whose gradients accumulate
                self.last_step = trainer.global_step
                block.step()

        def on_train_end(self, *_: Any) -> None:
            block.end()

        def on_exception(self, *_: Any) -> None:
            block.end()

    return ProfilerCallback()


def _library(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        message = f"this needs {extra}: pip install 'nvtx-kernels[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from None


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
