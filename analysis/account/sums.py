"""The cells of an account added up: the data that answers show and JSON promises."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..report import account as data
from ..report.account import Cause, Difference, GpuAccount, LineTime, Outlying, Part, Pause, Rhythm, StepRow
from ..support.small_numbers import grouped_rows, summed
from ..trace import Int64s, Path
from ..vocabulary import PHASES
from ..vocabulary.calls import plain_name
from . import Partition
from .cells import CATEGORIES, COPIES, COPY, IDLE, KINDS, Cells
from .choice import APART, Choice
from .cpu import CPU_CAUSES
from .gaps import gaps_of
from .generation import divided
from .idle import CAUSES, pieces_of
from .intervals import union
from .lines import longest_lines
from .step_table import Loop, usual_ns
from .taken_out import BETWEEN

#: At least as many as any kind of cells has names.
WIDEST = 32
#: From this share of all idle time on, a single gap of a report without steps is told as a pause.
PAUSE_FROM = 0.5
Naming = Callable[[Path], Path]


def summed_up(partition: Partition, naming: Naming, rank: int | None = None) -> data.Account:
    """Return the account as data; `naming` joins paths for screens, `rank` is that of the report's process."""
    main = partition.choices[partition.main_loop]
    return data.Account(
        per=partition.per,
        steps_by=partition.evidence.by,
        rows=tuple(_rows(partition)),
        gpus=tuple(
            _of_gpu(partition, loop, gpu, naming, rank)
            for loop in range(len(partition.choices))
            for gpu in partition.gpus_of(loop)
        ),
        outlying=tuple(_outlying(partition)) if partition.has_steps else (),
        rhythm=_rhythm(partition, main),
        dropped=partition.steps.dropped,
        varies=main.period == 0,
        pause=None if partition.has_steps or partition.on_cpu else _pause(partition),
        on_cpu=partition.on_cpu,
        evidence=partition.evidence,
    )


def names_of(partition: Partition) -> list[Sequence[str]]:
    """Return what `Cells.what` means, by kind."""
    return [CATEGORIES, CATEGORIES, COPIES, CPU_CAUSES if partition.on_cpu else CAUSES]


def kinds_of(partition: Partition) -> Sequence[str]:
    """Return what people and JSON read for each kind of cells."""
    if partition.on_cpu:
        return (data.OPERATORS, *KINDS[1:])
    return KINDS


def _states(partition: Partition) -> list[list[tuple[data.State, int]]]:
    """Return the time of each state in each row of the table of steps, ns, added over GPUs."""
    cells = partition.cells
    kinds = kinds_of(partition)
    names = names_of(partition)
    detail = np.where(np.isin(cells.kind, [COPY, IDLE]), cells.what, cells.phase)
    (row, kind, number), group = grouped_rows(cells.row, cells.kind, detail)
    states: list[list[tuple[data.State, int]]] = [[] for _ in range(len(partition.table))]
    for place, ns in enumerate(summed(group, cells.ns, len(row)).tolist()):
        details = names[kind[place]] if kind[place] in (COPY, IDLE) else PHASES
        states[row[place]].append(((kinds[kind[place]], details[number[place]]), ns))
    return states


def _rows(partition: Partition) -> Iterator[StepRow]:
    """Yield each step, with what GPUs do in it."""
    table = partition.table
    trace = partition.attribution.trace
    counted = np.zeros(len(table), np.bool_)
    counted[partition.counted] = True
    cells = partition.cells
    busy = summed(cells.row, np.where(cells.kind < IDLE, cells.ns, 0), len(table))
    states = _states(partition)
    parts = divided(partition.attribution, partition.steps, include_warm_up=partition.include_warm_up)
    for number, loop in enumerate(partition.steps.loops):
        gpus = [] if partition.on_cpu else partition.gpus_of(number)
        between_busy = _between_busy(partition, loop, gpus)
        for place, row in enumerate(loop.rows.tolist()):
            yield StepRow(
                step=int(table.number[row]),
                process_id=trace.processes[loop.process].process_id,
                first=place == 0,
                own_ns=int(table.own_ns[row]),
                window_ns=int(table.window_ns[row]),
                between_ns=int(table.between_ns[row]),
                evaluation_ns=int(table.evaluation_ns[row]),
                warm_up_ns=int(table.warm_up_ns[row]),
                recorder_ns=int(table.recorder_ns[row]),
                busy_ns=int(busy[row]) if gpus else None,
                between_busy_ns=int(between_busy[place]) if gpus else None,
                gpus=len(gpus),
                counted=bool(counted[row]),
                loop=number,
                states_ns=tuple(states[row]),
                **parts.get(row, {}),
            )


def _between_busy(partition: Partition, loop: Loop, gpus: Sequence[int]) -> Int64s:
    """Return how long GPUs work between each step's work and that of the step before, ns: int64 (steps,)."""
    work = partition.attribution.trace.work
    busy_ns = np.zeros(len(loop.rows), np.int64)
    between = loop.pieces.take(loop.pieces.kind == BETWEEN)
    for gpu in gpus:
        rows = np.flatnonzero(partition.gpus.of_work == gpu)
        busy = union(work.start_ns[rows], work.end_ns[rows])
        busy_ns += summed(between.row - loop.rows[0], busy.covered(between.start_ns, between.end_ns), len(busy_ns))
    return busy_ns


def _of_gpu(partition: Partition, loop: int, gpu: int, naming: Naming, rank: int | None) -> GpuAccount:
    """Return what a GPU does in the counted steps of a loop."""
    choice = partition.choices[loop]
    process = partition.steps.loops[loop].process
    of_gpu = partition.cells.take(partition.cells.gpu == gpu)
    of_loop = of_gpu.take(partition.table.loop[of_gpu.row] == loop)
    return GpuAccount(
        gpu=partition.gpus.names[gpu],
        rank=rank,
        process_id=partition.attribution.trace.processes[process].process_id,
        loop=loop,
        steps=len(choice.counted),
        total_own_ns=int(partition.table.own_ns[choice.counted].sum()),
        parts=_parts(partition, of_loop.take(np.isin(of_loop.row, choice.counted))),
        causes=tuple(_causes(partition, of_loop.take(of_loop.kind == IDLE), choice, naming)),
    )


def _parts(partition: Partition, cells: Cells) -> tuple[Part, ...]:
    """Return the time of some cells by state, the longest first."""
    names = names_of(partition)
    kinds = kinds_of(partition)
    keys, group = grouped_rows(cells.kind, cells.phase, cells.what)
    total_ns = summed(group, cells.ns, len(keys[0]))
    parts = [
        Part(kinds[kind], PHASES[phase], names[kind][what], ns)
        for kind, phase, what, ns in zip(*(key.tolist() for key in keys), total_ns.tolist(), strict=True)
    ]
    return tuple(sorted(parts, key=lambda part: (-part.total_ns, part.kind, part.phase, part.what)))


def _causes(partition: Partition, idle: Cells, choice: Choice, naming: Naming) -> Iterator[Cause]:
    """Yield the causes of a GPU's idle time, the longest first, each with the place that has most of it."""
    names = names_of(partition)[IDLE]
    steps = np.sort(np.concatenate([choice.counted, choice.outlying]))
    is_counted = np.isin(idle.row, choice.counted)
    totals_ns = summed(idle.what[is_counted], idle.ns[is_counted], len(names))
    of_step_ns = summed(
        idle.what.astype(np.int64) * len(partition.table) + idle.row, idle.ns, len(names) * len(partition.table)
    )
    of_step_ns = of_step_ns.reshape(len(names), -1)[:, steps]
    for number in np.argsort(-totals_ns, kind="stable").tolist():
        if totals_ns[number]:
            cells = idle.take(is_counted & (idle.what == number))
            alone_ns, alone_step = _alone(of_step_ns[number])
            yield Cause(
                cause=names[number],
                total_ns=int(totals_ns[number]),
                **_place(partition, cells, naming),
                alone_ns=alone_ns,
                alone_step=None if alone_step is None else int(partition.table.number[steps[alone_step]]),
            )


def _alone(of_step_ns: Int64s) -> tuple[int, int | None]:
    """Return by how much the step with the most exceeds any other, and which it is; 0 and None where none does."""
    if len(of_step_ns) < 2:
        return 0, None
    second, first = np.argsort(of_step_ns, kind="stable")[-2:]
    alone_ns = int(of_step_ns[first] - of_step_ns[second])
    return alone_ns, int(first) if alone_ns else None


def _place(partition: Partition, cells: Cells, naming: Naming) -> dict[str, Any]:
    """Return the range with most of some idle time, the call after which most of it passed, and the function."""
    trace = partition.attribution.trace
    by_path: dict[Path, int] = {}
    for number, ns in sums_by(cells.path, cells.ns):
        path = naming(partition.paths.names[number])
        by_path[path] = by_path.get(path, 0) + ns
    total_ns = sum(by_path.values())
    most = max(by_path, key=lambda path: by_path[path])
    function = ""
    for number, ns in sums_by(cells.function, cells.ns):
        if number >= 0 and 2 * ns >= total_ns:
            function = trace.frame_names[number]
    lines = longest_lines(partition.attribution, cells.line, cells.ns)
    return {"path": most, "after": _after(partition, cells, total_ns), "function": function, "lines": lines}


def sums_by(key: NDArray[Any], ns: Int64s) -> Iterator[tuple[int, int]]:
    """Yield each value of a key of cells, and the time of the cells that have it, ns."""
    (values,), group = grouped_rows(key)
    return zip(values.tolist(), summed(group, ns, len(values)).tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class IdlePlace:
    """The idle time of one cause in one range and function, over the counted steps of all GPUs, ns.

    `after` is the call that waited for the GPU before most of it, empty if none did. `lines` are as in `Cause`.
    """

    cause: str
    path: Path
    function: str
    after: str
    total_ns: int
    lines: tuple[LineTime, ...] = ()


def idle_places(partition: Partition, naming: Naming, phases: Collection[str] = PHASES) -> list[IdlePlace]:
    """Return where the GPUs are idle in the steps that count, the most first; `naming` joins paths."""
    cells = partition.cells
    trace = partition.attribution.trace
    wanted = np.isin(cells.phase, [PHASES.index(phase) for phase in phases])
    idle = cells.take((cells.kind == IDLE) & wanted & np.isin(cells.row, partition.counted))
    number: dict[Path, int] = {}
    named = np.array([number.setdefault(naming(path), len(number)) for path in partition.paths.names], np.int64)
    (cause, path, function), group = grouped_rows(idle.what, named[idle.path], idle.function)
    total_ns = summed(group, idle.ns, len(cause))
    paths = list(number)
    functions = ("", *trace.frame_names)
    causes = names_of(partition)[IDLE]
    places = []
    for place, ns in enumerate(total_ns.tolist()):
        of_place = idle.take(group == place)
        after = _after(partition, of_place, ns)
        key = causes[cause[place]], paths[path[place]], functions[function[place] + 1]
        lines = longest_lines(partition.attribution, of_place.line, of_place.ns)
        places.append(IdlePlace(*key, after, ns, lines))
    return sorted(places, key=lambda place: (-place.total_ns, place.path, place.function))


def _after(partition: Partition, idle: Cells, total_ns: int) -> str:
    """Return the call after which most of some idle time passed; empty if there is none."""
    calls = partition.attribution.trace.calls
    for number, ns in sums_by(idle.after, idle.ns):
        if number >= 0 and 2 * ns > total_ns and calls is not None:
            return plain_name(calls.names, number)
    return ""


def _outlying(partition: Partition) -> Iterator[Outlying]:
    """Yield the steps that are apart from the others, with what they have more (or less) of."""
    table = partition.table
    trace = partition.attribution.trace
    for loop, choice in zip(partition.steps.loops, partition.choices, strict=True):
        for row in choice.outlying.tolist():
            own_ns = int(table.own_ns[row])
            more = _difference(partition, np.array([row]), choice.counted)
            process_id = trace.processes[loop.process].process_id
            yield Outlying(int(table.number[row]), process_id, own_ns, more)


def _rhythm(partition: Partition, choice: Choice) -> Rhythm | None:
    """Return how every n-th step of a loop differs from the others; None where none does."""
    if choice.period < 2:
        return None
    own_ns = partition.table.own_ns[choice.counted]
    usual = usual_ns(own_ns)
    is_apart = np.abs(own_ns - usual) > APART * usual
    apart = choice.counted[is_apart]
    others = choice.counted[~is_apart]
    means_ns = float(own_ns[is_apart].mean()), float(own_ns[~is_apart].mean())
    return Rhythm(choice.period, *means_ns, _difference(partition, apart, others))


def _difference(partition: Partition, some: Int64s, others: Int64s) -> Difference:
    """Return the state of which some steps have the most more than others, or less if they are shorter; means, ns.

    Of several GPUs it is of the first.
    """
    cells = partition.cells
    table = partition.table
    gpu = partition.gpus_of(int(table.loop[some[0]]))[0]
    means = []
    for rows in (some, others):
        mine = cells.take((cells.gpu == gpu) & np.isin(cells.row, rows))
        state = mine.kind.astype(np.int64) * WIDEST + mine.what
        means.append(summed(state, mine.ns, len(KINDS) * WIDEST) / len(rows))
    more_ns = means[0] - means[1]
    sign = 1 if more_ns.sum() >= 0 else -1
    kind, what = divmod(int((sign * more_ns).argmax()), WIDEST)
    return Difference(
        kinds_of(partition)[kind], names_of(partition)[kind][what], float(more_ns[kind * WIDEST + what])
    )


def _pause(partition: Partition) -> Pause | None:
    """Return the gap that holds most of the idle time of a report without steps, and what remains without it."""
    trace = partition.attribution.trace
    gpus = partition.gpus
    gaps = gaps_of(trace, gpus.of_work)
    cells = partition.cells
    idle_ns = int(cells.ns[cells.kind == IDLE].sum())
    if len(gaps) < 2 or gaps.duration_ns.max() < PAUSE_FROM * idle_ns:
        return None
    longest = int(gaps.duration_ns.argmax())
    start_ns = int(gaps.start_ns[longest])
    end_ns = int(gaps.end_ns[longest])
    on_gpu = gpus.of_work == gaps.gpu[longest]
    before = int(np.flatnonzero(on_gpu & (trace.work.end_ns == start_ns))[0])
    places = [
        partition.paths.names[partition.paths.names_of_node[partition.attribution.node[row]]]
        for row in (before, int(gaps.next[longest]))
    ]
    (pieces,) = pieces_of(partition.attribution, gaps.take(np.array([longest])), gpus.of_work)
    left_ns = summed(cells.what[cells.kind == IDLE], cells.ns[cells.kind == IDLE], len(CAUSES))
    left_ns -= summed(pieces.cause, pieces.duration_ns, len(CAUSES))
    rest_ns = int(cells.ns.sum()) - (end_ns - start_ns)
    return Pause(
        duration_ns=end_ns - start_ns,
        start_ns=start_ns - int(trace.work.start_ns[on_gpu].min()),
        before=places[0],
        after=places[1],
        rest_ns=rest_ns,
        rest_idle_ns=idle_ns - (end_ns - start_ns),
        rest_cause=CAUSES[int(left_ns.argmax())],
        rest_cause_ns=int(left_ns.max()),
    )
