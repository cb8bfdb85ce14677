"""What a summary holds in addition to a report's sums: each measured step, and each kernel that communicates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.steps import measured_steps, step_of_nodes
from ..kernel_names.categories import categorize
from ..measures.collectives import COLLECTIVES
from ..measures.exchanges import exchanges
from ..measures.steps import steps_of
from ..support.small_numbers import distinct
from ..trace import KERNEL, Path
from ..vocabulary import PHASES


@dataclass(frozen=True, slots=True)
class StepRow:
    """One phase of one measured step, or with an empty phase the whole step; times in ns.

    `communication_ns` is the part of `kernel_ns` in collectives, where a rank also waits for the others.
    """

    step: int
    phase: str
    kernel_ns: int
    communication_ns: int
    kernels: int
    span_ns: int | None
    cpu_ns: int | None


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """One kernel that communicates, on its report's clock; `step` is -1 for none, `group` empty if unknown."""

    gpu: str
    path: Path
    phase: str
    collective: str
    group: str
    ranks: int
    step: int
    start_ns: int
    end_ns: int
    time_ns: int
    hidden_ns: int
    message_bytes: int
    bus_bytes: float


def step_rows(attribution: Attribution) -> Iterator[StepRow]:
    """Yield a row for each phase with kernels of each measured step, and one for the step."""
    work, steps = attribution.trace.work, measured_steps(attribution)
    step = step_of_nodes(attribution, include_warm_up=False)[attribution.node]
    rows = np.flatnonzero((step >= 0) & (work.kind == KERNEL))
    names = distinct(work.name_id[rows]).tolist()
    kinds = categorize([attribution.trace.names[name] for name in names])
    exchanging = [name for name, kind in zip(names, kinds, strict=True) if kind == "communication"]
    place = step[rows].astype(np.int64) * len(PHASES) + attribution.phase[rows]
    duration_ns, communicates = work.duration_ns[rows], np.isin(work.name_id[rows], exchanging)
    shape = (len(steps), len(PHASES))
    kernel_ns, communication_ns, kernels = np.zeros((3, *shape), np.int64)
    np.add.at(kernel_ns.reshape(-1), place, duration_ns)
    np.add.at(communication_ns.reshape(-1), place[communicates], duration_ns[communicates])
    np.add.at(kernels.reshape(-1), place, 1)
    for figures in steps_of(attribution):
        number = figures.step
        for phase in np.flatnonzero(kernels[number]).tolist():
            cell = number, phase
            yield StepRow(
                number,
                PHASES[phase],
                int(kernel_ns[cell]),
                int(communication_ns[cell]),
                int(kernels[cell]),
                None,
                None,
            )
        step_sums = int(kernel_ns[number].sum()), int(communication_ns[number].sum()), int(kernels[number].sum())
        yield StepRow(number, "", *step_sums, figures.span_ns, figures.cpu_ns)


def exchange_rows(attribution: Attribution) -> Iterator[ExchangeRow]:
    """Yield a row for each kernel that communicates."""
    exchanged = exchanges(attribution, step=attribution.rules.step)
    kernels = exchanged.kernels
    numbers = (
        kernels.gpu,
        kernels.place,
        kernels.collective,
        kernels.group,
        kernels.ranks,
        kernels.step,
        kernels.start_ns,
        kernels.end_ns,
        kernels.time_ns,
        kernels.hidden_ns,
        kernels.message_bytes,
        kernels.bus_bytes,
    )
    for gpu, place, collective, group, *figures in zip(*(column.tolist() for column in numbers), strict=True):
        path, phase = exchanged.places[place]
        gpu_name, group_name = exchanged.gpus[gpu], exchanged.groups[group]
        yield ExchangeRow(gpu_name, path, phase, COLLECTIVES[collective], group_name, *figures)
