"""Rules on the optimizer: whether it is fused, and over how many groups of parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ..support.units import counted
from ..trace import Bools, Path, Provenance
from ..vocabulary import OPTIMIZER
from .fix_subject import FixSubject
from .gpu_subject import GpuSubject
from .gpu_time import Floats
from .launch_rules import at_once
from .symptoms import Found, Unjudged

#: An optimizer is not fused from this number of kernels in a step, or this multiple of the least time, on.
MANY_LAUNCHES, TIMES_LEAST = 100, 1.5
FUSED = r"fused|adam\w*functor|sgdfunctor|lambstage|lamb\w*functor|adam\w*_kernel"
#: What names an optimizer's class: a range of PyTorch's or of annotation, or the run itself.
OPTIMIZER_NAME = re.compile(r"^Optimizer\.step#(\w+)\.step|^steps of (\w+)$|^([A-Z]\w+)(?:\.step)?$")
#: Optimizers with fused=True on GPUs, and the bytes that each parameter in fp32 must move; on CPUs there is one
#: more: `cuda_unsupported` of torch/optim/adagrad.py.
BYTES = {"Adam": 28, "AdamW": 28, "SGD": 20}
FUSED_ON_CPU = (*BYTES, "Adagrad")
#: What one launch updates at most: numbers (320 blocks of 65,536) and tensors, of which it holds four pointers:
#: https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cuda/MultiTensorApply.cuh
NUMBERS_AT_ONCE, TENSORS_AT_ONCE = 320 * 65_536, 36


def optimizer(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find an optimizer that launches kernels for single operations, or fused ones for single tensors."""
    in_update = subject.of_phase(OPTIMIZER)
    if (in_update & subject.products).any():
        return  # as Muon and Shampoo do, which have no fused=True
    fused = in_update & subject.matching(FUSED)
    work = in_update & ~fused
    if subject.time_ns(fused) > subject.time_ns(work):
        yield from _in_groups(subject, fused)
        return
    if not work.any():
        return
    called = updating_class(subject)
    if called is not None and called not in BYTES:
        return
    parameters = subject.run_number("parameters")
    bandwidth = subject.peak.bytes if subject.peak else 0
    least_ns = parameters * BYTES.get(called or "", 28) / bandwidth * 1e9 if parameters and bandwidth else None
    launches = subject.per_step(work)
    time = subject.time_ns(work)
    if launches < MANY_LAUNCHES and (least_ns is None or time < TIMES_LEAST * least_ns):
        return
    step = subject.timeline.step_of_work
    change = at_once(subject, work, step, time if least_ns is None else min(least_ns, time))
    moves = ""
    if least_ns and time > TIMES_LEAST * least_ns:
        moves = f" and moves {time / least_ns:.1f} times the bytes it must"
    remedy = fused_text(called)
    instead = fused_text(called, has_place=False)
    kernels = counted(round(launches), "kernel")
    sentence = f"The optimizer launches {kernels}{moves}: {instead}"
    short = f"{remedy}: {kernels} a step"
    yield Found(change, sentence, short, work, {"floor_ns": least_ns or 0.0})


def _in_groups(subject: FixSubject, fused: Bools) -> Iterator[Found]:
    """Find a fused optimizer that has its parameters in so many groups that most kernels update one tensor.

    For each group and dtype, PyTorch counts the step and launches the fused kernel again.
    """
    work = subject.of_phase(OPTIMIZER) & subject.kernel
    numbers, tensors = subject.run_number("parameters"), subject.run_number("updated_tensors")
    needed = numbers / NUMBERS_AT_ONCE + tensors / TENSORS_AT_ONCE
    if not numbers or not tensors or subject.per_step(fused) < max(MANY_LAUNCHES, TIMES_LEAST * needed):
        return
    kernels = counted(round(subject.per_step(fused)), "fused kernel")
    sentence = (
        f"The optimizer launches {kernels}, one or more for each group of parameters: "
        "put parameters of equal settings into one group"
    )
    short = f"Put parameters of equal settings into one group: {kernels} a step"
    yield Found(at_once(subject, work, subject.timeline.step_of_work), sentence, short, work)


def updating_class(subject: GpuSubject) -> str | None:
    """Return the class of the optimizer; None if nothing says it."""
    updates = subject.places(subject.of_phase(OPTIMIZER))
    return optimizer_name(texts_on_optimizer(subject.trace.provenance, updates))


def fused_text(called: str | None, *, has_place: bool = True) -> str:
    """Return how an optimizer is fused, whose class may be unknown; in a sentence on it without that."""
    if called:
        return f"{called}(fused=True)"
    return "fused=True in the optimizer" if has_place else "fused=True, which AdamW, Adam and SGD have"


def optimizer_name(texts: Iterable[str]) -> str | None:
    """Return the class of the optimizer, by the first text or range's name that says it; None where none does."""
    for text in texts:
        if match := OPTIMIZER_NAME.search(text):
            return str(next(filter(None, match.groups())))
    return None


def texts_on_optimizer(provenance: Provenance, paths: Iterable[Path]) -> Iterator[str]:
    """Yield texts that may name the optimizer's class: the run's words, the updates of its steps, their ranges."""
    stated = provenance.run.get("optimizer")
    if isinstance(stated, str):
        yield stated
    yield provenance.steps
    yield from (path[-1] for path in paths if path)
