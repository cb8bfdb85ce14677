"""The table of measurements: a line per configuration and phase, what it compares, and what decided it all."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from statistics import fmean, stdev
from typing import Any, NamedTuple

import pandas as pd
from nvtx_kernels.analysis.document import Column, Document, Kind, Table
from nvtx_kernels.analysis.document import Row as Line
from nvtx_kernels.analysis.presenters.output import format_of, presented, write
from nvtx_kernels.analysis.support.units import bytes_text
from nvtx_kernels.model.config import YEARS_OF_SIZE, name_of

from .frame import CONFIGURATION, constant, frame, peak_tflops, places, sessions, varying, word
from .results import ATTENTION, ResultsError, Row, capture_of
from .studies import BY

UNWATCHED = ("none", "bare")
VERSIONS = ("device_name", "driver", "host_cpu", "cuda", "torch", "python", "threads")
TIMES = (
    "Times are wall time (CPU clock) from a phase's begin until the device has finished it; n counts measured "
    "steps, std is the sample's. forward is the forward pass and, in modes with a backward, the loss; step is a "
    "whole step, its phases and the time between them."
)
ATTENTION_ALONE = (
    "Attention alone, causal, one head: times are wall time until the device has finished; n counts measured "
    "passes. d is the head's dimension; before backward is what tensors hold once forward is done, inputs and "
    "output included; on a GPU all tensors of the process."
)
FIRST = "first step is the process's very first, warm-up or not."
PEAKS = "peak is the most that tensors held in each phase of one step (n = 1) after the measured ones."
FLOPS = (
    "FLOPs are those of the matrix products (`model.cost`), 2 per multiply-add, the backward's twice the "
    "forward's; TFLOP/s divides them by the step's mean, and MFU (Chowdhery et al. 2022, appendix B) that by the "
    "GPU's dense peak."
)


class Shown(NamedTuple):
    """A column that people see: its heading, what its values are, and how a line of the frame gives one."""

    heading: str
    kind: Kind
    value: Callable[[Mapping[str, Any]], Any]


def number(heading: str, name: str, kind: Kind) -> Shown:
    """Return the column of a number."""
    return Shown(heading, kind, itemgetter(name))


def setting(heading: str, name: str) -> Shown:
    """Return the column of a setting, or of anything else that reads as it is written."""
    return Shown(heading, "text", lambda line: None if line[name] is None else word(line[name]))


def of_frame(
    key: str,
    title: str,
    lines: pd.DataFrame,
    columns: Sequence[Shown],
) -> Table:
    """Return a table with all columns of a frame for programs, and the given ones for people."""
    plain: list[Any] = lines.astype(object).where(lines.notna(), None).to_dict("records")
    rows = []
    for line in plain:
        values = [column.value(line) for column in columns]
        rows.append(Line((*line.values(), *values)))
    for_programs = [Column(str(name), str(name), seen_by="programs") for name in lines.columns]
    for_people = [Column(column.heading, column.heading, column.kind, seen_by="people") for column in columns]
    return Table(key, title, (*for_programs, *for_people), tuple(rows))


GROUPS: Mapping[str, tuple[Shown, ...]] = {
    "times": (
        number("mean ms", "mean_ms", "ms"),
        number("std ms", "std_ms", "ms"),
        number("CV %", "cv_percent", "ratio"),
        number("median ms", "median_ms", "ms"),
        number("min ms", "min_ms", "ms"),
        number("max ms", "max_ms", "ms"),
    ),
    "first": (number("first step ms", "first_ms", "ms"),),
    "rates": (
        number("tokens/s", "tokens_per_s", "count"),
        number("TFLOP/s", "tflops", "ratio"),
        number("MFU %", "mfu_percent", "ratio"),
    ),
    "memory": (number("peak GiB", "peak_bytes", "GiB"),),
}


def compared(lines: pd.DataFrame, setting_name: str) -> pd.DataFrame:
    """Return lines with `base_ms`, the mean of a setting's first value, and the `ratio` and `difference_ms` to it.

    Lines go by the other settings, then by phase, then by this one. Modes are compared whatever optimizer runs.
    """
    measured = lines[lines["status"] == "ok"].sort_values(setting_name, kind="stable", key=places)
    apart = {setting_name, "optimizer"} if setting_name == "mode" else {setting_name}
    shared = [name for name in (*CONFIGURATION, "phase") if name not in apart]
    first = measured[setting_name].iloc[:1]
    base = measured[measured[setting_name].isin(first)].drop_duplicates(shared)
    base = base[[*shared, "mean_ms"]].rename(columns={"mean_ms": "base_ms"})
    lines = lines.merge(base, how="left", on=shared, validate="many_to_one")
    lines["ratio"] = lines["mean_ms"] / lines["base_ms"]
    lines["difference_ms"] = lines["mean_ms"] - lines["base_ms"]
    if setting_name == "phase":
        return lines
    order = [*(name for name in varying(lines) if name not in apart), "phase", setting_name]
    return lines.sort_values(order, kind="stable", key=places)


def table(
    lines: pd.DataFrame,
    by: str = "phase",
    groups: Sequence[str] = ("times",),
    phases: Sequence[str] = (),
) -> Table:
    """Return the table of these lines, by one of BY, with groups of columns, of some phases or all."""
    setting_name = BY[by]
    heading = CONFIGURATION.get(setting_name, by)
    if phases:
        lines = lines[lines["phase"].isin(phases) | (lines["status"] != "ok")]
    lines = compared(lines, setting_name)
    compares = lines.loc[lines["status"] == "ok", setting_name].nunique() > 1
    if by == "phase":
        compares &= "backward" in set(lines["phase"])

    columns = [setting(CONFIGURATION[name], name) for name in varying(lines) if name != setting_name]
    columns.append(setting("phase", "phase"))
    if by != "phase" and lines[setting_name].notna().any():
        columns.append(setting(heading, setting_name))
    columns += [column for group in groups for column in GROUPS[group]]
    columns.append(number("n", "n", "count"))
    if lines["held_bytes"].notna().any():
        columns.append(number("before backward GiB", "held_bytes", "GiB"))
    if compares:
        first = lines.loc[lines["ratio"] == 1, setting_name].iloc[0]
        name = word(first) if by == "phase" else f"{heading} {word(first)}"
        columns.append(number(f"/ {name}", "ratio", "ratio"))
        if by == "mode":
            columns.append(number(f"- {name} ms", "difference_ms", "ms"))
    if len(sessions(lines["started"].dropna())) > 1:

        def minutes(line: Mapping[str, Any]) -> str | None:
            started = (line["started"] or "").split()
            minutes = dict.fromkeys(text[11:16] for text in started)
            return ", ".join(minutes) or None

        columns.append(Shown("at, UTC", "text", minutes))
    if (lines["status"] != "ok").any():
        columns.append(Shown("result", "prose", outcome))
    title = f"Measured steps by {heading}" + ("; the ratio is of the means" if compares else "")
    return of_frame("times", title, lines, columns)


def outcome(line: Mapping[str, Any]) -> str:
    """Describe the result of a configuration."""
    if line["status"] != "oom":
        return str(line["status"])
    size = line["requested_bytes"]
    return f"OOM in {line['phase']}" + ("" if size is None else f", asked for {bytes_text(size)}")


def document(
    rows: Sequence[Row],
    by: str = "phase",
    groups: Sequence[str] = ("times",),
    phases: Sequence[str] = (),
    sentences: Iterable[str] = (),
) -> Document:
    """Return the table of rows, with everything that affects its numbers, after sentences of the caller's."""
    lines = frame(rows)
    about = ATTENTION_ALONE if rows[0]["kind"] == ATTENTION else TIMES
    accounting = [*sentences, *_state(rows, lines), about]
    if "first" in groups:
        accounting.append(FIRST)
    if "memory" in groups:
        accounting.append(PEAKS)
    most = lines["processes"].max()
    if most > 1:
        accounting.append(
            f"Steps of the same configuration in several processes are pooled: up to {most:g}, by n."
        )
    count = len(sessions(lines["started"].dropna()))
    if count > 1:
        accounting.append(
            f"Measured in {count} sessions: launch-bound times may differ between them with the host's pace."
        )
    if "rates" in groups:
        accounting += [FLOPS, _peaks(lines)]
    answer = table(lines, by, groups, phases)
    warnings = tuple(_warnings(rows, lines, by))
    return Document(_machine(rows), (answer,), tuple(accounting), warnings)


def _peaks(lines: pd.DataFrame) -> str:
    """Return a sentence on the peaks of the GPUs for the dtypes of the lines."""
    pairs = lines[["device_name", "dtype"]].dropna().drop_duplicates()
    peaks = set()
    for name, dtype in pairs.itertuples(index=False):
        peak = peak_tflops(name, dtype)
        if peak:
            peaks.add(f"{name} {dtype} {peak:g}")
    return f"Dense peak by NVIDIA's data sheets, TFLOP/s: {', '.join(sorted(peaks)) or 'not known'}."


def _machine(rows: Sequence[Row]) -> str:
    """Return the machines and versions that the rows were measured with."""
    facts = []
    for name in VERSIONS:
        values = {str(row["state"][name]) for row in rows if row["state"].get(name)}
        if values:
            label = name.removesuffix("_name").replace("_", " ")
            facts.append(f"{label} {' and '.join(sorted(values))}")
    return ", ".join(facts)


def _state(rows: Sequence[Row], lines: pd.DataFrame) -> Iterator[str]:
    """Yield the settings that all lines share, the state of precision, and the clocks."""
    shared = []
    for name, value in constant(lines).items():
        if name == "compile":
            mode = {"False": "eager", "True": "torch.compile"}.get(str(value))
            shared.append(mode or f"torch.compile {value}")
        elif name == "size" and value in YEARS_OF_SIZE:
            shared.append(f"size {value} ({YEARS_OF_SIZE[value]})")
        elif name not in VERSIONS:
            shared.append(f"{CONFIGURATION[name]} {word(value)}")
    if lines["parameters"].nunique() == 1:
        shared.append(f"{lines['parameters'].max():,.0f} parameters")
    yield f"Same in every line: {', '.join(shared)}."
    states = set()
    for row in rows:
        state = row["state"]
        if "autocast" in state:
            tf32 = "allowed" if state["tf32"] else "off"
            states.add(f"{row['cell']['dtype']}: TF32 {tf32}, autocast {state['autocast']}")
    if states:
        yield f"{'; '.join(sorted(states))}."
    clocks = lines["sm_mhz"].dropna()
    if not clocks.empty:
        low = clocks.min()
        high = clocks.max()
        yield f"SM clock under load {low:g}{'' if low == high else f' to {high:g}'} MHz."


def _warnings(rows: Sequence[Row], lines: pd.DataFrame, by: str) -> Iterator[str]:
    for row in rows:
        if row["status"] == "failed":
            yield f"{row['cell'].get('size', row['cell'].get('kind'))} failed: {row['message']}"
    yield from dict.fromkeys(warning for row in rows for warning in row.get("warnings", ()))
    captures = {capture_of(row) for row in rows}
    if "bare" in captures:
        yield "capture none: ranges are on and nothing watches; bare: ranges are off."
    watched = sorted(captures - set(UNWATCHED))
    if watched:
        yield f"Under {', '.join(watched)} the program is slower than alone, and so are these times."
    if by == "mode" and (compared(lines, "mode")["difference_ms"] < 0).any():
        yield "A mode that does more took less time, in another process: the difference is no backward."


def steps_of(row: Row) -> Iterator[str]:
    """Yield every step's time in seconds, as a benchmark script prints it while it goes.

    In mode forward a step is its forward, and not listed again.
    """
    cell = row["cell"]
    phases = list(row["measured"][0])
    words = [f"mode: {cell['mode']}", cell["dtype"], f"{cell['attention']} attention"]
    words.append("compiled" if cell["compile"] else "eager")
    if cell["optimizer"]:
        words.append(f"{cell['optimizer']} AdamW")
    yield from ("=" * 60, f"{name_of(cell).upper()} MODEL", "=" * 60)
    yield f"Parameters: {row['parameters']:,}"
    sizes = f"Context length: {cell['context_length']}, batch size: {cell['batch_size']}"
    yield f"{sizes}, {', '.join(words)}, capture {capture_of(row)}"
    mean_s = {}
    for phase in phases[:1] if phases == ["forward", "step"] else phases:
        yield from ("", f"{phase.capitalize()}:")
        for title, steps in (("Warmup", row["warmup"]), ("Measurement", row["measured"])):
            yield f"  {title} steps:"
            for index, times in enumerate(steps, 1):
                yield f"    Step {index}: {times[phase] / 1e3:.6f} seconds"
        seconds = [times[phase] / 1e3 for times in row["measured"]]
        mean_s[phase] = fmean(seconds)
        spread = ""
        if len(seconds) > 1:
            std = stdev(seconds)
            spread = f" ± {std:.6f} seconds (CV: {100 * std / mean_s[phase]:.2f}%)"
        yield f"  Mean: {mean_s[phase]:.6f}{spread or ' seconds'}"
    if "backward" in mean_s:
        difference = mean_s["step"] - mean_s["forward"] - mean_s.get("optimizer", 0)
        yield (
            f"  Backward-only (total - forward): {difference:.6f} seconds "
            f"({difference / mean_s['forward']:.2f}x forward)"
        )
    yield ""


def show(rows: Sequence[Row], options: Mapping[str, Any], table_of: Mapping[str, Any]) -> None:
    """Write the document of rows as the options `format` and `output` ask, and draw it with `plot`.

    Raises ResultsError without rows.
    """
    if not rows:
        raise ResultsError("there are no measurements to show")
    chosen = document(rows, **table_of)
    text = presented(chosen, format_of(options["format"], options["output"]), options["output"])
    if options.get("steps_listing") and isinstance(text, str):
        lines = [line for row in rows if row["status"] == "ok" for line in steps_of(row)]
        text = "".join(f"{line}\n" for line in lines) + text
    write(text, options["output"])
    if options.get("plot") is not None:
        from .plots import draw

        draw(frame(rows), options["plot"])
