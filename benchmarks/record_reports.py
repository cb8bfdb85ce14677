"""Measure on one GPU what `reports/` holds: every row of the published tables, and the studies.

python benchmarks/record_reports.py OUT a b002 --budget 540
python benchmarks/record_reports.py OUT --pages

Parts, the most important first; each is a list of commands of `profiling` that go on where they were stopped,
so the same command again finishes what a budget cut short. Rows of all parts go to OUT/measurements*.jsonl
and OUT/attention*.jsonl; files from several machines or GPUs may lie side by side. `--pages` measures
nothing: it writes OUT/PART.md, and OUT/PART.png where matplotlib is installed.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ALL = "small,medium,large,xl,2.7B"
BENCHMARK, ATTENTION, PRECISION = "profiling.benchmark", "profiling.attention", "profiling.precision"


@dataclass(frozen=True)
class Command:
    """One command: a module, what it measures, and how its tables are shown."""

    module: str
    measures: str
    shows: str = ""

    @property
    def key(self) -> str:
        """Return the name of the file of results, without number and ending."""
        return "attention" if self.module == ATTENTION else "measurements"


@dataclass(frozen=True)
class Part:
    """A question, and the commands that answer it."""

    title: str
    commands: tuple[Command, ...]


def _benchmark(measures: str, shows: str) -> Command:
    return Command(BENCHMARK, measures, shows)


# Sizes grow within a command, so that a budget cuts the longest off.
PARTS = {
    "a": Part(
        "Five sizes in three precisions, context 512",
        (
            _benchmark(
                f"--sizes {ALL} --contexts 512 --dtypes fp32,tf32,bf16 --modes train --optimizer foreach",
                "--table summary,backward,throughput,memory,dtype",
            ),
            _benchmark(
                f"--sizes {ALL} --contexts 512 --dtypes fp32,tf32,bf16 --modes forward",
                "--table summary,throughput,memory,dtype",
            ),
        ),
    ),
    "d": Part(
        "What watching costs: nsys, the recorder, annotation",
        (
            _benchmark(
                "--study overhead --sizes small --contexts 512 --modes forward,train --optimizer foreach "
                "--repeats 3",
                "--table capture",
            ),
            _benchmark(
                "--study overhead --sizes large --contexts 512 --modes train --optimizer foreach",
                "--table capture",
            ),
        ),
    ),
    "c": Part(
        "Eager against compiled, reference against fused attention, context 512",
        (
            _benchmark(
                "--sizes small --contexts 512 --dtypes bf16,fp32 --modes train --optimizer foreach "
                "--attention reference,sdpa --compile off,on",
                "--table summary,compile,attention,throughput",
            ),
            _benchmark(
                "--sizes medium,large --contexts 512 --dtypes bf16 --modes train --optimizer foreach "
                "--attention reference,sdpa --compile off,on",
                "--table summary,compile,attention,throughput",
            ),
        ),
    ),
    "b003": Part(
        "Forward, and forward with backward, after 0, 1, 2 and 5 steps of warm-up, context 512",
        (
            _benchmark(
                f"--study modes --sizes {ALL} --contexts 512 --dtypes fp32 --warmup 5,0,1,2",
                "--table modes,warmup",
            ),
        ),
    ),
    "b002": Part(
        "Forward, and forward with backward, context 256",
        (
            _benchmark(
                f"--study modes --sizes {ALL} --contexts 256 --dtypes fp32 --warmup 5,0,2", "--table modes,warmup"
            ),
        ),
    ),
    "b004": Part(
        "Sizes by context, fp32 and bf16",
        (
            _benchmark(
                "--sizes small,medium,large --contexts 128,256,512,1024 --dtypes fp32,bf16 "
                "--modes forward-backward",
                "--table summary,dtype,context",
            ),
        ),
    ),
    "e": Part(
        "The fastest configuration per size, context 512",
        (
            _benchmark(
                f"--sizes {ALL} --contexts 512 --dtypes bf16 --modes train --optimizer fused --attention sdpa",
                "--table summary,throughput",
            ),
            _benchmark(
                f"--sizes {ALL} --contexts 512 --dtypes bf16 --modes train --optimizer fused --attention sdpa "
                "--compile on",
                "--table fastest",
            ),
        ),
    ),
    "f": Part("Attention alone", (Command(ATTENTION, "--dtypes fp32"),)),
    "g": Part("Precision", (Command(PRECISION, ""),)),
}
# The table of part e looks at every training step at its context, whatever its precision and attention.
FASTEST = f"--sizes {ALL} --contexts 512 --modes train"


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    this = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    this.add_argument("out", type=Path, help="the folder that everything goes to")
    this.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default, in this order")
    this.add_argument("--budget", type=float, default=540, help="seconds for this invocation (default 540)")
    this.add_argument("--device", default="cuda", help="cuda (default), cuda:1, cpu")
    this.add_argument("--number", default="", help="of the files of results, where several run side by side")
    this.add_argument("--pages", action="store_true", help="measure nothing; write tables and plots")
    this.add_argument("--try-out", action="store_true", help="measure a tiny model instead, to see that all works")
    return this


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or write pages; return 1 if a command failed."""
    this = parser()
    asked = this.parse_args(arguments)
    names = asked.parts or list(PARTS)
    if unknown := set(names) - set(PARTS):
        this.error(f"no such part: {', '.join(sorted(unknown))}")
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.pages:
        from report_pages import write_pages

        return write_pages(asked.out, {name: PARTS[name] for name in names})
    return _measure(asked, names)


def _measure(asked: argparse.Namespace, names: Sequence[str]) -> int:
    """Run the parts' commands until the budget is spent, whatever becomes of each."""
    deadline, failed = time.monotonic() + asked.budget, 0
    for name in names:
        for command in PARTS[name].commands:
            left_s = deadline - time.monotonic()
            if left_s < 1:
                print(f"{name}: the budget of {asked.budget:g} s is spent", flush=True)
                return failed
            failed |= _run(name, command, asked, left_s)
    return failed


def _run(name: str, command: Command, asked: argparse.Namespace, left_s: float) -> int:
    words = [*measuring(command, asked), "--device", asked.device]
    if command.module != PRECISION:
        rows = asked.out / f"{command.key}{asked.number}.jsonl"
        words += ["--into", str(rows), "--budget", f"{left_s:.0f}"]
    began_s = time.monotonic()
    try:
        with (asked.out / f"{name}{asked.number}.log").open("a") as log:
            print("$ python", *words[1:], file=log, flush=True)
            status = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, timeout=left_s + 60).returncode
    except subprocess.TimeoutExpired:
        status = 1
    print(f"{name}: status {status} after {time.monotonic() - began_s:.0f} s: {' '.join(words[2:])}", flush=True)
    return int(status != 0)


def measuring(command: Command, asked: argparse.Namespace) -> list[str]:
    """Return the arguments that measure, in small where that is asked for."""
    options = command.measures.split()
    if asked.try_out:
        options = list(_tiny(command, options))
    return [sys.executable, "-m", command.module, *options]


def _tiny(command: Command, options: Sequence[str]) -> Iterator[str]:
    """Yield options with a tiny model, contexts of 16, few steps."""
    smaller = {"--sizes": "tiny", "--contexts": "16", "--repeats": "1", "--dtypes": "fp32,bf16"}
    for option, value in zip(("", *options), options, strict=False):
        yield smaller.get(option, value)
    if command.module == BENCHMARK:
        yield from ("--steps", "2")
    if command.module == ATTENTION:
        yield from ("--dims", "16", "--lengths", "64", "--steps", "2", "--kinds", "reference,sdpa")


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    sys.exit(main())
