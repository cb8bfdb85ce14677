"""Small for a reason: it joins the calls of modules to the part in C++, which neither of the two knows of."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from . import accelerator, calls, range_stack, regions, trail


def _say_failed(message: str, error: Exception) -> None:
    try:
        raise error
    except Exception:
        range_stack.say_failed(message)


def _pytorchs_call() -> object:
    """Return PyTorch's own `nn.Module.__call__`, if it only calls compiled code or `_call_impl`."""
    call = getattr(nn.Module, "_wrapped_call_impl", None)
    names = getattr(getattr(call, "__code__", None), "co_names", ())
    return call if set(names) == {"_compiled_call_impl", "_call_impl"} else None


def _use(library: Any) -> None:
    """Have a library of `accelerator.load` make the calls that it can; none with None."""
    if library is not None:
        library.prepare_calls(
            {
                "calls": vars(calls),
                "plans": calls._plans,
                "left": calls.LEFT,
                "Plan": calls.Plan,
                "Names": regions.Names,
                "Frame": regions.Frame,
                "end_failed": partial(regions.end, failed=True),
                "end_inside": regions.end_inside,
                "say_unnamed": regions.say_unnamed,
                "say_failed": _say_failed,
                "own_call": _pytorchs_call(),
            }
        )
    for name, function in accelerator.IN_PYTHON.items():
        setattr(range_stack, name, function if library is None else getattr(library, name))
    calls.quick = library.call if library is not None else None


trail.observe(_use)
