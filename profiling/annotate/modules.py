"""One call that gives the submodules of a model a forward and a backward range."""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import nn

from . import calls, optimizers, padding, range_stack, regions, untrained
from .calls import Plan
from .compiled import Registered
from .counting import FirstStep
from .interrupts import Held
from .marks import Mark
from .range_stack import Label, Payload

# Modules of PyTorch that launch nothing: never, or while they do not train. Their subclasses may.
NEVER_LAUNCH = (nn.Identity,)
QUIET_IN_EVAL = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# Containers that are never called, and so are not a level of their own.
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)

Choice = str | type[nn.Module] | Iterable[str | type[nn.Module]]


class Named(NamedTuple):
    """A module of a model: its dotted path there, and the name, payload and path of its ranges.

    `depth` counts the ranges around it, and `parent` is what holds it.
    """

    module: nn.Module
    path: str
    attribute: str
    name: str
    payload: Payload
    depth: int
    is_container: bool
    parent: Named | None


class ModuleAnnotation:
    """Ranges around the modules of one model, until `remove` is called or the `with` block ends."""

    def __init__(self, model: nn.Module, chosen: list[Named]) -> None:
        self.name = chosen[0].name if chosen else ""
        self._model = weakref.ref(model)
        self._plans: list[Plan] = []
        self._parts: tuple[untrained.Part, ...] = ()
        # The ranges of what the model is compiled to from now on, and what counts the next step, where wanted.
        self.in_compiled_code: Registered | None = None
        self.counted: FirstStep | None = None
        if chosen:
            optimizers.watch(model, self.name)
        # By chosen module: its path of ranges below the model's, and the labels of its backward and those around.
        chosen_so_far: dict[int, tuple[str, tuple[Label, ...]]] = {}
        described: list[tuple[str, str, str]] = []
        planned: list[tuple[nn.Module, Plan]] = []
        for named in chosen:
            module, outer = named.module, named.parent
            while outer is not None and id(outer.module) not in chosen_so_far:
                outer = outer.parent
            range_path = ""
            around = tuple[Label, ...]()
            if outer is not None:
                outer_path, around = chosen_so_far[id(outer.module)]
                range_path = f"{outer_path}/{named.name}".lstrip("/")
                attribute = named.path.removeprefix(outer.path).lstrip(".")
                described.append((range_path, type(uncompiled(module)).__name__, attribute))
            names = regions.names(named.name, named.payload)
            chosen_so_far[id(module)] = range_path, (names.backward, *around)
            plan = Plan(names, around, type(module) in QUIET_IN_EVAL, self._before_a_call)
            planned.append((module, plan))
        self._mark = Mark(self.name, described)
        for module, plan in planned:  # at last, for another thread may call the model now
            self._plans.append(calls.add(module, plan))
        if chosen:
            self._parts = tuple(self._part(named.module, chosen_so_far[id(named.module)][0]) for named in chosen)
            untrained.watch(model, self._parts)

    def _part(self, module: nn.Module, range_path: str) -> untrained.Part:
        return untrained.Part(f"{self.name}/{range_path}".rstrip("/"), weakref.ref(module))

    def _before_a_call(self, arguments: object) -> None:
        """Handle a call from outside: usually of the model, or of a part that the program calls directly."""
        optimizers.before_forward(arguments)
        padding.hear(arguments)
        if self.counted is not None:
            self.counted.before_call()
        if self._mark.send() and self.counted is not None:
            self.counted.send()

    def remove(self) -> None:
        """Remove the ranges from the model.

        Ranges that are open just now end with their calls. Ctrl-C waits until all is removed.
        """
        try:
            with Held():
                plans, self._plans, model = self._plans, [], self._model()
                if self.in_compiled_code is not None:
                    self.in_compiled_code.remove()
                if self.counted is not None:
                    self.counted.end()
                if plans and model is not None:
                    optimizers.unwatch(model, self.name)
                    untrained.unwatch(model, self._parts)
                for plan in reversed(plans):
                    calls.remove(plan)
        except KeyboardInterrupt:  # it came before it was held
            self.remove()
            raise

    def __enter__(self) -> ModuleAnnotation:
        return self

    def __exit__(self, *_error: object) -> None:
        self.remove()


def annotate_modules(
    model: nn.Module,
    *,
    name: str | None = None,
    depth: int | None = None,
    only: Choice | None = None,
    skip: Choice = (),
    compiled: bool = True,
    flops: bool = False,
) -> ModuleAnnotation:
    """Give the submodules of `model`, and the model itself, a range in forward and one in backward.

    Names are constant strings: an attribute's own name (`lm_head`), list items as the singular of their
    list with the index, which is the payload too (`layers.3` is `layer 3`; what such an item holds
    by its class: `layers.3.0` is `Sequential 0` in `layer 3`), the model `name`, or else its class's name, with
    a number from the second model of that name on (`Sequential#2`). A module that is reached under two
    names has the first. Containers that are never called have none. What `torch.compile` made of a model is
    annotated as that model.

    `depth` is how many levels of ranges are opened below the model's own; `only` and `skip` choose modules
    by class, or by path in the model with `*` and `?` (`"layers.*.attention"`). By default leaves that can
    launch nothing have no range: nn.Identity, and nn.Dropout while it does not train. The model
    always has one. Annotating a model again adds no second range of the same name to a module. Where the model is
    compiled afterwards, its code has the same ranges; `compiled=False` prevents that.

    With `flops`, the first step after this is counted while it runs: FLOPs and least bytes by range, forward,
    backward and recomputation, which go into the report (docs/efficiency.md). Results stay the same; that step
    is slower.
    """
    if range_stack.off:
        return ModuleAnnotation(model, [])
    model = uncompiled(model)
    annotation: ModuleAnnotation | None = None
    try:
        with Held():
            modules = list(named_modules(model, name))
            chosen = [named for named in modules if _is_chosen(named, depth, only, skip)]
            if only is not None and not any(module.path for module in chosen):
                paths = ", ".join([module.path for module in modules if module.path][:8])
                warnings.warn(
                    f"only={only!r} chooses no module of {type(model).__name__}; there are {paths or 'none'}, …",
                    stacklevel=2,
                )
            annotation = ModuleAnnotation(model, chosen)
            if compiled:
                annotation.in_compiled_code = Registered((named.module, named.name) for named in chosen)
            if flops:
                annotation.counted = FirstStep(annotation.name)
        return annotation
    except BaseException:  # such as the Ctrl-C that was held
        if annotation is not None:
            annotation.remove()
        raise


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` wrapped, or the module itself."""
    is_wrapper = type(module).__name__ == "OptimizedModule"  # of torch._dynamo, which takes seconds to import
    return getattr(module, "_orig_mod", module) if is_wrapper else module


def _is_chosen(
    named: Named,
    depth: int | None,
    only: Choice | None,
    skip: Choice,
) -> bool:
    module = uncompiled(named.module)

    def matches(choice: Choice) -> bool:
        patterns = [choice] if isinstance(choice, str | type) else choice
        return any(
            fnmatchcase(named.path, pattern) if isinstance(pattern, str) else isinstance(module, pattern)
            for pattern in patterns
        )

    if not named.path:
        return True
    if named.is_container or (depth is not None and named.depth > depth) or matches(skip):
        return False
    return type(module) not in NEVER_LAUNCH if only is None else matches(only)


def named_modules(model: nn.Module, name: str | None) -> Iterator[Named]:
    """Yield a model and the modules in it, each once, in the order of `named_modules`."""
    root_name = name or optimizers.model_name(model)
    to_visit = [Named(model, "", "", root_name, None, 0, type(model) in CONTAINERS, None)]
    seen: set[nn.Module] = set()
    while to_visit:
        holder = to_visit.pop()
        if holder.module in seen:
            continue
        seen.add(holder.module)
        yield holder
        children = []
        for attribute, module in uncompiled(holder.module).named_children():
            range_name, payload = attribute, None
            if attribute.isdigit():
                is_indexed = holder.attribute.isdigit() and not holder.is_container  # its own range has the index
                list_name = "" if is_indexed else holder.attribute
                list_name = list_name or type(uncompiled(holder.module)).__name__
                range_name, payload = f"{re.sub(r'(?<=[^s])s$', '', list_name)} {attribute}", int(attribute)
            is_container = type(module) in CONTAINERS
            path = f"{holder.path}.{attribute}".lstrip(".")
            depth = holder.depth + (not is_container)
            children.append(Named(module, path, attribute, range_name, payload, depth, is_container, holder))
        to_visit += reversed(children)
