"""A lever at work in one run: what there is to change in the program, and what was changed while it was active.

Patches are installed before the program begins, and go with its process. Each asks `changes` where the program
comes by, so that it can be switched on and off at the end of any step. What it never changed it did not measure,
whatever the times say.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import nvtx_kernels

TORCH = f"{Path(torch.__file__).parent}{os.sep}"
PACKAGES = (Path(nvtx_kernels.__file__).parent, Path(__file__).parents[1])
OURS = tuple(f"{folder}{os.sep}" for folder in PACKAGES)
#: Where no line of the user's is: PyTorch, these files, the standard library and other packages.
INSTALLED = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
LIBRARIES = (TORCH, *OURS, *INSTALLED, "<frozen")
PATCHES = (__file__, *(str(Path(__file__).with_name(name)) for name in ("patches.py", "loader_patches.py")))
#: How far above a call the user's line is looked for.
MOST_FRAMES = 40
NOTHING: AbstractContextManager[None] = nullcontext()


class Patch:
    """Counts what there is to change (`saw`) and what it changed (`did`); subclasses make the changes.

    `place` is the program's line that was changed first. `spent_s` is the time of what would go away, while the
    lever is off: more it cannot save; None where that is not known. `trouble` says why it cannot be tried, or does
    not last. One that `waits_for_warm_up` is never on before.
    """

    waits_for_warm_up = False

    def __init__(self) -> None:
        self.is_active = False
        self.saw = self.did = 0
        self.place = self.trouble = ""
        self.spent_s: float | None = None

    def install(self) -> None:
        """Replace what the program is going to call."""

    def new_root(self, module: nn.Module) -> None:
        """Handle the first call of a model from outside of any other."""

    def around(self, module: nn.Module) -> AbstractContextManager[Any]:  # noqa: ARG002 - of subclasses
        """Return the context of each call of such a model."""
        return NOTHING

    def inputs(self, inputs: Any) -> Any:
        """Return the arguments of such a model, in place of the program's."""
        return inputs

    def output(self, returned: Any) -> Any:
        """Return the result of such a call, in place of the model's."""
        return returned

    def step_ended(self) -> None:
        """Handle a step's end."""

    def switched(self) -> None:
        """Handle that the lever was switched, which is between two steps."""

    def switch(self, *, on: bool) -> None:
        """Switch the lever on or off."""
        self.is_active = on
        self.switched()

    def changes(self, frame: FrameType | None = None) -> bool:
        """Count something to change, which a frame of the program calls, and return whether to change it."""
        self.saw += 1
        self.did += self.is_active
        if not self.place and frame is not None:
            self.place = place_of(frame)
        return self.is_active


def place_of(frame: FrameType | None) -> str:
    """Return the innermost line of the user's that leads to a frame, `train.py:31`, or "" without one."""
    for _ in range(MOST_FRAMES):
        if frame is None:
            break
        file = frame.f_code.co_filename
        if not file.startswith(LIBRARIES):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def caller_of(frame: FrameType) -> FrameType:
    """Return the frame that calls a function, beyond the frames of other patches of it."""
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_filename in PATCHES:
        outer = outer.f_back
    return outer or frame


def replace(target: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace a function by what `make` makes of it."""
    original = getattr(target, name)
    setattr(target, name, functools.wraps(original)(make(original)))


@dataclass
class Call:
    """A call by the program: the frame that makes it, the function as it was, and what it is given."""

    frame: FrameType
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def make(self) -> Any:
        """Call the function, and return what it returns."""
        return self.function(*self.arguments, **self.options)


class OfCalls(Patch):
    """Changes calls of some functions, each an object and a name; what PyTorch itself calls is left alone."""

    leaves_alone: tuple[str, ...] = (TORCH, *OURS)

    def __init__(self, *functions: tuple[Any, str]) -> None:
        super().__init__()
        self.functions = functions

    def install(self) -> None:
        """Replace the functions."""
        for target, name in self.functions:
            replace(target, name, self._made)

    def _made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            frame = caller_of(sys._getframe(1))
            if frame.f_code.co_filename.startswith(self.leaves_alone):
                return original(*arguments, **options)
            return self.called(Call(frame, original, arguments, options))

        return called

    def called(self, call: Call) -> Any:
        """Do what the program's call does with this lever."""
        raise NotImplementedError


class OfRoots(Patch):
    """Changes models; `wanted` says which, and `change` changes one, back if it is not active."""

    def __init__(self) -> None:
        super().__init__()
        self.roots: list[nn.Module] = []

    def wanted(self, module: nn.Module) -> bool:
        """Return whether there is something to change in a model."""
        raise NotImplementedError

    def change(self, module: nn.Module) -> None:
        """Change a model, or change it back."""
        raise NotImplementedError

    def new_root(self, module: nn.Module) -> None:
        """Take a model that can be changed."""
        if self.wanted(module):
            self.roots.append(module)
            if self.changes():
                self.change(module)

    def around(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Count the calls of changed models."""
        self.did += self.is_active and any(root is module for root in self.roots)
        return NOTHING

    def switched(self) -> None:
        """Change the models, or change them back."""
        for module in self.roots:
            self.change(module)


class OfSetting(Patch):
    """Gives a setting of PyTorch another value from a model's call on, and puts it back at the end."""

    def __init__(
        self,
        read: Callable[[], Any],
        write: Callable[[Any], None],
        value: Any,
        applies: Callable[[nn.Module], bool] = lambda _: True,
    ) -> None:
        super().__init__()
        self.read = read
        self.write = write
        self.value = value
        self.applies = applies
        self.before: Any = None

    def around(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Set it where the program has another value."""
        try:
            now = self.read()
        except RuntimeError as error:  # older and newer names of a setting do not go together
            self.trouble = str(error).split("\n")[0][:100]
            return NOTHING
        if now != self.value and self.applies(module) and self.changes():
            self.before = now
            self.write(self.value)
        return NOTHING

    def switched(self) -> None:
        """Put the program's value back."""
        if not self.is_active and self.before is not None:
            self.write(self.before)
            self.before = None


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value with each tensor in it changed, in tuples, lists and mappings of any kind."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = {key: mapped(item, change) for key, item in value.items()}
        if type(value) is dict:
            return changed
        for key, item in changed.items():  # a dict and a dataclass, as of transformers
            value[key] = item
        return value
    if type(value) in (list, tuple):
        return type(value)(mapped(item, change) for item in value)
    return value
