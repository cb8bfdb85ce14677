"""How fast a report of any size is ranked, and what that is of the time that reading its columns takes alone.

python benchmarks/attribution.py tests/data/h200_train_fp32.sqlite --kernels 10000 100000 1000000
python benchmarks/attribution.py report.sqlite --kernels 400000 --against nsys nsys-ai

A real report is repeated in time until it has the wanted number of kernels. Each measurement is the whole command
in a fresh process; `read` is a bare read of the needed columns through the same driver, right before it, which
also puts the file into memory. Compare ratios, not seconds: they were taken in one run on one machine.
"""

import argparse
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.analysis.support.cores import cores

ROOT = Path(__file__).resolve().parents[1]

T = TypeVar("T")

KINDS = ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET")
EVENTS = ("NVTX_EVENTS", *(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in KINDS))

# The columns that attribution needs, read one table after the other into Arrow.
BARE_READ = """
import sys
from nvtx_kernels.analysis.readers.sqlite import Database
from pathlib import Path
database = Database(Path(sys.argv[1]))
WANTED = {
    "NVTX_EVENTS": 'start, "end", eventType, globalTid, domainId, textId, text',
    "CUPTI_ACTIVITY_KIND_RUNTIME": 'start, "end", globalTid, correlationId, eventClass',
    "CUPTI_ACTIVITY_KIND_KERNEL": 'start, "end", globalPid, correlationId, deviceId, streamId, demangledName',
    "CUPTI_ACTIVITY_KIND_MEMCPY": 'start, "end", globalPid, correlationId, copyKind',
    "CUPTI_ACTIVITY_KIND_MEMSET": 'start, "end", globalPid, correlationId',
}
rows = sum(database.table(f"SELECT {c} FROM {t}").num_rows for t, c in WANTED.items() if t in database.columns)
print(rows)
"""

RANK = [sys.executable, "-m", "analysis.kernels"]
AGAINST = {
    "nsys": [
        ["nsys", "stats", "-r", "nvtx_kern_sum", "--format", "csv", "{report}"],
        ["nsys", "stats", "-r", "nvtx_gpu_proj_sum", "--format", "csv", "{report}"],
    ],
    "nsys-ai": [["nsys-ai", "skill", "run", "nvtx_layer_breakdown", "{report}"]],
}


def tile(source: Path, copies: int, out: Path) -> None:
    """Repeat a report in time; times and correlation ids are shifted, and operators get names of their own."""
    out.unlink(missing_ok=True)
    database = sqlite3.connect(out, isolation_level=None)
    for pragma in ("journal_mode=off", "synchronous=off"):
        database.execute(f"pragma {pragma}")
    database.execute("attach ? as source", (str(source),))
    tables = database.execute("select name, sql from source.sqlite_master where type = 'table'").fetchall()
    period, ids = _period(database, {name for name, _ in tables})
    for name, sql in tables:
        database.execute(sql)
        if name in EVENTS:
            _repeat(database, name, copies, (period, ids))
        else:
            database.execute(f'insert into main."{name}" select * from source."{name}"')
    database.close()


def _period(database: sqlite3.Connection, tables: set[str]) -> tuple[int, int]:
    bounds = [
        database.execute(
            f'select min(start), max(coalesce("end", start)) from source.{t} where start >= 0'
        ).fetchone()
        for t in EVENTS
        if t in tables
    ]
    first, last = min(a for a, _ in bounds if a is not None), max(b for _, b in bounds if b is not None)
    ids = database.execute("select max(correlationId) + 1 from source.CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0]
    return last - first + 1000, ids


def _repeat(database: sqlite3.Connection, table: str, copies: int, shift: tuple[int, int]) -> None:
    period, ids = shift
    changed = {
        "start": f'"start" + i * {period}',
        "end": f'"end" + i * {period}',
        "correlationId": f'"correlationId" + i * {ids}',
        "text": """case when text like '%, seq = %' then text || i else text end""",
    }
    columns = [name for (name,) in database.execute(f"select name from pragma_table_info('{table}', 'source')")]
    wanted = ", ".join(changed.get(name, f'"{name}"') for name in columns)
    database.execute(
        f"""insert into main."{table}"
        with recursive copy(i) as (select 0 union all select i + 1 from copy where i < {copies - 1})
        select {wanted} from copy cross join source."{table}" """
    )


def apart(function: Callable[..., T], *arguments: object) -> T:
    """Call a function of a module in a process of its own, and return its value.

    A process that a large one starts begins with that one's peak of memory: what needs much is done apart.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def measured(command: list[str]) -> tuple[float, float, int]:
    """Run a command; return its wall seconds, CPU seconds and peak memory in MiB."""
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss >> 10


def imports(command: list[str]) -> list[tuple[str, float]]:
    """Return the packages that a command imports and the ms each takes, its own imports of others left out."""
    said = subprocess.run(
        [sys.executable, "-X", "importtime", *command[1:]], cwd=ROOT, check=True, capture_output=True, text=True
    ).stderr
    taken: Counter[str] = Counter()
    for line in said.splitlines():
        if found := re.match(r"import time: +(\d+) \| +\d+ \| +([\w]+)", line):
            taken[found[2]] += int(found[1])
    return [(package, microseconds / 1e3) for package, microseconds in taken.most_common(6)]


def rows_of(report: Path) -> tuple[int, int, int]:
    """Count the kernels, API calls and NVTX rows of a report."""
    database = sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True)
    tables = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
    kernels, calls, ranges = (database.execute(f"select count(*) from {table}").fetchone()[0] for table in tables)
    database.close()
    return kernels, calls, ranges


def main() -> None:
    """Print one line per size: rows, bare read, cold and second look, and what others take on the same file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--kernels", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--against", choices=AGAINST, nargs="*", default=[])
    parser.add_argument("--folder", type=Path, help="where the big reports are made (a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        help_s = min(measured([*RANK, "--help"])[0] for _ in range(3))
        print(f"`--help`: {help_s:.2f} s; {cores()} cores")
        for what, command in {"--help": [*RANK, "--help"], "ranking": [*RANK, str(options.source)]}.items():
            taken = ", ".join(f"{package} {ms:.0f}" for package, ms in imports(command))
            print(f"imports of `{what}`, ms under -X importtime: {taken}")
        print(
            "kernels | calls | NVTX rows | MiB | read s | rank s | CPU s | peak MiB | rank/read | again s (x help)"
        )
        for kernels in options.kernels:
            ours_s = one_size(options.source, kernels, Path(folder), help_s)
            others(options.against, Path(folder) / "big.sqlite", ours_s)


def one_size(source: Path, kernels: int, folder: Path, help_s: float) -> float:
    """Make a report of about this many kernels, and print what ranking it takes; return the seconds."""
    for old in folder.iterdir():
        old.unlink()
    big = folder / "big.sqlite"
    tile(source, max(1, round(kernels / rows_of(source)[0])), big)
    measured([sys.executable, "-c", BARE_READ, str(big)])  # into the page cache
    read = measured([sys.executable, "-c", BARE_READ, str(big)])
    cold = measured([*RANK, str(big)])
    again = min(measured([*RANK, str(big)])[0] for _ in range(3))
    counts = " | ".join(f"{count:,}" for count in rows_of(big))
    print(
        f"{counts} | {big.stat().st_size >> 20:,} | {read[0]:.2f} | {cold[0]:.2f} | {cold[1]:.2f} | {cold[2]:,} "
        f"| {cold[0] / read[0]:.2f} | {again:.2f} ({again / help_s:.1f})",
        flush=True,
    )
    return cold[0]


def others(names: list[str], report: Path, ours_s: float) -> None:
    """Print what other tools take on the same file, where they are installed, and how often as long as ours."""
    for name in names:
        for command in AGAINST[name]:
            if not shutil.which(command[0]):
                print(f"  {name} is not installed")
                break
            wall, cpu, peak = measured([part.format(report=report) for part in command])
            taken = f"{wall:.1f} s | {cpu:.1f} CPU s | {peak:,} MiB | {wall / ours_s:.1f} x"
            print(f"{' '.join(command[:4])} | {taken}", flush=True)


if __name__ == "__main__":
    main()
