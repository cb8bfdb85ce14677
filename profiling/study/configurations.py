"""Cells of a sweep: what is measured in one process, and the product of lists that makes them."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nvtx_kernels.model.config import name_of

from .nsight import PRESETS
from .results import NSYS
from .settings import Settings, SettingsError, with_defaults

# How a cell's measured steps are watched, and the options that make `profiling.run` do so. Names that begin with
# `nsys-` run the process under that preset of `profiling.nsys`.
CAPTURES: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "bare": ("--no-annotate",),
    "recorder": ("--record", "{folder}/recording.sqlite"),
    "emit-nvtx": ("--emit-nvtx",),
}


@dataclass(frozen=True)
class Cell:
    """One configuration: settings, how it is watched, which of several repeats, how much memory it may use.

    `memory_fraction` is of the GPU's memory, on a CPU of the machine's; None leaves memory unlimited.
    """

    settings: Settings
    capture: str = "none"
    memory_fraction: float | None = None
    repeat: int = 0

    @property
    def key(self) -> dict[str, Any]:
        """Return what identifies the cell in a file of results; the optimizer does not where none runs."""
        identity = {**self.settings.by_name(), **asdict(self)}
        del identity["settings"]
        if "optimizer" not in self.settings.phases:
            identity["optimizer"] = None
        return identity

    @property
    def device(self) -> str:
        """Return the device it runs on."""
        return self.settings.device

    @property
    def label(self) -> str:
        """Return the cell in a few words, for progress and errors."""
        settings = self.settings
        words = [name_of(settings.by_name()), f"ctx{settings.context_length}", settings.mode, settings.dtype]
        extras = {
            f"b{settings.batch_size}": True,
            settings.attention: settings.attention != "reference",
            "compiled": settings.compile is True,
            str(settings.compile): isinstance(settings.compile, str),
            settings.optimizer: settings.mode == "train",
            f"w{settings.warmup}": True,
            self.capture: self.capture != "none",
            f"repeat {self.repeat + 1}": self.repeat > 0,
        }
        return " ".join([*words, *(word for word, applies in extras.items() if applies)])

    def options(self, folder: str) -> list[str]:
        """Return the options with which `profiling.run` measures this cell, files going to `folder`."""
        values = self.settings.by_name()
        compiles = values.pop("compile")
        words = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        if compiles:
            words += ["--compile"] if compiles is True else ["--compile", compiles]
        if self.memory_fraction is not None:
            words += ["--memory-fraction", str(self.memory_fraction)]
        is_nsys = self.capture.startswith(NSYS)
        watching = PRESETS[self.capture.removeprefix(NSYS)].program_options if is_nsys else CAPTURES[self.capture]
        return [*words, *(word.format(folder=folder) for word in watching)]


def product(
    lists: Mapping[str, Sequence[Any]],
    *,
    captures: Sequence[str] = ("none",),
    repeats: int = 1,
    memory_fraction: float | None = None,
) -> list[Cell]:
    """Return the cells of the product of lists of settings, without those that measure the same.

    Repeats are apart in time: all cells once, then all again. Raises SettingsError for impossible settings.
    """
    names = (*CAPTURES, *(f"{NSYS}{preset}" for preset in PRESETS))
    for capture in captures:
        if capture not in names:
            raise SettingsError(f"capture must be one of {', '.join(names)}, not {capture}")
    cells: dict[tuple[Any, ...], Cell] = {}
    for repeat, values, capture in itertools.product(range(repeats), itertools.product(*lists.values()), captures):
        settings = with_defaults(dict(zip(lists, values, strict=True)))
        cell = Cell(settings, capture, memory_fraction, repeat)
        cells.setdefault(tuple(cell.key.items()), cell)
    return list(cells.values())
