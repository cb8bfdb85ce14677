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
    extents = Extents(attribution, include_warm_up=include_warm_up)
    trace, of_gpus = attribution.trace, [(of_gpu.number, of_gpu.shares()) for of_gpu in each_gpu(extents, phases)]
    rows, time, hidden = (_joined([shares[n] for _, shares in of_gpus]) for n in range(3))
    gpu = _joined([np.full(len(shares[0]), number, np.int64) for number, shares in of_gpus])
    facts = collectives(trace, rows)
    place, places, chosen = _places(attribution, rows, step, matches)
    groups, group = np.unique(facts.group, return_inverse=True)
    return Exchanges(
        Kernels(
            gpu,
            place,
            group.reshape(-1),
            facts.collective.astype(np.int64),
            facts.ranks,
            _steps(extents, rows),
            trace.work.start_ns[rows],
            trace.work.end_ns[rows],
            time,
            hidden,
            facts.message_bytes,
            facts.bus_bytes,
            facts.root_or_peer,
            chosen,
        ),
        gpus=tuple(extents.gpus),
        places=places,
        groups=tuple(trace.names[name] if name >= 0 else "" for name in groups.tolist()),
        report_ns=0 if len(rows) else communicated_ns(attribution),
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
        kernels = held.kernels
        parts.append(
            replace(
                kernels,
                gpu=kernels.gpu + len(gpus),
                place=place[kernels.place],
                group=group[kernels.group],
            )
        )
        gpus += [name if len(held.gpus) == 1 else f"{name} {gpu}" for gpu in held.gpus]
    return Exchanges(
        Kernels.joined(parts),
        tuple(gpus),
        tuple(places),
        tuple(groups),
        reports[0][1].ranges,
        sum(held.report_ns for _, held in reports),
    )


def _joined(parts: list[Int64s]) -> Int64s:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


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


def _steps(extents: Extents, rows: Int64s) -> Int64s:
    """Return the step of each kernel among those of its GPU, or -1."""
    step = np.full(len(rows), -1, np.int64)
    for gpu in np.unique(extents.gpu[rows]).tolist():
        inside = (extents.gpu == gpu) & (extents.step_of >= 0)
        steps = np.unique(extents.step_of[inside])
        inside_rows = np.flatnonzero((extents.gpu[rows] == gpu) & inside[rows])
        step[inside_rows] = np.searchsorted(steps, extents.step_of[rows[inside_rows]])
    return step


def module_of(step: str = "") -> Callable[[Path], Path]:
    """Return what shortens a path to phase and module: steps go, and FSDP2's own ranges become their module."""
    is_step = step_matcher(step)

    def module(path: Path) -> Path:
        inside = next((depth_of + 1 for depth_of in range(len(path) - 1, -1, -1) if is_step(path[depth_of])), 0)
        below = tuple(map(_without_microbatch, path[inside:]))
        if matches := [match for name in below if (match := _FSDP.fullmatch(name))]:
            around = tuple(name for name in below[:1] if opens_phase(name))
            return (*around, matches[-1]["module"] or matches[-1]["target"])
        modules = tuple(name for name in below if not name.startswith("FSDP::"))
        depth = next(
            (depth_of for depth_of in range(len(modules), 0, -1) if not is_operator(modules[depth_of - 1])), 0
        )
        return modules[:depth] or below[:1]

    return module


def _without_microbatch(name: str) -> str:
    """Return `Forward *` of `Forward 3`, and `PP:0SEND_F` of `PP:0SEND_F3`: all microbatches are one row."""
    if action := _ACTION.fullmatch(name):
        return action[1]
    return collapsed(name) if opens_phase(name) else name
