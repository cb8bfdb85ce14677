"""Lay out a table in a given width: headings break, and the indent shrinks, before names are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..document import Row, Table
from ..support.text import cells, fit

#: The least width of a name behind its indent; if this does not fit, the next is tried.
NAME_WIDTHS = (16, 12, 8, 5)
GAP = 1
#: The largest width of text that may be broken.
PROSE = 18


@dataclass(frozen=True, slots=True)
class Layout:
    """Headings, broken where they are too wide, the cells of a level's indent, the room of each name column."""

    heads: list[str]
    indent: int
    rooms: dict[int, int]
    width: int  # of all columns: wider than the screen where even the least room for names is too much
    cuts_no_name: bool  # whether every name has all the room it needs

    def indented(self, row: Row, place: int) -> str:
        """Return what is written before a cell."""
        return " " * (self.indent * row.indent) if place == 0 else ""


def layout(table: Table, texts: Sequence[Sequence[str]], heads: Sequence[str], width: int) -> Layout:
    """Return the plainest layout in which no name is cut; if each cuts one, the one that leaves them the most.

    If none fits, return the narrowest: numbers are never cut, so a table can be too wide.
    """
    broken = [_broken(head, [line[place] for line in texts]) for place, head in enumerate(heads)]
    words = [head.replace(" ", "\n") for head in heads]
    ways = ((list(heads), 2), (broken, 2), (broken, 1), (words, 1))
    tried = [_laid_out(table, texts, *way, least, width) for least in NAME_WIDTHS for way in ways]
    uncut = next((candidate for candidate in tried if candidate.cuts_no_name), None)
    return uncut or next((candidate for candidate in tried if candidate.width <= width), tried[-1])


def _broken(head: str, values: Sequence[str]) -> str:
    """Break a heading that is wider than the cells below it."""
    return head.replace(" ", "\n") if len(head) > max(map(len, values), default=0) else head


def _laid_out(
    table: Table, texts: Sequence[Sequence[str]], heads: list[str], indent: int, name: int, width: int
) -> Layout:
    wide, least = (_widths(table, texts, heads, indent, most) for most in (None, name))
    needs = {place: wide[place] for place, column in enumerate(table.columns) if column.kind == "name"}
    fixed = GAP * (len(wide) - 1) + sum(wide) - sum(needs.values())
    rooms = _shared(needs, {place: least[place] for place in needs}, width - fixed)
    return Layout(heads, indent, rooms, fixed + sum(rooms.values()), sum(needs.values()) <= width - fixed)


def _widths(
    table: Table, texts: Sequence[Sequence[str]], heads: list[str], indent: int, most: int | None
) -> list[int]:
    """Return how wide each column is, of names with so many cells at most behind their indent."""
    widths = [max(map(cells, head.split("\n"))) for head in heads]
    for row, line in zip(table.rows, texts, strict=True):
        for place, text in enumerate(line):
            before = indent * row.indent if place == 0 else 0
            room = PROSE if table.columns[place].kind == "prose" else most
            room_taken = cells(text) if room is None else min(cells(text), room)
            widths[place] = max(widths[place], before + room_taken)
    return widths


def _shared(needs: dict[int, int], least: dict[int, int], left: int) -> dict[int, int]:
    """Share the width: columns that need less than an even share leave the rest to the others."""
    rooms = {}
    for served, place in enumerate(sorted(needs, key=lambda place: needs[place])):
        even = max(least[place], left // (len(needs) - served))
        rooms[place] = min(needs[place], even)
        left -= rooms[place]
    return rooms


def shortened(names: Sequence[str], rooms: Sequence[int]) -> list[str]:
    """Cut each name in the middle to its room; different names that then look the same are numbered."""
    cut = [fit(name, room) for name, room in zip(names, rooms, strict=True)]
    alike: dict[str, dict[str, int]] = {}
    for name, text in zip(names, cut, strict=True):
        group = alike.setdefault(text, {})
        group.setdefault(name, len(group) + 1)
    return [
        _numbered(name, room, alike[text][name]) if len(alike[text]) > 1 else text
        for name, room, text in zip(names, rooms, cut, strict=True)
    ]


def _numbered(name: str, room: int, number: int) -> str:
    """Cut a name and number it, if that leaves some of it."""
    mark = f"#{number}"
    return fit(name, room - len(mark)) + mark if room > len(mark) else fit(name, room)
