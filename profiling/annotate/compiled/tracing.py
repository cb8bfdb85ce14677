"""What Dynamo learns while it traces a program: the region of the next operators, and optimizers' updates.

`comptime` runs a function while the program is being traced, with the tracer as its argument, and leaves
nothing in the graph. A region then lies in `node.meta["custom"]` of every node that is made inside it, where
AOTAutograd copies it to the nodes of the backward too. Nothing is read in a way that Dynamo would guard:
what is compiled, and how often, stays as it was.

Where Dynamo inlines an annotation into a graph, the annotation sees that it is traced, and opens nothing.
Where a compiled program calls one between its graphs (a hook of the module that is compiled, a region around
a graph break), Dynamo would make an empty graph of it, and the range would never open: `keep_eager`.
"""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from ...harmless import is_the_programs, say_once
from .. import range_stack
from .names import REGIONS

#: An environment variable: compiled programs are left alone, and are one piece.
OPAQUE_SWITCH = "NVTX_KERNELS_OPAQUE"
_MAX_NAME = 200


# By the id of Dynamo's output graph, the regions open in it; a trace that ends or is given up takes them with it.
_traces: dict[int, list[ExitStack]] = {}
opaque = os.environ.get(OPAQUE_SWITCH, "0") not in ("", "0")
#: Called when Dynamo comes upon an annotation; they must be quick when called again.
on_trace: list[Callable[[], None]] = []


def note_entering(region: Any) -> None:  # noqa: ARG001 - read from the traced frame
    """Note, while the program is traced, that it enters a region."""
    _comptime()(_enter)


def note_leaving() -> None:
    """Note, while the program is traced, that it leaves a region."""
    _comptime()(_leave)


def note_updating(optimizer: Any) -> None:  # noqa: ARG001 - read from the traced frame
    """Note, while the program is traced, that an optimizer begins to update."""
    _comptime()(_note_updating)


def note_update(optimizer: Any, run: Callable[..., Any]) -> None:  # noqa: ARG001 - as above
    """Note that it has updated.

    PyTorch's optimizers break the graph there, and so does this. Where the program wants one graph, the code that
    is compiled of it is called through `run`: with the optimizer, whether the code works before its update, the
    code and its arguments.
    """
    _comptime()(_note_update)


#: By the id of Dynamo's output graph: whether anything was traced before its first update.
_works_before: dict[int, bool] = {}


def _note_updating(context: Any) -> None:
    output = _tracer(context).output
    if not getattr(output.root_tx, "one_graph", False):
        context.graph_break()
    if id(output) not in _works_before:
        _works_before[id(output)] = any(node.op.startswith("call") for node in output.graph.nodes)
        output.add_cleanup_hook(partial(_works_before.pop, id(output), None))


def _note_update(context: Any) -> None:
    tracer = _tracer(context)
    output, here = tracer.output, tracer.symbolic_locals
    if not getattr(output.root_tx, "one_graph", False):
        context.graph_break()
    with _harmless():
        optimizer = weakref.ref(here["optimizer"].value)
        run = here["run"].get_function()
        compile_graph = output.compiler_fn
        works_before = _works_before.get(id(output), False)

        @functools.wraps(compile_graph)
        def compile_and_wrap(*graph: Any, **options: Any) -> Any:
            code = compile_graph(*graph, **options)
            return functools.wraps(code)(partial(run, optimizer, works_before, code))

        output.compiler_fn = compile_and_wrap


def _comptime() -> Any:
    from torch._dynamo.comptime import comptime

    return comptime


def _enter(context: Any) -> None:
    with _harmless():
        tracer = _tracer(context)
        regions = _regions_of(tracer)
        if regions is None:
            return
        name, marks = _name_of(tracer), ExitStack()
        if name:  # the nodes that are made until it is closed bear it
            outer = torch.fx.traceback.current_meta.get("custom", {}).get(REGIONS, ())
            here = (len(tracer.nn_module_stack), name)
            marks.enter_context(torch.fx.traceback.annotate({REGIONS: (*outer, here)}))
            marks.enter_context(torch.fx.traceback.preserve_node_meta())
        regions.append(marks)


def _leave(context: Any) -> None:
    with _harmless():
        regions = _regions_of(_tracer(context))
        if regions:
            regions.pop().close()


@contextmanager
def _harmless() -> Iterator[None]:
    """Log errors of annotation instead of raising them in the program."""
    try:
        yield
    except Exception as error:
        if is_the_programs(error):
            raise
        say_once(f"compiled code lacks ranges: PyTorch {torch.__version__}, {error!r}")


def _tracer(context: Any) -> Any:
    return context._i_will_not_complain_if_bc_breaks_InstructionTranslator()


def _regions_of(tracer: Any) -> list[ExitStack] | None:
    if range_stack.off or opaque:
        return None
    output = tracer.output
    regions = _traces.get(id(output))
    if regions is None:
        for install in on_trace:
            install()
        regions = _traces[id(output)] = []
        output.add_cleanup_hook(partial(_forget, id(output)))
    return regions


def _forget(key: int) -> None:
    regions = _traces.pop(key)
    while regions:
        regions.pop().close()


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


def keep_eager(module: ModuleType, *, and_what_it_calls: bool) -> None:
    """Have Python run a module's functions where they are not part of a graph."""
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if hasattr(frames, "_FrameAction") and hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        as_usual = frames._FrameAction.DEFAULT
        strategy = frames._FrameExecStrategy(skip, skip if and_what_it_calls else as_usual)
        for code in _codes(module, module.__name__):
            frames.set_code_exec_strategy(code, strategy)


def _and_inside(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and that of the functions in it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _and_inside(part)


def _codes(owner: ModuleType | type, module: str) -> Iterator[CodeType]:
    for member in vars(owner).values():
        function = (
            inspect.unwrap(member) if isinstance(member, FunctionType) else getattr(member, "__func__", None)
        )
        if isinstance(function, FunctionType) and function.__module__ == module:
            yield from _and_inside(function.__code__)
        elif inspect.isclass(member) and member.__module__ == module:
            yield from _codes(member, module)
