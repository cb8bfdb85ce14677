"""What ranges inside compiled code tell on a GPU: eager, compiled, graphed and autotuned, by module.

    python benchmarks/compiled.py --programs small-fp32,medium-bf16,llama        # with nsys
    python benchmarks/compiled.py --programs small-bf16-ddp,small-bf16-fsdp2     # needs two GPUs
    python benchmarks/compiled.py --programs tiny-fp32 --device cpu              # the recorder instead of nsys

Each program runs in a process of its own under nsys, forward and backward, in one mode after the other. Before
that, all programs run at once without a tool, which fills the compiler's cache (not with `--cold`). A program
that takes longer than `--limit` is given up with a line, and the next one runs. The summary of all comes first,
then the tables of each.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compiled_answers import SUMMARY, Rows, load, planted, summary, tables
from compiled_programs import CASES
from nvtx_kernels.profiling.nsys_program import find_nsys
from nvtx_kernels.profiling.study.nsight import export_command, profile_command

PROGRAM = Path(__file__).with_name("compiled_programs.py")
USUAL = "small-fp32,small-bf16,llama,gpt2"
RANKS = 2


class GivenUpError(Exception):
    """A program failed or took too long; the text is a sentence."""


class Programs:
    """Runs programs on a device, each within a limit of seconds, with one cache of compiled code."""

    def __init__(self, device: str, folder: Path, cache: Path, limit: float, total: float) -> None:
        self.device, self.folder, self.limit = device, folder, limit
        self._last_end = time.monotonic() + total
        self._environment, self._started = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}, 0

    def warm(self, names: Iterable[str]) -> None:
        """Compile all programs at once, without a tool."""
        running = []
        for name in names:
            modes = [mode for mode in CASES[name].modes if mode != "eager"]
            options = [name, "--device", self.device, "--steps", "0", "--modes", *modes]
            running += self._start([sys.executable, str(PROGRAM), *options], CASES[name].parallel)
        ends = self._ends()
        for one in running:
            with suppress(GivenUpError):
                one.finish(ends)

    def record(self, name: str, modes: Sequence[str] = ()) -> Path:
        """Run a program with a tool attached, the first of its processes if it has several; return the report."""
        stem = "-".join((name, *modes))
        report, captured = self.folder / f"{stem}.sqlite", self.folder / f"{stem}.nsys-rep"
        program = [sys.executable, str(PROGRAM), name, "--device", self.device]
        program += ["--modes", *modes] if modes else []
        if self.device == "cpu":
            self._run([*program, "--record", str(report)], program, CASES[name].parallel)
            return report
        nsys = find_nsys()
        watched = profile_command(nsys, program, captured, preset="graphs")
        self._run(watched, program, CASES[name].parallel)
        self._run(export_command(nsys, captured), (), "")
        return report

    def _run(self, first: Sequence[str], others: Sequence[str], parallel: str) -> None:
        ends = self._ends()
        running = self._start(others, parallel, first)
        try:
            for one in running:
                one.finish(ends)
        finally:
            for one in running:
                one.end()

    def _start(self, command: Sequence[str], parallel: str, first: Sequence[str] = ()) -> list[Running]:
        """Start a program's processes; the first may have a command of its own."""
        if not parallel:
            return [Running(first or command, self._environment, self._log())]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        common = {**self._environment, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return [
            Running(
                command if rank or not first else first,
                {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                self._log(),
            )
            for rank in range(RANKS)
        ]

    def _ends(self) -> float:
        now = time.monotonic()
        if now > self._last_end:
            raise GivenUpError("no time is left")
        return min(now + self.limit, self._last_end)

    def _log(self) -> Path:
        self._started += 1
        return self.folder / f"{self._started}.log"


class Running:
    """A process that writes what it says to a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command, self._log = command, log
        with log.open("w") as said:
            self._process = subprocess.Popen(
                command, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )

    def finish(self, ends: float) -> None:
        """Wait for its end, no longer than to this time; GivenUpError says how it failed."""
        try:
            code = self._process.wait(max(ends - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            self.end()
            raise GivenUpError(f"longer than its limit: {self._last()}") from None
        if code:
            raise GivenUpError(f"status {code}: {self._last()}")

    def end(self) -> None:
        """End it and what it started, if it still runs; what nsys starts may be in another process group."""
        if self._process.poll() is None:
            for pid in [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]:
                with suppress(ProcessLookupError):
                    if os.getsid(pid) == self._process.pid:
                        os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def _last(self) -> str:
        return f"{' '.join(self._command[-6:])}\n{self._log.read_text(errors='replace')[-1500:]}"


def write(title: str, rows: Iterable[Sequence[object]], file: TextIO = sys.stdout) -> None:
    """Write rows as aligned columns; the first row has the headings."""
    cells = [[f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}", file=file)
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(line.rstrip(), file=file, flush=True)


def answer(name: str, programs: Programs, into: TextIO) -> Rows:
    """Run a program, write its tables, and return its rows of the summary."""
    if CASES[name].model == "blocks":
        reports = [load(programs.record(name, [mode])) for mode in ("eager", "compiled")]
        write(f"{name}: the compiled program's slow module among what differs from eager", planted(*reports))
        return []
    report = load(programs.record(name))
    for title, rows in tables(report):
        write(f"{name}: {title}", rows, into)
    return list(summary(name, report))


def main() -> None:
    """Run the programs, and print their summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=USUAL, metavar="A,B", help=f"of {', '.join(CASES)} (%(default)s)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--limit", type=float, default=150, metavar="SECONDS", help="for each program (%(default)s)"
    )
    parser.add_argument(
        "--total", type=float, default=450, metavar="SECONDS", help="for all programs (%(default)s)"
    )
    parser.add_argument("--cold", action="store_true", help="do not compile all programs at once first")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to keep reports and tables")
    options = parser.parse_args()
    names = options.programs.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no such program: {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        programs = Programs(options.device, folder, Path(temporary) / "cache", options.limit, options.total)
        began = time.monotonic()
        if not options.cold:
            programs.warm(names)
            print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
        found: Rows = [SUMMARY]
        with (folder / "tables.txt").open("w") as into:
            for name in names:
                try:
                    found += answer(name, programs, into)
                    print(f"{name}: done after {time.monotonic() - began:.0f} s", flush=True)
                except GivenUpError as error:
                    print(f"{name}: given up, {error}", flush=True)
        write("share of kernel time without communication", found)
        print((folder / "tables.txt").read_text())


if __name__ == "__main__":
    main()
