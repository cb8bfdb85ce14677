"""Tables as text: for the screen, for documents, for machines."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from profiling.commands import UsageError
from profiling.tables import Table

WIDEST = 1000
# Columns whose cells may be broken, and where.
PROSE = {"result": 18}
LATEX_SPECIAL = str.maketrans({character: f"\\{character}" for character in "&%$#_{}"})
TYPST_SPECIAL = re.compile(r"([\\#*_$@<>\[\]`~/-])")


class FormatError(UsageError):
    """The tables cannot be written in a format; the text is a sentence for the user."""


def as_screen(tables: Sequence[Table], about: Sequence[str]) -> str:
    """Return tables for a terminal: as wide as it is, or as wide as the numbers need."""
    rich = [_rich(table) for table in tables]
    boundless = Console(file=StringIO(), width=WIDEST)
    width = max([Console().width, *(boundless.measure(table).maximum for table in rich)])
    console = Console(file=StringIO(), highlight=False, width=width)
    for line in about:
        console.print(line, markup=False)
    for table in rich:
        console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def _rich(table: Table) -> RichTable:
    text = table.shown()
    rich = RichTable(box=SIMPLE_HEAD, title=table.title, title_justify="left", padding=(0, 1, 0, 0))
    for header in text.columns:
        # Headers are broken rather than numbers.
        broken = header.replace(" ", "\n")
        rich.add_column(broken, justify="right", no_wrap=header not in PROSE, max_width=PROSE.get(header))
    for row in text.itertuples(index=False):
        rich.add_row(*row)
    return rich


def as_markdown(tables: Sequence[Table], about: Sequence[str]) -> str:
    """Return tables in Markdown."""
    notes = "\n".join(f"- {line}" for line in about)
    return "\n\n".join([notes, *(f"**{table.title}**\n\n{_pipe_table(table.shown())}" for table in tables)]) + "\n"


def _pipe_table(text: pd.DataFrame) -> str:
    try:
        return str(text.to_markdown(index=False, disable_numparse=True, stralign="right"))
    except ImportError as error:
        raise FormatError("markdown needs tabulate: pip install tabulate") from error


def as_latex(tables: Sequence[Table], about: Sequence[str]) -> str:
    """Return tables in LaTeX (booktabs)."""
    notes = "".join(f"% {line}\n" for line in about)
    return notes + "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    text = table.shown().map(_latex_text).rename(columns=_latex_text)
    styler = _styler(text)
    return str(styler.to_latex(hrules=True, caption=_latex_text(table.title), column_format="r" * text.shape[1]))


def _styler(text: pd.DataFrame) -> Any:
    try:
        return text.style.hide(axis="index")
    except (AttributeError, ImportError) as error:
        raise FormatError("latex and typst need jinja2: pip install jinja2") from error


def _latex_text(text: str) -> str:
    return text.translate(LATEX_SPECIAL).replace("±", "$\\pm$")


def as_typst(tables: Sequence[Table], about: Sequence[str]) -> str:
    """Return tables in Typst."""
    notes = "".join(f"// {line}\n" for line in about)
    return notes + "\n".join(_typst(table) for table in tables)


def _typst(table: Table) -> str:
    styler = _styler(table.shown().map(_typst_text).rename(columns=_typst_text))
    if not hasattr(styler, "to_typst"):
        raise FormatError(f"typst needs pandas 3 or newer, and this is {pd.__version__}")
    body = str(styler.to_typst()).strip().removeprefix("#")
    return f"#figure(\n{body},\n  caption: [{_typst_text(table.title)}],\n)\n"


def _typst_text(text: str) -> str:
    return TYPST_SPECIAL.sub(r"\\\1", text)


def as_csv(tables: Sequence[Table], _about: Sequence[str]) -> str:
    """Return one table's numbers as CSV."""
    if len(tables) != 1:
        raise FormatError("csv holds one table; choose it with --table")
    return tables[0].lines.to_csv(index=False)


def as_json(tables: Sequence[Table], about: Sequence[str]) -> str:
    """Return the tables' numbers as JSON: an object with `about` and `tables`, each a title and lines."""
    whole = {
        "about": list(about),
        "tables": [{"title": table.title, "lines": _records(table)} for table in tables],
    }
    return json.dumps(whole, indent=1) + "\n"


def _records(table: Table) -> list[dict[str, Any]]:
    return list(json.loads(table.lines.to_json(orient="records", double_precision=12)))


FORMATS: Mapping[str, Callable[[Sequence[Table], Sequence[str]], str]] = {
    "table": as_screen,
    "markdown": as_markdown,
    "latex": as_latex,
    "typst": as_typst,
    "csv": as_csv,
    "json": as_json,
}
