"""What a reader of a report's numbers must know, in sentences: what was decided, and what annotation would add."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.attribution import Attribution
from analysis.trace import GRAPH, Bools
from analysis.vocabulary import OTHER, PHASES

# What opens a range, by what recorded it.
NVTX = ("NVTX ranges", "with `profiling.annotate` or `torch.cuda.nvtx`, and record with `-t cuda,nvtx`")
BLOCKS = ("record_function blocks", "with `torch.profiler.record_function`")


def notes(attribution: Attribution, left_out: Bools) -> Iterator[str]:
    """Yield the sentences; `left_out` marks the work that lies in warm-up."""
    yield from _of_warm_up(attribution, left_out)
    yield from _of_annotation(attribution)
    if graphs := int((attribution.trace.work.kind == GRAPH).sum()):
        yield (
            f"{graphs} CUDA graph launches are counted whole, as work without kernels: the report hides "
            "theirs. Record with `nsys profile --cuda-graph-trace=node` to see them."
        )
    if open_ended := int(attribution.trace.ranges.open_ended.sum()):
        yield f"{open_ended} ranges were never closed; they are taken to end with the capture."


def _of_warm_up(attribution: Attribution, left_out: Bools) -> Iterator[str]:
    for number, phase in enumerate(PHASES):
        mine = attribution.phase == number
        if (mine & left_out).any() and not (mine & ~left_out).any():
            yield f"All {phase} work is inside warm-up ranges and left out; --include-warmup counts it."


def _of_annotation(attribution: Attribution) -> Iterator[str]:
    """Say what ranges would add where there are none, or none that opens a phase."""
    ranges, how = BLOCKS if attribution.trace.provenance.is_of_pytorch else NVTX
    if not len(attribution.ranges):
        yield (
            f"The report has no {ranges}, so nothing tells which part of the program launched what. Open some "
            f"around forward, backward and optimizer, and inside these around layers and their parts, {how}."
        )
    elif (attribution.phase == PHASES.index(OTHER)).all():
        yield (
            f"No range opens a phase, so that forward, backward and optimizer are not told apart. Open {ranges} "
            f"whose names start with these words, {how}."
        )
