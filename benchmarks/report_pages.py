"""Write the pages of `reports/`: commands, tables and plots, beside the figures that others published."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from report_coverage import Coverage
from report_parts import BENCHMARK, PARTS, PRECISION, Command, measuring, selecting
from report_published import beside

from profiling import results

# Tables that compare the values of a setting, and say nothing where there is one.
COMPARES = {
    "capture": "capture",
    "compile": "compile",
    "attention": "attention",
    "dtype": "dtype",
    "context": "context_length",
}


def write_pages(out: Path, names: Sequence[str], *, tiny: bool) -> None:
    """Write OUT/PART.md, and OUT/PART.png where there is matplotlib, for every part that has rows."""
    for name in names:
        text = "\n".join(_once(_page(out, name, tiny=tiny)))
        (out / f"{name}.md").write_text(text)
        print(f"{out / name}.md: {len(text):,} characters", flush=True)


def _once(blocks: Iterator[str]) -> Iterator[str]:
    """Yield blocks without the notes that an earlier one holds."""
    said: set[str] = set()
    for block in blocks:
        lines = [line for line in block.splitlines() if line not in said]
        said |= {line for line in lines if line.startswith("- ")}
        yield "\n".join(lines) + "\n"


def _page(out: Path, name: str, *, tiny: bool) -> Iterator[str]:
    part = PARTS[name]
    yield f"# {part.title}"
    for index, command in enumerate(part.commands):
        plot = out / f"{name}{index or ''}.png"
        plot.unlink(missing_ok=True)
        yield f"```console\n$ python {' '.join(measuring(command, tiny=tiny)[1:])}\n```"
        yield from _answer(out, command, plot, tiny=tiny)
        if plot.exists():
            yield f"![{part.title}]({plot.name})"
    yield from beside(out, name)


def _answer(out: Path, command: Command, plot: Path, *, tiny: bool) -> Iterator[str]:
    """Yield in Markdown what files of results hold of a command, made by the command itself."""
    if command.module == PRECISION:
        yield from (_precision(path) for path in sorted(out.glob("precision*.json")))
        return
    files = sorted(out.glob(f"{command.rows}*.jsonl"))
    if not files:
        yield "No results."
        return
    words = [sys.executable, "-m", command.module, "--results", *map(str, files), "--format", "markdown"]
    if command.module == BENCHMARK:
        yield from _benchmark(command, files, words, plot, tiny=tiny)
    else:
        yield _said([*words, "--plot", str(plot)])


def _benchmark(command: Command, files: list[Path], words: list[str], plot: Path, *, tiny: bool) -> Iterator[str]:
    covered = Coverage(command, results.latest(_rows(files)), tiny=tiny)
    if not covered.rows:
        yield "No results."
        return
    about = "".join(f"- {sentence}\n" for sentence in covered.sentences(complete=command.selects is None))
    tables = [name for name in command.tables.split(",") if name not in COMPARES or covered.varies(COMPARES[name])]
    if not command.tables or not tables:
        yield about
        return
    asked = COMPARES.keys() & set(command.tables.split(","))
    worth = covered.configurations > 1 and (not asked or asked & set(tables))
    drawing = ["--plot", str(plot)] if worth else []
    yield about + _said([*words, *selecting(command, tiny=tiny), "--table", ",".join(tables), *drawing])


def _rows(files: list[Path]) -> list[dict[str, Any]]:
    return [row for path in files for row in results.read(path)[0]]


def _said(words: Sequence[str]) -> str:
    """Return what a command prints; a plot that cannot be drawn is told on the screen."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr.strip(), flush=True)
    return done.stdout or "No results."


def _precision(path: Path) -> str:
    told = json.loads(path.read_text())
    parts = [f"- {line}" for line in told["about"]]
    for table in told["tables"]:
        lines = pd.DataFrame(table["lines"]).to_markdown(index=False, disable_numparse=True)
        parts.append(f"\n**{table['title']}**\n\n{lines}")
    return "\n".join(parts) + "\n"
