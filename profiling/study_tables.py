"""The tables of a sweep: each a frame of plain numbers, and how its columns read.

A table is one function from the frame of `study_frames` and one line in TABLES.
"""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from profiling.study_frames import CONFIGURATION, PHASES, place, sessions_of, varying
from profiling.tables import (
    GIBIBYTES,
    MS,
    NOTHING,
    WHOLE,
    Column,
    Table,
    number,
    significant,
    spread,
    trouble,
    word,
)

SETTINGS = {name: Column(header, (name,), word) for name, header in CONFIGURATION.items()}
PHASE = Column("phase", ("phase",), str)
N = Column("n", ("n",), WHOLE)
STEPS = Column("n", ("step n",), WHOLE)
MEAN = Column("mean ms", ("mean_ms",), MS)
STD = Column("std ms", ("std_ms",), MS)
MEDIAN = Column("median ms", ("median_ms",), MS)
WHEN = Column("at, UTC", ("started",), lambda started: _minutes(started))
CV = Column("CV %", ("cv_percent",), number(2))


def _when(lines: pd.DataFrame) -> tuple[Column, ...]:
    """Return a column that says when each line was measured, where that was in several sessions."""
    return (WHEN,) if len(sessions_of(lines)) > 1 else ()


def _minutes(started: str) -> str:
    return ", ".join(dict.fromkeys(text[11:16] for text in started.split())) or NOTHING


def _settings(lines: pd.DataFrame) -> tuple[Column, ...]:
    return tuple(SETTINGS[name] for name in varying(lines))


def times(lines: pd.DataFrame) -> Table:
    """Return the statistics of every phase."""
    low, middle, high = (Column(f"{name} ms", (f"{name}_ms",), MS) for name in ("min", "median", "max"))
    columns = (*_settings(lines), PHASE, N, MEAN, STD, CV, low, middle, high, *trouble(lines))
    return Table(
        "Times of the measured steps, CPU clock, each phase synchronized; std is the sample's", lines, columns
    )


def summary(lines: pd.DataFrame) -> Table:
    """Return one line per configuration: parameters, and mean and std of every phase."""
    wide = _wide(lines, ("mean_ms", "std_ms", "n", "parameters"))
    phases = [phase for phase in PHASES if wide[f"{phase} mean_ms"].notna().any()]
    columns = [Column(f"{phase} ms", (f"{phase} mean_ms", f"{phase} std_ms"), spread) for phase in phases]
    return Table(
        "Mean and std of the measured steps",
        wide,
        (*_settings(wide), STEPS, *columns, *_when(wide), *trouble(wide)),
    )


def backward(lines: pd.DataFrame) -> Table:
    """Return the backward as it was timed, and as what the step takes beyond its other phases."""
    wide = _wide(lines, ("mean_ms", "n"))
    wide = wide[wide["backward mean_ms"].notna()].copy()
    others = wide["optimizer mean_ms"].fillna(0)
    wide["total_ms"] = wide["step mean_ms"] - others
    wide["backward_by_difference_ms"] = wide["total_ms"] - wide["forward mean_ms"]
    wide["ratio"] = wide["backward mean_ms"] / wide["forward mean_ms"]
    wide["ratio_by_difference"] = wide["backward_by_difference_ms"] / wide["forward mean_ms"]
    columns = (
        Column("forward ms", ("forward mean_ms",), MS),
        Column("backward ms", ("backward mean_ms",), MS),
        Column("/ forward", ("ratio",), number(2)),
        Column("total ms", ("total_ms",), MS),
        Column("total - forward ms", ("backward_by_difference_ms",), MS),
        Column("/ forward ", ("ratio_by_difference",), number(2)),
    )
    title = "Backward, timed and by difference; total is the step without its optimizer"
    return Table(title, wide, (*_settings(wide), STEPS, *columns))


def modes(lines: pd.DataFrame) -> Table:
    """Return forward alone beside forward and backward together, each from a process of its own."""
    shared = [name for name in CONFIGURATION if name not in ("mode", "optimizer")]
    kept = [
        *shared,
        "parameters",
        "n",
        "mean_ms",
        "std_ms",
        "status",
        "phase",
        "requested_bytes",
        "message",
        "started",
    ]
    alone, both = _only(lines, "forward", "forward")[kept], _only(lines, "forward-backward", "step")[kept]
    pairs = alone.merge(both, how="outer", on=shared, suffixes=("", "_both"), validate="one_to_one")
    pairs["backward_ms"] = pairs["mean_ms_both"] - pairs["mean_ms"]
    pairs["ratio"] = pairs["backward_ms"] / pairs["mean_ms"]
    pairs = _with_trouble_of_both(pairs)
    names = [name for name in varying(lines) if name in shared]
    pairs = pairs.sort_values(names, kind="stable", key=_places)
    columns = (
        Column("parameters", ("parameters",), WHOLE),
        Column("n, forward", ("n",), WHOLE),
        Column("n, both", ("n_both",), WHOLE),
        Column("forward ms", ("mean_ms", "std_ms"), spread),
        Column("forward+backward ms", ("mean_ms_both", "std_ms_both"), spread),
        Column("backward ms", ("backward_ms",), MS),
        Column("/ forward", ("ratio",), number(2)),
    )
    title = "Forward without gradients, forward and backward, and their difference"
    pairs = pairs.reindex(columns=list(dict.fromkeys((*CONFIGURATION, *pairs.columns))))
    return Table(title, pairs, (*(SETTINGS[name] for name in names), *columns, *_when(pairs), *trouble(pairs)))


def _only(lines: pd.DataFrame, mode: str, phase: str) -> pd.DataFrame:
    """Return the lines of a mode's phase, and those of the mode that say what went wrong."""
    return lines[(lines["mode"] == mode) & ((lines["phase"] == phase) | (lines["status"] != "ok"))]


def _with_trouble_of_both(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return pairs that say what went wrong in either of the two, and nothing of one that is not there."""
    pairs = pairs.copy()
    wrong = (
        pairs["status_both"].notna() & (pairs["status_both"] != "ok") & ~pairs["status"].isin(["oom", "failed"])
    )
    for name in ("status", "phase", "requested_bytes", "message"):
        pairs[name] = pairs[name].where(~wrong, pairs[f"{name}_both"])
    pairs["status"] = pairs["status"].fillna("ok")
    pairs["parameters"] = pairs["parameters"].fillna(pairs["parameters_both"])
    alone, both = (pairs[name].fillna("").astype(str) for name in ("started", "started_both"))
    pairs["started"] = alone + " " + both
    return pairs


def throughput(lines: pd.DataFrame) -> Table:
    """Return tokens per second and FLOP/s of whole steps."""
    steps = lines[lines["phase"] == "step"]
    columns = (
        Column("parameters", ("parameters",), WHOLE),
        N,
        Column("step ms", ("mean_ms",), MS),
        Column("tokens/s", ("tokens_per_s",), WHOLE),
        Column("TFLOP/s", ("tflops",), significant(3)),
        Column("MFU %", ("mfu_percent",), number(1)),
    )
    return Table("Throughput of whole steps", steps, (*_settings(steps), *columns))


def memory(lines: pd.DataFrame) -> Table:
    """Return the most that tensors held in each phase, in one more step after the measured ones."""
    wide = _wide(lines, ("peak_bytes", "n"))
    phases = [phase for phase in PHASES if wide[f"{phase} peak_bytes"].notna().any()]
    columns = [Column(f"{phase} GiB", (f"{phase} peak_bytes",), GIBIBYTES) for phase in phases]
    title = "Peak memory of tensors per phase, of one step (n = 1) after the measured ones"
    return Table(title, wide, (*_settings(wide), *columns, *trouble(wide)))


def warmup(lines: pd.DataFrame) -> Table:
    """Return the first step of the process apart, and the measured steps by how many came before them."""
    ordered = lines[lines["status"] == "ok"].sort_values("warmup", kind="stable")
    ordered = ordered.sort_values("size", kind="stable", key=_places)
    apart = [column for column in _settings(ordered) if column.sources != ("warmup",)]
    first = Column("first step ms", ("first_ms",), MS)
    columns = (*apart, PHASE, SETTINGS["warmup"], first, N, MEAN, STD, CV, *_when(ordered))
    return Table(
        "Measured steps by steps of warm-up, each in a fresh process; its first step apart", ordered, columns
    )


def fastest(lines: pd.DataFrame) -> Table:
    """Return the fastest configuration of each size and mode, by tokens per second."""
    steps = lines[(lines["phase"] == "step") & lines["capture"].eq("none")]
    work = ["device_name", "size", "mode"]
    best = steps.loc[steps.groupby(work, sort=False, dropna=False)["tokens_per_s"].idxmax()]
    how = ("size", "mode", "context_length", "batch_size", "dtype", "attention", "compile", "optimizer")
    return Table(
        "Fastest configuration by size and mode",
        best,
        (*(SETTINGS[name] for name in how), *throughput(best).columns[-5:], *_when(best)),
    )


def compared(axis: str) -> Callable[[pd.DataFrame], Table]:
    """Return the table that compares the values of one setting with the first of them, phase by phase."""

    def table(lines: pd.DataFrame) -> Table:
        """Return mean times by one setting, and their ratio to its first value."""
        ok = lines[lines["status"] == "ok"]
        first = ok[axis].iloc[0]
        shared = [*(name for name in CONFIGURATION if name != axis), "phase"]
        base = ok[ok[axis] == first][[*shared, "mean_ms"]].rename(columns={"mean_ms": "base_ms"})
        both = ok.merge(base, how="left", on=shared, validate="many_to_one")
        both["ratio"] = both["mean_ms"] / both["base_ms"]
        apart = [column for column in _settings(both) if column.sources != (axis,)]
        ratio = Column(f"/ {CONFIGURATION[axis]} {word(first)}", ("ratio",), number(3))
        columns = (*apart, PHASE, SETTINGS[axis], N, MEAN, STD, MEDIAN, ratio, *_when(both))
        order = [*(name for name in varying(both) if name != axis), "phase", axis]
        both = both.sort_values(order, kind="stable", key=_places)
        return Table(f"Times by {CONFIGURATION[axis]}; the ratio is of the means", both, columns)

    return table


TABLES: Mapping[str, Callable[[pd.DataFrame], Table]] = {
    "times": times,
    "summary": summary,
    "backward": backward,
    "modes": modes,
    "throughput": throughput,
    "memory": memory,
    "warmup": warmup,
    "fastest": fastest,
    "capture": compared("capture"),
    "compile": compared("compile"),
    "attention": compared("attention"),
    "dtype": compared("dtype"),
    "optimizer": compared("optimizer"),
    "context": compared("context_length"),
}


def _places(values: pd.Series) -> pd.Series:
    """Return where each value stands among those of its setting, for sorting."""
    name = str(values.name)
    known = sorted(set(values.dropna()), key=lambda value: place(name, value))
    return values.map({value: index for index, value in enumerate(known)}).fillna(-1)


def _wide(lines: pd.DataFrame, values: Sequence[str]) -> pd.DataFrame:
    """Return one line per configuration, its numbers as columns `forward mean_ms` and so on."""
    about = lines.groupby(list(CONFIGURATION), sort=False, dropna=False).first().reset_index()
    numbers = lines.pivot(index=list(CONFIGURATION), columns="phase", values=list(values))
    numbers.columns = pd.Index(numbers.columns.map(lambda pair: f"{pair[1]} {pair[0]}"))
    wanted = [f"{phase} {value}" for phase in PHASES for value in values]
    numbers = numbers.reindex(columns=wanted).reset_index()
    trouble = about[[*CONFIGURATION, "status", "phase", "requested_bytes", "message", "started"]]
    return trouble.merge(numbers, on=list(CONFIGURATION), validate="one_to_one")
