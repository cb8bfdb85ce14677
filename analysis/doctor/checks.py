"""What can be wrong with a report: one check for each problem, each with its remedy."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..account.intervals import union
from ..attribution.causes import Attribution
from ..attribution.placing import ADOPTED
from ..attribution.steps import kernels_per_step, measured_steps
from ..errors import AnalysisError
from ..kernel_names.arithmetic import UNKNOWN, is_fp32_convolution
from ..measures.fix_list import CPU, GPU_TIME, Fixes
from ..measures.gpu_peaks import peak_of
from ..opened import Opened, opened, trace_of
from ..readers.requirements import words_of
from ..report import LAUNCHED_OUTSIDE, NO_LAUNCH, Number, Report
from ..summary import caveats
from ..summary.caveats import by_arithmetic, launches_by_arithmetic
from ..summary.impossible import of_times
from ..support.findings import Finding
from ..support.small_numbers import looked_up
from ..support.units import counted, share_text, time_text
from ..trace import GRAPH, KERNEL, Trace, marked
from ..views.headings import MUCH_OTHER, kernel_time_in_text, share_of_other, worded
from ..vocabulary import AUTOGRAD_THREADS, PHASES, is_step, phase_of
from ..vocabulary.calls import KERNEL_LAUNCH
from ..vocabulary.step_ends import NO_STEP

# Shares of all GPU work from which it is worth a warning, or makes the answer wrong.
OUTSIDE = (0.05, 0.50)
AMBIGUOUS = (0.0, 0.05)
#: How kernels that Inductor generates are named, and their share in no module that is worth a warning.
COMPILED_KERNELS = ("triton_poi_", "triton_per_", "triton_red_", "triton_tem_", "triton_for_")
ONE_PIECE = 0.5
# The remedy for work in no range, by the reason.
REMEDIES = {
    LAUNCHED_OUTSIDE: "push ranges around the whole program, or capture only the measured steps",
    NO_LAUNCH: "record the {calls} calls too, from before the work is launched until it is done: begin and end "
    "the capture where the GPU is idle, after a synchronization",
}
# What a kernel may start before its call by: clocks agree to a microsecond.
EARLIER_BY_NS = 1_000
# The share of launches without a kernel from which some must have been dropped: a capture may end between the two.
LOST_LAUNCHES = 0.005
#: The share of the measured time from which the profiler's own is worth a warning.
MUCH_OVERHEAD = 0.10
NSYS_STATS = "`--like-nsys` with what `nsys stats`"
# An export is written after its report; file systems keep times to two seconds.
OLDER_BY_S = 2


@dataclass(frozen=True)
class Patient:
    """A report that was read, with the facts that the checks use; warm-up is not in its sums."""

    path: Path
    trace: Trace
    attribution: Attribution
    report: Report
    fixes: Fixes

    @property
    def work(self) -> str:
        """What is counted: the GPU's work, or a CPU's operators."""
        return f"{self.trace.provenance.unit_of_work} work"


def examine(path: Path) -> list[Finding]:
    """Run every check on a report; one that cannot be read or has no work gets no further checks."""
    return examined(path)[0]


def examined(path: Path) -> tuple[list[Finding], Opened | None]:
    """Return the findings of `examine`, and the opened report, if it can be read and has work."""
    findings = list(_stale(path))
    try:
        trace = trace_of(path)
    except AnalysisError as error:
        return [*findings, Finding("problem", str(error))], None
    report = opened(trace)
    patient = Patient(path, trace, report.attribution, report.whole, report.fixes)
    return findings + [finding for check in CHECKS for finding in check(patient)], report


def _stale(path: Path) -> Iterator[Finding]:
    """Compare an export with the .nsys-rep next to it."""
    source = path.with_suffix(".nsys-rep")
    if source == path or not path.is_file() or not source.is_file():
        return
    behind_s = source.stat().st_mtime - path.stat().st_mtime
    if behind_s > OLDER_BY_S:
        yield Finding(
            "problem",
            f"{source.name} next to it is {time_text(behind_s * 1e9)} newer: this export may be of an earlier run",
            f"nsys export --type sqlite --force-overwrite true --output {path.name} {source.name}",
        )


def _content(patient: Patient) -> Iterator[Finding]:
    trace = patient.trace
    kernels = int((trace.work.kind == KERNEL).sum())
    launches = len(np.unique(trace.work.launch[trace.work.launch >= 0]))
    launched = counted(launches, "launch", "launches")
    counts_text = f"{counted(kernels, 'kernel')}, {launched}, {counted(len(trace.ranges), 'range')}"
    counts = worded(counts_text, trace.provenance)
    if kernels or (trace.work.kind == GRAPH).any():
        yield Finding("good", f"{counts}, {trace.provenance.tool or 'by an unknown tool'}")
    else:
        remedy = words_of(trace.provenance).record
        yield Finding("problem", f"there are copies or memsets but no kernels ({counts})", remedy)


def _graphs(patient: Patient) -> Iterator[Finding]:
    work = patient.trace.work
    graphs = work.kind == GRAPH
    if graphs.any():
        share = work.duration_ns[graphs].sum() / max(work.duration_ns.sum(), 1)
        yield Finding(
            "problem",
            f"{share_text(share)} of the {patient.work} is inside "
            f"{counted(int(graphs.sum()), 'CUDA graph launch', 'CUDA graph launches')}, whose kernels are hidden",
            f"record with {words_of(patient.trace.provenance).graph_nodes}",
        )
    if doubt := caveats.of_replays(patient.attribution):
        yield Finding("warning", doubt, caveats.how_to_tell_replays(patient.attribution))


def _unknown_kernels(patient: Patient) -> Iterator[Finding]:
    share = share_of_other(patient.report)
    if share > MUCH_OTHER:
        yield Finding(
            "warning",
            worded(
                f"{share_text(share)} of the {kernel_time_in_text(patient.report)} is in kernels of unknown "
                "category: "
                "shares of other categories may be too low by as much",
                patient.trace.provenance,
            ),
            f"nvtx-kernels {shlex.quote(patient.path.name)} --by kernel names them (category other)",
        )


def _compiled(patient: Patient) -> Iterator[Finding]:
    """Look for the kernels of compiled code that are in no range of a module."""
    trace = patient.trace
    attribution = patient.attribution
    facts = patient.attribution.facts
    triton = np.array([name.startswith(COMPILED_KERNELS) for name in trace.names], np.bool_)
    compiled = (trace.work.kind == KERNEL) & triton[trace.work.name_id]
    if not compiled.any():
        return
    range_ = attribution.forest.range
    is_frame = facts.warm_up | facts.step | facts.measured | (facts.phase >= 0) | facts.operator
    modules = np.where(is_frame[attribution.ranges.name_id[range_]], -1, range_).astype(np.int32)
    in_no_module = attribution.forest.nearest(modules) < 0
    lost = trace.work.duration_ns[compiled & in_no_module[attribution.node]].sum()
    share = lost / max(trace.work.duration_ns[compiled].sum(), 1)
    if share > ONE_PIECE:
        yield Finding(
            "warning",
            f"{share_text(share)} of the time of kernels that torch.compile made is in no range of a module: "
            "the compiled program is one piece",
            "call annotate_modules(model) before the model runs for the first time (PyTorch 2.9 or newer)",
        )


def _ranges(patient: Patient) -> Iterator[Finding]:
    """Look for ranges that tell phases and steps, and for those that were never closed."""
    ranges = patient.trace.ranges
    names = patient.trace.names
    words = words_of(patient.trace.provenance)
    if not len(ranges):
        yield Finding(
            "problem",
            f"there are no {words.ranges}, so no kernel can be assigned to a part of the program",
            f"open some {words.opened}",
        )
    elif unused := caveats.of_unused(patient.attribution):
        yield Finding("problem", unused, "open push/pop ranges around forward, backward and optimizer")
    elif steps := patient.report.steps:
        yield Finding("good", f"{steps} measured step{'s' if steps > 1 else ''}")
    elif len(measured_steps(patient.attribution)):  # most of which lack their work
        reason, _, remedy = patient.report.no_steps.rstrip(".").partition(". ")
        yield Finding("problem", reason, remedy or "record again, with work in the steps")
    else:
        fix = "push a range named 'step' around each step, or use --step NAME for ranges with another name"
        yield Finding("warning", "no measured step ranges: figures per step are not available", fix)
    never = [names[name] for name in ranges.name_id[ranges.open_ended].tolist()]
    if never:
        measured = any(is_step(name) or phase_of(name) for name in never)
        some = ", ".join(dict.fromkeys(never[:6])) + (", …" if len(set(never)) > 6 else "")
        yield Finding(
            "problem" if measured else "warning",
            f"{counted(len(never), 'range was', 'ranges were')} never closed ({some}): the run was cut off or a "
            "range_pop is missing, and what came later counts into them",
            "let the run end by itself, and open ranges in `with` blocks",
        )


def _unplaced(patient: Patient) -> Iterator[Finding]:
    totals = patient.report.totals
    words = words_of(patient.trace.provenance)
    outside, ambiguous = (part_ns / max(totals.work_ns, 1) for part_ns in (totals.outside_ns, totals.ambiguous_ns))
    if len(patient.trace.ranges) and outside > OUTSIDE[0]:
        reasons = dict.fromkeys(row.reason for row in patient.report.outside if row.reason in REMEDIES)
        yield Finding(
            "problem" if outside > OUTSIDE[1] else "warning",
            f"{share_text(outside)} of the {patient.work} is in no range, {' and '.join(reasons)}",
            "; ".join(REMEDIES[reason].format(calls=words.calls) for reason in reasons),
        )
    if ambiguous > AMBIGUOUS[0]:
        yield Finding(
            "problem" if ambiguous > AMBIGUOUS[1] else "warning",
            f"{share_text(ambiguous)} of the {patient.work} was launched on autograd's threads while two threads "
            "could have waited for it",
            words.numbered,
        )


def _nameless(patient: Patient) -> Iterator[Finding]:
    trace = patient.trace
    attribution = patient.attribution
    launch = trace.work.launch[(attribution.how == ADOPTED) & (trace.work.launch >= 0)]
    threads = [trace.threads[thread] for thread in np.unique(trace.launches.thread[launch]).tolist()]
    nameless = [thread for thread in threads if not AUTOGRAD_THREADS.search(thread.name)]
    if threads and not nameless:
        yield Finding("good", f"autograd's threads are named: {', '.join(sorted({t.name for t in threads}))}")
    if nameless:
        numbers = ", ".join(str(thread.thread_id) for thread in nameless)
        yield Finding(
            "good",
            f"thread {numbers} has no name in the report and is treated as autograd's, as it only launches while "
            "another waits in its ranges",
        )


def _what_is_counted(patient: Patient) -> Iterator[Finding]:
    """Look for steps that were cut off, and for phases with all of their work in warm-up."""
    attribution = patient.attribution
    totals = patient.report.totals
    if doubt := caveats.of_steps(kernels_per_step(attribution).tolist()):
        yield Finding("problem", doubt, "record again, with the capture around whole steps")
    fix = "measure steps outside the range named warm-up, or count it with --include-warmup"
    if totals.excluded_ns and totals.excluded_ns == totals.work_ns:
        yield Finding("problem", f"all {patient.work} is in warm-up, so nothing is left to rank", fix)
        return
    present = {PHASES[phase] for phase in np.unique(attribution.phase).tolist()}
    lost = sorted(present - {row.phase for row in patient.report.phases}, key=PHASES.index)
    if lost:
        yield Finding("problem", f"all {' and '.join(lost)} work is in warm-up and left out", fix)


def _precision(patient: Patient) -> Iterator[Finding]:
    """Compare the arithmetic that the run asked for with the names of its GEMMs."""
    run = patient.trace.provenance.run
    counts = launches_by_arithmetic(patient.report.kernels)
    if not counts or patient.report.provenance.unit_of_work == "CPU":  # names of operators do not tell
        return
    used = by_arithmetic(counts)
    fix = "check torch.backends.cuda.matmul.allow_tf32, set_float32_matmul_precision and NVIDIA_TF32_OVERRIDE"
    if doubt := caveats.of_arithmetic(run, counts):
        yield Finding("problem", doubt, fix)
    elif UNKNOWN in counts and "tf32" not in counts and "tf32" in run:
        fix = "record again with NVIDIA_TF32_OVERRIDE=0: if that takes no longer, TF32 was not used"
        yield Finding("warning", f"whether TF32 was used cannot be decided from names ({used})", fix)
    elif "tf32" in counts and "tf32" not in run:
        yield Finding("warning", f"GEMMs ran in TF32 ({used}): these are not FP32 times", fix)
    else:
        yield Finding("good", f"GEMM launches by arithmetic: {used}")
    yield from _without_tensor_cores(patient, counts)


def _without_tensor_cores(patient: Patient, counts: Mapping[str, Number]) -> Iterator[Finding]:
    """Say how much faster tensor cores are, where products and convolutions compute in fp32 without them."""
    rows = patient.report.kernels
    convolutions = sum(
        row.count for row in rows if row.category == "convolution" and is_fp32_convolution(row.kernel)
    )
    kernels = {"GEMMs": counts.get("fp32", 0), "convolutions": convolutions}
    counted_kernels = [f"{count:,} {name}" for name, count in kernels.items() if count]
    peak = peak_of(patient.trace.provenance.gpus)
    if counted_kernels and peak and peak.narrower:
        tensor = peak.tflops[peak.narrower]
        plain = peak.tflops["fp32"]
        kind = {"tf32": "TF32"}.get(peak.narrower, peak.narrower)
        text = (
            f"{' and '.join(counted_kernels)} compute in fp32, in which this GPU reaches {plain:,.4g} TFLOP/s; "
            f"its tensor cores reach {tensor:,.4g} in {kind}"
        )
        is_asked_for = patient.trace.provenance.run.get("tf32") is False
        yield Finding("good" if is_asked_for else "warning", text, "nvtx-kernels view fix says what that is worth")


def _shortfalls(patient: Patient) -> Iterator[Finding]:
    if doubt := caveats.of_schema(patient.trace.provenance):
        theirs = "the sums with what `rocpd summary`" if patient.trace.provenance.is_of_rocprof else NSYS_STATS
        yield Finding("warning", doubt, f"compare {theirs} prints")
    for shortfall in patient.trace.shortfalls:
        yield Finding("warning", shortfall.rstrip("."), "record again for the rest")


def _dropped_kernels(patient: Patient) -> Iterator[Finding]:
    """Compare kernels with their launches: a profiler can drop some silently, or lose their times."""
    work = patient.trace.work
    launches = patient.trace.launches
    named = patient.trace.calls
    remedy = "begin recording before the work, with the GPU idle (torch.cuda.synchronize), and record again"
    is_launched = work.launch >= 0
    without_time = (
        is_launched & ((work.start_ns == 0) | (work.end_ns == 0)) & (work.start_ns != work.start_ns.max())
    )
    if without_time.any():
        have = counted(int(without_time.sum()), "kernel or copy has", "kernels or copies have")
        yield Finding("problem", f"{have} a time of zero", remedy)
    if impossible := of_times(patient.trace):
        yield Finding("problem", impossible, "record again, with a newer PyTorch if there is one")
    launch_ns = looked_up(launches.start_ns, work.launch, 0)
    early = is_launched & ~without_time & (work.start_ns < launch_ns - EARLIER_BY_NS)
    if early.any():
        most = time_text(int((launch_ns - work.start_ns)[early].max()))
        start = counted(
            int(early.sum()), "kernel or copy starts before its call", "kernels or copies start before theirs"
        )
        yield Finding(
            "problem",
            f"{start}, by up to {most}: the clocks of CPU and GPU differ, or ids were given twice",
            remedy,
        )
    # Of a capture, no call has a kernel of its own.
    has_graphs = patient.trace.captures is not None or (np.bincount(work.launch[is_launched]) > 1).any()
    calls = np.empty(0, np.bool_) if named is None else named.kinds == KERNEL_LAUNCH
    if calls.any() and not has_graphs:
        lost = calls & ~marked(work.launch, len(launches))
        if lost.sum() / calls.sum() > LOST_LAUNCHES:
            text = f"{lost.sum():,} of {calls.sum():,} calls that launch a kernel have none: they were dropped"
            yield Finding("problem", text, remedy)


def _recording(patient: Patient) -> Iterator[Finding]:
    """Warn where the profiler's own time is much of what was measured: alone, the program runs otherwise."""
    steps = measured_steps(patient.attribution)
    overhead = patient.trace.overhead
    if overhead is None or not len(steps):
        return
    start_ns = patient.attribution.ranges.start_ns[steps]
    end_ns = patient.attribution.ranges.end_ns[steps]
    begin_ns = start_ns.min(keepdims=True)
    until_ns = end_ns.max(keepdims=True)
    own_ns = int(union(overhead.start_ns, overhead.end_ns).covered(begin_ns, until_ns)[0])
    share = own_ns / max(1, int(until_ns[0] - begin_ns[0]))
    if share > MUCH_OVERHEAD:
        text = f"recording itself took {time_text(own_ns)}, {share_text(share)} of the time that was measured"
        yield Finding("warning", text, "record fewer steps: the times of GPU work hold, those of the CPU may not")


def _steps(patient: Patient) -> Iterator[Finding]:
    """Warn of a block in which nothing ended a step."""
    note = next((note for note in patient.attribution.steps.notes if note.startswith(NO_STEP)), None)
    if note is not None:
        reason, _, remedy = note.rpartition("; ")
        yield Finding("warning", reason, remedy.rstrip("."))


def _advice(patient: Patient) -> Iterator[Finding]:
    """Say by what `view fix` judges what to change first, and what it lacks for more."""
    advice = patient.fixes
    if advice.kind == GPU_TIME:
        text = f"view fix has upper limits by the GPU's time alone, and no replay: {advice.reason}"
        yield Finding("warning" if advice.remedy else "good", text, advice.remedy)
    elif advice.kind == CPU:
        yield Finding("good", "view fix judges this CPU by its operators, which it counts")
    else:
        yield Finding("good", f"view fix replays {counted(advice.steps, 'step')}")


CHECKS: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
    _content,
    _dropped_kernels,
    _shortfalls,
    _graphs,
    _unknown_kernels,
    _compiled,
    _ranges,
    _steps,
    _recording,
    _what_is_counted,
    _unplaced,
    _nameless,
    _precision,
    _advice,
)
