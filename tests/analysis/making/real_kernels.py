"""Real names of kernels: those of the table with their categories, and those in reports."""

import csv
import sqlite3
from contextlib import closing

from tests.analysis.making.bundled import DATA

ROWS = list(csv.DictReader((DATA / "kernel_names.csv").read_text(encoding="utf-8").splitlines()))
NAMES = [row["name"] for row in ROWS]
KERNELS = """SELECT s.value, count(*), sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k
             JOIN StringIds s ON s.id = k.demangledName GROUP BY s.value"""


def kernels_of(report):
    """Return (launches, nanoseconds) by name of a report's kernels; nothing where it has no kernels."""
    with closing(sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        rows = connection.execute(KERNELS) if "CUPTI_ACTIVITY_KIND_KERNEL" in tables else ()
        return {name: (launches, spent_ns) for name, launches, spent_ns in rows}
