"""Do the host's times of an emptied step give the step without recording? One command, on one GPU.

    python -m benchmarks.fix_beside OUT          # about 8 minutes on 16 cores; --only NAME for some programs
    python -m benchmarks.fix_beside OUT --told   # no GPU: OUT/beside.md again, from the reports packed in OUT

Each program of `fix_programs` runs in two processes: in the first its steps are timed without a profiler, and then
`nk.profile` records it and times steps after its session; in the second nsys records it with a capture range, and
`nk.profile` times steps before that. OUT/beside.md compares, for each report, the step that is told without
recording with the program's alone, the replay with the emptied step's host times with both, and the figures of
`view fix` without and with these times. OUT/beside.json has the same as data, OUT/beside.tar.xz the reports.

Programs start side by side and take turns on the GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.fix_study import AT_ONCE, RECORDED, ROOT, alone, names, reduce, timed

#: As many steps as a recording, and what is timed after it, need.
STEPS, LONGEST_S = 45, 150
WAYS = ("own", "nsys")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all programs, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", action="append", default=[], help="a program (several)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--told", action="store_true", help="compare again what OUT has")
    parser.add_argument("--run", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.run:
        run(options)
        return
    if options.told:
        with tarfile.open(options.out / "beside.tar.xz") as packed:
            packed.extractall(options.out, filter="data")
        rows = [row for name in names(options) for row in facts(options.out, name)]
    else:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            rows = [
                row for found in pool.map(lambda name: measured(options, name), names(options)) for row in found
            ]
    (options.out / "beside.json").write_text(json.dumps(rows, indent=1))
    page = "\n".join(table(rows))
    (options.out / "beside.md").write_text(page + "\n")
    print(page, flush=True)
    if not options.told:
        with tarfile.open(options.out / "beside.tar.xz", "w:xz") as archive:
            for path in sorted(options.out.glob("*.sqlite")) + sorted(options.out.glob("*.alone.json")):
                archive.add(path, path.name)


def run(options: argparse.Namespace) -> None:
    """Time one program alone, unless nsys watches, and record it, in this process."""
    import nvtx_kernels as nk
    from benchmarks.fix_programs import made

    (name,) = names(options)
    with alone(options.out):
        program = made(name, (), options.device)
        if options.run == "own":
            steps_ns = timed(program, options.device)
            (options.out / f"{name}.alone.json").write_text(json.dumps(steps_ns))
        report = options.out / f"{name}.{options.run}.sqlite"
        with nk.profile(program.model, program.optimizer, report, steps=RECORDED, flops=True) as profile:
            for _ in range(STEPS if options.run == "own" else STEPS // 3):
                program.step()
                if program.optimizer is None:
                    profile.step()


def measured(options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """Measure one program in its two processes; return what was found, and print what failed."""
    from nvtx_kernels.profiling.nsys_program import NsysError, find_nsys
    from nvtx_kernels.profiling.study.nsight import export_command, profile_command

    nsys = ""
    with suppress(NsysError):
        nsys = find_nsys() if options.device == "cuda" else ""
    for way in WAYS if nsys else WAYS[:1]:
        begun = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.fix_beside", str(options.out), "--run", way, "--only", name]
        command += ["--device", options.device]
        raw = options.out / f"{name}.nsys.nsys-rep"
        if way == "nsys":
            flags = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")
            command = profile_command(nsys, command, raw, flags=flags)
        failed = done(command)
        if way == "nsys" and raw.exists():
            failed = failed or done(export_command(nsys, raw))
            raw.unlink()
        print(f"{name} {way}: {time.monotonic() - begun:.0f} s {failed}".rstrip(), flush=True)
        with suppress(OSError):
            reduce(options.out / f"{name}.{way}.sqlite")
    return facts(options.out, name)


def done(command: Sequence[str]) -> str:
    """Run a command; return what it said if it failed."""
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return "took too long"
    return f"FAILED: {(ended.stderr or ended.stdout).strip()[-600:]}" if ended.returncode else ""


def facts(out: Path, name: str) -> list[dict[str, Any]]:
    """Return what the reports of a program say; a report that cannot be read says why."""
    found = []
    for way in WAYS:
        report, times = out / f"{name}.{way}.sqlite", out / f"{name}.alone.json"
        if report.exists() and times.exists():
            row: dict[str, Any] = {"program": name, "recorder": way, "alone_ns": json.loads(times.read_text())}
            try:
                row |= told(report)
            except Exception as error:
                row["refused"] = f"{error!r}"[:200]
            found.append(row)
    return found


def told(report: Path) -> dict[str, Any]:
    """Return what a report says of the step without recording, and what is at stake by it."""
    from nvtx_kernels.analysis.measures.fixes import fixes_of
    from nvtx_kernels.analysis.opened import opened

    one = opened(report)
    recording = one.whole.recording
    assert recording is not None
    row: dict[str, Any] = {
        "recorded_ns": recording.step_ns,
        "unrecorded_ns": recording.unrecorded_step_ns,
        "timed_ns": recording.timed_ns,
        "trusted": recording.trusted,
        "reason": recording.reason,
        "is_upper_limit": recording.is_upper_limit,
        "host_ns": dict(recording.host_ns),
    }
    step_ns = recording.unrecorded_step_ns or recording.step_ns
    ways = {
        "without": fixes_of(one.attribution, unrecorded_step_ns=step_ns),
        "with": fixes_of(one.attribution, unrecorded_step_ns=step_ns, host_ns=recording.host_ns),
        "product": one.fixes,
    }
    row["error"] = ways["with"].host_times_error
    row["refused"] = ways["with"].refused
    row["replay_error"] = ways["with"].replay_error
    for way, found in ways.items():
        row[way] = {
            "factors": found.factors,
            "fits": found.fits,
            "host_times_used": found.host_times_used,
            "unjudged": found.unjudged,
            "fixes": {fix.rule: (fix.alone_low_ns, fix.alone_ns) for fix in found.fixes},
            "silent": {tried.rule: (tried.alone_low_ns, tried.alone_ns) for tried in found.silent},
        }
    return row


HEAD = (
    "| program | recorder | alone, ms | recorded | told | ÷ alone | replay with host times | error to told "
    "| to alone | factors without | with | replay error | |\n|" + 13 * "---|"
)
FIGURES = (
    "| program | recorder | rule | without host times, ms | with them | width | as told |\n"
    "|---|---|---|---|---|---|---|"
)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the page's lines."""
    lines = [HEAD]
    for row in rows:
        of_alone = sorted(row["alone_ns"])
        alone_ns = median(of_alone)
        cells = [row["program"], row["recorder"], f"{ms(alone_ns)} ({ms(of_alone[0])} to {ms(of_alone[-1])})"]
        if "with" not in row:
            lines.append(f"| {' | '.join(cells)} |{10 * ' |'} {row['refused']} |")
            continue
        told_ns, error = row["unrecorded_ns"], row.get("error")
        cells += [ms(row["recorded_ns"]), ms(told_ns), f"{told_ns / alone_ns:.2f}" if told_ns else ""]
        replayed_ns = None if error is None else (told_ns or row["recorded_ns"]) * (1 + error)
        cells += [ms(replayed_ns), "" if error is None else f"{error:+.1%}"]
        cells += ["" if replayed_ns is None else f"{replayed_ns / alone_ns - 1:+.1%}"]
        cells += [between(row[way]["factors"]) for way in ("without", "with")]
        cells += ["" if row["replay_error"] is None else f"{row['replay_error']:+.2%}"]
        words = [row["refused"], row["reason"], "at most" if row["is_upper_limit"] else ""]
        words += ["host times used" if row["product"]["host_times_used"] else "host times not used"]
        cells += ["; ".join(filter(None, [*words, *row["product"]["unjudged"]]))]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", FIGURES]
    for row in rows:
        if "with" not in row:
            continue
        figures = {way: row[way]["fixes"] | row[way]["silent"] for way in ("without", "with")}
        for rule, wide in figures["without"].items():
            narrow = figures["with"].get(rule)
            if wide[1] < 1e5 and (narrow is None or narrow[1] < 1e5):
                continue
            share = f"{width(narrow) / width(wide):.0%}" if narrow and width(wide) else ""
            shown = row["product"]["fixes"].get(rule)
            cells = [row["program"], row["recorder"], rule, in_ms(wide), in_ms(narrow), share]
            lines.append(f"| {' | '.join([*cells, in_ms(shown) if shown else 'silent'])} |")
    return [*lines, "", *conclusions(rows)]


def conclusions(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return how near the replays are, by recorder, and by how much host times narrow the figures."""
    lines = []
    for way in WAYS:
        of_way = [row for row in rows if row["recorder"] == way and row.get("error") is not None]
        near = sum(abs(row["error"]) <= 0.08 for row in of_way)
        truly = sum(
            abs((row["unrecorded_ns"] or row["recorded_ns"]) * (1 + row["error"]) / median(row["alone_ns"]) - 1)
            <= 0.08
            for row in of_way
        )
        lines.append(
            f"- {way}: with host times, {near} of {len(of_way)} replays are within 8% of the step told, and "
            f"{truly} within 8% of the program's alone."
        )
    widths = []
    for row in rows:
        if "with" in row:
            wide, narrow = (row[way]["fixes"] | row[way]["silent"] for way in ("without", "with"))
            widths += [(width(narrow[rule]), width(wide[rule])) for rule in wide if rule in narrow]
    wide_ones = [pair for pair in widths if pair[1] > 1e5]
    narrowed = [narrow / wide for narrow, wide in wide_ones if narrow < wide]
    share = f", to {median(narrowed):.0%} of their width (median)" if narrowed else ""
    return [*lines, f"- Of {len(wide_ones)} ranges wider than 0.1 ms, host times narrow {len(narrowed)}{share}."]


def width(figure: Sequence[float]) -> float:
    """Return how far apart the ends of a figure are, ns."""
    return figure[1] - figure[0]


def ms(ns: float | None) -> str:
    """Return a time in ms."""
    return "" if ns is None else f"{ns / 1e6:.2f}"


def in_ms(figure: Sequence[float] | None) -> str:
    """Return a figure's range in ms."""
    if figure is None:
        return "not found"
    low, high = (ns / 1e6 for ns in figure)
    return f"{high:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"


def between(factors: Sequence[float] | None) -> str:
    """Return the lowest and the highest factor."""
    return "" if factors is None else " to ".join(f"{factor:.2f}" for factor in factors)


if __name__ == "__main__":
    main()
