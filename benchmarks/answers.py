"""Compare what two checkouts answer about the same reports, command by command.

    python benchmarks/answers.py --write before.json CHECKOUT REPORT…   # the answers of one checkout, once
    python benchmarks/answers.py before.json after.json                 # which differ, and how they begin to

A report is a file, or a folder of them; `.xz` files are unpacked into a temporary folder. An answer is what a
command prints, or writes, with its exit status; those of one checkout are made in one process, so that numpy is
imported once. Commands that a checkout does not know count as answers, too.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

VIEWS = (
    *("phases", "agreement", "attention", "steps", "balance", "overlap", "communication", "efficiency", "memory"),
    *("idle", "fix"),
)
FORMATS = ("table", "json", "csv", "markdown")
SUFFIXES = (".sqlite", ".json", ".json.gz", ".nsys-rep", ".db")


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each answer, and the words of its command; REPORT and OUT stand for paths."""
    for form in FORMATS:
        yield f"rank {form}", ["rank", "REPORT", "--format", form]
        yield f"rank --per-step {form}", ["rank", "REPORT", "--per-step", "--format", form]
        for by in ("kernel", "category", "range"):
            yield f"rank --by {by} {form}", ["rank", "REPORT", "--by", by, "--format", form]
        for view in VIEWS:
            yield f"view {view} {form}", ["view", view, "REPORT", "--format", form]
    yield "rank --totals table", ["rank", "REPORT", "--totals"]
    yield "rank --phase backward table", ["rank", "REPORT", "--phase", "backward"]
    yield "rank --include-warmup table", ["rank", "REPORT", "--include-warmup"]
    yield "compare table", ["compare", "REPORT", "REPORT"]
    yield "compare json", ["compare", "REPORT", "REPORT", "--format", "json"]
    for form in FORMATS:
        yield f"ask {form}", ["ask", "REPORT", "--format", form]
    yield "rank --like-nsys table", ["rank", "REPORT", "--like-nsys"]
    yield "doctor", ["doctor", "REPORT"]
    yield "doctor --json", ["doctor", "REPORT", "--json"]
    yield "scrub --check", ["scrub", "REPORT", "--check"]
    yield "timeline", ["timeline", "REPORT", "-o", "OUT"]
    yield "page", ["page", "REPORT", "-o", "OUT"]


def answers(reports: Sequence[str]) -> dict[str, str]:
    """Return the answers of this process's nvtx-kernels, by report and command."""
    from nvtx_kernels.__main__ import main

    found: dict[str, str] = {}
    for report in reports:
        for name, words in commands():
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "answer.html"
                places = {"REPORT": report, "OUT": str(out)}
                said, status = io.StringIO(), 0
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    try:
                        status = main([places.get(word, word) for word in words])
                    except SystemExit as error:
                        status = error.code if isinstance(error.code, int) else 2
                written = out.read_text(encoding="utf-8") if out.exists() else ""
                text = said.getvalue().replace(str(out), "OUT").replace(report, Path(report).name) + written
                found[f"{Path(report).name}: {name}"] = f"{text}exit {status}\n"
        print(Path(report).name, file=sys.stderr)
    return found


def unpacked(paths: Sequence[Path], folder: Path) -> Iterator[Path]:
    """Yield the reports at these paths, packed ones unpacked into the folder."""
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside:
            name = file.name.removesuffix(".xz")
            if not file.is_file() or not name.endswith(SUFFIXES):
                continue
            if name == file.name:
                yield file
                continue
            (folder / name).write_bytes(lzma.decompress(file.read_bytes()))
            yield folder / name


def write(checkout: Path, paths: Sequence[Path], into: Path) -> None:
    """Write the answers of a checkout's code to a file."""
    script = Path(__file__).resolve()
    with tempfile.TemporaryDirectory() as folder:
        reports = [str(path.resolve()) for path in unpacked(paths, Path(folder))]
        copied = shutil.copy(script, folder)  # outside of any checkout, whose folder would come first
        environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "COLUMNS": "100", "NO_COLOR": "1"}
        words = [sys.executable, copied, "--answer", *reports]
        done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True)
    into.write_bytes(done.stdout)


def differences(before: dict[str, str], after: dict[str, str], lines: int) -> Iterator[str]:
    """Yield the differing answers with the head of their difference, then how many differ by command."""
    common = [name for name in before if name in after]
    differing = [name for name in common if before[name] != after[name]]
    for name in differing:
        sides = (text.splitlines() for text in (before[name], after[name]))
        changed = [line[:200] for line in difflib.unified_diff(*sides, lineterm="", n=0)][2:]
        yield "\n".join([f"== {name}", *changed[:lines]])
    counts = Counter(name.partition(": ")[2] for name in differing)
    yield "\n".join(f"{count:5}  {command}" for command, count in sorted(counts.items()))
    yield f"{len(differing)} of {len(common)} answers differ; {len({*before} ^ {*after})} are on one side only."


def main() -> int:
    """Run the command; return 1 if answers differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", help="two files of answers; or a checkout and reports")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the answers of CHECKOUT on REPORT…")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)  # in the process of a checkout
    parser.add_argument("--lines", type=int, default=6, help="of each difference (6)")
    options = parser.parse_args()
    if options.answer:
        json.dump(answers([str(path) for path in options.paths]), sys.stdout)
        return 0
    if options.write:
        write(options.paths[0], options.paths[1:], options.write)
        return 0
    if len(options.paths) != 2:
        parser.error("give two files of answers")
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in options.paths)
    found = [*differences(before, after, options.lines)]
    print("\n".join(found))
    return int(len(found) > 2)


if __name__ == "__main__":
    sys.exit(main())
