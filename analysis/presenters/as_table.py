"""Tables for a terminal, through Rich: the only presenter that imports it.

In a given width headings break, and the indent shrinks, before names are cut.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from ..document import Document, Table
from ..support.text import cells, ending, fit, printable
from ..vocabulary.modules import Shown
from . import cell_text

#: The least width of a name behind its indent; if this does not fit, the next is tried.
NAME_WIDTHS = (16, 12, 8, 5)
GAP = 1
#: The least room of a file's name in a heading.
LEAST_FILE = 16
#: The room of a bar; if it does not fit, the next is tried.
BARS = (cell_text.BAR, 24, 16, 8, 4)
#: What a note says after its first sentence.
FIRST_SENTENCE = re.compile(r"(?<=\.)(?<!\b[a-z]\.) (?=[A-Z]).*", re.DOTALL)
#: How a terminal is told of colours.
COLOURS = re.compile(r"\x1b\[[\d;]*m")
#: The least width of text that may be broken; it gets what the other columns leave.
PROSE = 30


def present(document: Document, *, width: int = 80, color: bool = False, full_names: bool = False) -> str:
    """Draw a document at this width; names get the width that numbers leave, and are shortened in the middle.

    A document of a limited number of lines loses rows that it can do without, then what notes advise, then empty
    lines.
    """
    text = _drawn(document, width, color, full_names)
    while document.lines and _lines(text, width) > document.lines:
        shorter = _shorter(document)
        if shorter is None:
            break
        document = shorter
        text = _drawn(document, width, color, full_names)
    while document.lines and _lines(text, width) > document.lines and "\n\n" in text:
        before, _, behind = text.rpartition("\n\n")
        text = f"{before}\n{behind}"
    return text


def _lines(text: str, width: int) -> int:
    """Return how many lines a terminal needs for a text, with those that it breaks."""
    return sum(max(1, -(-cells(line) // width)) for line in COLOURS.sub("", text).splitlines())


def _shorter(document: Document) -> Document | None:
    """Return a document with one row less, or with shorter notes: as little as can be done next."""
    *others, last = document.tables or (Table("", "", (), ()),)
    notes = tuple(FIRST_SENTENCE.sub("", note) for note in document.notes)
    if len(last.rows) > max(1, last.least):
        return replace(document, tables=(*others, _with_a_row_less(last)))
    if notes != document.notes:
        return replace(document, notes=notes)
    for place, table in reversed(list(enumerate(document.tables))):
        if len(table.rows) > table.least:
            behind = document.tables[place + 1 :]
            return replace(document, tables=(*document.tables[:place], _with_a_row_less(table), *behind))
    return None


def _with_a_row_less(table: Table) -> Table:
    return replace(table, rows=table.rows[:-1])


def _drawn(document: Document, width: int, color: bool, full_names: bool) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        no_color=not color,
        highlight=False,
        legacy_windows=False,
    )
    behind = []
    if document.accounting:
        behind.append(Text("\n".join(map(printable, document.accounting)), style="dim"))
    behind += (Text(f"Note: {printable(note)}", style="yellow") for note in document.notes)
    heading = _on_one_line(document.heading, width) if document.lines else printable(document.heading)
    with console.capture() as capture:
        console.print(Text(heading, style="bold"))
        if document.verdict:
            console.print(Padding(Text(printable(document.verdict)), (1, 0, 0, 0)))
        for table in cell_text.for_people(document):
            if table.rows or not document.lines:
                _print_table(console, table, full_names)
        for number, text in enumerate(behind):
            console.print(Padding(text, (int(number == 0), 0, 0, 0)))
        if document.next:
            together = _commands(document.next, width)
            console.print(Text(together if behind else f"\n{together}", style="dim"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _commands(commands: Iterable[str], width: int) -> str:
    """Return commands to copy, as many on a line as fit; none of them is broken."""
    lines = ["More:"]
    for command in map(printable, commands):
        longer = f"{lines[-1]}{' ·' * (lines != ['More:'])} {command}"
        if cells(longer) <= width or lines == ["More:"]:
            lines[-1] = longer
        else:
            lines.append(f"  {command}")
    return "\n".join(lines)


def _on_one_line(heading: str, width: int) -> str:
    """Return a heading with its file's name cut such that all of it fits on a line, if that is enough."""
    file, dot, others = map(printable, heading.partition(" · "))
    room = max(LEAST_FILE, width - cells(dot + others))
    return fit(f"{fit(file, room)}{dot}{others}", width)


def _print_table(console: Console, table: Table, full_names: bool) -> None:
    """Print a table between its answer in a sentence and its caption."""
    width = console.width
    console.print()
    if table.lead:
        console.print(Padding(Text(printable(table.lead)), (0, 0, 1, 0)))
    if table.title:
        console.print(Text(printable(cell_text.title(table)), style="bold"))
    texts, laid_out = _laid_out(table, width)
    drawn = RichTable(
        box=None,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
        title_justify="left",
        caption_justify="left",
        show_header=any(laid_out.heads),
    )
    is_of_prose = any(column.kind == "prose" for column in table.columns)
    for column, head in zip(table.columns, laid_out.heads, strict=True):
        right = cell_text.is_number(column)
        drawn.add_column(
            escape(head),
            justify="right" if right else "left",
            overflow="fold",
            header_style="dim",
            vertical="top" if is_of_prose else "bottom",
            no_wrap=column.kind != "prose" and (not full_names or right),
            max_width=laid_out.prose + max(0, width - laid_out.width) if column.kind == "prose" else None,
        )
    lines = _with_names(table, texts, laid_out, max(0, width - laid_out.width), full_names)
    for row, line in zip(table.rows, lines, strict=True):
        first, *others = map(printable, line)
        indent = " " * (laid_out.indent * row.indent)
        drawn.add_row(*map(Text, (indent + first, *others)), style="bold" if row.strong else "")
    console.width = max(width, laid_out.width)
    console.print(drawn)
    console.width = width
    if table.caption:
        console.print(Text(printable(table.caption), style="dim"))


def _with_names(
    table: Table, texts: Sequence[Sequence[str]], laid_out: Layout, left: int, full_names: bool
) -> Iterable[tuple[str, ...]]:
    """Shorten the names of each column together, so that they stay distinct.

    The classes of modules are written behind their names where there is room: `left` cells are free.
    """
    columns: list[Sequence[str]] = list(zip(*texts, strict=True))
    for place, room in laid_out.rooms.items() if columns else ():
        indents = [laid_out.indent * row.indent if place == 0 else 0 for row in table.rows]
        names = columns[place]
        if not full_names:
            names = shortened(names, [room - indent for indent in indents])
        widest = room
        column = []
        for row, name, indent in zip(table.rows, names, indents, strict=True):
            with_class = name + cell_text.behind(row.values[place])
            needed = indent + cells(with_class)
            has_room = needed <= room + left
            column.append(with_class if has_room else name)
            if has_room:
                widest = max(widest, needed)
        columns[place] = column
        left -= widest - room
    return zip(*columns, strict=True)


def shortened(names: Sequence[str], rooms: Sequence[int]) -> list[str]:
    """Cut each name to its room, of paths the beginning; different names that then look the same are numbered."""
    cut = [_cut(name, room) for name, room in zip(names, rooms, strict=True)]
    same: dict[str, dict[str, int]] = {}
    for name, text in zip(names, cut, strict=True):
        group = same.setdefault(text, {})
        group.setdefault(name, len(group) + 1)
    distinct = []
    for name, room, text in zip(names, rooms, cut, strict=True):
        mark = f"#{same[text][name]}" if len(same[text]) > 1 else ""
        mark *= room > len(mark)
        distinct.append(_cut(name, room - len(mark)) + mark)
    return distinct


def _cut(name: str, room: int) -> str:
    return (ending if isinstance(name, Shown) else fit)(name, room)


@dataclass(frozen=True, slots=True)
class Layout:
    """Headings, broken where they are too wide, the cells of a level's indent, the room of each name column."""

    heads: list[str]
    indent: int
    rooms: dict[int, int]
    prose: int  # the least room of text that may be broken
    width: int  # of all columns: wider than the screen where even the least room for names is too much
    cuts_no_name: bool  # whether every name has all the room it needs


def _laid_out(table: Table, width: int) -> tuple[list[list[str]], Layout]:
    """Return the texts and their layout; bars get shorter, and percentages lose decimals, if it then fits."""
    heads = [printable(head) for head in cell_text.headings(table)]
    exact = cell_text.texts(table, classes=False)
    with_classes = layout(table, cell_text.texts(table), heads, width)
    plain = layout(table, exact, heads, width)
    if with_classes.cuts_no_name and with_classes.prose >= plain.prose:
        plain = with_classes
    if plain.width <= width:
        return exact, plain
    bars = BARS if any(column.kind == "bar" for column in table.columns) else BARS[:1]
    for bar, decimals in product(bars, (1, 0)):
        narrow = cell_text.texts(table, decimals=decimals, classes=False, bar=bar)
        drawn = layout(table, narrow, heads, width)
        if drawn.width <= width:
            return narrow, drawn
    return exact, plain


def layout(table: Table, texts: Sequence[Sequence[str]], heads: Sequence[str], width: int) -> Layout:
    """Return the plainest layout in which no name is cut; if each cuts one, the one that leaves them the most.

    Text is broken where names would else be cut, and its words where these would be cut short. If none fits,
    return the narrowest: numbers are never cut, so a table can be too wide.
    """
    words = [head.replace(" ", "\n") for head in heads]
    broken = []
    for place, head in enumerate(heads):
        widest = max((len(line[place]) for line in texts), default=0)
        broken.append(words[place] if len(head) > widest else head)
    ways = ((list(heads), 2), (broken, 2), (broken, 1), (words, 1))
    longest_word = max(map(cells, _words_of_prose(table, texts)), default=0)
    most_name = NAME_WIDTHS[0]
    rooms = [(width, most_name), (max(longest_word, PROSE), most_name), *((PROSE, least) for least in NAME_WIDTHS)]
    tried = [_with_least(table, texts, *way, least, width, prose) for prose, least in rooms for way in ways]
    fitting = [candidate for candidate in tried if candidate.width <= width]
    fitting.sort(key=lambda candidate: (candidate.prose < longest_word, not candidate.cuts_no_name))
    return fitting[0] if fitting else tried[-1]


def _words_of_prose(table: Table, texts: Sequence[Sequence[str]]) -> Iterator[str]:
    for line in texts:
        for column, text in zip(table.columns, line, strict=True):
            yield from text.split() if column.kind == "prose" else ()


def _with_least(
    table: Table,
    texts: Sequence[Sequence[str]],
    heads: list[str],
    indent: int,
    least_name: int,
    width: int,
    prose: int,
) -> Layout:
    """Lay out a table: columns of names that need less than an even share leave the rest to the others."""
    head_widths = [max(map(cells, head.split("\n"))) for head in heads]
    needed = list(head_widths)
    least = list(head_widths)
    for row, line in zip(table.rows, texts, strict=True):
        for place, text in enumerate(line):
            before = indent * row.indent if place == 0 else 0
            text_width = cells(text)
            if table.columns[place].kind == "prose":
                text_width = min(text_width, prose)
            needed[place] = max(needed[place], before + text_width)
            least[place] = max(least[place], before + min(text_width, least_name))
    names = [place for place, column in enumerate(table.columns) if column.kind == "name"]
    names_need = sum(needed[place] for place in names)
    fixed = GAP * (len(needed) - 1) + sum(needed) - names_need
    left = width - fixed
    rooms: dict[int, int] = {}
    for served, place in enumerate(sorted(names, key=lambda place: needed[place])):
        rooms[place] = min(needed[place], max(least[place], left // (len(names) - served)))
        left -= rooms[place]
    return Layout(heads, indent, rooms, prose, fixed + sum(rooms.values()), names_need <= width - fixed)


def screen(terminal: bool) -> tuple[int, bool]:
    """Return the width, and whether to colour, that suit the terminal or a file."""
    if not terminal:
        return int(os.environ.get("COLUMNS") or 80), False
    return Console().width, "NO_COLOR" not in os.environ
