"""The tables of a sweep: each a frame of plain numbers, and how its columns read.

A table is one function from the frame of `study_frames` and one line in TABLES.
"""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from nvtx_kernels.analysis.document import Table

from .frames import CONFIGURATION, PHASES, place, sessions_of, varying
from .tables import Shown, number, pair, setting, table, trouble, word

SETTINGS = {name: setting(header, name) for name, header in CONFIGURATION.items()}
PHASE = setting("phase", "phase")
N = number("n", "n", "count")
STEPS = number("n", "step n", "count")
MEAN = number("mean ms", "mean_ms", "ms")
STD = number("std ms", "std_ms", "ms")
MEDIAN = number("median ms", "median_ms", "ms")
WHEN = Shown("at, UTC", ("started",), "text", lambda started: _minutes(started))
CV = number("CV %", "cv_percent", "ratio")
PARAMETERS = number("parameters", "parameters", "count")
RATES = (
    N, number("step ms", "mean_ms", "ms"), Shown("tokens/s", ("tokens_per_s",), "count", round),
    number("TFLOP/s", "tflops", "ratio"), number("MFU %", "mfu_percent", "ratio"),
)  # fmt: skip


def _when(lines: pd.DataFrame) -> tuple[Shown, ...]:
    """Return a column with the time each line was measured, if that was in several sessions."""
    return (WHEN,) if len(sessions_of(lines)) > 1 else ()


def _minutes(started: str) -> str | None:
    return ", ".join(dict.fromkeys(text[11:16] for text in started.split())) or None


def _settings(lines: pd.DataFrame) -> tuple[Shown, ...]:
    return tuple(SETTINGS[name] for name in varying(lines))


def times(lines: pd.DataFrame) -> Table:
    """Return the statistics of every phase."""
    low, middle, high = (number(f"{name} ms", f"{name}_ms", "ms") for name in ("min", "median", "max"))
    columns = (*_settings(lines), PHASE, N, MEAN, STD, CV, low, middle, high, *trouble(lines))
    title = "Times of the measured steps, CPU clock, each phase synchronized; std is the sample's"
    return table("times", title, lines, columns)


def summary(lines: pd.DataFrame) -> Table:
    """Return one line per configuration: parameters, and mean and std of every phase."""
    wide = _wide(lines, ("mean_ms", "std_ms", "n", "parameters"))
    phases = [phase for phase in PHASES if wide[f"{phase} mean_ms"].notna().any()]
    times = [Shown(f"{phase} ms", (f"{phase} mean_ms", f"{phase} std_ms"), "spread", pair) for phase in phases]
    columns = (*_settings(wide), STEPS, *times, *_when(wide), *trouble(wide))
    return table("summary", "Mean and std of the measured steps", wide, columns)


def backward(lines: pd.DataFrame) -> Table:
    """Return the backward as timed, and as the step's time minus its other phases."""
    wide = _wide(lines, ("mean_ms", "n"))
    wide = wide[wide["backward mean_ms"].notna()].copy()
    others = wide["optimizer mean_ms"].fillna(0)
    wide["total_ms"] = wide["step mean_ms"] - others
    wide["backward_by_difference_ms"] = wide["total_ms"] - wide["forward mean_ms"]
    wide["ratio"] = wide["backward mean_ms"] / wide["forward mean_ms"]
    wide["ratio_by_difference"] = wide["backward_by_difference_ms"] / wide["forward mean_ms"]
    columns = (
        number("forward ms", "forward mean_ms", "ms"),
        number("backward ms", "backward mean_ms", "ms"),
        number("/ forward", "ratio", "ratio"),
        number("total ms", "total_ms", "ms"),
        number("total - forward ms", "backward_by_difference_ms", "ms"),
        number("/ forward ", "ratio_by_difference", "ratio"),
    )
    title = "Backward, timed and by difference; total is the step without its optimizer"
    return table("backward", title, wide, (*_settings(wide), STEPS, *columns))


def modes(lines: pd.DataFrame) -> Table:
    """Return forward alone, and forward and backward together, each from its own process."""
    pairs = forward_and_both(lines)
    columns = (
        *(SETTINGS[name] for name in _shared(lines)),
        PARAMETERS,
        number("n, forward", "n", "count"),
        number("n, both", "n_both", "count"),
        Shown("forward ms", ("mean_ms", "std_ms"), "spread", pair),
        Shown("forward+backward ms", ("mean_ms_both", "std_ms_both"), "spread", pair),
        number("backward ms", "backward_ms", "ms"),
        number("/ forward", "ratio", "ratio"),
        *_when(pairs),
        *trouble(pairs),
    )
    title = "Forward without gradients, forward and backward, and their difference"
    return table("modes", title, pairs, columns)


def forward_and_both(lines: pd.DataFrame) -> pd.DataFrame:
    """Return a line per pair of modes: columns of the forward, `_both` of both, `backward_ms` and `ratio`."""
    shared = [name for name in CONFIGURATION if name not in ("mode", "optimizer")]
    trouble = ("status", "phase", "requested_bytes", "message", "started")
    kept = [*shared, "parameters", "n", "mean_ms", "std_ms", *trouble]
    alone, both = _only(lines, "forward", "forward")[kept], _only(lines, "forward-backward", "step")[kept]
    pairs = alone.merge(both, how="outer", on=shared, suffixes=("", "_both"), validate="one_to_one")
    pairs["backward_ms"] = pairs["mean_ms_both"] - pairs["mean_ms"]
    pairs["ratio"] = pairs["backward_ms"] / pairs["mean_ms"]
    pairs = _with_trouble_of_both(pairs).sort_values(_shared(lines), kind="stable", key=_places)
    return pairs.reindex(columns=list(dict.fromkeys((*CONFIGURATION, *pairs.columns))))


def _shared(lines: pd.DataFrame) -> list[str]:
    return [name for name in varying(lines) if name not in ("mode", "optimizer")]


def _only(lines: pd.DataFrame, mode: str, phase: str) -> pd.DataFrame:
    """Return the lines of a mode's phase, and those of the mode that say what went wrong."""
    return lines[(lines["mode"] == mode) & ((lines["phase"] == phase) | (lines["status"] != "ok"))]


def _with_trouble_of_both(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return pairs that say what went wrong in either of the two, and skip a missing one."""
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
    return table("throughput", "Throughput of whole steps", steps, (*_settings(steps), PARAMETERS, *RATES))


def memory(lines: pd.DataFrame) -> Table:
    """Return the most that tensors held in each phase, in one more step after the measured ones."""
    wide = _wide(lines, ("peak_bytes", "n"))
    phases = [phase for phase in PHASES if wide[f"{phase} peak_bytes"].notna().any()]
    columns = [number(f"{phase} GiB", f"{phase} peak_bytes", "GiB") for phase in phases]
    title = "Peak memory of tensors per phase, of one step (n = 1) after the measured ones"
    return table("memory", title, wide, (*_settings(wide), *columns, *trouble(wide)))


def warmup(lines: pd.DataFrame) -> Table:
    """Return the first step of the process apart, and the measured steps by how many came before them."""
    ordered = lines[lines["status"] == "ok"].sort_values("warmup", kind="stable")
    ordered = ordered.sort_values("size", kind="stable", key=_places)
    apart = [column for column in _settings(ordered) if column.sources != ("warmup",)]
    first = number("first step ms", "first_ms", "ms")
    columns = (*apart, PHASE, SETTINGS["warmup"], first, N, MEAN, STD, CV, *_when(ordered))
    title = "Measured steps by steps of warm-up, each in a fresh process; its first step apart"
    return table("warmup", title, ordered, columns)


def fastest(lines: pd.DataFrame) -> Table:
    """Return the fastest configuration of each size and mode, by tokens per second."""
    steps = lines[(lines["phase"] == "step") & lines["capture"].eq("none")]
    work = ["device_name", "size", "mode"]
    best = steps.loc[steps.groupby(work, sort=False, dropna=False)["tokens_per_s"].idxmax()]
    how = ("size", "mode", "context_length", "batch_size", "dtype", "attention", "compile", "optimizer")
    columns = (*(SETTINGS[name] for name in how), *RATES, *_when(best))
    return table("fastest", "Fastest configuration by size and mode", best, columns)


def compared(axis: str) -> Callable[[pd.DataFrame], Table]:
    """Return the table that compares the values of one setting with the first of them, phase by phase."""

    def made(lines: pd.DataFrame) -> Table:
        """Return mean times by one setting, and their ratio to its first value."""
        ok = lines[lines["status"] == "ok"]
        first = ok[axis].iloc[0]
        shared = [*(name for name in CONFIGURATION if name != axis), "phase"]
        base = ok[ok[axis] == first][[*shared, "mean_ms"]].rename(columns={"mean_ms": "base_ms"})
        both = ok.merge(base, how="left", on=shared, validate="many_to_one")
        both["ratio"] = both["mean_ms"] / both["base_ms"]
        apart = [column for column in _settings(both) if column.sources != (axis,)]
        ratio = number(f"/ {CONFIGURATION[axis]} {word(first)}", "ratio", "ratio")
        columns = (*apart, PHASE, SETTINGS[axis], N, MEAN, STD, MEDIAN, ratio, *_when(both))
        order = [*(name for name in varying(both) if name != axis), "phase", axis]
        both = both.sort_values(order, kind="stable", key=_places)
        title = f"Times by {CONFIGURATION[axis]}; the ratio is of the means"
        return table(axis, title, both, columns)

    return made


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
    """Return each value's place among those of its setting, for sorting."""
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
