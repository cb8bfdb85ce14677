"""The settings that can be lists, and the studies: named questions with the lists and table that answer them."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..cli import list_of


class Option(NamedTuple):
    """An option that is a list: the setting it is about, how an element is read, what it is."""

    setting: str
    read: Callable[[str], Any]
    what: str


COMPILE = {"on": True, "off": False, "reduce-overhead": "reduce-overhead"}
LISTS = {
    "--sizes": Option("size", str, "tiny, small, medium, large, xl, 2.7B, 10B"),
    "--contexts": Option("context_length", int, "tokens in a sequence"),
    "--d-model": Option("d_model", int, "the model's width, instead of the sizes' own"),
    "--d-ff": Option("d_ff", int, "the feed-forward's width, instead of the sizes' own"),
    "--layers": Option("layers", int, "layers, instead of the sizes' own"),
    "--heads": Option("heads", int, "attention heads, instead of the sizes' own"),
    "--vocab-size": Option("vocab_size", int, "tokens in the vocabulary, instead of the sizes' own"),
    "--batch-sizes": Option("batch_size", int, "sequences in a batch"),
    "--modes": Option("mode", str, "forward, forward-backward, train"),
    "--dtypes": Option("dtype", str, "fp32, tf32, bf16, fp16"),
    "--attention": Option("attention", str, "reference, sdpa"),
    "--compile": Option("compile", COMPILE.__getitem__, ", ".join(COMPILE)),
    "--optimizer": Option("optimizer", str, "reference, forloop, foreach, fused"),
    "--warmup": Option("warmup", int, "steps before measuring"),
    "--steps": Option("steps", int, "measured steps"),
    "--seed": Option("seed", int, "of weights and tokens"),
    "--device": Option("device", str, "cuda, cuda:1, cpu"),
}
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
    "attention": Study("attention", {"attention": ("reference", "sdpa")}),
    "context": Study("context", {"context_length": (128, 256, 512, 1024)}),
    "precision": Study("dtype", {"dtype": ("fp32", "tf32", "bf16")}),
    "optimizer": Study("optimizer", {"optimizer": ("reference", "forloop", "foreach", "fused")}),
}


def add_lists(options: argparse.ArgumentParser) -> None:
    """Add the options that are lists of settings."""
    for name, option in LISTS.items():
        options.add_argument(
            name, metavar="LIST", dest=option.setting, type=list_of(option.read), help=option.what
        )
