"""What stands beside a sweep's tables: everything that decided the numbers, and how they are defined."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from profiling.study_frames import CONFIGURATION, constant
from profiling.tables import word
from profiling.throughput import peak_tflops

Row = dict[str, Any]
UNWATCHED = ("none", "bare")
VERSIONS = ("device_name", "driver", "cuda", "torch", "python", "threads")
DEFINITIONS = (
    "Times are CPU time from a phase's begin until the device has finished it; n is the number of measured steps.",
    "FLOPs are those of the matrix products, 2 per multiply-add, the backward's twice the forward's.",
)


def notes(rows: Sequence[Row], lines: pd.DataFrame) -> list[str]:
    """Return the sentences that belong to the tables of these rows."""
    return [*_state(rows, lines), *DEFINITIONS, *_peaks(lines), *_warnings(rows)]


def _state(rows: Sequence[Row], lines: pd.DataFrame) -> Iterator[str]:
    shared = {name: value for name, value in constant(lines).items() if name not in VERSIONS}
    yield "Same in every line: " + ", ".join(
        f"{CONFIGURATION[name]} {word(value)}" for name, value in shared.items()
    )
    yield machine(rows)
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
        yield f"SM clock under load {clocks.min():g} to {clocks.max():g} MHz"


def _peaks(lines: pd.DataFrame) -> Iterator[str]:
    pairs = lines[["device_name", "dtype"]].dropna().drop_duplicates().itertuples(index=False)
    peaks = {f"{name} {dtype} {peak:g}" for name, dtype in pairs if (peak := peak_tflops(name, dtype))}
    if peaks:
        yield f"MFU is of the dense peak in TFLOP/s: {', '.join(sorted(peaks))}."


def _warnings(rows: Sequence[Row]) -> Iterator[str]:
    failed = (f"{row['cell']['size']} failed: {row['message']}" for row in rows if row["status"] == "failed")
    yield from (f"Warning: {failure}" for failure in dict.fromkeys(failed))
    said = (warning for row in rows for warning in row.get("warnings", ()))
    yield from (f"Warning: {warning}" for warning in dict.fromkeys(said))
    captures = {row["cell"]["capture"] for row in rows}
    if "bare" in captures:
        yield "capture none: ranges are on and nothing watches; bare: ranges are off."
    watched = sorted(captures - set(UNWATCHED))
    if watched:
        yield f"Warning: times under {', '.join(watched)} are those of a watched program, slower than its own."
