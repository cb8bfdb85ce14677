"""What every view adds to its answer: where the numbers come from, and where all the work went."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isclose

from ..document import Document, Table
from ..report import KernelRow, Number, Report, per_step
from ..support.units import count_text, share_text, time_text
from ..trace import Provenance
from ..vocabulary import OTHER, step_matcher
from . import graphs

# What a run says about itself in its mark, in the order in which it is shown, and how.
RUN_FACTS = (
    ("size", "{}"), ("mode", "{}"), ("batch_size", "batch {}"), ("context_length", "context {}"), ("dtype", "{}"),
    ("attention", "{} attention"), ("optimizer", "{} optimizer"), ("torch", "PyTorch {}"),
)  # fmt: skip

PARTS = (
    ("own_ns", "launched in ranges of the same thread"),
    ("adopted_ns", "launched by autograd's thread while the range's thread waited"),
    ("linked_ns", "linked to forward operators"),
    ("captured_ns", "led to a CUDA graph's capture"),
    ("outside_ns", "outside all ranges"),
    ("ambiguous_ns", "ambiguous"),
    ("excluded_ns", "warm-up left out"),
)


NO_GPU = "CPU time of operators, no GPU"
#: Why a range has no span.
LINKED = (
    "–: none, for work was led to the range by autograd's numbers or a graph's capture, not launched inside it."
)


def heading(report: Report) -> str:
    """Describe a report: its file, GPU, tool, run and number of steps."""
    return " · ".join(facts(report))


def facts(report: Report) -> list[str]:
    """Return the parts of the heading, the file's name first."""
    source = report.provenance
    parts = [source.file, " + ".join(source.gpus[:2]), source.tool]
    if source.unit_of_work == "CPU":
        parts.append(NO_GPU)
    parts += run_facts(source)
    if report.steps:
        parts.append(f"{report.steps} step{'s' if report.steps > 1 else ''} measured")
    return [part for part in parts if part]


def common(facts: Sequence[Sequence[str]]) -> list[str]:
    """Return the facts that all of several reports have."""
    return [fact for fact in facts[0] if all(fact in others for others in facts)]


def run_facts(source: Provenance) -> list[str]:
    """Describe the settings in a run's mark that affect its times."""
    facts = [
        form.format(source.run[key]) for key, form in RUN_FACTS if source.run.get(key) not in (None, "", False)
    ]
    return [*facts, "compiled"] if source.run.get("compile") else facts


def gpus(reports: Iterable[Report]) -> str:
    """Name the GPUs of several reports, each once."""
    return " + ".join(dict.fromkeys(name for report in reports for name in report.provenance.gpus))


def scope(report: Report) -> str:
    """Return what a table's numbers count, such as `per step, mean of 2`."""
    return f"per step, mean of {report.steps}" if report.per_step else over(report, report.kernels)


def scope_of_a_gpu(report: Report, gpus: int) -> str:
    """Return what the figures of each GPU count if every rank has its own GPU and steps."""
    said = scope(report)
    if gpus < 2 or report.ranks < 2 or said == "total":
        return said
    own = f"{report.steps / report.ranks:.3g}"
    return f"per step, mean of {own} on each GPU" if report.per_step else f"over {own} steps on each GPU"


def over(report: Report, rows: Iterable[KernelRow]) -> str:
    """Return over what these rows were summed: the measured steps, if all of the work is in them."""
    if not report.steps or _in_no_step(report, rows):
        return "total"
    return f"over {report.steps} step{'s' if report.steps > 1 else ''}"


def _in_no_step(report: Report, rows: Iterable[KernelRow]) -> Number:
    """Add up the work that lies in none of the measured steps."""
    rows = list(rows)
    is_step = step_matcher(report.step)
    names = {name for row in rows for name in row.path}
    steps = {name for name in names if is_step(name.replace("*", "0"))}
    return sum(row.total_ns for row in rows if steps.isdisjoint(row.path))


def work(report: Report) -> str:
    """Name the unit of work: the GPU's, or a CPU's operators."""
    return f"{report.provenance.unit_of_work} work"


def kernel_time(report: Report) -> str:
    """Name the time that is counted: the kernels', or a CPU's operators' own time."""
    return "Operators' own CPU time" if report.provenance.unit_of_work == "CPU" else "Kernel time"


def span(report: Report) -> str:
    """Name the projection of a range onto its work."""
    return f"{report.provenance.unit_of_work} span"


def accounting_of(report: Report) -> tuple[str, ...]:
    """Return where all the work of the report went, whatever part is shown; the parts sum to the whole."""
    total = report.totals.work_ns
    parts = [
        f"{time_text(value)} ({share_text(value / total)}) {label}"
        for key, label in PARTS
        if (value := getattr(report.totals, key))
    ]
    if not parts:
        return ()
    over = scope(report) if report.per_step or _is_whole(report) else "total"
    all_of = f"All {work(report)}" + (" in measured steps" if report.per_step and _beyond_ns(report) else "")
    line = f"{all_of}, {over}: {time_text(total)} = {' + '.join(parts)}."
    return (line, *_beyond(report), *_outside(report))


def accounting_per_step(report: Report) -> tuple[str, ...]:
    """Return where the work of a step went, for figures that are always per step."""
    return accounting_of(report if report.per_step else per_step(report))


def _is_whole(report: Report) -> bool:
    """Return whether all work but warm-up is shown, and not one phase or some ranges only."""
    shown = sum(row.total_ns for row in report.kernels)
    return isclose(shown, report.totals.work_ns - report.totals.excluded_ns)


def _beyond(report: Report) -> tuple[str, ...]:
    """Return how much of the work is outside the measured steps, if there is work in both."""
    beyond = _beyond_ns(report)
    if not beyond:
        return ()
    if not report.per_step:
        share = share_text(report.unmeasured_ns / report.totals.work_ns)
        return (f"In no measured step: {time_text(report.unmeasured_ns)} ({share}) of this; no mean counts it.",)
    share = share_text(beyond / (beyond + report.totals.work_ns * report.steps))
    parts = ((report.unmeasured_ns, "in no measured step"), (report.warm_up_ns, "in warm-up"))
    told = " and ".join(f"{time_text(value)} {where}" for value, where in parts if value)
    return (f"In no mean: {told}, {share} of all {work(report)}.",)


def _beyond_ns(report: Report) -> int:
    """Return the work that figures per step leave out."""
    return report.unmeasured_ns + report.warm_up_ns


def _outside(report: Report) -> tuple[str, ...]:
    reasons = dict.fromkeys(row.reason for row in report.outside)
    each = " per step" if report.per_step else ""
    return tuple(f"In no range, {reason}: {', '.join(_parts(report, reason))}{each}." for reason in reasons)


def _parts(report: Report, reason: str) -> list[str]:
    rows = [row for row in report.outside if row.reason == reason]
    return [f"{count_text(row.count)} {_named(row.kind, row.count)} ({time_text(row.total_ns)})" for row in rows]


def _named(kind: str, count: float) -> str:
    singular = {"kernel": "kernel", "memcpy": "copy", "memset": "memset", "graph": "CUDA graph"}[kind]
    return singular if count == 1 else {"copy": "copies"}.get(singular, f"{singular}s")


#: What --range leaves of a denominator.
IN_THOSE_RANGES = " in the ranges asked for"


def kernels(report: Report, time: str = "kernel time") -> str:
    """Return what the shares are of: all phases or a single one, and all ranges or some."""
    alone = len(report.phases) == 1 and report.phases[0].phase != OTHER
    whole = f"the {report.phases[0].phase} phase's {time}" if alone else f"all {time}"
    return whole + IN_THOSE_RANGES if is_of_ranges(report) else whole


def with_graphs(report: Report) -> str:
    """Return what the shares are of if graphs that ran whole count too."""
    return kernels(report, graphs.counted_time(report))


def is_of_ranges(report: Report) -> bool:
    """Return whether the work is that of some ranges only; the phases stay those of the whole report."""
    return not isclose(sum(row.total_ns for row in report.kernels), sum(row.work_ns for row in report.phases))


ON_CPU = {
    "kernel": "operator", "kernels": "operators", "launch": "call", "launches": "calls", "launched": "called",
    "launching": "calling",
}  # fmt: skip
_WORDS = re.compile(rf"(?<![\w:-])(?:{'|'.join(sorted(ON_CPU, reverse=True))})(?!::|[\w-])", re.IGNORECASE)


def category(name: str) -> str:
    """Write a category for text; programs get it unchanged."""
    return "GEMM" if name == "gemm" else name


def worded(text: str, source: Provenance) -> str:
    """Return a text in the words that suit what a report is of."""
    return on_cpu(text) if source.unit_of_work == "CPU" else text


def on_cpu(text: str) -> str:
    """Return a text about kernels in the words for a CPU's operators."""
    return _WORDS.sub(_other_word, text)


def _other_word(found: re.Match[str]) -> str:
    word = ON_CPU[found[0].lower()]
    return word.capitalize() if found[0][0].isupper() else word


def answer(
    report: Report, tables: Iterable[Table], notes: Iterable[str], *, accounting: Iterable[str] | None = None
) -> Document:
    """Put a report's answer together, in the words that suit what the report is of."""
    accounted = accounting_of(report) if accounting is None else accounting
    return document(report.provenance, heading(report), tables, accounted, notes)


def document(
    source: Provenance, heading: str, tables: Iterable[Table], accounting: Iterable[str], notes: Iterable[str]
) -> Document:
    """Put an answer together, in the words that suit what the report is of; values and notes stay as they are."""
    return Document(
        heading,
        tuple(_worded(table, source) for table in tables),
        tuple(worded(line, source) for line in accounting),
        tuple(notes),
    )


def _worded(table: Table, source: Provenance) -> Table:
    columns = tuple(replace(column, heading=worded(column.heading, source)) for column in table.columns)
    title, caption, lead = (worded(text, source) for text in (table.title, table.caption, table.lead))
    return replace(table, columns=columns, title=title, caption=caption, lead=lead)
