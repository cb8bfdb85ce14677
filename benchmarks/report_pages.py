"""Write the pages of `reports/`: commands, tables and plots, next to the figures that others published."""

import contextlib
import io
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from nvtx_kernels.profiling.benchmark import parser
from nvtx_kernels.profiling.study import results
from nvtx_kernels.profiling.study.frame import CONFIGURATION, sessions, word
from nvtx_kernels.profiling.study.results import Row
from nvtx_kernels.profiling.study.studies import BY, STUDIES
from report_cold_start import cold_starts
from report_parts import BENCHMARK, PARTS, PRECISION, Command, measuring, selecting
from report_published import beside, markdown_of

NO_OPTIMIZER = ("forward", "forward-backward")


def write_pages(out: Path, names: Sequence[str], *, plots: bool = True) -> None:
    """Write OUT/PART.md, and OUT/PART.png where there is matplotlib, for every part that has rows."""
    for name in names:
        text = page(out, name, plots=plots)
        (out / f"{name}.md").write_text(text)
        print(f"{out / name}.md: {len(text):,} characters", flush=True)


def page(out: Path, name: str, *, plots: bool = False) -> str:
    """Return a part's page from the files of results in a folder; a note stands where it comes first."""
    part, blocks = PARTS[name], [f"# {PARTS[name].title}"]
    for index, command in enumerate(part.commands):
        plot = out / f"{name}{index or ''}.png"
        blocks.append(f"```console\n$ python {' '.join(measuring(command)[1:])}\n```")
        blocks += _answers(out, command, plot if plots else None)
        if plot.exists():
            blocks.append(f"![{part.title}]({plot.name})")
    blocks += beside(out, name)
    if name == "w":
        blocks += cold_starts(out)
    noted: set[str] = set()
    lines_of_blocks = []
    for block in blocks:
        lines = [line for line in block.splitlines() if line not in noted]
        noted |= {line for line in lines if line.startswith("- ")}
        lines_of_blocks.append("\n".join(lines) + "\n")
    return "\n".join(lines_of_blocks)


def _answers(out: Path, command: Command, plot: Path | None) -> Iterator[str]:
    """Yield in Markdown what files of results hold of a command, made by the command itself."""
    if command.module == PRECISION:
        yield from (markdown_of(path) for path in sorted(out.glob("precision*.json")))
        return
    files = sorted(out.glob(f"{command.file}*.jsonl"))
    if command.module != BENCHMARK:
        yield shown(command, files, "", plot) if files else "No results."
        return
    rows = results.latest(results.rows_in(files))
    lists = _lists(command)
    selected = [
        row
        for row in rows
        if (command.repeats or row["cell"]["repeat"] == 0)
        and all(row["cell"][name] in (*values, None) for name, values in lists.items())
    ]
    if not selected:
        yield "No results."
        return
    yield "".join(f"- {sentence}\n" for sentence in coverage(command, lists, selected))
    final = [row["cell"] for row in selected if row["status"] in results.FINAL]
    for options in command.shows:
        by = options.partition("--by ")[2].partition(" ")[0] or "capture"
        if by == "phase" or len({str(cell[BY[by]]) for cell in final}) > 1:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "rows.jsonl")
                path.write_text("".join(f"{json.dumps(row)}\n" for row in selected))
                yield shown(command, [path], options, plot)
            plot = None


def _lists(command: Command) -> dict[str, list[Any]]:
    """Return the values that a command measures, by setting."""
    options = vars(parser().parse_args(selecting(command)))
    study = STUDIES[options["study"]]
    lists = {name: options[name] or study.lists.get(name) for name in CONFIGURATION if name in options}
    lists["capture"] = options["captures"] or study.captures
    return {name: list(values) for name, values in lists.items() if isinstance(values, list | tuple)}


def coverage(command: Command, lists: dict[str, list[Any]], rows: Sequence[Row]) -> Iterator[str]:
    """Yield how many of a command's configurations have a result, when they were measured, and which have none.

    Of a command that shows other parts' rows, only when these were measured.
    """
    final = [row for row in rows if row["status"] in results.FINAL]
    spans = []
    for first, last in sessions(row["started"] for row in final):
        until = "" if last - first < timedelta(minutes=1) else f" to {last:%H:%M}"
        spans.append(f"{first:%Y-%m-%d %H:%M}{until}")
    when = f"{'; '.join(spans)} (UTC)"
    if command.selects is not None:
        yield f"The tables hold this command's rows, and others' that differ in a setting: measured {when}."
        return
    cells = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    for cell in cells:
        if cell.get("mode") in NO_OPTIMIZER and "optimizer" in cell:
            cell["optimizer"] = None
    measured = [{name: row["cell"][name] for name in lists} for row in final]
    distinct = [cell for index, cell in enumerate(cells) if cell not in cells[:index]]
    missing = [cell for cell in distinct if cell not in measured]
    count = len(distinct) - len(missing)
    yield f"{count} of the command's {len(distinct)} configurations were measured, {when}."
    if missing:
        # Configurations that differ in the last setting alone are named together.
        *names, last_name = [name for name, values in lists.items() if len(values) > 1]
        groups: dict[str, list[str]] = {}
        for cell in missing:
            words = [
                str(cell[name]) if isinstance(cell[name], str) else f"{CONFIGURATION[name]} {word(cell[name])}"
                for name in names
            ]
            groups.setdefault(" ".join(words), []).append(word(cell[last_name]))
        names = [f"{key} {CONFIGURATION[last_name]} {', '.join(group)}" for key, group in groups.items()]
        yield f"Without a result: {'; '.join(names)}."


def shown(command: Command, files: Sequence[Path], options: str, plot: Path | None) -> str:
    """Return a command's output for files of results; its errors go to the screen."""
    words = ["--results", *map(str, files), "--format", "markdown", *selecting(command), *options.split()]
    if plot is not None:
        words += ["--plot", str(plot)]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        import_module(f"nvtx_kernels.{command.module}").main(words)
    return output.getvalue() or "No results."
