"""What every view adds to its answer: where the numbers come from, and where all the work went."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isclose

from ..document import Document, Table
from ..report import COULD_BE_OF_TWO, LAUNCHED_OUTSIDE, NO_LAUNCH, KernelRow, Number, Report, per_step
from ..support.units import counted, share_text, time_in_digits
from ..trace import Provenance
from ..vocabulary import OTHER, step_matcher
from ..vocabulary.settings import in_order
from .rows import kernels_of, share, time_of

# What a run says about itself in its mark, in the order in which it is shown, and how.
RUN_FACTS = {each.name: each.heading for each in in_order("size", "mode", "batch_size") if each.heading}
RUN_FACTS["torch"] = "PyTorch {}"

DIRECTLY = "directly"
#: How work comes to a range, and why it comes to none: in a sentence, and as a column.
PARTS = (
    ("own_ns", DIRECTLY, DIRECTLY),
    ("adopted_ns", "launched by autograd's thread", "by autograd's thread"),
    ("linked_ns", "linked to forward operators", "linked"),
    ("captured_ns", "placed by a CUDA graph's capture", "by capture"),
)
UNPLACED = (
    ("outside_ns", "outside all ranges", "outside"),
    ("ambiguous_ns", "ambiguous", "ambiguous"),
)
#: The parts of all work.
ALL_PARTS = (*PARTS, *UNPLACED, ("excluded_ns", "warm-up left out", "warm-up"))
OUTSIDE_BY = {
    NO_LAUNCH: "In no range, as their launch was not recorded",
    LAUNCHED_OUTSIDE: "Outside all ranges",
    COULD_BE_OF_TWO: "In no range, as two threads could have waited for it",
}
COUNTED_BY_TOTALS = "--totals counts it"
#: What is left out is said from this share of the work between the first and the last measured step on.
LEFT_OUT_FROM = 0.02
#: The kinds of work, one and several.
KINDS_OF_WORK = {
    "kernel": ("kernel", "kernels"),
    "memcpy": ("copy", "copies"),
    "memset": ("memset", "memsets"),
    "graph": ("CUDA graph", "CUDA graphs"),
}
NO_GPU = "CPU time of operators, no GPU"
UNRECORDED_GPU = "CPU time of operators, the GPU's work was not recorded"
#: A version, and the rest that a short heading leaves out: `2.11.0+cu129`.
PATCH = re.compile(r"\b(\d+\.\d+)[.+]\S*")
#: Why a range has no span.
LINKED = "–: the work was linked to the range, not launched inside it."


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
        parts.append(_steps(report))
    return [part for part in parts if part]


def _steps(report: Report) -> str:
    """Return how many steps count of how many: of each rank, if all have as many."""
    numbers = [report.counted_steps, report.steps]
    is_even = report.ranks > 1 and not any(number % report.ranks for number in numbers)
    counted_steps, steps = (number // report.ranks if is_even else number for number in numbers)
    of_all = f"{counted_steps} of " if counted_steps < steps else ""
    each = " a rank" * is_even
    return f"{of_all}{steps} step{'s' * (steps > 1)}{each}"


def in_short(report: Report) -> str:
    """Return the file, the GPU, the version of PyTorch or of the tool, and the steps of a report, for one line."""
    source, told = report.provenance, facts(report)
    torch = RUN_FACTS["torch"].format(source.run["torch"]) if source.run.get("torch") else source.tool
    gpus = [gpu.removeprefix("NVIDIA ") for gpu in source.gpus[:1]]
    parts = [told[0], *gpus, PATCH.sub(r"\1", torch), *told[-1:] * bool(report.steps)]
    return " · ".join(part for part in parts if part)


def common(facts: Sequence[Sequence[str]]) -> list[str]:
    """Return the facts common to all reports."""
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
    """Return the scope of a table's numbers, such as `per step`."""
    return f"per {report.unit}" if report.per_step else over(report, report.kernels)


def over_steps(report: Report) -> str:
    """Return the scope of figures of measured steps."""
    return f"per {report.unit}" if report.per_step else f"over {report.steps} step{'s' * (report.steps > 1)}"


def scope_of_a_gpu(report: Report, gpus: int) -> str:
    """Return the scope of each GPU's figures if every rank has its own GPU and steps."""
    of_all = scope(report)
    if gpus < 2 or report.ranks < 2 or of_all == "total":
        return of_all
    of_one = f"{of_all} of each GPU"
    return of_one if report.per_step else f"over {report.steps / report.ranks:.3g} steps of each GPU"


def over(report: Report, rows: Iterable[KernelRow]) -> str:
    """Return over what these rows were summed: the measured steps, if all of the work is in them."""
    rows = list(rows)
    is_step = step_matcher(report.step)
    names = {name for row in rows for name in row.path}
    steps = {name for name in names if is_step(name.replace("*", "0"))}
    if not report.steps or any(row.total_ns for row in rows if steps.isdisjoint(row.path)):
        return "total"
    return f"over {report.steps} step{'s' if report.steps > 1 else ''}"


def work(report: Report) -> str:
    """Name the unit of work: the GPU's, or a CPU's operators."""
    return f"{report.provenance.unit_of_work} work"


def kernel_time(report: Report) -> str:
    """Name the time that is counted: the kernels', or the self CPU time of operators."""
    return "Self CPU time" if report.provenance.unit_of_work == "CPU" else "Kernel time"


def lowered(text: str) -> str:
    """Return a text for the middle of a sentence."""
    return text[:1].lower() + text[1:]


def kernel_time_in_text(report: Report) -> str:
    """Name the time that is counted within a sentence."""
    return "self CPU time of operators" if report.provenance.unit_of_work == "CPU" else "kernel time"


def span(report: Report) -> str:
    """Name the projection of a range onto its work."""
    return f"{report.provenance.unit_of_work} span"


def accounting_of(report: Report) -> tuple[str, ...]:
    """Return where the work went and what was left out; nothing if all of it was launched directly in ranges."""
    totals = report.totals
    if not totals.work_ns:
        return ()
    return (*_placed(report), *_left_out(report), *_outside(report))


def unplaced(report: Report) -> tuple[str, ...]:
    """Return how much of the work is in no range, where that is much; the first screen says no more of it."""
    totals = report.totals
    missing_ns = totals.outside_ns + totals.ambiguous_ns
    if missing_ns <= LEFT_OUT_FROM * totals.work_ns:
        return ()
    part = f"{time_in_digits(missing_ns)} ({share_text(missing_ns / totals.work_ns, 0)})"
    return (f"{part} of the {work(report)} is in no range: view kernels says why.",)


def _placed(report: Report) -> Iterator[str]:
    """Yield how work was assigned to ranges, and how much of it was not."""
    totals = report.totals
    counted_ns = totals.work_ns - totals.excluded_ns
    is_complete = report.per_step or isclose(time_of(report.kernels), counted_ns)  # and not of some ranges only
    of_steps = scope(report) if is_complete else "total"
    step = "" if of_steps == "total" else f" {of_steps}"
    placed = {text: part_ns for key, text, _ in PARTS if (part_ns := getattr(totals, key))}
    unplaced = [
        f"{time_in_digits(part_ns)} ({share_text(part_ns / counted_ns)}) is {text}"
        for key, text, _ in UNPLACED
        if (part_ns := getattr(totals, key))
    ]
    whole = f"{time_in_digits(counted_ns)} of {work(report)}{step}"
    if not counted_ns or (not unplaced and list(placed) == [DIRECTLY]):
        return
    if not placed:
        yield f"None of the {whole} is in a range."
        return
    parts = ", ".join(f"{time_in_digits(part_ns)} {text}" for text, part_ns in placed.items())
    if unplaced:
        placed_share = share_text(sum(placed.values()) / counted_ns)
        yield f"{placed_share} of the {whole} is placed: {parts}. {' and '.join(unplaced)}."
    else:
        yield f"All {whole} is placed: {parts}."


def _left_out(report: Report) -> Iterator[str]:
    """Yield which work the figures leave out, and of sums how much is in no step."""
    totals = report.totals
    if not report.per_step:
        if report.unmeasured_ns:
            part = f"{time_in_digits(report.unmeasured_ns)} ({share_text(report.unmeasured_ns / totals.work_ns)})"
            yield f"{part} of the {work(report)} is in no measured step."
        if totals.excluded_ns:
            yield f"Left out: {time_in_digits(totals.excluded_ns)} of warm-up (--include-warmup counts it)."
        return
    between_ns, within_ns = next((row[1:] for row in report.unaccounted if not row[0]), (0, 0))
    least_ns = LEFT_OUT_FROM * (within_ns or totals.work_ns * report.counted_steps)
    places: dict[str, Number] = {
        f"between measured steps ({COUNTED_BY_TOTALS})": between_ns,
        f"in no step: set-up or evaluation ({COUNTED_BY_TOTALS})": report.unmeasured_ns - between_ns,
        "of warm-up (--include-warmup counts it)": report.warm_up_ns,
    }
    parts = [f"{time_in_digits(ns)} {text}" for text, ns in places.items() if ns > least_ns]
    if parts:
        yield f"Left out: {', '.join(parts)}."
    if report.no_launch_ns:
        yield f"Steps may lack {time_in_digits(report.no_launch_ns)} of work whose launch was not recorded."


def _outside(report: Report) -> Iterator[str]:
    """Yield sentences on work in no range, by the reason."""
    for reason in dict.fromkeys(row.reason for row in report.outside):
        counts = ", ".join(
            f"{counted(row.count, *KINDS_OF_WORK[row.kind])} ({time_in_digits(row.total_ns)})"
            for row in report.outside
            if row.reason == reason
        )
        because = OUTSIDE_BY.get(reason, f"In no range, {reason}")  # of a summary, any text
        yield f"{because}{' per step' if report.per_step else ''}: {counts}."


def accounting_per_step(report: Report) -> tuple[str, ...]:
    """Return where the work of a step went, for figures that are always per step."""
    return accounting_of(report if report.per_step else per_step(report))


#: From this share of kernel time in kernels of unknown category on, the answer does not say that a kind is absent.
MUCH_OTHER = 0.05


def share_of_other(report: Report) -> float:
    """Return the share of the kernel time in kernels of unknown category."""
    kernels = kernels_of(report)
    return share(time_of(row for row in kernels if row.category == OTHER), time_of(kernels)) or 0.0


def world_size(source: Provenance) -> int:
    """Return how many ranks the report says its job has; 0 if it does not say."""
    size = source.run.get("world_size")
    return size if isinstance(size, int) and not isinstance(size, bool) else 0


def doubts_of_absence(report: Report, shortfalls: Sequence[str] = ()) -> str:
    """Return reasons why a kind of kernel may have run although none was recognized; "" without any.

    `shortfalls` are what the recording could not record.
    """
    ranks, unknown = world_size(report.provenance), share_of_other(report)
    doubts = {
        f"the job has {ranks:,} ranks": ranks > 1,
        "the recording is not complete": bool(shortfalls),
        worded(
            f"{share_text(unknown)} of the {kernel_time_in_text(report)} is in kernels of unknown category",
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
    "kernel time": "self CPU time",
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
    return {"gemm": "GEMM", OTHER: "unknown"}.get(name, name)


def phase(name: str) -> str:
    """Write a phase for text; programs get it unchanged."""
    return "no phase" if name == OTHER else name


class Worded(str):
    """A text that is in the words of its report already: names in it stay as the user gave them."""


def worded(text: str, source: Provenance) -> str:
    """Return a text of ours, without names of the user's, in the words that suit what a report is of."""
    return on_cpu(text) if source.unit_of_work == "CPU" and not isinstance(text, Worded) else text


def on_cpu(text: str) -> str:
    """Return a text about kernels in the words for a CPU's operators."""

    def operator_word(match: re.Match[str]) -> str:
        word = ON_CPU[match[0].lower()]
        return word[0].upper() + word[1:] if match[0][0].isupper() else word

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
