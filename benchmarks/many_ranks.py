"""How fast many reports are ranked on all cores, against one report on one core; and the same on a Dask cluster.

python benchmarks/many_ranks.py tests/data/h200_train_fp32.sqlite --ranks 64 --kernels 50000

A real report is repeated in time until it has the wanted number of kernels, and copied for each rank. `ideal` is
the time of one rank alone on one core, by the number of ranks, divided by the cores. All answers must be the same.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.analysis.support.cores import cores

from benchmarks.attribution import ROOT, rows_of, tile

RANK = [sys.executable, "-m", "analysis.kernels", "--format", "json"]


def timed(command: list[str], *, on: set[int] | None = None) -> tuple[float, str]:
    """Run a command, on these cores only; return its wall seconds and a digest of what it printed."""
    started = time.perf_counter()
    confine = None if on is None else lambda: os.sched_setaffinity(0, on)
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, preexec_fn=confine, check=True)
    return time.perf_counter() - started, hashlib.sha256(done.stdout).hexdigest()[:16]


@contextmanager
def cluster(folder: Path, workers: int):
    """Start a Dask scheduler and workers, each a process of its own; yield the scheduler's address."""
    told = folder / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli"]
    commands = [[f"{dask[-1]}.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(told)]]
    commands += [
        [f"{dask[-1]}.dask_worker", "--scheduler-file", str(told), "--nthreads", "1", "--no-dashboard"]
        for _ in range(workers)
    ]
    started = [
        subprocess.Popen([*dask[:2], *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for words in commands
    ]
    try:
        while not told.exists():
            time.sleep(0.1)
        time.sleep(5)  # the workers' own start is not part of the work
        yield json.loads(told.read_text())["address"]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def main() -> None:
    """Print what one rank takes, all of them here, and all of them on a cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--kernels", type=int, default=50_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports = made(options, Path(folder))
        one, _ = min(timed([*RANK, str(reports[0])], on={min(os.sched_getaffinity(0))}) for _ in range(3))
        ideal = one * len(reports) / cores()
        print(f"one rank on one core: {one:.2f} s; ideal for {len(reports)} on {cores()} cores: {ideal:.2f} s")
        show("here", *timed([*RANK, *map(str, reports)]), ideal)
        if not find_spec("distributed"):
            print("Dask is not installed: pip install 'nvtx-kernels[cluster]'")
            return
        with cluster(Path(folder), cores()) as address:
            show("on Dask", *timed([*RANK, "--scheduler", address, *map(str, reports)]), ideal)


def made(options: argparse.Namespace, folder: Path) -> list[Path]:
    """Return the ranks' reports, all alike."""
    first = folder / "rank00.sqlite"
    tile(options.source, max(1, round(options.kernels / rows_of(options.source)[0])), first)
    print(f"{options.ranks} ranks of {rows_of(first)[0]:,} kernels, {first.stat().st_size >> 20} MiB each")
    others = [folder / f"rank{number:02}.sqlite" for number in range(1, options.ranks)]
    return [first, *(Path(shutil.copyfile(first, other)) for other in others)]


def show(where: str, seconds: float, digest: str, ideal: float) -> None:
    """Print one way of ranking all of them."""
    print(f"{where}: {seconds:.2f} s, {seconds / ideal:.2f} of ideal, answer {digest}", flush=True)


if __name__ == "__main__":
    main()
