"""Fuzz the commands with changed inputs: python -m tests.fuzzing --cases 200000 --seed 1.

Every case takes a stretch of a real report, changes its values, tables or bytes (making/mutations.py) and runs a
command on it, as making/checks.py has it, or in one of the ways of making/ways.py: another format, options, output
targets, a kept summary. Half of the cases are of commands that read several files (making/several.py). A command
must answer or refuse in one sentence, within `SECONDS` of processor time and `MEMORY_BYTES`. Each seed stands for
`CASES_PER_SEED` cases in a process of its own. What fails is shrunk and printed, ends the cases of its seed, and
makes the exit status 1. `--coverage` prints how much of each reader the cases ran.
"""

import argparse
import contextlib
import faulthandler
import multiprocessing
import multiprocessing.connection
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

from tests.analysis.making.checks import CHECKS, check
from tests.analysis.making.fragments import fragments
from tests.analysis.making.mutations import CHANGES, changed
from tests.analysis.making.several import KINDS, Several, answer, several
from tests.analysis.making.ways import WAYS, Way, go

# Of real memory; and of what may be set aside, by Arrow's threads for instance, of which each core has one.
SECONDS, MEMORY_BYTES = 10, 1 << 29
# By the clock: a case that waits for nothing, on a machine that does much else.
WAITING_SECONDS = 120
SET_ASIDE_BYTES = MEMORY_BYTES + (1 << 30) + (multiprocessing.cpu_count() << 28)
IN_MEMORY = "/dev/shm"
CASES_PER_SEED = 1_000
READERS = [
    "*/analysis/readers/*",
    "*/analysis/scrub/fields.py",
    "*/analysis/summary/file.py",
    "*/analysis/summary/parquet.py",
]
REPORTS = "reports"


class Independent(HypothesisProvider):
    """Draws every case anew, by its seed alone.

    By itself, Hypothesis makes five of six cases out of parts of the last one, and takes constants from the code
    under test, so that a seed would stand for other cases once that is mended.
    """

    def _maybe_draw_constant(self, *_, **__):
        return None


AVAILABLE_PROVIDERS["independent"] = f"{__name__}.{Independent.__name__}"


def cases(kinds=(REPORTS, *KINDS)):
    """Return a strategy for cases: which stretch, what is changed, and which check or way; or `Several`."""
    of_report = st.tuples(st.integers(0, len(fragments()) - 1), CHANGES, st.integers(0, len(CHECKS) - 1) | WAYS)
    others = [several(kind) for kind in kinds if kind != REPORTS]
    return st.one_of([of_report] * max(1, len(others)) * (REPORTS in kinds) + others)


def _resident(which):
    """Return the memory of this process, bytes: now (`VmRSS`), or at most since `_forget_peak` (`VmHWM`)."""
    return int(re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


def _forget_peak():
    Path("/proc/self/clear_refs").write_text("5")


def run(case, folder):
    """Run one case in an empty folder, and return whether it was answered.

    One that takes too much time or memory fails; a process in which one does not end says where, and ends.
    """
    _forget_peak()
    before, began = _resident("VmRSS"), time.process_time()
    answered = _run_to_its_end(case, folder)
    took, most = time.process_time() - began, _resident("VmHWM") - before
    assert took <= SECONDS, f"{took:.1f} s"
    assert most <= MEMORY_BYTES, f"{most >> 20} MiB more than the {before >> 20} before"
    return answered


def _run_to_its_end(case, folder):
    faulthandler.dump_traceback_later(WAITING_SECONDS, exit=True)
    try:
        if isinstance(case, Several):
            return answer(folder, case)
        which, changes, asked = case
        whole = fragments()[which]
        content = changed(whole, changes)
        if isinstance(asked, Way):
            return go(folder, whole, content, asked)
        return check(folder, whole, content, CHECKS[asked])
    finally:
        faulthandler.cancel_dump_traceback_later()
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def fuzz(count, first, kinds=(REPORTS, *KINDS)):
    """Run cases drawn from a seed, and raise the first that fails, shrunk; return how many of each kind passed."""
    passed = Counter()
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if Path(IN_MEMORY).is_dir() else None) as folder:

        @seed(first)
        @settings(
            max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink), backend="independent",
        )  # fmt: skip
        @given(cases(kinds))
        def every(case):
            passed["answered"] += run(case, Path(folder))
            passed["cases"] += 1

        every()
    return passed


@contextlib.contextmanager
def _covered(folder):
    """Note which lines of the readers run, in a file of the folder; nothing without one."""
    if folder is None:
        yield
        return
    import coverage

    noted = coverage.Coverage(
        data_file=str(folder / "readers"), data_suffix=True, branch=True, include=READERS, config_file=False
    )
    with noted.collect():
        yield
    noted.save()


def _print_coverage(folder):
    import coverage

    noted = coverage.Coverage(data_file=str(folder / "readers"), branch=True, config_file=False)
    noted.combine([str(folder)])
    noted.report(file=sys.stdout, include=READERS)


def _work(cases_, first, kinds, coverage, results):
    """Fuzz in a process of its own; one that fails, hangs or runs out of memory leaves no result."""
    # Of data, not of addresses: the allocator sets 64 MiB of these aside for each thread that Arrow starts.
    resource.setrlimit(resource.RLIMIT_DATA, (SET_ASIDE_BYTES, SET_ASIDE_BYTES))
    with _covered(coverage):
        passed = fuzz(cases_, first, kinds)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    assert most <= MEMORY_BYTES, f"{most >> 20} MiB"
    results.put((first, passed, most >> 20))


def _processes(seeds, workers, *arguments):
    """Start a process for each seed, so many at a time; yield each with its seed when it has ended."""
    waiting, running = list(seeds), {}
    while waiting or running:
        while waiting and len(running) < workers:
            first, count = waiting.pop(0)
            process = multiprocessing.Process(target=_work, args=(count, first, *arguments))
            process.start()
            running[process.sentinel] = process, first
        for sentinel in multiprocessing.connection.wait(list(running)):
            yield running.pop(sentinel)


def _print(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main():
    """Fuzz on several processes; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same cases again (now: the time)")
    parser.add_argument(
        "--kind", action="append", choices=(REPORTS, *KINDS), help="only cases of this kind (several)"
    )
    parser.add_argument("--coverage", action="store_true", help="say how much of each reader was run")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    # Hypothesis writes its table of characters once per folder, for which it takes more memory than any case.
    characters = "from hypothesis.internal.charmap import intervals_from_codec as kept; kept('utf-8')"
    subprocess.run([sys.executable, "-c", characters], check=True)
    _print(f"seed {options.seed}: {options.cases:,} cases, {len(fragments())} stretches of reports")
    began, results, passed, most, failed = time.monotonic(), multiprocessing.SimpleQueue(), Counter(), 0, []
    folder = Path(tempfile.mkdtemp()) if options.coverage else None
    counts = [min(CASES_PER_SEED, options.cases - done) for done in range(0, options.cases, CASES_PER_SEED)]
    kinds = tuple(options.kind or (REPORTS, *KINDS))
    seeds = [*enumerate(counts, options.seed)]
    for process, first in _processes(seeds, options.workers, kinds, folder, results):
        process.join()  # its pipe closes a moment before its exit status is there
        if process.exitcode:
            failed.append(first)
            continue
        _, counted, mebibytes = results.get()
        passed, most = passed + counted, max(most, mebibytes)
        _print(f"{passed['cases']:,} passed in {time.monotonic() - began:.0f} s, at most {most} MiB each")
    _print(f"seed {options.seed}: {dict(passed)}" + (f"; failed: seeds {failed}" if failed else ""))
    if folder:
        _print_coverage(folder)
        shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
