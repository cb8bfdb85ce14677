"""LaTeX tables, one format, with the rules of the booktabs package.

Characters that pdfLaTeX has no glyph for are written as commands where the table below has one; names in other
scripts need XeLaTeX or LuaLaTeX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..document import Document, Table
from ..support.text import printable
from . import cell_text

ESCAPED = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': "''",
        "'": r"\textquotesingle{}",
        "`": r"\textasciigrave{}",
        "[": "{[}",
        "]": "{]}",
        "µ": r"\textmu{}",
        "…": r"\dots{}",
        "–": "--",
        "−": "$-$",
        "·": r"$\cdot$",
        "×": r"$\times$",
        "→": r"$\rightarrow$",
        "²": r"$^2$",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
    }
)

HYPHENS = re.compile("-(?=-)")


def present(document: Document) -> str:
    """Write each table as a float with its caption, ready to be included in a document."""
    parts = cell_text.laid_out(document, safe, _float, r"\noindent \textbf{%s}", r"\noindent %s")
    return "\n\n".join(("% \\usepackage{booktabs}", *parts)) + "\n"


def safe(text: str) -> str:
    """Escape LaTeX's special characters; adjacent hyphens stay hyphens."""
    return HYPHENS.sub("-\0", printable(text)).translate(ESCAPED).replace("\0", "{}")


def _float(table: Table) -> Iterator[str]:
    aligned = "".join("r" if cell_text.is_number(column) else "l" for column in table.columns)
    heads = [safe(heading) for heading in cell_text.headings(table)]
    first, *rows = (
        " & ".join(cells) + r" \\"
        for cells in (heads, *cell_text.grid(table, safe, r"\textbf{%s}", "\\quad ".__mul__))
    )
    caption = [f"\\par\\smallskip {{\\footnotesize {safe(table.caption)}}}"] if table.caption else []
    lines = ("\\begin{table}[ht]", "\\centering", f"\\caption{{{safe(cell_text.title(table))}}}")
    tabular = (f"\\begin{{tabular}}{{{aligned}}}", "\\toprule", first, "\\midrule", *rows, "\\bottomrule")
    yield "\n".join([*lines, *tabular, "\\end{tabular}", *caption, "\\end{table}"])
