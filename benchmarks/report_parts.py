"""What `record_reports.py` measures and shows: parts, each a question and the commands that answer it."""

import sys
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


@dataclass(frozen=True)
class Command:
    """One command of a module: what it measures, and the options of the tables that show it.

    `selects` chooses the rows that tables are made of, of other parts too. Rows go to a file of results that
    several commands share, or to one of this name, so that times that depend on the host's pace stay together.
    """

    measures: str
    shows: tuple[str, ...] = ("",)
    selects: str | None = None
    file: str = "measurements"
    module: str = BENCHMARK

    @property
    def repeats(self) -> bool:
        """Return whether steps of several repeats are pooled; else those of the first are the answer."""
        return "--repeats" in self.measures


@dataclass(frozen=True)
class Part:
    """A question, and the commands that answer it."""

    title: str
    commands: tuple[Command, ...]


TIMES, RATES = "--by phase", "--by phase --phases step --columns rates,memory"
BY_DTYPE, BY_MODE = "--by dtype", "--by mode --phases step"
BY_WARMUP = "--by warmup --columns first,times --phases forward,backward,step"
# Sizes grow within a command, so that a budget cuts the longest off.
PARTS = {
    "a": Part(
        "Five sizes in three precisions, context 512",
        (
            Command(
                f"--sizes {ALL} --contexts 512 --dtypes fp32,tf32,bf16 --modes train --optimizer foreach",
                (TIMES, RATES, BY_DTYPE),
            ),
            Command(f"--sizes {ALL} --contexts 512 --dtypes fp32,tf32,bf16 --modes forward", (RATES, BY_DTYPE)),
        ),
    ),
    "d": Part(
        "What watching costs: nsys, the recorder, annotation",
        (
            Command(
                "--study overhead --sizes small --contexts 512 --modes forward,train --optimizer foreach "
                "--repeats 3"
            ),
            Command("--study overhead --sizes large --contexts 512 --modes train --optimizer foreach"),
        ),
    ),
    "c": Part(
        "Eager against compiled, reference against fused attention, context 512",
        (
            Command(
                "--sizes small --contexts 512 --dtypes bf16,fp32 --modes train --optimizer foreach "
                "--attention reference,sdpa --compile off,on",
                ("--by compile", "--by attention", RATES),
                file="compile",
            ),
            Command(
                "--sizes medium,large --contexts 512 --dtypes bf16 --modes train --optimizer foreach "
                "--attention reference,sdpa --compile off,on",
                ("--by compile", "--by attention", RATES),
                file="compile",
            ),
        ),
    ),
    "b003": Part(
        "Forward, and forward with backward, after 0, 1, 2 and 5 steps of warm-up, context 512",
        (
            Command(
                f"--study modes --sizes {ALL} --contexts 512 --dtypes fp32 --warmup 5,0,1,2", (BY_MODE, BY_WARMUP)
            ),
        ),
    ),
    "b002": Part(
        "Forward, and forward with backward, context 256",
        (
            Command(
                f"--study modes --sizes {ALL} --contexts 256 --dtypes fp32 --warmup 5,0,2", (BY_MODE, BY_WARMUP)
            ),
        ),
    ),
    "b004": Part(
        "Sizes by context, fp32 and bf16",
        (
            Command(
                "--sizes small,medium,large --contexts 128,256,512,1024 --dtypes fp32,bf16 "
                "--modes forward-backward",
                (BY_DTYPE, "--by context"),
            ),
        ),
    ),
    "n": Part(
        "Three sizes by context, without and under nsys",
        (
            Command(
                "--sizes small,medium,large --contexts 128,512,1024 --dtypes fp32 --modes forward-backward "
                "--captures none,nsys-light",
                ("--by capture",),
                file="nsys",
            ),
        ),
    ),
    "m": Part(
        "2.7B in a share of the memory: which phase fails",
        (
            Command(
                "--sizes 2.7B --contexts 128,512 --modes forward,train --optimizer foreach --memory-fraction 0.3",
                (f"{TIMES} --columns times,memory",),
                file="limited",
            ),
        ),
    ),
    "w": Part(
        "The first steps of eager and compiled models",
        (
            Command(
                "--sizes small,medium --contexts 512 --modes forward-backward --compile off,on,reduce-overhead "
                "--warmup 0 --steps 15",
                ("--by compile --columns first,times",),
                file="warmup",
            ),
        ),
    ),
    "e": Part(
        "The fastest configuration per size, context 512",
        (
            Command(
                f"--sizes {ALL} --contexts 512 --dtypes bf16 --modes train --optimizer fused --attention sdpa", ()
            ),
            Command(
                f"--sizes {ALL} --contexts 512 --dtypes bf16 --modes train --optimizer fused --attention sdpa "
                "--compile on",
                (RATES,),
                f"--sizes {ALL} --contexts 512 --modes train --captures none",
            ),
        ),
    ),
    "f": Part("Attention alone", (Command("--dtypes fp32", file="attention", module=ATTENTION),)),
    "g": Part("Precision", (Command("", module=PRECISION),)),
}


def measuring(command: Command) -> list[str]:
    """Return the arguments that measure."""
    return [sys.executable, "-m", command.module, *command.measures.split()]


def selecting(command: Command) -> list[str]:
    """Return the options that select a command's rows among those of all parts."""
    if command.module != BENCHMARK:
        return []
    if command.selects is not None:
        return command.selects.split()
    options = command.measures.split()
    usual = {name: value for name, value in DEFAULTS.items() if name not in options}
    if "overhead" not in options and "--captures" not in options:
        usual["--captures"] = "none"
    if "--repeats" in options:
        del options[options.index("--repeats") : options.index("--repeats") + 2]
    return [*options, *(word for pair in usual.items() for word in pair)]
