"""How much of what the GPU can do operators and ranges get: FLOP/s and B/s against its peaks, and MFU of the step.

FLOPs and bytes are counted by annotation, stated by a run, or follow from the shapes in a trace.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..document import Document, Row, Table, headed
from ..errors import ReportError
from ..measures import efficiency
from ..measures.efficiency import FAR_BELOW, NEITHER, Counts, Efficiency, Joined, counts_of
from ..measures.gpu_peaks import Peak, peak_for
from ..measures.operators import WorkShapes, operator_rows
from ..report import Report, tree_order
from ..report.recording import Recording
from ..summary.selection import naming_for
from ..support.units import count_text, share_text, time_in_digits
from ..vocabulary import some_of
from . import headings, operators
from .registry import Subject
from .rows import depths, in_tree, kernels_of, label, last_names, more, require_measured, share, time_of

NO_COUNTS = (
    "The report does not say how many FLOPs its ranges compute. Record it with them: nk.profile(model, optimizer, "
    "path, flops=True), annotate_modules(model, flops=True), or nvtx-kernels record --flops; with torch.profiler, "
    "record_shapes=True."
)
NO_STEPS = (
    "FLOPs are those of one step, and the report has no measured step ranges. Push a range named 'step' around "
    "each of them, or say with --step which ranges are the steps."
)
OTHER_CALLS = (
    "The counted step called {} {} times, and a measured step {} times, so its FLOPs are not those of the "
    "measured steps. Let the last step of warm-up be like the measured ones: with several optimizers, record with "
    "--warmup 2 (warmup=2)."
)
NOT_COUNTED = (
    "No FLOPs or bytes were counted in these ranges: {}. Counted are ranges of nk.annotate, torch.cuda.nvtx and, "
    "without nsys, the package nvtx, that are open in the counted step; in backward, only those of nk.annotate. "
    "Use nk.annotate.region, and record again with --flops or flops=True. Ranges with counts: {}."
)
UNKNOWN_GPU = (
    "The peaks of {} are unknown, so shares and bounds are left out. Measure them with `nvtx-kernels "
    "doctor --peaks` and record again."
)
PEAKS = "Peaks: {}"
NO_PEAK = "The peak of {} on the {} is unknown, so ranges that compute in it have no share."
FP32 = (
    "% FLOP is of the {:,.4g} TFLOP/s of fp32. Tensor cores reach {:,.4g} in {}: the best range's {} is {} of "
    "that. "
    "`nvtx-kernels view fix` shows the time at stake."
)
ON_CPU = "Recorded on a CPU, whose peaks are unknown, so shares and bounds are left out."
MEASURED_PEAKS = (
    "Peaks were measured on this GPU, with one large product and one large copy (nvtx-kernels doctor "
    "--peaks). Shares, MFU and HFU are higher than with the data sheet's."
)
CONVENTION = "2 per multiply-add, of matrix products, convolutions and attention"
BYTES = "B/s: of the least bytes, each input and output once."
#: Kinds of kernels that operators with a formula launch.
WITH_FLOPS = frozenset(("gemm", "convolution", "attention"))
#: Shown only where a share of the counted FLOPs is in a range around theirs.
LEAST_MOVED = 1e-9

RATES = headed(kernel_ns="time", flops="FLOPs", arithmetic="arithmetic", flops_per_s="FLOP/s")
RATES += headed(compute_share="% FLOP", bytes="bytes", bytes_per_s="B/s", memory_share="% mem")
RATES += headed(flops_per_byte="FLOPs/B", bound="bound")
COLUMNS = {column.key: column for column in RATES}


def view(subject: Subject) -> Document:
    """Show the operators of a trace with shapes, each range's rates and shares, and those of the step.

    Raises ReportError where the report has neither counts nor shapes, no steps, or counts that are not of its
    steps.
    """
    report = subject.report
    require_measured(report)
    counts = counts_of(report)
    if counts is None:
        return _by_shapes(subject)
    if unfit := why_unfit(subject.whole, counts):
        raise ReportError(unfit)
    joined = efficiency.joined(subject.whole, counts)  # steps are around the ranges that were chosen
    peak = peak_for(report.provenance.gpus, counts.peaks)
    tables = (_ranges(subject, joined, peak), _step(subject, joined, peak))
    return headings.answer(report, tables, (*report.notes, *_notes(report, counts, joined, peak)))


def _by_shapes(subject: Subject) -> Document:
    """Show what the shapes of a trace tell."""
    report = subject.report
    if subject.attribution.trace.operators is None:
        raise ReportError(NO_COUNTS)
    shapes = WorkShapes(subject.attribution)
    rows, every = operators.rows_of(subject, shapes), operator_rows(shapes, steps=operators.steps_of(subject))
    joined = efficiency.joined_by_shapes(subject.whole, every)
    peak = peak_for(report.provenance.gpus, {})
    tables = [operators.table(subject, rows, peak)]
    if any(row.path for row in report.ranges) and joined.rows:
        tables.append(_ranges(subject, joined, peak))
    if report.step_ns and subject.whole.steps:
        tables.append(_step(subject, joined, peak))
    notes = (*report.notes, *_of_peaks(report, joined, peak), *operators.notes(subject, rows))
    return headings.answer(report, tables, notes)


def why_unfit(whole: Report, counts: Counts) -> str:
    """Return the reason that counts do not match a report's measured steps, or "" if they do."""
    if not whole.steps:
        return NO_STEPS
    if different := efficiency.other_calls(whole, counts):
        path, counted, measured = different
        return OTHER_CALLS.format(path, *map(count_text, (counted, round(measured, 2))))
    return ""


def _ranges(subject: Subject, joined: Joined, peak: Peak | None) -> Table:
    """Show one row per range and phase, outer before inner."""
    report, detail = subject.report, subject.detail
    selected = {(row.path, row.phase) for row in report.ranges}
    rows = [row for row in joined.rows if (row.path, row.phase) in selected]
    if not rows:
        wanted = some_of(dict.fromkeys(label(row.path[-1:]) for row in report.ranges))
        counted = some_of(dict.fromkeys(label(row.path[-1:]) for row in joined.rows))
        raise ReportError(NOT_COUNTED.format(wanted, counted))
    naming = naming_for(detail, report)
    named = efficiency.by_name(rows, {row.path: naming(row.path) for row in rows})
    order = tree_order([(row.path, (row.kernel_ns,)) for row in named])
    rows = sorted(named, key=lambda row: (order(row.path), row.phase))
    title = f"{headings.kernel_time(report)}, FLOPs and bytes of ranges, {{unit}} {headings.scope(report)}"
    if detail.whole:
        values = (Row((label(row.path), row.phase, *_every_value(row, peak).values())) for row in rows)
        return Table("efficiency", title, (*headed("range", "phase"), *RATES), tuple(values))
    keys = ["kernel_ns", "flops_per_s", "compute_share", "bytes_per_s", "memory_share", "flops_per_byte", "bound"]
    if peak is None:
        keys = ["kernel_ns", "flops", "flops_per_s", "bytes", "bytes_per_s", "flops_per_byte"]
    chosen = in_tree(rows, "kernel_ns", detail.top, report.phase_names)
    caption = BYTES
    if peak and any(row.bound(peak) == NEITHER for row in chosen):
        caption += f" neither: below {share_text(FAR_BELOW, 0)} of both peaks."
    # The phase's own range may be among those that were left out.
    with_phase = len(report.ranges) < len(subject.whole.ranges)
    lines = []
    for name, depth, row in zip(last_names(chosen), depths(chosen), chosen, strict=True):
        cells = _every_value(row, peak)
        cells |= {key: cells[key] or None for key in ("flops", "bytes")}  # 0 if unknown
        lines.append(Row((name, *[row.phase] * with_phase, *(cells[key] for key in keys)), indent=depth))
    columns = (*headed("range", *["phase"] * with_phase), *(COLUMNS[key] for key in keys))
    return Table("efficiency", title, columns, tuple(lines), caption + more(rows, len(chosen), "range"))


def _every_value(row: Efficiency, peak: Peak | None) -> dict[str, object]:
    """Return a range's cells by the keys of COLUMNS."""
    figures = row.figures
    return {
        "kernel_ns": row.kernel_ns,
        "flops": figures.total,
        "arithmetic": " + ".join(sorted(kind for kind, count in figures.flops.items() if count)),
        "flops_per_s": row.per_second(figures.total),
        "compute_share": row.of_compute(peak) if peak else None,
        "bytes": figures.bytes,
        "bytes_per_s": row.per_second(figures.bytes),
        "memory_share": row.of_memory(peak) if peak else None,
        "flops_per_byte": row.intensity,
        "bound": row.bound(peak) if peak else None,
    }


def _step(subject: Subject, joined: Joined, peak: Peak | None) -> Table:
    """Show MFU and HFU: FLOPs of a step against what the GPU could have computed in its time."""
    report, attribution = subject.report, subject.attribution
    step_ns = report.step_ns or 0.0
    time_ns = step_ns * (1 if report.per_step else report.steps)
    gpus = max(len(set(attribution.trace.work.device_id.tolist())) // max(report.ranks, 1), 1)
    rows = []
    parts = (("model (MFU)", joined.model), ("all computed (HFU)", joined.all_computed))
    for name, figures in parts if joined.model.total else parts[1:]:
        least_s = efficiency.seconds(figures.flops, peak) if peak else None
        peak_share = least_s / gpus / (time_ns / 1e9) if least_s and time_ns else None
        total = figures.total or None  # 0 if unknown
        rate = total / (time_ns / 1e9) if total and time_ns else None
        rows.append((name, total, time_ns, rate, peak_share))
    columns = headed(flops_of="FLOPs of", flops="FLOPs", time_ns="time", flops_per_s="FLOP/s")
    columns += headed(share="% peak") if peak or subject.detail.whole else ()
    caption = "MFU: forward and backward. HFU: with recomputation and the optimizer."
    several = f" % peak is of {gpus} GPUs." if peak and gpus > 1 else ""
    alone = _without_recording(report.recording, step_ns, rows[0][-1]) if joined.model.total else ""
    scope = headings.over_steps(report)
    title = f"FLOPs of the steps against their time, {{unit}} {scope}"
    return Table(
        "step", title, columns, tuple(Row(row[: len(columns)]) for row in rows), caption + several + alone
    )


def _without_recording(cost: Recording | None, step_ns: float, mfu: float | None) -> str:
    """Return MFU without recording, given that of a recorded step and how long that takes, ns; "" if not known."""
    if cost is None or not cost.alone_ns or mfu is None:
        return ""
    at_most, at_least = ("at most ", "at least ") if cost.is_upper_limit else ("", "")
    share = share_text(mfu * step_ns / cost.alone_ns)
    return (
        f" Without recording, a step takes {at_most}{time_in_digits(cost.alone_ns)}, and MFU is {at_least}{share}."
    )


def _of_fp32(joined: Joined, peak: Peak) -> Iterator[str]:
    """Yield the tensor cores' peak beside that of fp32, where most FLOPs are in fp32."""
    flops, kind = joined.all_computed.flops, peak.narrower
    if kind is None or flops.get("fp32", 0) <= joined.all_computed.total / 2:
        return
    rows = [row for row in joined.rows if row.figures.flops.get("fp32", 0) > row.figures.total / 2]
    share = max((row.of_compute(peak) or 0 for row in rows), default=0)
    ratio = peak.tflops["fp32"] / peak.tflops[kind]
    name = {"tf32": "TF32"}.get(kind, kind)
    shares = (share_text(part) for part in (share, share * ratio))
    yield FP32.format(peak.tflops["fp32"], peak.tflops[kind], name, *shares)


def _of_peaks(report: Report, joined: Joined, peak: Peak | None) -> Iterator[str]:
    """Yield sentences on the GPU's peaks."""
    if peak is not None:
        kinds = sorted(kind for kind, count in joined.all_computed.flops.items() if count and not peak.flops(kind))
        yield PEAKS.format(peak.source)
        yield from (NO_PEAK.format(kind, report.provenance.gpus[0]) for kind in kinds)
        yield from _of_fp32(joined, peak)
    elif report.provenance.unit_of_work == "CPU":
        yield ON_CPU
    else:
        yield UNKNOWN_GPU.format(headings.gpus([report]) or "the GPU, which the report does not name,")


def _notes(report: Report, counts: Counts, joined: Joined, peak: Peak | None) -> Iterator[str]:
    """Yield the notes on numbers that were counted or stated."""
    yield from _of_peaks(report, joined, peak)
    if counts.peaks:
        yield MEASURED_PEAKS
    if counts.is_stated:
        convention = report.provenance.run.get("flops_convention")
        yield f"FLOPs and bytes follow from the run's sizes: {convention}."
    if joined.moved.total > LEAST_MOVED * joined.all_computed.total:
        moved = share_text(joined.moved.total / joined.all_computed.total)
        names = some_of((path for _, path in joined.unjoined), most=4)
        yield (
            f"FLOPs of ranges missing from the report ({moved}) are credited to the nearest enclosing range: "
            f"{names}."
        )
    if counts.uncounted:
        kernels = kernels_of(report)
        others = share(time_of(row for row in kernels if row.category not in WITH_FLOPS), time_of(kernels))
        time, others_text = headings.kernel_time(report), "none" if others is None else share_text(others)
        yield f"FLOPs are {CONVENTION}, by PyTorch's formulas."
        named = ", ".join(f"{name} {count_text(count)}×" for name, count in list(counts.uncounted.items())[:6])
        yield (
            f"Operators without a formula count no FLOPs; {others_text} of the {headings.lowered(time)} is in "
            "kernels "
            f"of such kinds: {named}."
        )
