"""Write the pages of `reports/`: commands, tables and plots, next to the figures that others published."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from nvtx_kernels.profiling.sweep import results
from report_coverage import Coverage
from report_parts import BENCHMARK, PARTS, PRECISION, Command, measuring, selecting
from report_published import beside, rows_of

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
    if command.module == BENCHMARK:
        yield from _benchmark(command, results.rows_in(files), plot, tiny=tiny)
    else:
        yield _said(command, files, ["--plot", str(plot)])


def _benchmark(command: Command, rows: list[dict[str, Any]], plot: Path, *, tiny: bool) -> Iterator[str]:
    wanted = [row for row in results.latest(rows) if command.repeats or row["cell"]["repeat"] == 0]
    covered = Coverage(command, wanted, tiny=tiny)
    if not covered.rows:
        yield "No results."
        return
    about = "".join(f"- {sentence}\n" for sentence in covered.sentences(complete=command.selects is None))
    names = set(command.tables.split(","))
    tables = [name for name in command.tables.split(",") if name not in COMPARES or covered.varies(COMPARES[name])]
    if not command.tables or not tables:
        yield about
        return
    worth = covered.configurations > 1 and (names.isdisjoint(COMPARES) or not COMPARES.keys().isdisjoint(tables))
    options = [
        *selecting(command, tiny=tiny),
        "--table",
        ",".join(tables),
        *(["--plot", str(plot)] if worth else []),
    ]
    with tempfile.TemporaryDirectory() as folder:
        selected = Path(folder, "rows.jsonl")
        selected.write_text("".join(f"{json.dumps(row)}\n" for row in covered.rows))
        yield f"{about}\n{_said(command, [selected], options)}"


def _said(command: Command, files: list[Path], options: Sequence[str]) -> str:
    """Return what a command says of files of results; what it cannot do is reported on the screen."""
    words = [sys.executable, "-m", command.module, "--results", *map(str, files), "--format", "markdown", *options]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode and done.stderr:
        print(done.stderr.strip(), flush=True)
    return done.stdout or "No results."


def _precision(path: Path) -> str:
    told = json.loads(path.read_text())
    about = told["about"] if "about" in told else [told["heading"], *told["accounting"]]
    parts = [f"- {line}" for line in about]
    for table in told["tables"]:
        lines = pd.DataFrame(rows_of(table)).to_markdown(index=False, disable_numparse=True)
        parts.append(f"\n**{table['title']}**\n\n{lines}")
    return "\n".join(parts) + "\n"
