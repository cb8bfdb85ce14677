"""The notes of a sweep's tables: everything that affects the numbers, and their definitions."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from nvtx_kernels.analysis.document import Document, Table

from ..sweep.results import capture_of
from .frames import CONFIGURATION, constant, sessions_of
from .tables import word
from .throughput import peak_tflops

Row = dict[str, Any]
UNWATCHED = ("none", "bare")
VERSIONS = ("device_name", "driver", "cuda", "torch", "python", "threads")
# Tables that hold FLOP/s and MFU.
RATES = frozenset({"throughput", "fastest"})
TIMES = (
    "Times are wall time from a phase's begin until the device has finished it; n counts measured steps. "
    "forward is the forward pass and, in modes with a backward, the loss; step is a whole step, its phases and "
    "the time between them."
)
FLOPS = (
    "FLOPs are those of the matrix products (`model.cost`), 2 per multiply-add, the backward's twice the "
    "forward's; TFLOP/s divides them by the step's mean, and MFU (Chowdhery et al. 2022, appendix B) that by the "
    "GPU's dense peak."
)
WATCHED = "Times under {} are those of a watched program, slower than its own."


def document(rows: Sequence[Row], lines: pd.DataFrame, tables: Sequence[Table]) -> Document:
    """Return tables of these rows, with everything that affects their numbers."""
    rates = _rates(lines) if RATES & {table.key for table in tables} else ()
    about = (*_state(rows, lines), TIMES, *_pooled(lines), *_apart(lines), *rates)
    return Document(machine(rows), tuple(tables), about, tuple(_warnings(rows)))


def _state(rows: Sequence[Row], lines: pd.DataFrame) -> Iterator[str]:
    shared = {name: value for name, value in constant(lines).items() if name not in VERSIONS}
    yield "Same in every line: " + ", ".join(
        f"{CONFIGURATION[name]} {word(value)}" for name, value in shared.items()
    )
    yield from _precision(rows)
    yield from _clocks(lines)


def machine(rows: Sequence[Row]) -> str:
    """Return device and versions of the rows, in one line."""
    versions = {
        name: sorted({str(row["state"][name]) for row in rows if row["state"].get(name)}) for name in VERSIONS
    }
    return ", ".join(
        f"{name.removesuffix('_name')} {' and '.join(seen)}" for name, seen in versions.items() if seen
    )


def _precision(rows: Sequence[Row]) -> Iterator[str]:
    seen = {(row["cell"]["dtype"], row["state"]["tf32"], row["state"]["autocast"]) for row in rows if row["state"]}
    if seen:
        parts = (f"{dtype}: TF32 {'allowed' if tf32 else 'off'}, autocast {cast}" for dtype, tf32, cast in seen)
        yield "; ".join(sorted(parts))


def _clocks(lines: pd.DataFrame) -> Iterator[str]:
    clocks = lines["sm_mhz"].dropna()
    if not clocks.empty:
        low, high = clocks.min(), clocks.max()
        yield f"SM clock under load {low:g}{'' if low == high else f' to {high:g}'} MHz"


def _pooled(lines: pd.DataFrame) -> Iterator[str]:
    """Return a note if steps of several processes are pooled in one line."""
    most = lines["processes"].max()
    if most > 1:
        yield f"Steps of the same configuration in several processes are pooled: up to {most:g}, by n."


def _apart(lines: pd.DataFrame) -> Iterator[str]:
    """Return a note if lines come from several sessions."""
    if (count := len(sessions_of(lines))) > 1:
        yield f"Measured in {count} sessions: launch-bound times may differ between them with the host's pace."


def _rates(lines: pd.DataFrame) -> Iterator[str]:
    pairs = lines[["device_name", "dtype"]].dropna().drop_duplicates().itertuples(index=False)
    peaks = {f"{name} {dtype} {peak:g}" for name, dtype in pairs if (peak := peak_tflops(name, dtype))}
    yield FLOPS
    yield f"Dense peak by NVIDIA's data sheets, TFLOP/s: {', '.join(sorted(peaks)) or 'not known'}."


def _warnings(rows: Sequence[Row]) -> Iterator[str]:
    failed = (f"{row['cell']['size']} failed: {row['message']}" for row in rows if row["status"] == "failed")
    yield from dict.fromkeys(failed)
    said = (warning for row in rows for warning in row.get("warnings", ()))
    yield from dict.fromkeys(said)
    captures = {capture_of(row) for row in rows}
    if "bare" in captures:
        yield "capture none: ranges are on and nothing watches; bare: ranges are off."
    watched = sorted(captures - set(UNWATCHED))
    if watched:
        yield WATCHED.format(", ".join(watched))
