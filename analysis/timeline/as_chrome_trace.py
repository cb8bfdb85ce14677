"""Chrome's trace format, which Perfetto and chrome://tracing open: one JSON object, an event a line.

Times are microseconds from the first event, with nanoseconds behind the point. A tenth of a nanosecond is added
for readers that cut a product of floating-point numbers instead of rounding it, as Perfetto has done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..kernel_names.categories import categorize
from ..kernel_names.short import distinct_short_names
from ..support.text import fit
from ..trace import KERNEL, KINDS
from ..vocabulary import PATH_SEPARATOR
from .slices import Drawn, Slices
from .tracks import Place, Tracks

LONGEST_NAME, LONGEST_PATH = 200, 500

Details = Callable[[int], str]  # what is written about a row, in addition to its track and time


class Timeline:
    """The events of one report."""

    def __init__(self, drawn: Drawn, *, arrows: bool = True) -> None:
        self._trace, self._drawn, self._arrows = drawn.attribution.trace, drawn, arrows
        self._tracks = Tracks(drawn)
        self._first = min((int(slices.start_ns.min()) for slices in self._all() if len(slices)), default=0)
        self._paths = [_text(PATH_SEPARATOR.join(path), LONGEST_PATH) for path in self._drawn.paths] + ['""']

    def lines(self) -> Iterator[str]:
        """Return the file's text, line by line."""
        yield '{"traceEvents":[\n'
        separator = ""
        for event in self._events():
            yield f"{separator}{event}"
            separator = ",\n"
        about = {
            "file": self._trace.provenance.file,
            "tool": self._trace.provenance.tool,
            "begins_ns": self._first,
        }
        yield f'\n],\n"otherData":{json.dumps(about)}}}\n'

    def _events(self) -> Iterator[str]:
        drawn, tracks = self._drawn, self._tracks
        yield from tracks.metadata()
        details = self._range_details()
        yield from self._slices(drawn.ranges, tracks.ranges, details)
        yield from self._slices(drawn.start_end, tracks.start_end, details)
        yield from self._slices(drawn.projected, tracks.projected, self._projection_details())
        yield from self._with_arrows(drawn.calls, tracks.calls, self._call_details(), self._arrows_from())
        yield from self._with_arrows(drawn.work, tracks.work, self._work_details(), self._arrows_to())

    def _all(self) -> Sequence[Slices]:
        drawn = self._drawn
        return drawn.ranges, drawn.start_end, drawn.calls, drawn.work, drawn.projected

    def _slices(self, slices: Slices, tracks: dict[Place, Place], details: Details) -> Iterator[str]:
        for _, line, _ in self._drawn_lines(slices, tracks, details):
            yield line

    def _with_arrows(
        self,
        slices: Slices,
        tracks: dict[Place, Place],
        details: Details,
        arrows: Callable[[int, str], Iterator[str]],
    ) -> Iterator[str]:
        """Draw slices, and after each the ends of arrows that are fixed to it."""
        for row, line, place in self._drawn_lines(slices, tracks, details):
            yield line
            if self._arrows:
                yield from arrows(row, place)

    def _drawn_lines(
        self, slices: Slices, tracks: dict[Place, Place], details: Details
    ) -> Iterator[tuple[int, str, str]]:
        """Return each slice's row, its event, and the beginning of an event with its track and start."""
        start_us, start_rest_ns = np.divmod(slices.start_ns - self._first, 1000)
        lasts, more = np.divmod(slices.end_ns - slices.start_ns, 1000)
        columns = (slices.row, slices.group, slices.lane, start_us, start_rest_ns, lasts, more)
        for row, group, lane, us, ns, dur_us, dur_ns in zip(*(c.tolist() for c in columns), strict=True):
            pid, tid = tracks[group, lane]
            place = f'"pid":{pid},"tid":{tid},"ts":{us}.{ns:03d}1'
            yield row, f'{{"ph":"X",{place},"dur":{dur_us}.{dur_ns:03d}1,{details(row)}}}', place

    def _range_details(self) -> Details:
        ranges, domains = self._trace.ranges, self._trace.domains
        names = _texts(self._trace.names, np.unique(ranges.name_id).tolist())
        domain_names = [_text(domain.name or "default", LONGEST_NAME) for domain in domains]
        name, domain = ranges.name_id.tolist(), ranges.domain.tolist()
        return lambda row: (
            f'"name":{names[name[row]]},"cat":"range","args":{{"domain":{domain_names[domain[row]]}}}'
        )

    def _projection_details(self) -> Details:
        drawn = self._drawn
        name_of = drawn.name_of_place
        names = _texts(self._trace.names, np.unique(name_of).tolist())
        name, path = name_of.tolist(), drawn.path_of_place.tolist()
        place, kernel_ns = drawn.projections.instance.tolist(), drawn.projections.kernel_ns.tolist()
        return lambda row: (
            f'"name":{names[name[place[row]]]},"cat":"projected range",'
            f'"args":{{"path":{self._paths[path[place[row]]]},"kernel_ns":{kernel_ns[row]}}}'
        )

    def _call_details(self) -> Details:
        names = self._drawn.launch_names()
        return lambda row: f'"name":"{names[row]}","cat":"launch"'

    def _work_details(self) -> Details:
        work, drawn = self._trace.work, self._drawn
        named = self._work_names()
        name, path, grid = work.name_id.tolist(), drawn.path_of_work.tolist(), work.grid.tolist()
        how, phase, kind = drawn.how, drawn.phase, work.kind.tolist()
        return lambda row: (
            f'{named[name[row], kind[row]]},"path":{self._paths[path[row]]},"phase":"{phase[row]}",'
            f'"given":"{how[row]}","blocks":{grid[row]}}}'
        )

    def _work_names(self) -> dict[tuple[int, int], str]:
        """Return, per kind and name of work, its short name, its category, and its full name."""
        work = self._trace.work
        pairs = np.unique(np.stack([work.name_id.astype(np.int64), work.kind]), axis=1).T.tolist()
        full = [self._trace.names[name] for name, _ in pairs]
        short = distinct_short_names(full)
        category = [
            kernel if kind == KERNEL else KINDS[kind]
            for (_, kind), kernel in zip(pairs, categorize(full), strict=True)
        ]
        return {
            (
                name,
                kind,
            ): f'"name":{_text(a or b, LONGEST_NAME)},"cat":"{c}","args":{{"name":{_text(b, LONGEST_NAME)}'
            for (name, kind), a, b, c in zip(pairs, short, full, category, strict=True)
        }

    def _arrows_from(self) -> Callable[[int, str], Iterator[str]]:
        """Return what draws the beginnings of a launch's arrows: one for each piece of its work."""
        work, calls = self._trace.work, self._drawn.launches
        order = np.argsort(work.launch, kind="stable")
        low = np.searchsorted(work.launch[order], calls.row, "left").tolist()
        high = np.searchsorted(work.launch[order], calls.row, "right").tolist()
        rows = order.tolist()

        def arrows(call: int, place: str) -> Iterator[str]:
            for row in rows[low[call] : high[call]]:
                yield f'{{"ph":"s","id":{row + 1},{place},"name":"launch","cat":"launch"}}'

        return arrows

    def _arrows_to(self) -> Callable[[int, str], Iterator[str]]:
        launched = (self._trace.work.launch >= 0).tolist()

        def arrows(row: int, place: str) -> Iterator[str]:
            if launched[row]:
                yield f'{{"ph":"f","bp":"e","id":{row + 1},{place},"name":"launch","cat":"launch"}}'

        return arrows


def _texts(names: Sequence[str], numbers: Sequence[int]) -> dict[int, str]:
    return {number: _text(names[number], LONGEST_NAME) for number in numbers}


def _text(name: str, longest: int) -> str:
    """Return a name as a JSON string, safe to show and of bounded length."""
    return json.dumps(fit(name, longest), ensure_ascii=False)
