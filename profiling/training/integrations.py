"""Callbacks that profile the training loops of Hugging Face and Lightning, which hide their steps.

    Trainer(..., callbacks=[integrations.hugging_face("report.sqlite", warmup=2, steps=5)])
    lightning.Trainer(..., callbacks=[integrations.lightning("report.sqlite", warmup=2, steps=5)])

Options are those of `profile`. Accelerate needs none: `with profile(model, optimizer): ...` around its loop.
The libraries are imported when needed, and are not installed with this package.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["hugging_face", "lightning"]


def __dir__() -> list[str]:
    return __all__  # what completion offers


def hugging_face(path: str | Path = "report.sqlite", **options: Any) -> Any:
    """Return a TrainerCallback that profiles `Trainer.train`; a step is one of the trainer's.

    Evaluation and checkpoints between the steps are in no step.
    """
    return _callback("hugging_face_callback", "transformers")("nvtx-kernels", path, **options)


def lightning(path: str | Path = "report.sqlite", **options: Any) -> Any:
    """Return a Callback that profiles `Trainer.fit`; a step is one in which the optimizers step.

    Validation between the steps is in no step.
    """
    return _callback("lightning_callback", "lightning")(path, **options)


def _callback(module: str, extra: str) -> Any:
    """Return the callback's class; raises ModuleNotFoundError, with a remedy, without the trainer's library."""
    try:
        return import_module(f"{__package__}.{module}").ProfilerCallback
    except ModuleNotFoundError as error:
        if error.name not in ("transformers", "lightning", "pytorch_lightning"):
            raise
        message = f"this needs {extra}: pip install 'nvtx-kernels[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from None
