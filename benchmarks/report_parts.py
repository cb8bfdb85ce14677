"""What `record_reports.py` measures and shows: parts, each a question and the commands that answer it."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ALL = "small,medium,large,xl,2.7B"
BENCHMARK, ATTENTION, PRECISION = "profiling.benchmark", "profiling.attention", "profiling.precision"


# What a page shows of a file of results where a command leaves a setting to its default on a GPU.
DEFAULTS = {
    "--dtypes": "fp32",
    "--batch-sizes": "4",
    "--attention": "reference",
    "--compile": "off",
    "--optimizer": "reference",
    "--warmup": "5",
    "--steps": "10",
}


# Defaults that are others on a CPU.
OF_DEVICE = ("--batch-sizes", "--warmup", "--steps")
# What a try-out measures instead.
SMALLER = {"--sizes": "tiny", "--contexts": "16", "--repeats": "1", "--dtypes": "fp32,bf16"}
SMALLER_WORK = {
    BENCHMARK: ("--steps", "2"),
    ATTENTION: ("--dims", "16", "--lengths", "64", "--steps", "2", "--kinds", "reference,sdpa"),
}


@dataclass(frozen=True)
class Command:
    """One command: a module, what it measures, and the tables that show it, none where another's hold its rows.

    `selects` chooses the rows that tables are made of, of other parts too. Rows go to a file of results that
    several commands share, or to one of this name, so that times that depend on the host's pace stay together.
    """

    module: str
    measures: str
    tables: str = ""
    selects: str | None = None
    file: str = ""

    @property
    def repeats(self) -> bool:
        """Return whether steps of several repeats are pooled; else those of the first are the answer."""
        return "--repeats" in self.measures

    @property
    def rows(self) -> str:
        """Return the name of the file of results, without number and ending."""
        return self.file or ("attention" if self.module == ATTENTION else "measurements")


@dataclass(frozen=True)
class Part:
    """A question, and the commands that answer it."""

    title: str
    commands: tuple[Command, ...]


def _benchmark(measures: str, tables: str, selects: str | None = None, *, file: str = "") -> Command:
    return Command(BENCHMARK, measures, tables, selects, file)


# Sizes grow within a command, so that a budget cuts the longest off.
PARTS = {
    "a": Part(
        "Five sizes in three precisions, context 512",
        (
            _benchmark(
                f"--sizes {ALL} --contexts 512 --dtypes fp32,tf32,bf16 --modes train --optimizer foreach",
                "summary,backward,throughput,memory,dtype",
            ),
            _benchmark(
                f"--sizes {ALL} --contexts 512 --dtypes fp32,tf32,bf16 --modes forward",
                "summary,throughput,memory,dtype",
            ),
        ),
    ),
    "d": Part(
        "What watching costs: nsys, the recorder, annotation",
        (
            _benchmark(
                "--study overhead --sizes small --contexts 512 --modes forward,train --optimizer foreach "
                "--repeats 3",
                "capture",
            ),
            _benchmark(
                "--study overhead --sizes large --contexts 512 --modes train --optimizer foreach",
                "capture",
            ),
        ),
    ),
    "c": Part(
        "Eager against compiled, reference against fused attention, context 512",
        (
            _benchmark(
                "--sizes small --contexts 512 --dtypes bf16,fp32 --modes train --optimizer foreach "
                "--attention reference,sdpa --compile off,on",
                "summary,compile,attention,throughput",
                file="compile",
            ),
            _benchmark(
                "--sizes medium,large --contexts 512 --dtypes bf16 --modes train --optimizer foreach "
                "--attention reference,sdpa --compile off,on",
                "summary,compile,attention,throughput",
                file="compile",
            ),
        ),
    ),
    "b003": Part(
        "Forward, and forward with backward, after 0, 1, 2 and 5 steps of warm-up, context 512",
        (
            _benchmark(
                f"--study modes --sizes {ALL} --contexts 512 --dtypes fp32 --warmup 5,0,1,2",
                "modes,warmup",
            ),
        ),
    ),
    "b002": Part(
        "Forward, and forward with backward, context 256",
        (_benchmark(f"--study modes --sizes {ALL} --contexts 256 --dtypes fp32 --warmup 5,0,2", "modes,warmup"),),
    ),
    "b004": Part(
        "Sizes by context, fp32 and bf16",
        (
            _benchmark(
                "--sizes small,medium,large --contexts 128,256,512,1024 --dtypes fp32,bf16 "
                "--modes forward-backward",
                "summary,dtype,context",
            ),
        ),
    ),
    "e": Part(
        "The fastest configuration per size, context 512",
        (
            _benchmark(
                f"--sizes {ALL} --contexts 512 --dtypes bf16 --modes train --optimizer fused --attention sdpa",
                "",
            ),
            _benchmark(
                f"--sizes {ALL} --contexts 512 --dtypes bf16 --modes train --optimizer fused --attention sdpa "
                "--compile on",
                "fastest,summary,throughput",
                f"--sizes {ALL} --contexts 512 --modes train --captures none",
            ),
        ),
    ),
    "f": Part("Attention alone", (Command(ATTENTION, "--dtypes fp32"),)),
    "g": Part("Precision", (Command(PRECISION, ""),)),
}


def measuring(command: Command, *, tiny: bool = False) -> list[str]:
    """Return the arguments that measure, of a tiny model where that is asked for."""
    options = command.measures.split()
    return [sys.executable, "-m", command.module, *(_smaller(command, options) if tiny else options)]


def selecting(command: Command, *, tiny: bool = False) -> list[str]:
    """Return the options that select a command's rows among those of all parts."""
    if command.module != BENCHMARK:
        return []
    if command.selects is not None:
        options = command.selects.split()
        return list(_smaller(command, options)) if tiny else options
    options = measuring(command, tiny=tiny)[3:]
    usual = {name: value for name, value in DEFAULTS.items() if name not in options}
    if "overhead" not in options:
        usual["--captures"] = "none"
    if "--repeats" in options:
        del options[options.index("--repeats") : options.index("--repeats") + 2]
    return [*options, *(word for pair in usual.items() for word in pair if not tiny or pair[0] not in OF_DEVICE)]


def _smaller(command: Command, options: Sequence[str]) -> Iterator[str]:
    """Yield options with a tiny model, contexts of 16, few steps."""
    for option, value in zip(("", *options), options, strict=False):
        yield SMALLER.get(option, value)
    yield from SMALLER_WORK.get(command.module, ())
