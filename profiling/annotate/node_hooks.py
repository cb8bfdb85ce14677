"""Hooks on autograd nodes at a tenth of the price of `Node.register_prehook`.

`Tensor.register_hook` gives the node of a tensor the tensor's dictionary of hooks, in one call into C++. So
does this: one tensor per thread, which is not part of any program, carries the dictionary of the region that
is running. Nothing is made for each node, and emptying the dictionary takes the hooks off all of them. A
program's own hooks and handles are not touched. Where this is missing, nodes get hooks the usual way.
"""

from __future__ import annotations

from contextlib import suppress

import torch
from torch.autograd.graph import Node

from .engine import Hooks
from .open_ranges import Thread

# Made beforehand, because making a tensor is an operator that a profiler would see. Threads beyond these
# go the usual way.
_THREADS = 64


def _carriers() -> list[torch.Tensor]:
    is_possible = hasattr(torch.zeros(1, requires_grad=True).exp().grad_fn, "_register_hook_dict")
    return [torch.empty(0) for _ in range(_THREADS if is_possible else 0)]


_unused = _carriers()


class _Carrier:
    """A tensor lent to a thread; it is returned when the thread has ended."""

    __slots__ = ("_back_to", "tensor")

    def __init__(self, lender: list[torch.Tensor]) -> None:
        self.tensor, self._back_to = lender.pop(), lender

    def __del__(self) -> None:
        # At the interpreter's end it cannot be returned.
        if hasattr(self, "tensor") and torch is not None:
            with torch._C.DisableTorchFunction():
                self.tensor._backward_hooks = None
            self._back_to.append(self.tensor)


def add(node: Node, hooks: Hooks | None, thread: Thread) -> bool:
    """Call `hooks` before this node runs; return whether that is possible here."""
    if thread.carrier is None:
        with suppress(IndexError):
            thread.carrier = _Carrier(_unused)
    if thread.carrier is None:
        return False
    tensor = thread.carrier.tensor
    if thread.carried is not hooks:
        _carry(thread, hooks)
    node._register_hook_dict(tensor)
    return True


def let_go(thread: Thread) -> None:
    """Release the region's hooks: from now on only its nodes keep them alive."""
    if thread.carried is not None:
        _carry(thread, None)


def _carry(thread: Thread, hooks: Hooks | None) -> None:
    # A program may override what is done with any tensor (torch.overrides): this one is not its business.
    with torch._C.DisableTorchFunction():
        thread.carrier.tensor._backward_hooks = thread.carried = hooks
