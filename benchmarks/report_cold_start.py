"""Write in Markdown what `cold_start.py` measured: what the first steps of a process spend their time in."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import pandas as pd

HOW = {False: "eager", True: "compile", "reduce-overhead": "compile, reduce-overhead"}
ABOUT = """\
### What the first steps of cold processes spend their time in, ms

```console
$ python benchmarks/cold_start.py
$ python benchmarks/cold_start.py --compile
$ python benchmarks/cold_start.py --compile reduce-overhead
```

PyTorch's profiler watches, so that eager steps take longer here than above; kernels in a replayed CUDA graph have
no launch of their own and are not counted. Each process here and above begins with empty caches of compiled code.

"""


def cold_starts(out: Path) -> list[str]:
    """Return in Markdown the tables of a folder's cold starts, and what they show."""
    path = out / "cold_start.jsonl"
    if not path.exists():
        return []
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    steps_of = {run["cell"]["compile"]: run["steps"] for run in runs}
    tables = [f"**{HOW[how]}**\n\n{table_of(steps)}\n" for how, steps in steps_of.items()]
    return [
        f"{ABOUT}{_about_run(runs[0])}\n",
        *([_summary(steps_of)] if steps_of.keys() == HOW.keys() else []),
        *tables,
    ]


def table_of(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each step, without the causes that no step has."""
    table = pd.DataFrame(steps).fillna(0)
    return table.loc[:, (table != 0).any()].round(2).to_markdown(index=False)


def _about_run(run: Mapping[str, Any]) -> str:
    cell, state = run["cell"], run["state"]
    return (
        f"{cell['size']}, context {cell['context_length']}, batch {cell['batch_size']}, {cell['mode']}, "
        f"{cell['dtype']}, {cell['attention']} attention; {state['device_name']}, PyTorch {state['torch']}."
    )


def _summary(steps_of: Mapping[bool | str, Sequence[Mapping[str, Any]]]) -> str:
    eager, compiled, graphed = (steps_of[how] for how in HOW)
    first, compiling = eager[0], compiled[0]
    text = f"""
        The first eager step takes {first["step"]:.0f} ms: {first["loading code"]:.0f} ms load code,
        {first["launching new kernels"]:.0f} ms launch {first["new kernels"]:.0f} kernels for the first time,
        {first["allocating"]:.0f} ms allocate memory; the rest is mostly waiting for the GPU and work outside of
        CUDA's calls. Compilation takes {compiling["compiling"] / 1e3:.1f} of the first
        {compiling["step"] / 1e3:.1f} s, and the second step is warm; with `reduce-overhead` the second step still
        takes {graphed[1]["step"]:.0f} ms, in which CUDA graphs are recorded, and the third
        {graphed[2]["step"]:.0f} ms: it needs two steps of warm-up.
    """
    return f"{fill(' '.join(text.split()), 118)}\n"
