"""Rules on models of which a part is unlike the rest: in another memory format, or another precision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..support.small_numbers import last_marked, next_marked
from ..support.units import count_text
from ..trace import Bools, Path, marked
from ..vocabulary import FORWARD
from ..vocabulary.modules import ModuleName, naming
from .gpu_rules import NO_PRODUCT, dropping, least_bytes_ns, shortening
from .gpu_subject import GpuSubject
from .gpu_time import Floats
from .symptoms import Found, Unjudged

#: A copy in which elements change their order; of copies in order, the names have more before `elementwise`.
REORDERS = r"(?<!_)elementwise_kernel<.*direct_copy_kernel"
#: How PyTorch's layers of images are called, which compute in the format of their input or of their weights.
OF_IMAGES = frozenset({"Conv2d", "ConvTranspose2d"})
#: Fewer copies for convolutions of forward are those of a model's ends, such as patches made to tokens. Those of
#: backward alone are gradients of layers that return them in NCHW, as BatchNorm in evaluation does.
FEWEST_COPIES = 4
#: What TF32 takes in bf16 where the GPU's peaks are not known: of all GPUs that have both, half.
IN_BF16, NARROW = 0.5, ("bf16", "fp16", "fp8")


def layout_copies(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find convolutions whose operands PyTorch copies first from NCHW to channels_last, or back.

    Such a copy is in the range of the layer, before the kernels of its convolution. A copy for the other way right
    before it, such as `.contiguous()`, goes, too, and the line is its own.
    """
    copies = subject.matching(REORDERS) & subject.kernel
    if not copies.any():
        return
    converted = _before_convolutions(subject, copies)
    if subject.per_step(converted & subject.of_phase(FORWARD)) < FEWEST_COPIES:
        return
    undone = _undone_by(subject, copies, converted)
    work = converted | undone
    count = count_text(round(subject.per_step(work)))
    sentence = (
        f"{count} copies change between NCHW and channels_last for convolutions: keep one format between them, "
        "without .contiguous(), .view() or reshape to the other"
    )
    short = f"Keep tensors channels_last between convolutions: {count} copies change the format"
    yield Found(dropping(work), sentence, short, work, cause=undone if undone.any() else None)


def _before_convolutions(subject: GpuSubject, copies: Bools) -> Bools:
    """Mark the copies that the ranges of convolutions make before a kernel of the convolution."""
    convolution = next_marked(subject.of_category("convolution"))
    copy = np.flatnonzero(copies & (convolution < len(copies)) & _of_images(subject))
    before = convolution[copy]
    phase = subject.timeline.work_phase
    fits = (subject.node[copy] == subject.node[before]) & (phase[copy] == phase[before])
    return marked(copy[fits], len(copies))


def _of_images(subject: GpuSubject) -> Bools:
    """Mark the work in ranges of layers that convolve images."""
    provenance = subject.trace.provenance
    named = naming(provenance.models, provenance.attributes, every_index=True)

    def is_of_images(path: Path) -> bool:
        *_, name = named(path) or ("",)
        return isinstance(name, ModuleName) and name.class_name in OF_IMAGES

    return subject.in_places(is_of_images)


def _undone_by(subject: GpuSubject, copies: Bools, converted: Bools) -> Bools:
    """Mark the copies of forward whose format the next copy undoes, with nothing but copies between them."""
    moves = subject.of_category("copy") | ~subject.kernel
    in_forward = subject.of_phase(FORWARD)
    others_until = np.r_[0, np.cumsum(~moves)]
    copy = np.flatnonzero(converted & in_forward)
    before = last_marked(copies & ~converted & in_forward)[copy]
    fits = (before >= 0) & (others_until[copy] == others_until[before])
    return marked(before[fits], len(copies))


def left_in_tf32(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find products in TF32 in a program that computes at least as many in 16 bits or less."""
    products = subject.products | subject.of_category("convolution")
    products &= ~subject.matching(NO_PRODUCT)
    wide = products & subject.of_arithmetic("tf32")
    narrow = products & subject.of_arithmetic(*NARROW)
    if not wide.any() or narrow.sum() < wide.sum():
        return
    kind = _most_used(subject, narrow)
    peak = subject.peak
    rates = (peak.flops("tf32"), peak.flops(kind)) if peak else (None, None)
    share = min(rates[0] / rates[1], 1.0) if rates[0] and rates[1] else IN_BF16
    least_ns = least_bytes_ns(subject, wide) * IN_BF16
    duration_ns = np.maximum(subject.duration_ns, 1.0)
    change = shortening(wide, np.clip(least_ns / duration_ns, share, 1.0))
    are_gemms = bool((wide & subject.products).any())
    are_convolutions = bool((wide & subject.of_category("convolution")).any())
    things = " and ".join(["GEMMs"] * are_gemms + ["convolutions"] * are_convolutions)
    count = count_text(round(subject.per_step(wide)))
    sentence = (
        f"{count} {things} compute in TF32, as autocast is off for them, and most others in {kind}: "
        f"run them in {kind}, too; numbers change"
    )
    short = f"{kind} for {count} {things} in TF32, for which autocast is off"
    yield Found(change, sentence, short, wide, {"floor_ns": float(least_ns[wide].sum()) / subject.steps})


def _most_used(subject: GpuSubject, narrow: Bools) -> str:
    """Return bf16 or fp16, by which of them products take more of the GPU's time."""
    halves = narrow & subject.of_arithmetic("fp16")
    return "fp16" if subject.time_ns(halves) > subject.time_ns(narrow & ~halves) else "bf16"
