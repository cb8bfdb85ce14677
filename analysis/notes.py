"""What a reader of a report's numbers must know, in sentences: what was decided, and what annotation would add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from analysis import doubts
from analysis.attribution import Attribution
from analysis.measured_steps import kernels_per_step
from analysis.precision import launches_by_arithmetic
from analysis.report import KernelRow
from analysis.trace import GRAPH, Bools
from analysis.vocabulary import BACKWARD, FORWARD, OTHER, PHASES

# What opens a range, by what recorded it.
NVTX = ("NVTX ranges", "with `profiling.annotate` or `torch.cuda.nvtx`, and record with `-t cuda,nvtx`")
BLOCKS = ("record_function blocks", "with `torch.profiler.record_function`")


def notes(attribution: Attribution, left_out: Bools, kernels: Iterable[KernelRow]) -> Iterator[str]:
    """Yield the sentences; `left_out` marks the work that lies in warm-up, `kernels` are rows of the rest."""
    yield from map(_sentence, filter(None, _doubts(attribution, kernels)))
    yield from _of_warm_up(attribution, left_out)
    yield from _of_annotation(attribution)
    if graphs := int((attribution.trace.work.kind == GRAPH).sum()):
        yield (
            f"{graphs} CUDA graph launches are counted whole, as work without kernels: the report hides "
            "theirs. Record with `nsys profile --cuda-graph-trace=node` to see them."
        )
    if open_ended := int(attribution.trace.ranges.open_ended.sum()):
        yield f"{open_ended} ranges were never closed; they are taken to end with the capture."


def _doubts(attribution: Attribution, kernels: Iterable[KernelRow]) -> Iterator[str]:
    provenance = attribution.trace.provenance
    yield doubts.of_schema(provenance)
    if provenance.unit_of_work == "GPU":  # names of a CPU's operators do not tell their arithmetic
        yield doubts.of_arithmetic(provenance.run, launches_by_arithmetic(kernels))
    yield doubts.of_steps(kernels_per_step(attribution).tolist())


def _sentence(doubt: str) -> str:
    return f"{doubt[0].upper()}{doubt[1:]}."


def _of_warm_up(attribution: Attribution, left_out: Bools) -> Iterator[str]:
    for number, phase in enumerate(PHASES):
        mine = attribution.phase == number
        if (mine & left_out).any() and not (mine & ~left_out).any():
            yield f"All {phase} work is inside warm-up ranges and left out; --include-warmup counts it."


def _of_annotation(attribution: Attribution) -> Iterator[str]:
    """Say what ranges would add where there are none, or none that opens a phase."""
    ranges, how = BLOCKS if attribution.trace.provenance.is_of_pytorch else NVTX
    present = {PHASES[phase] for phase in np.unique(attribution.phase).tolist()}
    if not len(attribution.ranges):
        told = "only its threads tell backward from the rest"
        untold = "nothing tells which part of the program launched what"
        yield (
            f"The report has no {ranges}, so {told if BACKWARD in present else untold}. Open some around forward, "
            f"backward and optimizer, and inside these around layers and their parts, {how}."
        )
    elif present == {OTHER}:
        yield (
            f"No range opens a phase, so that forward, backward and optimizer are not told apart. Open {ranges} "
            f"whose names start with these words, {how}."
        )
    elif BACKWARD in present and OTHER in present and FORWARD not in present:
        yield (
            f"No range opens the forward phase, so that its work is counted as other. Open {ranges} whose names "
            f"start with forward, {how}."
        )
