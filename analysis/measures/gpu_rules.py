"""Rules that judge by the GPU's work alone, so that they need no replay: each finds a symptom and its change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..kernel_names.arithmetic import arithmetic_of, is_fp32_convolution
from ..support.small_numbers import covered, distinct, last_marked, looked_up, next_marked, rows_of_each
from ..support.units import count_text, share_text
from ..trace import Bools, Path
from ..vocabulary import BACKWARD, FORWARD, PHASES
from .gpu_peaks import Peak
from .gpu_subject import MOVES_MEMORY, GpuSubject
from .gpu_time import Floats
from .symptoms import Found, GpuChange, Time, Unjudged

#: How cuDNN calls the kernels that convert a convolution's operands between NCHW and NHWC.
CONVERTS_LAYOUT = r"nchwToNhwc|nhwcToNchw"
#: Parts of products and convolutions that move data, and products with a vector: no tensor core helps them.
NO_PRODUCT = rf"splitKreduce|{CONVERTS_LAYOUT}|scalePacked|offsets|gemv|dot_kernel|gemmk1|gemvNSP|reduce_1Block"
#: What allows TF32, and in what; and what a GPU without TF32 has.
TF32_SETTINGS = {
    'torch.set_float32_matmul_precision("high")': "GEMMs",
    "torch.backends.cudnn.allow_tf32 = True": "convolutions",
}
FP16 = "use fp16, torch.autocast with a GradScaler"
SHORT_FP16 = "fp16 (torch.autocast, GradScaler)"
#: How kernels are named that only GPUs with TF32 run, and those of the generations before.
WITH_TF32 = re.compile(r"ampere_|hopper|sm(?:8\d|9\d|1\d\d)(?!\d)|cutlass_[89]\d|_tf32", re.IGNORECASE)
BEFORE_TF32 = re.compile(r"volta_|turing_|sm7\d|cutlass_7\d", re.IGNORECASE)
#: The most launches between a softmax and the products around it, and the categories that attention never has
#: between them.
NEAR_SOFTMAX, NOT_ATTENTION = 12, ("scan", "index", "communication", "optimizer", "attention")
#: A loss's softmax and what follows it, which lie between products where ranges tell no parts of the model.
OF_LOSS = r"log_?softmax|nll_loss|cross_?entropy"
#: How the names of CUTLASS's products say how many elements they load at a time, where 16 bytes are possible.
LOADS_FEW = re.compile(r"_align(1|2)(?!\d)")
FULL_LOAD_BYTES, ELEMENT_BYTES = 16, 2
#: Kernels that factorize matrices and solve triangular systems, which fp32 often cannot.
FACTORIZES = r"potr|trs[mv]|getr[fs]|geqr|orgqr|ormqr|syev|gesvd|laswp|sytr"
#: Kernels that move numbers of 8 bytes, and the share of their time that those of 4 bytes take.
DOUBLE, HALF = r"[<(]double\b", 0.5
#: Memory has room if less of it than this share would be used.
FULL, GIB = 0.9, 1 << 30
#: Kernels that a compiler or a library has fused.
FUSED_ALREADY = r"^triton_|multi_tensor"


def fp32(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find products and convolutions that could use tensor cores."""
    plain = ~subject.matching(NO_PRODUCT)
    products = subject.products & subject.of_arithmetic("fp32") & plain
    convolutions = subject.of_category("convolution") & subject.named(is_fp32_convolution) & plain
    if not (products | convolutions).any():
        return
    concerned = _Fp32(subject, products, convolutions)
    peak = subject.peak
    if peak is not None and peak.narrower is not None:
        yield concerned.by_peaks(peak, peak.narrower)
    else:
        yield concerned.by_names()


class _Fp32(NamedTuple):
    """The products and convolutions of a subject that compute in fp32."""

    subject: GpuSubject
    products: Bools
    convolutions: Bools

    @property
    def work(self) -> Bools:
        return self.products | self.convolutions

    @property
    def called(self) -> str:
        """How many products and convolutions a step has, as a sentence's subject."""
        counts = (
            (self.subject.per_step(self.products), "GEMMs"),
            (self.subject.per_step(self.convolutions), "convolutions"),
        )
        return " and ".join(f"{count_text(round(count))} {name}" for count, name in counts if count >= 0.5)

    @property
    def settings(self) -> str:
        """What allows TF32 for this work."""
        has = {"GEMMs": self.products.any(), "convolutions": self.convolutions.any()}
        return " and ".join(setting for setting, kinds in TF32_SETTINGS.items() if has[kinds])

    @property
    def tf32(self) -> str:
        """How TF32 is allowed for this work."""
        return f"{self.settings} (TF32) or bf16"

    def short(self, *, has_tf32: bool) -> str:
        """Return the change and what it is of in short."""
        return f"{self.settings}: TF32 for {self.called}" if has_tf32 else f"{SHORT_FP16} for {self.called}"

    def by_peaks(self, peak: Peak, kind: str) -> Found:
        """Return the symptom with the time at the peaks of the GPU."""
        asked = self.subject.run.get("tf32") is False and self.subject.run.get("dtype") == "fp32"
        sentence = self.sentence(self.tf32 if kind == "tf32" else FP16)
        sentence += "; you asked for full fp32" if asked else ""
        floor = least_bytes_ns(self.subject, self.work)
        more = None
        if kind == "tf32" and peak.flops("bf16"):
            more = self.narrower(peak, "bf16", floor * 0.5), "(bf16: up to {})"
        floor_ns = float(floor[self.work].sum()) / self.subject.steps
        return Found(
            self.narrower(peak, kind, floor),
            sentence,
            self.short(has_tf32=kind == "tf32"),
            self.work,
            {"floor_ns": floor_ns},
            more,
            undoes="full fp32" * asked,
        )

    def by_names(self) -> Found | Unjudged:
        """Return the symptom with all the time of the work, if kernels' names show which GPU runs them."""
        names = self.subject.names
        has_tf32, is_older = (any(map(pattern.search, names)) for pattern in (WITH_TF32, BEFORE_TF32))
        if not (has_tf32 or is_older):
            return Unjudged(f"{self.called} compute in fp32, but the peaks of the GPU are not known")
        remedy = self.tf32 if has_tf32 else f"{FP16}, or TF32 where the GPU has it"
        short = self.short(has_tf32=has_tf32)
        return Found(dropping(self.work), self.sentence(remedy), short, self.work, is_like_measured=False)

    def sentence(self, remedy: str) -> str:
        return f"{self.called} compute in fp32, without tensor cores: {remedy}; numbers change"

    def narrower(self, peak: Peak, kind: str, floor_ns: Floats) -> GpuChange:
        """Return the change to another arithmetic, in which work takes at least so long for its bytes, ns."""
        share = (peak.flops("fp32") or 0) / (peak.flops(kind) or 1)
        work = self.work

        def change(time: Time, /) -> Time:
            least = np.maximum(time.duration_ns * share, floor_ns)
            return time.lasting(np.where(work, np.minimum(time.duration_ns, least), time.duration_ns))

        return change


def dropping(work: Bools) -> GpuChange:
    """Return the change after which some work is gone."""

    def change(time: Time, /) -> Time:
        return time.without(work)

    return change


def leaving_out(work: Bools) -> GpuChange:
    """Return the change after which a part of a step is gone, the host's time in it as well."""

    def change(time: Time, /) -> Time:
        return time.without_part(work)

    return change


def shortening(work: Bools, share: float | Floats) -> GpuChange:
    """Return the change after which some work lasts this share of its time."""

    def change(time: Time, /) -> Time:
        return time.lasting(np.where(work, time.duration_ns * share, time.duration_ns))

    return change


def least_bytes_ns(subject: GpuSubject, work: Bools) -> Floats:
    """Return the least time of each piece of work for its bytes, ns, where its range alone was counted."""
    floor = np.zeros(len(work))
    counted = subject.counted
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


def attention(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find attention that writes its scores: a softmax with a product before and after it in the same range."""
    scores = score_kernels(subject)
    if not scores.any():
        return
    least_ns = _least_of_attention(subject, scores)
    products = _around(subject, scores) if not least_ns else _beside(subject, scores)
    time_ns = float(subject.duration_ns[products].sum())
    shorter = shortening(products, min(least_ns / time_ns, 1.0) if time_ns else 1.0)
    without_scores = dropping(scores)

    def change(time: Time, /) -> Time:
        return without_scores(shorter(time))

    count = count_text(round(subject.per_step(scores)))
    sentence = f"Attention writes its scores and reads them {count} times: scaled_dot_product_attention"
    short = f"Use scaled_dot_product_attention: {count} kernels compute attention scores"
    evidence = {"floor_ns": least_ns / subject.steps}
    # How long products take that are not counted, is not known.
    yield Found(change, sentence, short, scores, evidence, least=None if least_ns else without_scores)


def _around(subject: GpuSubject, scores: Bools) -> Bools:
    """Mark the products right before and right after scores."""
    is_next_to = np.zeros_like(scores)
    is_next_to[1:] |= scores[:-1]
    is_next_to[:-1] |= scores[1:]
    return is_next_to & subject.products


def _beside(subject: GpuSubject, scores: Bools) -> Bools:
    """Mark the products in the ranges of scores, of which all FLOPs are counted."""
    return subject.products & np.isin(subject.path_id, distinct(subject.path_id[scores]))


def _least_of_attention(subject: GpuSubject, scores: Bools) -> float:
    """Return the least time of the products around scores for their FLOPs, ns; 0 if not all were counted."""
    least_ns = 0.0
    phases = subject.timeline.work_phase[scores].tolist()
    for path, phase in set(zip(subject.path_id[scores].tolist(), phases, strict=True)):
        figures = subject.counted.get((path, phase))
        if figures is None or subject.peak is None:
            return 0.0
        nodes = len(distinct(subject.node[scores & (subject.path_id == path)]))
        for kind, count in figures.flops.items():
            rate = subject.peak.flops(kind)
            if not rate:
                return 0.0
            least_ns += nodes * count / rate * 1e9
    return least_ns


def score_kernels(subject: GpuSubject) -> Bools:
    """Mark the kernels between the two products around a softmax, all in one range and phase."""
    count = len(subject.node)
    products = subject.products
    place = subject.attention_range * len(PHASES) + subject.timeline.work_phase
    stretch = np.cumsum(np.r_[True, place[1:] != place[:-1]])
    softmax = np.flatnonzero(subject.of_category("softmax"))
    before = last_marked(products)[softmax]
    after = next_marked(products)[softmax]
    never = subject.of_category(*NOT_ATTENTION) | subject.matching(OF_LOSS)
    never_until = np.r_[0, np.cumsum(never)]
    fits = (before >= 0) & (after < count)
    before = before[fits]
    after = after[fits]
    softmax = softmax[fits]
    fits = (stretch[before] == stretch[softmax]) & (stretch[after] == stretch[softmax])
    fits &= (softmax - before <= NEAR_SOFTMAX + 1) & (after - softmax <= NEAR_SOFTMAX + 1)
    fits &= never_until[after] == never_until[before]
    return covered(before[fits] + 1, after[fits], count)


def recompute(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find forward work that backward computes again, though memory has room for what it would have to keep."""
    again = looked_up(subject.attribution.recompute, subject.node, False)
    if not again.any():
        return
    share = share_text(subject.time_ns(again) / subject.time_ns(np.ones_like(again)), 0)
    symptom = f"Backward computes forward again ({share} of the GPU's work, activation checkpointing)"
    used, present = subject.memory_bytes
    kept = kept_bytes(subject, again)
    if not (used and present) or kept is None:
        yield Unjudged(f"{symptom[0].lower()}{symptom[1:]}, but the report does not say whether memory has room")
    elif used + kept < FULL * present:
        sentence = f"{symptom}, and {used_of(used, present)}: fewer checkpoints"
        short = "Fewer checkpoints: backward computes forward again"
        yield Found(dropping(again), sentence, short, again)


def used_of(used: int, present: int) -> str:
    """Say how much of the GPU's memory is used, bytes: `9.5 of 139.8 GiB are used`."""
    return f"{used / GIB:.1f} of {present / GIB:.1f} GiB are used"


def kept_bytes(subject: GpuSubject, again: Bools) -> float | None:
    """Return how many bytes a step would keep instead of computing them again, at most; None if nothing tells.

    They are what was allocated while it was computed again, and not freed then; if allocations are not known, half
    of the bytes that the GPU can move meanwhile: a kernel does not write more than it moves.
    """
    attribution = subject.attribution
    work = subject.trace.work
    table = subject.trace.memory
    if table is not None and len(table):
        begin_ns = work.start_ns[subject.row].min()
        end_ns = work.end_ns[subject.row].max()
        in_steps = (table.at_ns >= begin_ns) & (table.at_ns <= end_ns)
        is_again = looked_up(attribution.recompute, attribution.memory_node, False)
        return max(float(table.bytes[in_steps & is_again].sum()), 0.0) / subject.steps
    if subject.peak is None:
        return None
    return subject.time_ns(again) / 1e9 * subject.peak.bytes / 2


def alignment(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find products on tensor cores that load one or two elements of 2 bytes at a time, where 8 are possible."""
    loaded = np.array([_elements_loaded(name) for name in subject.names], np.int64)[subject.code]
    work = subject.products & (loaded > 0)
    if work.any():
        share = loaded * ELEMENT_BYTES / FULL_LOAD_BYTES
        count = count_text(round(subject.per_step(work)))
        sentence = (
            f"{count} GEMMs load one or two elements at a time: make sizes multiples of 8 "
            "(pad the vocabulary, heads or batch)"
        )
        short = f"Make sizes multiples of 8: {count} GEMMs load one or two elements at a time"
        yield Found(shortening(work, share), sentence, short, work)


def _elements_loaded(name: str) -> int:
    """Return how many elements a product of fp16 or bf16 loads at a time, if few by its name; else 0."""
    match = LOADS_FEW.search(name)
    is_narrow = arithmetic_of(name) in ("fp16", "bf16") and "simt" not in name
    return int(match[1]) if match and is_narrow else 0


def fp64(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find products in double precision, and other kernels on doubles, which move twice the bytes.

    At the least, products take their time at the peak of fp32, at the most at that of tensor cores.
    """
    products = subject.products & subject.of_arithmetic("fp64")
    others = subject.matching(DOUBLE) & ~subject.products & subject.kernel
    work = products | others
    if not work.any() or (subject.matching(FACTORIZES) & subject.kernel).any():
        return
    half = np.where(others, HALF, 1.0)
    in_fp32, in_tf32 = (_share_of_fp64(subject.peak, is_tf32=is_tf32) for is_tf32 in (False, True))
    least, most = (np.where(products, share, half) for share in (in_fp32, in_tf32))
    kernels = (products, "GEMMs") if products.any() else (others, "kernels")
    what = f"{count_text(round(subject.per_step(kernels[0])))} {kernels[1]} compute in fp64"
    with_tf32 = ", and TF32 where the GPU has it" if products.any() else ""
    sentence = f"{what}: use .float(){with_tf32}, unless fp64 is meant"
    short = f"float32 instead of float64 (.float()): {what}"
    yield Found(shortening(work, most), sentence, short, work, least=shortening(work, least))


def _share_of_fp64(peak: Peak | None, *, is_tf32: bool) -> float:
    """Return which share of its time a product in fp64 takes in fp32 or TF32.

    Where no peak is known, that is all of it at the least, and nothing at the most.
    """
    double = peak.flops("fp64") if peak else None
    narrower = peak.flops((is_tf32 and peak.narrower) or "fp32") if peak else None
    return min(double / narrower, 1.0) if double and narrower else float(not is_tf32)


def layouts(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find the kernels by which cuDNN converts between NCHW and NHWC, which its tensor cores need.

    Models in channels-last have none, and other kernels of theirs get faster, too: the gain can be more. The
    format is for images alone: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """
    work = subject.matching(CONVERTS_LAYOUT) & subject.kernel
    classes = {name for model in subject.trace.provenance.models.values() for name in model.values()}
    is_of_images = "Conv2d" in classes or not classes & {"Conv1d", "Conv3d"}
    if is_of_images and work.any():
        count = count_text(round(subject.per_step(work)))
        sentence = (
            f"{count} kernels convert between NCHW and NHWC for convolutions: "
            "model and images to memory_format=torch.channels_last"
        )
        short = f"memory_format=torch.channels_last for model and images: {count} layout conversions"
        yield Found(dropping(work), sentence, short, work)


def chains(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find runs of kernels between products that only move memory: a compiler makes one kernel of each run.

    Kernels of a compiler's own are left, and those beside convolutions, where compiling gained nothing. A program
    that is compiled already is left as it is.
    """
    if subject.is_compiled:
        return
    dropped, work = _in_chains(subject)
    if not dropped.any():
        return
    count = count_text(round(subject.per_step(work)))
    sentence = (
        f"{count} kernels between products only move memory: torch.compile(model) fuses memory-bound kernels"
    )
    short = f"torch.compile(model) for {count} memory-bound kernels"
    yield Found(dropping(dropped), sentence, short, work)


def _inside_models(subject: GpuSubject) -> Bools:
    """Mark the work of annotated models, as these can be compiled; all work where none is annotated."""
    models = subject.trace.provenance.models
    return subject.in_places(lambda path: not models or any(name in models for name in path))


def _beside_convolutions(subject: GpuSubject) -> Bools:
    """Mark the work of convolutions' layers, of the blocks around these, and of the other layers in the blocks."""
    convolutions = subject.of_category("convolution")
    layers = {subject.path(node) for node in distinct(subject.node[convolutions]).tolist()}
    blocks = {layer[:-1] for layer in layers}
    with_parts = {subject.path(node)[:-1] for node in distinct(subject.node).tolist()}

    def is_beside(path: Path) -> bool:
        return path in layers or path in blocks or (path[:-1] in blocks and path not in with_parts)

    return subject.in_places(is_beside)


def _in_chains(subject: GpuSubject) -> tuple[Bools, Bools]:
    """Mark the kernels that fusing each run leaves away, which are all but its longest, and all of the runs."""
    fits = subject.of_category(*MOVES_MEMORY) & ~subject.products & ~subject.matching(FUSED_ALREADY)
    fits &= subject.of_phase(FORWARD, BACKWARD) & _inside_models(subject) & ~_beside_convolutions(subject)
    if not fits.any():
        return fits, fits
    phase = subject.timeline.work_phase
    stream = subject.trace.work.stream_id[subject.row]
    goes_on = fits[1:] & fits[:-1] & (phase[1:] == phase[:-1]) & (stream[1:] == stream[:-1])
    run = np.cumsum(np.r_[True, ~goes_on])
    order = np.lexsort((-subject.duration_ns, run))
    is_longest = np.zeros(len(run), np.bool_)
    is_longest[order[np.r_[True, run[order][1:] != run[order][:-1]]]] = True
    alone = np.bincount(run)[run] == 1
    work = fits & ~alone
    return work & ~is_longest, work
