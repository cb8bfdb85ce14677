"""Tables for a terminal, through Rich: the only presenter that imports it."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from ..document import Document, Table
from ..support.text import cells, printable
from . import cell_text
from .layout import GAP, PROSE, Layout, layout, shortened


def present(document: Document, *, width: int = 80, color: bool = False, full_names: bool = False) -> str:
    """Draw a document at this width; names get the width that numbers leave, and are shortened in the middle."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        no_color=not color,
        highlight=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(Text(printable(document.heading), style="bold"))
        if document.verdict:
            console.print(Padding(Text(printable(document.verdict)), (1, 0, 0, 0)))
        for table in cell_text.for_people(document):
            _print_table(console, table, full_names)
        if document.accounting:
            console.print(Padding(Text("\n".join(map(printable, document.accounting)), style="dim"), (1, 0, 0, 0)))
        for note in document.notes:
            console.print(Padding(Text(f"Note: {printable(note)}", style="yellow"), (1, 0, 0, 0)))
        if document.next:
            _print_next(console, document.next)
    return _without_trailing_blanks(capture.get())


def _print_table(console: Console, table: Table, full_names: bool) -> None:
    """Print a table between its answer in a sentence and its caption."""
    width = console.width
    console.print()
    if table.lead:
        console.print(Padding(Text(printable(table.lead)), (0, 0, 1, 0)))
    if table.title:
        console.print(Text(printable(cell_text.title(table)), style="bold"))
    drawn, least = _drawn(table, width, full_names)
    console.width = max(width, least)
    console.print(drawn)
    console.width = width
    if table.caption:
        console.print(Text(printable(table.caption), style="dim"))


def _print_next(console: Console, commands: Sequence[str]) -> None:
    """Print commands to copy: on one line if they fit, else one per line, never broken."""
    together = f"Next: {' · '.join(map(printable, commands))}"
    apart = ["Next:", *(f"  {printable(command)}" for command in commands)]
    lines = [together] if len(together) <= console.width else apart
    console.print(Text("\n" + "\n".join(lines), style="dim"), soft_wrap=True)


def _drawn(table: Table, width: int, full_names: bool) -> tuple[RenderableType, int]:
    """Return the table, and the width that its numbers need."""
    texts, laid_out = _laid_out(table, width)
    drawn = RichTable(
        box=None, pad_edge=False, padding=(0, GAP, 0, 0), title_justify="left", caption_justify="left"
    )
    for column, head in zip(table.columns, laid_out.heads, strict=True):
        right = cell_text.is_number(column)
        drawn.add_column(
            escape(head),
            justify="right" if right else "left",
            overflow="fold",
            header_style="dim",
            vertical="bottom",
            no_wrap=column.kind != "prose" and (not full_names or right),
            max_width=PROSE if column.kind == "prose" else None,
        )
    lines = texts if full_names else _shortened(table, texts, laid_out)
    lines = _with_classes(table, lines, laid_out, width)
    for row, line in zip(table.rows, lines, strict=True):
        cells_ = [Text(laid_out.indented(row, place) + printable(text)) for place, text in enumerate(line)]
        drawn.add_row(*cells_, style="bold" if row.strong else "")
    return drawn, laid_out.width


def _laid_out(table: Table, width: int) -> tuple[list[list[str]], Layout]:
    """Return the texts and their layout; percentages lose their decimals where that makes the table fit."""
    heads = [printable(head) for head in cell_text.headings(table)]
    exact = cell_text.texts(table, classes=False)
    with_classes = layout(table, cell_text.texts(table), heads, width)
    plain = with_classes if with_classes.cuts_no_name else layout(table, exact, heads, width)
    if plain.width <= width:
        return exact, plain
    rounded = cell_text.texts(table, decimals=0, classes=False)
    narrow = layout(table, rounded, heads, width)
    return (rounded, narrow) if narrow.width <= width else (exact, plain)


def _shortened(table: Table, texts: Sequence[Sequence[str]], laid_out: Layout) -> list[list[str]]:
    """Shorten the names of each column together, so that they stay distinct."""
    columns = [list(column) for column in zip(*texts, strict=True)]
    for place, room in laid_out.rooms.items() if columns else ():
        rooms = [room - len(laid_out.indented(row, place)) for row in table.rows]
        columns[place] = shortened(columns[place], rooms)
    return [list(line) for line in zip(*columns, strict=True)]


def _with_classes(table: Table, lines: Sequence[Sequence[str]], laid_out: Layout, width: int) -> list[list[str]]:
    """Write the classes of modules behind their names where there is room."""
    columns, left = [list(column) for column in zip(*lines, strict=True)], max(0, width - laid_out.width)
    for place, column_room in laid_out.rooms.items() if columns else ():
        widest = column_room
        for number, row in enumerate(table.rows):
            text = columns[place][number] + cell_text.behind(row.values[place])
            needed = len(laid_out.indented(row, place)) + cells(text)
            if needed <= column_room + left:
                columns[place][number], widest = text, max(widest, needed)
        left -= widest - column_room
    return [list(line) for line in zip(*columns, strict=True)]


def _without_trailing_blanks(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def screen(terminal: bool) -> tuple[int, bool]:
    """Return the width, and whether to colour, that suit the terminal or a file."""
    if not terminal:
        return int(os.environ.get("COLUMNS") or 80), False
    return Console().width, "NO_COLOR" not in os.environ
