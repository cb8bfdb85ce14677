"""Many summaries as a few matrices with a column per rank: phases, ranges, steps, and who was last in collectives.

Ranks are sorted by their number and name first, so that the same summaries in any order give the same answer, to
the nanosecond. Where ranks wait for each other, a slow one does not show in the length of its steps, which are all
equal, but in its kernels other than collectives, and in being the last in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as FilePath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import AnalysisError, ReportError
from ..measures.alignment import Aligned, Parts, align
from ..measures.collectives import COLLECTIVES, listed_ranks
from ..summary.file import ALL, Head, read_rows
from ..support.cores import cores
from ..support.progress import each
from ..trace import Int64s, Path

SEPARATOR = "\x1f"
Floats = NDArray[np.float64]
#: What a rank's time must exceed the median by to be called slow: so many deviations (1.4826 times the median
#: absolute deviation), and this share of the median. Chance exceeds six once in a thousand million times.
DEVIATIONS, LEAST_SHARE = 6.0, 0.02
TABLES = ("phases", "ranges", "steps", "exchanges")
COLUMNS = (
    "path",
    "phase",
    "kernel_ns",
    "communication_ns",
    "self_ns",
    "span_ns",
    "step",
    "collective",
    "group",
    "ranks",
    "start_ns",
    "end_ns",
)


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank: the name of its summary, its number (-1 if unknown), its host, and how many steps it measured."""

    name: str
    number: int
    host: str
    steps: int


@dataclass(frozen=True)
class Ranks:
    """The ranks, and their rows as one table with a column `place`, the rank's position.

    `missing` has sentences on the ranks that are not here, or could not be read.
    """

    ranks: tuple[Rank, ...]
    heads: tuple[Head, ...]
    rows: pa.Table
    missing: tuple[str, ...]

    @cached_property
    def phases(self) -> tuple[list[str], Floats]:
        """Kernel time by phase and rank, ns per step: names, and float64 (phases, ranks)."""
        return self._matrix("phases", "kernel_ns", ("phase",))

    @cached_property
    def ranges(self) -> tuple[list[tuple[Path, str]], Floats]:
        """Kernels in each range and in none below, ns per step: paths with phases, and float64 (ranges, ranks)."""
        keys, self_ns = self._matrix("ranges", "self_ns", ("path", "phase"))
        parts = [key.split(SEPARATOR) for key in keys]
        return [(tuple(path), phase) for *path, phase in parts], self_ns

    @cached_property
    def compute_ns(self) -> Floats:
        """Kernel time of each step without collectives by rank, ns; NaN for steps that a rank lacks."""
        return self._by_step("kernel_ns") - self._by_step("communication_ns")

    @cached_property
    def span_ns(self) -> Floats:
        """GPU span of each step by rank, ns; NaN for steps that a rank lacks."""
        return self._by_step("span_ns")

    @cached_property
    def exchanges(self) -> pa.Table:
        """The kernels that communicate, of all ranks."""
        return self.rows.filter(pc.equal(self.rows["table"], "exchanges"))

    @cached_property
    def aligned(self) -> Aligned | None:
        """Who waited for whom in the collectives; None where nothing communicates."""
        return align(self._parts, one_clock=False) if len(self.exchanges) else None

    @cached_property
    def late_ns(self) -> Floats:
        """By exchange how much later its rank came than the median of the ranks if that is clearly so, else 0, ns.

        A rank's lateness is what it waited less than the others: clocks of hosts need not agree.
        """
        late_ns = np.zeros(len(self.exchanges))
        if self.aligned is None:
            return late_ns
        parts, waiting_ns = self._parts, self.aligned.waiting_ns
        order = np.lexsort((parts.start_ns, parts.rank, parts.group, parts.collective))
        order = order[waiting_ns[order] >= 0]
        key = np.stack([parts.collective[order], parts.group[order]])
        begins = np.flatnonzero((key[:, 1:] != key[:, :-1]).any(0)) + 1
        for rows in (rows for rows in np.split(order, begins) if len(rows)):
            in_turn = rows.reshape(len(np.unique(parts.rank[rows])), -1).T  # (collectives, ranks)
            earlier_ns = -waiting_ns[in_turn].astype(np.float64)
            lateness_ns = earlier_ns - np.median(earlier_ns, axis=1, keepdims=True)
            late_ns[in_turn] = np.where(clearly_above(earlier_ns), lateness_ns, 0.0)
        return late_ns

    @cached_property
    def _parts(self) -> Parts:
        table = self.exchanges
        groups = table["group"].combine_chunks().dictionary_encode()
        group_names = groups.dictionary.to_pylist()
        listed = np.array([listed_ranks(name) for name in group_names], np.int64)
        group = groups.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        unnamed = np.array([not name for name in group_names])[group]
        world_size = max(int(head.provenance.run.get("world_size") or 0) for head in self.heads)
        size = np.where(listed[group] > 0, listed[group], world_size)
        collective = pc.index_in(table["collective"], pa.array(COLLECTIVES)).to_numpy().astype(np.int64)
        return Parts(
            _ints(table["place"]),
            collective,
            np.where(unnamed, -1, group),
            np.maximum(_ints(table["ranks"]), size),
            _ints(table["start_ns"]),
            _ints(table["end_ns"]),
        )

    def _matrix(self, table: str, column: str, keys: Sequence[str]) -> tuple[list[str], Floats]:
        """Return the distinct keys in their order, and a column by key and rank, per step."""
        rows = self.rows.filter(pc.equal(self.rows["table"], table))
        texts = [pc.binary_join(rows[key], SEPARATOR) if key == "path" else rows[key] for key in keys]
        joined = pc.binary_join_element_wise(*texts, SEPARATOR) if len(texts) > 1 else texts[0]
        encoded = joined.combine_chunks().dictionary_encode()
        names: list[str] = encoded.dictionary.to_pylist()
        order = np.argsort(np.array(names, object), kind="stable")
        row_of = np.empty(len(names), np.int64)
        row_of[order] = np.arange(len(names))
        cells = np.zeros((len(names), len(self.ranks)))
        row = row_of[encoded.indices.to_numpy(zero_copy_only=False)]
        np.add.at(cells, (row, _ints(rows["place"])), _ints(rows[column]))
        steps = np.array([max(rank.steps, 1) for rank in self.ranks])
        return [names[number] for number in order.tolist()], cells / steps

    def _by_step(self, column: str) -> Floats:
        is_step = pc.and_(pc.equal(self.rows["table"], "steps"), pc.equal(self.rows["phase"], ""))
        rows = self.rows.filter(is_step)
        cells = np.full((max((rank.steps for rank in self.ranks), default=0), len(self.ranks)), np.nan)
        values = pc.fill_null(pc.cast(rows[column], pa.float64()), float("nan")).to_numpy()
        cells[_ints(rows["step"]), _ints(rows["place"])] = values
        return cells


def _ints(column: pa.ChunkedArray) -> Int64s:
    numbers: Int64s = pc.fill_null(column, 0).to_numpy().astype(np.int64)
    return numbers


def read_one(path: FilePath) -> tuple[Head, pa.Table]:
    """Return what the reduction needs of one summary: per step, of the work in measured steps."""
    head, rows = read_rows(path, TABLES, COLUMNS)
    counted = pc.or_(pc.equal(rows["of"], head.of), pc.equal(rows["of"], ALL))
    is_sum = pc.is_in(rows["table"], pa.array(["phases", "ranges"]))
    keep = pc.and_(counted, pc.or_(pc.invert(is_sum), pc.equal(rows["of"], head.of)))
    return head, rows.filter(keep)


def read_all(paths: Sequence[FilePath]) -> list[tuple[str, tuple[Head, pa.Table] | str]]:
    """Read summaries in threads: each name with what was read, or the sentence that says why it could not be."""

    def attempt(path: FilePath) -> tuple[str, tuple[Head, pa.Table] | str]:
        try:
            return path.name, read_one(path)
        except AnalysisError as error:
            return path.name, str(error)

    with ThreadPoolExecutor(cores()) as pool:
        return list(each(pool.map(attempt, paths), len(paths)))


def reduced(summaries: Iterable[tuple[str, tuple[Head, pa.Table] | str]]) -> Ranks:
    """Join summaries, in any order; raises ReportError if none can be read, or if they count different work."""
    whole = [(name, content) for name, content in summaries if not isinstance(content, str)]
    problems = [f"{name} is left out: {content}" for name, content in summaries if isinstance(content, str)]
    if not whole:
        raise ReportError(f"None of {len(problems)} summaries can be read. {problems[0] if problems else ''}")
    if len({head.provenance.unit_of_work for _, (head, _) in whole}) > 1:
        raise ReportError("Some summaries count a GPU's work and some a CPU's: their times cannot be compared.")
    whole.sort(key=lambda pair: (pair[1][0].rank, pair[0]))
    tables = [
        table.append_column("place", pa.array(np.full(len(table), place)))
        for place, (_, (_, table)) in enumerate(whole)
    ]
    heads = tuple(head for _, (head, _) in whole)
    ranks = tuple(
        Rank(name, head.rank, head.host, head.steps // max(int(head.reports[ALL]["ranks"]), 1))
        for name, (head, _) in whole
    )
    return Ranks(ranks, heads, pa.concat_tables(tables), (*sorted(problems), *_absent(heads)))


def _absent(heads: Sequence[Head]) -> list[str]:
    """Return a sentence on ranks that have no summary here, and on those that have several."""
    numbers = [head.rank for head in heads if head.rank >= 0]
    sizes = [int(head.provenance.run.get("world_size") or 0) for head in heads]
    expected = max([*sizes, max(numbers, default=-1) + 1])
    absent = sorted({*range(expected)} - {*numbers}) if numbers else []
    sentences = []
    if absent:
        some = ", ".join(map(str, absent[:8])) + (", …" if len(absent) > 8 else "")
        sentences.append(f"{len(absent)} of {expected} ranks have no summary here ({some}).")
    if len(set(numbers)) < len(numbers):
        twice = sorted({number for number in numbers if numbers.count(number) > 1})
        sentences.append(f"Several summaries are of rank {', '.join(map(str, twice[:8]))}.")
    return sentences


def clearly_above(values: Floats) -> NDArray[np.bool_]:
    """Mark the values of the last axis that lie clearly above their median, by DEVIATIONS and LEAST_SHARE."""
    median = np.nanmedian(values, axis=-1, keepdims=True)
    deviation = 1.4826 * np.nanmedian(np.abs(values - median), axis=-1, keepdims=True)
    marked: NDArray[np.bool_] = values > median + np.maximum(DEVIATIONS * deviation, LEAST_SHARE * np.abs(median))
    return marked
