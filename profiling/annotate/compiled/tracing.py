"""What Dynamo learns while it traces a program: the region of the next operators.

`comptime` runs a function while the program is being traced, with the tracer as its argument, and leaves
nothing in the graph. A region then lies in `node.meta["custom"]` of every node that is made inside it, where
AOTAutograd copies it to the nodes of the backward too. Nothing is read in a way that Dynamo would guard:
what is compiled, and how often, stays as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from .. import range_stack
from .names import REGIONS

#: An environment variable: compiled programs are left alone, and are one piece.
OPAQUE_SWITCH = "NVTX_KERNELS_OPAQUE"
_MAX_NAME = 200


class _Trace:
    """The regions that are open in one trace; a trace that ends, or is given up, takes them with it."""

    def __init__(self) -> None:
        self.regions: list[ExitStack] = []

    def close(self) -> None:
        while self.regions:
            self.regions.pop().close()


_traces: dict[int, _Trace] = {}  # by the id of Dynamo's output graph
opaque = os.environ.get(OPAQUE_SWITCH, "0") not in ("", "0")
# What to do when Dynamo comes upon an annotation.
_install: Callable[[], None]


def on_trace(install: Callable[[], None]) -> None:
    """Have `install` called whenever Dynamo comes upon an annotation; it must be quick when called again."""
    global _install
    _install = install


def note_entering(region: Any) -> None:  # noqa: ARG001 - read from the traced frame
    """Note, while the program is traced, that it enters a region."""
    _comptime()(_enter)


def note_leaving() -> None:
    """Note, while the program is traced, that it leaves a region."""
    _comptime()(_leave)


def _comptime() -> Any:
    from torch._dynamo.comptime import comptime

    return comptime


def _enter(context: Any) -> None:
    with _harmless():
        tracer = _tracer(context)
        trace = _trace_of(tracer)
        if trace is None:
            return
        name = _name_of(tracer)
        outer = torch.fx.traceback.current_meta.get("custom", {}).get(REGIONS, ())
        here = (len(tracer.nn_module_stack), name)
        trace.regions.append(_marks((*outer, here)) if name else ExitStack())


def _leave(context: Any) -> None:
    with _harmless():
        trace = _trace_of(_tracer(context))
        if trace is not None and trace.regions:
            trace.regions.pop().close()


@contextmanager
def _harmless() -> Iterator[None]:
    """Log errors of annotation instead of raising them in the program."""
    try:
        yield
    except Exception as error:
        range_stack.say_once("traced", "compiled code lacks ranges: PyTorch %s, %r", torch.__version__, error)


def _tracer(context: Any) -> Any:
    return context._i_will_not_complain_if_bc_breaks_InstructionTranslator()


def _trace_of(tracer: Any) -> _Trace | None:
    if range_stack.off or opaque:
        return None
    output = tracer.output
    trace = _traces.get(id(output))
    if trace is None:
        _install()
        trace = _traces[id(output)] = _Trace()
        output.add_cleanup_hook(partial(_forget, id(output)))
    return trace


def _forget(key: int) -> None:
    _traces.pop(key).close()


def _marks(regions: object) -> ExitStack:
    """Mark the nodes that are made until the result is closed."""
    marks = ExitStack()
    marks.enter_context(torch.fx.traceback.annotate({REGIONS: regions}))
    marks.enter_context(torch.fx.traceback.preserve_node_meta())
    return marks


def _name_of(tracer: Any) -> str | None:
    """Return the name of the region `region` of the frame that is traced.

    A name that Dynamo has not looked at yet is left alone: reading it would make a guard, and so compile the
    program again for each region of another name.
    """
    region = tracer.symbolic_locals["region"]
    effects = tracer.output.side_effects
    if not effects.has_pending_mutation_of_attr(region, "name"):
        return _text(region.value.name)
    name = effects.load_attr(region, "name")
    if hasattr(name, "is_realized") and not name.is_realized():
        return None
    return _text(name.as_python_constant())


def _text(name: object) -> str | None:
    return name[:_MAX_NAME] if isinstance(name, str) and name else None
