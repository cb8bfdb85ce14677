"""Measure every combination of lists of settings, each in a process of its own, and print tables.

python -m profiling.benchmark --sizes small,medium --modes forward,train --dtypes fp32,bf16
python -m profiling.benchmark --study warmup --sizes small
python -m profiling.benchmark --results benchmark.jsonl --format markdown --plot times.png
"""

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from profiling.commands import add_preset, ended, list_of

DESCRIPTION = "Measure every combination of lists of settings, each in a process of its own."
EPILOG = """\
lists     are separated by commas: --sizes small,medium. What is not given has the default of the device.
studies   set lists and tables for one question; a list that is given wins
results   every measurement is appended to a file of JSON lines at once. The same command again measures
          only what that file lacks; --again measures everything, and the latest rows count
exit      0 done, out-of-memory rows included; 1 a configuration failed, or a file could not be used;
          2 wrong usage; 130 interrupted
"""


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


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    this = argparse.ArgumentParser(
        "python -m profiling.benchmark",
        None,
        DESCRIPTION,
        EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_lists(this)
    add_preset(this, "--preset", "--model-preset")
    this.add_argument(
        "--captures", metavar="LIST", type=list_of(str), help="none, bare, recorder, nsys-light, ..."
    )
    this.add_argument("--repeats", type=int, default=1, metavar="N", help="measure everything N times, and pool")
    this.add_argument("--memory-fraction", type=float, metavar="F", help="of the device's memory that may be used")
    this.add_argument("--study", choices=STUDIES, default="times", help="the question (default times)")
    _add_running(this.add_argument_group("running"))
    _add_showing(this.add_argument_group("showing"))
    return this


def add_lists(this: argparse.ArgumentParser) -> None:
    """Add the options that are lists of settings."""
    for name, option in LISTS.items():
        this.add_argument(name, metavar="LIST", dest=option.setting, type=list_of(option.read), help=option.what)


def _add_running(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--into", metavar="FILE", type=Path, default=Path("benchmark.jsonl"), help="where rows go")
    group.add_argument("--again", action="store_true", help="measure what the file holds already, too")
    group.add_argument("--budget", type=float, metavar="S", help="begin no configuration after so many seconds")
    group.add_argument("--longest", type=float, metavar="S", help="give up a configuration after so many seconds")
    group.add_argument(
        "--results", metavar="FILE", type=Path, nargs="+", help="measure nothing; show what these hold"
    )


def _add_showing(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--table", metavar="LIST", type=list_of(str), help="the tables, instead of the study's")
    group.add_argument("--format", default="table", help="table (default), markdown, latex, typst, csv, json")
    group.add_argument("--steps-listing", action="store_true", help="print every step's time before the tables")
    group.add_argument(
        "--plot", metavar="FILE", type=Path, help="draw mean times with their spread (png, svg, pdf)"
    )
    group.add_argument("-o", "--output", metavar="FILE", type=Path, help="write the tables here")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    this = parser()
    asked = vars(this.parse_args(arguments))
    return ended(this, lambda: _work(asked))


def _work(asked: Mapping[str, Any]) -> int:
    # Pandas and PyTorch take seconds to import.
    from profiling import benchmark_screen

    return benchmark_screen.run(asked, STUDIES[asked["study"]])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
