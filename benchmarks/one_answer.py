"""One report, one answer: kernel time per phase, asked in ten ways of every report given.

    python benchmarks/one_answer.py tests/data ../shared/corpus ../shared/h200 > reports/one_answer.md

A cell is the kernel time that a way gives, in ns, added up over the phases where every phase is that of the first
column, and per phase where one is not. The last three ways look at measured steps alone: there the first is `rank
--per-step`. Folders are searched for SQLite exports and PyTorch traces, packed with xz or not; a report without
GPU work is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import lzma
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from nvtx_kernels.analysis import compare, kernels, timeline
from nvtx_kernels.analysis.frames import views as frames
from nvtx_kernels.analysis.trace import KERNEL, KINDS

Phases = Counter[str]
NO_KERNELS = tuple(name for number, name in enumerate(KINDS) if number != KERNEL)
ALL = ("--totals", "--include-warmup")


def asked(main: Callable[[list[str]], int], *words: object) -> str:
    """Return what a command prints; an empty text if it refuses."""
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            status = main([str(word) for word in words])
        except SystemExit:
            return ""
    return "" if status else printed.getvalue()


def whole(report: Path, *words: str) -> dict[str, Any]:
    """Return the JSON of the ranking."""
    found: dict[str, Any] = json.loads(asked(kernels.main, report, "--format", "json", *words) or "{}")
    return found


def by_phase(rows: Iterator[dict[str, Any]] | list[dict[str, Any]], column: str, key: str = "phase") -> Phases:
    """Add up a column of rows by phase."""
    total: Phases = Counter()
    for row in rows:
        total[row[key]] += row[column] or 0
    return total


def of_overview(report: Path) -> Phases:
    """Return the overview's row of each phase."""
    return by_phase(whole(report, *ALL)["phases"], "kernel_ns")


def of_kernels(report: Path) -> Phases:
    """Return the sum of the rows of kernels."""
    return by_phase((row for row in whole(report, *ALL)["kernels"] if row["kind"] == "kernel"), "total_ns")


def of_a_table(*words: str, kind: str = "kernel") -> Callable[[Path], Phases]:
    """Return a way: one table as CSV, added up."""

    def way(report: Path) -> Phases:
        text = asked(kernels.main, report, *words, "--format", "csv", "--top", 10**9)
        rows = pd.read_csv(io.StringIO(text))
        return by_phase(rows[rows["kind"] == kind].to_dict("records") if "kind" in rows else [], "total_ns")

    return way


def of_the_phases(report: Path) -> Phases:
    """Return `--view phases`, as JSON."""
    (table,) = json.loads(asked(kernels.main, report, "--view", "phases", "--format", "json", *ALL))["tables"]
    return by_phase((row for row in table["rows"] if row["level"] == "phase"), "kernel_ns")


def of_a_frame(report: Path) -> Phases:
    """Return the frame of the phases."""
    frame = frames.phases(report, include_warm_up=True)["phases"]
    return by_phase(frame[frame["level"] == "phase"].to_dict("records"), "kernel_ns")


def of_the_timeline(report: Path) -> Phases:
    """Return the sum of the kernels drawn."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "trace.json"
        asked(timeline.main, report, "-o", drawn)
        events = json.loads(drawn.read_text())["traceEvents"]
    slices = (event | event["args"] for event in events if "phase" in event.get("args", ()))
    return by_phase(
        ({**one, "ns": round(one["dur"] * 1000)} for one in slices if one["cat"] not in NO_KERNELS), "ns"
    )


def per_step(report: Path) -> Phases:
    """Return the overview of the measured steps, in ns of all of them."""
    return _of_all_steps(whole(report, "--per-step").get("phases", []), report, "kernel_ns")


def of_steps(report: Path) -> Phases:
    """Return the sum of the steps' phases."""
    text = asked(kernels.main, report, "--view", "steps", "--format", "json")
    rows = json.loads(text)["tables"][0]["rows"] if text else []
    return by_phase((row for row in rows if row["level"] == "phase"), "kernel_ns")


def of_a_comparison(report: Path) -> Phases:
    """Return the comparison of the report with itself."""
    found = json.loads(asked(compare.main, report, report, "--format", "json"))
    return _of_all_steps(found["by"]["phase"], report, "b_ns") if found["per_step"] else Counter()


def _of_all_steps(rows: list[dict[str, Any]], report: Path, column: str) -> Phases:
    steps = whole(report)["report"]["steps"]
    return Counter({row["phase"]: round(row[column] * steps) for row in rows})


WAYS: dict[str, Callable[[Path], Phases]] = {
    "rank": of_overview,
    "kernels": of_kernels,
    "--by kernel": of_a_table("--by", "kernel", *ALL),
    "--by category": of_a_table("--by", "category", *ALL),
    "--view phases": of_the_phases,
    "frame": of_a_frame,
    "timeline": of_the_timeline,
}
OF_STEPS: dict[str, Callable[[Path], Phases]] = {
    "--per-step": per_step, "--view steps": of_steps, "compare": of_a_comparison,
}  # fmt: skip


def reports(places: list[Path], folder: Path) -> Iterator[Path]:
    """Yield the reports in folders, unpacked where they are packed."""
    for place in places:
        for path in sorted(place.iterdir() if place.is_dir() else [place]):
            if path.name.endswith((".sqlite", ".pt.trace.json", ".pt.trace.json.gz")):
                yield path
            elif path.name.endswith(".sqlite.xz"):
                unpacked = folder / path.name.removesuffix(".xz")
                unpacked.write_bytes(lzma.decompress(path.read_bytes()))
                yield unpacked


def row(report: Path) -> tuple[list[str], int]:
    """Return a report's cells, and how many of them differ from the first of their kind."""
    cells, differing = [], 0
    for ways in (WAYS, OF_STEPS):
        answers = [+way(report) for way in ways.values()]
        for answer in answers:
            same = answer == answers[0]
            differing += not same
            cells.append(f"{sum(answer.values()):,}" if same else f"**{dict(answer)}**")
    return cells, differing


def main() -> int:
    """Print the table; the status says whether all ways agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", type=Path, metavar="FOLDER")
    places = parser.parse_args().places
    print("| report | phases | " + " | ".join([*WAYS, *OF_STEPS]) + " |")
    print("|" + " --- |" * (2 + len(WAYS) + len(OF_STEPS)))
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        for report in reports(places, Path(folder)):
            if not whole(report):
                continue
            cells, its = row(report)
            differing += its
            phases = ", ".join(phase for phase, ns in of_overview(report).items() if ns)
            print(f"| {report.name.partition('.')[0]} | {phases} | " + " | ".join(cells) + " |", flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
