"""Hold what was measured here against the figures that others published, and write that as Markdown.

`published.csv` holds times, a line each, with the file or write-up it comes from; what a source does not say is
left empty. `published_precision.csv` holds results of the precision experiments.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from nvtx_kernels.analysis.document import Document
from nvtx_kernels.analysis.presenters import as_markdown
from nvtx_kernels.profiling.study import results
from nvtx_kernels.profiling.study.frame import STATISTICS, frame, word
from nvtx_kernels.profiling.study.results import Row
from nvtx_kernels.profiling.study.table import Shown, number, of_frame, setting

HERE = Path(__file__).parent
# Whose published figures belong to which part, by their source and whether they name a context.
SOURCES = {
    "a": (("plain model", True), ("write-up 6", True), ("write-up 16", True), ("write-up 17", True)),
    "b002": (("002_77d669363750f8ba", True),),
    "b003": (("003_d8ba0be73dd58136", True), ("004_eb7fbf47c76d1b9b", False)),
    "n": (("004_eb7fbf47c76d1b9b", True),),
}
# The files of results, where they are not those that most parts share.
FILES = {"n": "nsys", "w": "warmup"}
# How many steps of warm-up are taken off a run that began cold, and how many then count.
WARMUPS, COUNTED = (0, 1, 2, 5), 10
# Figures of the same GPU are within this of ours, or explained.
SAME_GPU, TOLERANCE = "NVIDIA H200", 0.1
# Figures taken after more steps than this, or after no stated number, were taken warm.
WARM = 3
SAME = ["size", "context_length", "mode", "dtype", "warmup", "capture", "phase"]
PLAIN = {"attention": "reference", "compile": False, "batch_size": 4, "steps": 10}
# Times under nsys and without, of one model, and their captures.
UNDER_NSYS, WITHOUT = "001_121e700d409ca9a3", "000_fc945e6f540424e2"
DASH = "a dash stands for what a source does not say, or what was not measured here; no ratio without a context"


def beside(out: Path, part: str) -> list[str]:
    """Return in Markdown a part's published figures and ours."""
    rows = results.rows_in(sorted(out.glob(f"{FILES.get(part, 'measurements')}*.jsonl")))
    if part in SOURCES:
        return [_times(rows, _published(part))]
    if part == "w":
        return [_warmups(rows)]
    if part == "d":
        return [_slowdown(rows)]
    return [_precision(path) for path in sorted(out.glob("precision*.json"))] if part == "g" else []


def _published(part: str) -> pd.DataFrame:
    """Return a part's published times, those of one source together."""
    lines = _all_published()
    parts = [
        lines[(lines["source"] == source) & (lines["context_length"].notna() == names_context)]
        for source, names_context in SOURCES[part]
    ]
    return pd.concat(parts)


def _all_published() -> pd.DataFrame:
    lines = pd.read_csv(HERE / "published.csv").rename(columns={"context": "context_length"})
    return lines.astype({"context_length": "Int64", "warmup": "Int64", "n": "Int64"})


def _times(rows: list[Row], published: pd.DataFrame) -> str:
    """Return published times with ours: eager, of one process, forward and backward apart and by difference."""
    plain = [row for row in rows if _is_plain(row, ("none", "nsys-light")) and row["cell"]["repeat"] == 0]
    lines = frame(results.latest(plain)).replace({"capture": {"nsys-light": "nsys"}})
    ok = lines[lines["status"] == "ok"]
    alone = ok[(ok["mode"] == "forward") & (ok["phase"] == "forward")]
    both = ok[(ok["mode"] == "forward-backward") & (ok["phase"] == "step")]
    shared = [name for name in SAME if name not in ("mode", "phase")]
    pairs = both.merge(alone[[*shared, "mean_ms"]], on=shared, suffixes=("", "_alone"))
    differences = pairs.assign(phase="step - forward", mean_ms=pairs["mean_ms"] - pairs["mean_ms_alone"])
    ours = pd.concat([ok, differences])[[*SAME, "n", "mean_ms", "std_ms"]]
    ours = ours.astype({"context_length": "Int64", "warmup": "Int64"})

    stated = published.assign(stated=published["warmup"])
    stated["warmup"] = stated["warmup"].where(stated["warmup"] < WARM, 5)
    pairs = stated.merge(ours, how="left", on=SAME, suffixes=("", "_ours"), validate="many_to_one")
    pairs["ratio"] = pairs["mean_ms_ours"] / pairs["mean_ms"]
    close = ((pairs["ratio"] - 1).abs() <= TOLERANCE).astype(object)
    pairs["close"] = close.where((pairs["gpu"] == SAME_GPU) & pairs["ratio"].notna())

    sources = published[["source", "gpu", "compiled"]].drop_duplicates().itertuples(index=False)
    names = (f"{source} (GPU {gpu}, compiled {compiled})" for source, gpu, compiled in sources)
    about = f"Published: {', '.join(names)}; {DASH}. Ours: eager, reference attention, batch 4."
    title = "Compared with the published figures (mean ± sample std; n steps in each)"
    return as_markdown.present(Document(about, (of_frame("published", title, pairs, list(_columns(pairs))),)))


def _is_plain(row: Row, captures: Sequence[str]) -> bool:
    cell = row["cell"]
    is_same = all(cell[name] == value for name, value in PLAIN.items())
    return is_same and cell["optimizer"] in (None, "foreach") and results.capture_of(row) in captures


def _columns(pairs: pd.DataFrame) -> Iterator[Shown]:
    if pairs["source"].nunique() > 1:
        yield setting("source", "source")
    for name in SAME:
        column = "stated" if name == "warmup" else name
        if name == "size" or pairs[column].nunique(dropna=False) > 1:
            yield setting(name.replace("context_length", "context").replace("warmup", "warm-up"), column)
    yield number("published, n", "n", "count")
    yield Shown("published ms", "spread", lambda line: (line["mean_ms"], line["std_ms"]))
    yield number("ours, n", "n_ours", "count")
    yield Shown(
        "ours ms", "spread", lambda line: line["mean_ms_ours"] and (line["mean_ms_ours"], line["std_ms_ours"])
    )
    yield number("ours / published", "ratio", "ratio")
    if pairs["close"].notna().any():
        yield setting("within 10 %", "close")


def _warmups(rows: list[Row]) -> str:
    """Return the means of ten steps after different warm-ups, of runs that began cold, and a source's rows."""
    later = []
    for row in results.latest(rows):
        steps = row.get("measured", [])
        for warmup in WARMUPS if len(steps) >= WARMUPS[-1] + COUNTED else ():
            counted = {"warmup": steps[:warmup], "measured": steps[warmup : warmup + COUNTED]}
            later.append({**row, "cell": {**row["cell"], "warmup": warmup, "steps": COUNTED}, **counted})
    ours = frame(later).assign(source="here")
    published = _all_published()
    published = published[published["source"] == WITHOUT].assign(compile=True)
    lines = pd.concat([ours, published]).astype({"compile": object, "warmup": "Int64"})
    lines["compile"] = [how if isinstance(how, str) else word(bool(how)) for how in lines["compile"]]
    lines = lines[lines["phase"].isin(("forward", "backward"))]
    lines = lines.sort_values(["size", "phase", "source", "compile", "warmup"], kind="stable", key=_by_text)
    columns = (
        *(setting(name, name) for name in ("source", "size", "phase")),
        setting("compile", "compile"),
        setting("warm-up", "warmup"),
        number("n", "n", "count"),
        number("mean ms", "mean_ms", "ms"),
        number("std ms", "std_ms", "ms"),
        number("median ms", "median_ms", "ms"),
        number("first step ms", "first_ms", "ms"),
    )
    title = "Mean of ten steps after ten of warm-up, of one process each that began cold"
    about = f"{WITHOUT}: compiled, on a GPU and at a context that it does not say; here at context 512."
    lines = lines[["source", "size", "phase", "compile", "warmup", *STATISTICS, "first_ms"]]
    return as_markdown.present(Document(about, (of_frame("warmups", title, lines, columns),)))


def _by_text(values: pd.Series) -> pd.Series:
    return values if values.name == "warmup" else values.astype(str)


def _slowdown(rows: list[Row]) -> str:
    """Return how much longer phases take under nsys: published, and here."""
    published = _all_published()
    published = published[published["source"].isin((UNDER_NSYS, WITHOUT)) & published["warmup"].fillna(5).eq(5)]
    lines = frame(results.latest([row for row in rows if _is_plain(row, ("nsys-light", "none"))]))
    ratios = [
        *_ratios(published, "nsys", f"{UNDER_NSYS} under nsys, {WITHOUT} without"),
        *_ratios(lines[lines["dtype"] == "fp32"], "nsys-light", "here, nsys-light"),
    ]
    columns = (
        *(setting(name, name) for name in ("source", "size", "mode", "phase")),
        number("alone ms", "alone", "ms"),
        number("under nsys ms", "watched", "ms"),
        number("ratio", "ratio", "ratio"),
    )
    title = "Slower under nsys: mean of the phase under it, and without it"
    about = f"{WITHOUT} and {UNDER_NSYS} are of one model, compiled, on a GPU that they do not say"
    return as_markdown.present(Document(about, (of_frame("slower", title, pd.DataFrame(ratios), columns),)))


def _ratios(lines: pd.DataFrame, watched: str, source: str) -> Iterator[dict[str, Any]]:
    """Yield a line for every phase that has a time under a capture and one without."""
    lines = lines[lines["warmup"].fillna(5).eq(5) & lines["context_length"].fillna(512).eq(512)]
    for (size, mode, phase), same in lines.groupby(["size", "mode", "phase"], sort=False):
        times = same.set_index("capture")["mean_ms"].to_dict()
        if {watched, "none"} <= set(times):
            line = {"source": source, "size": size, "mode": mode, "phase": phase}
            ratio = times[watched] / times["none"]
            yield {**line, "alone": times["none"], "watched": times[watched], "ratio": ratio}


def markdown_of(path: Path) -> str:
    """Return the precision experiments of a JSON file; files of before 0.2.0 call rows lines."""
    document = json.loads(path.read_text())
    about = document["about"] if "about" in document else [document["heading"], *document["accounting"]]
    parts = [f"- {line}" for line in about]
    for table in document["tables"]:
        lines = pd.DataFrame(_rows_of(table)).to_markdown(index=False, disable_numparse=True)
        parts.append(f"\n**{table['title']}**\n\n{lines}")
    return "\n".join(parts) + "\n"


def _rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    return list(table["rows"] if "rows" in table else table["lines"])


def _precision(path: Path) -> str:
    published = pd.read_csv(HERE / "published_precision.csv", dtype=str, keep_default_na=False)
    sums, types = (_rows_of(table) for table in json.loads(path.read_text())["tables"][:2])
    ours = {}
    for line in sums:
        cast = "" if line["added_as"] == "no" else f" as {line['added_as']}"
        ours[f"{line['sum']} + {line['addend']}{cast}", ""] = f"{line['result']:.4f}"
    for line in types:
        ours |= {(line["tensor"], dtype): line[dtype] for dtype in ("bf16", "fp16")}
    published["ours"] = [ours.get(key, "-") for key in zip(published["what"], published["dtype"], strict=True)]
    published["same"] = ["yes" if a == b else "no" for a, b in published[["published", "ours"]].to_numpy()]
    title = "Compared with the published results (sums to four decimals)"
    return f"**{title}**\n\n{published.to_markdown(index=False, disable_numparse=True)}\n"
