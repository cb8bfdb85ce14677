"""Are the figures of `view fix` what the changes then save? Predict from recordings, then measure, on one GPU.

    python -m benchmarks.fix_study record OUT   # nsys: each program's report, and its step without recording
    python -m benchmarks.fix_study predict OUT  # no GPU: OUT/predictions.json, to commit before measuring
    python -m benchmarks.fix_study measure OUT  # base and change in turns, without a profiler
    python -m benchmarks.fix_study table OUT > reports/h200/fixes.md

Each program runs in a process of its own. They start side by side and take turns on the GPU.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

AT_ONCE, LONGEST_S = 4, 100
WARM_UP, LEAST_STEPS, MOST_STEPS, MEASURE_S = 4, 8, 40, 0.35
EMPTIED, RECORDED, ROUNDS = 3, 6, 2
PHASES = ("other", "forward", "backward", "optimizer")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("record", "predict", "measure", "table", "record-one", "measure-one"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", action="append", default=[], help="a program (several)")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    stages: dict[str, Callable[[argparse.Namespace], None]] = {
        "record": record,
        "predict": predict,
        "measure": measure,
        "table": table,
        "record-one": record_one,
        "measure-one": measure_one,
    }
    stages[options.stage](options)


def names(options: argparse.Namespace) -> list[str]:
    """Return the programs asked for."""
    from benchmarks.fix_programs import PROGRAMS

    return [case.name for case in PROGRAMS if not options.only or case.name in options.only]


def in_processes(options: argparse.Namespace, stage: str, before: Sequence[str] = ()) -> None:
    """Run a stage of each program in a process, and print what failed."""

    def run(name: str) -> str:
        own = [part.format(name=name, out=options.out) for part in before]
        command = [sys.executable, "-m", "benchmarks.fix_study", stage, str(options.out), "--only", name]
        begun = time.monotonic()
        try:
            done = subprocess.run(
                [*own, *command, "--device", options.device],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=LONGEST_S * len(names(options)),
            )
        except subprocess.TimeoutExpired:
            return f"{name}: took too long"
        failed = f" FAILED: {(done.stderr or done.stdout).strip()[-600:]}" if done.returncode else ""
        return f"{name}: {time.monotonic() - begun:.0f} s{failed}"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line in pool.map(run, names(options)):
            print(line, flush=True)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Wait for the GPU to be free of the study's other programs."""
    with (out / ".turn").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def record(options: argparse.Namespace) -> None:
    """Record all programs, under nsys where there is one, and pack their reduced reports."""
    from nvtx_kernels.profiling.nsys_program import NsysError, find_nsys
    from nvtx_kernels.profiling.study.nsight import export_command, profile_command

    before: list[str] = []
    nsys = ""
    with suppress(NsysError):
        nsys = find_nsys() if options.device == "cuda" else ""
    if nsys:
        flags = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")
        before = profile_command(nsys, [], Path("{out}/{name}.nsys-rep"), flags=flags)
    in_processes(options, "record-one", before)
    for name in names(options):
        report = options.out / f"{name}.sqlite"
        if nsys and (options.out / f"{name}.nsys-rep").exists():
            subprocess.run(
                export_command(nsys, options.out / f"{name}.nsys-rep"), capture_output=True, check=False
            )
        if report.exists():
            reduce(report)
    with tarfile.open(options.out / "recorded.tar.xz", "w:xz") as archive:
        for path in sorted(options.out.glob("*.sqlite")) + sorted(options.out.glob("*.json")):
            archive.add(path, path.name)
    print(f"{options.out / 'recorded.tar.xz'}: {(options.out / 'recorded.tar.xz').stat().st_size / 1e6:.1f} MB")


#: The columns of numbered texts that are read; all other texts hold environments and paths of the machine.
NUMBERED = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName", "shortName", "mangledName"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId",),
    "NVTX_EVENTS": ("textId",),
    "PROFILER_OVERHEAD": ("nameId",),
    "ThreadNames": ("nameId",),
}


def reduce(report: Path) -> None:
    """Leave in a report the tables and texts that are read."""
    from nvtx_kernels.analysis.readers.nsys_tables import TABLES

    connection = sqlite3.connect(report, isolation_level=None)
    found = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for name in found:
        if name not in {*TABLES, "PROFILER_OVERHEAD", "sqlite_sequence"} and not name.startswith("NVTX_KERNELS"):
            connection.execute(f'DROP TABLE "{name}"')
    used = " UNION ALL ".join(
        f'SELECT "{column}" FROM "{table}"' for table in {*NUMBERED} & {*found} for column in NUMBERED[table]
    )
    connection.execute(f"DELETE FROM StringIds WHERE id NOT IN (SELECT id FROM StringIds WHERE id IN ({used}))")
    connection.execute("DELETE FROM META_DATA_EXPORT WHERE value LIKE '%/%'")
    connection.execute("VACUUM")
    connection.close()


def record_one(options: argparse.Namespace) -> None:
    """Time a program's steps, and the host's phases where the GPU has nothing to do; then record it."""
    import nvtx_kernels as nk
    from benchmarks.fix_programs import made

    (name,) = names(options)
    with alone(options.out):
        program = made(name, (), options.device)
        steps_ns = timed(program, options.device)
        host_ns = emptied(program, options.device)
        of_program = {"step_ns": median(steps_ns), "steps_ns": steps_ns, "host_ns": host_ns}
        (options.out / f"{name}.json").write_text(json.dumps(of_program))
        report = options.out / f"{name}.sqlite"
        with nk.profile(program.model, program.optimizer, report, warmup=3, steps=RECORDED, flops=True) as profile:
            for _ in range(3 + RECORDED):
                program.step()
                if program.optimizer is None:
                    profile.step()


def timed(program: Any, device: str) -> list[float]:
    """Return how long steps take, ns, from the end of one's work to the end of the next's."""
    import torch

    from benchmarks.fix_programs import now_ns, synchronize

    begun = now_ns()
    for _ in range(WARM_UP):
        program.step()
    synchronize(device)
    once = now_ns()
    program.step()
    synchronize(device)
    step_s = max((now_ns() - once) / 1e9, 1e-6)
    while (now_ns() - begun) / 1e9 < MEASURE_S and step_s < MEASURE_S / WARM_UP:
        program.step()
    synchronize(device)
    count = max(LEAST_STEPS, min(MOST_STEPS, int(MEASURE_S / step_s)))
    if device != "cuda":
        ends = []
        for _ in range(count + 1):
            program.step()
            ends.append(now_ns())
        return [float(end - begin) for begin, end in pairwise(ends)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    for event in events:
        program.step()
        event.record()
    synchronize(device)
    return [begin.elapsed_time(end) * 1e6 for begin, end in pairwise(events)]


def emptied(program: Any, device: str) -> dict[str, float]:
    """Return the host's own time by phase, ns: each phase begins with nothing left for the GPU to do."""
    from benchmarks.fix_programs import now_ns, synchronize

    found: dict[str, list[float]] = defaultdict(list)

    def phase(name: str, call: Callable[[], Any]) -> Any:
        synchronize(device)
        begin = now_ns()
        result = call()
        times[name] = times.get(name, 0) + now_ns() - begin
        return result

    for _ in range(EMPTIED):
        times: dict[str, float] = {}
        batch = phase("other", program.batch)
        loss = phase("forward", lambda batch=batch: program.loss(batch))
        if program.optimizer is not None:
            phase("backward", loss.backward)
            phase("optimizer", program.update)
        phase("other", lambda loss=loss: program.after(loss))
        for name, ns in times.items():
            found[name].append(ns)
    return {name: median(values) for name, values in found.items()}


def predict(options: argparse.Namespace) -> None:
    """Write the predictions of `view fix` for each change, for the programs that were recorded."""
    from nvtx_kernels.analysis.attribution.causes import attribute
    from nvtx_kernels.analysis.measures.fixes import fixes_of

    import nvtx_kernels as nk
    from benchmarks.fix_programs import PROGRAMS

    if not list(options.out.glob("*.sqlite")) and (archive := options.out / "recorded.tar.xz").exists():
        with tarfile.open(archive) as packed:
            packed.extractall(options.out, filter="data")
    predictions: dict[str, Any] = {}
    for case in PROGRAMS:
        report, facts = options.out / f"{case.name}.sqlite", options.out / f"{case.name}.json"
        if not report.exists() or not facts.exists():
            print(f"{case.name}: was not recorded")
            continue
        measured = json.loads(facts.read_text())
        attribution = attribute(nk.read(report))
        step_ns, host_ns = measured["step_ns"], measured["host_ns"]
        ways = {
            "recorded": fixes_of(attribution),
            "step": fixes_of(attribution, unrecorded_step_ns=step_ns),
            "phases": fixes_of(attribution, unrecorded_step_ns=step_ns, host_ns=host_ns),
        }
        of_program = {"unrecorded_step_ns": step_ns, "host_ns": host_ns}
        for way, found in ways.items():
            of_program[way] = as_object(found, case.changes)
        of_program["host_times_error"] = ways["phases"].host_times_error
        predictions[case.name] = of_program
        print(f"{case.name}: {step_ns / 1e6:.2f} ms; {summary(of_program)}")
    (options.out / "predictions.json").write_text(json.dumps(predictions, indent=1))


def as_object(found: Any, changes: dict[str, str]) -> dict[str, Any]:
    """Return the prediction for each change: ns at least and at most, and whether it is shown."""
    predicted: dict[str, Any] = {}
    for change, rule in changes.items():
        shown = next((fix for fix in found.fixes if fix.rule == rule), None)
        silent = next((tried for tried in found.silent if tried.rule == rule), None)
        figure = shown or silent
        low, high = (figure.alone_low_ns, figure.alone_ns) if figure else (0.0, 0.0)
        predicted[change] = {"rule": rule, "low_ns": low, "high_ns": high, "shown": shown is not None}
    shown_rules = [{"rule": fix.rule, "low_ns": fix.alone_low_ns, "high_ns": fix.alone_ns} for fix in found.fixes]
    return {
        "refused": found.refused,
        "replay_error": found.replay_error,
        "recorded_step_ns": found.recorded_step_ns,
        "factors": found.factors,
        "fits": found.fits,
        "unjudged": found.unjudged,
        "changes": predicted,
        "shown": shown_rules,
    }


def summary(of_program: dict[str, Any]) -> str:
    """Return a program's predictions on a line."""
    found = of_program["phases"]
    if found["refused"]:
        return f"refused: {found['refused']}"
    changes = (
        f"{change} {at['low_ns'] / 1e6:.2f} to {at['high_ns'] / 1e6:.2f}{'' if at['shown'] else ' (silent)'}"
        for change, at in found["changes"].items()
    )
    return ", ".join(changes)


def measure(options: argparse.Namespace) -> None:
    """Measure all programs with each of their changes, and gather the results in one file."""
    in_processes(options, "measure-one")
    results = {}
    for name in names(options):
        with suppress(OSError, ValueError):
            results[name] = json.loads((options.out / f"{name}.measured.json").read_text())
    (options.out / "measured.json").write_text(json.dumps(results, indent=1))
    for name, changes in results.items():
        print(name, {change: round(gain(rounds)[0] / 1e6, 2) for change, rounds in changes.items()})


def measure_one(options: argparse.Namespace) -> None:
    """Measure a program and each change in turns: base, change, base, change."""
    import torch

    from benchmarks.fix_programs import PROGRAMS, made, synchronize

    (name,) = names(options)
    case = next(case for case in PROGRAMS if case.name == name)
    results: dict[str, list[dict[str, list[float]]]] = {}
    with alone(options.out):
        for _ in range(ROUNDS):
            for change in case.changes:
                pair: dict[str, list[float]] = {}
                for side, changes in (("base", ()), ("change", (change,))):
                    try:
                        program = made(name, changes, options.device)
                        pair[side] = timed(program, options.device)
                    except Exception as error:
                        print(f"{name} {change} {side}: {error!r}"[:300], file=sys.stderr)
                    program = None
                    gc.collect()
                    if options.device == "cuda":
                        synchronize(options.device)
                        torch.cuda.empty_cache()
                if len(pair) == 2:
                    results.setdefault(change, []).append(pair)
                (options.out / f"{name}.measured.json").write_text(json.dumps(results))


def gain(rounds: Sequence[dict[str, list[float]]]) -> tuple[float, float, float]:
    """Return a change's saving, its noise and the base's step, ns.

    The noise is half the interquartile range of the steps of both sides, or half of how much rounds differ.
    """
    saved = [median(pair["base"]) - median(pair["change"]) for pair in rounds]
    spreads = [spread(pair[side]) for pair in rounds for side in ("base", "change")]
    between = (max(saved) - min(saved)) / 2
    return median(saved), max(between, median(spreads)), median(median(pair["base"]) for pair in rounds)


def spread(values: Sequence[float]) -> float:
    """Return half the interquartile range."""
    ordered = sorted(values)
    return (ordered[(3 * len(ordered)) // 4] - ordered[len(ordered) // 4]) / 2


def table(options: argparse.Namespace) -> None:
    """Print predicted and measured gains as a page."""
    predictions = json.loads((options.out / "predictions.json").read_text())
    measured = json.loads((options.out / "measured.json").read_text())
    print("| program | step, ms | change | rule | predicted, ms | with host times | measured | share | shown |")
    print("|---|---|---|---|---|---|---|---|---|")
    by_rule: dict[str, list[float]] = defaultdict(list)
    for name, of_program in predictions.items():
        for change, narrow in of_program["phases"]["changes"].items():
            wide = of_program["step"]["changes"][change]
            rounds = measured.get(name, {}).get(change)
            found, share = "not measured", ""
            if rounds:
                saved, noise, base = gain(rounds)
                found = f"{saved / 1e6:.2f} ± {noise / 1e6:.2f} of {base / 1e6:.2f}"
                if narrow["high_ns"] > noise:  # below it a share says nothing
                    share = f"{saved / narrow['high_ns']:.0%}"
                if narrow["shown"] and narrow["high_ns"] >= 0.05 * of_program["unrecorded_step_ns"]:
                    by_rule[narrow["rule"]].append(saved / narrow["high_ns"])
            step = f"{of_program['unrecorded_step_ns'] / 1e6:.2f}"
            shown = "yes" if narrow["shown"] else "silent"
            cells = (name, step, change, narrow["rule"], ends(wide), ends(narrow), found, share, shown)
            print(f"| {' | '.join(cells)} |")
    print("\n| rule | pairs of at least 5% | share of the ceiling that was realised |\n|---|---|---|")
    for rule, shares in by_rule.items():
        print(
            f"MEASURED[{rule!r}] = {len(shares)}, {100 * min(shares):.0f}, {100 * max(shares):.0f}",
            file=sys.stderr,
        )
        print(f"| {rule} | {len(shares)} | {min(shares):.0%} to {max(shares):.0%}, median {median(shares):.0%} |")
    print("\n| program | without recording, ms | recorded | replayed with host times | factors | replay error |")
    print("|---|---|---|---|---|---|")
    for name, of_program in predictions.items():
        found = of_program["phases"]
        error = of_program.get("host_times_error")
        cells = (
            f"{of_program['unrecorded_step_ns'] / 1e6:.2f}",
            f"{(found['recorded_step_ns'] or 0) / 1e6:.2f}",
            "" if error is None else f"{error:+.1%}",
            " to ".join(f"{factor:.2f}" for factor in found["factors"] or ()),
            found["refused"] or f"{found['replay_error']:+.2%}",
        )
        print(f"| {name} | {' | '.join(cells)} |")
    print()
    for sentence in conclusions(predictions, measured):
        print(f"- {sentence}")


def conclusions(predictions: dict[str, Any], measured: dict[str, Any]) -> Iterator[str]:
    """Yield the conclusions: how many figures hold, which were false, and the effect of phases' host times."""
    pairs = [
        (name, change, figure, of_program["step"]["changes"][change], of_program["unrecorded_step_ns"])
        for name, of_program in predictions.items()
        for change, figure in of_program["phases"]["changes"].items()
    ]
    judged = [(*pair, *gain(rounds)) for pair in pairs if (rounds := measured.get(pair[0], {}).get(pair[1]))]
    yield f"{len(pairs)} pairs of {len(predictions)} programs; {len(judged)} were measured."
    shown = [pair for pair in judged if pair[2]["shown"]]
    below = [pair for pair in shown if pair[5] <= pair[2]["high_ns"] + pair[6]]
    inside = [pair for pair in below if pair[5] >= pair[2]["low_ns"] - pair[6]]
    yield f"Of {len(shown)} figures shown, {len(below)} bound the gain, and {len(inside)} hold it, within noise."
    large = [pair for pair in shown if pair[2]["low_ns"] >= 0.05 * pair[4]]
    false = [f"{pair[0]} {pair[1]}" for pair in large if pair[5] < 0.01 * pair[4]]
    names = ", ".join(false) or "none"
    yield f"Of {len(large)} figures of at least 5% of the step, these saved less than 1%: {names}."
    missed = [
        f"{name} {change} ({saved_ns / 1e6:.2f} ms)"
        for name, change, figure, _, step_ns, saved_ns, noise_ns, _ in judged
        if not figure["shown"] and saved_ns - noise_ns > 0.05 * step_ns
    ]
    yield f"Silent, and saved more than 5% of the step: {', '.join(missed) or 'none'}."
    yield from of_host_times(predictions, [(narrow, wide) for _, _, narrow, wide, _ in pairs])


def of_host_times(predictions: dict[str, Any], figures: Sequence[tuple[Any, Any]]) -> Iterator[str]:
    """Yield how well host times of phases give the step, and by how much they narrow the figures."""
    errors = [of["host_times_error"] for of in predictions.values() if of.get("host_times_error") is not None]
    near = sum(abs(error) <= 0.08 for error in errors)
    yield (
        f"With host times of phases the replay gives the step without recording within 8% in {near} of "
        f"{len(errors)} programs; the others are judged without them."
    )
    widths = [[figure["high_ns"] - figure["low_ns"] for figure in pair] for pair in figures]
    wide = [(narrow, before) for narrow, before in widths if before > 1e5]
    narrowed = [narrow / before for narrow, before in wide if narrow < before]
    if narrowed:
        share = f"{median(narrowed):.0%} of their width (median)"
        yield f"Of {len(wide)} ranges wider than 0.1 ms, they narrow {len(narrowed)}, to {share}."


def ends(figure: dict[str, float]) -> str:
    """Return a figure's range in ms."""
    low, high = figure["low_ns"] / 1e6, figure["high_ns"] / 1e6
    return f"{high:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
