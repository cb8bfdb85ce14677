"""What tells which autograd node runs now, so that the ranges of its part are opened around its backward.

A pass, one run of the engine, gets hooks on nodes that it can reach; a hook opens the ranges of its node's part:

```
forward    layer 0 [ a  norm[ b c ]  d ]        a to d: nodes in the order of their numbers
backward   d  c  b  a                           the engine runs the last made first
hooks      d  c     a                           in a whole pass, where the part changes
```

| the pass | hooks on |
|---|---|
| all that receive ranges see nodes, and make the ranges afterwards (`recorder/backward.py`) | none |
| runs every node, makes none, and only this thread ran parts | the nodes before which the part changes |
| runs some of the nodes, or makes nodes, and only this thread ran parts | all nodes |
| several threads ran parts: numbers are each thread's own | all nodes; `_made_by` finds each one's thread |

A pass that makes nodes itself always gets hooks: these nodes are of the parts whose backward runs. So does a pass
after generated code of a whole model has run.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from nvtx_kernels.analysis.vocabulary import SETTING_HOOKS
from torch.utils.hooks import RemovableHandle

from ..harmless import forgive, forgiving
from . import range_stack
from .compiled import ranges
from .places import (
    LEAF_NUMBER,
    Call,
    Node,
    Places,
    are_numbered,
    call_that_returned,
    everywhere,
    is_made_elsewhere,
    next_number,
    note_not_made_by,
    places_of,
)
from .regions import NO_PASS, current_node, enter_innermost, pass_id, reach, running_part
from .replacing import replaced

_run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
_local = range_stack.local
# One tensor of no program carries the hook to nodes: `_register_hook_dict` takes a tenth of `register_prehook`.
_carrier, _carrying = torch.empty(0), threading.Lock()
Hooks = OrderedDict[int, Callable[[object], None]]
# For the analysis to leave out: it is some 1.5 us a node on the host of an H200 under nsys.
_SETTING_HOOKS = range_stack.label(SETTING_HOOKS, None, "timeline")


class _Origin(NamedTuple):
    """Where a walk from a pass's outputs is: below what this call returned, which has the number `last`."""

    call: Call | None
    last: int
    outer: _Origin | None


# Below some call, but at a node that it neither made nor was given.
_UNKNOWN_CALL = _Origin(None, 0, None)


class _Hooked:
    """A pass, while which nodes that it can reach have a hook; `is_whole` runs every node and makes none."""

    def __init__(
        self,
        outputs: Iterable[Any],
        *,
        is_kept: bool,
        is_whole: bool,
        makes_nodes: bool,
    ) -> None:
        self.outputs = outputs
        self.is_kept = is_kept
        self.is_whole = is_whole
        self.makes_nodes = makes_nodes
        self.own = range_stack.here().places
        self.threads = [places for places in everywhere if len(places.table)]
        self.pass_threads: dict[Places, int] = {}
        self.tops: list[Node] = []
        self.hooks: dict[Places | None, Hooks] = {}
        self.hooked: list[tuple[Node, Hooks, object]] = []
        self.handles: list[RemovableHandle] = []

    def run(self, engine: Callable[[], Any]) -> Any:
        """Run the engine, and remember who made the gradients that it returns."""
        try:
            drawing = None
            try:
                if self.threads:
                    drawing = range_stack.draw(_SETTING_HOOKS)
                    self._hook_nodes()
            except Exception:  # annotation must not break the program
                forgive("a backward has no ranges")
            finally:
                range_stack.drawn(drawing)
            gradients = engine()
            try:
                for maker, start in self.pass_threads.items():
                    self._remember(maker, start, gradients)
            except Exception:  # nor may this
                forgive("what a backward made is not known")
            return gradients
        finally:
            self.hooked.clear()
            for hooks in self.hooks.values():
                hooks.clear()
            for handle in self.handles:
                handle.remove()

    def _remember(self, maker: Places, start: int, gradients: Any) -> None:
        """Remember what a thread made in the pass, and of the nodes that were there before that it did not."""
        call = Call(maker, start)
        if len(self.pass_threads) == 1:
            call.hold(gradients)
        maker.has_unseen |= not call.is_held  # as where gradients were accumulated
        own_hooks = self.hooks.get(maker)
        unknown_hooks = self.hooks.get(None)
        for node, hooks, _ in self.hooked:
            if hooks is unknown_hooks:
                note_not_made_by(node, call)
            elif hooks is not own_hooks:
                note_not_made_by(node, maker)

    def _hook_nodes(self) -> None:
        edges = [output.grad_fn if isinstance(output, torch.Tensor) else output[0] for output in self.outputs]
        self.tops += [node for node in edges if node is not None]
        if self.threads != [self.own]:
            self.hooked = self._of_several_threads()
        elif self.is_whole:
            self.hooked = self._changes()
        else:
            hooks = self._hooks_of(self.own)
            part_of = self.own.table.part_of
            self.hooked = [(node, hooks, part_of(number)) for number, node in self._of_this_thread()]
        if any(part is not None for _, _, part in self.hooked):
            self._hook()
        if not self.makes_nodes:  # nothing is to be remembered
            self.hooked.clear()

    def _of_this_thread(self) -> list[tuple[int, Node]]:
        """Return the nodes that the pass can reach, with their numbers, down to the first that were of no part.

        If it makes nodes, that is all of them, which are known then from those that it makes.
        """
        bounds, _ = self.own.table.columns
        lowest = 0 if self.makes_nodes else bounds[0] if bounds else LEAF_NUMBER
        nodes = [*self.tops]
        seen = {*self.tops}
        numbered = []
        for node in nodes:
            following_nodes = node.next_functions
            if not following_nodes:  # a leaf, or the end of what PyTorch traces: of no part
                continue
            number = node._sequence_nr()
            numbered.append((number, node))
            if number >= lowest:
                for following, _ in following_nodes:
                    if following is not None and following not in seen:
                        seen.add(following)
                        nodes.append(following)
        return numbered

    def _changes(self) -> list[tuple[Node, Hooks, object]]:
        """Return the nodes before which ranges end or begin: they run from the last made to the first."""
        bounds, parts = self.own.table.columns
        numbered = sorted(self._of_this_thread(), key=itemgetter(0), reverse=True)
        hooks = self._hooks_of(self.own)
        tops = {*self.tops}
        changes = []
        place = len(bounds) - 1
        last = object()
        for number, node in numbered:
            while place >= 0 and bounds[place] > number:
                place -= 1
            part = parts[place] if place >= 0 else None
            if part is not last or node in tops:
                changes.append((node, hooks, part))
                last = part
        return changes

    def _of_several_threads(self) -> list[tuple[Node, Hooks, object]]:
        """Return all nodes that the pass can reach, by the tables of the threads that made them."""
        nodes: list[tuple[Node, _Origin | None]] = [(node, None) for node in self.tops]
        seen, hooked = {*self.tops}, []
        for node, origin in nodes:
            following_nodes = node.next_functions
            if not following_nodes:
                continue
            number = node._sequence_nr()
            maker, origin = self._made_by(node, number, origin)
            part = maker.table.part_of(number) if maker is not None else None
            hooked.append((node, self._hooks_of(maker), part))
            for following, _ in following_nodes:
                if following is not None and following not in seen:
                    seen.add(following)
                    nodes.append((following, origin))
        return hooked

    def _hooks_of(self, maker: Places | None) -> Hooks:
        """Return the one hook of all nodes that a thread made; None is an unknown thread, whose are of no part."""
        if maker not in self.hooks:
            part_of = maker.table.part_of if maker is not None else lambda _: None
            self.hooks[maker] = OrderedDict({0: partial(self._before_node, part_of)})
        return self.hooks[maker]

    def _hook(self) -> None:
        carried: Hooks | None = None
        with _carrying:
            for node, hooks, part in self.hooked:
                if self.is_kept or part is None:  # it may outlive many passes
                    self.handles.append(node.register_prehook(hooks[0]))
                    continue
                if hooks is not carried:
                    _carry(hooks)
                    carried = hooks
                node._register_hook_dict(_carrier)
            _carry(None)

    def _made_by(
        self,
        node: Node,
        number: int,
        origin: _Origin | None,
    ) -> tuple[Places | None, _Origin | None]:
        """Return the thread that made a node, None if it is not known, and where the walk is from here on.

        A node's number does not say whose it is. In this order, the thread is that of

        1. the call that is known to have returned the node;
        2. the innermost call around it that was not given it, if the number is one of that call's;
        3. the only thread that had run parts at this number and is not known to have been given the node. Below no
           call, it must be this thread, and only threads count of whose calls some results were not seen: what
           others returned would have been passed on the way.
        """
        call = call_that_returned(node)
        if call is not None:
            return call.places, _Origin(call, number, origin)
        while origin is not None and (around := origin.call) is not None:
            if not (is_made_elsewhere(node, around.places) or is_made_elsewhere(node, around)):
                break
            origin = origin.outer
        if origin is not None and origin.call is not None:
            if origin.call.start <= number <= origin.last:
                return origin.call.places, origin
            origin = _UNKNOWN_CALL
        fits = [
            places
            for places in self.threads
            if places.table.covers(number) and not is_made_elsewhere(node, places)
        ]
        if origin is None:
            fits = [places for places in fits if places is self.own or places.has_unseen]
            return (self.own if fits == [self.own] else None), None
        return (fits[0] if len(fits) == 1 else None), origin

    def _before_node(self, part_of: Callable[[int], Any], _gradient: object) -> None:
        number = pass_id()
        if number == NO_PASS:
            return
        node: Node = current_node()
        part = part_of(node._sequence_nr())
        ranges = _local.thread.ranges
        makes_nodes = torch.is_grad_enabled()
        if ranges and ranges[-1].part is part and ranges[-1].pass_id == number and not makes_nodes:
            return  # as for most nodes
        # Hooks on what a tensor gets also run where `torch.autograd.grad` asks for that, and the node does not.
        # PyTorch knows for all nodes but those that a pass begins with.
        reach(part, number, node in self.tops)
        if makes_nodes:
            self.pass_threads.setdefault(places_of(range_stack.here()), next_number())


def _carry(hooks: Any) -> None:
    with torch._C.DisableTorchFunction():
        _carrier._backward_hooks = hooks


def _is_compiled_autograd() -> bool:
    """Return whether PyTorch compiles backward passes now: it traces the hooks of nodes, and runs no node."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(compiled, "compiled_autograd_enabled", False))


def _watched_run(
    tensors: Any,
    grad_tensors: Any,
    keep_graph: Any,
    create_graph: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a backward pass, with hooks on the nodes that it can reach where these are not seen otherwise."""
    run = partial(_run, tensors, grad_tensors, keep_graph, create_graph, *args, **kwargs)
    if not range_stack.active or torch.compiler.is_dynamo_compiling() or _is_compiled_autograd():
        return run()
    makes_nodes = bool(create_graph)
    begun = _begin_pass(makes_nodes=makes_nodes)
    try:
        if begun is None or not begun.is_hooked:
            return run()
        is_whole = bool(kwargs.get("accumulate_grad")) and not makes_nodes and not (args and args[0])
        hooked = _Hooked(tensors, is_kept=keep_graph, is_whole=is_whole, makes_nodes=makes_nodes)
        return hooked.run(run)
    finally:
        _end_pass(begun, makes_nodes=makes_nodes)


class _Begun(NamedTuple):
    """A pass that has begun, with what its listeners are to be called with at its end."""

    is_hooked: bool
    listeners: list[tuple[range_stack.PassListener, Any]]


@forgiving("a backward has no ranges")
def _begin_pass(*, makes_nodes: bool) -> _Begun:
    is_hooked = makes_nodes or not _all_see_nodes()
    part = running_part(range_stack.here())
    listeners = []
    for listener in range_stack.pass_listeners:
        token = listener.pass_begins(part, is_hooked=is_hooked)
        listeners.append((listener, token))
    return _Begun(is_hooked, listeners)


@forgiving("a backward has no end")
def _end_pass(begun: _Begun | None, *, makes_nodes: bool) -> None:
    for listener, token in begun.listeners if begun is not None else ():
        listener.pass_ends(token)
    thread = range_stack.here()
    if makes_nodes and thread.places is not None:  # nodes that it made here were of the parts that it ran
        enter_innermost(thread)


def _all_see_nodes() -> bool:
    """Return whether all that receive ranges see the nodes of the pass that this thread begins."""
    listeners = range_stack.pass_listeners
    is_known = are_numbered and not ranges.looks_around and not range_stack.has_tool
    return is_known and listeners == range_stack.listeners and all(listener.sees_nodes() for listener in listeners)


def _hear(is_heard: bool) -> None:
    """Have backward passes watched, or no longer; what others have put around that stays, and passes on."""
    for module in (torch.autograd.graph, torch.autograd):
        run = outermost = module._engine_run_backward
        while run is not _watched_run and hasattr(run, "__wrapped__"):
            run = run.__wrapped__
        if run is not _watched_run or outermost is _watched_run:
            module._engine_run_backward = _watched_run if is_heard else _run  # type: ignore[attr-defined]


@contextmanager
def running_backward(run: Callable[..., Any]) -> Iterator[None]:
    """Have `run` called in place of the engine while the block runs."""
    modules = (torch.autograd.graph, torch.autograd)
    try:
        with replaced(*((module, "_engine_run_backward", run) for module in modules)):
            yield
    finally:
        _hear(range_stack.active)  # which may have changed in the block


range_stack.observers.append(_hear)
_hear(range_stack.active)
