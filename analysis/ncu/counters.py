"""The CSV that ncu writes: a launch a row (`--page raw`), or a metric a row (the default, "details").

Both begin with a header row; its columns `ID`, `Process ID`, `Kernel Name` and `Grid Size` are read. The wide form
has a column for each metric and a second row with the units; the long form has the columns `Metric Name`, `Metric
Unit` and `Metric Value`. ncu's own lines (`==PROF== …`) and the program's may stand around the
rows. Units are scaled by powers of 1000 unless `--print-units base` (Nsight Compute CLI manual, "Metrics and
Units"); values have thousands separators.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from math import isfinite, prod
from pathlib import Path

from ..errors import NotAReport
from ..readers.safety import opened_file
from ..support.text import printable
from .tool import OWN_LINES, refusal

# Columns that say which launch a row is of; all others of the wide form are metrics.
_ABOUT = re.compile(
    r"ID|(?:Process|Host|Kernel) Name|Process ID|Kernel Time|Context|Stream|(?:Block|Grid) Size|Device|CC"
)
#: A launch with all of ncu's sections has some 2,000 values of ten characters.
LARGEST_FILE, LONGEST_LINE, MOST_VALUES = 128 << 20, 1 << 20, 1_000_000
LONGEST_NUMBER = 18
FEWER = "Profile fewer kernels, or collect fewer metrics."
_NAME, _UNIT, _VALUE = "Metric Name", "Metric Unit", "Metric Value"
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NANOSECONDS = {"n": 1, "u": 1e3, "m": 1e6, "": 1e9}
_TIMES = re.compile(r"([num]?)(?:s|sec|second)")
_PREFIXES = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SCALED = re.compile(r"([KMGTkmgt]?)(byte|bytes|B)(/s|/second)?")


class _TooMuchError(Exception):
    """What a file has more of than is read."""


@dataclass(slots=True)
class Launch:
    """One launch that ncu profiled; times are ns, bytes unscaled, other metrics in ncu's unit.

    `blocks` is the grid's size, 0 where the file does not say.
    """

    number: int
    process: str
    kernel: str
    blocks: int
    metrics: dict[str, float] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> list[Launch]:
    """Return the launches in a file of ncu's, in their order.

    Raises NotAReport for another file, or one without launches.
    """
    said: list[str] = []
    try:
        rows = _rows(_csv_lines(path, said))
        header = next(rows, None)
        if header is None:
            reason = f"{path} holds no CSV of ncu's: run ncu with --csv, and give what it writes."
            raise NotAReport(refusal("".join(said)) or reason)
        launches = _long(header, rows) if _NAME in header else _wide(header, rows)
    except OSError as error:
        raise NotAReport(f"{printable(str(path))} cannot be read: {error.strerror}.") from error
    except csv.Error as error:
        raise NotAReport(f"{path} cannot be read as ncu's CSV: {error}. Write it again with ncu --csv.") from error
    except _TooMuchError as error:
        raise NotAReport(f"{path} has {error}. {FEWER}") from error
    if not launches:
        raise NotAReport(refusal("".join(said)) or f"{path} holds no launch: ncu profiled no kernel.")
    return launches


def _csv_lines(path: Path, said: list[str]) -> Iterator[str]:
    """Yield the lines of CSV; append to `said` ncu's own messages, as far as a program needs them."""
    read, kept = 0, 0
    with TextIOWrapper(opened_file(path), newline="", encoding="utf-8", errors="replace") as file:
        while line := file.readline(LONGEST_LINE + 1):
            read += len(line)
            if read > LARGEST_FILE:
                raise _TooMuchError(f"more than {LARGEST_FILE >> 20} MiB")
            if line.startswith('"'):
                if len(line) > LONGEST_LINE:
                    raise _TooMuchError(f"a line of more than {LONGEST_LINE:,} characters")
                yield line
            elif line.startswith(OWN_LINES) and kept + len(line) <= LONGEST_LINE:
                kept += len(line)
                said.append(line)


def _rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Return the header and the rows of the same length; what others printed around them is left out."""
    width = each = values = 0
    for row in csv.reader(lines):
        if not width and {"ID", "Kernel Name"} <= set(row):
            width, each = len(row), 1 if _NAME in row else len(row)
        if width and len(row) == width:
            values += each
            if values > MOST_VALUES:
                raise _TooMuchError(f"more than {MOST_VALUES:,} values")
            yield row


def _wide(header: Sequence[str], rows: Iterator[list[str]]) -> list[Launch]:
    metrics = [
        (place, name)
        for place, name in enumerate(header)
        if not _ABOUT.fullmatch(name) and "_Range:PL_Type" not in name
    ]
    first = next(rows, [""] * len(header))
    has_units = not first[header.index("ID")].strip()
    units = first if has_units else [""] * len(header)
    launches = []
    for row in rows if has_units else [first, *rows]:
        launch = _launch(dict(zip(header, row, strict=True)))
        for place, name in metrics:
            _take(launch, name, units[place], row[place])
        launches.append(launch)
    return launches


def _long(header: Sequence[str], rows: Iterator[list[str]]) -> list[Launch]:
    launches: dict[tuple[str, str], Launch] = {}
    for row in rows:
        values = dict(zip(header, row, strict=True))
        if not values["ID"].strip():
            continue
        launch = launches.setdefault((values.get("Process ID", ""), values["ID"]), _launch(values))
        if values[_NAME]:
            _take(launch, values[_NAME], values.get(_UNIT, ""), values.get(_VALUE, ""))
    return list(launches.values())


def _launch(values: Mapping[str, str]) -> Launch:
    number = values["ID"].replace(",", "")
    if not number.isdecimal() or len(number) > LONGEST_NUMBER:
        raise NotAReport(f"A row of ncu's CSV has the ID {printable(values['ID'])!r}, which is not a number.")
    sides = re.findall(r"\d+", values.get("Grid Size", ""))[:3]
    blocks = prod(int(side[:LONGEST_NUMBER]) for side in sides) if sides else 0
    return Launch(int(number), values.get("Process ID", ""), values["Kernel Name"], blocks)


def _take(launch: Launch, name: str, unit: str, text: str) -> None:
    """Keep a metric's value in its base unit; text and what ncu could not measure (`n/a`) is left out."""
    text = text.strip()
    if re.fullmatch(r"-?\d+,\d{1,2}", text):
        raise NotAReport(
            f"{name} is {text} in ncu's CSV, with a decimal comma: write it again with the environment LC_ALL=C."
        )
    if not _NUMBER.fullmatch(text) or not isfinite(float(text.replace(",", ""))):
        return
    unit, factor = unit.strip(), 1.0
    if time := _TIMES.fullmatch(unit):
        unit, factor = "ns", _NANOSECONDS[time[1]]
    elif scaled := _SCALED.fullmatch(unit):
        unit, factor = f"byte{'/s' if scaled[3] else ''}", _PREFIXES[scaled[1].lower()]
    launch.metrics[name] = float(text.replace(",", "")) * factor
    launch.units[name] = unit
