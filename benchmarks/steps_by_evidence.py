"""Hide the steps that reports name, and say how often what the programs do tells the same ones.

    python -m benchmarks.steps_by_evidence REPORT…            # one row for each kind of evidence
    python -m benchmarks.steps_by_evidence --each REPORT…     # and one for each process that is not right
    python -m benchmarks.steps_by_evidence --time REPORT…     # how much processor time finding steps takes

A case is a process with steps that a report names. *Right*: as many steps (one more or less of four and more), and
a step time within 2%; *exact*: most begin at the very kernel. *Wrong*: another number of steps; those found inside
named steps are counted apart.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from analysis.attribution.causes import Attribution, Rules, attribute
from analysis.attribution.steps import measured_steps, step_of_nodes
from analysis.attribution.user_ranges import name_facts
from analysis.errors import AnalysisError
from analysis.readers import read
from analysis.readers.marks import TrainingMark
from analysis.report.evidence import FOUND, REPETITION
from analysis.trace import GRAPH, KERNEL, Int64s, Trace

#: A step time is right within this share; one step more or less is right from this number on.
NEAR, SEVERAL = 0.02, 4
RIGHT, EXACT, COUNT, REFUSED, WITHIN, WRONG = "right", "exact", "count right", "refused", "inside a step", "wrong"


@dataclass(frozen=True)
class Steps:
    """The steps of one process in order: when the first kernel was launched, and when all had ended, ns."""

    begin_ns: Int64s
    end_ns: Int64s

    @property
    def time_ns(self) -> float:
        """The median time from one step's end to the next's; 0 of a single step."""
        return float(np.median(np.diff(self.end_ns))) if len(self.end_ns) > 1 else 0.0


def hidden(trace: Trace) -> Trace:
    """Return a trace without the ranges of steps and of warm-up, and without marks of training."""
    facts = name_facts(trace, "", ())
    told = (facts.step | facts.warm_up)[trace.ranges.name_id]
    marks = tuple(fact for fact in trace.facts if not isinstance(fact.mark, TrainingMark))
    return replace(trace, ranges=trace.ranges.take(~told), facts=marks)


def without_launches(trace: Trace) -> Trace:
    """Return a trace that does not know its launches."""
    work = replace(trace.work, launch=np.full(len(trace.work), -1, np.int32))
    return replace(trace, work=work, launches=trace.launches.take(np.empty(0, np.int64)), calls=None, waits=None)


def steps_by_process(attribution: Attribution, launched_ns: Int64s) -> dict[int, Steps]:
    """Return the measured steps of each process, by their kernels and graphs; `launched_ns` is of all work."""
    work, ranges = attribution.trace.work, attribution.ranges
    steps = measured_steps(attribution)
    process = attribution.trace.process_of_thread()[ranges.thread[steps]]
    step = step_of_nodes(attribution, include_warm_up=False)[attribution.node]
    rows = np.flatnonzero((step >= 0) & np.isin(work.kind, [KERNEL, GRAPH]))
    rows = rows[np.lexsort((launched_ns[rows], step[rows]))]
    with_work, first = np.unique(step[rows], return_index=True)
    begin_ns = launched_ns[rows[first]]
    end_ns = np.maximum.reduceat(work.end_ns[rows], first) if len(rows) else begin_ns
    by_process = {}
    for number in np.unique(process[with_work]).tolist():
        mine = process[with_work] == number
        by_process[number] = Steps(begin_ns[mine], end_ns[mine])
    return by_process


def verdict(named: Steps, found: Steps | None) -> str:
    """Return how the steps that were found compare with those that are named."""
    if found is None:
        return REFUSED
    count, half_ns = len(named.end_ns), (named.time_ns or found.time_ns) / 2
    first_ns = named.end_ns[0] - half_ns if count > 1 else named.begin_ns[0]
    inside = (found.end_ns > first_ns) & (found.end_ns < named.end_ns[-1] + half_ns)
    found = Steps(found.begin_ns[inside], found.end_ns[inside])
    if abs(len(found.end_ns) - count) > (count >= SEVERAL):
        return WITHIN if len(found.end_ns) >= 2 * count else WRONG
    both = named.time_ns and found.time_ns
    if both and abs(found.time_ns / named.time_ns - 1) > NEAR:
        return COUNT
    return EXACT if 2 * np.isin(named.begin_ns, found.begin_ns).sum() > count else RIGHT


def cases(path: Path, kinds: Sequence[str], *, launches: bool) -> Iterator[tuple[int, str, str]]:
    """Yield the process, the verdict and the evidence of each case of a report."""
    trace = read(path)
    work, known = trace.work, trace.launches.start_ns
    launched_ns = work.start_ns.copy()
    if launches and len(known) and trace.launch_times_known:
        launched_ns = np.where(work.launch >= 0, known[np.maximum(work.launch, 0)], work.start_ns)
    named = attribute(trace, Rules(evidence=()))
    if trace.provenance.unit_of_work != "GPU" or not len(measured_steps(named)):
        return
    trace = hidden(trace if launches else without_launches(trace))
    found = attribute(trace, Rules(evidence=kinds))
    evidence = found.steps.evidence
    by_process = steps_by_process(found, launched_ns)
    for process, steps in steps_by_process(named, launched_ns).items():
        yield (
            process,
            verdict(steps, by_process.get(process)),
            evidence.refused or f"{evidence.by} {evidence.name}",
        )


def seconds(trace: Trace, kinds: Sequence[str]) -> float:
    """Return the least processor time that attribution took of three."""
    times = []
    for _ in range(3):
        began = time.process_time()
        attribute(trace, Rules(evidence=kinds))
        times.append(time.process_time() - began)
    return min(times)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--each", action="store_true", help="also each case that is not right")
    parser.add_argument("--time", action="store_true", help="how long it takes instead")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if any steps are wrong."""
    options = parser().parse_args(arguments)
    if options.time:
        for path in options.reports:
            trace = read(path)
            base, named = seconds(hidden(trace), ()), seconds(trace, FOUND)
            for kind in FOUND:
                extra = seconds(hidden(trace), [kind]) - base
                print(f"{path.name}: {kind} {extra:.2f} s more of {base:.2f} s; named {named:.2f} s")
        return 0
    ways = {
        REPETITION: ([REPETITION], True),
        "all": (FOUND, True),
        "repetition, no launches": ([REPETITION], False),
    }
    is_wrong = False
    for way, (kinds, launches) in ways.items():
        counts: Counter[str] = Counter()
        for path in options.reports:
            try:
                for process, result, evidence in cases(path, kinds, launches=launches):
                    counts[result] += 1
                    if options.each and result not in (RIGHT, EXACT):
                        print(f"    {path.name} process {process}: {result} ({evidence})")
            except AnalysisError as error:
                print(f"    {error}", file=sys.stderr)
        is_wrong |= counts[WRONG] > 0
        print(f"{way}: {', '.join(f'{count} {result}' for result, count in sorted(counts.items()))}")
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
