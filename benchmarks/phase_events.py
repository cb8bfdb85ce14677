"""Hold the kernel time that a report gives each phase against CUDA events around the phase, without a profiler.

python benchmarks/phase_events.py --run "--size medium" --run "--size large --optimizer fused"

Each `--run` holds options of profiling.run. It is timed in a process of its own, then profiled in another one:
under nsys where that is installed, else by the recorder. Prints a table in Markdown: mean per step.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import analysis
from analysis.attribution import attribute
from analysis.balance import PhaseBalance, balance
from profiling.nsys import MEASURED_STEPS, profile_command
from profiling.run import parser as run_parser
from profiling.settings import with_defaults
from profiling.workload import Workload

ROOT = Path(__file__).resolve().parents[1]
WARM_UP, STEPS = 5, 10
PHASES = ("forward", "backward", "optimizer")
HEADER = (
    "run", "phase", "CUDA events, ms", "kernels, ms", "kernels against events", "kernels per step",
    "events - kernels, µs per kernel", "profiled: GPU span, ms", "busy, ms",
)  # fmt: skip


def phases(workload: Workload) -> dict[str, float]:
    """Run one step and return the milliseconds between events around each phase."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    marks[0].record()
    loss = workload.forward()
    marks[1].record()
    workload.backward(loss)
    marks[2].record()
    workload.optimizer_step()
    marks[3].record()
    torch.cuda.synchronize()
    return {name: marks[n].elapsed_time(marks[n + 1]) for n, name in enumerate(PHASES)}


def timed(options: list[str]) -> dict[str, float]:
    """Return the mean of each phase's time, ms, in this process."""
    workload = Workload(with_defaults(vars(run_parser().parse_args(options))))
    times = [phases(workload) for _ in range(WARM_UP + STEPS)][WARM_UP:]
    return {name: sum(step[name] for step in times) / STEPS for name in times[0]}


def timed_elsewhere(run: str) -> dict[str, float]:
    """Return the mean of each phase's time, ms, in a fresh process."""
    words = [sys.executable, __file__, "--only-time", "--run", run]
    said = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    times: dict[str, float] = json.loads(said)
    return times


def profiled(run: str, folder: Path) -> Path:
    """Return a report of the same steps."""
    program = [sys.executable, "-m", "profiling.run", *shlex.split(run), "--steps", str(STEPS)]
    if not shutil.which("nsys"):
        report = folder / "report.sqlite"
        subprocess.run([*program, "--record", str(report)], cwd=ROOT, check=True, capture_output=True)
        return report
    made = folder / "report.nsys-rep"
    command = profile_command("nsys", program, made, flags=MEASURED_STEPS["cuda"])
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return made


def rows(run: str) -> list[tuple[str, ...]]:
    """Return the table's rows of one run."""
    times = timed_elsewhere(run)
    with tempfile.TemporaryDirectory() as folder:
        trace = analysis.read(profiled(run, Path(folder)))
    kernels = analysis.rank(trace, per_step=True).phases.set_index("phase")
    spans = {row.name: row for row in balance(attribute(trace)).phases}
    return [
        _row(run, name, times[name], kernels["kernel_ns"][name] / 1e6, kernels["kernels"][name], spans[name])
        for name in PHASES
    ]


def _row(
    run: str, phase: str, events_ms: float, kernels_ms: float, kernels: float, span: PhaseBalance
) -> tuple[str, ...]:
    return (
        run, phase, f"{events_ms:.2f}", f"{kernels_ms:.2f}", f"{kernels_ms / events_ms - 1:+.1%}",
        f"{kernels:,.0f}", f"{(events_ms - kernels_ms) * 1e3 / kernels:.2f}",
        f"{span.span_ns / STEPS / 1e6:.2f}", f"{span.busy_ns / STEPS / 1e6:.2f}",
    )  # fmt: skip


def main() -> None:
    """Print the table, a row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="append", help="options of profiling.run; may be given several times")
    parser.add_argument(
        "--only-time", action="store_true", help="print one run's times as JSON, and profile nothing"
    )
    options = parser.parse_args()
    runs = options.run or ["--size small"]
    if options.only_time:
        print(json.dumps(timed(shlex.split(runs[0]))))
        return
    for cells in (HEADER, ("---",) * len(HEADER)):
        print(f"| {' | '.join(cells)} |")
    for run in runs:
        for row in rows(run):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
