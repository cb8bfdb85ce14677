"""Notes that belong with a report's numbers: decisions that were made, and what annotation would add."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from nvtx_kernels import DOMAIN

from ..attribution.causes import HOW, Attribution
from ..attribution.steps import kernels_per_step, measured_steps
from ..attribution.user_ranges import named_phases, of_titles
from ..kernel_names.arithmetic import UNKNOWN, arithmetic_of
from ..readers.requirements import words_of
from ..report import KernelRow, Number, RangeRow
from ..support.small_numbers import distinct
from ..support.text import capitalized
from ..support.units import counted, share_text, time_text
from ..trace import GRAPH, KERNEL, MODEL_BACKWARD, MODEL_FORWARD, START_END, Bools, Int8s, Provenance
from ..vocabulary import BACKWARD, DECODE, FORWARD, FUSED, OTHER, PHASES, PREFILL, fused_parts, spans_layers
from ..vocabulary.served import SECOND_RUNNER, held
from .costly_settings import of_settings
from .impossible import of_times

CATEGORY_OF = {FORWARD: MODEL_FORWARD, BACKWARD: MODEL_BACKWARD}
# Copies between a replay's graphs, and kernels of libraries, are captured in no range of a model.
MOST_UNTOLD = 0.1


def launches_by_arithmetic(rows: Iterable[KernelRow]) -> dict[str, Number]:
    """Count the GEMM launches of each arithmetic."""
    counts: dict[str, Number] = defaultdict(int)
    for row in rows:
        if row.gemm_launch:
            counts[arithmetic_of(row.kernel)] += row.count
    return counts


def by_arithmetic(counts: Mapping[str, Number]) -> str:
    """Write the launches of each arithmetic, most first: `218 fp32, 2 with unknown arithmetic`."""
    called = {UNKNOWN: "with unknown arithmetic"}
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {called.get(name, name)}" for name, count in ranked)


def notes(attribution: Attribution, left_out: Bools, kernels: Iterable[KernelRow]) -> Iterator[str]:
    """Yield the sentences; `left_out` marks the work that lies in warm-up, `kernels` are rows of the rest."""
    provenance = attribution.trace.provenance
    work = attribution.trace.work
    doubts = [of_times(attribution.trace), of_schema(provenance)]
    if provenance.unit_of_work == "GPU":  # names of a CPU's operators do not tell their arithmetic
        doubts.append(of_arithmetic(provenance.run, launches_by_arithmetic(kernels)))
    doubts += [of_steps(kernels_per_step(attribution).tolist()), _of_counting(attribution, left_out)]
    yield from map(_sentence, filter(None, doubts))
    yield from of_settings(provenance.run)
    yield from attribution.steps.notes
    if unfit_ns := int(work.duration_ns[attribution.unfit & ~left_out].sum()):
        share = share_text(unfit_ns / int(work.duration_ns[~left_out].sum()))
        yield (
            f"{time_text(unfit_ns)} ({share}) of the work cannot be linked to a forward operator: counted "
            "in backward, and in no module."
        )
    in_warm_up = [phase for phase in PHASES if phase != OTHER and _is_left_out(attribution, left_out, phase)]
    if in_warm_up:
        phases = " and ".join(filter(None, (", ".join(in_warm_up[:-1]), in_warm_up[-1])))
        yield f"All work in {phases} is in warm-up and left out; --include-warmup counts it."
    yield from _of_annotation(attribution)
    if graphs := int((work.kind == GRAPH).sum()):
        yield (
            f"{counted(graphs, 'CUDA graph launch is', 'CUDA graph launches are')} counted whole, as "
            f"the kernels inside were not recorded. Record with {words_of(provenance).graph_nodes} to see them."
        )
    yield from _of_fusions(attribution, kernels)
    if replays := of_replays(attribution):
        yield f"{_sentence(replays)} {how_to_tell_replays(attribution)}"
    if open_ended := int(attribution.trace.ranges.open_ended.sum()):
        were = counted(open_ended, "range was", "ranges were")
        yield f"{were} never closed, and assumed to end with the capture."


def _is_left_out(attribution: Attribution, left_out: Bools, phase: str) -> bool:
    """Return whether a phase has work, all of which is left out."""
    of_phase = attribution.phase == PHASES.index(phase)
    return bool(of_phase.any() and not (of_phase & ~left_out).any())


def _sentence(doubt: str) -> str:
    return f"{capitalized(doubt)}."


def _of_fusions(attribution: Attribution, kernels: Iterable[KernelRow]) -> Iterator[str]:
    """Return a note on the work that several ranges share, as a compiler fused it."""
    if all(domain.name != DOMAIN for domain in attribution.trace.domains):
        return
    rows = list(kernels)
    shared = [(row, parts) for row in rows if row.path and (parts := fused_parts(row.path[-1]))]
    if shared:
        all_ns = sum(row.total_ns for row in rows) or 1
        across = sum(row.total_ns for row, parts in shared if spans_layers(parts))
        fused = sum(row.total_ns for row, _ in shared)
        in_layers = f" {share_text(across / all_ns)} is fused across layers." if across else ""
        yield (
            f"A compiler fused {share_text(fused / all_ns)} of the {attribution.trace.provenance.unit_of_work} "
            f"work across ranges; such a row has their names, joined by `{FUSED.strip()}`.{in_layers}"
        )


def how_to_tell_replays(attribution: Attribution) -> str:
    """Return how replayed kernels get modules: by the tool that recorded them, or by a serving engine's traces."""
    trace = attribution.trace
    if trace.provenance.is_of_pytorch and any(held(name) for name in trace.names):
        of_engine = "pass the traces that the engine wrote of the capture: --capture FOLDER."
        return f"To have their modules, {of_engine} {SECOND_RUNNER}"
    return f"To have their modules, {words_of(trace.provenance).replayed}."


def of_replays(attribution: Attribution) -> str:
    """Return a note on replayed kernels of CUDA graphs whose modules no capture shows; empty if there are few.

    One launch of several kernels is a replay: no other CUDA call starts more than one.
    """
    work = attribution.trace.work
    if attribution.trace.provenance.unit_of_work != "GPU":
        return ""
    kernel = (work.kind == KERNEL) & (work.launch >= 0)
    started = np.bincount(work.launch[kernel], minlength=len(attribution.trace.launches))
    if started.max(initial=0) <= 1:
        return ""
    replayed = kernel & (started[work.launch] > 1)
    untold = replayed & (attribution.how != HOW.index("captured"))
    if untold.sum() <= MOST_UNTOLD * replayed.sum():
        return ""
    return (
        f"the modules of {untold.sum():,} of {replayed.sum():,} kernels in CUDA graphs are unknown, as their "
        "capture "
        "was not recorded"
    )


def _of_annotation(attribution: Attribution) -> Iterator[str]:
    """Yield a note on the ranges to open, if the report has no ranges, or none that opens a phase."""
    ranges, how = words_of(attribution.trace.provenance)[:2]
    present = _phases(attribution.phase)
    # Of phases that only parts name, such as FSDP's gathering, most work has no phase.
    facts = attribution.facts
    table = attribution.ranges
    by_models = {name for name in (FORWARD, BACKWARD) if (table.category == CATEGORY_OF[name]).any()}
    by_whole, by_parts = (
        _phases(named_phases(facts, table)[of_titles(flags, table)]) for flags in (facts.opens_phase, facts.part)
    )
    opened = present - {OTHER} - (by_parts - by_whole - by_models)
    if unused := of_unused(attribution):
        yield _sentence(unused)
    elif not len(attribution.ranges):
        by_thread = "backward is known only by its threads"
        by_nothing = "it is unknown which part of the program launched what"
        yield (
            f"The report has no {ranges}, so {by_thread if BACKWARD in present else by_nothing}. Open some around "
            f"forward, backward and optimizer, and inside these around layers and their parts, {how}."
        )
    elif not opened:
        yield (
            "No range is named forward, backward or optimizer, so the phases cannot be distinguished. Open "
            f"{ranges} of these names, {how}."
        )
    elif BACKWARD in opened and OTHER in present and FORWARD not in opened:
        yield (
            f"No range is named forward, so its work is in the row `no phase`. Open {ranges} named forward, {how}."
        )


def _phases(numbers: Int8s) -> set[str]:
    return {PHASES[number] for number in distinct(numbers).tolist()}


def of_unused(attribution: Attribution) -> str:
    """Return a note on the ranges of a report if no work can be assigned to any of them, and the remedy."""
    ranges = attribution.trace.ranges
    if len(attribution.ranges) or not len(ranges):
        return ""
    marks = ranges.style == START_END
    domains = attribution.trace.domains
    names = sorted({domains[number].name for number in distinct(ranges.domain[~marks]).tolist()} - {""})
    unused = []
    if count := int(marks.sum()):
        unused.append(f"{count:,} start/end ranges, which belong to no thread: push and pop ranges instead")
    if count := len(ranges) - int(marks.sum()):
        some = f" ({', '.join(names)})" if names else ""
        unused.append(
            f"{count:,} ranges of libraries{some} or of single operators: "
            + (f"--domain {names[0]} shows them" if names else "--operators keep shows the latter")
        )
    return f"no range is the program's own, of the {len(ranges):,} that the report has: {'; '.join(unused)}"


def _of_counting(attribution: Attribution, left_out: Bools) -> str:
    """Return a note on the event that ends annotation's steps, and the number left out as warm-up."""
    steps = measured_steps(attribution)
    trace = attribution.trace
    if not trace.provenance.steps:
        return ""
    domains = {trace.domains[number].name for number in distinct(attribution.ranges.domain[steps]).tolist()}
    if DOMAIN not in domains:
        return ""
    warm_up = int(attribution.steps.warm_up.sum()) if left_out.any() else 0
    these = f"; {warm_up} warm-up step{'s are' if warm_up > 1 else ' is'} left out" if warm_up else ""
    return f"steps are {trace.provenance.steps}{these}"


# A step with fewer kernels than this share of the median was cut off.
WHOLE_STEP = 0.5
SHOWN = 6
# The newest schemas that are documented and were read: of nsys 2026.4's exports, and of rocprofv3's databases.
NEWEST_SCHEMA = "3.28.1"
NEWEST_ROCPD = "3"
VERSION = re.compile(r"\d{1,9}(\.\d{1,9})*", re.ASCII)


def of_steps(kernels: Sequence[int]) -> str:
    """Return a note on steps with far fewer kernels than the others, given the count in each."""
    usual = median(kernels) if kernels else 0
    short = [step for step, count in enumerate(kernels) if count < WHOLE_STEP * usual]
    if not short:
        return ""
    some = ", ".join(f"{step} ({kernels[step]:,})" for step in short[:SHOWN])
    steps = f"steps {some} have"
    why = "the capture cut them off, or they do other work"
    if len(short) == 1:
        steps = f"step {some} has"
        why = "the capture cut it off, or it does other work"
    return f"{steps} far fewer kernels than the others ({usual:,.0f}): {why}"


def of_arithmetic(run: Mapping[str, Any], launches: Mapping[str, Number]) -> str:
    """Compare the run's TF32 setting with the arithmetic of its GEMM launches."""
    used = by_arithmetic(launches)
    if run.get("tf32") is False and "tf32" in launches:
        return f"the run says that TF32 is off, but its GEMMs used it ({used})"
    if run.get("tf32") is True and run.get("dtype") == "fp32":
        return f"the run says that it is FP32, and that TF32 is on ({used})"
    if run.get("tf32") is True and "tf32" not in launches and UNKNOWN not in launches and "fp32" in launches:
        return f"the run says that TF32 is on, but no GEMM used it ({used})"
    return ""


def of_schema(provenance: Provenance) -> str:
    """Return a note if an export is newer than any that was tested."""
    newest = NEWEST_ROCPD if provenance.is_of_rocprof else NEWEST_SCHEMA
    if not VERSION.fullmatch(provenance.schema):
        return ""
    of_export, of_newest = (tuple(map(int, version.split("."))) for version in (provenance.schema, newest))
    if of_export <= of_newest:
        return ""
    return (
        f"the export's schema is {provenance.schema}, and the newest that was tested {newest}: what its "
        "columns mean may have changed"
    )


@dataclass(slots=True)
class _Served:
    """Steps of one phase: how many, for how many requests and tokens (None: not said), and their time, ns."""

    steps: int = 0
    requests: int = 0
    tokens: int | None = 0
    kernel_ns: float = 0
    span_ns: float | None = 0

    def add(self, row: RangeRow, requests: int, tokens: int | None) -> None:
        """Add the instances of a row, each with these requests and tokens."""
        steps = int(row.instances or 0)
        self.steps += steps
        self.requests += steps * requests
        self.tokens = None if tokens is None or self.tokens is None else self.tokens + steps * tokens
        self.kernel_ns += row.inclusive_ns
        self.span_ns = None if row.span_ns is None or self.span_ns is None else self.span_ns + row.span_ns


def of_serving(ranges: Iterable[RangeRow]) -> Iterator[str]:
    """Yield sentences for prefill, for decode, and for steps of both, where names of steps say what these held."""
    served = {PREFILL: _Served(), DECODE: _Served()}
    both = {PREFILL: _Served(), DECODE: _Served()}
    for row in ranges:
        step = held(row.path[-1]) if row.path and row.instances else None
        if step is None:
            continue
        prefills = step.prefill_requests or 0
        decodes = step.decode_requests or 0
        of_step = both if prefills and decodes else served
        if prefills:
            of_step[PREFILL].add(row, prefills, step.prefill_tokens)
        if decodes:
            of_step[DECODE].add(row, decodes, step.decode_tokens)
    for phase, of_phase in served.items():
        if not of_phase.steps or not of_phase.kernel_ns:
            continue
        steps = f"{phase.capitalize()}: {counted(of_phase.steps, 'step')}"
        requests = counted(of_phase.requests, "request")
        tokens = of_phase.tokens
        if tokens:
            yield (
                f"{steps} for {counted(tokens, 'token')} of {requests} (a request counts in each step), "
                f"{time_text(of_phase.kernel_ns / tokens)} of kernel time a token{_rate(tokens, of_phase)}, "
                "by the names of the steps."
            )
        else:
            per_request = f"{time_text(of_phase.kernel_ns / of_phase.requests)} of kernel time a request"
            yield f"{steps} for {requests} (a request counts in each), {per_request}."
    if both[PREFILL].steps and both[PREFILL].kernel_ns:
        yield _of_both(both[PREFILL], both[DECODE])


def _of_both(prompts: _Served, generating: _Served) -> str:
    """Describe the steps that held both, whose time cannot be divided between them."""
    parts = []
    for part, kind in ((prompts, "prompt"), (generating, "generating request")):
        tokens = f"{counted(part.tokens, 'token')} of " if part.tokens else ""
        parts.append(f"{tokens}{counted(part.requests, kind)}")
    both_known = prompts.tokens is not None and generating.tokens is not None
    all_tokens = (prompts.tokens or 0) + (generating.tokens or 0) if both_known else None
    time = f"{time_text(prompts.kernel_ns)} of kernel time together"
    return (
        f"Prefill and decode in one: {counted(prompts.steps, 'step')} for {' and '.join(parts)}, {time}"
        f"{_rate(all_tokens, prompts)}, by the names of the steps."
    )


def _rate(tokens: int | None, served: _Served) -> str:
    """Return how many tokens a second of the steps' GPU spans; empty where either is not known."""
    if tokens and served.span_ns:
        return f", {tokens / served.span_ns * 1e9:,.0f} tokens a second of GPU span"
    return ""
