"""The settings that can be lists, and the studies: named questions with the lists and table that answer them."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvtx_kernels.analysis.vocabulary.settings import CHOICES, SETTINGS
from nvtx_kernels.model.config import SIZES_OF_YEAR, YEAR, size_in

from ..cli import Removed, list_of

#: How sweeps are written and what they leave: the end of `nvtx-kernels help sweeps`.
OF_SWEEPS = """\
lists     are separated by commas: --sizes small,medium. Settings without a list have the device's default
studies   set lists and the table for one question; lists, --by and --columns on the command line take precedence
table     a line per configuration and phase; --by NAME compares the values of a setting with the first
results   every measurement is appended to a file of JSON lines at once. The same command again only measures
          the rest; --again measures everything, and the latest rows count
program   `benchmark train.py --epochs 1` times forward, backward and optimizer of each step, waiting for the
          device around each. The program is stopped after --warmup steps (5) and --steps more (10). A list of
          --warmup gives a line for each value, from one run. Other settings do not apply: the program has its own
"""
# The kinds of attention that can be measured alone.
KINDS = ("reference", "compiled", "sdpa")
COMPILE = {"on": True, "off": False, "reduce-overhead": "reduce-overhead"}
# What `--by` compares, and the setting that it is.
BY = {
    "phase": "phase",
    "mode": "mode",
    "warmup": "warmup",
    "capture": "capture",
    "compile": "compile",
    "attention": "attention",
    "dtype": "dtype",
    "optimizer": "optimizer",
    "context": "context_length",
    "batch": "batch_size",
    "size": "size",
    "kind": "kind",
}
COLUMNS = ("times", "first", "rates", "memory")


@dataclass(frozen=True)
class Study:
    """A question: the lists it needs, the setting that its table compares, its phases and groups of columns."""

    by: str = "phase"
    lists: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    captures: tuple[str, ...] = ("none",)
    columns: tuple[str, ...] = ("times",)
    phases: tuple[str, ...] = ()


STUDIES = {
    "times": Study(),
    "warmup": Study("warmup", {"warmup": (0, 1, 2, 5)}, columns=("first", "times")),
    "modes": Study("mode", {"mode": ("forward", "forward-backward")}, phases=("step",)),
    "overhead": Study("capture", captures=("none", "bare", "recorder", "nsys-light")),
    "compile": Study("compile", {"compile": (False, True)}),
    "attention": Study("attention", {"attention": CHOICES["attention"]}),
    "context": Study("context", {"context_length": (128, 256, 512, 1024)}),
    "precision": Study("dtype", {"dtype": ("fp32", "tf32", "bf16")}),
    "optimizer": Study("optimizer", {"optimizer": CHOICES["optimizer"]}),
}


def add_year(options: argparse._ActionsContainer, *removed: str) -> None:
    """Add the option for the year whose handout names the sizes, and refuse its earlier names."""
    options.add_argument(
        "--year",
        choices=SIZES_OF_YEAR,
        help=f"the year whose handout names the sizes (default {YEAR}); the xl of 2026 is 2.7B",
    )
    options.add_argument(*removed, action=Removed, use="--year {}")


def add_lists(options: argparse.ArgumentParser, *removed: str) -> None:
    """Add the options that are lists of settings, in their group, and refuse the year's earlier names."""
    group = options.add_argument_group("lists of settings")
    for name, setting in SETTINGS.items():
        option = setting.lists or f"--{name.replace('_', '-')}"
        text = setting.help or ", ".join(setting.choices)
        read = COMPILE.__getitem__ if name == "compile" else str if setting.least is None else int
        group.add_argument(
            option,
            metavar="LIST",
            dest=name,
            type=list_of(read),
            help=text,
        )
    add_year(group, *removed)


def lists_of(options: Mapping[str, Any], study: Study) -> dict[str, Sequence[Any]]:
    """Return the requested lists of settings, completed by a study's, with our names of sizes."""
    lists = dict(study.lists)
    lists |= {name: options[name] for name in SETTINGS if options[name]}
    if "size" in lists:
        lists["size"] = [size_in(options["year"], size) for size in lists["size"]]
    return lists
