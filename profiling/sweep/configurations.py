"""Cells of a sweep: what is measured in one process, and the product of lists that makes them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nvtx_kernels.model.config import name_of

from ..workload.settings import Settings, SettingsError, with_defaults
from .nsight import PRESETS
from .results import NSYS

# How a cell's measured steps are watched, and the options that make `profiling.run.measure_one` do so. Names
# that begin with `nsys-` run the process under that preset of `profiling.nsys`.
CAPTURES: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "bare": ("--no-annotate",),
    "recorder": ("--record", "{folder}/recording.sqlite"),
    "emit-nvtx": ("--emit-nvtx",),
}
# Settings without effect in a mode; cells that differ in them alone are one.
WITHOUT_OPTIMIZER = ("forward", "forward-backward")


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
        """Return what identifies the cell in a file of results."""
        this = {**self.settings.by_name(), **asdict(self)}
        del this["settings"]
        if self.settings.mode in WITHOUT_OPTIMIZER:
            this["optimizer"] = None
        return this

    @property
    def device(self) -> str:
        """Return the device it runs on."""
        return self.settings.device

    @property
    def label(self) -> str:
        """Return the cell in a few words, for progress and errors."""
        this = self.settings
        words = [name_of(this.by_name()), f"ctx{this.context_length}", this.mode, this.dtype]
        extras = {
            f"b{this.batch_size}": True,
            this.attention: this.attention != "reference",
            "compiled": this.compile,
            this.optimizer: this.mode == "train",
            f"w{this.warmup}": True,
            self.capture: self.capture != "none",
            f"repeat {self.repeat + 1}": self.repeat > 0,
        }
        return " ".join([*words, *(word for word, said in extras.items() if said)])

    def options(self, folder: str) -> list[str]:
        """Return the options with which `measure_one` measures this cell, files going to `folder`."""
        values = self.settings.by_name()
        compiles = ["--compile"] if values.pop("compile") else []
        words = [word for name, value in values.items() for word in (option(name), str(value))]
        limit = [] if self.memory_fraction is None else ["--memory-fraction", str(self.memory_fraction)]
        watch = preset_options(self.capture) if self.capture.startswith(NSYS) else CAPTURES[self.capture]
        return [*words, *compiles, *limit, *(word.format(folder=folder) for word in watch)]


def option(name: str) -> str:
    """Return a setting's option on a command line."""
    return f"--{name.replace('_', '-')}"


def preset_options(capture: str) -> tuple[str, ...]:
    """Return the options that an nsys preset needs for the program it watches."""
    return PRESETS[capture.removeprefix(NSYS)].program_options


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
    check_captures(captures)
    cells: dict[tuple[Any, ...], Cell] = {}
    for repeat, values, capture in itertools.product(range(repeats), _combinations(lists), captures):
        cell = Cell(with_defaults(values), capture, memory_fraction, repeat)
        cells.setdefault(tuple(cell.key.items()), cell)
    return list(cells.values())


def check_captures(captures: Sequence[str]) -> None:
    """Raise SettingsError for a way to watch that does not exist."""
    known = (*CAPTURES, *(f"{NSYS}{preset}" for preset in PRESETS))
    for capture in captures:
        if capture not in known:
            raise SettingsError(f"capture must be one of {', '.join(known)}, not {capture}")


def _combinations(lists: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*lists.values()):
        yield dict(zip(lists, values, strict=True))
