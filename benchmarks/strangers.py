"""Hold the phases of other people's programs against the clock: ours, and the time windows of their ranges.

python benchmarks/strangers.py OUT              # one GPU: all single-GPU programs in one report
python benchmarks/strangers.py OUT --gpus 2     # also DataParallel, FSDP2, tensor parallel and a pipeline
python benchmarks/strangers.py OUT --annotated  # phases from annotate_modules alone; marks say what the clock saw
python benchmarks/strangers.py OUT --cpu        # try it on a CPU, with the recorder instead of nsys

Every phase ends with a synchronization, so that the time of a piece of work says its phase. Prints a row per
program: its kernels, each phase's time ours / by the clock, what is in a wrong phase, and the ambiguous share.
"""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.analysis.attribution.causes import HOW, Attribution, attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.vocabulary import PHASES
from nvtx_kernels.profiling.sweep.nsight import export_command, find_nsys, profile_command

HERE = Path(__file__).resolve().parent
NAMES = ("forward", "backward", "optimizer")
RANGES = """
SELECT COALESCE(text, value), start, end, globalTid >> 24 & 0xFFFFFF FROM NVTX_EVENTS
LEFT JOIN StringIds ON id = textId WHERE eventType = 59 AND end IS NOT NULL"""
# A mark that begins something, and the next one on its thread that ends the same.
MARKS = """
WITH marks AS (SELECT COALESCE(text, value) AS name, start, globalTid FROM NVTX_EVENTS
    LEFT JOIN StringIds ON id = textId WHERE eventType = 34)
SELECT substr(name, 9), start,
    (SELECT min(start) FROM marks e WHERE e.globalTid = b.globalTid AND e.start >= b.start
        AND e.name = 'ends: ' || substr(b.name, 9)),
    globalTid >> 24 & 0xFFFFFF FROM marks b WHERE name LIKE 'begins: %' ORDER BY start"""


@dataclass
class Verdict:
    """What one program's work came to, ns by phase: by our attribution, and by the clock."""

    kernels: int = 0
    ours: Counter[str] = field(default_factory=Counter)
    clock: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    ambiguous: int = 0
    unknown: int = 0  # in no phase by the clock


def verdicts(path: Path) -> dict[str, Verdict]:
    """Judge all programs of a report."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        ranges = database.execute(MARKS).fetchall() or database.execute(RANGES).fetchall()
    windows = [row for row in ranges if row[0] in NAMES]
    found: dict[str, Verdict] = {}
    attribution = attribute(read(path))
    for name in dict.fromkeys(row[0] for row in ranges if row[0].startswith("program ")):
        verdict = found[name.removeprefix("program ")] = Verdict()
        for _, start, end, process in (row for row in ranges if row[0] == name):
            inside = [w for w in windows if w[3] == process and start <= w[1] and w[2] <= end]
            judge(verdict, attribution, (start, end, process), inside)
    return found


def judge(
    verdict: Verdict,
    attribution: Attribution,
    program: tuple[int, int, int],
    windows: list[tuple[str, int, int, int]],
) -> None:
    """Add the work of one process in one program."""
    work, trace = attribution.trace.work, attribution.trace
    start, end, process = program
    mine = np.array([p.process_id & 0xFFFFFF == process for p in trace.processes])[work.process]
    for row in np.flatnonzero(mine & (work.start_ns >= start) & (work.end_ns <= end)).tolist():
        at, done = int(work.start_ns[row]), int(work.end_ns[row])
        told = [name for name, opened, closed, _ in windows if opened <= at and done <= closed]
        phase, how, ns = PHASES[attribution.phase[row]], HOW[attribution.how[row]], done - at
        verdict.kernels += int(work.kind[row] == 0)
        verdict.ours[phase] += ns
        verdict.ambiguous += ns * (how == "ambiguous")
        verdict.unknown += ns * (not told)
        if told:
            verdict.clock[told[0]] += ns
            verdict.wrong += ns * (phase != told[0])


def table(found: dict[str, Verdict]) -> str:
    """Return one line per program."""
    phases = ("forward", "backward", "optimizer")
    head = " ".join(f"{phase + ' ours/clock':>22}" for phase in phases)
    lines = [f"{'program':<32} {'kernels':>7} {head} {'wrong':>9} {'unknown':>9} {'ambiguous':>9}  ms"]
    for name, one in found.items():
        pairs = " ".join(f"{one.ours[p] / 1e6:>11.3f}/{one.clock[p] / 1e6:<10.3f}" for p in phases)
        share = one.ambiguous / max(1, sum(one.ours.values()))
        rest = f"{one.wrong / 1e6:>9.3f} {one.unknown / 1e6:>9.3f} {share:>9.2%}"
        lines.append(f"{name:<32} {one.kernels:>7} {pairs} {rest}")
    return "\n".join(lines)


def recorded(out: Path, programs: str, only: str, annotated: bool) -> Path:
    """Run a set of programs under nsys, and export its report."""
    nsys, report = find_nsys(), out / f"{programs}.nsys-rep"
    launcher = ["torchrun", "--standalone", "--nproc-per-node", "2"] if programs == "pair" else [sys.executable]
    program = [*launcher, str(HERE / "stranger_programs.py"), programs, "--only", only]
    program += ["--annotated"] * annotated
    subprocess.run(profile_command(nsys, program, report, preset="graphs"), check=True)
    subprocess.run(export_command(nsys, report), check=True)
    return report.with_suffix(".sqlite")


def on_cpu(out: Path, only: str) -> Path:
    """Run the single-GPU programs on the CPU, under the recorder."""
    import torch
    from nvtx_kernels.profiling.recorder import record
    from stranger_programs import SINGLE, run

    path = out / "cpu.sqlite"
    with record(path, device="cpu"):
        for name, build in SINGLE.items():
            if only in name:
                run(name, build, torch.device("cpu"))
    return path


def main() -> None:
    """Record, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    parser.add_argument("--only", default="", help="only programs with this in their names")
    parser.add_argument("--annotated", action="store_true", help="annotate the models, and open no range")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--read", type=Path, nargs="*", help="judge these reports, recording none")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sets = ("single",) if options.gpus == 1 else ("replicas", "pair")
    if options.read:
        reports = options.read
    elif options.cpu:
        reports = [on_cpu(options.out, options.only)]
    else:
        reports = [recorded(options.out, programs, options.only, options.annotated) for programs in sets]
    for report in reports:
        print(table(verdicts(report)), flush=True)


if __name__ == "__main__":
    main()
