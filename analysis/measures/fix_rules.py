"""The table of rules: how each is called, and what it needs to be judged.

A rule finds its symptom and returns the change that removes it; what the change saves is replayed, or bounded by
the GPU's time where nothing can be replayed (`fix_bounds`). Whether a figure is worth a line is decided there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .batch_rules import micro_batches, padding
from .call_rules import in_parts, second_forward
from .copy_rules import from_cpu, pageable_copy, to_cpu
from .fix_list import Fix
from .gpu_rules import alignment, attention, chains, fp32, fp64, layouts, recompute
from .gpu_subject import GpuSubject
from .gpu_time import Floats
from .gradient_rules import frozen, untrained
from .launch_rules import launching
from .loop_rules import one_by_one
from .mixed_rules import layout_copies, left_in_tf32
from .optimizer_rules import optimizer
from .pause_rules import host_pause
from .read_rules import forward_read, scalar_read
from .row_rules import dense_rows, distances, one_hot, slices
from .size_rules import new_sizes
from .symptoms import Found, Unjudged
from .waste_rules import allocating, anomaly, device_sync

#: bf16 is named where it saves so much more than TF32.
BF16_MORE = 1.1


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its name in JSON, how screens call it, and how it is found.

    `find` takes a subject, and the host's factors. With `needs_host` the subject is a FixSubject, and the rule is
    judged by a replay alone; else any GpuSubject will do. `up_to` says that its figure is a most, `about` that it
    can be less or more. `unrecorded` says that the host's time without recording decides it. What comes `last` is
    judged by what the causes, whose changes matter, leave of the step. One that is `conditional` helps on a
    condition that no report shows.
    """

    name: str
    called: str
    find: Callable[[Any, Floats], Iterator[Found | Unjudged]]
    needs_host: bool = False
    up_to: bool = True
    about: bool = False
    unrecorded: bool = False
    last: bool = False
    conditional: bool = False


def row_of(rule: Rule, symptom: Found, subject: GpuSubject) -> Fix:
    """Return the row of a symptom, but for the times that its change saves and leaves."""
    concerned = subject.concerned(symptom)
    evidence = {"kernels_ns": subject.time_ns(symptom.work), "floor_ns": 0.0, "calls": concerned.count}
    return Fix(
        rule=rule.name,
        sentence=symptom.sentence,
        short=symptom.short,
        where=concerned.where,
        most=concerned.most,
        lines=concerned.lines,
        near=concerned.near,
        count=concerned.count,
        work=subject.row[symptom.work],
        alone_ns=0.0,
        alone_low_ns=0.0,
        then_ns=None,
        step_ns=0.0,
        up_to=rule.up_to,
        about=rule.about,
        undoes=symptom.undoes,
        evidence={**evidence, **symptom.evidence},
    )


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
    Rule("host_pause", "pauses of the program", host_pause, needs_host=True, up_to=False),
    Rule("new_sizes", "new sizes", new_sizes, needs_host=True),
    Rule("scalar_read", "reading single numbers", scalar_read, needs_host=True, up_to=False, unrecorded=True),
    Rule("forward_read", "reads in forward", forward_read, needs_host=True, unrecorded=True),
    Rule("fp32", "TF32", fp32),
    Rule("left_in_tf32", "16 bits in place of TF32", left_in_tf32, up_to=False, about=True),
    Rule("pageable_copy", "pinned memory", pageable_copy, needs_host=True),
    Rule("optimizer", "a fused optimizer", optimizer, needs_host=True, unrecorded=True),
    Rule("dense_rows", "sparse embeddings", dense_rows),
    Rule("one_hot", "lookups as products", one_hot),
    Rule("distances", "distances by differences", distances),
    Rule("slices", "slices in a loop", slices),
    Rule("one_by_one", "loops over tensors", one_by_one, needs_host=True, unrecorded=True),
    Rule("in_parts", "calls on parts", in_parts, needs_host=True, up_to=False, about=True, unrecorded=True),
    Rule("micro_batches", "larger micro-batches", micro_batches, needs_host=True, unrecorded=True),
    Rule("attention", "fused attention", attention),
    Rule("to_cpu", "copies to the CPU", to_cpu, needs_host=True, up_to=False),
    Rule("from_cpu", "tensors made on the CPU", from_cpu, needs_host=True, up_to=False),
    Rule("allocating", "allocations", allocating, needs_host=True),
    Rule("anomaly", "autograd's checks", anomaly, needs_host=True),
    Rule("device_sync", "waits for the whole GPU", device_sync, needs_host=True, unrecorded=True),
    Rule("launching", "fewer launches", launching, needs_host=True, unrecorded=True, last=True),
    Rule("recompute", "checkpointing", recompute),
    Rule("untrained", "gradients of what is not trained", untrained, up_to=False, about=True),
    Rule("second_forward", "second calls without gradient", second_forward, conditional=True),
    Rule("frozen", "outputs of frozen modules", frozen, conditional=True),
    Rule("padding", "padding", padding),
    Rule("alignment", "alignment", alignment),
    Rule("fp64", "double precision", fp64),
    Rule("layouts", "channels-last", layouts, up_to=False, about=True),
    Rule("layout_copies", "copies between memory formats", layout_copies),
    Rule("compile", "chains of small kernels", chains, up_to=False, about=True, last=True),
)
