"""Every step's time, in the order it ran, as a benchmark script prints it while it goes."""

from collections.abc import Iterator, Sequence
from typing import Any

from nvtx_kernels.model.config import name_of

from ..sweep.results import capture_of
from .frames import statistics_of

Row = dict[str, Any]
RULE = "=" * 60


def listing(rows: Sequence[Row]) -> str:
    """Return the steps of every row, phase by phase, in seconds."""
    return "".join(f"{line}\n" for row in rows if row["status"] == "ok" for line in _row_lines(row))


def _row_lines(row: Row) -> Iterator[str]:
    cell = row["cell"]
    yield from (RULE, f"{name_of(cell).upper()} MODEL", RULE)
    yield f"Parameters: {row['parameters']:,}"
    yield f"Context length: {cell['context_length']}, batch size: {cell['batch_size']}, {_how(row)}"
    for phase in row["measured"][0]:
        yield ""
        yield from _phase_lines(row, phase)
    if "backward" in row["measured"][0]:
        yield _difference(row)
    yield ""


def _how(row: Row) -> str:
    cell = row["cell"]
    parts = (
        f"mode: {cell['mode']}",
        cell["dtype"],
        f"{cell['attention']} attention",
        "compiled" if cell["compile"] else "eager",
    )
    optimizer = f"{cell['optimizer']} AdamW" if cell["optimizer"] else ""
    return ", ".join(part for part in (*parts, optimizer, f"capture {capture_of(row)}") if part)


def _phase_lines(row: Row, phase: str) -> Iterator[str]:
    yield f"{phase.capitalize()}:"
    for title, steps in (("Warmup", row["warmup"]), ("Measurement", row["measured"])):
        yield f"  {title} steps:"
        for index, times in enumerate(steps, 1):
            yield f"    Step {index}: {times[phase] / 1e3:.6f} seconds"
    numbers = statistics_of([times[phase] for times in row["measured"]])
    std = "" if numbers["std_ms"] is None else f" ± {numbers['std_ms'] / 1e3:.6f}"
    cv = "" if numbers["cv_percent"] is None else f" (CV: {numbers['cv_percent']:.2f}%)"
    yield f"  Mean: {(numbers['mean_ms'] or 0) / 1e3:.6f}{std} seconds{cv}"


def _difference(row: Row) -> str:
    """Return the backward as the step without its other phases, and its ratio to the forward."""
    means = {
        phase: statistics_of([times[phase] for times in row["measured"]])["mean_ms"]
        for phase in row["measured"][0]
    }
    forward, others = means["forward"] or 0, means.get("optimizer") or 0
    rest = (means["step"] or 0) - forward - others
    return f"  Backward-only (total - forward): {rest / 1e3:.6f} seconds ({rest / forward:.2f}x forward)"
