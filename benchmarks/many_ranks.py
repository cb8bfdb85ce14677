"""What comparing summaries of 8 to 8,192 ranks takes, in time and memory, by their number.

python -m benchmarks.many_ranks
python -m benchmarks.many_ranks --ranks 64 1024 --folder summaries

Each summary is a real report's, with noise of its own, and steps and collectives in which ranks wait for each
other. Every measurement is the whole command in a fresh process, confined to as many cores as asked for. `growth`
is the CPU time of one rank more, from the row above, which other work on the machine disturbs least.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.attribution import apart, measured
from tests.analysis.making.rank_summaries import made

MEBIBYTE = 1 << 20


def write_summaries(folder: Path, ranks: int) -> int:
    """Write the summaries unless they are there, and return their size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.glob("*.parquet"))) != ranks:
        made(folder, ranks, tables=None)
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))


def main() -> None:
    """Print a row for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 1024, 8192])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="of which the fastest counts")
    parser.add_argument("--folder", type=Path, help="where the summaries are made and kept (a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        sets = [((options.folder or Path(temporary)) / str(ranks), ranks) for ranks in options.ranks]
        sizes = [apart(write_summaries, folder, ranks) for folder, ranks in sets]
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
        one, five, fifteen = os.getloadavg()
        print(f"load of the machine before: {one:.1f}, {five:.1f}, {fifteen:.1f}; cores: {options.cores}\n")
        print("| ranks | summaries, MiB | s | CPU s | growth, CPU ms a rank | peak memory, MiB |")
        print("|---|---|---|---|---|---|")
        before = None
        for (folder, ranks), size in zip(sets, sizes, strict=True):
            command = [sys.executable, "-m", "nvtx_kernels", "rank", str(folder)]
            runs = [measured(command) for _ in range(options.repeats)]
            (wall_s, cpu_s, _), memory = min(runs), max(run[-1] for run in runs)
            growth = f"{(cpu_s - before[1]) / (ranks - before[0]) * 1e3:.1f}" if before else ""
            before = ranks, cpu_s
            figures = f"{size / MEBIBYTE:,.1f} | {wall_s:.2f} | {cpu_s:.2f} | {growth} | {memory:,}"
            print(f"| {ranks:,} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
