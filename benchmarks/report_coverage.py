"""Which of the configurations that a command measures are in the files of results, and when they were measured."""

import itertools
import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from nvtx_kernels.profiling.benchmark import parser
from nvtx_kernels.profiling.show.frame_tables import word
from nvtx_kernels.profiling.show.frames import CONFIGURATION, sessions
from nvtx_kernels.profiling.sweep import results
from nvtx_kernels.profiling.sweep.lists import STUDIES
from report_parts import Command, selecting

Row = dict[str, Any]
MINUTE = timedelta(minutes=1)
NO_OPTIMIZER = ("forward", "forward-backward")


class Coverage:
    """What a command measures, and the rows that answer it."""

    def __init__(self, command: Command, rows: Sequence[Row], *, tiny: bool) -> None:
        asked = vars(parser().parse_args(selecting(command, tiny=tiny)))
        study = STUDIES[asked["study"]]
        lists = {name: asked[name] or study.lists.get(name) for name in CONFIGURATION if name in asked}
        lists["capture"] = asked["captures"] or study.captures
        self.lists = {name: list(values) for name, values in lists.items() if isinstance(values, list | tuple)}
        self.rows = [row for row in rows if self._selects(row["cell"])]
        self._final = [row for row in self.rows if row["status"] in results.FINAL]
        done = [{name: row["cell"][name] for name in self.lists} for row in self._final]
        self.missing = [cell for cell in self._cells() if cell not in done]

    def _selects(self, cell: Row) -> bool:
        return all(cell[name] in (*values, None) for name, values in self.lists.items())

    def _cells(self) -> Iterator[Row]:
        made = []
        for values in itertools.product(*self.lists.values()):
            cell = dict(zip(self.lists, values, strict=True))
            if cell.get("mode") in NO_OPTIMIZER and "optimizer" in cell:
                cell["optimizer"] = None
            if cell not in made:
                made.append(cell)
                yield cell

    @property
    def configurations(self) -> int:
        """Return how many configurations have a result, repeats counted once."""
        return len({json.dumps([row["cell"][name] for name in self.lists]) for row in self._final})

    def varies(self, name: str) -> bool:
        """Return whether results differ in a setting."""
        return len({row["cell"][name] for row in self._final}) > 1

    def sentences(self, *, complete: bool) -> Iterator[str]:
        """Yield what was measured and when, and what was not; of a selection only when."""
        when = f"{'; '.join(map(_span, sessions(row['started'] for row in self._final)))} (UTC)"
        if not complete:
            yield f"The tables hold this command's rows, and others' that differ in a setting: measured {when}."
            return
        whole = self.configurations + len(self.missing)
        yield f"{self.configurations} of the command's {whole} configurations were measured, {when}."
        if self.missing:
            yield f"Without a result: {'; '.join(self._named())}."

    def _named(self) -> list[str]:
        """Name what is missing, configurations that differ in the last setting together."""
        names = [name for name, values in self.lists.items() if len(values) > 1]
        groups: dict[tuple[str, ...], list[str]] = {}
        for cell in self.missing:
            before = tuple(_named(name, cell[name]) for name in names[:-1])
            groups.setdefault(before, []).append(word(cell[names[-1]]))
        last = CONFIGURATION[names[-1]]
        return [" ".join([*before, last, ", ".join(values)]) for before, values in groups.items()]


def _named(name: str, value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{CONFIGURATION[name]} {word(value)}"


def _span(session: tuple[datetime, datetime]) -> str:
    first, last = session
    return f"{first:%Y-%m-%d %H:%M}" + ("" if last - first < MINUTE else f" to {last:%H:%M}")
