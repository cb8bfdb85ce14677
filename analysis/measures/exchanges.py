"""What communicates in one report or in those of several ranks: a row per kernel, with its module, GPU and step.

The time of a kernel is what it is given of the union, as in `overlap`: where several kernels of a GPU communicate
at once, that time is given to the one that started first. So the kernels' times sum to that GPU's communication.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..trace import Bools, Columns, Int64s, Path
from ..vocabulary import PHASES, collapsed, is_operator, opens_phase, step_matcher
from .collectives import collectives
from .overlap import communicated_ns, each_gpu
from .spans import Extents

#: FSDP2's own ranges, which name the module whose parameters are gathered or gradients reduced; PyTorch 2.13,
#: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
_FSDP = re.compile(r"\w*FSDP::\w+ (?:\((?P<module>.+)\)|for (?P<target>.+))")

#: Actions of a pipeline's schedule, of a stage and a microbatch; _Action in PyTorch 2.13,
#: torch/distributed/pipelining/schedules.py.
_ACTION = re.compile(r"(PP:\d+[A-Z_]+)\d+")


@dataclass(frozen=True, slots=True)
class Kernels(Columns):
    """Columns by kernel that communicates, whose numbers are positions in the lists of `Exchanges`.

    `step` is -1 in none; `time_ns` is what it is given of the union; `matching` says whether its range
    was asked for; the rest is as in `Collectives`.
    """

    gpu: Int64s
    place: Int64s
    group: Int64s
    collective: Int64s
    ranks: Int64s
    step: Int64s
    start_ns: Int64s
    end_ns: Int64s
    time_ns: Int64s
    hidden_ns: Int64s
    message_bytes: Int64s
    bus_bytes: NDArray[np.float64]
    root_or_peer: Int64s
    matching: Bools


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What communicates in one report, or several: the kernels, their GPUs, paths with phases, and groups.

    `ranges` is the pattern of those that were asked for, empty for all. `report_ns` is the time of all kernels of
    the report that communicate, where none is held.
    """

    kernels: Kernels
    gpus: tuple[str, ...]
    places: tuple[tuple[Path, str], ...]
    groups: tuple[str, ...]
    ranges: str = ""
    report_ns: int = 0


def exchanges(
    attribution: Attribution,
    phases: Collection[str] = PHASES,
    *,
    include_warm_up: bool = False,
    step: str = "",
    matches: Callable[[Path], bool] | None = None,
) -> Exchanges:
    """Collect what communicates in these phases; `step` is what the user calls steps, if not by a usual name.

    `matches` tells whether a path was asked for, as the report has it or as it is shown (None: all are). The
    others are kept, for the n-th collective of a kind is found among all.
    """
    extents, trace = Extents(attribution, include_warm_up=include_warm_up), attribution.trace
    none = np.empty(0, np.int64)
    columns = [[none, none, none, none]]
    for of_gpu in each_gpu(extents, phases):
        rows, time_ns, hidden_ns = of_gpu.shares()
        columns.append([rows, time_ns, hidden_ns, np.full(len(rows), of_gpu.number, np.int64)])
    rows, time_ns, hidden_ns, gpu = map(np.concatenate, zip(*columns, strict=True))
    number_of_step = np.full(len(rows), -1, np.int64)  # among those of its GPU
    for number in np.unique(gpu).tolist():
        steps = np.unique(extents.step_of[(extents.gpu == number) & (extents.step_of >= 0)])
        inside = np.flatnonzero((gpu == number) & (extents.step_of[rows] >= 0))
        number_of_step[inside] = np.searchsorted(steps, extents.step_of[rows[inside]])
    facts = collectives(trace, rows)
    place, places, chosen = _places(attribution, rows, step, matches)
    groups, group = np.unique(facts.group, return_inverse=True)
    kernels = Kernels(
        gpu=gpu,
        place=place,
        group=group,
        collective=facts.collective.astype(np.int64),
        ranks=facts.ranks,
        step=number_of_step,
        start_ns=trace.work.start_ns[rows],
        end_ns=trace.work.end_ns[rows],
        time_ns=time_ns,
        hidden_ns=hidden_ns,
        message_bytes=facts.message_bytes,
        bus_bytes=facts.bus_bytes,
        root_or_peer=facts.root_or_peer,
        matching=chosen,
    )
    return Exchanges(
        kernels,
        gpus=tuple(extents.gpus),
        places=places,
        groups=tuple(trace.names[name] if name >= 0 else "" for name in groups.tolist()),
        report_ns=communicated_ns(attribution),
    )


def together(reports: Sequence[tuple[str, Exchanges]]) -> Exchanges:
    """Join what several ranks' reports hold; GPUs are named by their report, and of one with several by both."""
    gpus: list[str] = []
    places: dict[tuple[Path, str], int] = {}
    groups: dict[str, int] = {}
    parts = []
    for name, held in reports:
        place = np.array([places.setdefault(each, len(places)) for each in held.places] or [0], np.int64)
        group = np.array([groups.setdefault(each, len(groups)) for each in held.groups] or [0], np.int64)
        kernels, gpu = held.kernels, held.kernels.gpu + len(gpus)
        parts.append(replace(kernels, gpu=gpu, place=place[kernels.place], group=group[kernels.group]))
        gpus += [name if len(held.gpus) == 1 else f"{name} {gpu}" for gpu in held.gpus]
    return Exchanges(
        Kernels.joined(parts),
        tuple(gpus),
        tuple(places),
        tuple(groups),
        reports[0][1].ranges,
        sum(held.report_ns for _, held in reports),
    )


def _places(
    attribution: Attribution, rows: Int64s, step: str, matches: Callable[[Path], bool] | None
) -> tuple[Int64s, tuple[tuple[Path, str], ...], Bools]:
    """Return the place of each kernel, the path to its module and its phase, and whether it was asked for."""
    paths, module = Paths(attribution), module_of(step)
    keys = paths.of_node[attribution.node[rows]].astype(np.int64) * len(PHASES) + attribution.phase[rows]
    distinct, back = np.unique(keys, return_inverse=True)
    places: dict[tuple[Path, str], int] = {}
    numbers, chosen = [], []
    for path, phase in (divmod(key, len(PHASES)) for key in distinct.tolist()):
        full_path = paths.paths[path]
        place = module(full_path), PHASES[phase]
        numbers.append(places.setdefault(place, len(places)))
        chosen.append(matches is None or matches(full_path) or matches(place[0]))
    back = back.reshape(-1)
    return np.array(numbers, np.int64)[back], tuple(places), np.array(chosen, np.bool_)[back]


def module_of(step: str = "") -> Callable[[Path], Path]:
    """Return what shortens a path to phase and module: steps go, and FSDP2's own ranges become their module."""
    is_step = step_matcher(step)

    def without_microbatch(name: str) -> str:
        """Return `Forward *` of `Forward 3`, and `PP:0SEND_F` of `PP:0SEND_F3`: all microbatches are one row."""
        if action := _ACTION.fullmatch(name):
            return action[1]
        return collapsed(name) if opens_phase(name) else name

    def module(path: Path) -> Path:
        inside = max((depth for depth, name in enumerate(path, 1) if is_step(name)), default=0)
        below = tuple(map(without_microbatch, path[inside:]))
        if matches := [match for name in below if (match := _FSDP.fullmatch(name))]:
            around = tuple(name for name in below[:1] if opens_phase(name))
            return (*around, matches[-1]["module"] or matches[-1]["target"])
        modules = tuple(name for name in below if not name.startswith("FSDP::"))
        while modules and is_operator(modules[-1]):
            modules = modules[:-1]
        return modules or below[:1]

    return module
