"""Categories of kernels whose names do not tell them: by the operator, or the Python function, that launched them.

Names come first. A kernel that no rule of names knows has the category of the outermost operator around its
launches that has one (`aten::convolution` and all below it), else of the innermost Python function around them, by
the names of its file and of the function. Of several, the one with the most of the kernel's time decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..kernel_names.categories import MEANINGS, categorize
from ..operators import rule_of
from ..support.small_numbers import distinct, grouped_rows, summed
from ..trace import KERNEL, PUSH_POP, Int32s, Ranges, Spots, Trace
from .nesting import Nesting
from .operators import outermost_of
from .user_ranges import NameFacts, operator_ranges

OTHER = "other"
_NUMBER = {category: number for number, category in enumerate(MEANINGS)}
_NAME = [*_NUMBER]
#: Operators that hold what a compiler made of many.
_WRAPPERS = re.compile(r"## Call |Torch-Compiled Region|CompiledFunction|TorchDynamo |Pregraph |AOTDispatcher ")
#: The file and the function of a Python frame: `unsloth/kernels/rms_layernorm.py(45): forward`.
_FRAME = re.compile(r"(?:.*/)?(?P<file>[^/]+)\.py\(\d+\): (?P<function>.+)", re.DOTALL)


def with_categories(trace: Trace, facts: NameFacts) -> Trace:
    """Return the trace with the categories of kernels that their names do not tell, as far as launches do."""
    kernel = trace.work.kind == KERNEL
    ids = distinct(trace.work.name_id[kernel])
    unknown = ids[np.array(categorize([trace.names[number] for number in ids.tolist()])) == OTHER]
    if not len(unknown):
        return trace
    rows = np.flatnonzero(kernel & np.isin(trace.work.name_id, unknown) & (trace.work.launch >= 0))
    calls = trace.launches.take(trace.work.launch[rows])
    category = _of_operators(trace, facts, calls)
    left = np.flatnonzero(category < 0)
    if trace.frames is not None and len(left):
        category[left] = _of_functions(trace, calls.take(left))
    categorized = np.flatnonzero(category >= 0)
    pairs, pair = grouped_rows(trace.work.name_id[rows[categorized]], category[categorized])
    total_ns = summed(pair, trace.work.duration_ns[rows[categorized]], len(pairs[0]))
    categories = {}
    for place in np.argsort(total_ns, kind="stable").tolist():  # the last is the largest
        categories[trace.names[pairs[0][place]]] = _NAME[pairs[1][place]]
    return replace(trace, categories=categories)


def _of_operators(trace: Trace, facts: NameFacts, calls: Spots) -> Int32s:
    """Return the category of the outermost operator around each call that has one, or -1: int32 (calls,)."""
    is_operator = operator_ranges(facts, trace.ranges) & (trace.ranges.style == PUSH_POP)
    ranges = trace.ranges.take(np.flatnonzero(is_operator & np.isin(trace.ranges.thread, distinct(calls.thread))))
    if not len(ranges) or not len(calls):
        return np.full(len(calls), -1, np.int32)
    names = distinct(ranges.name_id).tolist()
    of_name = np.full(len(trace.names), -1, np.int32)
    of_name[names] = _numbers({trace.names[name]: category_of(trace.names[name]) for name in names})
    nesting = Nesting(ranges)
    node = nesting.containing(calls)
    return outermost_of(nesting.forest, of_name[ranges.name_id[nesting.forest.range]])[node]


def category_of(operator: str) -> str:
    """Return the category of an operator by the table of operators, or by the rules of names.

    >>> category_of("aten::convolution"), category_of("mmcv::nms")
    ('convolution', 'scan')
    """
    if _WRAPPERS.match(operator):
        return OTHER
    rule = rule_of(operator)
    if rule:
        return rule.category
    return categorize([operator])[0]


def function_text(frame: str) -> str:
    """Return the file and the name of a Python function, which tell the category of its kernels.

    >>> function_text("unsloth/kernels/rms_layernorm.py(45): forward")
    'rms_layernorm_forward'
    """
    match = _FRAME.match(frame)
    if match:
        return f"{match['file']}_{match['function']}"
    return ""


def _of_functions(trace: Trace, calls: Spots) -> Int32s:
    """Return the category of the innermost Python function around each call that names one: int32 (calls,)."""
    frames = trace.frames
    assert frames is not None
    of_name = _numbers(dict(enumerate(categorize(list(map(function_text, trace.frame_names))))))
    rows = np.flatnonzero((of_name[frames.name_id] >= 0) & np.isin(frames.thread, distinct(calls.thread)))
    if not len(rows):
        return np.full(len(calls), -1, np.int32)
    frames = frames.take(rows)
    zeros = np.zeros(len(rows), np.int32)
    order = np.lexsort((-frames.end_ns, frames.start_ns, frames.thread))
    ranges = Ranges(
        frames.start_ns,
        frames.end_ns,
        frames.thread,
        frames.name_id,
        domain=zeros,
        seq=zeros.astype(np.int64),
        style=zeros.astype(np.uint8),
        open_ended=zeros.astype(np.bool_),
        category=zeros.astype(np.int8),
    ).take(order)
    nesting = Nesting(ranges)
    node = nesting.containing(calls)
    category = np.append(of_name[ranges.name_id[nesting.forest.range]], np.int32(-1))
    return category[node]


def _numbers(categories: Mapping[object, str]) -> Int32s:
    """Return categories as positions in MEANINGS, -1 for an unknown one."""
    return np.array([_NUMBER[each] if each != OTHER else -1 for each in categories.values()] or [-1], np.int32)
