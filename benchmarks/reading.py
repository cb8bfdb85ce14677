"""What reading a report takes, as SQLite, as Parquet and by other tools, side by side in one run; and its parts.

python benchmarks/reading.py REPORT.sqlite --kernels 100000 1000000
python benchmarks/reading.py REPORT.sqlite --kernels 1000000 --cores 16 2 --against nsys nsys-ai

A real report is repeated in time until it has the wanted number of kernels, and its tables are written once more
as Parquet files, one per table, as `nsys export --type parquetdir` does. Every measurement is a whole command in a
fresh process, the formats in turn, and the round with the least processor time counts; with `--cores` on this
number of cores. Compare within a run.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import run

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.analysis.readers.nsys_tables import TABLES
from nvtx_kernels.analysis.readers.sqlite import Database
from nvtx_kernels.analysis.support.cores import cores

from benchmarks.attribution import AGAINST, RANK, ROOT, apart, measured, others, rows_of, tile

# Prints seconds and processor seconds of each part of the work, in one process.
PARTS = """
import os, sys, time
began, used = time.perf_counter(), sum(os.times()[:2])
from pathlib import Path
from nvtx_kernels.analysis.support import heap
heap.keep()
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported
from nvtx_kernels.analysis.attribution.causes import Rules, attribute
from nvtx_kernels.analysis.readers import nsys_parquet, nsys_sqlite, nsys_trace, read
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.report import as_object
parts = []
def part(name):
    global began, used
    now, cpu = time.perf_counter(), sum(os.times()[:2])
    parts.append(f"{name} {now - began:.2f} s ({cpu - used:.2f})")
    began, used = time.perf_counter(), sum(os.times()[:2])
part("start-up and imports")
gather = nsys_trace.gather
def gathered(tables):
    part("opening")
    columns = gather(tables)
    part("decoding into columns")
    return columns
nsys_trace.gather = gathered
trace = read(Path(sys.argv[1]))
part("joining text ids, launches and order")
attribution = attribute(trace, Rules())
part("attribution")
report = summarize(attribution)
part("adding up")
as_object(report)
part("as JSON")
print("; ".join(parts))
"""


def as_parquet(report: Path, folder: Path) -> Path:
    """Write the tables that are read as Parquet files, one per table."""
    folder.mkdir()
    database = Database(report)
    for table in TABLES:
        if table in database.columns:
            pq.write_table(database.table(f'SELECT * FROM "{table}"'), folder / f"{table}.parquet")
    return folder


def made(source: Path, kernels: int, place: Path) -> tuple[Path, Path]:
    """Make a report of about this many kernels in both formats."""
    big = place / "big.sqlite"
    tile(source, max(1, round(kernels / rows_of(source)[0])), big)
    return big, as_parquet(big, place / "big_pqtdir")


def size_mib(path: Path) -> int:
    """Return how large a file, or the files of a folder, are in MiB."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files) >> 20


def one_size(source: Path, kernels: int, options: argparse.Namespace) -> None:
    """Make a report of about this many kernels in both formats, and print what each takes."""
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        big, folder = apart(made, source, kernels, Path(place))
        reports = {"SQLite": big, "Parquet": folder}
        print("\n{:,} kernels, {:,} API calls, {:,} NVTX rows".format(*rows_of(big)))
        for number in options.cores or [cores()]:
            with of_the_cores(number):
                others(options.against, big, formats(reports, options.rounds))


def formats(reports: dict[str, Path], rounds: int) -> float:
    """Print what one report takes in each of its formats, and the parts of that; return the seconds of SQLite."""
    print(f"on {cores()} cores: format | MiB | s | CPU s | peak MiB | CPU of SQLite's | s of SQLite's")
    taken = {name: [] for name in reports}
    for _ in range(rounds):
        for name, report in reports.items():
            taken[name].append(measured([*RANK, "--no-cache", str(report)]))
    best = {name: min(found, key=lambda one: one[1]) for name, found in taken.items()}
    for name, (wall, cpu, peak) in best.items():
        of = f"{cpu / best['SQLite'][1]:.2f} | {wall / best['SQLite'][0]:.2f}"
        print(f"{name} | {size_mib(reports[name]):,} | {wall:.2f} | {cpu:.2f} | {peak:,} | {of}", flush=True)
    for name, report in reports.items():
        said = run([sys.executable, "-c", PARTS, report], cwd=ROOT, check=True, capture_output=True, text=True)
        print(f"{name}, s (CPU s): {said.stdout.strip()}", flush=True)
    return best["SQLite"][0]


@contextmanager
def of_the_cores(number: int) -> Iterator[None]:
    """Use `number` of the cores that this process may use, also for the processes that it starts."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def main() -> None:
    """Print a table per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--kernels", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cores", type=int, nargs="+", metavar="N", help="one after the other (all)")
    parser.add_argument("--against", choices=AGAINST, nargs="*", default=[])
    parser.add_argument("--folder", type=Path, help="where the big reports are made (a temporary folder)")
    options = parser.parse_args()
    for kernels in options.kernels:
        one_size(options.source, kernels, options)


if __name__ == "__main__":
    main()
