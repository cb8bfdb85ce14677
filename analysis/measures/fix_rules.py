"""The rules: which symptom in the replayed steps, which change of their timeline, and the sentence that says it.

A change takes a timeline and returns another; changes are applied one after another. A rule that finds its symptom
and says how it would be without is replayed; whether the figure is worth a line is decided in `fixes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..account.idle import LATENCY, LAUNCHING, MODULE_LOADING
from ..kernel_names.arithmetic import arithmetic_of, is_fp32_convolution
from ..report.limits import CAUSE_FROM, IDLE_LIMITS_BELOW
from ..support.small_numbers import distinct, rows_of_each
from ..support.units import count_text, counted, time_in_digits
from ..trace import Bools, Int8s, Int64s
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES
from .fix_subject import AT_ONCE_NS, FixSubject
from .host_line import SYNCHRONIZES
from .replay import PAUSE_NS
from .timeline import Floats, Timeline

Change = Callable[[Timeline], Timeline]

#: What a launch takes where CUDA graphs or a compiler make most of them go away, ns.
CHEAP_LAUNCH_NS = 300.0
#: Parts of products and convolutions that move data, and products with a vector: no tensor core helps them.
NO_PRODUCT = r"splitKreduce|nchwToNhwc|nhwcToNchw|scalePacked|offsets|gemv|dot_kernel|gemmk1|gemvNSP|reduce_1Block"
#: A copy to the CPU that is read: its most bytes. And from how many on a copy to the GPU counts.
READ_BYTES, COPIED_BYTES = 64, 1024
#: What a pinned copy reaches, bytes per ns, and what its call takes, ns.
PINNED_RATE, PINNED_CALL_NS = 50.0, 10_000.0
#: An optimizer is not fused from this number of kernels in a step, or this multiple of the least time, on.
MANY_LAUNCHES, TIMES_LEAST = 100, 1.5
FUSED = r"fused|adam\w*functor|sgdfunctor|lambstage|lamb\w*functor|adam\w*_kernel"
#: What names an optimizer's class: a range of PyTorch's or of annotation, or the run itself.
OPTIMIZER_NAME = re.compile(r"^Optimizer\.step#(\w+)\.step|^steps of (\w+)$|^([A-Z]\w+)(?:\.step)?$")
#: Optimizers with fused=True, and the bytes that each parameter in fp32 must move.
BYTES = {"Adam": 28, "AdamW": 28, "SGD": 20, "Adagrad": 20}
#: The most launches between a softmax and the products around it, and the categories that attention never has
#: between them.
NEAR_SOFTMAX, NOT_ATTENTION = 12, ("scan", "index", "communication", "optimizer", "attention")
#: A loss's softmax and what follows it, which lie between products where ranges tell no parts of the model.
OF_LOSS = r"log_?softmax|nll_loss|cross_?entropy"
#: What allows TF32, and in what; and what a GPU without TF32 has.
TF32_SETTINGS = {
    'torch.set_float32_matmul_precision("high")': "GEMMs",
    "torch.backends.cudnn.allow_tf32 = True": "convolutions",
}
FP16 = "use fp16, torch.autocast with a GradScaler"
#: bf16 is named where it saves so much more than TF32.
BF16_MORE = 1.1


@dataclass(frozen=True, slots=True)
class Found:
    """A symptom: the change, its sentence, and the work concerned."""

    change: Change
    sentence: str
    work: Bools
    evidence: Mapping[str, float] = field(default_factory=dict)
    #: The same with more of it, and what is then said, with {} for the figure: bf16 in place of TF32.
    more: tuple[Change, str] | None = None


class Unjudged(NamedTuple):
    """Why a rule cannot judge the report, in a sentence without its end."""

    reason: str


Answer = Found | Unjudged | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its name in JSON, how screens call it, and how it is found.

    `up_to` says that its figure is a most. `on_host` says that the host's time without recording decides it.
    """

    name: str
    called: str
    find: Callable[[FixSubject, Floats], Iterator[Found | Unjudged]]
    up_to: bool = True
    on_host: bool = False


def fp32(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find products and convolutions that could use tensor cores."""
    convolutions = subject.of_category("convolution") & subject.named(is_fp32_convolution)
    products = subject.products & subject.named(lambda name: arithmetic_of(name) == "fp32")
    plain = ~subject.matching(NO_PRODUCT)
    products, convolutions = products & plain, convolutions & plain
    work = products | convolutions
    if not work.any():
        return
    what = called_products(subject, products, convolutions)
    peak = subject.peak
    kind = peak.narrower if peak else None
    if peak is None or kind is None:
        yield Unjudged(f"{what} compute in fp32, but the peaks of the GPU are not known")
        return
    floor = least_bytes_ns(subject, work)

    def narrower(arithmetic: str, of_bytes: float) -> Change:
        share = (peak.flops("fp32") or 0) / (peak.flops(arithmetic) or 1)

        def change(timeline: Timeline) -> Timeline:
            least = np.maximum(timeline.duration_ns * share, floor * of_bytes)
            shorter = np.where(work, np.minimum(timeline.duration_ns, least), timeline.duration_ns)
            return replace(timeline, duration_ns=shorter)

        return change

    found = {"GEMMs": products.any(), "convolutions": convolutions.any()}
    settings = [setting for setting, kinds in TF32_SETTINGS.items() if found[kinds]]
    remedy = f"allow TF32 by {' and '.join(settings)} or use bf16" if kind == "tf32" else FP16
    asked = subject.run.get("tf32") is False and subject.run.get("dtype") == "fp32"
    sentence = f"{what} compute in fp32, without tensor cores: {remedy}; numbers change"
    sentence += "; you asked for full fp32" if asked else ""
    more = (narrower("bf16", 0.5), "(bf16: up to {})") if kind == "tf32" and peak.flops("bf16") else None
    yield Found(narrower(kind, 1.0), sentence, work, {"floor_ns": float(floor[work].sum()) / subject.steps}, more)


def called_products(subject: FixSubject, products: Bools, convolutions: Bools) -> str:
    """Return how many products and convolutions a step has, as a sentence's subject."""
    counts = ((subject.per_step(products), "GEMMs"), (subject.per_step(convolutions), "convolutions"))
    return " and ".join(f"{count_text(round(count))} {name}" for count, name in counts if count >= 0.5)


def least_bytes_ns(subject: FixSubject, work: Bools) -> Floats:
    """Return the least time of each piece of work for its bytes, ns, where its range alone was counted."""
    floor, counted = np.zeros(len(work)), subject.counted
    phase = subject.timeline.work_phase
    for (path, of_phase), rows in rows_of_each(subject.path_id[work], phase[work].astype(np.int64)):
        figures = counted.get((int(path), int(of_phase)))
        if figures is None or figures.elementwise or not figures.total or subject.peak is None:
            continue
        rows = np.flatnonzero(work)[rows]
        instances = subject.steps * max(len(distinct(subject.node[rows])) / subject.steps, 1)
        all_ns = figures.bytes / subject.peak.bytes * 1e9 * instances
        floor[rows] = all_ns * subject.duration_ns[rows] / subject.duration_ns[rows].sum()
    return floor


def host_pause(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find pauses of the program at one place of nearly all steps, in which the GPU has nothing to do."""
    timeline, work = subject.timeline, subject.work
    long = np.flatnonzero(timeline.before_ns > PAUSE_NS)
    long = long[(long > 0) & ~subject.opening_backward[long]]
    long = np.array([call for call in long.tolist() if subject.idle_before(call) > 0.5], np.int64)
    if not len(long):
        return
    following = np.minimum(np.searchsorted(work.call, long), len(work.call) - 1)
    for _key, rows in rows_of_each(subject.host.name[long - 1], subject.path_id[following]):
        calls, next_work = long[rows], following[rows]
        if not subject.in_most_steps(calls):
            continue

        def change(timeline: Timeline, calls: Int64s = calls) -> Timeline:
            before = timeline.before_ns.copy()
            before[calls] = np.minimum(before[calls], AT_ONCE_NS)
            return replace(timeline, before_ns=before)

        mean_ns = float(timeline.before_ns[calls].sum()) / subject.steps
        copies = subject.timeline.copied.bytes[next_work] > 0
        is_copy = subject.matching(r"memcpy Host-to-Device")[next_work] & (copies | (subject.trace.copies is None))
        place, remedy = (
            "the step's first copy to the GPU",
            "make batches beside the step (DataLoader(num_workers=…))",
        )
        if is_copy.mean() < 0.5:
            path = subject.path(int(subject.node[next_work[0]]))
            place, remedy = (
                path[-1] if path else "the next launch",
                "move it off the training thread, or do it less often",
            )
        concerned = np.zeros(len(work.row), np.bool_)
        concerned[next_work] = True
        time = time_in_digits(mean_ns)
        sentence = f"The program computes for {time} before {place}, and the GPU has nothing to do: {remedy}"
        yield Found(change, sentence, concerned)


def scalar_read(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find small copies to the CPU that the program waits for, outside of forward."""
    yield from _reads(subject, in_forward=False)


def forward_read(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find the same in forward, where the model's code decides by what is read."""
    yield from _reads(subject, in_forward=True)


def _reads(subject: FixSubject, *, in_forward: bool) -> Iterator[Found | Unjudged]:
    copied, call = subject.timeline.copied, subject.work.call
    small = copied.to_cpu & (subject.of_phase(FORWARD) == in_forward)
    if not small.any():
        return
    if subject.trace.copies is None:
        yield Unjudged("the report does not say how many bytes are copied to the CPU")
        return
    small &= copied.bytes <= READ_BYTES
    after = np.minimum(call + 1, len(subject.host.row) - 1)
    waits = np.where(subject.waiting[call], call, np.where(subject.waiting[after], after, -1))
    rows = np.flatnonzero(small & (waits >= 0))
    places = [
        rows[some] for _, some in rows_of_each(subject.path_id[rows]) if subject.in_most_steps(call[rows[some]])
    ]
    if not places:
        return
    rows = np.concatenate(places)

    def change(timeline: Timeline) -> Timeline:
        still, own = timeline.waits.copy(), timeline.own_ns.copy()
        still[waits[rows]], own[waits[rows]] = False, 0.0
        return replace(timeline, waits=still, own_ns=own)

    work = np.zeros(len(call), np.bool_)
    work[rows] = True
    count = round(subject.per_step(work))
    times = f" {count_text(count)} times" if count > 1 else ""
    size = f"{int(np.median(copied.bytes[rows]))} bytes"
    if in_forward or count > 2:
        remedy = "this needs other code, which decides on the GPU (torch.where, masks, fixed shapes)"
        reads = ".item(), `if tensor`, nonzero()"
    else:
        remedy, reads = "read the loss every N steps", ".item(), float(), print"
    inside = "forward" if in_forward else "step"
    yield Found(change, f"Each {inside} waits{times} for {size} from the GPU ({reads}): {remedy}", work)


def pageable_copy(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find copies to the GPU from memory that is not pinned."""
    copied, call = subject.timeline.copied, subject.work.call
    work = copied.from_pageable & (copied.bytes > COPIED_BYTES)
    if not work.any() or not subject.in_most_steps(call[work]):
        return
    rows = np.flatnonzero(work)
    after = np.minimum(call[rows] + 1, len(subject.host.row) - 1)
    waits = np.concatenate([call[rows], after[subject.host.kind[after] == SYNCHRONIZES]])

    def change(timeline: Timeline) -> Timeline:
        own, still, duration = timeline.own_ns.copy(), timeline.waits.copy(), timeline.duration_ns.copy()
        lag = timeline.lag_ns.copy()
        own[call[rows]] = np.minimum(own[call[rows]], PINNED_CALL_NS)
        lag[rows] = np.minimum(lag[rows], PINNED_CALL_NS)
        duration[rows] = np.minimum(duration[rows], copied.bytes[rows] / PINNED_RATE)
        still[waits] = False
        return replace(timeline, own_ns=own, waits=still, duration_ns=duration, lag_ns=lag)

    size = copied.bytes[rows].sum() / subject.steps / 2**20
    text = f"{size:,.0f}" if size >= 10 else f"{size:.2g}"
    sentence = (
        f"{text} MiB are copied from pageable memory while the program waits: "
        "pin_memory=True and .to(device, non_blocking=True)"
    )
    yield Found(change, sentence, work)


def optimizer(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find an optimizer that launches kernels for single operations."""
    in_update = subject.of_phase(OPTIMIZER)
    fused = in_update & subject.matching(FUSED)
    work = in_update & ~fused
    if not work.any() or subject.time_ns(fused) > subject.time_ns(work):
        return
    called = optimizer_name(subject)
    if called is not None and called not in BYTES:
        return
    parameters = int(subject.run.get("parameters") or 0)
    bandwidth = subject.peak.bytes if subject.peak else 0
    least_ns = parameters * BYTES.get(called or "", 28) / bandwidth * 1e9 if parameters and bandwidth else None
    launches, time = subject.per_step(work), subject.time_ns(work)
    if launches < MANY_LAUNCHES and (least_ns is None or time < TIMES_LEAST * least_ns):
        return
    step, call = subject.timeline.step_of_work, subject.work.call
    stays_ns = time if least_ns is None else min(least_ns, time)
    dropped_calls, dropped, firsts = np.zeros(len(subject.host.row), np.bool_), work.copy(), []
    for _key, rows in rows_of_each(step[work]):
        rows = np.flatnonzero(work)[rows]
        dropped_calls[call[rows[0]] + 1 : call[rows[-1]] + 1] = True
        firsts.append(rows[0])
    dropped[firsts] = False
    dropped_calls[call[~work]] = False

    def change(timeline: Timeline) -> Timeline:
        duration = timeline.duration_ns.copy()
        duration[firsts] = stays_ns
        return without(replace(timeline, duration_ns=duration), dropped_calls, dropped)

    name = called or "the optimizer"
    moves = (
        f" and moves {time / least_ns:.1f} times the bytes it must"
        if least_ns and time > TIMES_LEAST * least_ns
        else ""
    )
    sentence = f"The optimizer launches {counted(round(launches), 'kernel')}{moves}: {name}(fused=True)"
    if called is None:
        sentence = (
            f"The optimizer launches {counted(round(launches), 'kernel')}{moves}: fused=True, where it has that"
        )
    yield Found(change, sentence, work, {"floor_ns": least_ns or 0.0})


def optimizer_name(subject: FixSubject) -> str | None:
    """Return the class of the optimizer, by the run's own words or its ranges; None where nothing says it."""
    stated = subject.run.get("optimizer")
    texts = [stated] if isinstance(stated, str) else []
    texts += [subject.trace.provenance.steps, *(path[-1] for path in subject.places(subject.of_phase(OPTIMIZER)))]
    for text in texts:
        if match := OPTIMIZER_NAME.search(text):
            return str(next(filter(None, match.groups())))
    return None


def without(timeline: Timeline, calls: Bools, work: Bools) -> Timeline:
    """Return a timeline without some calls, the host's time for them, and some work."""
    before = np.where(calls & (timeline.before_ns <= PAUSE_NS), 0.0, timeline.before_ns)
    own = np.where(calls, 0.0, timeline.own_ns)
    return replace(
        timeline, before_ns=before, own_ns=own, waits=timeline.waits & ~calls, kept=timeline.kept & ~work
    )


def attention(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find attention that writes its scores: a softmax with a product before and after it in the same range."""
    scores = score_kernels(subject)
    if not scores.any():
        return
    calls = np.zeros(len(subject.host.row), np.bool_)
    calls[subject.work.call[scores]] = True
    node = subject.node
    products = subject.products & np.isin(subject.path_id, distinct(subject.path_id[scores]))
    counted, peak = subject.counted, subject.peak
    least = 0.0
    keys = set(zip(subject.path_id[scores].tolist(), subject.timeline.work_phase[scores].tolist(), strict=True))
    for path, phase in keys:
        figures = counted.get((path, phase))
        rates = [peak.flops(kind) for kind in figures.flops] if figures and peak else [None]
        if figures is None or not all(rates):
            least = 0.0
            break
        nodes = len(distinct(node[scores & (subject.path_id == path)]))
        least += nodes * sum(
            count / rate * 1e9 for count, rate in zip(figures.flops.values(), rates, strict=True) if rate
        )
    time = float(subject.duration_ns[products].sum())
    ratio = min(least / time, 1.0) if least and time else 1.0

    def change(timeline: Timeline) -> Timeline:
        duration = np.where(products, timeline.duration_ns * ratio, timeline.duration_ns)
        return without(replace(timeline, duration_ns=duration), calls, scores)

    uncounted = "" if least else " (products not counted)"
    count = count_text(round(subject.per_step(scores)))
    sentence = f"Attention writes its scores and reads them {count} times: scaled_dot_product_attention{uncounted}"
    yield Found(change, sentence, scores, {"floor_ns": least / subject.steps})


def score_kernels(subject: FixSubject) -> Bools:
    """Mark the kernels between the two products around a softmax."""
    scores = np.zeros(len(subject.node), np.bool_)
    products, never = subject.products, subject.of_category(*NOT_ATTENTION) | subject.matching(OF_LOSS)
    path = subject.attention_range * len(PHASES) + subject.timeline.work_phase
    for place in np.flatnonzero(subject.of_category("softmax")).tolist():
        ends = []
        for direction in (-1, 1):
            at = place + direction
            while (
                0 <= at < len(path)
                and abs(at - place) <= NEAR_SOFTMAX
                and path[at] == path[place]
                and not products[at]
            ):
                at += direction
            ends.append(at)
        begin, end = ends
        around = begin >= 0 and end < len(path) and path[begin] == path[end] == path[place]
        if around and products[begin] and products[end] and not never[begin:end].any():
            scores[begin + 1 : end] = True
    return scores


def launching(subject: FixSubject, factors: Floats) -> Iterator[Found | Unjudged]:
    """Find phases in which the GPU waits for one launch after another."""
    phases = limited_by_launching(subject, factors.min(axis=0))
    if not phases:
        return
    names = [PHASES[phase] for phase in phases]
    of_phase = np.isin(subject.timeline.phase, phases)
    calls = of_phase & ~subject.waiting

    def change(timeline: Timeline) -> Timeline:
        short = calls & (timeline.before_ns <= PAUSE_NS)
        before = np.where(short, np.minimum(timeline.before_ns, CHEAP_LAUNCH_NS), timeline.before_ns)
        own = np.where(
            calls & (timeline.own_ns <= PAUSE_NS), np.minimum(timeline.own_ns, CHEAP_LAUNCH_NS), timeline.own_ns
        )
        return replace(timeline, before_ns=before, own_ns=own)

    work = np.isin(subject.timeline.work_phase, phases)
    known = [name for name in names if name in (FORWARD, BACKWARD)]
    what = " and ".join(known).capitalize() if known else "The step"
    verb = "are" if len(known) > 1 else "is"
    count = count_text(round(subject.per_step(work & subject.kernel)))
    sentence = (
        f"{what} {verb} limited by the CPU: {count} small kernels are launched one by one: "
        'torch.compile(mode="reduce-overhead"), CUDA graphs; larger batches change training'
    )
    yield Found(change, sentence, work)


def limited_by_launching(subject: FixSubject, factor: Floats | float) -> list[int]:
    """Return the phases, as positions in PHASES, that launching limits even with so much of the host's time.

    `factor` is one of all phases, or of each.

    Idle time has the causes that `view idle` shows; launching includes the launched work's way to the GPU. Pauses
    of over 1 ms and loading code do not count.
    """
    phase, gaps = subject.timeline.work_phase, subject.gaps
    chosen = [PHASES.index(name) for name in (FORWARD, BACKWARD)]
    if not np.isin(phase, chosen).any():
        chosen = sorted(set(distinct(phase).tolist()) - {PHASES.index(OPTIMIZER)})
    of_gap = subject.attribution.phase[gaps.next]
    busy_ns = _by_phase(phase, subject.duration_ns)
    most_ns = IDLE_LIMITS_BELOW * (busy_ns + _by_phase(of_gap, gaps.duration_ns) * factor)
    if not (busy_ns < most_ns)[chosen].any():
        return []
    pieces = subject.idle_pieces
    counted = pieces.take((pieces.cause != MODULE_LOADING) & (pieces.duration_ns <= PAUSE_NS))
    idle_ns, launching_ns = (
        _by_phase(of_gap[np.searchsorted(gaps.start_ns, some.start_ns, "right") - 1], some.duration_ns)
        for some in (counted, counted.take(np.isin(counted.cause, (LAUNCHING, LATENCY))))
    )
    limited = busy_ns < IDLE_LIMITS_BELOW * (busy_ns + idle_ns * factor)
    limited &= launching_ns >= CAUSE_FROM * idle_ns
    return [number for number in chosen if limited[number]]


def _by_phase(phase: Int8s, values: NDArray[Any]) -> Floats:
    """Return the sums by phase, a position in PHASES."""
    return np.bincount(phase, values, len(PHASES)).astype(np.float64)


#: What measured changes saved, of what was said that they save at most: by rule the number of changes, and the
#: least and the most of it in percent. reports/h200/fixes.md has them all.
MEASURED: Mapping[str, tuple[int, int, int]] = {
    "attention": (3, 65, 103),
    "fp32": (5, 95, 108),
    "host_pause": (3, 90, 108),
    "launching": (3, 71, 103),
    "optimizer": (2, 87, 100),
    "pageable_copy": (2, 85, 100),
    "scalar_read": (1, 153, 153),
}

#: In the order in which rows of equal figures are shown.
RULES = (
    Rule("host_pause", "pauses of the program", host_pause, up_to=False),
    Rule("scalar_read", "reading single numbers", scalar_read, up_to=False, on_host=True),
    Rule("forward_read", "reads in forward", forward_read, on_host=True),
    Rule("fp32", "TF32", fp32),
    Rule("pageable_copy", "pinned memory", pageable_copy),
    Rule("optimizer", "a fused optimizer", optimizer, on_host=True),
    Rule("attention", "fused attention", attention),
    Rule("launching", "launching", launching, on_host=True),
)
