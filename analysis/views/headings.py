"""What every view adds to its answer: where the numbers come from, and where all the work went."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isclose

from ..document import Document, Table
from ..report import KernelRow, Report, per_step
from ..support.units import count_text, share_text, time_text
from ..trace import Provenance
from ..vocabulary import OTHER, step_matcher
from .rows import kernels_of, share, time_of

# What a run says about itself in its mark, in the order in which it is shown, and how.
RUN_FACTS = {
    "size": "{}",
    "mode": "{}",
    "batch_size": "batch {}",
    "context_length": "context {}",
    "dtype": "{}",
    "attention": "{} attention",
    "optimizer": "{} optimizer",
    "torch": "PyTorch {}",
}

PARTS = (
    ("own_ns", "launched in ranges of the same thread"),
    ("adopted_ns", "launched by autograd's thread while the range's thread waited"),
    ("linked_ns", "linked to forward operators"),
    ("captured_ns", "led to a CUDA graph's capture"),
    ("outside_ns", "outside all ranges"),
    ("ambiguous_ns", "ambiguous"),
    ("excluded_ns", "warm-up left out"),
)

OUTSIDE_STEPS = "evaluation, rollouts or set-up"
UNMEASURED = f"in no measured step ({OUTSIDE_STEPS}; --totals counts it)"
WARM_UP = "in warm-up (--include-warmup counts it)"
#: The kinds of work, one and several.
KINDS_OF_WORK = {
    "kernel": ("kernel", "kernels"),
    "memcpy": ("copy", "copies"),
    "memset": ("memset", "memsets"),
    "graph": ("CUDA graph", "CUDA graphs"),
}
NO_GPU = "CPU time of operators, no GPU"
UNRECORDED_GPU = "CPU time of operators, the GPU's work was not recorded"
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
        parts.append(UNRECORDED_GPU if source.gpu_operator else NO_GPU)
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
        form.format(source.run[key])
        for key, form in RUN_FACTS.items()
        if source.run.get(key) not in (None, "", False)
    ]
    return [*facts, "compiled"] if source.run.get("compile") else facts


def gpus(reports: Iterable[Report]) -> str:
    """Name the GPUs of several reports, each once."""
    return " + ".join(dict.fromkeys(name for report in reports for name in report.provenance.gpus))


def scope(report: Report) -> str:
    """Return the scope of a table's numbers, such as `per step, mean of 2`."""
    return f"per step, mean of {report.steps}" if report.per_step else over(report, report.kernels)


def scope_of_a_gpu(report: Report, gpus: int) -> str:
    """Return the scope of each GPU's figures if every rank has its own GPU and steps."""
    of_all = scope(report)
    if gpus < 2 or report.ranks < 2 or of_all == "total":
        return of_all
    steps = f"{report.steps / report.ranks:.3g}"
    return f"per step, mean of {steps} on each GPU" if report.per_step else f"over {steps} steps on each GPU"


def over(report: Report, rows: Iterable[KernelRow]) -> str:
    """Return over what these rows were summed: the measured steps, if all of the work is in them."""
    rows = list(rows)
    is_step = step_matcher(report.step)
    steps = {name for row in rows for name in row.path if is_step(name.replace("*", "0"))}
    if not report.steps or any(row.total_ns for row in rows if steps.isdisjoint(row.path)):
        return "total"
    return f"over {report.steps} step{'s' if report.steps > 1 else ''}"


def work(report: Report) -> str:
    """Name the unit of work: the GPU's, or a CPU's operators."""
    return f"{report.provenance.unit_of_work} work"


def kernel_time(report: Report) -> str:
    """Name the time that is counted: the kernels', or a CPU's operators' own time."""
    return "Operators' own CPU time" if report.provenance.unit_of_work == "CPU" else "Kernel time"


def kernel_time_in_text(report: Report) -> str:
    """Name the time that is counted within a sentence."""
    return "self CPU time of operators" if report.provenance.unit_of_work == "CPU" else "kernel time"


def span(report: Report) -> str:
    """Name the projection of a range onto its work."""
    return f"{report.provenance.unit_of_work} span"


def accounting_of(report: Report) -> tuple[str, ...]:
    """Return where all the work of the report went, whatever part is shown; the parts sum to the whole."""
    total_ns = report.totals.work_ns
    parts = [
        f"{time_text(part_ns)} ({share_text(part_ns / total_ns)}) {text}"
        for key, text in PARTS
        if (part_ns := getattr(report.totals, key))
    ]
    if not parts:
        return ()
    beyond_ns = report.unmeasured_ns + report.warm_up_ns  # what figures per step leave out
    # All work but warm-up is shown, and not one phase or some ranges only.
    is_complete = isclose(time_of(report.kernels), total_ns - report.totals.excluded_ns)
    counted = scope(report) if report.per_step or is_complete else "total"
    all_of = f"All {work(report)}" + (" in measured steps" if report.per_step and beyond_ns else "")
    lines = [f"{all_of}, {counted}: {time_text(total_ns)} = {' + '.join(parts)}."]
    if beyond_ns and report.per_step:
        places = [
            f"{time_text(part_ns)} {text}"
            for part_ns, text in ((report.unmeasured_ns, UNMEASURED), (report.warm_up_ns, WARM_UP))
            if part_ns
        ]
        beyond = share_text(beyond_ns / (beyond_ns + total_ns * report.steps))
        unlaunched = (
            f" The report has no launch of {time_text(report.no_launch_ns)} of it: steps can lack that work."
        )
        line = f"Not in these means: {' and '.join(places)}, {beyond} of all {work(report)}."
        lines.append(line + (unlaunched if report.no_launch_ns else ""))
    elif beyond_ns:
        beyond = share_text(report.unmeasured_ns / total_ns)
        unmeasured = time_text(report.unmeasured_ns)
        lines.append(f"Of this, {unmeasured} ({beyond}) is in no measured step: {OUTSIDE_STEPS}.")
    for reason in dict.fromkeys(row.reason for row in report.outside):
        counts = ", ".join(
            f"{count_text(row.count)} {KINDS_OF_WORK[row.kind][row.count != 1]} ({time_text(row.total_ns)})"
            for row in report.outside
            if row.reason == reason
        )
        lines.append(f"In no range, {reason}: {counts}{' per step' if report.per_step else ''}.")
    return tuple(lines)


def accounting_per_step(report: Report) -> tuple[str, ...]:
    """Return where the work of a step went, for figures that are always per step."""
    return accounting_of(report if report.per_step else per_step(report))


#: If unknown categories have more than this share of the kernel time, absent categories are not called absent.
MUCH_OTHER = 0.05


def share_of_other(report: Report) -> float:
    """Return the share of the kernel time in kernels of an unknown category."""
    kernels = kernels_of(report)
    return share(time_of(row for row in kernels if row.category == OTHER), time_of(kernels)) or 0.0


def world_size(source: Provenance) -> int:
    """Return how many ranks the report says its job has; 0 if it does not say."""
    size = source.run.get("world_size")
    return size if isinstance(size, int) and not isinstance(size, bool) else 0


def doubts_of_absence(report: Report, shortfalls: Sequence[str] = ()) -> str:
    """Return why kernels of a kind may exist although none was found, or "" without a reason.

    `shortfalls` are what the recording could not record.
    """
    ranks, unknown = world_size(report.provenance), share_of_other(report)
    doubts = {
        f"the job has {ranks:,} ranks": ranks > 1,
        "the recording is not complete": bool(shortfalls),
        worded(
            f"{share_text(unknown)} of the {kernel_time_in_text(report)} is in kernels that no rule knows",
            report.provenance,
        ): unknown > MUCH_OTHER,
    }
    return " and ".join(doubt for doubt, holds in doubts.items() if holds)


#: What --range leaves of a denominator.
IN_THOSE_RANGES = " in the ranges asked for"


def kernels(report: Report, time: str = "kernel time") -> str:
    """Return the denominator of the shares: all phases or a single one, and all ranges or some."""
    is_one_phase = len(report.phases) == 1 and report.phases[0].phase != OTHER
    denominator = f"the {report.phases[0].phase} phase's {time}" if is_one_phase else f"all {time}"
    return denominator + IN_THOSE_RANGES if is_of_ranges(report) else denominator


def is_of_ranges(report: Report) -> bool:
    """Return whether the work is that of some ranges only; the phases stay those of the whole report."""
    return not isclose(time_of(report.kernels), sum(row.work_ns for row in report.phases))


ON_CPU = {
    "kernel": "operator",
    "kernels": "operators",
    "launch": "call",
    "launches": "calls",
    "launched": "called",
    "launching": "calling",
}
_WORDS = re.compile(rf"(?<![\w:-])(?:{'|'.join(sorted(ON_CPU, reverse=True))})(?!::|[\w-])", re.IGNORECASE)


def category(name: str) -> str:
    """Write a category for text; programs get it unchanged."""
    return "GEMM" if name == "gemm" else name


def worded(text: str, source: Provenance) -> str:
    """Return a text in the words that suit what a report is of."""
    return on_cpu(text) if source.unit_of_work == "CPU" else text


def on_cpu(text: str) -> str:
    """Return a text about kernels in the words for a CPU's operators."""

    def operator_word(match: re.Match[str]) -> str:
        word = ON_CPU[match[0].lower()]
        return word.capitalize() if match[0][0].isupper() else word

    return _WORDS.sub(operator_word, text)


def answer(
    report: Report, tables: Iterable[Table], notes: Iterable[str], *, accounting: Iterable[str] | None = None
) -> Document:
    """Put a report's answer together, in the words that suit what the report is of."""
    lines = accounting_of(report) if accounting is None else accounting
    return document(report.provenance, heading(report), tables, lines, notes)


def document(
    source: Provenance, heading: str, tables: Iterable[Table], accounting: Iterable[str], notes: Iterable[str]
) -> Document:
    """Put an answer together, in the words that suit what the report is of; values and notes stay as they are."""

    def worded_table(table: Table) -> Table:
        columns = tuple(replace(column, heading=worded(column.heading, source)) for column in table.columns)
        title, caption, lead = (worded(text, source) for text in (table.title, table.caption, table.lead))
        return replace(table, columns=columns, title=title, caption=caption, lead=lead)

    lines = tuple(worded(line, source) for line in accounting)
    return Document(heading, tuple(map(worded_table, tables)), lines, tuple(notes))
