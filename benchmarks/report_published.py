"""Hold what was measured here against the figures that others published, and write that as Markdown.

`published.csv` holds times, a line each, with the id of its source; what a source does not say is left empty.
`published_precision.csv` holds results of the precision experiments.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from nvtx_kernels.analysis.document import Document
from nvtx_kernels.analysis.presenters import as_markdown
from nvtx_kernels.profiling.show import studies
from nvtx_kernels.profiling.show.frame_tables import Shown, number, pair, setting, table
from nvtx_kernels.profiling.show.frames import frame
from nvtx_kernels.profiling.sweep import results

HERE = Path(__file__).parent
# Whose published figures belong to which part.
SOURCES = {
    "a": ("plain model", "W6", "W16", "W17"),
    "b002": ("seed 002",),
    "b003": ("seed 003", "seed 000", "seed 004"),
    "b004": ("seed 004",),
}
# Figures of seed 004 that name no context are not part of its sweep.
WITHOUT_CONTEXT = ("b003",)
# Figures of the same GPU are within this of ours, or explained.
SAME_GPU, TOLERANCE = "NVIDIA H200", 0.1
# Figures taken after more steps than this, or after no said number, were taken warm.
WARM = 3
SAME = ["size", "context_length", "mode", "dtype", "warmup", "phase"]
PLAIN = {"attention": "reference", "compile": False, "batch_size": 4, "steps": 10}
FIRST = 0
SLOWER = ("seed 001", "seed 000", ("nsys", "none"), ("nsys-light", "none"))
DASH = "a dash stands for what a source does not say, or what was not measured here; no ratio without a context"


def beside(out: Path, part: str) -> Iterator[str]:
    """Yield in Markdown a part's published figures and ours."""
    rows = results.rows_in(sorted(out.glob("measurements*.jsonl")))
    if part in SOURCES:
        yield _times(rows, _published(part))
    if part == "d":
        yield _slowdown(rows)
    if part == "g":
        yield from (_precision(path) for path in sorted(out.glob("precision*.json")))


def _published(part: str) -> pd.DataFrame:
    """Return a part's published times, those of one source together."""
    lines = _all_published()
    lines = lines[lines["source"].isin(SOURCES[part])]
    if part in WITHOUT_CONTEXT:
        lines = lines[(lines["source"] != "seed 004") | lines["context_length"].isna()]
    else:
        lines = lines[lines["context_length"].notna()]
    lines = lines[lines["capture"] == "none"].copy()
    order = {source: index for index, source in enumerate(SOURCES[part])}
    return lines.sort_values("source", kind="stable", key=lambda names: names.map(order))


def _all_published() -> pd.DataFrame:
    lines = pd.read_csv(HERE / "published.csv").rename(columns={"context": "context_length"})
    return lines.astype({"context_length": "Int64", "warmup": "Int64", "n": "Int64"})


def _times(rows: list[dict[str, Any]], published: pd.DataFrame) -> str:
    ours = _ours(rows).astype({"context_length": "Int64", "warmup": "Int64"})
    asked = published.assign(said=published["warmup"])
    asked["warmup"] = asked["warmup"].where(asked["warmup"] < WARM, 5)
    pairs = asked.merge(ours, how="left", on=SAME, suffixes=("", "_ours"), validate="many_to_one")
    pairs["ratio"] = pairs["mean_ms_ours"] / pairs["mean_ms"]
    close = ((pairs["ratio"] - 1).abs() <= TOLERANCE).astype(object)
    pairs["close"] = close.where((pairs["gpu"] == SAME_GPU) & pairs["ratio"].notna())
    title = "Compared with the published figures (mean ± sample std; n steps in each)"
    made = table("published", title, pairs, tuple(_columns(pairs)))
    return as_markdown.present(Document(_about(published), (made,)))


def _about(published: pd.DataFrame) -> str:
    told = published[["source", "gpu", "compiled"]].drop_duplicates().itertuples(index=False)
    each = (f"{source} (GPU {gpu}, compiled {compiled})" for source, gpu, compiled in told)
    return f"Published: {', '.join(each)}; {DASH}. Ours: eager, reference attention, batch 4."


def _ours(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return plain eager figures by what they measure; the difference of two modes is a phase of its own."""
    rows = [row for row in rows if _is_plain(row, ("none",)) and row["cell"]["repeat"] == FIRST]
    lines = frame(results.latest(rows))
    differences = studies.forward_and_both(lines)
    differences = differences.assign(
        mode="forward-backward", phase="step - forward", mean_ms=differences["backward_ms"]
    )
    differences = differences.assign(std_ms=differences["std_ms_both"], n=differences["n_both"])
    both = pd.concat([lines[lines["status"] == "ok"], differences], ignore_index=True)
    return both[[*SAME, "n", "mean_ms", "std_ms"]].dropna(subset=["mean_ms"])


def _is_plain(row: dict[str, Any], captures: Sequence[str]) -> bool:
    cell = row["cell"]
    same = all(cell[name] == value for name, value in PLAIN.items())
    return same and cell["optimizer"] in (None, "foreach") and results.capture_of(row) in captures


def _columns(pairs: pd.DataFrame) -> Iterator[Shown]:
    if pairs["source"].nunique() > 1:
        yield setting("source", "source")
    for name in SAME:
        shown = "said" if name == "warmup" else name
        if name == "size" or pairs[shown].nunique(dropna=False) > 1:
            yield setting(name.replace("context_length", "context").replace("warmup", "warm-up"), shown)
    yield number("published, n", "n", "count")
    yield Shown("published ms", ("mean_ms", "std_ms"), "spread", pair)
    yield number("ours, n", "n_ours", "count")
    yield Shown("ours ms", ("mean_ms_ours", "std_ms_ours"), "spread", pair)
    yield number("ours / published", "ratio", "ratio")
    if pairs["close"].notna().any():
        yield setting("within 10 %", "close")


def _slowdown(rows: list[dict[str, Any]]) -> str:
    """Return how much longer phases take under nsys: published, and here."""
    watched, alone, theirs, ours = SLOWER
    published = _all_published()
    published = published[published["source"].isin((watched, alone)) & published["warmup"].fillna(5).eq(5)]
    lines = frame(results.latest([row for row in rows if _is_plain(row, ours)]))
    told = [
        *_ratios(published.assign(torch=published["source"]), theirs, f"{watched} under nsys, {alone} without"),
        *_ratios(lines[lines["dtype"] == "fp32"], ours, "here, nsys-light"),
    ]
    columns = (
        *(setting(name, name) for name in ("source", "size", "mode", "phase")),
        number("alone ms", "alone", "ms"),
        number("under nsys ms", "watched", "ms"),
        number("ratio", "ratio", "ratio"),
    )
    title = "Slower under nsys: mean of the phase under it, and without it"
    about = "seed 000 and 001 are of one model, compiled, on a GPU that they do not say"
    return as_markdown.present(Document(about, (table("slower", title, pd.DataFrame(told), columns),)))


def _ratios(lines: pd.DataFrame, captures: tuple[str, str], source: str) -> Iterator[dict[str, Any]]:
    """Yield a line for every phase that has a time under the first capture and one under the second."""
    lines = lines[lines["warmup"].fillna(5).eq(5) & lines["context_length"].fillna(512).eq(512)]
    for (size, mode, phase), same in lines.groupby(["size", "mode", "phase"], sort=False):
        times = same.set_index("capture")["mean_ms"].to_dict()
        if set(captures) <= set(times):
            watched, alone = (times[name] for name in captures)
            known = {"source": source, "size": size, "mode": mode, "phase": phase}
            yield {**known, "alone": alone, "watched": watched, "ratio": watched / alone}


def _precision(path: Path) -> str:
    published = pd.read_csv(HERE / "published_precision.csv", dtype=str, keep_default_na=False)
    ours = _precision_here(json.loads(path.read_text())["tables"])
    published["ours"] = [ours.get(key, "-") for key in zip(published["what"], published["dtype"], strict=True)]
    published["same"] = ["yes" if a == b else "no" for a, b in published[["published", "ours"]].to_numpy()]
    title = "Compared with the published results (sums to four decimals)"
    return f"**{title}**\n\n{published.to_markdown(index=False, disable_numparse=True)}\n"


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a table in JSON; files of before 0.2.0 call them lines."""
    return list(table["rows"] if "rows" in table else table["lines"])


def _precision_here(tables: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return our results by what and dtype."""
    sums, types = (rows_of(table) for table in tables)
    found = {}
    for line in sums:
        cast = "" if line["added_as"] == "no" else f" as {line['added_as']}"
        found[f"{line['sum']} + {line['addend']}{cast}", ""] = f"{line['result']:.4f}"
    for line in types:
        found |= {(line["tensor"], dtype): line[dtype] for dtype in ("bf16", "fp16")}
    return found
