"""Many summaries as a few matrices with a column per rank: phases, ranges, steps, and who was last in collectives.

Ranks are sorted by their number and name first, so that the same summaries in any order give the same answer, to
the nanosecond. Where ranks wait for each other, a slow one does not show in the length of its steps, which are all
equal, but in its kernels other than collectives, and in being the last in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path as FilePath
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ReportError
from ..measures.communication import Aligned, Parts, align
from ..measures.exchanges import COLLECTIVES, listed_ranks
from ..readers import PARQUET, SUMMARY
from ..summary.file import read_tables
from ..summary.parallel import attempt, names_of
from ..summary.selection import naming_of
from ..summary.tables import COLUMNS, Head
from ..support.cores import cores
from ..support.progress import each
from ..support.small_numbers import distinct, grouped
from ..trace import Bools, Int64s, Path, Provenance
from ..views.rows import common_length
from ..vocabulary.modules import Naming, agreed

SEPARATOR = "\x1f"
Floats = NDArray[np.float64]
#: A rank is slow if its time exceeds the median by this number of deviations (1.4826 times the median absolute
#: deviation), and by this share of the median. Chance exceeds six once in a thousand million times.
DEVIATIONS, LEAST_SHARE = 6.0, 0.02
#: The columns of each table; those of text first, which are numbered.
TEXTS: Mapping[str, Sequence[str]] = {
    "phases": ("phase",),
    "ranges": ("path", "phase"),
    "steps": ("phase",),
    "exchanges": ("path", "collective", "group"),
}
NUMBERS: Mapping[str, Sequence[str]] = {
    "phases": ("kernel_ns",),
    "ranges": ("self_ns",),
    "steps": ("step", "kernel_ns", "communication_ns", "span_ns"),
    "exchanges": ("step", "ranks", "start_ns", "end_ns", "message_bytes", "bus_bytes"),
}
#: Of a group with at least this share of its ranks here, these are compared with each other.
MOST_OF_THEM = 0.5


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of texts, as positions in those that occur; a path's names are joined by SEPARATOR."""

    distinct: list[str]
    number: Int64s

    @classmethod
    def of(cls, values: Sequence[str | Path | None]) -> Texts:
        """Return the texts of a column; "" for what is missing."""
        number_of = {value: number for number, value in enumerate(dict.fromkeys(values))}
        texts = [SEPARATOR.join(value) if isinstance(value, tuple) else value or "" for value in number_of]
        return cls(texts, np.array([number_of[value] for value in values], np.int64))


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of one table of a summary; -1 stands for a number that is unknown."""

    texts: Mapping[str, Texts]
    numbers: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.numbers.values())))


#: The tables of one summary.
Tables: TypeAlias = Mapping[str, Table]


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank: the name of its summary, its number (-1 if unknown), its host, and how many steps it measured."""

    name: str
    number: int
    host: str
    steps: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The rows of a table, of all ranks: numbers by column, and the texts that those of some columns are of.

    `place` is the rank's position, and -1 stands for a number that is unknown.
    """

    columns: Mapping[str, NDArray[Any]]
    names: Mapping[str, list[str]]

    def __len__(self) -> int:
        return len(self.columns["place"])

    def texts(self, column: str, rows: Int64s) -> list[str]:
        """Return the texts of a column at some rows."""
        return [self.names[column][number] for number in self.columns[column][rows].tolist()]


@dataclass(frozen=True)
class Ranks:
    """The ranks, what they run on, and by rank the kernel time of phases, ranges and steps, ns.

    `phases` and `ranges` have names and float64 (names, ranks) of a step, `ranges` of kernels in no range below.
    `compute_ns` (steps, ranks) is kernel time without collectives, and `span_ns` the GPU's; NaN for steps that a
    rank lacks. `exchanges` are the kernels that communicate; `missing` has sentences on ranks that are not here,
    or could not be read.
    """

    ranks: tuple[Rank, ...]
    provenance: Provenance
    gpus: tuple[str, ...]
    world_size: int
    phases: tuple[list[str], Floats]
    ranges: tuple[list[tuple[Path, str]], Floats]
    compute_ns: Floats
    span_ns: Floats
    exchanges: Joined
    missing: tuple[str, ...]

    @cached_property
    def naming(self) -> Naming:
        """How screens name the ranges of all ranks: each with its own index."""
        return naming_of(self, every_index=True)

    @cached_property
    def common_ranges(self) -> int:
        """How many ranges are around all kernels that are in ranges."""
        keys, self_ns = self.ranges
        return common_length(keys[number][0] for number in np.flatnonzero(self_ns.any(1)).tolist())

    @cached_property
    def collected(self) -> tuple[list[tuple[Path, str]], dict[str, Floats]]:
        """What collectives take by range and collective: float64 (keys, ranks) of a step each; NaN where unknown.

        `time_ns` sums durations in measured steps, in all where none has any; `waiting_ns` is what of them is
        waiting, and `bus_bytes_per_s` is of the rest.
        """
        table = self.exchanges.columns
        step = table["step"]
        place = table["place"]
        rows = np.flatnonzero(step >= 0) if len(self.span_ns) else np.arange(len(step))
        paths = self.exchanges.names["path"]
        kinds = self.exchanges.names["collective"]
        codes, key = grouped(table["path"][rows].astype(np.int64) * len(kinds) + table["collective"][rows])
        shape = len(codes), len(self.ranks)

        def summed(values: NDArray[Any], counts: Bools) -> Floats:
            sums = np.zeros(shape)
            counted = np.zeros(shape)
            np.add.at(sums, (key, place[rows]), np.where(counts, values, 0)[rows])
            np.add.at(counted, (key, place[rows]), counts[rows])
            return np.where(counted > 0, sums, np.nan)

        every = np.ones(len(step), np.bool_)
        duration_ns = table["end_ns"] - table["start_ns"]
        waiting_ns = self.aligned.waiting_ns if self.aligned else np.full(len(step), -1)
        carried = table["message_bytes"]
        bus_bytes = table["bus_bytes"]
        sized = bus_bytes >= 0  # not NaN
        moving_ns = duration_ns - np.maximum(waiting_ns, 0)
        steps = np.maximum([rank.steps for rank in self.ranks], 1)
        keys = []
        for code in codes.tolist():
            path, kind = divmod(code, len(kinds))
            keys.append((tuple(paths[path].split(SEPARATOR)), kinds[kind]))
        return keys, {
            "count": summed(every, every) / steps,
            "time_ns": summed(duration_ns, every) / steps,
            "waiting_ns": summed(waiting_ns, waiting_ns >= 0) / steps,
            "bytes": summed(carried, carried >= 0) / steps,
            "bus_bytes_per_s": summed(bus_bytes, sized) / (summed(moving_ns, sized) / 1e9),
        }

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
        parts = self._parts
        waiting_ns = self.aligned.waiting_ns
        order = np.lexsort((parts.start_ns, parts.rank, parts.group, parts.collective))
        order = order[waiting_ns[order] >= 0]
        key = np.stack([parts.collective[order], parts.group[order]])
        begins = np.flatnonzero((key[:, 1:] != key[:, :-1]).any(0)) + 1
        for rows in np.split(order, begins):
            if not len(rows):
                continue
            in_turn = rows.reshape(len(np.unique(parts.rank[rows])), -1).T  # (collectives, ranks)
            earlier_ns = -waiting_ns[in_turn].astype(np.float64)
            lateness_ns = earlier_ns - np.median(earlier_ns, axis=1, keepdims=True)
            late_ns[in_turn] = np.where(clearly_above(earlier_ns), lateness_ns, 0.0)
        return late_ns

    @cached_property
    def present_and_expected(self) -> tuple[Int64s, Int64s]:
        """By exchange how many ranks of its group have summaries here, and how many it has; 0 where unknown."""
        table = self.exchanges.columns
        group_names = self.exchanges.names["group"]
        group = table["group"].astype(np.int64)
        listed = np.array([listed_ranks(name) for name in group_names], np.int64)[group]
        expected = np.maximum(table["ranks"], np.where(listed > 0, listed, self.world_size))
        pairs = distinct(group * len(self.ranks) + table["place"])
        return np.bincount(pairs // len(self.ranks), minlength=len(group_names))[group], expected

    @cached_property
    def some_absent(self) -> Bools:
        """By exchange whether some ranks of its group are absent, but so few that the others can be compared."""
        present, expected = self.present_and_expected
        return (present < expected) & (present >= MOST_OF_THEM * expected)

    @cached_property
    def _parts(self) -> Parts:
        table = self.exchanges.columns
        names = self.exchanges.names
        present, expected = self.present_and_expected
        group = table["group"].astype(np.int64)
        unnamed = np.array([not name for name in names["group"]], np.bool_)[group]
        kind_numbers = [COLLECTIVES.index(kind) if kind in COLLECTIVES else -1 for kind in names["collective"]]
        return Parts(
            table["place"],
            np.array(kind_numbers, np.int64)[table["collective"]],
            np.where(unnamed, -1, group),
            np.where(self.some_absent, present, expected),
            table["start_ns"],
            table["end_ns"],
        )


def read_one(path: FilePath) -> tuple[Head, Tables]:
    """Return the parts of a summary that the reduction needs: its head, and rows of the work in measured steps."""
    head, stored = read_tables(path, {table: [*texts, *NUMBERS[table]] for table, texts in TEXTS.items()})
    head.provenance = replace(head.provenance, counted=())  # the most of it, and not of ranks
    tables: dict[str, Table] = {}
    for (table, _), columns in stored.items():
        tables[table] = Table(
            {name: Texts.of(columns[name]) for name in TEXTS[table]},
            {name: _numbers(columns[name], COLUMNS[table][name]) for name in NUMBERS[table]},
        )
    return head, tables


def _numbers(values: list[Any], kind: type[Any]) -> NDArray[Any]:
    """Return numbers, -1 for what is unknown."""
    dtype = np.float64 if kind is float else np.int64
    return np.array([-1 if value is None else value for value in values], dtype)


def read_all(paths: Sequence[FilePath]) -> Iterator[tuple[str, tuple[Head, Tables] | str]]:
    """Read summaries in threads: yield each name with what was read, or the sentence that says why it was not."""
    with ThreadPoolExecutor(cores()) as pool:
        contents = pool.map(attempt, paths, repeat(read_one))
        yield from zip(names_of(paths), each(contents, len(paths)), strict=True)


def reduced(summaries: Iterable[tuple[str, tuple[Head, Tables] | str]]) -> Ranks:
    """Join summaries, in any order; raises ReportError if none can be read, or if they count different work."""
    read: list[tuple[str, Head, Tables]] = []
    sources: dict[bytes, Provenance] = {}  # by their models, which are the same for most ranks
    problems = []
    for name, content in summaries:
        if isinstance(content, str):
            problems.append(f"{name} is left out: {content}")
            continue
        head, tables = content
        source = head.provenance
        sources.setdefault(msgspec.json.encode((source.models, source.attributes)), source)
        head.provenance = replace(source, models={}, attributes={})
        read.append((name, head, tables))
    if not read:
        raise ReportError(f"None of {len(problems)} summaries can be read. {problems[0] if problems else ''}")
    if len({head.provenance.unit_of_work for _, head, _ in read}) > 1:
        raise ReportError("Some summaries count a GPU's work and some a CPU's: their times cannot be compared.")
    read.sort(key=lambda entry: (entry[1].rank, entry[0]))
    heads = [head for _, head, _ in read]
    joined = {table: _joined([tables[table] for *_, tables in read]) for table in TEXTS}
    steps = np.array([head.steps_of_a_rank for head in heads])
    phases, phase_ns = _matrix(joined["phases"], "kernel_ns", len(heads))
    ranges, range_ns = _matrix(joined["ranges"], "self_ns", len(heads))
    rows = joined["steps"].columns
    step = rows["step"]
    place = rows["place"]
    is_whole = np.array([not phase for phase in joined["steps"].names["phase"]], np.bool_)[rows["phase"]]
    by_step = {}
    for name in NUMBERS["steps"][1:]:
        cells = np.full((int(steps.max()), len(heads)), np.nan)
        counts = is_whole & (step >= 0) & (step < steps[place]) & (rows[name] >= 0)
        cells[step[counts], place[counts]] = rows[name][counts]
        by_step[name] = cells
    return Ranks(
        tuple(_rank(name, head) for name, head, _ in read),
        replace(
            heads[0].provenance,
            models=agreed(source.models for source in sources.values()),
            attributes=agreed(source.attributes for source in sources.values()),
        ),
        tuple(sorted({gpu for head in heads for gpu in head.provenance.gpus})),
        max(int(head.provenance.run.get("world_size") or 0) for head in heads),
        ([phase for (phase,) in phases], phase_ns / np.maximum(steps, 1)),
        ([(tuple(path.split(SEPARATOR)), phase) for path, phase in ranges], range_ns / np.maximum(steps, 1)),
        by_step["kernel_ns"] - by_step["communication_ns"],
        by_step["span_ns"],
        joined["exchanges"],
        (*sorted(problems), *_absent(heads)),
    )


def _rank(name: str, head: Head) -> Rank:
    short_name = name.removesuffix(SUMMARY).removesuffix(PARQUET).removesuffix(".summary")
    return Rank(short_name, head.rank, head.host, head.steps_of_a_rank)


def _joined(parts: Sequence[Table]) -> Joined:
    """Join the rows of a table of all ranks, in their order."""
    columns = {"place": np.repeat(np.arange(len(parts)), [len(part) for part in parts])}
    names: dict[str, list[str]] = {}
    for name in parts[0].texts:
        number_of: dict[str, int] = {}
        numbered = []
        for part in parts:
            texts = part.texts[name]
            numbers = [number_of.setdefault(text, len(number_of)) for text in texts.distinct]
            numbered.append(np.array(numbers, np.int64)[texts.number])
        names[name] = list(number_of)
        columns[name] = np.concatenate(numbered)
    for name in parts[0].numbers:
        columns[name] = np.concatenate([part.numbers[name] for part in parts])
    return Joined(columns, names)


def _matrix(rows: Joined, column: str, ranks: int) -> tuple[list[tuple[str, ...]], Int64s]:
    """Return the distinct texts of rows, sorted, and a column's sums by these and rank, int64 (texts, ranks)."""
    sizes = [max(len(names), 1) for names in rows.names.values()]
    codes, row = grouped(np.ravel_multi_index([rows.columns[name] for name in rows.names], sizes))
    sums = np.zeros((len(codes), ranks), np.int64)
    np.add.at(sums, (row, rows.columns["place"]), rows.columns[column])
    keys = []
    for numbers in np.stack(np.unravel_index(codes, sizes), axis=1).tolist():
        texts = zip(rows.names.values(), numbers, strict=True)
        keys.append(tuple(names[number] for names, number in texts))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return [keys[number] for number in order], sums[order]


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
