"""Fuzz the commands with changed reports: python -m tests.fuzzing --cases 100000 --seed 1.

Every case takes a stretch of a real report, changes its values, tables or bytes (tests/analysis/mutations.py) and
runs a command on it, as tests/analysis/checks.py has it. A command must answer or say one sentence, within
`SECONDS` and `MEMORY_BYTES`. Each seed stands for `CASES_PER_SEED` cases in a process of its own. What fails is
shrunk and printed, ends the cases of its seed, and makes the exit status 1.
"""

import argparse
import faulthandler
import multiprocessing
import multiprocessing.connection
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

from tests.analysis.checks import CHECKS, check
from tests.analysis.fragments import fragments
from tests.analysis.mutations import CHANGES, changed

SECONDS, MEMORY_BYTES = 10, 1 << 30
IN_MEMORY = "/dev/shm"
CASES_PER_SEED = 1_000


class Independent(HypothesisProvider):
    """Draws every case anew, by its seed alone.

    By itself, Hypothesis makes five of six cases out of parts of the last one, and takes constants from the code
    under test, so that a seed would stand for other cases once that is mended.
    """

    def _maybe_draw_constant(self, *_, **__):
        return None


AVAILABLE_PROVIDERS["independent"] = f"{__name__}.{Independent.__name__}"


def cases():
    """Return a strategy for cases: which stretch, what is changed, which check."""
    return st.tuples(st.integers(0, len(fragments()) - 1), CHANGES, st.integers(0, len(CHECKS) - 1))


def run(case, folder):
    """Run one case in an empty folder; a process in which one takes too long ends and says where."""
    which, changes, number = case
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        check(folder, fragments()[which], changed(fragments()[which], changes), CHECKS[number])
    finally:
        faulthandler.cancel_dump_traceback_later()
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def fuzz(count, first):
    """Run cases drawn from a seed, and raise the first that fails, shrunk; return how many passed."""
    passed = 0
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if Path(IN_MEMORY).is_dir() else None) as folder:

        @seed(first)
        @settings(
            max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink), backend="independent",
        )  # fmt: skip
        @given(cases())
        def every(case):
            nonlocal passed
            run(case, Path(folder))
            passed += 1

        every()
    return passed


def _work(cases_, first, results):
    """Fuzz in a process of its own; one that fails, hangs or runs out of memory leaves no result."""
    # Of data, not of addresses: the allocator sets 64 MiB of these aside for each thread that Arrow starts.
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    passed = fuzz(cases_, first)
    results.put((passed, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))


def _processes(seeds, workers, results):
    """Start a process for each seed, so many at a time; yield each with its seed when it has ended."""
    waiting, running = list(seeds), {}
    while waiting or running:
        while waiting and len(running) < workers:
            first, count = waiting.pop(0)
            process = multiprocessing.Process(target=_work, args=(count, first, results))
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
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same cases again (now: the time)")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    _print(f"seed {options.seed}: {options.cases:,} cases of {len(fragments())} stretches of reports")
    began, results, passed, most, failed = time.monotonic(), multiprocessing.SimpleQueue(), 0, 0, []
    counts = [min(CASES_PER_SEED, options.cases - done) for done in range(0, options.cases, CASES_PER_SEED)]
    for process, first in _processes([*enumerate(counts, options.seed)], options.workers, results):
        process.join()  # its pipe closes a moment before its exit status is there
        if process.exitcode:
            failed.append(first)
            continue
        count, mebibytes = results.get()
        passed, most = passed + count, max(most, mebibytes)
        _print(f"{passed:,} passed in {time.monotonic() - began:.0f} s, at most {most} MiB each")
    _print(f"seed {options.seed}: {passed:,} passed" + (f"; failed: seeds {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
