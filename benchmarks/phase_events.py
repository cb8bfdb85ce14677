"""Hold the kernel time that a report gives each phase against CUDA events around the phase, without a profiler.

python benchmarks/phase_events.py --run "--size medium" --run "--size large --optimizer fused"
python benchmarks/phase_events.py --script "cuda_graphs.py --size large --train" --flags=--cuda-graph-trace=node
python benchmarks/phase_events.py --script "two_ranks.py --size large" --ranks 2

Each `--run` holds options of profiling.run, each `--script` a program of this folder that knows `--steps` and
`--events`. It is timed in a process of its own, then profiled in another one: under nsys where that is
installed, else (runs only) by the recorder. Prints a table in Markdown: means per step, with several ranks per
step of a rank. `--queue-full` has the GPU wait before each step of a run until launches have filled its queue,
so that it need not wait for them.
"""

import argparse
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from efficiency import run
from phase_timing import Phase, between_events

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.measures.balance import balance
from nvtx_kernels.analysis.trace import Trace
from nvtx_kernels.profiling.run import parser as run_parser
from nvtx_kernels.profiling.sweep.nsight import MEASURED_STEPS, profile_command
from nvtx_kernels.profiling.workload.model_steps import Workload, run_phases
from nvtx_kernels.profiling.workload.settings import with_defaults

from nvtx_kernels import analysis

WARM_UP, STEPS = 5, 10
# A third of a second on an H200, whose clock is 1980 MHz at most: longer than filling the queue takes.
HELD_BACK_CYCLES = 600_000_000
HEADER = (
    "run", "phase", "CUDA events, ms", "kernels, ms", "against events", "of them communication, ms",
    "kernels per step", "events - kernels, µs per kernel", "busy, ms", "against events", "profiled: GPU span, ms",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """What is run twice: a name for the table, words that time it, words that profile it, and flags for nsys."""

    name: str
    timed: Sequence[str]
    profiled: Sequence[str]
    flags: Sequence[str] = field(default=MEASURED_STEPS["cuda"])


def of_run(options: str, *, queue_full: bool) -> Program:
    """Return a run of profiling.run; it is timed by this script, between events that nothing synchronizes."""
    own = [sys.executable, __file__, "--only-time", "--run", options]
    name = f"{options}, queue full" if queue_full else options
    profiled = [sys.executable, "-m", "profiling.run", *shlex.split(options), "--steps", str(STEPS)]
    return Program(name, own + ["--queue-full"] * queue_full, profiled)


def of_script(script: str, ranks: int, flags: Sequence[str]) -> Program:
    """Return a program of this folder, under torchrun if it has several ranks."""
    file, *options = shlex.split(script)
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    words = [sys.executable, *start, str(Path(__file__).with_name(file)), *options, "--steps", str(STEPS)]
    return Program(" ".join((script, *flags)), [*words, "--events"], words, flags)


def time_here(options: str, *, queue_full: bool) -> None:
    """Time the phases of a run in this process."""
    workload = Workload(with_defaults(vars(run_parser().parse_args(shlex.split(options)))))

    def step(phase: Phase) -> None:
        if queue_full:
            torch.cuda._sleep(HELD_BACK_CYCLES)
        run_phases(workload, phase)
        torch.cuda.synchronize()

    for _ in range(WARM_UP):
        step(lambda _: nullcontext())
    between_events(STEPS, step)


def timed(program: Program) -> dict[str, float]:
    """Return the mean of each phase's time, ms, in a fresh process, or in one per rank."""
    lines = [json.loads(line) for line in run(program.timed).splitlines() if line.startswith("{")]
    return {phase: sum(line[phase] for line in lines) / len(lines) for phase in lines[0]}


def profiled(program: Program, folder: Path) -> Path:
    """Return a report of the same steps."""
    if not shutil.which("nsys"):
        report = folder / "report.sqlite"
        run([*program.profiled, "--record", str(report)])
        return report
    made = folder / "report.nsys-rep"
    run(profile_command("nsys", program.profiled, made, flags=program.flags))
    return made


def rows(program: Program, folder: Path) -> list[tuple[str, ...]]:
    """Return the table's rows of one program, and leave its report in the folder."""
    times = timed(program)
    trace = analysis.read(profiled(program, folder))
    return [
        (program.name, phase, *_cells(times[phase], row)) for phase, row in figures(trace).loc[[*times]].iterrows()
    ]


def figures(trace: Trace) -> pd.DataFrame:
    """Return a row per phase, per step: kernels, and ms of kernels, of communication, of any work, of GPU span."""
    ranking = analysis.rank(trace, per_step=True)
    spans = pd.DataFrame(
        [(row.name, row.busy_ns, row.span_ns) for row in balance(attribute(trace)).phases],
        columns=["phase", "busy_ms", "span_ms"],
    )
    kernels = ranking.kernels
    communication = kernels[kernels["category"] == "communication"].groupby("phase")["total_ns"].sum()
    phases = ranking.phases.set_index("phase")
    table = spans.groupby("phase").sum() / ranking.report.steps / 1e6
    return table.assign(
        kernels=phases["kernels"], kernels_ms=phases["kernel_ns"] / 1e6, communication_ms=communication / 1e6
    ).fillna(0)


def _cells(events_ms: float, row: "pd.Series[float]") -> Iterator[str]:
    yield f"{events_ms:.2f}"
    yield f"{row.kernels_ms:.2f}"
    yield f"{row.kernels_ms / events_ms - 1:+.1%}"
    yield f"{row.communication_ms:.2f}"
    yield f"{row.kernels:,.0f}"
    yield f"{(events_ms - row.kernels_ms) * 1e3 / max(row.kernels, 1):.2f}"
    yield f"{row.busy_ms:.2f}"
    yield f"{row.busy_ms / events_ms - 1:+.1%}"
    yield f"{row.span_ms:.2f}"


def main() -> None:
    """Print the table, a program's rows as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="append", default=[], help="options of profiling.run; repeatable")
    parser.add_argument("--script", action="append", default=[], help="a program and its options; repeatable")
    parser.add_argument("--ranks", type=int, default=1, help="processes of each script, one per GPU")
    parser.add_argument("--flags", action="append", default=[], help="for nsys, when it profiles a script")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the last program's report is left")
    parser.add_argument("--queue-full", action="store_true", help="launch each step while the GPU waits")
    parser.add_argument(
        "--only-time", action="store_true", help="print the first run's times as JSON; profile nothing"
    )
    options = parser.parse_args()
    if options.only_time:
        time_here(options.run[0], queue_full=options.queue_full)
        return
    programs = [of_run(run, queue_full=options.queue_full) for run in options.run]
    programs += [of_script(script, options.ranks, options.flags) for script in options.script]
    for cells in (HEADER, ("---",) * len(HEADER)):
        print(f"| {' | '.join(cells)} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for program in programs:
            for row in rows(program, options.keep or Path(folder)):
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
