"""Hold the phases of other people's programs against the clock: ours, and the time windows of their ranges.

python benchmarks/strangers.py OUT              # one GPU: all single-GPU programs in one report
python benchmarks/strangers.py OUT --gpus 2     # also DataParallel, FSDP2, tensor parallel and a pipeline
python benchmarks/strangers.py OUT --annotated  # phases from annotate_modules alone; marks say what the clock saw
python benchmarks/strangers.py OUT --cpu        # try it on a CPU, with the recorder instead of nsys
python benchmarks/strangers.py OUT --profiled [--gpus 2]   # steps by nk.profile alone, per measured step

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
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.vocabulary import PHASES
from nvtx_kernels.profiling.nsys_program import find_nsys
from nvtx_kernels.profiling.study.nsight import export_command, profile_command

WARM_UP = 1  # of each program of step_programs.py
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


WORK = """
SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL UNION ALL SELECT start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY
UNION ALL SELECT start, end FROM CUPTI_ACTIVITY_KIND_MEMSET"""


def per_step(path: Path) -> tuple[int, int, Counter[str], Counter[str]]:
    """Return a report's steps and the program's iterations, and ns of work a step by phase: ours, by the clock.

    By the clock, work is in the shortest phase of the program that it ran in, of the iterations after warm-up.
    """
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        # A window without an end was open when recording ended.
        windows = [row[:3] for row in database.execute(MARKS) if row[2] is not None]
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        parts = [part for part in WORK.split("UNION ALL") if part.split()[-1] in tables]
        work = database.execute(" UNION ALL ".join(parts)).fetchall() if parts else []
    iterations = [(start, end) for name, start, end in windows if name.startswith("iteration ")][WARM_UP:]
    phases = sorted(
        (row for row in windows if not row[0].startswith("iteration ")), key=lambda row: row[2] - row[1]
    )
    clock: Counter[str] = Counter()
    for start, end in work:
        if any(begin <= start and end <= until for begin, until in iterations):
            name = next((name for name, begin, until in phases if begin <= start and end <= until), "none")
            clock[name] += end - start
    report = summarize(attribute(read(path)))
    ours = Counter({row.phase: int(row.work_ns) for row in (report.measured or report).phases})
    divided = [
        Counter({phase: ns // max(1, count) for phase, ns in sums.items()})
        for sums, count in ((ours, report.steps), (clock, len(iterations)))
    ]
    return report.steps, len(iterations), divided[0], divided[1]


def table_per_step(reports: list[Path]) -> str:
    """Return one line per program: steps ours/its own, and us a step by phase, ours/clock."""
    phases = ("forward", "backward", "optimizer", "other")
    lines = [
        f"{'program':<26} {'steps':>7} " + " ".join(f"{phase:>20}" for phase in phases) + "  us a step, ours/clock"
    ]
    for path in reports:
        steps, iterations, ours, clock = per_step(path)
        both = clock.pop("forward and backward", 0)  # of a schedule that mixes them
        if both:
            clock["forward"], clock["backward"] = both - ours["backward"], ours["backward"]
        clock["other"] += clock.pop("none", 0)
        pairs = " ".join(f"{ours[phase] / 1e3:>10.1f}/{clock[phase] / 1e3:<9.1f}" for phase in phases)
        apart = max(abs(ours[phase] - clock[phase]) for phase in phases)
        is_right = steps == iterations and apart <= max(10_000, sum(clock.values()) // 1000)
        lines.append(f"{path.stem:<26} {steps:>3}/{iterations:<3} {pairs} {'' if is_right else '<- apart'}")
    return "\n".join(lines)


def profiled(out: Path, gpus: int, only: str) -> list[Path]:
    """Run the programs of `step_programs.py`, each under `nk.profile`, and return their reports."""
    launcher = ["torchrun", "--standalone", "--nproc-per-node", "2"] if gpus == 2 else [sys.executable]
    command = [*launcher, str(HERE / "step_programs.py"), str(out), "--only", only, *["--pair"] * (gpus == 2)]
    subprocess.run(command, check=True)
    return sorted(out.glob("*.sqlite"))


def main() -> None:
    """Record, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    parser.add_argument("--only", default="", help="only programs with this in their names")
    parser.add_argument("--annotated", action="store_true", help="annotate the models, and open no range")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--profiled", action="store_true", help="steps of hard programs, by nk.profile alone")
    parser.add_argument("--read", type=Path, nargs="*", help="judge these reports, recording none")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.profiled:
        reports = options.read or profiled(options.out, options.gpus, options.only)
        print(table_per_step(reports), flush=True)
        return
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
