"""Write the pages of `reports/`: commands, tables and plots, beside the figures that others published."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from report_parts import BENCHMARK, PARTS, PRECISION, Command, Part, measuring, selecting

from profiling import results, study_tables, table_formats
from profiling.study_frames import frame
from profiling.tables import Column, Table, number, spread, word

PUBLISHED = Path(__file__).with_name("published.csv")
# Whose published figures belong to which part. Those of the same GPU are within this of ours, or explained.
SOURCES = {"a": ("plain model",), "b002": ("seed 002",), "b003": ("seed 003",), "b004": ("seed 004",)}
TOLERANCE = 0.1
# Figures taken after more steps than this were taken warm.
WARM = 3
SAME = ["size", "context_length", "mode", "dtype", "warmup", "phase"]


def write_pages(out: Path, names: Sequence[str], *, tiny: bool) -> None:
    """Write OUT/PART.md, and OUT/PART.png where there is matplotlib, for every part that has rows."""
    for name in names:
        text = "\n".join(_page(out, name, PARTS[name], tiny=tiny))
        (out / f"{name}.md").write_text(text)
        print(f"{out / name}.md: {len(text):,} characters", flush=True)


def _page(out: Path, name: str, part: Part, *, tiny: bool) -> Iterator[str]:
    yield f"# {part.title}\n"
    for index, command in enumerate(part.commands):
        yield f"```console\n$ python {' '.join(measuring(command, tiny=tiny)[1:])}\n```\n"
        plot = out / f"{name}{index or ''}.png"
        yield _tables(out, command, plot, tiny=tiny)
        if plot.exists():
            yield f"![times]({plot.name})\n"
    if name in SOURCES:
        yield "\n".join(_beside(out, SOURCES[name]))


def _tables(out: Path, command: Command, plot: Path, *, tiny: bool) -> str:
    """Return a command's tables in Markdown, made by the command itself from the files of results."""
    if command.module == PRECISION:
        return "\n".join(_precision(path) for path in sorted(out.glob("precision*.json")))
    files = sorted(map(str, out.glob(f"{command.rows}*.jsonl")))
    if not files:
        return "Not measured yet.\n"
    words = [sys.executable, "-m", command.module, "--results", *files, "--format", "markdown"]
    if command.module == BENCHMARK:
        words += [*selecting(command, tiny=tiny), "--table", command.tables]
        _draw(words, plot)
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout or f"Not measured yet: {done.stderr.strip().splitlines()[-1]}\n"


def _draw(words: Sequence[str], plot: Path) -> None:
    done = subprocess.run([*words, "--plot", str(plot)], capture_output=True, text=True)
    if done.returncode and done.stderr:
        print(f"{plot}: {done.stderr.strip().splitlines()[-1]}", flush=True)


def _precision(path: Path) -> str:
    told = json.loads(path.read_text())
    parts = [f"- {line}" for line in told["about"]]
    for table in told["tables"]:
        lines = pd.DataFrame(table["lines"]).to_markdown(index=False, disable_numparse=True)
        parts.append(f"\n**{table['title']}**\n\n{lines}")
    return "\n".join(parts) + "\n"


def _beside(out: Path, sources: Sequence[str]) -> Iterator[str]:
    """Yield a table of our figures and the published ones that measured the same, in Markdown."""
    rows = [row for path in sorted(out.glob("measurements*.jsonl")) for row in results.read(path)[0]]
    published = pd.read_csv(PUBLISHED).rename(columns={"context": "context_length"})
    published = published[published["source"].isin(sources)].copy()
    published["warmup"] = published["warmup"].where(published["warmup"] < WARM, 5)
    pairs = published.merge(_ours(rows), on=SAME, suffixes=("", "_ours"), validate="many_to_one")
    if pairs.empty:
        yield "No published figure was measured yet.\n"
        return
    pairs["ratio"] = pairs["mean_ms_ours"] / pairs["mean_ms"]
    pairs["close"] = (pairs["ratio"] - 1).abs() <= TOLERANCE
    table = Table("Beside the published figures (mean ± sample std; n in each)", pairs, tuple(_columns(pairs)))
    yield table_formats.as_markdown(
        [table], [f"published: {', '.join(sources)}; a dash stands for what it does not say"]
    )


def _ours(rows: list[dict[str, object]]) -> pd.DataFrame:
    """Return plain eager figures by what they measure; the difference of two modes is a phase of its own."""
    lines = frame(results.latest([row for row in rows if _is_plain(row)]))
    differences = study_tables.modes(lines).lines
    differences = differences.assign(
        mode="forward-backward", phase="step - forward", mean_ms=differences["backward_ms"]
    )
    differences = differences.assign(std_ms=differences["std_ms_both"])
    both = pd.concat([lines[lines["status"] == "ok"], differences], ignore_index=True)
    return both[[*SAME, "n", "mean_ms", "std_ms"]]


def _is_plain(row: dict[str, object]) -> bool:
    cell = dict(row["cell"])  # type: ignore[call-overload]
    plain = {
        "attention": "reference",
        "compile": False,
        "capture": "none",
        "batch_size": 4,
        "steps": 10,
        "repeat": 0,
    }
    return all(cell[name] == value for name, value in plain.items()) and cell["optimizer"] in (None, "foreach")


def _columns(pairs: pd.DataFrame) -> Iterator[Column]:
    for name in SAME:
        if name == "size" or pairs[name].nunique() > 1:
            yield Column(name.replace("context_length", "context"), (name,), word)
    yield Column("ours, n", ("n_ours",), number(0))
    yield Column("ours ms", ("mean_ms_ours", "std_ms_ours"), spread)
    yield Column("published, n", ("n",), number(0))
    yield Column("published ms", ("mean_ms", "std_ms"), spread)
    yield Column("ours / published", ("ratio",), number(3))
    if (pairs["gpu"] == "NVIDIA H200").all():
        yield Column("within 10 %", ("close",), word)
