"""The rules on modules that are not trained.

Of `untrained` ones backward computes gradients, though no optimizer updates them:

    the module's input needs     backward of the module     what goes away
    no gradient (a teacher)      all of it is in vain       all of it: torch.no_grad() around the call
    one (a network of a loss)    gradients of weights are   these: requires_grad_(False)

All is surely in vain if backward ends with such modules, in a convolution or an embedding that computes gradients
of weights alone. Else the figure is from the second to the first. Which modules no optimizer trains, the run
writes (`profiling.annotate.untrained`), as it does which are `frozen`: of the same inputs, these compute the same
in each step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ..account.lines import common_line_of_work
from ..report.account import LineTime
from ..support.small_numbers import next_marked
from ..support.units import count_text
from ..trace import Bools, Path
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER
from ..vocabulary.modules import naming, shown
from .gpu_rules import NO_PRODUCT, leaving_out
from .gpu_subject import GpuSubject
from .gpu_time import Floats
from .symptoms import Found, GpuChange, Time, Unjudged

#: Kernels of gradients of weights: of convolutions, normalizations and embeddings.
OF_WEIGHTS = r"wgrad|grad_weight|GammaBeta|embedding_backward|compute_grad_weight"
#: Kernels of gradients of a convolution's input; of the other products of backward, half are of inputs, too.
OF_INPUT, HALF = r"dgrad|grad_input", 0.5
#: Parts of products that add up or set up.
OF_BOTH = rf"{NO_PRODUCT}|ReduceSplitK|init_device_workspace"


def untrained(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find backward of modules whose parameters no optimizer has."""
    work_of = _of_modules(subject, BACKWARD, subject.run.get("untrained") or ())
    if not work_of:
        return
    work = np.logical_or.reduce([*work_of.values()])
    in_vain = _surely_in_vain(subject, work, work_of)
    name = _called(subject, work_of)
    count = count_text(round(subject.per_step(work)))
    cause = f"Backward computes gradients of {name} ({count} kernels), which no optimizer updates"
    is_all_in_vain = in_vain.sum() == work.sum()
    if is_all_in_vain:
        sentence = f"{cause}, and its input needs none: requires_grad_(False), or torch.no_grad() around its call"
    else:
        sentence = f"{cause}: requires_grad_(False), or torch.no_grad() where its input needs none"
    short = f"requires_grad_(False) for {name}: no optimizer uses its gradients"
    least = None if is_all_in_vain else _without_gradients_of_weights(subject, work, in_vain)
    yield Found(leaving_out(work), sentence, short, work, least=least, lines=_calls(subject, work_of))


def frozen(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find frozen modules that no gradient passes: what they compute depends on their inputs alone.

    A program that trains nothing exists to compute just that.
    """
    if not subject.of_phase(BACKWARD).any():
        return
    places = subject.run.get("frozen") or ()
    work_of = _of_modules(subject, FORWARD, places)
    passed = _of_modules(subject, BACKWARD, places)
    work_of = {module: work for module, work in work_of.items() if module not in passed}
    if not work_of:
        return
    work = np.logical_or.reduce([*work_of.values()])
    name = _called(subject, work_of)
    count = count_text(round(subject.per_step(work)))
    sentence = (
        f"The outputs of the frozen {name} are computed in each step ({count} kernels): "
        "compute them once, if the same inputs come again (no augmentation or dropout)"
    )
    short = f"Compute outputs of the frozen {name} once, if inputs come again"
    yield Found(leaving_out(work), sentence, short, work, lines=_calls(subject, work_of))


def _of_modules(subject: GpuSubject, phase: str, places: Sequence[str]) -> dict[Path, Bools]:
    """Return the work of a phase by the module that it is in, of the modules at some places.

    A place is a path that begins with a model's name, joined by `/`.
    """
    if not places:
        return {}
    in_phase = subject.of_phase(phase)
    nodes_of = defaultdict[Path, list[int]](list)
    for node in np.unique(subject.node[in_phase]).tolist():
        if module := _module_around(subject, node, frozenset(places)):
            nodes_of[module].append(node)
    return {module: in_phase & np.isin(subject.node, nodes) for module, nodes in nodes_of.items()}


def _module_around(subject: GpuSubject, node: int, places: frozenset[str]) -> Path:
    """Return the path of the outermost of some modules around a node, from its model on; () if none is."""
    path = subject.path(node)
    models = subject.trace.provenance.models
    for begin, name in enumerate(path):
        ends = range(begin + 1, len(path) + 1) if name in models else ()
        for end in ends:
            if "/".join(path[begin:end]) in places:
                return path[begin:end]
    return ()


def _called(subject: GpuSubject, modules: dict[Path, Bools]) -> str:
    """Return how a sentence names some modules: that with the most work first."""
    provenance = subject.trace.provenance
    named = naming(provenance.models, provenance.attributes)
    longest = sorted(modules, key=lambda module: -subject.time_ns(modules[module]))
    first, *others = dict.fromkeys(_dotted(named(module)) for module in longest)
    return f"{first} and {len(others)} more" if others else first


def _surely_in_vain(subject: GpuSubject, work: Bools, work_of: dict[Path, Bools]) -> Bools:
    """Mark the work of the modules that backward ends with, if none of their inputs needs a gradient."""
    others = subject.of_phase(BACKWARD) & ~work & ~subject.of_category("communication")
    behind = subject.of_phase(FORWARD, OPTIMIZER)
    is_at_end = next_marked(behind) <= next_marked(others)
    at_end = np.zeros_like(work)
    for of_module in work_of.values():
        at_end |= of_module & is_at_end[of_module].all()
    return at_end & _ends_in_weights(subject, at_end)


def _ends_in_weights(subject: GpuSubject, work: Bools) -> bool:
    """Return whether the layer of the last of some work computes gradients of weights alone."""
    if not work.any():
        return False
    last = np.flatnonzero(work)[-1]
    of_layer = work & (subject.path_id == subject.path_id[last])
    of_weights = of_layer & subject.matching(OF_WEIGHTS)
    products = of_layer & (subject.products | subject.of_category("convolution")) & ~subject.matching(OF_BOTH)
    others = (products | of_layer & subject.matching(OF_INPUT)) & ~of_weights
    return bool(of_weights.any()) and not others.any()


def _dotted(path: Path) -> str:
    """Return a module's path as in code, if PyTorch's names are known: `Net.teacher`."""
    return getattr(path[-1], "dotted", "") or shown(path)


def _without_gradients_of_weights(subject: GpuSubject, work: Bools, in_vain: Bools) -> GpuChange:
    """Return the change of some work of backward after which it computes gradients of inputs alone, if any."""
    of_weights = work & subject.matching(OF_WEIGHTS)
    products = work & subject.products & ~of_weights & ~subject.matching(f"{OF_INPUT}|{OF_BOTH}")
    share = np.where(products, HALF, 1.0)

    def change(time: Time, /) -> Time:
        return time.lasting(time.duration_ns * share).without(of_weights).without_part(in_vain)

    return change


def _calls(subject: GpuSubject, work_of: dict[Path, Bools]) -> tuple[LineTime, ...]:
    """Return the lines that call some modules, that with the most work first."""
    rows_of = [subject.row[work] for work in work_of.values()]
    lines = [line for rows in rows_of if (line := common_line_of_work(subject.attribution, rows))]
    return tuple(sorted(lines, key=lambda line: -line.total_ns))
