"""One call that gives the submodules of a model a forward and a backward range."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from types import TracebackType
from typing import NamedTuple

from torch import nn

from . import calls, marks, optimizers, range_stack, regions
from .calls import Plan
from .compiled import Registered
from .counted_step import FirstStep
from .engine import Root
from .open_ranges import Payload
from .regions import Names

# Modules of PyTorch that launch nothing: never, or while they do not train. Their subclasses may.
NEVER_LAUNCH = (nn.Identity,)
QUIET_IN_EVAL = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# Containers that are never called, and so are not a level of their own.
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)

Choice = str | type[nn.Module] | Iterable[str | type[nn.Module]]


class Named(NamedTuple):
    """A module of a model: its dotted path there, the name and payload of its ranges, and their place.

    `depth` counts the ranges around it, and `ranges` is the path of its own below the model's.
    """

    module: nn.Module
    path: str
    name: str
    payload: Payload
    depth: int
    ranges: str
    is_container: bool


class ModuleAnnotation:
    """Ranges around the modules of one model, until `remove` is called or the `with` block ends."""

    def __init__(self, model: nn.Module, chosen: list[Named]) -> None:
        self._roots: weakref.WeakSet[Root] = weakref.WeakSet()
        self._mark = marks.Mark(type(model).__name__, _classes(chosen))
        self._model = weakref.ref(model)
        if chosen:
            optimizers.watch(model)
        names = {one.path: regions.names(one.name, one.payload) for one in chosen if not one.is_container}
        self._plans = [calls.add(one.module, self._plan(one, names)) for one in chosen]
        self._in_compiled_code: Registered | None = None
        self._counted: FirstStep | None = None

    def follow_into_compiled_code(self, chosen: list[Named]) -> None:
        """Give the modules their ranges in what the model is compiled to from now on."""
        self._in_compiled_code = Registered((one.module, one.name) for one in chosen)

    def count_a_step(self) -> None:
        """Count the FLOPs and bytes of the next step."""
        self._counted = FirstStep(self._mark.model)

    def _plan(self, one: Named, names: Mapping[str, Names]) -> Plan:
        plan = Plan(
            regions.names(one.name, one.payload),
            self._roots,
            quiet=type(one.module) in QUIET_IN_EVAL,
            on_call=self._before_a_call,
        )
        plan.on_return = optimizers.after_forward
        plan.around = tuple(names[path].backward for path in _around(one.path) if path in names)
        return plan

    def _before_a_call(self) -> None:
        """Handle a call from outside: usually of the model, or of a part that the program calls directly."""
        optimizers.before_forward()
        counted = self._counted
        if counted is not None:
            counted.before_call()
        if self._mark.send() and counted is not None:
            counted.counting.send()

    def remove(self) -> None:
        """Remove the ranges from the model, and the hooks from the graphs of its calls.

        Ranges that are open just now end with their calls.
        """
        plans, self._plans, model = self._plans, [], self._model()
        if self._in_compiled_code is not None:
            self._in_compiled_code.remove()
        if self._counted is not None:
            self._counted.end()
        if plans and model is not None:
            optimizers.unwatch(model)
        for plan in reversed(plans):
            calls.remove(plan)
        for root in list(self._roots):
            root.remove()
        if plans and not calls.any_left():
            regions.remove_closings()

    def __enter__(self) -> ModuleAnnotation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def annotate_modules(
    model: nn.Module,
    *,
    depth: int | None = None,
    only: Choice | None = None,
    skip: Choice = (),
    compiled: bool = True,
    flops: bool = False,
) -> ModuleAnnotation:
    """Give the submodules of `model`, and the model itself, a range in forward and one in backward.

    Names are constant strings: an attribute's own name (`lm_head`), list items as the singular of their
    list with the index, which is the payload too (`layers.3` is `layer 3`), the model its class's name.
    A module that is reached under two names has the first. Containers that are never called have none.

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
    chosen = [one for one in _named(model) if _is_chosen(one, depth, only, skip)]
    annotation = ModuleAnnotation(model, chosen)
    if compiled:
        annotation.follow_into_compiled_code(chosen)
    if flops:
        annotation.count_a_step()
    return annotation


def _is_chosen(one: Named, depth: int | None, only: Choice | None, skip: Choice) -> bool:
    if not one.path:
        return True
    if depth is not None and one.depth > depth:
        return False
    if only is None:
        return type(one.module) not in NEVER_LAUNCH and not _matches(one, skip)
    return _matches(one, only) and not _matches(one, skip)


def _matches(one: Named, choice: Choice) -> bool:
    several = [choice] if isinstance(choice, str | type) else choice
    return any(
        fnmatchcase(one.path, wanted) if isinstance(wanted, str) else isinstance(one.module, wanted)
        for wanted in several
    )


def _named(model: nn.Module) -> Iterator[Named]:
    levels: dict[str, int] = {}
    ranges: dict[str, str] = {}
    for path, module in model.named_modules():
        *above, last = path.split(".")
        around = ".".join(above)
        is_container = type(module) in CONTAINERS
        levels[path] = 0 if not path else levels[around] + (not is_container)
        name, payload = last or type(model).__name__, None
        if last.isdigit():
            name, payload = f"{_singular(above[-1] if above else type(model).__name__)} {last}", int(last)
        outer = ranges.get(around, "")
        ranges[path] = outer if is_container or not path else f"{outer}/{name}".lstrip("/")
        yield Named(module, path, name, payload, levels[path], ranges[path], is_container)


def _around(path: str) -> Iterator[str]:
    """Yield the paths of the modules around one, from the inside."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def _classes(modules: Iterable[Named]) -> dict[str, str]:
    """Return the name of each module's class by the path of its ranges below the model's."""
    return {one.ranges: type(one.module).__name__ for one in modules if one.path and not one.is_container}


def _singular(name: str) -> str:
    return re.sub(r"(?<=[^s])s$", "", name)
