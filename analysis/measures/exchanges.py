"""What communicates in one report or in those of several ranks: a row per kernel, with its module, GPU and step.

The time of a kernel is what it is given of the union, as in `overlap`: where several kernels of a GPU communicate
at once, that time is given to the one that started first. So the kernels' times sum to that GPU's communication.

Which collective a kernel is of, a trace says first; then PyTorch's range around its launch (`nccl:all_to_all`),
then the kernel's name: NCCL's `SendRecv` kernel serves all_to_all and gathering, too. Of a kernel whose name says
nothing (RCCL's `ncclDevKernel_Generic_2`), the operator around its launch does: `vllm::all_reduce`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import Attribution
from ..attribution.nesting import Nesting
from ..attribution.places import Paths
from ..readers.columns import Interner
from ..support.small_numbers import distinct, each_row, grouped, grouped_rows
from ..trace import Bools, Columns, Int32s, Int64s, Path, Trace
from ..vocabulary import PHASES, collapsed, is_operator, opens_phase, step_matcher
from .overlap import communicated_ns, each_gpu
from .spans import Extents

OTHER = "other"
SEND_RECV = "send/recv"
#: Collectives, and what names of their kernels and PyTorch's names for them contain; the first that matches.
_PATTERNS = (
    ("all_reduce", r"all_?reduce|cross_device_reduce|rsag|barrier"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?(?:to|2)_?all|a2a|dispatch|combine"),
    ("broadcast", r"broadcast|bcast"),
    (SEND_RECV, r"send|recv"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)
COLLECTIVES = (*(name for name, _ in _PATTERNS), OTHER)

#: What of its bytes a collective moves over each GPU's link, among n ranks: the factors of "bus bandwidth" in
#: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, of all_to_all in that repository's
#: src/alltoall.cu. Bytes are those of the whole buffer: the larger of what a rank puts in and gets out.
_ALL_BUT_OWN = frozenset(("all_gather", "reduce_scatter", "all_to_all"))
_WHOLE = frozenset(("broadcast", "reduce", SEND_RECV))

_OF_PYTORCH = re.compile(r"nccl:(\w+)")
#: An operator that may communicate; none of PyTorch's own (`aten::scatter`) does.
_OPERATOR = re.compile(r"(?!aten::)(?:\w+::)+(\w+)\Z")
_NO_RANGE = -1
_LISTED = re.compile(r"\[(\d+(?:,\d+)*)\]$")


@dataclass(frozen=True, slots=True)
class Collectives(Columns):
    """Columns by kernel: its collective (a position in COLLECTIVES), group, and bytes.

    `group` is a position in `Trace.names`, `ranks` how many it has, `message_bytes` the size of the whole buffer,
    `bus_bytes` the part that each GPU's link carries, and `root_or_peer` a rank of the group; -1, 0, -1, NaN, -1
    where the report does not say.
    """

    collective: Int64s
    group: Int64s
    ranks: Int64s
    message_bytes: Int64s
    bus_bytes: NDArray[np.float64]
    root_or_peer: Int64s


def collectives(trace: Trace, kernels: Int64s) -> Collectives:
    """Return the collectives of these communicating kernels, given as positions in `Work`."""
    launch = trace.work.launch[kernels]
    collective = _by_name(trace, trace.work.name_id[kernels])
    unnamed = collective == COLLECTIVES.index(OTHER)
    for rows, tells in ((unnamed, _tells_as_operator), (np.ones_like(unnamed), _OF_PYTORCH.match)):
        around = _around(trace, np.where(rows, launch, -1), tells)
        in_range = around != _NO_RANGE
        collective[in_range] = _by_name(trace, around[in_range])
    group, size, root_or_peer = np.full((3, len(kernels)), -1, np.int64)
    ranks = np.zeros(len(kernels), np.int64)
    if trace.messages is not None:
        messages = trace.messages
        place = np.minimum(np.searchsorted(messages.launch, launch), len(messages) - 1)
        rows = np.flatnonzero(messages.launch[place] == launch)
        place = place[rows]
        collective[rows] = _by_name(trace, messages.collective[place])
        group[rows] = messages.group[place]
        ranks[rows] = messages.ranks[place]
        size[rows] = np.maximum(messages.sent_bytes[place], messages.received_bytes[place])
        root_or_peer[rows] = messages.root_or_peer[place]
    factor = cache(bus_factor)
    pairs = each_row(collective, ranks)
    factors = np.array([factor(COLLECTIVES[kind], count) for kind, count in pairs], np.float64)
    bus_bytes = np.where(size >= 0, size, np.nan) * factors
    return Collectives(collective, group, ranks, size, bus_bytes, root_or_peer)


def named(text: str) -> str:
    """Return the collective that a name is of, or OTHER."""
    head = re.split(r"[(<]", text, maxsplit=1)[0].lower()
    return next((name for name, pattern in _PATTERNS if re.search(pattern, head)), OTHER)


def _tells_as_operator(name: str) -> bool:
    """Return whether a range is an operator that is named after a collective."""
    operator = _OPERATOR.match(name)
    return operator is not None and named(operator[1]) != OTHER


def bus_factor(collective: str, ranks: int) -> float:
    """Return which part of a collective's bytes each GPU's link carries; NaN where that is not defined."""
    if collective in _WHOLE:
        return 1.0
    if ranks < 1 or not (collective == "all_reduce" or collective in _ALL_BUT_OWN):
        return float("nan")
    return (ranks - 1) / ranks * (2 if collective == "all_reduce" else 1)


def listed_ranks(group: str) -> int:
    """Return how many ranks a group's name lists in full, as `0 [0,1]` does; 0 where it lists none or not all."""
    ranks = _LISTED.search(group)
    return ranks[1].count(",") + 1 if ranks else 0


def _by_name(trace: Trace, name_id: Int32s) -> Int64s:
    name_ids, back = grouped(name_id)
    return np.array([COLLECTIVES.index(named(trace.names[name])) for name in name_ids.tolist()], np.int64)[back]


def _around(trace: Trace, launch: Int32s, tells: Callable[[str], object]) -> Int32s:
    """Return the name of the innermost range around each launch that tells its collective, or -1."""
    names = np.full(len(launch), _NO_RANGE, np.int32)
    ids: Iterable[int] = distinct(trace.ranges.name_id).tolist()
    telling = [name for name in ids if tells(trace.names[name])]
    ranges = trace.ranges.take(np.isin(trace.ranges.name_id, telling))
    rows = np.flatnonzero(launch >= 0)
    if len(ranges) and len(rows):
        nesting = Nesting(ranges)
        node = nesting.containing(trace.launches.take(launch[rows]))
        inside = node >= 0
        names[rows[inside]] = ranges.name_id[nesting.forest.range[node[inside]]]
    return names


#: FSDP2's own ranges, which name the module whose parameters are gathered or gradients reduced; PyTorch 2.13,
#: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
_FSDP = re.compile(r"\w*FSDP::\w+ (?:\((?P<module>.+)\)|for (?P<target>.+))")

#: Actions of a pipeline's schedule, of a stage and a microbatch; _Action in PyTorch 2.13,
#: torch/distributed/pipelining/schedules.py.
_ACTION = re.compile(r"(PP:\d+[A-Z_]+)\d+")


@dataclass(frozen=True, slots=True)
class Kernels(Collectives):
    """Columns by kernel that communicates, whose numbers are positions in the lists of `Exchanges`.

    `step` is -1 in none; `time_ns` is what it is given of the union; `matching` says whether its range
    was asked for; `row` is the position in its report's `Work`; the rest is as in `Collectives`.
    """

    row: Int64s
    gpu: Int64s
    place: Int64s
    step: Int64s
    start_ns: Int64s
    end_ns: Int64s
    time_ns: Int64s
    hidden_ns: Int64s
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
    trace = attribution.trace
    columns = [[np.empty(0, np.int64)] * 5]
    for of_gpu in each_gpu(extents, phases):
        rows, time_ns, hidden_ns = of_gpu.shares()
        steps = distinct(extents.step_of[extents.gpu == of_gpu.number])
        of_rows = extents.step_of[rows]
        number_of_step = np.where(of_rows >= 0, np.searchsorted(steps[steps >= 0], of_rows), -1)
        columns.append([rows, time_ns, hidden_ns, number_of_step, np.full(len(rows), of_gpu.number, np.int64)])
    rows, time_ns, hidden_ns, number_of_step, gpu = map(np.concatenate, zip(*columns, strict=True))
    facts = collectives(trace, rows)
    place, places, chosen = _places(attribution, rows, step, matches)
    groups, group = grouped(facts.group)
    kernels = Kernels(
        facts.collective,
        group,
        facts.ranks,
        facts.message_bytes,
        facts.bus_bytes,
        facts.root_or_peer,
        row=rows,
        gpu=gpu,
        place=place,
        step=number_of_step,
        start_ns=trace.work.start_ns[rows],
        end_ns=trace.work.end_ns[rows],
        time_ns=time_ns,
        hidden_ns=hidden_ns,
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
    places = Interner[tuple[Path, str]]()
    groups = Interner[str]()
    parts = []
    for name, held in reports:
        place = np.array([*map(places, held.places)] or [0], np.int64)
        group = np.array([*map(groups, held.groups)] or [0], np.int64)
        kernels = held.kernels
        gpu = held.kernels.gpu + len(gpus)
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
    paths = Paths(attribution)
    module = module_of(step)
    (path_numbers, phases), back = grouped_rows(paths.of_node[attribution.node[rows]], attribution.phase[rows])
    places = Interner[tuple[Path, str]]()
    numbers = []
    chosen = []
    for number, phase in each_row(path_numbers, phases):
        full_path = paths.paths[number]
        place = module(full_path), PHASES[phase]
        numbers.append(places(place))
        chosen.append(matches is None or matches(full_path) or matches(place[0]))
    return np.array(numbers, np.int64)[back], tuple(places), np.array(chosen, np.bool_)[back]


def module_of(step: str = "") -> Callable[[Path], Path]:
    """Return a function that shortens paths to phase and module: FSDP2's own ranges become their module."""
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
