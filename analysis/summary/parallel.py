"""Many reports at once, such as one per rank: each is ranked where it is stored, and only its summary is sent.

Locally the reports are ranked in processes, as many as there are cores; with a scheduler, on a Dask cluster. A
report that cannot be read, or over which a worker is lost, is reported, and only its row is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import AnalysisError, UsageError
from ..support import progress
from ..support.cores import cores

T = TypeVar("T")
Summarize = Callable[[Path], T]

LOST = "the process that read it was lost, as happens when memory runs out"


@dataclass(frozen=True, slots=True)
class Ranked(Generic[T]):
    """One report of several: its name among them, and its summary or the reason why it has none."""

    name: str
    report: T | None = None
    problem: str = ""


def rank_all(paths: Sequence[Path], summarize: Summarize[T], *, scheduler: str | None = None) -> list[Ranked[T]]:
    """Summarize every report, in their order; `summarize` must be importable by other processes."""
    ranked = _on_cluster(scheduler, paths, summarize) if scheduler else _in_processes(paths, summarize)
    with progress.on_screen("ranking reports"):
        results = dict(progress.each(ranked, len(paths)))
    each = []
    for name, path in zip(names_of(paths), paths, strict=True):
        result = results[path]
        each.append(Ranked(name, problem=result) if isinstance(result, str) else Ranked(name, result))
    return each


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return the names of reports' files, or their whole paths if some names are equal."""
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    return [str(path) for path in paths]


def attempt(path: Path, summarize: Summarize[T]) -> T | str:
    """Summarize one report; an error is returned as a sentence."""
    try:
        return summarize(path)
    except AnalysisError as error:
        return str(error)
    except MemoryError:
        return "there was not enough memory for it"


def _in_processes(paths: Sequence[Path], summarize: Summarize[T]) -> Iterator[tuple[Path, T | str]]:
    """Rank in one pool; the reports of a lost process are tried once more, alone."""
    left = set(paths)
    try:
        for path, result in _pool(paths, summarize, cores()):
            left.discard(path)
            yield path, result
    except BrokenExecutor:
        for path in (path for path in paths if path in left):
            try:
                yield from _pool([path], summarize, 1)
            except BrokenExecutor:
                yield path, LOST


def _pool(paths: Sequence[Path], summarize: Summarize[T], workers: int) -> Iterator[tuple[Path, T | str]]:
    context = get_context("forkserver" if hasattr(os, "fork") else "spawn")
    with ProcessPoolExecutor(min(workers, len(paths)), mp_context=context, initializer=_be_modest) as pool:
        running = {pool.submit(attempt, path, summarize): path for path in paths}
        for future in as_completed(running):
            yield running[future], future.result()


def _be_modest() -> None:
    """Read with one thread, because there is a process per core, and leave the screen to the command."""
    from ..support import threads

    threads.MAX_THREADS = 1
    progress.be_quiet()


def _on_cluster(scheduler: str, paths: Sequence[Path], summarize: Summarize[T]) -> Iterator[tuple[Path, T | str]]:
    """Rank on a Dask cluster; each report must have the same path on its workers."""
    try:
        from distributed import Client
        from distributed import as_completed as completed
    except ImportError as error:
        raise UsageError("--scheduler needs Dask: pip install 'nvtx-kernels[cluster]'") from error
    try:
        client: Any = Client(scheduler, timeout="20s", set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(f"No Dask scheduler answers at {scheduler}: {error}") from error
    with client, client.as_current():
        running = {client.submit(attempt, path.absolute(), summarize, pure=False): path for path in paths}
        for future in completed(list(running)):  # type: ignore[no-untyped-call]
            # A lost worker takes with it what it had not begun: each is tried once more, alone.
            path = running[future]
            last_try = future
            if future.status != "finished":
                last_try = client.submit(attempt, path.absolute(), summarize, pure=False)
            yield path, last_try.result() if last_try.exception() is None else LOST
