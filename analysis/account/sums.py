"""The cells of an account added up: the data that answers show and JSON promises."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..readers.columns import Interner
from ..report import account as data
from ..report.account import (
    Cause,
    Difference,
    GpuAccount,
    LineTime,
    Outlying,
    Part,
    Pause,
    Rhythm,
    StepRow,
    Varying,
)
from ..support.small_numbers import each_row, grouped_rows, summed
from ..trace import Int64s, Path, marked
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
#: From this share of all idle time on, a single gap of a report without steps is called a pause.
PAUSE_FROM = 0.5
Naming = Callable[[Path], Path]


def summed_up(partition: Partition, naming: Naming, rank: int | None = None) -> data.Account:
    """Return the account as data; `naming` joins paths for screens, `rank` is that of the report's process."""
    main = partition.choices[partition.main_loop]
    gpus = []
    for loop in range(len(partition.choices)):
        gpus += [_of_gpu(partition, loop, gpu, naming, rank) for gpu in partition.gpus_of(loop)]
    return data.Account(
        per=partition.per,
        steps_by=partition.evidence.by,
        rows=tuple(_rows(partition)),
        gpus=tuple(gpus),
        outlying=tuple(outlying(partition)) if partition.has_steps else (),
        rhythm=_rhythm(partition, main),
        dropped=partition.steps.dropped,
        varying=_varying(partition, main),
        pause=None if partition.has_steps or partition.on_cpu else _pause(partition),
        on_cpu=partition.on_cpu,
        evidence=partition.evidence,
    )


def names_of(partition: Partition) -> list[Sequence[str]]:
    """Return the meanings of `Cells.what`, by kind."""
    return [CATEGORIES, CATEGORIES, COPIES, CPU_CAUSES if partition.on_cpu else CAUSES]


def kinds_of(partition: Partition) -> Sequence[str]:
    """Return the names that people and JSON read for each kind of cells."""
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
    sums_ns = summed(group, cells.ns, len(row)).tolist()
    for row_number, kind_number, detail_number, ns in zip(row, kind, number, sums_ns, strict=True):
        details = names[kind_number] if kind_number in (COPY, IDLE) else PHASES
        state = kinds[kind_number], details[detail_number]
        states[row_number].append((state, ns))
    return states


def _rows(partition: Partition) -> Iterator[StepRow]:
    """Yield each step, with what GPUs do in it."""
    table = partition.table
    trace = partition.attribution.trace
    counted = marked(partition.counted, len(table))
    cells = partition.cells
    busy_ns = np.where(cells.kind < IDLE, cells.ns, 0)
    busy = summed(cells.row, busy_ns, len(table))
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
        covered_ns = busy.covered(between.start_ns, between.end_ns)
        busy_ns += summed(between.row - loop.rows[0], covered_ns, len(busy_ns))
    return busy_ns


def _of_gpu(partition: Partition, loop: int, gpu: int, naming: Naming, rank: int | None) -> GpuAccount:
    """Return a GPU's time in the counted steps of a loop."""
    choice = partition.choices[loop]
    process = partition.steps.loops[loop].process
    table = partition.table
    of_gpu = partition.cells.take(partition.cells.gpu == gpu)
    of_loop = of_gpu.take(table.loop[of_gpu.row] == loop)
    counted = of_loop.take(np.isin(of_loop.row, choice.counted))
    idle = of_loop.take(of_loop.kind == IDLE)
    return GpuAccount(
        gpu=partition.gpus.names[gpu],
        rank=rank,
        process_id=partition.attribution.trace.processes[process].process_id,
        loop=loop,
        steps=len(choice.counted),
        total_own_ns=int(table.own_ns[choice.counted].sum()),
        parts=_parts(partition, counted),
        causes=tuple(_causes(partition, idle, choice, naming)),
    )


def _parts(partition: Partition, cells: Cells) -> tuple[Part, ...]:
    """Return the time of some cells by state, the longest first."""
    names = names_of(partition)
    kinds = kinds_of(partition)
    keys, group = grouped_rows(cells.kind, cells.phase, cells.what)
    total_ns = summed(group, cells.ns, len(keys[0]))
    states = zip(*map(np.ndarray.tolist, keys), strict=True)
    parts = [
        Part(kinds[kind], PHASES[phase], names[kind][detail], ns)
        for (kind, phase, detail), ns in zip(states, total_ns.tolist(), strict=True)
    ]
    return tuple(sorted(parts, key=lambda part: (-part.total_ns, part.kind, part.phase, part.what)))


def _causes(partition: Partition, idle: Cells, choice: Choice, naming: Naming) -> Iterator[Cause]:
    """Yield the causes of a GPU's idle time, the longest first, each with the place that has most of it."""
    names = names_of(partition)[IDLE]
    table = partition.table
    steps = np.sort(np.concatenate([choice.counted, choice.outlying]))
    is_counted = np.isin(idle.row, choice.counted)
    totals_ns = summed(idle.what[is_counted], idle.ns[is_counted], len(names))
    cause_and_row = idle.what.astype(np.int64) * len(table) + idle.row
    of_row_ns = summed(cause_and_row, idle.ns, len(names) * len(table))
    of_step_ns = of_row_ns.reshape(len(names), -1)[:, steps]
    for number in np.argsort(-totals_ns, kind="stable").tolist():
        if not totals_ns[number]:
            continue
        cells = idle.take(is_counted & (idle.what == number))
        alone_ns, alone_step = _alone(of_step_ns[number])
        yield Cause(
            cause=names[number],
            total_ns=int(totals_ns[number]),
            **_place(partition, cells, naming),
            alone_ns=alone_ns,
            alone_step=None if alone_step is None else int(table.number[steps[alone_step]]),
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
    return each_row(values, summed(group, ns, len(values)))


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
    in_phases = np.isin(cells.phase, [PHASES.index(phase) for phase in phases])
    in_steps = np.isin(cells.row, partition.counted)
    idle = cells.take((cells.kind == IDLE) & in_phases & in_steps)
    number = Interner[Path]()
    named = [number(naming(path)) for path in partition.paths.names]
    path_of_cell = np.array(named, np.int64)[idle.path]
    (cause, path, function), group = grouped_rows(idle.what, path_of_cell, idle.function)
    total_ns = summed(group, idle.ns, len(cause))
    paths = list(number)
    functions = ("", *trace.frame_names)
    causes = names_of(partition)[IDLE]
    places = []
    for place, ns in enumerate(total_ns.tolist()):
        of_place = idle.take(group == place)
        places.append(
            IdlePlace(
                cause=causes[cause[place]],
                path=paths[path[place]],
                function=functions[function[place] + 1],
                after=_after(partition, of_place, ns),
                total_ns=ns,
                lines=longest_lines(partition.attribution, of_place.line, of_place.ns),
            )
        )
    return sorted(places, key=lambda place: (-place.total_ns, place.path, place.function))


def _after(partition: Partition, idle: Cells, total_ns: int) -> str:
    """Return the call after which most of some idle time passed; empty if unknown."""
    calls = partition.attribution.trace.calls
    for number, ns in sums_by(idle.after, idle.ns):
        if number >= 0 and 2 * ns > total_ns and calls is not None:
            return plain_name(calls.names, number)
    return ""


def outlying(partition: Partition) -> Iterator[Outlying]:
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
    """Return how every n-th step of a loop differs from the others; None where none does.

    Loops choose together: what other loops have, this one may not have.
    """
    if choice.period < 2:
        return None
    own_ns = partition.table.own_ns[choice.counted]
    usual = usual_ns(own_ns)
    is_apart = np.abs(own_ns - usual) > APART * usual
    if not is_apart.any():
        return None
    apart = choice.counted[is_apart]
    others = choice.counted[~is_apart]
    mean_apart_ns = float(own_ns[is_apart].mean())
    mean_other_ns = float(own_ns[~is_apart].mean())
    difference = _difference(partition, apart, others)
    return Rhythm(choice.period, mean_apart_ns, mean_other_ns, difference)


def _varying(partition: Partition, choice: Choice) -> Varying | None:
    """Return how the longer steps of a loop differ from the shorter ones; None where these are similar."""
    if choice.period or not partition.has_steps:
        return None
    own_ns = partition.table.own_ns[choice.counted]
    is_long = 2 * own_ns > own_ns.min() + own_ns.max()
    if not is_long.any():
        return None
    more = _difference(partition, choice.counted[is_long], choice.counted[~is_long])
    return Varying(int(is_long.sum()), more)


def _difference(partition: Partition, some: Int64s, others: Int64s) -> Difference:
    """Return the state in which some steps differ most: more than others, or less if they are shorter; means, ns.

    Of several GPUs it is of the first.
    """
    cells = partition.cells
    table = partition.table
    gpu = partition.gpus_of(int(table.loop[some[0]]))[0]
    means = []
    for rows in (some, others):
        of_rows = cells.take((cells.gpu == gpu) & np.isin(cells.row, rows))
        state_of_row = of_rows.kind.astype(np.int64) * WIDEST + of_rows.what
        sums_ns = summed(state_of_row, of_rows.ns, len(KINDS) * WIDEST)
        means.append(sums_ns / len(rows))
    more_ns = means[0] - means[1]
    sign = 1 if more_ns.sum() >= 0 else -1
    most = int((sign * more_ns).argmax())
    kind, detail = divmod(most, WIDEST)
    return Difference(kinds_of(partition)[kind], names_of(partition)[kind][detail], float(more_ns[most]))


def _pause(partition: Partition) -> Pause | None:
    """Return the gap that holds most of the idle time of a report without steps, and what remains without it."""
    trace = partition.attribution.trace
    gpus = partition.gpus
    gaps = gaps_of(trace, gpus.of_work)
    cells = partition.cells
    idle = cells.take(cells.kind == IDLE)
    idle_ns = int(idle.ns.sum())
    if len(gaps) < 2 or gaps.duration_ns.max() < PAUSE_FROM * idle_ns:
        return None
    longest = int(gaps.duration_ns.argmax())
    start_ns = int(gaps.start_ns[longest])
    end_ns = int(gaps.end_ns[longest])
    on_gpu = gpus.of_work == gaps.gpu[longest]
    duration_ns = end_ns - start_ns
    before = int(np.flatnonzero(on_gpu & (trace.work.end_ns == start_ns))[0])
    after = int(gaps.next[longest])
    (pieces,) = pieces_of(partition.attribution, gaps.take(np.array([longest])), gpus.of_work)
    left_ns = summed(idle.what, idle.ns, len(CAUSES))
    left_ns -= summed(pieces.cause, pieces.duration_ns, len(CAUSES))

    def path(row: int) -> Path:
        number = int(partition.paths.names_of_node[partition.attribution.node[row]])
        return partition.paths.names[number]

    return Pause(
        duration_ns=duration_ns,
        start_ns=start_ns - int(trace.work.start_ns[on_gpu].min()),
        before=path(before),
        after=path(after),
        rest_ns=int(cells.ns.sum()) - duration_ns,
        rest_idle_ns=idle_ns - duration_ns,
        rest_cause=CAUSES[int(left_ns.argmax())],
        rest_cause_ns=int(left_ns.max()),
    )
