"""The settings that can be lists, and the studies: named questions with the lists and tables that answer them."""

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


def _switch(word: str) -> bool:
    return {"on": True, "off": False}[word]


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
    "--compile": Option("compile", _switch, "off, on"),
    "--optimizer": Option("optimizer", str, "reference, forloop, foreach, fused"),
    "--warmup": Option("warmup", int, "steps before measuring"),
    "--steps": Option("steps", int, "measured steps"),
    "--seed": Option("seed", int, "of weights and tokens"),
    "--device": Option("device", str, "cuda, cuda:1, cpu"),
}


@dataclass(frozen=True)
class Study:
    """A question: the lists it needs, and the tables that answer it."""

    tables: tuple[str, ...]
    lists: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    captures: tuple[str, ...] = ("none",)


STUDIES = {
    "times": Study(("times", "summary", "backward", "throughput", "memory")),
    "warmup": Study(("warmup",), {"warmup": (0, 1, 2, 5)}),
    "modes": Study(("modes",), {"mode": ("forward", "forward-backward")}),
    "overhead": Study(("capture",), captures=("none", "bare", "recorder", "nsys-light")),
    "compile": Study(("compile",), {"compile": (False, True)}),
    "attention": Study(("attention",), {"attention": ("reference", "sdpa")}),
    "context": Study(("summary", "context"), {"context_length": (128, 256, 512, 1024)}),
    "precision": Study(("dtype",), {"dtype": ("fp32", "tf32", "bf16")}),
    "optimizer": Study(("optimizer",), {"optimizer": ("reference", "forloop", "foreach", "fused")}),
}


def add_lists(this: argparse.ArgumentParser) -> None:
    """Add the options that are lists of settings."""
    for name, option in LISTS.items():
        this.add_argument(name, metavar="LIST", dest=option.setting, type=list_of(option.read), help=option.what)
