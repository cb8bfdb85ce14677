"""What ranges inside compiled code tell on a GPU, and what they cost: eager, compiled and graphed, by module.

    python benchmarks/compiled.py                       # about five minutes on an H200, with nsys
    python benchmarks/compiled.py --cases medium-fp32 medium-bf16 gpt2
    python benchmarks/compiled.py --device cpu --cases tiny-fp32     # the recorder instead of nsys

Each case runs in a process of its own under nsys, forward and backward, eager, then compiled, then (where the
case says so) compiled with `mode="reduce-overhead"`. `--cost CASE` (default the first) is run twice more without
a tool, each on an empty compiler cache: with ranges in its code and without.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compiled_answers import answer, identical
from compiled_programs import CASES, MODES
from nvtx_kernels.profiling.machine.nsight import export_command, find_nsys

FLAGS = ("-t", "cuda,nvtx", "--cuda-graph-trace=node", "--force-overwrite=true", "-o")
PROGRAM = Path(__file__).with_name("compiled_programs.py")
#: Which cases are graphed too: it is another compilation.
GRAPHED = ("small-fp32", "llama")


def record(case: str, device: str, folder: Path) -> Path:
    """Run a case with a tool attached, and return its report."""
    modes = MODES if case in GRAPHED and device == "cuda" else MODES[:2]
    command = [sys.executable, str(PROGRAM), case, "--device", device, "--modes", *modes]
    report = folder / f"{case}.sqlite"
    if device == "cpu":
        _run([*command, "--record", str(report)])
        return report
    captured = folder / f"{case}.nsys-rep"
    nsys = find_nsys()
    _run([nsys, "profile", *FLAGS, str(captured), *command])
    _run(export_command(nsys, captured))
    return report


def cost(case: str, device: str, folder: Path) -> list[dict[str, object]]:
    """Run a case without a tool, with ranges in its code and without; return what each says of itself."""
    said = []
    for name, switches in (("with ranges", {}), ("without", {"NVTX_KERNELS_OPAQUE": "1"})):
        cache = folder / name.replace(" ", "_")
        environment = {**os.environ, **switches, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
        command = [sys.executable, str(PROGRAM), case, "--device", device, "--modes", "compiled", "--json"]
        printed = _run(command, environment)
        said.append({"code": name, **json.loads(printed.splitlines()[-1])})
    return said


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def show(title: str, rows: Iterable[Sequence[object]]) -> None:
    """Print rows, the first of which are headings, as aligned columns."""
    cells = [[f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main() -> None:
    """Record every case and print its tables, then what the ranges cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["small-fp32", "small-bf16", "llama"], choices=CASES)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--cost", metavar="CASE", choices=(*CASES, "none"), help="default: the first case")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to keep the reports")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        for case in options.cases:
            for title, rows in answer(record(case, options.device, folder)):
                show(f"{case}: {title}", rows)
        chosen = options.cost or options.cases[0]
        if chosen == "none":
            return
        said = cost(chosen, options.device, Path(temporary))
        keys = ("code", "step_ms", "compile_s", "graphs", "recompiled")
        show(f"{chosen}, without a tool", [keys, *([one[key] for key in keys] for one in said)])
        print(f"loss and all gradients, bit by bit: {identical([one['digests'] for one in said])}")


if __name__ == "__main__":
    main()
