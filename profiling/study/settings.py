"""The settings of a run, checked, with the defaults of its device."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from nvtx_kernels.analysis.errors import UsageError
from nvtx_kernels.analysis.vocabulary.settings import SETTINGS
from nvtx_kernels.model.config import DIMENSIONS, Attention, ModelConfig, changed, config_of, size_in

# What a mode runs in each step, in order. `forward` encloses the loss wherever there is a backward.
PHASES_OF_MODE = {
    "forward": ("forward",),
    "forward-backward": ("forward", "backward"),
    "train": ("forward", "backward", "optimizer"),
}
# `tf32` allows TF32 in FP32 matrix products; `bf16` and `fp16` are autocast over FP32 parameters. fp16
# runs without a GradScaler: it adds kernels of its own, and these runs measure time, not convergence.
AUTOCAST_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The defaults on a CPU that differ from those of `Settings`, the assignment's: the same model with less work.
LESS_ON_CPU = {"context_length": 64, "batch_size": 1, "warmup": 1, "steps": 3}


class SettingsError(UsageError, ValueError):
    """The settings cannot be run; the text is a sentence for the user."""


@dataclass(frozen=True)
class Settings:
    """One run: model, batch, what a step does, how often. Raises SettingsError for settings that cannot be run.

    `size` is a name of CONFIGS; the dimensions at the end are None where the size decides.
    """

    size: str = "small"
    context_length: int = 512
    batch_size: int = 4
    mode: str = "train"
    dtype: str = "fp32"
    attention: Attention = "reference"
    compile: bool | str = False
    optimizer: str = "reference"
    warmup: int = 5
    steps: int = 10
    seed: int = 0
    device: str = "cuda"
    d_model: int | None = None
    d_ff: int | None = None
    layers: int | None = None
    heads: int | None = None
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            value = getattr(self, name)
            if setting.choices and value not in setting.choices:
                names = ", ".join(map(str, setting.choices))
                raise SettingsError(f"{name} must be one of {names}, not {value}")
            if setting.least is not None and value is not None and value < setting.least:
                raise SettingsError(f"{name} must be ≥ {setting.least}, not {value}")
        try:
            config_of(asdict(self))
        except ValueError as error:
            raise SettingsError(str(error)) from error
        check_device(self.device)

    @property
    def config(self) -> ModelConfig:
        """Return the model's dimensions."""
        return config_of(asdict(self))

    def by_name(self) -> dict[str, Any]:
        """Return the settings by name, and the model's dimensions that differ from its size."""
        values = asdict(self)
        left_out = DIMENSIONS.keys() - changed(values).keys()
        return {name: value for name, value in values.items() if name not in left_out}

    @property
    def phases(self) -> tuple[str, ...]:
        """Return the phases of one step, in order."""
        return PHASES_OF_MODE[self.mode]

    @property
    def device_type(self) -> str:
        """Return the kind of device, `cuda` for `cuda:1`."""
        return self.device.partition(":")[0]


def check_device(device: str) -> None:
    """Raise SettingsError for a device that does not exist here."""
    name, _, index = device.partition(":")
    if name not in ("cuda", "cpu") or (index and not index.isdecimal()):
        raise SettingsError(f"device must be cuda, cuda:N or cpu, not {device}")
    if name == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise SettingsError(f"{device} is not available: PyTorch sees {torch.cuda.device_count()} CUDA GPUs")


def default_device() -> str:
    """Return the device that a run uses when its options name none."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def with_defaults(options: Mapping[str, Any]) -> Settings:
    """Complete the given settings (None means not given) with the defaults of the device.

    `year` is the year whose handout names the size, one of SIZES_OF_YEAR.
    """
    device = options.get("device") or default_device()
    defaults = LESS_ON_CPU if device.partition(":")[0] == "cpu" else {}
    names = {field.name for field in fields(Settings)}
    chosen = {name: value for name, value in options.items() if name in names and value is not None}
    if "size" in chosen:
        chosen["size"] = size_in(options.get("year"), chosen["size"])
    return Settings(**{**defaults, **chosen, "device": device})


def apply_precision(settings: Settings) -> None:
    """Set the process-wide precision of FP32 matrix products, TF32 or not, as the settings ask."""
    torch.set_float32_matmul_precision("high" if settings.dtype == "tf32" else "highest")


def autocast(settings: Settings) -> AbstractContextManager[Any]:
    """Return the context in which the forward pass and the loss run."""
    dtype = AUTOCAST_DTYPE.get(settings.dtype)
    return nullcontext() if dtype is None else torch.autocast(settings.device_type, dtype)
