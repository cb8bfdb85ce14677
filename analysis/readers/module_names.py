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
    ranges, names = trace.ranges, list(trace.names)
    rows = np.flatnonzero(np.isin(ranges.name_id, list(modules)) & (ranges.style == PUSH_POP))
    number: dict[str, int] = {}
    name_id, inside = ranges.name_id.copy(), _Open()
    for row in rows.tolist():
        called_module = modules[int(ranges.name_id[row])]
        short = inside.relative(called_module, int(ranges.thread[row]), int(ranges.end_ns[row]))
        if short not in number:
            number[short] = len(names)
            names.append(short)
        name_id[row] = number[short]
    return replace(trace, ranges=replace(ranges, name_id=name_id), names=names, shortened=frozenset(number))


class _Open:
    """The calls that are open on one thread, as ranges come: outer before inner."""

    def __init__(self) -> None:
        self.thread = -1
        self.calls: list[tuple[int, str]] = []

    def relative(self, call: Called, thread: int, end_ns: int) -> str:
        """Return the module's path below the nearest open call that it is part of."""
        if thread != self.thread:
            self.thread, self.calls = thread, []
        while self.calls and self.calls[-1][0] < end_ns:
            self.calls.pop()
        above = next((module for _, module in reversed(self.calls) if call.module.startswith(f"{module}.")), "")
        if not call.outputs:
            self.calls.append((end_ns, call.module))
        short = call.module[len(above) + 1 :] if above else call.module
        return f"{short}{OUTPUTS}" if call.outputs else short
