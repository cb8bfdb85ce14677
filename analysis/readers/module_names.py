"""Names of serving engines' modules: a dict as text becomes the module, relative to the one around it.

Engines can push a range for each call of a module, whose name is a dict: `{'Module': 'model.layers.0.mlp',
'Inputs': [[8, 4096]], ...}`. With the shapes in it one module has many names. What is kept is the module's path,
without the part that the nearest range around it has already: model > layers.0 > mlp. vLLM pushes a second, empty
range with the outputs' shapes behind each call, which is called `mlp (outputs)`. Written by
- vLLM, vllm/utils/nvtx_pytorch_hooks.py (`--enable-layerwise-nvtx-tracing`, 2026);
- SGLang, python/sglang/srt/utils/nvtx_pytorch_hooks.py (`--enable-layerwise-nvtx-marker`, 2026);
- TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/layerwise_nvtx_marker.py (LayerwiseNvtxMarker, 1.0).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..trace import PUSH_POP, Trace
from .columns import Interner

BEGINNING = "{'Module': "
OUTPUTS = " (outputs)"
_MODULE = re.compile(r"\{'Module': (?:'([^'\\]+)'|\"([^\"\\]+)\")(?:[,}]|$)")
_SIDE = re.compile(r" \((?:in|out)put\)")


class Called(NamedTuple):
    """A module, and whether the range has only the shapes of its outputs."""

    module: str
    outputs: bool


def called(name: str) -> Called | None:
    """Return the module that a range's name says is called; None for any other name."""
    match = _MODULE.match(name)
    if not match:
        return None
    module = match[1] or match[2]
    outputs = "'Outputs': " in name or "(output)" in module
    return Called(_SIDE.sub("", module), outputs)


def with_module_names(trace: Trace) -> Trace:
    """Return the trace with the paths of modules instead of engines' names for their calls."""
    modules = {
        name_id: call
        for name_id, name in enumerate(trace.names)
        if name.startswith(BEGINNING) and (call := called(name))
    }
    if not modules:
        return trace
    ranges = trace.ranges
    added = Interner[str]()
    name_id = ranges.name_id.copy()
    open_thread = -1
    open_calls = list[tuple[int, str]]()  # of this thread; ranges come in order, outer before inner
    for row in np.flatnonzero(np.isin(ranges.name_id, list(modules)) & (ranges.style == PUSH_POP)).tolist():
        call = modules[int(ranges.name_id[row])]
        end_ns = int(ranges.end_ns[row])
        if ranges.thread[row] != open_thread:
            open_thread = int(ranges.thread[row])
            open_calls = []
        while open_calls and open_calls[-1][0] < end_ns:
            open_calls.pop()
        above = next((module for _, module in reversed(open_calls) if call.module.startswith(f"{module}.")), "")
        if not call.outputs:
            open_calls.append((end_ns, call.module))
        short = call.module[len(above) + 1 :] if above else call.module
        name_id[row] = len(trace.names) + added(f"{short}{OUTPUTS}" if call.outputs else short)
    names = [*trace.names, *added]
    return replace(trace, ranges=replace(ranges, name_id=name_id), names=names, shortened=frozenset(added))
