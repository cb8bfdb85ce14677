"""The settings that can be lists, and the studies: named questions with the lists and table that answer them."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvtx_kernels.model.config import CONFIGS, SIZES_OF_YEAR, YEAR, size_in

from ..cli import Removed, list_of

# What a setting can be, in the order of a table's lines.
CHOICES: Mapping[str, Sequence[Any]] = {
    "size": tuple(CONFIGS),
    "mode": ("forward", "forward-backward", "train"),
    "dtype": ("fp32", "tf32", "bf16", "fp16"),
    "attention": ("reference", "sdpa"),
    "compile": (False, True, "reduce-overhead"),
    "optimizer": ("reference", "forloop", "foreach", "fused"),
}
# The kinds of attention that can be measured alone.
KINDS = ("reference", "compiled", "sdpa")
COMPILE = {"on": True, "off": False, "reduce-overhead": "reduce-overhead"}
# The settings that can be lists: the option of each, how an element is read, what it is.
LISTS: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "size": ("--sizes", str, ", ".join(CHOICES["size"])),
    "context_length": ("--contexts", int, "tokens in a sequence"),
    "d_model": ("--d-model", int, "the model's width, instead of the sizes' own"),
    "d_ff": ("--d-ff", int, "the feed-forward's width, instead of the sizes' own"),
    "layers": ("--layers", int, "layers, instead of the sizes' own"),
    "heads": ("--heads", int, "attention heads, instead of the sizes' own"),
    "vocab_size": ("--vocab-size", int, "tokens in the vocabulary, instead of the sizes' own"),
    "batch_size": ("--batch-sizes", int, "sequences in a batch"),
    "mode": ("--modes", str, ", ".join(CHOICES["mode"])),
    "dtype": ("--dtypes", str, ", ".join(CHOICES["dtype"])),
    "attention": ("--attention", str, ", ".join(CHOICES["attention"])),
    "compile": ("--compile", COMPILE.__getitem__, ", ".join(COMPILE)),
    "optimizer": ("--optimizer", str, ", ".join(CHOICES["optimizer"])),
    "warmup": ("--warmup", int, "steps before measuring"),
    "steps": ("--steps", int, "measured steps"),
    "seed": ("--seed", int, "of weights and tokens"),
    "device": ("--device", str, "cuda, cuda:1, cpu"),
}
# What `--by` compares, and the setting that it is.
BY = {
    **{name: name for name in ("phase", "mode", "warmup", "capture", "compile", "attention", "dtype")},
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


def add_year(options: argparse.ArgumentParser, *removed: str) -> None:
    """Add the option for the year whose handout names the sizes, and refuse its earlier names."""
    options.add_argument(
        "--year",
        choices=SIZES_OF_YEAR,
        help=f"the year whose handout names the sizes (default {YEAR}); the xl of 2026 is 2.7B",
    )
    options.add_argument(*removed, action=Removed, use="--year {}")


def add_lists(options: argparse.ArgumentParser) -> None:
    """Add the options that are lists of settings."""
    for setting, (option, read, what) in LISTS.items():
        options.add_argument(option, metavar="LIST", dest=setting, type=list_of(read), help=what)


def lists_of(options: Mapping[str, Any], study: Study) -> dict[str, Sequence[Any]]:
    """Return the requested lists of settings, completed by a study's, with our names of sizes."""
    lists = {**study.lists, **{name: options[name] for name in LISTS if options[name]}}
    if "size" in lists:
        lists["size"] = [size_in(options["year"], size) for size in lists["size"]]
    return lists
