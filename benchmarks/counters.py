"""Hold ncu's launches against a report's, for one forward and one backward range.

python benchmarks/counters.py OUT

A tiny training run is captured under nsys, and run again under ncu with the filters that `nvtx-kernels ncu` makes
of that report. The counts of launches must be equal, and the counters are shown. It needs a GPU, nsys, ncu and the
permission to read counters; `--report FILE` takes a report that is there instead of nsys, which needs no GPU until
ncu runs.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.analysis import ncu
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import AnalysisError
from nvtx_kernels.analysis.ncu.choosing import choose
from nvtx_kernels.analysis.ncu.counters import read as read_counters
from nvtx_kernels.analysis.ncu.tool import METRICS, command, find_ncu, run_ncu
from nvtx_kernels.analysis.ncu.wanted import Asked, kernels
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.profiling.cli import CommandError
from nvtx_kernels.profiling.sweep.nsight import MEASURED_STEPS, export_command, find_nsys, profile_command

ROOT = Path(__file__).resolve().parents[1]
RANGES = ("forward > computing softmax", "backward > computing softmax")


def program(size: str) -> list[str]:
    """Return the training run that both tools watch: one step, after one to warm up."""
    steps = ["--size", size, "--mode", "train", "--warmup", "1", "--steps", "1"]
    return [sys.executable, "-m", "profiling.run", *steps]


def recorded(out: Path, size: str) -> Path:
    """Capture the run under nsys; return the exported report."""
    nsys, report = find_nsys(), out / "report.nsys-rep"
    words = profile_command(nsys, program(size), report, flags=MEASURED_STEPS["cuda"])
    for arguments in (words, export_command(nsys, report)):
        subprocess.run(arguments, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return report.with_suffix(".sqlite")


def counted(report: Path, out: Path, asked: str, size: str) -> bool:
    """Profile one range's kernels; print both counts and the counters, and tell whether the counts are equal."""
    began_s = time.monotonic()
    wanted = kernels(attribute(read(report)), Asked(asked))
    chosen, log = choose(wanted), (out / f"{asked.split()[0]}.csv").resolve()
    print(f"{asked}: {' '.join(chosen.includes)} by {chosen.scope}, exact: {chosen.exact}", flush=True)
    run_ncu(command(find_ncu(), chosen, log, METRICS, program(size)), log)
    found = len(read_counters(log))
    print(f"  report {chosen.wanted}, ncu {found} launches, {time.monotonic() - began_s:.1f} s", flush=True)
    ncu.main([str(report), "--range", asked, "--read", str(log)])
    return found == chosen.wanted


def main() -> int:
    """Run both; return 1 where counts differ, or a tool is missing or refuses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder that reports and counters go to")
    parser.add_argument("--size", default="tiny", help="of the model: tiny (default) or small")
    parser.add_argument("--report", type=Path, help="a report of that run, instead of capturing one")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    try:
        report = asked.report or recorded(asked.out, asked.size)
        equal = [counted(report, asked.out, one, asked.size) for one in RANGES]
    except (AnalysisError, CommandError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("launch counts agree" if all(equal) else "launch counts DIFFER")
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
