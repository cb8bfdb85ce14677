"""What every view says besides its answer: where the numbers come from, and where all the work went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isclose

from analysis.provenance import Provenance
from analysis.report import KernelRow, Number, Report, per_step
from analysis.units import count_text, share_text, time_text
from analysis.vocabulary import step_matcher

# What a run says about itself in its mark, in the order in which it is shown, and how.
RUN_FACTS = (
    ("size", "{}"), ("mode", "{}"), ("batch_size", "batch {}"), ("context_length", "context {}"), ("dtype", "{}"),
    ("attention", "{} attention"), ("optimizer", "{} optimizer"), ("torch", "PyTorch {}"),
)  # fmt: skip

PARTS = (
    ("own_ns", "launched in ranges of the same thread"),
    ("adopted_ns", "adopted from autograd's threads"),
    ("linked_ns", "linked to forward operators"),
    ("outside_ns", "outside all ranges"),
    ("ambiguous_ns", "ambiguous"),
    ("excluded_ns", "warm-up left out"),
)


NO_GPU = "CPU time of operators, no GPU"
#: Why a range has no span.
LINKED = "–: none, for work was linked to the range by autograd's sequence numbers, not launched inside it."


def heading(report: Report) -> str:
    """Say which report this is, from which GPU and tool, of what run and how many steps."""
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
    """Say what a run says about itself in its mark: the settings that decide its times."""
    facts = [
        form.format(source.run[key]) for key, form in RUN_FACTS if source.run.get(key) not in (None, "", False)
    ]
    return [*facts, "compiled"] if source.run.get("compile") else facts


def gpus(reports: Iterable[Report]) -> str:
    """Name the GPUs of several reports, each once."""
    return " + ".join(dict.fromkeys(name for report in reports for name in report.provenance.gpus))


def scope(report: Report) -> str:
    """Say over what a table's numbers are counted."""
    return f"per step, mean of {report.steps}" if report.per_step else over(report, report.kernels)


def scope_of_a_gpu(report: Report, gpus: int) -> str:
    """Say over what the figures of each GPU are counted, where every rank has a GPU and steps of its own."""
    said = scope(report)
    if gpus < 2 or report.ranks < 2 or said == "in all":
        return said
    own = f"{report.steps / report.ranks:.3g}"
    return f"per step, mean of {own} on each GPU" if report.per_step else f"over {own} steps on each GPU"


def over(report: Report, rows: Iterable[KernelRow]) -> str:
    """Say over what these rows were summed: measured steps only where none of it lies outside them."""
    if not report.steps or _in_no_step(report, rows):
        return "in all"
    return f"over {report.steps} step{'s' if report.steps > 1 else ''}"


def _in_no_step(report: Report, rows: Iterable[KernelRow]) -> Number:
    """Add up the work that lies in none of the measured steps."""
    rows = list(rows)
    is_step = step_matcher(report.step)
    steps = {name: is_step(name.replace("*", "0")) for row in rows for name in row.path}
    return sum(row.total_ns for row in rows if not any(steps[name] for name in row.path))


def work(report: Report) -> str:
    """Name the unit of work: the GPU's, or a CPU's operators."""
    return f"{report.provenance.unit_of_work} work"


def kernel_time(report: Report) -> str:
    """Name the time that is counted: the kernels', or what a CPU's operators spent themselves."""
    return "Operators' own CPU time" if report.provenance.unit_of_work == "CPU" else "Kernel time"


def span(report: Report) -> str:
    """Name the projection of a range onto its work."""
    return f"{report.provenance.unit_of_work} span"


def accounting(report: Report) -> tuple[str, ...]:
    """Say where all the work went; the parts sum to the whole, which is the report's whatever part is shown."""
    total = report.totals.work_ns
    parts = [
        f"{time_text(value)} ({share_text(value / total)}) {label}"
        for key, label in PARTS
        if (value := getattr(report.totals, key))
    ]
    if not parts:
        return ()
    over = scope(report) if report.per_step or _is_whole(report) else "in all"
    line = f"All {work(report)}, {over}: {time_text(total)} = {' + '.join(parts)}."
    return (line, *_beyond(report), *_outside(report))


def accounting_per_step(report: Report) -> tuple[str, ...]:
    """Say where the work of a step went, beside figures that are per step whatever was asked for."""
    return accounting(report if report.per_step else per_step(report))


def _is_whole(report: Report) -> bool:
    """Tell whether all work but warm-up is shown, and not one phase or some ranges only."""
    shown = sum(row.total_ns for row in report.kernels)
    return isclose(shown, report.totals.work_ns - report.totals.excluded_ns)


def _beyond(report: Report) -> tuple[str, ...]:
    """Say how much of the work lies outside the measured steps, where both are there."""
    beyond = _in_no_step(report, report.kernels) if report.steps and _is_whole(report) else 0
    if not beyond:
        return ()
    divided = "; --per-step divides it by the steps too" if not report.per_step else ", divided by the steps too"
    share = share_text(beyond / report.totals.work_ns)
    return (f"In no measured step: {time_text(beyond)} ({share}) of this{divided}.",)


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
