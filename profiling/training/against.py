"""The work of `benchmark --against 'after.py' before.py`: two programs in turn, until their difference is known.

Each run is a process of its own without a profiler (`step_ends`). Runs of A and B follow each other, so that what
slows the machine for a while slows both.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from nvtx_kernels.analysis.document import Document, Row, Table, headed
from nvtx_kernels.analysis.presenters.output import format_of, presented, write
from nvtx_kernels.analysis.support import limits
from nvtx_kernels.analysis.support.noise import Interval, Verdict, interval_of_pairs
from nvtx_kernels.analysis.support.units import time_text

import nvtx_kernels

from ..cli import CommandError, UsageError, last_lines

WARM_UP, STEPS, WITHIN, BUDGET_S = 5, 20, 0.02, 300.0
#: With fewer pairs of runs an interval is not trusted, however narrow it is.
LEAST_PAIRS = 4
#: From this share of their median on by which a run's steps differ, the run is its median step, else its mean.
UNEVEN = 0.2
#: Losses that differ by less, as a share, are equal: nothing was computed otherwise.
SAME_LOSS = 1e-7
RULE_VIOLATED = 3
LAST_LINES = 15
NARROWER = "a longer --budget or more --steps narrow the interval"
NOT_WITHIN = "The interval is not narrower than {:.1%} after {:.0f} s: {}."
RUN = "import sys; from nvtx_kernels.profiling.benchmark import time_steps; sys.exit(time_steps(sys.argv[1:]))"


@dataclass
class Program:
    """One of both programs: its command, and by run the time of its step, ns, and the losses of its steps."""

    name: str
    command: list[str]
    step_ns: list[float] = field(default_factory=list)
    losses: list[list[float | None]] = field(default_factory=list)
    device: str = ""

    @property
    def median_ns(self) -> float:
        """The median of its runs."""
        return median(self.step_ns)

    def run(self, warm_up: int, steps: int) -> None:
        """Run it once; raises CommandError with its last lines where it fails or has too few steps."""
        with tempfile.TemporaryDirectory() as folder:
            out, log = Path(folder, "out.json"), Path(folder, "log.txt")
            words = [sys.executable, "-c", RUN, str(out), str(warm_up), str(steps), *self.command]
            paths = [str(Path(nvtx_kernels.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
            with log.open("wb") as said:
                status = subprocess.run(words, env=environment, stdout=said, stderr=said, check=False).returncode
            if status or not out.exists():
                lines = last_lines(log, LAST_LINES)
                raise CommandError("\n".join([f"{shlex.join(self.command)} ended with status {status}:", *lines]))
            found = json.loads(out.read_text())
        if len(found["step_ns"]) < 1:
            raise CommandError(
                f"{shlex.join(self.command)} ran {found['steps']} steps, and --warmup {warm_up} leaves too few: "
                "let it run more, or give a smaller --warmup"
            )
        self.step_ns.append(step_of(found["step_ns"]))
        self.losses.append(found["losses"])
        self.device = found["device"]


def step_of(step_ns: Sequence[float]) -> float:
    """Return the time of a run's step: the mean, or the median of steps that differ much."""
    middle = median(step_ns)
    return middle if max(step_ns) - min(step_ns) > UNEVEN * middle else sum(step_ns) / len(step_ns)


def compare_programs(options: Mapping[str, Any]) -> int:
    """Run both programs in turn until their difference is known, show it, and return the exit status.

    Raises UsageError for rules of anything but the step time, and CommandError where a program fails.
    """
    rules = [(text, rule_of(text)) for text in options["fail_on"] or ()]
    format_of(options["format"], options["output"])
    within, budget_s = options["within"] or WITHIN, options["budget"] or BUDGET_S
    warm_up, steps = (options["warmup"] or [WARM_UP])[0], (options["steps"] or [STEPS])[0]
    if warm_up < 1 or steps < 1:
        raise UsageError("--warmup and --steps must be 1 or more with --against: a step is timed from end to end")
    a, b = Program("A", options["program"]), Program("B", shlex.split(options["against"]))
    interval, spent_s = _run_in_turn(a, b, partial(_is_enough, within=within), budget_s, (warm_up, steps))
    verdict = interval.verdict(within)
    violated = [text for text, limit in rules if _violates(limit, a.median_ns, interval, verdict)]
    unknown = [text for text, limit in rules if limit.beyond_spread and verdict == "not known"]
    found = as_object(a, b, interval, within, spent_s) | {
        "rules": [{"rule": text, "violated": text in violated} for text, _ in rules]
    }
    document = _document(a, b, interval, found)
    write(
        presented(document, format_of(options["format"], options["output"]), options["output"]), options["output"]
    )
    if violated:
        sys.stderr.write(f"violated: {'; '.join(violated)}\n")
        return RULE_VIOLATED
    if unknown:
        raise CommandError(f"{'; '.join(unknown)}: not known within the budget; {NARROWER}")
    return 0


def rule_of(text: str) -> limits.Limit:
    """Return how much the step time may change; raises UsageError for any other rule."""
    form = f"write '{limits.STEP_TIME} > +5%', '{limits.STEP_TIME} > +0.3ms' or '… > +2% beyond spread'"
    try:
        name, limit = limits.read(text)
    except ValueError as error:
        raise UsageError(f"{error}: {form}") from error
    if name != limits.STEP_TIME:
        raise UsageError(f"{text!r} is about {name!r}, but --against only measures the {limits.STEP_TIME}: {form}")
    return limit


def _run_in_turn(
    a: Program, b: Program, is_enough: Any, budget_s: float, counts: tuple[int, int]
) -> tuple[Interval, float]:
    """Run A, B, A, B, … until the interval is narrow or a further pair would not end within the budget."""
    began = time.monotonic()
    while True:
        for program in (a, b):
            program.run(*counts)
        pairs, spent_s = len(a.step_ns), time.monotonic() - began
        interval = interval_of_pairs(a.step_ns, b.step_ns)
        if interval and sys.stderr.isatty():
            sys.stderr.write(f"\r{pairs} runs a side: {_percent(interval)}  ")
        if interval and (is_enough(pairs, interval) or spent_s * (pairs + 1) / pairs > budget_s):
            if sys.stderr.isatty():
                sys.stderr.write("\n")
            return interval, spent_s


def _is_enough(pairs: int, interval: Interval, *, within: float) -> bool:
    return pairs >= LEAST_PAIRS and interval.width < within


def _violates(limit: limits.Limit, a_ns: float, interval: Interval, verdict: Verdict) -> bool:
    may_be_noise = limit.beyond_spread and verdict != "differs"
    return limit.exceeded(a_ns, interval.change * a_ns) and not may_be_noise


def as_object(a: Program, b: Program, interval: Interval, within: float, spent_s: float) -> dict[str, Any]:
    """Return the result for JSON: times in ns, changes as a share of A's."""
    return {
        "a": {"command": a.command, "step_ns": a.median_ns, "runs_ns": a.step_ns},
        "b": {"command": b.command, "step_ns": b.median_ns, "runs_ns": b.step_ns},
        "device": a.device,
        "change": interval.change,
        "low": interval.low,
        "high": interval.high,
        "within": within,
        "is_within": interval.width < within,
        "seconds": spent_s,
        "verdict": interval.verdict(within),
        "losses": compared_losses(a.losses, b.losses),
    }


def compared_losses(a: Sequence[Sequence[float | None]], b: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """Compare the losses of the first runs step by step, and those of A's own runs, which may differ too."""
    step, most = _first_difference(a[0], b[0])
    own_step, own = next(
        ((s, m) for s, m in (_first_difference(a[0], other) for other in a[1:]) if s), (None, 0.0)
    )
    compared = sum(x is not None and y is not None for x, y in zip(a[0], b[0], strict=False))
    return {
        "steps": compared,
        "differ_from": step,
        "difference": most,
        "own_from": own_step,
        "own_difference": own,
    }


def _first_difference(a: Sequence[float | None], b: Sequence[float | None]) -> tuple[int | None, float]:
    """Return the first step, from 1 on, whose losses differ, and the largest difference as a share of A's."""
    shares = [
        abs(x - y) / (abs(x) or 1.0) if x == x and y == y else float(not (x != x and y != y))
        for x, y in ((x, y) for x, y in zip(a, b, strict=False) if x is not None and y is not None)
    ]
    first = next((number for number, share in enumerate(shares, 1) if share > SAME_LOSS), None)
    return first, max(shares, default=0.0)


def _document(a: Program, b: Program, interval: Interval, found: Mapping[str, Any]) -> Document:
    """Show the answer, both programs, and how their losses compare."""
    columns = headed("program", step_ns="step time", shortest_ns="shortest run", longest_ns="longest", runs="runs")
    rows = []
    for one in (a, b):
        times_ns = one.median_ns, min(one.step_ns), max(one.step_ns)
        rows.append(Row((f"{one.name}: {shlex.join(one.command)}", *times_ns, len(one.step_ns))))
    title = f"Step time without a profiler on {a.device}, medians of runs in {{unit}}"
    table = Table("programs", title, columns, tuple(rows), loss_text(found["losses"]))
    notes = () if found["is_within"] else (NOT_WITHIN.format(found["within"], found["seconds"], NARROWER),)
    return Document(_answer(a, b, interval, found["verdict"]), (table,), (), notes, promised=lambda: found)


def _answer(a: Program, b: Program, interval: Interval, verdict: Verdict) -> str:
    """Say in one sentence whether B is faster, and how sure that is."""
    runs = f"{len(a.step_ns)} runs a side"
    times = f"a step takes {time_text(b.median_ns)}, was {time_text(a.median_ns)}"
    sure = f"95% interval {_percent(interval)}, {runs}"
    if verdict != "differs":
        begin = "No change" if verdict == "same" else "Not known whether B differs"
        return f"{begin}: {times} ({sure})."
    less_or_more = "less" if interval.change < 0 else "more"
    return f"B takes {abs(interval.change):.1%} {less_or_more} time: {times} ({sure})."


def _percent(interval: Interval) -> str:
    return f"{interval.low:+.1%} to {interval.high:+.1%}".replace("-", "−")


def loss_text(losses: Mapping[str, Any]) -> str:
    """Return how the losses of both programs compare."""
    if not losses["steps"]:
        return "Losses are not known: no backward of a single number was seen."
    if losses["differ_from"] is None:
        return f"Losses: equal in {losses['steps']} steps."
    text = f"Losses: differ from step {losses['differ_from']} on, by up to {losses['difference']:.0e} of A's."
    if losses["own_from"] is not None:
        text += f" Those of A's own runs differ too, by {losses['own_difference']:.0e}: is a seed set?"
    return text
