"""All of Inductor that is not its public interface, in one place, each name checked before it is used.

Seen in PyTorch 2.11, 2.13 and 2.14. Kernel calls are announced to the wrapper code generator by
`write_provenance_debug_handle` (2.9 and newer). The caller has the graph nodes of the call in a
local variable: reading them there needs no setting of Inductor's, which would change its caches' keys and
its passes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import FrameType, ModuleType
from typing import Any

import torch

#: What torch.compile imports last before it compiles with Inductor.
ENTRY = "torch._inductor.compile_fx"
ANNOUNCE = "write_provenance_debug_handle"
# The local variable of the announcing function that holds the nodes: scheduler nodes, or a call outside.
SCHEDULED, EXTERN = "node_schedule", "self"
WRAPPER_METHODS = (ANNOUNCE, "run_wrapper_ir_passes", "generate_return", "writeline", "create")


# Lines of generated code that start nothing on a device, between one kernel call and the next.
BOOKKEEPING_LINES = (
    "MemoryPlanningLine",
    "CommentLine",
    "FreeLine",
    "KernelDefinitionLine",
    "AssertSizeStrideLine",
    "GroupedAssertSizeStrideLine",
)
BOOKKEEPING_TEXT = ("#", "del ", "assert", "\n")
# How many nodes are looked at to place one that no module made.
_MAX_BEFORE = 256


def missing() -> str:
    """Return the names that this PyTorch lacks for ranges in compiled code, or ""."""
    try:
        from torch._inductor.codecache import FxGraphHashDetails
        from torch._inductor.codegen import common
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    except ImportError as error:
        return str(error)
    needed: dict[Any, tuple[str, ...]] = {
        PythonWrapperCodegen: WRAPPER_METHODS,
        common: ("device_codegens", "init_backend_registration", "DeviceCodegen"),
        FxGraphHashDetails: ("__init__",),
        torch.fx.traceback: ("annotate", "preserve_node_meta", "current_meta"),
    }
    lacking = [
        f"{owner.__name__}.{name}" for owner, names in needed.items() for name in names if not hasattr(owner, name)
    ]
    return f"PyTorch {torch.__version__} has no {', '.join(lacking)}" if lacking else ""


class _Waiting(MetaPathFinder):
    """Finds Inductor as Python would, and acts after it has run."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def find_spec(
        self,
        name: str,
        _path: Sequence[str] | None,
        _target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if name != ENTRY:
            return None
        stop_waiting()
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_act(module: ModuleType) -> None:
            run(module)
            self._act()

        spec.loader.exec_module = run_and_act  # type: ignore[method-assign]
        return spec


def after_import(act: Callable[[], None]) -> None:
    """Call a function now if Inductor is imported, which takes seconds, else right after its import."""
    if ENTRY in sys.modules:
        act()
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting(act))


def stop_waiting() -> None:
    """Call nothing any more after the import of Inductor."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Waiting)]


def wrappers() -> dict[str, Any]:
    """Return the registered generators of wrapper code, by kind of device."""
    from torch._inductor.codegen import common

    common.init_backend_registration()
    return dict(common.device_codegens)


def metas_of_graph(module: Any) -> Iterator[dict[str, Any]]:
    """Go through the metadata of all nodes of a graph, and of the graphs in it."""
    for part in module.modules() if module is not None else ():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                yield node.meta


def graph_in_work() -> tuple[Any, bool]:
    """Return the graph that Inductor is generating code for, and whether it is a backward."""
    from torch._inductor.virtualized import V

    graph = V.graph
    return _outermost(graph).module, bool(graph.is_backward)


def outputs() -> list[torch.fx.Node | None]:
    """Return the nodes that the graph in work returns, in order; None for each output that is not a tensor."""
    from torch._inductor.virtualized import V

    (returned,) = _outermost(V.graph).module.graph.find_nodes(op="output")
    return [output if isinstance(output, torch.fx.Node) else None for output in returned.args[0]]


def elements(node: torch.fx.Node) -> int:
    """Return how many elements a node's tensor has; -1 where that is not known while it is compiled."""
    count = getattr(node.meta.get("val"), "numel", lambda: -1)()
    return count if isinstance(count, int) else -1


def _outermost(graph: Any) -> Any:
    while getattr(graph, "parent", None) is not None:
        graph = graph.parent
    return graph


def scheduler_node() -> Any:
    """Return the node that Inductor's scheduler is at."""
    from torch._inductor.virtualized import V

    return getattr(getattr(V.graph, "scheduler", None), "current_node", None)


def is_bookkeeping(line: Any) -> bool:
    """Return whether a line of generated code allocates, frees or asserts, rather than calls a kernel."""
    if isinstance(line, str):
        return line.lstrip(" ").startswith(BOOKKEEPING_TEXT)
    return any(kind.__name__ in BOOKKEEPING_LINES for kind in type(line).__mro__)


def nodes_of_call(announcer: FrameType) -> list[torch.fx.Node]:
    """Return the graph nodes of the kernel call that a function announces, in their order."""
    variables = announcer.f_locals
    nodes = dict[Any, None]()
    if SCHEDULED in variables:
        for scheduled in variables[SCHEDULED]:
            nodes.update(dict.fromkeys(getattr(getattr(scheduled, "node", None), "origins", ())))
    else:
        exact = getattr(variables.get(EXTERN), "origin_node", None)
        origins = getattr(variables.get(EXTERN), "origins", ())
        nodes.update(dict.fromkeys(origins if exact is None else [exact]))
    return [node for node in sorted(nodes) if node.op != "placeholder"]


def metas_before(nodes: Iterable[torch.fx.Node], is_placed: Callable[[Any], bool]) -> list[dict[str, Any]]:
    """Return the metadata of the nearest placed nodes that these get their inputs from.

    A sum of gradients is made by AOTAutograd and by Inductor's passes, not by a module: it has no modules itself.
    """
    metas = []
    seen = set[torch.fx.Node]()
    further = list(nodes)
    while further and len(seen) < _MAX_BEFORE:
        for node in further.pop().all_input_nodes:
            if node in seen or node.op == "placeholder":
                continue
            seen.add(node)
            if is_placed(node.meta):
                metas.append(node.meta)
            else:
                further.append(node)
    return metas


def cache_keys(digest: Callable[[Any], str]) -> tuple[Any, str, Any]:
    """Return the replacement that makes a text worked out from a graph part of its keys in PyTorch's caches.

    Generated code bears ranges, which the operators of a graph do not determine; a graph without such a
    text keeps the key that it has without us.
    """
    from torch._inductor.codecache import FxGraphHashDetails

    before = FxGraphHashDetails.__init__

    def init(details: Any, gm: Any, *args: Any, **kwargs: Any) -> None:
        before(details, gm, *args, **kwargs)
        text = digest(gm)
        if text:
            details.nvtx_kernels_ranges = text

    return FxGraphHashDetails, "__init__", init
