"""Numbers straight from a report's tables, in SQL and plain Python, for tests that trust nothing of ours."""

import sqlite3
from functools import cache

from tests.analysis.making.bundled import DATA

OURS = DATA / "h200_train_fp32.sqlite"

# Every kernel with its launch; every push/pop range; the kernels launched inside each range by its thread; and
# those launched during each range by any thread.
TABLES = """
CREATE TEMP TABLE kernels AS
  SELECT k.start, k.end, k.end - k.start AS ns, name.value AS name, k.gridX * k.gridY * k.gridZ AS blocks,
         r.start AS called, r.end AS returned, r.globalTid AS thread
  FROM CUPTI_ACTIVITY_KIND_KERNEL k
  JOIN StringIds name ON name.id = k.demangledName
  JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
    ON r.correlationId = k.correlationId AND (r.globalTid >> 24) = (k.globalPid >> 24);
CREATE INDEX by_call ON kernels (called);
CREATE TEMP TABLE ranges AS
  SELECT n.start, n.end, n.globalTid AS thread, COALESCE(n.text, s.value) AS name
  FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE n.eventType = 59;
CREATE TEMP TABLE during AS
  SELECT r.name AS range, r.start AS opened, r.end AS closed, r.thread AS opener, k.*
  FROM ranges r JOIN kernels k ON k.called BETWEEN r.start AND r.end AND k.returned <= r.end;
CREATE TEMP TABLE inside AS SELECT * FROM during WHERE thread = opener;
"""
GEMM = "(name LIKE '%gemm%' AND name NOT LIKE '%splitKreduce%')"
GEMM_TIME = "(name LIKE '%gemm%' OR name LIKE '%splitKreduce%')"


@cache
def database(report):
    """Open a report with the tables above."""
    opened = sqlite3.connect(f"file:{report}?mode=ro&immutable=1", uri=True)
    opened.executescript(TABLES)
    return opened


def rows(report, query, *values):
    """Run a query over the tables above and nsys's own."""
    return database(report).execute(query, values).fetchall()


def value(report, query, *values):
    """Return the one value of a query."""
    ((found,),) = rows(report, query, *values)
    return found


def work(report):
    """Return (start, end) of every kernel, copy and memset, by start."""
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    parts = [rows(report, f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{name}") for name in tables]
    return sorted(row for part in parts for row in part)


def busy_within(work, start, end):
    """Return how long any of the (start, end) rows, sorted by start, runs between two moments."""
    busy, reach = 0, start
    for begin, stop in work:
        begin, stop = max(begin, reach), min(stop, end)
        if stop > begin:
            busy, reach = busy + stop - begin, stop
    return busy
