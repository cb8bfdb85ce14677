"""Measure on one GPU what `reports/` holds: every row of the published tables, and the studies.

python benchmarks/record_reports.py OUT a b002 --budget 540
python benchmarks/record_reports.py OUT a b002 --pages

Parts, the most important first; each is a list of commands of `profiling` that go on where they were stopped,
so the same command again finishes what a budget cut short. Rows go to OUT/measurements*.jsonl, part c's to
OUT/compile*.jsonl and f's to OUT/attention*.jsonl; files from several machines or GPUs may lie side by
side. `--pages` measures nothing: it writes OUT/PART.md, and OUT/PART.png where matplotlib is installed.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from report_parts import PARTS, PRECISION, Command, measuring


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path, help="the folder that everything goes to")
    options.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default, in this order")
    options.add_argument("--budget", type=float, default=540, help="seconds for this invocation (default 540)")
    options.add_argument("--device", default="cuda", help="cuda (default), cuda:1, cpu")
    options.add_argument("--number", default="", help="of the files of results, where several run side by side")
    options.add_argument("--pages", action="store_true", help="measure nothing; write tables and plots")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or write pages; return 1 if a command failed."""
    command = parser()
    options = command.parse_args(arguments)
    names = options.parts or list(PARTS)
    if unknown := set(names) - set(PARTS):
        command.error(f"no such part: {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.pages:
        # Pandas and matplotlib are for where reports are written.
        from report_pages import write_pages

        write_pages(options.out, names)
        return 0
    return _measure(options, names)


def _measure(options: argparse.Namespace, names: Sequence[str]) -> int:
    """Run the parts' commands until the budget is spent, whatever becomes of each."""
    deadline, failed = time.monotonic() + options.budget, 0
    for name in names:
        for command in PARTS[name].commands:
            left_s = deadline - time.monotonic()
            if left_s < 1:
                print(f"{name}: the budget of {options.budget:g} s is spent", flush=True)
                return failed
            failed |= _run(name, command, options, left_s)
    return failed


def _run(name: str, command: Command, options: argparse.Namespace, left_s: float) -> int:
    words = [*measuring(command), "--device", options.device]
    output = options.out / f"{name}{options.number}.log"
    if command.module == PRECISION:
        words += ["--format", "json"]
        output = options.out / f"precision{options.number}.json"
    else:
        rows = options.out / f"{command.file}{options.number}.jsonl"
        words += ["--into", str(rows), "--budget", f"{left_s:.0f}"]
    began_s = time.monotonic()
    try:
        with output.open("w" if command.module == PRECISION else "a") as log:
            status = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, timeout=left_s + 30).returncode
    except subprocess.TimeoutExpired:
        status = 1
    print(f"{name}: status {status} after {time.monotonic() - began_s:.0f} s: {' '.join(words[2:])}", flush=True)
    return int(status != 0)


if __name__ == "__main__":
    # The packages are found from here, installed or not.
    os.chdir(Path(__file__).resolve().parents[1])
    sys.path.append(str(Path.cwd()))
    sys.exit(main())
